r"""Exact conversions between mu-GDP and (epsilon, delta), in log space.

A mechanism is mu-GDP when telling two neighbouring data sets apart from its output is no easier
than telling ``N(0, 1)`` from ``N(mu, 1)``. It is then (epsilon, delta(epsilon))-DP with

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),            (exact, both ways)

(Balle & Wang 2018; Dong, Roth & Su 2019). With ``x = eps/mu - mu/2`` and the Mills ratio
``m(x) = Phi(-x)/phi(x)`` this is ``phi(x) (m(x) - m(x + mu))``, which neither underflows nor cancels
badly; `log_delta` evaluates that. Inversions are rounded against the user: a returned epsilon or
delta is never too small, a returned mu never too large.

>>> round(mu_from_epsilon_delta(1.0, 1e-5), 6)
0.268051
>>> round(epsilon_from_mu(1.0, 1e-5), 6)
4.377178

**Other people's numbers**: zCDP and RDP in and out of (epsilon, delta) and mu-GDP.

Nothing in Sordino is calibrated through these: each conversion to (epsilon, delta) loses a little
(22 to 45 % more noise at the papers' settings). They are here so that a guarantee stated elsewhere
can be compared with ours.

**Discrete noise**: how far it is from Gaussian noise that was rounded (proved, and tiny).

Let Q be the discrete Gaussian with parameter S on the integers, and P the law of a Gaussian of
variance ``S - 1/12`` rounded to the nearest integer. Rounding adds just that twelfth to the variance
(Sheppard), so the two agree but for terms of order ``S^-2``: for every integer k, with
``c = S - 1/12`` and ``X = k^2 / c``,

    -(X^2/2880 + 1/50) / c^2  <=  log P(k)/Q(k)  <=  (X/288 + 1/80) / c^2         (S >= 4)

and ``KL(Q || P) <= 1 / (2048 S^4)`` (docs/privacy.md has the derivation; the truth is 3e-3 of that).
It adds up over draws, also where later sums depend on earlier releases (chain rule), and Pinsker's
inequality gives the total variation

    tv  <=  sqrt(draws) / (64 S^2).

To whole numbers, adding rounded Gaussian noise is rounding after adding Gaussian noise: it has the
Gaussian guarantee. With discrete noise instead, each probability changes by at most tv, so that a
run that would be (epsilon, delta)-DP is (epsilon, delta + (1 + e^epsilon) tv)-DP.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from sordino._base.errors import SordinoError, require_fraction, require_positive

Array = NDArray[np.float64]

MAX_MU = 1e4
MIN_MU = 1e-12
# Relative slack of every inversion: far above the 1e-14 evaluation error of `log_delta`, far
# below anything a user could notice.
SLACK = 1e-11
_NODES, _WEIGHTS = leggauss(20)
# The bounds on discrete noise are proved from here on.
LEAST_VARIANCE = 4


def _mills(x: Array) -> Array:
    value: Array = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    return value


def _one_minus_x_mills(x: Array) -> Array:
    """``1 - x m(x) = -m'(x)``, by its asymptotic series where the difference would cancel."""
    direct = 1 - x * _mills(x)
    far = np.maximum(x, 50.0) ** -2
    series = far * (1 - far * (3 - far * (15 - far * (105 - 945 * far))))
    return np.where(x > 50.0, series, direct)


def log_delta(epsilon: float, mu: float) -> float:
    """Natural logarithm of delta(epsilon) for a mu-GDP mechanism; ``-inf`` for ``mu == 0``."""
    return float(log_deltas(np.array([epsilon]), mu)[0])


def log_deltas(epsilon: Array, mu: float) -> Array:
    """`log_delta` at many epsilons."""
    if mu == 0:
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(-np.expm1(epsilon), 0.0))
    x = epsilon / mu - mu / 2
    near = np.maximum(x, -5.0)
    if mu < 0.5:  # m(x) - m(x + mu) as an integral of -m', free of cancellation
        points = near[:, None] + mu * (_NODES + 1) / 2
        gap = mu / 2 * (_one_minus_x_mills(points) @ _WEIGHTS)
    else:
        gap = _mills(near) - _mills(near + mu)
    mills_form = -near * near / 2 - 0.5 * math.log(2 * math.pi) + np.log(gap)
    # Where delta is close to 1 (or mu is large) the plain form does not cancel.
    lead = log_ndtr(-x)
    ratio = np.minimum(epsilon + log_ndtr(-x - mu) - lead, -1e-300)
    plain_form = lead + np.log1p(-np.exp(np.where(x < -5, ratio, -1.0)))
    return np.where(x < -5, plain_form, mills_form)


def delta_from_mu(epsilon: float, mu: float) -> float:
    """delta at `epsilon` of a mu-GDP mechanism, rounded up."""
    return min(1.0, math.exp(log_delta(epsilon, mu)) * (1 + SLACK))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 at which a mu-GDP mechanism has delta(epsilon) <= `delta`, rounded up."""
    require_fraction("delta", delta)
    if mu < 0 or math.isnan(mu):
        raise SordinoError(f"mu must be a number of at least 0, got {mu!r}")
    target = math.log(delta)
    if mu == 0 or log_delta(0.0, mu) <= target:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-9
    while log_delta(high, mu) > target:
        high *= 2
    return _bisect(lambda eps: log_delta(eps, mu) <= target, 0.0, high) * (1 + SLACK)


def mu_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Largest mu whose mu-GDP mechanisms are all (`epsilon`, `delta`)-DP, rounded down."""
    require_positive("epsilon", epsilon)
    require_fraction("delta", delta)
    target = math.log(delta)
    if log_delta(epsilon, MAX_MU) <= target:
        raise SordinoError(
            f"epsilon {epsilon:g} at delta {delta:g} is so large that it protects nobody; "
            "ask for an epsilon below 1e6"
        )
    if log_delta(epsilon, MIN_MU) > target:
        raise SordinoError(
            f"epsilon {epsilon:g} at delta {delta:g} is so small that no finite noise reaches it; "
            "ask for more"
        )
    return _bisect(lambda mu: log_delta(epsilon, mu) > target, MIN_MU, MAX_MU, low_end=True) * (
        1 - SLACK
    )


def _bisect(
    passed: Callable[[float], bool], low: float, high: float, *, low_end: bool = False
) -> float:
    """Boundary of a monotone predicate, to full float precision; the end where it is safe."""
    for _ in range(200):
        middle = (low + high) / 2 if low == 0 or high / low < 4 else math.sqrt(low * high)
        if not low < middle < high:
            break
        if passed(middle):
            high = middle
        else:
            low = middle
    return low if low_end else high


def zcdp_from_mu(mu: float) -> float:
    """rho of the zCDP guarantee implied by mu-GDP: ``mu^2 / 2`` (no inverse exists in general)."""
    if not mu >= 0:
        raise SordinoError(f"mu must be a number of at least 0, got {mu!r}")
    return mu * mu / 2


def mu_of_gaussian_with_zcdp(rho: float) -> float:
    """mu of a *Gaussian* mechanism that was stated as rho-zCDP: ``sqrt(2 rho)``.

    True only where the other side's mechanism is Gaussian; zCDP alone does not imply GDP.
    """
    return math.sqrt(2 * require_positive("rho", rho))


def zcdp_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Largest rho that Bun & Steinke's ``eps = rho + 2 sqrt(rho L)`` turns into (epsilon, delta).

    ``eps^2 / (sqrt(L + eps) + sqrt(L))^2`` with ``L = ln(1/delta)``: the form without cancellation
    (the printed plus sign of one paper gives 81.49 instead of 0.196 at (4, 1e-8)).
    """
    L = -math.log(require_fraction("delta", delta))
    require_positive("epsilon", epsilon)
    return (epsilon / (math.sqrt(L + epsilon) + math.sqrt(L))) ** 2


def epsilon_from_zcdp(rho: float, delta: float, *, tight: bool = True) -> float:
    """epsilon of a rho-zCDP mechanism: Canonne, Kamath & Steinke's optimum, or Bun & Steinke's."""
    L = -math.log(require_fraction("delta", delta))
    require_positive("rho", rho)
    if not tight:
        return rho + 2 * math.sqrt(rho * L)

    def at(log_order: float) -> float:
        # Every order gives a valid epsilon, so an inexact search is never unsafe.
        return epsilon_from_rdp(1 + math.exp(log_order), rho * (1 + math.exp(log_order)), delta)

    from scipy.optimize import minimize_scalar  # here, because it takes long to import

    best = minimize_scalar(at, bounds=(-12, 25), method="bounded", options={"xatol": 1e-10})
    return float(best.fun)


def epsilon_from_rdp(order: float, rdp: float, delta: float) -> float:
    """epsilon of one RDP point ``(order, rdp)``: ``rdp + (L + (a-1) ln(1-1/a) - ln a)/(a-1)``."""
    L = -math.log(require_fraction("delta", delta))
    if not order > 1:
        raise SordinoError(f"an RDP order must be greater than 1, got {order!r}")
    extra = (L + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (order - 1)
    return max(0.0, rdp + extra)


def rounding_distance(least_variance: int, draws: int) -> float:
    """Total variation between discrete and rounded Gaussian noise of variance 1/12 less, rounded up.

    Args:
      least_variance: the smallest parameter S of any draw, in squared lattice steps.
      draws: how many draws of noise a run makes in all, coordinates times steps.
    """
    if least_variance < LEAST_VARIANCE:
        raise SordinoError(
            f"discrete noise is compared with rounded noise from variance {LEAST_VARIANCE} on, got "
            f"{least_variance}"
        )
    return min(1.0, math.sqrt(draws) / 64 / float(least_variance) ** 2 * (1 + 1e-12))

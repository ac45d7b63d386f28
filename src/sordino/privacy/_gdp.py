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

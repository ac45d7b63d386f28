r"""Influence sequences: how much noise in step t hurts the final model (papers/04, section 1.3).

To second order the expected final loss is ``bias + sum_t q_t sigma_t^2``. Each function here gives
``log q_t`` for t = 1..T as an array (T,); only ratios matter, so constants such as ``(G/N)^2`` are
left out unless said otherwise. Everything stays in logarithms: ``0.5^5000`` is no float.

All arguments must be public: constants enforced record by record, or estimates from `PublicData`.

>>> np.exp(gd_pl(mu=1.0, M=10.0, eta=0.1, T=3)) * 100  # eta = 1/M: gamma^(T-t), gamma = 0.9
array([0.81, 0.9 , 1.  ])

**Estimates.** Influence estimated on public data is noisy and may be negative early on. `fitted_expinfl`,
`fitted_momexpinfl` and `smoothed` turn a raw estimate into a usable ``log q``; `exponential_fit` replaces
a computed schedule by ``sigma_0 e^(-kt)`` and brings it back to the budget, which the paper forgot
(papers/04, sections 1.3 and 1.5, and erratum l: such a fit can spend 194 times R).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino.parts.schedules._allocate import allocate

Array = NDArray[np.float64]
# Influence that is exactly 0 asks for infinite noise; this stands for it and stays a finite number.
_NOTHING = 1e6


def uniform(T: int) -> Array:
    """``q_t = 1``: noise hurts the same in every step."""
    return np.zeros(require_count("T", T))


def gd_pl(mu: float, M: float, eta: ArrayLike, T: int) -> Array:
    """Gradient descent on an M-smooth loss with PL constant mu (Eq. 7, for any learning rates).

    ``q_t = eta_t^2 prod_{i>t} c_i`` with ``c_i = 1 - 2 mu eta_i (1 - M eta_i / 2)``; `eta` is one
    learning rate or one per step, at most 2/M. With ``eta = 1/M`` this is ``gamma^(T-t)``,
    ``gamma = 1 - mu/M``. The learning rates must be those in use: a gamma of ``1 - mu/M`` with much
    smaller steps made training diverge.
    """
    T = require_count("T", T)
    require_positive("M", M)
    require_positive("mu", mu, maximum=M)
    rates = np.broadcast_to(np.asarray(eta, np.float64), (T,))
    if not ((rates > 0) & (rates * M <= 2)).all():
        raise SordinoError(f"learning rates must be greater than 0 and at most 2/M = {2 / M:g}")
    with np.errstate(divide="ignore"):
        # c = (1 - mu eta)^2 + mu (M - mu) eta^2, a sum of squares: no cancellation, never below 0.
        log_c = np.log((1 - mu * rates) ** 2 + mu * (M - mu) * rates**2)
    later = np.append(np.cumsum(log_c[:0:-1])[::-1], 0.0)
    return _finite(2 * np.log(rates) + later)


def geometric(gamma: float, T: int) -> Array:
    """``q_t = gamma^(T-t)``, 0 < gamma <= 1."""
    require_positive("gamma", gamma, maximum=1)
    return math.log(gamma) * np.arange(require_count("T", T) - 1, -1, -1.0)


def quadratic(eigenvalues: ArrayLike, eta: float, T: int) -> Array:
    """Gradient descent on a quadratic loss with these Hessian eigenvalues: exact.

    ``q_t = (eta^2 / 2) sum_j lam_j (1 - eta lam_j)^(2(T-t))``; times ``(G/N)^2`` and with the same
    weight for every coordinate this is the expected final loss per ``sigma_t^2``.
    """
    T = require_count("T", T)
    lam = _eigenvalues(eigenvalues)
    require_positive("eta", eta)
    with np.errstate(divide="ignore"):
        shrink = np.log(np.abs(1 - eta * lam))
    log_q = np.empty(T)
    after = np.arange(T - 1, -1, -1.0)  # steps after t, which shrink its noise
    for block in np.array_split(np.arange(T), max(1, T * lam.size // 4_000_000)):
        with np.errstate(invalid="ignore"):
            power = np.where(after[block, None] == 0, 0.0, 2 * after[block, None] * shrink)
        log_q[block] = logsumexp(power + np.log(lam), axis=1)
    return _finite(log_q + 2 * math.log(eta) - math.log(2))


def momentum_bound(beta: float, gamma: float, T: int) -> Array:
    """Bias-corrected momentum, from the corrected convergence bound (its term U3), exact and O(T).

    ``w_s = gamma^(T-s) ((1-beta) / (1-beta^s))^2``, ``q_t = w_t + beta^2 q_{t+1}``. gamma is
    ``1 - eta_0 / (2 kappa)`` for learning rate ``eta_0 / (2 M)`` (papers/04, erratum g).
    """
    T = require_count("T", T)
    _momentum(beta)
    s = np.arange(1.0, T + 1)
    log_w = geometric(gamma, T) + 2 * (math.log1p(-beta) - _log_one_minus_power(beta, s))
    if beta == 0:
        return log_w
    # q_t = beta^(-2t) sum_{s>=t} beta^(2s) w_s
    decay = 2 * math.log(beta) * s
    return np.logaddexp.accumulate((log_w + decay)[::-1])[::-1] - decay


class MomentumResponse(NamedTuple):
    """How noise of each step, and the start, reach the last iterate of momentum on a quadratic.

    Attributes:
      log_q: ``q_t = 1/2 sum_j lam_j h_tj^2`` (T,).
      impulse: ``h_tj``, the last iterate's response to a unit of gradient noise in step t (T, J).
      bias: what is left of the initial distance to the optimum, per eigenvalue (J,).
    """

    log_q: Array
    impulse: Array
    bias: Array


def momentum_quadratic(eigenvalues: ArrayLike, eta: float, beta: float, T: int) -> MomentumResponse:
    """Bias-corrected momentum on a quadratic loss with these Hessian eigenvalues: exact.

    Adjoint of ``v = beta v + (1-beta) g; theta -= eta v / (1-beta^t)``, per eigenvalue: from
    ``(a, b) = (1, 0)``, for t = T..1: ``d = b - a eta / (1-beta^t)``, ``h_t = (1-beta) d``,
    ``(a, b) = (a + (1-beta) lam d, beta d)``; the last a is the bias.
    """
    T = require_count("T", T)
    lam = _eigenvalues(eigenvalues)
    require_positive("eta", eta)
    _momentum(beta)
    rates = eta * np.exp(-_log_one_minus_power(beta, np.arange(1.0, T + 1)))
    a, b = np.ones_like(lam), np.zeros_like(lam)
    scale = np.zeros_like(lam)  # logarithm of what a and b were divided by, lest they underflow
    responses, scales = np.empty((T, lam.size)), np.empty((T, lam.size))
    for t in range(T - 1, -1, -1):
        d = b - a * rates[t]
        responses[t], scales[t] = (1 - beta) * d, scale
        a, b = a + (1 - beta) * lam * d, beta * d
        size = np.maximum(np.abs(a), np.abs(b))
        size[size == 0] = 1.0
        a, b, scale = a / size, b / size, scale + np.log(size)
    with np.errstate(divide="ignore"):
        log_h = np.log(np.abs(responses)) + scales
    log_q = logsumexp(2 * log_h + np.log(lam), axis=1) - math.log(2)
    return MomentumResponse(_finite(log_q), responses * np.exp(scales), a * np.exp(scale))


def expinfl(k: float, T: int) -> Array:
    """``log q_t = k t``: noise falls as ``sigma_t ~ e^(-kt/4)``."""
    if not math.isfinite(k):
        raise SordinoError(f"k must be a finite number, got {k!r}")
    return k * np.arange(1.0, require_count("T", T) + 1)


def momexpinfl(c1: float, c2: float, k: float, T: int) -> Array:
    """``q_t = c1 e^(-kt) + c2 e^(kt)``, c1 and c2 at least 0: influence at both ends."""
    if not (c1 >= 0 and c2 >= 0 and 0 < c1 + c2 < math.inf):
        raise SordinoError(
            f"c1 and c2 must be finite, at least 0 and not both 0, got {c1!r} and {c2!r}"
        )
    rise = expinfl(k, T)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(c1) - rise, np.log(c2) + rise)


def _log_one_minus_power(beta: float, t: Array) -> Array:
    """``log(1 - beta^t)`` without cancellation for beta close to 1."""
    if beta == 0:
        return np.zeros_like(t)
    return np.log(-np.expm1(t * math.log(beta)))


def _finite(log_q: Array) -> Array:
    """``-inf`` (no influence at all) as a number far below everything else."""
    top = float(log_q.max())
    if not math.isfinite(top):
        raise SordinoError("noise has no influence in any step; check the learning rate")
    return np.maximum(log_q, top - _NOTHING)


def _eigenvalues(values: ArrayLike) -> Array:
    """The positive eigenvalues; directions without curvature do not change the loss."""
    lam = np.atleast_1d(np.asarray(values, np.float64))
    if lam.ndim != 1 or not np.isfinite(lam).all() or not (lam > 0).any() or (lam < 0).any():
        raise SordinoError("eigenvalues must be finite, at least 0, and not all 0")
    return lam[lam > 0]


def _momentum(beta: float) -> None:
    if not 0 <= beta < 1:
        raise SordinoError(f"the momentum beta must be at least 0 and less than 1, got {beta!r}")


# ---- estimates --------------------------------------------------------------------------------------


class ExponentialFit(NamedTuple):
    """``sigma_0 e^(-k t)``, t = 1..T, closest to given noise in least squares. Not yet on budget."""

    sigma_0: float
    k: float


def fit_exponential(sigma: ArrayLike) -> ExponentialFit:
    """Least squares of ``sigma_0 e^(-k t)`` on ``sigma_t`` (not on its logarithm)."""
    target = np.asarray(sigma, np.float64)
    if target.ndim != 1 or target.size < 2 or not (np.isfinite(target) & (target > 0)).all():
        raise SordinoError("an exponential is fitted to at least two finite numbers above 0")
    # An optimal k lies between the steepest fall and the steepest rise from one step to the next.
    slopes = -np.diff(np.log(target))
    low, high = float(slopes.min()), float(slopes.max())
    k, size = _separable_fit(target, np.ones_like(target), -high, -low)
    return ExponentialFit(size, -k)


def exponential_fit(log_q: ArrayLike, R: float) -> Array:
    """The noise (T,) of `fit_exponential` on ``allocate(log_q, R)``, renormalised to spend R."""
    sigma = allocate(log_q, R)
    if sigma.size < 2:
        return sigma
    # sigma ~ e^(-kt) is the optimum for log q = 4kt, so allocating again puts it on budget.
    return allocate(expinfl(4 * fit_exponential(sigma).k, sigma.size), R)


def fitted_expinfl(q: ArrayLike, standard_error: ArrayLike | None = None) -> float:
    """The rate k >= 0 of ``q_t = c e^(kt)``, least squares weighted by 1 / standard error squared.

    Works on q itself, so estimates of 0 or less are no trouble; 0 (uniform noise) if q does not rise.
    """
    target, weight = _weighted(q, standard_error)
    if target.size < 2:
        return 0.0
    k, _ = _separable_fit(target, weight, 0.0, 10.0)
    return k


class MomExpFit(NamedTuple):
    """``q_t = c1 e^(-kt) + c2 e^(kt)``, c1 and c2 at least 0 and scaled so that the larger is 1."""

    c1: float
    c2: float
    k: float


def fitted_momexpinfl(q: ArrayLike, standard_error: ArrayLike | None = None) -> MomExpFit:
    """`momexpinfl` closest to an estimate, least squares weighted by 1 / standard error squared.

    For each k the two weights are least squares with nothing below 0, in closed form; then a search in
    k. An estimate that is nowhere above 0 is uniform, ``(1, 1, 0)``.
    """
    target, weight = _weighted(q, standard_error)
    T = target.size
    t = np.arange(1.0, T + 1)

    def weights(k: float) -> tuple[float, float, float]:
        """What is left of the squares, and the size of either part where it is largest."""
        falls, rises = weight * np.exp(k * (1 - t)), weight * np.exp(k * (t - T))
        y = weight * target
        ff, rr, fr = float(falls @ falls), float(rises @ rises), float(falls @ rises)
        fy, ry = float(falls @ y), float(rises @ y)
        determinant = ff * rr - fr * fr
        found = [(max(fy / ff, 0.0), 0.0), (0.0, max(ry / rr, 0.0))]
        if determinant > 1e-9 * ff * rr:
            both = ((fy * rr - ry * fr) / determinant, (ry * ff - fy * fr) / determinant)
            found += [both] if min(both) >= 0 else []
        left = [float(np.sum((y - a * falls - b * rises) ** 2)) for a, b in found]
        best = int(np.argmin(left))
        return left[best], *found[best]

    # Beyond that, weights of the two ends are no floats.
    k = _least(lambda k: weights(k)[0], 0.0, min(10.0, 600 / (T + 1)))
    _, first, last = weights(k)
    if max(first, last) <= 0:
        return MomExpFit(1.0, 1.0, 0.0)
    c1, c2 = first * math.exp(k), last * math.exp(-k * T)
    return MomExpFit(c1 / max(c1, c2), c2 / max(c1, c2), k)


def smoothed(q: ArrayLike, window: int = 5, floor: float = 1e-3) -> Array:
    """``log q`` of a raw estimate: averaged over `window` steps, raised to `floor` times its maximum.

    At both ends the window is cut off, not padded.
    """
    raw = _estimate(q)
    width = require_count("window", window)
    require_fraction("floor", floor)
    kernel = np.ones(min(width, raw.size))
    mean = np.convolve(raw, kernel, "same") / np.convolve(np.ones_like(raw), kernel, "same")
    top = float(mean.max())
    if top <= 0:
        raise SordinoError("this estimate of influence is nowhere positive; average more runs")
    return np.log(np.maximum(mean, floor * top))


def _weighted(q: ArrayLike, standard_error: ArrayLike | None) -> tuple[Array, Array]:
    """The estimate, and 1 / standard error."""
    target = _estimate(q)
    error = np.asarray(1.0 if standard_error is None else standard_error, np.float64)
    if not (np.isfinite(error) & (error > 0)).all():
        raise SordinoError("standard errors must be finite numbers greater than 0")
    return target, 1 / np.broadcast_to(error, target.shape)


def _estimate(q: ArrayLike) -> Array:
    values = np.asarray(q, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SordinoError("an influence estimate must be a list of finite numbers, one per step")
    return values


def _separable_fit(target: Array, weight: Array, low: float, high: float) -> tuple[float, float]:
    """k in [low, high] and c >= 0 of the least ``sum (weight (target - c e^(kt)))^2``.

    For each k the best c is linear least squares; what remains is a search in one variable, which
    may have several minima: a scan, then a bracket around the best.
    """
    t = np.arange(1.0, target.size + 1)

    def amplitude(k: float) -> tuple[float, Array]:
        rise = k * t
        top = float(rise.max())
        shape = np.exp(rise - top)  # scaled to 1, so that c is what overflows, if anything does
        scaled = weight * shape
        c = max(0.0, float(scaled @ (weight * target)) / float(scaled @ scaled))
        return c, shape

    def loss(k: float) -> float:
        c, shape = amplitude(k)
        return float(np.sum((weight * (target - c * shape)) ** 2))

    k = _least(loss, low, high)
    c, _ = amplitude(k)
    return k, c * math.exp(-float(max(k * t[0], k * t[-1])))


def _least(loss: Callable[[float], float], low: float, high: float) -> float:
    if high <= low:
        return low
    from scipy.optimize import minimize_scalar  # here, because it takes long to import

    # Denser near 0: rates of interest range from 1e-4 to 1 per step.
    grid = np.unique(np.append(np.linspace(low, high, 64), _near_zero(low, high)))
    values = [loss(k) for k in grid]
    best = int(np.argmin(values))
    around = (float(grid[max(best - 1, 0)]), float(grid[min(best + 1, grid.size - 1)]))
    result = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-12})
    return float(result.x) if result.fun < values[best] else float(grid[best])


def _near_zero(low: float, high: float) -> Array:
    sizes = np.geomspace(1e-6, max(abs(low), abs(high), 2e-6), 64)
    both = np.concatenate([-sizes, [0.0], sizes])
    return both[(both >= low) & (both <= high)]

r"""Making schedules of noisy estimates (papers/04, sections 1.3 and 1.5).

Influence estimated on public data is noisy and may be negative early on. `fitted_expinfl` and
`smoothed` turn a raw estimate into a usable ``log q``; `exponential_fit` replaces a computed schedule
by ``sigma_0 e^(-kt)`` and brings it back to the budget, which the paper forgot (papers/04 erratum
l: such a fit can spend 194 times R).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction
from sordino.parts.schedules._allocate import allocate
from sordino.parts.schedules._influence import expinfl

Array = NDArray[np.float64]


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
    target = _estimate(q)
    if target.size < 2:
        return 0.0
    if standard_error is None:
        error = np.ones_like(target)
    else:
        error = np.broadcast_to(np.asarray(standard_error, np.float64), target.shape)
        if not (np.isfinite(error) & (error > 0)).all():
            raise SordinoError("standard errors must be finite numbers greater than 0")
    k, _ = _separable_fit(target, 1 / error, 0.0, 10.0)
    return k


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

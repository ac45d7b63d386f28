r"""Spreading a Gaussian budget over the steps (papers/04, sections 1.4 and 2.1).

Minimise ``sum_t q_t sigma_t^2`` such that ``sum_t 1/sigma_t^2 = R`` (``R = mu^2``): convex, and by
Cauchy-Schwarz the optimum is ``1/sigma_t^2 = R sqrt(q_t) / sum_s sqrt(q_s)`` with value
``(sum sqrt q)^2 / R``. Uniform noise costs ``T sum q / R``, more by exactly ``1 + CV^2(sqrt q)``.

That is for records which take part in every step. Where the same batches come back every
`separation` steps, each record meets only one of that many interleaved patterns, each pattern has a
budget R of its own, and the same formula holds within it (for one pass: uniform noise).

>>> sigma = allocate(np.log([1.0, 4.0, 9.0]), R=1.0)
>>> np.round(sigma**2, 6)
array([6., 3., 2.])
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino.privacy import UNIT_BITS, cost_of, units_of

Array = NDArray[np.float64]
# Far above the rounding of logarithms and sums, far below anything that matters: the integer costs
# of `privacy.budget` then always fit.
INFLATION = 1 + 2.0**-40
# The ratio between the largest and the least noise that is safe without knowing the influence.
SAFE_RATIO = 2.0
_LARGEST_SIGMA = 1e150


def allocate(
    log_q: ArrayLike,
    R: float,
    *,
    ratio_cap: float | None = None,
    largest: float | None = None,
    separation: int = 1,
) -> Array:
    """Noise multipliers sigma (T,) with the least ``sum q sigma^2`` that spend R = mu^2.

    Args:
      log_q: logarithms of the influence, (T,), finite.
      R: the budget mu^2 of one record, at sensitivity 1 (the clip norm); under replace-one
        adjacency, where it is 2, pass ``R / 4``.
      ratio_cap: the largest ratio between the most and the least noise of a pattern; see `capped`.
      largest: an upper bound on every sigma (up to the inflation of 2^-40), still optimal.
      separation: steps between two uses of one record; 1 if each takes part in every step.
    """
    values = capped(log_q, ratio_cap)
    values = values - values.max()
    T = values.size
    separation = min(require_count("separation", separation), T)
    # Each cost is rounded up to a unit of 2^-96; keep that much back.
    budget = require_positive("R", R) - math.ldexp(-(-T // separation), -UNIT_BITS)
    if budget <= 0:
        raise SordinoError(f"a budget of R = {R:g} is too small to be divided into {T:,} steps")
    # One row per pattern, so that numpy sums it pairwise; missing last steps have no influence.
    uses = -(-T // separation)
    half = np.full(uses * separation, -np.inf)
    half[:T] = values / 2
    half = np.ascontiguousarray(half.reshape(uses, separation).T)
    if largest is None:
        top = half.max(axis=1, keepdims=True)
        total = np.exp(half - top).sum(axis=1, keepdims=True)
        log_x = math.log(budget) + half - top - np.log(total)
    else:
        log_x = _capped_allocation(half, budget, require_positive("largest", largest))
    with np.errstate(over="ignore"):
        sigma = np.exp(-log_x.T.ravel()[:T] / 2) * INFLATION
    if not (sigma < _LARGEST_SIGMA).all():
        raise SordinoError(
            "this influence asks for infinite noise in some steps; give a ratio_cap such as 2"
        )
    check_allocation(sigma, R, separation=separation)
    return sigma


def check_allocation(sigma: ArrayLike, R: float, *, separation: int = 1, kappa: float = 1) -> None:
    """Raise unless every pattern's exact integer cost is at most R."""
    spent: dict[int, int] = defaultdict(int)
    for t, value in enumerate(np.asarray(sigma, np.float64).tolist()):
        spent[t % separation] += cost_of(value, kappa)
    if max(spent.values()) > units_of(R):
        raise SordinoError(f"this noise spends more than its budget of mu^2 = {R:g}")


def _capped_allocation(half: Array, R: float, largest: float) -> Array:
    """``log x`` with ``x = max(1/largest^2, c sqrt q)``, c per row by bisection: sum x = R."""
    real = np.isfinite(half)
    least = -2 * math.log(largest)
    # A little grace, so that caps which need exactly R are not refused.
    if (real.sum(axis=1) * math.exp(least) > R * (1 + 2.0**-41)).any():
        raise SordinoError(
            f"with no noise multiplier above {largest:g}, {int(real.sum(axis=1).max()):,} steps cost "
            f"more than R = {R:g}; allow more noise or take fewer steps"
        )
    top = half.max(axis=1, keepdims=True)
    low, high = least - top, math.log(R) - top
    for _ in range(120):
        middle = (low + high) / 2
        x = np.where(real, np.exp(np.maximum(least, middle + half)), 0.0)
        fits = x.sum(axis=1, keepdims=True) <= R
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(np.maximum(least, low + half))


def capped(log_q: ArrayLike, ratio_cap: float | None) -> Array:
    """`log_q` as a checked array (T,), clipped so that its noise varies by at most `ratio_cap`.

    The least ``sum q/x`` with ``sum x = R`` and ``max x <= r^2 min x`` is a convex problem, solved by
    ``x = clip(c sqrt q, m, r^2 m)``: q clipped to a window ``[a, a + 4 ln r]`` in logarithms. The cost
    is convex in m and m increases with a, so the best a is found by golden section.
    (papers/04 1.4 puts the window's end at ``max log q``; this is never worse at the same ratio.)
    """
    values = np.asarray(log_q, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SordinoError("log_q must be a list of finite numbers, one per step")
    if ratio_cap is None:
        return values
    if not 1 <= ratio_cap < math.inf:
        raise SordinoError(f"ratio_cap must be a finite number of at least 1, got {ratio_cap!r}")
    width = 4 * math.log(ratio_cap)
    low, high = float(values.min()), float(values.max()) - width
    if high <= low:
        return values

    def log_cost(a: float) -> float:
        half = np.clip(values, a, a + width) / 2
        return log_sum(values - half) + log_sum(half)

    # Ties go up, so that a flat cost ends where the rule of papers/04 1.4 is.
    a = golden(log_cost, low, high)
    a = high if log_cost(high) <= log_cost(a) else a
    return np.clip(values, a, a + width)


def log_sum(values: Array) -> float:
    """``log sum e^v``; several times quicker than scipy's for short arrays."""
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def golden(value: Callable[[float], float], low: float, high: float, *, rounds: int = 45) -> float:
    """The minimiser of a unimodal function by golden section, to ``0.62^rounds`` of the interval."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(rounds):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = value(right)
    return (low + high) / 2


def predicted_cost(log_q: ArrayLike, sigma: ArrayLike) -> float:
    """``sum_t q_t sigma_t^2``: the part of the expected final loss that is due to noise."""
    log_sigma = np.log(np.asarray(sigma, np.float64))
    return _exp(log_sum(capped(log_q, None) + 2 * log_sigma))


def optimal_cost(log_q: ArrayLike, R: float) -> float:
    """``(sum sqrt q)^2 / R``: the least `predicted_cost` of all schedules that spend R."""
    return _exp(2 * log_sum(capped(log_q, None) / 2)) / require_positive("R", R)


def uniform_cost(log_q: ArrayLike, R: float) -> float:
    """``T sum q / R``: the `predicted_cost` of the same noise in every step."""
    values = capped(log_q, None)
    return values.size * _exp(log_sum(values)) / require_positive("R", R)


def uniform_over_optimal(log_q: ArrayLike) -> float:
    """``1 + CV^2(sqrt q)``: how much more uniform noise costs than the best schedule."""
    root = np.exp((capped(log_q, None) - np.max(log_q)) / 2)
    return 1 + float(root.var() / root.mean() ** 2)

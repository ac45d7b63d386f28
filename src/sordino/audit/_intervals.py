"""Confidence intervals of what an audit measures."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from sordino._base.errors import SordinoError
from sordino.privacy import MAX_MU, MIN_MU, mu_from_epsilon_delta

Array = NDArray[np.float64]
Interval = tuple[float, float, float]


def separation_interval(
    mean_a: float, mean_b: float, variance_a: float, variance_b: float, runs: int, confidence: float
) -> Interval:
    """Low, estimate and high of ``(mean_a - mean_b) / sd``, from `runs` samples of each.

    The two samples are Gaussian with one variance: the estimate is then a multiple of a noncentral t,
    whose standard error is ``sqrt(2/runs + mu^2 / (4 runs))`` up to terms of relative size 1/runs.
    """
    spread = math.sqrt(max((variance_a + variance_b) / 2, 1e-300))
    estimate = (mean_a - mean_b) / spread
    error = math.sqrt(2 / runs + estimate**2 / (4 * runs))
    reach = norm.isf((1 - confidence) / 2) * error
    return estimate - reach, estimate, estimate + reach


def separation(without: Array, having: Array, runs: int, confidence: float) -> Interval:
    """`separation_interval` of two samples of about `runs` numbers each."""
    (a, v), (b, w) = ((float(x.mean()), float(x.var())) for x in (having, without))
    return separation_interval(a, b, v, w, runs, confidence)


def proportion(hits: int, runs: int, tail: float) -> tuple[float, float]:
    """Clopper-Pearson bounds, each missed with probability at most `tail`."""
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, runs - hits + 1))
    high = 1.0 if hits == runs else float(beta.isf(tail, hits + 1, runs - hits))
    return low, high


def hockey_stick(
    hits_a: int, hits_b: int, runs: int, epsilon: float, confidence: float
) -> Interval:
    """Low, estimate and high of ``P_a(E) - e^epsilon P_b(E)`` for one event E.

    Two proportions with two bounds each share the error; the low end is a lower bound on delta(epsilon)
    whatever the event is, as long as it was chosen before these runs.
    """
    tail = (1 - confidence) / 4
    low_a, high_a = proportion(hits_a, runs, tail)
    low_b, high_b = proportion(hits_b, runs, tail)
    factor = math.exp(epsilon)
    estimate = (hits_a - factor * hits_b) / runs
    return low_a - factor * high_b, estimate, high_a - factor * low_b


def epsilon_of_event(hits_a: int, hits_b: int, runs: int, delta: float, tail: float) -> float:
    """A lower bound on epsilon at `delta`, ``log((P_a(E) - delta) / P_b(E))``, for one event E.

    Each of the two Clopper-Pearson bounds is missed with probability at most `tail`.
    """
    low, high = proportion(hits_a, runs, tail)[0], proportion(hits_b, runs, tail)[1]
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def share_above(sample: Array, thresholds: Array) -> Array:
    """Of a sample, how many are above each threshold."""
    return 1 - np.searchsorted(np.sort(sample), thresholds, side="right") / len(sample)


def best_epsilon_threshold(
    without: Array, having: Array, runs: int, delta: float, tail: float
) -> float:
    """The threshold whose event should give the largest `epsilon_of_event` in `runs` further runs.

    Chosen on samples that are used for nothing else. Rates that are too small to be seen there count
    as one hit, so that the choice does not run into the tail.
    """
    thresholds = np.sort(having)[:: max(1, len(having) // 200)]
    others = np.maximum(share_above(without, thresholds), 1 / len(without))
    bounds = [
        epsilon_of_event(round(p * runs), round(q * runs), runs, delta, tail)
        for p, q in zip(share_above(having, thresholds), others, strict=True)
    ]
    return float(thresholds[int(np.argmax(bounds))])


def equivalent_mu(epsilon: float, delta: float) -> float:
    """The mu whose mu-GDP curve passes through (epsilon, delta); 0 for a delta of 0 or less."""
    if delta <= 0:
        return 0.0
    if delta >= 1:
        return MAX_MU
    try:
        return mu_from_epsilon_delta(epsilon, delta)
    except SordinoError:  # beyond all mu in use
        return MAX_MU if delta > 0.5 else MIN_MU

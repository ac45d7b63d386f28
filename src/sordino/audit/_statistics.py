r"""The statistics of an audit: intervals of what it measures, what it could have found, trade-off curves.

**Power.** An audit that finds nothing says little unless it says what it would have found. Here are, for
each kind of audit, the smallest true leak that raises the alarm with probability `POWER`, from the number
of runs and the confidence alone. It is about what the attack sees: an attack that measures a share s of a
claim that is kept sees that share of a violation too, so that this has to be 1/s times as large
(`detectable`).

**Curves.** An attack is a test between two neighbouring data sets. A guarantee bounds its power, the true
positive rate at each false positive rate a (Dong, Roth & Su 2022, section 2):

    mu-GDP:             power(a) <= Phi(Phi^-1(a) + mu)
    (epsilon, delta):   power(a) <= min(e^epsilon a + delta,  1 - e^-epsilon (1 - delta - a))

for every (epsilon, delta) of the guarantee's curve. Where two data sets are two changes apart the
bound is applied twice, ``power(power(a))`` (their theorem 2.14, group privacy): replacing an example is
to zero it out and to put another in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom, norm

from sordino._base.errors import SordinoError
from sordino.privacy import (
    MAX_MU,
    MIN_MU,
    Guarantee,
    delta_from_mu,
    epsilon_from_mu,
    mu_from_epsilon_delta,
)

Array = NDArray[np.float64]
Interval = tuple[float, float, float]
Points = tuple[tuple[float, float], ...]
# P(E) and Q(E) of (mu, factor of the violation, epsilon).
Rates = Callable[[float, float, float], tuple[float, float]]

# Probability that a violation as large as stated raises the alarm.
POWER = 0.95
# A violation of more times the claim than this is not called detectable.
MOST = 10
# Tangents of an amplified curve: any number of them is a bound, many are a tight one.
TANGENTS = 300
SMALLEST_DELTA = 1e-9
# Points of a measured curve that are kept.
KEPT = 81


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


def separable(claimed: float, runs: int, confidence: float) -> float:
    """The smallest true mu whose `separation` lies above `claimed`; infinite if none does."""
    reach, back = float(norm.isf((1 - confidence) / 2)), float(norm.isf(1 - POWER))

    def error(mu: float) -> float:
        return math.sqrt(2 / runs + mu**2 / (4 * runs))

    # Two shortfalls at once: of the interval below the estimate, of the estimate below the truth.
    estimate = _root(lambda mu: mu - reach * error(mu) - claimed, claimed)
    return _root(lambda mu: mu - back * error(mu) - estimate, estimate)


def event_delta(claimed: float, epsilon: float, rate: float, runs: int, confidence: float) -> float:
    """The smallest true ``P(E) - e^epsilon Q(E)`` that `intervals.hockey_stick` puts above `claimed`.

    Args:
      claimed: delta(epsilon) of the claim.
      rate: Q(E), how often the event happens without the example. More noise than a violation has
        makes it larger, so that the rate of a claim that is kept is on the safe side.

    Infinite if no run could show it.
    """
    tail, missed = (1 - confidence) / 4, (1 - POWER) / 2
    factor = math.exp(epsilon)
    others = int(binom.ppf(1 - missed, runs, min(rate, 1.0)))
    target = claimed + factor * proportion(others, runs, tail)[1]
    hits = least_hits(target, runs, tail)
    if hits is None:
        return math.inf
    return float(beta.ppf(1 - missed, hits, runs - hits + 1)) - factor * rate


def event_factor(mu: float, epsilon: float, runs: int, confidence: float) -> float:
    """The smallest f for which a leak of f mu is put above mu by `intervals.hockey_stick`; else infinite.

    For Gaussian claims, whose log-likelihood ratio is N(+-mu^2/2, mu^2) if they are kept, and the event
    that it exceeds epsilon. The larger figure of two kinds of violation: contributions f times too long,
    which the attacker's ratio knows of, and noise f times too small, which it does not.
    """
    claimed = delta_from_mu(epsilon, mu)

    def is_flagged(rates: Rates, factor: float) -> bool:
        tail, missed = (1 - confidence) / 4, (1 - POWER) / 2
        p, q = rates(mu, factor, epsilon)
        hits = int(binom.ppf(missed, runs, p)), int(binom.ppf(1 - missed, runs, q))
        others = proportion(hits[1], runs, tail)[1]
        return proportion(hits[0], runs, tail)[0] - math.exp(epsilon) * others > claimed

    return max(
        _least(partial(is_flagged, rates)) for rates in (longer_contributions, smaller_noise)
    )


def longer_contributions(mu: float, f: float, epsilon: float) -> tuple[float, float]:
    """How often the ratio exceeds epsilon with and without the example, if it knows of f."""
    return _sf(epsilon / (f * mu) - f * mu / 2), _sf(epsilon / (f * mu) + f * mu / 2)


def smaller_noise(mu: float, f: float, epsilon: float) -> tuple[float, float]:
    """The same for the ratio of the plan, where noise is f times smaller than it says."""
    return _sf(f * (epsilon / mu - mu / 2)), _sf(f * (epsilon / mu + mu / 2))


def _sf(x: float) -> float:
    return float(norm.sf(x))


def _least(is_flagged: Callable[[float], bool]) -> float:
    """The smallest factor up to `MOST` that raises the alarm."""
    low, high = 1.0, float(MOST)
    if not is_flagged(high):
        return math.inf
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if is_flagged(middle) else (middle, high)
    return high


def least_hits(target: float, runs: int, tail: float) -> int | None:
    """The fewest hits whose lower bound is above `target`; None if even all of them are not enough."""
    if proportion(runs, runs, tail)[0] <= target:
        return None
    return least_enough(lambda hits: proportion(hits, runs, tail)[0] > target, runs)


def least_enough(is_enough: Callable[[int], bool], most: int) -> int:
    """The least whole number from 1 that is enough, where `most` is taken to be."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def detectable(flagged: float, measured: float, claimed: float) -> float:
    """How many times the claim a leak must be to raise the alarm, in units of the claim.

    Args:
      flagged: what the attack must see for that.
      measured: what it saw of a claim that is kept, as far as is known.
      claimed: the claim.
    """
    seen = min(measured, claimed)
    ratio = flagged / seen if seen > 0 else math.inf
    return ratio if ratio <= MOST else math.inf


def detection(ratio: float, proviso: str = "") -> str:
    """What would have been detected, as half a sentence; `ratio` as of `detectable`."""
    if not math.isfinite(ratio):
        return f"no violation below {MOST} times the claim would have been detected{proviso}"
    return f"a violation of {above(ratio)} or more would have been detected{proviso}"


def percent(share: float) -> str:
    """A confidence as people write it: 0.999 is 99.9 %, with as many nines as there are."""
    return f"{100 * share:.6g}%"


def finite(value: float) -> float | None:
    """`value`, or None where it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None


def above(ratio: float) -> str:
    """By how much a ratio is above 1, in per cent, rounded up to two digits."""
    excess = 100 * (ratio - 1)
    if excess >= 10:
        return f"{math.ceil(round(excess, 6)):,} %"
    return f"{math.ceil(round(10 * max(excess, 0.0), 6)) / 10:g} %"


def _root(function: Callable[[float], float], low: float) -> float:
    """Where a rising function is 0, from `low` on; infinite if nowhere."""
    if not math.isfinite(low):
        return math.inf
    high = 2 * max(low, 1e-3)
    while function(high) < 0:
        high *= 2
        if high > 1e9:
            return math.inf
    return float(brentq(function, low, high)) if function(low) < 0 else low


def largest_power(guarantee: Guarantee, fpr: ArrayLike, *, changes: int = 1) -> Array:
    """The largest true positive rate that `guarantee` allows at each false positive rate.

    Args:
      guarantee: of the release that is attacked.
      fpr: false positive rates in [0, 1], any shape.
      changes: how many neighbouring steps lie between the two data sets that are distinguished.
    """
    rates = np.asarray(fpr, np.float64)
    if not guarantee.is_private:
        return np.ones_like(rates)
    # Within a total variation d of something ideal, both rates of any test are d away from its rates.
    near = getattr(guarantee, "distance", 0.0)
    sides = (guarantee.own, *guarantee.sides) if isinstance(guarantee, Guarantee) else ()
    # With this chance all is lost, on either side; a test is as good as the rest on what is left.
    lost = max((side.lost for side in sides), default=0.0)
    for _ in range(changes):
        rates = np.minimum(rates + near, 1.0)
        kept = np.minimum(rates / (1 - lost), 1.0)
        power = lost + (1 - lost) * np.asarray(ndtr(ndtri(kept) + guarantee.mu))
        if guarantee.is_amplified:
            power = np.minimum(power, _amplified(guarantee, rates))
        rates = np.minimum(power + near, 1.0)
    return rates


def _amplified(guarantee: Guarantee, fpr: Array) -> Array:
    epsilons, deltas = _tangents(guarantee)
    e, d, a = epsilons[:, None], deltas[:, None], fpr.reshape(1, -1)
    rising = np.exp(e) * a + d
    falling = 1 - np.exp(-e) * (1 - d - a)
    best = np.minimum(rising, falling).min(axis=0)
    return np.clip(best, 0.0, 1.0).reshape(fpr.shape)


@lru_cache(maxsize=16)
def _tangents(guarantee: Guarantee) -> tuple[Array, Array]:
    last = guarantee.epsilon(SMALLEST_DELTA)
    # Discrete noise has no epsilon at so small a delta; then its mu without amplification has.
    last = max(last if math.isfinite(last) else epsilon_from_mu(guarantee.mu, SMALLEST_DELTA), 1e-6)
    epsilons = np.linspace(0.0, last, TANGENTS)
    return epsilons, np.array([guarantee.delta(float(e)) for e in epsilons])


def measured_curve(without: Array, having: Array, points: int = KEPT) -> Points:
    """(false positive rate, true positive rate) of "the score is above a threshold", rising.

    The thresholds are evenly spread over both samples together, so that both ends are seen.
    """
    pooled = np.concatenate([without, having])
    thresholds = np.unique(np.quantile(pooled, np.linspace(0, 1, points)))[::-1]
    above = (share_above(sample, thresholds).tolist() for sample in (without, having))
    pairs = list(zip(*above, strict=True))
    return ((0.0, 0.0), *pairs, (1.0, 1.0))

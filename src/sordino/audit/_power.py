r"""What an audit could have found: the smallest violation that it would have flagged.

An audit that finds nothing says little unless it says what it would have found. Here are, for each kind of
audit, the smallest true leak that raises the alarm with probability `POWER`, from the number of runs and
the confidence alone. It is about what the attack sees: an attack that measures a share s of a claim that
is kept sees that share of a violation too, so that this has to be 1/s times as large (`detectable`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from scipy.optimize import brentq
from scipy.stats import beta, binom, norm

from sordino.audit._intervals import proportion
from sordino.privacy import delta_from_mu

# P(E) and Q(E) of (mu, factor of the violation, epsilon).
Rates = Callable[[float, float, float], tuple[float, float]]

# Probability that a violation as large as stated raises the alarm.
POWER = 0.95
# A violation of more times the claim than this is not called detectable.
MOST = 10


def separable(claimed: float, runs: int, confidence: float) -> float:
    """The smallest true mu whose `intervals.separation` lies above `claimed`; infinite if none does."""
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

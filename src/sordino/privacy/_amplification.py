r"""Privacy amplification by secret random batches: descriptions of releases, and noise for a budget.

A `SampledRelease` speaks of the noise **standard deviation** and of the **norm bound of one unit's
contribution**, never of a "noise multiplier", which accountants read in different ways. What it is worth,
alone or beside others, `_accountant.py` says.

Supported, each with the adjacency it is proved for:

* Poisson batches (every unit independently with probability q): add/remove and zero-out (the same
  pair of distributions: the divisor is a public constant), and replace-one;
* Poisson batches of one public group of the units after the other (cyclic Poisson batches): zero-out and
  replace-one. A release is one cycle, at the rate inside the group; the pairs are those of Poisson batches;
* batches of fixed size without replacement: replace-one. With ``s = std / (2 S)`` the tight one-step
  profile at e >= 0 (Balle, Barthe & Gaboardi 2018) is that of removing one unit from Poisson batches
  with noise s, and the pair is symmetric (Zhu, Dong & Wang 2022).

**Many noise levels as a few.** Composing one distribution per step is slow, so steps are grouped into
at most `most` levels and the noise of each step is rounded *down* to its level. That only ever
overstates the loss.

>>> levels([1.0, 2.0, 2.0, 1.0, 1.0])
[(1.0, 3), (2.0, 2)]
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.privacy._accountant import LATTICE_SHARE, SMALLEST_DELTA, delta_of, epsilon_of
from sordino.privacy._gdp import SLACK, mu_from_epsilon_delta
from sordino.privacy._loss_laws import Level
from sordino.privacy._terms import Adjacency

POISSON = "poisson"
WITHOUT_REPLACEMENT = "without-replacement"
GROUPED = "grouped-poisson"
SAMPLINGS = (POISSON, GROUPED, WITHOUT_REPLACEMENT)
# 24 levels over a ratio of 2 are 3 % apart.
MOST_LEVELS = 24


@dataclass(frozen=True)
class SampledRelease:
    """`steps` releases of a sum over a secret random batch, plus Gaussian noise.

    `noise_std` is the noise on the sum and `contribution` the largest norm of one unit's term, in
    the same units; `rate` is the inclusion probability (batch size / population for batches of
    fixed size).
    """

    noise_std: float
    contribution: float
    rate: float
    steps: int
    sampling: str
    adjacency: str

    def __post_init__(self) -> None:
        require_positive("noise_std", self.noise_std)
        require_positive("contribution", self.contribution)
        require_count("steps", self.steps)
        require_choice("sampling", self.sampling, SAMPLINGS)
        if not 0 < self.rate <= 1:
            raise SordinoError(f"the sampling rate must be in (0, 1], got {shown(self.rate)}")
        allowed = _RELATIONS[self.sampling]
        if self.adjacency not in allowed:
            raise SordinoError(
                f"{self.sampling} sampling has no proved amplification under {shown(self.adjacency)} "
                f"adjacency; use {' or '.join(allowed)}"
            )

    @property
    def unamplified_mu(self) -> float:
        """mu of the same releases with no credit for sampling: always a valid GDP bound."""
        kappa = Adjacency(self.adjacency).factor
        return kappa * self.contribution * math.sqrt(self.steps) / self.noise_std

    @property
    def level(self) -> Level:
        """What the accountant composes."""
        pair = "remove"
        if self.adjacency == Adjacency.REPLACE_ONE:
            pair = "exchange" if self.sampling == WITHOUT_REPLACEMENT else "replace"
        return Level(self.noise_std / self.contribution * (1 - SLACK), self.rate, self.steps, pair)

    @property
    def loss_scale(self) -> float:
        """Standard deviation of one step's privacy loss in the central-limit regime."""
        kappa = Adjacency(self.adjacency).factor
        inverse_s2 = min((kappa * self.contribution / self.noise_std) ** 2, 40.0)
        return self.rate * math.sqrt(math.expm1(inverse_s2))

    def to_json(self) -> Json:
        return asdict(self)


_RELATIONS = {
    POISSON: tuple(adjacency.value for adjacency in Adjacency),
    GROUPED: (Adjacency.ZERO_OUT.value, Adjacency.REPLACE_ONE.value),
    WITHOUT_REPLACEMENT: (Adjacency.REPLACE_ONE.value,),
}


def composed_epsilon(
    parts: tuple[SampledRelease, ...], delta: float, *, mu: float = 0.0, quick: bool = False
) -> float:
    """The smallest epsilon >= 0 at `delta` of all parts and a mu-GDP release, rounded up.

    `quick`: to 1e-3 instead of 2e-5, for searches.
    """
    require_fraction("delta", delta)
    _check_mu(mu)
    if delta < SMALLEST_DELTA:
        raise SordinoError(
            f"amplified guarantees are computed down to delta = {SMALLEST_DELTA:g}, got {delta!r}"
        )
    return epsilon_of(_levels(parts, mu), delta, share=1e-3 if quick else LATTICE_SHARE)


def composed_delta(parts: tuple[SampledRelease, ...], epsilon: float, *, mu: float = 0.0) -> float:
    """The smallest delta at `epsilon` >= 0 of all parts and a mu-GDP release, rounded up."""
    _check_mu(mu)
    if not 0 <= epsilon < math.inf:
        raise SordinoError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")
    return delta_of(_levels(parts, mu), epsilon)


def _check_mu(mu: float) -> None:
    if not 0 <= mu < math.inf:
        raise SordinoError(f"mu must be a finite number of at least 0, got {mu!r}")


def _levels(parts: tuple[SampledRelease, ...], mu: float) -> tuple[Level, ...]:
    counts: Counter[Level] = Counter()
    for part in parts:
        counts[replace(part.level, steps=1)] += part.steps
    if mu > 0:
        # The relation is the parts': a Gaussian release is its own mirror image under each.
        counts[Level((1 - SLACK) / mu, 1.0, 1)] += 1
    return tuple(replace(level, steps=count) for level, count in counts.items())


def mu_beside(
    epsilon: float, delta: float, *, mu: float = 0.0, others: tuple[SampledRelease, ...] = ()
) -> float:
    """The largest mu of a release that keeps (eps, delta) beside a mu-GDP one and sampled ones.

    Exact without sampled ones; with them, to 1e-4, rounded down.
    """
    most = mu_from_epsilon_delta(epsilon, delta)
    left = most * most - mu * mu
    refusal = SordinoError(
        "the other queries of this plan cost all of its budget; ask less of them, or plan with a "
        "larger epsilon"
    )
    if not others:
        # What is left of the budget must show in double precision.
        if left <= 1e-9 * most * most:
            raise refusal
        return most if mu == 0 else math.sqrt(left) * (1 - SLACK)

    def keeps(extra: float) -> bool:
        return composed_epsilon(others, delta, mu=math.hypot(mu, extra)) <= epsilon

    low, high = 1e-4 * most, most
    if left <= 0 or not keeps(low):
        raise refusal
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def calibrate_noise(
    parts: Callable[[float], SampledRelease | tuple[SampledRelease, ...]],
    epsilon: float,
    delta: float,
    *,
    mu: float = 0.0,
    others: tuple[SampledRelease, ...] = (),
    stored: Callable[[float], float] = float,
    roughly: bool = False,
) -> float:
    """Least noise standard deviation (to about 1e-4) at which `parts(std)` is (eps, delta)-DP.

    Beside it there may be a mu-GDP release and `others`: all together are then (eps, delta)-DP. What is
    returned was evaluated by the function that states guarantees, and passed; `stored` rounds a
    candidate to the value that will be stated. `roughly`: to about 1e-3, neither certified nor rounded, for
    comparing plans.
    """

    def described(std: float) -> tuple[SampledRelease, ...]:
        result = parts(std)
        return result if isinstance(result, tuple) else (result,)

    def at(std: float, quick: bool) -> float:
        all_parts = (*described(std), *others)
        return max(composed_epsilon(all_parts, delta, mu=mu, quick=quick), 1e-12)

    # With no amplification at all this is enough; with it, less is.
    unit = described(1.0)
    unit_mu = math.hypot(*(part.unamplified_mu for part in unit))
    most = unit_mu / mu_beside(epsilon, delta, mu=mu, others=others) * (1 + SLACK)
    low, high = _bracket(
        lambda std: at(std, True), epsilon, _first_guess(unit, epsilon, delta), most
    )
    if low[1] <= epsilon:
        raise SordinoError(
            f"epsilon {epsilon:g} needs next to no noise here and protects nobody; ask for less"
        )
    std, slope = _solved(lambda std: at(std, True), epsilon, low, high)
    if roughly:
        return std
    # Certified, from where the quick answer says; then closer from both sides.
    enough, little = math.inf, 0.0
    for attempt in range(60):
        tried = stored(std)
        value = at(tried, False)
        if value <= epsilon:
            enough = min(enough, tried)
            if value >= epsilon * (1 - 3e-5):
                break
        else:
            little = max(little, tried)
        if enough <= little * (1 + 3e-5) or (attempt >= 5 and enough < math.inf):
            break
        std = tried * min(max((value / epsilon * (1 + 1e-5)) ** (1 / slope), 0.9), 1.1)
        if not little < std < enough:
            std = math.sqrt(little * enough) if enough < math.inf else tried * (1 + 1e-6)
        if attempt >= 4 and enough == math.inf:
            # Epsilon falls otherwise than the quick look said; without any credit noise is enough.
            std = min(max(std, tried * 1.02 ** (attempt - 3)), max(most, tried * (1 + 1e-6)))
    return enough


def _first_guess(unit: tuple[SampledRelease, ...], epsilon: float, delta: float) -> float:
    """Noise by the central limit theorem, were all steps alike."""
    part = max(unit, key=lambda one: one.rate)
    steps = sum(one.steps for one in unit)
    kappa = Adjacency(part.adjacency).factor
    share = mu_from_epsilon_delta(epsilon, delta) ** 2 / (steps * part.rate**2)
    return kappa * part.contribution / part.noise_std / math.sqrt(math.log1p(share))


Point = tuple[float, float]  # a noise and its epsilon


def _bracket(
    at: Callable[[float], float], epsilon: float, guess: float, most: float
) -> tuple[Point, Point]:
    """Two noises around the one for `epsilon`: the first too little, the second enough."""
    guess = min(guess, most)
    point, factor = (guess, at(guess)), 1.15
    if guess == most:  # enough, whatever a quick look says
        point = (most, min(point[1], epsilon))
    if point[1] <= epsilon:
        while point[1] <= epsilon and point[0] > 1e-7 * most:
            last, factor = point, factor * factor
            point = (last[0] / factor, at(last[0] / factor))
        return point, last
    while point[1] > epsilon and point[0] < most:
        last, factor = point, factor * factor
        wide = min(last[0] * factor, most)
        point = (wide, at(wide) if wide < most else epsilon)
    return last, point


def _solved(
    at: Callable[[float], float], epsilon: float, low: Point, high: Point
) -> tuple[float, float]:
    """The noise for `epsilon` to about 1e-3, by secants, and x of ``epsilon ~ noise^-x`` there."""
    known = [low, high]
    for _ in range(60):
        # Through the two known points that are closest, inside the bracket.
        (x, y), (x2, y2) = sorted(known, key=lambda point: abs(math.log(point[1] / epsilon)))[:2]
        fall = math.log(y2 / y) / math.log(x / x2) if x != x2 else 0.0
        ratio = high[0] / low[0]
        guess = x * (y / epsilon) ** (1 / fall) if fall > 0.01 else 0.0
        if not low[0] * ratio**0.01 <= guess <= low[0] * ratio**0.99:
            guess = low[0] * ratio**0.5
        value = at(guess)
        known.append((guess, value))
        if abs(math.log(value / epsilon)) < 2e-3:
            # An end of the bracket may have a stated value, which tells nothing about the slope.
            fall = fall if fall > 0.5 else 1.0
            return guess * (value / epsilon) ** (1 / fall), fall
        if ratio < 1 + 1e-4:  # a jump
            return high[0], 1.0
        low, high = (low, (guess, value)) if value <= epsilon else ((guess, value), high)
    return high[0], 1.0


def levels(sigma: ArrayLike, most: int = MOST_LEVELS) -> list[tuple[float, int]]:
    """``(level, count)`` in increasing order: every sigma is at least its level, counts add up.

    With at most `most` distinct values they are the levels themselves and nothing is lost. Otherwise
    the range is cut into `most` bins of equal ratio and each bin's least value is its level.
    Multiplying all sigmas by one factor multiplies the levels by it.
    """
    values = np.asarray(sigma, np.float64)
    require_count("most", most)
    if values.ndim != 1 or not values.size or not (np.isfinite(values) & (values > 0)).all():
        raise SordinoError("noise levels must be a list of finite numbers greater than 0")
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size > most:
        position = np.log(distinct / distinct[0]) / np.log(distinct[-1] / distinct[0])
        bins = np.minimum((position * most).astype(np.intp), most - 1)
        # The least value of a bin is below all others in it, however the logarithms were rounded.
        first = np.flatnonzero(np.diff(bins, prepend=-1))
        distinct, counts = distinct[first], np.add.reduceat(counts, first)
    return [(float(level), int(count)) for level, count in zip(distinct, counts, strict=True)]


def sampled_levels(
    sigma: ArrayLike,
    *,
    rate: float,
    adjacency: str,
    most: int = MOST_LEVELS,
    sampling: str = POISSON,
) -> tuple[SampledRelease, ...]:
    """Steps with noise multipliers `sigma` (relative to the clip norm) as releases to compose."""
    return tuple(
        SampledRelease(level, 1.0, rate, count, sampling, adjacency)
        for level, count in levels(sigma, most)
    )

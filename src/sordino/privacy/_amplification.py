r"""Privacy amplification by secret random batches, through privacy-loss distributions.

One description, `SampledRelease`, and one function, `compose_pld`, stand between Sordino and
`dp_accounting`. They speak of the noise **standard deviation** and of the **norm bound of one
unit's contribution**, never of a "noise multiplier": the package's RDP accountant reads that as
std / (2 S) under replace-one while its PLD accountant reads it as std / S.

Supported, each with the adjacency it is proved for:

* Poisson batches (every unit independently with probability q): add/remove and zero-out (the same
  pair of distributions: the divisor is a public constant), and replace-one;
* batches of fixed size without replacement: replace-one. `dp_accounting` has no such PLD; with
  ``s = std / (2 S)`` and ``e0(e) = ln(1 + (e^e - 1)/q)`` the tight one-step profile (Balle, Barthe &
  Gaboardi 2018) is

      D(e)  = q [Phi(1/(2s) - s e0) - e^{e0} Phi(-1/(2s) - s e0)]   for e >= 0,
      D(-e) = 1 - e^{-e} + e^{-e} D(e),

  and it is symmetric, so its connect-the-dots discretisation composes (Zhu, Dong & Wang 2022).

All distributions are pessimistic: discretisation and truncation only ever raise epsilon.

**Many noise levels as a few.** Composing one distribution per step is slow, so steps are grouped into
at most `most` levels and the noise of each step is rounded *down* to its level. That only ever
overstates the loss.

>>> levels([1.0, 2.0, 2.0, 1.0, 1.0])
[(1.0, 3), (2.0, 2)]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.privacy._gdp import SLACK, epsilon_from_mu, log_deltas, mu_from_epsilon_delta
from sordino.privacy._terms import Adjacency

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

POISSON = "poisson"
WITHOUT_REPLACEMENT = "without-replacement"
SAMPLINGS = (POISSON, WITHOUT_REPLACEMENT)
# PLD arithmetic carries absolute errors of about 1e-15 in delta.
SMALLEST_DELTA = 1e-13
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
        allowed = _RELATIONS if self.sampling == POISSON else _REPLACING
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
    def loss_scale(self) -> float:
        """Standard deviation of one step's privacy loss in the central-limit regime."""
        kappa = Adjacency(self.adjacency).factor
        inverse_s2 = min((kappa * self.contribution / self.noise_std) ** 2, 40.0)
        return self.rate * math.sqrt(math.expm1(inverse_s2))

    def to_json(self) -> Json:
        return asdict(self)


_REPLACING = {Adjacency.REPLACE_ONE.value: "REPLACE_ONE"}
_RELATIONS = {
    "add-remove": "ADD_OR_REMOVE_ONE",
    "zero-out": "ADD_OR_REMOVE_ONE",
    **_REPLACING,
}


def grid_step(parts: tuple[SampledRelease, ...]) -> float:
    """Discretisation of the losses: fine against one step's scale, coarse enough to be quick."""
    finest = min(part.loss_scale for part in parts) / 20
    return min(1e-3, max(finest, 2e-6))


@lru_cache(maxsize=64)
def compose_pld(gaussian_mu: float, parts: tuple[SampledRelease, ...]) -> PrivacyLossDistribution:
    """PLD of a mu-GDP Gaussian release composed with every sampled part (a `dp_accounting` PLD)."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = grid_step(parts)
    if gaussian_mu > 0:
        release = pld.from_gaussian_mechanism(
            1.0 / gaussian_mu, value_discretization_interval=step, pessimistic_estimate=True
        )
        # The sampled parts are the long work, and are known when only mu changes.
        return compose_pld(0.0, parts).compose(release)
    total: PrivacyLossDistribution | None = None
    for part in parts:
        composed = _composed(part, step)
        total = composed if total is None else total.compose(composed)
    return total


@lru_cache(maxsize=64)
def _composed(part: SampledRelease, step: float) -> PrivacyLossDistribution:
    one = _poisson(part, step) if part.sampling == POISSON else _without_replacement(part, step)
    return one.self_compose(part.steps)


def _poisson(part: SampledRelease, step: float) -> PrivacyLossDistribution:
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as pld

    return pld.from_gaussian_mechanism(
        part.noise_std,
        sensitivity=part.contribution,
        sampling_prob=part.rate,
        value_discretization_interval=step,
        pessimistic_estimate=True,
        neighboring_relation=getattr(dp_accounting.NeighboringRelation, _RELATIONS[part.adjacency]),
    )


def without_replacement_delta(epsilon: ArrayLike, s: float, rate: float) -> NDArray[np.float64]:
    """``D(epsilon)`` of the module docstring, one step, ``s = std / (2 S)``."""
    e = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    size = np.abs(e)
    e0 = np.where(size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30)) / rate))
    right = rate * np.exp(log_deltas(e0, 1 / s))
    return np.where(e >= 0, right, -np.expm1(-size) + np.exp(-size) * right)


def _without_replacement(part: SampledRelease, step: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    s = part.noise_std / (2 * part.contribution)
    # Far enough that what lies beyond (charged as infinite loss) is below 1e-22.
    last = 1
    while without_replacement_delta(last * step, s, part.rate)[0] > 1e-22:
        last *= 2
    losses = np.arange(-last, last + 1)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
        step, losses, without_replacement_delta(losses * step, s, part.rate)
    )
    return pld.PrivacyLossDistribution(pmf)


def epsilon_of_pld(pld: PrivacyLossDistribution, delta: float) -> float:
    """Smallest epsilon >= 0 with delta(epsilon) <= `delta`, rounded up."""
    require_fraction("delta", delta)
    if delta < SMALLEST_DELTA:
        raise SordinoError(
            f"amplified guarantees are computed down to delta = {SMALLEST_DELTA:g}, got {delta!r}"
        )
    return max(0.0, float(pld.get_epsilon_for_delta(delta))) * (1 + SLACK)


def delta_of_pld(pld: PrivacyLossDistribution, epsilon: float) -> float:
    """delta at `epsilon`, rounded up (at least the arithmetic's own error)."""
    return min(1.0, float(pld.get_delta_for_epsilon(epsilon)) * (1 + SLACK) + 1e-15)


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
        pld = compose_pld(math.hypot(mu, extra), others)
        return epsilon_of_pld(pld, delta) <= epsilon

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
) -> float:
    """Least noise standard deviation (to 1e-4, rounded up) at which `parts(std)` is (eps, delta)-DP.

    Beside it there may be a mu-GDP release and `others`: all together are then (eps, delta)-DP. epsilon
    is close to a power of the noise, so a secant in logarithms needs few evaluations; the result is one
    that was evaluated and passed.
    """

    def described(std: float) -> tuple[SampledRelease, ...]:
        result = parts(std)
        return result if isinstance(result, tuple) else (result,)

    def at(std: float) -> float:
        all_parts = (*described(std), *others)
        plain = epsilon_from_mu(math.hypot(mu, *(p.unamplified_mu for p in all_parts)), delta)
        return min(plain, epsilon_of_pld(compose_pld(mu, all_parts), delta))

    # With no amplification at all this is enough; with it, less is.
    unit = described(1.0)
    unit_mu = math.hypot(*(part.unamplified_mu for part in unit))
    high = unit_mu / mu_beside(epsilon, delta, mu=mu, others=others) * (1 + SLACK)
    low, at_low = high, 0.0
    at_high = max(at(high), 1e-12)
    while at_low <= epsilon:
        low /= 2
        at_low = at(low)
        if at_low <= epsilon:
            high, at_high = low, max(at_low, 1e-12)
        if low < 1e-9 * unit[0].contribution:
            raise SordinoError(
                f"epsilon {epsilon:g} needs next to no noise here and protects nobody; ask for less"
            )
    while high / low > 1 + 1e-4:
        slope = math.log(at_high / at_low) / math.log(high / low)
        guess = low * (epsilon / at_low) ** (1 / slope)
        # Stay inside, and lean to the safe side so that the bracket closes from both ends.
        guess = min(
            max(guess * (1 + 2e-5), low * (high / low) ** 0.05), high / (high / low) ** 0.05
        )
        value = at(guess)
        if value <= epsilon:
            high, at_high = guess, max(value, 1e-12)
            probe = max(high * (1 - 9e-5), low)
            if high / low > 1 + 1e-4 and (below := at(probe)) > epsilon:
                low, at_low = probe, below
        else:
            low, at_low = guess, value
    return high


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
    sampling: str = POISSON,
    most: int = MOST_LEVELS,
) -> tuple[SampledRelease, ...]:
    """Steps with noise multipliers `sigma` (relative to the clip norm) as releases to compose."""
    return tuple(
        SampledRelease(level, 1.0, rate, count, sampling, adjacency)
        for level, count in levels(sigma, most)
    )

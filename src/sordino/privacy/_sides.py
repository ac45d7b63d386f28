r"""What is released about the units of one side of a split, and values that only one unit has.

Data that is split (some units train, others are held out) shows a unit only what its own side releases,
beside post-processing. What holds for everybody is the worst of the sides.

*Lost*: a value that only one unit has may show with a small probability d, and then all is lost; else the
releases are what they are without (papers/06, section 3.4). With ``D`` the delta of all else,

    delta(eps) = max{ d + (1 - d) D(eps - ln(1 - d)),  D(eps + ln(1 - d)) },
    delta(eps) = d + (1 - d) D(eps)                                             (replace-one).

It composes as ``1 - prod(1 - d)``, whatever is released in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from sordino._base.errors import SordinoError, require_fraction, shown
from sordino.privacy._amplification import SampledRelease, composed_delta, composed_epsilon
from sordino.privacy._gdp import SLACK, delta_from_mu, epsilon_from_mu, mu_from_epsilon_delta
from sordino.privacy._terms import Adjacency

# So many combinations of sides are kept apart.
MOST_SIDES = 64


@dataclass(frozen=True)
class Side:
    """The releases that the units of one side of a split take part in.

    Attributes:
      gaussian_mu: mu of those without amplification.
      sampled: those whose secret random batches are credited.
      lost: probability that a value shows which only one unit has.
    """

    gaussian_mu: float
    sampled: tuple[SampledRelease, ...] = ()
    lost: float = 0.0

    def __post_init__(self) -> None:
        if not self.gaussian_mu >= 0:
            raise SordinoError(f"mu must be a number of at least 0, got {self.gaussian_mu!r}")
        if isinstance(self.lost, bool) or not 0 <= self.lost < 1:
            raise SordinoError(
                f"the chance of a loss is at least 0 and below 1, got {shown(self.lost)}"
            )
        object.__setattr__(self, "sampled", tuple(self.sampled))

    @property
    def mu(self) -> float:
        """mu of all of it with no credit for sampling, where nothing is lost."""
        return math.hypot(self.gaussian_mu, *(part.unamplified_mu for part in self.sampled))

    def delta(self, epsilon: float, adjacency: str) -> float:
        """delta at `epsilon` >= 0, rounded up."""
        if not self.lost:
            return self._kept_delta(epsilon)
        d, shift = self.lost, math.log1p(-self.lost)
        if adjacency == Adjacency.REPLACE_ONE:
            return min(1.0, (d + (1 - d) * self._kept_delta(epsilon)) * (1 + 1e-15))
        forth = (d + (1 - d) * self._kept_delta(epsilon - shift)) * (1 + 1e-15)
        return min(1.0, max(forth, self._kept_delta(epsilon + shift)))

    def epsilon(self, delta: float, adjacency: str) -> float:
        """The smallest epsilon >= 0 at `delta`, rounded up; infinite where the loss alone is more."""
        return epsilon_beside(self._kept_epsilon, delta, self.lost, adjacency)

    def _kept_epsilon(self, delta: float) -> float:
        if not self.sampled:
            return epsilon_from_mu(self.mu, delta)
        return composed_epsilon(self.sampled, delta, mu=self.gaussian_mu)

    def _kept_delta(self, epsilon: float) -> float:
        """D(epsilon); below 0, that of the pair in the other order: both orders are covered."""
        ideal = delta_from_mu(epsilon, self.mu)
        if not self.sampled:
            return ideal
        there = composed_delta(self.sampled, abs(epsilon), mu=self.gaussian_mu)
        if epsilon < 0:
            there = min(1.0, (-math.expm1(epsilon) + math.exp(epsilon) * there) * (1 + SLACK))
        return min(ideal, there)

    def covers(self, other: Side) -> bool:
        """Whether `other` releases no more, whatever the values are."""
        return (
            other.gaussian_mu <= self.gaussian_mu
            and other.lost <= self.lost
            and Counter(other.sampled) <= Counter(self.sampled)
        )


def left_of(delta: float, lost: float) -> float:
    """What is left of delta for all else where a loss has the probability `lost`, rounded down."""
    return (delta - lost) / (1 - lost) * (1 - SLACK if lost else 1.0)


def epsilon_beside(
    kept: Callable[[float], float], delta: float, lost: float, adjacency: str
) -> float:
    """The smallest epsilon >= 0 at `delta` where all else has the epsilon ``kept(delta)``, rounded up."""
    if not lost:
        return kept(delta)
    left = left_of(delta, lost)
    if left <= 0:
        return math.inf
    if adjacency == Adjacency.REPLACE_ONE:
        return kept(left)
    shift = math.log1p(-lost)
    return max(0.0, kept(left) + shift, kept(delta) - shift)


def both_of(parts: Iterable[Side]) -> Side:
    """What units see that take part in all of these."""
    known = list(parts)
    return Side(
        math.hypot(*(part.gaussian_mu for part in known)) * (1 + 1e-15),
        tuple(release for part in known for release in part.sampled),
        lost_together(part.lost for part in known),
    )


def worst_of(parts: Iterable[Side]) -> Side:
    """The least side that covers all of these."""
    known = list(parts)
    releases: Counter[SampledRelease] = Counter()
    for part in known:
        releases |= Counter(part.sampled)
    return Side(
        max(part.gaussian_mu for part in known),
        tuple(releases.elements()),
        max(part.lost for part in known),
    )


def side_by_side(choices: Sequence[tuple[Side, ...]]) -> list[tuple[Side, ...]]:
    """Several splits of the same data together: every combination of sides that a unit may be on.

    The first is that of the first sides. From `MOST_SIDES` combinations on, a further split counts with
    its worst side, for everybody.
    """
    found: list[tuple[Side, ...]] = [()]
    for sides in choices:
        grown = [(*known, side) for known in found for side in sides]
        if len(grown) > MOST_SIDES:
            distinct: dict[object, tuple[Side, ...]] = {}
            for one in grown:
                distinct.setdefault(frozenset(Counter(one).items()), one)
            grown = list(distinct.values())
        if len(grown) > MOST_SIDES:
            grown = [(*known, worst_of(sides)) for known in found]
        found = grown
    return found


def uncovered(own: Side, others: Iterable[Side]) -> list[Side]:
    """Those of `others` that neither `own` nor another of them covers."""
    kept: list[Side] = []
    for side in others:
        if not any(known.covers(side) for known in (own, *kept)):
            kept = [*(known for known in kept if not side.covers(known)), side]
    return kept


def crossings(sides: Iterable[Side]) -> list[Side]:
    """What is seen of a unit that moves from one side to another, for each two: it is on both, once."""
    return [both_of(pair) for pair in combinations(sides, 2)]


def lost_together(chances: Iterable[float]) -> float:
    """``1 - prod(1 - d)``, rounded up."""
    known = [chance for chance in chances if chance]
    if len(known) < 2:
        return math.fsum(known)
    return min(
        -math.expm1(math.fsum(map(math.log1p, (-d for d in known)))) * (1 + 1e-15), 1 - 2**-53
    )


def budget_beside(
    epsilon: float, delta: float, lost: float, adjacency: str
) -> list[tuple[float, float]]:
    """What all else must keep, each an (epsilon, delta), so that with the loss (epsilon, delta) holds."""
    if not lost:
        return [(epsilon, delta)]
    left = left_of(delta, lost)
    if left <= 0:
        raise SordinoError(
            f"a value that only one unit has shows with a probability of {lost:g}, which is all of "
            f"delta = {delta:g}; lower that chance, or use a larger delta"
        )
    if adjacency == Adjacency.REPLACE_ONE:
        return [(epsilon, left)]
    shift = math.log1p(-lost)
    return [(epsilon - shift, left), (epsilon + shift, delta)]


def mu_of_budget_beside(epsilon: float, delta: float, lost: float, adjacency: str) -> float:
    """The largest mu of all else that keeps (epsilon, delta) beside a loss, rounded down."""
    require_fraction("delta", delta)
    pairs = budget_beside(epsilon, delta, lost, adjacency)
    return min(mu_from_epsilon_delta(*pair) for pair in pairs)

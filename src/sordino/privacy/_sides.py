r"""What is released about the units of one side of a split, and values that only one unit has.

Data that is split (some units train, others are held out) shows a unit only what its own side releases,
beside post-processing. What holds for everybody is the worst of the sides.

*Lost*: a value that only one unit has may show with a small probability d, and then all is lost; else the
releases are what they are without (page 06, 3.4 and 14.11). With ``D`` the delta of all else,

    delta(eps) = max{ d + (1 - d) D(eps - ln(1 - d)),  D(eps + ln(1 - d)) },
    delta(eps) = d + (1 - d) D(eps)                                             (replace-one).

It composes as ``1 - prod(1 - d)``, whatever is released in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sordino._base.errors import SordinoError, require_fraction, shown
from sordino.privacy._amplification import SampledRelease, composed_delta, composed_epsilon
from sordino.privacy._gdp import SLACK, delta_from_mu, epsilon_from_mu, mu_from_epsilon_delta
from sordino.privacy._terms import Adjacency


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
        if not self.lost:
            return self._kept_epsilon(delta)
        left = left_of(delta, self.lost)
        if left <= 0:
            return math.inf
        if adjacency == Adjacency.REPLACE_ONE:
            return self._kept_epsilon(left)
        shift = math.log1p(-self.lost)
        return max(0.0, self._kept_epsilon(left) + shift, self._kept_epsilon(delta) - shift)

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


def both_of(parts: Iterable[Side]) -> Side:
    """What units see that take part in all of these."""
    known = list(parts)
    return Side(
        math.hypot(*(part.gaussian_mu for part in known)) * (1 + 1e-15),
        tuple(release for part in known for release in part.sampled),
        lost_together(part.lost for part in known),
    )


def worst_of(parts: Iterable[Side]) -> Side:
    """One side that covers all of these."""
    known = list(parts)
    if any(part.sampled for part in known):
        return both_of(known)
    return Side(max(part.gaussian_mu for part in known), (), max(part.lost for part in known))


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

r"""A budget that is spent as the run goes: adaptive gradient descent (Lee & Kifer 2018; papers/01, 1.3).

The run has ``R = mu^2`` in all. It is cut into `splits` parts, one for each iteration as long as
nothing goes wrong: a share ``line_search`` of a part buys one noisy minimum over candidate step
sizes, the rest one noisy gradient. When the line search finds no step that helps, the gradient's
budget grows by the factor ``1 + growth`` (only the increment is paid) and the run has fewer
iterations left. How it is spent depends on what was released before, and the total does not: with
a total fixed in advance the check before each query is a privacy filter, and all the releases
together are mu-GDP (Smith & Thakurta 2022, arXiv 2210.17520). Here costs are in GDP units, where the
paper counts in zCDP.

`FilteredBudget` is the same filter for noise that a rule of the user's chooses (papers/04, section 1.1:
Algorithm 1 of the paper): a step of noise ``sigma_t`` costs ``kappa^2 / sigma_t^2`` and is taken only if
that much is left, whatever the rule makes of what was released.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import Json
from sordino.parts.schedules._base import NoiseSchedule, register
from sordino.privacy import PrivacyFilter, mu_from_epsilon_delta, mu_of_pure, pure_of_mu

_OPTIONS = ("line_search", "growth", "candidates", "largest_step", "objective_clip", "shrink")


def budget_mu(epsilon: float | None, delta: float | None, mu: float | None) -> float:
    """The mu of a budget that is spent as the run goes: the given one, or that of (epsilon, delta)."""
    if mu is not None:
        return mu
    if epsilon is None or delta is None:
        raise SordinoError(
            "an adaptive budget is spent as the run goes: give epsilon and delta, or mu, not noise"
        )
    return mu_from_epsilon_delta(epsilon, delta)


@register
@dataclass(frozen=True)
class AdaptiveBudget(NoiseSchedule):
    """Spend ``mu^2`` on noisy gradients and noisy line searches, as much as each turns out to need.

    Attributes:
      mu: the run as a whole is mu-GDP.
      splits: iterations that the budget lasts for if no gradient has to be improved.
      line_search: the share of each part that is spent on choosing a step size.
      growth: how much budget a gradient gets more when no step along it helps (the paper's gamma).
      candidates: step sizes to choose from, 0 among them.
      largest_step: the length of the longest step ever tried (directions have norm 1).
      objective_clip: the loss of one example counts up to this in a line search.
      shrink: factor on the longest step to try when no step helps. 1 is the paper's: then a run
        whose best step is shorter than the shortest candidate never moves again and spends all it
        has on better gradients (a9a, epsilon 2, clip 1: objective .53 after 3 iterations, .37
        with .7). It follows from what was released, so it costs nothing.
    """

    mu: float
    splits: int = 60
    line_search: float = 0.5
    growth: float = 0.1
    candidates: int = 21
    largest_step: float = 2.0
    objective_clip: float = 3.0
    shrink: float = 0.7
    kind: ClassVar[str] = "adaptive"
    # How a run with it moves.
    update: ClassVar[str] = "normalised step by noisy line search"

    def __post_init__(self) -> None:
        require_positive("mu", self.mu)
        require_count("splits", self.splits)
        require_fraction("line_search", self.line_search)
        require_positive("growth", self.growth)
        require_count("candidates", self.candidates, minimum=2)
        require_positive("largest_step", self.largest_step)
        require_positive("objective_clip", self.objective_clip)
        require_positive("shrink", self.shrink, maximum=1.0)
        if self.part <= 0 or not math.isfinite(self.part):
            raise SordinoError(f"mu must be a number whose square can be divided, got {self.mu!r}")

    @classmethod
    def planned(
        cls,
        options: Json,
        steps: int,
        epsilon: float | None,
        delta: float | None,
        mu: float | None = None,
    ) -> AdaptiveBudget:
        """All that mu or (epsilon, delta) allows, in `splits` parts (by default one for each step)."""
        return cls(
            mu=budget_mu(epsilon, delta, mu),
            splits=steps if options["splits"] is None else options["splits"],
            **{name: options[name] for name in _OPTIONS},
        )

    @property
    def part(self) -> float:
        """``mu^2 / splits``, a little short, so that `splits` parts fit however they are rounded."""
        return self.mu * self.mu / self.splits * (1 - 1e-12)

    def budget(self) -> PrivacyFilter:
        """A fresh budget of ``mu^2``, rounded down."""
        return PrivacyFilter.of(math.nextafter(self.mu * self.mu, 0.0))

    def first_noise(self, kappa: int) -> float:
        """Noise multiplier of the first gradient: ``kappa / sqrt((1 - line_search) mu^2 / splits)``.

        `kappa` is 2 under replace-one adjacency, else 1.
        """
        return kappa / math.sqrt((1 - self.line_search) * self.part)

    @property
    def search_epsilon(self) -> float:
        """eps' of one line search: a pure guarantee that costs ``line_search mu^2 / splits``."""
        return pure_of_mu(math.sqrt(self.line_search * self.part))

    @property
    def search_cost(self) -> float:
        """``mu'^2`` of one line search, rounded up."""
        return math.nextafter(mu_of_pure(self.search_epsilon) ** 2, math.inf)

    def search_scale(self, kappa: int) -> float:
        """Scale of a line search's exponential noise: ``kappa objective_clip / eps'``."""
        return kappa * self.objective_clip / self.search_epsilon

    def relative_noise(self, steps: int) -> None:
        """All ones: what is known before the run is the noise of the first gradient."""
        return None

    def describe(self) -> str:
        return (
            f"at first: 1/{self.splits} of the budget per iteration, {self.line_search:.0%} of it for "
            f"a line search over {self.candidates} steps; gradients that do not help get "
            f"{self.growth:.0%} more"
        )


@register
@dataclass(frozen=True)
class FilteredBudget(NoiseSchedule):
    """Each step's noise by a rule of the released past, paid from ``mu^2`` by a privacy filter.

    The plan's noise is that of ``steps`` equal steps; a rule says how many times that a step gets. A run
    without a rule has it in every step, which costs no more than ``mu^2`` either.
    """

    mu: float
    kind: ClassVar[str] = "filter"

    def __post_init__(self) -> None:
        require_positive("mu", self.mu)

    def budget(self) -> PrivacyFilter:
        """A fresh budget of ``mu^2``, rounded down."""
        return PrivacyFilter.of(math.nextafter(self.mu * self.mu, 0.0))

    def uniform_noise(self, kappa: float, steps: int) -> float:
        """The noise multiplier of so many equal steps, a little up: ``kappa sqrt(steps) / mu``."""
        return kappa * math.sqrt(steps) / self.mu * (1 + 1e-12)

    def relative_noise(self, steps: int) -> None:
        """All ones: what is known before the run."""
        return None

    def describe(self) -> str:
        return (
            f"unless a rule of what was released says otherwise; a privacy filter of mu^2 = "
            f"{self.mu * self.mu:.4g} pays for each step"
        )

"""Who takes part when: the public facts about a run's data that its guarantee rests on."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace

from sordino._base.errors import (
    PrivacyWarning,
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.parts.sampling._kinds import SAMPLINGS, FixedOrder, Indices, Mask, Poisson, Sampling
from sordino.privacy import Participation

LARGEST_EPSILON = 1000.0
# The analysis holds a few numbers for each step; nobody trains longer.
LARGEST_STEPS = 10_000_000
WEAK_EPSILON = 20.0


def checked_budget(epsilon: float, delta: float) -> tuple[float, float]:
    """epsilon and delta as numbers that can be a budget."""
    epsilon = require_positive("epsilon", epsilon, maximum=LARGEST_EPSILON)
    return epsilon, require_fraction("delta", delta)


def warn_of_weak_budget(epsilon: float | None, delta: float | None, examples: int) -> None:
    """Warn where a budget promises next to nothing."""
    if delta is not None and delta > 1 / examples:
        warnings.warn(
            f"delta {delta:g} is larger than 1/{examples:,}: publishing one random example "
            "in full would satisfy it; use a smaller delta",
            PrivacyWarning,
            stacklevel=3,
        )
    if epsilon is not None and epsilon > WEAK_EPSILON:
        warnings.warn(
            f"epsilon {epsilon:g} promises very little; values up to about 10 are common",
            PrivacyWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Population:
    """`examples` units in batches of `batch_size` for `steps` steps.

    All of it is public. `order_seed` draws the public order of the batches (fixed and reshuffled);
    None keeps the rows as they are given. Secret batches come from the run key instead;
    `first_batch` is the size of the first one where it differs (recursive momentum starts with a
    better estimate).
    """

    examples: int
    batch_size: int
    steps: int
    sampling: str = FixedOrder.kind
    order_seed: int | None = 0
    first_batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("examples", "batch_size", "steps"):
            object.__setattr__(self, name, require_count(name, getattr(self, name)))
        if self.steps > LARGEST_STEPS:
            raise SordinoError(f"a run has at most {LARGEST_STEPS:,} steps, got {self.steps:,}")
        require_choice("sampling", self.sampling, SAMPLINGS)
        if self.batch_size > self.examples:
            raise SordinoError(
                f"batch_size {self.batch_size:,} is larger than the {self.examples:,} examples; "
                f"use at most {self.examples:,}"
            )
        if self.order_seed is not None:
            seed = require_count("order_seed", self.order_seed, minimum=0)
            object.__setattr__(self, "order_seed", seed)
        if self.first_batch is not None:
            object.__setattr__(self, "first_batch", require_count("first_batch", self.first_batch))
            if not self.is_secret:
                raise SordinoError(
                    "a first batch of another size needs poisson or without-replacement batches"
                )
            if self.first_batch > self.examples:
                raise SordinoError(
                    f"first_batch {self.first_batch:,} is larger than the {self.examples:,} examples"
                )

    @property
    def kind(self) -> Sampling:
        """The kind of sampling that `sampling` names."""
        return SAMPLINGS[self.sampling]

    @property
    def is_secret(self) -> bool:
        """Whether the batches are random and must stay unseen (amplification)."""
        return self.kind.secret

    @property
    def is_full_batch(self) -> bool:
        return self.batch_size == self.examples and self.sampling != Poisson.kind

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.examples // self.batch_size)

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def rate(self) -> float:
        """Inclusion probability of one example in one secret batch."""
        return self.batch_size / self.examples

    @property
    def gradient_evaluations(self) -> int:
        """Expected number of per-example gradients in the whole run (at one per example)."""
        return self.kind.evaluations(self)

    def batch_sizes(self) -> tuple[tuple[int, int], ...]:
        """Planned batch sizes with the number of steps that have them, in order."""
        if self.first_batch is None:
            return ((self.batch_size, self.steps),)
        rest = ((self.batch_size, self.steps - 1),) if self.steps > 1 else ()
        return ((self.first_batch, 1), *rest)

    def without_first_batch(self, first_batch: int) -> Population:
        """The population of the first step alone, as if all steps were like it."""
        return replace(self, batch_size=first_batch, first_batch=None)

    def participation(self) -> Participation:
        """The rule for the non-amplified analysis; secret batches may include anyone, every step."""
        return self.kind.participation(self)

    def batches(self, key: RunKey, first: int, count: int) -> tuple[Indices, Mask]:
        """Rows of steps ``first .. first+count-1``: indices and mask, both (count, width)."""
        return self.kind.batches(self, key, first, count)

    def describe(self) -> str:
        return "all examples in every step" if self.is_full_batch else self.kind.title

    def to_json(self) -> Json:
        return asdict(self)

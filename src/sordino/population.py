"""Who takes part when: the public facts about a run's data that its guarantee rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sordino.errors import SordinoError, require_choice, require_count
from sordino.privacy.amplification import POISSON as POISSON
from sordino.privacy.amplification import WITHOUT_REPLACEMENT as WITHOUT_REPLACEMENT
from sordino.privacy.participation import FixedBatches, FreshPermutations, Participation

FIXED = "fixed"
RESHUFFLED = "reshuffled"
SAMPLINGS = {
    FIXED: "the same batches every epoch, in one public order",
    RESHUFFLED: "a fresh public permutation every epoch (accounted for its worst case)",
    POISSON: "Poisson batches: every example independently, secretly, in each step",
    WITHOUT_REPLACEMENT: "secret batches of fixed size, drawn without replacement in each step",
}
# The adjacency each kind of batch is naturally stated under.
NATURAL_ADJACENCY = {
    FIXED: "zero-out",
    RESHUFFLED: "zero-out",
    POISSON: "add-remove",
    WITHOUT_REPLACEMENT: "replace-one",
}


@dataclass(frozen=True)
class Population:
    """`examples` units in batches of `batch_size` for `steps` steps.

    All of it is public. `order_seed` draws the public order of the batches (fixed and reshuffled);
    None keeps the rows as they are given. Secret batches come from the run key instead.
    """

    examples: int
    batch_size: int
    steps: int
    sampling: str = FIXED
    order_seed: int | None = 0

    def __post_init__(self) -> None:
        require_count("examples", self.examples)
        require_count("batch_size", self.batch_size)
        require_count("steps", self.steps)
        require_choice("sampling", self.sampling, SAMPLINGS)
        if self.batch_size > self.examples:
            raise SordinoError(
                f"batch_size {self.batch_size:,} is larger than the {self.examples:,} examples; "
                f"use at most {self.examples:,}"
            )
        if self.order_seed is not None:
            require_count("order_seed", self.order_seed, minimum=0)

    @property
    def is_secret(self) -> bool:
        """Whether the batches are random and must stay unseen (amplification)."""
        return self.sampling in (POISSON, WITHOUT_REPLACEMENT)

    @property
    def is_full_batch(self) -> bool:
        return self.batch_size == self.examples and self.sampling != POISSON

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
        if self.sampling in (FIXED, RESHUFFLED):
            whole, rest = divmod(self.steps, self.steps_per_epoch)
            return whole * self.examples + min(rest * self.batch_size, self.examples)
        return self.steps * self.batch_size

    def participation(self) -> Participation:
        """The rule for the non-amplified analysis; secret batches may include anyone, every step."""
        if self.sampling == FIXED:
            return FixedBatches(self.steps, self.steps_per_epoch)
        if self.sampling == RESHUFFLED:
            return FreshPermutations(self.steps, self.steps_per_epoch)
        return FixedBatches(self.steps, separation=1)

    def describe(self) -> str:
        if self.is_full_batch:
            return "all examples in every step"
        return SAMPLINGS[self.sampling]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

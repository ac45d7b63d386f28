"""Who takes part when: the public facts about a run's data that its guarantee rests on.

*Slots* of reshuffled batches are the steps of each epoch that every row is in. A plan that counts on them
carries their digest; planning and engine take them from one function here, and the engine refuses to run
where its own order is another one (another seed, another generator of numbers).
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import (
    PlanMismatchError,
    PrivacyWarning,
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.keys import RunKey
from sordino._base.types import Json
from sordino.parts.sampling._kinds import (
    CYCLIC,
    SAMPLINGS,
    FixedOrder,
    Indices,
    Mask,
    Reshuffled,
    Sampling,
)
from sordino.parts.sampling._slots import SLOTS
from sordino.privacy import Participation, plural

LARGEST_EPSILON = 1000.0
# The analysis holds a few numbers for each step; nobody trains longer.
LARGEST_STEPS = 10_000_000
WEAK_EPSILON = 20.0


def checked_budget(epsilon: float, delta: float) -> tuple[float, float]:
    """epsilon and delta as numbers that can be a budget."""
    epsilon = require_positive("epsilon", epsilon, maximum=LARGEST_EPSILON)
    return epsilon, require_fraction("delta", delta)


def warn_of_weak_budget(epsilon: float | None, delta: float | None, examples: int | None) -> None:
    """Warn where a budget promises next to nothing; of delta only where the number of units is public."""
    if delta is not None and examples is not None and delta > 1 / examples:
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
    None keeps the rows as they are given, and of reshuffled batches no order is counted on. `slots` is
    the SHA-256 of the reshuffled slots that the guarantee counts on, if it does. Secret batches come from
    the run key instead; `first_batch` is the size of the first one where it differs (recursive momentum
    starts with a better estimate). `cycle` is the number of groups of cyclic Poisson batches; their
    `order_seed` splits the groups publicly, None draws them from the run key.

    Secret slots (`slot_count` of them) are for a number of units that is not public: `examples` is then an
    estimate of it, `batch_size` its share of a slot, by which noisy sums are divided, and nothing about
    privacy depends on either. Before there is an estimate, a slot counts as one unit (`secret_slots`).

    `rows_per_person`: every row is an example of its own, clipped by itself, and a unit has at most so many
    of them, all in its one batch. None: all of a unit's data are one example.
    """

    examples: int
    batch_size: int
    steps: int
    sampling: str = FixedOrder.kind
    order_seed: int | None = 0
    first_batch: int | None = None
    cycle: int | None = None
    slots: str | None = None
    slot_count: int | None = None
    rows_per_person: int | None = None

    def __post_init__(self) -> None:
        for name in ("examples", "batch_size", "steps"):
            object.__setattr__(self, name, require_count(name, getattr(self, name)))
        for name in ("slot_count", "rows_per_person"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, require_count(name, getattr(self, name)))
        if self.steps > LARGEST_STEPS:
            raise SordinoError(f"a run has at most {LARGEST_STEPS:,} steps, got {self.steps:,}")
        require_choice("sampling", self.sampling, SAMPLINGS)
        if self.batch_size > self.examples:
            raise SordinoError(
                f"batch_size {self.batch_size:,} is larger than the {self.examples:,} examples; "
                f"use at most {self.examples:,}"
            )
        self._check_slot_count()
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

        if (self.cycle is not None) != (self.sampling == CYCLIC):
            raise SordinoError(f"a cycle of groups belongs to {CYCLIC} batches, and they need one")
        if self.cycle is not None:
            object.__setattr__(self, "cycle", require_count("cycle", self.cycle))
            if self.cycle > self.examples // self.batch_size:
                raise SordinoError(
                    f"with {self.cycle:,} groups, a batch of {self.batch_size:,} is more than a group of "
                    f"{self.examples:,} examples; use at most {self.examples // self.batch_size:,} bands"
                )
            if self.first_batch is not None:
                raise SordinoError(f"{CYCLIC} batches have one size; leave first_batch out")
        if self.slots is not None:
            self._check_slots()

    def _check_slot_count(self) -> None:
        if (self.slot_count is not None) != (self.sampling == SLOTS):
            raise SordinoError(f"slot_count belongs to sampling={SLOTS!r}, which needs it")
        if self.slot_count is None:
            return
        object.__setattr__(self, "order_seed", None)  # slots have no order
        if self.batch_size != -(-self.examples // self.slot_count):
            raise SordinoError(
                f"{self.examples:,} units in {self.slot_count:,} slots are batches of "
                f"{-(-self.examples // self.slot_count):,}, not {self.batch_size:,}"
            )

    @classmethod
    def secret_slots(
        cls, slot_count: int, steps: int, rows_per_person: int | None = None
    ) -> Population:
        """An undeclared number of units in secret slots; see `settled`."""
        count = require_count("slot_count", slot_count)
        return cls(count, 1, steps, SLOTS, None, slot_count=count, rows_per_person=rows_per_person)

    def settled(self, examples: int) -> Population:
        """The same slots with an estimate of how many units there are, from a private release."""
        if self.slot_count is None:
            raise SordinoError(
                "the number of units of this plan is declared; only slots leave it open"
            )
        count = require_count("examples", examples)
        return replace(self, examples=count, batch_size=-(-count // self.slot_count))

    @property
    def is_declared(self) -> bool:
        """Whether the number of units is public and exact."""
        return self.slot_count is None

    @property
    def is_open(self) -> bool:
        """Whether there is no estimate yet of how many units there are."""
        return self.examples == self.slot_count

    def sizes(self, unit: str) -> str:
        """How many units in how large batches, in words."""
        if self.is_declared:
            return f"{plural(self.examples, unit)}, batches of {self.batch_size:,}"
        known = "" if self.is_open else f" (about {self.examples:,}, by a private release)"
        return f"an undeclared number of {unit}s{known} in {plural(self.slot_count or 1, 'secret slot')}"

    def require_declared(self, what: str) -> None:
        """Refuse secret slots where `what` cannot have them."""
        if not self.is_declared:
            raise SordinoError(
                f"{what} needs a public number of units and does not work with secret slots; declare "
                "the number, or use sordino.train"
            )

    def _check_slots(self) -> None:
        if not isinstance(self.slots, str) or not re.fullmatch("[0-9a-f]{64}", self.slots):
            raise SordinoError(f"slots must be a SHA-256 in hexadecimal, got {shown(self.slots)}")
        if self.sampling != Reshuffled.kind or self.order_seed is None or self.is_full_batch:
            raise SordinoError(
                "only reshuffled batches with an order_seed have slots to count on, and not full ones"
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
        return self.batch_size == self.examples and self.kind.fixed_size

    @property
    def steps_per_epoch(self) -> int:
        return self.slot_count or -(-self.examples // self.batch_size)

    @property
    def epochs(self) -> float:
        return self.steps / self.steps_per_epoch

    @property
    def rate(self) -> float:
        """Inclusion probability of one example in one secret batch, before its group is known."""
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

    def uses(self) -> str:
        """How often one unit is used, in words."""
        uses = self.kind.uses(self)
        if self.rows_per_person is None:
            return uses
        return f"{uses}, with {plural(self.rows_per_person, 'row')} at most"

    def describe(self) -> str:
        return "all examples in every step" if self.is_full_batch else self.kind.describe(self)

    def to_json(self) -> Json:
        # Absent unless they count: other plans keep the identity they always had.
        optional = ("cycle", "slots", "slot_count", "rows_per_person")
        absent = {name for name in optional if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in absent}


Slots = NDArray[np.unsignedinteger]


def epoch_slots(population: Population) -> Iterator[Slots]:
    """For each epoch, the slot of every row (examples,), as the order of its batches has it."""
    n, per_epoch = population.examples, population.steps_per_epoch
    slot = (np.arange(n) // population.batch_size).astype(np.min_scalar_type(per_epoch))
    for epoch in range(-(-population.steps // per_epoch)):
        found = np.full(n, per_epoch, slot.dtype)  # whom an order leaves out has no slot
        found[population.kind.order(population, epoch)] = slot
        yield found


def public_slots(population: Population) -> Slots:
    """The slots of all epochs (epochs, examples)."""
    epochs = -(-population.steps // population.steps_per_epoch)
    dtype = np.min_scalar_type(population.steps_per_epoch)
    found = np.empty((epochs, population.examples), dtype)
    for row, slots in zip(found, epoch_slots(population), strict=True):
        row[:] = slots
    return found


def slots_digest(population: Population, slots: Iterable[Slots]) -> str:
    """SHA-256 of the slots, epoch after epoch as little-endian 32-bit numbers."""
    n, b, steps = population.examples, population.batch_size, population.steps
    digest = hashlib.sha256(f"sordino slots 1: {n} {b} {steps}\n".encode())
    for epoch in slots:
        digest.update(epoch.astype("<u4").data)
    return digest.hexdigest()


def check_slots(population: Population) -> None:
    """Refuse to run a plan whose guarantee counts on another order than the batches have here."""
    if population.slots is None:
        return
    if slots_digest(population, epoch_slots(population)) != population.slots:
        raise PlanMismatchError(
            "the batches have another public order here than the one this plan was accounted for; "
            "make the plan again, or plan with order_seed=None"
        )

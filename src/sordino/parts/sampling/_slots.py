"""Secret slots: batches of units whose number nobody may know (papers/06, section 2.5).

Each unit is in one of b slots for the whole run, chosen by the run key and the unit's id alone. Removing a
unit moves no other: what changes are the steps of its slot, so that the sensitivity of fixed batches holds
where units are added or removed, for every mechanism. Sums are divided by a public estimate of a slot's
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count
from sordino._base.keys import RunKey
from sordino.parts.sampling._kinds import SAMPLINGS, Indices, Mask, Sampling
from sordino.privacy import Adjacency, FixedBatches, Participation, times

if TYPE_CHECKING:
    from sordino.parts.sampling._population import Population

SLOTS = "slots"


class SecretSlots(Sampling):
    """Every unit in one secret slot for the whole run; a step has the units of one slot.

    The secrecy earns no credit: it is what lets the number of units stay private.
    """

    kind = SLOTS
    title = "secret slots"
    fixed_size = False

    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        return (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)

    def participation(self, population: Population) -> Participation:
        return FixedBatches(population.steps, population.steps_per_epoch)

    def batches(
        self, population: Population, key: RunKey, first: int, count: int
    ) -> tuple[Indices, Mask]:
        raise SordinoError(
            "secret slots hold an undeclared number of units, so batches cannot be drawn without the "
            "data; use sordino.train"
        )

    def describe(self, population: Population) -> str:
        if population.slot_count == 1:
            return "everybody in every step, however many there are"
        return (
            f"secret slots: everybody in one of {population.slot_count:,} for the whole run, drawn "
            "secretly"
        )

    def evaluations(self, population: Population) -> int:
        return -(-population.steps * population.examples // population.steps_per_epoch)

    def uses(self, population: Population) -> str:
        if population.slot_count == 1:
            return "in every step (full batch)"
        most = self.participation(population).max_participations
        if most == 1:
            return "in at most one step (secret slots, less than or just one epoch)"
        return f"at most {times(most)}, every {population.slot_count:,} steps (one secret slot)"


SAMPLINGS.add(SecretSlots.kind, SecretSlots)


def slot_of(key: RunKey, ids: Sequence[str] | None, count: int, n: int) -> NDArray[np.int64]:
    """The slot of each of n units (n,), from the run key and its own id, or its place without ids."""
    count = require_count("count", count)
    if ids is not None and len(ids) != n:
        raise SordinoError(f"there are {len(ids):,} ids for {n:,} units; give one each")
    names = map(str, range(n)) if ids is None else ids
    words = key.words("batches/slots", names)
    return (words % np.uint64(count)).astype(np.int64)

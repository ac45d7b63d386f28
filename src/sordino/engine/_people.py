"""Whose rows are whose: a run's persons, and the batches that each step takes (papers/06, section 2).

A person is a position in a list: the order in which persons first appear in the data. Their number is
public where a plan declares it, as the number of rows is elsewhere; "fixed" batches are cut from that list.
Of secret slots it is not: a person's slot follows from the run key and the id alone, any number of persons
runs, and nobody's coming or going moves another person, or changes a bit of what another one adds.

What a row counts inside its person's sum is ``n_p^-power w_i / w_mean``, and the clipped sum is multiplied
by ``w_mean``, the mean weight of the person's rows (papers/06, section 5). Rows without an id, and rows
whose weight is not a number, count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import PlanMismatchError, SordinoError, require_fraction
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.parts import Population
from sordino.parts.contributions import (
    LANES,
    Evaluator,
    LinearEvaluator,
    PersonBatch,
    VmapEvaluator,
)
from sordino.parts.sampling import slot_of
from sordino.planning import Plan
from sordino.privacy import ROW, person_ids

Floats = NDArray[np.float32]
# A person of n rows speaks with the square root of n: between the average person and the average row.
PERSON_POWER = 0.5
# Of a chunk's batches of persons, on the host (64 MB).
MOST_PLACES = 1 << 24


class PersonRecords(NamedTuple):
    """What of a run's persons compiled code needs; see `PersonBatch`.

    `tables` has the queues of the batches that come again and again (batches, turns, lanes).
    """

    weight: jax.Array
    after: jax.Array
    starts: jax.Array
    tables: jax.Array | None

    def batch(self, data: PyTree, picked: PyTree) -> PersonBatch:
        """The batch of a step: one of the tables, or the queues themselves."""
        queue = picked
        if self.tables is not None:
            queue = self.tables[picked]
        return PersonBatch(data, self.weight, self.after, self.starts, queue)


@dataclass(frozen=True, eq=False)
class People:
    """The persons of a run.

    Attributes:
      ids: canonical, in the order of their first rows.
      rows: those rows of the data that count, each person's together and in their order.
      starts: where each person's begin in `rows` (persons + 1,).
      weight, after: of each row, and of one more that nobody has; see `PersonBatch`.
      lane: of each person, one of `lanes`.
      shown: a keyed digest of each row's id, the weights and the power: for the run's description.
    """

    ids: tuple[str, ...]
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    weight: Floats
    after: Floats
    lane: NDArray[np.int64]
    lanes: int
    shown: PyTree

    @classmethod
    def of(
        cls,
        plan: Plan,
        key: RunKey,
        groups: ArrayLike | None,
        rows: int,
        weights: Floats | None,
        power: float,
        lanes: int = LANES,
    ) -> People:
        """The persons of `rows` rows with these groups; without groups every row is one."""
        power = require_fraction("person_power", power, closed=True)
        if groups is None:
            found = np.array([str(i) for i in range(rows)], object)
        else:
            found = person_ids(groups)
        if len(found) != rows:
            raise SordinoError("groups must have one id for each row of the data")
        ids, owners = _owners(found)
        count = plan.population.examples
        if plan.population.is_declared and len(ids) != count:
            raise PlanMismatchError(
                f"the plan is for {count:,} {plan.guarantee.unit}s, and the data has another number of "
                "them; plan again with that number, or with sampling='slots', where it stays private"
            )
        order = np.argsort(owners, kind="stable")
        order = order[np.searchsorted(owners[order], 0) :]  # without those that have no id
        starts = _starts_of(owners[order], len(ids))
        most = plan.population.rows_per_person
        if most is not None:
            order = order[_kept(ids, starts, most, key)]
            starts = _starts_of(owners[order], len(ids))
        sizes = np.diff(starts)
        given = None if weights is None else weights[order].astype(np.float64)
        inside, after = _counted(
            starts, sizes, given, 0.0 if most else power, alone=most is not None
        )
        digests = np.append(key.words("people/ids", ids), np.uint64(0))[owners]
        return cls(
            ids=ids,
            rows=order,
            starts=starts,
            weight=np.append(inside, 0).astype(np.float32),
            after=np.append(after, -1).astype(np.float32),
            lane=(key.words("people/lanes", ids) % np.uint64(lanes)).astype(np.int64),
            lanes=lanes,
            shown=(digests, () if weights is None else weights, np.float64(power)),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def taken(self, data: PyTree) -> PyTree:
        """Rows of the data, each person's together, and one more that counts nothing."""

        def leaf(array: ArrayLike) -> NDArray[np.generic]:
            array = np.asarray(array)
            some = array[:1] if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)
            return np.concatenate([array[self.rows], some])

        return jax.tree.map(leaf, data)

    def records(self, valid: jax.Array, tables: NDArray[np.int32] | None) -> PersonRecords:
        """For compiled code; rows that are not `valid` (rows + 1,) count nothing."""
        return PersonRecords(
            jnp.asarray(self.weight) * valid,
            jnp.asarray(self.after),
            jnp.asarray(self.starts.astype(np.int32)),
            None if tables is None else jnp.asarray(tables),
        )

    def queues(
        self,
        steps: NDArray[np.int64],
        persons: NDArray[np.int64],
        count: int,
        turns: int = 1,
    ) -> NDArray[np.int32]:
        """The queues of some batches (count, turns, lanes): person i is in batch ``steps[i]``.

        As many turns as the fullest lane needs, in multiples of `turns`.
        """
        lane = steps * self.lanes + self.lane[persons]
        order = np.argsort(lane, kind="stable")
        sorted_lane = lane[order]
        place = np.arange(len(lane)) - np.searchsorted(sorted_lane, sorted_lane)
        longest = int(place.max(initial=0)) + 1
        table = np.full((count, turns * -(-longest // turns), self.lanes), -1, np.int32)
        table[sorted_lane // self.lanes, place, sorted_lane % self.lanes] = persons[order]
        return table


@dataclass(frozen=True, eq=False)
class PersonBatches:
    """Which persons each step of a run takes."""

    population: Population
    people: People
    key: RunKey

    @property
    def comes_again(self) -> bool:
        """Whether a few batches come again and again."""
        population = self.population
        return not population.is_declared or population.kind.is_contiguous()

    def tables(self) -> NDArray[np.int32] | None:
        """Their queues."""
        if not self.comes_again:
            return None
        population, count = self.population, len(self.people)
        per_epoch = population.steps_per_epoch
        if not population.is_declared:
            slots = slot_of(self.key, self.people.ids, per_epoch, count)
        else:
            slots = np.empty(count, np.int64)
            slots[population.kind.order(population, 0)] = np.arange(count) // population.batch_size
        return self.people.queues(slots, np.arange(count), per_epoch)

    def picked(self, first: int, count: int) -> NDArray[np.int32]:
        """Of each step: which of the tables, or its queues (steps, turns, lanes)."""
        if self.comes_again:
            steps = np.arange(first, first + count) % self.population.steps_per_epoch
            return steps.astype(np.int32)
        indices, present = self.population.batches(self.key, first, count)
        steps, places = np.nonzero(present)
        persons = indices[steps, places].astype(np.int64)
        turns = _turns(indices.shape[1], self.people.lanes)
        return self.people.queues(steps, persons, count, turns)


def stacked_queues(drawn: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Queues of the same steps of several runs, as many turns for all."""
    turns = max(queue.shape[1] for queue in drawn)
    more = ((0, turns - queue.shape[1]) for queue in drawn)
    return np.stack(
        [
            np.pad(queue, ((0, 0), pad, (0, 0)), constant_values=-1)
            for queue, pad in zip(drawn, more, strict=True)
        ]
    )


def longest_chunk(population: Population, lanes: int) -> int:
    """Steps whose queues fit into memory: of public numbers alone."""
    if not population.is_declared or population.kind.is_contiguous():
        return population.steps
    width = max(size for size, _ in population.batch_sizes())
    return max(1, MOST_PLACES // (lanes * _turns(width, lanes)))


def _turns(width: int, lanes: int) -> int:
    """Persons that nearly every lane has at most, of `width` persons."""
    mean = width / lanes
    return int(np.ceil(mean + 6 * np.sqrt(mean) + 2))


def _owners(ids: NDArray[np.object_]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The ids in the order of their first rows, and whose each row is (-1: nobody's)."""
    known: dict[str, int] = {}
    owners = np.fromiter(
        (-1 if one is None else known.setdefault(one, len(known)) for one in ids),
        np.int64,
        len(ids),
    )
    return tuple(known), owners


def _starts_of(owners: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=count))]).astype(np.int64)


def _kept(
    ids: tuple[str, ...], starts: NDArray[np.int64], most: int, key: RunKey
) -> NDArray[np.int64]:
    """Places of at most so many rows of each person, chosen by the key, the id and the row's number."""
    kept = np.ones(starts[-1], bool)
    for person in np.flatnonzero(np.diff(starts) > most):
        begin, end = starts[person], starts[person + 1]
        drawn = key.words("people/rows", (f"{i}/{ids[person]}" for i in range(end - begin)))
        kept[begin:end] = np.argsort(np.argsort(drawn, kind="stable"), kind="stable") < most
    return np.flatnonzero(kept)


def _counted(
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    weights: NDArray[np.float64] | None,
    power: float,
    *,
    alone: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What rows count before and after the clip; `alone`: each row is clipped by itself."""
    rows = int(starts[-1])
    if alone:
        return np.ones(rows), np.ones(rows) if weights is None else weights
    # Number by number, so that none is rounded otherwise because of its neighbours; so are the sums.
    known, which = np.unique(sizes, return_inverse=True)
    inside = np.repeat(np.array([float(n) ** -power for n in known])[which], sizes)
    after = np.full(rows, -1.0)
    last = starts[1:] - 1
    if weights is None:
        after[last] = 1.0
        return inside, after
    owners = np.repeat(np.arange(len(sizes)), sizes)
    mean = np.bincount(owners, weights, len(sizes)) / sizes
    after[last] = np.minimum(mean, 1.0)
    each = mean[owners]
    return inside * np.divide(weights, each, out=np.zeros(rows), where=each > 0), after


def checked_weights(weights: ArrayLike | None, rows: int) -> Floats | None:
    """One weight for each row, 0 to 1: what is no number is 0, what is beyond is at the end."""
    if weights is None:
        return None
    array = np.asarray(weights)
    if array.dtype.kind not in "biuf" or array.shape != (rows,):
        raise SordinoError("row_weights must be one number from 0 to 1 for each row of the data")
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(array.astype(np.float32), nan=0.0), 0.0, 1.0)


def wants_people(plan: Plan, groups: ArrayLike | None) -> bool:
    """Whether a run is about persons with several rows, or about units whose number is private.

    Refuses ids of persons where a plan protects single rows, and no ids where it counts on them.
    """
    if groups is not None and plan.guarantee.unit == ROW:
        raise SordinoError(
            "groups were given, but the unit is 'example', which protects one row of a person and no "
            "more; plan with unit='person'"
        )
    if groups is None and plan.population.rows_per_person is not None:
        raise SordinoError(
            "this plan counts on at most so many rows of each person; give groups, whose row each one is"
        )
    if groups is None and plan.population.is_declared:
        return False
    for refused, what in (
        (not plan.guarantee.is_private, "are for private recipes"),
        (plan.lattice is not None, "work with Gaussian noise only; plan with noise='gaussian'"),
    ):
        if refused:
            raise SordinoError(f"groups, and secret slots, {what}")
    return True


def lanes_of(evaluator: Evaluator) -> int:
    """Persons that are added up at a time: fewer where microbatches are to be smaller."""
    wanted = evaluator.microbatch if isinstance(evaluator, VmapEvaluator) else None
    return min(LANES, wanted or LANES)


def check_built_in(plan: Plan, evaluator: Evaluator) -> None:
    """Refuse evaluators that know nothing of persons or weights, and noise on a lattice."""
    if plan.lattice is not None:
        raise SordinoError("row_weights work with Gaussian noise only; plan with noise='gaussian'")
    if type(evaluator) not in (LinearEvaluator, VmapEvaluator):  # nor one that inherits from these
        raise SordinoError(
            f"{type(evaluator).__name__} adds up examples by itself, and knows nothing of persons and "
            "weights; give the loss of one row"
        )

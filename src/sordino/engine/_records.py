"""The records of a run: the one door through which they enter, and the batch that each step takes of them.

`train`, `Session`, adaptive runs, audits, parties, federated clients and influence estimates all come
through `as_records` and `as_parameters`, where it is decided once what kinds of numbers there are:

- records: float32, or the half-precision floats of a model that wants them; whole numbers of at most
  32 bits; bool. 64-bit floats are rounded; 64-bit whole numbers beyond 32 bits become the largest
  there are. Anything else (text, objects, complex numbers, masks, sparse matrices) is refused by its
  type, which is a property of the table.
- parameters: float32, float16 or bfloat16, all of them finite. They are public.

No message and no warning depends on a record's value: a record that is no number (NaN, infinite,
beyond float32) goes through, and contributes nothing. Norms, clips, sums and noise are float32 or
whole numbers in any case.

Where a plan has the same batches in every epoch, records are reordered once and batches are slices of
them; else each chunk of steps comes with the rows of its batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine._people import PersonBatches, PersonRecords
from sordino.parts import Population, even_width
from sordino.parts.contributions import Batch, Evaluator, PersonBatch
from sordino.parts.sampling import public_order
from sordino.planning import Plan

# What records may be, by the name of the type they come in.
_RECORDS = {
    "float16": np.float16,
    "bfloat16": jnp.bfloat16,
    "float32": np.float32,
    "float64": np.float32,
    "longdouble": np.float32,
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int32,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint32,
}
_PARAMETERS = ("float16", "bfloat16", "float32", "float64", "longdouble")
# Rows and mask of a chunk's batches, both (steps, width); None where batches are slices; of persons, what
# `PersonBatches.picked` gives.
BatchRows = tuple[NDArray[np.int32], NDArray[np.float32]]
Picked = BatchRows | NDArray[np.int32] | None


def as_records(data: PyTree) -> PyTree:
    """Arrays of records (any pytree) in the types that the engine computes with; see the module."""
    return jax.tree.map(_record, data)


def _record(value: object) -> jax.Array | NDArray[np.generic]:
    if isinstance(value, np.ma.MaskedArray):
        raise SordinoError(
            "data must be plain arrays, got a masked one; fill what is masked with a public value"
        )
    if hasattr(value, "tocsr"):
        raise SordinoError(
            "data must be dense arrays, got a sparse matrix; use its toarray(), or an estimator"
        )
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    name = _name(array.dtype)
    if name not in _RECORDS:
        raise SordinoError(
            f"data must be numbers, got an array of {name}; convert it first (float32, int32, bool)"
        )
    wanted = np.dtype(_RECORDS[name])
    if array.dtype == wanted:
        return array
    if wanted.kind in "iu" and array.dtype != wanted.newbyteorder():
        limits = np.iinfo(wanted)
        array = array.clip(limits.min, limits.max)
    # Too large for float32 is infinite, and says nothing about it.
    with np.errstate(all="ignore"):
        return array.astype(wanted)


def as_parameters(params: PyTree) -> PyTree:
    """Parameters (any pytree) as finite float arrays; 64 bits become 32."""
    if not jax.tree.leaves(params):
        raise SordinoError("there are no parameters to train")
    return jax.tree.map(_parameter, params)


def _parameter(value: object) -> jax.Array | NDArray[np.generic]:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    name = _name(array.dtype)
    if name not in _PARAMETERS:
        raise SordinoError(
            f"all parameters must be float arrays (float32, float16, bfloat16), got {name}; separate "
            "the others first"
        )
    wanted = np.dtype(_RECORDS[name])
    with np.errstate(all="ignore"):
        array = array if array.dtype == wanted else array.astype(wanted)
    if not np.isfinite(np.asarray(array, np.float32)).all():
        raise SordinoError("all parameters must be finite in float32 before the first step")
    return array


def _name(dtype: np.dtype[np.generic]) -> str:
    """The type's name, whatever the order of its bytes; long floats by one name."""
    if dtype == np.longdouble and dtype != np.float64:
        return "longdouble"
    return str(np.dtype(dtype).newbyteorder("=").name)


def check_rows(plan: Plan, data: tuple[PyTree, ...]) -> None:
    """Refuse data that is not one row per planned example."""
    n = row_count(data)
    if n != plan.population.examples:
        raise PlanMismatchError(
            f"the plan is for {plan.population.examples:,} examples but the data has {n:,} rows; "
            f"plan again with examples={n}"
        )


def row_count(data: PyTree) -> int:
    """The rows that all arrays have in common."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise SordinoError("there is no data: give a tuple of arrays with one row per example")
    counts = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if len(counts) != 1 or None in counts:
        raise SordinoError(f"all data arrays need one row per example, got row counts {counts}")
    (n,) = counts
    assert n is not None
    return int(n)


class Records(NamedTuple):
    """Records as the evaluator prepared them, and which of the rows are valid (1 or 0).

    Where rows have weights, `valid` is these; where rows have persons, `people` says whose they are.
    """

    data: PyTree
    valid: jax.Array
    people: PersonRecords | None = None

    def take(
        self, rows: jax.Array | NDArray[np.int32], present: jax.Array | NDArray[np.float32]
    ) -> Batch:
        """The batch of some rows (B,), of which those with `present` = 1 are meant."""
        return Batch(
            jax.tree.map(lambda leaf: leaf[rows], self.data),
            jnp.multiply(present, self.valid[rows]),
        )


@dataclass(frozen=True)
class Slices:
    """Batches that are slices of records in their order: `per_epoch` of `batch_size` rows each."""

    batch_size: int
    per_epoch: int

    @property
    def width(self) -> int:
        """Rows that are cut out: the planned ones, and a few that are masked."""
        return even_width(self.batch_size)

    @property
    def rows(self) -> int:
        """Rows that the records must have for the last batch to be cut out."""
        return (self.per_epoch - 1) * self.batch_size + self.width

    def batch(self, records: Records, t: jax.Array) -> Batch:
        """The batch of step t."""
        # Rows of the next batch, or zeros after the last one, fill the slice up; they are masked.
        begin = (t % self.per_epoch) * self.batch_size
        take = partial(jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=self.width)
        data, present = jax.tree.map(take, records.data), take(records.valid)
        if self.width == self.batch_size:
            return Batch(data, present)
        return Batch(data, present * (jnp.arange(self.width) < self.batch_size))


@dataclass(frozen=True)
class Batches:
    """Which rows each step of a run takes; hashable. With `persons` it takes these, with all their rows."""

    population: Population
    persons: PersonBatches | None = None

    @property
    def slices(self) -> Slices | None:
        """How batches are cut out, where they are slices."""
        if self.persons is not None or not self.population.kind.is_contiguous():
            return None
        return Slices(self.population.batch_size, self.population.steps_per_epoch)

    def picked(self, key: RunKey, first: int, count: int) -> Picked:
        """Rows of steps ``first .. first+count-1``, where batches are not slices."""
        if self.persons is not None:
            return self.persons.picked(first, count)
        if self.slices is not None:
            return None
        return self.population.batches(key, first, count)

    def load(
        self, evaluator: Evaluator, data: PyTree, weights: NDArray[np.float32] | None = None
    ) -> Records:
        """Records as the steps take them; `weights` are of the rows, where these are what is clipped."""
        if self.persons is not None:
            people = self.persons.people
            records = prepare(evaluator, people.taken(data))
            rows = people.records(records.valid, self.persons.tables())
            return records._replace(people=rows)
        slices = self.slices
        if slices is None:
            return prepare(evaluator, data, weights=weights)
        order = None if self.population.is_full_batch else public_order(self.population)
        return prepare(evaluator, data, order, slices.rows, weights)


def batch_at(
    slices: Slices | None, records: Records, t: jax.Array, picked: Picked
) -> Batch | PersonBatch:
    """The batch of step t: a slice, or the rows or persons that were picked for it."""
    if records.people is not None:
        return records.people.batch(records.data, picked)
    if picked is not None:
        return records.take(*picked)
    assert slices is not None
    return slices.batch(records, t)


def joined(join: Callable[..., PyTree], parts: list[BatchRows]) -> BatchRows:
    """Rows and masks of several batches, padded to one width, by `np.stack` or `np.concatenate`."""
    width = max(mask.shape[1] for _, mask in parts)
    wide = [[np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in part] for part in parts]
    return join([rows for rows, _ in wide]), join([mask for _, mask in wide])


@partial(jax.jit, static_argnames=("evaluator", "rows"))
def prepare(
    evaluator: Evaluator,
    data: PyTree,
    order: NDArray[np.int64] | None = None,
    rows: int | None = None,
    weights: NDArray[np.float32] | None = None,
) -> Records:
    """Let the evaluator prepare each example; where batches are slices, reorder once and add zeros.

    Args:
      order: the rows' order, if it is another one.
      rows: how many rows there are to be, the last ones zeros that are not valid.
      weights: what each row counts after its clip, 0 to 1.
    """
    n = jax.tree.leaves(data)[0].shape[0]
    prepared, valid = evaluator.prepare(data, jnp.ones(n, jnp.float32))
    if weights is not None:
        valid = valid * weights
    more = 0 if rows is None else rows - n
    if order is not None:
        # Any row will do as padding: it is not valid. So nothing is copied twice.
        at = jnp.pad(jnp.asarray(order, jnp.int32), (0, more))
        there = jnp.arange(n + more) < n
        return Records(
            jax.tree.map(lambda leaf: leaf[at], prepared), jnp.where(there, valid[at], 0)
        )
    if more == 0:
        return Records(prepared, valid)
    return Records(
        *jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, more)] + [(0, 0)] * (leaf.ndim - 1)), (prepared, valid)
        )
    )

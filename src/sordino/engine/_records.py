"""The records of a run in memory, and the batch that each step takes of them.

Where a plan has the same batches in every epoch, records are reordered once and batches are slices of
them; else each chunk of steps comes with the rows of its batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sordino._base.keys import RunKey
from sordino.parts import Population, even_width
from sordino.parts.contributions import Batch, Evaluator
from sordino.parts.sampling import public_order

# Rows and mask of a chunk's batches, both (steps, width); None where batches are slices.
Picked = tuple[Any, Any] | None


class Records(NamedTuple):
    """Records as the evaluator prepared them, and which of the rows are valid (1 or 0)."""

    data: Any
    valid: jax.Array

    def take(self, rows: Any, present: Any) -> Batch:
        """The batch of some rows (B,), of which those with `present` = 1 are meant."""
        return Batch(jax.tree.map(lambda leaf: leaf[rows], self.data), present * self.valid[rows])


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

    def batch(self, records: Records, t: Any) -> Batch:
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
    """Which rows each step of a run takes; hashable."""

    population: Population

    @property
    def slices(self) -> Slices | None:
        """How batches are cut out, where they are slices."""
        if not self.population.kind.is_contiguous():
            return None
        return Slices(self.population.batch_size, self.population.steps_per_epoch)

    def picked(self, key: RunKey, first: int, count: int) -> Picked:
        """Rows of steps ``first .. first+count-1``, where batches are not slices."""
        if self.slices is not None:
            return None
        return self.population.batches(key, first, count)

    def load(self, evaluator: Evaluator, data: Any) -> Records:
        """Records as the steps take them."""
        slices = self.slices
        if slices is None:
            return prepare(evaluator, data)
        order = None if self.population.is_full_batch else public_order(self.population)
        return prepare(evaluator, data, order, slices.rows)


def batch_at(slices: Slices | None, records: Records, t: Any, picked: Picked) -> Batch:
    """The batch of step t: a slice, or the rows that were picked for it."""
    if picked is not None:
        return records.take(*picked)
    assert slices is not None
    return slices.batch(records, t)


@partial(jax.jit, static_argnames=("evaluator", "rows"))
def prepare(evaluator: Evaluator, data: Any, order: Any = None, rows: int | None = None) -> Records:
    """Let the evaluator prepare each example; where batches are slices, reorder once and add zeros.

    Args:
      order: the rows' order, if it is another one.
      rows: how many rows there are to be, the last ones zeros that are not valid.
    """
    n = jax.tree.leaves(data)[0].shape[0]
    prepared, valid = evaluator.prepare(data, jnp.ones(n, jnp.float32))
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

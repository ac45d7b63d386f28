r"""One person, several rows: a vector per person, clipped once, and sums that no rounding moves.

A person's vector is ``g_p = sum_i w_i g_i`` over its own rows (papers/06, section 2.2), where ``g_i`` are
the gradients that the rule needs. They are added up point by point first; then the rule combines and clips
what it would combine and clip of an example. So "example" means "person" in all that a plan counts.

*Whose rows.* `PersonBatch` has the rows sorted by person, and for each *lane* a queue of persons. A turn of
the loop takes the next row of each lane. A lane adds up one person after the other, each row by row in the
person's own order. A person's lane is a function of the run key and the person's id. So the bits of its
vector follow from its rows, its lane and the parameters alone: the shapes that are computed with are those
of the lanes, whoever else there is. Nothing of the model's size is kept per person.

*How long.* The vector whose norm is measured is the vector that is added. `to_lattice` does both, as the
last thing that happens to it: whole multiples of a grain of ``2^-24`` of the bound, whose exact norm is at
most the bound (its proof is in `_rounding.py`). However much a person's rows cancel, and however rough the
sum of them is, what comes out is within the bound; a margin would be needed where norm and sum are computed
apart (papers/06, section 2.2). Rows that are not finite become zero before they are added.

*Sums.* Whole numbers are added exactly, in any order: two int32 per entry hold ``2^27`` persons. So one
person changes the sum by its own vector to the last bit, and moves nothing else, wherever the others stand.
They become floats after the last person, the sum and what its rounding leaves out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.types import PyTree
from sordino.parts._rounding import (
    BLOCK,
    CLIP_MARGIN,
    lattice_bounds,
    norm_margin,
    sum_margin,
    to_lattice,
    two_sum,
)
from sordino.parts.contributions._base import StepTerms
from sordino.parts.contributions._gradient import clip_pytree
from sordino.parts.contributions._rules import Rule, Vectors
from sordino.privacy import ClippedSum

# Persons that are added up at a time; their whole numbers, below 2^24 each, add up within an int32.
LANES = 64
# Of a grain, in the bound; and how many bits of a sum of grains one int32 has.
_DIGITS = 24
_LOW = 20
# Grains are at least this, below which squares vanish; see `to_lattice`.
_LEAST_GRAIN = 2.0**-60


class PersonBatch(NamedTuple):
    """The rows of one step, by person.

    Attributes:
      data: prepared records, each person's together, and one more row that nobody has.
      weight: of each row inside its person's sum (rows + 1,), 0 for what does not count.
      after: where a vector ends, what it is multiplied by after its clip, 0 to 1; else -1 (rows + 1,).
      starts: each person's first row (persons + 1,).
      queue: the persons of each lane in turn (turns, lanes), -1 where a lane has no more.
    """

    data: PyTree
    weight: jax.Array
    after: jax.Array
    starts: jax.Array
    queue: jax.Array


def person_terms(bounds: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
    """The numbers of each step that persons need besides, from the bounds (steps, channels)."""
    grain = np.maximum(2.0 ** (np.ceil(np.log2(bounds)) - _DIGITS), _LEAST_GRAIN)
    return {"person_bound": lattice_bounds(bounds), "grain": grain.astype(np.float32)}


def sum_of_persons(
    rule: Rule,
    gradients: Callable[[PyTree], Vectors],
    like: PyTree,
    batch: PersonBatch,
    terms: StepTerms,
) -> ClippedSum:
    """``sum_p after_p clip(sum_i weight_i g_i)`` over the persons of a batch.

    Args:
      gradients: of rows (lanes, ...), at each of the rule's points: float32, with a leading axis of lanes.
      like: the parameters.
    """
    lanes = batch.queue.shape[1]
    nobody = batch.weight.shape[0] - 1
    every = jnp.arange(lanes)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(like)]
    room = 1 - CLIP_MARGIN - norm_margin(shapes) - sum_margin(BLOCK)
    channels = terms["person_bound"].shape[0]

    def finished(sums: Vectors, share: jax.Array) -> Vectors:
        """One person's contribution to each channel, in grains."""
        made = rule.combine(sums, partial(clip_pytree, room=room), terms)
        return tuple(
            to_lattice(vector, terms["person_bound"][i], terms["grain"][i], share)
            for i, vector in enumerate(made)
        )

    def turn(state: _Lanes) -> _Lanes:
        person = _person(batch.queue, state.place, every)
        first = batch.starts[person]
        there = person >= 0
        row = jnp.where(there, first + state.row, nobody)
        # What follows is computed in the shapes of the lanes, apart from how the rows got here.
        rows, weight, share, length = jax.lax.optimization_barrier(
            (
                jax.tree.map(lambda leaf: leaf[row], batch.data),
                batch.weight[row],
                batch.after[row],
                batch.starts[person + 1] - first,
            )
        )
        sums = jax.tree.map(jnp.add, state.sums, _weighted(gradients(rows), weight))
        ends = there & (share >= 0)
        grains = jax.vmap(finished)(sums, jnp.where(ends, share, 0.0))
        more = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0, dtype=jnp.int32), grains)
        moves = there & (state.row + 1 >= length)
        return _Lanes(
            jnp.where(moves, state.place + 1, state.place),
            jnp.where(moves, 0, state.row + 1),
            jax.tree.map(lambda leaf: jnp.where(_over(ends, leaf), 0.0, leaf), sums),
            *_added(state.high, state.low, more),
        )

    def left(state: _Lanes) -> jax.Array:
        return jnp.any(_person(batch.queue, state.place, every) >= 0)

    rows = jax.tree.map(lambda leaf: leaf[:1].repeat(lanes, axis=0), batch.data)
    sums = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(gradients, rows)
    )
    zero = (jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf), jnp.int32), like),) * channels
    none = jnp.zeros(lanes, jnp.int32)
    end = jax.lax.while_loop(left, turn, _Lanes(none, none, sums, zero, zero))
    pairs = [
        _as_floats(high, low, terms["grain"][i])
        for i, (high, low) in enumerate(zip(end.high, end.low, strict=True))
    ]
    values, rests = (tuple(part) for part in zip(*pairs, strict=True))
    return ClippedSum(values[0], rests[0]) if channels == 1 else ClippedSum(values, rests)


class _Lanes(NamedTuple):
    """Where each lane is, what it has added up, and the sum of what was finished."""

    place: jax.Array
    row: jax.Array
    sums: Vectors
    high: Vectors
    low: Vectors


def _person(queue: jax.Array, place: jax.Array, every: jax.Array) -> jax.Array:
    last = queue.shape[0] - 1
    return jnp.where(place <= last, queue[jnp.minimum(place, last), every], -1)


def _over(lanes: jax.Array, leaf: jax.Array) -> jax.Array:
    return lanes.reshape(-1, *[1] * (leaf.ndim - 1))


def _weighted(gradients: Vectors, weight: jax.Array) -> Vectors:
    """Each row's gradients times its weight; all of them 0 if any entry is not finite."""
    good = weight > 0
    for leaf in jax.tree.leaves(gradients):
        good &= jnp.all(jnp.isfinite(leaf), axis=tuple(range(1, leaf.ndim)))
    return jax.tree.map(
        lambda leaf: jnp.where(_over(good, leaf), leaf * _over(weight, leaf), 0.0), gradients
    )


def _added(high: Vectors, low: Vectors, more: Vectors) -> tuple[Vectors, Vectors]:
    """``high 2^20 + low + more``, with ``0 <= low < 2^20`` again."""
    low = jax.tree.map(lambda a, b: a + (b & ((1 << _LOW) - 1)), low, more)
    high = jax.tree.map(lambda h, b, carry: h + (b >> _LOW) + (carry >> _LOW), high, more, low)
    return high, jax.tree.map(lambda a: a & ((1 << _LOW) - 1), low)


def _as_floats(high: PyTree, low: PyTree, grain: jax.Array) -> tuple[PyTree, PyTree]:
    """The sum of grains in float32, and what its rounding leaves out: both exact below 2^20 persons."""

    def leaf(h: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        coarse = h.astype(jnp.float32)
        fine = b + ((h - coarse.astype(jnp.int32)) << _LOW)
        return two_sum(coarse * (2.0**_LOW * grain), fine.astype(jnp.float32) * grain)

    pairs = [leaf(h, b) for h, b in zip(jax.tree.leaves(high), jax.tree.leaves(low), strict=True)]
    structure = jax.tree.structure(high)
    value, rest = (jax.tree.unflatten(structure, part) for part in zip(*pairs, strict=True))
    return value, rest

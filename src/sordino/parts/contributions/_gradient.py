"""Any JAX loss: per-example gradients by `vmap`, combined and clipped over all parameters together.

Microbatches bound the memory: at most `microbatch` per-example gradients exist at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from sordino._base.types import PyTree
from sordino.parts._rounding import (
    CLIP_MARGIN,
    SMALLEST_SQUARE,
    add_sums,
    block_product,
    clipped_sum,
    norm_margin,
    squared_norm,
    sum_margin,
    to_lattice,
)
from sordino.parts.contributions._base import Batch, StepTerms
from sordino.parts.contributions._rules import PLAIN, Rule, RuleStream, Vectors
from sordino.privacy import ClippedSum


@dataclass(frozen=True)
class VmapEvaluator(RuleStream):
    """``sum_i combine(grad loss(point, *example_i) for each point)``.

    A vector with any non-finite entry contributes zero: it would otherwise have no norm bound.
    """

    loss: Callable[..., jax.Array]
    rule: Rule = PLAIN
    microbatch: int | None = None
    lattice: bool = False
    program: str = ""  # see `engine.Stepper.text`

    def total(
        self, params: PyTree, memory: PyTree, batch: Batch, terms: StepTerms, step: jax.Array
    ) -> ClippedSum:
        points = self.rule.points(params, memory, step)
        size = batch.present.shape[0]
        room = self._room(params, size)

        def one(example: PyTree) -> tuple[PyTree, ...]:
            gradients = tuple(_as_float32(jax.grad(self.loss)(point, *example)) for point in points)
            channels = self.rule.combine(gradients, partial(clip_pytree, room=room), terms)
            if self.lattice:
                channels = tuple(
                    to_lattice(channel, terms["bound"][i], terms["step"])
                    for i, channel in enumerate(channels)
                )
            return channels

        add_up = _whole_numbers if self.lattice else _floats

        def total(examples: PyTree, weights: jax.Array) -> ClippedSum:
            return add_up(weights, jax.vmap(one)(examples))

        if self.microbatch is None or self.microbatch >= size:
            return total(batch.data, batch.present)
        count = -(-size // self.microbatch)
        padding = count * self.microbatch - size

        def split(leaf: jax.Array) -> jax.Array:
            padded = jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1))
            return padded.reshape(count, self.microbatch, *leaf.shape[1:])

        def add(running: ClippedSum, part: tuple[PyTree, jax.Array]) -> tuple[ClippedSum, None]:
            return self._added(running, total(*part)), None

        parts = (jax.tree.map(split, batch.data), split(batch.present))
        shapes = jax.eval_shape(total, *jax.tree.map(lambda leaf: leaf[0], parts))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.clipped)
        start = ClippedSum(zero, None if self.lattice else zero)
        return jax.lax.scan(add, start, parts)[0]

    def row_gradients(self, points: Vectors, data: PyTree) -> Vectors:
        def one(example: PyTree) -> Vectors:
            return tuple(_as_float32(jax.grad(self.loss)(point, *example)) for point in points)

        return jax.vmap(one)(data)

    def _added(self, a: ClippedSum, b: ClippedSum) -> ClippedSum:
        return jax.tree.map(jnp.add, a, b) if self.lattice else add_sums(a, b)

    def _room(self, params: PyTree, rows: int) -> float:
        """What share of a clip is used, so that no rounding gets beyond it (see `_rounding.py`)."""
        if self.lattice:  # vectors are bounded once more, as whole numbers
            return 1 - CLIP_MARGIN
        # Of the whole batch: what a run releases does not depend on how its memory is bounded.
        norms = norm_margin([np.shape(leaf) for leaf in jax.tree.leaves(params)])
        return 1 - CLIP_MARGIN - norms - sum_margin(rows)


def _as_float32(vector: PyTree) -> PyTree:
    """Whatever the model computes in, norms, clips and sums are in float32."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), vector)


def _floats(weights: jax.Array, channels: tuple[PyTree, ...]) -> ClippedSum:
    """``sum_i weights_i channel_i`` of each channel, as a product of a row and a matrix.

    Written as a scaling and a sum, the compiler would store every clipped gradient once more.
    """

    def leaf(rows: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        value, rest = block_product(weights, rows.reshape(rows.shape[0], -1))
        shape = rows.shape[1:]
        return value.reshape(shape), None if rest is None else rest.reshape(shape)

    sums = []
    for channel in channels:
        leaves, structure = jax.tree.flatten(channel)
        values, rests = zip(*(leaf(rows) for rows in leaves), strict=True)
        whole = rests[0] is None
        sums.append(
            (
                jax.tree.unflatten(structure, values),
                None if whole else jax.tree.unflatten(structure, rests),
            )
        )
    return clipped_sum(sums)


def _whole_numbers(weights: jax.Array, channels: tuple[PyTree, ...]) -> ClippedSum:
    """The sums of lattice steps over the rows whose weight is not 0, int32."""
    sums = jax.tree.map(partial(_masked, weights), channels)
    return clipped_sum([(channel, None) for channel in sums])


def _masked(weights: jax.Array, leaf: jax.Array) -> jax.Array:
    """The sum of the whole numbers whose weight is not 0."""
    present = weights.reshape(-1, *[1] * (leaf.ndim - 1)) > 0
    return jnp.sum(jnp.where(present, leaf, 0), axis=0, dtype=jnp.int32)


def clip_pytree(vector: PyTree, clip: ArrayLike, room: float = 1 - CLIP_MARGIN) -> PyTree:
    """`vector` scaled to norm at most `clip` over all its leaves; zero if any entry is not finite.

    `room` is the share of the clip that is used; see `_rounding.py`.
    """
    leaves = jax.tree.leaves(vector)
    square = squared_norm([leaf.astype(jnp.float32) for leaf in leaves])
    # The root of 0 has no derivative, which influence estimates would stumble over.
    norm = jnp.sqrt(jnp.maximum(square, SMALLEST_SQUARE))
    factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1.0, clip * room / norm), 0.0)
    # 0 * NaN is NaN: a discarded vector has to be replaced, not scaled.
    return jax.tree.map(
        lambda leaf: jnp.where(factor > 0, leaf * factor.astype(leaf.dtype), 0), vector
    )

"""Any JAX loss: per-example gradients by `vmap`, combined and clipped over all parameters together.

Microbatches bound the memory: at most `microbatch` per-example gradients exist at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sordino.privacy.values import ClippedSum
from sordino.streams.base import SMALLEST_SQUARE, Terms, clip_factor
from sordino.streams.lattice import to_lattice
from sordino.streams.rules import PLAIN, Rule, RuleStream


@dataclass(frozen=True)
class GradientStream(RuleStream):
    """``sum_i combine(grad loss(point, *example_i) for each point)``.

    A vector with any non-finite entry contributes zero: it would otherwise have no norm bound.
    """

    loss: Callable[..., jax.Array]
    rule: Rule = PLAIN
    microbatch: int | None = None
    lattice: bool = False

    def contribution(
        self, params: Any, memory: Any, batch: Any, mask: jax.Array, terms: Terms, step: jax.Array
    ) -> ClippedSum:
        points = self.rule.points(params, memory, step)

        def one(example: Any) -> Any:
            gradients = tuple(jax.grad(self.loss)(point, *example) for point in points)
            channels = self.rule.combine(gradients, clip_pytree, terms)
            if self.lattice:
                channels = tuple(
                    to_lattice(channel, terms["bound"][i], terms["step"])
                    for i, channel in enumerate(channels)
                )
            return channels[0] if len(channels) == 1 else channels

        def total(examples: Any, weights: jax.Array) -> Any:
            add_up = _masked if self.lattice else _weighted
            return jax.tree.map(lambda leaf: add_up(weights, leaf), jax.vmap(one)(examples))

        size = mask.shape[0]
        if self.microbatch is None or self.microbatch >= size:
            return ClippedSum(total(batch, mask))
        count = -(-size // self.microbatch)
        padding = count * self.microbatch - size

        def split(leaf: jax.Array) -> jax.Array:
            padded = jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1))
            return padded.reshape(count, self.microbatch, *leaf.shape[1:])

        def add(running: Any, part: tuple[Any, jax.Array]) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, running, total(*part)), None

        parts = (jax.tree.map(split, batch), split(mask))
        first = jax.tree.map(lambda leaf: leaf[0], parts)
        shapes = jax.eval_shape(total, *first)
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return ClippedSum(jax.lax.scan(add, zero, parts)[0])


def _weighted(weights: jax.Array, leaf: jax.Array) -> jax.Array:
    """``sum_i weights_i leaf_i`` as one product of a row and a matrix, in full precision.

    Written as a scaling and a sum, the compiler would store every clipped gradient once more.
    """
    rows = leaf.reshape(leaf.shape[0], -1)
    product = jnp.matmul(weights.astype(leaf.dtype), rows, precision=jax.lax.Precision.HIGHEST)
    return product.reshape(leaf.shape[1:])


def _masked(weights: jax.Array, leaf: jax.Array) -> jax.Array:
    """The sum of the whole numbers whose weight is not 0."""
    present = weights.reshape(-1, *[1] * (leaf.ndim - 1)) > 0
    return jnp.sum(jnp.where(present, leaf, 0), axis=0, dtype=jnp.int32)


def clip_pytree(vector: Any, clip: Any) -> Any:
    """`vector` scaled to norm at most `clip` over all its leaves; zero if any entry is not finite."""
    leaves = jax.tree.leaves(vector)
    square = sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves)
    # The root of 0 has no derivative, which influence estimates would stumble over.
    norm = jnp.sqrt(jnp.maximum(square, SMALLEST_SQUARE))
    factor = clip_factor(norm, clip)
    # 0 * NaN is NaN: a discarded vector has to be replaced, not scaled.
    return jax.tree.map(
        lambda leaf: jnp.where(factor > 0, leaf * factor.astype(leaf.dtype), 0), vector
    )

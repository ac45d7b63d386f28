"""The gradient stream for any JAX loss: ``clip(grad loss(params, example), C)`` per example.

Per-example gradients by `vmap`, clipped over all parameters together, summed. Microbatches bound
the memory: at most `microbatch` per-example gradients exist at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sordino.privacy.values import ClippedSum
from sordino.streams.base import Stream, clip_factor


@dataclass(frozen=True)
class GradientStream(Stream):
    """``sum_i clip(grad loss(params, *example_i), C)``.

    A gradient with any non-finite entry contributes zero: it would otherwise have no norm bound.
    """

    loss: Callable[..., jax.Array]
    microbatch: int | None = None

    def contribution(self, params: Any, batch: Any, mask: jax.Array, clip: jax.Array) -> ClippedSum:
        def one(example: Any, weight: jax.Array) -> Any:
            gradient = jax.grad(self.loss)(params, *example)
            leaves = jax.tree.leaves(gradient)
            norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))
            factor = clip_factor(norm, clip) * weight
            # 0 * NaN is NaN: a discarded gradient has to be replaced, not scaled.
            return jax.tree.map(lambda leaf: jnp.where(factor > 0, leaf * factor, 0.0), gradient)

        def total(examples: Any, weights: jax.Array) -> Any:
            clipped = jax.vmap(one)(examples, weights)
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), clipped)

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

        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
        parts = (jax.tree.map(split, batch), split(mask))
        return ClippedSum(jax.lax.scan(add, zero, parts)[0])

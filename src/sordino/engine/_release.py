"""The one door out of the clipped world: `add_noise` turns a clipped sum into a private value.

What stands before the door (`ClippedSum`) is as sensitive as the data; what comes out (`NoisedSum`) may
be seen, stored and computed with. Nothing else in this room reads a clipped sum but the noisy minimum of
adaptive runs, which has its own noise.
"""

from __future__ import annotations

import jax

from sordino._base.errors import SordinoError
from sordino._base.types import PyTree
from sordino.parts import two_sum
from sordino.privacy import ClippedSum, NoisedSum, PrivateEstimate


def add_noise(total: ClippedSum, rows: PyTree, scale: jax.Array) -> NoisedSum:
    """``sum + scale * row`` leaf by leaf, or ``sum + row`` of whole numbers.

    Sum and noise meet in float32, whatever the model computes in: a sum that float32 cannot hold brings
    what its rounding left out, and the noise is added to both together. On a lattice they meet as int32,
    and wrap around. Only operators of the arrays themselves are used, so arrays of any library may meet.

    Args:
      rows: one row of noise, shaped like the sum: unit noise (float32), or lattice noise (int32).
      scale: standard deviation of each channel's noise (channels,), for unit noise.
    """
    if len(scale) == 1:
        return NoisedSum(_channel(total.clipped, rows, total.rest, scale[0]))
    rests = [None] * len(scale) if total.rest is None else total.rest
    return NoisedSum(
        tuple(
            _channel(clipped, row, rest, scale[channel])
            for channel, (clipped, row, rest) in enumerate(
                zip(total.clipped, rows, rests, strict=True)
            )
        )
    )


def _channel(clipped: PyTree, row: PyTree, rest: PyTree, scale: jax.Array) -> PyTree:
    def leaf(s: jax.Array, n: jax.Array, left_out: jax.Array | None = None) -> jax.Array:
        types = (_type(s), _type(n))
        if types == ("int32", "int32"):
            return s + n
        if types != ("float32", "float32"):
            raise SordinoError(
                "sums and their noise are added in float32, or as whole numbers (int32) on a lattice, "
                f"got {types[0]} and {types[1]}"
            )
        noise = n * scale
        if left_out is None:
            return s + noise
        noised, error = two_sum(s, noise)
        return noised + (error + left_out)

    return (
        jax.tree.map(leaf, clipped, row) if rest is None else jax.tree.map(leaf, clipped, row, rest)
    )


def _type(array: jax.Array) -> str:
    return str(array.dtype).rpartition(".")[2]


def estimate_of(
    noised: NoisedSum, divisor: jax.Array, step: jax.Array | None = None
) -> PrivateEstimate:
    """``noised / divisor``, or ``step * noised / divisor`` where sums count lattice steps.

    `divisor` is a public number (the planned batch size), never the realised count.
    """
    if step is None:
        return PrivateEstimate(jax.tree.map(lambda leaf: leaf / divisor, noised.noised))
    return PrivateEstimate(
        jax.tree.map(lambda leaf: leaf.astype("float32") * step / divisor, noised.noised)
    )

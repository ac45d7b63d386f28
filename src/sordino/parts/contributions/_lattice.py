r"""Clipped vectors in whole lattice steps: rounded towards zero, bounded by proof.

`to_lattice` is the last thing that happens to one example's vector before it is summed, and the
norm bound of discrete noise rests on it alone. It scales the vector to norm at most ``(1 - 1e-5) b``,
where b is the planned bound, and rounds every entry of ``vector / step`` towards zero, so that

    the exact norm of the whole numbers  <=  b / step

in spite of float32 arithmetic. Proof: let u = 2^-24. Sums of at most 32 numbers in any order are off
by 31 u; `sum_of_squares` nests them (a barrier keeps the compiler from merging the levels), 8 deep
for 2^40 entries, so a computed norm is too small by a factor of at least 1 - 124 u - 4 u. Quotient,
products and the rounded bound cost 6 u more, lengths of residuals relative to their largest entry 3 u:
137 u = 8.2e-6 < 1e-5. Entries whose squares underflow are
below 2^-60 <= step, and are rounded to 0. Dividing by the step, a power of two, is exact, and
rounding towards zero lengthens nothing.

Sums of int32 are exact in any order; where they overflow they wrap around, see `mechanisms/lattice.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.types import PyTree
from sordino.parts._rounding import float32_down, nested_sum

# Covers every rounding between a vector's entries and its computed norm; see the module.
LATTICE_MARGIN = 1e-5
# Rows of a linear model that are shorter than the root of this count as that long.
SHORTEST_SQUARE = 1e-24
_SMALLEST_SQUARE = 1e-37


def lattice_bounds(bounds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The bounds that vectors are scaled to: float32, below ``(1 - 1e-5) bounds``."""
    return float32_down(bounds * (1 - LATTICE_MARGIN))


def sum_of_squares(leaves: list[jax.Array]) -> jax.Array:
    """``sum x^2`` over all entries, in nested sums of at most 32 numbers."""
    parts = [jnp.square(leaf.astype(jnp.float32)).ravel() for leaf in leaves]
    square = parts[0] if len(parts) == 1 else jnp.concatenate([nested_sum(p) for p in parts])
    return nested_sum(square)[0]


def row_squares(X: jax.Array) -> jax.Array:
    """`sum_of_squares` of each row of (rows, columns)."""
    return jax.vmap(lambda row: sum_of_squares([row]))(X)


def to_lattice(vector: PyTree, bound: jax.Array, step: jax.Array) -> PyTree:
    """One example's vector (any pytree) as int32 multiples of `step`, of norm at most the bound.

    Zero if any entry is not finite.
    """
    square = sum_of_squares(jax.tree.leaves(vector))
    norm = jnp.sqrt(jnp.maximum(square, _SMALLEST_SQUARE))
    factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1.0, bound / norm), 0.0)
    inverse = 1.0 / step  # a power of two: exact

    def leaf(value: jax.Array) -> jax.Array:
        scaled = jnp.where(factor > 0, value.astype(jnp.float32) * factor, 0.0) * inverse
        return scaled.astype(jnp.int32)  # towards zero

    return jax.tree.map(leaf, vector)

r"""Sums whose rounding is known, in float32 and on a lattice, and what clips leave room for.

Rounding happens before the noise, so it counts as sensitivity. Let u = 2^-24.

*Norms.* A sum of N numbers that are not negative, in whatever order a compiler chooses, is off by a
factor of at most 1 + (N - 1) u. `squared_norm` adds at most 4,096 entries in the compiler's order and
nests the rest in sums of 32; `norm_margin` is what a norm can be too small by.

*Sums over a batch.* Rows are added in blocks of at most 64, and the blocks' sums are added without
error worth naming: as pairs of float32 numbers, the sum and what its rounding left out. One record is
in one block, and all other blocks are the same bits with it and without it. So rounding can move the
sum, beyond the record's own vector, by no more than the errors of one block twice: of k rows of norm at
most c, added in any order, k u c for the products and u c (2 + ... + k) for the additions, in all

    2 (k u c + (k (k + 1) / 2 - 1) u c)  <  (k^2 + 3 k) u c.

Secret batches are analysed with a record in the batch against without it. Their rows stand at places
drawn at random, so both cases have the same law of the other rows' places (a random injection of more
rows, cut down to fewer, is one of fewer), and can be paired with the other rows where they are.

`sum_margin` is that, as a share of c: 2.6e-4 for 64 rows or more, whatever the batch is. Clips are
shortened by both margins and by `CLIP_MARGIN`, which covers the few roundings of the clipping itself.

*On a lattice.* `to_lattice` is the last thing that happens to one example's vector before it is summed, and
the norm bound of discrete noise rests on it alone. It scales the vector to norm at most ``(1 - 1e-5) b``,
where b is the planned bound, and rounds every entry of ``vector / step`` towards zero, so that

    the exact norm of the whole numbers  <=  b / step

in spite of float32 arithmetic. Proof: sums of at most 32 numbers in any order are off by 31 u;
`sum_of_squares` nests them (a barrier keeps the compiler from merging the levels), 8 deep for 2^40
entries, so a computed norm is too small by a factor of at least 1 - 124 u - 4 u. Quotient, products and
the rounded bound cost 6 u more, lengths of residuals relative to their largest entry 3 u: 137 u = 8.2e-6 <
1e-5. Entries whose squares underflow are below 2^-60 <= step, and are rounded to 0. Dividing by the step, a
power of two, is exact, and rounding towards zero lengthens nothing. Sums of int32 are exact in any order;
where they overflow they wrap around, see `mechanisms/_lattice.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.types import PyTree
from sordino.privacy import ClippedSum

UNIT = 2.0**-24
# The most rows whose sum is left to one matrix product.
BLOCK = 64
# Fewer rows than this are not worth a block of their own: a batch is padded instead.
_LEAST_BLOCK = 32
# The most numbers that are added in an order of the compiler's choice.
_TOGETHER = 4096
_FEW = 32
# Quotients, products and rounded terms on the way from a norm to a clipped vector.
CLIP_MARGIN = 1e-6
# Squared norms are floored here: nothing is divided by 0, and every norm has a derivative.
SMALLEST_SQUARE = 1e-37


def sum_margin(rows: int) -> float:
    """What rounding can add to one record's share of a sum over `rows` rows, relative to the bound."""
    k = min(rows, BLOCK)
    return UNIT * (k * k + 3 * k)


def norm_margin(shapes: Sequence[tuple[int, ...]]) -> float:
    """What the root of `squared_norm` over arrays of these shapes can be too small by, relatively."""
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) <= _TOGETHER:
        return UNIT * (sum(sizes) + 2) / 2
    inner = max(math.prod(shape[_split(shape) :]) for shape in shapes)
    partial = sum(math.prod(shape[: _split(shape)]) for shape in shapes)
    levels = math.ceil(math.log(max(partial, 2), _FEW)) + 1
    return UNIT * (inner + _FEW * levels + 2) / 2


def squared_norm(leaves: Sequence[jax.Array]) -> jax.Array:
    """``sum x^2`` over all entries of float32 arrays; see `norm_margin`."""
    if sum(leaf.size for leaf in leaves) <= _TOGETHER:
        return sum((jnp.sum(jnp.square(leaf)) for leaf in leaves), start=jnp.float32(0))
    parts = []
    for leaf in leaves:
        axes = tuple(range(_split(leaf.shape), leaf.ndim))
        # The barrier keeps the compiler from making one long sum of two short ones.
        inner = jax.lax.optimization_barrier(jnp.sum(jnp.square(leaf), axis=axes))
        parts.append(nested_sum(inner.ravel()))
    return nested_sum(jnp.concatenate(parts))[0]


def _split(shape: tuple[int, ...]) -> int:
    """First of the trailing axes that together have at most `_TOGETHER` entries."""
    at, size = len(shape), 1
    while at > 0 and size * shape[at - 1] <= _TOGETHER:
        at -= 1
        size *= shape[at]
    return at


def nested_sum(values: jax.Array) -> jax.Array:
    """One number (1,), the sum of the given ones (n,), in nested sums of at most 32."""
    while values.shape[0] > 1:
        columns = -(-values.shape[0] // _FEW)
        rows = min(_FEW, values.shape[0])
        padded = jnp.pad(values, (0, rows * columns - values.shape[0]))
        values = jax.lax.optimization_barrier(padded.reshape(rows, columns).sum(axis=0))
    return values


def block_rows(rows: int) -> int:
    """Rows of one block of a batch of `rows`: a divisor where one is large enough."""
    if rows <= BLOCK:
        return rows
    fitting = [k for k in range(BLOCK, _LEAST_BLOCK - 1, -1) if rows % k == 0]
    return fitting[0] if fitting else BLOCK


def even_width(rows: int) -> int:
    """The least width of a batch of `rows` rows that divides into blocks without padding."""
    width = rows
    while width % block_rows(width):
        width += 1
    return width


def block_product(
    left: jax.Array, right: jax.Array, *, at_hand: bool = False
) -> tuple[jax.Array, jax.Array | None]:
    """``sum_i left_i right_i^T`` over rows, float32, and what its rounding left out (None: nothing).

    Args:
      left: (rows,) or (rows, k).
      right: (rows, d).
      at_hand: whether `right` lies in memory as it is. Then scaling and adding up its rows in one loop
        is faster than many small products; where it is computed first, it would be stored once more.

    Returns (d,) or (k, d).
    """
    rows = right.shape[0]
    size = block_rows(rows)
    if size == rows:
        return _exact_matmul(left, right), None
    blocks = -(-rows // size)
    padding = blocks * size - rows
    if padding:
        left = jnp.pad(left, [(0, padding)] + [(0, 0)] * (left.ndim - 1))
        right = jnp.pad(right, [(0, padding), (0, 0)])
    left = left.reshape(blocks, size, *left.shape[1:])
    right = right.reshape(blocks, size, right.shape[1])
    if at_hand and left.ndim == 2:  # (blocks, size): one number for each row
        return _pairwise(jnp.sum(left[:, :, None] * right, axis=1))
    return _pairwise(_exact_matmul(left, right, batched=True))


def _exact_matmul(left: jax.Array, right: jax.Array, *, batched: bool = False) -> jax.Array:
    """The product over rows in full float32, of each block where they are `batched`."""
    axis = int(batched)
    batch = (tuple(range(axis)),) * 2
    return jax.lax.dot_general(
        left, right, (((axis,), (axis,)), batch), precision=jax.lax.Precision.HIGHEST
    )


def full_product(a: jax.Array, b: jax.Array) -> jax.Array:
    """``a @ b`` in full float32: the default keeps 10 bits on some processors."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``a + b`` rounded, and the rounding's error exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _pairwise(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sum over the leading axis and what its rounding left out: halves added to halves."""
    total, rest = blocks, jnp.zeros_like(blocks)
    while (count := total.shape[0]) > 1:
        half = count // 2
        added, error = two_sum(total[:half], total[half : 2 * half])
        error = error + (rest[:half] + rest[half : 2 * half])
        if count % 2:
            added = jnp.concatenate([added, total[-1:]])
            error = jnp.concatenate([error, rest[-1:]])
        total, rest = added, error
    return total[0], rest[0]


def clipped_sum(channels: Sequence[tuple[PyTree, PyTree | None]]) -> ClippedSum:
    """The sums of one or several channels, each with what its rounding left out."""
    values = tuple(value for value, _ in channels)
    rests = tuple(rest for _, rest in channels)
    if len(channels) == 1:
        return ClippedSum(values[0], rests[0])
    return ClippedSum(values, None if rests[0] is None else rests)


def add_sums(a: ClippedSum, b: ClippedSum) -> ClippedSum:
    """``a + b`` of float32 sums, with what the additions left out."""
    leaves, structure = jax.tree.flatten(a.clipped)
    pairs = [two_sum(x, y) for x, y in zip(leaves, jax.tree.leaves(b.clipped), strict=True)]
    value, rest = (jax.tree.unflatten(structure, part) for part in zip(*pairs, strict=True))
    for more in (a.rest, b.rest):
        if more is not None:
            rest = jax.tree.map(jnp.add, rest, more)
    return ClippedSum(value, rest)


def float32_down(values: ArrayLike) -> NDArray[np.float32]:
    """The largest float32 numbers that are not above the given ones, which are not negative."""
    exact = np.asarray(values, np.float64)
    rounded = exact.astype(np.float32)
    down = np.nextafter(rounded, np.float32(0))
    return np.where(rounded.astype(np.float64) > exact, down, rounded)


# ---- on a lattice -----------------------------------------------------------------------------------

# Covers every rounding between a vector's entries and its computed norm; see the module.
LATTICE_MARGIN = 1e-5
# Rows of a linear model that are shorter than the root of this count as that long.
SHORTEST_SQUARE = 1e-24


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


def to_lattice(
    vector: PyTree, bound: jax.Array, step: jax.Array, share: jax.Array | None = None
) -> PyTree:
    """One example's vector (any pytree) as int32 multiples of `step`, of norm at most the bound.

    Zero if any entry is not finite. `share` (0 to 1) multiplies the scaled vector, at one more rounding.
    """
    square = sum_of_squares(jax.tree.leaves(vector))
    norm = jnp.sqrt(jnp.maximum(square, SMALLEST_SQUARE))
    factor = jnp.where(jnp.isfinite(norm), jnp.minimum(1.0, bound / norm), 0.0)
    if share is not None:
        factor = factor * share
    inverse = 1.0 / step  # a power of two: exact

    def leaf(value: jax.Array) -> jax.Array:
        scaled = jnp.where(factor > 0, value.astype(jnp.float32) * factor, 0.0) * inverse
        return scaled.astype(jnp.int32)  # towards zero

    return jax.tree.map(leaf, vector)

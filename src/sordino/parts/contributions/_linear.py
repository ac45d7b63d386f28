"""Linear models in closed form: a private step costs the matrix products of a plain one.

For ``loss = l(W x, y)`` every gradient of one example is the outer product ``r x^T`` with the
residual ``r = dl/dlogits``, at whatever W. So a rule's combination of gradients is the same
combination of residuals, its norm is ``|r| |x|``, and nothing per-example of the model's size is
ever made. ``1/|x|`` is computed once per run; clipping then is a bound on the residual. The logits
of all points a rule needs come from one product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sordino._base.types import PyTree
from sordino.parts._losses import LinearLoss, require_plain
from sordino.parts._rounding import (
    CLIP_MARGIN,
    SHORTEST_SQUARE,
    block_product,
    clipped_sum,
    norm_margin,
    row_squares,
    squared_norm,
    sum_margin,
)
from sordino.parts.contributions._base import Batch, StepTerms
from sordino.parts.contributions._rules import PLAIN, Rule, RuleStream, Vectors
from sordino.privacy import ClippedSum

# The least number that float32 keeps all digits of.
SMALLEST = 2.0**-126


@dataclass(frozen=True)
class LinearEvaluator(RuleStream):
    """``r^T X`` for ``data = (X, y)``; params have shape (features,) or (K, features)."""

    loss: LinearLoss
    rule: Rule = PLAIN
    lattice: bool = False
    program: str = ""  # see `engine.Stepper.text`

    def __post_init__(self) -> None:
        require_plain(self.loss)

    def prepare(self, data: PyTree, valid: jax.Array) -> tuple[PyTree, jax.Array]:
        X, y = data
        # Squares of whole numbers wrap around, and those of half-precision ones are rounded.
        X = X.astype(jnp.float32)
        # A row with a NaN, an infinity, or a norm beyond float32 contributes nothing, and must not
        # poison the matrix products. One reduction finds them all.
        square = row_squares(X) if self.lattice else jax.vmap(lambda row: squared_norm([row]))(X)
        good = jnp.isfinite(square)
        if jnp.issubdtype(y.dtype, jnp.floating):
            y = y.astype(jnp.float32)
            good &= jnp.isfinite(y)
            y = jnp.where(good, y, 0)
        X = jnp.where(good[:, None], X, 0)
        shortest = SHORTEST_SQUARE if self.lattice else 1e-30
        inverse_norm = jnp.where(good, 1.0 / jnp.sqrt(jnp.maximum(square, shortest)), 0.0)
        return (X, y, inverse_norm), valid * good

    def total(
        self, params: PyTree, memory: PyTree, batch: Batch, terms: StepTerms, step: jax.Array
    ) -> ClippedSum:
        X, y, inverse_norm = batch.data
        points = self.rule.points(params, memory, step)
        residuals = self._residuals(points, X, y)
        channels = self.rule.combine(
            tuple(residuals),
            partial(_clip_residual, inverse_norm=inverse_norm * self._room(X, residuals[0])),
            terms,
        )
        if self.lattice:
            sums = tuple(
                _lattice_product(
                    vector, batch.present, X, terms["bound"][i] * inverse_norm, terms["step"]
                )
                for i, vector in enumerate(channels)
            )
        else:
            return clipped_sum([_product(vector, batch.present, X) for vector in channels])
        return ClippedSum(sums[0] if len(sums) == 1 else sums)

    def row_gradients(self, points: Vectors, data: PyTree) -> Vectors:
        X, y, _ = data
        return tuple(
            r[:, None] * X if r.ndim == 1 else r[:, :, None] * X[:, None, :]
            for r in self._residuals(points, X, y)
        )

    def _residuals(self, points: Vectors, X: jax.Array, y: jax.Array) -> list[jax.Array]:
        """Of each row at each point; 0 where it is not finite."""
        residuals = []
        for logits in self._logits(points, X):
            residual = self.loss.residuals(logits, y).astype(jnp.float32)
            residuals.append(jnp.where(jnp.isfinite(residual), residual, 0.0))
        return residuals

    def _room(self, X: jax.Array, residual: jax.Array) -> float:
        """What share of a clip is used, so that no rounding gets beyond it (see `_rounding.py`)."""
        if self.lattice:  # vectors are bounded once more, as whole numbers
            return 1 - CLIP_MARGIN
        norms = norm_margin([X.shape[1:]]) + norm_margin([residual.shape[1:]])
        return 1 - CLIP_MARGIN - norms - sum_margin(X.shape[0])

    def _logits(self, points: tuple[PyTree, ...], X: jax.Array) -> list[jax.Array]:
        if len(points) == 1:
            return [self.loss.logits(points[0].astype(jnp.float32), X)]
        points = tuple(point.astype(jnp.float32) for point in points)
        if points[0].ndim == 1:
            return list(self.loss.logits(jnp.stack(points), X).T)
        return jnp.split(self.loss.logits(jnp.concatenate(points), X), len(points), axis=1)


def _clip_residual(vector: jax.Array, clip: ArrayLike, inverse_norm: jax.Array) -> jax.Array:
    """Each example's residual scaled so that ``|r| |x| <= clip``."""
    limit = clip * inverse_norm
    if vector.ndim == 1:
        return jnp.clip(vector, -limit, limit)
    # A factor that overflows is 1: the residual is then far shorter than its limit.
    return vector * jnp.minimum(1.0, limit / _lengths(vector, _squares))[:, None]


def _squares(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows * rows, axis=1)


def _lengths(residual: jax.Array, squares: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The norm of each residual (rows, k), above 0; infinite where an entry is.

    Relative to its largest entry: the square of 1e-19 is 0, but a row of 1e19 makes it a long vector.
    """
    largest = jnp.maximum(jnp.max(jnp.abs(residual), axis=1), SMALLEST)
    # A residual that is not 0 has an entry of 1 then; nothing is divided by a length of 0.
    return largest * jnp.sqrt(jnp.maximum(squares(residual / largest[:, None]), 1.0))


def _product(
    vector: jax.Array, mask: jax.Array, X: jax.Array
) -> tuple[jax.Array, jax.Array | None]:
    present = mask if vector.ndim == 1 else mask[:, None]
    return block_product(vector * present, X, at_hand=True)


def _lattice_product(
    vector: jax.Array, mask: jax.Array, X: jax.Array, limit: jax.Array, step: jax.Array
) -> jax.Array:
    """``sum_i trunc(r_i x_i^T / step)`` in int32, each residual scaled to ``|r_i| <= limit_i``.

    The norm of the whole numbers of one example is at most the bound: as in `to_lattice`, with
    the norm of an outer product from its two factors (62 u each, for up to 2^20 classes and features).
    Every entry of every example has to be rounded, so this is no matrix product.
    """
    residual = vector if vector.ndim == 2 else vector[:, None]
    size = _lengths(residual, row_squares)
    factor = jnp.where(jnp.isfinite(size), jnp.minimum(1.0, limit / size), 0.0)
    kept = (mask > 0) & (factor > 0)
    scaled = jnp.where(kept[:, None], residual * factor[:, None], 0.0) * (1.0 / step)

    def add(total: jax.Array, example: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        r, x = example
        return total + (r[:, None] * x[None, :]).astype(jnp.int32), None

    # Row by row: four times faster on a CPU than one reduction of all outer products.
    zero = jnp.zeros((residual.shape[1], X.shape[1]), jnp.int32)
    total = jax.lax.scan(add, zero, (scaled, X))[0]
    return total if vector.ndim == 2 else total[0]

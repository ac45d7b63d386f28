"""Linear models in closed form: a private step costs the matrix products of a plain one.

For ``loss = l(W x, y)`` every gradient of one example is the outer product ``r x^T`` with the
residual ``r = dl/dlogits``, at whatever W. So a rule's combination of gradients is the same
combination of residuals, its norm is ``|r| |x|``, and nothing per-example of the model's size is
ever made. ``1/|x|`` is computed once per run; clipping then is a bound on the residual. The logits
of all points a rule needs come from one product.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from sordino.losses import LinearLoss
from sordino.privacy.values import ClippedSum
from sordino.streams.base import CLIP_MARGIN, SMALLEST_SQUARE, Terms
from sordino.streams.rules import PLAIN, Rule, RuleStream


@dataclass(frozen=True)
class LinearGradientStream(RuleStream):
    """``r^T X`` for ``data = (X, y)``; params have shape (features,) or (K, features)."""

    loss: LinearLoss
    rule: Rule = PLAIN

    def prepare(self, data: Any, valid: jax.Array) -> tuple[Any, jax.Array]:
        X, y = data
        # A row with a NaN, an infinity, or a norm beyond float32 contributes nothing, and must not
        # poison the matrix products. One reduction finds them all.
        square = jnp.sum(X * X, axis=1)
        good = jnp.isfinite(square)
        if jnp.issubdtype(y.dtype, jnp.floating):
            good &= jnp.isfinite(y)
            y = jnp.where(good, y, 0)
        X = jnp.where(good[:, None], X, 0)
        inverse_norm = jnp.where(good, 1.0 / jnp.sqrt(jnp.maximum(square, 1e-30)), 0.0)
        return (X, y, inverse_norm), valid * good

    def contribution(
        self, params: Any, memory: Any, batch: Any, mask: jax.Array, terms: Terms, step: jax.Array
    ) -> ClippedSum:
        X, y, inverse_norm = batch
        points = self.rule.points(params, memory, step)
        residuals = []
        for logits in self._logits(points, X):
            residual = self.loss.residual(logits, y)
            residuals.append(jnp.where(jnp.isfinite(residual), residual, 0.0))
        channels = self.rule.combine(
            tuple(residuals), partial(_clip_residual, inverse_norm=inverse_norm), terms
        )
        sums = tuple(_product(vector, mask, X) for vector in channels)
        return ClippedSum(sums[0] if len(sums) == 1 else sums)

    def _logits(self, points: tuple[Any, ...], X: jax.Array) -> list[jax.Array]:
        if len(points) == 1:
            return [self.loss.logits(points[0], X)]
        if points[0].ndim == 1:
            return list(self.loss.logits(jnp.stack(points), X).T)
        return jnp.split(self.loss.logits(jnp.concatenate(points), X), len(points), axis=1)


def _clip_residual(vector: jax.Array, clip: Any, inverse_norm: jax.Array) -> jax.Array:
    """Each example's residual scaled so that ``|r| |x| <= clip``."""
    limit = clip * CLIP_MARGIN * inverse_norm
    if vector.ndim == 1:
        return jnp.clip(vector, -limit, limit)
    size = jnp.sqrt(jnp.maximum(jnp.sum(vector * vector, axis=1), SMALLEST_SQUARE))
    # |r| may overflow where r itself does not: the factor is then 0, and so is the product.
    return vector * jnp.minimum(1.0, limit / size)[:, None]


def _product(vector: jax.Array, mask: jax.Array, X: jax.Array) -> jax.Array:
    if vector.ndim == 1:
        return (vector * mask) @ X
    return (vector * mask[:, None]).T @ X

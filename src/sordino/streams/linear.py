"""The gradient stream of linear models in closed form: a private step costs two matrix products.

For ``loss = l(W x, y)`` the gradient of one example is the outer product ``r x^T`` with the residual
``r = dl/dlogits``, so its norm is ``|r| |x|`` and nothing per-example of the model's size is ever
made. ``1/|x|`` is computed once per run; clipping then is a bound on the residual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sordino.losses import LinearLoss
from sordino.privacy.values import ClippedSum
from sordino.streams.base import CLIP_MARGIN, Stream


@dataclass(frozen=True)
class LinearGradientStream(Stream):
    """``(scale * r)^T X`` for ``data = (X, y)``; params have shape (features,) or (K, features)."""

    loss: LinearLoss

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

    def contribution(self, params: Any, batch: Any, mask: jax.Array, clip: jax.Array) -> ClippedSum:
        X, y, inverse_norm = batch
        residual = self.loss.residual(self.loss.logits(params, X), y)
        residual = jnp.where(jnp.isfinite(residual), residual, 0.0)
        limit = clip * CLIP_MARGIN * inverse_norm  # on |r|, so that |r| |x| <= clip
        if residual.ndim == 1:
            return ClippedSum((jnp.clip(residual, -limit, limit) * mask) @ X)
        size = jnp.sqrt(jnp.sum(residual * residual, axis=1))
        factor = jnp.minimum(1.0, limit / jnp.maximum(size, 1e-30)) * mask
        # |r| may overflow where r itself does not: the factor is then 0, and so is the product.
        return ClippedSum((residual * factor[:, None]).T @ X)

"""Streams: what one example contributes at one step, clipped and summed over the batch.

A stream states its own sensitivity: whatever the loss, the model or the data do, one example adds a
vector of norm at most `clip` to the sum. What it returns is a `ClippedSum`, which is as sensitive
as the data; only `mechanisms.base.privatize` turns it into something that may be looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from sordino.privacy.values import ClippedSum

# float32 norms and products are off by a few 1e-7; clipping a little short keeps the bound true.
CLIP_MARGIN = 1 - 1e-6


class Stream(ABC):
    """One kind of contribution. Implementations are hashable, so that compiled code is reused."""

    def prepare(self, data: Any, valid: jax.Array) -> tuple[Any, jax.Array]:
        """Once per run, before the first step: data as `contribution` wants it, and the valid rows.

        Runs inside compiled code; what it computes is per example and stays unseen.
        """
        return data, valid

    @abstractmethod
    def contribution(self, params: Any, batch: Any, mask: jax.Array, clip: jax.Array) -> ClippedSum:
        """Sum over the batch of one clipped vector per example, shaped like `params`.

        Args:
          params: the current, already released, parameters.
          batch: prepared data with leading axis B.
          mask: (B,) 1 for examples, 0 for padding.
          clip: scalar; no example's term has a norm above it.
        """


def clip_factor(norm: jax.Array, clip: jax.Array) -> jax.Array:
    """``min(1, clip / norm)``, a little short; 0 where the norm is not finite."""
    factor = jnp.minimum(1.0, clip * CLIP_MARGIN / jnp.maximum(norm, 1e-30))
    return jnp.where(jnp.isfinite(norm), factor, 0.0)

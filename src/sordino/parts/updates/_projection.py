"""Projection onto a Euclidean ball after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sordino.parts.updates._base import StepInfo, Update
from sordino.privacy import PrivateEstimate


@dataclass(frozen=True)
class Projected(Update):
    """`inner`, then ``x <- x * min(1, radius / |x|)`` over all parameters together."""

    inner: Update
    radius: float

    def init(self, params: Any) -> Any:
        return self.inner.init(params)

    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
        params, state = self.inner.step(params, state, estimate, info)
        return project(params, self.radius), state

    def output(self, params: Any, state: Any) -> Any:
        return self.inner.output(params, state)


def project(params: Any, radius: float) -> Any:
    """The nearest point of the ball of `radius` around 0."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)))
    factor = jnp.minimum(1.0, radius / jnp.maximum(norm, 1e-30))
    return jax.tree.map(lambda leaf: leaf * factor, params)

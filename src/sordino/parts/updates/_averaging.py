"""What of the trajectory is returned: a mean of the last iterates, or a random one.

Averaging is free, and it removes much of the noise. A random iterate is what the theory of
non-convex methods speaks of; its index is drawn before the run, from nothing that depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from sordino._base.types import PyTree
from sordino.parts.updates._base import StepInfo, Update, Wrapper
from sordino.privacy import PrivateEstimate


@dataclass(frozen=True)
class TailAveraged(Update):
    """`inner`, returning the mean of the iterates after step ``(1 - fraction) * steps``."""

    inner: Update
    fraction: float

    def init(self, params: PyTree) -> PyTree:
        return self.inner.init(params), jax.tree.map(jnp.zeros_like, params), jnp.float32(0)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, mean, count = state
        params, inner = self.inner.step(params, inner, estimate, info)
        start = jnp.floor((1 - self.fraction) * info.steps.astype(jnp.float32))
        taken = (info.step >= jnp.minimum(start, info.steps - 1)).astype(jnp.float32)
        count = count + taken
        weight = taken / jnp.maximum(count, 1)
        mean = jax.tree.map(lambda m, x: m + weight.astype(m.dtype) * (x - m), mean, params)
        return params, (inner, mean, count)

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        inner, mean, count = state
        last = self.inner.output(params, inner)
        return _mean_or_last(mean, last, count)


@dataclass(frozen=True)
class RandomIterate(Wrapper):
    """`inner`, returning the iterate that step `info.chosen` evaluated gradients at."""

    inner: Update

    def own_init(self, params: PyTree) -> PyTree:
        return params

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, kept = state
        now = info.step <= info.chosen
        kept = jax.tree.map(lambda x, k: jnp.where(now, x, k), params, kept)
        params, inner = self.inner.step(params, inner, estimate, info)
        return params, (inner, kept)

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        return state[1]


@jax.jit
def _mean_or_last(mean: PyTree, last: PyTree, count: jax.Array) -> PyTree:
    """Before the tail begins there is nothing to average yet."""
    return jax.tree.map(lambda m, x: jnp.where(count > 0, m, x), mean, last)

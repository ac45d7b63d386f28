"""Updates around another one: what estimate it is given, and what of its trajectory is returned.

*Estimates* are linear maps that turn noisy sums of differences back into gradient estimates, from
released values only.

*Outputs*: averaging the last iterates is free, and it removes much of the noise. A random iterate is what
the theory of non-convex methods speaks of; its index is drawn before the run, from nothing that depends
on data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from sordino._base.types import PyTree
from sordino.parts.updates._base import StepInfo, Update, Wrapper
from sordino.privacy import PrivateEstimate


@dataclass(frozen=True)
class RecursiveEstimate(Wrapper):
    """``G_t = keep_t G_{t-1} + (noisy sum)_t``: recursive momentum, on the released G only."""

    inner: Update

    def own_init(self, params: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, G = state
        G = jax.tree.map(lambda old, new: info.carry_over * old + new, G, estimate.value)
        params, inner = self.inner.step(params, inner, PrivateEstimate(G), info)
        return params, (inner, G)


@dataclass(frozen=True)
class LaggedMomentumEstimate(Wrapper):
    """``alpha M_t`` from the lag-one-epoch recursion (papers/00 1.3), B = `lag`, t from 1:

        M_t = beta M_{t-1} + a_t                                            (t <= B)
        M_t = (1-gamma) M_{t-B} + beta^(t-B) M_B + Y_t,  Y_t = beta Y_{t-1} + y_t   (t > B)

    A ring of the last B values of M; constant work per step. With `channels` = 2 the second one is
    the anchored form's residual, whose plain momentum sum is added.
    """

    inner: Update
    lag: int
    beta: float
    gamma: float
    channels: int = 1

    def own_init(self, params: PyTree) -> PyTree:
        zero = jax.tree.map(jnp.zeros_like, params)
        ring = jax.tree.map(
            lambda leaf: jnp.zeros((self.lag, *jnp.shape(leaf)), jnp.result_type(leaf)), params
        )
        return ring, zero, zero, zero

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, (ring, recent, first_epoch, residual) = state
        value = estimate.value
        new, rest = value if self.channels == 2 else (value, None)
        # `recent` is M_{t-1} in the first epoch and Y_{t-1} afterwards: both decay and add.
        start = info.step == self.lag
        later = info.step >= self.lag
        first_epoch = jax.tree.map(
            lambda kept, m: self.beta * jnp.where(start, m, kept), first_epoch, recent
        )
        recent = jax.tree.map(lambda m, x: self.beta * jnp.where(start, 0.0, m) + x, recent, new)
        slot = info.step % self.lag

        def momentum(ring_leaf: jax.Array, kept: jax.Array, latest: jax.Array) -> jax.Array:
            lagged = (1 - self.gamma) * ring_leaf[slot] + kept
            return jnp.where(later, lagged, 0.0) + latest

        M = jax.tree.map(momentum, ring, first_epoch, recent)
        ring = jax.tree.map(lambda leaf, m: leaf.at[slot].set(m), ring, M)
        total = M
        if rest is not None:
            residual = jax.tree.map(lambda m, x: self.beta * m + x, residual, rest)
            total = jax.tree.map(jnp.add, M, residual)
        averaged = jax.tree.map(lambda m: (1 - self.beta) * m, total)
        params, inner = self.inner.step(params, inner, PrivateEstimate(averaged), info)
        return params, (inner, (ring, recent, first_epoch, residual))


@dataclass(frozen=True)
class Regularized(Wrapper):
    """Adds the gradient of a data-free penalty to the estimate: no sensitivity, no recursion.

    `weighted`: the estimate is of ``(t+1)^power grad`` (accelerated and anytime methods), so the
    penalty gets the same weight.
    """

    inner: Update
    gradient: Callable[[PyTree], PyTree]
    weighted: bool = False
    power: float = 1.0

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, own = state
        weight = info.step + 1.0 if self.weighted else 1.0
        if self.power != 1:
            weight = weight**self.power
        total = jax.tree.map(lambda g, r: g + weight * r, estimate.value, self.gradient(params))
        params, inner = self.inner.step(params, inner, PrivateEstimate(total), info)
        return params, (inner, own)


@dataclass(frozen=True)
class TailAveraged(Update):
    """`inner`, returning the mean of its outputs after step ``(1 - fraction) * steps``.

    Outputs are the iterates; of accelerated methods y, not the points between that gradients are taken at.
    """

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
        latest = self.inner.output(params, inner)
        mean = jax.tree.map(lambda m, x: m + weight.astype(m.dtype) * (x - m), mean, latest)
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

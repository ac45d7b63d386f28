"""Descent along any optax transformation of the private estimate, and methods with two sequences.

Coupling and anytime averages evaluate gradients at a point between two sequences. Both take the
accumulated estimate of ``(t+1) grad f(x_t)`` that a weighted recursive stream makes. One noisy value
serves every line: two different combinations of the sum and its noise would reveal the sum
(papers/03 E4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import optax

from sordino._base.errors import require_choice
from sordino._base.types import PyTree
from sordino.parts.updates._base import StepInfo, Update, project
from sordino.privacy import PrivateEstimate


@dataclass(frozen=True)
class Descent(Update):
    """``x <- x - lr_t * transform(g)``: the learning rate stays outside, so it never recompiles."""

    transform: optax.GradientTransformation

    def init(self, params: PyTree) -> PyTree:
        return self.transform.init(params)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        direction, state = self.transform.update(estimate.value, state, params)
        moved = jax.tree.map(
            lambda x, v: (x - info.learning_rate * v).astype(x.dtype), params, direction
        )
        return moved, state


@dataclass(frozen=True)
class AdaptiveStep(Update):
    """SRM's step ``x <- x - min(lr, step_length / |v|) v`` (papers/01 1.1: zeta/L and 1/(2L)).

    No privacy rests on it: contributions are clipped whatever the step.
    """

    step_length: float

    def init(self, params: PyTree) -> PyTree:
        return ()

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        norm = optax.tree.norm(estimate.value)
        rate = jnp.minimum(info.learning_rate, self.step_length / jnp.maximum(norm, 1e-30))
        moved = jax.tree.map(lambda x, v: (x - rate * v).astype(x.dtype), params, estimate.value)
        return moved, state


@dataclass(frozen=True)
class Optax(Update):
    """A complete optax optimizer of the user's, learning rate and all."""

    optimizer: optax.GradientTransformation

    def init(self, params: PyTree) -> PyTree:
        return self.optimizer.init(params)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        updates, state = self.optimizer.update(estimate.value, state, params)
        return optax.apply_updates(params, updates), state


def _unit_length(direction: PyTree, params: PyTree) -> PyTree:
    """``m / |m|`` over all parameters together (0 stays 0)."""
    norm = optax.tree.norm(direction)
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(norm, 1e-30), direction)


TRANSFORMS = ("sgd", "adam", "normalized", "bias-corrected")


@cache
def named_transform(name: str, momentum: float) -> optax.GradientTransformation:
    """The direction of a named optimizer; cached so that compiled code is found again."""
    require_choice("optimizer", name, TRANSFORMS)
    if name == "bias-corrected":
        return optax.ema(momentum, debias=True)
    if name == "adam":
        return optax.scale_by_adam()
    if name == "normalized":
        return optax.chain(optax.ema(momentum, debias=False), optax.stateless(_unit_length))
    return optax.trace(decay=momentum) if momentum else optax.identity()


def _projected(point: PyTree, radius: float | None) -> PyTree:
    return point if radius is None else project(point, radius)


def _same_dtypes(value: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda v, x: v.astype(x.dtype), value, like)


@dataclass(frozen=True)
class NesterovCoupling(Update):
    """papers/03 1.5 with ``eta_t = (t+1)^power`` and learning rate ``1/beta``:

        z <- Proj(z - kappa lr S),  y <- Proj(x - lr S / eta_t),  x <- (1-tau) y + tau z

    with ``tau = eta_{t+1} / (eta_0 + .. + eta_{t+1})``, which is ``2/(t+3)`` for power 1; returns y.
    kappa = 1/2 and power 1 are what the proof supports, kappa = 1 is as printed.
    """

    kappa: float = 0.5
    radius: float | None = None
    power: float = 1.0

    def init(self, params: PyTree) -> PyTree:
        # For other powers the sum of the weights goes along.
        return (params, params) if self.power == 1 else (params, params, jnp.float32(1))

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        z, _, *rest = state
        t = info.step.astype(jnp.float32)
        S, rate = estimate.value, info.learning_rate
        eta, tau = t + 1, 2 / (t + 3)
        if rest:
            eta, following = (t + 1) ** self.power, (t + 2) ** self.power
            rest = [rest[0] + following]
            tau = following / rest[0]
        z = _projected(jax.tree.map(lambda a, s: a - self.kappa * rate * s, z, S), self.radius)
        y = jax.tree.map(lambda a, s: a - rate / eta * s, params, S)
        y = _projected(y, self.radius)
        x = jax.tree.map(lambda a, b: (1 - tau) * a + tau * b, y, z)
        x, z, y = (_same_dtypes(value, params) for value in (x, z, y))
        return x, (z, y, *rest)

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        return state[1]


@dataclass(frozen=True)
class RunningMeanDescent(Update):
    """``x <- x - lr S / eta_t``: plain steps along what S estimates, ``eta_t = (t+1)^power`` (papers/03).

    Without acceleration: section 4.3 of the paper.
    """

    power: float = 1.0

    def init(self, params: PyTree) -> PyTree:
        return ()

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        rate = info.learning_rate / (info.step.astype(jnp.float32) + 1) ** self.power
        moved = jax.tree.map(lambda x, s: (x - rate * s).astype(x.dtype), params, estimate.value)
        return moved, state


@dataclass(frozen=True)
class AnytimeAverage(Update):
    """mu^2-SGD (papers/02 1.1): ``w <- Proj(w - lr q)``, ``x <- x + 2/(t+3) (w - x)``, t from 0."""

    radius: float | None = None

    def init(self, params: PyTree) -> PyTree:
        return params

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        w = jax.tree.map(lambda a, q: a - info.learning_rate * q, state, estimate.value)
        w = _projected(w, self.radius)
        share = 2 / (info.step.astype(jnp.float32) + 3)
        x = jax.tree.map(lambda a, b: a + share * (b - a), params, w)
        return _same_dtypes(x, params), _same_dtypes(w, params)


@dataclass(frozen=True)
class Storm(Update):
    """STORM (Cutkosky & Orabona 2019), not private: takes the pair (g, g_prev).

    ``eta_t = lr / (w + sum |g|^2)^(1/3)``, ``a_{t+1} = min(1, c eta_t^2)`` and
    ``d <- g + (1-a)(d - g_prev)``; `penalty`, the gradient of a data-free one, is added to d.
    """

    c: float = 100.0
    w: float = 0.1
    penalty: Callable[[PyTree], PyTree] | None = None

    def init(self, params: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params), jnp.float32(0), jnp.float32(1)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        d, squares, a = state
        now, before = estimate.value
        norm2 = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(now))
        squares = squares + norm2
        d = jax.tree.map(lambda g, m, b: g + (1 - a) * (m - b), now, d, before)
        rate = info.learning_rate / jnp.cbrt(self.w + squares)
        direction = d
        if self.penalty is not None:
            direction = jax.tree.map(jnp.add, d, self.penalty(params))
        params = jax.tree.map(lambda x, v: (x - rate * v).astype(x.dtype), params, direction)
        return params, (d, squares, jnp.minimum(1.0, self.c * rate**2))

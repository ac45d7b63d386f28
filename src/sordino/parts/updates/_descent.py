"""Descent along any optax transformation of the private estimate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sordino._base.errors import require_choice
from sordino.parts.updates._base import StepInfo, Update
from sordino.privacy import PrivateEstimate


@dataclass(frozen=True)
class Descent(Update):
    """``x <- x - lr_t * transform(g)``: the learning rate stays outside, so it never recompiles."""

    transform: optax.GradientTransformation

    def init(self, params: Any) -> Any:
        return self.transform.init(params)

    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
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

    def init(self, params: Any) -> Any:
        return ()

    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
        norm = optax.tree.norm(estimate.value)
        rate = jnp.minimum(info.learning_rate, self.step_length / jnp.maximum(norm, 1e-30))
        moved = jax.tree.map(lambda x, v: (x - rate * v).astype(x.dtype), params, estimate.value)
        return moved, state


@dataclass(frozen=True)
class Optax(Update):
    """A complete optax optimizer of the user's, learning rate and all."""

    optimizer: optax.GradientTransformation

    def init(self, params: Any) -> Any:
        return self.optimizer.init(params)

    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
        updates, state = self.optimizer.update(estimate.value, state, params)
        return optax.apply_updates(params, updates), state


def _unit_length(direction: Any, params: Any) -> Any:
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

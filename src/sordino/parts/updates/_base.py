"""Updates: how a private estimate moves the model. Post-processing, so no privacy is at stake here.

An update is `init` and `step` with the state passed in and out, like optax, plus `output`: what of
the trajectory is returned (the last iterate, an average, a random one). Updates are hashable and
compose: an estimate wrapper (`_wrappers.py`) turns noisy sums into a gradient estimate and hands
it to an inner update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sordino._base.types import PyTree
from sordino.privacy import PrivateEstimate


class StepInfo(NamedTuple):
    """What an update may know about the step; all of it is public.

    Attributes:
      step: index, from 0.
      steps: number of steps of the run.
      learning_rate: of this step.
      carry_over: share of the last estimate that this one keeps (recursive streams).
      chosen: the step whose iterate a random-iterate output returns, drawn before the run.
    """

    step: jax.Array
    steps: jax.Array
    learning_rate: jax.Array
    carry_over: jax.Array | float = 0.0
    chosen: jax.Array | int = 0


class Update(ABC):
    """One way to move. Subclasses are frozen dataclasses."""

    @abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """State before the first step."""

    @abstractmethod
    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        """Parameters and state after one step."""

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        """What the run returns: by default the last iterate."""
        return params


class Wrapper(Update):
    """An update around another one whose state is ``(inner state, own state)``."""

    inner: Update

    def init(self, params: PyTree) -> PyTree:
        return self.inner.init(params), self.own_init(params)

    def own_init(self, params: PyTree) -> PyTree:
        """This wrapper's own state before the first step."""
        return ()

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        return self.inner.output(params, state[0])


@dataclass(frozen=True)
class Projected(Update):
    """`inner`, then ``x <- x * min(1, radius / |x|)`` over all parameters together."""

    inner: Update
    radius: float

    def init(self, params: PyTree) -> PyTree:
        return self.inner.init(params)

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        params, state = self.inner.step(params, state, estimate, info)
        return project(params, self.radius), state

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        return self.inner.output(params, state)


def project(params: PyTree, radius: float) -> PyTree:
    """The nearest point of the ball of `radius` around 0."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)))
    factor = jnp.minimum(1.0, radius / jnp.maximum(norm, 1e-30))
    return jax.tree.map(lambda leaf: leaf * factor, params)

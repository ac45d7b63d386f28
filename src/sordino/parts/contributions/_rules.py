"""Rules: how the gradients of one example at several released points make its contribution.

A rule is written once, on "vectors" of any kind, and evaluated in two ways: on per-example gradient
pytrees (`_gradient.py`) and, for linear models, on residuals alone (`_linear.py`), where every
gradient of an example is a multiple of its row and the norm of a combination is known in closed
form. `clip(v, c)` is given by the evaluator and scales v to norm at most c.

The bound that each rule keeps is stated, and counted, by `_contributions.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from sordino._base.types import PyTree
from sordino.parts.contributions._base import Evaluator, StepTerms

Clip = Callable[[PyTree, ArrayLike], PyTree]
# One for each point, or for each channel.
Vectors = tuple[PyTree, ...]


class Rule(ABC):
    """One way to combine gradients. Subclasses are frozen dataclasses without plan numbers."""

    def init(self, params: PyTree) -> PyTree:
        """Memory of released points before the first step."""
        return ()

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        """Memory after the step that evaluated gradients at `params`."""
        return memory

    def points(self, params: PyTree, memory: PyTree, step: jax.Array) -> Vectors:
        """The points at which one example's gradient is needed; all are released already."""
        return (params,)

    @abstractmethod
    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        """One example's contribution to each channel."""


class RuleStream(Evaluator):
    """A stream that evaluates a rule, on the plan's numbers."""

    rule: Rule

    def init(self, params: PyTree) -> PyTree:
        return self.rule.init(params)

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        return self.rule.remember(memory, params, step)

    @abstractmethod
    def row_gradients(self, points: Vectors, data: PyTree) -> Vectors:
        """Each row's gradient at each point, float32, with the leading axis of `data` (prepared)."""


def _add(scale_a: ArrayLike, a: PyTree, scale_b: ArrayLike, b: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: scale_a * x + scale_b * y, a, b)


@dataclass(frozen=True)
class GradientRule(Rule):
    """``clip(g, C)``."""

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        return (clip(gradients[0], terms["clip"]),)


PLAIN = GradientRule()


@dataclass(frozen=True)
class WeightedRule(Rule):
    """``clip(a_t g, C)``: a gradient with the weight of its step."""

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        weighted = jax.tree.map(lambda leaf: terms["now"] * leaf, gradients[0])
        return (clip(weighted, terms["clip"]),)


class _FromPrevious(Rule):
    """Rules that also need the gradient at the point of the step before."""

    def init(self, params: PyTree) -> PyTree:
        return params

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        return params

    def points(self, params: PyTree, memory: PyTree, step: jax.Array) -> Vectors:
        return params, memory


@dataclass(frozen=True)
class RecursiveRule(_FromPrevious):
    """``clip(a_t g(x_t) - b_t g(x_{t-1}), C)``: one joint clip, both gradients on this batch.

    Clipping the two separately would bound the sum by ``(a_t + b_t) C`` only (papers/02 E1, papers/03 E15).
    """

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        now, before = gradients
        return (clip(_add(terms["now"], now, -terms["before"], before), terms["clip"]),)


@dataclass(frozen=True)
class TwoClipRule(_FromPrevious):
    """``keep clip(g - g_prev, C2) + fresh clip(g, C1)`` (paper 01); keep is 0 at step 0, fresh 1.

    Both weights come from the plan: ``1 - keep`` in float32 would be off by as much as a small gamma.
    """

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        now, before = gradients
        change = clip(_add(1.0, now, -1.0, before), terms["difference_clip"])
        return (_add(terms["keep"], change, terms["fresh"], clip(now, terms["clip"])),)


@dataclass(frozen=True)
class PairRule(_FromPrevious):
    """Both gradients as two channels: for STORM, whose weights depend on the data (not private)."""

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        return tuple(clip(gradient, terms["clip"]) for gradient in gradients)


def _lagged(now: PyTree, before: PyTree, clip: Clip, terms: StepTerms) -> PyTree:
    """``y = (1-gamma) clip(a - a', C2) + gamma a`` for clipped a, a' (papers/00 1.3 and 5).

    A projection onto a ball does not stretch distances, so the difference of clipped gradients is
    no longer than that of the gradients, and the recursion stays exact while C2 does not bind.
    """
    change = clip(_add(1.0, now, -1.0, before), terms["difference_clip"])
    return _add(terms["keep"], change, terms["fresh"], now)


@dataclass(frozen=True)
class LaggedRule(Rule):
    """The same batch one epoch (`lag` steps) ago: a ring of the last `lag` released points."""

    lag: int

    def init(self, params: PyTree) -> PyTree:
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (self.lag, *jnp.shape(leaf))), params
        )

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        slot = step % self.lag
        return jax.tree.map(lambda ring, leaf: ring.at[slot].set(leaf), memory, params)

    def points(self, params: PyTree, memory: PyTree, step: jax.Array) -> Vectors:
        return params, jax.tree.map(lambda ring: ring[step % self.lag], memory)

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        now, before = (clip(gradient, terms["clip"]) for gradient in gradients)
        return (_lagged(now, before, clip, terms),)


@dataclass(frozen=True)
class AnchoredRule(Rule):
    """Gradients at the epoch's first point and the last epoch's, and a second channel for the rest.

    Channel 0 is the lagged difference between the anchors ``W_e`` and ``W_{e-1}``, channel 1 the
    residual ``r = clip(g(x_t) - g(W_e), C3)`` (papers/00 1.2, 1.3). Two anchors instead of a ring,
    three gradients instead of two.
    """

    lag: int

    def init(self, params: PyTree) -> PyTree:
        return params, params

    def _anchors(self, params: PyTree, memory: PyTree, step: jax.Array) -> tuple[PyTree, PyTree]:
        new_epoch = step % self.lag == 0
        current, last = memory
        last = jax.tree.map(lambda c, p: jnp.where(new_epoch, c, p), current, last)
        current = jax.tree.map(lambda x, c: jnp.where(new_epoch, x, c), params, current)
        return current, last

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        return self._anchors(params, memory, step)

    def points(self, params: PyTree, memory: PyTree, step: jax.Array) -> Vectors:
        return params, *self._anchors(params, memory, step)

    def combine(self, gradients: Vectors, clip: Clip, terms: StepTerms) -> Vectors:
        now, anchor, last = (clip(gradient, terms["clip"]) for gradient in gradients)
        rest = clip(_add(1.0, now, -1.0, anchor), terms["residual_clip"])
        return _lagged(anchor, last, clip, terms), rest

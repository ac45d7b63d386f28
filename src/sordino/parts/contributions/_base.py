"""Evaluators: what one example contributes at one step, clipped and summed over the batch.

An evaluator is a *rule* (which gradients of one example are combined how, see `_rules.py`) and a way to
evaluate it on a batch: in closed form for linear models, by `vmap` for any other loss. Whatever the
loss, the model or the data do, one example adds a vector of norm at most the planned bound to the
sum. What an evaluator returns is a `ClippedSum`, which is as sensitive as the data; only
`sordino.engine.add_noise` turns it into something that may be looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import jax

from sordino._base.types import PyTree
from sordino.privacy import ClippedSum

# The numbers of one step that a rule needs (coefficients, clips), as traced scalars by name.
StepTerms = Mapping[str, jax.Array]


class Batch(NamedTuple):
    """The records of one step.

    Attributes:
      data: prepared records with leading axis B.
      present: (B,) 1 for examples, 0 for padding. Between them: what an example's vector is multiplied by
        after its clip, where rows have weights; only built-in evaluators are given such.
    """

    data: PyTree
    present: jax.Array


class Evaluator(ABC):
    """One kind of contribution. Implementations are hashable, so that compiled code is reused.

    An evaluator of your own declares in `clip` the norm bound it keeps; the plan must be made for at
    least that bound. (The built-in ones take their bounds from the plan's terms instead.)
    """

    clip: float | None = None
    # Whether sums are int32, in lattice steps ``terms["step"]``; see `to_lattice`.
    lattice: bool = False

    def prepare(self, data: PyTree, valid: jax.Array) -> tuple[PyTree, jax.Array]:
        """Once per run, before the first step: data as `total` wants it, and the valid rows.

        Runs inside compiled code; what it computes is per example and stays unseen.
        """
        return data, valid

    def init(self, params: PyTree) -> PyTree:
        """Memory before the first step: made of released parameters only."""
        return ()

    def remember(self, memory: PyTree, params: PyTree, step: jax.Array) -> PyTree:
        """Memory after a step that evaluated gradients at `params`."""
        return memory

    @abstractmethod
    def total(
        self, params: PyTree, memory: PyTree, batch: Batch, terms: StepTerms, step: jax.Array
    ) -> ClippedSum:
        """Sum over the batch of one clipped vector per example.

        Args:
          params: the current, already released, parameters.
          memory: what `remember` kept of earlier ones.
          batch: the step's records, prepared.
          terms: the step's numbers; ``terms["clip"]`` bounds the norm of a plain gradient.
          step: index of the step, from 0.

        Returns a value shaped like `params`, or a tuple of several such where the plan releases
        several channels at each step.
        """

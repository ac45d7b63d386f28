"""What a client's own examples add to one message: clipped, summed, in whole lattice steps.

``sum over the block of clip_S(t grad(x_t; z) - (t-1) grad(x_{t-1}; z))``, each example's vector rounded
towards zero to the lattice (`parts.contributions`), so that no request, however far apart its points,
moves a message by more than S per example (papers/02 E1). For unit "client" the block's mean is
clipped as one vector. Linear models in closed form, any other JAX loss by `vmap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.types import PyTree
from sordino.engine import as_parameters, as_records, row_count
from sordino.parts import LinearLoss
from sordino.parts.contributions import (
    PLAIN,
    Batch,
    Evaluator,
    LinearEvaluator,
    RecursiveRule,
    VmapEvaluator,
    lattice_bounds,
    to_lattice,
)
from sordino.privacy import ClippedSum
from sordino.together.federated._agreement import Agreement

Loss = LinearLoss | Callable[..., jax.Array]

# Scales to nothing, and its products with other numbers stay finite.
_UNCLIPPED = 1e18


@dataclass(frozen=True)
class ClientEvaluator:
    """How a message's sum is computed, for one agreement and one loss.

    Attributes:
      stream: evaluates the rule on a block of examples.
      together: whether the block is clipped as one.
      recursive: whether both points matter.
      structure, shapes: of the parameters: the way from a vector back to the model.
    """

    stream: Evaluator
    together: bool
    recursive: bool
    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, agreement: Agreement, loss: Loss, params: PyTree) -> ClientEvaluator:
        """Args:
        loss: a `LinearLoss`, or ``loss(params, *example) -> scalar``.
        params: any pytree of float arrays; its shapes and its start.
        """
        leaves, structure = jax.tree.flatten(as_parameters(params))
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        size = sum(math.prod(shape) for shape in shapes)
        if size != agreement.parameters:
            raise SordinoError(
                f"the agreement is for {agreement.parameters:,} parameters, the model has {size:,}"
            )
        together = agreement.unit == "client"
        rule = RecursiveRule() if agreement.kind.recursive else PLAIN
        if isinstance(loss, LinearLoss):
            if type(loss).regularizer_gradient is not LinearLoss.regularizer_gradient:
                raise SordinoError(
                    f"{type(loss).__name__} has a regularizer, which federated runs do not add; use a "
                    "loss without one, and a radius to keep the model small"
                )
            stream: Evaluator = LinearEvaluator(loss, rule, lattice=not together)
        else:
            stream = VmapEvaluator(loss, rule, lattice=not together)
        return cls(stream, together, agreement.kind.recursive, structure, shapes)

    def terms(self, agreement: Agreement, t: int) -> dict[str, np.generic | NDArray[np.float32]]:
        """The numbers that one round's sum depends on."""
        # NumPy's scalars, not JAX's: thousands of small messages would spend their time making these.
        return {
            "now": np.float32(t if self.recursive else 1),
            "before": np.float32(t - 1 if self.recursive else 0),
            "clip": np.float32(_UNCLIPPED if self.together else agreement.clip),
            "bound": lattice_bounds(np.array([agreement.clip])),
            "step": np.float32(agreement.step),
        }

    def unravel(self, vector: jax.Array) -> PyTree:
        """A vector (d,) as the model's parameters."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = jnp.split(vector, ends)
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def total(
        self,
        point: jax.Array,
        previous: jax.Array,
        block: PyTree,
        mask: jax.Array,
        terms: Mapping[str, jax.Array],
        batch: jax.Array,
    ) -> ClippedSum:
        """The block's sum, int32 (d,): pure, for compiled code.

        Args:
          point, previous: float32 (d,).
          block: the examples' arrays, leading axis B.
          mask: (B,) 1 for examples, 0 for padding.
          terms: of the round.
          batch: what a mean is divided by, where the block is clipped as one.
        """
        data, valid = self.stream.prepare(block, mask)
        now, before = self.unravel(point), self.unravel(previous)
        value = self.stream.total(now, before, Batch(data, valid), terms, jnp.int32(0)).clipped
        if self.together:
            mean = jax.tree.map(lambda leaf: leaf / batch, value)
            value = to_lattice(mean, terms["bound"][0], terms["step"])
        return ClippedSum(jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(value)]))


@lru_cache(maxsize=64)
def compiled(kind: ClientEvaluator) -> Callable[..., jax.Array]:
    """`kind.total` with its numbers as one array, compiled once for all clients of a process.

    Arguments are few because a small message spends most of its time on handing them over.
    """

    def total(
        point: jax.Array, previous: jax.Array, block: PyTree, mask: jax.Array, numbers: jax.Array
    ) -> jax.Array:
        now, before, clip, bound, step, batch = numbers
        terms = {"now": now, "before": before, "clip": clip, "bound": bound[None], "step": step}
        return kind.total(point, previous, block, mask, terms, batch).clipped

    return jax.jit(total)


class LocalData:
    """One client's examples, in the blocks that its messages are made of.

    Blocks are cut from a secret random order, so that it does not matter how a file is sorted.
    """

    def __init__(
        self,
        agreement: Agreement,
        loss: Loss,
        params: PyTree,
        data: PyTree,
        *,
        order: NDArray[np.int64] | None = None,
        contribution: ClientEvaluator | None = None,
    ) -> None:
        arrays = as_records(data if isinstance(data, tuple) else (data,))
        self._arrays = tuple(np.asarray(array) for array in arrays)
        self.examples = row_count(self._arrays)
        self._agreement = agreement
        self._kind = contribution or ClientEvaluator.of(agreement, loss, params)
        self._total = compiled(self._kind)
        terms = self._kind.terms(agreement, 1)
        names = ("now", "before", "clip", "bound", "step")
        values = [np.ravel(terms[name])[0] for name in names]
        self._numbers = np.array([*values, agreement.batch], np.float32)
        self._mask = np.ones(agreement.batch, np.float32)
        self._order = np.arange(self.examples) if order is None else order
        self.start = flattened(params)

    @property
    def blocks(self) -> int:
        """How many messages until every example was used once."""
        return -(-self.examples // self._agreement.batch)

    def rows(self, block: int) -> NDArray[np.int64]:
        """The rows of a block."""
        size = self._agreement.batch
        return self._order[block * size : (block + 1) * size]

    def total(
        self, point: NDArray[np.float32], previous: NDArray[np.float32], t: int, block: int
    ) -> ClippedSum:
        """The clipped sum of a block, int64 (d,) in lattice steps; zeros for block -1."""
        if block < 0:
            return ClippedSum(np.zeros(self._agreement.parameters, np.int64))
        rows, size, mask = self.rows(block), self._agreement.batch, self._mask
        if len(rows) < size:
            mask = (np.arange(size) < len(rows)).astype(np.float32)
            rows = np.resize(rows, size)
        numbers = self._numbers
        if self._kind.recursive:
            numbers = numbers.copy()
            numbers[:2] = t, t - 1
        picked = tuple(array[rows] for array in self._arrays)
        result = self._total(point, previous, picked, mask, numbers)
        return ClippedSum(np.asarray(result).astype(np.int64))


def flattened(params: PyTree) -> NDArray[np.float32]:
    """A model's parameters as one vector (d,)."""
    leaves = [np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(params)]
    return np.concatenate(leaves)

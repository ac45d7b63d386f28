"""Binary tree noise: DP-FTRL for prefix sums, and its momentum form (Tran & Cutkosky 2022).

Every used node of the binary tree over the steps holds a (decayed) partial sum and one draw of its
own, reused for ever. The read of step t (1-based) adds up the nodes of ``COMPOSE(1, t)``, one per
set bit of t: its noise is ``n_t = sum_z beta^(t - z) zeta_z`` over their ends z. An optimizer that
accumulates with the same decay (prefix sums for beta = 1, an exponential average otherwise) sees
exactly ``n_t`` if the noise on the single sums is ``n_t - beta n_{t-1}``, which is

    x_t = zeta_t - sum_{l < ctz(t)} beta^(2^l) zeta_{t - 2^l} ,

ctz = trailing zero bits: at step t the last node of every level below ``ctz(t)`` goes out of use.
So one draw per step and one vector per level is all there is to keep. Every level is noised, the
root included.

**Variance-reduced** (Honaker 2015), `full_tree`: every node counts for every read.

The plain tree reads a prefix from the few nodes that tile it. Each of those sums is also known from
the nodes below and above, and the best linear estimate uses them all: half the noise of the plain
tree at the same sensitivity (papers/03 3.6). Its noise on the single sums has the covariance
``X^-1``, X the Gram matrix of all complete nodes; the lower-triangular C with ``C^T C = X`` streams
noise of that law, so nothing has to wait for later nodes.

Only for comparison with tree-based results: the factorizations of 'toeplitz' and 'dense' are better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction
from sordino._base.types import Json
from sordino.parts._rounding import full_product
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism, check_matrix_size
from sordino.parts.mechanisms._dense import Dense, check_length
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._dense import lower_factor
from sordino.privacy import TreeStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tree(Mechanism):
    """Tree noise for sums that decay by `beta` per step (1: prefix sums)."""

    steps: int = field(metadata={"static": True})
    beta: float = field(default=1.0, metadata={"static": True})
    kind: ClassVar[str] = "tree"

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise SordinoError(f"the tree's decay beta must be between 0 and 1, got {self.beta!r}")

    @classmethod
    def matched(cls, workload: Workload, steps: int) -> Tree:
        """The tree for the slowest accumulator of `workload`."""
        return cls(steps, float(np.float32(max(workload.ratios, default=1.0))))

    @property
    def _forgotten(self) -> NDArray[np.float64]:
        """``beta^(2^l)`` for each level l: what a node's draw weighs when the node goes out of use."""
        return self.beta ** np.exp2(np.arange(self.steps.bit_length()))

    def strategy(self) -> TreeStrategy:
        return TreeStrategy(self.steps, self.beta)

    def init(self, d: int) -> NDArray[np.float32]:
        return np.zeros((self.steps.bit_length(), d), np.float32)

    def rows(
        self, state: jax.Array, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, jax.Array]:
        if isinstance(first, int) and first + count > self.steps:
            raise SordinoError(
                f"this tree has nodes for {self.steps} steps, none for step {first + count}"
            )
        levels = jnp.arange(self.steps.bit_length())
        weights = jnp.asarray(self._forgotten, jnp.float32)

        def step(
            live: jax.Array, inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            zeta, t = inputs
            level = jax.lax.population_count((t & -t) - 1)
            x = zeta - full_product(jnp.where(levels < level, weights, 0.0), live)
            return live.at[level].set(zeta), x

        t = first + jnp.arange(1, count + 1)
        state, x = jax.lax.scan(step, state, (draw(first, count), t))
        return x, state

    def cancelled_draws(self, step: int) -> tuple[int, ...] | None:
        if self.beta != 1:
            return None
        t = step + 1
        level = (t & -t).bit_length() - 1
        return tuple(step - (1 << below) for below in range(level))

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        """Exact, O(steps x levels): a draw's response depends only on its level and its age."""
        n = self.steps
        w = workload.coefficients(n)
        variance = np.zeros(n)
        for level, weight in enumerate(self._forgotten):
            length = 1 << level
            response = w.copy()
            response[length:] -= weight * w[: max(n - length, 0)]
            # Nodes of this level end at steps length, 3 length, 5 length, ... (1-based).
            period = 2 * length
            blocks = -(-n // period)
            square = np.pad(response**2, (0, blocks * period - n)).reshape(blocks, period)
            started = np.cumsum(square, axis=0).ravel()[: n - length + 1]
            variance[length - 1 :] += started
        return np.sqrt(variance)

    def noising_matrix(self) -> NDArray[np.float64]:
        """The recursion above, written out: at most one entry per level and row."""
        n = check_matrix_size(self)
        N = np.eye(n)
        for level, weight in enumerate(self._forgotten.astype(np.float32)):
            length = 1 << level
            # Steps (1-based) with more trailing zeros than `level` forget the node that ends
            # `length` steps before them.
            t = np.arange(2 * length, n + 1, 2 * length)
            N[t - 1, t - 1 - length] = -weight
        return N

    def state_vectors(self) -> int:
        return self.steps.bit_length()

    def describe(self) -> str:
        kind = "prefix sums" if self.beta == 1 else f"sums that decay by {self.beta:g} a step"
        return f"binary tree noise over {kind}, {self.steps.bit_length()} levels"

    def to_json(self) -> Json:
        return {"kind": self.kind, "steps": self.steps, "beta": self.beta}


READERS.add(
    Tree.kind, lambda data: Tree(require_count("steps", data["steps"]), float(data["beta"]))
)


def full_tree(steps: int, beta: float = 1.0) -> Dense:
    """Noise of the tree over `steps` steps whose sums decay by `beta` per step (1: prefix sums)."""
    steps = check_length(require_count("steps", steps), "tree-full")
    kind = "prefix sums" if beta == 1 else f"sums that decay by {beta:g} a step"
    label = f"variance-reduced binary tree noise over {kind}"
    return Dense.from_encoder(lower_factor(node_gram(steps, beta)), label)


def node_gram(steps: int, beta: float = 1.0) -> NDArray[np.float64]:
    """``X_st = sum beta^(2 end - s - t)`` over the complete nodes that hold both s and t."""
    beta = require_fraction("the tree's decay beta", beta, closed=True)
    X = np.zeros((steps, steps))
    length = 1
    while length <= steps:
        held = beta ** np.arange(length - 1, -1, -1.0)
        square = np.outer(held, held)
        for start in range(0, steps - length + 1, length):
            X[start : start + length, start : start + length] += square
        length *= 2
    return X

"""Dense noise: any lower-triangular factorization, for runs short enough to hold all draws.

Each block of rows is ``N[block, :] @ Z`` with ``N = C^-1`` and all of Z drawn again from the key:
no state to keep or to lose, O(steps x d) memory while a block is made. `MAX_ENTRIES` bounds it;
longer runs use BLT, which comes close.

What is stored and analysed is the float32 ``N`` that is really multiplied; C is its inverse.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg import toeplitz as toeplitz_matrix

from sordino._base.errors import SordinoError, require_count
from sordino.parts._rounding import full_product
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism
from sordino.parts.mechanisms._disk import remembered_dense
from sordino.parts.mechanisms._normalize import packed, unpacked, useful_column_norms
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._linear import completed, weighted_rows, workload_matrix
from sordino.parts.mechanisms.factorize._toeplitz import sqrt_toeplitz
from sordino.privacy import FixedBatches, MatrixStrategy, Participation, SinglePass

LONGEST = 2048
MAX_ENTRIES = 50_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Dense(Mechanism):
    """Noise ``N Z`` with a given lower-triangular `noising` matrix N (steps, steps), float32."""

    noising: NDArray[np.float32]
    label: str = field(metadata={"static": True})
    kind: ClassVar[str] = "dense"

    @property
    def steps(self) -> int:  # type: ignore[override]
        return int(self.noising.shape[0])

    @classmethod
    def from_encoder(cls, C: NDArray[np.float64], label: str) -> Dense:
        """The mechanism of a lower-triangular encoder C."""
        N = solve_triangular(C, np.eye(len(C)), lower=True)
        return cls(np.asarray(np.tril(N), np.float32), label)

    @classmethod
    def optimized(cls, workload: LinearMap, participation: Participation) -> Dense:
        """The factorization with the least mean squared error of all (certified by duality).

        `workload` is any linear map. Where several noises would leave it the same (a map of low
        rank) the noise of the single steps decides between them.
        """
        steps, separation = _fixed_order(participation)
        iterate_map: LinearMap | NDArray[np.float64] = workload
        if not isinstance(workload, Workload):
            iterate_map = completed(workload_matrix(workload, steps))
        result = remembered_dense(iterate_map, steps, separation)
        return cls.from_encoder(result.strategy, "optimal dense factorization")

    @classmethod
    def weighted(
        cls, workload: LinearMap, weights: ArrayLike, participation: Participation
    ) -> Dense:
        """The factorization with the least ``sum_t q_t Var_t``, q = `weights`, of the outputs.

        Outputs that count more or less than others, as under an influence schedule: factorises
        ``diag(q)^(1/2) W`` (papers/04 2.3). Outputs of weight 0 still count for a millionth of the
        others, so that their noise stays finite.
        """
        steps, separation = _fixed_order(participation)
        iterate_map = completed(weighted_rows(workload_matrix(workload, steps), weights))
        result = remembered_dense(iterate_map, steps, separation)
        return cls.from_encoder(result.strategy, "optimal dense factorization of weighted outputs")

    @classmethod
    def square_root(cls, workload: Workload, participation: Participation) -> Dense:
        """The Toeplitz square root of the workload, columns normalised where that is exact."""
        steps = check_length(participation.steps, "toeplitz")
        coefficients = sqrt_toeplitz(workload, steps)
        C = toeplitz_matrix(coefficients, np.zeros(steps))
        norms = useful_column_norms(coefficients, workload, participation)
        if norms is not None:
            C = C / norms.astype(np.float64)
        return cls.from_encoder(C, "square-root Toeplitz factorization")

    @cached_property
    def _encoder(self) -> NDArray[np.float64]:
        N = self.noising.astype(np.float64)
        return np.tril(solve_triangular(N, np.eye(self.steps), lower=True))

    def strategy(self) -> MatrixStrategy:
        return MatrixStrategy.from_encoder(self._encoder)

    def start(self, d: int) -> tuple[()]:
        if self.steps * d > MAX_ENTRIES:
            raise SordinoError(
                f"dense noise for {self.steps:,} steps of a model with {d:,} parameters would draw "
                f"{self.steps * d:,} numbers at once; use mechanism 'blt'"
            )
        return ()

    def rows(
        self, state: tuple[()], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[()]]:
        z = draw(0, self.steps)
        block = jax.lax.dynamic_slice(
            jnp.asarray(self.noising), (first, 0), (count, self.noising.shape[1])
        )
        return full_product(block, z), ()

    def noising_matrix(self) -> NDArray[np.float64]:
        return self.noising.astype(np.float64)

    def state_vectors(self) -> int:
        return self.steps

    def describe(self) -> str:
        return self.label

    def to_json(self) -> dict[str, Any]:
        triangle = self.noising[np.tril_indices(self.steps)]
        return {
            "kind": self.kind,
            "label": self.label,
            "steps": self.steps,
            "lower_triangle": packed(triangle),
        }


def check_length(steps: int, name: str) -> int:
    """`steps`, if the mechanism of that name can hold a matrix of so many."""
    if steps > LONGEST:
        raise SordinoError(
            f"mechanism {name!r} is for at most {LONGEST:,} steps, got {steps:,}; use 'blt'"
        )
    return steps


def _fixed_order(participation: Participation) -> tuple[int, int]:
    """Steps and separation of a rule for which the optimum is known."""
    if not isinstance(participation, SinglePass | FixedBatches):
        raise SordinoError("a dense optimum is known for fixed batches; use mechanism 'blt'")
    steps = check_length(participation.steps, "dense")
    return steps, min(getattr(participation, "separation", steps), steps)


def _read(data: dict[str, Any]) -> Dense:
    steps = check_length(require_count("steps", data["steps"]), "dense")
    triangle = unpacked(data["lower_triangle"])
    if triangle.shape != (steps * (steps + 1) // 2,):
        raise SordinoError("the dense factorization in this plan has the wrong size")
    N = np.zeros((steps, steps), np.float32)
    N[np.tril_indices(steps)] = triangle
    return Dense(N, str(data["label"]))


READERS.add(Dense.kind, _read)

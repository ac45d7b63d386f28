"""Banded Toeplitz noise: memory of the last few draws in a ring buffer.

``x_t = (z_t - sum_{i=1..b-1} c_i x_{t-i}) / c_0``: bands - 1 vectors of state. With bands no longer
than an epoch one example's steps do not interact, so k epochs cost exactly sqrt(k) (Choquette-Choo
et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count
from sordino._base.types import Json
from sordino.parts._rounding import full_product
from sordino.parts.mechanisms._base import READERS, Draw
from sordino.parts.mechanisms._toeplitz import (
    ToeplitzMechanism,
    packed,
    scale_rows,
    unpacked,
    unpacked_or_none,
    useful_column_norms,
)
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._toeplitz import optimize_banded
from sordino.privacy import Participation

DEFAULT_BANDS = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Banded(ToeplitzMechanism):
    """Banded Toeplitz noise; `coefficients` (bands,) are the float32 numbers used."""

    coefficients: NDArray[np.float32]
    column_norms: NDArray[np.float32] | None
    steps: int = field(metadata={"static": True})
    kind: ClassVar[str] = "banded"

    @classmethod
    def optimized(
        cls, workload: Workload, participation: Participation, bands: int | None = None
    ) -> Banded:
        """The best `bands` coefficients for `workload`; by default as many as an epoch, or 64."""
        steps, uses = participation.steps, participation.max_participations
        separation = getattr(participation, "separation", None) or max(1, steps // uses)
        wanted = min(DEFAULT_BANDS, separation) if bands is None else bands
        if not 1 <= wanted <= steps:
            raise SordinoError(f"bands must be between 1 and the {steps} steps, got {bands!r}")
        result = np.asarray(
            optimize_banded(workload, steps, wanted, epochs=uses, separation=separation),
            np.float32,
        )
        norms = useful_column_norms(result.astype(np.float64), workload, participation)
        return cls(result, norms, steps)

    def strategy_coefficients(self) -> NDArray[np.float64]:
        c = np.zeros(self.steps)
        c[: len(self.coefficients)] = self.coefficients
        return c

    def start(self, d: int) -> NDArray[np.float32]:
        return np.zeros((len(self.coefficients) - 1, d), np.float32)

    def rows(
        self, state: jax.Array, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, jax.Array]:
        c = jnp.asarray(self.coefficients)
        ring = len(self.coefficients) - 1
        z, t = draw(first, count), first + jnp.arange(count)
        if ring == 0:
            return scale_rows(z / c[0], self.column_norms, first), state

        def step(
            memory: jax.Array, inputs: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            z_t, now = inputs
            # Slot s holds x of the latest step before `now` that is s modulo the ring's length.
            age = (now - 1 - jnp.arange(ring)) % ring + 1
            x = (z_t - full_product(c[age], memory)) / c[0]
            return memory.at[now % ring].set(x), x

        state, x = jax.lax.scan(step, state, (z, t))
        return scale_rows(x, self.column_norms, first), state

    def state_vectors(self) -> int:
        return len(self.coefficients) - 1

    def describe(self) -> str:
        return f"banded Toeplitz noise with {len(self.coefficients)} bands{self.normalisation()}"

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "steps": self.steps,
            "coefficients": packed(self.coefficients),
            "column_norms": packed(self.column_norms),
        }


def _read(data: Json) -> Banded:
    c = unpacked(data["coefficients"])
    return Banded(c, unpacked_or_none(data["column_norms"]), require_count("steps", data["steps"]))


READERS.add(Banded.kind, _read)

"""Buffered linear Toeplitz noise (BLT): near-optimal correlation with a handful of buffers.

``c_0 = 1, c_k = sum_i omega_i theta_i^(k-1)``; the noise ``x = C^-1 z`` streams as

    x_t = z_t - sum_i omega_i u_i ;      u_i <- theta_i u_i + x_t          (Dvijotham et al. 2024)

One fresh draw per step and q vectors of state, whatever the number of steps. Column normalisation
(single epoch) multiplies row t by the norm of column t.
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
from sordino.parts.mechanisms.factorize._blt import optimize_blt
from sordino.privacy import Participation, ToeplitzStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class BLT(ToeplitzMechanism):
    """BLT noise; `theta`, `omega` (q,) and `column_norms` (steps,) are the float32 numbers used."""

    theta: NDArray[np.float32]
    omega: NDArray[np.float32]
    column_norms: NDArray[np.float32] | None
    steps: int = field(metadata={"static": True})
    kind: ClassVar[str] = "blt"

    @classmethod
    def optimized(cls, workload: Workload, participation: Participation) -> BLT:
        """The BLT with the least mean squared error of `workload` under `participation`."""
        steps, uses = participation.steps, participation.max_participations
        separation = getattr(participation, "separation", None) or max(1, steps // uses)
        result = optimize_blt(workload, steps, separation=separation, participations=uses)
        theta, omega = np.array(result.theta, np.float32), np.array(result.omega, np.float32)
        plain = ToeplitzStrategy.from_blt(theta, omega, steps)
        norms = useful_column_norms(plain.coefficients, workload, participation)
        return cls(theta, omega, norms, steps)

    def strategy_coefficients(self) -> NDArray[np.float64]:
        return ToeplitzStrategy.from_blt(self.theta, self.omega, self.steps).coefficients

    def start(self, d: int) -> NDArray[np.float32]:
        return np.zeros((len(self.theta), d), np.float32)

    def rows(
        self, state: jax.Array, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, jax.Array]:
        theta, omega = jnp.asarray(self.theta)[:, None], jnp.asarray(self.omega)

        def step(buffers: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = z - full_product(omega, buffers)
            return theta * buffers + x, x

        state, x = jax.lax.scan(step, state, draw(first, count))
        return scale_rows(x, self.column_norms, first), state

    def state_vectors(self) -> int:
        return len(self.theta)

    def describe(self) -> str:
        return f"BLT-correlated noise with {len(self.theta)} buffers{self.normalisation()}"

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "steps": self.steps,
            "theta": packed(self.theta),
            "omega": packed(self.omega),
            "column_norms": packed(self.column_norms),
        }


def _read(data: Json) -> BLT:
    theta, omega = unpacked(data["theta"]), unpacked(data["omega"])
    if theta.ndim != 1 or theta.shape != omega.shape:
        raise SordinoError("the BLT in this plan needs as many theta as omega")
    return BLT(
        theta, omega, unpacked_or_none(data["column_norms"]), require_count("steps", data["steps"])
    )


READERS.add(BLT.kind, _read)

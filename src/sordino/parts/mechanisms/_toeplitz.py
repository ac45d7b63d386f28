"""Toeplitz noise that streams: independent, banded, or through a few buffers (BLT).

*Banded*: ``x_t = (z_t - sum_{i=1..b-1} c_i x_{t-i}) / c_0``: bands - 1 vectors of state, in a ring.
With bands no longer than an epoch one example's steps do not interact, so k epochs cost exactly
sqrt(k) (Choquette-Choo et al. 2023).

*BLT*: ``c_0 = 1, c_k = sum_i omega_i theta_i^(k-1)``; the noise ``x = C^-1 z`` streams as

    x_t = z_t - sum_i omega_i u_i ;      u_i <- theta_i u_i + x_t          (Dvijotham et al. 2024)

One fresh draw per step and q vectors of state, whatever the number of steps.

*Column normalisation*: dividing column t of C by its norm makes every column count fully (a truncated
Toeplitz matrix wastes its last columns): exact for one participation, a few percent less noise. The
noise of step t is then multiplied by that norm. Over several epochs other sizes of the columns than
their norms are better still, above all for maps that are not Toeplitz: see `factorize/_scaled.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.linalg import toeplitz as toeplitz_matrix

from sordino._base.codec import pack, unpack
from sordino._base.errors import SordinoError, require_count
from sordino._base.types import Json
from sordino.parts._rounding import full_product
from sordino.parts.mechanisms._base import READERS, Draw, Mechanism, check_matrix_size
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._blt import optimize_blt
from sordino.parts.mechanisms.factorize._error import dense_error, toeplitz_error
from sordino.parts.mechanisms.factorize._scaled import optimize_scaled
from sordino.parts.mechanisms.factorize._toeplitz import (
    column_norms,
    inverse_coefficients,
    optimize_banded,
)
from sordino.privacy import FixedBatches, Participation, SinglePass, ToeplitzStrategy

# The error of a normalised strategy needs a dense matrix; the gain shrinks with the steps anyway.
_LONGEST = 2048
# Arrays in a plan unpack to no more than this, whatever they claim: one number for each of many steps.
_LARGEST_PACKED = 64 << 20


def useful_column_norms(
    coefficients: NDArray[np.float64], workload: Workload, participation: Participation
) -> NDArray[np.float32] | None:
    """float32 column norms where normalising is exact and lowers the error, else None.

    Exact: each unit takes part once, or the bands are no longer than the separation, so that the
    columns of one pattern are orthogonal.
    """
    steps = participation.steps
    if steps > _LONGEST or not isinstance(participation, SinglePass | FixedBatches):
        return None
    bands = int(np.flatnonzero(coefficients)[-1]) + 1
    if participation.max_participations > 1 and bands > getattr(participation, "separation", 0):
        return None
    norms = np.asarray(column_norms(coefficients, steps), np.float32)
    plain = toeplitz_error(coefficients, workload, steps) * float(norms[0])
    scaled = normalized_error(coefficients, norms, workload, steps)
    return norms if np.mean(scaled**2) < np.mean(plain**2) else None


def nearest_order(participation: Participation) -> tuple[int, int]:
    """Steps, and steps between two uses of one example: of the fixed order that stands for the rule.

    Only what a strategy is fitted to; its sensitivity is that of the rule itself.
    """
    steps, uses = participation.steps, participation.max_participations
    separation = getattr(participation, "separation", None) or max(1, -(-steps // uses))
    return steps, min(separation, steps)


def normalized_error(
    coefficients: NDArray[np.float64],
    norms: NDArray[np.float32] | None,
    workload: Workload,
    steps: int,
) -> NDArray[np.float64]:
    """Row norms of ``W diag(norms) C^-1``."""
    if norms is None:
        return toeplitz_error(coefficients, workload, steps)
    first_column = np.pad(coefficients[:steps], (0, max(0, steps - len(coefficients))))
    C = toeplitz_matrix(first_column, np.zeros(steps)) / norms.astype(np.float64)
    return dense_error(C, workload)


def scale_rows(
    rows: jax.Array, norms: NDArray[np.float32] | None, first: jax.Array | int
) -> jax.Array:
    """Row i of a block that starts at step `first`, times ``norms[first + i]``."""
    if norms is None:
        return rows
    block = jax.lax.dynamic_slice(jnp.asarray(norms), (first,), (rows.shape[0],))
    return rows * block[:, None]


def packed(array: NDArray[np.float32] | None) -> Json | None:
    """A float32 array as JSON data, bit for bit."""
    if array is None:
        return None
    data = np.asarray(array, np.float32)
    return {"shape": list(data.shape), "float32": pack(data)}


def unpacked_or_none(data: Json | None) -> NDArray[np.float32] | None:
    """The array that `packed` wrote, if it wrote one."""
    return None if data is None else unpacked(data)


def unpacked(data: Json) -> NDArray[np.float32]:
    """The array that `packed` wrote."""
    what = "a packed array in this plan"
    return unpack(data, "float32", "shape", largest=_LARGEST_PACKED, what=what)


class ToeplitzMechanism(Mechanism):
    """A mechanism whose encoder is lower-triangular Toeplitz, its columns normalised or not."""

    column_norms: NDArray[np.float32] | None

    @abstractmethod
    def strategy_coefficients(self) -> NDArray[np.float64]:
        """The first column of C before normalisation, from the float32 numbers in use; the rest is 0."""

    def strategy(self) -> ToeplitzStrategy:
        norms = None if self.column_norms is None else self.column_norms.astype(np.float64)
        return ToeplitzStrategy(self.strategy_coefficients(), self.steps, norms)

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        if self.column_norms is not None and self.steps > _LONGEST:
            return self._map_error(workload, None)
        return normalized_error(
            self.strategy_coefficients(), self.column_norms, workload, self.steps
        )

    def noising_matrix(self) -> NDArray[np.float64]:
        n = check_matrix_size(self)
        N: NDArray[np.float64] = toeplitz_matrix(
            inverse_coefficients(self.strategy_coefficients(), n), np.zeros(n)
        )
        return N if self.column_norms is None else self.column_norms[:, None] * N

    def draw_energy(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        scale = 1.0 if self.column_norms is None else self.column_norms.astype(np.float64)[:, None]
        backwards = (scale * columns)[::-1]
        if isinstance(self, Independent):
            return np.asarray(np.sum(backwards**2, axis=0))
        kernel = inverse_coefficients(self.strategy_coefficients(), self.steps)
        size = next_fast_len(2 * self.steps, real=True)
        spectrum = rfft(backwards, size, axis=0) * rfft(kernel, size)[:, None]
        return np.asarray(np.sum(irfft(spectrum, size, axis=0)[: self.steps] ** 2, axis=0))

    def normalisation(self) -> str:
        """A suffix for `describe`."""
        if self.column_norms is None:
            return ""
        norms = column_norms(self.strategy_coefficients(), self.steps)
        normalised = np.allclose(self.column_norms, norms, rtol=1e-3)
        return ", columns normalised" if normalised else ", a size for each step"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Independent(ToeplitzMechanism):
    """Fresh noise in every step, ``C = I``: DP-SGD and DP-GD, the one kind that Poisson batches amplify."""

    steps: int = field(metadata={"static": True})
    kind: ClassVar[str] = "independent"
    column_norms = None

    def strategy_coefficients(self) -> NDArray[np.float64]:
        return np.ones(1)

    def init(self, d: int) -> tuple[()]:
        return ()

    def rows(
        self, state: tuple[()], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[()]]:
        return draw(first, count), ()

    def cancelled_draws(self, step: int) -> tuple[int, ...]:
        return ()

    def state_vectors(self) -> int:
        return 0

    def describe(self) -> str:
        return "independent noise in every step"

    def to_json(self) -> Json:
        return {"kind": self.kind, "steps": self.steps}


READERS.add(Independent.kind, lambda data: Independent(steps=require_count("steps", data["steps"])))


# The state holds as many vectors.
MOST_BANDS = 512
# Those with a size for each step take longer to fit.
SCALED_BANDS = 64


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
        """The best `bands` coefficients for `workload`; by default as many as an epoch, or 512."""
        steps, uses = participation.steps, participation.max_participations
        separation = getattr(participation, "separation", None) or max(1, steps // uses)
        wanted = min(MOST_BANDS, separation, steps) if bands is None else bands
        if not 1 <= wanted <= steps:
            raise SordinoError(f"bands must be between 1 and the {steps} steps, got {bands!r}")
        result = np.asarray(
            optimize_banded(workload, steps, wanted, epochs=uses, separation=separation), np.float32
        )
        norms = useful_column_norms(result.astype(np.float64), workload, participation)
        return cls(result, norms, steps)

    @classmethod
    def scaled(
        cls, workload: LinearMap, participation: Participation, bands: int | None = None
    ) -> Banded:
        """So many bands with a size for each step, fitted to any map; by default at most 64."""
        steps, separation = nearest_order(participation)
        wanted = min(SCALED_BANDS, separation) if bands is None else bands
        if not 1 <= wanted <= steps:
            raise SordinoError(f"bands must be between 1 and the {steps} steps, got {bands!r}")
        found = optimize_scaled(workload, steps, separation, bands=wanted)
        c, d = (np.asarray(x, np.float32) for x in (found.coefficients, found.scales))
        return cls(c, d, steps)

    def strategy_coefficients(self) -> NDArray[np.float64]:
        c = np.zeros(self.steps)
        c[: len(self.coefficients)] = self.coefficients
        return c

    def init(self, d: int) -> NDArray[np.float32]:
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


def _read_banded(data: Json) -> Banded:
    c = unpacked(data["coefficients"])
    return Banded(c, unpacked_or_none(data["column_norms"]), require_count("steps", data["steps"]))


READERS.add(Banded.kind, _read_banded)


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

    @classmethod
    def scaled(cls, workload: LinearMap, participation: Participation) -> BLT:
        """At most three buffers with a size for each step, fitted to any map."""
        steps, separation = nearest_order(participation)
        found = optimize_scaled(workload, steps, separation)
        theta, omega = np.asarray(found.theta, np.float32), np.asarray(found.omega, np.float32)
        return cls(theta, omega, np.asarray(found.scales, np.float32), steps)

    def strategy_coefficients(self) -> NDArray[np.float64]:
        return ToeplitzStrategy.from_blt(self.theta, self.omega, self.steps).coefficients

    def strategy(self) -> ToeplitzStrategy:
        norms = None if self.column_norms is None else self.column_norms.astype(np.float64)
        return ToeplitzStrategy.from_blt(self.theta, self.omega, self.steps, norms)

    def init(self, d: int) -> NDArray[np.float32]:
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


def _read_blt(data: Json) -> BLT:
    theta, omega = unpacked(data["theta"]), unpacked(data["omega"])
    if theta.ndim != 1 or theta.shape != omega.shape:
        raise SordinoError("the BLT in this plan needs as many theta as omega")
    return BLT(
        theta, omega, unpacked_or_none(data["column_norms"]), require_count("steps", data["steps"])
    )


READERS.add(BLT.kind, _read_blt)

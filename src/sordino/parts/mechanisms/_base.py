"""Mechanisms: how the noise of the released sums is correlated over time.

A mechanism stands for a lower-triangular encoder ``C`` (steps x steps). The noise added to the
clipped sum of step t is row t of ``std * C^-1 Z`` with Z iid N(0, 1): one fresh draw per step, the
rest is memory of earlier draws. Because C is lower triangular and the noise Gaussian, inputs may
depend on everything released before.

A mechanism states its own privacy: `strategy()` gives the Gram matrix of exactly the (float32)
numbers that `rows` uses, so the noise can never be calibrated to another matrix.

    mechanism = BLT.optimized(workload=heavy_ball(0.9), steps=640, ...)
    state = mechanism.init(d)
    rows, state = mechanism.rows(state, draw, first=0, count=64)     # inside jit

`draw(first, count)` returns iid standard normal rows (see `_gaussian.py`).

A mechanism may serve several *channels*: vectors that are released together in each step, laid out
side by side in one row (see `_combined.py`). And it may have *boundaries*: steps at which a block of
rows has to start, because another part takes over there (likewise).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, shown
from sordino._base.registry import Registry
from sordino._base.types import Json, PyTree
from sordino.parts.mechanisms._gaussian import standard_normal_rows
from sordino.parts.mechanisms._maps import Channels
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.privacy import Strategy

Draw = Callable[[jax.Array | int, int], jax.Array]
State = PyTree

# Up to here C^-1 is written out (0.13 GB); beyond, the error of a map that has no closed form is
# estimated by simulation.
LONGEST_MATRIX = 4096
_PROBES = 256
_PROBES_AT_ONCE = 32


class Mechanism(ABC):
    """One way to correlate noise. Subclasses are frozen dataclasses registered as pytrees."""

    kind: ClassVar[str]
    steps: int

    @property
    def channels(self) -> int:
        """How many vectors are released in each step."""
        return 1

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Increasing steps at which a block of rows must start: `rows` never straddles one."""
        return ()

    @abstractmethod
    def strategy(self) -> Strategy:
        """The privacy analysis' view of the very numbers `rows` uses."""

    @abstractmethod
    def init(self, d: int) -> State:
        """State before step 0 for rows of length d (numpy arrays: no device work).

        With several channels d is the length of all of them together.
        """

    @abstractmethod
    def rows(
        self, state: State, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, State]:
        """Rows ``first .. first+count-1`` of ``C^-1 Z``, shape (count, d), and the state after."""

    def step_error(self) -> NDArray[np.float64]:
        """Standard deviation of each row of ``C^-1 Z`` (steps,)."""
        return self.workload_error(Workload.identity())

    def workload_error(
        self, workload: LinearMap, weights: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Standard deviation of each row of ``W diag(weights) C^-1 Z`` (steps,).

        `weights` (steps,) are the sizes of the steps' noise; all 1 by default. Exact for a Toeplitz
        workload without weights, and for any map of up to 4096 steps. Beyond, an estimate from 256
        simulated coordinates, the same ones every time: each entry has a relative standard error of
        4.4 %, their root mean square one of about 1 % where the noise forgets within a fraction of
        the run and of up to 4 % where it never does (a random walk).
        """
        if isinstance(workload, Channels):
            return self.workload_error(only_channel(workload), weights)
        if isinstance(workload, Workload) and weights is None:
            return self._toeplitz_error(workload)
        return self._map_error(workload, check_weights(weights, (self.steps,)))

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        """`workload_error` of a Toeplitz workload; subclasses that know a faster way have it here."""
        return self._map_error(workload, None)

    def _map_error(
        self, workload: LinearMap, weights: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        scale = 1.0 if weights is None else weights[:, None]
        if self.steps <= LONGEST_MATRIX:
            noise = scale * self.noising_matrix()
            # Draws that weights of 0 hide need not go through the map.
            seen = noise if weights is None else noise[:, noise.any(axis=0)]
            return np.linalg.norm(workload.apply(seen), axis=1)
        total = np.zeros(self.steps)
        for block in range(_PROBES // _PROBES_AT_ONCE):
            noise = np.asarray(_simulated_rows(self, block), np.float64)
            total += (workload.apply(scale * noise) ** 2).sum(axis=1)
        return np.sqrt(total / _PROBES)

    def draw_energy(self, columns: NDArray[np.float64]) -> NDArray[np.float64]:
        """``|(C^-1)^T y|^2`` for each column y of (steps, k): the variance of ``y . (C^-1 Z)``.

        Exact up to 4096 steps and for Toeplitz mechanisms; beyond, an estimate from 256 simulated
        coordinates (relative standard error 9 %).
        """
        if self.steps <= LONGEST_MATRIX:
            return np.asarray(np.sum((self.noising_matrix().T @ columns) ** 2, axis=0))
        total = np.zeros(columns.shape[1])
        for block in range(_PROBES // _PROBES_AT_ONCE):
            noise = np.asarray(_simulated_rows(self, block), np.float64)
            total += ((noise.T @ columns) ** 2).sum(axis=0)
        return total / _PROBES

    def noising_matrix(self) -> NDArray[np.float64]:
        """``C^-1`` written out from the float32 numbers in use (steps, steps)."""
        check_matrix_size(self)
        return np.asarray(_rows_of_identity(self), np.float64)

    def cancelled_draws(self, step: int) -> tuple[int, ...] | None:
        """Which earlier draws row `step` subtracts, if the noise is that and nothing else.

        ``row_t = z_t - sum_{j in cancelled_draws(t)} z_j``: then C^-1 and C are matrices of whole numbers,
        and noise of whole numbers stays so. None where coefficients are real numbers.
        """
        return None

    def draw_scales(self) -> NDArray[np.float64]:
        """Factors on the fresh draws (steps,); not 1 only where draws have a size of their own."""
        return np.ones(self.steps)

    @abstractmethod
    def state_vectors(self) -> int:
        """How many vectors of the model's size the noise state holds."""

    @abstractmethod
    def describe(self) -> str:
        """A short phrase for a plan's page."""

    @abstractmethod
    def to_json(self) -> Json:
        """Plain data that `mechanism_from_json` reads back bit for bit."""


def check_matrix_size(mechanism: Mechanism) -> int:
    """The mechanism's steps, if its noising matrix can be written out."""
    if mechanism.channels > 1:
        raise SordinoError("several channels have one noising matrix each; ask their mechanisms")
    if mechanism.steps > LONGEST_MATRIX:
        raise SordinoError(
            f"a noising matrix is written out for at most {LONGEST_MATRIX:,} steps, got "
            f"{mechanism.steps:,}"
        )
    return mechanism.steps


def only_channel(workload: Channels) -> LinearMap:
    """The map of the one channel, where there is but one."""
    if len(workload.parts) != 1:
        raise SordinoError(
            f"a map of {len(workload.parts)} channels cannot judge a mechanism of one channel"
        )
    return workload.parts[0]


def check_weights(weights: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """`weights` as an array of the given shape."""
    if weights is None:
        return None
    checked = np.asarray(weights, np.float64)
    if checked.shape != shape or not np.isfinite(checked).all():
        raise SordinoError(f"weights must be finite numbers of shape {shape}, got {checked.shape}")
    return checked


def _all_rows(mechanism: Mechanism, draw: Draw, d: int) -> jax.Array:
    """Every row for the given draws of d coordinates (steps, d)."""
    state, blocks = mechanism.init(d), []
    ends = (*mechanism.boundaries, mechanism.steps)
    for first, end in zip((0, *mechanism.boundaries), ends, strict=True):
        rows, state = mechanism.rows(state, draw, first, end - first)
        blocks.append(rows)
    return jnp.concatenate(blocks)


@jax.jit
def _rows_of_identity(mechanism: Mechanism) -> jax.Array:
    n = mechanism.steps

    def draw(first: jax.Array | int, count: int) -> jax.Array:
        return jax.lax.dynamic_slice(jnp.eye(n), (first, 0), (count, n))

    return _all_rows(mechanism, draw, n)


@jax.jit
def _simulated_rows(mechanism: Mechanism, block: int) -> jax.Array:
    key = jax.random.fold_in(jax.random.key(0), block)  # public, and never a run's

    def draw(first: jax.Array | int, count: int) -> jax.Array:
        return standard_normal_rows(key, first, count, _PROBES_AT_ONCE)

    return _all_rows(mechanism, draw, _PROBES_AT_ONCE)


# By kind: what reads a mechanism that a plan's file describes.
READERS: Registry[Callable[[Json], Mechanism]] = Registry("mechanism")


def _admit(name: str, mechanism: object) -> Callable[..., Mechanism]:
    """Of a class, its `fit`; what it writes can be read from then on."""
    if isinstance(mechanism, type) and issubclass(mechanism, Mechanism):
        missing = [part for part in ("kind", "fit", "from_json") if not hasattr(mechanism, part)]
        if missing:
            raise SordinoError(f"the mechanism {name!r} has no {missing[0]}")
        READERS.add(mechanism.kind, mechanism.from_json)  # type: ignore[attr-defined]
        return mechanism.fit  # type: ignore[attr-defined]
    if not callable(mechanism):
        raise SordinoError(f"a mechanism is a class of Mechanism, got {shown(mechanism)}")
    return mechanism


# By name: ``fit(workload, participation, *, bands=None)``, the mechanism with the least error. To add
# one, add its class: with `kind`, and the class methods `fit` and `from_json`.
MECHANISMS: Registry[Callable[..., Mechanism]] = Registry(
    "mechanism", group="sordino.mechanisms", admit=_admit
)


def mechanism_from_json(data: Json) -> Mechanism:
    """The mechanism that `to_json` described."""
    if not isinstance(data, dict):
        raise SordinoError(f"a mechanism must be a table of fields, got {shown(data)}")
    kind = data.get("kind", "")
    if kind not in READERS:
        MECHANISMS.names()  # other packages' too
    return READERS[kind](data)

"""Mechanisms made of others: one after the other, side by side, or with draws of a size of their own.

**Phases.** A run whose stream changes at a known step (the first epoch of the lag-one-epoch recursion,
papers/00 1.3, is released in full, later ones as differences) takes a fresh mechanism there: ``C`` is
block diagonal, nothing is correlated across the change, and part p's noise is multiplied by
``scales[p]``.

    Phases((Tree(32, 0.9), Tree(288, 0.9)), (1.7, 1.2))

**Parallel channels.** A stream that releases more than one sum per step (the anchored form of that
recursion: a difference and a residual) lays them side by side in one row of ``channels * d`` numbers.
Channel p gets its block of columns of the same draws, so all draws are independent; its noise is
multiplied by ``scales[p]``. One example adds to all channels at once, and they are accounted for
jointly.

**Scaled draws.** The fresh draw of step t is multiplied by ``s_t``. The noise is ``C0^-1 diag(s) Z``, so
the encoder is ``diag(1/s) C0``: rows of C0 are scaled (papers/04 2.3, with ``s = y^(-1/2)``), or, with
C0 of cancelling noise, every message has a sigma of its own (papers/02 1.3: ``sigma(N)^2 ~ N``). A
schedule that multiplies the whole noise of a step scales the columns of C instead and needs no mechanism.

    ScaledDraws(Cancelling(600), np.sqrt(np.arange(1, 601)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from sordino._base.errors import DAMAGE, SordinoError
from sordino._base.types import Json
from sordino.parts.mechanisms._base import (
    LONGEST_MATRIX,
    READERS,
    Draw,
    Mechanism,
    State,
    check_matrix_size,
    check_weights,
    mechanism_from_json,
)
from sordino.parts.mechanisms._maps import Channels
from sordino.parts.mechanisms._toeplitz import packed, scale_rows, unpacked
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.privacy import MatrixStrategy, ParallelStrategy, PhasesStrategy, check_factors


class _Combined(Mechanism):
    """Several mechanisms, each with a scale of its noise."""

    parts: tuple[Mechanism, ...]
    scales: tuple[float, ...]

    def state_vectors(self) -> int:
        return sum(part.state_vectors() for part in self.parts)

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "parts": [part.to_json() for part in self.parts],
            "scales": list(self.scales),
        }


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Phases(_Combined):
    """Mechanisms one after the other; `scales` are rounded to the float32 numbers in use."""

    parts: tuple[Mechanism, ...]
    scales: tuple[float, ...] = field(metadata={"static": True})
    kind: ClassVar[str] = "phases"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", checked_scales(self.parts, self.scales, "phase"))

    @property
    def steps(self) -> int:  # type: ignore[override]
        return sum(part.steps for part in self.parts)

    @property
    def _starts(self) -> list[int]:
        return list(accumulate((part.steps for part in self.parts[:-1]), initial=0))

    @property
    def boundaries(self) -> tuple[int, ...]:
        inner = (
            start + step
            for part, start in zip(self.parts, self._starts, strict=True)
            for step in part.boundaries
        )
        return tuple(sorted({*self._starts[1:], *inner}))

    def strategy(self) -> PhasesStrategy:
        return PhasesStrategy(tuple(part.strategy() for part in self.parts), self.scales)

    def init(self, d: int) -> tuple[State, ...]:
        return tuple(part.init(d) for part in self.parts)

    def rows(
        self, state: tuple[State, ...], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[State, ...]]:
        if isinstance(first, int | np.integer):
            return self._cut_rows(state, draw, int(first), count)
        width = jax.eval_shape(lambda: draw(0, count)).shape[1]
        branches = [self._branch(p, draw, first, count, width) for p in range(len(self.parts))]
        phase = jnp.searchsorted(jnp.asarray(self._starts), first, side="right") - 1
        rows, after = jax.lax.switch(phase, branches, jax.tree.map(jnp.asarray, state))
        return rows, after

    def _branch(
        self, p: int, draw: Draw, first: jax.Array, count: int, width: int
    ) -> Callable[[tuple[State, ...]], tuple[jax.Array, tuple[State, ...]]]:
        """The rows of a block that lies in part p."""
        part, start = self.parts[p], self._starts[p]

        def run(state: tuple[State, ...]) -> tuple[jax.Array, tuple[State, ...]]:
            if count > part.steps:  # such a block cannot lie in this part
                return jnp.full((count, width), jnp.nan, jnp.float32), state
            rows, after = part.rows(state[p], _shifted(draw, start), first - start, count)
            # A block that straddles the end of the part has no meaning here. Not a number is
            # noticed; noise of another step would not be.
            inside = first - start + count <= part.steps
            scale = jnp.where(inside, jnp.float32(self.scales[p]), jnp.nan)
            return rows * scale, (*state[:p], after, *state[p + 1 :])

        return run

    def _cut_rows(
        self, state: tuple[State, ...], draw: Draw, first: int, count: int
    ) -> tuple[jax.Array, tuple[State, ...]]:
        """Rows of a block whose place is known while tracing: cut where the parts begin."""
        if not 0 <= first <= first + count <= self.steps:
            raise SordinoError(
                f"rows {first} to {first + count - 1} are not among these {self.steps} steps"
            )
        states, blocks = list(state), []
        for p, (part, start) in enumerate(zip(self.parts, self._starts, strict=True)):
            begin, end = max(first, start), min(first + count, start + part.steps)
            if begin < end:
                local = _shifted(draw, start)
                rows, states[p] = part.rows(states[p], local, begin - start, end - begin)
                blocks.append(rows * jnp.float32(self.scales[p]))
        return jnp.concatenate(blocks), tuple(states)

    def _toeplitz_error(self, workload: Workload) -> NDArray[np.float64]:
        if workload.ratios:
            return self._map_error(workload, None)
        errors = [
            scale * part.workload_error(workload)
            for part, scale in zip(self.parts, self.scales, strict=True)
        ]
        return np.concatenate(errors)

    def noising_matrix(self) -> NDArray[np.float64]:
        n = check_matrix_size(self)
        N = np.zeros((n, n))
        for part, start, scale in zip(self.parts, self._starts, self.scales, strict=True):
            own = slice(start, start + part.steps)
            N[own, own] = scale * part.noising_matrix()
        return N

    def describe(self) -> str:
        phrases = [f"{part.describe()} for {part.steps:,} steps" for part in self.parts]
        return ", then ".join(phrases)


def checked_scales(
    parts: tuple[Mechanism, ...], scales: tuple[float, ...], what: str
) -> tuple[float, ...]:
    """The scales as float32 numbers, if there is one for each of one or more mechanisms."""
    if not parts or len(parts) != len(scales):
        raise SordinoError(
            f"every {what} needs a mechanism and a scale, got {len(parts)} and {len(scales)}"
        )
    for part in parts:
        if not isinstance(part, Mechanism):
            raise SordinoError(f"a {what} must be a mechanism, got {part!r}")
        if part.channels > 1:
            raise SordinoError(f"a {what} cannot have several channels of its own")
    rounded = tuple(float(np.float32(scale)) for scale in scales)
    if not all(0 < scale < np.inf for scale in rounded):
        raise SordinoError(f"the scale of every {what} must be a positive number, got {scales}")
    return rounded


def _shifted(draw: Draw, start: int) -> Draw:
    """The draws of the steps from `start` on."""
    return lambda first, count: draw(start + first, count)


def parts_from_json(data: Json, what: str) -> tuple[tuple[Mechanism, ...], tuple[float, ...]]:
    """The mechanisms and scales that a combination's `to_json` described."""
    try:
        parts = tuple(mechanism_from_json(part) for part in data["parts"])
        return parts, tuple(float(scale) for scale in data["scales"])
    except SordinoError:
        raise
    except DAMAGE:
        raise SordinoError(
            f"the {what} in this plan need 'parts', a list of mechanisms, and 'scales', a list of numbers"
        ) from None


READERS.add(Phases.kind, lambda data: Phases(*parts_from_json(data, "phases")))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Parallel(_Combined):
    """Mechanisms side by side; `scales` are rounded to the float32 numbers in use."""

    parts: tuple[Mechanism, ...]
    scales: tuple[float, ...] = field(metadata={"static": True})
    kind: ClassVar[str] = "parallel"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", checked_scales(self.parts, self.scales, "channel"))
        if len({part.steps for part in self.parts}) > 1:
            raise SordinoError(
                "all channels must have the same number of steps, got "
                f"{[part.steps for part in self.parts]}"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.parts[0].steps

    @property
    def channels(self) -> int:
        return len(self.parts)

    @property
    def boundaries(self) -> tuple[int, ...]:
        return tuple(sorted({step for part in self.parts for step in part.boundaries}))

    def strategy(self) -> ParallelStrategy:
        return ParallelStrategy(tuple(part.strategy() for part in self.parts), self.scales)

    def init(self, d: int) -> tuple[State, ...]:
        if d % self.channels:
            raise SordinoError(f"{d} numbers cannot be split into {self.channels} equal channels")
        return tuple(part.init(d // self.channels) for part in self.parts)

    def rows(
        self, state: tuple[State, ...], draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, tuple[State, ...]]:
        blocks, after = [], []
        for p, (part, scale) in enumerate(zip(self.parts, self.scales, strict=True)):
            own = _columns(draw, p, self.channels)
            rows, part_state = part.rows(state[p], own, first, count)
            blocks.append(rows * jnp.float32(scale))
            after.append(part_state)
        return jnp.concatenate(blocks, axis=1), tuple(after)

    def workload_error(
        self, workload: LinearMap, weights: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Of the sum of all channels, each through its own map of `workload`, a `Channels`.

        Any other map is applied to every channel. `weights` are (steps,) for all channels alike, or
        (steps, channels).
        """
        maps = workload.parts if isinstance(workload, Channels) else (workload,) * self.channels
        if len(maps) != self.channels:
            raise SordinoError(
                f"a map of {len(maps)} channels cannot judge a mechanism of {self.channels}"
            )
        sizes: list[ArrayLike | None] = [weights] * self.channels
        if weights is not None and np.ndim(weights) == 2:
            sizes = list(np.transpose(weights))
            check_weights(weights, (self.steps, self.channels))
        variance = np.zeros(self.steps)
        for part, scale, channel_map, own in zip(self.parts, self.scales, maps, sizes, strict=True):
            variance += (scale * part.workload_error(channel_map, own)) ** 2
        return np.sqrt(variance)

    def describe(self) -> str:
        return " beside ".join(part.describe() for part in self.parts)


def _columns(draw: Draw, p: int, channels: int) -> Draw:
    """Block p of `channels` equal blocks of columns of the draws."""

    def own(first: jax.Array | int, count: int) -> jax.Array:
        rows = draw(first, count)
        width = rows.shape[1] // channels
        return rows[:, p * width : (p + 1) * width]

    return own


READERS.add(Parallel.kind, lambda data: Parallel(*parts_from_json(data, "channels")))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ScaledDraws(Mechanism):
    """`inner` with its draws multiplied by `scales` (steps,), the float32 numbers in use.

    Its Gram matrix is dense and exact, so there are at most 4096 steps.
    """

    inner: Mechanism
    scales: NDArray[np.float32]
    kind: ClassVar[str] = "draw-scaled"

    def __post_init__(self) -> None:
        if not isinstance(self.scales, np.ndarray):
            return  # traced: what was checked before it was handed to jit
        scales = np.asarray(self.scales, np.float32)
        object.__setattr__(self, "scales", scales)
        if self.inner.channels > 1:
            raise SordinoError("draws are scaled channel by channel, not for several together")
        if self.steps > LONGEST_MATRIX:
            raise SordinoError(
                f"scaled draws are for at most {LONGEST_MATRIX:,} steps, got {self.steps:,}"
            )
        usable = np.isfinite(scales) & (scales > 0)
        if scales.shape != (self.steps,) or not usable.all():
            raise SordinoError(
                f"scales must be {self.steps} positive numbers within float32, one for each step"
            )
        check_factors("the scales of draws", self.draw_scales())

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.inner.steps

    @property
    def boundaries(self) -> tuple[int, ...]:
        return self.inner.boundaries

    def strategy(self) -> MatrixStrategy:
        return MatrixStrategy.from_encoder(self._encoder)

    @cached_property
    def _encoder(self) -> NDArray[np.float64]:
        self.inner.strategy()  # refuses factors that noise may vanish by
        N = self.noising_matrix()
        return np.tril(solve_triangular(N, np.eye(self.steps), lower=True))

    def init(self, d: int) -> State:
        return self.inner.init(d)

    def rows(
        self, state: State, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, State]:
        def scaled(start: jax.Array | int, number: int) -> jax.Array:
            return scale_rows(draw(start, number), self.scales, start)

        return self.inner.rows(state, scaled, first, count)

    def noising_matrix(self) -> NDArray[np.float64]:
        check_matrix_size(self)
        return self.inner.noising_matrix() * self.scales.astype(np.float64)

    def cancelled_draws(self, step: int) -> tuple[int, ...] | None:
        return self.inner.cancelled_draws(step)

    def draw_scales(self) -> NDArray[np.float64]:
        return self.inner.draw_scales() * self.scales.astype(np.float64)

    def state_vectors(self) -> int:
        return self.inner.state_vectors()

    def describe(self) -> str:
        low, high = float(self.scales.min()), float(self.scales.max())
        return f"{self.inner.describe()}, draws scaled by {low:.4g} to {high:.4g}"

    def to_json(self) -> Json:
        return {"kind": self.kind, "inner": self.inner.to_json(), "scales": packed(self.scales)}


READERS.add(
    ScaledDraws.kind,
    lambda data: ScaledDraws(mechanism_from_json(data["inner"]), unpacked(data["scales"])),
)

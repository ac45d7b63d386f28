"""Phases: one mechanism after the other in time, each with noise of its own size.

A run whose stream changes at a known step (the first epoch of the lag-one-epoch recursion, papers/00
1.3, is released in full, later ones as differences) takes a fresh mechanism there: ``C`` is block
diagonal, nothing is correlated across the change, and part p's noise is multiplied by ``scales[p]``.

    Phases((Tree(32, 0.9), Tree(288, 0.9)), (1.7, 1.2))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import DAMAGE, SordinoError
from sordino._base.types import Json
from sordino.parts.mechanisms._base import (
    READERS,
    Draw,
    Mechanism,
    State,
    check_matrix_size,
    mechanism_from_json,
)
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy import PhasesStrategy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Phases(Mechanism):
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

    def start(self, d: int) -> tuple[State, ...]:
        return tuple(part.start(d) for part in self.parts)

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

    def state_vectors(self) -> int:
        return sum(part.state_vectors() for part in self.parts)

    def describe(self) -> str:
        phrases = [f"{part.describe()} for {part.steps:,} steps" for part in self.parts]
        return ", then ".join(phrases)

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "parts": [part.to_json() for part in self.parts],
            "scales": list(self.scales),
        }


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

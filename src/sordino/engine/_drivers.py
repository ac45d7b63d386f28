"""Drivers: how a chunk of steps is run. One `Stepper` under all of them.

`scan_chunk` runs a chunk in one `lax.scan`; `host_chunk` calls the same step, compiled once, from the
host: on a CPU, convolutions inside a scan are two to five times slower. A driver gives the state and the
noise state after a chunk; the caller takes both over at once, after success.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.keys import RunKey
from sordino.engine._noise import NoiseSource, NoiseState, RunNoise, noise_rows
from sordino.engine._records import Batches, Picked, Records, Slices, batch_at
from sordino.engine._stepper import State, StepNow, Stepper, StepTable
from sordino.privacy import ClippedSum

# Noise rows of one chunk take at most this many numbers (8 MB).
CHUNK_ENTRIES = 1 << 21
LONGEST_CHUNK = 1024


def chunk_length(steps: int, d: int) -> int:
    """Steps per chunk: bounded noise memory, and a divisor of the total where one is near."""
    longest = max(1, min(steps, LONGEST_CHUNK, CHUNK_ENTRIES // d))
    for candidate in range(longest, longest // 2, -1):
        if steps % candidate == 0:
            return candidate
    return longest


def chunk_starts(steps: int, length: int, boundaries: tuple[int, ...]) -> list[int]:
    """First steps of the chunks: every `length` steps, and wherever the mechanism needs one.

    A function of the plan and the model alone, so that a resumed run has the same chunks.
    """
    starts: list[int] = []
    for begin, end in zip((0, *boundaries), (*boundaries, steps), strict=True):
        starts += range(begin, end, length)
    return starts


def scan_steps(
    stepper: Stepper,
    slices: Slices | None,
    state: State,
    records: Records,
    rows: Any,
    steps: StepNow,
    picked: Picked,
) -> State:
    """The state after the steps of `steps`, whose noise rows are given.

    Pure: audits map it over noise, influence estimates differentiate it by the noise's size.
    """

    def step(state: State, inputs: tuple[Any, StepNow, Picked]) -> tuple[State, None]:
        row, now, own = inputs
        return stepper.step(state, batch_at(slices, records, now.t, own), row, now), None

    return jax.lax.scan(step, state, (rows, steps, picked))[0]


@partial(
    jax.jit,
    static_argnames=("stepper", "slices", "count"),
    donate_argnames=("state", "noise_state"),
)
def scan_chunk(
    stepper: Stepper,
    slices: Slices | None,
    count: int,
    state: State,
    noise_state: NoiseState,
    records: Records,
    source: NoiseSource,
    steps: StepNow,
    picked: Picked,
) -> tuple[State, NoiseState]:
    """A chunk of `count` steps in one scan."""
    rows, noise_state = source.rows(noise_state, steps.t[0], count)
    return scan_steps(stepper, slices, state, records, rows, steps, picked), noise_state


def host_chunk(
    stepper: Stepper,
    slices: Slices | None,
    count: int,
    state: State,
    noise_state: NoiseState,
    records: Records,
    source: NoiseSource,
    steps: StepNow,
    picked: Picked,
) -> tuple[State, NoiseState]:
    """The same chunk, step by step from the host."""
    rows, noise_state = noise_rows(source, noise_state, steps.t[0], count)
    for i in range(count):
        now, own = jax.tree.map(lambda leaf, i=i: leaf[i], (steps, picked))
        state = _one_step(stepper, slices, state, records, rows, np.int32(i), now, own)
    return state, noise_state


@partial(jax.jit, static_argnames=("stepper", "slices"), donate_argnames=("state",))
def _one_step(
    stepper: Stepper,
    slices: Slices | None,
    state: State,
    records: Records,
    rows: Any,
    i: jax.Array,
    now: StepNow,
    picked: Picked,
) -> State:
    row = jax.tree.map(lambda leaf: leaf[i], rows)
    return stepper.step(state, batch_at(slices, records, now.t, picked), row, now)


@partial(jax.jit, static_argnames=("stepper",))
def total_of_rows(
    stepper: Stepper, state: State, records: Records, rows: Any, present: Any, now: StepNow
) -> ClippedSum:
    """The clipped sum of some rows (B,), where `present` is 1: a party's own, before a secure sum."""
    return stepper.total(state, records.take(rows, present), now)


CHUNKS = {"scan": scan_chunk, "steps": host_chunk}


class Driver(Protocol):
    """Runs chunks of steps. Others than the one below may stream records, or spread them over devices."""

    def advance(
        self, state: State, noise_state: NoiseState, first: int, count: int
    ) -> tuple[State, NoiseState]:
        """Both after steps ``first .. first+count-1``; those given may be taken over."""
        ...


@dataclass(frozen=True, eq=False)
class InMemoryDriver:
    """A driver for records in memory, on one device. `kind` names one of `CHUNKS`."""

    kind: str
    stepper: Stepper
    noise: RunNoise
    records: Records
    batches: Batches
    table: StepTable
    key: RunKey

    def advance(
        self, state: State, noise_state: NoiseState, first: int, count: int
    ) -> tuple[State, NoiseState]:
        chunk: Any = CHUNKS[self.kind]
        return chunk(
            self.stepper,
            self.batches.slices,
            count,
            state,
            noise_state,
            self.records,
            self.noise.chunk(first, count),
            self.table.rows(first, count),
            self.batches.picked(self.key, first, count),
        )

    def noise_after(self, noise_state: NoiseState, first: int, count: int) -> NoiseState:
        """The noise state after some steps, without taking them."""
        source = self.noise.chunk(first, count)
        return noise_rows(source, noise_state, np.int32(first), count)[1]

    def lowered(self, state: State) -> str:
        """The compiler's input for one step, constants and all."""
        layout = self.noise.layout
        rows = layout.cut(
            np.zeros((1, layout.size), np.int32 if self.stepper.evaluator.lattice else np.float32)
        )
        steps, picked = self.table.rows(0, 1), self.batches.picked(self.key, 0, 1)
        arguments = (state, self.records, rows, steps, picked)

        def shape(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))

        run = partial(scan_steps, self.stepper, self.batches.slices)
        return jax.jit(run).lower(*jax.tree.map(shape, arguments)).as_text()

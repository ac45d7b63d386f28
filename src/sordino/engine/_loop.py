"""The one training loop: records -> clipped sum -> noise -> estimate -> update, compiled.

One step function, two drivers. `run_chunk` runs a chunk of steps in one `lax.scan`; `run_steps`
calls the same step, compiled once, from the host: on a CPU, convolutions inside a scan are two to
five times slower. Noise comes as a block of rows per chunk, a pure function of (key, noise state,
first step); noise on a lattice is made by the host and passed in. The host only ever sees what is
between steps: parameters that are already private, the stream's memory of earlier ones, the
optimizer's state, and the noise state, which never leaves this package in clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sordino.parts import even_width
from sordino.parts.contributions import Evaluator
from sordino.parts.mechanisms import Mechanism, privatize, privatize_lattice, standard_normal_rows
from sordino.parts.updates import StepInfo, Update
from sordino.privacy import ClippedSum, PrivateEstimate

# Noise rows of one chunk take at most this many numbers (8 MB).
CHUNK_ENTRIES = 1 << 21
LONGEST_CHUNK = 1024


@dataclass(frozen=True)
class Program:
    """Everything static about the compiled loop; hashable, so compiled code is found again.

    `text` is a digest of the compiler's input, in runs that must be the one that was described: code that
    was compiled from another text is then not found, however equal its parts look (a loss may read a
    number that has changed since).
    """

    stream: Evaluator
    update: Update
    sliced: bool
    batch_size: int
    channels: int = 1
    text: str = ""

    @property
    def width(self) -> int:
        """Rows of a batch that is a slice: the planned ones, and a few that are masked."""
        return even_width(self.batch_size)


class Carry(NamedTuple):
    """What flows from step to step."""

    params: Any
    memory: Any
    update_state: Any
    noise_state: Any


def carry_of(states: tuple[Any, Any, Any], noise_state: Any) -> Carry:
    """The carry of (params, memory, update state) and the noise state."""
    params, memory, update_state = states
    return Carry(params, memory, update_state, noise_state)


class Constants(NamedTuple):
    """Scalars of the run: dynamic, so that changing them compiles nothing."""

    steps: Any
    batches: Any  # per epoch, where batches are slices
    chosen: Any  # step of the iterate that a random-iterate output returns


class StepInputs(NamedTuple):
    """What changes from step to step; in a chunk every leaf has a leading axis of steps."""

    step: Any
    learning_rate: Any
    keep: Any
    divisor: Any
    noise_std: Any  # (channels,)
    terms: Mapping[str, Any]
    picked: tuple[Any, Any] | None  # row indices and mask, where batches are not slices


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


@partial(jax.jit, static_argnames=("stream", "rows"))
def prepare_data(
    stream: Evaluator, data: Any, order: Any = None, rows: int | None = None
) -> tuple[Any, jax.Array]:
    """Let the stream prepare each example; where batches are slices, reorder once and add zeros.

    Args:
      order: the rows' order, if it is another one.
      rows: how many rows there are to be, the last ones zeros that are not valid.
    """
    n = jax.tree.leaves(data)[0].shape[0]
    prepared, valid = stream.prepare(data, jnp.ones(n, jnp.float32))
    more = 0 if rows is None else rows - n
    if order is not None:
        # Any row will do as padding: it is not valid. So nothing is copied twice.
        at = jnp.pad(jnp.asarray(order, jnp.int32), (0, more))
        there = jnp.arange(n + more) < n
        return jax.tree.map(lambda leaf: leaf[at], prepared), jnp.where(there, valid[at], 0)
    if more == 0:
        return prepared, valid
    return jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, more)] + [(0, 0)] * (leaf.ndim - 1)), (prepared, valid)
    )


@partial(jax.jit, static_argnames=("program",))
def start_states(program: Program, params: Any) -> tuple[Any, Any]:
    """The stream's memory and the update's state before the first step, as one program.

    Each in buffers of its own: all of them are donated to the next step.
    """
    return jax.tree.map(jnp.copy, (program.stream.start(params), program.update.init(params)))


def batch_of_step(
    program: Program, data: Any, valid: jax.Array, constants: Constants, inputs: StepInputs
) -> tuple[Any, jax.Array]:
    """The rows of one step and their mask."""
    if inputs.picked is not None:
        indices, present = inputs.picked
        return jax.tree.map(lambda leaf: leaf[indices], data), present * valid[indices]
    # Rows of the next batch, or zeros after the last one, fill the slice up; they are masked.
    begin = (inputs.step % constants.batches) * program.batch_size
    take = partial(jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=program.width)
    if program.width == program.batch_size:
        return jax.tree.map(take, data), take(valid)
    own = jnp.arange(program.width) < program.batch_size
    return jax.tree.map(take, data), take(valid) * own


def _step(
    program: Program,
    states: tuple[Any, Any, Any],
    batch: Any,
    mask: jax.Array,
    noise_row: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    """One step: (params, memory, update state) after it."""
    total = _total(program, states, batch, mask, inputs)
    _, unravel = ravel_pytree(total.value)
    if program.stream.lattice:
        noise = unravel(noise_row)
        estimate = privatize_lattice(total, noise, inputs.terms["step"], inputs.divisor)
    else:
        scaled = noise_row.reshape(program.channels, -1) * inputs.noise_std[:, None]
        estimate = privatize(total, unravel(scaled.ravel()), inputs.divisor)
    estimate = _typed_like(states[0], estimate, program.channels)
    return _updated(program, states, estimate, constants, inputs)


def _total(
    program: Program, states: tuple[Any, Any, Any], batch: Any, mask: jax.Array, inputs: StepInputs
) -> ClippedSum:
    """What a batch adds up to."""
    params, memory, _ = states
    return program.stream.contribution(params, memory, batch, mask, inputs.terms, inputs.step)


def _updated(
    program: Program,
    states: tuple[Any, Any, Any],
    estimate: PrivateEstimate,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    """(params, memory, update state) after a step whose noisy estimate is given."""
    params, memory, update_state = states
    t = inputs.step
    info = StepInfo(t, constants.steps, inputs.learning_rate, inputs.keep, constants.chosen)
    memory = program.stream.remember(memory, params, t)
    moved = program.update.step(params, update_state, estimate, info)
    # Coefficients are float32; states of a half-precision model stay in its own type.
    params, update_state = jax.tree.map(
        lambda new, old: new.astype(old.dtype), moved, (params, update_state)
    )
    return params, memory, update_state


@partial(jax.jit, static_argnames=("program",))
def sum_of_rows(
    program: Program,
    states: tuple[Any, Any, Any],
    data: Any,
    valid: jax.Array,
    rows: jax.Array,
    present: jax.Array,
    inputs: StepInputs,
) -> ClippedSum:
    """The sum of some rows in lattice steps, int32 (d,): a party's own, before it goes into a secure sum.

    Args:
      rows: indices (B,).
      present: (B,) 1 for rows, 0 for padding.
    """
    batch = jax.tree.map(lambda leaf: leaf[rows], data)
    total = _total(program, states, batch, present * valid[rows], inputs)
    return ClippedSum(ravel_pytree(total.value)[0])


@partial(jax.jit, static_argnames=("program",))
def step_on_sum(
    program: Program,
    states: tuple[Any, Any, Any],
    noised: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    """One step with a noised sum that was made elsewhere: float32 (d,), whole lattice steps."""
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), states[0]))
    value = unravel(noised * inputs.terms["step"] / inputs.divisor)
    estimate = _typed_like(states[0], PrivateEstimate(value), 1)
    return _updated(program, states, estimate, constants, inputs)


def _typed_like(params: Any, estimate: PrivateEstimate, channels: int) -> PrivateEstimate:
    """The estimate in the parameters' own float types."""

    def typed(value: Any) -> Any:
        return jax.tree.map(lambda e, p: e.astype(jnp.result_type(p)), value, params)

    if channels == 1:
        return PrivateEstimate(typed(estimate.value))
    return PrivateEstimate(tuple(typed(value) for value in estimate.value))


@partial(jax.jit, static_argnames=("program", "count"), donate_argnames=("carry",))
def run_chunk(
    program: Program,
    count: int,
    carry: Carry,
    data: Any,
    valid: jax.Array,
    mechanism: Mechanism,
    key: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> Carry:
    """A chunk of `count` steps in one scan.

    `key` is the generator's; on a lattice, the chunk's noise itself, int32 (count, channels x d).
    """
    noise, noise_state = _noise(program, count, carry, mechanism, key, inputs.step[0])
    states = scan_steps(program, carry[:3], data, valid, noise, constants, inputs)
    return carry_of(states, noise_state)


def scan_steps(
    program: Program,
    states: tuple[Any, Any, Any],
    data: Any,
    valid: jax.Array,
    noise: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    """(params, memory, update state) after the steps of `inputs`, whose unit noise rows are given.

    Pure: audits map it over noise, influence estimates differentiate it by the noise's size.
    """

    def step(states: tuple[Any, ...], row: tuple[Any, StepInputs]) -> tuple[Any, None]:
        noise_row, now = row
        batch, mask = batch_of_step(program, data, valid, constants, now)
        return _step(program, states, batch, mask, noise_row, constants, now), None

    return jax.lax.scan(step, states, (noise, inputs))[0]


def run_steps(
    program: Program,
    count: int,
    carry: Carry,
    data: Any,
    valid: jax.Array,
    mechanism: Mechanism,
    key: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> Carry:
    """The same chunk, step by step from the host."""
    first = inputs.step[0]
    noise, noise_state = noise_block(program, count, carry, mechanism, key, first)
    states = carry[:3]
    for i in range(count):
        now = jax.tree.map(lambda leaf, i=i: leaf[i], inputs)
        states = _one_step(program, states, data, valid, noise, np.int32(i), constants, now)
    return carry_of(states, noise_state)


@partial(jax.jit, static_argnames=("program",), donate_argnames=("states",))
def _one_step(
    program: Program,
    states: tuple[Any, Any, Any],
    data: Any,
    valid: jax.Array,
    noise: jax.Array,
    row: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    batch, mask = batch_of_step(program, data, valid, constants, inputs)
    return _step(program, states, batch, mask, noise[row], constants, inputs)


@partial(jax.jit, static_argnames=("program",))
def step_on(
    program: Program,
    states: tuple[Any, Any, Any],
    batch: Any,
    mask: jax.Array,
    noise_row: jax.Array,
    constants: Constants,
    inputs: StepInputs,
) -> tuple[Any, Any, Any]:
    """One step on a batch that was brought from outside; the stream prepares it here.

    The states given are not taken over: a step that fails leaves its caller where it was.
    """
    prepared, valid = program.stream.prepare(batch, jnp.ones_like(mask))
    return _step(program, states, prepared, mask * valid, noise_row, constants, inputs)


@partial(jax.jit, static_argnames=("program", "count"))
def noise_block(
    program: Program,
    count: int,
    carry: Carry,
    mechanism: Mechanism,
    key: jax.Array,
    first: jax.Array,
) -> tuple[jax.Array, Any]:
    """The chunk's unit noise rows (count, channels x d), and the noise state after it."""
    return _noise(program, count, carry, mechanism, key, first)


def _noise(
    program: Program,
    count: int,
    carry: Carry,
    mechanism: Mechanism,
    key: jax.Array,
    first: jax.Array,
) -> tuple[jax.Array, Any]:
    if program.stream.lattice:
        return key, carry.noise_state
    size = parameter_count(carry.params) * program.channels
    return mechanism.rows(carry.noise_state, partial(_draw, key, size), first, count)


def _draw(key: jax.Array, size: int, first: Any, count: int) -> jax.Array:
    return standard_normal_rows(key, first, count, size)


def parameter_count(params: Any) -> int:
    """Number of scalar parameters."""
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(params)))


def has_convolutions(function: Any, *arguments: Any) -> bool:
    """Whether tracing `function` on these arguments (or their shapes) meets a convolution."""
    return "conv_general_dilated" in str(jax.make_jaxpr(function)(*arguments))


def lowered_text(function: Callable[..., Any], *arguments: Any) -> str:
    """The program that would be compiled for arguments of these shapes, constants and all."""

    def shape(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))

    return jax.jit(function).lower(*jax.tree.map(shape, arguments)).as_text()

"""The one training loop: records -> clipped sum -> noise -> estimate -> update, compiled in chunks.

`run_chunk` runs `count` steps in one `lax.scan`. Its noise comes as a block of rows, a pure function
of (key, noise state, first step). The host only ever sees what is between chunks: parameters that
are already private, the optimizer's state, and the noise state, which never leaves this package in
clear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sordino.mechanisms.base import Mechanism, privatize
from sordino.mechanisms.gaussian import standard_normal_rows
from sordino.privacy.values import PrivateEstimate
from sordino.streams.base import Stream
from sordino.updates.base import StepInfo, Update

# Noise rows of one chunk take at most this many numbers (8 MB).
CHUNK_ENTRIES = 1 << 21
LONGEST_CHUNK = 1024


@dataclass(frozen=True)
class Program:
    """Everything static about the compiled loop; hashable, so compiled code is found again."""

    stream: Stream
    update: Update
    sliced: bool
    batch_size: int
    regularizer: Callable[[Any], Any] | None = None


class Carry(NamedTuple):
    """What flows from step to step."""

    params: Any
    update_state: Any
    noise_state: Any


class Constants(NamedTuple):
    """Scalars of the run: dynamic, so that changing them compiles nothing."""

    clip: Any
    divisor: Any
    steps: Any
    batches: Any  # per epoch, where batches are slices


def chunk_length(steps: int, d: int) -> int:
    """Steps per chunk: bounded noise memory, and a divisor of the total where one is near."""
    longest = max(1, min(steps, LONGEST_CHUNK, CHUNK_ENTRIES // d))
    for candidate in range(longest, longest // 2, -1):
        if steps % candidate == 0:
            return candidate
    return longest


@partial(jax.jit, static_argnames=("stream",))
def prepare_data(stream: Stream, data: Any, order: Any) -> tuple[Any, jax.Array]:
    """Let the stream prepare each example; then reorder once, where batches are slices."""
    n = jax.tree.leaves(data)[0].shape[0]
    prepared, valid = stream.prepare(data, jnp.ones(n, jnp.float32))
    if order is None:
        return prepared, valid
    return jax.tree.map(lambda leaf: leaf[order], prepared), valid[order]


@partial(jax.jit, static_argnames=("update",))
def start_update(update: Update, params: Any) -> Any:
    """The update's initial state, compiled as one program."""
    return update.init(params)


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
    first: jax.Array,
    learning_rates: jax.Array,
    noise_stds: jax.Array,
    batches: tuple[jax.Array, jax.Array] | None,
) -> Carry:
    """Steps ``first .. first+count-1``."""
    flat, unravel = ravel_pytree(carry.params)
    size = flat.shape[0]
    rows, noise_state = mechanism.rows(carry.noise_state, partial(_draw, key, size), first, count)
    noise = rows * noise_stds[:, None]

    def step(state: tuple[Any, Any], inputs: tuple[Any, ...]) -> tuple[tuple[Any, Any], None]:
        params, update_state = state
        offset, noise_row, learning_rate, picked = inputs
        t = first + offset
        if program.sliced:
            # A short last batch is cut from the end of the data, with its neighbour's rows masked.
            wanted = (t % constants.batches) * program.batch_size
            begin = jnp.minimum(wanted, valid.shape[0] - program.batch_size)
            take = partial(
                jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=program.batch_size
            )
            batch = jax.tree.map(take, data)
            own = begin + jnp.arange(program.batch_size) >= wanted
            mask = take(valid) * own
        else:
            indices, present = picked
            batch = jax.tree.map(lambda leaf: leaf[indices], data)
            mask = present * valid[indices]
        total = program.stream.contribution(params, batch, mask, constants.clip)
        estimate = privatize(total, unravel(noise_row), constants.divisor)
        if program.regularizer is not None:
            # Data-free, so it has no sensitivity: added after the noise, outside the clip.
            extra = program.regularizer(params)
            estimate = PrivateEstimate(jax.tree.map(jnp.add, estimate.value, extra))
        info = StepInfo(t, constants.steps, learning_rate)
        return program.update.step(params, update_state, estimate, info), None

    inputs = (jnp.arange(count), noise, learning_rates, batches)
    (params, update_state), _ = jax.lax.scan(step, (carry.params, carry.update_state), inputs)
    return Carry(params, update_state, noise_state)


def _draw(key: jax.Array, size: int, first: Any, count: int) -> jax.Array:
    return standard_normal_rows(key, first, count, size)


def parameter_count(params: Any) -> int:
    """Number of scalar parameters."""
    return int(sum(np.size(leaf) for leaf in jax.tree.leaves(params)))

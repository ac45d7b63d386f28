"""The real loop, many times over, with every release kept.

A `Recording` is a run of a plan (the same batches, clips, noise rows and updates, compiled by the
same function) whose update is wrapped to note each `PrivateEstimate` it is handed. It is mapped over
run keys: key i has the noise and the secret batches that `train` would have with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.engine import (
    Carry,
    Constants,
    Program,
    StepInputs,
    TrainingRun,
    as_records,
    carry_of,
    check_rows,
    load_data,
    parameter_count,
    run_chunk,
    start_states,
)
from sordino.parts import Population, batch_indices, public_order
from sordino.parts.mechanisms import KEY_WORDS, LatticeNoise, Mechanism, Variances
from sordino.parts.mechanisms import threefry_keys as keys_from
from sordino.parts.updates import StepInfo, Update
from sordino.planning import Plan
from sordino.privacy import PrivateEstimate

# Numbers that the runs of one batch may hold in their records (16 MB).
BATCH_ENTRIES = 1 << 22
MOST_AT_ONCE = 2000
MOST_ON_LATTICE = 250


class Releases(NamedTuple):
    """What some runs released: sums with noise, and the points they were evaluated at.

    Attributes:
      sums: (runs, steps, channels, d), multiplied back by the public divisors.
      points: (runs, steps, d).
    """

    sums: NDArray[np.float32]
    points: NDArray[np.float32]


@dataclass(frozen=True)
class Recorded(Update):
    """`inner`, with every estimate and every point kept."""

    inner: Update
    steps: int
    channels: int

    def init(self, params: Any) -> Any:
        size = parameter_count(params)
        values = jnp.zeros((self.steps, self.channels * size))
        return self.inner.init(params), values, jnp.zeros((self.steps, size))

    def step(
        self, params: Any, state: Any, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[Any, Any]:
        inner, values, points = state
        values = values.at[info.step].set(ravel_pytree(estimate.value)[0])
        points = points.at[info.step].set(ravel_pytree(params)[0])
        params, inner = self.inner.step(params, inner, estimate, info)
        return params, (inner, values, points)

    def output(self, params: Any, state: Any) -> Any:
        return self.inner.output(params, state[0])


class Recording(TrainingRun):
    """A plan's run that keeps its releases, for many keys at once."""

    def __init__(
        self,
        plan: Plan,
        loss: Any,
        params: Any,
        data: Any,
        *,
        regularizer: Callable[[Any], jax.Array] | None = None,
    ) -> None:
        super().__init__(
            plan,
            loss,
            params,
            data,
            key=RunKey.from_insecure_seed(0),
            regularizer=regularizer,
            driver="scan",
        )
        channels = plan.contribution.channels
        recorded = Recorded(self.program.update, self.steps, channels)
        self.program = replace(self.program, update=recorded)
        point = self._carry.params
        states = (point, *start_states(self.program, point))
        self._carry = carry_of(states, self._carry.noise_state)
        self.size = parameter_count(point)
        reordered = self.program.sliced and not plan.population.is_full_batch
        self._order = public_order(plan.population) if reordered else None

    def silenced(self) -> Recording:
        """The same run without noise: what is left are the clipped sums themselves."""
        other = copy(self)
        quiet = np.zeros_like(self._schedule.noise_stds)
        other._schedule = replace(self._schedule, noise_stds=quiet)
        return other

    def on(self, data: Any) -> Recording:
        """The same run, and the same compiled program, on other data."""
        check_rows(self.plan, data)
        other = copy(self)
        other._data, other._valid = load_data(self.program, self.plan.population, as_records(data))
        return other

    def without(self, row: int) -> Recording:
        """The same run with one row's contributions replaced by zero (zero-out adjacency)."""
        other = copy(self)
        place = row if self._order is None else int(np.flatnonzero(self._order == row)[0])
        other._valid = self._valid.at[place].set(0.0)
        return other

    @property
    def sources(self) -> tuple[Any, jax.Array]:
        """Prepared data and the mask of valid rows, in the order of the batches."""
        return self._data, self._valid

    @property
    def point(self) -> Any:
        """Parameters before the first step."""
        return self._carry.params

    def inputs(self) -> StepInputs:
        """The numbers of all steps; reshuffled batches with their rows."""
        picked = None
        if not self.program.sliced and not self.plan.population.is_secret:
            picked = batch_indices(self.plan.population, self.key, 0, self.steps)
        return self._schedule.inputs(0, self.steps, picked)

    def at_once(self) -> int:
        """How many runs are mapped together."""
        entries = self.steps * self.size * (2 * self.plan.contribution.channels + 2)
        # The host makes the noise of a lattice run by run: none should be made for nothing.
        most = MOST_AT_ONCE if self.plan.lattice is None else MOST_ON_LATTICE
        return max(1, min(most, BATCH_ENTRIES // entries))

    def releases(self, seed: int, runs: int) -> Iterator[Releases]:
        """The releases of `runs` runs, a batch of them at a time; `seed` names their keys."""
        # Every batch is equally wide, so that one program serves them all.
        width = self.at_once()
        for begin in range(0, runs, width):
            sums, points = self._batch(seed, begin, width)
            yield Releases(sums[: runs - begin], points[: runs - begin])

    def _lattice_noise_of(self, key: RunKey) -> LatticeNoise:
        """The discrete noise of another key's run."""
        size = self.size * self.plan.contribution.channels
        return LatticeNoise(self.plan.mechanism, self._variances, size, key.derive)

    @cached_property
    def _variances(self) -> Variances:
        return self.plan.noise_variances()

    def _lattice_rows(self, sources: list[LatticeNoise], first: int, end: int) -> NDArray[np.int32]:
        """The runs' discrete noise for a chunk of steps, int32 (runs, steps, channels x d)."""
        rows = np.stack([source.rows(first, end - first) for source in sources])
        return rows if self._schedule.noise_stds.any() else np.zeros_like(rows)

    def _batch(self, seed: int, begin: int, width: int) -> Releases:
        keys = audit_noise_keys(seed, begin, width)
        lattice = None
        if self.plan.lattice is not None:
            lattice = [
                self._lattice_noise_of(audit_key(seed, i)) for i in range(begin, begin + width)
            ]
        carry: Any = jax.tree.map(
            lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (width, *np.shape(leaf))), self._carry
        )
        for first, end in zip(self._starts[:-1], self._starts[1:], strict=True):
            picked, mapped = None, None
            if self.plan.population.is_secret:
                picked = secret_batches(
                    self.plan.population, seed, begin, width, first, end - first
                )
                mapped = 0
            elif not self.program.sliced:
                picked = batch_indices(self.plan.population, self.key, first, end - first)
            carry = _map_chunk(
                self.program,
                end - first,
                mapped,
                carry,
                self._data,
                self._valid,
                self.plan.mechanism,
                keys if lattice is None else self._lattice_rows(lattice, first, end),
                self._constants,
                self._schedule.inputs(first, end - first, None),
                picked,
            )
        _, values, points = carry.update_state
        sums = np.asarray(values).reshape(width, self.steps, -1, self.size)
        sums = sums * np.asarray(self._schedule.divisors)[:, None, None]
        return Releases(sums, np.asarray(points))


@partial(jax.jit, static_argnames=("program", "count", "mapped"))
def _map_chunk(
    program: Program,
    count: int,
    mapped: int | None,
    carry: Carry,
    data: Any,
    valid: jax.Array,
    mechanism: Mechanism,
    keys: jax.Array,
    constants: Constants,
    inputs: StepInputs,
    picked: Any,
) -> Carry:
    """`run_chunk` of every run."""

    def one(carry: Carry, key: jax.Array, picked: Any) -> Carry:
        now = inputs._replace(picked=picked)
        return run_chunk(program, count, carry, data, valid, mechanism, key, constants, now)

    return jax.vmap(one, in_axes=(0, 0, mapped))(carry, keys, picked)


def audit_key(seed: int, i: int) -> RunKey:
    """The key of run i of an audit."""
    return RunKey.from_insecure_seed((seed << 32) + i)


@lru_cache(maxsize=32)
def audit_noise_keys(seed: int, begin: int, count: int) -> jax.Array:
    """The keys of `gaussian_key(RunKey, "gradient")` for some runs, as one array (count,)."""
    size = 4 * KEY_WORDS
    secrets = [
        audit_key(seed, i).derive("noise/gradient")[:size] for i in range(begin, begin + count)
    ]
    return keys_from(np.frombuffer(b"".join(secrets), "<u4").reshape(count, KEY_WORDS))


@lru_cache(maxsize=32)
def secret_batches(
    population: Population, seed: int, begin: int, count: int, first: int, steps: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The secret batches of some runs: indices and mask (count, steps, width)."""
    drawn = [
        batch_indices(population, audit_key(seed, i), first, steps)
        for i in range(begin, begin + count)
    ]
    width = max(indices.shape[1] for indices, _ in drawn)

    def joined(parts: list[Any]) -> Any:
        return np.stack([np.pad(p, ((0, 0), (0, width - p.shape[1]))) for p in parts])

    return joined([indices for indices, _ in drawn]), joined([mask for _, mask in drawn])

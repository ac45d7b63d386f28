"""One plan run with many noise seeds at once: the engine's own chunk, mapped over runs.

Run i of a group is the run that ``sordino.train(..., insecure_seed=first + i)`` makes: the same noise,
the same secret batches. Linear models are mapped; adaptive budgets and noise on a lattice cannot be, and
networks gain nothing by it: they are run one after the other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino import LinearLoss, Plan, train
from sordino.audit import audit_key, audit_noise_keys, secret_batches
from sordino.engine import (
    Carry,
    Constants,
    Program,
    StepInputs,
    TrainingRun,
    parameter_count,
    run_chunk,
)
from sordino.parts import batch_indices
from sordino.parts.mechanisms import Dense, Mechanism
from sordino.parts.schedules import AdaptiveBudget

# Numbers that the noise of the runs that go together may take (1 GB).
MOST_ENTRIES = 1 << 28
# Compiled programs of this process, the oldest first.
MOST_COMPILED = 16
_COMPILED: dict[Any, Any] = {}


@dataclass(frozen=True)
class Trained:
    """What a group of runs returned, and what it took.

    Attributes:
      params: one row of flat parameters per seed.
      cpu_seconds, wall_seconds: of all runs together, compilation apart.
      together: how many ran as one program.
    """

    params: NDArray[np.float32]
    cpu_seconds: float
    wall_seconds: float
    compile_seconds: float
    together: int


def train_seeds(
    plan: Plan, loss: Any, start: Any, data: tuple[Any, Any], first: int, count: int
) -> Trained:
    """Run `plan` with the seeds ``first .. first + count - 1``."""
    alone = plan.schedule.kind == AdaptiveBudget.kind or plan.lattice is not None
    if alone or not isinstance(loss, LinearLoss):
        return _one_by_one(plan, loss, start, data, first, count)
    return SeededRuns(plan, loss, start, data, key=audit_key(0, first)).train(first, count)


def _one_by_one(
    plan: Plan, loss: Any, start: Any, data: tuple[Any, Any], first: int, count: int
) -> Trained:
    results, cpu, wall = [], time.process_time(), time.perf_counter()
    for seed in range(first, first + count):
        result = train(plan, loss, start, data, insecure_seed=seed)
        results.append(_flat(result.params))
    return Trained(
        np.stack(results), time.process_time() - cpu, time.perf_counter() - wall, 0.0, together=1
    )


class SeededRuns(TrainingRun):
    """A run whose chunks are mapped over noise keys."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if isinstance(self.plan.mechanism, Dense):
            # Every chunk would draw the noise of all steps anew.
            self._starts = [0, self.steps]

    def train(self, first: int, count: int) -> Trained:
        width = self._width(count)
        self._compiling = 0.0
        result, cpu, wall = [], time.process_time(), time.perf_counter()
        for begin in range(first, first + count, width):
            # The last group is as wide as the others, so that one program serves them all.
            result.append(self._group(begin, width)[: first + count - begin])
        compiling = self._compiling
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        secret_batches.cache_clear()
        return Trained(np.concatenate(result), cpu - compiling, wall - compiling, compiling, width)

    def _width(self, count: int) -> int:
        vectors = self.plan.mechanism.state_vectors() + self._starts[1] + 4
        size = parameter_count(self._carry.params) * self.program.channels
        return max(1, min(count, MOST_ENTRIES // (vectors * size)))

    def _group(self, first: int, width: int) -> NDArray[np.float32]:
        carry: Any = jax.tree.map(
            lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], width, axis=0), self._carry
        )
        seeds = range(first, first + width)
        drawn = [audit_key(0, seed).generator("output").integers(self.steps) for seed in seeds]
        chosen, keys = np.asarray(drawn, np.int32), audit_noise_keys(0, first, width)
        for begin, end in zip(self._starts[:-1], self._starts[1:], strict=True):
            picked = self._picked(first, width, begin, end - begin)
            arguments = (
                carry,
                self._data,
                self._valid,
                self.plan.mechanism,
                keys,
                chosen,
                self._constants,
                self._schedule.inputs(begin, end - begin, None),
                picked,
            )
            carry = self._call(end - begin, arguments)
        result = jax.vmap(self.program.update.output)(carry.params, carry.update_state)
        return np.stack(
            [_flat(jax.tree.map(lambda leaf, i=i: leaf[i], result)) for i in range(width)]
        )

    def _picked(self, first: int, width: int, begin: int, count: int) -> Any:
        if self.plan.population.is_secret:
            return secret_batches(self.plan.population, 0, first, width, begin, count)
        if self.program.sliced:
            return None
        return batch_indices(self.plan.population, self.key, begin, count)

    def _call(self, count: int, arguments: tuple[Any, ...]) -> Carry:
        """One chunk of all runs; compiled apart, so that its time can be told apart."""
        static = (self.program, count, self.plan.population.is_secret)
        leaves, structure = jax.tree.flatten(arguments)
        shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        known = (static, structure, shapes)
        if known not in _COMPILED:
            began = time.process_time()
            while len(_COMPILED) >= MOST_COMPILED:
                _COMPILED.pop(next(iter(_COMPILED)))
            _COMPILED[known] = _map_chunk.lower(*static, *arguments).compile()
            self._compiling += time.process_time() - began
        return _COMPILED[known](*arguments)


@partial(jax.jit, static_argnames=("program", "count", "own_batches"), donate_argnames=("carry",))
def _map_chunk(
    program: Program,
    count: int,
    own_batches: bool,
    carry: Carry,
    data: Any,
    valid: jax.Array,
    mechanism: Mechanism,
    keys: jax.Array,
    chosen: jax.Array,
    constants: Constants,
    inputs: StepInputs,
    picked: Any,
) -> Carry:
    """`run_chunk` of every run."""

    def one(carry: Carry, key: jax.Array, chosen: jax.Array, picked: Any) -> Carry:
        own, now = constants._replace(chosen=chosen), inputs._replace(picked=picked)
        return run_chunk(program, count, carry, data, valid, mechanism, key, own, now)

    batches = 0 if own_batches else None
    return jax.vmap(one, in_axes=(0, 0, 0, batches))(carry, keys, chosen, picked)


def _flat(params: Any) -> NDArray[np.float32]:
    leaves = [np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(params)]
    return np.concatenate(leaves)

"""One plan run with many noise seeds at once, with the time that it takes, compilation apart.

Run i of a group is the run that ``sordino.train(..., insecure_seed=first + i)`` makes: the same noise,
the same secret batches. Linear models are mapped; adaptive budgets and noise on a lattice cannot be, and
networks gain nothing by it: they are run one after the other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino import Plan, RunKey, train
from sordino.engine import (
    TrainingRun,
    can_be_mapped,
    map_chunk,
    mapped_groups,
    outputs,
    secret_batches,
)

# Compiled programs of this process, the oldest first.
MOST_COMPILED = 16
_COMPILED: dict[Any, Any] = {}
# How many arguments of `map_chunk` are compiled in.
_STATIC = 4


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
    if not can_be_mapped(plan, loss):
        return _one_by_one(plan, loss, start, data, first, count)
    run = TrainingRun(plan, loss, start, data, key=RunKey.from_insecure_seed(first))
    return train_mapped(run, range(first, first + count))


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


def train_mapped(run: TrainingRun, seeds: range) -> Trained:
    """The runs with these seeds, as one program."""
    groups, chunks = mapped_groups(run, seeds), TimedChunks()
    results: list[NDArray[np.float32]] = []
    cpu, wall = time.process_time(), time.perf_counter()
    for group in groups:
        states = group.final_states(chunks)
        results += [_flat(params) for params in outputs(run.stepper, states, len(group.seeds))]
    compiling = chunks.compiling
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    secret_batches.cache_clear()
    rows = np.stack(results[: len(seeds)])
    return Trained(rows, cpu - compiling, wall - compiling, compiling, len(groups[0].seeds))


class TimedChunks:
    """`map_chunk`, compiled apart, so that the time of it can be told apart."""

    def __init__(self) -> None:
        self.compiling = 0.0

    def __call__(self, *arguments: Any) -> Any:
        static, given = arguments[:_STATIC], arguments[_STATIC:]
        leaves, structure = jax.tree.flatten(given)
        shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        known = (static, structure, shapes)
        if known not in _COMPILED:
            began = time.process_time()
            while len(_COMPILED) >= MOST_COMPILED:
                _COMPILED.pop(next(iter(_COMPILED)))
            _COMPILED[known] = map_chunk.lower(*static, *given).compile()
            self.compiling += time.process_time() - began
        return _COMPILED[known](*given)


def _flat(params: Any) -> NDArray[np.float32]:
    leaves = [np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(params)]
    return np.concatenate(leaves)

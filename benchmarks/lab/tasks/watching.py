"""Runs that are looked at on the way: iterates and momentum estimates at evenly spaced steps.

    seen = watch(plan, loss, start, data, first=1000, count=5, points=8)
    seen.steps[i]         # steps done
    seen.iterates[i]      # after them, a share (i + 1) / points of all: one row per seed
    seen.estimates[i]     # the momentum estimate that made the last step to it
    seen.lagged[i]        # the iterate an epoch before, where differences to it are taken

Run i is the run that ``sordino.train(..., insecure_seed=first + i)`` makes. Iterates and estimates are what
a private run releases anyway; nothing of the clean gradients is looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks.lab.seeds import TimedChunks
from sordino import Plan, RunKey, SordinoError
from sordino.engine import ManyRuns, State, TrainingRun, chunk_starts, mapped_groups
from sordino.parts.contributions import Lagged
from sordino.parts.updates import Descent, LaggedMomentumEstimate

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Seen:
    """What was seen of runs with several seeds, at several points of the way.

    Attributes:
      steps: how many had been made at each point.
      iterates: flat parameters (points, seeds, d); the last point is the end of the run.
      estimates: momentum estimates, averages of gradients (points, seeds, d).
      lagged: the iterates that the next step's differences are taken to (points, seeds, d), or none.
      cpu_seconds: of all runs together, compilation apart.
    """

    steps: tuple[int, ...]
    iterates: Array
    estimates: Array
    lagged: Array | None
    cpu_seconds: float


def watch(
    plan: Plan, loss: Any, start: Any, data: tuple[Any, Any], *, first: int, count: int, points: int
) -> Seen:
    """Run `plan` with the seeds ``first .. first + count - 1``, and look at them `points` times."""
    run = TrainingRun(plan, loss, start, data, key=RunKey.from_insecure_seed(first))
    length = -(-run.steps // min(points, run.steps))
    starts = (*chunk_starts(run.steps, length, plan.mechanism.boundaries), run.steps)
    seeds = tuple(range(first, first + count))
    if len(mapped_groups(run, seeds)) != 1:
        raise SordinoError("these runs are too large to be watched together; take fewer seeds")
    watched, began = _Watched(plan), time.process_time()
    ManyRuns(run, seeds, starts).final_states(watched)
    seconds = time.process_time() - began - watched.compiling
    iterates, estimates = zip(*watched.seen, strict=True)
    lagged = np.stack(watched.lagged) if watched.lagged else None
    return Seen(starts[1:], np.stack(iterates), np.stack(estimates), lagged, seconds)


def average_gradient(plan: Plan, state: Any, steps: int) -> Any:
    """The momentum estimate ``sum_i (1-beta) beta^(t-i) g_i`` in an update's state after `steps` steps."""
    update = plan.update.build(plan.contribution)
    beta = plan.update.momentum
    if isinstance(update, LaggedMomentumEstimate):
        ring = state[1][0]
        slot = (steps - 1) % update.lag
        return jax.tree.map(lambda leaf: (1 - beta) * leaf[:, slot], ring)
    if not isinstance(update, Descent) or plan.update.optimizer not in ("sgd", "normalized"):
        raise SordinoError(f"{plan.recipe} keeps no average of gradients")
    if plan.update.optimizer == "normalized":
        return state[0].ema
    return jax.tree.map(lambda leaf: (1 - beta) * leaf, state.trace)


class _Watched(TimedChunks):
    """Chunks at whose ends the runs are looked at."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.seen: list[tuple[Array, Array]] = []
        self.lagged: list[Array] = []
        self._done = 0

    def __call__(self, *arguments: Any) -> Any:
        state: State
        state, noise_state = super().__call__(*arguments)
        self._done += arguments[2]
        average = average_gradient(self.plan, state.update, self._done)
        self.seen.append((_rows(state.params), _rows(average)))
        if isinstance(self.plan.contribution, Lagged):
            slot = self._done % self.plan.contribution.lag
            self.lagged.append(_rows(jax.tree.map(lambda ring: ring[:, slot], state.memory)))
        return state, noise_state


def _rows(tree: Any) -> Array:
    """A tree with a leading axis of seeds as one flat row for each."""
    leaves = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

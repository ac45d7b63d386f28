"""The real loop, many times over, with every release kept.

A `Recording` is a run of a plan (the same batches, clips, noise rows and updates, compiled by the
same function) whose update is wrapped to note each `PrivateEstimate` it is handed. It is mapped over
run keys: key i has the noise and the secret batches that `train` would have with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine import (
    ManyRuns,
    Records,
    StepNow,
    TrainingRun,
    as_records,
    check_rows,
    parameter_count,
)
from sordino.parts import LinearLoss
from sordino.parts.contributions import Evaluator
from sordino.parts.sampling import public_order
from sordino.parts.updates import StepInfo, Update
from sordino.planning import Plan
from sordino.privacy import PrivateEstimate

# Numbers that the runs of one batch may hold in their records (16 MB).
BATCH_ENTRIES = 1 << 22
MOST_AT_ONCE = 2000
MOST_ON_LATTICE = 250


# The loss of one example, a linear model, or a stream of one's own.
Loss: TypeAlias = Callable[..., jax.Array] | LinearLoss | Evaluator


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

    def init(self, params: PyTree) -> PyTree:
        size = parameter_count(params)
        values = jnp.zeros((self.steps, self.channels * size))
        return self.inner.init(params), values, jnp.zeros((self.steps, size))

    def step(
        self, params: PyTree, state: PyTree, estimate: PrivateEstimate, info: StepInfo
    ) -> tuple[PyTree, PyTree]:
        inner, values, points = state
        values = values.at[info.step].set(ravel_pytree(estimate.value)[0])
        points = points.at[info.step].set(ravel_pytree(params)[0])
        params, inner = self.inner.step(params, inner, estimate, info)
        return params, (inner, values, points)

    def output(self, params: PyTree, state: PyTree) -> PyTree:
        return self.inner.output(params, state[0])


class Recording(TrainingRun):
    """A plan's run that keeps its releases, for many keys at once."""

    def __init__(
        self,
        plan: Plan,
        loss: Loss,
        params: PyTree,
        data: PyTree,
        *,
        regularizer: Callable[[PyTree], jax.Array] | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__(
            plan,
            loss,
            params,
            data,
            key=RunKey.from_insecure_seed(0),
            regularizer=regularizer,
            driver="scan",
            groups=groups,
        )
        self.size = parameter_count(self.state.params)
        recorded = Recorded(self.stepper.update, self.steps, plan.contribution.channels)
        self.driver = replace(self.driver, stepper=replace(self.stepper, update=recorded))
        self.state = self.stepper.init(self.state.params)
        reordered = self.driver.batches.slices is not None and not plan.population.is_full_batch
        self._order = public_order(plan.population) if reordered else None

    def _with(self, **parts: Any) -> Recording:
        """The same run with other parts of its driver."""
        other = copy(self)
        other.driver = replace(self.driver, **parts)
        return other

    def silenced(self) -> Recording:
        """The same run without noise: what is left are the clipped sums themselves."""
        quiet = np.zeros_like(self.driver.table.noise_stds)
        return self._with(table=replace(self.driver.table, noise_stds=quiet))

    def on(self, data: PyTree) -> Recording:
        """The same run, and the same compiled program, on other data."""
        if self.records.people is None:
            check_rows(self.plan, data)
        records = self.driver.batches.load(self.stepper.evaluator, as_records(data))
        return self._with(records=records)

    def without(self, row: int) -> Recording:
        """The same run with one row's contributions replaced by zero (zero-out adjacency)."""
        place = row if self._order is None else int(np.flatnonzero(self._order == row)[0])
        records = self.records
        return self._with(records=records._replace(valid=records.valid.at[place].set(0.0)))

    @property
    def records(self) -> Records:
        """Prepared data and the mask of valid rows, in the order of the batches."""
        return self.driver.records

    @property
    def point(self) -> PyTree:
        """Parameters before the first step."""
        return self.state.params

    def table(self) -> StepNow:
        """The numbers of all steps."""
        return self.driver.table.rows(0, self.steps)

    def public_batches(self) -> PyTree:
        """The rows of all steps, where batches are public and no slices."""
        if self.plan.population.is_secret:
            return None
        return self.driver.batches.picked(self.key, 0, self.steps)

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
            sums, points = self._batch(audit_seeds(seed, begin, width))
            yield Releases(sums[: runs - begin], points[: runs - begin])

    def _batch(self, seeds: tuple[int, ...]) -> Releases:
        silent = not self.driver.table.noise_stds.any()
        many = ManyRuns(self, seeds, tuple(self.starts), silent=silent)
        _, values, points = many.final_states().update
        sums = np.asarray(values).reshape(len(seeds), self.steps, -1, self.size)
        sums = sums * np.asarray(self.driver.table.divisors)[:, None, None]
        return Releases(sums, np.asarray(points))


def audit_seeds(seed: int, begin: int, count: int) -> tuple[int, ...]:
    """The seeds of runs ``begin .. begin + count - 1`` of an audit."""
    return tuple((seed << 32) + i for i in range(begin, begin + count))


def audit_key(seed: int, i: int) -> RunKey:
    """The key of run i of an audit."""
    return RunKey.from_insecure_seed((seed << 32) + i)

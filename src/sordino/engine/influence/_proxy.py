"""The training loop of a plan on public rows, as a function of the noise multipliers.

There may be more or fewer public rows than the plan has examples. The plan's loop runs on them with its
clip, steps, learning rates and update; full batches stay full, other batches keep their size (up to the
number of rows). The noise is scaled with the divisor, for full batches by ``n_public / n``, so that the
noise on the *mean* gradient is the plan's. Everything is stated per the plan's own sigma. How far the
public rows are from the private ones is for the user to know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine._noise import GaussianNoise, Layout, parameter_count
from sordino.engine._records import BatchRows, Picked, Records, Slices, as_records, joined
from sordino.engine._run import TrainingRun, chosen_step, scan_steps
from sordino.engine._stepper import Loss, Optimizer, State, StepNow, Stepper, StepTable
from sordino.parts import LinearLoss, Population
from sordino.parts.contributions import Evaluator, LinearEvaluator, VmapEvaluator
from sordino.parts.mechanisms import Independent, Mechanism, gaussian_key, threefry_keys
from sordino.parts.schedules import AdaptiveBudget, PublicData
from sordino.planning import Plan

Array = NDArray[np.float64]
Objective = Callable[[PyTree], jax.Array]
# Numbers that the simulated runs may hold at a time (256 MB).
MEMORY = 1 << 26


def noise_multipliers(plan: Plan) -> Array:
    """``sigma_t`` (T,): the noise of each step in units of the bound of its contributions."""
    if plan.noise_multiplier == 0 or isinstance(plan.schedule, AdaptiveBudget):
        raise SordinoError(f"{plan.recipe} has no planned noise whose budget could be moved")
    if not isinstance(plan.mechanism, Independent):
        raise SordinoError(
            "influence is defined for independent noise, whose budget can be moved between steps; "
            f"this plan has {plan.mechanism.describe()}"
        )
    steps = plan.population.steps
    relative = plan.schedule.relative_noise(steps)
    return plan.noise_multiplier * (
        np.ones(steps) if relative is None else np.asarray(relative, np.float64)
    )


def proxy_population(population: Population, rows: int) -> Population:
    """The population of the same run on `rows` public rows: full batches full, others in size."""
    if population.cycle is not None:
        raise SordinoError(
            "influence is estimated for independent noise; plan with sampling='poisson' or 'fixed'"
        )
    everyone = population.batch_size == population.examples
    first = population.first_batch
    return replace(
        population,
        examples=rows,
        batch_size=rows if everyone else min(population.batch_size, rows),
        first_batch=None if first is None else min(first, rows),
    )


@dataclass(frozen=True)
class MeanLoss:
    """``mean_i loss(params, *row_i)``."""

    loss: Callable[..., jax.Array] | LinearLoss

    def __call__(self, params: PyTree, rows: tuple[PyTree, ...]) -> jax.Array:
        if isinstance(self.loss, LinearLoss):
            X, y = rows
            return jnp.mean(self.loss.value(self.loss.logits(params, X), y))
        return jnp.mean(jax.vmap(self.loss, (None, *[0] * len(rows)))(params, *rows))

    @classmethod
    def of(cls, loss: Loss) -> MeanLoss:
        """The mean of what the engine takes as a loss."""
        if isinstance(loss, VmapEvaluator | LinearEvaluator):
            return cls(loss.loss)
        if isinstance(loss, Evaluator):
            raise SordinoError(
                f"{type(loss).__name__} does not say what its loss is; give an objective(params)"
            )
        return cls(loss)


@dataclass(frozen=True)
class _Given:
    """An objective of the parameters alone."""

    objective: Objective

    def __call__(self, params: PyTree, rows: tuple[PyTree, ...]) -> jax.Array:
        return self.objective(params)


class Draw(NamedTuple):
    """What differs between simulated runs (leading axis: runs)."""

    key: jax.Array
    chosen: jax.Array | NDArray[np.int32]
    picked: Picked


class _Shared(NamedTuple):
    """The arrays that simulated runs share."""

    state: State
    records: Records
    rows: tuple[PyTree, ...]
    table: StepNow  # with the noise's standard deviation at sigma = 1
    picked: Picked  # public batches that are no slices
    mechanism: Mechanism


@dataclass(frozen=True)
class _Static:
    """What is compiled into the simulation. `segment`: see `_final_value`."""

    stepper: Stepper
    slices: Slices | None
    layout: Layout
    objective: MeanLoss | _Given
    segment: int


@dataclass(frozen=True, eq=False)
class Proxy:
    """A plan's training loop on public rows, ready to be run many times.

    Attributes:
      sigma: the plan's noise multipliers (T,).
      at_once: how many runs fit into the memory together.
    """

    sigma: Array
    population: Population
    static: _Static
    shared: _Shared
    at_once: int

    @classmethod
    def of(
        cls,
        plan: Plan,
        loss: Loss,
        params: PyTree,
        public: PublicData,
        *,
        objective: Objective | None = None,
        optimizer: Optimizer | None = None,
        regularizer: Objective | None = None,
        microbatch_size: int | None = None,
    ) -> Proxy:
        plan.population.require_declared("an estimate of influence")
        sigma = noise_multipliers(plan)
        judge = MeanLoss.of(loss) if objective is None else _Given(objective)
        population = proxy_population(plan.population, len(public))
        # Rounding to a lattice has no derivative, and what is estimated does not depend on it.
        proxy = plan.with_training(population=population, lattice=None)
        key = RunKey.from_insecure_seed(0)
        # A run that never starts: it checks everything and builds the step and the first state.
        run = TrainingRun(
            proxy,
            loss,
            params,
            public.arrays,
            key=key,
            optimizer=optimizer,
            regularizer=regularizer,
            microbatch_size=microbatch_size,
        )
        driver, state = run.driver, State(*run.released()[1:])
        steps, numbers = population.steps, driver.table
        scale = numbers.divisors / StepTable.of(plan).divisors
        unit = (plan.contribution.bounds(steps).T * scale[:, None]).astype(np.float32)
        common = None
        if not population.is_secret:
            common = driver.batches.picked(key, 0, steps)
        # What a run holds: the states between steps, and the work of one step there and back.
        held = parameter_count(state)
        work = 8 * _work(driver.stepper, population.batch_size, state.params)
        if population.is_secret:
            work += 2 * steps * population.batch_size
        segment = steps if 2 * steps * held + work <= MEMORY else math.isqrt(steps)
        kept = held * (2 * segment + (-(-steps // segment)))
        return cls(
            sigma=sigma,
            population=population,
            static=_Static(
                driver.stepper, driver.batches.slices, driver.noise.layout, judge, segment
            ),
            shared=_Shared(
                state,
                driver.records,
                as_records(public.arrays),
                replace(numbers, noise_stds=unit).rows(0, steps),
                common,
                proxy.mechanism,
            ),
            at_once=max(1, MEMORY // (kept + work)),
        )

    def draws(self, seed: int, runs: int) -> list[Draw]:
        """Noise keys and batches of `runs` runs, in equal groups (the last one repeats some)."""
        groups = -(-runs // self.at_once)
        size = -(-runs // groups)
        return [
            self._draw([proxy_key(seed, i % runs) for i in range(first, first + size)])
            for first in range(0, groups * size, size)
        ]

    def _draw(self, keys: list[RunKey]) -> Draw:
        steps, picked = self.population.steps, None
        if self.population.is_secret:
            picked = joined(np.stack, [_secret_batches(self.population, key) for key in keys])
        # Stacked on the host: a device stack of a thousand keys takes seconds to compile.
        words = np.stack([jax.random.key_data(gaussian_key(key, "gradient")) for key in keys])
        return Draw(
            key=threefry_keys(words),
            chosen=np.array([chosen_step(key, steps) for key in keys], np.int32),
            picked=picked,
        )

    def values(self, sigma: Array, draw: Draw) -> Array:
        """The final objective of each run (runs,), with these noise multipliers."""
        return np.asarray(_values(self.static, self.shared, np.float32(sigma), draw), np.float64)

    def values_and_slopes(self, sigma: Array, draw: Draw) -> tuple[Array, Array]:
        """The same, and the derivatives by the noise multipliers (runs, T)."""
        values, slopes = _values_and_slopes(self.static, self.shared, np.float32(sigma), draw)
        return np.asarray(values, np.float64), np.asarray(slopes, np.float64)


def proxy_key(seed: int, index: int) -> RunKey:
    """The key of one simulated run: made from a seed, so never that of a private one."""
    return RunKey(RunKey.from_insecure_seed(seed).derive(f"influence/{index}"), insecure=True)


def _final_value(static: _Static, shared: _Shared, sigma: jax.Array, draw: Draw) -> jax.Array:
    """The objective after one run of the real loop.

    On the way back, steps are computed again from the states between them. Where even those are too
    many, only the states between segments of steps are kept, and each segment is run again first.
    """
    stepper, table = static.stepper, shared.table
    steps = table.t.shape[0]
    table = table._replace(
        noise=table.noise * sigma[:, None], chosen=jnp.broadcast_to(draw.chosen, (steps,))
    )
    source = GaussianNoise(shared.mechanism, draw.key, static.layout)

    @jax.checkpoint
    def step(state: State, now: tuple[PyTree, StepNow, Picked]) -> tuple[State, None]:
        row, alone, own = jax.tree.map(lambda leaf: leaf[None], now)
        args = (stepper, static.slices, state, shared.records, row, alone, own)
        return scan_steps(*args), None

    def several(state: State, some: tuple[StepNow, Picked]) -> tuple[State, None]:
        table, picked = some
        rows, _ = source.rows((), table.t[0], table.t.shape[0])
        return jax.lax.scan(step, state, (rows, table, picked))

    state = jax.tree.map(jnp.asarray, shared.state)
    whole = steps // static.segment
    end = whole * static.segment
    inputs = (table, shared.picked if draw.picked is None else draw.picked)
    if whole > 1:
        parts = jax.tree.map(lambda x: x[:end].reshape(whole, -1, *x.shape[1:]), inputs)
        state, _ = jax.lax.scan(jax.checkpoint(several), state, parts)
        inputs = jax.tree.map(lambda x: x[end:], inputs)
    if whole == 1 or end < steps:
        state, _ = several(state, inputs)
    return static.objective(stepper.output(state), shared.rows)


@partial(jax.jit, static_argnames=("static",))
def _values(static: _Static, shared: _Shared, sigma: jax.Array, draw: Draw) -> jax.Array:
    return jax.vmap(partial(_final_value, static, shared), (None, 0))(sigma, draw)


@partial(jax.jit, static_argnames=("static",))
def _values_and_slopes(
    static: _Static, shared: _Shared, sigma: jax.Array, draw: Draw
) -> tuple[jax.Array, jax.Array]:
    one = jax.value_and_grad(partial(_final_value, static, shared))
    return jax.vmap(one, (None, 0))(sigma, draw)


def _work(stepper: Stepper, rows: int, params: PyTree) -> int:
    """About how many numbers one step holds for its batch of `rows`."""
    evaluator = stepper.evaluator
    if isinstance(evaluator, VmapEvaluator):
        return min(rows, evaluator.microbatch or rows) * parameter_count(params)
    return rows * (1 if np.ndim(params) < 2 else len(params))


def _secret_batches(population: Population, key: RunKey) -> BatchRows:
    """Indices and masks of all steps; a first batch of another size comes on its own."""
    if population.first_batch is None or population.steps == 1:
        return population.batches(key, 0, population.steps)
    first = population.batches(key, 0, 1)
    return joined(np.concatenate, [first, population.batches(key, 1, population.steps - 1)])

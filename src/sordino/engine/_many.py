"""One plan run with many keys at once: the engine's own chunk, mapped over runs.

Run i has the noise, the secret batches and the random iterate that `train` would have with key i. For
experiments and audits: keys made from seeds are known, so such runs protect nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine._noise import DrawnRows, GaussianNoise, NoiseSource, NoiseState
from sordino.engine._people import stacked_queues
from sordino.engine._records import BatchRows, Picked, Records, Slices, joined
from sordino.engine._run import TrainingRun, chosen_step, scan_chunk
from sordino.engine._stepper import Loss, State, StepNow, Stepper
from sordino.engine._train import train
from sordino.parts import LinearLoss, Population
from sordino.parts.mechanisms import KEY_WORDS, Dense, LatticeNoise, threefry_keys
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning import Plan

# Numbers that the noise of the runs that go together may take (1 GB).
MOST_ENTRIES = 1 << 28


@dataclass(frozen=True, eq=False)
class ManyRuns:
    """The chunks of `run`, mapped over the runs with these seeds.

    Attributes:
      run: the run whose step, records and numbers all share.
      seeds: one for each run.
      starts: first steps of the chunks, and the end.
      silent: without noise on a lattice, for audits (Gaussian noise is silenced by its table).
    """

    run: TrainingRun
    seeds: tuple[int, ...]
    starts: tuple[int, ...]
    silent: bool = False

    def final_states(self, call: Callable[..., tuple[State, NoiseState]] | None = None) -> State:
        """The states after the last step (leading axis: runs); `call` may stand in for `map_chunk`."""
        driver, call = self.run.driver, call or map_chunk
        runs = len(self.seeds)
        state, noise_state = jax.tree.map(
            lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], runs, axis=0),
            (self.run.state, driver.noise.init()),
        )
        keys = [RunKey.from_insecure_seed(seed) for seed in self.seeds]
        chosen = np.array([chosen_step(key, self.run.steps) for key in keys], np.int32)
        population = driver.batches.population
        lattice = self._lattice_noise(keys)
        for begin, end in zip(self.starts[:-1], self.starts[1:], strict=True):
            count = end - begin
            persons = driver.batches.persons
            if population.is_secret and persons is not None:
                drawn = [replace(persons, key=key).picked(begin, count) for key in keys]
                picked: Picked = stacked_queues(drawn)
            elif population.is_secret:
                picked = secret_batches(population, self.seeds, begin, count)
            else:
                picked = driver.batches.picked(driver.key, begin, count)
            state, noise_state = call(
                driver.stepper,
                driver.batches.slices,
                count,
                population.is_secret,
                state,
                noise_state,
                driver.records,
                self._source(lattice, begin, count),
                driver.table.rows(begin, count),
                chosen,
                picked,
            )
        return state

    def _lattice_noise(self, keys: list[RunKey]) -> list[LatticeNoise]:
        """The discrete noise of every run, where the plan has such."""
        plan = self.run.plan
        if plan.lattice is None:
            return []
        size, variances = self.run.driver.noise.layout.size, plan.noise_variances()  # once for all
        return [LatticeNoise(plan.mechanism, variances, size, key.derive) for key in keys]

    def _source(self, lattice: list[LatticeNoise], first: int, count: int) -> NoiseSource:
        """The chunk's noise of every run: keys, or drawn rows, with a leading axis of runs."""
        layout = self.run.driver.noise.layout
        if not lattice:
            return GaussianNoise(self.run.plan.mechanism, seeded_noise_keys(self.seeds), layout)
        rows = np.stack([noise.rows(first, count) for noise in lattice])
        return DrawnRows(np.zeros_like(rows) if self.silent else rows, layout)


@partial(
    jax.jit,
    static_argnames=("stepper", "slices", "count", "own_batches"),
    donate_argnames=("state", "noise_state"),
)
def map_chunk(
    stepper: Stepper,
    slices: Slices | None,
    count: int,
    own_batches: bool,
    state: State,
    noise_state: NoiseState,
    records: Records,
    source: GaussianNoise | DrawnRows,
    steps: StepNow,
    chosen: jax.Array,
    picked: Picked,
) -> tuple[State, NoiseState]:
    """`scan_chunk` of every run."""

    def one(
        state: State,
        noise_state: NoiseState,
        source: NoiseSource,
        chosen: jax.Array,
        picked: Picked,
    ) -> tuple[State, NoiseState]:
        own = steps._replace(chosen=jnp.broadcast_to(chosen, steps.chosen.shape))
        return scan_chunk(stepper, slices, count, state, noise_state, records, source, own, picked)

    # One mechanism serves all runs; each has its own key, or its own rows.
    mapped: GaussianNoise | int = 0
    if isinstance(source, GaussianNoise):
        mapped = GaussianNoise(None, 0, source.layout)  # type: ignore[arg-type]
    batches = 0 if own_batches else None
    axes = (0, 0, mapped, 0, batches)
    return jax.vmap(one, in_axes=axes)(state, noise_state, source, chosen, picked)


@lru_cache(maxsize=32)
def seeded_noise_keys(seeds: tuple[int, ...]) -> jax.Array:
    """The keys of `gaussian_key(RunKey, "gradient")` for some runs, as one array (runs,)."""
    size = 4 * KEY_WORDS
    secrets = [RunKey.from_insecure_seed(seed).derive("noise/gradient")[:size] for seed in seeds]
    return threefry_keys(np.frombuffer(b"".join(secrets), "<u4").reshape(-1, KEY_WORDS))


@lru_cache(maxsize=32)
def secret_batches(
    population: Population, seeds: tuple[int, ...], first: int, steps: int
) -> BatchRows:
    """The secret batches of some runs: indices and mask (runs, steps, width)."""
    drawn = [population.batches(RunKey.from_insecure_seed(seed), first, steps) for seed in seeds]
    return joined(np.stack, drawn)


def can_be_mapped(plan: Plan, loss: Loss) -> bool:
    """Whether runs gain by being mapped: linear models do; adaptive and discrete ones cannot."""
    alone = plan.schedule.kind == AdaptiveBudget.kind or plan.lattice is not None
    return isinstance(loss, LinearLoss) and not alone


def mapped_groups(run: TrainingRun, seeds: Sequence[int]) -> list[ManyRuns]:
    """Groups of runs that fit into memory, all equally wide (the last repeats its last seed)."""
    starts = tuple(run.starts)
    if isinstance(run.plan.mechanism, Dense):
        starts = (0, run.steps)  # every chunk would draw the noise of all steps anew
    vectors = run.plan.mechanism.state_vectors() + starts[1] + 4
    width = max(1, min(len(seeds), MOST_ENTRIES // (vectors * run.driver.noise.layout.size)))
    groups = [tuple(seeds[begin : begin + width]) for begin in range(0, len(seeds), width)]
    # Equally wide, so that one program serves them all.
    return [ManyRuns(run, group + group[-1:] * (width - len(group)), starts) for group in groups]


def train_many(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    data: PyTree,
    seeds: Sequence[int],
    *,
    evaluate: Callable[[PyTree], object] | None = None,
) -> list[PyTree]:
    """What ``train(plan, loss, params, data, insecure_seed=seed)`` returns for each seed.

    For experiments: seeds are known, so these runs protect nobody. Linear models run together as one
    program; others one after the other.

    Args:
      plan, loss, params, data: as in `train`.
      seeds: of the runs.
      evaluate: a function of each run's parameters; by default the parameters themselves are returned.
    """
    released: list[PyTree] = []
    if not can_be_mapped(plan, loss):
        for seed in seeds:
            released.append(train(plan, loss, params, data, insecure_seed=seed).params)
    else:
        plan.verify()
        plan.population.require_declared("train_many")
        run = TrainingRun(plan, loss, params, data, key=RunKey.from_insecure_seed(seeds[0]))
        for group in mapped_groups(run, seeds):
            released += outputs(run.stepper, group.final_states(), len(group.seeds))
        released = released[: len(seeds)]
        secret_batches.cache_clear()
    return released if evaluate is None else [evaluate(result) for result in released]


def outputs(stepper: Stepper, states: State, runs: int) -> list[PyTree]:
    """The parameters that each run returns."""
    released = jax.vmap(stepper.output)(states)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], released) for i in range(runs)]

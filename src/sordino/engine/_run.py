"""A run of a plan, chunk by chunk; `train` drives it, checkpoints and audits look at it.

Everything is checked before the first record is used. Between chunks, `released` gives what the run
has made public by then: it may be stored in clear, and with the run key it is all that `restore`
needs to go on bit for bit. The noise state is recomputed from the key, never stored.

A driver runs a chunk of steps with the run's `Stepper` and gives the state and the noise state after it;
the run takes both over at once, after success. `scan_chunk` is one `lax.scan`; `host_chunk` calls the same
step, compiled once, from the host: on a CPU, convolutions inside a scan are two to five times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import PlanMismatchError, SordinoError, require_choice
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine._noise import Layout, NoiseSource, NoiseState, RunNoise, noise_rows, run_noise
from sordino.engine._people import (
    PERSON_POWER,
    People,
    PersonBatches,
    check_built_in,
    checked_weights,
    lanes_of,
    longest_chunk,
    wants_people,
)
from sordino.engine._records import (
    Batches,
    Picked,
    Records,
    Slices,
    as_parameters,
    as_records,
    batch_at,
    check_rows,
    prepare,
    row_count,
)
from sordino.engine._stepper import (
    Loss,
    Optimizer,
    Penalty,
    State,
    StepNow,
    Stepper,
    StepTable,
    has_convolutions,
    stepper_of,
)
from sordino.parts.sampling import check_slots
from sordino.planning import Plan
from sordino.privacy import ClippedSum

# Noise rows of one chunk take at most this many numbers (8 MB).
CHUNK_ENTRIES = 1 << 21
LONGEST_CHUNK = 1024
# With an evaluation or callbacks the run is cut into this many chunks, so that curves have points.
POINTS = 20
# With checkpoints, into this many: what a crash can cost is one of them.
CHECKPOINTS = 100
DRIVERS = ("auto", "scan", "steps")


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
    rows: PyTree,
    steps: StepNow,
    picked: Picked,
) -> State:
    """The state after the steps of `steps`, whose noise rows are given.

    Pure: audits map it over noise, influence estimates differentiate it by the noise's size.
    """

    def step(state: State, inputs: tuple[PyTree, StepNow, Picked]) -> tuple[State, None]:
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
    rows: PyTree,
    i: jax.Array,
    now: StepNow,
    picked: Picked,
) -> State:
    row = jax.tree.map(lambda leaf: leaf[i], rows)
    return stepper.step(state, batch_at(slices, records, now.t, picked), row, now)


@partial(jax.jit, static_argnames=("stepper",))
def total_of_rows(
    stepper: Stepper,
    state: State,
    records: Records,
    rows: jax.Array,
    present: jax.Array,
    now: StepNow,
) -> ClippedSum:
    """The clipped sum of some rows (B,), where `present` is 1: a party's own, before a secure sum."""
    return stepper.total(state, records.take(rows, present), now)


CHUNKS: Mapping[str, Callable[..., tuple[State, NoiseState]]] = {
    "scan": scan_chunk,
    "steps": host_chunk,
}


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
        chunk = CHUNKS[self.kind]
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
        run = partial(scan_steps, self.stepper, self.batches.slices)
        return jax.jit(run).lower(*jax.tree.map(_shape, arguments)).as_text()


def _shape(leaf: ArrayLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf))


class PublicState(NamedTuple):
    """What a run has made public after `step` steps: safe to store in clear."""

    step: int
    params: PyTree
    memory: PyTree
    update_state: PyTree


class TrainingRun:
    """A plan being executed; see `sordino.train` for the arguments."""

    trace: tuple[Mapping[str, float], ...] = ()  # public facts that a run itself notes; none here

    def __init__(
        self,
        plan: Plan,
        loss: Loss,
        params: PyTree,
        data: PyTree,
        *,
        key: RunKey,
        optimizer: Optimizer | None = None,
        regularizer: Penalty | None = None,
        microbatch_size: int | None = None,
        watched: bool = False,
        checkpointed: bool = False,
        driver: str = "auto",
        groups: ArrayLike | None = None,
        row_weights: ArrayLike | None = None,
        person_power: float = PERSON_POWER,
    ) -> None:
        require_choice("driver", driver, DRIVERS)
        data = as_records(data if isinstance(data, tuple) else (data,))
        weights = checked_weights(row_weights, row_count(data))
        personal = wants_people(plan, groups)
        if not personal:
            check_rows(plan, data)
        check_slots(plan.population)
        self._shapes = jax.tree.map(_shape, data)
        params = as_parameters(params)
        stepper = stepper_of(
            plan,
            loss,
            params,
            data,
            optimizer=optimizer,
            regularizer=regularizer,
            microbatch_size=microbatch_size,
        )
        people, longest = None, plan.population.steps
        if personal or weights is not None:
            check_built_in(plan, stepper.evaluator)
        if personal:
            lanes = lanes_of(stepper.evaluator)
            people = People.of(plan, key, groups, row_count(data), weights, person_power, lanes)
            longest = longest_chunk(plan.population, lanes)
        self.plan, self.key, self.steps = plan, key, plan.population.steps
        # What else than the data decides whose contributions there are, for the run's description.
        self.besides: PyTree = () if weights is None else weights
        if people is not None:
            self.besides = people.shown
        layout = Layout.of(params, plan.contribution.channels)
        self.starts = _starts(
            plan,
            layout.size,
            watched=watched,
            checkpointed=checkpointed,
            longest=longest,
        )
        if driver == "auto":
            driver = "steps" if has_convolutions(stepper.evaluator, params, data) else "scan"
        persons = None if people is None else PersonBatches(plan.population, people, key)
        batches = Batches(plan.population, persons)
        self.driver = InMemoryDriver(
            kind=driver,
            stepper=stepper,
            noise=run_noise(plan, layout, key),
            records=batches.load(stepper.evaluator, data, weights),
            batches=batches,
            table=StepTable.of(plan, chosen_step(key, self.steps), persons=people is not None),
            key=key,
        )
        # The state is donated chunk by chunk; the caller's own arrays must survive.
        params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
        self.state: State = stepper.init(params)
        self._noise_state: NoiseState = self.driver.noise.init()
        self._chunk = 0

    @property
    def stepper(self) -> Stepper:
        """The run's step."""
        return self.driver.stepper

    @property
    def done(self) -> int:
        """Steps taken so far."""
        return self.starts[self._chunk]

    @property
    def finished(self) -> bool:
        return self.done == self.steps

    def advance(self) -> int:
        """Run the next chunk; the number of steps done after it."""
        if self.finished:
            raise PlanMismatchError(
                f"all {self.steps:,} planned steps are done; more would spend a budget that the "
                "plan does not have: make a new plan"
            )
        first = self.done
        count = self.starts[self._chunk + 1] - first
        state, noise_state = self.driver.advance(self.state, self._noise_state, first, count)
        # In one go: an interrupt between the two would put the same noise around the next sums.
        vars(self).update(state=state, _noise_state=noise_state, _chunk=self._chunk + 1)
        return self.done

    def output(self) -> PyTree:
        """What the run would return now."""
        return self.stepper.output(self.state)

    def released(self) -> PublicState:
        """A copy of all that is public by now."""
        # The next chunk takes the state's buffers over; a copy stays.
        return PublicState(self.done, *jax.tree.map(jnp.copy, self.state))

    def restore(self, released: PublicState) -> None:
        """Go on from what `released` gave (in this or another process), with the same run key."""
        if released.step not in self.starts:
            raise SordinoError(
                f"this run has no chunk that ends at step {released.step}; restore with the same "
                "plan and the same settings"
            )
        self._noise_state = self.driver.noise.init()
        self._chunk = self.starts.index(released.step)
        if jax.tree.leaves(self._noise_state) and released.step < self.steps:
            for first, end in zip(self.starts, self.starts[1 : self._chunk + 1], strict=False):
                self._noise_state = self.driver.noise_after(self._noise_state, first, end - first)
        self.state = State(*jax.tree.map(jnp.array, released[1:]))

    def settings(self) -> str:
        """What else decides how sums are rounded: the driver and where chunks end."""
        return f"{self.driver.kind}/{self.starts}"

    def hold(self, text: str) -> None:
        """Run what the compiler's input of this digest says, and nothing that was compiled before."""
        self.driver = replace(self.driver, stepper=replace(self.stepper, text=text))

    def lowered(self) -> str:
        """The compiler's input for one step: loss, optimizer and all numbers that they hold."""
        prepared = prepare.lower(self.stepper.evaluator, self._shapes).as_text()
        return f"{prepared}\n{self.driver.lowered(self.state)}"


def _starts(plan: Plan, size: int, *, watched: bool, checkpointed: bool, longest: int) -> list[int]:
    """First steps of the chunks, and the end."""
    steps = plan.population.steps
    length = min(longest, chunk_length(steps, size))
    for wanted, points in ((watched, POINTS), (checkpointed, CHECKPOINTS)):
        if wanted:
            length = min(length, max(1, -(-steps // points)))
    boundaries = plan.mechanism.boundaries
    if plan.population.first_batch is not None:
        boundaries = tuple(sorted({1, *boundaries} - {steps}))
    return [*chunk_starts(steps, length, boundaries), steps]


def chosen_step(key: RunKey, steps: int) -> int:
    """The step whose iterate a random-iterate output returns: drawn before the run."""
    return int(key.generator("output").integers(steps))

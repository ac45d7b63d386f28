"""A run of a plan, chunk by chunk; `train` drives it, checkpoints and audits look at it.

Everything is checked before the first record is used. Between chunks, `released` gives what the run
has made public by then: it may be stored in clear, and with the run key it is all that `restore`
needs to go on bit for bit. The noise state is recomputed from the key, never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.errors import PlanMismatchError, SordinoError, require_choice
from sordino._base.keys import RunKey
from sordino.engine._drivers import InMemoryDriver, chunk_length, chunk_starts
from sordino.engine._entry import as_parameters, as_records, check_rows
from sordino.engine._noise import Layout, run_noise
from sordino.engine._records import Batches
from sordino.engine._stepper import State, Stepper, StepTable, has_convolutions, stepper_of
from sordino.planning import Plan

# With an evaluation or callbacks the run is cut into this many chunks, so that curves have points.
POINTS = 20
# With checkpoints, into this many: what a crash can cost is one of them.
CHECKPOINTS = 100
DRIVERS = ("auto", "scan", "steps")


class PublicState(NamedTuple):
    """What a run has made public after `step` steps: safe to store in clear."""

    step: int
    params: Any
    memory: Any
    update_state: Any


class TrainingRun:
    """A plan being executed; see `sordino.train` for the arguments."""

    trace: tuple[Mapping[str, float], ...] = ()  # public facts that a run itself notes; none here

    def __init__(
        self,
        plan: Plan,
        loss: Any,
        params: Any,
        data: Any,
        *,
        key: RunKey,
        optimizer: Any | None = None,
        regularizer: Callable[[Any], jax.Array] | None = None,
        microbatch_size: int | None = None,
        watched: bool = False,
        checkpointed: bool = False,
        driver: str = "auto",
    ) -> None:
        require_choice("driver", driver, DRIVERS)
        data = as_records(data if isinstance(data, tuple) else (data,))
        check_rows(plan, data)
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
        self.plan, self.key, self.steps = plan, key, plan.population.steps
        layout = Layout.of(params, plan.contribution.channels)
        self.starts = _starts(plan, layout.size, watched=watched, checkpointed=checkpointed)
        if driver == "auto":
            driver = "steps" if has_convolutions(stepper.evaluator, params, data) else "scan"
        batches = Batches(plan.population)
        self.driver = InMemoryDriver(
            kind=driver,
            stepper=stepper,
            noise=run_noise(plan, layout, key),
            records=batches.load(stepper.evaluator, data),
            batches=batches,
            table=StepTable.of(plan, chosen=chosen_step(key, self.steps)),
            key=key,
        )
        # The state is donated chunk by chunk; the caller's own arrays must survive.
        params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
        self.state: State = stepper.init(params)
        self._noise_state: Any = self.driver.noise.init()
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

    def output(self) -> Any:
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
        return self.driver.lowered(self.state)


def _starts(plan: Plan, size: int, *, watched: bool, checkpointed: bool) -> list[int]:
    """First steps of the chunks, and the end."""
    steps = plan.population.steps
    length = chunk_length(steps, size)
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

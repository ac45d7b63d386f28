"""A run of a plan, chunk by chunk; `train` drives it, checkpoints and audits look at it.

Everything is checked before the first record is used. Between chunks, `released` gives what the run
has made public by then: it may be stored in clear, and with the run key it is all that `restore`
needs to go on bit for bit. The noise state is recomputed from the key, never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sordino._base.errors import PlanMismatchError, SordinoError, require_choice, require_count
from sordino._base.keys import RunKey
from sordino.engine._entry import as_parameters, as_records, check_rows
from sordino.engine._loop import (
    Constants,
    Program,
    StepInputs,
    carry_of,
    chunk_length,
    chunk_starts,
    has_convolutions,
    lowered_text,
    noise_block,
    parameter_count,
    prepare_data,
    run_chunk,
    run_steps,
    scan_steps,
    start_states,
)
from sordino.parts import (
    LinearLoss,
    Population,
    batch_indices,
    float32_down,
    is_sliced,
    public_order,
    require_fields,
)
from sordino.parts.contributions import Evaluator, LinearEvaluator, VmapEvaluator, lattice_bounds
from sordino.parts.mechanisms import LatticeNoise, gaussian_key
from sordino.planning import Plan

# With an evaluation or callbacks the run is cut into this many chunks, so that curves have points.
POINTS = 20
# With checkpoints, into this many: what a crash can cost is one of them.
CHECKPOINTS = 100
# Where a batch's gradients together are more numbers than this, they are made this many at a time: on a
# CPU they then stay in its cache (a 26,010-parameter network takes half the time). Convolutions are the
# exception: they are slow inside a loop.
MAX_GRADIENT_ENTRIES = 2**20
MICROBATCH = 64
DRIVERS = ("auto", "scan", "steps")


class PublicState(NamedTuple):
    """What a run has made public after `step` steps: safe to store in clear."""

    step: int
    params: Any
    memory: Any
    update_state: Any


@dataclass(frozen=True)
class StepTable:
    """The per-step numbers of a run (leading axis: steps), all decided by the plan."""

    learning_rates: Any
    keep: Any
    divisors: Any
    noise_stds: Any
    terms: dict[str, Any]

    @classmethod
    def of(cls, plan: Plan) -> StepTable:
        """The plan's numbers as float32; what bounds a contribution is rounded down."""
        steps = plan.population.steps
        sizes = plan.population.batch_sizes()
        return cls(
            learning_rates=plan.update.learning_rates(steps),
            keep=np.asarray(plan.contribution.keep(steps), np.float32),
            divisors=np.repeat(
                np.asarray([size for size, _ in sizes], np.float32), [n for _, n in sizes]
            ),
            noise_stds=plan.noise_stds(),
            terms={
                name: float32_down(values)
                for name, values in plan.contribution.terms(steps).items()
            }
            | _lattice_terms(plan),
        )

    def inputs(self, first: int, count: int, picked: Any) -> StepInputs:
        """The numbers of steps ``first .. first+count-1``."""
        now = slice(first, first + count)
        return StepInputs(
            step=np.arange(first, first + count, dtype=np.int32),
            learning_rate=self.learning_rates[now],
            keep=self.keep[now],
            divisor=self.divisors[now],
            noise_std=self.noise_stds[now],
            terms={name: values[now] for name, values in self.terms.items()},
            picked=picked,
        )


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
        stream = make_stream(plan, loss, params, data, microbatch_size)
        population = plan.population
        self.plan, self.key, self.steps = plan, key, population.steps
        sliced = is_sliced(population)
        self.program = Program(
            stream=stream,
            update=plan.update.build(
                plan.contribution, optimizer=optimizer, penalty=penalty_of(loss, regularizer)
            ),
            sliced=sliced,
            batch_size=population.batch_size,
            channels=plan.contribution.channels,
        )
        size = parameter_count(params) * plan.contribution.channels
        length = chunk_length(self.steps, size)
        for wanted, points in ((watched, POINTS), (checkpointed, CHECKPOINTS)):
            if wanted:
                length = min(length, max(1, -(-self.steps // points)))
        boundaries = plan.mechanism.boundaries
        if population.first_batch is not None:
            boundaries = tuple(sorted({1, *boundaries} - {self.steps}))
        self._starts = [*chunk_starts(self.steps, length, boundaries), self.steps]
        self._lattice_noise = lattice_noise(plan, size, key)
        noise_state = plan.mechanism.start(size) if self._lattice_noise is None else ()
        if driver == "auto":
            driver = "steps" if _has_convolutions(stream, params, data) else "scan"
        self._driver = driver
        self._run_chunk = run_steps if driver == "steps" else run_chunk
        self._schedule = StepTable.of(plan)
        self._noise_key = gaussian_key(key, "gradient")
        self._constants = Constants(
            steps=np.int32(self.steps),
            batches=np.int32(population.steps_per_epoch),
            chosen=np.int32(key.generator("output").integers(self.steps)),
        )
        self._data, self._valid = load_data(self.program, population, data)
        # The carry is donated chunk by chunk; the caller's own arrays must survive.
        params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
        self._carry = carry_of((params, *start_states(self.program, params)), noise_state)
        self._chunk = 0

    @property
    def done(self) -> int:
        """Steps taken so far."""
        return self._starts[self._chunk]

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
        count = self._starts[self._chunk + 1] - first
        picked = None
        if not self.program.sliced:
            picked = batch_indices(self.plan.population, self.key, first, count)
        carry = self._run_chunk(
            self.program,
            count,
            self._carry,
            self._data,
            self._valid,
            self.plan.mechanism,
            self._noise_of(first, count),
            self._constants,
            self._schedule.inputs(first, count, picked),
        )
        # In one go: an interrupt between the two would put the same noise around the next sums.
        vars(self).update(_carry=carry, _chunk=self._chunk + 1)
        return self.done

    def _noise_of(self, first: int, count: int) -> Any:
        """What the loop makes a chunk's noise of: the key, or the noise itself on a lattice."""
        if self._lattice_noise is None:
            return self._noise_key
        return self._lattice_noise.rows(first, count)

    def output(self) -> Any:
        """What the run would return now."""
        return self.program.update.output(self._carry.params, self._carry.update_state)

    def released(self) -> PublicState:
        """A copy of all that is public by now."""
        # The next chunk takes the carry's buffers over; a copy stays.
        params, memory, state = jax.tree.map(jnp.copy, self._carry[:3])
        return PublicState(self.done, params, memory, state)

    def restore(self, released: PublicState) -> None:
        """Go on from what `released` gave (in this or another process), with the same run key."""
        if released.step not in self._starts:
            raise SordinoError(
                f"this run has no chunk that ends at step {released.step}; restore with the same "
                "plan and the same settings"
            )
        noise_state: Any = ()
        if self._lattice_noise is None:
            noise_state = self.plan.mechanism.start(
                parameter_count(self._carry.params) * self.program.channels
            )
        self._chunk = self._starts.index(released.step)
        if jax.tree.leaves(noise_state) and released.step < self.steps:
            for first, end in zip(self._starts, self._starts[1 : self._chunk + 1], strict=False):
                carry = self._carry._replace(noise_state=noise_state)
                _, noise_state = noise_block(
                    self.program,
                    end - first,
                    carry,
                    self.plan.mechanism,
                    self._noise_key,
                    np.int32(first),
                )
        states = jax.tree.map(jnp.array, (released.params, released.memory, released.update_state))
        self._carry = carry_of(states, noise_state)

    def settings(self) -> str:
        """What else decides how sums are rounded: the driver and where chunks end."""
        return f"{self._driver}/{self._starts}"

    def hold(self, text: str) -> None:
        """Run what the compiler's input of this digest says, and nothing that was compiled before."""
        self.program = replace(self.program, text=text)

    def lowered(self) -> str:
        """The compiler's input for one step: loss, optimizer and all numbers that they hold."""
        picked = None
        if not self.program.sliced:
            picked = batch_indices(self.plan.population, self.key, 0, 1)
        size = parameter_count(self._carry.params) * self.program.channels
        noise = np.zeros((1, size), np.float32 if self._lattice_noise is None else np.int32)
        return lowered_text(
            partial(scan_steps, self.program),
            self._carry[:3],
            self._data,
            self._valid,
            noise,
            self._constants,
            self._schedule.inputs(0, 1, picked),
        )


def lattice_noise(plan: Plan, size: int, key: RunKey) -> LatticeNoise | None:
    """The discrete noise of a run with rows of `size` numbers, where it has such."""
    if plan.lattice is None:
        return None
    return LatticeNoise(plan.mechanism, plan.noise_variances(), size, key.derive)


def _lattice_terms(plan: Plan) -> dict[str, Any]:
    """What rounding to the lattice needs in each step."""
    if plan.lattice is None:
        return {}
    steps = plan.population.steps
    return {
        "bound": lattice_bounds(plan.contribution.bounds(steps).T),
        "step": np.full(steps, plan.lattice.step, np.float32),
    }


def load_data(program: Program, population: Population, data: Any) -> tuple[Any, jax.Array]:
    """Records as the program's steps take them, and which of the rows are valid."""
    if not program.sliced:
        return prepare_data(program.stream, data)
    order = None if population.is_full_batch else public_order(population)
    rows = (population.steps_per_epoch - 1) * program.batch_size + program.width
    return prepare_data(program.stream, data, order, rows)


def make_stream(
    plan: Plan, loss: Any, params: Any, data: tuple[Any, ...], microbatch_size: int | None
) -> Evaluator:
    """The plan's contribution, evaluated for this loss; `data` has come through `as_records`."""
    rule = plan.contribution.rule()
    lattice = plan.lattice is not None
    if type(loss) is VmapEvaluator or type(loss) is LinearEvaluator:
        return replace(loss, rule=rule, lattice=lattice)
    if isinstance(loss, Evaluator):  # also one that inherits from these: its code is its own
        require_fields(loss)
        _check_own_stream(plan, loss)
        return loss
    if isinstance(loss, LinearLoss):
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(data)]
        if len(shapes) != 2 or len(shapes[0]) != 2:
            raise SordinoError(
                "a linear loss needs data (X, y) with X of shape (examples, features), "
                f"got shapes {shapes}"
            )
        wanted = loss.parameter_shape(shapes[0][1])
        leaves = jax.tree.leaves(params)
        if len(leaves) != 1 or np.shape(leaves[0]) != wanted or leaves[0] is not params:
            raise SordinoError(
                f"{type(loss).__name__} on {shapes[0][1]} features needs one weight array of shape "
                f"{wanted}, got {[np.shape(leaf) for leaf in leaves]}"
            )
        return LinearEvaluator(loss, rule, lattice)
    if not callable(loss):
        raise SordinoError(f"loss must be a function of (params, *example), got {type(loss)}")
    if microbatch_size is not None:
        microbatch_size = require_count("microbatch_size", microbatch_size)
        return VmapEvaluator(loss, rule, microbatch_size, lattice)
    whole = VmapEvaluator(loss, rule, lattice=lattice)
    numbers = plan.population.batch_size * parameter_count(params)
    if numbers <= MAX_GRADIENT_ENTRIES or _has_convolutions(whole, params, data):
        return whole
    return replace(whole, microbatch=MICROBATCH)


def _check_own_stream(plan: Plan, stream: Evaluator) -> None:
    name = type(stream).__name__
    if plan.lattice is not None:
        raise SordinoError(
            f"{name} adds up floats, and discrete noise needs each example's vector rounded before it "
            "is added; give the loss of one example, or plan with noise='gaussian'"
        )
    if stream.clip is None:
        raise SordinoError(
            f"{name} declares no clip, so its sensitivity is unknown; set its `clip` to the largest "
            "norm that one example's contribution can have"
        )
    planned = float(plan.contribution.bounds(plan.population.steps).min())
    if not 0 < stream.clip <= planned:
        raise SordinoError(
            f"{name} declares contributions of norm up to {stream.clip:g}, but the plan's noise "
            f"covers {planned:g}; plan with clip={stream.clip:g}"
        )


def _has_convolutions(stream: Evaluator, params: Any, data: tuple[Any, ...]) -> bool:
    if not isinstance(stream, VmapEvaluator):
        return False
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    return has_convolutions(stream.loss, params, *example)


@lru_cache(maxsize=32)
def _gradient(function: Callable[[Any], jax.Array]) -> Callable[[Any], Any]:
    """The same object for the same function, so that compiled code is found again."""
    return jax.grad(function)


def penalty_of(loss: Any, given: Callable[[Any], jax.Array] | None) -> Callable[[Any], Any] | None:
    """Gradient of the data-free regulariser: the given one's, or the loss's own."""
    if given is not None:
        return _gradient(given)
    overridden = isinstance(loss, LinearLoss) and (
        type(loss).regularizer_gradient is not LinearLoss.regularizer_gradient
    )
    return loss.regularizer_gradient if overridden else None

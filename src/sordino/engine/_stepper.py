"""One step of any plan, as pure functions of its state: no data, disk, key or clock.

    stepper = Stepper(evaluator, update, channels)
    state = stepper.init(params)
    total = stepper.total(state, batch, now)           # what a party, a device or a host adds: not private
    noised = add_noise(total, rows, now.noise)         # the one door
    state = stepper.apply(state, noised, now)          # what all of them do with the noised sum
    stepper.output(state)

`train`, `Session`, learners between parties, many runs at once, audits and influence estimates all take
their steps here. `now` is the step's row of the plan's `StepTable`: traced, so that other numbers compile
nothing anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_count
from sordino._base.types import PyTree
from sordino.engine._noise import parameter_count
from sordino.engine._release import add_noise, estimate_of
from sordino.parts import LinearLoss, float32_down, require_fields
from sordino.parts.contributions import (
    Batch,
    Evaluator,
    LinearEvaluator,
    PersonBatch,
    RuleStream,
    VmapEvaluator,
    lattice_bounds,
    person_terms,
    sum_of_persons,
)
from sordino.parts.updates import StepInfo, Update
from sordino.planning import Plan
from sordino.privacy import ClippedSum, NoisedSum, PrivateEstimate

if TYPE_CHECKING:
    import optax

# The loss of one example, in closed form for linear models, or an evaluator of the user's own.
Loss: TypeAlias = Callable[..., jax.Array] | LinearLoss | Evaluator
# A function of the parameters alone: a data-free part of the loss.
Penalty: TypeAlias = Callable[[PyTree], jax.Array]
Optimizer: TypeAlias = "optax.GradientTransformation"

# Where a batch's gradients together are more numbers than this, they are made this many at a time: on a
# CPU they then stay in its cache (a 26,010-parameter network takes half the time). Convolutions are the
# exception: they are slow inside a loop.
MAX_GRADIENT_ENTRIES = 2**20
MICROBATCH = 64


class State(NamedTuple):
    """What a run has between two steps; all of it follows from what was released."""

    params: PyTree
    memory: PyTree  # the evaluator's, of earlier parameters
    update: PyTree  # the optimizer's


class StepNow(NamedTuple):
    """The numbers of one step; over a chunk, every leaf has a leading axis of steps.

    Attributes:
      t: the step's index, from 0.
      learning_rate, carry_over: see `StepInfo`.
      divisor: what the noised sum is divided by: public, the planned batch size.
      noise: standard deviation of each channel's noise (channels,).
      terms: the numbers of the contribution, by name.
      steps: of the whole run.
      chosen: step of the iterate that a random-iterate output returns.
    """

    t: jax.Array
    learning_rate: jax.Array
    carry_over: jax.Array
    divisor: jax.Array
    noise: jax.Array
    terms: Mapping[str, jax.Array]
    steps: jax.Array
    chosen: jax.Array

    @property
    def info(self) -> StepInfo:
        """What of it the update may know."""
        return StepInfo(self.t, self.steps, self.learning_rate, self.carry_over, self.chosen)


@dataclass(frozen=True)
class StepTable:
    """The per-step numbers of a run (leading axis: steps), all decided by the plan."""

    learning_rates: NDArray[np.float32]
    carry_over: NDArray[np.float32]
    divisors: NDArray[np.float32]
    noise_stds: NDArray[np.float32]
    terms: Mapping[str, NDArray[np.float32]]
    chosen: int = 0

    @classmethod
    def of(cls, plan: Plan, chosen: int = 0, *, persons: bool = False) -> StepTable:
        """The plan's numbers as float32; what bounds a contribution is rounded down."""
        steps = plan.population.steps
        sizes = plan.population.batch_sizes()
        return cls(
            learning_rates=plan.update.learning_rates(steps),
            carry_over=np.asarray(plan.contribution.carry_over(steps), np.float32),
            divisors=np.repeat(
                np.asarray([size for size, _ in sizes], np.float32), [n for _, n in sizes]
            ),
            noise_stds=plan.noise_stds(),
            terms={
                name: float32_down(values)
                for name, values in plan.contribution.terms(steps).items()
            }
            | _lattice_terms(plan)
            | (person_terms(plan.contribution.bounds(steps).T) if persons else {}),
            chosen=chosen,
        )

    def rows(self, first: int, count: int) -> StepNow:
        """The numbers of steps ``first .. first+count-1``."""
        now = slice(first, first + count)
        numbers: dict[str, PyTree] = {
            "t": np.arange(first, first + count, dtype=np.int32),
            "learning_rate": self.learning_rates[now],
            "carry_over": self.carry_over[now],
            "divisor": self.divisors[now],
            "noise": self.noise_stds[now],
            "terms": {name: values[now] for name, values in self.terms.items()},
            "steps": np.full(count, len(self.divisors), np.int32),
            "chosen": np.full(count, self.chosen, np.int32),
        }
        return StepNow(**numbers)

    def at(self, t: int) -> StepNow:
        """The numbers of one step."""
        return jax.tree.map(lambda leaf: leaf[0], self.rows(t, 1))


def _lattice_terms(plan: Plan) -> dict[str, NDArray[np.float32]]:
    """What rounding to the lattice needs in each step."""
    if plan.lattice is None:
        return {}
    steps = plan.population.steps
    return {
        "bound": lattice_bounds(plan.contribution.bounds(steps).T),
        "step": np.full(steps, plan.lattice.step, np.float32),
    }


@dataclass(frozen=True)
class Stepper:
    """One step: records -> clipped sum -> noise -> estimate -> update. Hashable: compiled code is reused.

    `text` is a digest of the compiler's input, in runs that must be the one that was described: code that
    was compiled from another text is then not taken, however equal its parts look (a loss may read a
    number that has changed since).
    """

    evaluator: Evaluator
    update: Update
    channels: int = 1
    text: str = ""

    def init(self, params: PyTree) -> State:
        """The state before the first step, each part in buffers of its own (later ones are donated)."""
        return State(params, *_first_states(self, params))

    def total(self, state: State, batch: Batch | PersonBatch, now: StepNow) -> ClippedSum:
        """What a batch adds up to: as sensitive as the data."""
        if isinstance(batch, PersonBatch):
            return self._total_of_persons(state, batch, now)
        return self.evaluator.total(state.params, state.memory, batch, now.terms, now.t)

    def _total_of_persons(self, state: State, batch: PersonBatch, now: StepNow) -> ClippedSum:
        evaluator = self.evaluator
        assert isinstance(evaluator, RuleStream)  # see `check_built_in`
        points = evaluator.rule.points(state.params, state.memory, now.t)
        gradients = partial(evaluator.row_gradients, points)
        return sum_of_persons(evaluator.rule, gradients, state.params, batch, now.terms)

    def apply(self, state: State, noised: NoisedSum, now: StepNow) -> State:
        """The state after a step whose noised sum is given, wherever it was noised."""
        step = now.terms["step"] if self.evaluator.lattice else None
        estimate = self._typed(state.params, estimate_of(noised, now.divisor, step))
        memory = self.evaluator.remember(state.memory, state.params, now.t)
        moved = self.update.step(state.params, state.update, estimate, now.info)
        # Coefficients are float32; states of a half-precision model stay in its own type.
        params, update = jax.tree.map(
            lambda new, old: new.astype(old.dtype), moved, (state.params, state.update)
        )
        return State(params, memory, update)

    def step(self, state: State, batch: Batch | PersonBatch, row: PyTree, now: StepNow) -> State:
        """Both, with this row of noise in between."""
        return self.apply(state, add_noise(self.total(state, batch, now), row, now.noise), now)

    def output(self, state: State) -> PyTree:
        """What the run returns: the last iterate, an average, a random one."""
        return self.update.output(state.params, state.update)

    def _typed(self, params: PyTree, estimate: PrivateEstimate) -> PrivateEstimate:
        """The estimate in the parameters' own float types."""

        def typed(value: PyTree) -> PyTree:
            return jax.tree.map(lambda e, p: e.astype(jnp.result_type(p)), value, params)

        if self.channels == 1:
            return PrivateEstimate(typed(estimate.value))
        return PrivateEstimate(tuple(typed(value) for value in estimate.value))


@partial(jax.jit, static_argnames=("stepper",))
def _first_states(stepper: Stepper, params: PyTree) -> tuple[PyTree, PyTree]:
    return jax.tree.map(jnp.copy, (stepper.evaluator.init(params), stepper.update.init(params)))


@partial(jax.jit, static_argnames=("stepper",))
def compiled_apply(stepper: Stepper, state: State, noised: NoisedSum, now: StepNow) -> State:
    """`Stepper.apply`, compiled on its own. The state given is not taken over."""
    return stepper.apply(state, noised, now)


@partial(jax.jit, static_argnames=("stepper",))
def compiled_step(stepper: Stepper, state: State, batch: Batch, row: PyTree, now: StepNow) -> State:
    """`Stepper.step` on a batch of records as they come; the evaluator prepares them here.

    The state given is not taken over: a step that fails leaves its caller where it was.
    """
    data, valid = stepper.evaluator.prepare(batch.data, jnp.ones_like(batch.present))
    return stepper.step(state, Batch(data, batch.present * valid), row, now)


def stepper_of(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    data: tuple[PyTree, ...],
    *,
    optimizer: Optimizer | None = None,
    regularizer: Penalty | None = None,
    microbatch_size: int | None = None,
) -> Stepper:
    """The plan's step for this loss; `data` and `params` have come through the engine's door."""
    check_start(plan, params)
    return Stepper(
        evaluator=evaluator_of(plan, loss, params, data, microbatch_size),
        update=update_of(plan, loss, optimizer, regularizer),
        channels=plan.contribution.channels,
    )


def check_start(plan: Plan, params: PyTree) -> None:
    """Refuse a start outside the ball that all iterates are to stay in."""
    radius = plan.update.radius
    if radius is None:
        return
    squares = (np.sum(np.square(np.asarray(p, np.float64))) for p in jax.tree.leaves(params))
    norm = float(np.sqrt(sum(squares)))
    if norm > radius * (1 + 1e-6):
        raise SordinoError(
            f"the first parameters have norm {norm:.6g}, and all iterates are to stay in the ball of "
            f"radius {radius:g}; start inside it, or plan a larger radius"
        )


def update_of(
    plan: Plan, loss: Loss, optimizer: Optimizer | None, regularizer: Penalty | None
) -> Update:
    """The plan's update, with the given optimizer and the data-free part of the loss."""
    return plan.update.build(
        plan.contribution, optimizer=optimizer, penalty=_penalty_of(loss, regularizer)
    )


def evaluator_of(
    plan: Plan, loss: Loss, params: PyTree, data: tuple[PyTree, ...], microbatch_size: int | None
) -> Evaluator:
    """The plan's contribution, evaluated for this loss; `data` has come through `as_records`."""
    rule = plan.contribution.rule()
    lattice = plan.lattice is not None
    if type(loss) is VmapEvaluator or type(loss) is LinearEvaluator:
        return replace(loss, rule=rule, lattice=lattice)
    if isinstance(loss, Evaluator):  # also one that inherits from these: its code is its own
        require_fields(loss)
        _check_own_evaluator(plan, loss)
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
    if numbers <= MAX_GRADIENT_ENTRIES or has_convolutions(whole, params, data):
        return whole
    return replace(whole, microbatch=MICROBATCH)


def _check_own_evaluator(plan: Plan, evaluator: Evaluator) -> None:
    name = type(evaluator).__name__
    if plan.lattice is not None:
        raise SordinoError(
            f"{name} adds up floats, and discrete noise needs each example's vector rounded before it "
            "is added; give the loss of one example, or plan with noise='gaussian'"
        )
    if evaluator.clip is None:
        raise SordinoError(
            f"{name} declares no clip, so its sensitivity is unknown; set its `clip` to the largest "
            "norm that one example's contribution can have"
        )
    planned = float(plan.contribution.bounds(plan.population.steps).min())
    if not 0 < evaluator.clip <= planned:
        raise SordinoError(
            f"{name} declares contributions of norm up to {evaluator.clip:g}, but the plan's noise "
            f"covers {planned:g}; plan with clip={evaluator.clip:g}"
        )


def has_convolutions(evaluator: Evaluator, params: PyTree, data: tuple[PyTree, ...]) -> bool:
    """Whether the loss of one example meets a convolution: inside a compiled loop those are slow."""
    if not isinstance(evaluator, VmapEvaluator):
        return False
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)
    return "conv_general_dilated" in str(jax.make_jaxpr(evaluator.loss)(params, *example))


@lru_cache(maxsize=32)
def _gradient(function: Penalty) -> Callable[[PyTree], PyTree]:
    """The same object for the same function, so that compiled code is reused."""
    return jax.grad(function)


def _penalty_of(loss: Loss, given: Penalty | None) -> Callable[[PyTree], PyTree] | None:
    """Gradient of the data-free regulariser: the given one's, or the loss's own."""
    if given is not None:
        return _gradient(given)
    if isinstance(loss, LinearLoss) and (
        type(loss).regularizer_gradient is not LinearLoss.regularizer_gradient
    ):
        return loss.regularizer_gradient
    return None

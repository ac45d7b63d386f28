r"""Adaptive gradient descent with a privacy budget (Lee & Kifer 2018; papers/01, section 1.3).

    while the next query can be paid:
        v <- mean of clipped gradients + noise                     pay kappa^2 / sigma^2
        repeat:
            u <- (v + grad r(w)) / |v + grad r(w)|
            j <- noisy argmin_j  sum_i min(loss_i(w - a_j u), C_obj) + n r(w - a_j u)     pay mu'^2
            if j > 0: w <- w - a_j u, leave
            v <- average of v and a fresh noisy gradient at w, weighted by budget; the budget of a
                 gradient is (1 + growth) times what it was           pay only the increment
            a_max <- shrink a_max                                     (ours; 1 is the paper's)
        every 10 iterations: a_max <- min(1.1 x longest step of these 10, largest step)

with step sizes ``a = linspace(0, a_max, 21)``. Every query is paid before a record is read; the run
ends when the next one costs more than is left, and nothing is released after that. What leaves
compiled code is noisy, but for the candidates' clipped loss sums, which go into `noisy_min` and no
further. These are sums of whole numbers (a loss counts in steps of ``C_obj / 2^16``), so that one
example changes them by at most C_obj exactly, however many there are and in whatever order they are
added; a float32 sum over 10^5 examples would be off by a hundredth of that.

Corrected from the authors' code: the noisy minimum has the right sign, the chosen candidate is the one
moved to, repeated averages go on from the last one, and nothing is paid twice or after the fact.

`FilteredRun` is for noise that follows a rule of what was released (papers/04 1.1):

    plan = sordino.plan("dp-gd", ..., schedule="filter")
    sordino.train(plan, loss, params, data, noise_rule=lambda past: 2.0 if past.step < 10 else 0.5)

Before a step the rule is asked for its noise, relative to the plan's; then the filter pays for the very
float32 number that the noise is multiplied by, and only then is a record read. Where the step costs more
than is left, the run ends: nothing more is released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PlanMismatchError, SordinoError, require_choice, require_positive
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine._noise import Layout
from sordino.engine._people import wants_people
from sordino.engine._records import Records, as_parameters, as_records, check_rows, prepare
from sordino.engine._release import add_noise, estimate_of
from sordino.engine._run import CHECKPOINTS, DRIVERS, POINTS, PublicState, TrainingRun
from sordino.engine._stepper import Loss, Optimizer, Penalty, evaluator_of
from sordino.parts import LinearLoss, even_width, float32_down
from sordino.parts.contributions import Batch, Evaluator, LinearEvaluator, VmapEvaluator
from sordino.parts.mechanisms import gaussian_key, standard_normal_rows
from sordino.parts.schedules import AdaptiveBudget, FilteredBudget
from sordino.planning import FLOAT32_MARGIN, Plan, float32_up
from sordino.privacy import (
    UNIT_BITS,
    Adjacency,
    BudgetExhausted,
    ClippedSum,
    PrivacyFilter,
    PrivateEstimate,
    cost_of,
    cost_of_mu_squared,
    noisy_min,
)

# A loss of C_obj is this many units; sums of the units' high and low bytes fit 32 bits.
LEVELS = 1 << 16
MOST_EXAMPLES = (1 << 24) - 1
# How often the longest step to try follows the steps taken, and how far it goes beyond them.
ADJUST_EVERY = 10
ADJUST_BY = 1.1
_WORDS = 8


class AdaptiveRun:
    """A plan with an adaptive budget being executed: the counterpart of `TrainingRun`.

    `trace` has one record of public facts per iteration: the step's size and the ``mu^2`` spent.
    """

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
    ) -> None:
        require_choice("driver", driver, DRIVERS)
        if not isinstance(plan.schedule, AdaptiveBudget):
            raise SordinoError("this run needs a plan with an adaptive budget: see recipe 'dp-agd'")
        if optimizer is not None:
            raise SordinoError(
                f"{plan.recipe} chooses its steps by line search; an optax optimizer cannot take "
                "its place"
            )
        data = as_records(data if isinstance(data, tuple) else (data,))
        plan.population.require_declared(plan.recipe)
        wants_people(plan, None)
        check_rows(plan, data)
        params = as_parameters(params)
        evaluator = evaluator_of(plan, loss, params, data, microbatch_size)
        if not isinstance(evaluator, VmapEvaluator | LinearEvaluator):
            raise SordinoError(
                f"{plan.recipe} evaluates the loss along each step, and an evaluator of your own has "
                "none; give the loss of one example"
            )
        if plan.population.examples > MOST_EXAMPLES:
            raise SordinoError(
                f"{plan.recipe} sums losses exactly for at most {MOST_EXAMPLES:,} examples, got "
                f"{plan.population.examples:,}"
            )
        self._evaluator: VmapEvaluator | LinearEvaluator = evaluator
        self.plan, self.key, self.steps = plan, key, plan.population.steps
        self.trace: tuple[Mapping[str, float], ...] = ()
        self._penalty = _penalty(self._evaluator.loss, regularizer)
        self._schedule = plan.schedule
        self._kappa = Adjacency(plan.guarantee.adjacency).factor
        self._noise_key = gaussian_key(key, "gradient")
        self._length = max(1, -(-self.steps // (CHECKPOINTS if checkpointed else POINTS)))
        self._records = prepare(self._evaluator, data, rows=even_width(plan.population.examples))
        self._params = jax.tree.map(jnp.array, params)
        self._budget = self._schedule.budget()
        self._total = self._budget.total
        # 1 / sigma^2 of the next gradient, where sigma is the noise that is paid for.
        self._precision = (plan.noise_multiplier / FLOAT32_MARGIN) ** -2
        self._largest, self._longest = self._schedule.largest_step, 0.0
        self._queries = self._searches = 0
        self._done, self._stopped = 0, False

    @property
    def done(self) -> int:
        """Iterations so far."""
        return self._done

    @property
    def finished(self) -> bool:
        """Whether all planned iterations are done, or the next one costs more than is left."""
        return self._stopped or self._done == self.steps or not self._can_begin()

    @property
    def spent(self) -> float:
        """``mu^2`` spent so far; a public number."""
        return (self._total - self._budget.remaining) / (1 << UNIT_BITS)

    def advance(self) -> int:
        """Run the next iterations; the number of iterations done after them."""
        if self.finished:
            raise PlanMismatchError(
                "the budget of this run is spent, or its iterations are done; make a new plan"
            )
        for _ in range(self._length):
            if self.finished:
                break
            try:
                self._iterate()
            except BudgetExhausted:
                self._stopped = True
        return self._done

    def output(self) -> PyTree:
        """What the run would return now: the last iterate."""
        return self._params

    def released(self) -> PublicState:
        """A copy of all that is public by now."""
        remaining = self._budget.remaining.to_bytes(4 * _WORDS, "little")
        state = {
            "remaining": np.frombuffer(remaining, np.uint32).copy(),
            "precision": np.float64(self._precision),
            "largest": np.float64(self._largest),
            "longest": np.float64(self._longest),
            "counts": np.array([self._queries, self._searches, int(self._stopped)], np.int64),
        }
        return PublicState(self._done, jax.tree.map(jnp.copy, self._params), (), state)

    def restore(self, released: PublicState) -> None:
        """Go on from what `released` gave (in this or another process), with the same run key."""
        state = released.update_state
        words = np.asarray(state["remaining"], np.uint32)
        self._budget = PrivacyFilter(min(int.from_bytes(words.tobytes(), "little"), self._total))
        self._precision = float(state["precision"])
        self._largest, self._longest = float(state["largest"]), float(state["longest"])
        self._queries, self._searches, stopped = (int(count) for count in state["counts"])
        self._done, self._stopped = int(released.step), bool(stopped)
        self._params = jax.tree.map(jnp.array, released.params)
        self.trace = ()

    def settings(self) -> str:
        """What else decides how sums are rounded: nothing, steps are taken one at a time."""
        return "adaptive"

    def hold(self, text: str) -> None:
        """Run what the compiler's input of this digest says, and nothing that was compiled before."""
        self._evaluator = replace(self._evaluator, program=text)

    def lowered(self) -> str:
        """The compiler's input for one gradient and one line search."""
        clip, one = float32_down(self.plan.clip), np.float32(1)
        sizes = np.zeros(self._schedule.candidates, np.float32)
        terms = (clip, one, self._noise_key, np.uint32(0), one)
        programs = [
            noisy_gradient.lower(self._evaluator, self._params, self._records, *terms),
            clipped_losses.lower(
                self._evaluator, self._params, self._params, sizes, self._records, clip
            ),
        ]
        if self._penalty is not None:
            estimate = PrivateEstimate(self._params)
            programs.append(unit_direction.lower(self._penalty, estimate, self._params))
            programs.append(penalties.lower(self._penalty, self._params, self._params, sizes))
        return "\n".join(program.as_text() for program in programs)

    def _can_begin(self) -> bool:
        gradient = cost_of(self._precision**-0.5, self._kappa)
        search = cost_of_mu_squared(self._schedule.search_cost)
        return gradient + search <= self._budget.remaining

    def _iterate(self) -> None:
        """One step; raises BudgetExhausted, with the parameters as they were, if it cannot be paid."""
        estimate = self._gradient(self._precision)
        while True:
            sizes = np.linspace(0.0, self._largest, self._schedule.candidates).astype(np.float32)
            direction = unit_direction(self._penalty, estimate, self._params)
            chosen = self._search(direction, sizes)
            if chosen > 0:
                break
            improved = self._precision * (1 + self._schedule.growth)
            increment = improved - self._precision
            fresh = self._gradient(increment)
            estimate = averaged(estimate, fresh, np.float32(increment / improved))
            self._precision = improved
            self._largest *= self._schedule.shrink
        self._params = moved(self._params, direction, sizes[chosen])
        self._done += 1
        self._longest = max(self._longest, float(sizes[chosen]))
        if self._done % ADJUST_EVERY == 0:
            self._largest = min(ADJUST_BY * self._longest, self._schedule.largest_step)
            self._longest = 0.0
        facts = {"step": self._done, "step size": float(sizes[chosen]), "spent": self.spent}
        self.trace = (*self.trace, facts)

    def _gradient(self, precision: float) -> PrivateEstimate:
        """A noisy mean gradient with noise multiplier ``precision ** -1/2``, paid for first."""
        sigma = precision**-0.5
        self._budget.spend(sigma, self._kappa)
        index, self._queries = self._queries, self._queries + 1
        std = float32_up(sigma * FLOAT32_MARGIN * self.plan.clip)
        return noisy_gradient(
            self._evaluator,
            self._params,
            self._records,
            float32_down(self.plan.clip),
            np.float32(std),
            self._noise_key,
            np.uint32(index),
            np.float32(self.plan.divisor),
        )

    def _search(self, direction: PyTree, sizes: NDArray[np.float32]) -> int:
        """Index of the step size whose loss is least, up to noise; paid for first."""
        self._budget.spend_cost(self._schedule.search_cost)
        index, self._searches = self._searches, self._searches + 1
        clip = self._schedule.objective_clip
        offsets = np.zeros(sizes.size)
        if self._penalty is not None:
            values = penalties(self._penalty, self._params, direction, sizes)
            offsets = np.asarray(values, np.float64) * self.plan.divisor
        sums = clipped_losses(
            self._evaluator, self._params, direction, sizes, self._records, np.float32(clip)
        )
        return noisy_min(
            _exact(sums) * (clip / LEVELS) + offsets,
            self._schedule.search_scale(self._kappa),
            self.key.generator(f"line-search/{index}"),
        )


@partial(jax.jit, static_argnames=("evaluator",))
def noisy_gradient(
    evaluator: Evaluator,
    params: PyTree,
    records: Records,
    clip: jax.Array,
    noise_std: jax.Array,
    key: jax.Array,
    index: jax.Array,
    divisor: jax.Array,
) -> PrivateEstimate:
    """``(sum of clipped gradients + noise) / divisor``; the noise is row `index` of the key's."""
    batch = Batch(records.data, records.valid)
    total = evaluator.total(params, evaluator.init(params), batch, {"clip": clip}, index)
    layout = Layout.of(params)
    row = layout.cut(standard_normal_rows(key, index, 1, layout.size)[0])
    return estimate_of(add_noise(total, row, noise_std[None]), divisor)


@jax.jit
def averaged(old: PrivateEstimate, fresh: PrivateEstimate, weight: jax.Array) -> PrivateEstimate:
    """``(1 - weight) old + weight fresh``: of least noise if weights go by budget."""
    return jax.tree.map(lambda a, b: (a + weight * (b - a)).astype(a.dtype), old, fresh)


@partial(jax.jit, static_argnames=("penalty",))
def unit_direction(penalty: Penalty | None, estimate: PrivateEstimate, params: PyTree) -> PyTree:
    """The noisy gradient with the data-free part added, as a vector of norm 1."""
    gradient = estimate.value
    if penalty is not None:
        gradient = jax.tree.map(jnp.add, gradient, jax.grad(penalty)(params))
    leaves = jax.tree.leaves(gradient)
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in leaves))
    inverse = 1 / jnp.maximum(norm, 1e-30)
    return jax.tree.map(lambda leaf: leaf * inverse.astype(leaf.dtype), gradient)


@jax.jit
def moved(params: PyTree, direction: PyTree, size: jax.Array) -> PyTree:
    """``params - size * direction``."""
    return jax.tree.map(lambda p, u: p - (size * u).astype(p.dtype), params, direction)


@partial(jax.jit, static_argnames=("penalty",))
def penalties(penalty: Penalty, params: PyTree, direction: PyTree, sizes: jax.Array) -> jax.Array:
    """The data-free part at each candidate."""
    return jax.vmap(lambda size: penalty(moved(params, direction, size)))(sizes)


@partial(jax.jit, static_argnames=("evaluator",))
def clipped_losses(
    evaluator: VmapEvaluator | LinearEvaluator,
    params: PyTree,
    direction: PyTree,
    sizes: jax.Array,
    records: Records,
    objective_clip: jax.Array,
) -> ClippedSum:
    """Sums of the examples' losses at each candidate, each loss a whole number in ``[0, LEVELS]``.

    As (candidates, 2): high and low bytes. A loss that is not a number counts as the largest, so
    that no line search is drawn to where the model breaks down.
    """
    losses = _losses_along(evaluator, params, direction, records.data)

    def sums(size: jax.Array) -> jax.Array:
        share = losses(size).astype(jnp.float32) / objective_clip
        share = jnp.clip(jnp.where(jnp.isnan(share), 1.0, share), 0.0, 1.0)
        units = jnp.where(records.valid > 0, jnp.round(share * LEVELS), 0.0).astype(jnp.uint32)
        return jnp.stack([jnp.sum(units >> 8), jnp.sum(units & 255)])

    return ClippedSum(jax.lax.map(sums, sizes))


def _losses_along(
    evaluator: VmapEvaluator | LinearEvaluator, params: PyTree, direction: PyTree, data: PyTree
) -> Callable[[jax.Array], jax.Array]:
    """All examples' losses as a function of the step size."""
    if isinstance(evaluator, LinearEvaluator):
        linear = evaluator.loss
        X, y, _ = data
        # Logits are linear in the weights: two products serve all candidates.
        here, along = (linear.logits(w.astype(jnp.float32), X) for w in (params, direction))
        return lambda size: linear.values(here - size * along, y)
    loss = evaluator.loss
    count = jax.tree.leaves(data)[0].shape[0]
    together = min(evaluator.microbatch or count, count)

    def at(size: jax.Array) -> jax.Array:
        candidate = moved(params, direction, size)
        return jax.lax.map(lambda example: loss(candidate, *example), data, batch_size=together)

    return at


def _exact(sums: ClippedSum) -> NDArray[np.float64]:
    """The sums in float64, where they are exact."""
    parts = np.asarray(sums.clipped, np.float64)
    return parts[:, 0] * 256 + parts[:, 1]


def _penalty(loss: Loss, given: Penalty | None) -> Penalty | None:
    """The data-free regulariser as a function of the parameters: the given one, or the loss's own."""
    if given is not None:
        return given
    if not isinstance(loss, LinearLoss) or (
        type(loss).regularizer_gradient is LinearLoss.regularizer_gradient
    ):
        return None
    value: Penalty | None = getattr(loss, "penalty", None)
    if value is None:
        raise SordinoError(
            f"a line search needs the value of {type(loss).__name__}'s regularizer; give the loss a "
            "method `penalty`, or pass `regularizer`"
        )
    return value


@dataclass(frozen=True)
class Past:
    """What a noise rule may look at: all of it was released, or follows from what was.

    Attributes:
      step, steps: the step about to be taken, from 0, and the number that was planned.
      params: the parameters that it will evaluate gradients at.
      previous: those of the step before; None in the first step.
      noise: relative noise of the steps so far.
      spent: share of the budget that they cost, from 0 to 1.
    """

    step: int
    steps: int
    params: PyTree
    previous: PyTree | None
    noise: tuple[float, ...]
    spent: float


# The most noise that a rule may ask for, in units of the plan's.
LARGEST = 1e12
# The relative noise of the next step: 1 is the plan's, smaller ones cost more.
NoiseRule: TypeAlias = Callable[[Past], float]


class FilteredRun(TrainingRun):
    """A `TrainingRun` that asks a rule before each step, and pays for what it says."""

    def __init__(self, plan: Plan, *args: Any, noise_rule: NoiseRule, **options: Any) -> None:
        if not isinstance(plan.schedule, FilteredBudget):
            raise SordinoError(
                "a noise rule needs a plan whose budget a filter keeps: plan dp-gd with "
                "schedule='filter'"
            )
        if plan.lattice is not None:
            raise SordinoError("a noise rule is for Gaussian noise; plan with noise='gaussian'")
        super().__init__(plan, *args, **options)
        self._rule = noise_rule
        self.starts = list(range(self.steps + 1))
        self._budget: PrivacyFilter = plan.schedule.budget()
        self._kappa = Adjacency(plan.guarantee.adjacency).factor
        self._bounds = plan.contribution.bounds(self.steps)[0]
        self._previous: PyTree | None = None
        self._noise: tuple[float, ...] = ()
        self._stopped = False

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or the next one costs more than is left."""
        return self._stopped or super().finished

    @property
    def spent(self) -> float:
        """``mu^2`` spent so far; a public number."""
        return (self._budget.total - self._budget.remaining) / (1 << UNIT_BITS)

    def advance(self) -> int:
        """Take the next step if it can be paid; the number of steps done after it."""
        if self.finished:
            raise PlanMismatchError(
                "the budget of this run is spent, or its steps are done; make a new plan"
            )
        t, params = self.done, jax.tree.map(jnp.copy, self.state.params)
        share = 1 - self._budget.remaining / self._budget.total
        past = Past(t, self.steps, params, self._previous, self._noise, share)
        relative = self._relative(past)
        std = np.float32(float32_up(self.plan.noise_multiplier * relative * self._bounds[t]))
        # What is paid for is what is added: the float32 number, less what covers its rounding.
        sigma = float(std) / self._bounds[t] / FLOAT32_MARGIN
        if cost_of(sigma, self._kappa) > self._budget.remaining:
            self._stopped = True
            return t
        self._budget.spend(sigma, self._kappa)
        table = self.driver.table
        stds = table.noise_stds.copy()
        stds[t] = std
        self.driver = replace(self.driver, table=replace(table, noise_stds=stds))
        done = super().advance()
        self._previous, self._noise = params, (*self._noise, relative)
        facts = {"step": done, "relative noise": relative, "spent": self.spent}
        self.trace = (*self.trace, facts)
        return done

    def restore(self, released: PublicState) -> NoReturn:
        """Refused: another answer of the rule, with the same noise, would reveal a sum."""
        raise SordinoError(
            "a run with a noise rule cannot go on from where it was; make a new plan"
        )

    def _relative(self, past: Past) -> float:
        answer = self._rule(past)
        try:
            return require_positive("noise", answer, maximum=LARGEST)
        except SordinoError:
            raise SordinoError(
                f"a noise rule gives a number greater than 0 and at most {LARGEST:g}; in step "
                f"{past.step} it gave something else, so the run ends there"
            ) from None

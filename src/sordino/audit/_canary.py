"""The canary: the example that a plan protects least, as a script of gradients.

A scripted example has one prescribed gradient for every step of the run, whatever the model's other
parameters are. A *clock* makes that possible: one parameter is driven by a large data-free
regulariser, so that its value tells the step, and an example's loss is

    <script[tick(clock)], rest>,          rest: the other parameters,

whose gradient at the point of step t is ``script[t]``, also when a stream evaluates it again one
step or one epoch later. The clock itself takes no part in any example's gradient.

`Canary.of(plan)` writes the script whose contributions meet the plan's norm bounds in every step of
the worst pattern, in the directions that the strategy separates best. Where no example can do so
(differences to the last epoch have to come from gradients that flip) it comes as close as a script
of this form can; `Canary.mu` is what it attains, in units of one fresh draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.audit._statistics import Array
from sordino.engine import PERSON_POWER
from sordino.parts.contributions import Anchored, Contribution, Lagged
from sordino.parts.sampling import groups_of, public_order
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning import Plan

Floats = NDArray[np.float32]

# The canary's gradients lie in a plane; the other examples have a direction of their own.
PLANE = 2
DIMENSIONS = PLANE + 1
# Its axes are diagonals, and cross two leaves of the model: whoever clips leaves or coordinates one
# by one, and not the vector, lets more through.
FIRST = np.array([1.0, 1.0, 0.0]) / np.sqrt(2)
SECOND = np.array([-1.0, 1.0, 0.0]) / np.sqrt(2)
# Slope of the regulariser that drives the clock: far above all noise and every contribution.
CLOCK_RATE = 1e8
# Sizes of scripted gradients in units of the clips: every clip binds. Where one follows another of
# the same direction it is twice as long, so that their difference points there too.
SIZE, GROWTH = 16.0, 2.0
LONGEST = 1e15
# Examples times steps of a scripted data set (0.2 GB).
LARGEST = 10_000_000
# Up to this many uses all signs are tried; beyond, they are all alike.
MOST_SIGNS = 12


def scripted_loss(params: PyTree, script: jax.Array, ticks: jax.Array) -> jax.Array:
    """The loss of one scripted example; `ticks` are the clock values between the steps."""
    step = jnp.sum(jax.lax.stop_gradient(params["clock"]) > ticks)
    return jnp.dot(script[step], jnp.append(params["head"], params["tail"]))


def drive_clock(params: PyTree) -> jax.Array:
    """The data-free regulariser: its gradient moves the clock by much more than noise can."""
    return -CLOCK_RATE * params["clock"]


def starting_point() -> PyTree:
    """Parameters of the scripted model before the first step."""
    tail = np.zeros(DIMENSIONS - 1, np.float32)
    return {"clock": np.float32(0), "head": np.float32(0), "tail": tail}


@dataclass(frozen=True)
class Canary:
    """One worst-case example of a plan.

    Attributes:
      row: its place in the data.
      pattern: the steps in which it takes part (secret batches: in which it may).
      directions: unit vectors of its contributions (channels, steps, DIMENSIONS); 0 where it is
        absent.
      script: its gradient at the point of each step (steps, DIMENSIONS).
      mu: length of what it adds to all releases together, in fresh draws of standard deviation
        `noise` = 1 (not meant for secret batches).
      rows: of the canary, where it is a person; all alike, so that nothing cancels. None: it is a row.
    """

    row: int
    pattern: tuple[int, ...]
    directions: Array
    script: Array
    mu: float
    rows: int | None = None

    @classmethod
    def of(cls, plan: Plan, rows: int | None = None) -> Canary:
        """The worst example of a plan, or the worst person with so many rows."""
        if not plan.guarantee.is_private:
            raise SordinoError(f"{plan.recipe} promises no privacy: there is nothing to audit")
        if isinstance(plan.schedule, AdaptiveBudget):
            raise SordinoError(
                f"{plan.recipe} decides during the run what it releases; this audit is for plans that "
                "say so before"
            )
        grams = _weighted_grams(plan)
        candidates = []
        for pattern, row in _patterns(plan).items():
            directions = _directions(plan, grams, pattern)
            energy = sum(
                float(np.einsum("si,st,ti->", e, X, e))
                for e, X in zip(directions, grams, strict=True)
            )
            candidates.append((energy, pattern, row, directions))
        energy, pattern, row, directions = max(candidates, key=lambda c: (c[0], c[1]))
        script = _script(plan.contribution, pattern, directions, plan.population.steps)
        together = plan.population.rows_per_person or 1
        return cls(row, pattern, directions, script, together * float(np.sqrt(energy)), rows)

    def shift(self, plan: Plan) -> Array:
        """What it adds to the sum of each channel and step (channels, steps, DIMENSIONS)."""
        return person_bounds(plan)[:, :, None] * self.directions

    def groups(self, plan: Plan) -> NDArray[np.int64] | None:
        """Whose row each one is: the canary's first, and after the others' the rest of its own."""
        if self.rows is None:
            return None
        return np.append(np.arange(plan.population.examples), [self.row] * (self.rows - 1))

    def data(self, plan: Plan, factor: float, ticks: Array) -> tuple[Floats, Floats]:
        """A data set with the canary's script times `factor`, and neighbours in the other direction.

        Factor 1 is the canary, 0 its absence, -1 its opposite.
        """
        n, steps = plan.population.examples, plan.population.steps
        if n * steps > LARGEST:
            raise SordinoError(
                f"an audit writes down a gradient for each of {n:,} examples and {steps:,} steps; "
                "audit a plan of the same recipe with fewer"
            )
        scripts = np.zeros((n, steps, DIMENSIONS), np.float32)
        # Each neighbour adds as much as it can, in every step, beside the canary's plane.
        rng = np.random.default_rng(n)
        scripts[:, :, PLANE] = SIZE * plan.clip * rng.choice([-1.0, 1.0], (n, 1))
        scripts[self.row] = factor * self.script
        if self.rows is not None:
            if isinstance(plan.contribution, Anchored) and not plan.population.rows_per_person:
                # Its lengths matter, not only that clips bind: together the rows are the script.
                scripts[self.row] /= self.rows ** (1 - PERSON_POWER)
            more = np.repeat(scripts[self.row][None], self.rows - 1, axis=0)
            scripts = np.concatenate([scripts, more])
        return scripts, np.tile(np.asarray(ticks, np.float32), (len(scripts), 1))


def person_bounds(plan: Plan) -> Array:
    """What one unit may add to the sum of each channel and step (channels, steps)."""
    together = plan.population.rows_per_person or 1
    return together * plan.contribution.bounds(plan.population.steps)


def planned_scale(plan: Plan) -> Array:
    """Standard deviation of fresh draws on the sums, from the plan's numbers (channels, steps)."""
    steps = plan.population.steps
    scale: Array = plan.noise_multiplier * plan.contribution.bounds(steps)
    relative = plan.schedule.relative_noise(steps)
    return scale if relative is None else scale * relative


def planned_precision(plan: Plan) -> list[Array]:
    """Inverse noise covariance of the sums of each channel, from the plan's strategy."""
    steps, channels = plan.population.steps, plan.contribution.channels
    X = plan.mechanism.strategy().gram()
    precision = []
    for channel, scale in enumerate(planned_scale(plan)):
        own = slice(channel * steps, (channel + 1) * steps)
        precision.append(X[own, own] / np.outer(scale, scale))
    # Channels have draws of their own.
    assert len(X) == channels * steps
    return precision


def _weighted_grams(plan: Plan) -> list[Array]:
    """``c_s c_t Sigma^-1_st`` of each channel at ``noise`` = 1."""
    bounds = plan.contribution.bounds(plan.population.steps)
    return [
        plan.noise_multiplier**2 * X * np.outer(c, c)
        for X, c in zip(planned_precision(plan), bounds, strict=True)
    ]


def _patterns(plan: Plan) -> dict[tuple[int, ...], int]:
    """Every pattern that some row really has, with one such row."""
    population = plan.population
    steps, n, per_epoch = population.steps, population.examples, population.steps_per_epoch
    if population.cycle is not None and population.order_seed is not None:
        members, starts = groups_of(population, None)
        return {
            tuple(range(j, steps, population.cycle)): int(members[starts[j]])
            for j in range(min(population.cycle, steps))
        }
    if population.is_secret:
        return {tuple(range(steps)): 0}
    if population.kind.is_contiguous():
        order = None if population.is_full_batch else public_order(population)
        rows = np.arange(n) if order is None else order
        firsts = {
            tuple(range(slot, steps, per_epoch)): int(rows[slot * population.batch_size])
            for slot in range(min(per_epoch, steps))
        }
    else:
        indices, mask = population.batches(RunKey.from_insecure_seed(0), 0, steps)
        present = np.zeros((n, steps), bool)
        for t in range(steps):
            present[indices[t][mask[t] > 0], t] = True
        firsts = {tuple(int(t) for t in np.flatnonzero(uses)): i for i, uses in enumerate(present)}
    # The residual of the anchored form is 0 where an epoch begins.
    if isinstance(plan.contribution, Anchored) and per_epoch > 1:
        firsts = {pattern: row for pattern, row in firsts.items() if 0 not in pattern}
    return firsts


def _directions(plan: Plan, grams: list[Array], pattern: tuple[int, ...]) -> Array:
    """Unit vectors (channels, steps, DIMENSIONS) that a script can produce on this pattern."""
    contribution, steps = plan.contribution, plan.population.steps
    directions = np.zeros((contribution.channels, steps, DIMENSIONS))
    P = list(pattern)
    if not isinstance(contribution, Lagged):
        for channel, X in enumerate(grams):
            directions[channel, P] = np.outer(_best_signs(X[np.ix_(P, P)]), FIRST)
        return directions
    flips = _flips(pattern, contribution.lag)
    directions[0, P] = np.outer(flips, FIRST)
    if isinstance(contribution, Anchored):
        # A gradient that stays within the clip can leave its anchor sideways only.
        inward = _inward(contribution)
        sideways = np.sqrt(1 - inward**2) * _best_signs(grams[1][np.ix_(P, P)])
        directions[1, P] = np.outer(-inward * flips, FIRST) + np.outer(sideways, SECOND)
    return directions


def _script(
    contribution: Contribution, pattern: tuple[int, ...], directions: Array, steps: int
) -> Array:
    """Gradients (steps, DIMENSIONS) whose contributions have these directions."""
    size = SIZE * max(contribution.clip, *contribution.bounds(steps).max(axis=1))
    # In steps in which it should be absent it would add as much.
    script = np.tile(size * FIRST, (steps, 1))
    if isinstance(contribution, Anchored):
        for t in pattern:
            first = t - t % contribution.lag
            anchor = contribution.clip * directions[0, t]
            script[first] = SIZE * anchor
            # A little more than the residual's clip lets through.
            script[t] = anchor + 1.001 * contribution.residual_clip * directions[1, t]
        return script
    length = size
    for t in pattern:
        follows = t - 1 in pattern and directions[0, t] @ directions[0, t - 1] > 0
        length = GROWTH * length if follows else size
        if length > LONGEST:
            raise SordinoError(
                "an audit cannot follow an example that is used in so many steps in a row; audit a "
                "plan with fewer steps"
            )
        script[t] = length * directions[0, t]
        if t > 0 and t - 1 not in pattern:
            # Opposite just before: whoever clips the parts of a difference one by one is found out.
            script[t - 1] = -script[t]
    return script


def _flips(pattern: tuple[int, ...], lag: int) -> Array:
    """+1 and -1 in turn, epoch by epoch: then every difference is as long as it can be."""
    return np.where(np.asarray(pattern) // lag % 2 == 0, -1.0, 1.0)


def _inward(contribution: Anchored) -> float:
    """How far a residual of full length must point back, for the gradient to stay in its clip."""
    share = 1.001 * contribution.residual_clip / (2 * contribution.clip)
    if share > 1:
        raise SordinoError(
            "this residual clip is above twice the clip and can never bind; plan with less"
        )
    return share


def _best_signs(X: Array) -> Array:
    """Signs with the largest ``e^T X e``; in turn where nothing depends on them."""
    k = len(X)
    if (np.diag(np.diag(X)) == X).all():
        return np.where(np.arange(k) % 2 == 0, 1.0, -1.0)
    if k > MOST_SIGNS or (X >= 0).all():
        return np.ones(k)
    signs = np.array([(1.0, *rest) for rest in product([1.0, -1.0], repeat=k - 1)])
    return signs[np.argmax(np.einsum("es,st,et->e", signs, X, signs))]

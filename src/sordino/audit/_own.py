r"""The white-box audit of a loss or stream of one's own, on data of one's own.

The attacker knows the code, the plan, every row but one, and sees every release. From the points of a
run he computes what the batch adds with the row and without it, by the very code that is audited:
``u1_t`` and ``u0_t`` with ``s = u1 - u0``. The releases ``y`` have the density of the planned noise around
one or the other, so with its inverse covariance ``S`` the log-likelihood ratio is exactly

    s^T S (y - u0) - s^T S s / 2,          and  sum_t log(1 - q + q e^{l_t})  for Poisson batches,

although each ``u_t`` depends on earlier releases (the map from noise to releases is triangular). Its law
is not Gaussian in general, since an example may add little in some runs; so mu is that of the privacy
curve through one event, as for secret batches in `sordino.audit._whitebox`.

A stream whose contributions exceed their clip, or whose other rows change when one is left out (a
batch mean, a batch normalisation), has a longer ``s`` than its plan allows, and is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import PyTree
from sordino.audit._canary import planned_precision, planned_scale
from sordino.audit._recording import Loss, Recording, audit_seeds
from sordino.audit._statistics import Array
from sordino.audit._whitebox import (
    CONFIDENCE,
    RUNS,
    AuditResult,
    Moved,
    by_event,
    check_auditable,
    furthest,
    log_mixture,
    pilot_of,
    result_of,
    stated_delta,
)
from sordino.engine import Records, Slices, State, StepNow, Stepper, batch_at, secret_batches
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning import Plan
from sordino.privacy import MIN_MU, POISSON, Adjacency

REPLACE = Adjacency.REPLACE_ONE
# Rows that are tried when the worst one is looked for.
MOST_ROWS = 2000


@dataclass(frozen=True)
class OwnNeighbours:
    """Two data sets that differ in one row, as recordings: 0 without it, 1 with it."""

    plan: Plan
    example: int
    worlds: tuple[Recording, Recording]

    @classmethod
    def of(
        cls,
        plan: Plan,
        loss: Loss,
        params: PyTree,
        data: PyTree,
        *,
        example: int | None = None,
        instead: PyTree | None = None,
        regularizer: Callable[[PyTree], jax.Array] | None = None,
    ) -> OwnNeighbours:
        """The pair; see `sordino.audit.white_box` for the arguments."""
        check_auditable(plan)
        if isinstance(plan.schedule, AdaptiveBudget):
            raise SordinoError(
                f"{plan.recipe} decides during the run what it releases; this audit is for plans that "
                "say so before"
            )
        _check_batches(plan)
        data = data if isinstance(data, tuple) else (data,)
        having = Recording(plan, loss, params, data, regularizer=regularizer)
        row = worst_row(having) if example is None else require_count("example", example, minimum=0)
        if row >= plan.population.examples:
            raise SordinoError(f"there is no row {row}: the data has {plan.population.examples:,}")
        if plan.guarantee.adjacency != REPLACE:
            if instead is not None:
                raise SordinoError(
                    f"under {plan.guarantee.adjacency} adjacency an example is left out, not replaced; "
                    "leave `instead` out"
                )
            return cls(plan, row, (having.without(row), having))
        if instead is None:
            raise SordinoError(
                "under replace-one adjacency say what takes the example's place: give `instead`"
            )
        return cls(plan, row, (having.on(_replaced(data, row, instead)), having))

    def audit(
        self,
        *,
        runs: int = RUNS,
        confidence: float = CONFIDENCE,
        epsilon: float | None = None,
        delta: float | None = None,
        seed: int = 0,
    ) -> AuditResult:
        """See `sordino.audit.white_box`."""
        runs = require_count("runs", runs, minimum=100)
        require_fraction("confidence", confidence)
        # In the middle of the claimed privacy loss its curve is steep, and few runs measure it well.
        mu = self.plan.guarantee.mu
        at = min(1.0, mu * mu / 2) if epsilon is None else epsilon
        require_positive("epsilon", max(at, MIN_MU))
        seen: list[Moved] = []
        pilot, values = (
            tuple(
                np.concatenate(list(self.ratios(world, 4 * seed + 2 * part + world, count, seen)))
                for world in (0, 1)
            )
            for part, count in ((1, pilot_of(runs)), (0, runs))
        )
        return result_of(
            self.plan,
            "likelihood",
            by_event(values[0], values[1], at, confidence),
            (pilot[0], pilot[1]),
            (values[0], values[1]),
            epsilon=at,
            delta=stated_delta(self.plan, delta),
            confidence=confidence,
            moved=max(seen, key=lambda moved: moved.ratio - moved.rounding),
        )

    def ratios(
        self, world: int, seed: int, runs: int, seen: list[Moved] | None = None
    ) -> Iterator[Array]:
        """Log-likelihood ratios of the runs of one world, batch by batch.

        `seen` is given, for each batch, the step in which the row moved a sum furthest.
        """
        recording = self.worlds[world]
        begin = 0
        for sums, points in recording.releases(seed, runs):
            picked = None
            if self.plan.population.is_secret:
                steps = recording.steps
                seeds = audit_seeds(seed, begin, recording.at_once())
                drawn = secret_batches(self.plan.population, seeds, 0, steps)
                picked = tuple(part[: len(sums)] for part in drawn)
            base, shift = self.means(points, picked)
            if seen is not None:
                seen.append(self._furthest(base, shift))
            begin += recording.at_once()
            yield self._ratio(np.asarray(sums, np.float64), base, shift)

    def means(self, points: PyTree, picked: PyTree = None) -> tuple[Array, Array]:
        """``u0`` and ``u1 - u0`` at the points of some runs, float64 (runs, steps, channels, d)."""
        without, having = self.worlds
        shape = (len(points), having.steps, having.stepper.channels, -1)
        means = _means(
            having.stepper,
            having.driver.batches.slices,
            (having.records, without.records),
            jnp.asarray(points),
            having.point,
            having.table(),
            having.public_batches(),
            np.int32(self.example),
            picked,
        )
        # Sums on a lattice are counted in its steps.
        unit = 1.0 if self.plan.lattice is None else self.plan.lattice.step
        with_row, without_row = (unit * np.asarray(m, np.float64).reshape(shape) for m in means)
        return without_row, with_row - without_row

    def _furthest(self, base: Array, shift: Array) -> Moved:
        """The run and step in which the row moves a sum furthest (runs, steps, channels, d)."""
        sizes = np.abs(base).sum(axis=-1)
        moves = [furthest(self.plan, *one) for one in zip(shift, sizes, strict=True)]
        return max(moves, key=lambda moved: moved.ratio - moved.rounding)

    def _ratio(self, sums: Array, base: Array, shift: Array) -> Array:
        rest = sums - base
        if not self.plan.population.is_secret:
            precision = np.stack(planned_precision(self.plan))
            pulled = np.einsum("cst,rtcd->rscd", precision, shift)
            return np.einsum("rscd,rscd->r", pulled, rest - shift / 2)
        (scale,) = planned_scale(self.plan)
        along = np.einsum("rscd,rscd->rs", shift, rest - shift / 2) / scale**2
        return log_mixture(along, np.full(len(scale), self.plan.population.rate)).sum(axis=1)


def _check_batches(plan: Plan) -> None:
    population = plan.population
    if not population.is_secret:
        return
    if (
        population.sampling != POISSON  # a cycle of groups among them
        or plan.guarantee.adjacency == REPLACE
        or population.first_batch
    ):
        raise SordinoError(
            "with data of your own, secret batches are audited for poisson sampling of one size under "
            "add-remove or zero-out adjacency; audit the plan alone, or plan with sampling='fixed'"
        )


def _replaced(data: tuple[PyTree, ...], row: int, instead: PyTree) -> tuple[PyTree, ...]:
    """The data with another example in one row."""
    other = instead if isinstance(instead, tuple) else (instead,)

    def put(leaf: PyTree, value: PyTree) -> PyTree:
        changed = np.array(leaf, copy=True)
        changed[row] = value
        return changed

    try:
        return tuple(jax.tree.map(put, data, other))
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SordinoError(f"`instead` must be one example like those of data: {reason}") from None


def worst_row(recording: Recording) -> int:
    """The row that adds most along a run without noise, in the units of the plan's noise.

    A search among the rows there are: it shows what they can do, not what any example could.
    """
    plan = recording.plan
    if plan.population.examples > MOST_ROWS:
        raise SordinoError(
            f"the worst of more than {MOST_ROWS:,} rows takes long to find; name one with `example`"
        )
    silent = recording.silenced()
    points = next(silent.releases(0, 1)).points
    picked = None
    if plan.population.is_secret:
        indices, mask = plan.population.batches(recording.key, 0, recording.steps)
        picked = (indices[None], mask[None])
    precision = np.stack(planned_precision(plan))
    energies = []
    for row in range(plan.population.examples):
        pair = OwnNeighbours(plan, row, (recording.without(row), recording))
        _, shift = pair.means(points, picked)
        pulled = np.einsum("cst,rtcd->rscd", precision, shift)
        energies.append(float(np.einsum("rscd,rscd->", pulled, shift)))
    return int(np.argmax(energies))


@partial(jax.jit, static_argnames=("stepper", "slices"))
def _means(
    stepper: Stepper,
    slices: Slices | None,
    worlds: tuple[Records, Records],
    points: jax.Array,
    like: PyTree,
    table: StepNow,
    public: PyTree,
    example: jax.Array,
    picked: PyTree,
) -> tuple[jax.Array, jax.Array]:
    """The clipped sums with the example and without it, at given points (runs, steps, channels d)."""
    _, unravel = ravel_pytree(like)
    evaluator = stepper.evaluator

    def one(run: jax.Array, drawn: PyTree) -> tuple[jax.Array, jax.Array]:
        def step(memory: PyTree, row: PyTree) -> tuple[PyTree, PyTree]:
            point, now, shared, own = row
            params = unravel(point)
            sums = []
            for records, there in zip(worlds, (1.0, 0.0), strict=True):
                if own is None:
                    batch = batch_at(slices, records, now.t, shared)
                else:
                    # Secret batches: those of the others are known; the example is put in or not.
                    indices, present = own
                    others = present * (indices != example)
                    batch = records.take(jnp.append(indices, example), jnp.append(others, there))
                total = stepper.total(State(params, memory, ()), batch, now)
                sums.append(ravel_pytree(total.clipped)[0])
            return evaluator.remember(memory, params, now.t), tuple(sums)

        start = evaluator.init(unravel(run[0]))
        return jax.lax.scan(step, start, (run, table, public, drawn))[1]

    return jax.vmap(one, in_axes=(0, None if picked is None else 0))(points, picked)

r"""A white-box audit: the real loop, thousands of times, on two neighbouring data sets.

    result = white_box(plan)                  # 10,000 runs with the worst example, 10,000 without
    result.mu_low, result.epsilon_low, print(result.verdict())
    result = white_box(plan, loss, params, data)   # the same with a loss or a `Stream` of your own

The attacker knows the plan and everything but the one example, sees every release, and computes
from them one number per run, from which mu is estimated with a confidence interval.

**Batches in a public order.** The releases are Gaussian around two means whose difference ``s`` is
known, with the covariance Sigma of the plan. The log-likelihood ratio is ``s^T Sigma^-1 x`` up to
constants, its law is N(+-mu^2/2, mu^2), and mu is the distance of its means over its deviation.

**Secret batches.** The canary takes part in a step with probability q (of cyclic batches: in a step of its
group), so a step's likelihood ratio is a mixture, ``log(1 - q + q e^l)`` (zero-out; a ratio of two
mixtures for replace-one, ``e^l`` and ``e^l'`` for the canary and its opposite). The event "the sum over
the steps exceeds epsilon" gives delta(epsilon), which is stated as the mu whose GDP curve passes through
it, like the plan's own.

**Two attacks.** All of that is computed from the plan: if the implementation does something else, the
numbers do not fit the claim. But noise that is correlated in a way that the plan does not say can
help another attacker. So a pilot, of a fifth of the runs, also fits the best linear statistic (Fisher's
discriminant) and, for secret batches, the best threshold to what is really released; if that is
clearly better there, it is the attack that the main runs are scored by. The choice is made before
those are drawn, so that the interval is valid for either.

**Epsilon.** Where the releases are Gaussian the lower bound on epsilon at the plan's delta is that of
`mu_low`. Elsewhere it is that of one more event E, chosen on the pilot: ``P(E) <= e^eps Q(E) + delta``
with Clopper-Pearson bounds for both sides. All bounds that can raise the alarm together are missed
with probability ``1 - confidence`` at most.

**Step by step.** mu is one number for all steps, and a bound that is exceeded in some of them may hide in
it. So every step is looked at by itself, in both worlds and without noise: where sum and noise would meet,
the sums may differ by what the plan states for that step, and no more. This has no statistics in it.

**What it could have found.** An audit that finds nothing also says how large a violation would have raised
the alarm with probability 95 % (`sordino.audit._statistics`). It never says that a plan is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import jax
import numpy as np

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import Json, PyTree
from sordino.audit._canary import (
    DIMENSIONS,
    Canary,
    drive_clock,
    person_bounds,
    planned_precision,
    scripted_loss,
    starting_point,
)
from sordino.audit._recording import Loss, Recording
from sordino.audit._statistics import (
    POWER,
    Array,
    Interval,
    Points,
    best_epsilon_threshold,
    detectable,
    detection,
    epsilon_of_event,
    equivalent_mu,
    event_delta,
    event_factor,
    finite,
    hockey_stick,
    measured_curve,
    percent,
    separable,
    separation,
    share_above,
)
from sordino.engine import refuse_others
from sordino.parts.sampling import group_rate
from sordino.planning import Plan
from sordino.privacy import MAX_MU, ROW, Adjacency, Guarantee, Unit, epsilon_from_mu

Statistic = Callable[[Array], Array]
Score = Callable[[Array, Array, float, float], Interval]

RUNS = 10_000
# Rows of the person that is looked for, where a plan protects persons.
PERSON_ROWS = 50
CONFIDENCE = 0.999
# Where epsilon is stated, if the plan names no delta.
DELTA = 1e-5
# A pilot of this share of the runs chooses the attack.
PILOT = 0.2
# The learned attack is scored on the runs it was fitted to, so it must be better by this much.
CLEARLY = 1.1
# A discriminant of more numbers than this share of the pilot would fit its noise.
MOST_FEATURES = 0.1
# Sums are float32: the difference of two is known to this share of what is in them.
ROUNDING = 1e-5
# Runs that are looked at for how far an example moves a sum, where it is in some steps only.
_MOVED_KEYS = 200


@dataclass(frozen=True)
class Moved:
    """How far the example moves the sum of one step, before noise, against what the plan states.

    Attributes:
      step: from 0; the one where `ratio` is largest.
      ratio: distance over bound.
      rounding: what float32 sums may add to it.
    """

    step: int
    ratio: float
    rounding: float

    @property
    def exceeds(self) -> bool:
        return self.ratio > 1 + self.rounding


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
      mu_low, mu_estimate, mu_high: the attack's mu, with a two-sided interval.
      mu_claimed: what the plan states.
      runs: how many with the canary, and as many without.
      confidence: of the interval, and of the alarm.
      attack: "planned", "learned" or, for a stream of one's own, "likelihood".
      epsilon: where two privacy curves were compared; None where mu was measured directly.
      delta: where epsilon is stated.
      epsilon_low, epsilon_claimed: a lower bound on epsilon at `delta` from the runs, and the claim.
      curve: (false positive rate, true positive rate) of the attack.
      guarantee: the claim in full.
      detectable: the smallest leak, in units of the claim, that would have raised the alarm with
        probability `POWER`; infinite if none would.
      moved: the step in which the example moves the sum furthest; None where it was not looked at.
    """

    recipe: str
    mu_low: float
    mu_estimate: float
    mu_high: float
    mu_claimed: float
    runs: int
    confidence: float
    attack: str = "planned"
    epsilon: float | None = None
    delta: float = DELTA
    epsilon_low: float = 0.0
    epsilon_claimed: float = math.inf
    curve: Points = ()
    guarantee: Guarantee | None = None
    detectable: float = math.inf
    moved: Moved | None = None

    @property
    def violates(self) -> bool:
        """Whether the loop leaks more than its plan states, at this confidence."""
        beyond = self.moved is not None and self.moved.exceeds
        return beyond or self.mu_low > self.mu_claimed or self.epsilon_low > self.epsilon_claimed

    @property
    def ratio(self) -> float:
        """The estimate over the claim."""
        return self.mu_estimate / self.mu_claimed

    def verdict(self) -> str:
        """The result as a sentence."""
        measured = (
            f"mu between {self.mu_low:.4g} and {self.mu_high:.4g} (estimate {self.mu_estimate:.4g})"
        )
        at = "" if self.epsilon is None else f" at epsilon {self.epsilon:.4g}"
        unit = "example" if self.guarantee is None else self.guarantee.unit
        stated = (
            f"{percent(self.confidence)} confidence, {self.runs:,} runs with and without one {unit}"
        )
        bound = (
            f"epsilon at least {self.epsilon_low:.4g} at delta {self.delta:g}, where "
            f"{self.epsilon_claimed:.4g} is claimed"
        )
        if self.violates:
            step = ""
            if self.moved is not None and self.moved.exceeds:
                step = (
                    f"in step {self.moved.step + 1:,} one {unit} moves the sum by "
                    f"{self.moved.ratio:.4g} times its bound; "
                )
            return (
                f"{self.recipe} leaks more than its plan states: {step}{measured}{at}, where "
                f"{self.mu_claimed:.4g} is claimed; {bound} ({stated})."
            )
        return (
            f"No violation found. Measured mu {self.ratio:.3f} of the claim; "
            f"{detection(self.detectable)} ({self.recipe}: {measured}{at}, where {self.mu_claimed:.4g} is "
            f"claimed; {bound}; {stated}, {percent(POWER)} power)."
        )

    def to_json(self) -> Json:
        """Plain data for continuous integration; infinite claims become null."""
        return {
            **asdict(self),
            "kind": "white-box",
            "exceeded": self.violates,
            "epsilon_claimed": finite(self.epsilon_claimed),
            "detectable": finite(self.detectable),
            "power": POWER,
            "guarantee": None if self.guarantee is None else self.guarantee.to_json(),
            "verdict": self.verdict(),
        }


def white_box(
    plan: Plan,
    loss: Loss | None = None,
    params: PyTree | None = None,
    data: PyTree | None = None,
    *,
    example: int | None = None,
    instead: PyTree | None = None,
    regularizer: Callable[[PyTree], jax.Array] | None = None,
    person_rows: int | None = None,
    runs: int = RUNS,
    confidence: float = CONFIDENCE,
    epsilon: float | None = None,
    delta: float | None = None,
    seed: int = 0,
) -> AuditResult:
    """Audit a plan, or a plan with a loss or stream of your own.

    Alone, the plan is run on a small scripted model whose one special example attains the plan's
    bounds. With `loss`, `params` and `data` it is your code that runs, on your data, and the special
    example is one of your rows.

    Args:
      plan: a private plan; plan a short run for few examples.
      loss, params, data: as for `sordino.train`.
      example: the row that is there in one world only; by default the one that adds most.
      instead: for replace-one plans, what takes its place: one example, without the leading axis.
      regularizer: as for `sordino.train`.
      person_rows: for plans that protect persons, and without a loss of your own: how many rows the special
        person has, all alike. By default as many as the plan lets in, else 50; 1 elsewhere.
      runs: with the example; as many without, and a fifth more of both for the pilot.
      confidence: of the interval of mu, and that no false alarm is raised.
      epsilon: where privacy curves are compared, if mu cannot be measured directly; by default 1,
        and for your own data where the claimed curve is steep.
      delta: where epsilon is stated; by default the plan's, else 1e-5.
      seed: of the audit's run keys.
    """
    from sordino.audit._own import OwnNeighbours

    pair: Neighbours | OwnNeighbours
    if loss is None:
        if not (params is data is example is instead is regularizer is None):
            raise SordinoError("give loss, params and data together, or the plan alone")
        pair = Neighbours.of(plan, person_rows=person_rows)
    elif person_rows is not None or plan.population.rows_per_person is not None:
        raise SordinoError("an audit of persons scripts their rows itself; give the plan alone")
    elif params is None or data is None:
        raise SordinoError("an audit of your own loss or stream needs params and data as well")
    else:
        pair = OwnNeighbours.of(
            plan, loss, params, data, example=example, instead=instead, regularizer=regularizer
        )
    return pair.audit(runs=runs, confidence=confidence, epsilon=epsilon, delta=delta, seed=seed)


def stated_delta(plan: Plan, delta: float | None) -> float:
    """The delta at which an audit states epsilon."""
    if delta is not None:
        return require_fraction("delta", delta)
    for known in (plan.delta, plan.guarantee.delta_hint):
        if known is not None:
            return known
    return DELTA


def check_auditable(plan: Plan) -> None:
    """Refuse plans that promise nothing, or not what they state."""
    plan.verify()
    refuse_others(plan, "an audit")
    plan.population.require_declared("an audit")
    if not plan.guarantee.is_private:
        raise SordinoError(f"{plan.recipe} promises no privacy: there is nothing to audit")


def rows_of_canary(plan: Plan, wanted: int | None) -> int | None:
    """Of a plan's canary, where it is a person; see `white_box`."""
    most = plan.population.rows_per_person
    if plan.guarantee.unit == ROW:
        if wanted is not None:
            raise SordinoError("this plan protects rows; plan with unit='person' for person_rows")
        return None
    if wanted is None and most is None and plan.guarantee.unit != Unit.PERSON:
        return None  # everyone has one row
    rows = require_count("person_rows", wanted or most or PERSON_ROWS)
    if most is not None and rows != most:
        raise SordinoError(
            f"the worst person of this plan has {most:,} rows; leave person_rows out"
        )
    return rows


@dataclass(frozen=True)
class Neighbours:
    """Two neighbouring data sets as recordings: 0 without the canary, 1 with it.

    Under replace-one, world 0 has its opposite instead.
    """

    plan: Plan
    canary: Canary
    worlds: tuple[Recording, Recording]
    ticks: Array

    @classmethod
    def of(
        cls, plan: Plan, canary: Canary | None = None, person_rows: int | None = None
    ) -> Neighbours:
        """The pair of a plan, its clock read off a run without noise."""
        check_auditable(plan)
        if canary is None:
            canary = Canary.of(plan, rows_of_canary(plan, person_rows))
        stopped = canary.data(plan, 0.0, np.zeros(plan.population.steps - 1))
        run = Recording(
            plan,
            scripted_loss,
            starting_point(),
            stopped,
            regularizer=drive_clock,
            groups=canary.groups(plan),
        )
        ticks = _clock_ticks(run)
        without = -1.0 if plan.guarantee.adjacency == Adjacency.REPLACE_ONE else 0.0
        worlds = (
            run.on(canary.data(plan, without, ticks)),
            run.on(canary.data(plan, 1.0, ticks)),
        )
        return cls(plan, canary, worlds, ticks)

    def audit(
        self,
        *,
        runs: int = RUNS,
        confidence: float = CONFIDENCE,
        epsilon: float | None = None,
        delta: float | None = None,
        seed: int = 0,
    ) -> AuditResult:
        """See `white_box`."""
        runs = require_count("runs", runs, minimum=100)
        require_fraction("confidence", confidence)
        at = 1.0 if epsilon is None else require_positive("epsilon", epsilon)
        guarantee = self.plan.guarantee
        scored = by_event if guarantee.is_amplified else _by_means

        def values_of(statistic: Statistic, pilot: int, count: int) -> tuple[Array, Array]:
            without, having = (
                np.concatenate([statistic(x) for x in self.features(w, key, count)])
                for w, key in enumerate(self._seeds(seed, pilot))
            )
            return without, having

        pilot = values_of(lambda features: features, 1, pilot_of(runs))
        attack, statistic = self._chosen_attack(scored, *pilot, at)
        values = values_of(statistic, 0, runs)
        return result_of(
            self.plan,
            attack,
            scored(*values, at, confidence),
            (statistic(pilot[0]), statistic(pilot[1])),
            values,
            epsilon=at if guarantee.is_amplified else None,
            delta=stated_delta(self.plan, delta),
            confidence=confidence,
            moved=self.moved(seed),
        )

    def moved(self, seed: int = 0) -> Moved:
        """How far the canary moves each step's sum without noise, at worst."""
        # From secret batches it may be absent: among many keys it is not.
        keys = _MOVED_KEYS if self.plan.population.is_secret else 1
        without, having = (
            np.asarray(next(world.silenced().releases(4 * seed, keys)).sums, np.float64)
            for world in self.worlds
        )
        # (runs, steps, channels, d); the clock's own coordinate has no example in it, and is large.
        apart = (having - without)[..., -DIMENSIONS:]
        largest = np.abs(np.stack([having, without])[..., -DIMENSIONS:]).sum(axis=-1).max(axis=0)
        each = [furthest(self.plan, *one) for one in zip(apart, largest, strict=True)]
        return max(each, key=lambda moved: moved.ratio - moved.rounding)

    def _chosen_attack(
        self, scored: Score, without: Array, having: Array, epsilon: float
    ) -> tuple[str, Statistic]:
        """The best attack on a pilot of runs that are used for nothing else."""
        planned, fitted = self.planned_statistic(), _discriminant(without, having)
        learned = [] if fitted is None else [fitted]
        if self.plan.guarantee.is_amplified:
            # The event "above epsilon" is the best one if all is as planned; else another may be.
            learned = [
                _moved(statistic, _best_shift(statistic(without), statistic(having), epsilon))
                for statistic in (planned, *learned)
            ]

        def score(statistic: Statistic) -> float:
            return scored(statistic(without), statistic(having), epsilon, CONFIDENCE)[1]

        best = max(learned, key=score, default=planned)
        is_better = score(best) > CLEARLY * max(score(planned), 0.0)
        return ("learned", best) if is_better else ("planned", planned)

    def features(self, world: int, seed: int, runs: int) -> Iterator[Array]:
        """Released sums without the clock's coordinate (runs, channels, steps, DIMENSIONS)."""
        for sums, points in self.worlds[world].releases(seed, runs):
            step = (points[:, :, 0, None] > self.ticks).sum(axis=2)
            if not (step == np.arange(self.plan.population.steps)).all():
                raise SordinoError("noise moved the audit's clock; plan with less noise")
            yield np.swapaxes(sums, 1, 2)[..., -DIMENSIONS:].astype(np.float64)

    def planned_statistic(self) -> Statistic:
        """The log-likelihood ratio that the plan implies, up to a constant."""
        shift = self.canary.shift(self.plan)
        if not self.plan.population.is_secret:
            precision = np.stack(planned_precision(self.plan))
            weights = np.einsum("cst,cti->csi", precision, shift)
            return lambda x: np.einsum("rcsi,csi->r", x, weights)
        rates, groups = _rates(self.plan), self._groups()
        # The columns of the canary's steps share no row, so its steps do not interact.
        precision = np.stack(planned_precision(self.plan))
        weights = np.einsum("cst,csi->scti", precision, shift)
        half = np.einsum("css,csi,csi->s", precision, shift, shift) / 2
        opposite = self.plan.guarantee.adjacency == Adjacency.REPLACE_ONE

        def mixed(along: Array) -> Array:
            """Of the steps, in a group that nobody knows where it is secret."""
            loss = log_mixture(along - half, rates)
            return np.logaddexp.reduce([loss @ own for own in groups], axis=0) - math.log(
                len(groups)
            )

        def ratio(x: Array) -> Array:
            along = np.einsum("rcti,scti->rs", x, weights)
            return mixed(along) - (mixed(-along) if opposite else 0.0)

        return ratio

    def _groups(self) -> Array:
        """The steps of each group that the canary may be in (groups, steps), as 0 and 1."""
        population = self.plan.population
        t = np.arange(population.steps)
        if population.cycle is None or population.order_seed is not None:
            return np.ones((1, population.steps))
        return (t % population.cycle == np.arange(population.cycle)[:, None]).astype(np.float64)

    def _seeds(self, seed: int, pilot: int) -> tuple[int, int]:
        """Names of the run keys of each world.

        Secret batches take long to draw, so both worlds have the same keys there: the bounds of the
        two proportions hold one by one, whatever the worlds have in common.
        """
        first = 4 * seed + 2 * pilot
        return first, first + (0 if self.plan.population.is_secret else 1)


def _rates(plan: Plan) -> Array:
    """Inclusion probability of the canary in each step that it may be in (steps,)."""
    population = plan.population
    if population.cycle is not None:
        return np.full(population.steps, group_rate(population))
    sizes, counts = zip(*population.batch_sizes(), strict=True)
    return np.repeat([size / population.examples for size in sizes], counts)


def pilot_of(runs: int) -> int:
    """How many runs choose the attack."""
    return max(100, round(PILOT * runs))


def furthest(plan: Plan, apart: Array, sums: Array) -> Moved:
    """The step in which two worlds' sums are furthest apart, in units of what the plan states for it.

    Args:
      apart: difference of the sums (steps, channels, d).
      sums: how large they are (steps, channels): so coarse are float32 numbers.
    """
    bounds = person_bounds(plan).T * Adjacency(plan.guarantee.adjacency).factor
    ratios = np.linalg.norm(apart, axis=-1) / bounds
    beyond = ratios - ROUNDING * (1 + sums / bounds)
    step, channel = np.unravel_index(int(np.argmax(beyond)), beyond.shape)
    rounding = float((ratios - beyond)[step, channel])
    return Moved(int(step), float(ratios[step, channel]), rounding)


class Claimed(Protocol):
    """What is audited: its name and its claim."""

    @property
    def recipe(self) -> str: ...
    @property
    def guarantee(self) -> Guarantee: ...


def result_of(
    plan: Claimed,
    attack: str,
    interval: Interval,
    pilot: tuple[Array, Array],
    values: tuple[Array, Array],
    *,
    epsilon: float | None,
    delta: float,
    confidence: float,
    moved: Moved | None = None,
) -> AuditResult:
    """The result of an attack whose statistic has these values in each world (without, having).

    With an `epsilon`, mu is that of a privacy curve, and epsilon needs an event of its own.
    """
    guarantee = plan.guarantee
    low, estimate, high = (float(end) for end in interval)
    runs = len(values[0])
    if epsilon is None:
        claimed = guarantee.mu
        flagged = separable(claimed, runs, confidence)
        # Without any noise, mu has no bound; what is above this one protects nobody.
        epsilon_low = epsilon_from_mu(min(max(low, 0.0), MAX_MU), delta)
    else:
        claimed = equivalent_mu(epsilon, guarantee.delta(epsilon))
        if guarantee.is_amplified:
            rate = float((values[0] > epsilon).mean())
            needed = event_delta(guarantee.delta(epsilon), epsilon, rate, runs, confidence)
            flagged = equivalent_mu(epsilon, needed) if needed < 1 else math.inf
        else:
            flagged = claimed * event_factor(claimed, epsilon, runs, confidence)
        # The interval's lower end uses half of the error; this bound has the other half.
        tail = (1 - confidence) / 4
        threshold = best_epsilon_threshold(*pilot, runs, delta, tail)
        hits = int((values[1] > threshold).sum()), int((values[0] > threshold).sum())
        epsilon_low = epsilon_of_event(*hits, runs, delta, tail)
    return AuditResult(
        recipe=plan.recipe,
        mu_low=low,
        mu_estimate=estimate,
        mu_high=high,
        mu_claimed=claimed,
        runs=runs,
        confidence=confidence,
        attack=attack,
        epsilon=epsilon,
        delta=delta,
        epsilon_low=epsilon_low,
        epsilon_claimed=guarantee.epsilon(delta),
        curve=measured_curve(*values),
        guarantee=guarantee,
        detectable=detectable(flagged, estimate, claimed),
        moved=moved,
    )


def _clock_ticks(run: Recording) -> Array:
    """Clock values half-way between the steps (steps - 1,), from a run without noise."""
    clock = next(run.silenced().releases(0, 1)).points[0, :, 0].astype(np.float64)
    if not (np.diff(clock) > 0).all():
        raise SordinoError(
            f"the update of {run.plan.recipe} does not follow its regulariser, which this audit needs"
        )
    return (clock[1:] + clock[:-1]) / 2


def log_mixture(log_ratio: Array, rates: Array) -> Array:
    """``log(1 - q + q e^l)`` of each step."""
    with np.errstate(divide="ignore"):  # a rate of 1 leaves nothing of the first part
        return np.logaddexp(np.log1p(-rates), np.log(rates) + log_ratio)


def _by_means(without: Array, having: Array, epsilon: float, confidence: float) -> Interval:
    """mu of Gaussian releases: the distance of the means over the deviation."""
    del epsilon
    return separation(without, having, len(having), confidence)


def by_event(without: Array, having: Array, epsilon: float, confidence: float) -> Interval:
    """mu of the privacy curve through delta(epsilon) of the event "the ratio exceeds epsilon"."""
    hits = int((having > epsilon).sum()), int((without > epsilon).sum())
    interval = hockey_stick(*hits, len(having), epsilon, confidence)
    low, estimate, high = (equivalent_mu(epsilon, delta) for delta in interval)
    return low, estimate, high


def _moved(statistic: Statistic, shift: float) -> Statistic:
    return lambda x: statistic(x) + shift


def _best_shift(without: Array, having: Array, epsilon: float) -> float:
    """What to add so that the event "above epsilon" has the largest ``P - e^epsilon Q``."""
    thresholds = np.sort(having)
    above = 1 - np.arange(1, len(having) + 1) / len(having)
    gained = above - np.exp(epsilon) * share_above(without, thresholds)
    return epsilon - float(thresholds[np.argmax(gained)])


def _discriminant(without: Array, having: Array) -> Statistic | None:
    """Fisher's discriminant of two samples, scaled like a log-likelihood ratio."""
    a, b = (x.reshape(len(x), -1) for x in (without, having))
    if a.shape[1] > MOST_FEATURES * len(a):
        return None
    centres = a.mean(axis=0), b.mean(axis=0)
    pooled: Array = (np.cov(a.T) + np.cov(b.T)) / 2
    scale = float(np.trace(pooled)) / len(pooled)
    # Where noise is missing altogether the covariance is singular.
    weights = np.linalg.solve(pooled + 1e-10 * scale * np.eye(len(pooled)), centres[1] - centres[0])
    middle = weights @ (centres[0] + centres[1]) / 2
    return lambda x: x.reshape(len(x), -1) @ weights - middle

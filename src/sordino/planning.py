"""Plan, then run: everything about privacy, decided before a single record is read.

    plan = sordino.plan("dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=0.1, delta=1e-6)
    print(plan); plan.guarantee.mu; plan.save("plan.json")

A plan is frozen and independent of the data. It holds the noise, the strategy, the guarantee and what
to expect; it prints as a page, saves as versioned JSON, and has a content hash. A run of it cannot
release anything the plan does not name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._files import write_atomically
from sordino.accounting import calibrated_noise, float32_up, guarantee_of, run_sensitivity
from sordino.errors import (
    DAMAGE,
    SordinoError,
    known_fields,
    one_line,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino.mechanisms.base import Mechanism, mechanism_from_json
from sordino.mechanisms.catalogue import fit_mechanism
from sordino.mechanisms.dense import Dense
from sordino.mechanisms.independent import Independent
from sordino.mechanisms.lattice import (
    LEAST_STEPS,
    Lattice,
    Variances,
    draw_stds,
    is_on_lattice,
)
from sordino.mechanisms.maps import Channels
from sordino.mechanisms.scaled import DrawScaled
from sordino.mechanisms.split import lagged_mechanism
from sordino.mechanisms.workloads import LinearMap, Workload, linear_map_from_json
from sordino.population import (
    LARGEST_EPSILON,
    NATURAL_ADJACENCY,
    POISSON,
    Population,
    warn_of_weak_budget,
)
from sordino.privacy.guarantee import ADJACENCIES, UNITS, Guarantee
from sordino.recipes import Recipe, recipe_named
from sordino.schedules.adaptive import AdaptiveBudget
from sordino.schedules.allocate import SAFE_RATIO
from sordino.schedules.base import Schedule, Uniform, schedule_from_json
from sordino.schedules.catalogue import schedule_named, subsampled_schedule
from sordino.schedules.shapes import FromInfluence, Given, Participation
from sordino.streams.contributions import Contribution, Lagged, contribution_from_json
from sordino.updates.settings import UpdateSettings

FORMAT = "sordino-plan"
FORMAT_VERSION = 2

GAUSSIAN, DISCRETE = "gaussian", "discrete"
NOISE_KINDS = (GAUSSIAN, DISCRETE)


@dataclass(frozen=True, eq=False)
class Plan:
    """A private run, decided but not yet run.

    Attributes:
      contribution: what one example adds to the sum of each step, and the norm bounds ``c_t`` of it.
      noise: standard deviation of each fresh Gaussian draw in units of the bound; the noise on the
        sum of step t is row t of ``diag(noise * c_t * relative_t) C^-1 Z``.
      schedule: the relative noise of each step.
      workload: the linear map of the released sums that the noise is shaped for.
      lattice: where noise is discrete, what sums and noise are whole multiples of.
    """

    recipe: str
    population: Population
    contribution: Contribution
    noise: float
    mechanism: Mechanism
    schedule: Schedule
    update: UpdateSettings
    workload: LinearMap
    guarantee: Guarantee
    epsilon: float | None = None
    delta: float | None = None
    lattice: Lattice | None = None

    @property
    def noise_kind(self) -> str:
        """`GAUSSIAN` or `DISCRETE`."""
        return GAUSSIAN if self.lattice is None else DISCRETE

    @property
    def clip(self) -> float:
        """Largest norm of one example's clipped gradient."""
        return self.contribution.clip

    @property
    def divisor(self) -> int:
        """The public constant by which noisy sums are divided (after a first batch of another size)."""
        return self.population.batch_size

    @property
    def noise_std(self) -> float:
        """Standard deviation of a fresh draw on a sum of contributions of norm at most `clip`."""
        return float32_up(self.noise * self.clip)

    def noise_stds(self) -> NDArray[np.float32]:
        """Standard deviation of the fresh draws of each step and channel (steps, channels)."""
        exact = self.noise * self._relative_bounds() * self.clip
        rounded = exact.astype(np.float32)
        up = np.nextafter(rounded, np.float32(math.inf))
        return np.where(rounded.astype(np.float64) < exact, up, rounded)

    def noise_variances(self) -> Variances:
        """Of discrete noise: the parameter S of each step's draws, in squared lattice steps."""
        if self.lattice is None:
            raise SordinoError("this plan's noise is on no lattice; plan with noise='discrete'")
        return self.lattice.variances(self.mechanism, self.noise_stds())

    def _distance(self) -> float:
        """Total variation between the run's noise and rounded Gaussian noise."""
        if self.lattice is None:
            return 0.0
        return self.lattice.distance(self.mechanism, self.noise_stds())

    def _relative_bounds(self) -> NDArray[np.float64]:
        """Noise of each step and channel relative to ``noise * clip`` (steps, channels)."""
        steps = self.population.steps
        bounds = self.contribution.bounds(steps).T / self.clip
        relative = self.schedule.relative_noise(steps)
        return bounds if relative is None else bounds * relative[:, None]

    def noise_per_step(self) -> NDArray[np.float64]:
        """Standard deviation, per coordinate, of the noise in each mean contribution (steps,).

        Where a step releases several vectors: of the first one.
        """
        return self._error(Workload.identity())

    def error_per_step(self) -> NDArray[np.float64]:
        """Predicted noise in the iterates at learning rate 1, per coordinate (steps,).

        The iterates add up what the optimizer makes of the noisy sums: noise that later noise
        cancels counts once, noise that a recursion carries along counts every time.
        """
        return self._error(self.judged)

    @cached_property
    def judged(self) -> LinearMap:
        """The linear map from the released sums to the iterates at learning rate 1."""
        return self.update.judged(self.contribution)

    def _error(self, judged: LinearMap) -> NDArray[np.float64]:
        scale = self.noise * self.clip / self.divisor
        weights = self._relative_bounds()
        if np.all(weights == weights.flat[0]):
            return self.mechanism.workload_error(judged) * scale * weights.flat[0]
        if weights.shape[1] == 1:
            weights = weights[:, 0]
        return self.mechanism.workload_error(judged, weights) * scale

    @cached_property
    def predicted_error(self) -> float:
        """Root mean square of `error_per_step`."""
        return float(np.sqrt(np.mean(self.error_per_step() ** 2)))

    @cached_property
    def relative_error(self) -> float:
        """`predicted_error` relative to the way that a constant gradient of norm `clip` would go.

        Comparable between recipes with other streams, batch sizes, steps or momentum: the quantity
        that `compare` ranks by.
        """
        signal = self.contribution.signal(self.population.steps)
        judged = self.judged.maps[0] if isinstance(self.judged, Channels) else self.judged
        way = float(judged.apply(signal[:, None])[-1, 0]) * self.clip
        return self.predicted_error / way

    @property
    def gradient_evaluations(self) -> int:
        """Expected number of per-example gradients in the whole run."""
        return self.population.gradient_evaluations * self.contribution.gradients

    def with_update(self, **changes: Any) -> Plan:
        """The same noise and guarantee with other update settings (learning rate, averaging, ...).

        An update is post-processing, so nothing about privacy is decided anew.
        """
        return replace(self, update=replace(self.update, **changes))

    def state_bytes(self, parameters: int) -> int:
        """Memory of the noise state for a model of this many parameters."""
        return 4 * parameters * self.contribution.channels * (self.mechanism.state_vectors() + 1)

    def to_json(self) -> dict[str, Any]:
        """Plain, versioned data; floats and arrays read back bit for bit."""
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "recipe": self.recipe,
            "population": self.population.to_json(),
            "contribution": self.contribution.to_json(),
            "noise": self.noise,
            "mechanism": self.mechanism.to_json(),
            "schedule": self.schedule.to_json(),
            "update": asdict(self.update),
            "workload": self.workload.to_json(),
            "guarantee": self.guarantee.to_json(),
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        # Absent means gaussian: plans of that kind keep the identity they always had.
        if self.lattice is None:
            return data
        return {**data, "noise_kind": DISCRETE, "lattice": self.lattice.exponent}

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The plan that `to_json` described, its guarantee computed anew and compared."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise SordinoError(f"this is not a plan: the field 'format' must be {FORMAT!r}")
        if data.get("version") != FORMAT_VERSION:
            raise SordinoError(
                f"this plan has format version {shown(data.get('version'))}; version {FORMAT_VERSION} "
                "is known here"
            )
        spec = _field(data, "recipe", recipe_named)
        plan = cls(
            recipe=spec.name,
            population=_field(
                data,
                "population",
                lambda found: Population(**known_fields("a population", found, Population)),
            ),
            contribution=_field(data, "contribution", contribution_from_json),
            noise=_field(data, "noise", partial(require_positive, "noise"))
            if spec.private
            else 0.0,
            mechanism=_field(data, "mechanism", mechanism_from_json),
            schedule=_field(data, "schedule", schedule_from_json),
            update=_field(
                data,
                "update",
                lambda found: UpdateSettings(**known_fields("an update", found, UpdateSettings)),
            ),
            workload=_field(data, "workload", linear_map_from_json),
            guarantee=_field(data, "guarantee", Guarantee.from_json),
            epsilon=_field(data, "epsilon", _optional(partial(require_positive, "epsilon"))),
            delta=_field(data, "delta", _optional(partial(require_fraction, "delta"))),
            lattice=_lattice_from_json(data),
        )
        if plan.mechanism.steps != plan.population.steps:
            raise SordinoError("this plan is damaged: its strategy has another number of steps")
        if plan.lattice is not None and (
            not is_on_lattice(plan.mechanism) or _without_lattice(spec, plan.contribution)
        ):
            raise SordinoError("this plan is damaged: its noise is on no lattice")
        if isinstance(plan.schedule, AdaptiveBudget) != (spec.schedule == AdaptiveBudget.kind):
            raise SordinoError("this plan is damaged: its recipe has another kind of schedule")
        try:
            keeps_its_word = plan._keeps_its_word()
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(
                "this plan is damaged: its fields do not fit together, so that no guarantee can be "
                "computed from them; make the plan again"
            ) from None
        if not keeps_its_word:
            raise SordinoError(
                "this plan states a guarantee that its noise does not give; it was changed by hand "
                "or written by another version: make the plan again"
            )
        return plan

    def _keeps_its_word(self) -> bool:
        """Whether the stated guarantee, and the budget it was made for, follow from the noise."""
        stated = self.guarantee
        found = guarantee_of(
            noise=self.noise,
            population=self.population,
            mechanism=self.mechanism,
            schedule=self.schedule,
            contribution=self.contribution,
            adjacency=stated.adjacency,
            unit=stated.unit,
            delta_hint=stated.delta_hint,
            distance=self._distance(),
        )
        # Another processor's linear algebra may differ in the last bits; the noise has a margin
        # of 1e-6 over what the guarantee needs.
        same_mu = math.isclose(found.gaussian_mu, stated.gaussian_mu, rel_tol=1e-9)
        if not same_mu or replace(found, gaussian_mu=stated.gaussian_mu) != stated:
            return False
        if self.epsilon is None:
            return True
        return self.delta is not None and stated.epsilon(self.delta) <= self.epsilon * (1 + 1e-9)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically."""
        write_atomically(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read what `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SordinoError(f"there is no plan at {str(path)!r}") from None
        except OSError as error:
            raise SordinoError(f"cannot read {str(path)!r}: {one_line(error.strerror)}") from None
        except RecursionError:
            raise SordinoError(f"{str(path)!r} is not a plan: it is nested too deeply") from None
        except ValueError as error:  # not UTF-8, not JSON, or a number of too many digits
            raise SordinoError(f"{str(path)!r} is not a plan: {one_line(error)}") from None
        try:
            return cls.from_json(data)
        except SordinoError as error:
            raise type(error)(f"in {str(path)!r}: {error}") from None

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON: the plan's identity."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def lines(self) -> list[tuple[str, str]]:
        """The page as (heading, text) pairs; `print(plan)` and the reports show these."""
        people = self.population
        noise = self.noise_per_step()
        flat = math.isclose(noise.min(), noise.max(), rel_tol=1e-3)
        spread = f"{noise[0]:.4g}" if flat else f"{noise.min():.4g} to {noise.max():.4g}"
        recipe = recipe_named(self.recipe)
        pairs = [
            ("recipe", f"{self.recipe}: {recipe.title}"),
            ("guarantee", self.guarantee.sentence()),
            (
                "population",
                f"{people.examples:,} examples, batches of {people.batch_size:,}, "
                f"{people.steps:,} steps ({people.epochs:.4g} epochs)",
            ),
            ("batches", people.describe()),
            ("contribution", self.contribution.describe()),
            (
                "noise",
                f"{self.mechanism.describe()}; fresh draws of {self.noise:.5g} x bound on each sum "
                f"({self.schedule.describe()})"
                + ("" if self.lattice is None else f"; {self.lattice.describe()}"),
            ),
            ("noise per step", f"{spread} per coordinate of the mean contribution"),
            (
                "predicted error",
                f"{self.predicted_error:.4g} rms per coordinate of the iterates at learning rate 1, "
                f"{self.relative_error:.3g} of the way of a gradient of norm clip",
            ),
            ("update", recipe.update if recipe.schedule == "adaptive" else self.update.describe()),
            ("gradient evaluations", f"{self.gradient_evaluations:,}"),
            (
                "noise memory",
                f"{self.mechanism.state_vectors() + 1:,} vectors of the model's size",
            ),
            ("plan", self.hash[:16]),
        ]
        silent = () if recipe.private else ("noise", "noise per step", "predicted error")
        return [pair for pair in pairs if pair[0] not in silent]

    def __str__(self) -> str:
        pairs = self.lines()
        width = max(len(heading) for heading, _ in pairs)
        return "\n".join(f"{heading:>{width}}  {text}" for heading, text in pairs)

    def __repr__(self) -> str:
        return f"<Plan {self.recipe} {self.hash[:12]}: {self.guarantee.sentence()}>"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Noise per step and predicted error as a matplotlib figure (saved to `path` if given)."""
        from sordino.report.plots import plan_figure

        figure = plan_figure(self)
        if path is not None:
            figure.savefig(path)
        return figure


def _field(data: dict[str, Any], name: str, read: Callable[[Any], Any]) -> Any:
    """One field of a plan's JSON; whatever its reader trips over, the message names the field."""
    if name not in data:
        raise SordinoError(f"this plan is damaged: the field {name!r} is missing")
    try:
        return read(data[name])
    except SordinoError as error:
        raise SordinoError(
            f"the field {name!r} of this plan is damaged: {one_line(error, 240)}"
        ) from None
    except DAMAGE:
        raise SordinoError(
            f"the field {name!r} of this plan is damaged: it is {shown(data[name])}"
        ) from None


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: None if found is None else read(found)


def plan(
    recipe: str,
    *,
    examples: int,
    batch_size: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    noise: str = GAUSSIAN,
    lattice_steps: int | None = None,
    adjacency: str | None = None,
    unit: str = "example",
    **options: Any,
) -> Plan:
    """Decide a private run.

    Args:
      recipe: a name from `sordino.recipes.RECIPES`.
      examples: the number of units (examples, users or clients); public.
      batch_size: units per step; recipes on all examples need none.
      epochs, steps: how long; exactly one of them.
      epsilon, delta: the budget.
      noise_multiplier: instead of a budget, the noise in units of the clip: the plan says what it
        guarantees.
      noise: "gaussian" (float32, fast) or "discrete" (whole multiples of a lattice step, from a
        cryptographic generator; see docs/threat-model.md).
      lattice_steps: of discrete noise, about so many lattice steps to the clip are enough; as many as
        fit unless given. Fewer make noise cheaper that is drawn inside a secure computation.
      adjacency: "zero-out" (default), "add-remove" (Poisson default) or "replace-one".
      unit: whose data is protected: "example", "user" or "client" (then each row of the data is
        all of one user's or client's data).
      options: the recipe's options, see `sordino.recipes.COMMON_OPTIONS`.
    """
    spec = recipe_named(recipe)
    chosen = spec.options(options)
    kind = _checked_kind(noise)
    if spec.private:
        epsilon, delta, amount = _checked_budget(epsilon, delta, noise_multiplier)
    elif (epsilon, delta, noise_multiplier) != (None, None, None):
        raise SordinoError(f"{spec.name} is not private: it takes no epsilon, delta or noise")
    require_choice("unit", unit, UNITS)
    people = _population(spec, chosen, examples, batch_size, epochs, steps)
    adjacency = adjacency if adjacency is not None else NATURAL_ADJACENCY[people.sampling]
    require_choice("adjacency", adjacency, ADJACENCIES)
    require_choice(f"mechanism of {spec.name}", chosen["mechanism"], spec.mechanisms)
    contribution = spec.contribution(chosen, people.steps_per_epoch)
    update = UpdateSettings(
        learning_rate=spec.learning_rate(chosen["learning_rate"], people.steps),
        **{name: chosen[name] for name in _UPDATE_OPTIONS if name in chosen},
    )
    warn_of_weak_budget(epsilon, delta, people.examples)
    workload = update.workload(contribution, chosen["workload"])
    if kind == DISCRETE:
        chosen["mechanism"] = _lattice_name(spec, chosen, options, contribution, workload, people)
    mechanism = _mechanism(chosen, contribution, update, workload, people)
    if spec.schedule == AdaptiveBudget.kind:
        schedule: Schedule = AdaptiveBudget.planned(chosen, people.steps, epsilon, delta)
    else:
        schedule = _schedule(chosen["schedule"], people, epsilon, delta, adjacency)
    mechanism, schedule = _joined(mechanism, schedule, chosen, workload, people)
    setting: dict[str, Any] = {
        "population": people,
        "mechanism": mechanism,
        "schedule": schedule,
    }
    calibrated = None
    if not spec.private:
        amount = 0.0
    elif amount is None:
        assert epsilon is not None
        assert delta is not None
        calibrated = partial(
            calibrated_noise, epsilon=epsilon, delta=delta, adjacency=adjacency, **setting
        )
        amount = calibrated()
    setting["contribution"] = contribution
    stating = partial(guarantee_of, adjacency=adjacency, unit=unit, delta_hint=delta, **setting)
    made = Plan(
        recipe=spec.name,
        noise=amount,
        update=update,
        workload=workload,
        guarantee=stating(noise=amount),
        epsilon=epsilon,
        delta=delta,
        **setting,
    )
    if kind == GAUSSIAN:
        return made
    made = replace(made, lattice=_fitted_lattice(made, lattice_steps))
    if calibrated is not None:
        # More noise than before is further from the lattice's step, so the distance only shrinks.
        made = replace(made, noise=calibrated(distance=made._distance()))
    return replace(made, guarantee=stating(noise=made.noise, distance=made._distance()))


_UPDATE_OPTIONS = (
    "optimizer",
    "momentum",
    "lr_schedule",
    "average",
    "radius",
    "output",
    "step_length",
    "kappa",
)


def _mechanism(
    chosen: dict[str, Any],
    contribution: Contribution,
    update: UpdateSettings,
    workload: LinearMap,
    people: Population,
) -> Mechanism:
    name, rule = chosen["mechanism"], people.participation()
    if people.is_secret and name == "auto":
        name = "independent"
    if not isinstance(contribution, Lagged):
        return fit_mechanism(name, workload, rule, chosen["bands"])
    bounds = contribution.bounds(max(people.steps, contribution.lag + 1))
    return lagged_mechanism(
        steps=people.steps,
        lag=contribution.lag,
        beta=update.momentum,
        clips=(bounds[0, 0], *bounds[:, -1]),
        participation=rule,
        fit=partial(fit_mechanism, name),
        judged=workload,
    )


def _joined(
    mechanism: Mechanism,
    schedule: Schedule,
    chosen: dict[str, Any],
    workload: LinearMap,
    people: Population,
) -> tuple[Mechanism, Schedule]:
    """A schedule for correlated noise becomes part of the mechanism."""
    relative = schedule.relative_noise(people.steps)
    if relative is None or isinstance(mechanism, Independent):
        return mechanism, schedule
    if isinstance(schedule, Participation):
        # Noise that later steps take back is scheduled draw by draw (papers/02 1.3), not by step.
        return DrawScaled(mechanism, np.asarray(relative, np.float32)), Uniform()
    if isinstance(schedule, FromInfluence) and chosen["mechanism"] in ("auto", "dense"):
        # What counts more is an output of the workload (papers/04 2.3), not a step's own noise.
        log_q = schedule.log_influence(people.steps)
        weights = np.exp(log_q - log_q.max())
        return Dense.weighted(workload, weights, people.participation()), Uniform()
    raise SordinoError(
        "a noise schedule goes with independent noise, or as influence with mechanism 'dense'; "
        "scaling the steps of correlated noise would undo its cancellation"
    )


def _schedule(
    given: str | Schedule,
    people: Population,
    epsilon: float | None,
    delta: float | None,
    adjacency: str,
) -> Schedule:
    """The schedule, fitted to the amplified cost of a step where batches are secret."""
    # All the data is one participant, present in every step.
    own = {"steps_per_epoch": 1} if given == Participation.kind else {}
    schedule = schedule_named(given, people.steps, **own)
    relative = schedule.relative_noise(people.steps)
    if relative is None or not people.is_secret or isinstance(schedule, Given):
        return schedule
    if people.sampling != POISSON:
        raise SordinoError(
            f"a noise schedule is accounted for poisson or public batches, not {people.sampling}"
        )
    if epsilon is None or delta is None:
        return Given(tuple(relative.tolist()), schedule.describe())
    # sigma ~ q^(-1/4) where steps cost 1/sigma^2; amplified steps cost otherwise.
    log_q = -4 * np.log(relative)
    ratio_cap: float | None = SAFE_RATIO
    if isinstance(schedule, FromInfluence):
        log_q, ratio_cap = schedule.log_influence(people.steps), schedule.ratio_cap
    return subsampled_schedule(
        log_q,
        ratio_cap=ratio_cap,
        rate=people.rate,
        steps=people.steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
    )


def compare(plans: list[Plan]) -> list[Plan]:
    """Plans from the least predicted noise to the most (see `Plan.relative_error`)."""
    return sorted(plans, key=lambda candidate: candidate.relative_error)


def _checked_kind(noise: Any) -> str:
    if not isinstance(noise, str) or noise.strip().replace(".", "", 1).isdigit():
        raise SordinoError(
            f"noise names the kind of noise, {' or '.join(NOISE_KINDS)}; its amount in units of the "
            f"clip is noise_multiplier, so write noise_multiplier={noise!r}"
        )
    return require_choice("noise", noise, NOISE_KINDS)


# Mechanisms by name that can be on a lattice; the tree where sums do not decay.
_LATTICE_NAMES = ("cancelling", "tree", "independent")


def _without_lattice(spec: Recipe, contribution: Contribution) -> str:
    """Why a recipe's noise cannot be on a lattice; nothing if it can."""
    if not spec.private:
        return "adds no noise"
    if isinstance(contribution, Lagged):
        return "splits its noise between streams by real factors"
    if spec.schedule == AdaptiveBudget.kind:
        return "decides during the run how much noise a query gets"
    return ""


def _lattice_name(
    spec: Recipe,
    chosen: dict[str, Any],
    given: dict[str, Any],
    contribution: Contribution,
    workload: LinearMap,
    people: Population,
) -> str:
    """The mechanism of a recipe's discrete noise: the given one, or the best that there is."""
    why = _without_lattice(spec, contribution)
    if why:
        raise SordinoError(f"{spec.name} has no discrete noise: it {why}; use noise='gaussian'")
    bounds = contribution.bounds(people.steps)
    level = bool(np.all(bounds == bounds[:, :1]))

    def works(name: str) -> Mechanism | None:
        if people.is_secret and name != "independent":
            return None
        made = fit_mechanism(name, workload, people.participation())
        return made if is_on_lattice(made) and (level or name == "independent") else None

    usable = {
        name: made
        for name in _LATTICE_NAMES
        if name in spec.mechanisms and (made := works(name)) is not None
    }
    wanted: str = chosen["mechanism"]
    if wanted in usable:
        return wanted
    if not usable or ("mechanism" in given and wanted != "auto"):
        others = " or ".join(repr(name) for name in usable) or "none here"
        raise SordinoError(
            f"noise of mechanism {wanted!r} is correlated by real numbers, which are on no lattice; "
            f"discrete noise works with {others}, or use noise='gaussian'"
        )

    def cost(name: str) -> float:
        shift = run_sensitivity(people, usable[name], Uniform()).value
        return shift * float(np.linalg.norm(usable[name].workload_error(workload)))

    return min(usable, key=cost)


def _fitted_lattice(made: Plan, most_steps: int | None = None) -> Lattice:
    people = made.population
    largest = max(size for size, _ in people.batch_sizes())
    if people.sampling == POISSON:
        # Beyond with probability 1e-15, and then only if all are at the bound in one coordinate.
        largest = min(people.examples, largest + math.ceil(8 * math.sqrt(largest)) + 32)
    bounds = made.contribution.bounds(people.steps)
    finest = Lattice.fitted(
        bounds=bounds,
        stds=made.noise_stds(),
        mechanism=made.mechanism,
        largest_batch=largest,
    )
    if most_steps is None:
        return finest
    least = require_count("lattice_steps", most_steps, minimum=LEAST_STEPS)
    drawn = float(draw_stds(made.mechanism, made.noise_stds()).min())
    coarse = math.floor(math.log2(min(float(bounds.min()) / least, drawn / LEAST_STEPS)))
    return Lattice(max(finest.exponent, coarse))


def _lattice_from_json(data: dict[str, Any]) -> Lattice | None:
    kind = require_choice("noise_kind", data.get("noise_kind", GAUSSIAN), NOISE_KINDS)
    return None if kind == GAUSSIAN else _field(data, "lattice", Lattice)


def _checked_budget(
    epsilon: float | None, delta: float | None, noise_multiplier: float | None
) -> tuple[float | None, float | None, float | None]:
    if delta is not None:
        delta = require_fraction("delta", delta)
    if noise_multiplier is not None:
        if epsilon is not None:
            raise SordinoError("give either epsilon (and delta) or noise_multiplier, not both")
        return None, delta, require_positive("noise_multiplier", noise_multiplier)
    if epsilon is None:
        raise SordinoError(
            "give a budget: epsilon and delta, or noise_multiplier to see what it guarantees"
        )
    epsilon = require_positive("epsilon", epsilon, maximum=LARGEST_EPSILON)
    if delta is None:
        raise SordinoError("delta is missing; choose one well below 1 over the number of examples")
    return epsilon, delta, None


def _population(
    spec: Recipe,
    chosen: dict[str, Any],
    examples: int,
    batch_size: int | None,
    epochs: float | None,
    steps: int | None,
) -> Population:
    examples = require_count("examples", examples)
    if spec.full_batch:
        if batch_size not in (None, examples):
            raise SordinoError(
                f"{spec.name} uses all {examples:,} examples in every step; leave batch_size out"
            )
        batch_size = examples
    if batch_size is None:
        raise SordinoError(f"{spec.name} needs a batch_size")
    batch_size = require_count("batch_size", batch_size)
    if (epochs is None) == (steps is None):
        raise SordinoError("say how long to train: give exactly one of epochs and steps")
    if steps is None:
        assert epochs is not None
        per_epoch = -(-examples // batch_size)
        steps = max(
            1, math.ceil(require_positive("epochs", epochs, maximum=1e9) * per_epoch - 1e-9)
        )
    sampling = chosen["sampling"]
    if sampling not in spec.samplings:
        raise SordinoError(
            f"{spec.name} works with {' or '.join(spec.samplings)} batches, not {sampling!r}"
        )
    return Population(
        examples=examples,
        batch_size=batch_size,
        steps=require_count("steps", steps),
        sampling=sampling,
        order_seed=chosen["order_seed"],
        first_batch=chosen.get("first_batch"),
    )

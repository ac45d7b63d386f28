"""From a recipe, a population and a budget to a plan: all decisions about a private run, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from sordino.parts import Population
from sordino.parts.contributions import Contribution, Lagged
from sordino.parts.mechanisms import (
    LEAST_STEPS,
    Dense,
    Independent,
    Lattice,
    LinearMap,
    Mechanism,
    ScaledDraws,
    draw_stds,
    fit_mechanism,
    is_on_lattice,
    lagged_mechanism,
)
from sordino.parts.sampling import CYCLIC, FIXED, LARGEST_EPSILON, SLOTS, warn_of_weak_budget
from sordino.parts.schedules import (
    AdaptiveBudget,
    ByParticipation,
    FilteredBudget,
    FixedSchedule,
    FromInfluence,
    NoiseSchedule,
    Uniform,
    budget_mu,
    schedule_named,
    subsampled_schedule,
)
from sordino.parts.updates import UpdateSettings
from sordino.planning._accounting import (
    calibrated_noise,
    check_adjacency,
    check_mu,
    check_rows,
    counting_on_slots,
    float32_up,
    mu_of_budget,
    run_sensitivity,
)
from sordino.planning._bounds import Facts
from sordino.planning._cyclic import best_cycle, cyclic_mechanism
from sordino.planning._options import DISCRETE, GAUSSIAN, Options, checked_kind
from sordino.planning._plans import Plan
from sordino.planning._prediction import best_rate, spectrum_of
from sordino.planning._query import Query, guarantee_of_all
from sordino.planning._theorems import with_theory
from sordino.planning._training import Training, without_lattice
from sordino.planning.recipes import AUTO, COMMON_OPTIONS, Recipe, recipe_named
from sordino.privacy import (
    ADJACENCIES,
    LARGEST_FACTOR,
    POISSON,
    UNITS,
    WITHOUT_REPLACEMENT,
    Adjacency,
    Guarantee,
)

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
# Of a request, what is no option.
_BUDGET = ("examples", "epsilon", "delta", "adjacency")
# Mechanisms by name that can be on a lattice; the tree where sums do not decay.
_LATTICE_NAMES = ("cancelling", "tree", "independent")


def plan(
    recipe: str,
    *,
    examples: int | None = None,
    batch_size: int | None = None,
    slot_count: int | None = None,
    rows_per_person: int | None = None,
    epochs: float | None = None,
    steps: int | str | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    mu: float | None = None,
    rho: float | None = None,
    noise_multiplier: float | None = None,
    noise: str = GAUSSIAN,
    lattice_steps: int | None = None,
    adjacency: str | None = None,
    unit: str = "example",
    beside: Sequence[Query] = (),
    settings: str | None = None,
    **options: Any,
) -> Plan:
    """Decide a private run.

    Args:
      recipe: a name from `sordino.planning.recipes.RECIPES`.
      examples: the number of units (examples, users, clients or people); public.
      batch_size: units per step; recipes on all examples need none.
      slot_count: with sampling="slots", in how many secret slots units are, one of them per step. Their
        number is not public then: `examples` is left out, and `Plan.settled` takes an estimate of it.
      rows_per_person: every row is clipped by itself, and a person has at most so many, all in the same
        batches. By default all rows of a person are one example, clipped once.
      epochs, steps: how long; exactly one of them. With settings="theory" neither is needed, and
        steps="auto" is the number with the least bound.
      epsilon, delta: the budget.
      mu, rho: instead of epsilon, the budget as Gaussian DP or as zCDP of Gaussian noise, where ``rho =
        mu^2 / 2``. Not for secret batches: their guarantee is no mu.
      noise_multiplier: instead of a budget, the noise in units of the clip: the plan says what it
        guarantees.
      noise: "gaussian" (float32, fast) or "discrete" (whole multiples of a lattice step, from a
        cryptographic generator; see docs/threat-model.md).
      lattice_steps: of discrete noise, about so many lattice steps to the clip are enough; as many as
        fit unless given. Fewer make noise cheaper that is drawn inside a secure computation.
      adjacency: "zero-out" (default), "add-remove" (Poisson default) or "replace-one".
      unit: whose data is protected: "example", "person", "user" or "client". All but examples may have
        several rows, if `sordino.train` is told whose row is whose.
      beside: other charged questions of the same data; the noise is such that all together keep the
        budget, on each side of the data (`sordino.planning.Query`).
      settings: "theory" for the settings of the theorem about the recipe, where options do not say
        otherwise, and its bound on the page. It needs facts about the loss beside the options:
        lipschitz, smoothness, curvature, gap, diameter, dimension (docs/theory.md).
      options: the recipe's options, see `sordino recipes NAME`; as ``**{"schedule.ratio": 1.8}`` also
        fields of the chosen schedule or mechanism.
    """
    spec = recipe_named(recipe)
    facts: Facts | None = None
    if (examples is None) == (slot_count is None):
        raise SordinoError(
            "give examples, the public number of units; or slot_count, with sampling='slots', where it is "
            "not public"
        )
    if slot_count is not None:
        if settings is not None or steps == AUTO:
            raise SordinoError("a theorem needs the number of units; leave secret slots out")
        if options.setdefault("sampling", SLOTS) != SLOTS:
            raise SordinoError(f"slot_count goes with sampling={SLOTS!r}")
    if settings is not None or steps == AUTO:
        request: Options = {"examples": examples, "batch_size": batch_size, "epochs": epochs}
        request |= {"steps": steps, "epsilon": epsilon, "delta": delta, "adjacency": adjacency}
        facts, request = with_theory(spec.name, settings, request | options)
        batch_size, epochs, steps = (
            request.pop(name, None) for name in ("batch_size", "epochs", "steps")
        )
        options = {name: v for name, v in request.items() if name not in _BUDGET}
    chosen = spec.resolve(options)
    kind = checked_kind(noise)
    if chosen["sampling"] == AUTO:
        if facts is not None:
            raise SordinoError("a theorem says how batches are chosen; leave sampling='auto' out")
        given = {**options, "noise": noise, "lattice_steps": lattice_steps, "unit": unit}
        given |= {"batch_size": batch_size, "epochs": epochs, "steps": steps, "beside": beside}
        given |= {"epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
        given |= {"mu": mu, "rho": rho, "rows_per_person": rows_per_person}
        return _best_of_samplings(partial(plan, recipe, examples=examples), given, adjacency)
    amount = None
    if spec.private:
        mu = mu_of_budget(mu, rho, epsilon, noise_multiplier)
        epsilon, delta, amount = _checked_budget(epsilon, delta, noise_multiplier, mu)
    elif (epsilon, delta, mu, rho, noise_multiplier) != (None,) * 5:
        raise SordinoError(f"{spec.name} is not private: it takes no epsilon, delta or noise")
    unit = str(require_choice("unit", unit, UNITS))
    if chosen["sampling"] == CYCLIC and "order_seed" not in options:
        # Groups by position hold for neighbours with as many rows; else they are drawn secretly.
        by_position = adjacency not in (None, Adjacency.ADD_REMOVE)
        chosen["order_seed"] = COMMON_OPTIONS["order_seed"] if by_position else None
    population = _population(spec, chosen, examples, slot_count, batch_size, epochs, steps)
    if rows_per_person is not None:
        population = replace(population, rows_per_person=rows_per_person)
    check_rows(population, unit, kind)
    adjacency = adjacency or population.kind.adjacencies(population)[0]
    adjacency = str(require_choice("adjacency", adjacency, ADJACENCIES))
    _check_parts(spec, chosen)
    contribution = spec.contribution_for(chosen, population.steps_per_epoch)
    update = UpdateSettings(
        learning_rate=spec.learning_rate(chosen["learning_rate"], population.steps),
        **{name: chosen[name] for name in _UPDATE_OPTIONS if name in chosen},
    )
    warn_of_weak_budget(epsilon, delta, examples)
    if mu is not None:
        check_mu(population, kind, mu, delta)
    workload = update.workload(contribution, chosen["workload"])
    if kind == DISCRETE:
        chosen["mechanism"] = lattice_mechanism(
            spec, chosen, options, contribution, workload, population
        )
    others = tuple(beside)
    costs = None
    if others:
        costs = guarantee_of_all(others, adjacency=adjacency, unit=unit, delta_hint=delta)
    fitted = partial(_mechanism, chosen, contribution, update, workload)
    if population.sampling == CYCLIC:
        check_adjacency(population, adjacency)
        chosen["mechanism"] = cyclic_mechanism(chosen["mechanism"], "mechanism" in options, kind)
        if chosen["bands"] is None and chosen["mechanism"] != "independent":
            if epsilon is None or delta is None:
                raise SordinoError(
                    "the best number of bands depends on the budget; give epsilon and delta, or bands"
                )
            iterate_map = update.iterate_map(contribution)
            budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
            population = best_cycle(
                population, contribution, fitted, iterate_map, beside=costs, **budget
            )
    mechanism = fitted(population)
    if spec.adaptive:
        schedule: NoiseSchedule = AdaptiveBudget.planned(
            chosen, population.steps, epsilon, delta, mu
        )
    else:
        schedule = _schedule(chosen, population, epsilon, delta, mu, adjacency)
    if kind == DISCRETE and isinstance(schedule, FilteredBudget):
        raise SordinoError(
            "schedule 'filter' is for noise='gaussian': discrete noise is drawn ahead"
        )
    mechanism, schedule = _joined(mechanism, schedule, chosen, workload, population)
    if spec.private:
        population = counting_on_slots(population, mechanism, schedule)
    run = Training(population, contribution, amount or 0.0, mechanism, schedule, update, workload)
    if spec.private and amount is None:
        calibrated = partial(
            calibrated_noise,
            epsilon=epsilon,
            delta=delta,
            mu=mu,
            population=population,
            mechanism=mechanism,
            schedule=schedule,
            adjacency=adjacency,
            beside=costs,
        )
        run = replace(run, noise_multiplier=calibrated())
        if kind == DISCRETE:
            run = replace(run, lattice=fitted_lattice(run, lattice_steps))
            # More noise than before is further from the lattice's step, so the distance only shrinks.
            run = replace(run, noise_multiplier=calibrated(distance=run.distance()))
    elif kind == DISCRETE:
        run = replace(run, lattice=fitted_lattice(run, lattice_steps))
    together = partial(guarantee_of_all, adjacency=adjacency, unit=unit, delta_hint=delta)
    if costs is not None and costs.sides and amount is None:
        run = _with_room_for_sides(run, lambda run: together((*others, run)), epsilon, delta, mu)
    queries = (*others, run)
    built = Plan(
        recipe=spec.name,
        queries=queries,
        guarantee=together(queries),
        epsilon=epsilon,
        delta=delta,
        facts=facts,
    )
    run.check(spec)
    built._remember()
    built.bound()  # a plan outside its theorem's conditions is refused
    return built


def _with_room_for_sides(
    run: Training,
    costs: Callable[[Training], Guarantee],
    epsilon: float | None,
    delta: float | None,
    mu: float | None,
) -> Training:
    """The run, with more noise where a unit that changes sides would see more than the budget."""

    def keeps(found: Guarantee) -> bool:
        if mu is not None:
            return found.mu <= mu * (1 + 1e-9)
        assert epsilon is not None
        assert delta is not None
        return found.epsilon(delta) <= epsilon * (1 + 1e-9)

    without = costs(replace(run, noise_multiplier=LARGEST_FACTOR))
    for side in without.sides:
        alone = replace(without, gaussian_mu=0.0, sampled=(), lost=0.0, sides=(side,))
        if not keeps(alone):
            raise SordinoError(
                "the queries of units held out cost more than the budget of this plan; ask less of them"
            )
    while not keeps(costs(run)):
        run = replace(run, noise_multiplier=float32_up(run.noise_multiplier * 1.05))
    return run


def _check_parts(spec: Recipe, chosen: Options) -> None:
    """Refuse parts that the recipe cannot be made of."""
    schedule = chosen["schedule"]
    if isinstance(schedule, NoiseSchedule):
        schedule = schedule.kind
    names = {**chosen, "schedule": schedule}
    for what, allowed in spec.allowed().items():
        if allowed and what != "sampling":
            require_choice(f"{what} of {spec.name}", names[what], allowed)


def _mechanism(
    chosen: Options,
    contribution: Contribution,
    update: UpdateSettings,
    workload: LinearMap,
    population: Population,
) -> Mechanism:
    name, rule, bands = chosen["mechanism"], population.participation(), chosen["bands"]
    if population.cycle is not None:
        name, bands = (name, population.cycle) if population.cycle > 1 else ("independent", None)
    elif population.is_secret and name == "auto":
        name = "independent"
    own = _fields_of("mechanism", chosen)
    if not isinstance(contribution, Lagged):
        return fit_mechanism(name, workload, rule, bands, **own)
    bounds = contribution.bounds(max(population.steps, contribution.lag + 1))
    return lagged_mechanism(
        steps=population.steps,
        lag=contribution.lag,
        beta=update.momentum,
        clips=(bounds[0, 0], *bounds[:, -1]),
        participation=rule,
        fit=lambda part, own_rule: fit_mechanism(
            name, part, own_rule, None if bands is None else min(bands, own_rule.steps), **own
        ),
        iterate_map=workload,
        own_maps=name == "auto",
    )


def _joined(
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    chosen: Options,
    workload: LinearMap,
    population: Population,
) -> tuple[Mechanism, NoiseSchedule]:
    """A schedule for correlated noise becomes part of the mechanism."""
    relative = schedule.relative_noise(population.steps)
    if relative is None or isinstance(mechanism, Independent):
        return mechanism, schedule
    if isinstance(schedule, ByParticipation):
        # Noise that later steps take back is scheduled draw by draw (papers/02 1.3), not by step.
        return ScaledDraws(mechanism, np.asarray(relative, np.float32)), Uniform()
    if isinstance(schedule, FromInfluence) and chosen["mechanism"] in ("auto", "dense"):
        # What counts more is an output of the workload (papers/04 2.3), not a step's own noise.
        log_q = schedule.log_influence(population.steps)
        weights = np.exp(log_q - log_q.max())
        return Dense.weighted(workload, weights, population.participation()), Uniform()
    raise SordinoError(
        "a noise schedule goes with independent noise, or as influence with mechanism 'dense'; "
        "scaling the steps of correlated noise would undo its cancellation"
    )


def _fields_of(part: str, chosen: Options) -> Options:
    """What was set of a part itself: ``{"ratio": 1.8}`` of "schedule.ratio"."""
    return {
        name.removeprefix(f"{part}."): value
        for name, value in chosen.items()
        if name.startswith(f"{part}.")
    }


def _schedule(
    chosen: Options,
    population: Population,
    epsilon: float | None,
    delta: float | None,
    mu: float | None,
    adjacency: str,
) -> NoiseSchedule:
    """The schedule as asked for; an influence is fitted to what a step on secret batches costs."""
    given: str | NoiseSchedule = chosen["schedule"]
    if given == FilteredBudget.kind and not _fields_of("schedule", chosen):
        return FilteredBudget(budget_mu(epsilon, delta, mu))
    # All the data is one participant, present in every step.
    own = {"steps_per_epoch": 1} if given == ByParticipation.kind else {}
    schedule = schedule_named(given, population.steps, **own | _fields_of("schedule", chosen))
    relative = schedule.relative_noise(population.steps)
    if relative is None or not population.is_secret or isinstance(schedule, FixedSchedule):
        return schedule
    if population.sampling not in (POISSON, WITHOUT_REPLACEMENT):
        raise SordinoError(
            f"a noise schedule is accounted for {POISSON}, {WITHOUT_REPLACEMENT} or public batches, "
            f"not {population.sampling}"
        )
    if not isinstance(schedule, FromInfluence) or epsilon is None or delta is None:
        # Number by number, so that accounting reads the very same levels back.
        return FixedSchedule(tuple(relative.tolist()), schedule.describe())
    return subsampled_schedule(
        schedule.log_influence(population.steps),
        ratio_cap=schedule.ratio_cap,
        rate=population.rate,
        steps=population.steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        sampling=population.sampling,
    )


def lattice_mechanism(
    spec: Recipe,
    chosen: Options,
    given: Options,
    contribution: Contribution,
    workload: LinearMap,
    population: Population,
) -> str:
    """The mechanism of a recipe's discrete noise: the given one, or the best that there is."""
    why = without_lattice(spec, contribution)
    if why:
        raise SordinoError(f"{spec.name} has no discrete noise: it {why}; use noise='gaussian'")
    bounds = contribution.bounds(population.steps)
    level = bool(np.all(bounds == bounds[:, :1]))

    def works(name: str) -> Mechanism | None:
        if population.is_secret and name != "independent":
            return None
        built = fit_mechanism(name, workload, population.participation())
        return built if is_on_lattice(built) and (level or name == "independent") else None

    usable = {
        name: built
        for name in _LATTICE_NAMES
        if name in spec.mechanisms and (built := works(name)) is not None
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
        shift = run_sensitivity(population, usable[name], Uniform()).value
        return shift * float(np.linalg.norm(usable[name].workload_error(workload)))

    return min(usable, key=cost)


def fitted_lattice(run: Training, most_steps: int | None = None) -> Lattice:
    """The finest lattice that a run's sums and noise fit on, or one of about `most_steps` to the clip."""
    population = run.population
    largest = max(size for size, _ in population.batch_sizes())
    if population.sampling == POISSON:
        # Beyond with probability 1e-15, and then only if all are at the bound in one coordinate.
        largest = min(population.examples, largest + math.ceil(8 * math.sqrt(largest)) + 32)
    bounds = run.contribution.bounds(population.steps)
    finest = Lattice.fitted(
        bounds=bounds, stds=run.noise_stds(), mechanism=run.mechanism, largest_batch=largest
    )
    if most_steps is None:
        return finest
    least = require_count("lattice_steps", most_steps, minimum=LEAST_STEPS)
    drawn = float(draw_stds(run.mechanism, run.noise_stds()).min())
    coarse = math.floor(math.log2(min(float(bounds.min()) / least, drawn / LEAST_STEPS)))
    return Lattice(max(finest.exponent, coarse))


def _checked_budget(
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    mu: float | None = None,
) -> tuple[float | None, float | None, float | None]:
    if delta is not None:
        delta = require_fraction("delta", delta)
    if mu is not None:
        return None, delta, None
    if noise_multiplier is not None:
        if epsilon is not None:
            raise SordinoError("give either epsilon (and delta) or noise_multiplier, not both")
        return None, delta, require_positive("noise_multiplier", noise_multiplier)
    if epsilon is None:
        raise SordinoError(
            "give a budget: epsilon and delta, or mu or rho, or noise_multiplier to see what it "
            "guarantees"
        )
    epsilon = require_positive("epsilon", epsilon, maximum=LARGEST_EPSILON)
    if delta is None:
        raise SordinoError("delta is missing; choose one well below 1 over the number of examples")
    return epsilon, delta, None


def _population(
    spec: Recipe,
    chosen: Options,
    examples: int | None,
    slot_count: int | None,
    batch_size: int | None,
    epochs: float | None,
    steps: Any,
) -> Population:
    spec.check_sampling(sampling := chosen["sampling"])
    if slot_count is not None:
        if batch_size is not None or chosen.get("first_batch") is not None:
            raise SordinoError("secret slots have no declared batch sizes; leave them out")
        slot_count = require_count("slot_count", slot_count)
        if spec.full_batch and slot_count != 1:
            raise SordinoError(f"{spec.name} uses everybody in every step; use slot_count=1")
        return Population.secret_slots(slot_count, _steps(steps, epochs, slot_count))
    if examples is None or sampling == SLOTS:
        raise SordinoError(
            f"sampling={SLOTS!r} needs slot_count, the number of slots, and no examples"
        )
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
    return Population(
        examples=examples,
        batch_size=batch_size,
        steps=_steps(steps, epochs, -(-examples // batch_size)),
        sampling=sampling,
        order_seed=chosen["order_seed"],
        first_batch=chosen.get("first_batch"),
        cycle=(chosen["bands"] or 1) if sampling == CYCLIC else None,
    )


def _steps(steps: Any, epochs: float | None, per_epoch: int) -> int:
    """How many steps, from the one of both that was given."""
    if (epochs is None) == (steps is None):
        raise SordinoError("say how long to train: give exactly one of epochs and steps")
    if epochs is not None:
        wanted = require_positive("epochs", epochs, maximum=1e9) * per_epoch
        steps = max(1, math.ceil(wanted - 1e-9))
    return require_count("steps", steps)


def _best_of_samplings(planned: Callable[..., Plan], given: Options, adjacency: str | None) -> Plan:
    """The plan with the least predicted loss among fixed and cyclic batches, under one adjacency.

    Each at its best learning rate. Where no loss can be predicted, the one with the least noise.
    """
    if given["epsilon"] is None:
        raise SordinoError("sampling='auto' compares plans of one budget; give epsilon and delta")
    adjacency = adjacency or Adjacency.ZERO_OUT
    plans, refusals = [], []
    for sampling in (FIXED, CYCLIC):
        try:
            plans.append(planned(**{**given, "sampling": sampling}, adjacency=adjacency))
        except SordinoError as error:
            refusals.append(error)
    if not plans:
        raise refusals[0]

    def cost(one: Plan) -> float:
        if one.training.why_unpredicted():
            return one.predicted_error
        return best_rate(one.training, spectrum_of(one.training, None))[1]

    return min(plans, key=cost)


def compare(plans: list[Plan]) -> list[Plan]:
    """Plans from the least predicted noise to the most (see `Plan.relative_error`)."""
    return sorted(plans, key=lambda candidate: candidate.relative_error)

"""From noise to guarantee and back, for one planned run. Pure, float64, rounded against the user.

Reshuffled batches are accounted for the permutations that they really have (`privacy._realised`): the
order of each epoch is a function of the plan's `order_seed`, so it is public and the same for all data. A
plan that gains by counting on it carries a digest of its slots; any other is accounted for the worst
permutations, as are all plans that were stored without one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import digest_of
from sordino._base.errors import PlanMismatchError, SordinoError, require_positive
from sordino.parts import Population
from sordino.parts.contributions import Contribution, Gradient, GradientPair
from sordino.parts.mechanisms import Independent, Mechanism
from sordino.parts.sampling import RESHUFFLED, public_slots, slots_digest
from sordino.parts.schedules import AdaptiveBudget, FilteredBudget, NoiseSchedule
from sordino.privacy import (
    MAX_MU,
    Adjacency,
    Guarantee,
    NoiseKind,
    SampledRelease,
    Sensitivity,
    Side,
    ToeplitzStrategy,
    Unit,
    budget_beside,
    calibrate_noise,
    epsilon_from_mu,
    is_affordable,
    mu_beside,
    mu_of_budget_beside,
    realised_sensitivity,
    sensitivity,
)

# Covers the rounding of the float32 noise recursion (papers measure 1e-7 to 4e-6 of a draw).
FLOAT32_MARGIN = 1 + 1e-6


def check_adjacency(population: Population, adjacency: str) -> None:
    """Refuse an adjacency that the batches do not support."""
    if adjacency not in population.kind.adjacencies(population):
        raise SordinoError(population.kind.refusal(adjacency))


def check_rows(population: Population, unit: str, kind: str) -> None:
    """Refuse what is not accounted for: several rows of one unit, and lattices of unknown sums."""
    if population.rows_per_person is not None and unit == Unit.EXAMPLE:
        raise SordinoError(
            "rows_per_person is for guarantees about people; use unit='person', or leave it out"
        )
    if kind != NoiseKind.DISCRETE:
        return
    if unit == Unit.PERSON or population.rows_per_person is not None:
        raise SordinoError(
            "discrete noise is for units of one row each: the rounding of several rows of a person is not "
            "accounted for yet; use noise='gaussian'"
        )
    if not population.is_declared:
        raise SordinoError(
            "discrete noise needs a declared number of units, so that no sum leaves the lattice; use "
            "noise='gaussian'"
        )


def rows_of(population: Population) -> int:
    """How many clipped contributions one unit may have in a step."""
    return population.rows_per_person or 1


def run_sensitivity(
    population: Population, mechanism: Mechanism, schedule: NoiseSchedule
) -> Sensitivity:
    """Sensitivity of the whole run to one unit, in units of its bounds, noise draws of std 1.

    The noise of a step is in proportion to the bound of its contributions, so the bounds cancel.
    """
    clips = inverse_noise(schedule, population.steps)
    if population.slots is not None:
        return slot_sensitivity(population, mechanism, clips)
    return sensitivity(mechanism.strategy(), population.participation(), clips)


def guarantee_of(
    *,
    noise: float,
    population: Population,
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    contribution: Contribution,
    adjacency: str,
    unit: str,
    delta_hint: float | None,
    distance: float = 0.0,
) -> Guarantee:
    """The guarantee of a run whose fresh draws have standard deviation ``noise`` times the bounds.

    `distance` is the total variation between the run's noise and (rounded) Gaussian noise.
    """
    check_adjacency(population, adjacency)
    stated: dict[str, Any] = {"adjacency": adjacency, "unit": unit}
    check_rows(population, unit, NoiseKind.GAUSSIAN.value)
    if noise == 0:
        return Guarantee.nothing(participation=population.uses(), **stated)
    stated["distance"] = distance
    if mechanism.channels != contribution.channels and not isinstance(contribution, GradientPair):
        raise SordinoError(
            f"each step releases {contribution.channels} vectors but the noise is for "
            f"{mechanism.channels}"
        )
    if isinstance(contribution, GradientPair):
        raise SordinoError("a pair of gradients has weights that depend on the data: not private")
    if rows_of(population) > 1 and isinstance(schedule, AdaptiveBudget | FilteredBudget):
        raise SordinoError(
            "a budget that is decided during the run counts one row a person; leave rows_per_person out"
        )
    if isinstance(schedule, AdaptiveBudget):
        if type(contribution) is not Gradient or not population.is_full_batch:
            raise SordinoError(
                "an adaptive budget pays for gradients of all examples; use recipe 'dp-agd'"
            )
        # Whatever the noise: each query is paid from the budget before it is made.
        return Guarantee.gaussian(
            schedule.mu,
            participation=f"in every query of up to {population.steps:,} iterations",
            exact=False,
            delta_hint=delta_hint,
            **stated,
        )
    # A unit's rows add up in the same step, at worst.
    effective = noise / FLOAT32_MARGIN / rows_of(population)
    amplified = _amplified(effective, population, mechanism, schedule, adjacency)
    if amplified is not None:
        return Guarantee(
            gaussian_mu=0.0,
            participation=population.uses(),
            analysis="amplified",
            sampled=amplified,
            delta_hint=delta_hint,
            **stated,
        )
    shift = run_sensitivity(population, mechanism, schedule)
    kappa = Adjacency(adjacency).factor
    if isinstance(schedule, FilteredBudget):
        if not (population.is_full_batch and isinstance(mechanism, Independent)) or distance:
            raise SordinoError(
                "schedule 'filter' pays step by step for Gaussian noise on all examples; use recipe "
                "'dp-gd', or another schedule"
            )
        return Guarantee.gaussian(
            # The filter's, and that of a run without a rule: equal in plans that nobody changed.
            max(schedule.mu, kappa * shift.value / effective),
            participation=f"in every one of up to {population.steps:,} steps (full batch)",
            exact=False,
            delta_hint=delta_hint,
            **stated,
        )
    return Guarantee.gaussian(
        kappa * shift.value / effective,
        participation=population.uses(),
        exact=shift.exact and contribution.bound_is_tight,
        delta_hint=delta_hint,
        **stated,
    )


def mu_of_budget(
    mu: float | None, rho: float | None, epsilon: float | None, noise_multiplier: float | None
) -> float | None:
    """The budget as mu, if it was given so: ``mu = sqrt(2 rho)``, rounded down."""
    if mu is None and rho is None:
        return None
    if sum(given is not None for given in (mu, rho, epsilon, noise_multiplier)) > 1:
        raise SordinoError("give one budget: epsilon (and delta), mu, rho or noise_multiplier")
    if rho is not None:
        mu = math.sqrt(2 * require_positive("rho", rho, maximum=MAX_MU**2 / 2)) * (1 - 1e-15)
    return require_positive("mu", mu or 0.0, maximum=MAX_MU)


def check_mu(population: Population, kind: str, mu: float, delta: float | None) -> None:
    """Refuse a budget of mu where the guarantee would be none."""
    about = "" if delta is None else f", here {epsilon_from_mu(mu, delta):.4g} and {delta:g}"
    if population.is_secret:
        raise SordinoError(
            f"secret batches have a guarantee of their own shape, which no mu or rho describes; give "
            f"epsilon and delta{about}"
        )
    if kind != NoiseKind.GAUSSIAN.value:
        raise SordinoError(
            f"discrete noise is Gaussian up to a small distance, so it has no exact mu; give epsilon "
            f"and delta{about}"
        )


def calibrated_noise(
    *,
    epsilon: float | None,
    delta: float | None,
    mu: float | None = None,
    population: Population,
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    adjacency: str,
    distance: float = 0.0,
    beside: Guarantee | None = None,
) -> float:
    """The least `noise` whose guarantee is (epsilon, delta), or mu, `distance` included.

    `beside` is what other queries on the same data cost; all together keep the budget. What units of
    another side see takes nothing of it.
    """
    check_adjacency(population, adjacency)
    own = Side(0.0) if beside is None else beside.own
    spent, others, lost = own.gaussian_mu, own.sampled, own.lost
    rows = rows_of(population)
    if isinstance(schedule, FilteredBudget):
        allowed = mu or mu_of_budget_beside(epsilon or 0.0, delta or 0.0, lost, adjacency)
        if others or distance or math.hypot(schedule.mu, spent) > allowed:
            raise SordinoError(
                "the budget of this schedule 'filter' is more than the plan's allows; name the schedule, "
                "without queries beside the run, and it gets all of the plan's"
            )
        least = schedule.uniform_noise(Adjacency(adjacency).factor, population.steps)
        return float32_up(least * FLOAT32_MARGIN)
    if beside is not None:
        distance += beside.distance
    if mu is not None:
        return _noise_for_mu(
            mu, spent, others or distance or lost, population, mechanism, schedule, adjacency
        )
    assert epsilon is not None
    assert delta is not None
    if distance:
        # A little more than (1 + e^epsilon) tv, so that what is stated is not above the budget.
        delta -= (1 + math.exp(epsilon)) * distance * (1 + 1e-6)
        if delta <= 0:
            raise SordinoError(
                "this delta is smaller than what discrete noise differs from Gaussian noise by; use "
                "smaller batches, a larger delta, or noise='gaussian'"
            )
    if isinstance(schedule, AdaptiveBudget):
        allowed = mu_of_budget_beside(epsilon, delta, lost, adjacency)
        if others or math.hypot(schedule.mu, spent) > allowed:
            raise SordinoError(
                "this adaptive budget is more than epsilon and delta allow; use recipe 'dp-agd'"
            )
        least = schedule.first_noise(Adjacency(adjacency).factor)
    elif population.is_secret:
        least = calibrate_noise(
            lambda std: _amplified(std, population, mechanism, schedule, adjacency) or (),
            *strictest_beside(epsilon, delta, lost, adjacency),
            mu=spent,
            others=others,
            stored=lambda std: float32_up(std * FLOAT32_MARGIN * rows) / FLOAT32_MARGIN / rows,
        )
        # That very number: what is stated is what was accepted.
        return float(np.float32(least * FLOAT32_MARGIN * rows))
    else:
        kappa = Adjacency(adjacency).factor
        shift = run_sensitivity(population, mechanism, schedule)
        pairs = budget_beside(epsilon, delta, lost, adjacency)
        least = kappa * shift.value / min(mu_beside(*p, mu=spent, others=others) for p in pairs)
    return float32_up(least * FLOAT32_MARGIN * rows)


def strictest_beside(
    epsilon: float, delta: float, lost: float, adjacency: str
) -> tuple[float, float]:
    """One (epsilon, delta) that implies all of `budget_beside`."""
    pairs = budget_beside(epsilon, delta, lost, adjacency)
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def _noise_for_mu(
    mu: float,
    spent: float,
    inexact: object,
    population: Population,
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    adjacency: str,
) -> float:
    """The least noise with which the run and what is `spent` beside it are mu-GDP."""
    if inexact:
        raise SordinoError(
            "the other queries of this plan have no exact mu; give epsilon and delta instead"
        )
    kappa = Adjacency(adjacency).factor
    if isinstance(schedule, AdaptiveBudget):
        if math.hypot(schedule.mu, spent) > mu:
            raise SordinoError("this adaptive budget is more than mu allows beside other queries")
        return float32_up(schedule.first_noise(kappa) * FLOAT32_MARGIN)
    if spent >= mu:
        raise SordinoError(f"the other queries cost mu {spent:.6g} alone, of {mu:.6g} in all")
    left = math.sqrt((mu - spent) * (mu + spent)) * (1 - 1e-12)
    shift = run_sensitivity(population, mechanism, schedule)
    return float32_up(kappa * shift.value / left * FLOAT32_MARGIN * rows_of(population))


def float32_up(value: float) -> float:
    """The least float32 not below `value`, as a float."""
    rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(math.inf))
    return float(rounded)


def _amplified(
    noise: float,
    population: Population,
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    adjacency: str,
) -> tuple[SampledRelease, ...] | None:
    """The run as releases whose secret batches are credited; None where batches are public."""
    relative = schedule.relative_noise(population.steps)
    return population.kind.amplified(population, mechanism, noise, relative, adjacency)


Array = NDArray[np.float64]
# What was computed in this process, by slots, mechanism and schedule: a plan that is read again is cheap.
_KNOWN: dict[tuple[Population, str, str], Sensitivity] = {}
_MOST_KNOWN = 256
# What the order must save at least to be counted on, relative to the worst case.
_LEAST_GAIN = 1e-6


def inverse_noise(schedule: NoiseSchedule, steps: int) -> Array | None:
    """What the schedule makes of a contribution of each step (steps,); None where all are alike."""
    relative = schedule.relative_noise(steps)
    return None if relative is None else 1.0 / np.asarray(relative, np.float64)


def counting_on_slots(
    population: Population, mechanism: Mechanism, schedule: NoiseSchedule
) -> Population:
    """`population` with the digest of its slots, where its noise can be less by counting on them."""
    rule = population.participation()
    if (
        population.sampling != RESHUFFLED
        or population.order_seed is None
        or population.is_full_batch
        or rule.max_participations == 1
    ):
        return population
    strategy, clips = mechanism.strategy(), inverse_noise(schedule, population.steps)
    if clips is None and isinstance(strategy, ToeplitzStrategy) and strategy.bands() == 1:
        return population  # steps do not interact: every order costs the same
    if not is_affordable(strategy, population.examples, rule.max_participations):
        return population
    try:
        worst = sensitivity(strategy, rule, clips).value
    except SordinoError:  # a matrix too large for the worst case
        worst = math.inf
    with_slots, shift = _computed(population, mechanism, clips)
    return with_slots if shift.value < worst * (1 - _LEAST_GAIN) else population


def slot_sensitivity(
    population: Population, mechanism: Mechanism, clips: Array | None
) -> Sensitivity:
    """Sensitivity of a run whose population carries the digest of its slots, which is checked."""
    found = _KNOWN.get(_key(population, mechanism, clips))
    if found is not None:
        return found
    with_slots, found = _computed(population, mechanism, clips)
    if with_slots != population:
        raise PlanMismatchError(
            "this plan counts on another public order of the batches than its order_seed gives here; "
            "make the plan again"
        )
    return found


def _computed(
    population: Population, mechanism: Mechanism, clips: Array | None
) -> tuple[Population, Sensitivity]:
    slots = public_slots(population)
    with_slots = replace(population, slots=slots_digest(population, slots))
    key = _key(with_slots, mechanism, clips)
    if key not in _KNOWN:
        shift = realised_sensitivity(mechanism.strategy(), slots, population.steps_per_epoch, clips)
        while len(_KNOWN) >= _MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = shift
    return with_slots, _KNOWN[key]


def _key(
    population: Population, mechanism: Mechanism, clips: Array | None
) -> tuple[Population, str, str]:
    schedule = "" if clips is None else hashlib.sha256(clips.tobytes()).hexdigest()
    return population, digest_of(mechanism.to_json()), schedule

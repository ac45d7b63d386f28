"""From noise to guarantee and back, for one planned run. Pure, float64, rounded against the user."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino._base.errors import SordinoError
from sordino.parts import Population
from sordino.parts.contributions import Contribution, Gradient, GradientPair
from sordino.parts.mechanisms import Mechanism
from sordino.parts.schedules import AdaptiveBudget, NoiseSchedule
from sordino.privacy import (
    Adjacency,
    Guarantee,
    SampledRelease,
    Sensitivity,
    calibrate_noise,
    mu_beside,
    mu_from_epsilon_delta,
    sensitivity,
)

# Covers the rounding of the float32 noise recursion (papers measure 1e-7 to 4e-6 of a draw).
FLOAT32_MARGIN = 1 + 1e-6


def check_adjacency(population: Population, adjacency: str) -> None:
    """Refuse an adjacency that the batches do not support."""
    if adjacency not in population.kind.adjacencies(population):
        raise SordinoError(population.kind.refusal(adjacency))


def run_sensitivity(
    population: Population, mechanism: Mechanism, schedule: NoiseSchedule
) -> Sensitivity:
    """Sensitivity of the whole run to one unit, in units of its bounds, noise draws of std 1.

    The noise of a step is in proportion to the bound of its contributions, so the bounds cancel.
    """
    relative = schedule.relative_noise(population.steps)
    clips = None if relative is None else 1.0 / np.asarray(relative, np.float64)
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
    if noise == 0:
        return Guarantee.nothing(participation=population.kind.uses(population), **stated)
    stated["distance"] = distance
    if mechanism.channels != contribution.channels and not isinstance(contribution, GradientPair):
        raise SordinoError(
            f"each step releases {contribution.channels} vectors but the noise is for "
            f"{mechanism.channels}"
        )
    if isinstance(contribution, GradientPair):
        raise SordinoError("a pair of gradients has weights that depend on the data: not private")
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
    effective = noise / FLOAT32_MARGIN
    amplified = _amplified(effective, population, mechanism, schedule, adjacency)
    if amplified is not None:
        return Guarantee(
            gaussian_mu=0.0,
            participation=population.kind.uses(population),
            analysis="amplified",
            sampled=amplified,
            delta_hint=delta_hint,
            **stated,
        )
    shift = run_sensitivity(population, mechanism, schedule)
    kappa = Adjacency(adjacency).factor
    return Guarantee.gaussian(
        kappa * shift.value / effective,
        participation=population.kind.uses(population),
        exact=shift.exact and contribution.bound_is_tight,
        delta_hint=delta_hint,
        **stated,
    )


def calibrated_noise(
    *,
    epsilon: float,
    delta: float,
    population: Population,
    mechanism: Mechanism,
    schedule: NoiseSchedule,
    adjacency: str,
    distance: float = 0.0,
    beside: Guarantee | None = None,
) -> float:
    """The least `noise` whose guarantee is (epsilon, delta), `distance` included.

    `beside` is what other queries on the same data cost; all together keep the budget.
    """
    check_adjacency(population, adjacency)
    spent, others = (0.0, ()) if beside is None else (beside.gaussian_mu, beside.sampled)
    if beside is not None:
        distance += beside.distance
    if distance:
        # A little more than (1 + e^epsilon) tv, so that what is stated is not above the budget.
        delta -= (1 + math.exp(epsilon)) * distance * (1 + 1e-6)
        if delta <= 0:
            raise SordinoError(
                "this delta is smaller than what discrete noise differs from Gaussian noise by; use "
                "smaller batches, a larger delta, or noise='gaussian'"
            )
    if isinstance(schedule, AdaptiveBudget):
        if others or math.hypot(schedule.mu, spent) > mu_from_epsilon_delta(epsilon, delta):
            raise SordinoError(
                "this adaptive budget is more than epsilon and delta allow; use recipe 'dp-agd'"
            )
        least = schedule.first_noise(Adjacency(adjacency).factor)
    elif population.is_secret:
        least = calibrate_noise(
            lambda std: _amplified(std, population, mechanism, schedule, adjacency) or (),
            epsilon,
            delta,
            mu=spent,
            others=others,
            stored=lambda std: float32_up(std * FLOAT32_MARGIN) / FLOAT32_MARGIN,
        )
        # That very number: what is stated is what was accepted.
        return float(np.float32(least * FLOAT32_MARGIN))
    else:
        kappa = Adjacency(adjacency).factor
        shift = run_sensitivity(population, mechanism, schedule)
        least = kappa * shift.value / mu_beside(epsilon, delta, mu=spent, others=others)
    return float32_up(least * FLOAT32_MARGIN)


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

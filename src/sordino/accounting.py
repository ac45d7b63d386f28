"""From noise to guarantee and back, for one planned run. Pure, float64, rounded against the user."""

from __future__ import annotations

import math

import numpy as np

from sordino.errors import SordinoError
from sordino.mechanisms.base import Mechanism
from sordino.mechanisms.independent import Independent
from sordino.population import Population
from sordino.privacy.amplification import SampledGaussian, calibrate_noise
from sordino.privacy.gdp import mu_from_epsilon_delta
from sordino.privacy.guarantee import Guarantee
from sordino.privacy.sensitivity import Sensitivity, sensitivity
from sordino.schedules.base import Schedule

# Covers the rounding of the float32 noise recursion (papers measure 1e-7 to 4e-6 of a draw).
FLOAT32_MARGIN = 1 + 1e-6


def check_adjacency(population: Population, adjacency: str) -> None:
    """Refuse an adjacency that the batches do not support."""
    if adjacency == "add-remove" and not (
        population.sampling == "poisson" or population.is_full_batch
    ):
        raise SordinoError(
            f"add-remove adjacency does not hold for {population.sampling} batches, where a removed "
            "row moves every later one to another batch; use 'zero-out', or Poisson batches"
        )
    if population.sampling == "without-replacement" and adjacency != "replace-one":
        raise SordinoError(
            "batches drawn without replacement are analysed under replace-one adjacency; "
            f"use adjacency='replace-one', not {adjacency!r}"
        )


def run_sensitivity(
    population: Population, mechanism: Mechanism, schedule: Schedule
) -> Sensitivity:
    """Sensitivity of the whole run to one unit of contribution norm 1, noise draws of std 1."""
    relative = schedule.relative_noise(population.steps)
    clips = None if relative is None else 1.0 / np.asarray(relative, np.float64)
    return sensitivity(mechanism.strategy(), population.participation(), clips)


def guarantee_of(
    *,
    noise: float,
    population: Population,
    mechanism: Mechanism,
    schedule: Schedule,
    adjacency: str,
    unit: str,
    delta_hint: float | None,
) -> Guarantee:
    """The guarantee of a run whose fresh draws have standard deviation ``noise * clip``."""
    check_adjacency(population, adjacency)
    effective = noise / FLOAT32_MARGIN
    if population.is_secret:
        if not isinstance(mechanism, Independent) or schedule.relative_noise(1) is not None:
            raise SordinoError("random batches amplify independent, uniform noise only")
        part = _sampled(effective, population, adjacency)
        return Guarantee(
            gaussian_mu=0.0,
            adjacency=adjacency,
            unit=unit,
            participation=_secret_use(population),
            analysis="amplified",
            sampled=(part,),
            delta_hint=delta_hint,
        )
    found = run_sensitivity(population, mechanism, schedule)
    kappa = 2 if adjacency == "replace-one" else 1
    return Guarantee.gaussian(
        kappa * found.value / effective,
        adjacency=adjacency,
        unit=unit,
        participation=population.participation().describe(),
        exact=found.exact,
        delta_hint=delta_hint,
    )


def calibrated_noise(
    *,
    epsilon: float,
    delta: float,
    population: Population,
    mechanism: Mechanism,
    schedule: Schedule,
    adjacency: str,
) -> float:
    """The least `noise` whose guarantee is (epsilon, delta)."""
    check_adjacency(population, adjacency)
    if population.is_secret:
        least = calibrate_noise(lambda s: _sampled(s, population, adjacency), epsilon, delta)
    else:
        kappa = 2 if adjacency == "replace-one" else 1
        found = run_sensitivity(population, mechanism, schedule)
        least = kappa * found.value / mu_from_epsilon_delta(epsilon, delta)
    return float32_up(least * FLOAT32_MARGIN)


def float32_up(value: float) -> float:
    """The least float32 not below `value`, as a float."""
    rounded = np.float32(value)
    if float(rounded) < value:
        rounded = np.nextafter(rounded, np.float32(math.inf))
    return float(rounded)


def _sampled(noise: float, population: Population, adjacency: str) -> SampledGaussian:
    return SampledGaussian(
        noise_std=noise,
        contribution=1.0,
        rate=population.rate,
        steps=population.steps,
        sampling=population.sampling,
        adjacency=adjacency,
    )


def _secret_use(population: Population) -> str:
    share = f"1 in {1 / population.rate:,.4g}"
    if population.sampling == "poisson":
        return f"in each of {population.steps:,} steps with probability {share}, secretly"
    return (
        f"in {population.steps:,} secret random batches of {population.batch_size:,} out of "
        f"{population.examples:,}"
    )

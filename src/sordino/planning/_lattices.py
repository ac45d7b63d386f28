"""Discrete noise: the mechanism that can be on a lattice, and the lattice that a plan fits on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino._base.errors import SordinoError, require_count
from sordino.parts import Population
from sordino.parts.contributions import Contribution
from sordino.parts.mechanisms import (
    LEAST_STEPS,
    Lattice,
    LinearMap,
    Mechanism,
    draw_stds,
    fit_mechanism,
    is_on_lattice,
)
from sordino.parts.schedules import Uniform
from sordino.planning._accounting import run_sensitivity
from sordino.planning._kinds import without_lattice
from sordino.planning._training import Training
from sordino.planning.recipes import Recipe
from sordino.privacy import POISSON

# Mechanisms by name that can be on a lattice; the tree where sums do not decay.
_LATTICE_NAMES = ("cancelling", "tree", "independent")


def lattice_mechanism(
    spec: Recipe,
    chosen: dict[str, Any],
    given: dict[str, Any],
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
        bounds=bounds,
        stds=run.noise_stds(),
        mechanism=run.mechanism,
        largest_batch=largest,
    )
    if most_steps is None:
        return finest
    least = require_count("lattice_steps", most_steps, minimum=LEAST_STEPS)
    drawn = float(draw_stds(run.mechanism, run.noise_stds()).min())
    coarse = math.floor(math.log2(min(float(bounds.min()) / least, drawn / LEAST_STEPS)))
    return Lattice(max(finest.exponent, coarse))

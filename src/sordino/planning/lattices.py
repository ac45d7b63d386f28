"""Discrete noise: the mechanism that can be on a lattice, and the lattice that a plan fits on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sordino.accounting import run_sensitivity
from sordino.errors import SordinoError, require_count
from sordino.mechanisms.base import Mechanism
from sordino.mechanisms.catalogue import fit_mechanism
from sordino.mechanisms.lattice import LEAST_STEPS, Lattice, draw_stds, is_on_lattice
from sordino.mechanisms.workloads import LinearMap
from sordino.planning.kinds import without_lattice
from sordino.planning.plans import Plan
from sordino.population import POISSON, Population
from sordino.recipes import Recipe
from sordino.schedules.base import Uniform
from sordino.streams.contributions import Contribution

# Mechanisms by name that can be on a lattice; the tree where sums do not decay.
_LATTICE_NAMES = ("cancelling", "tree", "independent")


def lattice_mechanism(
    spec: Recipe,
    chosen: dict[str, Any],
    given: dict[str, Any],
    contribution: Contribution,
    workload: LinearMap,
    people: Population,
) -> str:
    """The mechanism of a recipe's discrete noise: the given one, or the best that there is."""
    why = without_lattice(spec, contribution)
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


def fitted_lattice(made: Plan, most_steps: int | None = None) -> Lattice:
    """The finest lattice that a plan's sums and noise fit on, or one of about `most_steps` to the clip."""
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

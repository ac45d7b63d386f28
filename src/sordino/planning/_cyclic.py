"""How many bands, and so groups, cyclic Poisson batches have: the number with the least noise.

More bands cancel more noise, and a longer cycle makes an example more likely in the steps of its group, so
that less is amplified (papers/05 section 2.5). One band is amplified DP-SGD; as many as batches fit into
the data is correlated noise with next to no credit. The best number is in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sordino._base.errors import SordinoError
from sordino.parts import Population
from sordino.parts.contributions import Contribution, Lagged
from sordino.parts.mechanisms import LinearMap, Mechanism
from sordino.parts.sampling import CYCLIC, NOT_BANDED
from sordino.planning._accounting import strictest_beside
from sordino.privacy import Guarantee, NoiseKind, Side, calibrate_noise

# More bands are more state than a model can carry, and gain little.
MOST_BANDS = 512
# What a mechanism may be called under cyclic batches.
CYCLIC_MECHANISMS = ("auto", "banded", "independent")


def possible_bands(population: Population, contribution: Contribution) -> list[int]:
    """1, 2, 4, ... and the most there can be; of a lag only divisors, half as many again each.

    A difference to the gradient one lag ago is of another group unless the cycle divides the lag.
    """
    most = min(population.examples // population.batch_size, population.steps, MOST_BANDS)
    if isinstance(contribution, Lagged):
        chosen = [1]
        for b in range(2, most + 1):
            if contribution.lag % b == 0 and (b >= 1.5 * chosen[-1] or 1.5 * b > most):
                chosen.append(b)
        return chosen
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def best_cycle(
    population: Population,
    contribution: Contribution,
    fitted: Callable[[Population], Mechanism],
    iterate_map: LinearMap,
    *,
    epsilon: float,
    delta: float,
    adjacency: str,
    beside: Guarantee | None = None,
) -> Population:
    """The population with the cycle whose noise in the iterates is least, at the budget.

    Args:
      population: of any cycle.
      fitted: a mechanism for a population, with as many bands as its cycle.
      iterate_map: where noise ends up.
      beside: what other queries on the same data cost.
    """
    own = Side(0.0) if beside is None else beside.own
    spent, others, lost = own.gaussian_mu, own.sampled, own.lost
    budget = strictest_beside(epsilon, delta, lost, adjacency)
    weights = contribution.bounds(population.steps).T
    errors: dict[int, float] = {}

    def error(bands: int) -> float:
        if bands not in errors:
            tried = replace(population, cycle=bands)
            mechanism = fitted(tried)
            std = calibrate_noise(
                lambda std: tried.kind.amplified(tried, mechanism, std, None, adjacency) or (),
                *budget,
                mu=spent,
                others=others,
                roughly=True,
            )
            errors[bands] = std * _rms(mechanism, iterate_map, weights)
        return errors[bands]

    possible = possible_bands(population, contribution)
    best = _least(error, possible)
    if not isinstance(contribution, Lagged):
        between = {round(best * math.sqrt(2)), round(best / math.sqrt(2))} & set(
            range(possible[0], possible[-1] + 1)
        )
        best = min({best, *between}, key=error)
    return replace(population, cycle=best)


def _least(error: Callable[[int], float], possible: list[int]) -> int:
    """The number with the least error; the error falls and then rises, but the last is tried anyway."""
    best = possible[0]
    for bands in possible[1:]:
        if error(bands) < error(best):
            best = bands
        elif error(bands) > 1.5 * error(best):
            break
    return min((best, possible[-1]), key=error)


def _rms(mechanism: Mechanism, iterate_map: LinearMap, bounds: np.ndarray) -> float:
    """Noise in the iterates at learning rate 1 and noise multiplier 1, with these bounds of the steps."""
    level = bool(np.all(bounds == bounds.flat[0]))
    weights = None if level else bounds[:, 0] if bounds.shape[1] == 1 else bounds
    return float(np.sqrt(np.mean(mechanism.workload_error(iterate_map, weights) ** 2)))


def cyclic_mechanism(name: str, was_given: bool, noise: str) -> str:
    """The mechanism under cyclic batches: banded, unless independent noise was asked for.

    Args:
      name: the recipe's default, or what was given.
    """
    if noise != NoiseKind.GAUSSIAN:
        raise SordinoError(
            f"{CYCLIC} batches are for gaussian noise: banded noise is on no lattice; use "
            "sampling='poisson' or 'fixed' with discrete noise"
        )
    if not was_given:
        return "banded"
    if name not in CYCLIC_MECHANISMS:
        raise SordinoError(NOT_BANDED.format(what=f"that of mechanism {name!r} has no such bands"))
    return name if name == "independent" else "banded"

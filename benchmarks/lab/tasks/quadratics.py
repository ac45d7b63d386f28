r"""Noise schedules on quadratic losses, in closed form (papers/04, sections 1.3 and 5).

The loss is ``1/2 sum_j lam_j theta_j^2`` with 100 eigenvalues spaced evenly in the logarithm from
1/kappa to 1, N = 1,000 examples and clip 4 (which never binds here). A run starts at distance d, the
same in every coordinate. What gradient descent returns is linear in the noise, so the expected loss is
``bias + sum_t q_t sigma_t^2`` exactly, and nothing is simulated; all numbers are float64.

A population's options:

    kappa, distance       the problem
    momentum              bias-corrected momentum, 0 for none
    rates                 learning rates to choose from; 1/M = 1 unless given
    most                  the largest number of steps; every one is tried

Contenders are `benchmarks.lab.tasks.schedule_method.ScheduleMethod`; every one takes its own best steps and rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from benchmarks.lab.cells import Cell
from benchmarks.lab.tasks.schedule_method import UNIFORM, ScheduleMethod
from sordino import SordinoError
from sordino._base.errors import known_fields
from sordino.parts.schedules import (
    allocate,
    expinfl,
    geometric,
    momentum_quadratic,
    optimal_cost,
    predicted_cost,
    uniform_cost,
)

Array = NDArray[np.float64]
EXAMPLES, DIMENSION, CLIP = 1000, 100, 4.0
# Influence that rises faster leaves nothing to all steps but the last.
_STEEPEST = 3.0


@dataclass(frozen=True)
class QuadraticProblem:
    """A population's options; see the module."""

    kappa: float
    distance: float
    momentum: float = 0.0
    rates: tuple[float, ...] = (1.0,)
    most: int = 150

    @property
    def eigenvalues(self) -> Array:
        return np.geomspace(1 / self.kappa, 1.0, DIMENSION)


@dataclass(frozen=True)
class Best:
    """The least expected loss, and the steps and learning rate that have it."""

    loss: float
    steps: int
    rate: float


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """The least expected loss of one contender, and how it compares with uniform noise."""
    options = dict(cell.population.options)
    options["rates"] = tuple(options.get("rates", (1.0,)))
    problem = QuadraticProblem(**known_fields("a quadratic's options", options, QuadraticProblem))
    method = ScheduleMethod.of(cell.settings)
    if cell.budget is None or cell.budget.mu is None:
        raise SordinoError(f"{cell.name}: a quadratic needs a budget of mu")
    R = cell.budget.mu**2
    result, uniform = best(problem, method, R), best(problem, UNIFORM, R)
    run = {
        "seed": cell.seeds[0],
        "change": 100 * (result.loss / uniform.loss - 1),
        "train_loss": result.loss,
        "best_steps": float(result.steps),
    }
    return {
        "plan_hash": "",
        "guarantee": f"computed, not run: noise of {cell.budget.mu:g}-GDP, {cell.budget.adjacency}",
        "steps": result.steps,
        "runs": [run],
        "facts": {"learning rate": result.rate},
    }


@lru_cache(maxsize=64)
def best(problem: QuadraticProblem, method: ScheduleMethod, R: float) -> Best:
    """The least expected loss over all steps and rates, with ``sum 1/sigma^2 = R``."""
    candidates = (
        Best(expected_loss(problem, method, R, steps, rate), steps, rate)
        for rate in problem.rates
        for steps in _horizons(problem)
    )
    return min(candidates, key=lambda one: (one.loss, one.steps))


def expected_loss(
    problem: QuadraticProblem, method: ScheduleMethod, R: float, steps: int, rate: float
) -> float:
    """``bias + sum_t q_t sigma_t^2`` of a run."""
    log_q, bias = response(problem, method, steps, rate)
    left = 0.5 * float(problem.eigenvalues @ bias**2) * problem.distance**2 / DIMENSION
    return left + (CLIP / EXAMPLES) ** 2 * _noise_cost(problem, method, log_q, R)


def response(
    problem: QuadraticProblem, method: ScheduleMethod, steps: int, rate: float
) -> tuple[Array, Array]:
    """``log q_t`` per squared standard deviation of a step's mean gradient (T,), and what is left of the
    start per eigenvalue (D,).
    """
    lam = problem.eigenvalues
    if problem.momentum:
        if method.post_processed:
            raise SordinoError("momentum is not combined with decay or averaging here")
        result = momentum_quadratic(lam, rate, problem.momentum, steps)
        return result.log_q, result.bias
    rates = np.full(steps, rate)
    if method.decay:
        rates *= 1 - np.arange(steps) / steps
    averaged = max(1, int(method.tail * steps))
    # What is returned, by how much each later iterate moves with a unit of theta_{t+1}: backwards.
    moved = np.zeros(DIMENSION)
    q = np.empty(steps)
    for t in range(steps - 1, -1, -1):
        if t >= steps - averaged:
            moved = moved + 1 / averaged
        q[t] = 0.5 * rates[t] ** 2 * float(lam @ moved**2)
        moved = moved * (1 - rates[t] * lam)
    return np.log(np.maximum(q, 1e-300)), moved


def _noise_cost(problem: QuadraticProblem, method: ScheduleMethod, log_q: Array, R: float) -> float:
    if method.schedule == "uniform":
        return uniform_cost(log_q, R)
    if method.schedule == "exact":
        return optimal_cost(log_q, R)
    steps = log_q.size
    if method.schedule == "eq-7":
        return predicted_cost(log_q, allocate(geometric(1 - 1 / problem.kappa, steps), R))
    if method.schedule != "exponential":
        raise SordinoError(f"there is no schedule {method.schedule!r} for quadratics")
    if method.k is not None:
        return predicted_cost(log_q, allocate(expinfl(method.k, steps), R))
    result = minimize_scalar(
        lambda k: predicted_cost(log_q, allocate(expinfl(k, steps), R)),
        bounds=(0.0, _STEEPEST),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(result.fun)


def _horizons(problem: QuadraticProblem) -> list[int]:
    """Every number of steps up to 100, then every tenth: the loss is flat around its best there."""
    return [T for T in range(1, problem.most + 1) if T <= 100 or T % 10 == 0]

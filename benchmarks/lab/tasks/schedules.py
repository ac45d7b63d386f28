"""Noise schedules for full-batch gradient descent, by training loss (papers/04, section 5).

Populations with a ``kappa`` are computed, by `benchmarks.lab.tasks.quadratics`; for others, runs are made. A
population's options:

    source     a name of `benchmarks.lab.tasks.schedule_data`
    steps      numbers of steps T to choose from
    rate       the learning rate; the clip is 4
    minimum    true where the least training loss is computed too, for the loss above it

Contenders are `benchmarks.lab.tasks.schedule_method.ScheduleMethod`. T and whatever else is open are chosen by the
mean loss of other seeds (two fifths as many). Uniform noise and a given k choose among all T, other
schedules among the T of uniform noise and those beside it, and falling or averaged rates among all T and
multiples of the learning rate. The choice is not paid for: the figures compare schedules at one budget,
they are no private training from end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.lab.cells import Cell
from benchmarks.lab.experiment import PopulationSpec, TargetBudget
from benchmarks.lab.seeds import train_seeds
from benchmarks.lab.tasks import quadratics
from benchmarks.lab.tasks.schedule_data import ScheduleProblem, read_problem
from benchmarks.lab.tasks.schedule_method import UNIFORM, ScheduleMethod
from sordino import Plan, PublicData, SordinoError, plan
from sordino._base.errors import known_fields
from sordino.engine.influence import influence_by_gradient, public_eigenvalues
from sordino.parts.schedules import ExpInfluence, GradientDescentPL, NoiseSchedule, Uniform

Array = NDArray[np.float64]
CLIP = 4.0
# Rates k that the best exponential is chosen from.
KS = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12)
# Multiples of the learning rate, where it falls or iterates are averaged.
MULTIPLES = (1.0, 1.5, 2.0)
# Seeds by which T and k are chosen, far from those of the figures.
_OTHER_SEEDS = 1_000_000
_LEAST_OTHER = 8
# Simulated trainings that an estimated influence is averaged over.
_INFLUENCE_RUNS = 100


@dataclass(frozen=True)
class ScheduleSetting:
    """A population's options; see the module."""

    source: str
    steps: tuple[int, ...]
    rate: float
    minimum: bool = False


@dataclass(frozen=True)
class ScheduleCandidate:
    """One way to run: what a choice is made from."""

    steps: int
    schedule: NoiseSchedule
    rate: float
    decay: bool = False
    tail: float = 0.0
    k: float | None = None


@dataclass(frozen=True, eq=False)
class Bench:
    """A problem with everything that is the same for all candidates."""

    problem: ScheduleProblem
    setting: ScheduleSetting
    budget: TargetBudget
    seeds: tuple[int, int]

    def planned(self, candidate: ScheduleCandidate) -> Plan:
        return plan(
            "dp-gd",
            examples=len(self.problem.y),
            steps=candidate.steps,
            **self.budget.spent,
            clip=CLIP,
            learning_rate=candidate.rate,
            lr_schedule="linear" if candidate.decay else "constant",
            average=candidate.tail,
            schedule=candidate.schedule,
        )

    def losses(self, candidate: ScheduleCandidate, *, final: bool) -> Array:
        """Training loss of every run: with the seeds of the figures, or with the other ones."""
        first, count = self.seeds
        if not final:
            first, count = first + _OTHER_SEEDS, max(_LEAST_OTHER, 2 * count // 5)
        X, y = self.problem.X, self.problem.y
        start = np.zeros(X.shape[1], np.float32)
        trained = train_seeds(
            self.planned(candidate), self.problem.loss, start, (X, y), first, count
        )
        return mean_losses(self.problem, trained.params)

    def best(self, candidates: Iterator[ScheduleCandidate]) -> ScheduleCandidate:
        """The candidate with the least mean loss on the other seeds; the first of equals."""
        scored = [(_mean(self.losses(one, final=False)), one) for one in candidates]
        return min(scored, key=lambda pair: pair[0])[1]


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Choose T and what else is open on other seeds, train with the seeds of the cell, compare."""
    if "kappa" in cell.population.options:
        return quadratics.run_cell(cell, folder)
    method = ScheduleMethod.of(cell.settings)
    if cell.budget is None:
        raise SordinoError(f"{cell.name}: schedules need a budget")
    bench, flat, flat_losses = _uniform(
        _ScheduleKey(cell.population, cell.budget, cell.seeds, folder)
    )
    if method == UNIFORM:
        chosen, losses = flat, flat_losses
    else:
        chosen = bench.best(candidates(bench, method, flat))
        losses = bench.losses(chosen, final=True)
    first, level = cell.seeds[0], float(np.mean(flat_losses))
    runs = [
        {
            "seed": first + i,
            "change": 100 * (loss - base) / level,
            "train_loss": loss,
            "best_steps": float(chosen.steps),
        }
        for i, (loss, base) in enumerate(zip(losses.tolist(), flat_losses.tolist(), strict=True))
    ]
    if bench.setting.minimum:
        least = least_loss(bench.problem)
        runs = [{**run, "excess": run["train_loss"] - least} for run in runs]
    built = bench.planned(chosen)
    oracle = method.schedule == "influence" and method.rows == "training"
    return {
        "plan_hash": built.hash,
        "guarantee": "none: its schedule was learned from the rows themselves"
        if oracle
        else built.guarantee.sentence() + "; the choice of its settings is not in it",
        "steps": chosen.steps,
        "runs": runs,
        "facts": _facts(chosen, bench),
    }


def candidates(
    bench: Bench, method: ScheduleMethod, flat: ScheduleCandidate
) -> Iterator[ScheduleCandidate]:
    """What a contender may choose from, where uniform noise chose `flat`."""
    rate = bench.setting.rate
    if method.post_processed:
        for steps in bench.setting.steps:
            for multiple in MULTIPLES:
                yield ScheduleCandidate(
                    steps, Uniform(), multiple * rate, decay=method.decay, tail=method.tail
                )
        return
    known = bench.setting.steps
    for steps in beside(known, flat.steps) if method.k is None else known:
        if method.schedule == "eq-7":
            schedule = GradientDescentPL(_gamma(bench, method.matched), ratio_cap=None)
            yield ScheduleCandidate(steps, schedule, rate)
            continue
        for k in _rates_of_influence(bench, method, flat):
            yield ScheduleCandidate(steps, ExpInfluence(k, ratio_cap=None), rate, k=k)


def _rates_of_influence(
    bench: Bench, method: ScheduleMethod, flat: ScheduleCandidate
) -> tuple[float, ...]:
    if method.schedule == "influence":
        return (_estimated_k(bench, method.rows, flat),)
    if method.schedule != "exponential":
        raise SordinoError(f"there is no schedule {method.schedule!r} for runs")
    return KS if method.k is None else (method.k,)


def beside(known: tuple[int, ...], steps: int) -> tuple[int, ...]:
    """`steps` first, then the numbers of steps beside it."""
    at = known.index(steps)
    return (steps, *known[max(0, at - 1) : at], *known[at + 1 : at + 2])


def mean_losses(problem: ScheduleProblem, params: NDArray[np.float32]) -> Array:
    """The mean loss on the training rows of each model (one row of `params` each), in float64."""
    logits = problem.X.astype(np.float64) @ params.astype(np.float64).T
    labels = problem.y.astype(np.float64)[:, None]
    if labels.min() < 0:
        return np.asarray(np.mean(0.5 * (logits - labels) ** 2, axis=0))
    return np.asarray(np.mean(np.logaddexp(0.0, logits) - labels * logits, axis=0))


def least_loss(problem: ScheduleProblem) -> float:
    """The least mean logistic loss on the training rows."""
    X, y = problem.X.astype(np.float64), problem.y.astype(np.float64)

    def value_and_slope(theta: Array) -> tuple[float, Array]:
        logits = X @ theta
        value = np.mean(np.logaddexp(0.0, logits) - y * logits)
        return float(value), X.T @ (1 / (1 + np.exp(-logits)) - y) / len(y)

    result = minimize(
        value_and_slope,
        np.zeros(X.shape[1]),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1e-10, "ftol": 1e-15, "maxiter": 2000},
    )
    return float(result.fun)


def _gamma(bench: Bench, matched: bool) -> float:
    """Of Eq. 7, from the extreme eigenvalues of the Hessian at the start."""
    X = bench.problem.X
    result = public_eigenvalues(
        bench.problem.loss, np.zeros(X.shape[1], np.float32), PublicData(X, bench.problem.y)
    )
    low, high = float(result.min()), float(result.max())
    if matched:
        return GradientDescentPL.at(mu=low, M=high, eta=bench.setting.rate).gamma
    return 1 - low / high


def _estimated_k(bench: Bench, rows: str, flat: ScheduleCandidate) -> float:
    """The rate k at which influence rises, where uniform noise is best."""
    used = bench.problem.public
    if rows == "training":
        # An oracle, to compare with: a private run could not know this.
        used = bench.problem.X, bench.problem.y
    if used is None:
        raise SordinoError("there are no public rows of this data set to estimate influence on")
    start = np.zeros(used[0].shape[1], np.float32)
    return influence_by_gradient(
        bench.planned(flat),
        bench.problem.loss,
        start,
        PublicData(*used),
        runs=_INFLUENCE_RUNS,
    ).rate()


def _facts(chosen: ScheduleCandidate, bench: Bench) -> dict[str, Any]:
    facts: dict[str, Any] = {"learning rate": chosen.rate, "rows": len(bench.problem.y)}
    noise = chosen.schedule.relative_noise(chosen.steps)
    if noise is not None:
        facts["first over last noise"] = round(float(noise[0] / noise[-1]), 4)
    if chosen.k is not None:
        facts["k"] = round(chosen.k, 5)
    return facts


def _mean(values: Array) -> float:
    mean = float(np.mean(values))
    return mean if np.isfinite(mean) else np.inf


@dataclass(frozen=True)
class _ScheduleKey:
    """What uniform noise's runs follow from, as a key of a cache."""

    population: PopulationSpec
    budget: TargetBudget
    seeds: tuple[int, int]
    folder: str | None

    def __hash__(self) -> int:
        return hash((self.population.name, self.budget, self.seeds, self.folder))


@lru_cache(maxsize=2)
def _uniform(key: _ScheduleKey) -> tuple[Bench, ScheduleCandidate, Array]:
    """The bench of a population, what uniform noise chose there, and its losses."""
    population = key.population
    options = known_fields("options", population.options, ScheduleSetting)
    options["steps"] = tuple(options["steps"])
    setting = ScheduleSetting(**options)
    problem = read_problem(setting.source, str(population.loss.get("kind", "")), key.folder)
    bench = Bench(problem, setting, key.budget, key.seeds)
    flat = bench.best(ScheduleCandidate(T, Uniform(), setting.rate) for T in setting.steps)
    return bench, flat, bench.losses(flat, final=True)

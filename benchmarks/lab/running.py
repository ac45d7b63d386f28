"""Run a cell: plan, train every seed, score; and score a grid on public rows.

What comes back is plain data, ready to be stored.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.lab.cells import Cell, Trial
from benchmarks.lab.data import PreparedData, prepare, public_folds
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, Tuning
from benchmarks.lab.machine import machine
from benchmarks.lab.measures import MEASURES
from benchmarks.lab.scores import score_models
from benchmarks.lab.seeds import train_seeds
from sordino import Plan, PrivacyWarning, SordinoError, plan
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning.recipes import recipe_named

# A candidate whose runs leave the floats scores worst.
_WORST = 1e9
_CLIPS = ("clip", "difference_clip", "residual_clip")
_LENGTHS = ("step_length", "largest_step")
# Below this, the chance of which rows are in a batch would outweigh the noise that settings are for.
LEAST_BATCH = 64
_UPDATE_ONLY = ("learning_rate", "lr_schedule", "average")


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Train and score all seeds of a cell."""
    rows = prepared_rows(cell.population, folder)
    began = time.process_time()
    built = make_plan(
        cell.recipe, cell.budget, cell.settings, len(rows.train[1]), cell.population.unit
    )
    planning = time.process_time() - began
    first, count = cell.seeds
    trained = train_seeds(built, rows.loss, rows.start, rows.train, first, count)
    scores = score_models(trained.params, rows)
    passes = built.gradient_evaluations / built.population.examples
    return {
        "plan_hash": built.hash,
        "guarantee": built.guarantee.sentence() if recipe_named(cell.recipe).private else "none",
        "steps": built.population.steps,
        "runs": [{"seed": first + i, "passes": passes, **score} for i, score in enumerate(scores)],
        "as_published": rows.as_published,
        "cpu_seconds_per_run": trained.cpu_seconds / count,
        "wall_seconds_per_run": trained.wall_seconds / count,
        "planning_cpu_seconds": planning,
        "compile_cpu_seconds": trained.compile_seconds,
        "runs_together": trained.together,
    }


def run_trial(trial: Trial, folder: str | None) -> dict[str, Any]:
    """Score every candidate of a grid on public rows; the best is chosen."""
    examples, folds = _public(_Frozen(trial.population), folder, trial.tuning)
    plans: dict[str, Plan] = {}
    scored: list[dict[str, Any]] = []
    for candidate in trial.candidates:
        try:
            built = _planned(trial, {**trial.settings, **candidate}, examples, plans)
            built = shrunk(built, len(folds[0].train[1]))
        except SordinoError as error:
            scored.append({"settings": candidate, "score": None, "why": str(error)})
            continue
        values = [
            score[trial.measure]
            for i, fold in enumerate(folds)
            for score in _scores(built, fold, i * trial.tuning.seeds, trial.tuning.seeds)
        ]
        scored.append({"settings": candidate, "score": float(np.mean(values))})
    best = min(scored, key=lambda one: _badness(one["score"], trial.measure))
    if best["score"] is None:
        raise SordinoError(f"{trial.name}: no candidate can be planned; {best['why']}")
    budget = None if trial.budget is None else trial.budget.epsilon
    return {
        "chosen": {
            "population": trial.population.name,
            "contender": trial.contender,
            "epsilon": budget,
            "settings": best["settings"],
            "score": best["score"],
        },
        "scored": scored,
        "machine": machine(),
    }


def shrunk(made: Plan, rows: int) -> Plan:
    """The plan as it is run on so many public rows: the same steps, batches per epoch and noise on
    every mean, with batches of at least `LEAST_BATCH` (rows are repeated for them). It has no
    guarantee to give. An adaptive budget decides its noise during the run, and keeps its size.
    """
    population = made.population
    least = max(LEAST_BATCH, rows // population.steps_per_epoch)
    if made.schedule.kind == AdaptiveBudget.kind or least >= population.batch_size:
        return made
    factor = least / population.batch_size
    first = (
        None if population.first_batch is None else max(1, round(factor * population.first_batch))
    )
    small = replace(
        population, examples=least * population.steps_per_epoch, batch_size=least, first_batch=first
    )
    return made.with_training(population=small, noise_multiplier=made.noise_multiplier * factor)


def _scores(made: Plan, fold: PreparedData, first: int, count: int) -> list[dict[str, float]]:
    rows = fold.with_rows(made.population.examples)
    return score_models(
        train_seeds(made, rows.loss, rows.start, rows.train, first, count).params, rows
    )


def make_plan(
    recipe: str,
    budget: TargetBudget | None,
    settings: Mapping[str, Any],
    examples: int,
    unit: float = 1.0,
) -> Plan:
    """The plan of a contender; ``batches`` gives the batch size as so many per epoch."""
    options = in_units(recipe, settings, unit)
    if "batches" in options:
        options["batch_size"] = -(-examples // int(options.pop("batches")))
    spent = {} if budget is None else budget.spent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return plan(recipe, examples=examples, **spent, **options)


def in_units(recipe: str, settings: Mapping[str, Any], unit: float) -> dict[str, Any]:
    """Settings for rows of norm 1, converted to rows of norm `unit`; see `PopulationSpec`."""
    result = dict(settings)
    defaults = recipe_named(recipe).defaults()
    optimizer = result.get("optimizer", defaults["optimizer"])
    powers = dict.fromkeys(_CLIPS, 1) | dict.fromkeys(_LENGTHS, -1)
    powers["learning_rate"] = -1 if optimizer == "normalized" else -2
    for name, power in powers.items():
        if name in result:
            result[name] = result[name] * unit**power
    return result


def _planned(trial: Trial, settings: dict[str, Any], examples: int, known: dict[str, Plan]) -> Plan:
    """Plans that differ in the update only share their noise."""
    update = {name: value for name, value in settings.items() if name in _UPDATE_ONLY}
    rest = {name: value for name, value in settings.items() if name not in _UPDATE_ONLY}
    unit, shared = trial.population.unit, repr(sorted(rest.items()))
    if shared not in known:
        known[shared] = make_plan(trial.recipe, trial.budget, rest, examples, unit)
    return known[shared].with_update(**in_units(trial.recipe, update, unit))


def _badness(score: float | None, measure: str) -> float:
    if score is None or not np.isfinite(score):
        return _WORST
    return score if MEASURES[measure].lower else -score


class _Frozen:
    """A population as a key of a cache: equal if all that its rows follow from is."""

    def __init__(self, population: PopulationSpec) -> None:
        self.population = population
        self._text = repr((population.data, population.loss, population.rows))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def prepared_rows(population: PopulationSpec, folder: str | None) -> PreparedData:
    """The population's rows; those of the last one are kept."""
    return _rows(_Frozen(population), folder)


@lru_cache(maxsize=1)
def _rows(frozen: _Frozen, folder: str | None) -> PreparedData:
    return prepare(frozen.population, folder)


@lru_cache(maxsize=1)
def _public(frozen: _Frozen, folder: str | None, tuning: Tuning) -> tuple[int, list[PreparedData]]:
    """The number of all training rows, and the public ones in folds."""
    whole = prepare(frozen.population, folder)
    return len(whole.train[1]), public_folds(whole, tuning)

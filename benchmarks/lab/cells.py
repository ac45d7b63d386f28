"""Cells: the parts of an experiment that are run and stored one by one.

A cell is one contender on one population with one budget, over a group of seeds. Its key is a hash
of all that its figures follow from: the cell itself, the version, and the code that plans and trains.
Plans are pure functions of these, so a cell with the same key has the same plan hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import sordino
from benchmarks.lab.experiment import Contender, Experiment, PopulationSpec, TargetBudget, Tuning
from benchmarks.lab.tasks import TASKS

# What all figures follow from; a task names what its own follow from besides.
_ROOMS = (
    "sordino/_base",
    "sordino/privacy",
    "sordino/parts",
    "sordino/planning",
    "sordino/engine",
    "benchmarks/published.py",
)


@dataclass(frozen=True)
class Cell:
    """One contender, population, budget and group of seeds of an experiment."""

    experiment: str
    population: PopulationSpec
    budget: TargetBudget | None
    contender: str
    recipe: str
    settings: dict[str, Any]
    seeds: tuple[int, int]  # the first one, and how many
    task: str = "train"
    private: bool = True

    @property
    def key(self) -> str:
        """Of everything that the cell's figures follow from."""
        return _key(self)

    @property
    def name(self) -> str:
        budget = "" if self.budget is None else f", {self.budget}"
        return f"{self.experiment}: {self.contender}, {self.population.name}{budget}"


@dataclass(frozen=True)
class Trial:
    """The grid of one contender on one population and budget, to be scored on public rows."""

    experiment: str
    population: PopulationSpec
    budget: TargetBudget | None
    contender: str
    recipe: str
    settings: dict[str, Any]
    candidates: tuple[dict[str, Any], ...]
    tuning: Tuning
    measure: str
    task: str = "train"

    @property
    def key(self) -> str:
        return _key(self)

    @property
    def name(self) -> str:
        budget = "" if self.budget is None else f", {self.budget}"
        return f"{self.experiment}: choosing {self.contender}, {self.population.name}{budget}"


def cells_of(experiment: Experiment, *, quick: bool) -> list[Cell]:
    """All cells of an experiment, population by population."""
    count = experiment.quick_seeds if quick else experiment.seeds
    return [
        Cell(
            experiment=experiment.name,
            population=_slim(population),
            budget=None if budget is None else replace(budget, quick=True),
            contender=contender.label,
            recipe=contender.recipe,
            settings={
                **experiment.settings_of(contender, population.name, budget),
                **(contender.quick if quick and isinstance(contender.quick, Mapping) else {}),
            },
            seeds=(experiment.first_seed, min(count, contender.seeds or count)),
            task=contender.task or experiment.task,
            private=contender.private,
        )
        for population, budget, contender in _pairs(experiment)
        if not quick or _in_quick(population, budget, contender)
    ]


def trials_of(experiment: Experiment) -> list[Trial]:
    """All grids of an experiment."""
    return [
        Trial(
            experiment=experiment.name,
            population=_slim(population),
            budget=None if budget is None else replace(budget, quick=True),
            contender=contender.label,
            recipe=contender.recipe,
            settings=contender.settings_on(population.name),
            candidates=tuple(contender.candidates()),
            tuning=experiment.tuning,
            measure=experiment.headline,
            task=contender.task or experiment.task,
        )
        for population, budget, contender in _pairs(experiment)
        if contender.grid
    ]


def _pairs(
    experiment: Experiment,
) -> Iterator[tuple[PopulationSpec, TargetBudget | None, Contender]]:
    for population in experiment.populations:
        for contender in experiment.contenders:
            if contender.populations and population.name not in contender.populations:
                continue
            if not contender.private or not population.budgets:
                yield population, None, contender
                continue
            for budget in population.budgets:
                if contender.epsilons and budget.epsilon not in contender.epsilons:
                    continue
                adjacency = contender.adjacency or budget.adjacency
                yield population, replace(budget, adjacency=adjacency), contender


def _in_quick(
    population: PopulationSpec, budget: TargetBudget | None, contender: Contender
) -> bool:
    return contender.in_quick and population.quick and (budget is None or budget.quick)


def _slim(population: PopulationSpec) -> PopulationSpec:
    """Without what does not bear on figures: texts, places in figures, and the other budgets."""
    return replace(population, budgets=(), note="", panel="", x=None, x_title="", quick=True)


def _key(piece: Cell | Trial) -> str:
    task = TASKS[piece.task]
    digest = figures_digest(task.sources_of(piece.population), task.outside)
    return _hash([_content(piece), sordino.__version__, digest])


def _content(piece: Cell | Trial) -> dict[str, Any]:
    """All that a piece's figures follow from, as plain data."""
    data = asdict(piece)
    del data["population"]["x_title"]  # what an axis is called was added later
    return data


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@cache
def figures_digest(sources: tuple[str, ...], outside: tuple[str, ...] = ()) -> str:
    """Of the code that plans and trains, of a task's own sources, and of what it uses of a checkout."""
    root = Path(__file__).parents[2]
    package = Path(str(sordino.__file__)).parents[1]
    total = hashlib.sha256()
    for name in (*_ROOMS, *sources):
        place = (package if name.startswith("sordino/") else root) / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            total.update(path.read_bytes())
    for path in sorted(path for pattern in outside for path in root.glob(pattern)):
        total.update(path.read_bytes())
    return total.hexdigest()

"""What the finished cells of an experiment say together: means, intervals, and a Parquet file."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.lab.experiment import Experiment, PopulationSpec, TargetBudget
from benchmarks.lab.measures import MEASURES
from sordino import MissingExtraError
from sordino._base.files import write_atomically

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with half of its 95 % confidence interval (Student's t), and the spread."""

    mean: float
    half: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        count = len(values)
        mean = float(np.mean(values))
        if count < 2:
            return cls(mean, math.nan, math.nan)
        std = float(np.std(values, ddof=1))
        quantile = float(student.ppf((1 + CONFIDENCE) / 2, count - 1))
        return cls(mean, quantile * std / math.sqrt(count), std)


@dataclass(frozen=True)
class Line:
    """One contender on one population and budget."""

    population: str
    epsilon: float | None
    contender: str
    recipe: str
    adjacency: str | None
    settings: Mapping[str, Any]
    estimates: Mapping[str, Estimate]
    plan_hash: str
    guarantee: str
    seeds: int
    as_published: bool
    private: bool
    cpu_seconds: float | None
    times: Mapping[str, float]
    facts: Mapping[str, Any]

    def headline(self, name: str) -> float:
        """The mean of a measure; NaN where it was not taken."""
        return self.estimates[name].mean if name in self.estimates else math.nan


@dataclass(frozen=True)
class Results:
    """An experiment and its finished cells.

    Attributes:
      left_out: populations whose files were not there.
    """

    experiment: Experiment
    parts: tuple[dict[str, Any], ...]
    quick: bool = False
    left_out: tuple[str, ...] = ()

    def lines(self) -> list[Line]:
        return self._lines

    @cached_property
    def _lines(self) -> list[Line]:
        return [_line(part) for part in self.parts]

    def populations(self) -> list[PopulationSpec]:
        """Those that something was run on."""
        used = {line.population for line in self.lines()}
        return [one for one in self.experiment.populations if one.name in used]

    def stages(self, population: PopulationSpec) -> list[TargetBudget | None]:
        """The budgets of a population that something was run with; None where it has none."""
        used = {line.epsilon for line in self.lines() if line.population == population.name}
        budgets = [b for b in population.budgets if b.epsilon in used]
        return [*budgets] or [None]

    def table(self, population: PopulationSpec, budget: TargetBudget | None) -> list[Line]:
        """The lines of one table, best first; what is not private stands in all of them."""
        headline = self.experiment.headline
        sign = 1 if MEASURES[headline].lower else -1
        wanted = (None,) if budget is None else (None, budget.epsilon)
        chosen = [
            line
            for line in self.lines()
            if line.population == population.name and line.epsilon in wanted
        ]
        return sorted(chosen, key=lambda line: sign * _sortable(line.headline(headline), sign))

    def machines(self) -> list[dict[str, Any]]:
        """The machines that the cells ran on, each once."""
        result = {
            json.dumps(part["machine"], sort_keys=True): part["machine"] for part in self.parts
        }
        return [result[text] for text in sorted(result)]

    def write_parquet(self, path: Path) -> None:
        """One row per run, with all that it was made from."""
        pyarrow, parquet = import_pyarrow()
        buffer = io.BytesIO()
        rows = [row for part in self.parts for row in _rows(part)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
        write_atomically(path, buffer.getvalue())


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its Parquet module, or an error that says how to get them."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError(
            "results are kept as Parquet, which needs pyarrow; install it with: "
            "pip install 'sordino[parquet]'"
        ) from None
    return pyarrow, parquet


def _sortable(value: float, sign: int) -> float:
    return value if math.isfinite(value) else sign * math.inf


def _line(part: Mapping[str, Any]) -> Line:
    cell, runs = part["cell"], part["runs"]
    budget = cell["budget"] or {}
    names = [name for name in runs[0] if name in MEASURES]
    return Line(
        population=cell["population"]["name"],
        epsilon=budget.get("epsilon"),
        contender=cell["contender"],
        recipe=cell["recipe"],
        adjacency=budget.get("adjacency"),
        settings=cell["settings"],
        estimates={name: Estimate.of([run[name] for run in runs]) for name in names},
        plan_hash=part["plan_hash"],
        guarantee=part["guarantee"],
        seeds=len(runs),
        as_published=part.get("as_published", True),
        private=cell["private"],
        cpu_seconds=part.get("cpu_seconds_per_run"),
        times=part.get("times", {}),
        facts=part.get("facts", {}),
    )


def _rows(part: Mapping[str, Any]) -> list[dict[str, Any]]:
    cell = part["cell"]
    budget = cell["budget"] or {}
    shared = {
        "experiment": cell["experiment"],
        "population": cell["population"]["name"],
        "contender": cell["contender"],
        "recipe": cell["recipe"],
        "epsilon": budget.get("epsilon"),
        "mu": budget.get("mu"),
        "delta": budget.get("delta"),
        "adjacency": budget.get("adjacency"),
        "settings": json.dumps(cell["settings"], sort_keys=True),
        "loss": json.dumps(cell["population"]["loss"], sort_keys=True),
        "rows": json.dumps(cell["population"]["rows"], sort_keys=True),
        "options": json.dumps(cell["population"]["options"], sort_keys=True),
        "task": cell["task"],
        "private": cell["private"],
        "plan_hash": part["plan_hash"],
        "guarantee": part["guarantee"],
        "steps": part["steps"],
        "as_published": part.get("as_published", True),
        "cell": part["key"],
        "machine": json.dumps(part["machine"], sort_keys=True),
        **{name: value for name, value in part.items() if name.endswith("_per_run")},
        **{name: value for name, value in part.items() if name.endswith("_cpu_seconds")},
        "runs_together": part.get("runs_together"),
        "times": json.dumps(part.get("times", {}), sort_keys=True),
        "facts": json.dumps(part.get("facts", {}), sort_keys=True),
    }
    return [{**shared, **run} for run in part["runs"]]

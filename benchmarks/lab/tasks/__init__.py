"""What a cell of an experiment does: a table of tasks.

A task is a module with ``run_cell(cell, folder) -> dict``: plain data with the runs (a list of
``{"seed": ..., measure: value}``), ``plan_hash``, ``guarantee`` and ``steps``; optionally
``as_published``, ``cpu_seconds_per_run``, ``times`` (what is never twice the same) and ``facts``
(shown beside the settings). Its figures must follow from the cell and from the sources named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.lab.cells import Cell, Trial
    from benchmarks.lab.experiment import PopulationSpec


@dataclass(frozen=True)
class Task:
    """One kind of cell.

    Attributes:
      module: where its `run_cell` is.
      sources: what its figures follow from besides the code that plans and trains: files and
        folders, of the package (`sordino/...`) or of the checkout.
      also: more of them, for populations whose loss or features have this name.
      outside: files of the checkout that its figures follow from too, as patterns.
    """

    module: str
    sources: tuple[str, ...]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outside: tuple[str, ...] = ()

    def sources_of(self, population: PopulationSpec) -> tuple[str, ...]:
        """What the figures of a population follow from."""
        used = (str(population.loss.get("kind")), str(population.rows.get("features")))
        return self.sources + tuple(more for name in used for more in self.also.get(name, ()))


_TRAINING = (
    "benchmarks/lab/data.py",
    "benchmarks/lab/running.py",
    "benchmarks/lab/scores.py",
    "benchmarks/lab/seeds.py",
)

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "train": Task(
            "benchmarks.lab.running",
            _TRAINING,
            also={
                "mnist-cnn": ("benchmarks/lab/models.py", "benchmarks/networks.py"),
                "cnn5": ("benchmarks/lab/models.py", "benchmarks/networks.py"),
                "scattering": (
                    "benchmarks/lab/scattering.py",
                    "benchmarks/lab/strokes.py",
                    "sordino/models/_rows.py",
                ),
            },
        ),
        "parties": Task(
            "benchmarks.lab.tasks.parties",
            (*_TRAINING, "benchmarks/lab/tasks/parties.py", "sordino/together"),
        ),
        "federated": Task(
            "benchmarks.lab.tasks.federated",
            (
                "benchmarks/lab/data.py",
                "benchmarks/lab/scores.py",
                "benchmarks/lab/tasks/federated.py",
                "sordino/together",
            ),
        ),
        "schedules": Task(
            "benchmarks.lab.tasks.schedules",
            (
                "benchmarks/lab/seeds.py",
                "benchmarks/lab/tasks/schedules.py",
                "benchmarks/lab/tasks/schedule_data.py",
                "benchmarks/lab/tasks/schedule_method.py",
                "benchmarks/lab/tasks/quadratics.py",
            ),
        ),
        "momentum": Task(
            "benchmarks.lab.tasks.momentum",
            (
                "benchmarks/lab/data.py",
                "benchmarks/lab/seeds.py",
                "benchmarks/lab/tasks/momentum.py",
                "benchmarks/lab/tasks/momentum_models.py",
                "benchmarks/lab/tasks/watching.py",
                "benchmarks/papers",
            ),
        ),
        "peers": Task(
            "benchmarks.lab.tasks.peers",
            (
                "benchmarks/lab/data.py",
                "benchmarks/lab/running.py",
                "benchmarks/lab/tasks/peers.py",
                "sordino/models",
            ),
            outside=("benchmarks/peers/*.py", "benchmarks/experiments/peers/*.json"),
        ),
        "speed": Task(
            "benchmarks.lab.tasks.speed",
            ("benchmarks/lab/tasks/speed.py",),
            outside=("benchmarks/*.py", "benchmarks/peers/*.py"),
        ),
    }
)


def run_task(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Run a cell, with the data sets in `folder`."""
    result: dict[str, Any] = import_module(TASKS[cell.task].module).run_cell(cell, folder)
    return result


def tune_task(trial: Trial, folder: str | None) -> dict[str, Any]:
    """Score a grid on public rows, by the `run_trial` of its task."""
    result: dict[str, Any] = import_module(TASKS[trial.task].module).run_trial(trial, folder)
    return result

"""What the accuracy scripts share: jobs in, accuracies out; numpy alone, so all environments have it.

A script reads jobs from standard input, one JSON object a line, and answers each with one line:

    rows: an .npz file with X, y, X_test, y_test; y holds classes 0, 1, ...
    epsilon, delta: the budget
    examples: of the run that the budget is meant for
    settings: what the script's `train` takes
    seeds: whole numbers, one run each

A run on fewer rows than `examples` is a trial on public rows. It has the steps and the sampling rates
of the real run, and the noise that the real run has on every mean.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rows:
    """Prepared rows; labels are classes 0, 1, ..."""

    X: Floats
    y: NDArray[np.int64]
    X_test: Floats
    y_test: NDArray[np.int64]

    @property
    def classes(self) -> int:
        return int(max(self.y.max(), self.y_test.max())) + 1


@dataclass(frozen=True)
class Job:
    """One setting, to be run with several seeds."""

    epsilon: float
    delta: float
    examples: int
    settings: dict[str, Any]
    seeds: tuple[int, ...]


# Weights (outputs, features), intercepts (outputs,), and facts about the run worth keeping.
Model = tuple[NDArray[Any], NDArray[Any], dict[str, Any]]


def accuracy(rows: Rows, weights: NDArray[Any], intercepts: NDArray[Any]) -> float:
    """Per cent of the test rows that are put into the right class; one output means two classes."""
    logits = rows.X_test @ weights.T + intercepts
    chosen = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(axis=1)
    return float(100 * np.mean(chosen == rows.y_test))


@lru_cache(maxsize=3)
def load(path: str) -> Rows:
    """The rows in a file."""
    with np.load(path) as file:
        labels = (file[name].astype(np.int64) for name in ("y", "y_test"))
        return Rows(file["X"], next(labels), file["X_test"], next(labels))


def answer(train: Callable[[Rows, Job, int], Model], packages: tuple[str, ...]) -> None:
    """Run all jobs of standard input; `train` takes the rows, a job and a seed."""
    versions = {name: version(name) for name in packages}
    for line in sys.stdin:
        given = json.loads(line)
        rows = load(given.pop("rows"))
        job = Job(**{**given, "seeds": tuple(given["seeds"])})
        result, facts = [], {}
        for seed in job.seeds:
            weights, intercepts, facts = train(rows, job, seed)
            result.append(accuracy(rows, weights, intercepts))
        print(json.dumps({"accuracy": result, "facts": facts, "versions": versions}), flush=True)

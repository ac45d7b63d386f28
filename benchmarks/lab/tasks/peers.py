"""Other libraries on the same rows and budgets, tuned, beside `PrivateClassifier`, which is not.

Settings name the ``peer``: "sordino", or a script of benchmarks/peers with an environment of its own
(benchmarks/peers/README.md), in the folder that ``SORDINO_PEERS`` names, or `.bench`. What a peer was tuned
to, and the figures of its runs, are in benchmarks/experiments/peers/NAME.json, written by
``python -m benchmarks.peers.measure``. A cell runs a peer with the settings found there; where the
environment is missing, or the settings say ``stored = true``, it shows those figures instead and says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.lab.cells import Cell
from benchmarks.lab.data import PreparedData
from benchmarks.lab.running import prepared_rows
from benchmarks.lab.tasks.outside import checkout, environments
from sordino import PrivacyWarning, PrivateClassifier, SordinoError
from sordino._base.errors import one_line, require_choice

OWN = "sordino"
_SCRIPTS = Path("benchmarks") / "peers"
_FIGURES = Path("benchmarks") / "experiments" / "peers"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Peer:
    """How another library is run.

    Attributes:
      environment: its folder among the environments.
      script: in benchmarks/peers.
      guarantee: what its budget means, with places for epsilon and delta.
    """

    environment: str
    script: str
    guarantee: str


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "opacus": Peer(
            "opacus",
            "opacus_accuracy.py",
            "epsilon {epsilon:g}, delta {delta:g}, add-remove, Poisson batches, by its PRV accountant",
        ),
        "jax-privacy": Peer(
            "jaxprivacy",
            "jax_privacy_bandmf.py",
            "epsilon {epsilon:g}, delta {delta:g}, zero-out, by its calibration of BandMF",
        ),
        "diffprivlib": Peer(
            "diffprivlib",
            "diffprivlib_logistic.py",
            "epsilon {epsilon:g}, delta 0, replace-one, as the library states it",
        ),
    }
)


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Train with every seed and score on the test rows."""
    if cell.budget is None:
        raise SordinoError(f"{cell.name}: classifiers are compared at a budget")
    settings = dict(cell.settings)
    peer = require_choice("peer", settings.pop("peer", ""), (OWN, *PEERS))
    if peer == OWN:
        return _classifier(cell, settings, prepared_rows(cell.population, folder))
    root = checkout("peers", "accuracy.py")
    known = stored(root, cell.experiment).get(_place(cell))
    if known is None:
        raise SordinoError(
            f"{cell.name}: its settings are not chosen yet; run `python -m benchmarks.peers.measure`"
        )
    python = interpreter(root, PEERS[peer])
    if settings.get("stored") or python is None:
        return _as_measured(cell, peer, known)
    rows = prepared_rows(cell.population, folder)
    first, count = cell.seeds
    seeds = list(range(first, first + count))
    with rows_on_disk({"all": rows}) as files:
        job = job_of(cell, files["all"], len(rows.train[1]), known["settings"], seeds)
        answer = next(asked(root, peer, python, [job]))
    return {
        **_as_measured(cell, peer, {**known, **answer, "seeds": seeds, "machine": None}),
        "as_published": rows.as_published,
    }


def _classifier(cell: Cell, settings: dict[str, Any], rows: PreparedData) -> dict[str, Any]:
    """The estimator with nothing but public facts; `settings` are for showing other options."""
    assert cell.budget is not None
    (X, y), (X_test, y_test) = rows.train, rows.test
    first, count = cell.seeds
    model = PrivateClassifier(
        epsilon=cell.budget.epsilon,
        delta=cell.budget.delta,
        adjacency=cell.budget.adjacency,
        classes=list(range(max(2, rows.start.shape[0] if rows.start.ndim == 2 else 2))),
        examples=len(y),
        **settings,
    )
    result, began = [], time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # seeds are known, and the data public
        for seed in range(first, first + count):
            model.set_params(random_state=seed).fit(X, y)
            result.append({"seed": seed, "accuracy": 100 * float(model.score(X_test, y_test))})
    plan = model.plan_
    return {
        "runs": result,
        "plan_hash": plan.hash,
        "guarantee": plan.guarantee.sentence(),
        "steps": plan.population.steps,
        "as_published": rows.as_published,
        "cpu_seconds_per_run": (time.process_time() - began) / count,
        "facts": {
            "tuning": "none",
            "method": plan.recipe,
            "epochs": plan.population.epochs,
            "learning_rate": plan.update.learning_rate,
        },
    }


def _as_measured(cell: Cell, peer: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """A peer's figures as a cell's; `machine` is None where they were made just now."""
    assert cell.budget is not None
    facts = {**known["settings"], **known["facts"], **known["versions"]}
    facts["public score"] = round(known["score"], 2)
    if known["machine"] is not None:
        facts["measured"] = f"earlier, on {known['machine']['processor']}"
    guarantee = PEERS[peer].guarantee
    return {
        "runs": [
            {"seed": seed, "accuracy": value}
            for seed, value in zip(known["seeds"], known["accuracy"], strict=True)
        ],
        "plan_hash": "",
        "guarantee": guarantee.format(epsilon=cell.budget.epsilon, delta=cell.budget.delta),
        "steps": known["facts"].get("steps", 0),
        "facts": facts,
    }


def job_of(
    cell: Cell, path: str, examples: int, settings: Mapping[str, Any], seeds: Sequence[int]
) -> dict[str, Any]:
    """A job as the scripts of benchmarks/peers take it, for the rows in the file at `path`."""
    assert cell.budget is not None
    return {
        "rows": path,
        "epsilon": cell.budget.epsilon,
        "delta": cell.budget.delta,
        "examples": examples,
        "settings": dict(settings),
        "seeds": list(seeds),
    }


def asked(
    root: Path, peer: str, python: Path, jobs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """A peer's answers to its jobs, one after the other: `accuracy` of each seed, `facts`, `versions`."""
    script = root / _SCRIPTS / PEERS[peer].script
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    done = subprocess.run(
        [str(python), str(script)],
        input=lines,
        env={**os.environ, **dict.fromkeys(_ONE_THREAD, "1"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SordinoError(f"{peer} failed: {one_line(last)}")
    for line in done.stdout.splitlines():
        yield json.loads(line)


@contextmanager
def rows_on_disk(rows: Mapping[str, PreparedData]) -> Iterator[dict[str, str]]:
    """Rows as files that the scripts can read, by name."""
    with tempfile.TemporaryDirectory() as folder:
        result = {}
        for name, one in rows.items():
            path = Path(folder) / f"{name}.npz"
            (X, y), (X_test, y_test) = one.train, one.test
            np.savez(path, X=X, y=y, X_test=X_test, y_test=y_test)
            result[name] = str(path)
        yield result


def interpreter(root: Path, peer: Peer) -> Path | None:
    """The Python of a peer's environment, if it is there."""
    result = environments(root) / peer.environment / "bin" / "python"
    return result if result.is_file() else None


def figures_path(root: Path, experiment: str) -> Path:
    """Where an experiment's figures of peers are kept."""
    return root / _FIGURES / f"{experiment}.json"


def stored(root: Path, experiment: str) -> dict[tuple[str, str, float], dict[str, Any]]:
    """The figures of peers, by population, contender and epsilon."""
    path = figures_path(root, experiment)
    if not path.is_file():
        return {}
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, changed: int) -> dict[tuple[str, str, float], dict[str, Any]]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["measured"]
        return {(one["population"], one["contender"], one["epsilon"]): one for one in listed}
    except (ValueError, KeyError, TypeError) as error:
        raise SordinoError(f"{str(path)!r} holds no figures: {one_line(error)}") from None


def _place(cell: Cell) -> tuple[str, str, float]:
    assert cell.budget is not None
    return cell.population.name, cell.contender, cell.budget.epsilon

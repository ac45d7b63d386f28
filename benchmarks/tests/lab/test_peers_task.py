"""Cells of other libraries: run where they are, shown as measured where not; and our own, untuned."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lab.cells import Cell, cells_of
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, read_experiment
from benchmarks.lab.running import prepared_rows
from benchmarks.lab.tasks import outside, peers, run_task
from sordino._base.errors import SordinoError
from sordino.models._estimators import PrivateClassifier

ROOT = Path(__file__).parents[3]
CELL = Cell(
    experiment="t",
    population=PopulationSpec(
        "small", data="synthetic", loss={"kind": "logistic"}, rows={"norm": 1.0}
    ),
    budget=TargetBudget(epsilon=1.0, delta=1e-5),
    contender="theirs",
    recipe="",
    settings={"peer": "opacus"},
    seeds=(1000, 2),
    task="peers",
)
FIGURES: dict[str, Any] = {
    "population": "small",
    "contender": "theirs",
    "epsilon": 1.0,
    "settings": {"learning_rate": 2.0},
    "score": 80.126,
    "seeds": [1000, 1001, 1002],
    "accuracy": [81.0, 82.0, 83.0],
    "facts": {"steps": 400},
    "versions": {"opacus": "1.6.0"},
    "machine": {"processor": "a processor"},
}
# The script of a peer that puts every row into class 1 for seed 1000, and into class 0 otherwise.
SCRIPT = """
import numpy as np
from accuracy import answer

def train(rows, job, seed):
    facts = {"steps": 3, "rows": len(rows.y), "epsilon": job.epsilon, **job.settings}
    return np.zeros((1, rows.X.shape[1])), np.array([1.0 if seed == 1000 else -1.0]), facts

answer(train, ("numpy",))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with figures and the script of one peer, but no environment to run it in."""
    scripts = tmp_path / "benchmarks" / "peers"
    scripts.mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / "peers" / "accuracy.py", scripts)
    (scripts / "opacus_accuracy.py").write_text(SCRIPT)
    path = peers.figures_path(tmp_path, "t")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"measured": [FIGURES]}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(outside.PEERS_VARIABLE, raising=False)
    return tmp_path


def add_environment(root: Path) -> None:
    folder = root / ".bench" / "opacus" / "bin"
    folder.mkdir(parents=True)
    (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "python").chmod(0o755)


def test_figures_of_a_missing_peer_are_shown_and_said_to_be_earlier_ones(root: Path) -> None:
    result = run_task(CELL, None)
    assert result["runs"] == [
        {"seed": 1000 + i, "accuracy": value} for i, value in enumerate([81.0, 82.0, 83.0])
    ]
    assert result["facts"]["measured"] == "earlier, on a processor"
    assert result["facts"]["learning_rate"] == 2.0
    assert result["facts"]["opacus"] == "1.6.0"
    assert (result["steps"], result["facts"]["public score"]) == (400, 80.13)
    assert result["guarantee"].startswith("epsilon 1, delta 1e-05, add-remove")


def test_a_peer_that_is_there_is_run_with_the_chosen_settings(root: Path) -> None:
    add_environment(root)
    result = run_task(CELL, None)
    ones, zeros = (run["accuracy"] for run in result["runs"])
    assert ones + zeros == pytest.approx(100)
    assert 0 < ones < 100
    assert [run["seed"] for run in result["runs"]] == [1000, 1001]
    facts = result["facts"]
    assert (facts["rows"], facts["epsilon"], facts["learning_rate"]) == (4000, 1.0, 2.0)
    assert "measured" not in facts
    # A quick run shows what is stored all the same.
    quick = run_task(replace(CELL, settings={"peer": "opacus", "stored": True}), None)
    assert len(quick["runs"]) == 3


def test_a_peer_that_fails_is_an_error_of_one_sentence(root: Path) -> None:
    add_environment(root)
    (root / "benchmarks" / "peers" / "opacus_accuracy.py").write_text("raise ValueError('no luck')")
    with pytest.raises(SordinoError, match="opacus failed: ValueError: no luck"):
        run_task(CELL, None)


def test_what_was_never_measured_is_not_made_up(root: Path) -> None:
    with pytest.raises(SordinoError, match="not chosen yet"):
        run_task(replace(CELL, budget=TargetBudget(epsilon=2.0, delta=1e-5)), None)
    with pytest.raises(SordinoError, match="did you mean 'opacus'"):
        run_task(replace(CELL, settings={"peer": "opacos"}), None)
    with pytest.raises(SordinoError, match="at a budget"):
        run_task(replace(CELL, budget=None), None)
    peers.figures_path(root, "t").write_text('{"measured": [{}]}')
    with pytest.raises(SordinoError, match="holds no figures"):
        run_task(CELL, None)


def test_ours_is_the_estimator_with_public_facts_only() -> None:
    cell = replace(CELL, contender="ours", settings={"peer": "sordino"}, seeds=(1001, 1))
    result = run_task(cell, None)
    rows = prepared_rows(cell.population, None)
    X, y = rows.train
    model = PrivateClassifier(
        epsilon=1.0, delta=1e-5, classes=[0, 1], examples=len(y), random_state=1001
    )
    with pytest.warns(UserWarning, match="random_state"):
        model.fit(X, y)
    assert result["runs"] == [{"seed": 1001, "accuracy": 100 * model.score(*rows.test)}]
    assert result["plan_hash"] == model.plan_.hash
    assert result["guarantee"] == model.plan_.guarantee.sentence()
    assert result["runs"][0]["accuracy"] > 60


def test_every_peer_of_the_experiment_was_tuned_alike() -> None:
    experiment = read_experiment(ROOT / "benchmarks" / "experiments" / "g.toml")
    known = peers.stored(ROOT, "g")
    cells = [
        cell for cell in cells_of(experiment, quick=False) if cell.settings["peer"] != peers.OWN
    ]
    assert len(cells) == len(known) == 42
    counts: Counter[int] = Counter()
    for cell in cells:
        assert cell.budget is not None
        one = known[cell.population.name, cell.contender, cell.budget.epsilon]
        assert one["delta"] == cell.budget.delta
        scores = [tried["score"] for tried in one["scored"]]
        best = int(np.argmax(scores))
        assert one["scored"][best] == {"settings": one["settings"], "score": one["score"]}
        assert one["seeds"] == list(range(cell.seeds[0], sum(cell.seeds)))
        assert len(one["accuracy"]) == len(one["seeds"])
        counts[len(scores)] += 1
    assert counts == {8: 42}

"""Federated cells: the agreement follows the settings, runs are the simulator's, grids see public rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.lab.cells import Cell, Trial
from benchmarks.lab.data import prepare, public_folds
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, Tuning
from benchmarks.lab.scores import score_models
from benchmarks.lab.tasks import federated
from benchmarks.lab.tasks.federated import (
    FederatedMethod,
    FederatedSetting,
    agreement,
    run_cell,
    run_trial,
)
from sordino._base.errors import SordinoError
from sordino.together.federated._cohorts import split
from sordino.together.federated._simulator import simulate

PEOPLE = PopulationSpec(
    "synthetic",
    "synthetic",
    {"kind": "logistic"},
    options={
        "clients": 20,
        "per_round": 10,
        "smoothness": 0.3,
        "clip": 2.0,
        "gradient_clip": 0.5,
        "radius": 8.0,
    },
)
SETTING = FederatedSetting(20, 10, smoothness=0.3, clip=2.0, gradient_clip=0.5, radius=8.0)
BUDGET = TargetBudget(mu=4.0, delta=1e-5, adjacency="replace-one")


def cell(settings: dict[str, Any], *, private: bool = True) -> Cell:
    budget = BUDGET if private else None
    return Cell("t", PEOPLE, budget, "x", "", settings, (7, 2), "federated", private)


def test_every_row_is_used_as_often_as_the_batch_says() -> None:
    single = agreement(SETTING, FederatedMethod(), BUDGET, 4000, 20)
    assert (single.rounds, single.uses, single.clip, single.mu) == (400, 1, 2.0, 4.0)
    assert single.rounds * single.per_round == 4000
    batches = agreement(SETTING, FederatedMethod(batch=5), BUDGET, 4000, 20)
    assert (batches.rounds, batches.uses) == (400, 5)
    plain = agreement(SETTING, FederatedMethod("noisy-sgd", rate=3.0), BUDGET, 4000, 20)
    default = agreement(SETTING, FederatedMethod("noisy-sgd"), BUDGET, 4000, 20)
    assert plain.clip == 0.5
    assert plain.learning_rate == pytest.approx(3 * default.learning_rate)


def test_adjacency_of_the_budget_decides_the_noise() -> None:
    half = replace(BUDGET, adjacency="zero-out")
    stds = [
        np.sqrt(built.variance) * built.step
        for built in (agreement(SETTING, FederatedMethod(), b, 4000, 20) for b in (BUDGET, half))
    ]
    assert stds[0] / stds[1] == pytest.approx(2, rel=0.01)


def test_rows_that_cannot_be_dealt_out_evenly_are_refused() -> None:
    with pytest.raises(SordinoError, match="equal parts"):
        agreement(SETTING, FederatedMethod(), BUDGET, 4001, 20)
    with pytest.raises(SordinoError, match="no field 'learning_rate'"):
        run_cell(cell({"learning_rate": 1.0}), None)


def test_a_cell_is_what_the_simulator_makes_of_its_agreement() -> None:
    result = run_cell(cell({"schedule": "uniform"}), None)
    rows = prepare(PEOPLE, None)
    built = agreement(SETTING, FederatedMethod(schedule="uniform"), BUDGET, 4000, 20)
    parts = split(*rows.train, 20, seed=0)
    for run, seed in zip(result["runs"], (7, 8), strict=True):
        params = simulate(built, rows.loss, rows.start, parts, insecure_seed=seed).params
        (score,) = score_models(np.asarray(params).reshape(1, -1), rows)
        assert run["seed"] == seed
        assert run["accuracy"] == pytest.approx(score["accuracy"], abs=0.11)  # two rows of 2,000
        assert run["accuracy"] > 65
        assert run["passes"] == 2
    assert result["plan_hash"] == built.digest
    assert "replacing one example" in result["guarantee"]
    assert result["facts"]["mu against who sees sums only"] < 4

    again = run_cell(cell({"schedule": "uniform"}), None)
    assert again["runs"] == result["runs"]
    plain = run_cell(cell({"schedule": "uniform"}, private=False), None)
    assert plain["guarantee"] == "none"
    assert plain["plan_hash"] == ""
    assert plain["runs"][0]["accuracy"] > result["runs"][0]["accuracy"]


def test_a_grid_is_scored_on_public_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = Tuning(share=0.2, folds=2, seeds=1)
    whole = prepare(PEOPLE, None)
    public = {row.tobytes() for fold in public_folds(whole, tuning) for row in fold.train[0]}
    seen: set[bytes] = set()

    def watched(made: Any, loss: Any, start: Any, parts: Any, **options: Any) -> Any:
        seen.update(row.tobytes() for X, _ in parts for row in X)
        assert sum(len(y) for _, y in parts) == 4000  # the real run's number of rows
        return simulate(made, loss, start, parts, **options)

    monkeypatch.setattr(federated, "simulate", watched)
    candidates = ({"rate": 1e-9}, {"rate": 2.0}, {"rate": 1e-8})
    trial = Trial("t", PEOPLE, BUDGET, "x", "", {}, candidates, tuning, "log_loss")
    result = run_trial(trial, None)
    assert result["chosen"]["settings"] == {"rate": 2.0}
    assert sorted(len(one["values"]) for one in result["scored"]) == [1, 2, 2]
    assert seen <= public
    assert len(public) == 800

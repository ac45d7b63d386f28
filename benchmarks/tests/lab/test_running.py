"""Many seeds at once are the runs that `train` makes; grids see public rows only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from benchmarks.lab.cells import cells_of, trials_of
from benchmarks.lab.data import PreparedData, RowRule, make_loss, prepare, public_folds
from benchmarks.lab.experiment import PopulationSpec, TargetBudget, Tuning, read_experiment
from benchmarks.lab.running import in_units, make_plan, run_cell, run_trial, shrunk
from benchmarks.lab.seeds import train_seeds
from sordino._base.errors import SordinoError

from .helpers import write_toy

SYNTHETIC = PopulationSpec("synthetic", "synthetic", {"kind": "logistic"}, ())
BUDGET = TargetBudget(1.0, 1e-5)


def slow(recipe: str, settings: dict[str, Any]) -> Any:
    return pytest.param(recipe, settings, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def rows() -> PreparedData:
    return prepare(SYNTHETIC, None)


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("dp-gd", {"steps": 5}),
        ("dp-sgd", {"batches": 20, "epochs": 1}),
        ("dp-memf", {"batches": 20, "epochs": 2, "average": 0.5}),
        slow("dp-memf", {"batches": 20, "epochs": 2, "sampling": "reshuffled"}),
        slow("dp-srm", {"batches": 20, "epochs": 1, "first_batch": 1000}),
        slow("rrpsgd", {"batches": 20, "epochs": 1}),
        slow("dp-nsgd-sr", {"batches": 10, "epochs": 2}),
        ("dp-gd", {"steps": 3, "noise": "discrete"}),
        ("dp-agd", {"steps": 3}),
    ],
)
def test_seeds_together_are_the_runs_of_train(
    rows: PreparedData, recipe: str, settings: dict[str, Any]
) -> None:
    plan = make_plan(recipe, BUDGET, settings, len(rows.train[1]))
    trained = train_seeds(plan, rows.loss, rows.start, rows.train, first=5, count=3)
    alone = [
        sordino.train(plan, rows.loss, rows.start, rows.train, insecure_seed=seed).params
        for seed in (5, 6, 7)
    ]
    np.testing.assert_allclose(trained.params, np.stack(alone), rtol=2e-4, atol=2e-5)
    again = train_seeds(plan, rows.loss, rows.start, rows.train, first=5, count=3)
    np.testing.assert_array_equal(trained.params, again.params)


def test_groups_that_do_not_fit_memory_are_cut(
    rows: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan("dp-gd", BUDGET, {"steps": 5}, len(rows.train[1]))
    whole = train_seeds(plan, rows.loss, rows.start, rows.train, 0, 5)
    monkeypatch.setattr("sordino.engine._many.MOST_ENTRIES", 500)
    parts = train_seeds(plan, rows.loss, rows.start, rows.train, 0, 5)
    assert (whole.together, parts.together) == (5, 2)
    np.testing.assert_allclose(parts.params, whole.params, rtol=1e-5, atol=1e-6)


def test_a_cell_says_all_about_its_figures(tmp_path: Path) -> None:
    cell = cells_of(read_experiment(write_toy(tmp_path)), quick=True)[0]
    result = run_cell(cell, None)
    assert [run["seed"] for run in result["runs"]] == [1000, 1001]
    assert result["runs"][0]["error"] < 30
    assert result["runs"][0]["passes"] == 10
    assert result["plan_hash"] == make_plan("dp-gd", BUDGET, cell.settings, 4000).hash
    assert "(1, 1e-05)-differential privacy" in result["guarantee"]
    assert run_cell(cell, None)["runs"] == result["runs"]


def test_a_trial_chooses_the_better_candidate(tmp_path: Path) -> None:
    (trial,) = trials_of(read_experiment(write_toy(tmp_path, chosen=False)))
    trial = replace(trial, measure="log_loss")
    result = run_trial(trial, None)
    scores = {one["settings"]["learning_rate"]: one["score"] for one in result["scored"]}
    assert result["chosen"]["settings"]["learning_rate"] == min(scores, key=lambda lr: scores[lr])
    impossible = replace(trial, candidates=({"clip": -1.0},))
    with pytest.raises(SordinoError, match="no candidate"):
        run_trial(impossible, None)


def test_folds_hold_public_training_rows_only(rows: PreparedData) -> None:
    n = len(rows.train[1])
    numbered = replace(
        rows, train=(np.arange(n, dtype=np.float32)[:, None], rows.train[1]), test=rows.test
    )
    folds = public_folds(numbered, Tuning(share=0.1, folds=4, seeds=1))
    held = [set(fold.test[0].ravel()) for fold in folds]
    used = [set(fold.train[0].ravel()) for fold in folds]
    assert len(set.union(*held)) == sum(map(len, held)) == 400
    for mine, others in zip(held, used, strict=True):
        assert not mine & others
        assert others <= set.union(*held)
    assert {len(fold.train[1]) for fold in folds} == {300}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("dp-gd", {"steps": 5}),
        ("dp-memf", {"batches": 20, "epochs": 2}),
        ("dp-srm", {"batches": 20, "epochs": 1, "first_batch": 1000}),
        ("dp-memf", {"batches": 40, "epochs": 2}),
    ],
)
def test_a_smaller_run_has_the_noise_of_the_whole(recipe: str, settings: dict[str, Any]) -> None:
    plan = make_plan(recipe, BUDGET, settings, 4000)
    small = shrunk(plan, 390)
    assert small.population.steps == plan.population.steps
    assert small.population.steps_per_epoch == plan.population.steps_per_epoch
    np.testing.assert_allclose(small.noise_per_step(), plan.noise_per_step(), rtol=1e-6)
    if plan.population.is_secret:
        assert small.population.rate == pytest.approx(plan.population.rate)
    assert small.population.examples < 4000
    assert shrunk(plan, 4000) is plan


def test_rows_are_prepared_one_by_one() -> None:
    images = np.random.default_rng(0).random((6, 8, 8, 3)).astype(np.float32)
    for rule in (
        RowRule.of({"center": "own", "norm": 2.0, "blur": 1.0}),
        RowRule.of({"center": [0.5, 0.4, 0.3], "longest": 1.0, "bias": 0.5}),
    ):
        together = rule(images)
        alone = np.concatenate([rule(images[i : i + 1]) for i in range(6)])
        np.testing.assert_allclose(together, alone, rtol=1e-6)
    norms = np.linalg.norm(RowRule.of({"norm": 2.0})(images), axis=1)
    np.testing.assert_allclose(norms, 2.0, rtol=1e-5)
    with pytest.raises(SordinoError, match="center"):
        RowRule.of({"center": "mean"})


def test_units_turn_settings_for_rows_of_norm_1_into_others() -> None:
    given = {"clip": 0.5, "learning_rate": 8.0, "steps": 3}
    assert in_units("dp-gd", given, 2.0) == {"clip": 1.0, "learning_rate": 2.0, "steps": 3}
    # Steps of fixed length move the weights by a length, whatever the gradient is.
    assert in_units("dp-nsgd", given, 2.0)["learning_rate"] == 4.0


def test_losses_are_named() -> None:
    assert make_loss({"kind": "softmax"}, 7).parameter_shape(3) == (7, 3)
    with pytest.raises(SordinoError, match="did you mean"):
        make_loss({"kind": "sofmax"}, 7)
    with pytest.raises(SordinoError, match="no options"):
        make_loss({"kind": "logistic", "lam": 1.0}, 2)

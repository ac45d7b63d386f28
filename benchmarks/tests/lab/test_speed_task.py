"""Cells that measure: what comes back, what is left out, and slopes on log-log axes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.lab.cells import Cell
from benchmarks.lab.experiment import Contender, Experiment, PopulationSpec
from benchmarks.lab.results import Results
from benchmarks.lab.slopes import Slope, slope_rows, slopes
from benchmarks.lab.tasks import outside, speed
from sordino._base.errors import SordinoError

CELL = Cell(
    experiment="t",
    population=PopulationSpec("n = 512", options={"part": "train", "examples": 512, "batch": 64}),
    budget=None,
    contender="dp-sgd",
    recipe="",
    settings={"recipe": "dp-sgd", "features": 8, "steps": 16, "options": {"sampling": "fixed"}},
    seeds=(1000, 2),
    task="speed",
)


def test_a_power_law_has_its_slope_exactly() -> None:
    x = [1.0, 10.0, 100.0, 1000.0]
    fitted = Slope.fit(x, [3 * value**1.5 for value in x])
    assert fitted.slope == pytest.approx(1.5)
    assert fitted.error == pytest.approx(0, abs=1e-7)
    assert (fitted.points, fitted.low, fitted.high) == (4, 1.0, 1000.0)
    assert str(Slope.fit([1, 10], [2, 20])) == "1.00"
    assert math.isnan(Slope.fit([1, 10], [2, 20]).error)


def test_the_standard_error_is_that_of_the_slope() -> None:
    rng = np.random.default_rng(0)
    x = 2.0 ** np.arange(8)
    fits = [
        Slope.fit(list(x), list(x**0.5 * np.exp(0.1 * rng.normal(size=8)))) for _ in range(1000)
    ]
    spread = np.std([fit.slope for fit in fits])
    assert np.sqrt(np.mean([fit.error**2 for fit in fits])) == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize(("x", "y"), [([1.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([1, 2], [0, 1])])
def test_no_slope_of_too_little(x: list[float], y: list[float]) -> None:
    with pytest.raises(SordinoError, match="two or more places"):
        Slope.fit(x, y)


def measure(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> list[dict[str, Any]]:
    asked = []

    def measured(given: dict[str, Any], root: Path, folder: str | None) -> dict[str, Any]:
        asked.append(given)
        return answer

    monkeypatch.setattr(speed, "measured", measured)
    return asked


def test_a_run_for_each_repeat_and_what_is_counted_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"cpu_ms": [1.0, 2.0], "memory_mb": 300.0, "overhead": [1.1, 1.2], "steps": 16}
    asked = measure(monkeypatch, {**answer, "counted": {"gradients": 1024}, "plan_hash": "p"})
    result = speed.run_cell(CELL, None)
    assert asked[0]["repeats"] == 2
    assert asked[0]["examples"] == 512
    shared = {"gradients": 1024, "memory_mb": 300.0}
    assert result["runs"] == [
        {"seed": 1000, **shared, "cpu_ms": 1.0, "overhead": 1.1},
        {"seed": 1001, **shared, "cpu_ms": 2.0, "overhead": 1.2},
    ]


def test_a_peer_without_its_environment_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(outside.PEERS_VARIABLE, "somewhere")
    asked = measure(monkeypatch, {"missing": "Opacus"})
    peer = replace(CELL, population=replace(CELL.population, options={"part": "peer"}))
    result = speed.run_cell(peer, None)
    assert asked[0]["environments"] == "somewhere"
    assert result["runs"] == [{"seed": 1000}]
    assert "Opacus" in result["facts"]["left out"]


def test_slopes_of_an_experiment() -> None:
    populations = tuple(PopulationSpec(f"n = {n}", panel="over n", x=n) for n in (10, 100, 1000))
    experiment = Experiment(
        "t", "T", "", "", ("cpu_ms", "gradients"), 1, 1, populations, (Contender("a"),),
        task="speed", layout="lines",
    )  # fmt: skip
    parts = tuple(
        {
            "cell": {
                "population": {"name": one.name}, "budget": None, "contender": "a", "recipe": "",
                "settings": {}, "private": True,
            },
            "runs": [{"seed": 1, "cpu_ms": 2 * float(one.x or 0), "gradients": 5}],
            "plan_hash": "", "guarantee": "none",
        }
        for one in populations
    )  # fmt: skip
    results = Results(experiment, parts)
    result = {measure: fitted.slope for _, _, measure, fitted in slopes(results)}
    assert result == {"cpu_ms": pytest.approx(1), "gradients": pytest.approx(0)}
    _, rows = slope_rows(results, timed=True)
    assert rows == [["over n", "a", "CPU ms", "1.00 ± 0.00", "3", "10", "1,000"]]


def test_outside_a_checkout_there_is_nothing_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(outside, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "outside.py"))
    with pytest.raises(SordinoError, match="checkout"):
        outside.checkout("growth.py")


@pytest.mark.slow
def test_a_measurement() -> None:
    result = speed.run_cell(CELL, None)
    assert [run["seed"] for run in result["runs"]] == [1000, 1001]
    assert all(run["cpu_ms"] > 0 and run["memory_mb"] > 50 for run in result["runs"])
    assert result["runs"][0]["gradients"] == 16 * 64
    with pytest.raises(SordinoError, match="failed"):
        speed.run_cell(replace(CELL, settings={"recipe": "no-such"}), None)

"""``sordino ledger``, as a person or a script meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sordino
from sordino.app.cli._main import app
from sordino.engine.ledger._ledger import Ledger


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path / "team.ledger"
    monkeypatch.setenv("SORDINO_LEDGER", str(where))
    assert run("init", "--who", "ada").exit_code == 0
    assert run("add", "people", "--epsilon", 1, "--delta", "1e-5").exit_code == 0
    return where


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    made = sordino.plan("dp-gd", examples=100, steps=10, epsilon=0.8, delta=1e-5)
    made.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def answer(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(done: Any, words: str) -> None:
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def reserve(path: Path, plan: Path, name: str) -> None:
    Ledger.open(path).reserve("people", sordino.Plan.load(plan), run=name, who="grace@navy")


def test_a_budget_from_beginning_to_end(path: Path, plan: Path) -> None:
    shown = run("show").stdout
    assert "people" in shown
    assert "epsilon 1 at delta 1e-05" in shown
    assert "epsilon 0 reserved by 0 runs" in shown
    assert run("headroom", "people", "--plan", plan).stdout.splitlines()[-1] == "the plan fits"
    reserve(path, plan, "r1")
    shown = run("show", "people").stdout
    for word in ("r1", "reserved", "dp-gd", "grace@navy", "reserved by 1 run"):
        assert word in shown
    done = run("headroom", "people", "--plan", plan)
    assert done.exit_code == 1
    assert "the plan does not fit" in done.stdout
    assert "times its noise" in done.stdout
    assert run("cancel", "r1", "--who", "ada").exit_code == 0
    assert answer("headroom", "people", "--plan", plan)["plan"] == {"fits": True}
    assert "all 4 entries are sealed" in run("verify").stdout


def test_the_history_names_who_did_what_in_order(path: Path, plan: Path) -> None:
    reserve(path, plan, "r1")
    Ledger.open(path).start("r1")
    entries = answer("history")
    assert [entry["number"] for entry in entries] == [1, 2, 3, 4]
    assert [entry["what"] for entry in entries] == ["created", "dataset", "reserved", "running"]
    assert entries[0]["who"] == "ada"
    assert entries[2]["who"] == "grace@navy"
    shown = run("history", "people").stdout
    assert "created" not in shown
    assert "running" in shown


def test_json_is_complete(path: Path, plan: Path) -> None:
    reserve(path, plan, "r1")
    (status,) = answer("show")
    assert status["name"] == "people"
    assert 0 < status["spent"]["epsilon"] <= 0.8
    assert status["reservations"][0]["plan"] == sordino.Plan.load(plan).hash
    assert answer("headroom", "people")["epsilon"] == status["fits"]["epsilon"]
    assert answer("verify")["reservations"] == 1


def test_refusals_are_one_line(path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run("init"), "there is a file")
    refused(run("add", "people", "--epsilon", 2, "--delta", "1e-5"), "never changed")
    refused(run("add", "more", "--epsilon", 2), "a budget is epsilon and delta, or mu")
    refused(run("show", "nobody"), "no data set 'nobody'")
    refused(run("cancel", "r9"), "no run 'r9'")
    reserve(path, plan, "r1")
    Ledger.open(path).start("r1")
    refused(run("cancel", "r1"), "stays charged")
    refused(run("show", "--ledger", path.with_name("none")), "there is no ledger")
    path.unlink()
    refused(run("show"), "is gone")
    monkeypatch.delenv("SORDINO_LEDGER")
    refused(run("show"), "--ledger FILE")


def test_a_run_can_be_named_by_how_it_begins(path: Path) -> None:
    ledger = Ledger.open(path)
    cheap = sordino.plan("dp-gd", examples=100, steps=10, epsilon=0.1, delta=1e-5)
    for name in ("abc1", "abc2", "abc", "xyz0"):
        ledger.reserve("people", cheap, run=name)
    refused(run("cancel", "ab"), "3 runs begin with 'ab'")
    assert run("cancel", "abc").exit_code == 0
    assert run("cancel", "xy").exit_code == 0
    states = {held.run: held.state for held in ledger.reservations()}
    assert states == {
        "abc1": "reserved",
        "abc2": "reserved",
        "abc": "cancelled",
        "xyz0": "cancelled",
    }


def test_a_budget_in_mu_is_shown_in_mu(path: Path) -> None:
    assert run("add", "users", "--mu", 0.8, "--unit", "user").exit_code == 0
    shown = run("show", "users").stdout
    assert "0.8-GDP, zero-out, per user" in shown
    assert "one Gaussian run of mu 0.8\n" in shown

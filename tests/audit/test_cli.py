"""``sordino audit``: verdicts, files for scripts, pictures and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino import Plan
from sordino.app.cli._main import app
from sordino.audit._plans import reference_plan


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert word in errors[0]


def with_noise_times(patch: pytest.MonkeyPatch, factor: float) -> None:
    planned = Plan.noise_stds
    patch.setattr(Plan, "noise_stds", lambda self: planned(self) * np.float32(factor))


def table(rows: int, seed: int, columns: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(rows, columns))
    frame = pd.DataFrame(X.round(6), columns=[f"x{i}" for i in range(columns)])
    frame["label"] = np.where(X[:, 0] + 0.5 * rng.normal(size=rows) > 0, "yes", "no")
    return frame


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    table(150, 0).to_csv(path, index=False)
    return path


def schema(folder: Path, columns: int = 3, rows: int | None = None) -> Path:
    """Everything public, so that no warning is printed."""
    path = folder / "facts.toml"
    lines = ['target = "label"', 'classes = ["no", "yes"]']
    lines += [] if rows is None else [f"examples = {rows}"]
    for i in range(columns):
        lines += ["[[columns]]", f'name = "x{i}"', "low = -1", "high = 1"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ---- white box ---------------------------------------------------------------------------------------


def test_recipes_are_audited(tmp_path: Path) -> None:
    found, drawn = tmp_path / "audit.json", tmp_path / "audit.svg"
    result = run("white-box", "dp-gd", "dp-memf", "--runs", 500, "--json", found, "--plot", drawn)
    assert result.exit_code == 0, result.output
    assert "No violation found in 2 audits" in result.output
    assert len(re.findall(r"\+[\d.]+ %\s+none", result.output)) == 2
    assert "dp-memf" in result.output
    data = json.loads(found.read_text(encoding="utf-8"))
    assert (data["format"], data["version"], data["kind"]) == ("sordino-audit", 1, "white-box")
    assert data["exceeded"] is False
    assert [one["recipe"] for one in data["audits"]] == ["dp-gd", "dp-memf"]
    for one in data["audits"]:
        assert one["mu_low"] < one["mu_claimed"]
        # Two audits share the error of one.
        assert one["confidence"] == pytest.approx(0.9995)
    picture = drawn.read_text(encoding="utf-8")
    assert picture.startswith("<?xml")
    assert "</svg>" in picture


def test_a_leak_is_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_noise_times(monkeypatch, 0.5)
    found = tmp_path / "audit.json"
    result = run("white-box", "dp-gd", "--runs", 500, "--json", found, "--plot", tmp_path / "a.png")
    assert result.exit_code == 3, result.output
    assert "FOUND" in result.output
    assert "leaks more than its plan states" in result.output
    assert json.loads(found.read_text(encoding="utf-8"))["exceeded"] is True
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_plan_is_audited(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    reference_plan("dp-ftrl").save(path)
    result = run("white-box", "--plan", path, "--runs", 300)
    assert result.exit_code == 0, result.output
    assert "No violation found. Measured mu" in result.output
    assert "(dp-ftrl: mu between" in result.output


def test_a_large_plan_is_audited_in_small(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    reference_plan("dp-memf", examples=60_000, batch_size=20_000, steps=6).save(path)
    result = run("white-box", "--plan", path, "--runs", 300)
    assert result.exit_code == 0, result.output
    assert "audited with 6 bystanders in batches of 2" in result.stderr


def test_white_box_refusals(tmp_path: Path) -> None:
    refused(run("white-box"), "name recipes")
    refused(run("white-box", "dp-mef"), "did you mean 'dp-memf'")
    refused(run("white-box", "sgd"), "promises no privacy")
    refused(run("white-box", "dp-gd", "--plan", tmp_path / "plan.json"), "not both")
    refused(run("white-box", "--plan", tmp_path / "plan.json"), "there is no plan")
    refused(run("white-box", "dp-gd", "--runs", 3), "runs must be")
    refused(run("white-box", "dp-gd", "--confidence", 1.5), "confidence must be")
    refused(run("white-box", "dp-gd", "--plot", tmp_path / "a.bmp"), ".png, .svg or .pdf")
    refused(run("white-box", "dp-gd", "--json", tmp_path / "no" / "a.json"), "there is no folder")
    assert not list(tmp_path.iterdir())


# ---- one run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gradient", "mislabelled", "random"])
def test_one_run_on_a_table(people: Path, tmp_path: Path, kind: str) -> None:
    """At 99.99 % a false alarm is not expected in the life of this test."""
    found = tmp_path / "audit.json"
    facts = schema(tmp_path)
    result = run(
        *("one-run", people, "--schema", facts, "--epsilon", 2, "--canaries", 60, "--kind", kind),
        *("--confidence", 0.9999, "--json", found, "--epochs", 4),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(found.read_text(encoding="utf-8"))["audits"][0]
    assert data["canaries"] == 60
    assert data["canary_kind"].startswith(kind)
    assert data["epsilon_low"] <= data["epsilon_claimed"] == pytest.approx(2.0, rel=1e-6)
    assert data["adjacency"] == "zero-out"
    assert "training" not in data
    assert "210 examples" in result.output  # the plan covers the rows and the canaries


def test_one_run_without_noise_is_an_exit_code(
    people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_noise_times(monkeypatch, 1e-6)
    result = run(
        *("one-run", people, "--schema", schema(tmp_path), "--epsilon", 0.5, "--canaries", 100),
        *("--epochs", 4),
    )
    assert result.exit_code == 3, result.output
    assert "leaks more than its plan states" in result.output


def test_one_run_refusals(people: Path, tmp_path: Path) -> None:
    base = ("one-run", people, "--epsilon", 1)
    refused(run(*base), "--target")
    refused(run(*base, "--target", "label", "--kind", "golden"), "kind 'golden' is not known")
    refused(run(*base, "--target", "label", "--canaries", 3), "canaries must be")
    refused(run("one-run", tmp_path / "none.csv", "--epsilon", 1, "--target", "label"), "none.csv")


# ---- membership --------------------------------------------------------------------------------------


def trained(folder: Path, columns: int, rows: int, epsilon: float, *more: object) -> Path:
    table(rows, 0, columns).to_csv(folder / "members.csv", index=False)
    table(300, 1, columns).to_csv(folder / "others.csv", index=False)
    table(200, 2, columns).to_csv(folder / "public.csv", index=False)
    facts = schema(folder, columns, rows)
    done = CliRunner().invoke(
        app,
        [
            *("train", str(folder / "members.csv"), "--schema", str(facts), "--out"),
            *(str(folder / "model"), "--epsilon", str(epsilon), *map(str, more)),
        ],
    )
    assert done.exit_code == 0, done.output
    return folder / "model"


def membership(folder: Path, *more: object) -> Any:
    return run(
        *("membership", folder / "model", "--members", folder / "members.csv"),
        *("--non-members", folder / "others.csv", *more),
    )


def test_a_trained_model_is_attacked(tmp_path: Path) -> None:
    trained(tmp_path, 3, 100, 2.0)
    found, drawn = tmp_path / "audit.json", tmp_path / "audit.png"
    result = membership(
        tmp_path,
        *("--public", tmp_path / "public.csv", "--shadows", 4, "--json", found, "--plot", drawn),
        *("--confidence", 0.999),
    )
    assert result.exit_code == 0, result.output
    data = json.loads(found.read_text(encoding="utf-8"))["audits"][0]
    assert [attack["name"] for attack in data["attacks"]] == ["loss threshold", "LiRA"]
    assert (data["members"], data["others"]) == (100, 300)
    assert "No violation found." in result.output
    assert drawn.read_bytes().startswith(b"\x89PNG")
    alone = membership(tmp_path)
    assert alone.exit_code == 0
    assert "LiRA was left out" in alone.output


def test_a_model_that_remembers_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More columns than rows and no noise: the labels are learnt by heart."""
    with_noise_times(monkeypatch, 1e-6)
    trained(tmp_path, 80, 60, 0.5, "--epochs", 300)
    result = membership(tmp_path)
    assert result.exit_code == 3, result.output
    assert "leaks more than its guarantee allows" in result.output


def test_membership_refusals(tmp_path: Path) -> None:
    trained(tmp_path, 3, 100, 2.0)
    refused(run("membership", tmp_path, "--members", "a", "--non-members", "b"), "no model")
    frame = table(50, 5)
    frame.drop(columns="label").to_csv(tmp_path / "others.csv", index=False)
    refused(membership(tmp_path), "table of non-members has no column 'label'")
    frame.assign(label="maybe").to_csv(tmp_path / "others.csv", index=False)
    refused(membership(tmp_path), "not among the classes")
    frame.iloc[:5].to_csv(tmp_path / "others.csv", index=False)
    refused(membership(tmp_path), "others must be")

"""``python -m benchmarks run``, as a person meets it: tables, the same ones again, and after a crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.tests.lab.helpers import TOY, write_toy


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def files(folder: Path) -> dict[str, bytes]:
    """What must not change from run to run: everything but times."""
    names = ("toy.md", "toy.svg", "toy.png")
    return {name: (folder / name).read_bytes() for name in names}


def test_tables_are_written_and_the_same_again(tmp_path: Path) -> None:
    toy = write_toy(tmp_path)
    first = run(toy, "--out", tmp_path / "one")
    assert first.exit_code == 0, first.output
    assert "target at most 30: reached" in first.stdout
    page = (tmp_path / "one" / "toy.md").read_text(encoding="utf-8")
    assert "| sgd (NOT private) |" in page
    assert "*DP-X, as printed* | 25.00 (std 1.00)" in page
    assert "Seeds 1000 to 1002" in page
    # Other processes, another number of them, nothing stored: the same figures.
    second = run(toy, "--out", tmp_path / "two", "--jobs", 1)
    assert second.exit_code == 0, second.output
    assert files(tmp_path / "one") == files(tmp_path / "two")
    parts = sorted((tmp_path / "one" / "cells" / "toy").iterdir())
    before = {part: part.stat().st_mtime_ns for part in parts}
    third = run(toy, "--out", tmp_path / "one")
    assert "4 of 4 cells were finished before" in third.stderr
    assert {part: part.stat().st_mtime_ns for part in parts} == before
    _check_parquet(tmp_path / "one" / "toy.parquet")


def _check_parquet(path: Path) -> None:
    import pyarrow.parquet as parquet

    rows = parquet.read_table(path).to_pylist()
    assert len(rows) == 12
    row = next(row for row in rows if row["contender"] == "dp-gd")
    assert (row["epsilon"], row["delta"], row["adjacency"]) == (1.0, 1e-5, "zero-out")
    assert len(row["plan_hash"]) == 64
    assert json.loads(row["settings"]) == {"learning_rate": 8.0, "steps": 10}
    assert json.loads(row["machine"])["cores"] >= 1
    assert row["cpu_seconds_per_run"] > 0


def test_data_that_is_not_there_is_left_out_and_said(tmp_path: Path) -> None:
    other = """
[[populations]]
name = "digits"
data = "mnist"
loss = { kind = "softmax" }
budgets = [{ epsilon = 1.0, delta = 1e-5 }]

[[contenders]]
"""
    text = TOY.replace("[[contenders]]", other, 1).replace(
        "grid = { learning_rate = [1.0, 8.0] }", ""
    )
    for recipe in ("dp-gd", "dp-memf", "sgd"):  # one is enough
        text = _without(text, recipe)
    toy = write_toy(tmp_path, text=text, chosen=False)
    result = run(toy, "--out", tmp_path / "out", "--data", tmp_path, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "left out: everything on mnist; there is no 'train-images-idx3-ubyte'" in result.stderr
    page = (tmp_path / "out" / "toy.md").read_text(encoding="utf-8")
    assert "Not run here, for want of the data: digits." in page
    assert "## synthetic" in page
    assert "## digits" not in page
    alone = write_toy(
        tmp_path, text=text.replace('data = "synthetic"', 'data = "a9a"'), chosen=False
    )
    nothing = run(alone, "--out", tmp_path / "none", "--data", tmp_path)
    assert nothing.exit_code != 0
    assert "LIBSVM" in nothing.stderr + nothing.stdout + str(nothing.exception)


def _without(text: str, recipe: str) -> str:
    """The experiment without one contender."""
    blocks = text.split("\n[[")
    return "\n[[".join(block for block in blocks if f'recipe = "{recipe}"' not in block)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_finished_cells(tmp_path: Path) -> None:
    budgets = "budgets = [{ epsilon = 1.0, delta = 1e-5 }"
    more = "".join(f", {{ epsilon = {epsilon}.0, delta = 1e-5 }}" for epsilon in range(2, 9))
    text = TOY.replace(budgets, budgets + more).replace("grid = { learning_rate = [1.0, 8.0] }", "")
    toy = write_toy(tmp_path, text=text, chosen=False)
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "run",
        str(toy),
        "--out",
        str(out),
        "--jobs",
        "2",
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    cells = out / "cells" / "toy"
    try:
        _until(lambda: cells.is_dir() and len(list(cells.glob("*.json"))) >= 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        _until(lambda: not _group_lives(process.pid))  # workers do not outlive their parent
    finally:
        if process.poll() is None:
            process.kill()
    kept = {path: path.read_bytes() for path in cells.glob("*.json")}
    assert not (out / "toy.md").exists()
    for content in kept.values():
        assert json.loads(content)["runs"]
    result = run(toy, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"{len(kept)} of 25 cells were finished before" in result.stderr
    assert {path: path.read_bytes() for path in kept} == kept
    assert len(list(cells.glob("*.json"))) == 25


def _until(condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_settings_are_chosen_and_written_down(tmp_path: Path) -> None:
    toy = write_toy(tmp_path, chosen=False)
    refused = run(toy, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "python -m benchmarks run toy --tune" in refused.stderr
    chosen = run(toy, "--tune", "--out", tmp_path / "out")
    assert chosen.exit_code == 0, chosen.output
    text = (tmp_path / "settings" / "toy.toml").read_text(encoding="utf-8")
    assert 'contender = "dp-gd"' in text
    from benchmarks.lab.experiment import read_experiment

    assert read_experiment(toy).chosen[0].settings["learning_rate"] in (1.0, 8.0)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    away = TOY.replace('data = "synthetic"', 'data = "a9a"')
    toy = write_toy(tmp_path, text=away)
    result = run(toy, "--data", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "there is no 'a9a'" in result.stderr
    assert "libsvmtools" in result.stderr
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(toy, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "sordino[parquet]" in result.stderr


def test_experiments_are_listed() -> None:
    result = run("list")
    assert result.exit_code == 0, result.output
    assert "Non-convex" in result.stdout
    assert "ijcnn1" in result.stdout
    wrong = run("bb")
    assert wrong.exit_code == 2
    assert "there is no experiment 'bb'" in wrong.stderr

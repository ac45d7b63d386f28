"""A real `sordino train`, interrupted, or with a clock that goes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent.parent
ROWS = 4000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, ROWS)
    pd.DataFrame({"age": age, "income": (age > 40).astype(int)}).to_csv(
        folder / "people.csv", index=False
    )
    (folder / "facts.json").write_text(
        f'{{"columns": {{"age": {{"low": 18, "high": 90}}}}, "target": "income",'
        f' "classes": [0, 1], "examples": {ROWS}}}'
    )
    return folder / "people.csv"


def command(table: Path, out: Path, *options: str) -> list[str]:
    facts = table.with_name("facts.json")
    given = [
        "--schema",
        str(facts),
        "--epsilon",
        "1",
        "--evaluate",
        "0",
        "--out",
        str(out),
        *options,
    ]
    return ["train", str(table), *given]


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(home / "home"),
        "XDG_DATA_HOME": str(home / "home"),
        "COLUMNS": "400",
    }


# Interrupts itself in the middle of training: when the engine has run its first chunk of steps.
INTERRUPT = """
import os, signal, sys
import sordino.engine._run as run
real = run.TrainingRun.advance
def advance(self):
    done = real(self)
    os.kill(os.getpid(), signal.SIGINT)
    return done
run.TrainingRun.advance = advance
from sordino.app.cli._main import main
sys.argv = ["sordino", *sys.argv[1:]]
main()
"""


def hidden(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("."))


def test_an_interrupt_in_the_middle_of_training(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT, *command(table, out, "--epochs", "2000")],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert "stopped" in line
    assert not out.exists()
    assert not hidden(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("after", [b"loading", b"plan", b"training"])
def test_an_interrupt_from_outside(table: Path, tmp_path: Path, after: bytes) -> None:
    """SIGINT as a terminal sends it: at the start, when the plan is shown, while it trains."""
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-m", "sordino", *command(table, out, "--epochs", "20000")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    seen = b""
    # "loading" is before anything is said; "training" a while after the plan's last line.
    while after != b"loading" and b"plan  " not in seen:
        seen += os.read(process.stdout.fileno(), 65536)
    try:
        process.wait(timeout=4 if after != b"plan" else 0.1)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, erred = process.communicate(timeout=120)
    assert process.returncode == 130, erred.decode()
    assert b"Traceback" not in erred
    assert not out.exists()
    assert not hidden(tmp_path)


BACKWARDS = """
import sys, time, datetime
now = [2e9]
def back(*_):
    now[0] -= 3600.0
    return now[0]
time.time = back
time.time_ns = lambda: int(back() * 1e9)
class Date(datetime.date):
    @classmethod
    def today(cls): return cls.fromtimestamp(back())
datetime.date = Date
from sordino.app.cli._main import main
sys.argv = ["sordino", *sys.argv[1:]]
main()
"""


def test_a_clock_that_goes_back_changes_nothing(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", BACKWARDS, *command(table, out, "--epochs", "2")],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {entry.name for entry in out.iterdir()} == {
        "model.npz",
        "plan.json",
        "report.html",
        "schema.json",
        "guarantee.json",
    }
    assert not hidden(tmp_path)

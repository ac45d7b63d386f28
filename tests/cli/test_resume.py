"""`sordino train` as a process that is stopped: the same command goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino._base.keystore import KeyStore
from sordino.app.cli._main import app
from sordino.engine._checkpoint import read_identity, read_progress
from sordino.engine.ledger._ledger import Ledger

EPOCHS = 600


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(4000, 5))
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(5)])
    frame["label"] = np.where(X[:, 0] > 0, "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def command(table: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "sordino", "train", str(table), "--target", "label"),
        *("--epsilon", "2", "--delta", "1e-5", "--recipe", "dp-ftrl", "--undeclared", "take"),
        *("--epochs", str(EPOCHS), "--batch-size", "20", *more),
    ]


def stopped(table: Path, how: signal.Signals, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command, and stop it once it has begun: its first checkpoint is there."""
    checkpoint = table.with_name("people-sordino.checkpoint")
    process = subprocess.Popen(
        command(table, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None:
        if checkpoint.exists():
            process.send_signal(how)
            break
        time.sleep(0.005)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_killed_and_given_again(table: Path) -> None:
    ledger = Ledger.create(table.with_name("ledger"))
    ledger.add_dataset("people", epsilon=2.001, delta=1e-5)
    charged = ("--ledger", str(ledger.path))
    killed = stopped(table, signal.SIGKILL, *charged)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not table.with_name("people-sordino").exists()
    # Charged or not yet, but never more than once, and not given back.
    assert {held.state for held in ledger.reservations("people")} <= {"reserved", "running"}
    # Another command under the name of the interrupted run is refused, and changes nothing.
    other = [*command(table, *charged), "--adjacency", "replace-one"]
    refused = subprocess.run(other, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "was made with other inputs (the plan" in " ".join(refused.stderr.split())
    again = subprocess.run(
        [*command(table, *charged), "--resume"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "going on with an interrupted run after step" in " ".join(again.stdout.split())
    assert sorted(path.name for path in table.with_name("people-sordino").iterdir()) == [
        "guarantee.json",
        "model.npz",
        "plan.json",
        "report.html",
        "schema.json",
    ]
    (held,) = ledger.reservations("people")
    assert held.state == "released"
    assert not table.with_name("people-sordino.checkpoint").exists()
    assert KeyStore().load("runs", held.run) is None


def test_stopped_from_the_keyboard(table: Path) -> None:
    done = stopped(table, signal.SIGINT)
    assert done.returncode == 130, done.stderr
    assert "the same command goes on from the last checkpoint" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    checkpoint = table.with_name("people-sordino.checkpoint")
    assert sorted(path.name for path in table.parent.iterdir()) == [
        "people-sordino.checkpoint",
        "people.csv",
    ]
    assert KeyStore().load("runs", read_identity(checkpoint)) is not None
    step, steps = read_progress(checkpoint)
    assert 0 <= step < steps


def test_resume_without_a_run(table: Path) -> None:
    done = subprocess.run(
        [*command(table), "--resume"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no interrupted run" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "spoilt",
    [
        b"",
        b"x0,label\n",
        b"x0,label\n1,yes\n2\n3,no,4\n",
        b"\x00\xff\xfe not a table",
        b"x0,label\n" + b"1,yes\n" * 30 + b"nan,\n",
    ],
)
def test_a_bad_table_spends_nothing(tmp_path: Path, spoilt: bytes) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("people", epsilon=2.001, delta=1e-5)
    (tmp_path / "people.csv").write_bytes(spoilt)
    arguments = command(tmp_path / "people.csv", "--ledger", str(ledger.path))[3:]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert ledger.reservations() == ()
    assert sorted(path.name for path in tmp_path.iterdir() if "ledger" not in path.name) == [
        "people.csv"
    ]

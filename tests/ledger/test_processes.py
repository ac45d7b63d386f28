"""Several real processes on one file: nothing is spent twice, nothing that was promised is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sordino.engine.ledger._composition import UNIT_BITS, ComposedCost
from sordino.engine.ledger._ledger import Ledger

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def racers(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.ledger.racers", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "team.ledger")
    made.add_dataset("people", mu=0.75)
    return made


def test_eight_processes_never_overspend_and_lose_nothing(ledger: Ledger) -> None:
    found = racers("race", ledger.path, 8, 125)
    assert found["codes"] == [0] * 8
    assert len(found["reports"]) == 8
    promised: dict[str, float] = {}
    refused = given_back = 0
    for kept, returned, denied in found["reports"]:
        promised |= kept
        given_back += returned
        refused += denied
    again = Ledger.open(ledger.path)
    again.verify()
    charged = {held.run: held for held in again.reservations() if held.is_charged}
    assert set(charged) == set(promised)
    assert all(charged[run].guarantee.mu == mu for run, mu in promised.items())
    assert all(held.state in ("running", "spent") for held in charged.values())
    cancelled = [held for held in again.reservations() if not held.is_charged]
    assert len(cancelled) == given_back > 0
    # Exactly, and to the last bit that was to be had.
    spent = sum(Fraction(mu) ** 2 for mu in promised.values())
    assert spent <= Fraction(0.75) ** 2
    assert (
        Fraction(ComposedCost.of(h.charge for h in charged.values()).gaussian_units, 2**UNIT_BITS)
        == spent
    )
    assert refused > 500
    assert again.what_fits("people").mu < 0.05


def check_kills(ledger: Ledger, rounds: int) -> None:
    found = racers("kill", ledger.path, rounds, 1)
    assert "error" not in found, found
    again = Ledger.open(ledger.path)
    states = {held.run: held.state for held in again.reservations()}
    assert len(found["promised"]) > rounds  # they did get some work done
    for run, state in found["promised"]:
        assert states[run] == "running" if state == "running" else states[run] in (state, "running")
    # At most one reservation, and one start, of each round came too late to be told.
    told = {run for run, _ in found["promised"]}
    assert len(set(states) - told) <= rounds
    assert again.verify().entries == 2 + len(states) + sum(s == "running" for s in states.values())


def test_a_killed_process_leaves_a_valid_ledger(ledger: Ledger) -> None:
    check_kills(ledger, 20)


@pytest.mark.slow
def test_two_hundred_killed_processes_leave_a_valid_ledger(ledger: Ledger) -> None:
    check_kills(ledger, 200)

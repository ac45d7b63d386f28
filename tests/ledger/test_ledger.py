"""Reserving, running, finishing, cancelling: what is charged, what is free and what is refused."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sqlite3
import subprocess
import sys
import threading
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sordino
from sordino._base.errors import SordinoError
from sordino.engine.ledger import _ledger as ledger_module
from sordino.engine.ledger._composition import BudgetExceeded, ComposedCost
from sordino.engine.ledger._ledger import Ledger
from sordino.privacy._gdp import mu_from_epsilon_delta
from sordino.privacy._guarantee import Guarantee

from .helpers import WHOLE_RUN, Costs, gaussian, poisson

WHOLE = mu_from_epsilon_delta(1.0, 1e-5)
HALF = gaussian(WHOLE / 2)  # four of them are the whole budget


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "team.ledger")
    made.add_dataset("people", epsilon=1.0, delta=1e-5)
    return made


def test_a_run_goes_through_its_states_and_stays_charged(ledger: Ledger) -> None:
    held = ledger.reserve("people", HALF, run="r1", fingerprint="f", who="ada@home")
    assert (held.state, held.who, held.dataset) == ("reserved", "ada@home", "people")
    for move, state in (("start", "running"), ("finish", "spent"), ("release", "released")):
        getattr(ledger, move)("r1")
        assert ledger.reservation("r1").state == state
        getattr(ledger, move)("r1")  # again: no change
    assert [entry.what for entry in ledger.history("people")] == [
        "dataset",
        "reserved",
        "running",
        "spent",
        "released",
    ]
    assert ledger.status("people").mu == pytest.approx(WHOLE / 2)
    again = Ledger.open(ledger.path)
    assert again.reservations() == ledger.reservations()
    assert again.verify() == ledger.verify()


def test_the_same_run_again_is_free_in_every_state(ledger: Ledger) -> None:
    first = ledger.reserve("people", HALF, run="r1", fingerprint="f", identity=WHOLE_RUN)
    for move in ("start", "finish", "release"):
        before = len(ledger.history())
        again = ledger.reserve("people", HALF, run="r1", fingerprint="f", identity=WHOLE_RUN)
        assert (again.run, again.at, again.plan_hash) == (first.run, first.at, first.plan_hash)
        assert len(ledger.history()) == before
        getattr(ledger, move)("r1")
    ledger.start("r1")  # a finished run that is resumed stays what it is
    assert ledger.reservation("r1").state == "released"


def test_another_run_under_the_same_identity_is_refused(ledger: Ledger) -> None:
    ledger.add_dataset("others", mu=1.0)
    ledger.reserve("people", HALF, run="r1", fingerprint="f")
    with pytest.raises(SordinoError, match="another plan"):
        ledger.reserve("people", gaussian(0.01), run="r1", fingerprint="f")
    with pytest.raises(SordinoError, match="other data"):
        ledger.reserve("people", HALF, run="r1", fingerprint="g")
    with pytest.raises(SordinoError, match="not for 'others'"):
        ledger.reserve("others", HALF, run="r1", fingerprint="f")


def test_the_whole_budget_can_be_spent_and_no_more(ledger: Ledger) -> None:
    for number in range(4):
        ledger.reserve("people", HALF, run=f"r{number}")
    before = ledger.history()
    with pytest.raises(BudgetExceeded, match="still possible: nothing") as refused:
        ledger.reserve("people", gaussian(1e-6), run="r4")
    assert refused.value.fits.mu == 0
    assert ledger.history() == before
    assert len(ledger.reservations("people")) == 4


def test_a_refusal_says_what_would_fit(ledger: Ledger) -> None:
    ledger.reserve("people", HALF, run="r0")
    with pytest.raises(BudgetExceeded) as refused:
        ledger.reserve("people", gaussian(WHOLE), run="r1")
    fits = refused.value.fits
    assert fits.mu == pytest.approx(WHOLE * math.sqrt(3) / 2, rel=1e-9)
    assert fits.noise_factor == pytest.approx(2 / math.sqrt(3), rel=1e-5)
    assert "1.155 times its noise" in str(refused.value)
    twin = pickle.loads(pickle.dumps(refused.value))
    assert (twin.fits, str(twin)) == (fits, str(refused.value))
    assert ledger.what_fits("people").mu == fits.mu
    assert fits.epsilon is not None
    plan = sordino.plan("dp-gd", examples=100, steps=10, epsilon=fits.epsilon, delta=1e-5, clip=1.0)
    held = ledger.reserve("people", plan, run="r1")
    assert held.plan_hash == plan.hash
    assert held.recipe == "dp-gd"


def test_real_plans_for_the_whole_budget_fit_once(ledger: Ledger) -> None:
    settings = {"examples": 1000, "batch_size": 50, "epochs": 1, "epsilon": 1.0, "delta": 1e-5}
    plan = sordino.plan("dp-memf", **settings)
    ledger.reserve("people", plan, run="r0")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("people", sordino.plan("dp-sgd", **settings), run="r1")
    amplified = sordino.plan("dp-sgd", sampling="poisson", **settings)
    ledger.add_dataset("sampled", epsilon=1.0, delta=1e-5, adjacency="add-remove")
    ledger.reserve("sampled", amplified, run="s0")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("sampled", amplified, run="s1")


def test_amplified_runs_share_a_budget_by_their_privacy_losses(ledger: Ledger) -> None:
    run = poisson()
    single = run.guarantee.epsilon(1e-5)
    ledger.add_dataset("sampled", epsilon=2 * single, delta=1e-5, adjacency="add-remove")
    accepted = 3  # adding epsilons would allow two
    while ComposedCost.of([run.guarantee] * (accepted + 1)).epsilon(1e-5) <= 2 * single:
        accepted += 1
    for number in range(accepted):
        ledger.reserve("sampled", run, run=f"s{number}")
    with pytest.raises(BudgetExceeded):
        ledger.reserve("sampled", run, run="more")
    status = ledger.status("sampled")
    assert status.epsilon == ComposedCost.of([run.guarantee] * accepted).epsilon(1e-5)


def test_runs_without_privacy_are_refused(ledger: Ledger) -> None:
    nothing = Guarantee.nothing(adjacency="zero-out", unit="example", participation="always")
    with pytest.raises(SordinoError, match="not private"):
        ledger.reserve("people", Costs(nothing), run="r1")
    with pytest.raises(SordinoError, match="unit='example'"):
        ledger.reserve("people", gaussian(0.1, unit="user"), run="r1")


def test_a_budget_for_replacement_charges_twice_the_mu(ledger: Ledger) -> None:
    ledger.add_dataset("replaced", mu=1.0, adjacency="replace-one")
    ledger.reserve("replaced", gaussian(0.5), run="r1")
    assert ledger.status("replaced").mu == pytest.approx(1.0)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("replaced", gaussian(0.01), run="r2")


def test_only_a_run_that_never_started_can_be_cancelled(ledger: Ledger) -> None:
    ledger.reserve("people", gaussian(WHOLE), run="r1", fingerprint="f")
    ledger.cancel("r1")
    ledger.cancel("r1")
    assert ledger.what_fits("people").mu == pytest.approx(WHOLE)
    with pytest.raises(SordinoError, match="was cancelled"):
        ledger.start("r1")
    # Its data was never read, so it does not say which data the name stands for.
    ledger.reserve("people", HALF, run="r1", fingerprint="g")
    ledger.start("r1")
    for _ in ("running", "spent", "released"):
        with pytest.raises(SordinoError, match="stays charged"):
            ledger.cancel("r1")
        ledger.finish("r1") if ledger.reservation("r1").state == "running" else ledger.release("r1")
    assert ledger.status("people").mu == pytest.approx(WHOLE / 2)
    ledger.verify()


def test_states_are_not_skipped(ledger: Ledger) -> None:
    ledger.reserve("people", HALF, run="r1")
    for move in (ledger.finish, ledger.release):
        with pytest.raises(SordinoError, match="is reserved and cannot become"):
            move("r1")
    ledger.start("r1")
    with pytest.raises(SordinoError, match="is running and cannot become released"):
        ledger.release("r1")
    with pytest.raises(SordinoError, match="no run 'r2'"):
        ledger.start("r2")


def test_the_first_run_says_which_data_the_name_stands_for(ledger: Ledger) -> None:
    ledger.reserve("people", gaussian(0.01), run="r0")  # no fingerprint, pins nothing
    ledger.reserve("people", gaussian(0.01), run="r1", fingerprint="f")
    assert ledger.dataset("people").fingerprint == "f"
    with pytest.raises(SordinoError, match="register them under their own name"):
        ledger.reserve("people", gaussian(0.01), run="r2", fingerprint="g")
    ledger.reserve("people", gaussian(0.01), run="r2")  # by name alone, as a session does
    ledger.add_dataset("given", mu=1.0, fingerprint="h")
    with pytest.raises(SordinoError, match="other data"):
        ledger.reserve("given", gaussian(0.01), run="r3", fingerprint="f")


def test_budgets_are_never_changed(ledger: Ledger) -> None:
    same = ledger.add_dataset("people", epsilon=1.0, delta=1e-5)
    assert same == ledger.dataset("people")
    with pytest.raises(SordinoError, match="never changed"):
        ledger.add_dataset("people", epsilon=2.0, delta=1e-5)
    with pytest.raises(SordinoError, match="did you mean 'people'"):
        ledger.reserve("peple", HALF, run="r1")
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(SordinoError, match="printable text"):
            ledger.add_dataset(name, mu=1.0)
        with pytest.raises(SordinoError, match="printable text"):
            ledger.reserve("people", HALF, run=name)
    assert len(ledger.history()) == 2


def test_the_order_is_that_of_the_entries_whatever_the_clock_says(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.reserve("people", gaussian(0.01), run="r1")
    monkeypatch.setattr(ledger_module, "utc_now", lambda: "1999-01-01T00:00:00+00:00")
    ledger.reserve("people", gaussian(0.01), run="r2")
    ledger.start("r2")
    numbers = [entry.number for entry in Ledger.open(ledger.path).history()]
    assert numbers == [1, 2, 3, 4, 5]
    assert [held.run for held in ledger.reservations()] == ["r1", "r2"]
    assert ledger.history()[-1].at.startswith("1999")


def test_two_ledgers_open_at_once_see_each_other(ledger: Ledger) -> None:
    other = Ledger.open(ledger.path)
    ledger.reserve("people", gaussian(WHOLE), run="r1")
    with pytest.raises(BudgetExceeded):
        other.reserve("people", HALF, run="r2")
    other.start("r1")
    with pytest.raises(SordinoError, match="stays charged"):
        ledger.cancel("r1")


def test_threads_take_turns(ledger: Ledger) -> None:
    refused = []

    def work(name: int) -> None:
        for number in range(5):
            try:
                ledger.reserve("people", HALF, run=f"{name}/{number}")
            except BudgetExceeded:
                refused.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 16
    assert len(ledger.reservations()) == 4


def test_a_ledger_travels_into_other_processes(ledger: Ledger) -> None:
    ledger.reserve("people", HALF, run="r1")
    for twin in (pickle.loads(pickle.dumps(ledger)), copy.deepcopy(ledger)):
        assert twin.reservations() == ledger.reservations()
        twin.start("r1")
    assert b"people" not in pickle.dumps(ledger)


def test_a_full_disk_changes_nothing(ledger: Ledger) -> None:
    before = ledger.history()
    link = ledger._file._connected()
    (pages,) = link.execute("PRAGMA page_count").fetchone()
    link.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = Costs(HALF.guarantee, detail="x" * 100_000)
    with pytest.raises(SordinoError, match="disk is full"):
        ledger.reserve("people", large, run="r1")
    assert ledger.history() == before
    assert ledger.verify().reservations == 0
    ledger.reserve("people", large, run="r1")  # a connection of its own has no such limit


def test_an_interrupt_in_the_middle_changes_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.reserve("people", HALF, run="r1")
    before = ledger.history()

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "seal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve("people", HALF, run="r2")
        with pytest.raises(KeyboardInterrupt):
            ledger.start("r1")
    assert ledger.history() == before
    assert ledger.reservation("r1").state == "reserved"
    Ledger.open(ledger.path).reserve("people", HALF, run="r2")


def test_a_crash_while_a_ledger_is_made_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("create_file", "note_place"):
        where = tmp_path / step
        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, step, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                Ledger.create(where)
        made = Ledger.open(where) if where.exists() else Ledger.create(where)
        assert made.verify().entries == 1


def test_nothing_of_the_data_is_on_file(ledger: Ledger) -> None:
    secret = np.frombuffer(b"a very private sentence!" * 4, np.uint8)
    print_ = ledger.fingerprint((secret, ["Ada Lovelace", "Alan Turing"]))
    ledger.reserve("people", HALF, run="r1", fingerprint=print_)
    ledger.close()
    content = ledger.path.read_bytes()
    assert print_.encode() in content
    assert b"private sentence" not in content
    assert b"Lovelace" not in content
    assert [path.name for path in ledger.path.parent.iterdir()] == ["team.ledger"]


def test_fingerprints_tell_data_apart(ledger: Ledger, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(1000, 7))
    base = ledger.fingerprint((X, X[:, 0]))
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert ledger.fingerprint((mapped, X[:, 0].copy())) == base
    assert ledger.fingerprint((np.asfortranarray(X), X[:, 0])) == base
    changed = X.copy()
    changed[500, 3] = np.nextafter(changed[500, 3], 9)
    others = [
        (changed, X[:, 0]),
        (X[::-1], X[:, 0]),
        (X.astype(np.float32), X[:, 0]),
        (X.reshape(7, 1000), X[:, 0]),
        (X, X[:, 0], X[:, 0]),
        {"X": X, "y": X[:, 0]},
        pd.DataFrame(X),
        pd.DataFrame(X, columns=list("abcdefg")),
        pd.DataFrame({"a": ["x", "y"], "b": [1, None]}),
        pd.DataFrame({"a": ["x", "yb"], "b": [1, None]}),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros((0, 3)),
        3.0,
    ]
    found = [base, *map(ledger.fingerprint, others)]
    assert len(set(found)) == len(found)
    elsewhere = Ledger.create(tmp_path / "other.ledger")
    assert elsewhere.fingerprint((X, X[:, 0])) != base
    # Whatever a cell holds: an error would tell of it.
    odd = [Decimal("1.5"), date(2020, 1, 1), [1], {2}, 10**5000, b"\xff", "\udc80", object(), 1j]
    each = [ledger.fingerprint(np.array([one, None], dtype=object)) for one in odd]
    assert len(set(each)) == len(odd)
    assert each[7] == ledger.fingerprint(np.array([object(), None], dtype=object))


def test_sparse_data_has_a_fingerprint(ledger: Ledger) -> None:
    from scipy.sparse import csr_matrix

    dense = np.eye(5)
    assert ledger.fingerprint(csr_matrix(dense)) == ledger.fingerprint(csr_matrix(dense).tocoo())
    dense[0, 1] = 2
    assert ledger.fingerprint(csr_matrix(dense)) != ledger.fingerprint(csr_matrix(np.eye(5)))


def test_the_tables_can_be_read_with_other_tools(ledger: Ledger) -> None:
    plan = sordino.plan("dp-gd", examples=100, steps=10, epsilon=0.5, delta=1e-5, clip=1.0)
    ledger.reserve("people", plan, run="r1", fingerprint="f")
    ledger.start("r1")
    ledger.close()
    link = sqlite3.connect(ledger.path)
    (row,) = link.execute("SELECT dataset, state, plan, guarantee, plan_hash FROM reservations")
    link.close()
    assert row[:2] == ("people", "running")
    assert sordino.Plan.from_json(json.loads(row[2])) == plan
    assert Guarantee.from_json(json.loads(row[3])) == plan.guarantee
    assert row[4] == plan.hash


def test_the_json_of_a_status_is_complete(ledger: Ledger) -> None:
    ledger.reserve("people", HALF, run="r1")
    status = json.loads(json.dumps(ledger.status("people").to_json()))
    assert status["spent"]["mu"] == pytest.approx(WHOLE / 2)
    assert status["reservations"][0]["run"] == "r1"
    assert [json.dumps(entry.to_json()) for entry in ledger.history()]


def test_opening_a_ledger_needs_neither_jax_nor_the_slow_accountant(ledger: Ledger) -> None:
    code = (
        "import sys; from sordino.engine.ledger import Ledger; Ledger.open(sys.argv[1]).status('people'); "
        "assert not {'jax', 'dp_accounting', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(ledger.path)], check=True)

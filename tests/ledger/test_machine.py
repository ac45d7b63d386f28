"""Any order of calls, crashes and reopenings: never over budget, nothing lost, the chain holds."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from sordino._base.errors import SordinoError
from sordino.engine.ledger._chain import Witness
from sordino.engine.ledger._composition import BudgetExceeded
from sordino.engine.ledger._ledger import Ledger

from .helpers import WHOLE_RUN, gaussian

MUS = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.75, 1.0])
LIMIT = 1.0
MOVES = {
    "start": ("reserved", "running"),
    "finish": ("running", "spent"),
    "release": ("spent", "released"),
}
ORDER = ["reserved", "running", "spent", "released"]


class Crash(BaseException):
    """The process ends here."""


class LedgerMachine(RuleBasedStateMachine):
    """The ledger beside a model of it: a dict of what each run costs and where it stands."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger.create(Path(self.folder.name) / "a")
        self.ledger.add_dataset("people", mu=LIMIT)
        self.model: dict[str, tuple[float, str]] = {}
        self.identities: dict[str, dict[str, str] | None] = {}

    def spent(self) -> Fraction:
        held = self.model.values()
        return sum((Fraction(mu) ** 2 for mu, state in held if state != "cancelled"), Fraction())

    @rule(
        target=runs,
        run=st.sampled_from("abcdefgh"),
        mu=MUS,
        crash=st.booleans(),
        data=st.sampled_from(["1e", "1e", "labels changed", None]),
    )
    def reserve(self, run: str, mu: float, crash: bool, data: str | None) -> object:
        known, state = self.model.get(run, (mu, "cancelled"))
        identity = None if data is None else {**WHOLE_RUN, "data": data}
        fresh = state == "cancelled"
        fits = self.spent() + Fraction(mu) ** 2 <= Fraction(LIMIT) ** 2
        try:
            if crash and fresh and fits:
                with mock.patch.object(Witness, "advance", side_effect=Crash):
                    self._reserve(run, mu, identity)
            else:
                self._reserve(run, mu, identity)
        except Crash:
            self.reopen()
        except BudgetExceeded:
            assert fresh
            assert not fits
            return multiple()
        except SordinoError:
            assert not fresh
            assert known != mu or identity is None or self.identities[run] != identity
            return run
        if fresh:
            assert fits
            self.model[run], self.identities[run] = (mu, "reserved"), identity
        else:
            assert identity is not None
            assert self.identities[run] == identity
        return run

    def _reserve(self, run: str, mu: float, identity: dict[str, str] | None) -> None:
        plan = gaussian(mu)
        self.ledger.reserve("people", plan, run=run, fingerprint="f", identity=identity)

    @rule(run=runs, move=st.sampled_from(sorted(MOVES)))
    def move(self, run: str, move: str) -> None:
        mu, state = self.model[run]
        before, after = MOVES[move]
        try:
            getattr(self.ledger, move)(run)
        except SordinoError:
            assert state == "cancelled" or ORDER.index(state) < ORDER.index(before)
            return
        assert state != "cancelled"
        if state == before:
            self.model[run] = (mu, after)

    @rule(run=runs)
    def cancel(self, run: str) -> None:
        mu, state = self.model[run]
        try:
            self.ledger.cancel(run)
        except SordinoError:
            assert state in ("running", "spent", "released")
            return
        assert state in ("reserved", "cancelled")
        self.model[run] = (mu, "cancelled")

    @rule()
    def reopen(self) -> None:
        self.ledger = Ledger.open(self.ledger.path)

    @invariant()
    def the_file_says_what_happened(self) -> None:
        held = {one.run: (one.guarantee.mu, one.state) for one in self.ledger.reservations()}
        assert held == self.model
        assert self.spent() <= Fraction(LIMIT) ** 2
        assert Fraction(self.ledger.status("people").mu) ** 2 >= self.spent()

    def teardown(self) -> None:
        self.ledger.verify()
        self.ledger.close()
        self.folder.cleanup()


LedgerMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
test_any_order_of_calls = pytest.mark.filterwarnings("default")(LedgerMachine.TestCase)

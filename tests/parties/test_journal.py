"""The journal: turns are claimed once and settled once, and what was put back, changed or lost is found."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keystore import KeyStore
from sordino.together.parties import _journal as module
from sordino.together.parties._journal import TurnJournal, TurnSeal, packed, unpacked

SESSION, PARTY = "ab" * 32, "north"
SEAL = f"{SESSION[:32]}-{PARTY}"


class Home:
    """A party's journal and its key folder, which can be looked at, copied and put back."""

    def __init__(self, folder: Path) -> None:
        self.path, self.store = folder / "journal.db", KeyStore(folder / "keys")

    def open(self, data: bytes = b"data") -> TurnJournal:
        found = TurnJournal(self.path, SESSION, PARTY, store=self.store)
        try:
            found.bind(b"code", b"model", data)
        except BaseException:
            found.close()
            raise
        return found

    def refusal(self, data: bytes = b"data") -> str:
        with pytest.raises(SordinoError) as error:
            self.open(data)
        assert "\n" not in str(error.value)
        return str(error.value)

    def filled(self, turns: int) -> TurnJournal:
        found = self.open()
        for turn in range(turns):
            found.claim(turn)
            found.settle(turn, None if turn % 3 == 1 else np.arange(4) + turn)
        return found

    @property
    def seal(self) -> Path:
        return self.store.path("parties", SEAL)

    def copies(self, to: Path, *, seal: bool = False) -> None:
        """The closed journal, and with `seal` that too."""
        shutil.copy(self.path, to / "copy.db")
        if seal:
            shutil.copy(self.seal, to / "copy.seal")

    def put_back(self, where: Path, *, seal: bool = False) -> None:
        for extra in ("-wal", "-shm"):
            Path(f"{self.path}{extra}").unlink(missing_ok=True)
        shutil.copy(where / "copy.db", self.path)
        if seal:
            shutil.copy(where / "copy.seal", self.seal)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


class Turns(RuleBasedStateMachine):
    """Claims, settlements, closings, crashes and old copies in any order, beside what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.home = Home(self.folder)
        self.journal = self.home.open()
        self.claimed: list[int] = []  # by this party, ever
        self.sums: list[Any] = []
        self.rows = 0
        self.copy: int | None = None

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)

    @rule(ahead=st.integers(-2, 2))
    def claim(self, ahead: int) -> None:
        turn = self.rows + ahead
        if ahead or self.rows > len(self.sums):
            with pytest.raises(SordinoError, match="cannot be taken part in"):
                self.journal.claim(turn)
            return
        self.journal.claim(turn)
        self.claimed.append(turn)
        self.rows += 1

    @rule(ahead=st.integers(-1, 1), value=st.none() | st.integers(-(2**62), 2**62))
    def settle(self, ahead: int, value: int | None) -> None:
        noised = None if value is None else np.array([value, 1])
        turn = len(self.sums) + ahead
        if ahead:
            with pytest.raises(SordinoError, match="cannot be settled"):
                self.journal.settle(turn, noised)
            return
        assert noised is None or self.journal.history_with(noised) != self.journal.history
        expected = self.journal.history_with(noised)
        self.journal.settle(turn, noised)
        assert self.journal.history == expected
        self.sums.append(noised)
        self.rows = max(self.rows, len(self.sums))

    @rule()
    def reopen(self) -> None:
        key = self.journal.key
        self.journal.close()
        self.journal = self.home.open()
        assert self.journal.key == key

    @rule()
    def crash_between_row_and_seal(self) -> None:
        """The process ends when the row is on disk and the seal is not; nothing has been sent."""
        if self.rows > len(self.sums):
            return
        kept = self.home.seal.read_bytes()
        self.journal.claim(self.rows)
        self.journal.close()
        self.home.seal.write_bytes(kept)
        self.journal = self.home.open()
        self.claimed.append(self.rows)
        self.rows += 1
        assert TurnSeal.from_bytes(self.home.seal.read_bytes()).claimed == self.rows

    @rule()
    def take_a_copy(self) -> None:
        self.journal.close()
        self.home.copies(self.folder)
        self.copy = self.rows
        self.journal = self.home.open()

    @precondition(lambda self: self.copy is not None and self.copy < self.rows)
    @rule()
    def an_older_copy_is_refused(self) -> None:
        self.journal.close()
        newest = self.folder / "newest"
        newest.mkdir(exist_ok=True)
        self.home.copies(newest)
        self.home.put_back(self.folder)
        assert "it is an old or another copy" in self.home.refusal()
        self.home.put_back(newest)
        self.journal = self.home.open()

    @invariant()
    def agrees(self) -> None:
        assert (self.journal.claimed, self.journal.settled) == (self.rows, len(self.sums))
        assert len(set(self.claimed)) == len(self.claimed)
        opened = len(self.sums) if self.rows > len(self.sums) else None
        assert self.journal.open_turn == opened
        for found, wanted in zip(self.journal.sums(), self.sums, strict=True):
            assert (found is None) == (wanted is None)
            assert wanted is None or np.array_equal(found, wanted)  # type: ignore[arg-type]
        losses = [record.lost for record in self.journal.records()]
        assert losses == [noised is None for noised in self.sums]


TestTurns = Turns.TestCase
TestTurns.settings = settings(
    max_examples=20,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_a_journal_that_is_gone_is_refused_too(home: Home) -> None:
    home.filled(3).close()
    home.path.unlink()
    assert "has 0 turns, but 3 were claimed" in home.refusal()


def test_without_its_seal_a_party_does_not_go_on(home: Home) -> None:
    home.filled(2).close()
    kept = home.seal.read_bytes()
    assert home.seal.stat().st_mode & 0o777 == 0o600
    home.seal.unlink()
    assert "the seal of" in home.refusal()
    home.seal.write_bytes(kept[:-9])
    home.seal.chmod(0o600)
    assert "seal is damaged" in home.refusal()
    home.seal.write_bytes(kept)
    home.seal.chmod(0o644)
    assert "can be read by others" in home.refusal()
    home.seal.chmod(0o600)
    home.open().close()


def test_a_process_that_ended_before_its_first_seal_can_begin_again(home: Home) -> None:
    """Between the new file and the seal nothing was claimed, so nothing is lost with the secret."""
    TurnJournal(home.path, SESSION, PARTY, store=home.store).close()
    assert home.path.exists()
    assert not home.seal.exists()
    with_seal = home.open()
    with_seal.claim(0)
    with_seal.close()
    assert home.open().open_turn == 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE turns SET sum = x'0401000000' WHERE turn = 2",
        "UPDATE turns SET sum = NULL WHERE turn = 2",
        "UPDATE turns SET history = zeroblob(32) WHERE turn = 2",
        "UPDATE turns SET sum = x'', history = (SELECT history FROM turns WHERE turn = 1) WHERE turn = 2",
        "UPDATE turns SET settled = NULL WHERE turn = 2",
        "DELETE FROM turns WHERE turn = 2",
        "UPDATE turns SET turn = 7 WHERE turn = 2",
        "UPDATE turns SET settled = NULL, sum = NULL, history = NULL WHERE turn >= 2",
    ],
)
def test_a_changed_row_is_found(home: Home, change: str) -> None:
    home.filled(5).close()
    link = sqlite3.connect(home.path)
    link.execute(change)
    link.commit()
    link.close()
    assert "was changed at turn" in home.refusal()


def test_a_file_of_something_else_is_refused(home: Home, tmp_path: Path) -> None:
    home.filled(2).close()
    for session, party in (("cd" * 32, PARTY), (SESSION, "south")):
        with pytest.raises(SordinoError, match="belongs to another"):
            TurnJournal(home.path, session, party, store=home.store)
    good = home.path.read_bytes()
    home.path.write_bytes(b"not a database at all" * 100)
    assert "cannot be used" in home.refusal()
    home.path.write_bytes(good[: len(good) // 2])
    assert "journal" in home.refusal()


def test_other_data_or_another_model_is_refused(home: Home) -> None:
    home.filled(1).close()
    assert "other data, another model or other code" in home.refusal(b"datb")
    found = TurnJournal(home.path, SESSION, PARTY, store=home.store)
    # Parts do not run into each other.
    for parts in ((b"codemodel", b"data"), (b"code", b"model", b"dat", b"a"), (b"code", b"data")):
        with pytest.raises(PlanMismatchError):
            found.bind(*parts)
    found.bind(b"code", b"model", b"data")
    found.close()


def test_two_processes_cannot_hold_it(home: Home, tmp_path: Path) -> None:
    home.filled(1).close()
    holding = (
        "import sys; from pathlib import Path; from sordino._base.keystore import KeyStore;"
        "from sordino.together.parties._journal import TurnJournal;"
        f"held = TurnJournal(Path({str(home.path)!r}), {SESSION!r}, {PARTY!r},"
        f" store=KeyStore(Path({str(home.store.folder)!r})));"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert "is in use: this party is running already" in home.refusal()
        other.kill()
    home.open().close()  # the lock ends with the process, however that ends


def test_nothing_secret_is_in_the_files_beside_the_results(home: Home, tmp_path: Path) -> None:
    """A learner's own vector, batch, key and secret are in no file but the seal."""
    from sordino.parts._losses import Logistic
    from sordino.together.parties._learner import Learner
    from sordino.together.parties._terms import agree
    from tests.parties.faults import count_traces, records

    terms = agree(
        "dp-srm", examples=(60, 70), parameters=8, batch_size=30, steps=4, noise_multiplier=4.0
    )
    found = home.open()
    data = records(0, 60, 8)
    learner = Learner(terms, 0, Logistic(), np.zeros(8, np.float32), data, key=found.key)
    vectors, rows = [], []
    noise = np.random.default_rng(0)
    for turn in range(4):
        vectors.append(learner.vector().clipped.copy())
        rows.append(learner._rows.of(turn))
        found.claim(turn)
        noised = vectors[-1] + np.rint(noise.normal(size=8) * 2**23).astype(np.int64)
        found.settle(turn, noised)
        learner.take(noised)
    secret, key = TurnSeal.from_bytes(home.seal.read_bytes()).secret, found.key
    held = b"".join(p.read_bytes() for p in tmp_path.glob("journal.db*"))
    found.close()
    held += home.path.read_bytes()
    assert packed(noised) in held  # the search finds what is there
    assert terms.plan.lattice is not None
    for vector in vectors:
        assert not count_traces(held, vector, terms.plan.lattice.step)
    for own in rows:
        for kind in ("i1", "<i4", "<i8", ">i8"):
            assert own.astype(kind).tobytes() not in held
        assert str(own.tolist()).encode() not in held
    for hidden in (secret, key.derive("party data"), key.derive("batches/0")):
        assert hidden not in held
        assert hidden.hex().encode() not in held
    assert secret not in repr(TurnSeal.from_bytes(home.seal.read_bytes())).encode()
    assert secret.hex() not in repr(TurnSeal.from_bytes(home.seal.read_bytes()))


@pytest.mark.parametrize(
    "values", [[0], [2**31 - 1, -(2**31)], [2**31], [-(2**31) - 1], [2**62, -(2**63)], [1, 2, 3]]
)
def test_sums_are_kept_exactly(home: Home, values: list[int]) -> None:
    whole = np.array(values, np.int64)
    assert np.array_equal(unpacked(packed(whole)), whole)
    found = home.open()
    found.settle(0, whole)
    found.close()
    again = home.open()
    kept = again.sum_of(0)
    assert kept is not None
    assert np.array_equal(kept, whole)
    again.close()
    assert packed(None) == b""
    for wrong in (b"", b"\x04abc", b"\x08" + bytes(12), b"\x05" + bytes(8)):
        with pytest.raises(SordinoError, match="not a sum"):
            unpacked(wrong)


def test_a_seal_that_cannot_be_kept_stops_the_claim(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is there, the seal is not, the caller hears about it before anything is sent."""
    found = home.filled(2)

    def full(*rest: Any) -> None:
        raise SordinoError("the key cannot be kept: No space left on device")

    monkeypatch.setattr(module.KeyStore, "replace", full)
    with pytest.raises(SordinoError, match="No space left"):
        found.claim(2)
    monkeypatch.undo()
    found.close()
    again = home.open()
    assert again.open_turn == 2
    with pytest.raises(SordinoError, match="none is taken part in twice"):
        again.claim(2)
    again.settle(2, None)
    again.close()

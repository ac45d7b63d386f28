"""Editing, cutting, copying, deleting or restoring the file is noticed, in one sentence."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino._base.keystore import KeyStore
from sordino.engine.ledger._chain import Witness
from sordino.engine.ledger._ledger import Ledger

from .helpers import WHOLE_RUN, gaussian


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "team.ledger")
    made.add_dataset("people", epsilon=1.0, delta=1e-5)
    for number in range(3):
        made.reserve("people", gaussian(0.1), run=f"r{number}", fingerprint="f")
    made.start("r0")
    made.close()
    return made


def edit(path: Path, *statements: str) -> None:
    """Change the file as someone without the key could."""
    link = sqlite3.connect(path)
    schema = link.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in schema:
        link.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        link.execute(statement)
    for _, sql in schema:
        link.execute(sql)
    link.commit()
    link.close()


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ('UPDATE entries SET body = replace(body, \'"run":"r1"\', \'"run":"r9"\')', "its seal"),
        ("UPDATE entries SET seal = zeroblob(32) WHERE number = 4", "entry 4 does not match"),
        ("UPDATE entries SET body = 7 WHERE number = 4", "entry 4"),
        ("UPDATE entries SET seal = 'short' WHERE number = 4", "entry 4 is missing or damaged"),
        ("DELETE FROM entries WHERE number = 3", "entry 3 is missing"),
        (
            "DELETE FROM entries WHERE number >= 5",
            "older copy or was cut short: it ends with entry 4",
        ),
        ("DELETE FROM entries", "first entry is missing"),
        ("INSERT INTO entries SELECT 7, body, seal FROM entries WHERE number = 6", "entry 7"),
        ("UPDATE datasets SET epsilon = 100", "its data sets"),
        ("UPDATE reservations SET state = 'cancelled' WHERE run = 'r1'", "its reservations"),
        ("DELETE FROM reservations WHERE run = 'r1'", "its reservations"),
        ("UPDATE reservations SET guarantee = '{}'", "its reservations"),
        ("UPDATE about SET id = 'gone'", "no identity"),
        ("DELETE FROM about", "no identity"),
        ("CREATE TABLE more (x)", "its tables are not as they were made"),
        ("PRAGMA user_version = 2", "format version 2"),
        ("PRAGMA application_id = 2", "is not a ledger"),
    ],
)
def test_edits_are_noticed(ledger: Ledger, statement: str, words: str) -> None:
    edit(ledger.path, statement)
    with pytest.raises(SordinoError, match=words):
        Ledger.open(ledger.path)


def test_a_changed_plan_is_noticed_when_all_is_verified(ledger: Ledger) -> None:
    edit(ledger.path, "UPDATE reservations SET plan = '{}' WHERE run = 'r2'")
    with pytest.raises(SordinoError, match="the plan of run 'r2'"):
        Ledger.open(ledger.path).verify()


def test_swapping_two_entries_is_noticed(ledger: Ledger) -> None:
    edit(
        ledger.path,
        "UPDATE entries SET number = 99 WHERE number = 3",
        "UPDATE entries SET number = 3 WHERE number = 4",
        "UPDATE entries SET number = 4 WHERE number = 99",
    )
    with pytest.raises(SordinoError, match="entry 3 does not match its seal"):
        Ledger.open(ledger.path)


def test_entries_are_not_changed_by_accident(ledger: Ledger) -> None:
    link = sqlite3.connect(ledger.path)
    for statement in ("DELETE FROM entries", "UPDATE entries SET body = ''"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            link.execute(statement)
    link.close()


def test_an_old_copy_is_noticed_by_all_who_use_it(ledger: Ledger, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copy(ledger.path, old)
    ledger.reserve("people", gaussian(0.1), run="late", fingerprint="f")
    ledger.close()
    shutil.copy(old, ledger.path.with_name("restored"))
    os.replace(ledger.path.with_name("restored"), ledger.path)
    with pytest.raises(SordinoError, match="put the latest"):
        ledger.reserve("people", gaussian(0.1), run="more", fingerprint="f")
    with pytest.raises(SordinoError, match="ends with entry 6 but 7 were written"):
        Ledger.open(ledger.path)


def test_a_copy_without_its_companion_is_an_older_copy(ledger: Ledger, tmp_path: Path) -> None:
    ledger.reserve("people", gaussian(0.1), run="late", fingerprint="f")  # still in the -wal file
    shutil.copy(ledger.path, tmp_path / "copy")
    with pytest.raises(SordinoError, match="older copy"):
        Ledger.open(tmp_path / "copy")


def test_a_copy_can_stand_in_but_not_beside(ledger: Ledger, tmp_path: Path) -> None:
    shutil.copy(ledger.path, tmp_path / "copy")
    copy = Ledger.open(tmp_path / "copy")
    copy.reserve("people", gaussian(0.1), run="there", fingerprint="f")
    with pytest.raises(SordinoError, match="older copy"):
        ledger.reserve("people", gaussian(0.1), run="here", fingerprint="f")


def test_a_fork_is_noticed_on_both_sides(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ledger.path, tmp_path / "copy")
    copy = Ledger.open(tmp_path / "copy")
    with monkeypatch.context() as patch:  # a crash before the head was noted
        patch.setattr(Witness, "advance", lambda *_: None)
        copy.reserve("people", gaussian(0.1), run="there", fingerprint="f")
    ledger.reserve("people", gaussian(0.1), run="here", fingerprint="f")
    with pytest.raises(SordinoError, match="continued in two places: its entry 7"):
        copy.reserve("people", gaussian(0.1), run="more", fingerprint="f")
    with pytest.raises(SordinoError, match="continued in two places"):
        Ledger.open(tmp_path / "copy")
    Ledger.open(ledger.path).verify()


def test_an_entry_of_another_copy_does_not_fit_in(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ledger.path, tmp_path / "copy")
    with monkeypatch.context() as patch:
        patch.setattr(Witness, "advance", lambda *_: None)
        copy = Ledger.open(tmp_path / "copy")
        copy.reserve("people", gaussian(0.001), run="cheap", fingerprint="f")
        copy.close()
    ledger.reserve("people", gaussian(0.2), run="dear", fingerprint="f")
    ledger.start("r1")
    ledger.close()
    edit(  # its own seal is right: it was made with the key
        ledger.path,
        f"ATTACH '{tmp_path / 'copy'}' AS other",
        "UPDATE main.entries SET (body, seal) = "
        "(SELECT body, seal FROM other.entries WHERE number = 7) WHERE number = 7",
    )
    with pytest.raises(SordinoError, match="entry 8 does not match its seal"):
        Ledger.open(ledger.path)


def test_a_crash_before_the_head_is_noted_locks_nobody_out(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    late = {"run": "late", "fingerprint": "f", "identity": WHOLE_RUN}
    with monkeypatch.context() as patch:
        patch.setattr(Witness, "advance", crash)
        with pytest.raises(KeyboardInterrupt):
            ledger.reserve("people", gaussian(0.1), **late)
    held = ledger.reserve("people", gaussian(0.1), **late)
    again = Ledger.open(ledger.path)
    assert again.reservation("late") == held
    assert again.verify().entries == 7
    heads = Witness(next(Path(KeyStore().folder, "ledgers").glob(f"{ledger.identity}.heads")))
    assert heads.heads()[-1][0] == 7


def test_a_deleted_ledger_is_missed(ledger: Ledger) -> None:
    ledger.path.unlink()
    with pytest.raises(SordinoError, match="there is no ledger"):
        ledger.status("people")
    for attempt in (Ledger.open, Ledger.create):
        with pytest.raises(SordinoError, match=r"with 6 entries was kept at .* and is gone"):
            attempt(ledger.path)


def test_a_moved_ledger_is_the_same_one(ledger: Ledger, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.ledger"
    ledger.path.rename(moved)
    again = Ledger.open(moved)
    again.start("r1")
    again.close()
    moved.unlink()
    with pytest.raises(SordinoError, match="a ledger with 7 entries"):
        Ledger.create(moved)


def test_a_ledger_never_takes_another_files_place(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="there is a file"):
        Ledger.create(ledger.path)
    taken = tmp_path / "notes.txt"
    taken.write_text("mine")
    with pytest.raises(SordinoError, match="there is a file"):
        Ledger.create(taken)
    assert taken.read_text() == "mine"
    with pytest.raises(SordinoError, match="not a ledger"):
        Ledger.open(taken)
    with pytest.raises(SordinoError, match="there is no ledger at"):
        Ledger.open(tmp_path / "nowhere")
    with pytest.raises(SordinoError, match="cannot be written"):
        Ledger.create(tmp_path / "no" / "folder")


def test_without_its_key_or_its_heads_a_ledger_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="another user or on another computer"):
        Ledger.open(ledger.path, store=KeyStore(tmp_path / "other-keys"))
    folder = tmp_path / "only-the-key"
    KeyStore(folder).save(
        "ledgers", ledger.identity, KeyStore().load("ledgers", ledger.identity) or b""
    )
    with pytest.raises(SordinoError, match="no longer noted"):
        Ledger.open(ledger.path, store=KeyStore(folder))


def test_heads_only_go_forward(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "heads")
    for number in (1, 2, 5, 3, 4, 6, 2):
        witness.advance(number, bytes([number]) * 32)
    assert witness.heads()[-1] == (6, bytes([6]) * 32)
    assert len(witness.heads()) == 2
    (tmp_path / "heads" / "notes.txt").write_text("ignored")
    assert len(witness.heads()) == 2


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_a_sentence(ledger: Ledger) -> None:
    folder = ledger.path.parent
    folder.chmod(0o500)
    ledger.path.chmod(0o400)
    try:
        with pytest.raises(SordinoError, match="cannot be used"):
            ledger.reserve("people", gaussian(0.1), run="late", fingerprint="f")
    finally:
        folder.chmod(0o700)
        ledger.path.chmod(0o600)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Ledger.create(tmp_path_factory.mktemp("whole") / "a")
    made.add_dataset("people", mu=1.0)
    made.reserve("people", gaussian(0.5), run="r0")
    made.close()
    return made.path


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_refused_or_harmless(whole: Path, data: st.DataObject) -> None:
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
    damaged = whole.with_name("damaged")
    for name in ("damaged", "damaged-wal", "damaged-shm"):
        whole.with_name(name).unlink(missing_ok=True)
    damaged.write_bytes(bytes(content[:cut]))
    try:
        again = Ledger.open(damaged)
    except SordinoError:
        return
    # What opened says what was written.
    assert [held.run for held in again.reservations()] == ["r0"]
    assert again.status("people").mu == pytest.approx(0.5)
    again.close()

"""Secrets on disk: nobody else can open them, and none stays behind where nobody looks."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from sordino._base import files as _files
from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino._base.keystore import KeyStore
from sordino.together._certificates import (
    RosterEntry,
    create_client_key,
    new_certificate,
    read_client_key,
)
from sordino.together.parties import _party as meeting
from sordino.together.parties._consortium import Consortium, PartyCard
from sordino.together.parties._journal import TurnJournal
from sordino.together.secure._transport import StarTransport
from sordino.together.sites._federated import ClientSite, create, pad_keys
from sordino.together.sites._parties import KEY, PAD_KEY, PartySite, create_party
from tests.parties.test_consortium import ALLOW, consortium  # noqa: F401 (a fixture)
from tests.parties.test_meeting import World, world  # noqa: F401 (a fixture)
from tests.sites.test_folders import agreed, model, table

SECRET = b"the key of all noise, 32 bytes.."


class TestModes:
    @pytest.mark.parametrize("mode", [0o755, 0o777, 0o710, 0o701])
    @pytest.mark.parametrize("inner", [False, True])
    def test_a_key_folder_that_others_can_open_is_refused(
        self, tmp_path: Path, mode: int, inner: bool
    ) -> None:
        """C10: an existing 0777 key folder was accepted."""
        store = KeyStore(tmp_path / "keys")
        store.save("runs", "one", SECRET)
        wide = tmp_path / "keys" / "runs" if inner else tmp_path / "keys"
        wide.chmod(mode)
        for call in (
            lambda: store.load("runs", "one"),
            lambda: store.save("runs", "two", SECRET),
            lambda: store.replace("runs", "one", SECRET[::-1]),
            lambda: store.load_or_create("runs", "three"),
        ):
            with pytest.raises(SordinoError, match=f"mode {mode:04o}.*chmod 700"):
                call()
        wide.chmod(0o700)
        assert store.load("runs", "one") == SECRET
        assert [path.name for path in (tmp_path / "keys" / "runs").iterdir()] == ["one"]

    def test_a_partys_keys_are_read_only_if_nobody_else_can(
        self,
        tmp_path: Path,
        consortium: Consortium,  # noqa: F811
    ) -> None:
        """C10: modes of key files were never checked on reading."""
        site = PartySite.load(tmp_path / "north")
        key = site.folder / KEY
        key.chmod(0o640)
        with pytest.raises(SordinoError, match=r"can be read by others .mode 0640.*chmod 600"):
            site.sign(consortium, allow=ALLOW)
        with pytest.raises(SordinoError, match="can be read by others"):
            StarTransport.join(
                consortium.roster, "north", site.folder / "party.crt", key, timeout=0.2
            )
        key.chmod(0o600)
        site.sign(consortium, allow=ALLOW)
        (site.folder / PAD_KEY).chmod(0o604)
        with pytest.raises(SordinoError, match=r"pad\.key.*can be read by others"):
            site.run((), store=KeyStore(tmp_path / "keys"))

    def test_a_clients_keys_are_read_only_if_nobody_else_can(self, tmp_path: Path) -> None:
        """C10: the same for a federated client's keys."""
        private, _ = create_client_key(tmp_path, "north")
        private.chmod(0o644)
        with pytest.raises(SordinoError, match="can be read by others"):
            read_client_key(private)
        secrets, keys = pad_keys(2)
        agreement = agreed(trust="secure-sum", keys=keys)
        names = dict(zip(agreement.clients, secrets, strict=True))
        create(tmp_path / "study", agreement, model(), private=names, deployed=False)
        site = ClientSite.load(tmp_path / "study" / "clients" / "north")
        data = table(tmp_path / "t.csv")
        assert site.part(data).private == names["north"]
        (site.folder / "pad.key").chmod(0o660)
        with pytest.raises(SordinoError, match="can be read by others"):
            site.part(data)


def killed_while_writing(folder: Path, before: str) -> None:
    """A process that is killed inside an atomic write, at a call of the operating system's."""
    program = f"""
        import os, signal, sys
        from pathlib import Path
        from sordino._base.keystore import KeyStore
        real = os.{before}
        def stopped(*given, **named):
            os.kill(os.getpid(), signal.SIGKILL)
        store = KeyStore(Path({str(folder)!r}))
        store.load_or_create("parties", "first")
        os.{before} = stopped
        if {before!r} in ("link", "unlink"):
            store.save("parties", "second", {SECRET!r})
        else:
            store.replace("parties", "first", {SECRET!r})
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


class TestLeftovers:
    @pytest.mark.parametrize("before", ["replace", "fsync", "link"])
    def test_a_killed_writers_secret_is_gone_at_the_next_open(
        self, tmp_path: Path, before: str
    ) -> None:
        """C10: a kill inside an atomic write left a seal, with ratchet and noise keys, for ever."""
        killed_while_writing(tmp_path, before)
        kind = tmp_path / "parties"
        left = [path for path in kind.iterdir() if path.name.startswith(".")]
        assert len(left) == 1
        assert left[0].read_bytes() in (SECRET, b"")
        first = KeyStore(tmp_path).load("parties", "first")
        assert first is not None
        assert [path.name for path in kind.iterdir()] == ["first"]

    def test_a_journal_removes_what_its_killed_process_left(self, tmp_path: Path) -> None:
        """C10: opening a party's journal is enough."""
        killed_while_writing(tmp_path / "keys", "replace")
        store = KeyStore(tmp_path / "keys")
        TurnJournal(tmp_path / "journal.db", "5" * 64, "north", store=store).close()
        names = [path.name for path in (tmp_path / "keys" / "parties").iterdir()]
        assert not [name for name in names if name.startswith(".")]

    def test_a_key_whose_writer_died_before_tidying_up_is_kept_whole(self, tmp_path: Path) -> None:
        """C10: the left-over of a new key is the key itself: its name goes, its bytes stay."""
        store = KeyStore(tmp_path)
        store.save("parties", "first", SECRET)
        os.link(tmp_path / "parties" / "first", tmp_path / "parties" / ".first.0123456789ab.tmp")
        assert store.load("parties", "first") == SECRET
        assert [path.name for path in (tmp_path / "parties").iterdir()] == ["first"]

    def test_bytes_are_overwritten_and_not_only_unnamed(self, tmp_path: Path) -> None:
        """C10: whoever still has the file open sees zeros."""
        left = tmp_path / ".seal.0123456789ab.tmp"
        left.write_bytes(SECRET)
        with left.open("rb") as file:
            _files.remove_leftovers(tmp_path)
            assert file.read() == bytes(len(SECRET))
        assert not left.exists()

    def test_files_of_others_and_links_stay(self, tmp_path: Path) -> None:
        """C10: what Sordino does not write is not touched."""
        names = [".hidden", "seal.0123456789ab.tmp", ".seal.tmp", ".vimrc.swp"]
        for name in names:
            (tmp_path / name).write_bytes(SECRET)
        (tmp_path / ".link.0123456789ab.tmp").symlink_to(tmp_path / ".hidden")
        _files.remove_leftovers(tmp_path)
        assert all((tmp_path / name).read_bytes() == SECRET for name in names)

    def test_writers_at_work_are_not_disturbed(self, tmp_path: Path) -> None:
        """C10: sweeping and writing at the same time loses nothing and damages nothing."""
        target, stop = tmp_path / "seal", threading.Event()
        failures: list[BaseException] = []

        def write(letter: bytes) -> None:
            try:
                for _ in range(60):
                    write_atomically(target, letter * 1000, mode=0o600)
            except BaseException as error:
                failures.append(error)

        def sweep() -> None:
            while not stop.is_set():
                _files.remove_leftovers(tmp_path)

        sweeper = threading.Thread(target=sweep)
        writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
        for thread in (sweeper, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        stop.set()
        sweeper.join()
        assert not failures
        assert target.read_bytes() in (b"a" * 1000, b"b" * 1000)
        assert [path.name for path in tmp_path.iterdir()] == ["seal"]

    def test_a_folder_that_was_being_put_together_is_removed(self, tmp_path: Path) -> None:
        """C10: ``party init`` that was killed left its keys in a hidden folder."""
        done = subprocess.run(
            [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
        )
        left = tmp_path / f".north.new-{int(done.stdout)}"
        other = tmp_path / f".north.new-{os.getppid()}"  # of a process that is at work
        for folder in (left, other):
            folder.mkdir()
            (folder / KEY).write_bytes(SECRET)
        create_party(tmp_path / "north", "north", examples=3)
        assert not left.exists()
        assert other.exists()


class TestCards:
    @pytest.mark.parametrize(
        "between", [base64.b64encode(b"not a certificate").decode(), "", "AAAA", "MIIB"]
    )
    def test_what_is_no_certificate_is_refused_where_it_is_read(
        self, tmp_path: Path, between: str
    ) -> None:
        """C10: anything between the lines of a certificate was accepted, and raised later."""
        path = tmp_path / "party.json"
        create_party(tmp_path / "north", "north", examples=3).save(path)
        card = json.loads(path.read_text())
        pem = f"-----BEGIN CERTIFICATE-----\n{between}\n-----END CERTIFICATE-----\n"
        path.write_text(json.dumps({**card, "certificate": pem}))
        with pytest.raises(SordinoError, match="is not a PEM certificate") as caught:
            PartyCard.load(path)
        assert "\n" not in str(caught.value)

    def test_two_certificates_in_one_place_are_refused(self) -> None:
        """C10: nor may a card bring a second certificate along."""
        both = new_certificate("north")[0] + new_certificate("south")[0]
        with pytest.raises(SordinoError, match="is not a PEM certificate"):
            RosterEntry("north", bytes(32), both)


def test_nobody_sends_more_in_catching_up_than_there_is_to_say(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C10: every party could send 256 MB when one had missed a sum; only the giver says something."""
    world.fill(3, 0, 1)
    world.fill(2, 2)
    everybody = {place: {"parameters": 5} for place in range(3)}
    real = meeting.exchange

    def talkative(star: StarTransport, pads: Any, context: bytes, body: bytes, **named: Any) -> Any:
        said = bytes(1_000_000) if star.name == "p1" and context.endswith(b"sum") else body
        return real(star, pads, context, said, **named)

    with monkeypatch.context() as hostile:
        hostile.setattr(meeting, "exchange", talkative)
        outcomes = world.meet(everybody)
    assert "'p1' sent a message of 1,000" in outcomes[0]
    assert world.progress()[2][0] == 2
    # Without it, who was behind catches up.
    assert [outcome.caught_up for outcome in world.meet(everybody)] == [False, False, True]

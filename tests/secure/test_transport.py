"""The star: who is let in, what frames are taken, and that nothing waits longer than its time-out."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sordino import SordinoError
from sordino.together._certificates import (
    Roster,
    RosterEntry,
    certificate_fingerprint,
    new_certificate,
)
from sordino.together.secure import _transport as transport
from sordino.together.secure._transport import StarTransport
from tests.support.certificates import create_certificate

NAMES = ("a", "b", "c")


class World:
    """Certificates for some parties, a port, and threads that join."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder = folder
        self.paths = {name: create_certificate(folder, name) for name in names}
        members = tuple(
            RosterEntry(name, bytes([i]) * 32, self.paths[name][0].read_text())
            for i, name in enumerate(names)
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.roster = Roster("s1", members, "127.0.0.1", self.listener.getsockname()[1])
        self.pool = ThreadPoolExecutor(8)

    def join(
        self, name: str, roster: Roster | None = None, **options: Any
    ) -> Future[StarTransport]:
        certificate, key = options.pop("paths", self.paths.get(name))
        if name == self.roster.hub:
            options.setdefault("listener", self.listener)
        options.setdefault("timeout", 5.0)
        return self.pool.submit(
            StarTransport.join, roster or self.roster, name, certificate, key, **options
        )

    @contextmanager
    def joined(self, **options: Any) -> Iterator[dict[str, StarTransport]]:
        futures = {name: self.join(name, **options) for name in self.roster.names}
        stars = {name: future.result() for name, future in futures.items()}
        try:
            yield stars
        finally:
            for star in stars.values():
                star.close()

    def close(self) -> None:
        self.pool.shutdown()
        self.listener.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def failure(future: Future[Any]) -> str:
    error = future.exception(timeout=20)
    assert isinstance(error, SordinoError), error
    text = str(error)
    assert "\n" not in text
    return text


def test_frames_arrive_in_full_and_are_counted(world: World) -> None:
    big = bytes(range(256)) * 8000  # 2 MB
    with world.joined() as stars:
        for name in ("b", "c"):
            stars[name].send("a", kind=1, turn=3, body=name.encode())
        found = stars["a"].receive_all(("b", "c"), kind=1, turn=3)
        assert found == {"b": b"b", "c": b"c"}
        sending = world.pool.submit(stars["a"].send, "b", kind=2, turn=3, body=big)
        assert stars["b"].receive("a", kind=2, turn=3) == big
        sending.result()
        stars["a"].send("b", kind=2, turn=4, body=b"")
        assert stars["b"].receive("a", kind=2, turn=4) == b""
        sent, received = stars["a"].bytes_sent, stars["b"].bytes_received
        assert len(big) < received < sent < 1.01 * len(big) + 10_000
        assert stars["a"].bytes_sent == stars["b"].bytes_received + stars["c"].bytes_received
        assert stars["a"].peers == ("b", "c")
        assert stars["b"].peers == ("a",)
        with pytest.raises(SordinoError, match="no connection with 'c'"):
            stars["b"].send("c", kind=1, turn=1, body=b"")
    assert stars["a"].bytes_sent >= sent  # kept after closing
    with pytest.raises(SordinoError, match="join again"):
        stars["b"].send("a", kind=1, turn=1, body=b"")


def test_a_stranger_is_turned_away_and_the_others_go_on(world: World, tmp_path: Path) -> None:
    # The same name, another certificate: the hub does not know it.
    false = create_certificate(tmp_path / "false", "b")
    members = list(world.roster.members)
    members[1] = RosterEntry("b", members[1].public_key, false[0].read_text())
    roster = Roster("s1", tuple(members), "127.0.0.1", world.roster.port)
    hub, stranger = world.join("a"), world.join("b", roster, paths=false)
    assert "'a' at 127.0.0.1" in failure(stranger)
    assert "does not accept this party's certificate" in failure(stranger)
    others = [world.join("b"), world.join("c")]
    for future in (hub, *others):
        future.result(timeout=10).close()


def test_missing_parties_are_named_with_what_was_seen(world: World, tmp_path: Path) -> None:
    false = create_certificate(tmp_path / "false", "c")
    members = list(world.roster.members)
    members[2] = RosterEntry("c", members[2].public_key, false[0].read_text())
    roster = Roster("s1", tuple(members), "127.0.0.1", world.roster.port)
    start = time.monotonic()
    hub = world.join("a", join_timeout=0.9)
    b = world.join("b")
    stranger = world.join("c", roster, paths=false)
    told = failure(hub)
    assert told.startswith(
        "'c' did not connect before the time was over; one that connected has a "
    )
    assert "not in the roster" in told
    assert "did not connect" in failure(b)  # the hub tells those who wait
    failure(stranger)
    assert time.monotonic() - start < 5


def test_the_hub_is_pinned(world: World) -> None:
    # "b" answers at the address of "a": it is in the roster, but it is not "a".
    turned = Roster("s1", world.roster.members[1:] + world.roster.members[:1], "127.0.0.1", 1)
    hub = world.join("b", turned, listener=world.listener, join_timeout=0.8)
    assert "there is 'b', not 'a'" in failure(world.join("c"))
    failure(hub)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"session": "s2"}, "is in session 's2', not 's1'"),
        ({"members": "key"}, "has another roster of this session"),
    ],
)
def test_another_session_or_roster_is_refused(
    world: World, change: dict[str, str], words: str
) -> None:
    members = world.roster.members
    if "members" in change:
        last = RosterEntry("c", b"x" * 32, members[2].certificate)
        members = (*members[:2], last)
    other = Roster(change.get("session", "s1"), members, "127.0.0.1", world.roster.port)
    hub = world.join("a", join_timeout=0.6)
    told = failure(world.join("b", other))
    assert told.startswith("'a' refuses this party")
    assert words in told
    assert words in failure(hub)


def test_nobody_speaks_for_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """c's certificate with b's name: c must lie in its greeting to get there."""
    real = json.dumps
    hub = world.join("a", join_timeout=0.6)

    def lying(value: Any, **options: Any) -> str:
        if isinstance(value, dict) and value.get("name") == "c":
            value = {**value, "name": "b"}
        return real(value, **options)

    monkeypatch.setattr(transport.json, "dumps", lying)
    told = failure(world.join("c"))
    assert "calls itself 'b' with the certificate of 'c'" in told
    failure(hub)


def test_a_wrong_file_is_refused_before_anything_is_sent(world: World, tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="not the roster's certificate of 'b'"):
        StarTransport.join(world.roster, "b", *world.paths["c"])
    with pytest.raises(SordinoError, match="cannot be used"):
        StarTransport.join(world.roster, "b", world.paths["b"][0], world.paths["c"][1])
    with pytest.raises(SordinoError, match="cannot be used"):
        StarTransport.join(world.roster, "b", tmp_path / "none.crt", world.paths["c"][1])
    with pytest.raises(SordinoError, match="no party 'z'"):
        StarTransport.join(world.roster, "z", *world.paths["c"])


def test_nobody_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.listener.close()
    start = time.monotonic()
    assert "'a' cannot be reached at 127.0.0.1" in failure(world.join("b", join_timeout=0.5))
    assert time.monotonic() - start < 3
    world.close()


def test_idle_strangers_and_plain_bytes_do_not_stop_the_star(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "STRANGER_PATIENCE", 0.2)
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.2)
    address = ("127.0.0.1", world.roster.port)
    with (
        socket.create_connection(address),
        socket.create_connection(address) as loud,
        socket.create_connection(address) as http,
    ):
        loud.sendall(b"\x00" * 5000)
        http.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with world.joined():
            pass


def test_silence_ends_at_the_time_out(world: World) -> None:
    with world.joined(timeout=0.4) as stars:
        for call in (
            lambda: stars["b"].receive("a", kind=1, turn=1),
            lambda: stars["a"].receive_all(("b", "c"), kind=1, turn=1),
        ):
            start = time.monotonic()
            with pytest.raises(SordinoError, match=r"did not answer within 0\.(4|32) s"):
                call()
            assert 0.25 < time.monotonic() - start < 1.5
        # Somebody who takes nothing: buffers fill up, and then it is over.
        start = time.monotonic()
        with pytest.raises(SordinoError, match="did not answer"):
            stars["a"].send("b", kind=1, turn=1, body=bytes(50_000_000))
        assert time.monotonic() - start < 4


def test_a_party_that_trickles_does_not_stretch_the_time_out(world: World) -> None:
    with world.joined(timeout=0.5) as stars:
        link, stop = stars["b"]._links["a"], threading.Event()

        def trickle() -> None:
            header = struct.pack(">4sBQQI", b"SOR1", 1, 1, 1, 1000)
            with suppress(Exception):
                for byte in header + bytes(1000):
                    if stop.wait(0.05):
                        return
                    link._drive(
                        lambda byte=byte: link._tls.write(bytes([byte])), time.monotonic() + 1
                    )

        running = world.pool.submit(trickle)
        start = time.monotonic()
        with pytest.raises(SordinoError, match="'b' did not answer"):
            stars["a"].receive("b", kind=1, turn=1)
        assert time.monotonic() - start < 1.5
        stop.set()
        running.result()


def frames(star: StarTransport, *parts: tuple[Any, ...]) -> None:
    """Raw frames from an authenticated party that misbehaves."""
    link = star._links["a"]
    for magic, kind, turn, number, length, body in parts:
        data = struct.pack(">4sBQQI", magic, kind, turn, number, length) + body
        link._drive(lambda data=data: link._tls.write(data), time.monotonic() + 2)


# The greeting was message 0.
GOOD = (b"SOR1", 1, 5, 1, 2, b"ok")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([GOOD, GOOD], "sent message 1 where 2 was due"),  # doubled
        ([GOOD, (b"SOR1", 1, 5, 3, 2, b"ok")], "sent message 3 where 2 was due"),  # one lost
        ([GOOD, (b"SOR1", 1, 4, 2, 2, b"ok")], "kind 1 for turn 4, where kind 1 of turn 5"),
        ([GOOD, (b"SOR1", 2, 5, 2, 2, b"ok")], "kind 2 for turn 5, where kind 1 of turn 5"),
        ([GOOD, (b"HTTP", 1, 5, 2, 2, b"ok")], "does not speak this protocol"),
        ([GOOD, (b"SOR1", 1, 5, 2, 101, b"")], "101 bytes where 100 are allowed"),
        ([GOOD, (b"SOR1", 1, 5, 2, 2**32 - 1, b"")], "4,294,967,295 bytes where 100"),
        ([GOOD, (b"SOR1", 255, 5, 2, 2**31, b"")], "2,147,483,648 bytes where 100"),
        ([GOOD, (b"SOR1", 255, 5, 2, 4, b"\xff\n\x00!")], "'b' gave up: "),
    ],
)
def test_wrong_frames_of_a_known_party(
    world: World, parts: list[tuple[Any, ...]], words: str
) -> None:
    with world.joined(timeout=2.0) as stars:
        frames(stars["b"], *parts)
        assert stars["a"].receive("b", kind=1, turn=5, longest=100) == b"ok"
        with pytest.raises(SordinoError) as error:
            stars["a"].receive("b", kind=1, turn=5, longest=100)
        assert words in str(error.value)
        assert str(error.value).isprintable()


def test_a_truncated_frame_is_noticed(world: World) -> None:
    with world.joined(timeout=2.0) as stars:
        frames(stars["b"], (b"SOR1", 1, 5, 1, 50, b"only this"))
        stars["b"].close()
        with pytest.raises(SordinoError, match="'b' closed the connection"):
            stars["a"].receive("b", kind=1, turn=5)


class Proxy:
    """Between a party and the hub: passes bytes on, changed by a function."""

    def __init__(self, port: int, change: Callable[[bytes], bytes | None]) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.active = self.listener.getsockname()[1], threading.Event()
        self._change, self._hub = change, port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self._hub))
            back = threading.Thread(target=self._pass, args=(far, near, False), daemon=True)
            back.start()
            self._pass(near, far, True)
            back.join()
            near.close()
            far.close()

    def _pass(self, one: socket.socket, other: socket.socket, changing: bool) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if changing and self.active.is_set():
                    changed = self._change(data)
                    if changed is None:
                        break
                    data = changed
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def doubled(data: bytes) -> bytes:
    return data + data


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flipped, "TLS refuses"),
        (doubled, "TLS refuses"),
        (lambda data: data[len(data) // 2 :] + data[: len(data) // 2], "TLS refuses"),
        (lambda data: None, "closed the connection"),
        (lambda data: data[:-5], "did not answer within"),
        (lambda data: b"", "did not answer within"),
    ],
    ids=["bit", "doubled", "reordered", "cut", "truncated", "lost"],
)
def test_what_the_network_changes_does_not_get_through(
    world: World, change: Callable[[bytes], bytes | None], words: str
) -> None:
    proxy = Proxy(world.roster.port, change)
    through = Roster("s1", world.roster.members, "127.0.0.1", proxy.port)
    futures = {
        "a": world.join("a", timeout=0.6),
        "b": world.join("b", through, timeout=0.6),
        "c": world.join("c", timeout=0.6),
    }
    stars = {name: future.result() for name, future in futures.items()}
    proxy.active.set()
    with suppress(SordinoError):
        stars["b"].send("a", kind=1, turn=1, body=b"x" * 1000)
    if change is doubled:  # the first copy is the message itself
        assert stars["a"].receive("b", kind=1, turn=1) == b"x" * 1000
    with pytest.raises(SordinoError, match="'b' ") as error:
        stars["a"].receive("b", kind=1, turn=1)
    assert words in str(error.value)
    for star in stars.values():
        star.close()
    proxy.listener.close()


def test_reasons_reach_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.1)
    with world.joined() as stars:
        stars["b"].give_up("its disk\nis full")
        with pytest.raises(SordinoError, match="'b' gave up: its disk is full"):
            stars["a"].receive_all(("b", "c"), kind=1, turn=1)
        stars["a"].give_up("'b' gave up")
        with pytest.raises(SordinoError, match="'a' gave up: 'b' gave up"):
            stars["c"].receive("a", kind=1, turn=1)
        stars["a"].give_up("again")  # nothing happens


def test_a_party_that_was_started_again_is_let_in(world: World) -> None:
    hub, first = world.join("a"), world.join("b", join_timeout=10.0)
    time.sleep(0.3)
    second = world.join("b")
    time.sleep(0.3)
    third = world.join("c")
    assert "closed the connection" in failure(first)
    for future in (hub, second, third):
        future.result(timeout=10).close()


def test_rosters(world: World) -> None:
    roster = world.roster
    again = Roster.from_json(json.loads(json.dumps(roster.to_json())))
    assert again == roster
    moved = Roster("s1", roster.members, "elsewhere", 99)
    assert moved.digest == roster.digest
    assert Roster("s2", roster.members, "h", 1).digest != roster.digest
    assert Roster("s1", roster.members[::-1], "h", 1).digest != roster.digest
    a, b, _ = roster.members
    with pytest.raises(SordinoError, match="at least two"):
        Roster("s", (a,), "h", 1)
    with pytest.raises(SordinoError, match="same name"):
        Roster("s", (a, RosterEntry("a", b.public_key, b.certificate)), "h", 1)
    with pytest.raises(SordinoError, match="same public key"):
        Roster("s", (a, RosterEntry("b", a.public_key, b.certificate)), "h", 1)
    with pytest.raises(SordinoError, match="same fingerprint"):
        Roster("s", (a, RosterEntry("b", b.public_key, a.certificate)), "h", 1)
    with pytest.raises(SordinoError, match="a party's name must be"):
        RosterEntry("../a", a.public_key, a.certificate)
    with pytest.raises(SordinoError, match="not a PEM"):
        RosterEntry("a", a.public_key, "nothing")
    for damaged in ({}, {"version": 1}, {**roster.to_json(), "members": 3}, {"version": 9}):
        with pytest.raises(SordinoError):
            Roster.from_json(damaged)


def test_certificates(tmp_path: Path) -> None:
    certificate, key = create_certificate(tmp_path, "north")
    assert key.stat().st_mode & 0o077 == 0
    assert len(certificate_fingerprint(certificate.read_text())) == 64
    assert certificate_fingerprint(new_certificate("north")[0]) != certificate_fingerprint(
        certificate.read_text()
    )
    with pytest.raises(SordinoError, match="exists already"):
        create_certificate(tmp_path, "north")
    with pytest.raises(SordinoError, match="a party's name"):
        create_certificate(tmp_path, "a/b")
    with pytest.raises(SordinoError, match="days"):
        new_certificate("a", days=0)

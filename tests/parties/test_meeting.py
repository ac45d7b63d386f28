"""Meetings over real connections: who means another run is refused, whoever is in the middle."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError, one_line
from sordino._base.keystore import KeyStore
from sordino.together._certificates import Roster, RosterEntry
from sordino.together.parties import _party as meeting
from sordino.together.parties._journal import TurnJournal
from sordino.together.parties._party import FACTS, MOST_SKEW, Meeting, confirm, meet
from sordino.together.secure import _transport as transport
from sordino.together.secure._mask import Pads, new_private_key, public_key
from sordino.together.secure._transport import StarTransport
from tests.support.certificates import create_certificate

COMMON = {
    "version": "0.4.0",
    "code": "c0de" * 4,
    "consortium": "aa" * 32,
    "plan": "bb" * 32,
    "model": "cc" * 32,
    "steps": 10,
}
SESSION = "ab" * 32
Outcome = Meeting | str


class World:
    """Three parties, their journals, and threads in which they meet."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.folder, self.count = folder, count
        names = [f"p{place}" for place in range(count)]
        self.paths = [create_certificate(folder / "tls", name) for name in names]
        self.private = [new_private_key() for _ in names]
        members = tuple(
            RosterEntry(name, public_key(key), paths[0].read_text())
            for name, key, paths in zip(names, self.private, self.paths, strict=True)
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.roster = Roster("study", members, "127.0.0.1", self.listener.getsockname()[1])
        self.pool = ThreadPoolExecutor(count)

    def journal(self, place: int) -> TurnJournal:
        name = self.roster.names[place]
        store = KeyStore(self.folder / f"{name}.keys")
        found = TurnJournal(self.folder / f"{name}.db", SESSION, name, store=store)
        found.bind(b"data")
        return found

    def fill(self, turns: int, *places: int, claim: bool = False) -> None:
        """Give parties so many turns, the same everywhere; and with `claim` an open one."""
        for place in places or range(self.count):
            journal = self.journal(place)
            for turn in range(journal.settled, turns):
                if journal.open_turn is None:
                    journal.claim(turn)
                journal.settle(turn, None if turn == 1 else np.arange(5) * (turn + 1))
            if claim:
                journal.claim(turns)
            journal.close()

    def progress(self) -> list[tuple[int, int, bytes]]:
        found = []
        for place in range(self.count):
            journal = self.journal(place)
            found.append((journal.settled, journal.claimed, journal.history))
            journal.close()
        return found

    def sums(self, place: int) -> list[Any]:
        journal = self.journal(place)
        try:
            return [None if noised is None else noised.tolist() for noised in journal.sums()]
        finally:
            journal.close()

    def meet(
        self,
        facts: Mapping[int, Mapping[str, Any]] | None = None,
        *,
        change: Callable[[int, StarTransport, TurnJournal], None] = lambda place, star, journal: (
            None
        ),
        after: Callable[[StarTransport, Pads, Meeting], Any] | None = None,
        check: Callable[[str, Mapping[str, Any]], None] | None = None,
        timeout: float = 10.0,
    ) -> list[Any]:
        """What becomes of every party; the error's text where there is one."""

        def party(place: int) -> Any:
            name, journal = self.roster.names[place], self.journal(place)
            try:
                with StarTransport.join(
                    self.roster,
                    name,
                    *self.paths[place],
                    timeout=timeout,
                    join_timeout=20.0,
                    listener=self.listener if not place else None,
                ) as star:
                    pads = Pads(name, self.private[place], self.roster.public_keys)
                    change(place, star, journal)
                    try:
                        own = {**COMMON, **(facts or {}).get(place, {})}
                        session = meet(star, pads, journal, own, check)
                        return session if after is None else after(star, pads, session)
                    except SordinoError as error:
                        star.give_up(one_line(error, 300))
                        return str(error)
            finally:
                journal.close()

        return list(self.pool.map(party, range(self.count)))

    def close(self) -> None:
        self.pool.shutdown()
        self.listener.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.3)
    made = World(tmp_path)
    yield made
    made.close()


def level(world: World) -> tuple[int, int, bytes]:
    (found,) = set(world.progress())
    return found


def test_parties_that_are_level_go_on(world: World) -> None:
    world.fill(2)
    before = level(world)
    first, second = world.meet(), world.meet()
    for outcomes in (first, second):
        assert len(set(outcomes)) == 1
        assert outcomes[0] == Meeting(outcomes[0].nonce, False, None)
    assert first[0].nonce != second[0].nonce
    assert level(world) == before


@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("turns", [2, 3], ids=["lost", "sum"])
def test_a_party_one_turn_behind_gets_the_sum(world: World, behind: int, turns: int) -> None:
    """Also that the turn was lost; whether it had claimed it or not."""
    ahead = [place for place in range(3) if place != behind]
    world.fill(turns, *ahead)
    world.fill(turns - 1, behind, claim=behind == 2)
    outcomes = world.meet()
    assert [outcome.caught_up for outcome in outcomes] == [place == behind for place in range(3)]
    assert all(outcome.lost is None for outcome in outcomes)
    assert level(world)[:2] == (turns, turns)
    assert world.sums(behind) == world.sums(ahead[0])


def test_two_parties_behind_and_a_turn_that_is_open(world: World) -> None:
    world.fill(3, 1, claim=True)
    world.fill(2, 0, 2, claim=True)
    outcomes = world.meet()
    assert [outcome.caught_up for outcome in outcomes] == [True, False, True]
    assert {outcome.lost for outcome in outcomes} == {3}
    assert level(world)[:2] == (4, 4)
    assert world.sums(0) == world.sums(1)
    assert world.sums(0)[3] is None


@pytest.mark.parametrize("claimers", [(0,), (1,), (0, 1, 2)])
def test_a_turn_that_was_claimed_and_has_no_sum_is_lost_for_all(
    world: World, claimers: tuple[int, ...]
) -> None:
    world.fill(2)
    for place in claimers:
        world.fill(2, place, claim=True)
    outcomes = world.meet()
    assert {outcome.lost for outcome in outcomes} == {2}
    assert level(world)[:2] == (3, 3)
    for place in range(3):
        assert world.sums(place)[2] is None
        journal = world.journal(place)
        with pytest.raises(SordinoError, match="none is taken part in twice"):
            journal.claim(2)
        journal.close()


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_crash_while_a_turn_is_given_up_is_made_good(world: World, crashes: int) -> None:
    world.fill(2)
    world.fill(2, 1, claim=True)

    def change(place: int, star: StarTransport, journal: TurnJournal) -> None:
        def stop(*rest: Any) -> None:
            raise SordinoError("killed")

        if place == crashes:
            journal.settle = stop  # type: ignore[method-assign]

    outcomes = world.meet(change=change)
    assert outcomes[crashes] == "killed"
    settled = [progress[0] for progress in world.progress()]
    assert settled == [2 if place == crashes else 3 for place in range(3)]
    # And another one dies when the next turn has been claimed.
    world.fill(3, (crashes + 1) % 3, claim=True)
    outcomes = world.meet()
    assert {outcome.lost for outcome in outcomes} == {3}
    assert [outcome.caught_up for outcome in outcomes] == [place == crashes for place in range(3)]
    assert level(world)[:2] == (4, 4)


@pytest.mark.parametrize("field", list(FACTS))
def test_another_run_is_refused_by_everybody(world: World, field: str) -> None:
    world.fill(1)
    before = level(world)
    other = 11 if field == "steps" else "ee" * 8
    outcomes = world.meet({2: {field: other}})
    for place, text in enumerate(outcomes):
        assert f"has another {FACTS[field]} (" in text
        assert "'p2'" in text
        assert str(other)[:16] in text
        assert f"than 'p{place}'" in text
    assert level(world) == before


@pytest.mark.parametrize(
    ("clock", "words"),
    [
        (lambda: time.time() + 3600, "3,6"),
        (lambda: time.time() - 3600, "3,6"),
        (lambda: time.time() + MOST_SKEW + 30, "3"),
        (lambda: float("nan"), "nan"),
        (lambda: float("inf"), "inf"),
        (lambda: 10**400, "cannot be read"),
        (lambda: "noon", "cannot be read"),
        (lambda: None, "cannot be read"),
    ],
    ids=["ahead", "behind", "little", "nan", "inf", "huge", "text", "none"],
)
def test_another_clock_is_refused_by_everybody(
    world: World, clock: Callable[[], Any], words: str
) -> None:
    outcomes = world.meet({1: {"clock": clock()}})
    for text in outcomes:
        assert "'p1'" in text
        assert words in text
        assert "s apart; set them right" in text or "cannot be read" in text


def test_a_clock_that_is_a_little_off_is_not(world: World) -> None:
    outcomes = world.meet({1: {"clock": time.time() - MOST_SKEW + 60}})
    assert all(isinstance(outcome, Meeting) for outcome in outcomes)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settled", True),
        ("settled", -3),
        ("claimed", 1.5),
        ("claimed", 10**30),
        ("claimed", None),
        ("history", "xy"),
        ("history", 5),
        ("before", None),
    ],
)
def test_progress_that_makes_no_sense_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, field: str, value: Any
) -> None:
    real = meeting._progress

    def odd(journal: TurnJournal) -> dict[str, Any]:
        return {**real(journal), **({field: value} if journal.path.name == "p2.db" else {})}

    monkeypatch.setattr(meeting, "_progress", odd)
    outcomes = world.meet()
    assert all("'p2'" in text for text in outcomes), outcomes


def test_another_key_is_refused(world: World) -> None:
    """A party with another X25519 key than the others know cannot even make codes."""
    world.private[2] = new_private_key()
    with pytest.raises(SordinoError, match="does not belong to its public key"):
        Pads("p2", world.private[2], world.roster.public_keys)
    # Nor does it get in with a roster that fits its key.
    members = list(world.roster.members)
    members[2] = RosterEntry("p2", public_key(world.private[2]), members[2].certificate)
    other = Roster("study", tuple(members), "127.0.0.1", world.roster.port)

    def join(place: int) -> Any:
        roster = other if place == 2 else world.roster
        listener = world.listener if not place else None
        try:
            StarTransport.join(
                roster,
                f"p{place}",
                *world.paths[place],
                timeout=2.0,
                join_timeout=2.0,
                listener=listener,
            ).close()
        except SordinoError as error:
            return str(error)

    hub, waiting, stranger = world.pool.map(join, range(3))
    assert "it ('p2') has another roster of this session" in stranger
    assert "one that connected ('p2') has another roster" in hub
    assert "'p2' did not connect" in waiting


def test_a_journal_that_was_rolled_back_is_refused(world: World) -> None:
    """With its seal, so that the party itself cannot know; the others do."""
    world.fill(4, 0, 2)
    world.fill(2, 1)
    before = world.progress()
    outcomes = world.meet()
    for text in outcomes:
        assert "'p1' is at turn 2, and others at turn 4: its journal is not the newest one" in text
    assert world.progress() == before


@pytest.mark.parametrize("last", [True, False])
def test_other_sums_are_refused(world: World, last: bool) -> None:
    world.fill(1)
    journal = world.journal(2)
    journal.settle(1, np.arange(5) + 7)
    if not last:
        journal.settle(2, np.arange(5) * 3)
    journal.close()
    world.fill(2 if last else 3, 0, 1)
    outcomes = world.meet()
    assert all("has seen other sums than the others" in text for text in outcomes)


@pytest.mark.parametrize("liars", [(0,), (0, 1)])
@pytest.mark.parametrize("lie", [np.arange(5), np.arange(6), None], ids=["other", "long", "lost"])
def test_a_sum_that_is_not_the_one_that_others_have_is_not_kept(
    world: World, liars: tuple[int, ...], lie: Any
) -> None:
    """The party that gives the sum away, or all of them, lie about it: their own history tells."""
    world.fill(3, 0, 1)
    world.fill(2, 2)

    def change(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place in liars:
            journal.sum_of = lambda turn: lie  # type: ignore[method-assign]

    outcomes = world.meet(change=change)
    assert "'p0' gave" in outcomes[2]
    assert "sum of turn 2" in outcomes[2]
    assert world.progress()[2][0] == 2
    assert all(isinstance(outcome, Meeting) for outcome in world.meet())


def test_what_a_check_says_stops_the_meeting(world: World) -> None:
    def check(name: str, facts: Mapping[str, Any]) -> None:
        assert facts["plan"] == COMMON["plan"]
        if name == "p1":
            raise SordinoError("'p1' has not signed this consortium file")

    assert set(world.meet(check=check)) == {"'p1' has not signed this consortium file"}


# A first party that lies. All that others say goes through its hands.


def tampering(
    alter: Callable[[str, int, bytes], bytes],
) -> Callable[[int, StarTransport, TurnJournal], None]:
    """The first party sends, instead of a body, what `alter` makes of it (receiver, exchange, body)."""

    def change(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place:
            return
        send, counts = star.send, dict.fromkeys(star.peers, -1)

        def lying(to: str, *, kind: int, turn: int, body: bytes, deadline: Any = None) -> None:
            if kind == 102:
                counts[to] += 1
                body = alter(to, counts[to], body)
            send(to, kind=kind, turn=turn, body=body, deadline=deadline)

        star.send = lying  # type: ignore[method-assign]

    return change


def pieces(body: bytes) -> list[bytes]:
    found = []
    while body:
        length = 4 + int.from_bytes(body[:4], "big")
        found.append(body[:length])
        body = body[length:]
    return found


def flip(body: bytes, at: int) -> bytes:
    at %= len(body)
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


@pytest.mark.parametrize("number", [0, 1, 2], ids=["nonces", "facts", "sums"])
@pytest.mark.parametrize("where", [9, -1], ids=["text", "code"])
def test_the_first_party_cannot_change_what_another_says(
    world: World, number: int, where: int
) -> None:
    world.fill(3, 0, 2)
    world.fill(2, 1)
    before = world.progress()

    def alter(to: str, exchange: int, body: bytes) -> bytes:
        if exchange != number or to != "p1":
            return body
        parts = pieces(body)
        parts[2] = flip(parts[2], where)  # its last code is the one for p1
        return b"".join(parts)

    outcomes = world.meet(change=tampering(alter))
    assert "what 'p2' says has been changed on the way" in outcomes[1]
    assert world.progress()[1] == before[1]
    assert isinstance(world.meet()[1], Meeting)


def test_nor_swap_hold_back_or_put_words_into_its_mouth(world: World) -> None:
    def swapped(to: str, exchange: int, body: bytes) -> bytes:
        one, two, three = pieces(body)
        return one + three + two if to == "p1" else body

    def shortened(to: str, exchange: int, body: bytes) -> bytes:
        return b"".join(pieces(body)[:2]) if to == "p1" else body

    def cut(to: str, exchange: int, body: bytes) -> bytes:
        return body[:-5] if to == "p1" else body

    def longer(to: str, exchange: int, body: bytes) -> bytes:
        return body + bytes(4) if to == "p1" else body

    for alter, words in (
        (swapped, "changed on the way"),
        (shortened, "ends too early"),
        (cut, "another length"),
        (longer, "bytes where"),
    ):
        assert words in world.meet(change=tampering(alter))[1]


def test_what_it_says_that_this_party_said_is_not_believed(world: World) -> None:
    """Its own text comes back changed: as if it had claimed a turn that it has not."""
    world.fill(2)

    def alter(to: str, exchange: int, body: bytes) -> bytes:
        parts = pieces(body)
        if to == "p1":
            parts[1] = parts[1].replace(b'"claimed": 2', b'"claimed": 3')
        return b"".join(parts)

    outcomes = world.meet(change=tampering(alter))
    assert all(outcome.lost is None for outcome in outcomes)
    assert level(world)[:2] == (2, 2)


@pytest.mark.parametrize("exchanges", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("whom", [(2,), (0, 2), (0, 1, 2)])
def test_what_was_said_in_an_earlier_session_is_found_out(
    world: World, exchanges: tuple[int, ...], whom: tuple[int, ...]
) -> None:
    world.fill(2)
    earlier: dict[tuple[str, int], list[bytes]] = {}

    def record(to: str, exchange: int, body: bytes) -> bytes:
        earlier[to, exchange] = pieces(body)
        return body

    assert all(isinstance(outcome, Meeting) for outcome in world.meet(change=tampering(record)))

    def replay(to: str, exchange: int, body: bytes) -> bytes:
        parts = pieces(body)
        if to == "p1" and exchange in exchanges:
            for place in whom:
                parts[place] = earlier[to, exchange][place]
        return b"".join(parts)

    outcomes = world.meet(change=tampering(replay))
    assert "changed on the way" in outcomes[1]
    assert all(isinstance(outcome, str) for outcome in outcomes) or 0 not in exchanges
    assert level(world)[:2] == (2, 2)


def test_models_are_compared_at_the_end(world: World) -> None:
    def after(star: StarTransport, pads: Pads, session: Meeting) -> list[str]:
        return confirm(star, pads, session.nonce, "model", "same" if star.name != "p2" else "other")

    assert world.meet(after=after) == [["p2"], ["p2"], ["p0", "p1"]]


def test_a_party_that_says_nothing_ends_the_meeting_in_time(world: World) -> None:
    def change(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place == 2:
            time.sleep(1.5)

    began = time.monotonic()
    outcomes = world.meet(change=change, timeout=0.6)
    assert all(isinstance(text, str) for text in outcomes)
    assert "'p2' did not answer within" in outcomes[0]
    assert "'p2' did not answer within" in outcomes[1]
    assert time.monotonic() - began < 12

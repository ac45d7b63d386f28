"""A party in the middle that tells some this and others that, and deaths between two steps of a meeting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.together.parties import _party as meeting
from sordino.together.parties._journal import TurnJournal
from sordino.together.parties._party import Meeting
from sordino.together.secure import _transport as transport
from sordino.together.secure._mask import Pads
from sordino.together.secure._transport import StarTransport
from tests.parties.test_meeting import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.3)
    made = World(tmp_path)
    yield made
    made.close()


def test_different_histories_for_different_parties_are_found_out_before_anything_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first party says to each other one that it has a sum, to each of them another one."""
    world.fill(2)
    forged = {"p1": np.arange(5) * 100, "p2": np.arange(5) * -7}

    def change(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place:
            return
        pads = Pads("p0", world.private[0], world.roster.public_keys)
        send, calls = star.send, {"p1": 0, "p2": 0}

        def lying(to: str, **frame: Any) -> None:
            calls[to] += 1
            if calls[to] == 2:  # the facts
                texts = meeting._divided(frame["body"], world.roster.names)
                said, _ = meeting._opened("p0", texts["p0"], 2, 1 << 14)
                other = json.loads(said)
                history = journal.history_with(forged[to]).hex()
                other |= {"settled": 3, "claimed": 3, "history": history}
                other["before"] = journal.history.hex()
                text = json.dumps(other).encode()
                keys = {n: pads.pair_key(n, contexts[-1]) for n in ("p1", "p2")}
                codes = b"".join(meeting._code(keys[n], "p0", text) for n in ("p1", "p2"))
                texts["p0"] = meeting._LENGTH.pack(len(text)) + text + codes
                pack = meeting._LENGTH.pack
                frame["body"] = b"".join(pack(len(t)) + t for t in texts.values())
            send(to, **frame)

        star.send = lying  # type: ignore[method-assign]

    contexts: list[bytes] = []
    plain = meeting.exchange

    def noting(star: StarTransport, pads: Pads, context: bytes, body: bytes, **more: Any) -> Any:
        if star.name == "p0":
            contexts.append(context)
        return plain(star, pads, context, body, **more)

    monkeypatch.setattr(meeting, "exchange", noting)
    outcomes = world.meet(change=change)
    assert all("told others something else" in outcomes[place] for place in (1, 2))
    assert {settled for settled, _, _ in world.progress()} == {2}
    monkeypatch.undo()
    monkeypatch.setattr(transport, "_LAST_WORDS_PATIENCE", 0.3)
    assert all(isinstance(outcome, Meeting) for outcome in world.meet())


def test_a_party_that_dies_while_it_catches_up_is_not_left_two_turns_behind(world: World) -> None:
    """Others have the sum of turn 2 and have claimed turn 3: they give turn 3 up only with everybody."""
    world.fill(3, 0, 1, claim=True)
    world.fill(2, 2)

    def dies(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place == 2:

            def settle(*arguments: Any, **more: Any) -> None:
                raise meeting.SordinoError("the power is gone")

            journal.settle = settle  # type: ignore[method-assign]

    outcomes = world.meet(change=dies)
    assert all(isinstance(outcome, str) for outcome in outcomes)
    assert [settled for settled, _, _ in world.progress()] == [3, 3, 2]
    sessions = world.meet()
    assert [session.lost for session in sessions] == [3, 3, 3]
    assert {(settled, claimed) for settled, claimed, _ in world.progress()} == {(4, 4)}


@pytest.mark.parametrize("field", ["settled", "claimed"])
def test_nobody_is_led_beyond_the_plan(world: World, field: str) -> None:
    world.fill(3)
    outcomes = world.meet({1: {"steps": 3}, 0: {"steps": 3}, 2: {"steps": 3, field: 4}})
    # Facts are what a party says of its own journal, which comes last: so the journal itself lies.
    assert all(isinstance(outcome, Meeting) for outcome in outcomes)

    def lies(place: int, star: StarTransport, journal: TurnJournal) -> None:
        if place == 2:
            journal.__class__ = type("LyingJournal", (TurnJournal,), {field: 4})

    outcomes = world.meet({place: {"steps": 3} for place in range(3)}, change=lies)
    assert all("more turns than were planned" in outcomes[place] for place in (0, 1))
    assert world.progress()[0][0] == 3

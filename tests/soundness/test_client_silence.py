"""C7 and C8: what a client's messages tell besides its noised sums."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.together.federated._agreement import Agreement
from sordino.together.federated._client import Client
from sordino.together.federated._durable import DurableClient
from sordino.together.federated._messages import (
    REFUSALS,
    Refusal,
    Reply,
    RoundRequest,
    message_from_bytes,
)
from tests.federated.attack import Attacker, mask, scripted, small
from tests.federated.worlds import agreed, durable, open_server, parts

FRAME = struct.Struct("<8sBI")


def header(raw: bytes) -> dict[str, Any]:
    """Everything in a message but its numbers."""
    _, kind, length = FRAME.unpack_from(raw)
    found: dict[str, Any] = json.loads(raw[FRAME.size : FRAME.size + length])
    return {"kind": kind, **found}


def told(client: Client, messages: int) -> list[dict[str, Any]]:
    """Headers of the answers to so many honest requests."""
    state, zero = client.begin(bytes(32)), np.zeros(client.agreement.parameters, np.float32)
    cohort = client.agreement.clients if client.mask else ()
    found = []
    for turn in range(1, messages + 1):
        asked = RoundRequest(client.agreement.digest, turn, 1, zero, zero, state.index, cohort)
        state, answer = client.respond(state, asked)
        found.append(header(answer.to_bytes()))
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "once": {},
    "uniform": {"schedule": "uniform"},
    "twice": {"schedule": "fresh", "uses": 2, "examples": 3},
    "client": {"unit": "client"},
    "sums": {"clients": 3, "trust": "secure-sum"},
    "sums-twice": {
        "clients": 3,
        "trust": "secure-sum",
        "schedule": "fresh",
        "uses": 2,
        "examples": 3,
    },
    "trusted": {"trust": "trusted"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_replies_do_not_tell_how_many_examples_there_are(name: str) -> None:
    """C7: with 3 or 50 blocks of examples, all that is sent beside the sums is the same."""
    agreement = small(**SETTINGS[name])
    pads = {"mask": mask} if agreement.trust == "secure-sum" else {}
    few, many = (told(scripted(agreement, blocks=blocks, **pads), 9) for blocks in (3, 50))
    assert few == many
    assert [one["index"] for one in few] == list(range(1, 10))


def test_only_a_trusted_server_that_counts_uses_is_told_blocks() -> None:
    """C7: it needs them for its account, and the guarantee's words say that it sees them."""
    agreement = small(clients=3, trust="trusted", schedule="fresh", uses=2, examples=3)
    assert [one["block"] for one in told(scripted(agreement, blocks=3), 7)] == [0, 1, 2] * 2 + [-1]


@pytest.mark.parametrize("schedule", ["uniform", "leaky"])
def test_a_spent_budget_does_not_tell_either(schedule: str) -> None:
    """C7: without examples, with one, with many: the budget ends with the same message."""
    agreement = small(schedule=schedule, leak=0.9 if schedule == "leaky" else None)
    lengths = []
    for blocks in (0, 1, 64):
        attacker = Attacker(scripted(agreement, blocks=blocks))
        answer: Reply | Refusal | None = None
        while not isinstance(answer, Refusal) and len(attacker.log) < 100:
            # A server that never commits but the first: every message is one more leaf of a star.
            answer = attacker.ask(committed=min(1, attacker.state.index))
        lengths.append((len(attacker.log), attacker.refused[-1].code if attacker.refused else ""))
    assert len(set(lengths)) == 1, lengths


def test_a_servers_file_has_no_sizes(tmp_path: Path) -> None:
    """C7: neither blocks nor what was spent are kept by a server, because they never come."""
    agreement = agreed(3, per_round=3, rounds=4, batch=20)  # 40 examples: two blocks, then none
    server = open_server(agreement, tmp_path)
    clients = {name: durable(part, tmp_path) for name, part in parts(agreement).items()}
    while not server.finished:
        for name, request in server.requests(agreement.clients):
            server.receive(name, clients[name].answer(request))
    server.close()
    link = sqlite3.connect(tmp_path / "server.db")
    for blocks, spent in link.execute("SELECT blocks, spent FROM rounds"):
        assert set(json.loads(blocks).values()) == {-1}
        assert json.loads(spent) == {}
    link.close()


def _request(agreement: Agreement, turn: int = 1, **changes: Any) -> bytes:
    zero = np.zeros(agreement.parameters, np.float32)
    fields: dict[str, Any] = {"point": zero, "previous": zero, "committed": 0, **changes}
    return RoundRequest(agreement.digest, turn, 1, **fields).to_bytes()


def _opened(folder: Path, **options: Any) -> DurableClient:
    agreement = agreed(4, per_round=4, **options)
    return durable(next(iter(parts(agreement).values())), folder)


def test_local_errors_stay_local(tmp_path: Path) -> None:
    """C8: a client that cannot write says so on its own machine; no path of it leaves."""
    folder = tmp_path / "ward-7-secret-study"
    folder.mkdir()
    client = _opened(folder)
    keys = folder / "keys"
    keys.rename(folder / "keys-moved")
    keys.write_text("not a folder")
    raw = client.answer(_request(client.client.agreement))
    client.close()
    found = message_from_bytes(raw)
    assert isinstance(found, Refusal)
    assert found.code == "local"
    assert b"ward-7" not in raw
    assert str(tmp_path).encode() not in raw
    assert str(folder) in client.detail  # whoever runs the client does learn where


def test_every_refusal_is_a_code_of_a_closed_list(tmp_path: Path) -> None:
    """C8: nothing in a refusal but who refuses what turn, under what agreement, by what code."""
    client = _opened(tmp_path, radius=1.0)
    agreement = client.client.agreement
    far = np.full(agreement.parameters, 9.0, np.float32)
    seen = set()
    for raw in (
        b"not a message",
        _request(agreement, point=far),
        _request(agreement, point=np.full(agreement.parameters, np.nan, np.float32)),
        _request(agreement, committed=5),
        _request(agreement, cohort=("a",)),
        RoundRequest("0" * 64, 1, 1, far, far, 0).to_bytes(),
        RoundRequest(agreement.digest, 1, 99, far, far, 0).to_bytes(),
    ):
        answer = client.answer(raw)
        sent = header(answer)
        assert set(sent) == {"kind", "agreement", "client", "turn", "code"}
        found = message_from_bytes(answer)
        assert isinstance(found, Refusal)
        assert found.reason == REFUSALS[found.code][0]
        assert client.detail
        assert not found.detail
        seen.add(found.code)
    assert seen == {"malformed", "point", "journal", "cohort", "agreement", "round"}
    client.close()


def _old(kind: int, fields: dict[str, Any], values: bytes = b"") -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return FRAME.pack(b"SORDFED1", kind, len(text)) + text + values


def test_messages_of_earlier_versions_are_read_without_what_they_told() -> None:
    """C7, C8: a reply's `spent` and a refusal's sentence are dropped where they come in."""
    fields = {"agreement": "0" * 64, "client": "a", "turn": 1}
    reply = {**fields, "index": 1, "block": 3, "asked": "1" * 64, "spent": 0.7}
    found = message_from_bytes(_old(2, {**reply, "parameters": 1, "bytes": 4}, bytes(4)))
    assert isinstance(found, Reply)
    assert not hasattr(found, "spent")
    assert header(found.to_bytes())["kind"] == 4
    refusal = message_from_bytes(_old(3, {**fields, "code": "local", "reason": "/home/x: full"}))
    assert isinstance(refusal, Refusal)
    assert "/home" not in refusal.reason + refusal.detail
    assert b"/home" not in refusal.to_bytes()


def test_a_kept_reply_of_an_earlier_version_is_sent_again_without_what_it_told(
    tmp_path: Path,
) -> None:
    """C7: a client that was updated in the middle of a turn resends its sum, and no more."""
    client = _opened(tmp_path)
    agreement = client.client.agreement
    request = _request(agreement)
    first = client.answer(request)
    client.close()
    reply = message_from_bytes(first)
    assert isinstance(reply, Reply)
    fields = {**header(first), "block": 0, "spent": 0.31}
    del fields["kind"]
    old = _old(2, fields, reply.values.astype("<i4").tobytes())
    journal = tmp_path / f"{client.client.name}.journal"
    link = sqlite3.connect(journal)
    with link:
        assert link.execute("UPDATE last SET reply = ?", (old,)).rowcount == 1
    link.close()
    again = durable(next(iter(parts(agreement).values())), tmp_path)
    assert again.answer(request) == first
    assert reply.asked == hashlib.sha256(request).hexdigest()
    again.close()

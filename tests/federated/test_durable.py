"""Clients and servers that are killed, lied to, restored from copies, or run twice."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import SordinoError
from sordino._base.keystore import KeyStore
from sordino.together.federated import _durable as durable_module
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._coordinator import DurableServer
from sordino.together.federated._durable import DurableClient, MessageJournal
from sordino.together.federated._messages import Refusal, Reply, message_from_bytes
from tests.federated.worlds import (
    FEATURES,
    Replay,
    agreed,
    durable,
    open_server,
    parts,
    request_of,
    secure_agreement,
    server_of,
    volatile,
)


class Killed(BaseException):
    """A process that ends here."""


def run(
    agreement: Agreement,
    folder: Path,
    *,
    seed: int = 0,
    lost: float = 0.0,
    restarts: float = 0.0,
    private: Any = None,
) -> tuple[DurableServer, dict[str, DurableClient], dict[str, Replay]]:
    """A whole run in which messages get lost both ways and everybody is restarted now and then."""
    chance = np.random.default_rng(seed)
    mine = parts(agreement, private)
    clients = {name: durable(part, folder) for name, part in mine.items()}
    replays = {name: Replay(part) for name, part in mine.items()}
    server = open_server(agreement, folder, seed)
    for _ in range(2000):
        if server.finished:
            break
        if chance.random() < restarts:
            server.close()
            server = open_server(agreement, folder, seed + 1)
        present = [name for name in agreement.clients if chance.random() > 0.1]
        for name, raw in server.requests(present):
            if chance.random() < lost:
                server.missing(name, "lost on the way there")
                continue
            if chance.random() < restarts:
                clients[name].close()
                clients[name] = durable(mine[name], folder)
            before = clients[name].state.index
            answer = clients[name].answer(raw)
            assert clients[name].answer(raw) == answer  # asked again: the same bytes
            sent = clients[name].state.sent
            if clients[name].state.index > before:
                assert sent is not None
                expected = replays[name].sent(request_of(raw), sent.index, sent.parent, sent.block)
                reply = message_from_bytes(answer)
                assert isinstance(reply, Reply)
                if agreement.trust == "untrusted":
                    assert (reply.values == expected).all()
            if chance.random() < lost:
                server.missing(name, "lost on the way back")
                continue
            server.receive(name, answer)
    assert server.finished
    return server, clients, replays


def committed_of(server: DurableServer, client: str) -> list[int]:
    return [r.committed[client] for r in server.history() if client in r.committed]


@pytest.mark.parametrize("leak", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("disturbed", [False, True])
def test_the_noise_in_q_is_what_the_clients_have_not_taken_back(
    tmp_path: Path, leak: float, disturbed: bool
) -> None:
    # Lemma 4.1 in whole numbers (papers/02, oracle 3), through losses, retries and restarts.
    agreement = agreed(leak=leak, extra=1, rounds=15, cap=60, spare=1.0)
    assert agreement.leak == round(65536 * leak)
    # (Messages that are never committed branch off the chain: a leaking one has to pay for them.)
    chances = {"lost": 0.2, "restarts": 0.1} if disturbed else {}
    server, clients, replays = run(agreement, tmp_path, seed=3, **chances)
    assert server.state.round == agreement.rounds + 1
    sums, noise = np.zeros(FEATURES, np.int64), np.zeros(FEATURES, np.int64)
    for name, replay in replays.items():
        mine = committed_of(server, name)
        assert mine == sorted(set(mine))
        assert server.state.committed.get(name, 0) == (mine[-1] if mine else 0)
        sums += sum((replay.sums[i] for i in mine), np.zeros(FEATURES, np.int64))
        noise += replay.left(mine)
        assert clients[name].spent <= agreement.mu * (1 + 1e-9)
        assert clients[name].state.index >= len(mine)
    assert (server.state.total - sums == noise).all()
    assert (noise != 0).any()


def test_under_a_secure_sum_pads_cancel_and_lost_members_cost_a_turn(tmp_path: Path) -> None:
    agreement, private = secure_agreement(6, rounds=6, per_round=4, colluders=1, cap=60)
    server, clients, replays = run(agreement, tmp_path, seed=5, lost=0.15, private=private)
    assert server.state.round == agreement.rounds + 1
    assert server.state.turn > agreement.rounds  # some turns were given up
    total = np.zeros(FEATURES, np.int64)
    for name, replay in replays.items():
        mine = committed_of(server, name)
        total += sum((replay.sums[i] for i in mine), np.zeros(FEATURES, np.int64))
        total += replay.left(mine)
        assert clients[name].spent <= agreement.mu * (1 + 1e-9)
    assert (server.state.total == total).all()
    # A single padded vector is nothing like the message it hides.
    assert np.abs(server.state.total).max() < 2**40


def test_a_trusted_server_adds_one_noise_for_all_and_survives_restarts(tmp_path: Path) -> None:
    agreement = agreed(trust="trusted", rounds=8, cap=60)
    quiet = tmp_path / "quiet"
    stormy = tmp_path / "stormy"
    server, *_ = run(agreement, quiet, seed=1)
    assert server.state.account is not None
    assert server.state.account.mu <= agreement.mu * (1 + 1e-9)
    other, clients, _ = run(agreement, stormy, seed=1, restarts=0.5)
    for closed in (other, *clients.values()):
        closed.close()
    assert other.state.account is not None
    np.testing.assert_allclose(other.state.account.spent, server.state.account.spent)
    assert other.state.last_key is not None
    raw = (stormy / "server.db").read_bytes()
    assert other.state.last_key not in raw
    assert other.state.last_key.hex().encode() not in raw
    # Clipped sums without noise are in nobody's journal.
    for name in agreement.clients:
        (kept,) = (
            sqlite3.connect(stormy / f"{name}.journal")
            .execute("SELECT count(*) FROM last WHERE reply IS NOT NULL")
            .fetchone()
        )
        assert kept == 0


def first_request(agreement: Agreement, turn_of: int = 0) -> bytes:
    server = DurableServer.in_memory(server_of(agreement))
    return dict(server.requests(agreement.clients))[agreement.clients[turn_of]]


STEPS = ["before the journal", "in the journal", "before the seal", "after the seal"]


@pytest.mark.parametrize("step", STEPS)
def test_killed_between_any_two_steps_it_sends_what_it_would_have_sent(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # papers/02, oracle 11: between draw, write, send and acknowledgement.
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    calm = durable(part, tmp_path / "calm")
    raw = first_request(agreement)
    expected = calm.answer(raw)
    client = durable(part, tmp_path / "killed")

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        real_add, real_keep = MessageJournal.add, MessageJournal.keep
        if step == "before the journal":
            patch.setattr(MessageJournal, "add", die)
        if step == "in the journal":
            patch.setattr(durable_module, "_sealed", die)
        if step == "before the seal":
            patch.setattr(MessageJournal, "keep", die)
        if step == "after the seal":
            patch.setattr(MessageJournal, "keep", lambda *a: (real_keep(*a), die()))
        assert real_add
        with pytest.raises(Killed):
            client.answer(raw)
    client.close()
    client = durable(part, tmp_path / "killed")
    assert client.state.index == (0 if step == "before the journal" else 1)
    assert client.answer(raw) == expected
    assert client.state.index == 1
    assert client.state.account.spent == pytest.approx(calm.state.account.spent)
    assert client.state.ratchet == calm.state.ratchet
    assert client.state.keys == calm.state.keys


def test_a_restored_journal_sends_nothing(tmp_path: Path) -> None:
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    client = durable(part, tmp_path)
    server = DurableServer.in_memory(server_of(agreement))
    others = volatile(agreement)
    path = tmp_path / f"{part.name}.journal"
    copies = []
    for _ in range(3):
        client.close()
        copies.append(path.read_bytes())
        client = durable(part, tmp_path)
        for name, raw in server.requests(agreement.clients):
            mine = name == part.name
            server.receive(name, client.answer(raw) if mine else others[name].answer(raw))
    client.close()
    newest = path.read_bytes()
    for copy in copies:
        path.write_bytes(copy)
        with pytest.raises(SordinoError, match="old or another copy"):
            durable(part, tmp_path)
    path.unlink()
    with pytest.raises(SordinoError, match="has 0 messages, but 3 were sent"):
        durable(part, tmp_path)
    path.unlink()
    path.write_bytes(newest)
    assert durable(part, tmp_path).state.index == 3


def test_a_machine_restored_with_its_seal_is_noticed_by_what_the_server_has(tmp_path: Path) -> None:
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    client = durable(part, tmp_path / "now")
    server = DurableServer.in_memory(server_of(agreement))
    others = volatile(agreement)
    requests: list[bytes] = []
    for number in range(3):
        if number == 1:
            client.close()
            shutil.copytree(tmp_path / "now", tmp_path / "then")
            client = durable(part, tmp_path / "now")
        for name, raw in server.requests(agreement.clients):
            if name == part.name:
                requests.append(raw)
                server.receive(name, client.answer(raw))
            else:
                server.receive(name, others[name].answer(raw))
    old = durable(part, tmp_path / "then")
    # The request that it has answered since gets the very same answer: the same release.
    again = old.answer(requests[1])
    assert isinstance(message_from_bytes(again), Reply)
    (latest,) = [raw for name, raw in server.requests(agreement.clients) if name == part.name]
    refused = message_from_bytes(durable(part, tmp_path / "then2").answer(latest))
    assert isinstance(refused, Refusal)
    assert refused.code == "journal"
    assert "older than what it has sent" in refused.reason


def test_one_process_at_a_time_and_the_same_data(tmp_path: Path) -> None:
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    client = durable(part, tmp_path)
    client.answer(first_request(agreement))
    with pytest.raises(SordinoError, match="running already"):
        durable(part, tmp_path)
    client.close()
    X, y = part.data
    from dataclasses import replace

    with pytest.raises(SordinoError, match="not those it began with"):
        durable(replace(part, data=(X[::-1], y)), tmp_path)
    other = agreed(per_round=4, nonce="11" * 16)
    (tmp_path / "keys" / "federated").rename(tmp_path / "gone")
    with pytest.raises(SordinoError, match="seal of 'client-0' is missing"):
        durable(part, tmp_path)
    with pytest.raises(SordinoError, match="belongs to another agreement"):
        durable(replace(part, agreement=other), tmp_path)


def test_what_was_changed_in_a_journal_is_found(tmp_path: Path) -> None:
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    client = durable(part, tmp_path)
    client.answer(first_request(agreement))
    client.close()
    path = tmp_path / f"{part.name}.journal"
    with sqlite3.connect(path) as link:
        link.execute("UPDATE messages SET spent = 0")
    link.close()
    with pytest.raises(SordinoError, match="was changed at message 1"):
        durable(part, tmp_path)
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(SordinoError, match="journal"):
        durable(part, tmp_path)


def test_a_full_disk_sends_nothing_and_later_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = agreed(per_round=4)
    part = next(iter(parts(agreement).values()))
    client = durable(part, tmp_path)
    raw = first_request(agreement)

    def full(*_: Any) -> None:
        raise SordinoError("the key 'x' cannot be kept: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "replace", full)
        for _ in range(3):  # the row is written; without the seal nothing may leave
            raw_answer = client.answer(raw)
            refused = message_from_bytes(raw_answer)
            assert isinstance(refused, Refusal)
            assert refused.code == "local"
            assert "No space left" in client.detail
            assert b"No space left" not in raw_answer
    reply = message_from_bytes(client.answer(raw))
    assert isinstance(reply, Reply)
    assert reply.index == 1
    client.close()
    assert durable(part, tmp_path).state.index == 1


def test_every_example_is_used_as_often_as_agreed_and_then_noise_alone(tmp_path: Path) -> None:
    agreement = agreed(1, per_round=1, rounds=9, batch=2, uses=2, examples=5, mu=20.0)
    part = next(iter(parts(agreement, examples=5).values()))
    client = durable(part, tmp_path)
    server = DurableServer.in_memory(server_of(agreement))
    for _ in range(9):
        for name, raw in server.requests(agreement.clients):
            server.receive(name, client.answer(raw))
    blocks = [entry.sent.block for entry in client.entries()]
    assert blocks == [0, 1, 2, 0, 1, 2, -1, -1, -1]
    rows = [row for block in blocks if block >= 0 for row in client.client.data.rows(block)]
    assert sorted(rows) == sorted([*range(5)] * 2)
    assert client.spent <= agreement.mu * (1 + 1e-9)


def test_a_server_that_is_damaged_or_another_one_says_so(tmp_path: Path) -> None:
    agreement = agreed()
    server = open_server(agreement, tmp_path)
    with pytest.raises(SordinoError, match="running already"):
        open_server(agreement, tmp_path)
    server.close()
    with pytest.raises(SordinoError, match="belongs to another agreement"):
        open_server(agreed(nonce="22" * 16), tmp_path)
    with sqlite3.connect(tmp_path / "server.db") as link:
        link.execute("UPDATE state SET value = x'00' WHERE name = 'total'")
    link.close()
    with pytest.raises(SordinoError, match="damaged"):
        open_server(agreement, tmp_path)


def test_what_a_server_rejects_is_reported(tmp_path: Path) -> None:
    agreement = agreed(per_round=4)
    server = open_server(agreement, tmp_path)
    clients = volatile(agreement)
    asked = dict(server.requests(agreement.clients))
    name, other = agreement.clients[:2]
    good = clients[name].answer(asked[name])
    server.receive(name, b"nonsense")
    server.receive(other, good)
    server.receive(name, good)
    server.receive(name, good)
    server.missing(other, "no\nanswer")
    texts = [text for _, _, text in server.events()]
    assert texts == [
        f"{name} sent what cannot be read: this is not a message: it ends too early",
        f"{other} speaks for '{name}'",
        f"{name} has answered turn 1 already",
        f"{other} did not answer turn 1: no answer",
    ]

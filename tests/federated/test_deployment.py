"""A real deployment on loopback: a SuperLink, five SuperNodes, TLS, keys; killed, cut off, restarted."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from sordino._base.keystore import KeyStore
from sordino.models._rows import RowPreparation
from sordino.models._schema import Numeric, Schema
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import cancelled_draws, drawn, noise_key, turned
from sordino.together.federated._contribution import flattened
from sordino.together.federated._messages import Reply
from sordino.together.federated._server import Server
from sordino.together.sites._federated import (
    ClientSite,
    ServerSite,
    create,
    local_clients,
    local_server,
    run_directly,
)
from sordino.together.sites._models import ModelSpec, table_model
from tests.federated.deployed import TABLE
from tests.federated.worlds import secret_of

ROOT = Path(__file__).parents[2]
CLIENTS, ROUNDS, EXAMPLES = 5, 20, 200
FEATURES = ("a", "b", "c")


def tables(seed: int, rows: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(CLIENTS + 1):
        X = rng.uniform(-1, 1, size=(rows, len(FEATURES)))
        y = (X @ [1.0, -2.0, 1.5] + 0.3 * rng.normal(size=rows) > 0).astype(int)
        found.append((X, y))
    return found


def write_table(path: Path, X: Any, y: Any) -> None:
    lines = [",".join([*FEATURES, "label"])]
    for row, label in zip(X, y, strict=True):
        lines.append(",".join([*map(repr, map(float, row)), str(int(label))]))
    path.write_text("\n".join(lines) + "\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def schema() -> Schema:
    columns = tuple(Numeric(name, -1, 1) for name in FEATURES)
    return Schema(columns, target="label", classes=(0, 1))


def study(folder: Path) -> tuple[Agreement, ModelSpec]:
    model = table_model(schema())
    agreement = agree(
        clients=CLIENTS,
        parameters=model.parameters,
        rounds=ROUNDS,
        per_round=3,
        mu=1.0,
        batch=EXAMPLES // ROUNDS,
        extra=1,
        spare=2.0,
        cap=60,
        smoothness=0.25,
    )
    create(folder, agreement, model, port=free_port())
    settings = folder / "server" / "server.toml"
    settings.write_text(settings.read_text().replace("timeout = 60.0", "timeout = 4.0"))
    for name, (X, y) in zip(agreement.clients, tables(0, EXAMPLES), strict=False):
        write_table(folder / "clients" / name / TABLE, X, y)
    return agreement, model


class Processes:
    """The run's processes, each in a session of its own so that all of it can be killed."""

    def __init__(self, folder: Path, lost: float) -> None:
        self._folder, self._lost = folder, lost
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.logs: dict[str, Path] = {}

    def start(self, who: str) -> None:
        log = self._folder / f"{who}.log"
        self.logs[who] = log
        keys = self._folder / "keys"
        with log.open("a") as file:
            self.running[who] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.federated.deployed",
                    str(self._folder),
                    who,
                    str(self._lost),
                ],
                cwd=ROOT,
                env={**os.environ, "SORDINO_KEYS": str(keys), "JAX_PLATFORMS": "cpu"},
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def kill(self, who: str) -> None:
        process = self.running[who]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def starts(folder: Path, name: str) -> list[int]:
    """How many messages a client knew of, each time it was started."""
    text = (folder / f"{name}.log").read_text()
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("messages")]


@pytest.mark.slow
def test_it_survives_kills_cuts_and_losses(tmp_path: Path) -> None:
    """20 rounds; clients and server killed with -9 again and again; 20 % of all messages lost."""
    folder = tmp_path / "study"
    agreement, model = study(folder)
    processes = Processes(folder, lost=0.1)
    chance = random.Random(0)
    kills = {"server": 0, "client": 0}
    began = time.monotonic()
    try:
        for who in ("server", *agreement.clients):
            processes.start(who)
        while time.monotonic() - began < 540:
            time.sleep(chance.uniform(4.0, 9.0))
            server = processes.running["server"]
            if server.poll() is not None:
                assert server.returncode == 0, (folder / "server.log").read_text()
                break
            for name in agreement.clients:
                log = folder / f"{name}.log"
                assert processes.running[name].poll() is None, log.read_text()
            victim = (
                "server"
                if kills["client"] > 2 * kills["server"]
                else chance.choice(agreement.clients)
            )
            if sum(kills.values()) < 9:
                processes.kill(victim)
                kills["server" if victim == "server" else "client"] += 1
                processes.start(victim)
        else:
            pytest.fail("the run did not end:\n" + (folder / "server.log").read_text()[-4000:])
    finally:
        processes.end()
    assert kills["server"] >= 2
    assert kills["client"] >= 4
    check(folder, agreement, model)


def check(folder: Path, agreement: Agreement, model: ModelSpec) -> None:
    """Everything again from the first secrets and the journals alone: q and x must be the same bits."""
    store = KeyStore(folder / "keys")
    found = ServerSite.load(folder / "server").open()
    history = found.history()
    assert [record.round for record in history] == list(range(1, agreement.rounds + 1))
    clients, noise, entries = {}, {}, {}
    for name in agreement.clients:
        site = ClientSite.load(folder / "clients" / name)
        client = site.open(site.part(site.folder / TABLE), store=store)
        mine = client.entries()
        assert client.spent <= agreement.mu * (1 + 1e-9)
        assert [entry.sent.index for entry in mine] == list(range(1, len(mine) + 1))
        turns = [entry.sent.turn for entry in mine]
        assert turns == sorted(set(turns))
        blocks = [entry.sent.block for entry in mine if entry.sent.block >= 0]
        assert len(set(blocks)) == len(blocks)  # every example at most once
        seen = starts(folder, name)
        assert seen == sorted(seen)  # no counter went back
        assert seen[-1] <= len(mine)
        ratchet = secret_of(name)
        for entry in mine:
            key = noise_key(ratchet, entry.sent.binding())
            variance = agreement.variance_of(entry.sent.index)
            noise[name, entry.sent.index] = drawn(key, variance, agreement.parameters)
            entries[name, entry.sent.index] = entry
            ratchet = turned(ratchet)
        clients[name] = client
    sums = np.zeros(agreement.parameters, np.int64)
    server = Server(agreement, flattened(model.params))
    state = server.begin()
    for record in history:
        state = replace(state, turn=record.turn, asked=tuple(record.committed))
        for name, index in record.committed.items():
            request, sent = server.request(state, name), entries[name, index].sent
            assert request.digest() == sent.asked
            assert sent.parent == state.committed.get(name, 0)
            total = clients[name].client.data.total(
                request.point, request.previous, request.round, sent.block
            )
            values = total.clipped + noise[name, index]
            if sent.parent:
                values = values - cancelled_draws(noise[name, sent.parent], agreement.leak)
            sums += total.clipped
            reply = Reply(
                agreement.digest,
                name,
                record.turn,
                index,
                sent.asked.hex(),
                values.astype(np.int32),
            )
            state, verdict, _ = server.receive(state, name, reply)
            assert verdict.taken, verdict.reason
    assert (found.state.total == state.total).all()
    assert (found.state.point == state.point).all()
    # Lemma 4.1: what is in q beyond the sums is what the clients have not taken back.
    left = np.zeros(agreement.parameters, np.int64)
    for name in agreement.clients:
        mine = [record.committed[name] for record in history if name in record.committed]
        for index in mine:
            left += noise[name, index]
        for index in mine[:-1]:
            left -= cancelled_draws(noise[name, index], agreement.leak)
        clients[name].close()
    assert (found.state.total - sums == left).all()
    found.close()
    compare(agreement, model, state.point)


def compare(agreement: Agreement, model: ModelSpec, params: Any) -> None:
    """Accuracy within the noise of 30 undisturbed runs: 4 of their standard deviations."""
    rows = [prepared(*table) for table in tables(0, EXAMPLES)[:CLIENTS]]
    evaluate = model.evaluator(prepared(*tables(1, 4000)[0]))
    scores = []
    for seed in range(30):
        server = local_server(agreement, model, insecure_seed=seed)
        run_directly(server, local_clients(agreement, model, rows, insecure_seed=seed))
        assert server.state.round == agreement.rounds + 1
        scores.append(evaluate(server.params)["accuracy"])
    disturbed = evaluate(params)["accuracy"]
    spread = max(float(np.std(scores)), 0.005)
    assert abs(disturbed - np.mean(scores)) < 4 * spread * np.sqrt(1 + 1 / 30), (disturbed, scores)


def prepared(X: Any, y: Any) -> tuple[Any, Any]:
    frame = pd.DataFrame(X, columns=list(FEATURES))
    return RowPreparation(schema())(frame), y.astype(np.int32)

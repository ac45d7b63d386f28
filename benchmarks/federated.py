"""Federated runs: how large the simulator goes, and what a message of the real protocol takes.

    python -m benchmarks.federated [scale | messages] ...

Accuracy, and CPU seconds of simulated runs on MNIST, are experiment D: ``python -m benchmarks run d``.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino import Logistic, Softmax
from sordino.engine import KeyStore
from sordino.together.federated import DurableClient, agree, simulate, split
from sordino.together.sites import (
    ModelSpec,
    local_clients,
    local_parts,
    local_server,
    run_directly,
    run_here,
)

FEATURES, CLASSES = 785, 10
EXAMPLES = 60_000


def large(per_round: int) -> dict[str, Any]:
    """1,000 clients, 10,000 rounds, d = 7,850; in a process of its own, for its peak memory."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32) / 28
    y = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    each = EXAMPLES // 1000
    # As often as it takes for every message to have an example in it.
    uses = -(-10 * per_round // each) + 3
    built = agree(
        clients=1000, per_round=per_round, rounds=10_000, parameters=7850, mu=8.0, uses=uses, examples=each
    )  # fmt: skip
    began, cpu = time.perf_counter(), time.process_time()
    simulate(
        built,
        Softmax(CLASSES),
        np.zeros((CLASSES, FEATURES)),
        split(X, y, 1000, seed=0),
        insecure_seed=0,
    )
    return {
        "clients": 1000,
        "in a round": per_round,
        "rounds": 10_000,
        "wall s": round(time.perf_counter() - began, 1),
        "CPU s": round(time.process_time() - cpu, 1),
        "peak memory, GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def scale() -> None:
    for per_round in (100, 500, 1000):
        code = f"import json; from benchmarks.federated import large; print(json.dumps(large({per_round})))"
        subprocess.run([sys.executable, "-c", code], check=True)


def messages() -> None:
    """The real protocol in one process: 100 clients x 100 rounds, d = 123, everybody in every round."""
    clients, rounds, d = 100, 100, 123
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(clients, rounds, d)) / np.sqrt(d)).astype(np.float32)
    y = (X @ rng.normal(size=d) > 0).astype(np.int32)
    model = ModelSpec(Logistic(), np.zeros(d, np.float32), load=lambda path: ())
    agreement = agree(clients=clients, parameters=d, rounds=rounds, epsilon=4)
    data = list(zip(X, y, strict=True))
    result: dict[str, Any] = {"messages": clients * rounds}
    for engine in ("direct", "flower", "direct", "flower"):
        server = local_server(agreement, model, insecure_seed=0)
        everybody = local_clients(agreement, model, data, insecure_seed=0)
        began, cpu = time.perf_counter(), time.process_time()
        run_here(server, everybody, engine=engine)
        result[f"{engine}, s"] = round(time.perf_counter() - began, 2)
        result[f"{engine}, CPU s"] = round(time.process_time() - cpu, 2)
    with tempfile.TemporaryDirectory() as folder:
        store = KeyStore(Path(folder) / "keys")
        part = local_parts(agreement, model, data)[agreement.clients[0]]
        alone = replace(agreement, clients=agreement.clients[:1], per_round=1)
        client = DurableClient.open(
            replace(part, agreement=alone), Path(folder) / "journal", store=store
        )
        server = local_server(alone, model)
        began = time.perf_counter()
        run_directly(server, {part.name: client})
        each = (time.perf_counter() - began) / rounds
        client.close()
    more = result["flower, s"] - result["direct, s"]
    result["Flower, ms more per message"] = round(1e3 * more / result["messages"], 3)
    result["with journal and seal on disk, ms per message"] = round(1e3 * each, 2)
    print(json.dumps(result))


def main(*parts: str) -> None:
    known = {"scale": scale, "messages": messages}
    for part in parts or known:
        known[part]()


if __name__ == "__main__":
    main(*sys.argv[1:])

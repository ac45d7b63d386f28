"""Federated runs in the simulator: Tables 1 and 2 of Reshef & Levy (papers/02), and how large it goes.

    SORDINO_DATA=folder/with/mnist python -m benchmarks.federated [tables | budgets | scale | messages] ...

MNIST softmax regression, 785 inputs (pixels in [0, 1] and a constant), 100 clients of 600 examples each,
every example used once, n = m T = 60,000. (Lowy-Razaviyayn takes all 600 in every message, with exact
accounting instead of its paper's constants; so "batches of 12", each example in 12 messages, is the row to
compare it with.) The paper's rho is mu of mu-GDP for replace-one; epsilon is at
delta = 1e-5. Learning rates (and, for budgets, the clip) are tuned for every method and cell on public
data: half of the published test set, which is neither trained on nor scored. Accuracy is on the other
half. CPU seconds are of one simulated run, agreement and copying the data included.
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

from sordino.datasets import load_mnist
from sordino.federated.agreement import Agreement, agree
from sordino.federated.durable import DurableClient
from sordino.federated.partition import split
from sordino.federated.simulator import simulate
from sordino.keystore import KeyStore
from sordino.losses import Logistic, Softmax
from sordino.privacy.gdp import epsilon_from_mu
from sordino.sites.models import Model
from sordino.sites.running import (
    local_clients,
    local_parts,
    local_server,
    run_directly,
    run_here,
)

CLIENTS, FEATURES, CLASSES = 100, 785, 10
EXAMPLES = 60_000
DELTA = 1e-5
SEEDS = 3
# papers/02 1.8: G = sqrt(2 * 785), L = 785 / 2, D = 0.1, S = G + 2 L D.
G, L, DIAMETER = float(np.sqrt(2 * 785)), 785 / 2, 0.1
S = G + 2 * L * DIAMETER
# Accuracy in the paper's tables.
PRINTED = {
    (4, 50): {"DP-mu2-FL": 53.8, "noisy SGD": 45.1, "Lowy-Razaviyayn": 47.6},
    (8, 50): {"DP-mu2-FL": 63.7, "noisy SGD": 58.9, "Lowy-Razaviyayn": 63.3},
    (12, 50): {"DP-mu2-FL": 66.5, "noisy SGD": 63.7, "Lowy-Razaviyayn": 66.7},
    (8, 20): {"DP-mu2-FL": 60.8, "noisy SGD": 54.9, "Lowy-Razaviyayn": 59.7},
    (8, 80): {"DP-mu2-FL": 63.8, "noisy SGD": 57.0, "Lowy-Razaviyayn": 65.8},
}
GRID = [4.0**k for k in range(-1, 5)]
# Rounds of Lowy-Razaviyayn, each of all examples of its cohort.
ROUNDS_OF_ALL = 50

Rows = tuple[np.ndarray, np.ndarray]


class World:
    """The data: everybody's own, a public population of the same size to tune on, and a test set."""

    def __init__(self) -> None:
        digits = load_mnist()
        self.private = split(*_rows(digits.train), CLIENTS, seed=0)
        X, y = _rows(digits.test)
        rng = np.random.default_rng(1)
        pool = rng.permutation(len(y))
        tuning, self.public_check, self.test = (
            (X[part], y[part]) for part in (pool[:3000], pool[3000:5000], pool[5000:])
        )
        drawn = rng.integers(0, 3000, EXAMPLES)
        self.public = split(tuning[0][drawn], tuning[1][drawn], CLIENTS, seed=0)

    def accuracy(self, made: Agreement, *, public: bool, seed: int) -> float:
        """Percent right after one run."""
        start = np.zeros((CLASSES, FEATURES), np.float32)
        data = self.public if public else self.private
        W = simulate(made, Softmax(CLASSES), start, data, insecure_seed=seed).params
        X, y = self.public_check if public else self.test
        return 100 * float(np.mean(np.argmax(X @ W.T, axis=1) == y))

    def tuned(self, options: list[Agreement]) -> tuple[Agreement, float]:
        """The agreement and learning rate that do best on public data, and the rate's multiple."""
        tried = [
            (
                self.accuracy(
                    replace(made, learning_rate=made.learning_rate * x), public=True, seed=9
                ),
                x,
                made,
            )
            for made in options
            for x in GRID
        ]
        _, best, made = max(tried, key=lambda entry: entry[0])
        return replace(made, learning_rate=made.learning_rate * best), best

    def row(self, options: list[Agreement]) -> dict[str, Any]:
        """Accuracy over seeds, and CPU seconds of a run whose program is compiled."""
        made, multiple = self.tuned(options)
        found, seconds = [], []
        for seed in range(SEEDS):
            began = time.process_time()
            found.append(self.accuracy(made, public=False, seed=seed))
            seconds.append(time.process_time() - began)
        return {
            "accuracy": round(float(np.mean(found)), 1),
            "std": round(float(np.std(found, ddof=1)), 1),
            "CPU s": round(float(np.median(seconds)), 2),
            "learning rate": float(f"{made.learning_rate:.3g}"),
            "times default": round(multiple, 3),
            "clip": made.clip,
        }


def _rows(data: Rows) -> Rows:
    X, y = data
    flat = X.reshape(len(X), -1)
    return np.concatenate([flat, np.ones((len(X), 1), np.float32)], axis=1), y


def methods(m: int, **options: Any) -> dict[str, Agreement]:
    """All contenders for one cell; `options` hold the budget and the set."""
    common: dict[str, Any] = {
        "clients": CLIENTS,
        "per_round": m,
        "parameters": FEATURES * CLASSES,
        "delta": DELTA,
        "adjacency": "replace-one",
        "smoothness": L,
        "clip": S,
        **options,
    }
    gradient = {**common, "clip": options.get("gradient_clip", G)}
    for settings in (common, gradient):
        settings.pop("gradient_clip", None)
    rounds = EXAMPLES // m
    return {
        "DP-mu2-FL, paper's schedule": agree(rounds=rounds, schedule="paper", **common),
        "DP-mu2-FL, uniform": agree(rounds=rounds, schedule="uniform", **common),
        "DP-mu2-FL, leaky": agree(rounds=rounds, schedule="leaky", **common),
        "DP-mu2-FL, leaky, batches of 12": agree(
            rounds=rounds,
            schedule="leaky",
            batch=12,
            uses=12,
            examples=EXAMPLES // CLIENTS,
            **common,
        ),
        "noisy SGD": agree(rounds=rounds, algorithm="noisy-sgd", **gradient),
        "Lowy-Razaviyayn": agree(
            rounds=ROUNDS_OF_ALL,
            algorithm="lowy-razaviyayn",
            examples=EXAMPLES // CLIENTS,
            **gradient,
        ),
    }


def tables() -> None:
    """Tables 1 and 2: the paper's set (a ball of diameter 0.1 around 0), its S, its rho."""
    world = World()
    began = time.process_time()
    cold = agree(clients=CLIENTS, per_round=50, rounds=1200, parameters=7850, mu=8.0, clip=S)
    world.accuracy(replace(cold, learning_rate=1e-7), public=False, seed=0)
    print(
        json.dumps(
            {
                "first run of a process, compiling included, CPU s": round(
                    time.process_time() - began, 2
                )
            }
        ),
        flush=True,
    )
    for rho, m in ((4, 50), (8, 50), (12, 50), (8, 20), (8, 80)):
        for name, made in methods(m, mu=float(rho), radius=DIAMETER / 2).items():
            printed = PRINTED[rho, m].get(name.split(",")[0])
            cell = {
                "rho": rho,
                "epsilon": round(epsilon_from_mu(rho, DELTA), 1),
                "m": m,
                "T": made.rounds,
            }
            print(
                json.dumps({**cell, "method": name, **world.row([made]), "in the paper": printed}),
                flush=True,
            )


def budgets() -> None:
    """Budgets that mean something, in a set that does not cap the accuracy (radius 2)."""
    world = World()
    clips = {"clip": (4.0, 12.0), "gradient_clip": (1.0, 4.0)}
    for epsilon in (1.0, 2.0, 4.0):
        made: dict[str, list[Agreement]] = {}
        for clip, gradient_clip in zip(*clips.values(), strict=True):
            settings = {"epsilon": epsilon, "radius": 2.0, "smoothness": 50.0}
            settings |= {"clip": clip, "gradient_clip": gradient_clip}
            for name, agreement in methods(50, **settings).items():
                made.setdefault(name, []).append(agreement)
            for trust in ("secure-sum", "trusted"):
                leaky = agree(
                    clients=CLIENTS, per_round=50, rounds=1200, parameters=7850, delta=DELTA, clip=clip,
                    adjacency="replace-one", epsilon=epsilon, radius=2.0, smoothness=50.0, trust=trust,
                )  # fmt: skip
                made.setdefault(f"DP-mu2-FL, leaky, {trust}", []).append(leaky)
        for name, options in made.items():
            print(
                json.dumps({"epsilon": epsilon, "m": 50, "method": name, **world.row(options)}),
                flush=True,
            )


def large(per_round: int) -> dict[str, Any]:
    """1,000 clients, 10,000 rounds, d = 7,850; in a process of its own, for its peak memory."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(EXAMPLES, FEATURES)).astype(np.float32) / 28
    y = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
    each = EXAMPLES // 1000
    # As often as it takes for every message to have an example in it.
    uses = -(-10 * per_round // each) + 3
    made = agree(
        clients=1000, per_round=per_round, rounds=10_000, parameters=7850, mu=8.0, uses=uses, examples=each
    )  # fmt: skip
    began, cpu = time.perf_counter(), time.process_time()
    simulate(
        made,
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
    model = Model(Logistic(), np.zeros(d, np.float32), load=lambda path: ())
    agreement = agree(clients=clients, parameters=d, rounds=rounds, epsilon=4)
    data = list(zip(X, y, strict=True))
    found: dict[str, Any] = {"messages": clients * rounds}
    for engine in ("direct", "flower", "direct", "flower"):
        server = local_server(agreement, model, insecure_seed=0)
        everybody = local_clients(agreement, model, data, insecure_seed=0)
        began, cpu = time.perf_counter(), time.process_time()
        run_here(server, everybody, engine=engine)
        found[f"{engine}, s"] = round(time.perf_counter() - began, 2)
        found[f"{engine}, CPU s"] = round(time.process_time() - cpu, 2)
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
    more = found["flower, s"] - found["direct, s"]
    found["Flower, ms more per message"] = round(1e3 * more / found["messages"], 3)
    found["with journal and seal on disk, ms per message"] = round(1e3 * each, 2)
    print(json.dumps(found))


def main(*parts: str) -> None:
    known = {"tables": tables, "budgets": budgets, "scale": scale, "messages": messages}
    for part in parts or known:
        known[part]()


if __name__ == "__main__":
    main(*sys.argv[1:])

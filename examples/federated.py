"""Twenty clients train one model and keep their data; three answers to "who is trusted with what?".

Everything here is in one process, but the clients and the server are the real state machines: the bytes
between them are those that a deployment sends (`docs/federated.md`).

Run: python examples/federated.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino import Softmax
from sordino.together.federated import Agreement, agree, simulate, split
from sordino.together.sites import ModelSpec, local_clients, local_server, pad_keys, run_directly

CLIENTS, EACH, FEATURES, CLASSES = 20, 200, 6, 3
SEEDS = 8

Rows = tuple[np.ndarray, np.ndarray]


def population(rows: int, rng: np.random.Generator) -> Rows:
    """Three overlapping groups; every row has length 1 at most, so that gradients are bounded."""
    label = rng.integers(CLASSES, size=rows)
    centres = 1.5 * np.eye(CLASSES, FEATURES - 1)
    X = centres[label] + rng.normal(size=(rows, FEATURES - 1))
    X = np.concatenate([X, np.ones((rows, 1))], axis=1)  # a constant, for the intercept
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    return X.astype(np.float32), label.astype(np.int32)


def accuracy(W: Any, rows: Rows) -> float:
    X, y = rows
    return float(np.mean(np.argmax(X @ np.asarray(W).T, axis=1) == y))


def agreed(trust: str, **changes: Any) -> Agreement:
    """What all parties sign before anybody reads a record: everything but the data and the noise."""
    return agree(
        clients=CLIENTS,
        parameters=CLASSES * FEATURES,
        per_round=10,  # half of the clients in a round, picked at random
        rounds=40,  # so each is asked about 20 times,
        batch=10,  # and each of its 200 examples is in one message
        epsilon=0.5,
        delta=1e-5,
        trust=trust,
        **changes,
    )


def deployed(agreement: Agreement, model: ModelSpec, data: list[Rows], private: Any = None) -> Any:
    """Ask and answer until the rounds are done; the model, and what the clients say they have spent."""
    server = local_server(agreement, model)
    clients = local_clients(agreement, model, data, private=private)
    run_directly(server, clients)
    spent = [client.client.spent(client.state) for client in clients.values()]
    return model.unflattened(server.params), spent


def main() -> float:
    """Train with each kind of trust, and return the accuracy where nobody is trusted."""
    rng = np.random.default_rng(0)
    # With a skew of 0.5 most clients have mostly one or two of the three labels.
    data = split(*population(CLIENTS * EACH, rng), CLIENTS, seed=0, skew=0.5)
    public = population(4000, rng)  # scores are computed on public data only
    model = ModelSpec(
        Softmax(CLASSES), np.zeros((CLASSES, FEATURES), np.float32), load=lambda _: ()
    )

    # 1. Nobody is trusted: each client adds noise before anything leaves it, and takes most of it back
    #    with its next message.
    untrusted = agreed("untrusted")
    W, spent = deployed(untrusted, model, data)
    found = accuracy(W, public)
    print(untrusted.guarantee)
    print(f"accuracy {found:.3f}; most spent: mu {max(spent):.4f} of {untrusted.mu:.4f}\n")

    # 2. Pads hide single messages: the server gets sums over ten clients, so that each needs less noise.
    #    The public keys are part of the agreement; each private key belongs to one client.
    private, public_keys = pad_keys(CLIENTS)
    summed = agreed("secure-sum", keys=public_keys)
    W, _ = deployed(summed, model, data, dict(zip(summed.clients, private, strict=True)))
    print(summed.guarantee)
    print(f"accuracy {accuracy(W, public):.3f}\n")

    # 3. The server is trusted with the clipped sums, and adds one noise for all.
    trusted = agreed("trusted")
    W, _ = deployed(trusted, model, data)
    print(trusted.guarantee)
    print(f"accuracy {accuracy(W, public):.3f}\n")

    # One run is one draw. The simulator has the same distribution, for choosing settings on public data.
    start = model.params
    print(f"simulated, mean and standard deviation of {SEEDS} seeds:")
    rows = {"untrusted": untrusted, "secure sum": summed, "trusted": trusted}
    rows["untrusted, noise never taken back"] = agreed("untrusted", schedule="fresh")
    for name, agreement in rows.items():
        seeds = range(SEEDS)
        run = simulate(agreement, Softmax(CLASSES), start, data, insecure_seed=list(seeds))
        scores = [accuracy(W, public) for W in run.params]
        print(f"  {name:34} {np.mean(scores):.3f} +- {np.std(scores, ddof=1):.3f}")
    exact = simulate(
        untrusted, Softmax(CLASSES), start, data, insecure_seed=0, noise="none", shuffle=False
    )
    print(f"  {'without noise':34} {accuracy(exact.params, public):.3f}")

    # The other clients see the model and not the messages, which is far less.
    seen = simulate(untrusted, Softmax(CLASSES), start, data, insecure_seed=0).observers()
    print(f"\nmu against the server {seen.server:.3f}, against who sees the model {seen.sums:.3f}")
    return found


if __name__ == "__main__":
    main()

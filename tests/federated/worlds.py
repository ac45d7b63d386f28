"""Small federations for tests: seeded, with the noise that tests may recompute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.keystore import KeyStore
from sordino.parts._losses import Logistic
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import (
    cancelled_draws,
    drawn,
    insecure_secret,
    noise_key,
    order_key,
    turned,
)
from sordino.together.federated._coordinator import DurableServer
from sordino.together.federated._durable import ClientConfig, DurableClient, VolatileClient
from sordino.together.federated._messages import RoundRequest, message_from_bytes
from sordino.together.federated._server import Server
from sordino.together.secure._mask import new_private_key, public_key

FEATURES = 5


def data(clients: int, examples: int = 40, seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=FEATURES)
    found = []
    for _ in range(clients):
        X = (rng.normal(size=(examples, FEATURES)) / np.sqrt(FEATURES)).astype(np.float32)
        found.append((X, (X @ truth > 0).astype(np.int32)))
    return found


def agreed(clients: int = 4, **options: Any) -> Agreement:
    settings: dict[str, Any] = {"rounds": 12, "per_round": 3, "mu": 2.0, "nonce": "00" * 16}
    settings.update(options)
    return agree(clients=clients, parameters=FEATURES, **settings)


def secure_agreement(clients: int = 4, **options: Any) -> tuple[Agreement, dict[str, bytes]]:
    """An agreement under a secure sum, and every client's private key."""
    private = [new_private_key() for _ in range(clients)]
    keys = tuple(public_key(key).hex() for key in private)
    made = agreed(clients, trust="secure-sum", keys=keys, **options)
    return made, dict(zip(made.clients, private, strict=True))


def parts(
    agreement: Agreement, private: Mapping[str, bytes] | None = None, **options: Any
) -> dict[str, ClientConfig]:
    rows = data(len(agreement.clients), **options)
    start = np.zeros(FEATURES, np.float32)
    return {
        name: ClientConfig(
            name,
            agreement,
            Logistic(),
            start,
            rows[i],
            private=None if private is None else private[name],
        )
        for i, name in enumerate(agreement.clients)
    }


def secret_of(client: str) -> bytes:
    return insecure_secret(7, client)


def volatile(agreement: Agreement, **options: Any) -> dict[str, VolatileClient]:
    return {
        name: VolatileClient(part, secret_of(name))
        for name, part in parts(agreement, **options).items()
    }


def durable(part: ClientConfig, folder: Path) -> DurableClient:
    return DurableClient.open(
        part,
        folder / f"{part.name}.journal",
        store=KeyStore(folder / "keys"),
        secret=secret_of(part.name),
    )


def server_of(agreement: Agreement) -> Server:
    secret = insecure_secret(7, "server") if agreement.trust == "trusted" else None
    return Server(agreement, np.zeros(FEATURES, np.float32), secret)


def open_server(agreement: Agreement, folder: Path, seed: int = 0) -> DurableServer:
    return DurableServer.open(
        server_of(agreement),
        folder / "server.db",
        chance=np.random.default_rng(seed),
        store=KeyStore(folder / "keys"),
    )


class Replay:
    """All that one client has drawn and summed, computed again from its first secret and its requests.

    It follows the client's journal only (requests, indices, parents), with code of its own.
    """

    def __init__(self, part: ClientConfig) -> None:
        self.part = part
        secret = secret_of(part.name)
        self.client = part.client(order_key(secret))
        self._ratchet = secret
        self.noise: dict[int, NDArray[np.int64]] = {}
        self.sums: dict[int, NDArray[np.int64]] = {}

    def sent(self, request: RoundRequest, index: int, parent: int, block: int) -> NDArray[np.int64]:
        """The message without pads, from scratch."""
        import hashlib

        agreement = self.part.agreement
        text = f"{index}/{block}/{parent}/".encode()
        binding = hashlib.sha256(text + request.digest()).digest()
        y = drawn(noise_key(self._ratchet, binding), agreement.variance_of(index), FEATURES)
        self._ratchet = turned(self._ratchet)
        s = self.client.data.total(request.point, request.previous, request.round, block).clipped
        self.noise[index], self.sums[index] = y, s
        before = (
            cancelled_draws(self.noise[parent], agreement.leak) if parent and agreement.leak else 0
        )
        return np.asarray(s + y - before)

    def left(self, committed: list[int]) -> NDArray[np.int64]:
        """What is in q of this client's noise, given its committed messages in order."""
        total = np.zeros(FEATURES, np.int64)
        agreement = self.part.agreement
        for place, index in enumerate(committed):
            total += self.noise[index]
            if place + 1 < len(committed) and agreement.leak:
                total -= cancelled_draws(self.noise[index], agreement.leak)
        return total


def request_of(raw: bytes) -> RoundRequest:
    found = message_from_bytes(raw)
    assert isinstance(found, RoundRequest)
    return found

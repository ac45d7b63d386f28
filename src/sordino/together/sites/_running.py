"""Running a federated run: all of it here, or one site's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino._base.errors import SordinoError, require_choice
from sordino._base.keystore import KeyStore
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import fresh_secret, insecure_secret
from sordino.together.federated._cohorts import Cohorts
from sordino.together.federated._contribution import flattened
from sordino.together.federated._coordinator import DurableServer, RoundRecord
from sordino.together.federated._durable import ClientConfig, DurableClient, VolatileClient
from sordino.together.federated._messages import Coordinator, Endpoint
from sordino.together.federated._server import Server
from sordino.together.federated._sum_stream import SumStream
from sordino.together.secure._pads import new_private_key, public_key
from sordino.together.sites._models import ModelSpec

ENGINES = ("direct", "flower", "ray")
# A run that gets nowhere for so many exchanges in a row is given up.
_STUCK = 1000
# Clients times rounds for which the sums' covariance is worked out for every onlooker.
_MOST_WORK = 50_000


def run_directly(coordinator: Coordinator, endpoints: Mapping[str, Endpoint]) -> None:
    """Ask and answer in this process, with nothing in between, until the coordinator has finished."""
    names = sorted(endpoints)
    idle = 0
    while not coordinator.finished:
        asked = coordinator.requests(names)
        idle = 0 if asked else idle + 1
        if idle > _STUCK:
            raise SordinoError("the run cannot go on: nobody is left to ask")
        for name, message in asked:
            coordinator.receive(name, endpoints[name].answer(message))


def local_parts(
    agreement: Agreement,
    model: ModelSpec,
    data: Sequence[tuple[Any, ...]],
    *,
    private: Mapping[str, bytes] | None = None,
) -> dict[str, ClientConfig]:
    """What each client of an agreement brings.

    Args:
      data: each client's arrays, in the order of the agreement's clients.
      private: under a secure sum, every client's private key.
    """
    if len(data) != len(agreement.clients):
        raise SordinoError(
            f"the agreement has {len(agreement.clients):,} clients, and there is data for {len(data):,}"
        )
    return {
        name: ClientConfig(
            name,
            agreement,
            model.loss,
            model.params,
            arrays,
            private=None if private is None else private[name],
        )
        for name, arrays in zip(agreement.clients, data, strict=True)
    }


def local_clients(
    agreement: Agreement,
    model: ModelSpec,
    data: Sequence[tuple[Any, ...]],
    *,
    insecure_seed: int | None = None,
    private: Mapping[str, bytes] | None = None,
) -> dict[str, VolatileClient]:
    """All clients of an agreement in this process, with memories that end with it.

    Args:
      data, private: as in `local_parts`.
      insecure_seed: makes all noise reproducible: for research, not private.
    """
    built = {}
    for name, part in local_parts(agreement, model, data, private=private).items():
        secret = fresh_secret() if insecure_seed is None else insecure_secret(insecure_seed, name)
        built[name] = VolatileClient(part, secret)
    return built


def local_server(
    agreement: Agreement, model: ModelSpec, *, insecure_seed: int | None = None, **options: Any
) -> DurableServer:
    """The coordinator of a run in this process; options are `DurableServer`'s."""
    secret = None
    if agreement.trust == "trusted":
        seeded = insecure_seed is not None
        secret = insecure_secret(insecure_seed or 0, "the server") if seeded else fresh_secret()
    chance = np.random.default_rng(insecure_seed)
    server = Server(agreement, flattened(model.params), secret)
    return DurableServer.in_memory(server, chance=chance, **options)


def run_here(
    coordinator: DurableServer, clients: Mapping[str, Endpoint], *, engine: str = "direct"
) -> None:
    """Run to the end in this process: directly, or through Flower's messages and strategy."""
    require_choice("engine", engine, ("direct", "flower"))
    if engine == "direct":
        run_directly(coordinator, clients)
        return
    from sordino.together.federated.flower._simulation import run_in_process

    run_in_process(coordinator, clients)


@dataclass(frozen=True)
class OpenedForEachMessage:
    """A client that is opened from its journal for one message and closed again.

    Flower's simulation engine hands each message to any of its worker processes, so that what a client
    remembers has to be on disk.
    """

    part: ClientConfig
    journal: Path
    keys: Path

    def answer(self, message: bytes) -> bytes:
        client = DurableClient.open(self.part, self.journal, store=KeyStore(self.keys))
        try:
            return client.answer(message)
        finally:
            client.close()


def run_on_ray(coordinator: DurableServer, parts: Mapping[str, ClientConfig], folder: Path) -> None:
    """Run to the end under Flower's simulation engine (Ray), with the clients' journals in `folder`."""
    from sordino.together.federated.flower._simulation import simulate

    built = {
        name: OpenedForEachMessage(part, folder / f"{name}.journal", folder / "keys")
        for name, part in parts.items()
    }
    simulate(coordinator, sorted(built), built.__getitem__)


def pad_keys(count: int) -> tuple[list[bytes], tuple[str, ...]]:
    """Private keys for so many clients, and the public ones for the agreement."""
    private = [new_private_key() for _ in range(count)]
    return private, tuple(public_key(key).hex() for key in private)


def seen_by_clients(
    agreement: Agreement, history: Sequence[RoundRecord]
) -> dict[str, float] | None:
    """mu of each client's worst example against any one other client, who sees the model only.

    From the sums' covariance over the rounds that are done (papers/02 2.6), without the noise of the
    client that looks on, which it knows. None where that is not known exactly: noise that grows, examples
    used more than once, whole clients, sums that nobody sees alone; or where it would take too long.
    """
    simple = agreement.uses == 1 and agreement.unit == "example" and not agreement.growing
    count = len(agreement.clients)
    if not simple or agreement.trust != "untrusted" or not history or count < 2:
        return None
    if count * len(history) > _MOST_WORK:
        return None
    numbers = {name: i for i, name in enumerate(agreement.clients)}
    members = np.array([[numbers[name] for name in record.committed] for record in history])
    cohorts = Cohorts(count, members)
    worst = np.zeros(count)
    for onlooker in range(count):
        precisions = SumStream.of_agreement(agreement, cohorts, [onlooker]).precisions()
        for t, record in enumerate(history):
            for (
                name
            ) in record.committed:  # as if each had an example in it: who has not is not known
                if numbers[name] != onlooker:
                    worst[numbers[name]] = max(worst[numbers[name]], precisions[t])
    return {name: agreement.reach * float(np.sqrt(worst[i])) for name, i in numbers.items()}

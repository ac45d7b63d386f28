"""Running a federated run: all of it here, or one site's part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sordino.errors import SordinoError, require_choice
from sordino.federated.agreement import Agreement
from sordino.federated.cohorts import Cohorts
from sordino.federated.contribution import Contribution, flattened
from sordino.federated.coordinator import DurableServer, RoundRecord
from sordino.federated.durable import Part, VolatileClient
from sordino.federated.endpoints import Coordinator, Endpoint
from sordino.federated.noise import fresh_secret, insecure_secret
from sordino.federated.server import Server
from sordino.federated.sum_stream import SumStream
from sordino.secure.pads import new_private_key, public_key
from sordino.sites.models import Model

ENGINES = ("direct", "flower")
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


def local_clients(
    agreement: Agreement,
    model: Model,
    data: Sequence[tuple[Any, ...]],
    *,
    insecure_seed: int | None = None,
    private: Mapping[str, bytes] | None = None,
) -> dict[str, VolatileClient]:
    """All clients of an agreement in this process, with memories that end with it.

    Args:
      data: each client's arrays, in the order of the agreement's clients.
      insecure_seed: makes all noise reproducible: for research, not private.
      private: under a secure sum, every client's private key.
    """
    if len(data) != len(agreement.clients):
        raise SordinoError(
            f"the agreement has {len(agreement.clients):,} clients, and there is data for {len(data):,}"
        )
    shared = Contribution.of(agreement, model.loss, model.params)
    made = {}
    for name, arrays in zip(agreement.clients, data, strict=True):
        secret = fresh_secret() if insecure_seed is None else insecure_secret(insecure_seed, name)
        part = Part(
            name,
            agreement,
            model.loss,
            model.params,
            arrays,
            private=None if private is None else private[name],
            contribution=shared,
        )
        made[name] = VolatileClient(part, secret)
    return made


def local_server(
    agreement: Agreement, model: Model, *, insecure_seed: int | None = None, **options: Any
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
    require_choice("engine", engine, ENGINES)
    if engine == "direct":
        run_directly(coordinator, clients)
        return
    from sordino.federated.flower.inprocess import run_in_process

    run_in_process(coordinator, clients)


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
            for name, block in record.blocks.items():
                if block >= 0 and numbers[name] != onlooker:
                    worst[numbers[name]] = max(worst[numbers[name]], precisions[t])
    return {name: agreement.reach * float(np.sqrt(worst[i])) for name, i in numbers.items()}

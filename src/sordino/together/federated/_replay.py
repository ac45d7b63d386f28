"""The protocol on the lattice without its messages: same secrets, same numbers, bit for bit.

Every client's sum is computed by the client's own compiled function, one client at a time: a cohort in
one larger product would differ in the last bit of some float, and now and then in a lattice step. Noise
comes from each client's ratchet, bound to the request that it would have been sent. What is left out is
what does not change a number: bytes, accounts, refusals, masks that add up to nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import (
    cancelled_draws,
    drawn,
    insecure_secret,
    noise_key,
    turned,
)
from sordino.together.federated._client import SentMessage
from sordino.together.federated._cohorts import Cohorts
from sordino.together.federated._contribution import ClientEvaluator, LocalData
from sordino.together.federated._messages import RoundRequest

Integers = NDArray[np.int64]

# A trusted server's secret is that of a client of this name, which no client can have.
SERVER = "(server)"


@dataclass
class Replayed:
    """The server's numbers after `done` rounds, as in `server.ServerState`."""

    done: int
    point: NDArray[np.float32]
    previous: NDArray[np.float32]
    weights: NDArray[np.float64]
    total: Integers
    average: NDArray[np.float64]
    accumulates: bool

    @property
    def output(self) -> NDArray[np.float32]:
        return self.point if self.accumulates else self.average.astype(np.float32)


@dataclass
class _Chain:
    """One source of noise: its ratchet, and the noise of its last committed message."""

    secret: bytes
    sent: int = 0
    committed: int = 0
    noise: Integers | None = None


def replay(
    agreement: Agreement,
    kind: ClientEvaluator,
    loss: Any,
    params: Any,
    data: Sequence[tuple[Any, ...]],
    orders: Sequence[Integers],
    seed: int,
    cohorts: Cohorts,
) -> Iterator[Replayed]:
    """The server's numbers after every round; one object, which changes.

    Args:
      orders: in which each client takes its examples.
      seed: of `noise.insecure_secret`, for every client and for a trusted server (`SERVER`).
    """
    local = [
        LocalData(agreement, loss, params, part, order=order, contribution=kind)
        for part, order in zip(data, orders, strict=True)
    ]
    chains = [_Chain(insecure_secret(seed, name)) for name in agreement.clients]
    server = insecure_secret(seed, SERVER)
    before: Integers | None = None
    start = local[0].start
    centre = start.astype(np.float64)
    zero = np.zeros(agreement.parameters, np.int64)
    state = Replayed(0, start, start, centre, zero, centre, agreement.kind.accumulates)
    for t, (members, late) in enumerate(zip(cohorts.members, cohorts.late, strict=True), 1):
        names: tuple[str, ...] = ()
        if agreement.trust == "secure-sum":
            names = tuple(agreement.clients[i] for i in members)
        added = zero.copy()
        for i in members:
            request = RoundRequest(
                agreement.digest, t, t, state.point, state.previous, chains[i].committed, names
            )
            added += _message(agreement, local[i], chains[i], request)
        for i in late:
            chains[i].sent += 1
            chains[i].secret = turned(chains[i].secret)
        if agreement.trust == "trusted":
            content = hashlib.sha256(added.tobytes()).digest()
            text = f"{agreement.digest}/{t}/{t}/".encode()
            key = noise_key(server, hashlib.sha256(text + content).digest())
            fresh = drawn(key, agreement.variance_of(t), agreement.parameters)
            added, before = added + _noised(agreement, fresh, before), fresh
        _commit(agreement, state, t, added, centre)
        yield state


def _message(
    agreement: Agreement, data: LocalData, chain: _Chain, request: RoundRequest
) -> Integers:
    """``s + y - rho(y_parent)``, and the chain one message further."""
    chain.sent += 1
    blocks, index = data.blocks, chain.sent - 1
    used_up = not blocks or index // blocks >= agreement.uses
    block = -1 if used_up else index % blocks
    values: Integers = data.total(request.point, request.previous, request.round, block).clipped
    if agreement.trust != "trusted":
        sent = SentMessage(
            chain.sent, request.turn, request.round, request.digest(), chain.committed, block
        )
        key = noise_key(chain.secret, sent.binding())
        fresh = drawn(key, agreement.variance_of(chain.sent), agreement.parameters)
        values, chain.noise = values + _noised(agreement, fresh, chain.noise), fresh
    chain.secret = turned(chain.secret)
    chain.committed = chain.sent
    return values


def _noised(agreement: Agreement, fresh: Integers, before: Integers | None) -> Integers:
    if before is None or not agreement.leak:
        return fresh
    return fresh - cancelled_draws(before, agreement.leak)


def _commit(
    agreement: Agreement, state: Replayed, t: int, added: Integers, centre: NDArray[np.float64]
) -> None:
    """q, w and x after a round: `Server._commit`, operation by operation."""
    total = state.total + added
    estimate = (total if state.accumulates else added) * (agreement.step / agreement.divisor)
    weights = state.weights - agreement.learning_rate * estimate
    if agreement.radius is not None:
        away = weights - centre
        norm = math.sqrt(float(away @ away))
        if norm > agreement.radius:
            weights = centre + away * (agreement.radius / norm)
    moved = weights
    if state.accumulates:
        moved = state.point + 2 / (t + 2) * (weights - state.point)
    state.done, state.total, state.weights = t, total, weights
    state.point, state.previous = moved.astype(np.float32), state.point
    state.average = state.average + (weights - state.average) / t

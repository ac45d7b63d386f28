"""All clients of a federated run in one process: for tables, audits and choosing settings.

    agreement = agree(clients=100, per_round=50, rounds=1200, parameters=7850, epsilon=4.0, clip=15.0)
    data = split(X, y, 100, seed=0, skew=0.5)
    run = simulate(agreement, Softmax(10), np.zeros((10, 785)), data, insecure_seed=1)
    run.params, run.observers()

Three kinds of noise:

    gaussian   one compiled program over many rounds: the whole cohort in two matrix products (any
               other JAX loss by `vmap`), the sum of its noise in one draw (`_sum_stream.py`), in float32.
               The distribution is the protocol's, but for lattice rounding of about 1e-6.
    exact      whole lattice steps, and the secrets, keys and discrete draws of the clients and the
               server themselves (`replay`): bit for bit what the protocol computes.
    none       the same rounds without noise: no privacy, for comparison.

A simulation sees everybody's data and its noise comes from a seed: it is no way to train in private.
What it reports as a guarantee is what the protocol gives its clients under the same agreement.

**Exact** is the protocol on the lattice without its messages. Every client's sum is computed by the
client's own compiled function, one client at a time: a cohort in one larger product would differ in the
last bit of some float, and now and then in a lattice step. Noise comes from each client's ratchet, bound to
the request that it would have been sent. What is left out is what does not change a number: bytes,
accounts, refusals, masks that add up to nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count
from sordino._base.types import PyTree
from sordino.privacy import Guarantee
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import (
    cancelled_draws,
    drawn,
    insecure_secret,
    noise_key,
    order_key,
    permuted,
    turned,
)
from sordino.together.federated._client import SentMessage
from sordino.together.federated._cohorts import Cohorts, cohorts_of
from sordino.together.federated._contribution import ClientEvaluator, LocalData, Loss
from sordino.together.federated._messages import RoundRequest
from sordino.together.federated._rounds import RoundSimulation, SimulationState
from sordino.together.federated._server import Server, ServerState
from sordino.together.federated._sum_stream import (
    Observers,
    RoundNoise,
    SumStream,
    check_message_budget,
    observers,
)

Integers = NDArray[np.int64]

# A trusted server's secret is that of a client of this name, which no client can have.
SERVER = "(server)"


@dataclass(frozen=True)
class Replayed:
    """The server's numbers after some rounds."""

    server: Server
    state: ServerState

    @property
    def done(self) -> int:
        return self.state.round - 1

    @property
    def output(self) -> NDArray[np.float32]:
        return self.server.output(self.state)

    @property
    def total(self) -> Integers:
        return self.state.total


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
    loss: Loss,
    params: PyTree,
    data: Sequence[tuple[PyTree, ...]],
    orders: Sequence[Integers],
    seed: int,
    cohorts: Cohorts,
) -> Iterator[Replayed]:
    """The server's numbers after every round.

    Args:
      orders: in which each client takes its examples.
      seed: of `noise.insecure_secret`, for every client and for a trusted server (`SERVER`).
    """
    local = [
        LocalData(agreement, loss, params, part, order=order, contribution=kind)
        for part, order in zip(data, orders, strict=True)
    ]
    chains = [_Chain(insecure_secret(seed, name)) for name in agreement.clients]
    secret = insecure_secret(seed, SERVER) if agreement.trust == "trusted" else None
    server = Server(agreement, local[0].start, secret)
    state = server.begin()
    before: Integers | None = None
    for t, (members, late) in enumerate(zip(cohorts.members, cohorts.late, strict=True), 1):
        names: tuple[str, ...] = ()
        if agreement.trust == "secure-sum":
            names = tuple(agreement.clients[i] for i in members)
        added = np.zeros(agreement.parameters, np.int64)
        for i in members:
            request = RoundRequest(
                agreement.digest, t, t, state.point, state.previous, chains[i].committed, names
            )
            added += _message(agreement, local[i], chains[i], request)
        for i in late:
            chains[i].sent += 1
            chains[i].secret = turned(chains[i].secret)
        if secret is not None:
            content = hashlib.sha256(added.tobytes()).digest()
            text = f"{agreement.digest}/{t}/{t}/".encode()
            key = noise_key(secret, hashlib.sha256(text + content).digest())
            fresh = drawn(key, agreement.variance_of(t), agreement.parameters)
            added, before = added + _noised(agreement, fresh, before), fresh
        state = server.moved(state, added)
        yield Replayed(server, state)


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


NOISE = ("gaussian", "exact", "none")
# Rounds in one call of the compiled program: the noise of so many is made at once.
_CHUNK = 64
# Numbers in the noise of a chunk, at most: 256 MB.
_MOST_NUMBERS = 2**26

# What a trace is made of: the number of rounds done, and what `evaluate` said (a list for several seeds).
Trace = tuple[tuple[int, object], ...]


@dataclass(frozen=True, eq=False)
class Simulated:
    """One simulated run, or several side by side.

    Attributes:
      params: the model, shaped like the start; with several seeds, with a leading axis for them.
      total: q after the last round, (d,) or (seeds, d): int64 lattice steps for exact noise, otherwise
        float32 in the model's units.
      cohorts: who took part; of each seed if there are several.
      trace: (rounds done, value of `evaluate`), the last one after the last round.
      guarantee: what clients of the protocol are promised; nothing where there is no noise.
    """

    agreement: Agreement
    params: PyTree
    total: NDArray[np.int64] | NDArray[np.float32]
    cohorts: Cohorts | list[Cohorts]
    trace: Trace
    guarantee: Guarantee
    examples: tuple[int, ...]

    def observers(self, seed: int = 0, without: Iterable[int] = ()) -> Observers:
        """What this run would have told a server, and who sees sums only (papers/02 2.6).

        Args:
          seed: position among the seeds.
          without: clients that work together with those who see the sums.
        """
        one = self.cohorts[seed] if isinstance(self.cohorts, list) else self.cohorts
        return observers(self.agreement, one, self.examples, without)


def simulate(
    agreement: Agreement,
    loss: Loss,
    params: PyTree,
    clients_data: Sequence[PyTree],
    *,
    insecure_seed: int | Sequence[int],
    cohorts: Cohorts | str = "random",
    noise: str = "gaussian",
    evaluate: Callable[[PyTree], object] | None = None,
    every: int | None = None,
    shuffle: bool = True,
) -> Simulated:
    """Run `agreement` on everybody's data.

    Args:
      loss: a `LinearLoss`, or ``loss(params, *example) -> scalar``.
      params: the start: any pytree of float arrays.
      clients_data: one entry for each client, in the order of the agreement: an array, or a tuple of
        arrays with as many rows, of any number (0 too).
      insecure_seed: of noise, cohorts and order. With several, as many runs side by side, which pays
        where the model is small; all then have the first one's order, and exact noise takes one.
      cohorts: "random" (`random_cohorts` with this seed), "round-robin", "fixed", "all", or your own.
      noise: "gaussian", "exact" or "none"; see the module.
      evaluate: called with the model (a pytree of numpy arrays) every `every` rounds and at the end.
      shuffle: whether clients take their examples in the secret order that their seed gives, as they
        do in the protocol, or as they are given.
    """
    require_choice("noise", noise, NOISE)
    data = [part if isinstance(part, tuple) else (part,) for part in clients_data]
    if len(data) != len(agreement.clients):
        raise SordinoError(
            f"the agreement has {len(agreement.clients):,} clients, and there are data of {len(data):,}"
        )
    several = not isinstance(insecure_seed, int | np.integer)
    seeds = [int(seed) for seed in np.atleast_1d(np.asarray(insecure_seed, object))]
    every = agreement.rounds if every is None else require_count("every", every)
    picked = [
        cohorts if isinstance(cohorts, Cohorts) else cohorts_of(agreement, cohorts, seed)
        for seed in seeds
    ]
    sizes = [len(part[0]) for part in data]
    for one in picked:
        one.check(agreement)
        if noise != "none":
            check_message_budget(agreement, one, sizes)
    if len({one.rounds for one in picked}) > 1:
        raise SordinoError("runs of different length cannot go side by side; simulate seed by seed")
    kind = ClientEvaluator.of(agreement, loss, params)
    orders = _orders(agreement, sizes, seeds[0], shuffle)
    course: Iterable[Replayed | SimulationState]
    if noise == "exact":
        if several:
            raise SordinoError("exact noise is for one seed at a time")
        course = replay(agreement, kind, loss, params, data, orders, seeds[0], picked[0])
    else:
        run = RoundSimulation(agreement, kind, params, data, orders)
        noises = _noises(agreement, picked, seeds) if noise == "gaussian" else []
        chunks = _chunks(agreement, picked[0].rounds, len(seeds), every)
        course = run.course(picked, noises, chunks, side_by_side=several)
    trace: list[tuple[int, object]] = []
    for reached in course:
        if evaluate and (reached.done % every == 0 or reached.done == picked[0].rounds):
            values = [evaluate(_shaped(kind, row)) for row in np.atleast_2d(reached.output)]
            trace.append((reached.done, values if several else values[0]))
    return Simulated(
        agreement=agreement,
        params=_shaped(kind, reached.output),
        total=reached.total,
        cohorts=picked if several else picked[0],
        trace=tuple(trace),
        guarantee=agreement.guarantee
        if noise != "none"
        else Guarantee.nothing(
            adjacency=agreement.adjacency, unit=agreement.unit, participation="without noise"
        ),
        examples=tuple(sizes),
    )


def _noises(
    agreement: Agreement, picked: Sequence[Cohorts], seeds: Sequence[int]
) -> list[RoundNoise]:
    """The noise of each run; those that share their cohorts share its covariance."""
    streams: dict[int, SumStream] = {}
    for one in picked:
        if id(one) not in streams:
            streams[id(one)] = SumStream.of_agreement(agreement, one)
    return [
        RoundNoise(streams[id(one)], agreement.parameters, seed, agreement.step)
        for one, seed in zip(picked, seeds, strict=True)
    ]


def _orders(
    agreement: Agreement, sizes: Sequence[int], seed: int, shuffle: bool
) -> list[NDArray[np.int64]]:
    """The order in which each client takes its examples."""
    if not shuffle:
        return [np.arange(size, dtype=np.int64) for size in sizes]
    keys = (order_key(insecure_secret(seed, name)) for name in agreement.clients)
    return [permuted(key, size) for key, size in zip(keys, sizes, strict=True)]


def _chunks(agreement: Agreement, rounds: int, seeds: int, every: int) -> Iterable[tuple[int, int]]:
    """Rounds to be done in one call, as (done before, done after); evaluations fall between them."""
    numbers = seeds * max(agreement.parameters, agreement.per_round)
    most = max(1, min(_CHUNK, _MOST_NUMBERS // numbers))
    # Chunks of one length are compiled once: so one that leaves no rest, if it is not too short.
    even = [size for size in range(most, most // 4, -1) if min(every, rounds) % size == 0]
    size = even[0] if even else most
    for begin in range(0, rounds, every):
        end = min(rounds, begin + every)
        yield from ((at, min(end, at + size)) for at in range(begin, end, size))


def _shaped(kind: ClientEvaluator, output: NDArray[np.float32]) -> PyTree:
    """A vector, or one for each seed, as the model's parameters."""
    if output.ndim == 1:
        return jax.tree.map(np.asarray, kind.unravel(jnp.asarray(output)))
    models = [jax.tree.map(np.asarray, kind.unravel(jnp.asarray(row))) for row in output]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *models)

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
               server themselves (`_replay.py`): bit for bit what the protocol computes.
    none       the same rounds without noise: no privacy, for comparison.

A simulation sees everybody's data and its noise comes from a seed: it is no way to train in private.
What it reports as a guarantee is what the protocol gives its clients under the same agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count
from sordino.privacy import Guarantee
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import insecure_secret, order_key, permuted
from sordino.together.federated._cohorts import Cohorts, cohorts_of
from sordino.together.federated._contribution import ClientEvaluator
from sordino.together.federated._replay import Replayed, replay
from sordino.together.federated._rounds import RoundSimulation, SimulationState
from sordino.together.federated._sum_stream import (
    Observers,
    RoundNoise,
    SumStream,
    check_message_budget,
    observers,
)

NOISE = ("gaussian", "exact", "none")
# Rounds in one call of the compiled program: the noise of so many is made at once.
_CHUNK = 64
# Numbers in the noise of a chunk, at most: 256 MB.
_MOST_NUMBERS = 2**26

# What a trace is made of: the number of rounds done, and what `evaluate` said (a list for several seeds).
Trace = tuple[tuple[int, Any], ...]


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
    params: Any
    total: NDArray[Any]
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
    loss: Any,
    params: Any,
    clients_data: Sequence[Any],
    *,
    insecure_seed: int | Sequence[int],
    cohorts: Cohorts | str = "random",
    noise: str = "gaussian",
    evaluate: Callable[[Any], Any] | None = None,
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
    trace: list[tuple[int, Any]] = []
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
        guarantee=agreement.guarantee if noise != "none" else _nothing(agreement),
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


def _shaped(kind: ClientEvaluator, output: NDArray[np.float32]) -> Any:
    """A vector, or one for each seed, as the model's parameters."""
    if output.ndim == 1:
        return jax.tree.map(np.asarray, kind.unravel(jnp.asarray(output)))
    models = [jax.tree.map(np.asarray, kind.unravel(jnp.asarray(row))) for row in output]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *models)


def _nothing(agreement: Agreement) -> Guarantee:
    return Guarantee.nothing(
        adjacency=agreement.adjacency, unit=agreement.unit, participation="without noise"
    )

"""Rounds of the protocol in floats, many in one compiled program: the fast half of the simulator.

The clipped sum over a cohort is the clipped sum over all examples of its blocks, so for linear models
it is the two matrix products of `parts.contributions`, with as many rows as the cohort has examples.
Scalars (clip, rates, radius) are arguments of the compiled program: another agreement of the same shape
compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.types import PyTree
from sordino.engine import as_records
from sordino.parts.contributions import Batch, Evaluator, VmapEvaluator, clip_pytree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._cohorts import Cohorts
from sordino.together.federated._contribution import ClientEvaluator, flattened
from sordino.together.federated._sum_stream import RoundNoise

# Examples whose logits and residuals exist at the same time.
_TOGETHER = 4096
# Clients with blocks of so many examples are taken one by one.
_MANY = 256
# Numbers in the vectors of single examples, or clients, that exist at the same time (64 MB).
_MOST_NUMBERS = 2**24
# A block's mean is clipped as one where the unit is a client: examples are then not clipped at all.
_UNCLIPPED = 1e18


class RoundState(NamedTuple):
    """What a server keeps, float32 (d,) each: x_t, x_{t-1}, w, q, and the mean of the iterates."""

    point: jax.Array
    previous: jax.Array
    weights: jax.Array
    total: jax.Array
    average: jax.Array


@dataclass(frozen=True, eq=False)
class SimulationState:
    """A state after `done` rounds. Its memory is used again by the next chunk: look at it before."""

    done: int
    state: RoundState
    accumulates: bool

    @property
    def output(self) -> NDArray[np.float32]:
        """The model, as in `Server.output`: (d,) or (seeds, d)."""
        return np.array(self.state.point if self.accumulates else self.state.average)

    @property
    def total(self) -> NDArray[np.float32]:
        """q."""
        return np.array(self.state.total)


@dataclass(frozen=True)
class _Program:
    """What the compiled program is made for; everything else is an argument of it.

    Attributes:
      groups: how many parts a cohort is taken in, one after the other.
      seeds: whether there are several runs.
    """

    kind: ClientEvaluator
    batch: int
    groups: int
    accumulates: bool
    projects: bool
    noised: bool
    seeds: bool


class RoundSimulation:
    """The data, in the order in which blocks are taken, and the compiled program's arguments."""

    def __init__(
        self,
        agreement: Agreement,
        kind: ClientEvaluator,
        params: PyTree,
        data: Sequence[tuple[PyTree, ...]],
        orders: Sequence[NDArray[np.int64]],
    ) -> None:
        b = agreement.batch
        self.sizes = np.array([len(order) for order in orders], np.int64)
        width = {len(part) for part in data}
        if len(width) != 1:
            raise SordinoError("all clients must have as many arrays")
        # A block is b neighbours. The last one may reach beyond the end, where nothing counts.
        joined = tuple(
            _joined([np.asarray(as_records(part[i])) for part in data], orders, b)
            for i in range(width.pop())
        )
        stream: Any = replace(kind.stream, lattice=False)  # type: ignore[type-var]
        if isinstance(stream, VmapEvaluator):
            stream = replace(stream, microbatch=max(1, _MOST_NUMBERS // agreement.parameters))
        self._kind = replace(kind, stream=stream)
        valid = jnp.ones(len(joined[0]), jnp.float32)
        self._data, self._valid = _prepared(stream, joined, valid)
        self._start = flattened(params)
        self._agreement = agreement
        m = agreement.per_round
        # Rows of one client are neighbours: where there are many, a slice is faster than a gather.
        self._groups = m if b >= _MANY else min(m, -(-m * b // _TOGETHER))
        if kind.together:
            vectors = -(-m * agreement.parameters // _MOST_NUMBERS)
            self._groups = min(m, max(self._groups, vectors))
        radius = agreement.radius
        self._numbers = {
            "clip": np.float32(agreement.clip),
            "rate": np.float32(agreement.learning_rate / agreement.divisor),
            "radius": np.float32(0.0 if radius is None else radius),
            "centre": self._start,
        }

    def begin(self, seeds: int | None) -> RoundState:
        start = self._start if seeds is None else np.tile(self._start, (seeds, 1))
        zero = np.zeros_like(start)
        return RoundState(*(jnp.array(value) for value in (start, start, start, zero, start)))

    def course(
        self,
        cohorts: Sequence[Cohorts],
        noises: Sequence[RoundNoise],
        chunks: Iterable[tuple[int, int]],
        *,
        side_by_side: bool,
    ) -> Iterator[SimulationState]:
        """Where the run is after each chunk of rounds, given as (done before, done after).

        Args:
          cohorts: of each seed.
          noises: of each seed; none for no noise.
          side_by_side: whether there is an axis of seeds; otherwise there is one only.
        """
        tables = [Blocks(self._agreement, one, self.sizes) for one in cohorts]
        state = self.begin(len(cohorts) if side_by_side else None)
        for first, last in chunks:
            state = self.advance(state, first, last, tables, noises)
            yield SimulationState(last, state, self._agreement.kind.accumulates)

    def advance(
        self,
        state: RoundState,
        first: int,
        last: int,
        tables: Sequence[Blocks],
        noises: Sequence[RoundNoise],
    ) -> RoundState:
        """The state after rounds ``first+1 .. last``."""
        starts, counts = (
            np.stack(part) for part in zip(*(t.rounds(first, last) for t in tables), strict=True)
        )
        noise = np.zeros((len(tables), last - first, 0), np.float32)
        if noises:
            noise = np.stack([one.rows(last - first) for one in noises])
        seeds = state.point.ndim == 2
        if not seeds:
            starts, counts, noise = starts[0], counts[0], noise[0]
        program = _Program(
            self._kind,
            self._agreement.batch,
            self._groups,
            self._agreement.kind.accumulates,
            self._agreement.radius is not None,
            bool(noises),
            seeds,
        )
        rounds = np.arange(first + 1, last + 1, dtype=np.float32)
        return _advance(
            program, state, rounds, starts, counts, noise, self._data, self._valid, self._numbers
        )


class Blocks:
    """Which rows of the joined data each message is made of."""

    def __init__(self, agreement: Agreement, cohorts: Cohorts, sizes: NDArray[np.int64]) -> None:
        self._members, self._index = cohorts.members, cohorts.messages.index
        self._sizes, self._batch, self._uses = sizes, agreement.batch, agreement.uses
        self._blocks = -(-sizes // agreement.batch)
        self._offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def rounds(self, first: int, last: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """First row and number of rows of each message of some rounds, (rounds, m): none for a null.

        `Client.next_block`: the k-th message has block ``(k-1) mod blocks`` until all were used up.
        """
        members = self._members[first:last]
        k = self._index[first:last].astype(np.int64) - 1
        blocks = np.maximum(self._blocks[members], 1)
        begins = (k % blocks) * self._batch
        counts = np.clip(self._sizes[members] - begins, 0, self._batch)
        counts[k // blocks >= self._uses] = 0
        return (self._offsets[members] + begins).astype(np.int32), counts.astype(np.int32)


@partial(jax.jit, static_argnames=("program",), donate_argnames=("state",))
def _advance(
    program: _Program,
    state: RoundState,
    rounds: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    noise: jax.Array,
    data: PyTree,
    valid: jax.Array,
    numbers: Mapping[str, jax.Array],
) -> RoundState:
    """Some rounds; all arguments but `rounds`, data and numbers have an axis of seeds, or none has."""

    def run(
        state: RoundState, starts: jax.Array, counts: jax.Array, noise: jax.Array
    ) -> RoundState:
        def one(state: RoundState, given: tuple[jax.Array, ...]) -> tuple[RoundState, None]:
            t, starts, counts, noise = given
            added = _cohort_total(program, state, t, starts, counts, data, valid, numbers)
            if program.noised:
                added = added + noise
            return _moved(program, state, t, added, numbers), None

        return jax.lax.scan(one, state, (rounds, starts, counts, noise))[0]

    return (jax.vmap(run) if program.seeds else run)(state, starts, counts, noise)


def _cohort_total(
    program: _Program,
    state: RoundState,
    t: jax.Array,
    starts: jax.Array,
    counts: jax.Array,
    data: PyTree,
    valid: jax.Array,
    numbers: Mapping[str, jax.Array],
) -> jax.Array:
    """The sum of a cohort's clipped contributions, float32 (d,)."""
    kind, b = program.kind, program.batch
    now, before = kind.unravel(state.point), kind.unravel(state.previous)
    terms = {
        "now": t if kind.recursive else jnp.float32(1),
        "before": t - 1 if kind.recursive else jnp.float32(0),
        "clip": jnp.float32(_UNCLIPPED) if kind.together else numbers["clip"],
    }

    def summed(block: PyTree, mask: jax.Array) -> PyTree:
        return kind.stream.total(now, before, Batch(block, mask), terms, jnp.int32(0)).clipped

    def client(block: PyTree, mask: jax.Array) -> PyTree:
        mean = jax.tree.map(lambda leaf: leaf / b, summed(block, mask))
        return clip_pytree(mean, numbers["clip"])

    def part(starts: jax.Array, counts: jax.Array) -> PyTree:
        if starts.shape[0] == 1 and not kind.together:
            block, there = jax.tree.map(
                lambda array: jax.lax.dynamic_slice_in_dim(array, starts[0], b), (data, valid)
            )
            return summed(block, (jnp.arange(b) < counts[0]) * there)
        rows = starts[:, None] + jnp.arange(b)
        mask = (jnp.arange(b) < counts[:, None]) * valid[rows]
        if kind.together:
            every = jax.vmap(client)(jax.tree.map(lambda array: array[rows], data), mask)
            return jax.tree.map(lambda leaf: leaf.sum(axis=0), every)
        picked = jax.tree.map(lambda array: array[rows.ravel()], data)
        return summed(picked, mask.ravel())

    if program.groups == 1:
        value = part(starts, counts)
    else:
        size = -(-starts.shape[0] // program.groups)
        padding = (0, size * program.groups - starts.shape[0])
        parts = tuple(jnp.pad(x, padding).reshape(-1, size) for x in (starts, counts))
        zero = jax.tree.map(jnp.zeros_like, now)
        value = jax.lax.scan(
            lambda sum_, given: (jax.tree.map(jnp.add, sum_, part(*given)), None), zero, parts
        )[0]
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(value)])


def _moved(
    program: _Program,
    state: RoundState,
    t: jax.Array,
    added: jax.Array,
    numbers: Mapping[str, jax.Array],
) -> RoundState:
    """`Server._commit` in float32: q, w and x after a round."""
    total = state.total + added
    weights = state.weights - numbers["rate"] * (total if program.accumulates else added)
    if program.projects:
        away = weights - numbers["centre"]
        norm = jnp.sqrt(jnp.sum(away * away))
        shrink = jnp.minimum(1.0, numbers["radius"] / jnp.maximum(norm, 1e-30))
        weights = numbers["centre"] + away * shrink
    point = weights
    if program.accumulates:
        point = state.point + 2 / (t + 2) * (weights - state.point)
    average = state.average + (weights - state.average) / t
    return RoundState(point, state.point, weights, total, average)


@partial(jax.jit, static_argnames=("stream",))
def _prepared(stream: Evaluator, data: PyTree, valid: jax.Array) -> tuple[PyTree, jax.Array]:
    return stream.prepare(data, valid)


def _joined(
    parts: Sequence[NDArray[Any]], orders: Sequence[NDArray[np.int64]], padding: int
) -> NDArray[Any]:
    """All clients' rows one after the other, each in its order, and some rows of zeros."""
    rows = sum(len(part) for part in parts)
    dtype = np.result_type(*parts)
    dtype = np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else dtype
    shape = next((part.shape[1:] for part in parts if len(part)), parts[0].shape[1:])
    joined = np.zeros((rows + padding, *shape), dtype)
    at = 0
    for part, order in zip(parts, orders, strict=True):
        if len(part) != len(order):
            raise SordinoError("a client's arrays must have the same number of rows")
        if len(part):
            joined[at : at + len(part)] = part[order]
        at += len(part)
    return joined

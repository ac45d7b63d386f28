"""One party's computation: its vector of a turn, and the model after the turn's sum is known.

    learner = Learner(terms, place, loss, params, data, key=key)
    vector = learner.vector()            # whole numbers, as sensitive as the data: for the engine only
    learner.take(noised_sum)             # or take(None): the turn was lost
    learner.params, learner.finished

A function of the party's data and key and of the sums so far. So a party that comes back computes its
state again from the sums in its journal, and nothing secret has to be kept but the key.

**Rows.** Secret batches are each party's own: every record independently with the party's rate (Poisson),
or so many of them without replacement. With one rate for all parties, Poisson batches of the parties
together are a Poisson batch of the pooled records. Public batches are dealt: a party's records go into the
slots of an epoch, as evenly as they go, each into one.

**All parties in one process**, with the engine `plain`: for research and tests, it protects nobody.

    result = train_together(terms, loss, params, [data_1, data_2, ...], insecure_seed=0)

The same learners as in a real run, and exactly the noise of one: all that is missing is the network.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino._base.types import PyTree
from sordino.engine import (
    Layout,
    Result,
    StepTable,
    as_parameters,
    as_records,
    compiled_apply,
    parameter_count,
    prepare,
    row_count,
    stepper_of,
    total_of_rows,
)
from sordino.parts import LinearLoss
from sordino.parts.mechanisms import ChaCha20Generator, Mechanism, discrete_gaussian
from sordino.parts.sampling import BLOCK, FIXED, poisson_block, poisson_width
from sordino.privacy import POISSON, ClippedSum, NoisedSum
from sordino.together.parties._terms import Terms
from sordino.together.secure._base import published_variance, share_variance

if TYPE_CHECKING:
    import optax

Rows = NDArray[np.int64]


class PartyRows:
    """The rows of one party's steps: a function of its key and the step.

    Args:
      terms: what was agreed on.
      place: which party this is, from 0.
      key: its own run key.
    """

    def __init__(self, terms: Terms, place: int, key: RunKey) -> None:
        self._population = terms.plan.population
        self._place, self._key = place, key
        self._examples = terms.examples[place]
        self._batch = terms.batches[place] if terms.batches else 0.0
        self._first = terms.first_batches[place] if terms.first_batches else None
        self._block: tuple[str, Rows] | None = None

    def of(self, step: int) -> Rows:
        """Indices into the party's own records, without padding."""
        if self._population.is_secret:
            return self._secret(step)
        slots = self._population.steps_per_epoch
        epoch, slot = divmod(step, slots)
        fixed = self._population.sampling == FIXED
        parts = np.array_split(self._order(0 if fixed else epoch), slots)
        # Slots that get one more record are others at other parties.
        return parts[(slot + self._place) % slots]

    def width(self, step: int) -> int:
        """Room for a step's rows, hardly ever too small: the time of a turn does not tell its batch."""
        n = self._examples
        if not self._population.is_secret:
            return -(-n // self._population.steps_per_epoch)
        size = self._first if step == 0 and self._first is not None else self._batch
        if self._population.sampling == POISSON and size:
            return poisson_width(n, size / n)
        return max(1, int(size))

    def _order(self, epoch: int) -> Rows:
        if self._population.sampling == FIXED and self._population.order_seed is None:
            return np.arange(self._examples)
        return self._key.generator(f"order/{epoch}").permutation(self._examples)

    def _secret(self, step: int) -> Rows:
        if step == 0 and self._first is not None:
            rows = self._drawn("batches/first", self._first)[0]
        else:
            rows = self._drawn(f"batches/{step // BLOCK}", self._batch)[step % BLOCK]
        return rows[rows >= 0]

    def _drawn(self, use: str, size: float) -> Rows:
        """A block of steps, kept until another one is asked for."""
        if self._block is None or self._block[0] != use:
            self._block = (use, self._draw(self._key.generator(use), size))
        return self._block[1]

    def _draw(self, rng: np.random.Generator, size: float) -> Rows:
        n = self._examples
        if size == 0:
            return np.full((BLOCK, 1), -1)
        if self._population.sampling == POISSON:
            return poisson_block(n, size / n, rng)
        count = int(size)
        return np.stack([rng.choice(n, count, replace=False, shuffle=False) for _ in range(BLOCK)])


Integers = NDArray[np.int64]
# At most this many records at a time; fewer where their sum might not fit into int32 on the device.
_PIECE = 4096


class DifferenceCodec:
    r"""Noise that later noise takes back, over sums whose noise is always fresh.

    A secure sum adds noise that nobody knows, so nobody can take it back later. Nor does anybody have to.
    Where row t of the planned noise is ``z_t - sum_{j in B(t)} z_j`` (`Mechanism.cancelled_draws`), every
    party puts into turn t, instead of its own sum ``x_t``,

        e_t = x_t + sum_{j in B(t)} e_j,            so that   r_t = sum over parties of e_t, plus z_t

    is released with fresh noise, and all compute ``r_t - sum_{j in B(t)} r_j = x_t + z_t - sum z_j``:
    exactly, in whole numbers, the planned sum with the planned noise. It is the matrix mechanism read the
    other way: e is ``C x``, and what follows is post-processing.

    A turn that was lost has no r_t. From then on it is left out of all sums, at all parties. That takes
    entries out of C and adds none; C has no negative ones, so what one record changes is not more than was
    planned for, whatever decides which turns are lost.

    So these are running sums ``v_t + sum_{j in B(t)} sign v_j`` over one party's vectors, or over releases.

    Args:
      mechanism: of the plan; on a lattice.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._live: dict[int, Integers] = {}
        self.is_plain = not any(
            mechanism.cancelled_draws(t) for t in range(min(2, mechanism.steps))
        )

    def encoded(self, step: int, values: Integers) -> Integers:
        """e_t of x_t, kept for later steps."""
        if self.is_plain:
            return values
        total = values.copy()
        for earlier in self._taken(step):
            total += earlier
        self._live[step] = total
        return total

    def decoded(self, step: int, released: Integers) -> Integers:
        """x_t with its noise, of r_t; r_t is kept for later steps."""
        if self.is_plain:
            return released
        total = released.copy()
        for earlier in self._taken(step):
            total -= earlier
        self._live[step] = released
        return total

    def lost(self, step: int) -> None:
        """The turn of this step has no release: nothing of it is kept."""
        if not self.is_plain:
            self._taken(step)
            self._live.pop(step, None)

    def _taken(self, step: int) -> list[Integers]:
        """What this step takes back and is there; no later step takes it back again."""
        result = (self._live.pop(j, None) for j in self._mechanism.cancelled_draws(step) or ())
        return [values for values in result if values is not None]


class Learner:
    """See the module.

    Args:
      terms: what was agreed on.
      place: which party this is, from 0.
      loss, params, optimizer, regularizer, microbatch_size: as in `sordino.train`; the same everywhere.
      data: this party's own records.
      key: this party's own secret: its batches come from it.
    """

    def __init__(
        self,
        terms: Terms,
        place: int,
        loss: LinearLoss | Callable[..., jax.Array],
        params: PyTree,
        data: PyTree,
        *,
        key: RunKey,
        optimizer: optax.GradientTransformation | None = None,
        regularizer: Callable[[PyTree], jax.Array] | None = None,
        microbatch_size: int | None = None,
    ) -> None:
        terms.verify()
        plan = terms.plan
        data = as_records(data if isinstance(data, tuple) else (data,))
        if (count := row_count(data)) != terms.examples[place]:
            raise PlanMismatchError(
                f"this party was agreed to bring {terms.examples[place]:,} records, and its data has "
                f"{count:,}"
            )
        params = as_parameters(params)
        if parameter_count(params) != terms.parameters:
            raise PlanMismatchError(
                f"the terms are for {terms.parameters:,} parameters, the model has "
                f"{parameter_count(params):,}"
            )
        self.terms, self.place, self.done = terms, place, 0
        self._stepper = stepper_of(
            plan,
            loss,
            params,
            data,
            optimizer=optimizer,
            regularizer=regularizer,
            microbatch_size=microbatch_size,
        )
        self._rows = PartyRows(terms, place, key)
        # Public, and the same at every party; it must not depend on data, and nobody has to trust it.
        chosen = np.random.default_rng(list(bytes.fromhex(terms.hash))).integers(self.steps)
        self._table = StepTable.of(plan, int(chosen))
        self._records = prepare(self._stepper.evaluator, data)
        self._layout = Layout.of(params)
        self._state = self._stepper.init(
            jax.tree.map(lambda leaf: np.array(leaf, copy=True), params)
        )
        self._own, self._released = DifferenceCodec(plan.mechanism), DifferenceCodec(plan.mechanism)
        self._vector: Integers | None = None
        # Sums on the device are int32, and must not wrap: here they meet their noise as wider numbers.
        self._piece = min(_PIECE, max(1, (2**31 - 1) // terms.bound))

    @property
    def steps(self) -> int:
        return self.terms.plan.population.steps

    @property
    def finished(self) -> bool:
        return self.done == self.steps

    @property
    def variance(self) -> int:
        """S of the turn that is due."""
        return self.terms.variances[self.done]

    @property
    def params(self) -> PyTree:
        """What the run would return now."""
        return jax.tree.map(np.asarray, self._stepper.output(self._state))

    def digest(self) -> str:
        """Of the model, for comparing with other parties'."""
        result = hashlib.sha256()
        for leaf in jax.tree.leaves(self._state):
            result.update(np.ascontiguousarray(leaf).tobytes())
        return result.hexdigest()

    def vector(self) -> ClippedSum:
        """What this party puts into the turn that is due, int64 (d,), in lattice steps."""
        if self.finished:
            raise PlanMismatchError(f"all {self.steps:,} planned turns are over")
        if self._vector is None:
            self._vector = self._own.encoded(self.done, self._sum())
        return ClippedSum(self._vector)

    def take(self, noised: Integers | None) -> None:
        """Go on with the sum of the turn that is due, or without it where it was lost."""
        step = self.done
        if self.finished:
            raise PlanMismatchError(f"all {self.steps:,} planned turns are over")
        if noised is None:
            self._own.lost(step)
            self._released.lost(step)
        else:
            if noised.shape != (self.terms.parameters,) or noised.dtype != np.int64:
                raise SordinoError("a sum has another length than the model")
            if not self._own.is_plain:
                self.vector()  # later turns need it
            value = self._released.decoded(step, noised).astype(np.float32)
            sums = NoisedSum(self._layout.cut(value))
            self._state = compiled_apply(self._stepper, self._state, sums, self._table.at(step))
        self._vector = None
        self.done += 1

    def follow(self, other: Learner, noised: Integers | None) -> None:
        """`take`, where another party in this process has taken the same sum: its states are the same."""
        if self.done + 1 != other.done:
            raise PlanMismatchError("only a party that is one turn behind can follow")
        if noised is None:
            self._own.lost(self.done)
        elif not self._own.is_plain:
            self.vector()
        self._state = other._state
        self._vector = None
        self.done += 1

    def _sum(self) -> Integers:
        rows = self._rows.of(self.done)
        total = np.zeros(self.terms.parameters, np.int64)
        now = self._table.at(self.done)
        # The same work whatever the batch is, but for one turn in 10^9; see docs/threat-model.md.
        planned = self._rows.width(self.done)
        width = min(planned, self._piece)
        for begin in range(0, max(len(rows), planned), width):
            piece = rows[begin : begin + width]
            indices = np.zeros(width, np.int32)
            indices[: len(piece)] = piece
            present = (np.arange(width) < len(piece)).astype(np.float32)
            result = total_of_rows(self._stepper, self._state, self._records, indices, present, now)
            leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(result.clipped)]
            total += np.concatenate(leaves).astype(np.int64)
        return total


def party_key(seed: int | None, place: int) -> RunKey:
    """A party's own key: fresh, or made from a seed for tests."""
    if seed is None:
        return RunKey.fresh()
    whole = RunKey.from_insecure_seed(seed)
    return RunKey(whole.derive(f"party/{place}"), insecure=True)


def train_together(
    terms: Terms,
    loss: LinearLoss | Callable[..., jax.Array],
    params: PyTree,
    data: Sequence[PyTree],
    *,
    insecure_seed: int | None = None,
    evaluate: Callable[[PyTree], Mapping[str, float]] | None = None,
    every: int | None = None,
    lost: Sequence[int] = (),
    **options: Any,
) -> Result:
    """Train as `terms` say, with every party's data in this process.

    Args:
      data: one tuple of arrays for each party.
      insecure_seed: makes batches and noise reproducible.
      evaluate: a function of the private parameters on PUBLIC data, called every `every` turns.
      lost: turns whose sums are lost, as if a party had died in them.
      options: of `Learner`.
    """
    if len(data) != terms.parties:
        raise SordinoError(f"there is data for {len(data)} parties, agreed are {terms.parties}")
    began = time.perf_counter()
    learners = [
        Learner(terms, place, loss, params, own, key=party_key(insecure_seed, place), **options)
        for place, own in enumerate(data)
    ]
    noise = party_key(insecure_seed, -1)
    history: list[Mapping[str, float]] = []
    first = learners[0]
    while not first.finished:
        turn = first.done
        total = sum((learner.vector().clipped for learner in learners), np.int64(0))
        released = None if turn in lost else total + _noise(terms, turn, noise)
        first.take(released)
        for other in learners[1:]:
            other.follow(first, released)
        if evaluate is not None and (first.finished or (every and first.done % every == 0)):
            history.append({"step": first.done, **evaluate(first.params)})
    return Result(
        params=first.params,
        plan=terms.plan,
        guarantee=terms.guarantee,
        history=tuple(history),
        seconds=time.perf_counter() - began,
        insecure=insecure_seed is not None,
        run=noise.identity,
    )


def _noise(terms: Terms, turn: int, key: RunKey) -> Integers:
    """What the engine of the terms would add: one draw, or every party's share."""
    assumption = terms.assumption
    share = share_variance(terms.variances[turn], assumption)
    parts = published_variance(terms.variances[turn], assumption) // share
    generator = ChaCha20Generator(key.derive(f"noise/{turn}"))
    draws = (discrete_gaussian(share, terms.parameters, generator) for _ in range(parts))
    return sum(draws, np.zeros(terms.parameters, np.int64))

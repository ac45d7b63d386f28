"""One party's computation: its vector of a turn, and the model after the turn's sum is known.

    learner = Learner(terms, place, loss, params, data, key=key)
    vector = learner.vector()            # whole numbers, as sensitive as the data: for the engine only
    learner.take(noised_sum)             # or take(None): the turn was lost
    learner.params, learner.finished

A function of the party's data and key and of the sums so far. So a party that comes back computes its
state again from the sums in its journal, and nothing secret has to be kept but the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino.engine import (
    Layout,
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
from sordino.privacy import ClippedSum, NoisedSum
from sordino.together.parties._encoding import DifferenceCodec
from sordino.together.parties._rows import PartyRows
from sordino.together.parties._terms import Terms

Integers = NDArray[np.int64]
# At most this many records at a time; fewer where their sum might not fit into int32 on the device.
_PIECE = 4096


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
        loss: Any,
        params: Any,
        data: Any,
        *,
        key: RunKey,
        optimizer: Any | None = None,
        regularizer: Callable[[Any], jax.Array] | None = None,
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
    def params(self) -> Any:
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

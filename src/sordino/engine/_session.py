"""A plan executed one step at a time, on batches that the caller brings.

    session = sordino.Session(plan, loss, params)
    for rows in session:                          # the rows that the plan wants next
        session.step((X[rows], y[rows]))
    result = session.result()

For data that does not fit in memory, loaders of one's own, or training loops that do other things in
between. The session holds the caller to the plan: no more steps than planned, each batch the one
that is due. With fixed batches a loader of one's own may choose the batches of the first epoch; from
then on they must repeat (`step(batch, rows=...)`), because the guarantee counts on it. A loader that
shuffles needs a plan with ``sampling="reshuffled", order_seed=None``: any rows, each once in an epoch. No
order may depend on the data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import RLock
from typing import NamedTuple, NoReturn, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey, run_key_of
from sordino._base.keystore import KeyStore
from sordino._base.types import PyTree
from sordino.engine._charging import LedgerAccount
from sordino.engine._noise import Layout, NoiseState, noise_rows, run_noise
from sordino.engine._records import as_parameters, as_records, row_count
from sordino.engine._run import chosen_step, chunk_starts
from sordino.engine._stepper import (
    Loss,
    Optimizer,
    Penalty,
    State,
    Stepper,
    StepTable,
    check_start,
    compiled_step,
    evaluator_of,
    update_of,
)
from sordino.engine._train import Result, refuse_others
from sordino.engine.ledger._ledger import Ledger
from sordino.parts.contributions import Batch
from sordino.parts.sampling import check_slots
from sordino.parts.schedules import AdaptiveBudget
from sordino.planning import Plan
from sordino.privacy import require_one_row

# Noise rows are made for this many steps at a time; aligned, so that they never depend on the caller.
_NOISE_STEPS = 16


class Session:
    """See the module. `loss`, `params`, `optimizer`, `regularizer`, keys and the statement
    `one_row_per_person` are as in `train`."""

    def __init__(
        self,
        plan: Plan,
        loss: Loss,
        params: PyTree,
        *,
        optimizer: Optimizer | None = None,
        regularizer: Penalty | None = None,
        microbatch_size: int | None = None,
        run_key: RunKey | None = None,
        insecure_seed: int | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        one_row_per_person: bool = False,
    ) -> None:
        require_one_row(plan.guarantee.unit, stated=one_row_per_person)
        if plan.schedule.kind == AdaptiveBudget.kind:
            raise SordinoError(
                f"{plan.recipe} decides by itself what to ask next; run it with sordino.train"
            )
        plan.verify()
        refuse_others(plan, "a session")
        plan.population.require_declared("a session")
        check_slots(plan.population)
        self.plan = plan
        self._key = run_key_of(run_key, insecure_seed)
        self._loss, self._microbatch = loss, microbatch_size
        self._update = update_of(plan, loss, optimizer, regularizer)
        self._table = StepTable.of(plan, chosen_step(self._key, plan.population.steps))
        params = jax.tree.map(lambda leaf: np.array(leaf, copy=True), as_parameters(params))
        check_start(plan, params)
        self._noise = run_noise(plan, Layout.of(params, plan.contribution.channels), self._key)
        self._noise_state = self._noise.init()
        self._block: _NoiseBlock | None = None
        self._next: _DueBatch | None = None
        steps = plan.population.steps
        self._starts = [*chunk_starts(steps, _NOISE_STEPS, plan.mechanism.boundaries), steps]
        self._stepper: Stepper | None = None
        self._state = State(params, None, None)
        self._seen: NDArray[np.int64] | None = None
        self._began = time.perf_counter()
        self._done = 0
        # An interrupt may come between a step and the release of its lock: its own thread is let in again.
        self._stepping = RLock()
        self._key.claim(store=None if run_key is None else KeyStore())
        # The data is never seen as a whole here, so the ledger goes by the data set's name alone.
        self._account = LedgerAccount.of(ledger, dataset, None)
        if self._account is not None:
            # Nor can a session know that it is another one again: that is never free.
            self._account.charge(plan, self._key.identity, None)

    @property
    def steps(self) -> int:
        return self.plan.population.steps

    @property
    def done(self) -> int:
        """Steps taken so far."""
        return self._done

    @property
    def params(self) -> PyTree:
        """The current, private, parameters."""
        return jax.tree.map(jnp.copy, self._state.params)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """The rows of each step that is left; call `step` with their data before going on."""
        while self.done < self.steps:
            before = self.done
            yield self.next_rows()
            if self.done != before + 1:
                raise PlanMismatchError(
                    f"step {before + 1} was asked for but not taken; call step() once for each batch"
                )

    def next_rows(self) -> NDArray[np.int64]:
        """The rows of the step that is due, in the order of its batch."""
        return self._due().rows.copy()

    def _due(self) -> _DueBatch:
        """The step that is due: as in `train`."""
        self._check_not_finished()
        if self._next is None or self._next.step != self.done:
            indices, mask = self.plan.population.batches(self._key, self.done, 1)
            places = np.flatnonzero(mask[0])
            rows = indices[0][places].astype(np.int64)
            self._next = _DueBatch(self.done, rows, places, indices.shape[1])
        return self._next

    def step(self, batch: PyTree, rows: ArrayLike | None = None) -> None:
        """Take the step that is due with the data of its rows.

        Args:
          batch: a tuple of arrays with one row per example of the batch.
          rows: which examples these are, where the batch is not that of `next_rows`: under fixed
            batches, the same ones in every epoch; under reshuffled ones with ``order_seed=None``, any.
        """
        with self._stepping:  # two threads would put one noise around two sums
            self._step(batch, rows)

    def _step(self, batch: PyTree, rows: ArrayLike | None) -> None:
        self._check_not_finished()
        done = self.done + 1
        batch = as_records(batch if isinstance(batch, tuple) else (batch,))
        size = row_count(batch)
        _, due, places, width = self._due()
        if rows is None and size != len(due):
            raise PlanMismatchError(
                f"step {self.done + 1} has a batch of {len(due):,} rows, got {size:,}; use the "
                "rows of next_rows(), or name yours with rows="
            )
        named = due if rows is None else np.asarray(rows, np.int64).ravel()
        self._check_rows(named, size, due)
        stepper = self._start(batch) if self._stepper is None else self._stepper
        if rows is not None:
            # In an order of the caller's own: each row that is due goes to its place all the same.
            order, by_row = np.argsort(named), np.argsort(due)
            same = np.array_equal(named[order], due[by_row])
            places = places[by_row[np.argsort(order)]] if same else np.arange(size)
        padded, present = jax.tree.map(
            partial(_placed, places=places, width=width), (batch, np.ones(size, np.float32))
        )
        block = self._noise_block()
        row = jax.tree.map(lambda leaf: leaf[self.done - block.first], block.rows)
        now = self._table.at(self.done)
        state = compiled_step(stepper, self._state, Batch(padded, present), row, now)
        noise_state = block.state_after if done == block.end else self._noise_state
        if self._done != done - 1:
            raise PlanMismatchError("another step was taken inside this one; this one is not taken")
        # In one go, after success: a step that failed or was interrupted is taken again with the same
        # noise on the same states, and never is one noise put around two sums.
        vars(self).update(_state=state, _noise_state=noise_state, _done=done)

    def result(self) -> Result:
        """The finished run; refused before all planned steps are taken."""
        if self.done < self.steps:
            raise PlanMismatchError(
                f"{self.done:,} of {self.steps:,} planned steps are taken; the released model is that "
                "of the whole plan (stopping early is private too: then use .params)"
            )
        assert self._stepper is not None
        final = self._stepper.output(self._state)
        if self._account is not None:
            self._account.close(self._key.identity)
        return Result(
            params=jax.block_until_ready(jax.tree.map(jnp.copy, final)),
            plan=self.plan,
            guarantee=self.plan.guarantee,
            seconds=time.perf_counter() - self._began,
            insecure=self._key.insecure,
            run=self._key.identity,
        )

    def _check_not_finished(self) -> None:
        if self.done >= self.steps:
            raise PlanMismatchError(
                f"all {self.steps:,} planned steps are taken; one more would spend a budget that the "
                "plan does not have: make a new plan"
            )

    def _check_rows(self, rows: NDArray[np.int64], size: int, due: NDArray[np.int64]) -> None:
        """Hold a loader of the caller's own to the participation that the plan was made for."""
        population = self.plan.population
        if len(rows) != size:
            raise SordinoError(f"{len(rows):,} rows are named but the batch has {size:,}")
        if len(np.unique(rows)) != len(rows):
            raise PlanMismatchError("a batch names one row twice; each adds one contribution")
        if rows.size and not 0 <= rows.min() <= rows.max() < population.examples:
            raise PlanMismatchError(f"rows must be between 0 and {population.examples - 1:,}")
        # Before the step, not after it: if it fails, these rows stay where they were promised to be.
        self._seen = population.kind.check(population, self.done, rows, due, self._seen)

    def _start(self, batch: PyTree) -> Stepper:
        """Build the step for records like these, and the state before the first one."""
        params = self._state.params
        evaluator = evaluator_of(self.plan, self._loss, params, batch, self._microbatch)
        stepper = Stepper(evaluator, self._update, self.plan.contribution.channels)
        vars(self).update(_stepper=stepper, _state=stepper.init(params))
        return stepper

    def _noise_block(self) -> _NoiseBlock:
        """The block of noise rows that the step that is due has its row in.

        A function of the key, the noise state before the block and the block's place: making it again
        changes nothing. The noise state goes on when the block's last step has been taken.
        """
        place = int(np.searchsorted(self._starts, self.done, side="right")) - 1
        first, end = self._starts[place], self._starts[place + 1]
        if self._block is None or self._block.first != first:
            source = self._noise.chunk(first, end - first)
            rows, after = noise_rows(source, self._noise_state, np.int32(first), end - first)
            self._block = _NoiseBlock(first, end, rows, after)
        return self._block

    def __copy__(self) -> NoReturn:
        raise SordinoError(
            "a session cannot be copied: two of them would put the same noise around other sums; make "
            "a new one with a key of its own"
        )

    def __deepcopy__(self, memo: dict[int, object]) -> NoReturn:
        self.__copy__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        self.__copy__()


class _NoiseBlock(NamedTuple):
    """Noise rows of the steps from `first` to before `end`, and the noise state after them."""

    first: int
    end: int
    rows: PyTree
    state_after: NoiseState


class _DueBatch(NamedTuple):
    """The rows of one step, their places in its batch, and the batch's width.

    The width of a secret batch is one that nearly all of them fit in: it tells nothing of its size.
    """

    step: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    width: int


def _placed(leaf: ArrayLike, places: NDArray[np.int64], width: int) -> NDArray[np.generic]:
    """Rows at their places in a batch of `width`, zeros at all others."""
    array = np.asarray(leaf)
    padded = np.zeros((width, *array.shape[1:]), array.dtype)
    padded[places] = array
    return padded

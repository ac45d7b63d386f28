"""How is a plan carried out once, and paid for? Training, sessions, checkpoints; the ledger of budgets.

result = sordino.train(plan, loss, params, data)
session = sordino.Session(plan, loss, params)               # batches from a loader of your own
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "KeyStore",
    "Result",
    "RunKey",
    "Session",
    "Snapshot",
    "Source",
    "influence",
    "ledger",
    "train",
]

if TYPE_CHECKING:
    from sordino._base.keys import RunKey as RunKey
    from sordino._base.keystore import KeyStore as KeyStore
    from sordino.engine import influence as influence
    from sordino.engine import ledger as ledger
    from sordino.engine._charging import LedgerAccount as LedgerAccount
    from sordino.engine._charging import Source as Source
    from sordino.engine._checkpoint import read_progress as read_progress
    from sordino.engine._compilation import compilation_cache as compilation_cache
    from sordino.engine._entry import as_parameters as as_parameters
    from sordino.engine._entry import as_records as as_records
    from sordino.engine._entry import check_rows as check_rows
    from sordino.engine._entry import row_count as row_count
    from sordino.engine._loop import Carry as Carry
    from sordino.engine._loop import Constants as Constants
    from sordino.engine._loop import Program as Program
    from sordino.engine._loop import StepInputs as StepInputs
    from sordino.engine._loop import batch_of_step as batch_of_step
    from sordino.engine._loop import carry_of as carry_of
    from sordino.engine._loop import chunk_starts as chunk_starts
    from sordino.engine._loop import parameter_count as parameter_count
    from sordino.engine._loop import prepare_data as prepare_data
    from sordino.engine._loop import run_chunk as run_chunk
    from sordino.engine._loop import start_states as start_states
    from sordino.engine._loop import step_on_sum as step_on_sum
    from sordino.engine._loop import sum_of_rows as sum_of_rows
    from sordino.engine._recovery import forget as forget
    from sordino.engine._run import StepTable as StepTable
    from sordino.engine._run import TrainingRun as TrainingRun
    from sordino.engine._run import load_data as load_data
    from sordino.engine._run import make_stream as make_stream
    from sordino.engine._run import penalty_of as penalty_of
    from sordino.engine._session import Session as Session
    from sordino.engine._train import Result as Result
    from sordino.engine._train import Snapshot as Snapshot
    from sordino.engine._train import train as train
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

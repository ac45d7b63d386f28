"""How is a plan carried out once, and paid for? Training, sessions, checkpoints; the ledger of budgets.

result = sordino.train(plan, loss, params, data)
session = sordino.Session(plan, loss, params)               # batches from a loader of your own
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "RUNNERS",
    "DrawnRows",
    "Driver",
    "GaussianNoise",
    "HeldKey",
    "KeyStore",
    "NoiseRule",
    "NoiseSource",
    "Past",
    "Result",
    "RunKey",
    "Session",
    "Snapshot",
    "Source",
    "State",
    "StepNow",
    "Stepper",
    "add_noise",
    "influence",
    "ledger",
    "query_key",
    "stepper_of",
    "train",
    "train_many",
]

if TYPE_CHECKING:
    from sordino._base.keys import RunKey as RunKey
    from sordino._base.keystore import KeyStore as KeyStore
    from sordino.engine import influence as influence
    from sordino.engine import ledger as ledger
    from sordino.engine._adaptive import NoiseRule as NoiseRule
    from sordino.engine._adaptive import Past as Past
    from sordino.engine._charging import LedgerAccount as LedgerAccount
    from sordino.engine._charging import Source as Source
    from sordino.engine._checkpoint import HeldKey as HeldKey
    from sordino.engine._checkpoint import forget as forget
    from sordino.engine._checkpoint import read_progress as read_progress
    from sordino.engine._compilation import compilation_cache as compilation_cache
    from sordino.engine._many import ManyRuns as ManyRuns
    from sordino.engine._many import can_be_mapped as can_be_mapped
    from sordino.engine._many import map_chunk as map_chunk
    from sordino.engine._many import mapped_groups as mapped_groups
    from sordino.engine._many import outputs as outputs
    from sordino.engine._many import secret_batches as secret_batches
    from sordino.engine._many import train_many as train_many
    from sordino.engine._noise import DrawnRows as DrawnRows
    from sordino.engine._noise import GaussianNoise as GaussianNoise
    from sordino.engine._noise import Layout as Layout
    from sordino.engine._noise import NoiseSource as NoiseSource
    from sordino.engine._noise import parameter_count as parameter_count
    from sordino.engine._people import PERSON_POWER as PERSON_POWER
    from sordino.engine._records import Records as Records
    from sordino.engine._records import Slices as Slices
    from sordino.engine._records import as_parameters as as_parameters
    from sordino.engine._records import as_records as as_records
    from sordino.engine._records import batch_at as batch_at
    from sordino.engine._records import check_rows as check_rows
    from sordino.engine._records import prepare as prepare
    from sordino.engine._records import row_count as row_count
    from sordino.engine._release import add_noise as add_noise
    from sordino.engine._run import Driver as Driver
    from sordino.engine._run import TrainingRun as TrainingRun
    from sordino.engine._run import chunk_starts as chunk_starts
    from sordino.engine._run import total_of_rows as total_of_rows
    from sordino.engine._session import Session as Session
    from sordino.engine._stepper import State as State
    from sordino.engine._stepper import StepNow as StepNow
    from sordino.engine._stepper import Stepper as Stepper
    from sordino.engine._stepper import StepTable as StepTable
    from sordino.engine._stepper import compiled_apply as compiled_apply
    from sordino.engine._stepper import stepper_of as stepper_of
    from sordino.engine._train import RUNNERS as RUNNERS
    from sordino.engine._train import Result as Result
    from sordino.engine._train import Snapshot as Snapshot
    from sordino.engine._train import hold_source as hold_source
    from sordino.engine._train import query_key as query_key
    from sordino.engine._train import refuse_others as refuse_others
    from sordino.engine._train import train as train
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

"""A run charged to a data set's budget: reserved, started, finished and released in the ledger.

The order is what makes it safe. Everything that can be refused is refused first; then the
reservation is made, then the start is committed, and only then is the first step taken. A crash
after that leaves the charge. The same run again is free: the same in everything that decides its release,
as its checkpoint and its key know it too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino._base.keys import Identity, RunKey
from sordino._base.types import PyTree
from sordino.engine.ledger._fingerprints import data_fingerprint
from sordino.engine.ledger._ledger import Ledger
from sordino.engine.ledger._marks import ROWS, Marks
from sordino.engine.ledger._records import REFUSE, Chargeable


@dataclass(frozen=True)
class Source:
    """The data set that a run's arrays were made from, as a ledger gets to know it.

    Attributes:
      data: all of it, labels and weights too.
      also: what it may be known by as well, such as its rows without the labels: runs that predict
        something else from the same rows share their budget.
      rows: how many rows it has.
      pins: whether a first run on it decides which data the ledger's name stands for. A fit does not,
        because its rows may be a fold.
      units: its rows without the labels: what a part of it is known by.
      persons: the canonical id of each row's person (None: nobody), if there are persons.
      parts: "refuse" a run on a part of the data set, or "charge" it like one on all of it.
      questions: what was asked of it besides training, and how it was read for that, in words that differ
        wherever an answer may. No ledger knows the data by it; a run that is repeated must.
    """

    data: PyTree
    also: tuple[PyTree, ...] = ()
    rows: int | None = None
    pins: bool = True
    units: PyTree | None = None
    persons: Iterable[object] | None = None
    parts: str = REFUSE
    questions: str = ""
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def digest(self, key: RunKey) -> str:
        """Of all that other queries were asked of, for a run's identity."""
        if key.identity not in self._digests:
            parts = self.data if isinstance(self.data, tuple) else (self.data,)
            self._digests[key.identity] = data_fingerprint(
                (*parts, *self.also, np.array(self.questions)), key.derive("description/source")
            )
        return self._digests[key.identity]

    def marks(self, ledger: Ledger, dataset: str) -> Marks | None:
        """By what the ledger knows the data set, or would get to know it by."""
        known = ledger.knows_marks(dataset)
        if known is None and not self.pins:
            return None
        if self.persons is not None and known != ROWS:
            return ledger.marks(self.persons, persons=True)
        return None if self.units is None else ledger.marks(self.units)


@dataclass(frozen=True)
class LedgerAccount:
    """Whose budget pays for a run.

    Attributes:
      ledger: the open ledger.
      dataset: the data set's public name in it.
      fingerprint: the data's keyed digest; None where the data is not seen as a whole.
      also: other fingerprints that the data set may be known by.
      marks: of its rows or persons.
      rows, pins, parts: as in `Source`.
    """

    ledger: Ledger
    dataset: str
    fingerprint: str | None
    also: tuple[str, ...] = ()
    rows: int | None = None
    pins: bool = True
    marks: Marks | None = None
    parts: str = REFUSE

    @classmethod
    def of(
        cls, ledger: Ledger | str | Path | None, dataset: str | None, source: Source | None
    ) -> LedgerAccount | None:
        """The account that a user named, if any."""
        if ledger is None:
            if dataset is not None:
                raise SordinoError(f"the data set {dataset!r} needs a ledger that keeps its budget")
            return None
        if dataset is None:
            raise SordinoError("a ledger keeps a budget for each data set; name one with dataset=")
        opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
        opened.dataset(dataset)  # an unknown name is found out before data is read
        if source is None:
            return cls(opened, dataset, None)
        return cls(
            opened,
            dataset,
            opened.fingerprint(source.data),
            tuple(opened.fingerprint(part) for part in source.also),
            source.rows,
            # A part never becomes the whole.
            source.pins and source.parts == REFUSE,
            source.marks(opened, dataset),
            source.parts,
        )

    def charge(self, plan: Chargeable, run: str, identity: Identity | None) -> None:
        """Reserve and start; raises, and changes nothing, where the budget does not pay for it.

        `identity` is everything that decides the release (`sordino._base.keys`): the run is free
        only if it was paid for with an equal one. None: it is a run of its own, whatever its key.
        """
        self.ledger.reserve(
            self.dataset,
            plan,
            run=run,
            fingerprint=self.fingerprint,
            also=self.also,
            rows=self.rows,
            pins=self.pins,
            identity=identity,
            marks=self.marks,
            parts=self.parts,
        )
        self.ledger.start(run)
        if not (self.pins or self.ledger.knows_data(self.dataset)):
            warnings.warn(
                f"the ledger does not know which rows {self.dataset!r} are: this run is charged to it, and "
                "so would be one on other rows; say which they are when the data set is added (sordino "
                "ledger add --data FILE)",
                PrivacyWarning,
                stacklevel=4,
            )

    def close(self, run: str) -> None:
        """The run has come to its end and its result is handed out."""
        self.ledger.finish(run)
        self.ledger.release(run)

"""A run charged to a data set's budget: reserved, started, finished and released in the ledger.

The order is what makes it safe. Everything that can be refused is refused first; then the
reservation is made, then the start is committed, and only then is the first step taken. A crash
after that leaves the charge. The same run again (its identity is that of its key) is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.errors import SordinoError
from sordino.ledger import Chargeable, Ledger


@dataclass(frozen=True)
class Account:
    """Whose budget pays for a run.

    Attributes:
      ledger: the open ledger.
      dataset: the data set's public name in it.
      fingerprint: the data's keyed digest; None where the data is not seen as a whole.
    """

    ledger: Ledger
    dataset: str
    fingerprint: str | None

    @classmethod
    def of(
        cls, ledger: Ledger | str | Path | None, dataset: str | None, data: Any | None
    ) -> Account | None:
        """The account that a user named, if any."""
        if ledger is None:
            if dataset is not None:
                raise SordinoError(f"the data set {dataset!r} needs a ledger that keeps its budget")
            return None
        if dataset is None:
            raise SordinoError("a ledger keeps a budget for each data set; name one with dataset=")
        opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
        opened.dataset(dataset)  # an unknown name is found out before data is read
        return cls(opened, dataset, None if data is None else opened.fingerprint(data))

    def charge(self, plan: Chargeable, run: str) -> None:
        """Reserve and start; raises, and changes nothing, where the budget does not pay for it."""
        self.ledger.reserve(self.dataset, plan, run=run, fingerprint=self.fingerprint)
        self.ledger.start(run)

    def close(self, run: str) -> None:
        """The run has come to its end and its result is handed out."""
        self.ledger.finish(run)
        self.ledger.release(run)

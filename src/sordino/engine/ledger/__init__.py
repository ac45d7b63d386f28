"""Budgets that several runs share: reserved before a record is read, composed exactly, never lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "Allowance",
    "BudgetExceeded",
    "Chargeable",
    "Dataset",
    "Headroom",
    "Ledger",
    "LedgerEntry",
    "Reservation",
    "Status",
    "Verified",
]

if TYPE_CHECKING:
    from sordino.engine.ledger._composition import Allowance as Allowance
    from sordino.engine.ledger._composition import BudgetExceeded as BudgetExceeded
    from sordino.engine.ledger._composition import Headroom as Headroom
    from sordino.engine.ledger._ledger import Ledger as Ledger
    from sordino.engine.ledger._ledger import Status as Status
    from sordino.engine.ledger._ledger import Verified as Verified
    from sordino.engine.ledger._marks import cell_words as cell_words
    from sordino.engine.ledger._records import REFUSE as REFUSE
    from sordino.engine.ledger._records import Chargeable as Chargeable
    from sordino.engine.ledger._records import Dataset as Dataset
    from sordino.engine.ledger._records import LedgerEntry as LedgerEntry
    from sordino.engine.ledger._records import Reservation as Reservation
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

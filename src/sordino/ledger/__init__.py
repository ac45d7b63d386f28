"""Budgets that several runs share: reserved before a record is read, composed exactly, never lost."""

from __future__ import annotations

from sordino.ledger.composition import Allowance, BudgetExceeded, Fits
from sordino.ledger.ledger import Ledger, Status, Verified
from sordino.ledger.records import Dataset, Entry, Reservation
from sordino.ledger.requests import Chargeable

__all__ = [
    "Allowance",
    "BudgetExceeded",
    "Chargeable",
    "Dataset",
    "Entry",
    "Fits",
    "Ledger",
    "Reservation",
    "Status",
    "Verified",
]

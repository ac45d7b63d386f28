"""What an estimator's fit is to a ledger: which data set it is on, and that it is all of it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from sordino._base.errors import SordinoError
from sordino.engine import Source

# What functions of scikit-learn that split data call the two parts of it, and the splitter.
_PARTS = ({"train", "test"}, {"train_idx", "val_idx"})
_SPLITTERS = ("cv", "cv_orig")


def source_of(X: Any, y: Any, *, rows: int, stated: bool) -> Source:
    """The data set of a fit on (X, y).

    A ledger knows it by its rows with their labels, or by its rows alone: what else is predicted from
    the same rows is charged to the same budget, and so ledgers of sordino 0.5.0, which knew the rows
    alone, still know them.
    """
    return Source((X, y), also=(X,), rows=rows, stated=stated)


def refuse_folds(ledger: Any) -> None:
    """Refuse a fit that a cross-validation makes, where a ledger would be charged for it.

    Every fold is a run of its own, on a part of the data set: the first one would be charged and
    become the data set, and all others refused. Which rows a fit gets cannot show that, but who calls
    it does.
    """
    if ledger is None:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _splits(frame):
            raise SordinoError(
                "a cross-validation fits parts of the data, and a ledger keeps the budget of all of it: "
                "give the ledger to sordino.PrivateSearch, which is charged once for the whole search, "
                "or cross-validate on public data without a ledger"
            )
        frame = frame.f_back


def _splits(frame: FrameType) -> bool:
    """Whether this is a function of scikit-learn that fits on parts of the data it was given."""
    if not str(frame.f_globals.get("__name__", "")).startswith("sklearn."):
        return False
    known = frame.f_locals
    return any(parts <= known.keys() for parts in _PARTS) or any(
        hasattr(known.get(name), "split") and not isinstance(known[name], str)
        for name in _SPLITTERS
    )

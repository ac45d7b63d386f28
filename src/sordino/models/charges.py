"""What an estimator's fit is to a ledger: which data set it is on, and that it is all of it."""

from __future__ import annotations

import sys
from typing import Any

from sordino.engine.charging import Source
from sordino.errors import SordinoError

# Where scikit-learn fits estimators on parts of the data that it was given.
_SPLITTING = ("sklearn.model_selection._validation", "sklearn.model_selection._search")
_FITS_PARTS = "_fit_and_score"


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
    frame = sys._getframe(1)
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("sklearn.") and (module in _SPLITTING or _FITS_PARTS in name):
            raise SordinoError(
                "a cross-validation fits parts of the data, and a ledger keeps the budget of all of it: "
                "give the ledger to sordino.PrivateSearch, which is charged once for the whole search, "
                "or cross-validate on public data without a ledger"
            )
        frame = frame.f_back  # type: ignore[assignment]

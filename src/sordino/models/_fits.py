"""What a fit is besides its model: a charge on a ledger, or one of several releases of the same rows.

Every fit is a release of its own. Cross-validation and grid search make many, and each fitted model
states the guarantee of its own fit. A ledger adds them up, if it is told which data set a fit is on and
that it is all of it. Without one, a process can notice that rows come again, and say so: it keeps a few
hundred keyed hashes of the rows of each fit, in memory.
"""

from __future__ import annotations

import secrets
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.engine import Source
from sordino.models._rows import blocks

AGAIN = (
    "rows like these were fitted before in this process, without a ledger: each guarantee_ is of one "
    "fit alone, and what the fits reveal together is not accounted for; use PrivateSearch to choose "
    "settings within one budget, or ledger= and dataset= to keep one budget for all fits"
)
# The smallest hashes of so many rows stand for all: two sets that share a twentieth share some.
_SKETCH = 256
_SHARED = 20
_MOST = 1 << 16
_KEY = secrets.randbits(128)
_LOCK = threading.Lock()
# Hashes of rows that were fitted, and whether that they came again has been said.
_SEEN: OrderedDict[int, bool] = OrderedDict()
_ONE_RELEASE: ContextVar[list[bool] | None] = ContextVar("sordino_fits_together", default=None)


@contextmanager
def one_release(*, noted: bool = False) -> Iterator[None]:
    """Fits inside count as one, and how many there are stays unsaid: a search pays for them together.

    With `noted` they count as none, because the search noted its rows itself or a ledger counts it.
    """
    token = _ONE_RELEASE.set([True] if noted else [])
    try:
        yield
    finally:
        _ONE_RELEASE.reset(token)


def note_fit(rows: NDArray[np.float32], *, stacklevel: int = 2) -> None:
    """Remember a fit that no ledger counts; warn, once, where most likely its rows came before."""
    counted = _ONE_RELEASE.get()
    if counted is not None:
        if counted:
            return
        counted.append(True)
    own = _sketch(rows)
    with _LOCK:
        known = [row for row in own if row in _SEEN]
        again = bool(own) and len(known) >= max(1, len(own) // _SHARED)
        said = again and any(_SEEN[row] for row in known)
        for row in own:
            _SEEN[row] = again or _SEEN.get(row, False)
            _SEEN.move_to_end(row)
        while len(_SEEN) > _MOST:
            _SEEN.popitem(last=False)
    if again and not said:
        warnings.warn(AGAIN, PrivacyWarning, stacklevel=stacklevel + 1)


def forget_fits() -> None:
    """Forget all fits of this process: for tests."""
    with _LOCK:
        _SEEN.clear()


def _sketch(rows: NDArray[np.float32]) -> list[int]:
    """The smallest of the rows' keyed hashes, which depend on a row's values only."""
    width = rows.shape[1]
    random: Any = np.random.Generator(np.random.Philox(key=_KEY))
    factors = random.integers(0, 1 << 64, width, np.uint64) | np.uint64(1)
    words = np.ascontiguousarray(rows).view(np.uint32)
    smallest = np.zeros(0, np.uint64)
    for block in blocks(len(rows), width):
        hashes = words[block].astype(np.uint64) @ factors
        hashes ^= hashes >> np.uint64(29)
        hashes *= np.uint64(0xBF58476D1CE4E5B9)
        hashes ^= hashes >> np.uint64(32)
        smallest = np.unique(np.concatenate([smallest, hashes]))[:_SKETCH]
    return [int(value) for value in smallest]


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

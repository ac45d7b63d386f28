"""Who is in a data set: a keyed 64-bit hash of each row or person, so that a part of it is recognised.

All of them are kept: a sketch of a thousand misses a thousand people among a million every third time
(papers/06, section 7). Without the ledger's key they tell nothing; with it, whoever knows a row can tell
whether it is there, as with any fingerprint. Numbers are hashed by their values, so that a column of a file
and of an array are alike; which columns there are, and their order, matters.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.types import Json, PyTree

ROWS, PERSONS = "rows", "persons"
# Rows are hashed in blocks of about this many cells.
_CELLS = 1 << 20
_SIZE = 8
_MISSING = ("", "na", "n/a", "nan", "none", "null", "nat", "<na>")


@dataclass(frozen=True, eq=False)
class Marks:
    """Keyed hashes of what a data set has: sorted, each once.

    Attributes:
      by: `ROWS` or `PERSONS`.
    """

    by: str
    values: NDArray[np.uint64]

    @classmethod
    def of(cls, units: PyTree, by: str, key: bytes) -> Marks:
        """Of a table, a matrix, or the canonical ids of persons (None: nobody)."""
        if by == PERSONS:
            texts = {str(one) for one in units if one is not None}
            pieces: Iterator[bytes | memoryview] = (
                text.encode("utf-8", "surrogatepass") for text in texts
            )
        else:
            pieces = _rows(units)
        joined = b"".join(_hash(piece, key, by.encode()) for piece in pieces)
        return cls(by, np.unique(np.frombuffer(joined, "<u8")))

    def share_in(self, other: Marks) -> float:
        """How much of this is in the other; 0 where they are not alike."""
        if self.by != other.by or not len(self.values):
            return 0.0
        return float(np.isin(self.values, other.values, assume_unique=True).mean())

    def is_all_of(self, other: Marks) -> bool:
        return self.by == other.by and np.array_equal(self.values, other.values)

    def to_json(self) -> Json:
        text = base64.b64encode(self.values.astype("<u8").tobytes()).decode("ascii")
        return {"by": self.by, "marks": text}

    @classmethod
    def from_json(cls, data: Json) -> Marks:
        return cls(data["by"], np.frombuffer(base64.b64decode(data["marks"]), "<u8"))


def _hash(piece: bytes | memoryview, key: bytes, use: bytes) -> bytes:
    return hashlib.blake2b(piece, key=key, person=use, digest_size=_SIZE).digest()


def _rows(table: Any) -> Iterator[bytes | memoryview]:
    """Each row as bytes, eight for a cell."""
    for cells in cell_words(table):
        whole = memoryview(cells.tobytes())
        size = _SIZE * cells.shape[1]
        for begin in range(0, whole.nbytes, size):
            yield whole[begin : begin + size]


def cell_words(table: Any) -> Iterator[NDArray[np.uint64]]:
    """Eight bytes for each cell, in blocks (rows, columns); nothing that a cell holds is an error."""
    if not hasattr(table, "columns") and not hasattr(table, "tocsr"):
        table = np.asarray(table)
        table = table.reshape(len(table), -1)
    rows, width = table.shape
    take = getattr(table, "iloc", table)
    step = max(1, _CELLS // max(1, width))
    for first in range(0, rows, step):
        block = take[first : first + step]
        block = block.toarray() if hasattr(block, "toarray") else block
        columns = (
            [block.iloc[:, i].to_numpy() for i in range(width)]
            if hasattr(block, "iloc")
            else list(block.T)
        )
        yield np.ascontiguousarray(np.column_stack([_cells(column) for column in columns]))


def _cells(column: NDArray[Any]) -> NDArray[np.uint64]:
    """Eight bytes for each cell: numbers by value, all else by a digest, as "True" is in a file."""
    if column.dtype.kind == "b":
        return np.where(column, _word("True"), _word("False")).astype(np.uint64)
    if column.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            values = column.astype(np.float64) + 0.0  # one zero
        values[np.isnan(values)] = np.nan
        return values.view(np.uint64)
    if column.dtype.kind in "mM":
        return column.view(np.int64).view(np.uint64)
    import pandas as pd

    try:
        codes, known = pd.factorize(column.astype(object))
    except (TypeError, ArithmeticError):  # a cell that cannot be compared, such as a list
        return np.array([_word(cell) for cell in column.astype(object)], np.uint64)
    words = np.array([*map(_word, known), _word(float("nan"))], np.uint64)
    return np.asarray(words[codes])  # missing cells have code -1


def _word(value: Any) -> int:
    # A number is the same in a file and in an array, and so is a cell without one.
    missing = isinstance(value, str) and value.strip().lower() in _MISSING
    if isinstance(value, bool | np.bool_):
        value = str(value)
    try:
        return int(_cells(np.array([np.nan if missing else float(value)], np.float64))[0])
    except (TypeError, ValueError, OverflowError):
        try:
            text = str(value)
        except ValueError:  # a number of too many digits to be written
            text = f"{value:x}"
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()
        return int.from_bytes(digest, "little")

"""A keyed digest of data: tells data sets apart and says nothing about them without the key."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sordino._base.types import PyTree

_BLOCK = 1 << 22
_SIZE = 16
# Of these, what a cell is called is all that it is: times, decimal numbers, and pandas' NA and times.
_WRITTEN = ("datetime", "decimal", "fractions", "pandas", "uuid")


def data_fingerprint(data: PyTree, key: bytes) -> str:
    """Digest of types, shapes and values of arrays, tables, and tuples or dicts of them.

    Reads in blocks of 4 MB, so arrays on disk stay on disk. The same values in another order or of
    another type are other data.
    """
    # The hash that processors have instructions for: twice as fast as any other here.
    total = hmac.new(key, b"sordino-data", "sha256")
    for piece in _pieces(data):
        total.update(len(piece).to_bytes(8, "big"))
        total.update(piece)
    return total.hexdigest()[: 2 * _SIZE]


def _pieces(data: PyTree) -> Iterator[bytes | memoryview]:
    if isinstance(data, Mapping):
        yield b"map %d" % len(data)
        for name in data:
            yield repr(name).encode()
            yield from _pieces(data[name])
    elif isinstance(data, (tuple, list)) and any(np.ndim(part) for part in data):
        yield b"list %d" % len(data)
        for part in data:
            yield from _pieces(part)
    elif hasattr(data, "columns") and hasattr(data, "items"):  # a pandas table
        yield b"table %d" % len(data.columns)
        for name, column in data.items():
            yield repr(name).encode()
            yield from _array(column.to_numpy())
    elif hasattr(data, "tocsr"):  # a scipy matrix
        matrix = data.tocsr()
        matrix.sum_duplicates()
        yield b"sparse %d %d" % matrix.shape
        for part in (matrix.indptr, matrix.indices, matrix.data):
            yield from _array(part)
    else:
        yield from _array(np.asarray(data))


def _array(array: NDArray[np.generic]) -> Iterator[bytes | memoryview]:
    yield f"array {array.dtype.str} {array.shape}".encode()
    if array.dtype.kind in "OT":
        for value in array.ravel():
            yield _value(value)
        return
    if array.dtype.kind in "mM":
        array = array.view(np.int64)
    if array.ndim == 0:
        array = array[None]
    rows = max(1, _BLOCK // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        block = np.ascontiguousarray(array[first : first + rows])
        yield block.view(np.uint8).reshape(-1).data if block.nbytes else b""


def _value(value: object) -> bytes:
    """Of any cell, and never an error: what no reading knows is told by its type alone."""
    kind = type(value)
    if isinstance(value, (str, bytes, bool, int, float, type(None), np.generic)) or (
        kind.__module__.partition(".")[0] in _WRITTEN or kind is complex
    ):
        try:
            return f"{kind.__name__} {value!r}".encode("utf-8", "surrogatepass")
        except ValueError:  # a number of too many digits to be written
            return f"{kind.__name__} {value:x}".encode()
    return kind.__name__.encode()

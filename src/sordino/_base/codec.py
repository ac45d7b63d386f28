"""How values are written: one text for one meaning, files of JSON, numbers packed into JSON, the time."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import DAMAGE, SordinoError, one_line, require_count
from sordino._base.files import write_atomically
from sordino._base.types import Json


def utc_now(timespec: str = "seconds") -> str:
    """Now, in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec=timespec)


T = TypeVar("T")

_UNPACKABLE: tuple[type[Exception], ...] = (*DAMAGE, zlib.error)


def canonical(data: object) -> str:
    """One text for one meaning; floats read back bit for bit."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def digest_of(data: object) -> str:
    """SHA-256 of the canonical JSON, hex."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def save_json(path: Path | str, data: object) -> None:
    """Write a file that people can read, atomically."""
    write_atomically(Path(path), json.dumps(data, indent=1) + "\n")


def load_json(path: Path | str, what: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of a file of JSON; errors name the file.

    Args:
      what: the file should be, with an article.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise SordinoError(
            f"cannot read {str(path)!r}: {one_line(error.strerror or error)}"
        ) from None
    except (ValueError, RecursionError):
        raise SordinoError(f"{str(path)!r} is not {what}: it is not JSON") from None
    try:
        return read(data)
    except SordinoError as error:
        raise SordinoError(f"in {str(path)!r}: {error}") from None


def pack(array: NDArray[np.float32] | NDArray[np.float64]) -> str:
    """Numbers as a text for JSON, bit for bit: little-endian, compressed."""
    raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def unpack(data: Json, dtype: str, size: str, *, largest: int, what: str) -> NDArray[Any]:
    """The array whose `pack` is `data`'s field of its dtype's name; it comes from strangers.

    Args:
      dtype: "float32" or "float64".
      size: the field that says how large it is: "shape", or "count" of numbers in one row.
      largest: how many bytes it may have, whatever it claims.
      what: it is, in a sentence.
    """
    try:
        counts = data[size] if size == "shape" else [require_count(size, data[size])]
        shape = tuple(int(count) for count in counts)
        length = np.dtype(dtype).itemsize * math.prod(shape)
        if min(shape, default=0) < 0 or length > largest:
            raise ValueError("impossible shape")
        raw = zlib.decompressobj().decompress(base64.b64decode(data[dtype]), length + 1)
        if len(raw) != length:
            raise ValueError("wrong length")
        return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)
    except _UNPACKABLE as error:
        raise SordinoError(f"{what} cannot be read: {one_line(error)}") from None

"""What belongs together: the SHA-256 of a run's files, as its guarantee.json records them.

A model that was swapped by mistake, or a report that was edited, no longer has the recorded hash. That
shows accidents and careless edits only: whoever can change a file can change guarantee.json too. Sign
guarantee.json, or publish its hash elsewhere, where that matters.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino._base.errors import PrivacyWarning, SordinoError, one_line

GUARANTEE = "guarantee.json"
FIELD = "sha256"
# A record is a page of text.
_LARGEST = 1 << 24


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_record(folder: Path) -> Mapping[str, Any]:
    """A folder's guarantee.json."""
    where = folder / GUARANTEE
    try:
        if where.stat().st_size > _LARGEST:
            raise SordinoError(f"{str(where)!r} is too large to be a guarantee")
        record = json.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SordinoError(f"there is no {GUARANTEE} in {str(folder)!r}") from None
    except OSError as error:
        raise SordinoError(f"cannot read {str(where)!r}: {one_line(error.strerror)}") from None
    except (ValueError, RecursionError):
        raise SordinoError(f"{str(where)!r} is damaged: it is not JSON") from None
    if not isinstance(record, dict):
        raise SordinoError(f"{str(where)!r} is damaged: it is no table of fields")
    return record


def recorded(folder: Path) -> Mapping[str, str] | None:
    """The hashes that a folder's guarantee.json records, by file; None if it is from before 0.5.1."""
    hashes = read_record(folder).get(FIELD)
    if hashes is None:
        return None
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise SordinoError(
            f"{str(folder / GUARANTEE)!r} is damaged: {FIELD!r} is no list of hashes"
        )
    return hashes


def _is_of_train(record: Mapping[str, Any]) -> bool:
    return {"plan", "notes", "sordino"} <= set(record)


def check_recorded(path: Path, content: bytes) -> None:
    """Raise if a guarantee.json beside `path` records another hash for it; warn if it records none."""
    if not (path.parent / GUARANTEE).is_file():
        return
    hashes = recorded(path.parent)
    if hashes is None:
        if not _is_of_train(read_record(path.parent)):
            return  # federated runs and parties have records of another kind
        warnings.warn(
            f"{str(path.parent / GUARANTEE)!r} records no hashes, as before version 0.5.1: that "
            f"{path.name} is the model it is about was not checked",
            PrivacyWarning,
            stacklevel=3,
        )
    elif path.name in hashes and hashes[path.name] != digest(content):
        raise SordinoError(
            f"{str(path)!r} is not the file that {GUARANTEE} beside it is about: it was exchanged or "
            "changed; take both from where they were made"
        )

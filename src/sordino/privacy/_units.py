"""A person is not a row: what a guarantee for people rests on.

A plan bounds what one row contributes. With the unit "user" or "client" its
guarantee holds for a person only if that row is all the person has in the data. Whoever knows the data
says so; where there are ids, it is checked::

    require_one_row("user", stated=True, person_ids=frame["patient"], rows=len(frame))
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sized
from datetime import date
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_choice
from sordino.privacy._terms import ROW, UNITS


def require_one_row(
    unit: str, *, stated: bool, person_ids: ArrayLike | None = None, rows: int | None = None
) -> None:
    """Raise unless a row of the data is one `unit`.

    Args:
      stated: whether the data's owner says that every person has one row.
      person_ids: an id per row, if there are any; no id is ever shown.
      rows: how many rows there are, to compare the ids with.
    """
    require_choice("unit", unit, UNITS)
    if unit == ROW:
        if person_ids is not None:
            raise SordinoError(
                "ids of people were given, but the unit is 'example', which protects one row of a "
                "person and no more; give unit='user' and one_row_per_person=True, or no ids"
            )
        return
    if not stated:
        raise SordinoError(
            f"unit {unit!r} protects a {unit} only if every {unit} has one row of the data; say so "
            "with one_row_per_person=True, or use unit='example', which protects single rows"
        )
    if person_ids is None:
        return
    ids = _ids(person_ids)
    if rows is not None and len(ids) != rows:
        raise SordinoError(f"there are {len(ids):,} ids of people for {rows:,} rows; give one each")
    import pandas as pd

    column = pd.Series(ids).reset_index(drop=True)
    if column.isna().any():
        raise SordinoError(
            "some rows have no id of their person, so that nobody can tell whether every person "
            "has one row; fill the ids in, or remove those rows"
        )
    # About the data, and outside of any guarantee: that somebody has two rows, and not who.
    try:
        twice = bool(column.duplicated().any())
    except TypeError:
        raise SordinoError("ids of people must be text, numbers or dates") from None
    if twice:
        raise SordinoError(
            f"some {unit} has more than one row, against the statement that everyone has one; bring the "
            f"rows of each {unit} together into one, or use the unit 'example', which protects rows"
        )


def _ids(person_ids: ArrayLike) -> Sized:
    ids: Any = (
        np.asarray(person_ids, dtype=object) if isinstance(person_ids, list | tuple) else person_ids
    )
    if np.ndim(ids) != 1:
        raise SordinoError("ids of people must be a list or one column, with one id for each row")
    return ids


# What stands for no id, in any case of letters.
_NO_ID = frozenset(("", "na", "n/a", "#n/a", "nan", "nat", "none", "null", "<na>", "inf", "-inf"))
_WHOLE = re.compile(r"([+-]?)([0-9]+)(?:\.0*)?")


def person_ids(values: ArrayLike) -> NDArray[np.object_]:
    """The canonical id of each row's person as text (rows,), or None where there is none.

    Cell by cell, so that no row's id depends on another row: text in Unicode's normal form C without white
    space around it, and a whole number however it is written: 7, 7.0, "7" and " 7" are one person. None,
    NaN, infinities, what is empty and what says so (NA, null) are no id, nor is anything but text, numbers
    and dates.
    """
    known: dict[tuple[type, object], str | None] = {}
    found = np.empty(len(_ids(values)), object)
    for i, value in enumerate(_cells(values)):
        if type(value) not in (str, int, float):
            # Such as Decimal("7.1") and Decimal("7.10"): equal, and of two spellings.
            found[i] = _person_id(value)
            continue
        # 7 and 7.0 are equal keys of a dict: alike here, but not in a column of types.
        key = (type(value), value)
        if key not in known:
            known[key] = _person_id(value)
        found[i] = known[key]
    return found


def _cells(values: ArrayLike) -> Iterable[object]:
    ids: Any = _ids(values)
    if isinstance(ids, np.ndarray):
        return ids.tolist() if ids.dtype.kind in "biufU" else list(ids)
    return list(ids)


def _person_id(value: object) -> str | None:
    """One cell's id. Nothing that a cell holds is an error."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | Number | date | np.datetime64):
        return None
    try:
        text = unicodedata.normalize("NFC", str(value)).strip()
    except ValueError:  # a number of too many digits to be written
        return None
    if text.casefold() in _NO_ID:
        return None
    if whole := _WHOLE.fullmatch(text):
        sign, digits = whole.groups()
        digits = digits.lstrip("0") or "0"
        return f"-{digits}" if sign == "-" and digits != "0" else digits
    return text

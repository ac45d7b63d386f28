"""The words that guarantees are stated in, each with its values: whose data, which change, which noise.

Members are strings: wherever one is taken, its plain value is taken as well, and files hold plain values.

**A person is not a row.** A plan bounds what one row contributes. With the unit "user" or "client" its
guarantee holds for a person only if that row is all the person has in the data. Whoever knows the data
says so; where there are ids, it is checked::

    require_one_row("user", stated=True, person_ids=frame["patient"], rows=len(frame))
"""

from __future__ import annotations

import math
from collections.abc import Sized
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError, nearest, require_choice, shown


class _Term(StrEnum):
    """A choice of words; messages show the plain value."""

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def _missing_(cls, value: object) -> None:
        known = [member.value for member in cls]
        hint = nearest(value if isinstance(value, str) else "", known)
        raise SordinoError(f"{cls.__name__.lower()} {shown(value)} is not known{hint}")


class Adjacency(_Term):
    """Which two data sets a guarantee tells apart no better than it says.

    * ``ZERO_OUT``: one unit's contributions are replaced by zero.
    * ``ADD_REMOVE``: one unit's contributions are added or removed.
    * ``REPLACE_ONE``: one unit is replaced by any other.
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @property
    def factor(self) -> int:
        """How many contribution bounds a sum can move by (kappa): 2 where one unit replaces another."""
        return 2 if self is Adjacency.REPLACE_ONE else 1


class Unit(_Term):
    """Whose data a guarantee protects. No plan protects a ``PERSON`` with several rows yet."""

    EXAMPLE = "example"
    USER = "user"
    CLIENT = "client"
    PERSON = "person"


class NoiseKind(_Term):
    """Noise in float32, or on a lattice from a cryptographic generator."""

    GAUSSIAN = "gaussian"
    DISCRETE = "discrete"


# What plans can protect.
UNITS = (Unit.EXAMPLE.value, Unit.USER.value, Unit.CLIENT.value)
# The unit of which every row is one by definition.
ROW = Unit.EXAMPLE.value


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


# ---- the same in sentences: of plans, guarantees, ledgers, reports ----------------------------------

ADJACENCIES = {
    Adjacency.ZERO_OUT.value: "replacing one {unit}'s contributions by zero",
    # What it adds to the sums: the number of units is public, and a plan runs on that number only.
    Adjacency.ADD_REMOVE.value: "adding or removing one {unit}'s contributions",
    Adjacency.REPLACE_ONE.value: "replacing one {unit} by any other",
}
# What stays hidden, by adjacency.
_SECRETS = {
    Adjacency.ZERO_OUT.value: "whether one given {unit}'s contributions were used",
    Adjacency.ADD_REMOVE.value: "whether one given {unit} was in the data",
    Adjacency.REPLACE_ONE.value: "which of two possible contents one given {unit} had",
}
INSECURE = "It does NOT hold against anyone who knows or guesses the seed of the noise."


def change(adjacency: str, unit: str) -> str:
    """The change that must not show: "replacing one example by any other"."""
    return ADJACENCIES[adjacency].format(unit=unit)


def secret(adjacency: str, unit: str) -> str:
    """What nobody can tell, as the end of "must guess ..."."""
    return _SECRETS[adjacency].format(unit=unit)


def plural(count: int, noun: str) -> str:
    """ "1 epoch", "2,000 epochs"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def rounded_up(value: float, digits: int = 4) -> str:
    """`value` to `digits` significant digits, rounded up: what is printed is never too small.

    Up from the shortest decimal that reads back as `value`, so that 0.001 prints as 0.001.
    """
    if value == 0:
        return "0"
    if math.isinf(value):
        return "inf"
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.{digits + 1}g}"

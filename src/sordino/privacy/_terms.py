"""The words that guarantees are stated in, each with its values: whose data, which change, which noise.

Members are strings: wherever one is taken, its plain value is taken as well, and files hold plain values.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum

from sordino._base.errors import SordinoError, nearest, shown


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
    """Whose data a guarantee protects. A ``PERSON`` may have several rows, an ``EXAMPLE`` is one row."""

    EXAMPLE = "example"
    USER = "user"
    CLIENT = "client"
    PERSON = "person"


class NoiseKind(_Term):
    """Noise in float32, or on a lattice from a cryptographic generator."""

    GAUSSIAN = "gaussian"
    DISCRETE = "discrete"


# What plans can protect.
UNITS = tuple(unit.value for unit in Unit)
# The unit of which every row is one by definition.
ROW = Unit.EXAMPLE.value


# ---- the same in sentences: of plans, guarantees, ledgers, reports ----------------------------------

ADJACENCIES = {
    Adjacency.ZERO_OUT.value: "replacing one {unit}'s contributions by zero",
    # What it adds to the sums: the number of units is public, and a plan runs on that number only.
    Adjacency.ADD_REMOVE.value: "adding or removing one {unit}'s contributions",
    Adjacency.REPLACE_ONE.value: "replacing one {unit} by any other",
}
# Of a person with several rows.
_PEOPLE = {
    Adjacency.ZERO_OUT.value: "replacing the contributions of one person, with all of their rows, by zero",
    Adjacency.ADD_REMOVE.value: "adding or removing one person with all of their rows",
    Adjacency.REPLACE_ONE.value: "replacing one person with all of their rows by any other",
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
    return (_PEOPLE if unit == Unit.PERSON else ADJACENCIES)[adjacency].format(unit=unit)


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

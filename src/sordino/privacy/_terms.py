"""The words that guarantees are stated in, each with its values: whose data, which change, which noise.

Members are strings: wherever one is taken, its plain value is taken as well, and files hold plain values.
"""

from __future__ import annotations

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
    """Whose data a guarantee protects. No plan protects a ``PERSON`` with several rows yet."""

    EXAMPLE = "example"
    USER = "user"
    CLIENT = "client"
    PERSON = "person"


class NoiseKind(_Term):
    """Noise in float32, or on a lattice from a cryptographic generator."""

    GAUSSIAN = "gaussian"
    DISCRETE = "discrete"

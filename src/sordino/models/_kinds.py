"""Kinds of columns that a table's release finds, and the features that they become.

Each encodes cell by cell, as `Cells` reads them. In a column of numbers or dates, other cells count as
missing; in a column of text, other cells count as "other".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, known_fields, require_choice, shown
from sordino._base.types import Json
from sordino.models._cells import Array, Cells, Codes

Features = NDArray[np.float32]


def _bin_of(edges: Sequence[float], values: Array) -> Codes:
    """How many edges are at or below each value: below 0, an edge belongs to the cell below it."""
    below = [edge for edge in edges if edge < 0]
    rest = [edge for edge in edges if edge >= 0]
    return np.searchsorted(below, values, "left") + np.searchsorted(rest, values, "right")


def _indicators(places: Codes, width: int) -> Features:
    """Rows with a 1 at their place, none where that is -1."""
    hot = np.zeros((len(places), width), np.float32)
    rows = np.flatnonzero(places >= 0)
    hot[rows, places[rows]] = 1
    return hot


def _ordered(cells: Cells, days: bool) -> Array:
    values = cells.days if days else cells.numbers
    return np.full(cells.rows, np.nan) if values is None else values


def _label(edge: float) -> str:
    return repr(int(edge)) if edge == int(edge) else repr(edge)


@dataclass(frozen=True)
class _Ordered:
    """A column of numbers, or of dates where `of_days`; `edges` increase."""

    name: str
    edges: tuple[float, ...]
    of_days: bool = False

    kind: ClassVar[str]
    _least: ClassVar[int] = 0

    def __post_init__(self) -> None:
        edges = tuple(float(edge) for edge in self.edges)
        rising = all(a < b for a, b in pairwise(edges))
        if len(edges) < self._least or not rising or not all(map(math.isfinite, edges)):
            raise SordinoError(f"column {shown(self.name)} needs finite edges that increase")
        object.__setattr__(self, "edges", edges)

    def _values(self, cells: Cells) -> Array:
        return _ordered(cells, self.of_days)

    def to_json(self) -> Json:
        data: Json = {"name": self.name, "kind": self.kind, "edges": list(self.edges)}
        return data | ({"of_days": True} if self.of_days else {})


@dataclass(frozen=True)
class Spline(_Ordered):
    """Hat functions on the edges, constant beyond the outer ones, and a missing flag."""

    kind: ClassVar[str] = "spline"
    _least: ClassVar[int] = 2

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (*(f"{self.name}~{_label(edge)}" for edge in self.edges), f"{self.name} missing")

    def encode(self, cells: Cells) -> Features:
        values, edges = self._values(cells), np.array(self.edges)
        rows = np.flatnonzero(~np.isnan(values))
        within = np.clip(values[rows], edges[0], edges[-1])
        piece = np.clip(np.searchsorted(edges, within, "right") - 1, 0, len(edges) - 2)
        share = (within - edges[piece]) / (edges[piece + 1] - edges[piece])
        result = np.zeros((cells.rows, len(edges) + 1), np.float32)
        result[rows, piece] = 1 - share
        result[rows, piece + 1] = share
        result[:, -1] = np.isnan(values)
        return result


@dataclass(frozen=True)
class OneHotBins(_Ordered):
    """An indicator for each bin between edges, and before and after them, and one for missing."""

    kind: ClassVar[str] = "bins"

    @property
    def feature_names(self) -> tuple[str, ...]:
        labels = [_label(edge) for edge in self.edges]
        bins = zip(["", *labels], [*labels, ""], strict=True)
        return (*(f"{self.name}={a}..{b}" for a, b in bins), f"{self.name} missing")

    def encode(self, cells: Cells) -> Features:
        values = self._values(cells)
        places = _bin_of(self.edges, np.nan_to_num(values))
        places[np.isnan(values)] = len(self.edges) + 1
        return _indicators(places, len(self.edges) + 2)


@dataclass(frozen=True)
class Scaled(_Ordered):
    """The number of a cell's bin, scaled to [-1, 1], and a missing flag."""

    kind: ClassVar[str] = "scaled"

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing")

    def encode(self, cells: Cells) -> Features:
        values = self._values(cells)
        places = _bin_of(self.edges, np.nan_to_num(values))
        scaled = 2 * places / max(1, len(self.edges)) - 1 if self.edges else 0.0 * places
        missing = np.isnan(values)
        return np.column_stack([np.where(missing, 0.0, scaled), missing]).astype(np.float32)


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True)
class FoundDates:
    """A date as its day, its month and its weekday: the latter are public functions of the day."""

    days: Spline | OneHotBins | Scaled

    kind: ClassVar[str] = "dates"

    @property
    def name(self) -> str:
        return self.days.name

    @property
    def feature_names(self) -> tuple[str, ...]:
        parts = (f"{self.name}={part}" for part in (*MONTHS, *WEEKDAYS))
        return (*self.days.feature_names, *parts)

    def encode(self, cells: Cells) -> Features:
        days = _ordered(cells, True)
        known = ~np.isnan(days)
        # Within what numpy's calendar holds, and more than any date that can be written.
        whole = np.clip(np.floor(np.nan_to_num(days)), -1e9, 1e9).astype(np.int64)
        month = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
        parts = [
            self.days.encode(cells),
            _indicators(np.where(known, month, -1), len(MONTHS)),
            _indicators(np.where(known, (whole + 3) % 7, -1), len(WEEKDAYS)),
        ]
        return np.concatenate(parts, axis=1)

    def to_json(self) -> Json:
        return {"name": self.name, "kind": self.kind, "days": self.days.to_json()}


@dataclass(frozen=True)
class FoundCategorical:
    """A column of text: an indicator for each value that was found, for other ones, and for missing."""

    name: str
    values: tuple[str, ...]

    kind: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values or not all(isinstance(value, str) for value in self.values):
            raise SordinoError(f"column {shown(self.name)} needs the texts that were found")
        if len(set(self.values)) < len(self.values):
            raise SordinoError(f"column {shown(self.name)} lists a value more than once")

    @property
    def feature_names(self) -> tuple[str, ...]:
        # A value may be called "other": what is no value has no "=".
        found = (f"{self.name}={value}" for value in self.values)
        return (*found, f"{self.name} other", f"{self.name} missing")

    def encode(self, cells: Cells) -> Features:
        places = cells.positions(self.values)
        places = np.where(places < 0, len(self.values), places)
        places[cells.missing] = len(self.values) + 1
        return _indicators(places, len(self.values) + 2)

    def to_json(self) -> Json:
        return {"name": self.name, "kind": self.kind, "values": list(self.values)}


Found = Spline | OneHotBins | Scaled | FoundDates | FoundCategorical
_KINDS: dict[str, type[Spline | OneHotBins | Scaled | FoundCategorical]] = {
    kind.kind: kind for kind in (Spline, OneHotBins, Scaled, FoundCategorical)
}


def found_from_json(data: Json) -> Found:
    """The column that `to_json` of its kind wrote."""
    kind = require_choice("the kind of a column", data.get("kind", ""), (*_KINDS, FoundDates.kind))
    fields = {name: value for name, value in data.items() if name != "kind"}
    try:
        if kind != FoundDates.kind:
            return _KINDS[kind](**known_fields("a column", fields, _KINDS[kind]))
        days = found_from_json(fields["days"])
        if set(fields) == {"name", "days"} and isinstance(days, Spline | OneHotBins | Scaled):
            return FoundDates(days)
    except SordinoError:
        raise
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        pass
    raise SordinoError(f"a column of kind {shown(kind)} holds other things than it should")

"""Columns that a table's release found, and the features that they become (papers/06, sections 3.3 and 4).

    schema, facts = found_schema(answer, names, mu_train=.25)      # a `Schema`, and a line for each column
    classes, counts = found_classes(answer)                        # of the target; or found_bounds(answer)

All of it is post-processing of noisy numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression

from sordino._base.errors import SordinoError, require_choice, require_count
from sordino._base.types import Json
from sordino.models._cells import Array
from sordino.models._kinds import (
    Found,
    FoundCategorical,
    FoundDates,
    OneHotBins,
    Scaled,
    Spline,
)
from sordino.models._release import (
    DATES,
    NUMBERS,
    TEXT,
    UNKNOWN,
    ColumnAnswer,
    TableAnswer,
    date_edges,
    number_edges,
)
from sordino.models._schema import Categorical, Column, Numeric, Schema, Value

FEATURES = ("auto", "linear", "spline", "onehot")
BINS = 8
# "auto": below this signal for each column, few features are better than many (papers/06, section 4.4).
_RICH = 60.0
# Bins hold at least so many sigma.
_LEAST = 6.0
# Beyond each end of a scale is one person in 200, but more than what noise alone adds up to where nobody
# is (three standard deviations of a running sum), and fewer than half.
_END_SHARE, _END_NOISE, _MOST_BEYOND = 1 / 200, 10.0, 0.4
# A number is a class if its cell holds so many sigma; all of them together most of the numbers.
_CLASS, _MOST_CLASSES, _OF_ALL = 10.0, 20, 0.9
_LIKE_AN_ID = re.compile(r"(.*[_\W])?(id|uuid|guid|email|e-mail|phone)", re.IGNORECASE)


def denoised(counts: Array) -> Array:
    """Running sums of noisy counts, made to increase (isotonic regression), from 0 (cells + 1,)."""
    return np.concatenate([[0.0], np.maximum(isotonic_regression(np.cumsum(counts)).x, 0.0)])


@dataclass(frozen=True)
class Bins:
    """A column in bins of about equal weight.

    Attributes:
      cuts: where one bin ends and the next begins; the first and the last are open.
      low, high: beyond each of them is about one person in 200, or as many as the noise hides.
    """

    cuts: tuple[float, ...]
    low: float
    high: float

    @property
    def knots(self) -> tuple[float, ...]:
        """The cuts, and the ends where they are beyond them; at least two."""
        if len(self.cuts) < 2 and self.low < self.high:
            return tuple(sorted({self.low, *self.cuts, self.high}))
        ends = {self.low} if self.low < self.cuts[0] else set()
        return tuple(
            sorted({*self.cuts, *ends} | ({self.high} if self.high > self.cuts[-1] else set()))
        )


def cut(counts: Array, edges: Array, sigma: float, bins: int) -> Bins:
    """Bins of a column by the noisy weights of its cells.

    Cells heavier than ``max(n / bins, 6 sigma)`` are bins of their own, atoms. What lies between two of
    them, or beyond them, is cut into pieces of equal weight, each of at least
    ``max(rest / (bins - atoms), 6 sigma)``.
    """
    sums = denoised(counts)
    total, weights, least = sums[-1], np.diff(sums), _LEAST * sigma
    atoms = np.flatnonzero(weights > max(total / bins, least))
    size = max((total - weights[atoms].sum()) / max(1, bins - len(atoms)), least)
    places: set[int] = set()
    outer = []
    for first, last in zip([0, *(atoms + 1)], [*atoms, len(counts)], strict=True):
        held = sums[last] - sums[first]
        pieces = int(held // size) or int(held >= least)
        marks = sums[first] + held * np.arange(1, pieces) / max(1, pieces)
        inner = np.searchsorted(sums, marks, side="left")
        places |= {int(place) for place in inner if first < place < last}
        outer.append(pieces > 0)
    if len(atoms):
        places |= {int(atom) for atom in atoms[not outer[0] :]}
        places |= {int(atom) + 1 for atom in atoms[: len(atoms) - (not outer[-1])]}
    end = min(max(_END_SHARE * total, _END_NOISE * sigma), _MOST_BEYOND * total)
    low = int(np.searchsorted(sums, end, side="right")) - 1
    high = int(np.searchsorted(sums, total - end, side="left"))
    if low >= high:
        low, high = 0, len(counts)
    return Bins(tuple(edges[sorted(places)].tolist()), float(edges[low]), float(edges[high]))


@dataclass(frozen=True)
class ColumnFact:
    """What became of one column of a table, for whoever answers for the model.

    Attributes:
      used: whether it has features.
      why: it is used, or not, in a few words.
      source: "declared" or "found".
      what: what is used of it: the column as a schema has it, or nothing.
      hint: what a look at its name or at the noisy numbers suggests.
    """

    name: str
    used: bool
    why: str
    source: str
    what: Json | None = None
    hint: str = ""

    def to_json(self) -> Json:
        return {name: value for name, value in vars(self).items() if value not in (None, "")}

    @property
    def text(self) -> str:
        """What the column is used as, in a few words, or why it is ignored."""
        return _in_words(self.what or {}) if self.used else f"ignored: {self.why}"


def _in_words(column: Json) -> str:
    """A column's encoding."""
    if "values" in column:
        values = [str(value) for value in column["values"]]
        return f"categories: {', '.join(values[:4])}" + (
            f", ... ({len(values)} values)" if len(values) > 4 else ""
        )
    if "low" in column:
        return f"numbers from {column['low']:g} to {column['high']:g}"
    edges = column.get("edges", ())
    if not edges or column.get("of_days"):
        return "dates" if column.get("of_days") or column.get("kind") == "dates" else "numbers"
    return f"numbers, {len(edges)} knots from {edges[0]:.4g} to {edges[-1]:.4g}"


def found_schema(
    answer: TableAnswer,
    names: Sequence[str],
    *,
    features: str = "auto",
    bins: int = BINS,
    mu_train: float | None = None,
    declared: Mapping[str, Numeric | Categorical] | None = None,
    target: Json | None = None,
    decimal: str = ".",
    date_formats: Mapping[str, str] | None = None,
) -> tuple[Schema, list[ColumnFact]]:
    """The schema of the columns `names`, declared or found, and a fact about each of them.

    Args:
      features: "spline" (hat functions on the bins' edges), "onehot" (an indicator for each bin),
        "linear" (the bin's number), or "auto": linear where ``persons mu_train / (columns used)`` is
        below 60, else spline.
      bins: about how many for each column of numbers.
      mu_train: of training alone; "auto" needs it.
      declared: columns that are public; they are taken as they are.
      target: fields of the schema that say what is predicted, such as target and classes.
      decimal, date_formats: how cells were read; the schema keeps it for tables to predict.
    """
    require_choice("features", features, FEATURES)
    bins = require_count("bins", bins, minimum=2)
    declared = declared or {}

    def made(way: str) -> list[Column | None]:
        return [
            declared[name] if name in declared else _found(answer, answer[name], way, bins)
            for name in names
        ]

    if features == "auto":
        if mu_train is None:
            raise SordinoError(
                "features='auto' needs mu_train, the part of the budget for training"
            )
        columns = made("spline")
        count = sum(column is not None for column in columns)
        if answer.persons * mu_train < _RICH * count:
            columns = made("linear")
    else:
        columns = made(features)
    facts = [
        _fact(name, column, name in declared, answer)
        for name, column in zip(names, columns, strict=True)
    ]
    used = tuple(column for column in columns if column is not None)
    if not used:
        raise SordinoError(
            "the noisy weights show no column that can be used: each is too rare, or has no value that "
            "enough people share; declare columns, or spend more on preprocessing"
        )
    formats = tuple(sorted((date_formats or {}).items()))
    plain = all(isinstance(column, Numeric | Categorical) for column in used)
    schema = Schema(used, decimal=decimal, date_formats=formats, by_cell=plain)
    return replace(schema, **(target or {})), facts


def _found(answer: TableAnswer, column: ColumnAnswer, features: str, bins: int) -> Found | None:
    if column.kind == TEXT:
        return FoundCategorical(column.name, tuple(str(value) for value, _ in column.values))
    if column.kind not in (NUMBERS, DATES):
        return None
    cells, days = bins_of(answer, column, bins), column.kind == DATES
    if features == "linear":
        return Scaled(column.name, cells.cuts, days)
    if features == "onehot":
        found: Spline | OneHotBins = OneHotBins(column.name, cells.cuts, days)
    else:
        found = Spline(column.name, cells.knots, days)
    return FoundDates(found) if days else found


def bins_of(answer: TableAnswer, column: ColumnAnswer, bins: int = BINS) -> Bins:
    """`cut` of a column of numbers or dates."""
    assert column.counts is not None
    edges = number_edges() if column.kind == NUMBERS else date_edges()
    return cut(column.counts, edges, answer.sigma, bins)


def _fact(name: str, column: Column | None, is_declared: bool, answer: TableAnswer) -> ColumnFact:
    hint = "its name looks like that of an id" if _LIKE_AN_ID.fullmatch(name) else ""
    if is_declared:
        assert column is not None
        return ColumnFact(
            name, True, "its description is public", "declared", column.to_json(), hint
        )
    if column is None:
        why = (
            f"no text reached the threshold of {answer.threshold:.4g} persons, and too few cells are "
            "numbers or dates"
        )
        return ColumnFact(name, False, why, "found", None, hint)
    kind = {TEXT: "text", NUMBERS: "numbers", DATES: "dates"}[answer[name].kind]
    return ColumnFact(name, True, f"its noisy weights show {kind}", "found", column.to_json(), hint)


# The target.


def found_task(values: ColumnAnswer, numbers: ColumnAnswer) -> str:
    """ "regression" for numbers most of which are no frequent values; else "classes"."""
    kept = math.fsum(weight for _, weight in values.values)
    regression = numbers.kind == NUMBERS and kept < _OF_ALL * numbers.numbers
    return "regression" if regression else "classes"


def found_classes(answer: TableAnswer) -> tuple[tuple[Value, ...], Array]:
    """The classes of a target that was asked for as values, and their noisy weights.

    Weights may be negative where the classes were declared.
    """
    column = _target(answer)
    pairs = [(value_of(value), weight) for value, weight in column.values]
    if len(pairs) < 2:
        raise SordinoError(
            "the noisy weights of the target show fewer than two classes; declare the classes, or spend "
            "more on preprocessing"
        )
    if not any(isinstance(value, str) for value, _ in pairs):
        pairs.sort()
    return tuple(value for value, _ in pairs), np.array([weight for _, weight in pairs])


def value_of(value: Value) -> Value:
    """The number that a text from `Cells.as_values` stands for, or the text."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


def found_bounds(answer: TableAnswer) -> tuple[float, float]:
    """Bounds of a target of numbers: about one person in 200 is beyond each of them."""
    column = _target(answer)
    if column.kind != NUMBERS:
        raise SordinoError(
            "the noisy weights of the target show no column of numbers; declare target_bounds"
        )
    bins = bins_of(answer, column)
    return bins.low, bins.high


def _target(answer: TableAnswer) -> ColumnAnswer:
    if answer.target is None:
        raise SordinoError("the release had no target column")
    column = answer[answer.target]
    if column.kind == UNKNOWN:
        raise SordinoError(
            "the noisy weights of the target show neither numbers nor a text that enough people share; "
            "declare the target, or spend more on preprocessing"
        )
    return column

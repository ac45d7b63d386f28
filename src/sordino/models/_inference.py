"""Schemas taken from the data: convenient, not private, and said so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.models._features import Categorical, Column, Numeric, Value, numbers_of, parse_values
from sordino.models._schema import Schema, check_columns

# A text column with more values than this is an identifier or free text, not a category.
MOST_VALUES = 256
# A target of whole numbers with at most this many values is taken for a list of classes.
MOST_CLASSES = 20


def infer_schema(frame: Any, target: str | None = None) -> Schema:
    """See `Schema.infer`."""
    check_columns(frame, () if target is None else (target,))
    if not len(frame):
        raise SordinoError("a schema cannot be inferred from a table without rows")
    taken: list[str] = ["the number of rows", "the columns and what kind of values they hold"]
    features = [str(name) for name in frame.columns if name != target]
    check_columns(frame, tuple(features))
    columns = []
    ranges: list[str] = []
    vocabularies: list[str] = []
    for name in features:
        column, private = infer_column(name, frame[name])
        columns.append(column)
        if private:
            (ranges if isinstance(column, Numeric) else vocabularies).append(name)
    if ranges:
        taken.append(f"the smallest and largest values of {_quoted(ranges)}")
    if vocabularies:
        taken.append(f"the values of {_quoted(vocabularies)}")
    classes, bounds = None, None
    if target is not None:
        classes, bounds, private = _infer_target(target, frame[target])
        if private:
            what = "the classes" if classes is not None else "the smallest and largest values"
            taken.append(f"{what} of the target {target!r}")
    warnings.warn(
        f"this schema was taken from the data, which no guarantee covers: {'; '.join(taken)}; "
        "declare them from public knowledge instead",
        PrivacyWarning,
        stacklevel=3,
    )
    return Schema(tuple(columns), target, classes, bounds, len(frame))


def infer_column(name: str, series: Any) -> tuple[Column, bool]:
    """The column's description, and whether private values were looked at."""
    kind = kind_of(name, series)
    if kind == BOOLEAN:
        return Numeric(name, 0, 1), False
    if kind == NUMBER:
        return Numeric(name, *_range(name, series)), True
    return Categorical(name, vocabulary(name, series)), True


# What a column holds, whatever type it has and however many values are missing: a single empty
# field turns whole numbers into floats and booleans into objects, and must change nothing else.
NUMBER, BOOLEAN, TEXT, CATEGORY = "number", "boolean", "text", "category"
_KINDS = {
    "integer": NUMBER,
    "floating": NUMBER,
    "mixed-integer-float": NUMBER,
    "decimal": NUMBER,
    "boolean": BOOLEAN,
    "string": TEXT,
}


def kind_of(name: str, series: Any) -> str:
    """The kind of a column's values; what can be no feature is refused without being shown."""
    kind = known_kind(series)
    if kind is None:
        raise _no_feature(name, series, series)
    return kind


def known_kind(series: Any) -> str | None:
    """The kind of a column's values, None where it can be no feature."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or str(dtype).startswith("dictionary<"):
        return CATEGORY
    if pd.api.types.is_bool_dtype(dtype):
        return BOOLEAN
    if pd.api.types.is_numeric_dtype(dtype):
        return None if dtype.kind == "c" else NUMBER
    return _KINDS.get(pd.api.types.infer_dtype(series, skipna=True))


def vocabulary(name: str, series: Any) -> tuple[Value, ...]:
    """The distinct values of a text column, sorted, or a column's categories: private.

    A category type declares nothing: its categories are as a rule those that the data have.
    """
    if isinstance(series.dtype, pd.CategoricalDtype):
        distinct = pd.Series(series.dtype.categories.to_numpy(), dtype=object)
    else:
        distinct = pd.Series(series.astype(object).dropna().unique(), dtype=object)
    if len(distinct) and pd.api.types.infer_dtype(distinct) not in _KINDS:
        raise _no_feature(name, series, distinct)
    values = distinct.tolist()
    if not isinstance(series.dtype, pd.CategoricalDtype):
        values.sort()
    if len(values) > MOST_VALUES:
        raise SordinoError(
            f"column {name!r} has more than {MOST_VALUES} different values; drop it, or declare "
            "the values that matter"
        )
    try:
        return parse_values(f"column {name!r}", values, minimum=1)
    except SordinoError:  # it may show the value
        raise SordinoError(
            f"column {name!r} has no values, or one that no schema can list; drop the column, or "
            "declare its values"
        ) from None


def _no_feature(name: str, series: Any, values: Any) -> SordinoError:
    kind = pd.api.types.infer_dtype(values, skipna=True)
    return SordinoError(
        f"column {name!r} holds {kind} values ({series.dtype}); only numbers, text and "
        "booleans can be features: convert or drop it"
    )


def _infer_target(
    name: str, series: Any
) -> tuple[tuple[Value, ...] | None, tuple[float, float] | None, bool]:
    kind = kind_of(name, series)
    if kind == BOOLEAN:
        return (False, True), None, False
    if kind == NUMBER:
        numbers_of(name, series)  # refuses what cannot be used
        series = pd.to_numeric(series)
        values = series.dropna().unique()
        whole = bool((values == values.round()).all())
        if not (whole and 2 <= len(values) <= MOST_CLASSES):
            return None, _range(name, series), True
        return tuple(sorted(int(value) for value in values)), None, True
    return vocabulary(name, series), None, True


def _range(name: str, series: Any) -> tuple[float, float]:
    values = numbers_of(name, series)
    values = values[np.isfinite(values)]
    if not values.size:
        return -1.0, 1.0
    low, high = float(values.min()), float(values.max())
    # A constant column carries nothing: it becomes the middle of any interval around it.
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)

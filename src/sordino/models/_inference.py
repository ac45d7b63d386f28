"""Descriptions of columns: declared by `feature_bounds` and `categories`, or taken from the data.

What is taken from the data is convenient, not private, and said so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import PrivacyWarning, SordinoError, nearest
from sordino.models._checks import Features
from sordino.models._schema import (
    Categorical,
    Column,
    Numeric,
    Schema,
    Value,
    check_columns,
    numbers_of,
    parse_values,
)

Given = TypeVar("Given")
# Public bounds: of all columns, of each, or by name; the values of columns of text, by name.
Bounds: TypeAlias = ArrayLike | Mapping[str, Sequence[float]]
Categories: TypeAlias = Mapping[str, Any]
# A text column with more values than this is an identifier or free text, not a category.
MOST_VALUES = 256
# A target of whole numbers with at most this many values is taken for a list of classes.
MOST_CLASSES = 20
# The way of estimators that take from the data what is not declared.
TAKE = "take"
_ONE_PAIR = (
    "for a DataFrame with categories give feature_bounds as (low, high) for all numeric columns or as a "
    "dict by column name"
)


def infer_schema(frame: pd.DataFrame, target: str | None = None) -> Schema:
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


def infer_column(name: str, series: pd.Series) -> tuple[Column, bool]:
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


def kind_of(name: str, series: pd.Series) -> str:
    """The kind of a column's values; what can be no feature is refused without being shown."""
    kind = known_kind(series)
    if kind is None:
        raise _no_feature(name, series, series)
    return kind


def known_kind(series: pd.Series) -> str | None:
    """The kind of a column's values, None where it can be no feature."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or str(dtype).startswith("dictionary<"):
        return CATEGORY
    if pd.api.types.is_bool_dtype(dtype):
        return BOOLEAN
    if pd.api.types.is_numeric_dtype(dtype):
        return None if dtype.kind == "c" else NUMBER
    return _KINDS.get(pd.api.types.infer_dtype(series, skipna=True))


def vocabulary(name: str, series: pd.Series) -> tuple[Value, ...]:
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


def _no_feature(name: str, series: pd.Series, values: pd.Series) -> SordinoError:
    kind = pd.api.types.infer_dtype(values, skipna=True)
    return SordinoError(
        f"column {name!r} holds {kind} values ({series.dtype}); only numbers, text and "
        "booleans can be features: convert or drop it"
    )


def _infer_target(
    name: str, series: pd.Series
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


def _range(name: str, series: pd.Series) -> tuple[float, float]:
    values = numbers_of(name, series)
    values = values[np.isfinite(values)]
    if not values.size:
        return -1.0, 1.0
    low, high = float(values.min()), float(values.max())
    # A constant column carries nothing: it becomes the middle of any interval around it.
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def is_table(X: Features, feature_bounds: Bounds | None, categories: Categories | None) -> bool:
    """Whether X is a DataFrame whose columns are described by name or are not all numbers."""
    if not isinstance(X, pd.DataFrame):
        if isinstance(feature_bounds, Mapping):
            raise SordinoError("feature_bounds by column name need X to be a pandas DataFrame")
        if categories is not None:
            raise SordinoError("categories name columns, so they need X to be a pandas DataFrame")
        return False
    if isinstance(feature_bounds, Mapping) or categories is not None:
        return True
    # Not by types alone: one missing value makes objects of booleans, and must not make a table.
    return not all(known_kind(X.iloc[:, i]) in (NUMBER, BOOLEAN) for i in range(X.shape[1]))


def table_schema(
    X: pd.DataFrame, feature_bounds: Bounds | None, categories: Categories | None
) -> tuple[Schema, list[str]]:
    """The schema of a DataFrame's columns, and what of it had to be taken from the data."""
    listed = by_name("categories", categories)
    bounds = feature_bounds
    if not isinstance(bounds, Mapping) and bounds is not None and np.shape(bounds) != (2,):
        raise SordinoError(_ONE_PAIR)
    names = [str(name) for name in X.columns]
    for what, given in (("categories", listed), ("feature_bounds", bounds)):
        _check_names(what, given, names)
    if not names:
        raise SordinoError("X has no columns")
    check_columns(X, tuple(X.columns))
    columns: list[Column] = []
    private, untold = [], []
    for name in names:
        series = X[name]
        if name in listed:
            columns.append(Categorical(name, listed[name]))
        elif isinstance(bounds, Mapping) and name in bounds:
            columns.append(Numeric(name, *_pair(name, bounds[name])))
        elif (kind := kind_of(name, series)) == BOOLEAN:
            columns.append(Numeric(name, 0, 1))
            untold.append(name)
        elif kind == NUMBER:
            untold.append(name)
            if bounds is None or isinstance(bounds, Mapping):
                raise SordinoError(
                    f"the numeric column {name!r} has no bounds; give feature_bounds={{{name!r}: "
                    "(low, high), ...} from public knowledge"
                )
            columns.append(Numeric(name, *_pair(name, bounds)))
        else:
            columns.append(Categorical(name, vocabulary(name, series)))
            private.append(name)
    taken = []
    if private:
        taken.append(f"the values of {_quoted(private)} (categories={{...}})")
    if untold:
        taken.append(
            f"that {_quoted(untold)} hold numbers or booleans (feature_bounds={{...}} by name)"
        )
    return Schema(tuple(columns)), taken


def declared_columns(
    names: Sequence[str], feature_bounds: Bounds | None, categories: Categories | None
) -> dict[str, Numeric | Categorical]:
    """The columns that are declared: by name, or all as numbers where there is one pair of bounds."""
    listed = by_name("categories", categories)
    for what, given in (("categories", listed), ("feature_bounds", feature_bounds)):
        _check_names(what, given, names)
    found: dict[str, Numeric | Categorical] = {}
    if isinstance(feature_bounds, Mapping):
        found |= {name: Numeric(name, *_pair(name, pair)) for name, pair in feature_bounds.items()}
    elif feature_bounds is not None:
        others = [name for name in names if name not in listed]
        if listed and np.shape(feature_bounds) != (2,):
            raise SordinoError(_ONE_PAIR)
        bounds = public_bounds(feature_bounds, len(others))
        assert bounds is not None
        found |= {name: Numeric(name, *pair) for name, pair in zip(others, bounds.T, strict=True)}
    return found | {name: Categorical(name, values) for name, values in listed.items()}


def public_bounds(feature_bounds: Any, features: int) -> NDArray[np.float64] | None:
    """`feature_bounds` as an array (2, features), or None."""
    if feature_bounds is None:
        return None
    try:
        bounds = np.asarray(feature_bounds, np.float64)
    except (TypeError, ValueError):
        bounds = np.zeros(0)
    if bounds.shape == (2,):
        bounds = np.repeat(bounds[:, None], features, axis=1)
    if bounds.shape != (2, features):
        raise SordinoError(
            f"feature_bounds must be (low, high) or have shape (2, {features}) for X with "
            f"{features} features, got shape {np.shape(feature_bounds)}"
        )
    with np.errstate(all="ignore"):
        # Columns are multiplied by 2 over the distance.
        far = bounds[1] - bounds[0]
        usable = np.isfinite(far) & np.isfinite(2 / far)
    wrong = ~(np.isfinite(bounds).all(axis=0) & (bounds[0] < bounds[1]) & usable)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise SordinoError(
            "feature_bounds need finite numbers with low < high, at a distance that numbers can "
            f"express, got ({bounds[0, at]:g}, {bounds[1, at]:g}) for feature {at}"
        )
    return bounds


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _check_names(what: str, given: object, names: Sequence[str]) -> None:
    for name in given if isinstance(given, Mapping) else ():
        if name not in names:
            hint = nearest(str(name), names)
            raise SordinoError(f"{what} describe {name!r}, which is no column of X{hint}")


def by_name(what: str, given: Mapping[str, Given] | None) -> Mapping[str, Given]:
    """What is declared of columns, by name."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SordinoError(f"{what} must be a dict by column name, got {type(given).__name__}")
    return given


def _pair(name: str, bounds: Any) -> tuple[float, float]:
    if np.shape(bounds) != (2,):
        raise SordinoError(f"the bounds of column {name!r} must be (low, high), got {bounds!r}")
    return bounds[0], bounds[1]

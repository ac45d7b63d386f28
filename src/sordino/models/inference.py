"""Schemas taken from the data: convenient, not private, and said so."""

from __future__ import annotations

import warnings
from typing import Any

from sordino.errors import PrivacyWarning, SordinoError
from sordino.models.features import Categorical, Column, Numeric, Value
from sordino.models.schema import Schema, check_columns

# A text column with more values than this is an identifier or free text, not a category.
MOST_VALUES = 256
# A target of whole numbers with at most this many values is taken for a list of classes.
MOST_CLASSES = 20


def infer_schema(frame: Any, target: str | None = None) -> Schema:
    """See `Schema.infer`."""
    check_columns(frame, () if target is None else (target,))
    if not len(frame):
        raise SordinoError("a schema cannot be inferred from a table without rows")
    taken: list[str] = ["the number of rows"]
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
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        return Categorical(name, tuple(series.dtype.categories)), False
    if pd.api.types.is_bool_dtype(series.dtype):
        return Numeric(name, 0, 1), False
    if pd.api.types.is_numeric_dtype(series.dtype) and series.dtype.kind != "c":
        return Numeric(name, *_range(series)), True
    return Categorical(name, vocabulary(name, series)), True


def vocabulary(name: str, series: Any) -> tuple[Value, ...]:
    """The distinct values of a text column, sorted: private."""
    import pandas as pd

    kind = pd.api.types.infer_dtype(series, skipna=True)
    if kind not in ("string", "boolean"):
        raise SordinoError(
            f"column {name!r} holds {kind} values ({series.dtype}); only numbers, text and "
            "booleans can be features: convert or drop it"
        )
    values = sorted(series.dropna().unique().tolist())
    if len(values) > MOST_VALUES:
        raise SordinoError(
            f"column {name!r} has more than {MOST_VALUES} different values; drop it, or declare "
            "the values that matter"
        )
    return tuple(values)


def _infer_target(
    name: str, series: Any
) -> tuple[tuple[Value, ...] | None, tuple[float, float] | None, bool]:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        return tuple(series.dtype.categories), None, False
    if pd.api.types.is_bool_dtype(series.dtype):
        return (False, True), None, False
    if pd.api.types.is_numeric_dtype(series.dtype):
        values = series.dropna().unique()
        whole = bool((values == values.round()).all())
        if not (whole and 2 <= len(values) <= MOST_CLASSES):
            return None, _range(series), True
        return tuple(sorted(int(value) for value in values)), None, True
    return vocabulary(name, series), None, True


def _range(series: Any) -> tuple[float, float]:
    import numpy as np

    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    values = values[np.isfinite(values)]
    if not values.size:
        return -1.0, 1.0
    low, high = float(values.min()), float(values.max())
    # A constant column carries nothing: it becomes the middle of any interval around it.
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)

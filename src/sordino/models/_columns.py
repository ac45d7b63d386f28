"""From the estimators' `feature_bounds` and `categories` to a description of the columns of X."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, nearest
from sordino.models._features import Categorical, Column, Numeric
from sordino.models._inference import BOOLEAN, NUMBER, kind_of, known_kind, vocabulary
from sordino.models._schema import Schema, check_columns


def is_table(X: Any, feature_bounds: Any, categories: Any) -> bool:
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


def table_schema(X: Any, feature_bounds: Any, categories: Any) -> tuple[Schema, list[str]]:
    """The schema of a DataFrame's columns, and what of it had to be taken from the data."""
    listed = _by_name("categories", categories)
    bounds = feature_bounds
    if not isinstance(bounds, Mapping) and bounds is not None:
        if np.shape(bounds) != (2,):
            raise SordinoError(
                "for a DataFrame with categories give feature_bounds as (low, high) for all "
                "numeric columns or as a dict by column name"
            )
    elif bounds is not None:
        bounds = _by_name("feature_bounds", bounds)
    names = [str(name) for name in X.columns]
    for what, given in (("categories", listed), ("feature_bounds", bounds)):
        for name in given if isinstance(given, Mapping) else ():
            if name not in names:
                hint = nearest(str(name), names)
                raise SordinoError(f"{what} describe {name!r}, which is no column of X{hint}")
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


def _by_name(what: str, given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise SordinoError(f"{what} must be a dict by column name, got {type(given).__name__}")
    return given


def _pair(name: str, bounds: Any) -> tuple[Any, Any]:
    if np.shape(bounds) != (2,):
        raise SordinoError(f"the bounds of column {name!r} must be (low, high), got {bounds!r}")
    return bounds[0], bounds[1]

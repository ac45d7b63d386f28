"""One column of a table: what is public about it, and how its values become features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, shown
from sordino.models._checks import checked_numbers, discreetly

Value = str | int | float | bool


@dataclass(frozen=True)
class Numeric:
    """A column of numbers known to lie in ``[low, high]``; values outside are moved to the edge."""

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = parse_bounds(f"column {shown(self.name)}", (self.low, self.high))
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, series: Any) -> NDArray[np.float32]:
        """``[low, high] -> [-1, 1]``, missing values -> 0; shape (rows, 1)."""
        values = numbers_of(self.name, series)
        middle, half = self.low / 2 + self.high / 2, (self.high - self.low) / 2
        # Silently: a number so large that it overflows here is moved to the edge as well.
        with np.errstate(all="ignore"):
            scaled = np.clip((values - middle) / half, -1.0, 1.0)
            return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Categorical:
    """A column whose possible `values` are known; any other value is treated as missing."""

    name: str
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        values = parse_values(f"column {shown(self.name)}", self.values, minimum=1)
        object.__setattr__(self, "values", values)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={value}" for value in self.values)

    def encode(self, series: Any) -> NDArray[np.float32]:
        """One indicator per value, all zero where missing or unknown; shape (rows, values)."""
        import pandas as pd

        text = all(isinstance(value, str) for value in self.values)
        numbers = not any(isinstance(value, str) for value in self.values)
        holds_numbers = pd.api.types.is_numeric_dtype(series.dtype)
        # Otherwise every value would be silently "unknown".
        if text and holds_numbers and len(series):
            raise SordinoError(
                f"column {self.name!r} holds numbers ({series.dtype}) but its declared values are "
                "text; declare numbers, or read the column as text"
            )
        if numbers and pd.api.types.is_string_dtype(series.dtype) and series.notna().any():
            raise SordinoError(
                f"column {self.name!r} holds text but its declared values are numbers; declare "
                "text, or convert the column"
            )
        codes = discreetly(
            lambda: pd.Index(list(self.values)).get_indexer(
                pd.Index(series.to_numpy(dtype=object))
            ),
            f"column {self.name!r}",
            "{what} holds something that is neither text nor a number; convert it, or drop the column",
        )
        codes = np.where(series.isna().to_numpy(), -1, codes)
        hot: NDArray[np.bool_] = codes[:, None] == np.arange(len(self.values))
        return hot.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "values": list(self.values)}


Column = Numeric | Categorical


def parse_bounds(what: str, bounds: Any) -> tuple[float, float]:
    """``(low, high)`` as finite floats with low < high; `what` names them in the error."""
    try:
        if any(isinstance(value, str | bytes | bool) for value in bounds):
            raise TypeError
        low, high = (float(value) for value in bounds)
    except (TypeError, ValueError, OverflowError):
        raise SordinoError(f"{what} needs two numbers (low, high), got {shown(bounds)}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SordinoError(f"{what} needs finite bounds with low < high, got ({low:g}, {high:g})")
    # Columns are divided by half the distance.
    half = (high - low) / 2
    if not (math.isfinite(half) and half > 0 and math.isfinite(1 / half)):
        raise SordinoError(
            f"{what} needs bounds at a distance that numbers can express, got ({low:g}, {high:g})"
        )
    return low, high


def parse_values(what: str, values: Any, *, minimum: int) -> tuple[Value, ...]:
    """At least `minimum` different scalars; `what` names them in the error."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise SordinoError(f"{what} needs a list of values, got {shown(values)}")
    listed = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    for value in listed:
        if isinstance(value, str):
            check_text(f"a value of {what}", value)
        elif not isinstance(value, int | float) or value != value:
            raise SordinoError(f"{what} may list text, numbers or booleans, got {shown(value)}")
        elif isinstance(value, int) and abs(value) >= 1 << 63:
            raise SordinoError(f"{what} lists a number too large to use, {shown(value)}")
    if len(set(listed)) != len(listed):
        raise SordinoError(f"{what} lists a value more than once")
    if len(listed) < minimum:
        raise SordinoError(f"{what} needs at least {minimum} of them, got {len(listed)}")
    return listed


def check_text(what: str, text: str) -> None:
    """Refuse text that no file can hold: JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SordinoError(f"{what} is not valid Unicode text: {shown(text)}") from None


def numbers_of(name: str, series: Any) -> NDArray[np.float64]:
    """A column as float64 with NaN where missing; text is refused without quoting it."""
    import pandas as pd

    kind = pd.api.types.infer_dtype(series, skipna=True)
    if kind not in ("integer", "floating", "mixed-integer-float", "boolean", "decimal", "empty"):
        raise SordinoError(
            f"column {name!r} is declared numeric but holds {kind} values ({series.dtype}); "
            "convert it to numbers, or declare its values"
        )
    return checked_numbers(
        lambda: np.asarray(pd.to_numeric(series).to_numpy(dtype=np.float64, na_value=np.nan)),
        f"column {name!r}",
    )

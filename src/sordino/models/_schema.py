"""A public description of a table: what may be known about the data before any of it is read.

    schema = Schema(
        columns=(Numeric("age", 18, 89), Categorical("gender", ("Female", "Male"))),
        target="income_above_15000", classes=(0, 1), examples=37_887,
    )
    X = schema.encode(frame)          # float32 (rows, 3): age in [-1, 1], two indicators

Bounds, categories, classes and the number of rows come from public knowledge (a codebook, a form),
not from the data. Encoding treats each row by itself, so one person's values never move another's.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import (
    SordinoError,
    nearest,
    one_line,
    require_choice,
    require_count,
    shown,
)
from sordino._base.types import Json
from sordino.models._cells import Cells, RawTable
from sordino.models._checks import checked_numbers, discreetly
from sordino.models._kinds import Found, found_from_json

if TYPE_CHECKING:
    import pandas as pd

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

    def encode(self, series: pd.Series) -> NDArray[np.float32]:
        """``[low, high] -> [-1, 1]``, missing values -> 0; shape (rows, 1)."""
        return self._scaled(numbers_of(self.name, series))

    def _scaled(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        middle, half = self.low / 2 + self.high / 2, (self.high - self.low) / 2
        # Silently: a number so large that it overflows here is moved to the edge as well.
        with np.errstate(all="ignore"):
            scaled = np.clip((values - middle) / half, -1.0, 1.0)
            return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, None]

    def encode_cells(self, cells: Cells) -> NDArray[np.float32]:
        """The same for cells: what is no number (True and False are) counts as missing."""
        values = np.full(cells.rows, np.nan) if cells.numbers is None else cells.numbers
        flags = cells.positions((False, True)) if cells.codes is not None else -1
        return self._scaled(np.where((flags >= 0) & np.isnan(values), flags, values))

    def to_json(self) -> Json:
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

    def encode(self, series: pd.Series) -> NDArray[np.float32]:
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
        return self._hot(codes)

    def encode_cells(self, cells: Cells) -> NDArray[np.float32]:
        """The same for cells."""
        return self._hot(cells.positions(self.values))

    def _hot(self, codes: NDArray[np.int64]) -> NDArray[np.float32]:
        hot: NDArray[np.bool_] = codes[:, None] == np.arange(len(self.values))
        return hot.astype(np.float32)

    def to_json(self) -> Json:
        return {"name": self.name, "values": list(self.values)}


Column = Numeric | Categorical | Found


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


def numbers_of(name: str, series: pd.Series) -> NDArray[np.float64]:
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


FORMAT = "sordino-schema"
# The second knows columns that a release found, and how cells are read.
FORMAT_VERSION = 2
_SCHEMA_FIELDS = (
    "columns",
    "target",
    "classes",
    "target_bounds",
    "examples",
    "decimal",
    "date_formats",
    "by_cell",
)


@dataclass(frozen=True)
class Schema:
    """What is public about a table.

    Attributes:
      columns: the feature columns, in the order of the encoded features.
      target: the column to predict.
      classes: the possible labels, for classification.
      target_bounds: the range of the target, for regression.
      examples: the number of rows, where it is public.
      decimal: the decimal mark of numbers that are text.
      date_formats: pairs of a column and how its dates are written, where not in ISO 8601.
      by_cell: whether a table is read cell by cell though all of its columns are declared.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    classes: tuple[Value, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    examples: int | None = None
    decimal: str = "."
    date_formats: tuple[tuple[str, str], ...] = ()
    by_cell: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not self.columns:
            raise SordinoError("a schema needs at least one column")
        names = [column.name for column in self.columns]
        for name, times in Counter(names).items():
            check_text("a column's name", name)
            if times > 1:
                raise SordinoError(f"the schema describes column {shown(name)} more than once")
        if self.target is not None:
            check_text("the target", self.target)
        if self.target in names:
            raise SordinoError(
                f"the target {shown(self.target)} is also described as a feature; remove it from columns"
            )
        if self.classes is not None:
            if self.target_bounds is not None:
                raise SordinoError(
                    "give classes (classification) or target_bounds (regression), not both"
                )
            object.__setattr__(self, "classes", parse_values("classes", self.classes, minimum=2))
        if self.target_bounds is not None:
            bounds = parse_bounds("target_bounds", self.target_bounds)
            object.__setattr__(self, "target_bounds", bounds)
        if self.examples is not None:
            object.__setattr__(self, "examples", require_count("examples", self.examples))
        require_choice("decimal", self.decimal, (".", ","))
        formats = tuple((name, written) for name, written in self.date_formats)
        if not all(isinstance(part, str) for pair in formats for part in pair):
            raise SordinoError("date_formats are pairs of a column's name and a format")
        object.__setattr__(self, "date_formats", formats)
        if not isinstance(self.by_cell, bool):
            raise SordinoError(f"by_cell of a schema is true or false, got {shown(self.by_cell)}")

    @property
    def reads_cells(self) -> bool:
        """Whether tables are read cell by cell, so that no cell is an error."""
        return self.by_cell or self.of_cells

    @property
    def of_cells(self) -> bool:
        """Whether a column was found by a release, or how cells are written is declared."""
        found = any(not isinstance(column, Numeric | Categorical) for column in self.columns)
        return found or self.decimal != "." or bool(self.date_formats)

    def raw(self, frame: pd.DataFrame) -> RawTable:
        """A table whose cells are read as this schema says."""
        values = dict(self.categories)
        if self.target is not None and self.classes is not None:
            values[self.target] = self.classes
        return RawTable(
            frame, decimal=self.decimal, date_formats=dict(self.date_formats), values=values
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The feature columns' names."""
        return tuple(column.name for column in self.columns)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The encoded features' names: ``age``, ``gender=Female``, ``gender=Male``."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def width(self) -> int:
        """The number of encoded features."""
        return len(self.feature_names)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The numeric columns' bounds, as the estimators' `feature_bounds` takes them."""
        return {c.name: (c.low, c.high) for c in self.columns if isinstance(c, Numeric)}

    @property
    def categories(self) -> dict[str, tuple[Value, ...]]:
        """The categorical columns' values, as the estimators' `categories` takes them."""
        return {c.name: c.values for c in self.columns if isinstance(c, Categorical)}

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """The features of a DataFrame as float32 (rows, `width`), each row by itself.

        Numeric columns are clipped to their bounds and mapped to [-1, 1], missing ones become 0
        (the middle); categorical ones become indicators, all zero where missing or unknown.
        Columns that the schema does not describe are left out. With columns that a release found, all
        are read cell by cell, and no cell is an error.
        """
        self.check_columns(frame)
        if self.reads_cells:
            return self.encode_cells(self.raw(frame[list(self.names)]))
        declared = [column for column in self.columns if isinstance(column, Numeric | Categorical)]
        return np.concatenate([column.encode(frame[column.name]) for column in declared], axis=1)

    def encode_cells(self, table: Mapping[str, Cells]) -> NDArray[np.float32]:
        """The same from cells; no cell is an error."""
        parts = [
            column.encode_cells(table[column.name])
            if isinstance(column, Numeric | Categorical)
            else column.encode(table[column.name])
            for column in self.columns
        ]
        return np.concatenate(parts, axis=1)

    def split(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
        """The feature columns and the target column of a DataFrame."""
        if self.target is None:
            raise SordinoError("the schema names no target column")
        check_columns(frame, (*self.names, self.target))
        return frame[list(self.names)], frame[self.target]

    def check_columns(self, frame: pd.DataFrame) -> None:
        """Raise unless `frame` is a DataFrame that has every feature column once."""
        check_columns(frame, self.names)

    @classmethod
    def infer(cls, frame: pd.DataFrame, target: str | None = None) -> Schema:
        """A schema taken FROM THE DATA, with a `PrivacyWarning` that says what was taken.

        A category type counts as data: its categories are named in the warning like the values of
        text. Nothing about this is covered by a guarantee: use it on public or synthetic data, or to
        write a first draft to correct by hand.
        """
        from sordino.models._inference import infer_schema

        return infer_schema(frame, target)

    def to_json(self) -> Json:
        """Plain, versioned data."""
        cells: Json = {} if self.decimal == "." else {"decimal": self.decimal}
        if self.date_formats:
            cells["date_formats"] = dict(self.date_formats)
        if self.by_cell:
            cells["by_cell"] = True
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION if self.reads_cells else 1,
            "columns": [column.to_json() for column in self.columns],
            "target": self.target,
            "classes": None if self.classes is None else list(self.classes),
            "target_bounds": None if self.target_bounds is None else list(self.target_bounds),
            "examples": self.examples,
            **cells,
        }

    @classmethod
    def from_json(cls, data: object) -> Schema:
        """The schema that `to_json` wrote, or one written by hand.

        By hand, `format` and `version` may be left out, and `columns` may map names to
        ``{"low": 18, "high": 89}`` or ``{"values": ["Female", "Male"]}``.
        """
        if not isinstance(data, Mapping) or data.get("format", FORMAT) != FORMAT:
            raise SordinoError("this is not a schema: it must be a table with the field 'columns'")
        fields = {key: value for key, value in data.items() if key not in ("format", "version")}
        if data.get("version", FORMAT_VERSION) not in (1, FORMAT_VERSION):
            raise SordinoError(
                f"this schema has format version {shown(data['version'])}; version 1 and "
                f"{FORMAT_VERSION} are known here"
            )
        for key in fields:
            if key not in _SCHEMA_FIELDS:
                raise SordinoError(
                    f"a schema has no field {shown(key)}{nearest(key, _SCHEMA_FIELDS)}"
                )
        columns = fields.pop("columns", None)
        if isinstance(columns, Mapping):
            columns = [
                {"name": name, **body} if isinstance(body, Mapping) else body
                for name, body in columns.items()
            ]
        if not isinstance(columns, list):
            raise SordinoError("a schema needs the field 'columns': a list, or a table by name")
        formats = fields.pop("date_formats", {})
        if not isinstance(formats, Mapping):
            raise SordinoError("date_formats of a schema are a table of formats by column")
        fields["date_formats"] = tuple(formats.items())
        target = fields.get("target")
        if target is not None and not isinstance(target, str):
            raise SordinoError(f"target must be a column's name, got {shown(target)}")
        return cls(columns=tuple(_column(body) for body in columns), **fields)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a schema from a JSON or TOML file."""
        where = Path(path)
        kind = where.suffix.lower()
        if kind not in (".json", ".toml"):
            raise SordinoError(f"a schema is a .json or .toml file, got {str(where)!r}")
        try:
            text = where.read_text(encoding="utf-8")
            data = json.loads(text) if kind == ".json" else tomllib.loads(text)
        except FileNotFoundError:
            raise SordinoError(f"there is no schema at {str(where)!r}") from None
        except OSError as error:
            raise SordinoError(f"cannot read {str(where)!r}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise SordinoError(
                f"{str(where)!r} is not valid {kind[1:].upper()}: {_why(error)}"
            ) from None
        try:
            return cls.from_json(data)
        except SordinoError as error:
            raise SordinoError(f"in {str(where)!r}: {error}") from None


def check_columns(frame: pd.DataFrame, names: tuple[str, ...]) -> None:
    """Raise unless `frame` is a DataFrame that has each of `names` once."""
    if not hasattr(frame, "columns"):
        raise SordinoError(
            f"a table with named columns (a pandas DataFrame) is needed, got {type(frame).__name__}"
        )
    present = Counter(frame.columns)
    for name in names:
        if name not in present:
            hint = nearest(name, [str(other) for other in present])
            raise SordinoError(f"the table has no column {shown(name)}{hint}")
        if present[name] > 1:
            raise SordinoError(f"the table has more than one column {shown(name)}; rename them")


def _column(body: object) -> Column:
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise SordinoError(
            "every column of a schema needs a 'name', and 'low' and 'high' or 'values'"
        )
    if "kind" in body:
        return found_from_json(dict(body))
    keys = set(body)
    if keys == {"name", "low", "high"}:
        return Numeric(**body)
    if keys == {"name", "values"}:
        return Categorical(**body)
    raise SordinoError(
        f"column {shown(body['name'])} needs either 'low' and 'high' or 'values', got "
        f"{shown(sorted(str(key) for key in keys - {'name'}))}"
    )


def _why(error: Exception) -> str:
    """What is wrong with a JSON or TOML text, in a few words."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text ({error.reason})"
    if "integer string conversion" in str(error):
        return "it holds a number of too many digits"
    return one_line(error)

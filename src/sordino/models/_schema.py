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
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, nearest, one_line, require_count, shown
from sordino.models._features import (
    Categorical,
    Column,
    Numeric,
    Value,
    check_text,
    parse_bounds,
    parse_values,
)

__all__ = ["Categorical", "Column", "Numeric", "Schema", "Value", "check_columns"]

FORMAT = "sordino-schema"
FORMAT_VERSION = 1
_SCHEMA_FIELDS = ("columns", "target", "classes", "target_bounds", "examples")


@dataclass(frozen=True)
class Schema:
    """What is public about a table.

    Attributes:
      columns: the feature columns, in the order of the encoded features.
      target: the column to predict.
      classes: the possible labels, for classification.
      target_bounds: the range of the target, for regression.
      examples: the number of rows, where it is public.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    classes: tuple[Value, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    examples: int | None = None

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

    def encode(self, frame: Any) -> NDArray[np.float32]:
        """The features of a DataFrame as float32 (rows, `width`), each row by itself.

        Numeric columns are clipped to their bounds and mapped to [-1, 1], missing ones become 0
        (the middle); categorical ones become indicators, all zero where missing or unknown.
        Columns that the schema does not describe are left out.
        """
        self.check_columns(frame)
        parts = [column.encode(frame[column.name]) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def split(self, frame: Any) -> tuple[Any, Any]:
        """The feature columns and the target column of a DataFrame."""
        if self.target is None:
            raise SordinoError("the schema names no target column")
        check_columns(frame, (*self.names, self.target))
        return frame[list(self.names)], frame[self.target]

    def check_columns(self, frame: Any) -> None:
        """Raise unless `frame` is a DataFrame that has every feature column once."""
        check_columns(frame, self.names)

    @classmethod
    def infer(cls, frame: Any, target: str | None = None) -> Schema:
        """A schema taken FROM THE DATA, with a `PrivacyWarning` that says what was taken.

        A category type counts as data: its categories are named in the warning like the values of
        text. Nothing about this is covered by a guarantee: use it on public or synthetic data, or to
        write a first draft to correct by hand.
        """
        from sordino.models._inference import infer_schema

        return infer_schema(frame, target)

    def to_json(self) -> dict[str, Any]:
        """Plain, versioned data."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "columns": [column.to_json() for column in self.columns],
            "target": self.target,
            "classes": None if self.classes is None else list(self.classes),
            "target_bounds": None if self.target_bounds is None else list(self.target_bounds),
            "examples": self.examples,
        }

    @classmethod
    def from_json(cls, data: Any) -> Schema:
        """The schema that `to_json` wrote, or one written by hand.

        By hand, `format` and `version` may be left out, and `columns` may map names to
        ``{"low": 18, "high": 89}`` or ``{"values": ["Female", "Male"]}``.
        """
        if not isinstance(data, Mapping) or data.get("format", FORMAT) != FORMAT:
            raise SordinoError("this is not a schema: it must be a table with the field 'columns'")
        fields = {key: value for key, value in data.items() if key not in ("format", "version")}
        if data.get("version", FORMAT_VERSION) != FORMAT_VERSION:
            raise SordinoError(
                f"this schema has format version {shown(data['version'])}; version {FORMAT_VERSION} is "
                "known here"
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


def check_columns(frame: Any, names: tuple[str, ...]) -> None:
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


def _column(body: Any) -> Column:
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise SordinoError(
            "every column of a schema needs a 'name', and 'low' and 'high' or 'values'"
        )
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

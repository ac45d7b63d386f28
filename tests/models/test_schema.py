"""Public descriptions of tables: encoding, files, inference, and every refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.models._schema import Categorical, Numeric, Schema

SCHEMA = Schema(
    columns=(Numeric("age", 20, 60), Categorical("gender", ("Female", "Male"))),
    target="rich",
    classes=(0, 1),
    examples=4,
)
FRAME = pd.DataFrame(
    {
        "rich": [0, 1, 1, 0],
        "gender": ["Male", None, "Other", "Female"],
        "age": [20.0, 50.0, np.nan, 400.0],
    }
)


def test_encoding() -> None:
    encoded = SCHEMA.encode(FRAME)
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded, [[-1, 0, 1], [0.5, 0, 0], [0, 0, 0], [1, 1, 0]])
    assert SCHEMA.feature_names == ("age", "gender=Female", "gender=Male")
    assert SCHEMA.width == 3


def test_each_row_is_encoded_by_itself() -> None:
    whole = SCHEMA.encode(FRAME)
    for i in range(len(FRAME)):
        np.testing.assert_array_equal(SCHEMA.encode(FRAME.iloc[[i]]), whole[[i]])


def test_infinities_and_nullable_columns() -> None:
    column = Numeric("x", 0, 1)
    values = pd.Series([np.inf, -np.inf, 0.5])
    np.testing.assert_array_equal(column.encode(values)[:, 0], [1, -1, 0])
    nullable = pd.Series([1, None, 0], dtype="Int64")
    np.testing.assert_array_equal(column.encode(nullable)[:, 0], [1, 0, -1])
    np.testing.assert_array_equal(column.encode(pd.Series([True, False]))[:, 0], [1, -1])
    assert Categorical("x", (1, 2)).encode(pd.Series([2.0, np.nan, 7.0])).tolist() == [
        [0, 1],
        [0, 0],
        [0, 0],
    ]
    categorical = pd.Series(["b", None, "c"], dtype=pd.CategoricalDtype(["a", "b", "c"]))
    assert Categorical("x", ("b",)).encode(categorical).tolist() == [[1], [0], [0]]


def test_split() -> None:
    X, y = SCHEMA.split(FRAME)
    assert list(X.columns) == ["age", "gender"]
    assert y.tolist() == [0, 1, 1, 0]
    with pytest.raises(SordinoError, match="names no target"):
        Schema((Numeric("age", 0, 1),)).split(FRAME)


def test_json_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA.to_json()), encoding="utf-8")
    assert Schema.load(path) == SCHEMA
    regression = Schema((Numeric("x", 0, 1),), "y", target_bounds=(0, 10))
    assert Schema.from_json(json.loads(json.dumps(regression.to_json()))) == regression


def test_toml_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(
        'target = "rich"\nclasses = [0, 1]\nexamples = 4\n[columns]\n'
        'age = {low = 20, high = 60}\ngender = {values = ["Female", "Male"]}\n',
        encoding="utf-8",
    )
    assert Schema.load(path) == SCHEMA
    assert SCHEMA.bounds == {"age": (20, 60)}
    assert SCHEMA.categories == {"gender": ("Female", "Male")}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.rename(columns={"age": "aeg"}), "no column 'age'; did you mean 'aeg'?"),
        (FRAME.drop(columns="gender"), "the table has no column 'gender'"),
        (FRAME.assign(age=["x", "y", "z", "w"]), "declared numeric but holds string values"),
        (FRAME.assign(gender=[1, 2, 3, 4]), "holds numbers (int64) but its declared values"),
        (pd.concat([FRAME, FRAME[["age"]]], axis=1), "more than one column 'age'"),
        (np.zeros((2, 2)), "a pandas DataFrame) is needed, got ndarray"),
    ],
)
def test_tables_that_do_not_fit(frame: Any, message: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)) as caught:
        SCHEMA.encode(frame)
    assert "\n" not in str(caught.value)


def test_text_where_numbers_are_declared() -> None:
    with pytest.raises(SordinoError, match="holds text but its declared values are numbers"):
        Categorical("x", (1, 2)).encode(pd.Series(["1", "2"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numeric("age", 3, 3), "column 'age' needs finite bounds with low < high"),
        (lambda: Numeric("age", 0, np.inf), "column 'age' needs finite bounds"),
        (lambda: Numeric("age", "a", 1), "needs two numbers (low, high)"),
        (lambda: Categorical("g", "abc"), "column 'g' needs a list of values"),
        (lambda: Categorical("g", ("a", "a")), "lists a value more than once"),
        (lambda: Categorical("g", ()), "needs at least 1 of them, got 0"),
        (lambda: Categorical("g", (None,)), "may list text, numbers or booleans"),
        (lambda: Schema(()), "at least one column"),
        (lambda: Schema((Numeric("a", 0, 1), Numeric("a", 0, 1))), "'a' more than once"),
        (lambda: Schema((Numeric("a", 0, 1),), "a"), "the target 'a' is also described"),
        (lambda: Schema((Numeric("a", 0, 1),), classes=(1,)), "at least 2 of them, got 1"),
        (
            lambda: Schema((Numeric("a", 0, 1),), classes=(0, 1), target_bounds=(0, 1)),
            "not both",
        ),
        (lambda: Schema((Numeric("a", 0, 1),), target_bounds=(1, 0)), "target_bounds needs"),
        (lambda: Schema((Numeric("a", 0, 1),), examples=0), "examples must be a whole number"),
        (lambda: Schema.from_json([]), "this is not a schema"),
        (lambda: Schema.from_json({}), "needs the field 'columns'"),
        (lambda: Schema.from_json({"columns": [3]}), "needs a 'name'"),
        (lambda: Schema.from_json({"columns": {"a": {"low": 1}}}), "needs either 'low' and 'high'"),
        (lambda: Schema.from_json({"colums": []}), "no field 'colums'; did you mean 'columns'?"),
        (lambda: Schema.from_json({"columns": [], "version": 9}), "format version 9"),
        (
            lambda: Schema.from_json({"columns": {"a": {"values": [1]}}, "target": 3}),
            "target must be a column's name",
        ),
    ],
)
def test_schemas_that_are_wrong(make: Any, message: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "there is no schema at"),
        ("schema.yaml", b"a: 1", "a .json or .toml file"),
        ("schema.json", b"{", "is not valid JSON"),
        ("schema.toml", b"=", "is not valid TOML"),
        ("schema.json", b"\xff\xfe", "is not valid JSON"),
        ("schema.json", b'{"columns": 1}', "needs the field 'columns'"),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SordinoError, match=re.escape(message)) as caught:
        Schema.load(path)
    assert str(path) in str(caught.value)


def test_inference_says_what_it_took() -> None:
    frame = FRAME.assign(
        kind=pd.Categorical(["a", "b", "a", "b"], categories=["a", "b", "c"]),
        flag=[True, False, True, True],
        constant=3,
    )
    with pytest.warns(PrivacyWarning) as caught:
        schema = Schema.infer(frame, "rich")
    (warning,) = caught
    text = str(warning.message)
    assert warning.filename == __file__
    assert "the number of rows" in text
    assert "the smallest and largest values of 'age', 'constant'" in text
    assert "the values of 'gender', 'kind'" in text
    assert "the columns and what kind of values they hold" in text
    assert "the classes of the target 'rich'" in text
    # Of a boolean column nothing is taken but that it is one.
    assert "flag" not in text
    assert schema.categories == {
        "gender": ("Female", "Male", "Other"),
        "kind": ("a", "b", "c"),
    }
    assert schema.bounds == {"age": (20, 400), "flag": (0, 1), "constant": (2, 4)}
    assert schema.classes == (0, 1)
    assert schema.examples == 4
    assert schema.encode(frame).shape == (4, schema.width)


def test_inferred_targets() -> None:
    x = np.arange(40)
    numbers = pd.DataFrame({"x": x, "y": x / 7})
    assert Schema.infer(numbers, "y").target_bounds == (0, 39 / 7)
    assert Schema.infer(numbers.assign(y=x), "y").target_bounds == (0, 39)
    assert Schema.infer(numbers.assign(y=x % 3), "y").classes == (0, 1, 2)
    assert Schema.infer(numbers.assign(y=x > 3), "y").classes == (False, True)
    assert Schema.infer(numbers.assign(y=np.where(x > 3, "a", "b")), "y").classes == ("a", "b")
    assert Schema.infer(numbers).target is None


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"x": []}), "without rows"),
        (pd.DataFrame({"x": [f"id{i}" for i in range(300)]}), "more than 256 different values"),
        (pd.DataFrame({"x": pd.to_datetime(["2020-01-01"])}), "holds datetime64 values"),
    ],
)
def test_inference_refuses(frame: Any, message: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)):
        Schema.infer(frame)

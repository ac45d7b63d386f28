"""What of a table counts as declared: nothing that came with the data."""

from __future__ import annotations

import html
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from sordino import PrivateClassifier
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.app.cli._main import app
from sordino.models._schema import Schema

ROWS = 60
RARE = "kuru"
WORDS = ["flu", "cold"] * (ROWS // 2)
WORDS[7] = RARE
AGE = np.arange(ROWS) % 50
SICK = (AGE > 25).astype(int)
FLAGS = [bool(value) for value in SICK]


def arrow_dictionary() -> Any:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(WORDS).dictionary_encode()))


COLUMNS: dict[str, Any] = {
    "category": lambda: pd.Series(WORDS).astype("category"),
    "ordered": lambda: pd.Series(
        pd.Categorical(WORDS, categories=["cold", "flu", RARE], ordered=True)
    ),
    "arrow-dictionary": arrow_dictionary,
    "object": lambda: pd.Series(WORDS, dtype=object),
    "str": lambda: pd.Series(WORDS, dtype="str"),
    "string": lambda: pd.Series(WORDS, dtype="string"),
    "arrow-string": lambda: pd.Series(WORDS, dtype=pd.ArrowDtype(pa.string())),
}
DECLARED: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-4,
    "classes": [0, 1],
    "examples": ROWS,
    "epochs": 1,
    "undeclared": "take",
}


def said(fit: Any) -> str:
    """The one warning of what was taken from the data; empty if there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    texts = [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
    texts = [text for text in texts if "fitted before" not in text]  # that is another matter
    assert len(texts) <= 1
    return texts[0] if texts else ""


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_values_of_every_type_of_column_are_named_in_the_warning(kind: str) -> None:
    """S6: a category (or Arrow dictionary) type names no category publicly: it comes from the data."""
    frame = pd.DataFrame({"age": AGE, "dx": COLUMNS[kind]()})
    model = PrivateClassifier(feature_bounds={"age": (0, 50)}, **DECLARED)
    text = said(lambda: model.fit(frame, SICK))
    assert f"dx={RARE}" in model.schema_.feature_names
    assert "the values of 'dx' (categories={...})" in text
    declared = PrivateClassifier(
        feature_bounds={"age": (0, 50)}, categories={"dx": ["flu", "cold"]}, **DECLARED
    )
    assert said(lambda: declared.fit(frame, SICK)) == ""
    assert declared.schema_.feature_names == ("age", "dx=flu", "dx=cold")


@pytest.mark.parametrize("kind", COLUMNS)
def test_an_inferred_schema_names_columns_and_target_of_every_type(kind: str) -> None:
    """S6: `Schema.infer` names category columns and a category target with the rest."""
    frame = pd.DataFrame({"dx": COLUMNS[kind](), "end": COLUMNS[kind]()})
    text = said(lambda: Schema.infer(frame, "end"))
    assert "the values of 'dx'" in text
    assert "the classes of the target 'end'" in text


def test_train_on_a_parquet_file_of_categories_says_what_it_took(tmp_path: Path) -> None:
    """S6: from Parquet, warning, report and guarantee.json name the column and the class list."""
    frame = pd.DataFrame({"age": AGE, "dx": COLUMNS["category"]()})
    frame["end"] = pd.Series(["home", "ward"] * (ROWS // 2)).astype("category")
    frame.to_parquet(tmp_path / "t.parquet")
    command = ["train", str(tmp_path / "t.parquet"), "--target", "end", "--epsilon", "3"]
    result = CliRunner().invoke(app, [*command, "--epochs", "1", "--undeclared", "take"])
    assert result.exit_code == 0, result.output
    stated = json.loads((tmp_path / "t-sordino" / "guarantee.json").read_text())
    report = (tmp_path / "t-sordino" / "report.html").read_text(encoding="utf-8")
    for words in ("the values of 'dx'", "the classes of the target 'end'"):
        assert words in result.stderr
        assert words in " ".join(stated["notes"])
        assert words in html.unescape(report)


def test_a_category_target_is_a_class_list_taken_from_the_data() -> None:
    """S6: with a pandas Categorical as y, ordered or not, the warning names the class list."""
    X = np.column_stack([AGE / 50, SICK])
    for ordered in (False, True):
        y = pd.Categorical(
            np.where(SICK, "ill", "well"), categories=["well", "ill"], ordered=ordered
        )
        model = PrivateClassifier(feature_bounds=(0, 1), **{**DECLARED, "classes": None})
        assert "the list of classes (classes=[...])" in said(lambda m=model, y=y: m.fit(X, y))
        assert model.classes_.tolist() == ["ill", "well"]


@pytest.mark.parametrize(
    "values",
    [
        pd.to_datetime(["1931-05-06"] * ROWS).astype("category"),
        pd.Series([pd.Interval(77, 78)] * ROWS).astype("category"),
        pd.Series(["caf\udce9-secret"] * ROWS, dtype=object),
    ],
    ids=["dates", "intervals", "half-characters"],
)
def test_a_refused_column_does_not_show_its_values(values: Any) -> None:
    """S6: a category that cannot be a feature is refused without being quoted."""
    frame = pd.DataFrame({"dx": values})
    with pytest.raises(SordinoError) as caught:
        PrivateClassifier(**DECLARED).fit(frame, SICK)
    for private in ("1931", "77", "secret", "udce9"):
        assert private not in str(caught.value)
    assert "'dx'" in str(caught.value)


@pytest.mark.parametrize("flag", ["bool", "boolean", "object"])
def test_one_missing_value_changes_no_feature_name_and_no_warning(flag: str) -> None:
    """S6: one person's empty field makes objects of booleans and numbers; the model's form stays."""
    whole = pd.DataFrame({"flag": FLAGS, "age": AGE, "dx": ["a", "b"] * (ROWS // 2)})
    holed = whole.astype({"flag": flag if flag != "bool" else object, "age": object})
    holed.loc[3, ["flag", "age"]] = None
    options = {"categories": {"dx": ["a", "b"]}, "feature_bounds": (0, 50), **DECLARED}
    found = []
    for frame in (whole, holed):
        model = PrivateClassifier(**options)
        found.append((said(lambda m=model, f=frame: m.fit(f, SICK)), model))
    (text, one), (other_text, other) = found
    assert one.schema_ == other.schema_
    assert one.schema_.feature_names == ("flag", "age", "dx=a", "dx=b")
    assert "that 'flag', 'age' hold numbers or booleans" in text
    assert "that 'flag', 'age' hold numbers or booleans" in other_text


def test_columns_declared_by_name_are_silent() -> None:
    """S6: everything declared by name is taken from nobody, whatever its type."""
    frame = pd.DataFrame({"flag": FLAGS, "age": AGE, "dx": COLUMNS["category"]()})
    model = PrivateClassifier(
        feature_bounds={"flag": (0, 1), "age": (0, 50)},
        categories={"dx": ["flu", "cold"]},
        **DECLARED,
    )
    assert said(lambda: model.fit(frame, SICK)) == ""

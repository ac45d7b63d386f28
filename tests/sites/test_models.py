"""What a federated run trains: linear models of tables, and models of one's own."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from sordino._base.errors import SordinoError
from sordino.models._saved import load_model
from sordino.models._schema import Categorical, Numeric, Schema
from sordino.parts._losses import LeastSquares, Logistic, Softmax
from sordino.together.sites._models import (
    ModelSpec,
    load_model_description,
    model_from_json,
    own_model,
    table_model,
)

COLUMNS = (Numeric("age", 18, 90), Categorical("town", ("north", "south")))
FRAME = pd.DataFrame({"age": [18, 54, 90, 30], "town": ["north", "south", "south", "north"]})


def schema(**target: Any) -> Schema:
    return Schema(COLUMNS, target="y", **target)


def written(tmp_path: Path, y: Any) -> Path:
    path = tmp_path / "table.csv"
    FRAME.assign(y=y).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("target", "y", "kind", "shape", "labels"),
    [
        ({"classes": ("no", "yes")}, ["no", "yes", "yes", "no"], Logistic, (4,), [0, 1, 1, 0]),
        ({"classes": (3, 1, 2)}, [1, 2, 3, 1], Softmax, (3, 4), [1, 2, 0, 1]),
        ({"target_bounds": (0, 10)}, [0, 5, 10, 20], LeastSquares, (4,), [-1, 0, 1, 1]),
    ],
)
def test_a_table(
    target: Any, y: Any, kind: type, shape: tuple[int, ...], labels: Any, tmp_path: Path
) -> None:
    model = table_model(schema(**target))
    assert isinstance(model.loss, kind)
    assert model.params.shape == shape
    assert model.parameters == np.prod(shape)
    X, found = model.load(written(tmp_path, y))
    assert X.shape == (4, 4)  # the age, two towns, and a constant
    assert np.linalg.norm(X, axis=1).max() <= 1 + 1e-6
    np.testing.assert_allclose(found, labels)
    vector = np.arange(model.parameters, dtype=np.float32) / 10
    assert model.unflattened(vector).shape == shape
    scores = model.evaluator((X, found))(vector)
    assert list(scores) == ["accuracy" if "classes" in target else "root mean squared error"]
    # The same model again, from what sites have in common.
    again = model_from_json(json.loads(json.dumps(model.description)))
    assert type(again.loss) is kind
    np.testing.assert_array_equal(again.load(tmp_path / "table.csv")[0], X)
    # What is saved predicts what the parameters say.
    name, raw = model.saved(vector)
    (tmp_path / name).write_bytes(raw)
    guess = load_model(tmp_path / name)[0].predict(FRAME)
    raw_scores = X @ model.unflattened(vector).T
    if "classes" not in target:
        np.testing.assert_allclose(guess, 5 + 5 * np.clip(raw_scores, -1, 1), rtol=1e-5)
    elif raw_scores.ndim == 1:
        assert list(guess) == [target["classes"][int(score > 0)] for score in raw_scores]
    else:
        assert list(guess) == [target["classes"][i] for i in np.argmax(raw_scores, axis=1)]


def test_tables_that_cannot_be_learnt_from(tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="names no target column"):
        table_model(Schema(COLUMNS))
    with pytest.raises(SordinoError, match="neither classes nor target_bounds"):
        table_model(schema())
    model = table_model(schema(classes=(0, 1)))
    with pytest.raises(SordinoError, match="labels that are not among the classes"):
        model.load(written(tmp_path, [0, 1, 2, 0]))
    with pytest.raises(SordinoError, match="missing values"):
        model.load(written(tmp_path, [0, 1, None, 0]))


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An installed module with models of its own."""
    module: Any = ModuleType("study_of_a_test")

    def loss(params: Any, x: Any, y: Any) -> Any:
        return (x @ params["w"] + params["b"] - y) ** 2

    start = {"b": np.zeros(()), "w": np.ones(2)}
    module.model = ModelSpec(loss, start, load=lambda path: (np.ones((3, 2)), np.ones(3)))
    module.made = lambda: pytest.fail("it was called")
    module.number = 7
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_model_of_ones_own(study: ModuleType) -> None:
    for name in ("study_of_a_test:model", "study_of_a_test"):
        model = own_model(name)
        assert model.description == {"kind": "own", "name": name}
        assert model.parameters == 3
        assert model_from_json(model.description, [name]).loss is model.loss
    vector = np.array([4.0, 1.0, 2.0], np.float32)  # in the order of the leaves: b, w
    params = model.unflattened(vector)
    assert params["b"] == 4
    np.testing.assert_array_equal(params["w"], [1, 2])
    data = (jnp.ones((3, 2)), jnp.ones(3))
    assert model.evaluator(data)(vector) == {"loss": pytest.approx(36.0)}
    name, raw = model.saved(vector)
    assert name == "model.npz"
    with np.load(io.BytesIO(raw), allow_pickle=False) as leaves:
        np.testing.assert_array_equal(leaves["leaf-1"], [1, 2])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module_at_all:model", "there is no model 'no_such_module_at_all:model' here"),
        ("study_of_a_test:nothing", "there is no model"),
        ("study_of_a_test:number", "is not a sordino.together.sites.Model"),
        ("study_of_a_test:made", "is not a sordino.together.sites.Model"),
        ("", "there is no model"),
        (":model", "there is no model"),
        ("..:model", "there is no model"),
    ],
)
def test_models_that_are_none(study: ModuleType, name: str, words: str) -> None:
    with pytest.raises(SordinoError, match=words) as caught:
        own_model(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "7", "{}", '{"kind": "table"}', '{"kind": "own", "name": 3}', "[" * 9999],
)
def test_descriptions_that_are_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(SordinoError):
        load_model_description(path)
    with pytest.raises(SordinoError, match="cannot read"):
        load_model_description(tmp_path / "nowhere.json")

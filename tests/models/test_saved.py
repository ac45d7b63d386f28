"""Released models survive the way to a file and back, and nothing else is taken for one."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sordino import PrivateClassifier, PrivateRegressor, SordinoError
from sordino.models._saved import load_model, model_bytes


def table(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.integers(0, 90, n), "work": rng.choice(["a", "b", "c"], n)})


PUBLIC = {"feature_bounds": {"age": (0, 90)}, "categories": {"work": ["a", "b", "c"]}}


@pytest.mark.parametrize("labels", [["no", "yes"], ["x", "y", "z"]])
def test_a_classifier_comes_back(tmp_path: Path, labels: list[str]) -> None:
    frame = table()
    y = np.array(labels)[frame["age"] % len(labels)]
    model = PrivateClassifier(epsilon=5.0, classes=labels, examples=300, **PUBLIC).fit(frame, y)
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(model, "answer"))
    back, target = load_model(path)
    assert target == "answer"
    assert (back.predict(frame) == model.predict(frame)).all()
    np.testing.assert_allclose(back.predict_proba(frame), model.predict_proba(frame))


def test_a_regressor_comes_back(tmp_path: Path) -> None:
    frame = table()
    model = PrivateRegressor(epsilon=5.0, target_bounds=(0, 90), examples=300, **PUBLIC)
    model.fit(frame, frame["age"])
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(model, "age again"))
    np.testing.assert_allclose(load_model(path)[0].predict(frame), model.predict(frame))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="there is no model"):
        load_model(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    np.savez(tmp_path / "object.npz", format=np.array(["x", None], dtype=object))
    np.savez(tmp_path / "version.npz", format=np.array("sordino-model 99"))
    for name in ("text", "other", "object", "version"):
        with pytest.raises(SordinoError, match="is not a model of sordino"):
            load_model(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("name", ["PrivateClassifier", "PrivateRegressor"])
def test_pickles_of_0_5_are_refused_in_words(name: str) -> None:
    """As 0.5.1 began them: the class first, by the module that it stood in."""
    with pytest.raises(
        SordinoError, match=rf"{name} was pickled by Sordino 0.5.*open it with 0.5.1"
    ):
        pickle.loads(f"csordino.models.estimators\n{name}\n.".encode())

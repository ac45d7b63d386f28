"""The scikit-learn estimators: what they promise, what they warn about, what they refuse."""

from __future__ import annotations

import itertools
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import sordino
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino._base.keys import RunKey
from sordino.engine._train import train
from sordino.models._estimators import PrivateClassifier, PrivateRegressor
from sordino.models._linear import forget_fits
from sordino.parts._losses import Logistic
from sordino.planning.recipes import RECIPES

N = 400
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 3))
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int)
THREE = np.digitize(X[:, 0], [-0.3, 0.3])
TARGET = 20 + 5 * X[:, 0]
FRAME = pd.DataFrame(
    {
        "age": np.where(Y == 1, 60.0, 30.0),
        "kind": np.where(X[:, 2] > 0, "a", "b"),
    }
)
FAST: dict[str, Any] = {"epochs": 2, "momentum": 0.5}
PUBLIC: dict[str, Any] = {"feature_bounds": (-1, 1), "examples": N}
STRONG: dict[str, Any] = {"epsilon": 20.0, "delta": 1e-5, "random_state": 0}


# Reproducible without a seed, which would be warned about.
_COUNTER = itertools.count()


def keyed() -> dict[str, Any]:
    """A key of its own for each fit, the same ones in every run of the tests."""
    secret = next(_COUNTER).to_bytes(32, "big")
    return {"random_state": None, "run_key": RunKey(secret)}


def classifier(**changes: Any) -> PrivateClassifier:
    """Everything declared, quick, reproducible."""
    return PrivateClassifier(**{**STRONG, **PUBLIC, **FAST, "classes": [0, 1], **changes})


def regressor(**changes: Any) -> PrivateRegressor:
    """Everything declared, quick, reproducible."""
    return PrivateRegressor(**{**STRONG, **PUBLIC, **FAST, "target_bounds": (10, 30), **changes})


def failing(estimator: Any) -> dict[str, str]:
    """Checks of scikit-learn that cannot hold, and why."""
    names = ("pandas_series", "not_an_array", "list", "shape", "not_overwritten")
    bounded = "weights of rows need weight_bound, from public knowledge"
    reasons = {f"check_sample_weights_{name}": bounded for name in names}
    reasons["check_all_zero_sample_weights_error"] = bounded
    for kind in ("dense", "sparse"):
        reasons[f"check_sample_weight_equivalence_on_{kind}_data"] = (
            "two runs have different noise, and a person who comes twice is two persons"
        )
    few = "a DataFrame is paid for, and so few rows at epsilon 1 show nothing"
    reasons["check_classifier_data_not_an_array"] = few
    reasons["check_regressor_data_not_an_array"] = few
    if isinstance(estimator, PrivateClassifier):
        reasons["check_classifiers_one_label_sample_weights"] = bounded
        reasons["check_class_weight_classifiers"] = (
            "thirty rows at epsilon 1 show no classes; weights need them inside the budget"
        )
    return reasons


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [PrivateClassifier(**FAST), PrivateRegressor(**FAST)], expected_failed_checks=failing
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_declared_fits_are_silent_and_learn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        binary = classifier(**keyed()).fit(X, Y)
        forget_fits()
        many = classifier(**keyed(), classes=[0, 1, 2]).fit(X, THREE)
        forget_fits()
        line = regressor(**keyed()).fit(X, TARGET)
    assert binary.score(X, Y) > 0.85
    assert many.score(X, THREE) > 0.6
    assert line.score(X, TARGET) > 0.5
    assert binary.coef_.shape == (1, 3)
    assert binary.intercept_.shape == (1,)
    assert many.coef_.shape == (3, 3)
    assert many.intercept_.shape == (3,)
    assert line.coef_.shape == (3,)
    assert np.ndim(line.intercept_) == 0
    np.testing.assert_allclose(many.predict_proba(X).sum(axis=1), 1)
    low, high = line.target_bounds_
    assert ((low <= line.predict(X)) & (line.predict(X) <= high)).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"examples": None}, "the number of rows (examples=...)"),
        ({"classes": None}, "the list of classes (classes=[...])"),
    ],
)
def test_undeclared_facts_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.warns(PrivacyWarning) as caught:
        classifier(**keyed(), **change).fit(X, Y)
    (warning,) = caught
    assert named in str(warning.message)
    assert warning.filename == __file__


def test_undeclared_facts_come_in_one_warning() -> None:
    with pytest.warns(PrivacyWarning) as caught:
        PrivateClassifier(**FAST, undeclared="take").fit(FRAME[["kind"]], Y)
    (warning,) = caught
    text = str(warning.message)
    assert "the values of 'kind'" in text
    assert "the list of classes" in text
    assert "the number of rows" in text
    assert "\n" not in text
    with pytest.warns(PrivacyWarning, match="the smallest and largest y"):
        model = regressor(target_bounds=None).fit(X, TARGET)
    assert model.target_bounds_ == (TARGET.min(), TARGET.max())


def test_without_bounds_rows_do_not_see_each_other() -> None:
    model = classifier(feature_bounds=None).fit(X, Y)
    everything = model.decision_function(X)
    np.testing.assert_allclose(model.decision_function(X[:5]), everything[:5])
    # Only a row's direction counts, so units do not matter.
    np.testing.assert_allclose(model.decision_function(1000 * X), everything, rtol=1e-5, atol=1e-6)
    assert model.score(X, Y) > 0.8


def test_huge_and_tiny_values() -> None:
    extreme = X * np.array([1e300, 1e-300, 1.0])
    model = classifier(feature_bounds=None).fit(extreme, Y)
    assert np.isfinite(model.decision_function(extreme)).all()


def test_guarantee_is_the_plans() -> None:
    model = classifier(**keyed()).fit(X, Y)
    assert model.guarantee_ == model.plan_.guarantee
    assert model.guarantee_.epsilon(1e-5) <= 20
    assert model.guarantee_.epsilon(1e-5) == pytest.approx(20, rel=1e-4)
    assert model.plan_.population.examples == N
    assert sordino.Plan.from_json(model.plan_.to_json()) == model.plan_
    default = classifier(delta=None).fit(X, Y)
    assert default.plan_.delta == pytest.approx(0.1 / N)


@pytest.mark.parametrize(
    ("change", "adjacency"),
    [
        ({}, "zero-out"),
        ({"adjacency": "replace-one"}, "replace-one"),
        ({"adjacency": "add-remove", "epsilon": 3.0}, "add-remove"),
        ({"recipe": "dp-gd"}, "zero-out"),
        ({"unit": "user", "one_row_per_person": True}, "zero-out"),
    ],
)
def test_methods_and_adjacencies(change: dict[str, Any], adjacency: str) -> None:
    model = classifier(**change).fit(X, Y)
    assert model.guarantee_.adjacency == adjacency
    assert model.guarantee_.unit == change.get("unit", "example")
    if "recipe" in change:
        assert model.plan_.recipe == change["recipe"]


def test_settings_reach_the_plan() -> None:
    model = classifier(batch_size=100, clip=0.7, learning_rate=0.11, epochs=3).fit(X, Y)
    assert model.plan_.population.batch_size == 100
    assert model.plan_.population.steps == 12
    assert model.plan_.clip == 0.7
    assert model.plan_.update.learning_rate == 0.11
    assert model.plan_.update.momentum == 0.5


def test_default_settings_are_public() -> None:
    one, other = classifier(epochs=None, momentum=None), classifier(epochs=None, momentum=None)
    plan = one.fit(X, Y).plan_
    assert other.fit(X[:, ::-1] ** 3, 1 - Y).plan_ == plan


def test_seeds_are_reproducible_and_marked() -> None:
    first, second = classifier().fit(X, Y), classifier().fit(X, Y)
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert first.result_.insecure
    assert "does NOT hold" in first.result_.statement()
    with pytest.warns(PrivacyWarning, match="no privacy against anyone who knows or guesses it"):
        classifier().fit(X, Y)
    assert not np.array_equal(first.coef_, classifier(random_state=1).fit(X, Y).coef_)
    drawn = classifier(random_state=np.random.RandomState(0)).fit(X, Y)
    assert drawn.result_.insecure


def test_without_a_seed_noise_is_fresh() -> None:
    first, second = (classifier(random_state=None).fit(X, Y) for _ in range(2))
    assert not np.array_equal(first.coef_, second.coef_)
    assert not first.result_.insecure


def test_run_key() -> None:
    key = RunKey.fresh()
    first, second = (classifier(random_state=None, run_key=key).fit(X, Y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert not first.result_.insecure
    assert key.secret not in pickle.dumps(first)
    assert clone(first).run_key == key
    with pytest.raises(SordinoError, match="random_state or run_key, not both"):
        classifier(run_key=key).fit(X, Y)


def test_closed_form_is_the_generic_path() -> None:
    model = classifier().fit(X, Y)
    rows, loss = model._preparation(X), Logistic()
    generic = train(
        model.plan_,
        lambda w, x, y: loss(w, x, y),
        np.zeros(rows.shape[1], np.float32),
        (rows, Y),
        insecure_seed=0,
    )
    expected = np.append(model.coef_[0], model.intercept_)
    radius = model._preparation.radius(3)
    np.testing.assert_allclose(np.asarray(generic.params) / radius, expected, atol=1e-5)


def test_sparse_is_dense() -> None:
    dense = classifier().fit(X, Y)
    compressed = classifier().fit(sparse.csr_matrix(X), Y)
    np.testing.assert_allclose(dense.coef_, compressed.coef_, rtol=1e-6)
    np.testing.assert_allclose(
        dense.predict_proba(X), compressed.predict_proba(sparse.csc_array(X)), rtol=1e-6
    )


def test_sparse_beyond_memory_is_refused() -> None:
    huge = sparse.csr_matrix((N, 3_000_000))
    with pytest.raises(SordinoError, match=r"take 4\.5 GB as the dense rows"):
        classifier(feature_bounds=None).fit(huge, Y)


def test_tables() -> None:
    described = {"feature_bounds": {"age": (0, 100)}, "categories": {"kind": ["a", "b"]}}
    model = classifier(**described).fit(FRAME, Y)
    assert model.score(FRAME, Y) > 0.85
    assert model.schema_.feature_names == ("age", "kind=a", "kind=b")
    assert model.coef_.shape == (1, 3)
    assert list(model.feature_names_in_) == ["age", "kind"]
    one = FRAME.iloc[[0]]
    np.testing.assert_allclose(model.decision_function(one), model.decision_function(FRAME)[:1])
    # Missing and unknown values are the middle.
    strange = pd.DataFrame({"age": [np.nan], "kind": ["never seen"]})
    assert np.isfinite(model.decision_function(strange)).all()
    same = classifier(feature_bounds=(0, 100), undeclared="take").fit(
        FRAME.astype({"kind": pd.CategoricalDtype(["a", "b"])}), Y
    )
    np.testing.assert_array_equal(same.coef_, model.coef_)


def test_numeric_tables_and_booleans() -> None:
    numbers = pd.DataFrame(X, columns=["u", "v", "w"])
    as_table = classifier().fit(numbers, Y)
    np.testing.assert_array_equal(as_table.coef_, classifier().fit(X, Y).coef_)
    named = classifier(feature_bounds=dict.fromkeys("uvw", (-1, 1))).fit(numbers, Y)
    np.testing.assert_allclose(named.coef_, as_table.coef_, rtol=1e-5)
    flags = FRAME.assign(age=Y == 1, kind=X[:, 2] > 0)
    assert classifier(feature_bounds=None, categories={}).fit(flags, Y).score(flags, Y) > 0.85


def test_text_labels() -> None:
    words = np.array(["no", "yes"])[Y]
    model = classifier(classes=["yes", "no"]).fit(X, words)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.score(X, words) > 0.85
    assert classifier(classes=["no", "yes"]).fit(X, pd.Series(words)).score(X, words) > 0.85
    # A declared class may be absent from the data.
    wider = classifier(classes=["maybe", "no", "yes"]).fit(X, words)
    assert wider.predict_proba(X).shape == (N, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": 3}, "examples declares 3 rows but X has 400; they must be equal"),
        ({"examples": -1}, "examples must be a whole number of at least 1"),
        ({"classes": [0, 2]}, "y has labels that are not in classes"),
        ({"classes": [5, 6]}, "y has labels that are not in classes"),
        ({"classes": ["0", "1"]}, "declare classes in the type of y"),
        ({"classes": [1, 1]}, "at least two different labels"),
        ({"classes": [1]}, "at least two different labels"),
        ({"classes": 3}, "at least two different labels"),
        ({"feature_bounds": (1, 1)}, "express, got (1, 1) for feature 0"),
        ({"feature_bounds": [[0, 0], [1, 1]]}, "shape (2, 3) for X with 3 features"),
        ({"feature_bounds": "wide"}, "feature_bounds must be (low, high)"),
        ({"feature_bounds": {"a": (0, 1)}}, "need X to be a pandas DataFrame"),
        ({"categories": {"a": [0, 1]}}, "need X to be a pandas DataFrame"),
        ({"epsilon": 0}, "epsilon must be a finite number greater than 0"),
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"delta": 2}, "delta must be greater than 0 and less than 1"),
        ({"recipe": "dp-memff"}, "there is no recipe 'dp-memff'; did you mean 'dp-memf'?"),
        ({"adjacency": "zero"}, "adjacency 'zero' is not known"),
        ({"unit": "row"}, "unit 'row' is not known"),
        ({"batch_size": 1000}, "batch_size 1,000 is larger than the 400 examples"),
        ({"epochs": 0}, "epochs must be a finite number greater than 0"),
        ({"clip": -1}, "clip must be a finite number greater than 0"),
        ({"learning_rate": 0}, "learning_rate must be a finite number greater than 0"),
        ({"momentum": 1}, "momentum must be less than 1"),
        ({"random_state": "x"}, "random_state must be None, a whole number or a RandomState"),
    ],
)
def test_settings_that_are_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)) as caught:
        classifier(**change).fit(X, Y)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "frame", "message"),
    [
        (
            {"feature_bounds": None},
            FRAME,
            "the numeric column 'age' has no bounds; give feature_bounds={'age': (low, high), ...}",
        ),
        (
            {"feature_bounds": {"aeg": (0, 1)}},
            FRAME,
            "feature_bounds describe 'aeg', which is no column of X; did you mean 'age'?",
        ),
        ({"feature_bounds": {"age": 3}}, FRAME, "the bounds of column 'age' must be (low, high)"),
        ({"feature_bounds": [[0], [1]]}, FRAME, "for a DataFrame with categories give"),
        ({"categories": ["kind"]}, FRAME, "categories must be a dict by column name, got list"),
        ({"categories": {"kind": "ab"}}, FRAME, "column 'kind' needs a list of values"),
        (
            {"feature_bounds": {"age": (0, 1), "kind": (0, 1)}},
            FRAME,
            "column 'kind' is declared numeric but holds string values",
        ),
    ],
)
def test_tables_that_are_wrong(change: dict[str, Any], frame: Any, message: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)):
        classifier(**change, undeclared="take").fit(frame, Y)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.where(X > 0.9, np.nan, X), Y, "Input X contains NaN"),
        (np.where(X > 0.9, np.inf, X), Y, "Input X contains infinity"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X, None, "requires y to be passed, but the target y is None"),
        (X, X[:, 0], "Unknown label type: continuous"),
        (np.full((N, 1), "a"), Y, "X holds something that is no number"),
        (X[:, :0], Y, "0 feature(s)"),
    ],
)
def test_data_that_is_wrong(features: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        classifier().fit(features, labels)


def test_one_class() -> None:
    with pytest.raises(SordinoError, match="y has one class only"):
        classifier(classes=None).fit(X, np.zeros(N))
    assert classifier().fit(X, np.zeros(N)).predict(X).mean() < 0.5


def test_regression_targets_that_are_wrong() -> None:
    with pytest.raises(SordinoError, match=re.escape("target_bounds needs finite bounds")):
        regressor(target_bounds=(3, 3)).fit(X, TARGET)
    with pytest.raises(ValueError, match="contains NaN"):
        regressor().fit(X, np.where(TARGET > 20, np.nan, TARGET))
    constant = regressor(target_bounds=None).fit(X, np.full(N, 7.0))
    assert constant.target_bounds_ == (6, 8)


def test_nothing_is_fitted_by_a_refused_fit() -> None:
    model = classifier(epsilon=-1)
    with pytest.raises(SordinoError):
        model.fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_predicting_other_columns_is_refused() -> None:
    described = {"feature_bounds": {"age": (0, 100)}, "categories": {"kind": ["a", "b"]}}
    model = classifier(**described).fit(FRAME, Y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(FRAME.rename(columns={"age": "years"}))
    with (
        pytest.warns(UserWarning, match="feature names"),
        pytest.raises(SordinoError, match="a pandas DataFrame"),
    ):
        model.predict(FRAME.to_numpy())


def test_pickles_clones_and_pipelines() -> None:
    model = classifier().fit(X, Y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.guarantee_ == model.guarantee_
    assert clone(model).get_params() == model.get_params()
    piped = make_pipeline(FunctionTransformer(), classifier()).fit(X, Y)
    assert piped.score(X, Y) > 0.85
    scores = cross_val_score(classifier(examples=N // 2), X, Y, cv=2)
    assert scores.shape == (2,)


def test_verbose_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    classifier(verbose=1).fit(X, Y)
    assert "training" in capsys.readouterr().out


def test_public_data_gives_the_history() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 3))
    y = (X[:, 0] > 0).astype(int)
    public = (X[:50], y[:50])
    model = PrivateClassifier(epsilon=5.0, feature_bounds=(-1, 1), classes=[0, 1], examples=400)
    model.fit(X, y, public=public)
    assert {"step", "accuracy", "log loss"} == set(model.history_[0])
    assert model.history_[-1]["accuracy"] == pytest.approx(model.score(*public))
    regressor = PrivateRegressor(
        epsilon=5.0, feature_bounds=(-1, 1), target_bounds=(0, 2), examples=400
    ).fit(X, 1 + X[:, 0], public=(X[:50], 1 + X[:50, 0]))
    error = np.sqrt(np.mean((regressor.predict(X[:50]) - 1 - X[:50, 0]) ** 2))
    assert regressor.history_[-1]["root mean squared error"] == pytest.approx(error, rel=1e-3)
    with pytest.raises(SordinoError, match="not in classes"):
        model.fit(X, y, public=(X[:2], [7, 8]))
    with pytest.raises(SordinoError, match="pair"):
        model.fit(X, y, public=3)


# The others take long; `tests/test_recipes.py` trains with each of them.
SHORT = ("dp-gd", "dp-sgd", "dp-memf", "dp-agd")


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name in SHORT else pytest.mark.slow)
        for name, known in RECIPES.items()
        if known.private
    ],
)
def test_every_recipe_is_a_recipe_of_estimators(recipe: str) -> None:
    """With no settings at all, on an easy problem: better than 85 %."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, size=(3000, 4))
    y = (X[:, 0] > X[:, 1]).astype(int)
    model = PrivateClassifier(
        epsilon=3.0,
        recipe=recipe,
        classes=[0, 1],
        feature_bounds=(-1, 1),
        examples=3000,
        random_state=0,
    )
    assert model.fit(X, y).score(X, y) > 0.85
    assert model.plan_.recipe == recipe


def test_an_algorithm_without_privacy_is_no_recipe_of_estimators() -> None:
    with pytest.raises(SordinoError, match="sgd is not private"):
        classifier(recipe="sgd").fit(X, Y)

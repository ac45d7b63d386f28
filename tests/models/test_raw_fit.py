"""Fits on raw tables, from a newcomer's DataFrame to a model, its guarantee and its charge."""

from __future__ import annotations

import inspect
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import cross_val_score
from tests.support.visits import (
    CLASSES,
    COLUMNS,
    PERSON,
    SECRET,
    TARGET,
    as_text,
    visits,
    write_csv,
    write_parquet,
)

from sordino import Ledger, PrivateClassifier, PrivateRegressor
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.engine._run import TrainingRun
from sordino.engine.ledger import BudgetExceeded
from sordino.models import read_raw
from sordino.models._linear import forget_fits

FRAME = visits(2000)
X, Y = FRAME.drop(columns=[TARGET]), FRAME[TARGET]
FAST: dict[str, Any] = {"epsilon": 16.0, "delta": 1e-5, "epochs": 5}
SEEDED: dict[str, Any] = {**FAST, "random_state": 3}
pytestmark = pytest.mark.filterwarnings("ignore:random_state makes the noise")


def fitted(frame: pd.DataFrame = FRAME, **more: Any) -> PrivateClassifier:
    model = PrivateClassifier(**{**SEEDED, **more})
    return model.fit(frame.drop(columns=[TARGET]), frame[TARGET], groups=PERSON)


@pytest.fixture(scope="module")
def first() -> PrivateClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted(evaluate=0.1)


# ---- one call


def test_nothing_declared(first: PrivateClassifier) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateClassifier(**FAST, evaluate=0.1).fit(X, Y, groups=PERSON)
    assert set(model.classes_) == set(CLASSES)
    assert model.predict_proba(X).shape == (len(X), 3)
    assert set(np.unique(model.predict(X))) <= set(CLASSES)
    used = {fact.name: fact.used for fact in model.columns_}
    assert used == {
        **dict.fromkeys(("age", "pressure", "seen", "ward", "insured", "visit_id"), True),
        "note": False,
    }
    hint = next(fact.hint for fact in model.columns_ if fact.name == "visit_id")
    assert "id" in hint
    assert model.feature_names_in_.tolist() == [name for name in COLUMNS if name != PERSON]
    assert SECRET not in str(model.schema_.to_json())
    metrics = model.evaluation_
    assert metrics.to_json()
    assert any("accuracy" in line for line in metrics.lines())
    assert len(first.coef_) == 3


def test_the_guarantee_is_about_persons(first: PrivateClassifier) -> None:
    guarantee = first.guarantee_
    assert guarantee.unit == "person"
    assert guarantee.adjacency == "add-remove"
    assert "adding or removing one person with all of their rows" in guarantee.sentence()
    assert guarantee.lost == pytest.approx(1e-6)
    assert guarantee.epsilon(1e-5) == pytest.approx(16, rel=1e-3)
    assert guarantee.epsilon(1e-5) <= 16
    kinds = [query.kind for query in first.plan_.queries]
    assert sorted(kinds) == ["evaluation", "table-release", "training"]
    # The released number of persons, not the true one, is what the plan has.
    persons = FRAME[PERSON].nunique()
    assert first.plan_.population.examples != persons
    assert first.plan_.population.examples == pytest.approx(0.9 * persons, rel=0.2)


def test_ids_are_a_column_or_an_array() -> None:
    model = fitted()
    model_of_array = PrivateClassifier(**SEEDED).fit(X.drop(columns=[PERSON]), Y, groups=X[PERSON])
    np.testing.assert_array_equal(model.coef_, model_of_array.coef_)
    assert model.table_run_.person_column == model_of_array.table_run_.person_column == PERSON
    with pytest.raises(SordinoError, match="no column 'person' to tell persons by"):
        PrivateClassifier(**FAST).fit(X, Y, groups="person")
    with pytest.raises(SordinoError, match="one id of a person for each row"):
        PrivateClassifier(**FAST).fit(X, Y, groups=X[PERSON][:-1])


def test_rows_without_an_id_count_for_nothing() -> None:
    """Page 06, 2.6: whatever is in them."""
    frame = FRAME.copy()
    frame.loc[frame.index % 7 == 0, PERSON] = None
    wild = frame.copy()
    for name, cell in (("pressure", 1e300), ("ward", SECRET), (TARGET, SECRET), ("age", "x")):
        wild.loc[wild[PERSON].isna(), name] = cell
    np.testing.assert_array_equal(fitted(frame).coef_, fitted(wild).coef_)


# ---- one set of rules


TYPES: dict[str, Callable[[pd.DataFrame, Path], pd.DataFrame]] = {
    "text": lambda frame, _: as_text(frame),
    "object": lambda frame, _: frame.astype(object),
    "category": lambda frame, _: frame.astype({"ward": "category", "note": "category"}),
    "csv": lambda frame, path: read_raw(write_csv(frame, path / "t.csv")),
    "semicolons": lambda frame, path: read_raw(write_csv(frame, path / "t.csv", ";")),
    "parquet": lambda frame, path: read_raw(write_parquet(frame, path / "t.parquet")),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_table_is_the_same_whatever_holds_it(
    kind: str, tmp_path: Path, first: PrivateClassifier
) -> None:
    """Oracle 12, at the estimator: the same bits under one key."""
    model = fitted(TYPES[kind](FRAME, tmp_path), evaluate=0.1)
    np.testing.assert_array_equal(model.coef_, first.coef_)
    np.testing.assert_array_equal(model.intercept_, first.intercept_)
    assert model.schema_ == first.schema_
    assert model.classes_.tolist() == first.classes_.tolist()
    assert model.evaluation_.to_json() == first.evaluation_.to_json()
    np.testing.assert_array_equal(model.predict(TYPES[kind](FRAME, tmp_path)), first.predict(X))


@pytest.mark.parametrize(
    ("labels", "classes", "options"),
    [
        (np.array([0, 1]), [0, 1], {}),
        (np.array([False, True]), [False, True], {"class_weight": {True: 1, False: 0.5}}),
        (np.array(["1", "2"]), ["1", "2"], {"class_weight": {"1": 1}}),
        (np.array(["1", "2"], object), ["1", "2"], {"classes": ["1", "2"]}),
        (np.array(["1999-12-31", "2000-01-01"]), None, {"classes": ["1999-12-31", "2000-01-01"]}),
        (np.array([-1.0, 1.0]), [-1, 1], {"class_weight": {-1: 1, 1: 0.5}}),
    ],
)
def test_classes_have_the_type_of_the_labels(
    labels: Any, classes: Any, options: dict[str, Any]
) -> None:
    y = labels[(FRAME["ward"] == "surgery").to_numpy().astype(int)]
    model = PrivateClassifier(**FAST, **options).fit(X[["ward", "pressure"]], y)
    assert model.classes_.tolist() == (classes or options["classes"])
    assert model.score(X[["ward", "pressure"]], y) > 0.9


# ---- what is declared


DECLARED: dict[str, Any] = {
    "feature_bounds": {"age": (18, 95), "pressure": (60, 180)},
    "categories": {"ward": ["surgery", "medicine", "maternity"]},
    "classes": list(CLASSES),
    "examples": len(FRAME),
}
NUMBERS = FRAME.assign(age=pd.to_numeric(FRAME["age"], errors="coerce"))
PLAIN = NUMBERS[["age", "pressure", "ward"]]


@pytest.mark.parametrize("way", ["auto", "pay", "refuse"])
def test_declared_tables_are_fitted_as_ever(way: str) -> None:
    """Page 06, 1: with everything declared nothing is asked, and no bit differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="random_state|rows like these")
        old = PrivateClassifier(**SEEDED, **DECLARED, undeclared="take").fit(PLAIN, Y)
        new = PrivateClassifier(**SEEDED, **DECLARED, undeclared=way).fit(PLAIN, Y)
    np.testing.assert_array_equal(new.coef_, old.coef_)
    assert new.plan_ == old.plan_
    assert new.schema_ == old.schema_
    assert not hasattr(new, "columns_")


def test_declared_facts_cost_nothing() -> None:
    model = PrivateClassifier(**FAST, **DECLARED, evaluate=0.2).fit(PLAIN, Y)
    asked = [query for query in model.plan_.queries if query.kind == "table-release"]
    # How many train is drawn, and so the target is asked for nothing but... nothing at all.
    assert all(set(query.columns) <= {TARGET} for query in asked)
    assert model.guarantee_.lost == 0
    assert [fact.source for fact in model.columns_] == ["declared"] * 3


def test_declared_columns_read_any_cell() -> None:
    """Page 06, 9 and 10.1: held out or not, no cell is an error once something is paid for."""
    odd = PLAIN.astype(object)
    odd.loc[3, "age"], odd.loc[4, "pressure"], odd.loc[5, "ward"] = SECRET, "12,5", 7
    for more in ({"evaluate": 0.1}, {"class_weight": "balanced"}, {"examples": None}):
        model = PrivateClassifier(**{**FAST, **DECLARED, **more}).fit(odd, Y)
        assert np.isfinite(model.predict_proba(odd)).all()


def test_refuse_lists_what_is_missing() -> None:
    with pytest.raises(SordinoError) as caught:
        PrivateClassifier(**FAST, undeclared="refuse").fit(X, Y, groups=PERSON)
    text = str(caught.value)
    for words in ("column 'age'", "column 'note'", "the target 'outcome'", "examples=..."):
        assert words in text
    assert f"column {PERSON!r}" not in text
    assert "\n" not in text
    bounds = {"feature_bounds": {"pressure": (60, 180)}, "classes": list(CLASSES)}
    with pytest.raises(SordinoError) as caught:
        PrivateClassifier(**FAST, **bounds, undeclared="refuse").fit(X[["age", "pressure"]], Y)
    assert "column 'age'; the number of rows" in str(caught.value)
    array = X[["pressure"]].to_numpy()
    with pytest.raises(SordinoError, match="not declared: column 'x0'"):
        PrivateClassifier(**FAST, undeclared="refuse").fit(array, Y)


def test_one_pair_of_bounds_takes_nothing_from_the_data() -> None:
    """It says that all columns are numbers; where one is not, nothing is looked up in it."""
    pair = {**DECLARED, "feature_bounds": (18, 180), "categories": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivateClassifier(**FAST, **pair).fit(PLAIN[["age", "pressure"]].fillna(100), Y)
        with pytest.raises(SordinoError, match="'ward' is declared numeric"):
            PrivateClassifier(**FAST, **pair).fit(PLAIN, Y)
    with pytest.warns(PrivacyWarning, match="the values of 'ward'"):
        PrivateClassifier(**FAST, **pair, undeclared="take").fit(PLAIN, Y)


@pytest.mark.parametrize(
    ("options", "given", "words"),
    [
        ({"undeclared": "paid"}, {}, "undeclared 'paid' is not known"),
        ({"features": "splines"}, {}, "did you mean 'spline'"),
        ({"bins": 1}, {}, "bins must be"),
        ({"preprocessing_share": 1.0}, {}, "preprocessing_share"),
        ({"evaluate": 1.0}, {}, "evaluate"),
        ({"decimal": "x"}, {}, "decimal"),
        ({"date_formats": {"sen": "%d"}}, {}, "date_formats describe 'sen'.*did you mean 'seen'"),
        ({"categories": ["ward"]}, {}, "categories must be a dict"),
        ({"categories": {"ward": "ab"}}, {}, "column 'ward' needs a list of values"),
        ({"categories": {"wrad": ["a"]}}, {}, "no column of X; did you mean 'ward'"),
        ({"feature_bounds": {"aeg": (0, 1)}}, {}, "no column of X; did you mean 'age'"),
        ({"feature_bounds": {"age": 3}}, {}, "bounds of column 'age' must be"),
        ({"class_weight": "even"}, {}, "class_weight 'even' is not known"),
        ({"class_weight": ["even"]}, {}, "class_weight is 'balanced' or a dict"),
        ({"class_weight": {"died": -1}}, {}, "a number of at least 0"),
        ({"class_weight": {"died": 0}}, {}, "above 0 for one class"),
        ({"class_weight": {"x": 1}, "classes": list(CLASSES)}, {}, "'x', which is no class"),
        ({"noise": "discrete"}, {}, "discrete noise is for tables with everything declared"),
        ({"batch_size": 10}, {}, "batch_size needs examples"),
        ({}, {"sample_weight": np.ones(len(X))}, "sample_weight needs weight_bound"),
        ({"weight_bound": 1}, {"sample_weight": [1]}, "one sample_weight for each row"),
        ({}, {"public": (X, Y)}, "public= is for fits with everything declared"),
        ({"undeclared": "take", "evaluate": 0.1}, {"groups": None}, "evaluate holds people out"),
        ({"undeclared": "take", "class_weight": "balanced"}, {}, "class_weight go with"),
        ({"unit": "user"}, {"groups": None}, "one_row_per_person"),
    ],
)
def test_what_cannot_be_is_refused_at_no_cost(
    options: dict[str, Any], given: dict[str, Any], words: str, ledger: Ledger
) -> None:
    model = PrivateClassifier(**{**FAST, **options}, ledger=ledger, dataset="visits")
    with pytest.raises(SordinoError, match=words) as caught:
        model.fit(X, Y, **{"groups": PERSON, **given})
    assert "\n" not in str(caught.value)
    assert ledger.reservations() == ()


# ---- weights


def test_balanced_classes_find_the_rare_ones() -> None:
    """Oracle 9, in small: the plan's noise stays, and rare classes are found."""
    rng = np.random.default_rng(0)
    features = pd.DataFrame(rng.normal(size=(6000, 3)), columns=["a", "b", "c"])
    y = rng.random(6000) < 1 / (1 + np.exp(3.6 - 1.5 * features["a"]))
    assert 0.03 < y.mean() < 0.09
    found = []
    for weights in (None, "balanced", {False: 1, True: 12}):
        model = PrivateClassifier(**SEEDED, class_weight=weights).fit(features, y)
        found.append((model, balanced_accuracy_score(y, model.predict(features))))
    (plain, before), (balanced, after), (_, by_hand) = found
    assert before < 0.6 < 0.7 < min(after, by_hand)
    assert balanced.plan_.guarantee == plain.plan_.guarantee
    noises = [m.plan_.training.noise_multiplier for m in (plain, balanced)]
    assert noises[0] == noises[1]
    assert max(balanced.table_run_.weights.values()) == 1


def test_weights_of_rows_are_bounded_and_private() -> None:
    """Page 06, 5: clipped to the bound, NaN and rubbish are 0, and no weight is an error."""
    weights: Any = np.where(FRAME["ward"] == "surgery", 1.0, 0.25).astype(object)
    clean = PrivateClassifier(**SEEDED, weight_bound=2.0).fit(X, Y, sample_weight=weights)
    weights[:5] = [np.nan, -3, 1e300, "x", None]
    model = PrivateClassifier(**SEEDED, weight_bound=2.0).fit(X, Y, sample_weight=weights)
    assert model.plan_.guarantee == clean.plan_.guarantee
    weights[:5] = [0, 0, 2.0, 0, 0]
    same = PrivateClassifier(**SEEDED, weight_bound=2.0).fit(X, Y, sample_weight=weights)
    np.testing.assert_array_equal(model.coef_, same.coef_)


# ---- the ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "a.ledger")
    made.add_dataset("visits", epsilon=17.0, delta=1.2e-5, unit="person")
    return made


def test_one_charge_for_everything(ledger: Ledger) -> None:
    """Release, training and evaluation are one plan and one reservation."""
    model = PrivateClassifier(**FAST, evaluate=0.1, ledger=ledger, dataset="visits")
    with pytest.warns(PrivacyWarning, match="does not know which rows"):
        model.fit(X, Y, groups=PERSON)
    (paid,) = ledger.reservations()
    assert paid.state == "released"
    assert paid.guarantee == model.plan_.guarantee
    assert paid.guarantee.lost == pytest.approx(1e-6)
    assert paid.guarantee.sides
    # There is nothing left for another, which is refused before anything is known of it.
    with pytest.raises(BudgetExceeded) as caught:
        clone(model).fit(X, Y, groups=PERSON)
    assert caught.value.__context__ is None
    assert len(ledger.reservations()) == 1
    assert not hasattr(clone(model), "coef_")


def test_what_follows_from_a_release_is_paid_for(ledger: Ledger) -> None:
    """Nothing was found: that, too, is an answer about the data."""
    tiny = {**FAST, "epsilon": 0.01}
    model = PrivateClassifier(**tiny, ledger=ledger, dataset="visits")
    with (
        pytest.warns(PrivacyWarning, match="does not know"),
        pytest.raises(SordinoError, match="noisy weights of the target show neither"),
    ):
        model.fit(X, Y, groups=PERSON)
    (paid,) = ledger.reservations()
    assert paid.guarantee.epsilon(1e-5) == pytest.approx(0.01, rel=1e-2)
    # Weights of classes that the release did not find are such an answer, too.
    wrong = PrivateClassifier(**{**FAST, "epsilon": 14.0}, class_weight={SECRET: 1.0})
    with (
        pytest.warns(PrivacyWarning, match="does not know"),
        pytest.raises(SordinoError, match="which is no class"),
    ):
        wrong.set_params(ledger=ledger, dataset="visits").fit(X, Y, groups=PERSON)
    assert len(ledger.reservations()) == 2
    # Where the budget does not pay for the answer, there is none: not even as another error's reason.
    with pytest.raises(BudgetExceeded) as caught:
        clone(wrong).fit(X, Y, groups=PERSON)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("seed", [None, 7])
def test_killed_and_fitted_again(
    seed: int | None, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same release, the same persons held out, the same model; charged once."""
    path, advance = tmp_path / "run.checkpoint", TrainingRun.advance
    settings = {**FAST, "epochs": 40, "evaluate": 0.1, "random_state": seed}

    def dies(self: TrainingRun) -> Any:
        raise KilledError

    model = PrivateClassifier(**settings, ledger=ledger, dataset="visits", checkpoint=str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(TrainingRun, "advance", dies)
        with pytest.raises(KilledError):
            model.fit(X, Y, groups=PERSON)
        monkeypatch.setattr(TrainingRun, "advance", advance)
        assert path.exists()
        begun = [one.run for one in ledger.reservations()]
        again = clone(model).fit(X, Y, groups=PERSON)
        assert [one.run for one in ledger.reservations()] == begun
        assert len(begun) == 1
        assert again.result_.run == begun[0]
        if seed is not None:
            plain = PrivateClassifier(**settings).fit(X, Y, groups=PERSON)
            np.testing.assert_array_equal(again.coef_, plain.coef_)
            assert again.evaluation_.to_json() == plain.evaluation_.to_json()
        else:
            with pytest.raises(SordinoError):
                clone(model).set_params(class_weight="balanced").fit(X, Y, groups=PERSON)


# ---- one person


CHANGES: dict[str, tuple[str, Any]] = {
    "missing number": ("age", None),
    "NaN": ("pressure", np.nan),
    "infinity": ("pressure", -np.inf),
    "huge": ("pressure", 1e308),
    "huge whole number": ("age", 10**400),
    "text in numbers": ("age", SECRET),
    "text in a float column": ("pressure", SECRET),
    "new category": ("ward", SECRET),
    "half a character": ("ward", "caf\udce9"),
    "number in text": ("ward", 7),
    "date in text": ("ward", "2024-02-30"),
    "no date": ("seen", SECRET),
    "far date": ("seen", "9999-12-31"),
    "list": ("note", [1, 2]),
    "bytes": ("note", b"\xff"),
    "odd label": (TARGET, SECRET),
    "number as label": (TARGET, 7),
    "missing label": (TARGET, None),
    "missing id": (PERSON, None),
    "number as id": (PERSON, 7.5),
    "list as id": (PERSON, [7]),
    "flag": ("insured", "perhaps"),
}


def changed(change: str | None) -> pd.DataFrame:
    frame = FRAME.astype(object)
    if change is not None:
        name, cell = CHANGES[change]
        frame.at[11, name] = cell
    return frame


def said(frame: pd.DataFrame, **options: Any) -> tuple[Any, ...]:
    """All that a fit shows beside its noisy numbers: errors, warnings, types and widths."""
    model = PrivateClassifier(**{**SEEDED, **options})
    forget_fits()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(frame.drop(columns=[TARGET]), frame[TARGET], groups=PERSON)
        except Exception as error:
            end: tuple[Any, ...] = (type(error), str(error), error.__context__ is None)
        else:
            made = model.predict(frame.drop(columns=[TARGET]))
            end = (model.coef_.shape, model.coef_.dtype, model.classes_.dtype, made.dtype)
            end += (model.schema_, [fact.to_json() for fact in model.columns_])
    return [(str(one.message), one.category) for one in caught], end


@pytest.mark.parametrize("change", CHANGES)
def test_one_person_decides_nothing(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Page 06, 10.1: where noise is so large that nothing is found, nothing differs."""
    declared = {
        "classes": list(CLASSES),
        "categories": {"ward": ["surgery"]},
        "feature_bounds": {"pressure": (60, 180)},
    }
    tiny = {"epsilon": 1e-3, "epochs": 1}
    for options in (tiny, {**tiny, **declared}, {**tiny, **declared, "evaluate": 0.1}):
        shown = said(changed(change), **options)
        assert shown == said(changed(None), **options)
        assert SECRET not in str(shown)
    # With little noise, other numbers are found; but no error, and no warning.
    warned, end = said(changed(change), evaluate=0.1, epochs=1)
    usual, known = said(changed(None), evaluate=0.1, epochs=1)
    assert warned == usual
    assert end[:4] == known[:4]
    assert SECRET not in str((warned, end))
    assert SECRET not in "".join(capsys.readouterr())


# ---- the other estimator, arrays, and scikit-learn's tools


def test_regression() -> None:
    target = 50 + 0.5 * FRAME["pressure"].fillna(120) + np.where(FRAME["ward"] == "surgery", 20, 0)
    target.iloc[3] = np.nan
    model = PrivateRegressor(**SEEDED, evaluate=0.1).fit(X, target, groups=PERSON)
    low, high = model.target_bounds_
    assert 60 < low < 110 < 130 < high < 190
    predicted = model.predict(X)
    assert ((low <= predicted) & (predicted <= high)).all()
    error = np.sqrt(np.nanmean((predicted - target) ** 2))
    assert error < 0.8 * np.nanstd(target)
    assert model.evaluation_.to_json()
    declared = PrivateRegressor(**SEEDED, target_bounds=(0, 200)).fit(X, target, groups=PERSON)
    assert declared.target_bounds_ == (0, 200)
    with pytest.raises(SordinoError, match="show no column of numbers"):
        PrivateRegressor(**SEEDED).fit(X, FRAME["ward"], groups=PERSON)


def test_arrays_that_pay() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(5, 2, (3000, 3))
    rows[::50, 1] = np.nan
    y = np.digitize(rows[:, 0], [4, 6])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateClassifier(**FAST, undeclared="pay").fit(rows, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(rows, y) > 0.6
    assert [fact.name for fact in model.columns_] == ["x0", "x1", "x2"]
    with pytest.raises(ValueError, match="X has 4 features, but PrivateClassifier is expecting 3"):
        model.predict(rows[:, [0, 1, 2, 2]])
    with pytest.raises(SordinoError, match="no column 'x0'"):
        model.predict(X)


def test_columns_named_by_numbers() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(3000, 2)))
    y = (frame[0] > 0).astype(int)
    model = PrivateClassifier(**FAST).fit(frame, y)
    assert model.score(frame, y) > 0.8
    with pytest.raises(SordinoError, match="more than one column '0'"):
        PrivateClassifier(**FAST).fit(frame.set_axis([0, "0"], axis=1), y)


def test_pickles_clones_and_files(first: PrivateClassifier, tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(again.predict_proba(X), first.predict_proba(X))
    assert again.guarantee_ == first.guarantee_
    other = clone(first)
    assert other.get_params() == first.get_params()
    assert not hasattr(other, "coef_")
    first.save(tmp_path / "m.npz")
    loaded = PrivateClassifier.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.predict_proba(X), first.predict_proba(X))
    # Nothing that is kept of a fit is a record.
    assert SECRET.encode() not in pickle.dumps(first)
    assert SECRET.encode() not in (tmp_path / "m.npz").read_bytes()


def test_scikit_learn_cross_validates_raw_tables(ledger: Ledger) -> None:
    """Without a ledger; with one it is refused (oracle 14)."""
    features = X[["age", "ward", "pressure"]]
    y = (FRAME["ward"] == "surgery").map({True: "yes", False: "no"})
    scores = cross_val_score(PrivateClassifier(**FAST), features, y, cv=3, error_score="raise")
    assert scores.min() > 0.8
    rows = {"groups": np.arange(len(X)) // 2}
    scores = cross_val_score(
        PrivateClassifier(**FAST), features, y, cv=2, params=rows, error_score="raise"
    )
    assert scores.min() > 0.8
    charged = PrivateClassifier(**FAST, ledger=ledger, dataset="visits")
    with pytest.raises(SordinoError, match="PrivateSearch"):
        cross_val_score(charged, features, y, cv=3, error_score="raise")
    assert ledger.reservations() == ()


def test_a_pack_of_the_estimator_is_verified(first: PrivateClassifier, tmp_path: Path) -> None:
    from sordino.models import verify_pack

    first.report(tmp_path / "run")
    assert verify_pack(tmp_path / "run") is not None
    assert SECRET.encode() not in b"".join(
        path.read_bytes() for path in (tmp_path / "run").iterdir()
    )


def test_every_parameter_of_raw_tables_is_the_regressors_too() -> None:
    shared = set(inspect.signature(PrivateClassifier).parameters)
    shared -= {"classes", "class_weight"}
    assert shared <= set(inspect.signature(PrivateRegressor).parameters)
    assert re.search("undeclared", PrivateClassifier.__doc__ or "")


# ---- one estimator, several fits


def test_nothing_of_an_earlier_fit_is_left(tmp_path: Path) -> None:
    """A pack of the second fit would have listed the first one's columns and scores."""
    model = PrivateClassifier(**SEEDED, evaluate=0.1).fit(X, Y, groups=PERSON)
    found = ("columns_", "table_run_", "evaluation_")
    assert all(hasattr(model, name) for name in found)
    rng = np.random.default_rng(0)
    declared = {"undeclared": "auto", "evaluate": 0.0, "classes": [0, 1], "examples": 400}
    model.set_params(**declared, feature_bounds=(-1, 1))
    rows = rng.uniform(-1, 1, (400, 2))
    model.fit(rows, (rows[:, 0] > 0).astype(int))
    assert not any(hasattr(model, name) for name in found)
    model.report(tmp_path / "run")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert not files & {"preprocessing.json", "evaluation.json", "schema.json"}


def test_a_plan_of_persons_says_person() -> None:
    model = PrivateClassifier(**SEEDED).fit(X, Y, groups=PERSON)
    lines = dict(model.plan_.lines())
    assert lines["contribution"].startswith("each person adds")
    assert "person" in lines["population"]

"""What estimators and searches say: no record's value, and nothing that one record or trial decides."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino import Ledger, PrivateClassifier, PrivateRegressor, PrivateSearch
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.models._estimators import checked_classes
from sordino.models._rows import RowPreparation
from sordino.models._schema import Numeric, Schema
from sordino.models._scores import NoisyScore

ROWS = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (ROWS, 3))
LABELS = np.arange(ROWS) % 2
TARGETS = RANDOM.uniform(0, 1, ROWS)
SECRET = "kuru"
LARGE = 10**400
OPTIONS: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "feature_bounds": (-1, 1),
    "examples": ROWS,
    "epochs": 1,
}
SPACE = {"learning_rate": [0.5, 2.0]}


def classifier(**more: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"classes": [0, 1], **OPTIONS, **more})


def regressor(**more: Any) -> PrivateRegressor:
    return PrivateRegressor(**{"target_bounds": (0, 1), **OPTIONS, **more})


def search(estimator: Any, space: Any = None, **more: Any) -> PrivateSearch:
    settings = {"epsilon": 1.0, "delta": 1e-5, "n_trials": 2, "method": "composition", **more}
    return PrivateSearch(estimator, SPACE if space is None else space, **settings)


def with_one(values: Any, value: Any, dtype: Any = None) -> Any:
    """A copy whose eighth record holds `value`."""
    changed = np.array(values, dtype=dtype or values.dtype)
    changed[(7, 0) if changed.ndim == 2 else 7] = value
    return changed


def table(value: Any, dtype: Any = object) -> pd.DataFrame:
    return pd.DataFrame({"age": pd.Series(with_one(X[:, 0], value, dtype)), "b": X[:, 1]})


def said(act: Any) -> list[str]:
    """All warnings of an act, except that rows came again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught if "fitted before" not in str(w.message)]


BOUNDS = {"feature_bounds": {"age": (-1, 1), "b": (-1, 1)}}
WRONG: dict[str, tuple[Any, Any, Any]] = {
    "X-text": (classifier, with_one(X, SECRET, object), LABELS),
    "X-str": (classifier, with_one(X, SECRET, "U32"), LABELS),
    "X-object": (classifier, with_one(X, {SECRET: 1}, object), LABELS),
    "X-large": (classifier, with_one(X, LARGE, object), LABELS),
    "X-complex": (classifier, with_one(X, 3.25j, complex), LABELS),
    "X-flat": (classifier, with_one(X[:, 0], 0.123456), LABELS),
    "X-nan": (classifier, with_one(X, np.nan), LABELS),
    "table-large": (lambda **k: classifier(**BOUNDS | k), table(LARGE), LABELS),
    "table-text": (lambda **k: classifier(**BOUNDS | k), table(SECRET), LABELS),
    "table-list": (
        lambda **k: classifier(
            feature_bounds={"b": (-1, 1)}, categories={"age": ["old", "young"]}, **k
        ),
        pd.DataFrame({"age": pd.Series([[SECRET]] * ROWS, dtype=object), "b": X[:, 1]}),
        LABELS,
    ),
    "label-text": (classifier, X, with_one(LABELS, SECRET, object)),
    "label-late-text": (classifier, X, [*LABELS.tolist()[:-1], SECRET]),
    "label-long": (classifier, X, np.full(ROWS, "a-very-long-label-of-one")),
    "label-large": (classifier, X, with_one(LABELS, LARGE, object)),
    "label-half": (classifier, X, with_one(LABELS, 0.5, float)),
    "label-nan": (classifier, X, with_one(LABELS, np.nan, float)),
    "label-unknown": (classifier, X, np.where(np.arange(ROWS) < 3, np.arange(ROWS) + 7, LABELS)),
    "label-ragged": (classifier, X, [*LABELS.tolist()[:-1], [3, 4]]),
    "label-alone": (classifier, X, np.array(3.25)),
    "target-alone": (regressor, X, np.array(3.25)),
    "target-text": (regressor, X, with_one(TARGETS, SECRET, object)),
    "target-str": (regressor, X, with_one(TARGETS, SECRET, "U32")),
    "target-nan-str": (regressor, X, with_one(TARGETS, "nan", "U32")),
    "target-large": (regressor, X, with_one(TARGETS, LARGE, object)),
    "target-complex": (regressor, X, with_one(TARGETS, 3.25j, complex)),
    "target-nan": (regressor, X, with_one(TARGETS, np.nan)),
    "target-infinite": (regressor, X, with_one(TARGETS, np.inf)),
}
# What would show a record: values, the width of a type, how many labels, what Python says of them.
SHOWN = (SECRET, "<U", "3 kinds", "0.123", "3.25", "1000000", "array=", "not supported between")


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("searched", [False, True], ids=["fit", "search"])
def test_refusals_show_no_record_and_come_before_the_charge(
    kind: str, searched: bool, tmp_path: Path
) -> None:
    """R7, R8, R9: a ValueError without a value, a type's width, a count, or an error behind it."""
    make, features, targets = WRONG[kind]
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=50.0, delta=1e-4, rows=ROWS)
    charged = {"ledger": ledger, "dataset": "people"}
    model = search(make(), **charged) if searched else make(**charged)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError) as refused:
            model.fit(features, targets)
    assert not caught
    assert not list(ledger.reservations("people"))
    text = str(refused.value)
    assert not [words for words in SHOWN if words in text]
    assert refused.value.__cause__ is None
    printed = "".join(traceback.format_exception(refused.value))
    assert "During handling" not in printed
    if not text.startswith("Input "):  # scikit-learn's, with advice
        assert isinstance(refused.value, SordinoError)
        assert "\n" not in text


@pytest.mark.parametrize("seed", range(6))
def test_a_target_that_is_missing_never_becomes_a_score(seed: int) -> None:
    """R7: wherever a NaN falls, training or holdout, the search is refused; no score is NaN."""
    missing = with_one(TARGETS, np.nan)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        search(regressor(), random_state=seed).fit(X, missing)


class Constant(PrivateRegressor):
    """Predicts 1/2."""

    target_bounds_ = (0.0, 1.0)

    def predict(self, X: Any) -> Any:
        return np.full(len(X), 0.5)


def test_what_has_no_score_counts_as_zero() -> None:
    """R7: a row without a finite score adds 0 to the sum, and moves it by at most 1."""
    exact = {"std": 0.0, "draw": np.random.default_rng(0)}
    score = NoisyScore(X, np.full(ROWS, 0.5), **exact)(Constant())
    assert score == 1.0
    one = NoisyScore(X, with_one(np.full(ROWS, 0.5), np.nan), **exact)(Constant())
    assert one == pytest.approx(1 - 1 / ROWS)
    with pytest.raises(SordinoError, match="one value for each row"):
        NoisyScore(X, np.full((ROWS, 1), 0.5), **exact)(Constant())


def test_a_column_of_targets_is_scored_row_by_row() -> None:
    """R7: y of shape (rows, 1) is no table of all pairs of rows: a mean of accuracies is at most 1."""
    settings: dict[str, Any] = {"epsilon": 500.0, "random_state": 0}
    column, flat = (search(classifier(), **settings) for _ in range(2))
    texts = said(lambda: column.fit(X, LABELS[:, None]))
    assert sum("A column-vector y was passed" in text for text in texts) == 1
    said(lambda: flat.fit(X, LABELS))
    assert column.best_score_ == flat.best_score_


@pytest.mark.parametrize(
    "space",
    [
        {"clip": [1.0, -1.0]},
        {"recipe": ["dp-memf", "dp-sgd"], "batch_size": [10]},
        {"classes": [[0, 1], [0, 2]]},
        {"feature_bounds": [(-1, 1), (1, -1)]},
    ],
    ids=["clip", "amplified", "classes", "bounds"],
)
def test_candidates_that_can_be_refused_are_refused_before_the_charge(
    space: Any, tmp_path: Path
) -> None:
    """R7: whatever is drawn, a candidate that would be refused is, and nothing is reserved."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=50.0, delta=1e-4, rows=ROWS)
    for method in ("random-stopping", "composition"):
        model = search(classifier(), space, method=method, ledger=ledger, dataset="people")
        with pytest.raises(SordinoError):
            model.fit(X, LABELS, public=(X, LABELS))
    assert not list(ledger.reservations("people"))


def test_public_data_of_another_shape_is_refused_before_the_charge(tmp_path: Path) -> None:
    """R7: trials are scored on it only after the search was paid for."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=50.0, delta=1e-4, rows=ROWS)
    model = search(classifier(), ledger=ledger, dataset="people")
    with pytest.raises(ValueError, match="X has 2 features"):
        model.fit(X, LABELS, public=(X[:, :2], LABELS))
    assert not list(ledger.reservations("people"))


def test_a_search_says_what_its_space_says_whatever_it_draws() -> None:
    """R7: with random stopping no warning tells of a trial that is not released."""
    space = {"classes": [[0, 1], None]}
    found = set()
    for seed in range(8):
        model = search(classifier(), space, method="random-stopping", random_state=seed)
        texts = said(lambda model=model: model.fit(X, LABELS, public=(X, LABELS)))
        assert sum("the list of classes (classes=[...])" in text for text in texts) == 1
        found.add((tuple(texts), model.best_params_["classes"] is None))
    assert len({texts for texts, _ in found}) == 1
    assert len(found) == 2  # trials of both kinds were released


def test_warnings_of_a_secret_number_of_trials_stay_unsaid() -> None:
    """R7: what a trial or its scorer warns about would show which trials there were."""

    def scoring(model: Any, X: Any, y: Any) -> float:
        warnings.warn(f"a rate of {model.learning_rate}", UserWarning, stacklevel=1)
        return 0.5

    model = search(classifier(), method="random-stopping", n_trials=5, scoring=scoring)
    assert said(lambda: model.fit(X, LABELS, public=(X, LABELS))) == []
    composed = search(classifier(), scoring=scoring)
    assert len(said(lambda: composed.fit(X, LABELS, public=(X, LABELS)))) == 2


def test_declarations_are_searched_in_lists_only() -> None:
    """R7: what a distribution would draw could not be said beforehand."""

    class Sometimes:
        def rvs(self, random_state: Any = None) -> Any:
            return None

    with pytest.raises(SordinoError, match="the candidates for classes must be a list"):
        search(classifier(), {"classes": Sometimes()}).fit(X, LABELS)


def test_a_run_key_is_not_for_a_search() -> None:
    """R7: the second trial with one key would be refused after the charge."""
    from sordino._base.keys import RunKey

    with pytest.raises(SordinoError, match="a run key is for one run"):
        search(classifier(run_key=RunKey.fresh())).fit(X, LABELS)


def test_a_huge_number_is_clipped_in_silence() -> None:
    """R9: no RuntimeWarning of an overflow; the number counts as its bound."""
    largest = 1.7e308
    bounds = {"feature_bounds": {"age": (0, 0.1), "b": (-1, 1)}}
    acts = [
        lambda: classifier(feature_bounds=(0, 1)).fit(with_one(X, largest), LABELS),
        lambda: classifier(feature_bounds=(0, 1)).fit(with_one(X, -largest), LABELS),
        lambda: classifier(feature_bounds=None).fit(with_one(X, 5e-324), LABELS),
        lambda: classifier(**bounds).fit(table(largest, float), LABELS),
        lambda: classifier(**bounds).fit(table(np.inf, float), LABELS),
        lambda: regressor(target_bounds=(0, 1e-3)).fit(X, with_one(TARGETS, largest)),
        lambda: search(regressor()).fit(X, with_one(TARGETS, largest)),
    ]
    for act in acts:
        assert said(act) == []


@np.errstate(all="raise")
def test_a_huge_number_counts_as_its_bound() -> None:
    """R9: also where numpy is told to raise, which is another way to show that there is one."""
    largest = 1.7e308
    array = RowPreparation.for_array(np.array([[0.0] * 3, [1.0] * 3]), True)
    for value, bound in ((largest, 1.0), (-largest, 0.0)):
        np.testing.assert_array_equal(array(with_one(X, value)), array(with_one(X, bound)))
    column = Numeric("age", 0, 0.1)
    assert column.encode(pd.Series([largest, -largest, np.inf, 0.1, 0.0])).ravel().tolist() == [
        *(1.0, -1.0, 1.0),
        *(1.0, -1.0),
    ]
    # Bounds whose sum is too large for a number have a middle all the same.
    far = Numeric("a", 1e308, 1.7e308)
    np.testing.assert_allclose(far.encode(pd.Series([1e308, 1.35e308])).ravel(), [-1, 0], atol=1e-6)


def test_how_many_kinds_of_labels_there_are_is_not_warned_about() -> None:
    """R9: with declared classes a record more of another class changes no warning."""
    labels = np.repeat(np.arange(ROWS // 2), 2)
    model = classifier(classes=list(range(ROWS)))
    assert said(lambda: model.fit(X, labels)) == []
    assert said(lambda: model.fit(X, with_one(labels, ROWS - 1))) == []
    texts = said(lambda: classifier(classes=None).fit(X, with_one(labels, ROWS - 1)))
    assert len(texts) == 1
    assert "the list of classes" in texts[0]


def test_labels_of_several_types_are_refused_wherever_classes_are_made_of_them() -> None:
    """R9: the audit of a table takes this way; Python would say which types do not compare."""
    with pytest.raises(SordinoError, match="Unknown label type: y must hold one label") as refused:
        checked_classes((0, 1), with_one(LABELS, SECRET, object))
    assert refused.value.__context__ is None


def test_schemas_refuse_numbers_that_are_too_large_without_showing_them() -> None:
    """R9: one sentence instead of Python's OverflowError."""
    frame = pd.DataFrame({"age": pd.Series([1, 2, LARGE], dtype=object)})
    for act in (
        lambda: Schema.infer(frame),
        lambda: Schema.infer(frame.assign(b=1.0), "age"),
        lambda: Schema((Numeric("age", 0, 1),)).encode(frame),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            with pytest.raises(
                SordinoError, match="column 'age' holds something that is no number"
            ):
                act()


def test_audited_targets_are_refused_without_their_value() -> None:
    """R8: the audit of a table converts its target by itself."""
    from sordino.app.cli._fitting import _scaled

    with pytest.raises(SordinoError, match="a column of numbers") as refused:
        _scaled(pd.Series([1.0, "kuru"], dtype=object), (0, 1))
    assert "kuru" not in repr(refused.value)
    assert refused.value.__context__ is None

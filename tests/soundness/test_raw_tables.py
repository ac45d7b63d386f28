"""Fits on raw tables: no cell is an error, no noise is used twice, and what is seen was paid for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino.engine import RunKey, Source
from sordino.engine.ledger import Ledger
from sordino.models import PrivateClassifier, PrivateRegressor
from sordino.models import _private_fit as private_fit
from sordino.models._evaluation import run_evaluation
from sordino.models._private_fit import AUTO, Asked, TableFacts
from sordino.models._scores import NoisyScore
from sordino.planning import Evaluation
from sordino.privacy import Adjacency, person_ids

pytestmark = pytest.mark.filterwarnings("ignore::sordino.PrivacyWarning")
PERSONS, EACH = 60, 3
ROWS = PERSONS * EACH
ODD: dict[str, Any] = {
    "digits": 10**5000,
    "surrogate": "x\udc80",
    "bytes": b"\xff",
    "decimal": Decimal("1.5"),
    "signal": Decimal("sNaN"),
    "date": date(2020, 1, 1),
    "list": [1],
    "object": object(),
    "complex": 1j,
    "array": np.zeros(2),
    "text": "zzz",
    "missing": None,
}


def objects(cells: Any, place: int | None = None, odd: Any = None) -> pd.Series:
    column = np.empty(len(cells), object)
    for i, cell in enumerate(cells):
        column[i] = odd if i == place else cell
    return pd.Series(column, dtype=object)


def table(place: str = "", odd: Any = None) -> tuple[pd.DataFrame, pd.Series, pd.Series, pd.Series]:
    """Features, target, ids and weights; one cell of the column `place` is odd."""
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.integers(18, 90, ROWS),
        "town": rng.choice(["a", "b"], ROWS),
        "ill": rng.choice(["no", "yes"], ROWS),
        "id": np.repeat(np.arange(PERSONS), EACH),
        "weight": np.ones(ROWS),
    }
    made = {
        name: objects(cells.tolist(), 7 if name == place else None, odd)
        for name, cells in columns.items()
    }
    X = pd.DataFrame({name: made[name] for name in ("age", "town")})
    return X, made["ill"].rename("ill"), made["id"], made["weight"]


def classifier(**options: Any) -> PrivateClassifier:
    settings: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "epochs": 1, "weight_bound": 1.0}
    # One column is declared, so that there is one whatever is found.
    return PrivateClassifier(**settings | {"feature_bounds": {"age": (0, 100)}} | options)


def budget(path: Path, epsilon: float = 100.0, unit: str = "person", **more: Any) -> dict[str, Any]:
    ledger = Ledger.create(path / "team.ledger")
    ledger.add_dataset("d", epsilon=epsilon, delta=1e-3, unit=unit, adjacency="add-remove", **more)
    return {"ledger": ledger, "dataset": "d"}


# ---- one person's cells are no error ----------------------------------------------------------------


@pytest.mark.parametrize("charged", [False, True], ids=["", "ledger"])
@pytest.mark.parametrize("place", ["town", "ill", "id", "weight"])
@pytest.mark.parametrize("odd", ODD)
def test_no_cell_is_an_error(odd: str, place: str, charged: bool, tmp_path: Path) -> None:
    X, y, ids, weights = table(place, ODD[odd])
    about = budget(tmp_path) if charged else {}
    model = classifier(classes=["no", "yes"], evaluate=0.2, random_state=1, **about)
    model.fit(X, y, groups=ids, sample_weight=weights)
    assert model.coef_.shape[0] == 1


@pytest.mark.parametrize("place", ["age", "town", "ill"])
@pytest.mark.parametrize("odd", ODD)
def test_nor_where_every_column_is_declared(odd: str, place: str) -> None:
    declared: dict[str, Any] = {
        "feature_bounds": {"age": (0, 100)},
        "categories": {"town": ["a", "b"]},
        "random_state": 1,
    }
    X, y, ids, _ = table(place, ODD[odd])
    model = classifier(classes=["no", "yes"], **declared).fit(X, y, groups=ids)
    clean, labels, _, _ = table()
    other = classifier(classes=["no", "yes"], **declared).fit(clean, labels, groups=ids)
    assert model.schema_ == other.schema_
    if place == "ill":
        regressor = PrivateRegressor(
            epsilon=8, delta=1e-5, epochs=1, target_bounds=(0, 1), **declared
        )
        assert regressor.fit(X, y, groups=ids).coef_.shape == other.coef_[0].shape


@pytest.mark.parametrize("spellings", [("7.10", "7.1"), ("8", "8.00")])
def test_equal_cells_of_two_spellings_are_read_one_by_one(spellings: tuple[str, str]) -> None:
    first, second = map(Decimal, spellings)
    both = person_ids([first, second]).tolist()
    assert both == [*person_ids([first]), *person_ids([second])]
    assert person_ids([Decimal("sNaN")]).shape == (1,)


# ---- noise is never around two answers ----------------------------------------------------------------


def dated(n: int = 400) -> tuple[pd.DataFrame, pd.Series]:
    """A column of which half are dates in a format of its own, half texts of which none comes twice."""
    rng = np.random.default_rng(0)
    when = [
        f"{1 + i % 28:02}.{1 + i % 12:02}.{1950 + i % 70}" if i % 2 else f"t{i}" for i in range(n)
    ]
    frame = pd.DataFrame({"age": rng.integers(18, 90, n), "when": when})
    return frame, pd.Series(rng.choice(["no", "yes"], n), name="ill")


@pytest.mark.parametrize("kept", ["key", "checkpoint"])
def test_one_key_reads_a_table_in_one_way(kept: str, tmp_path: Path) -> None:
    """Else the difference of two answers is a number without noise: here, how many dates there are."""
    X, y = dated()
    about: dict[str, Any] = {"run_key": RunKey.fresh()}
    if kept == "checkpoint":
        about = {"checkpoint": str(tmp_path / "run")}
    first = classifier(epsilon=4.0, **about).fit(X, y)
    assert first.columns_[1].used is False
    with pytest.raises(SordinoError, match=r"already used|other inputs"):
        classifier(epsilon=4.0, date_formats={"when": "%d.%m.%Y"}, **about).fit(X, y)
    again = classifier(epsilon=4.0, **about).fit(X, y)
    np.testing.assert_array_equal(again.coef_, first.coef_)


@pytest.mark.parametrize("kept", ["key", "checkpoint"])
def test_another_table_is_refused_before_it_is_asked_anything(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = dated()
    about: dict[str, Any] = {"run_key": RunKey.fresh()}
    if kept == "checkpoint":
        about = {"checkpoint": str(tmp_path / "run")}
    classifier(**about).fit(X, y)
    asked: list[object] = []
    found = private_fit.run_table_release

    def noted(*given: Any, **options: Any) -> Any:
        asked.append(given)
        return found(*given, **options)

    monkeypatch.setattr(private_fit, "run_table_release", noted)
    with pytest.raises((SordinoError, PlanMismatchError), match=r"already used|other inputs"):
        classifier(**about).fit(X.assign(age=X["age"] + 1), y)
    with pytest.raises((SordinoError, PlanMismatchError), match=r"already used|other inputs"):
        classifier(**about | {"epsilon": 7.0}).fit(X, y)
    assert not asked


# ---- what is seen was paid for ------------------------------------------------------------------------


def test_what_class_weights_tell_of_the_classes_found_is_paid_for(tmp_path: Path) -> None:
    """Whether a class was found is an answer of the release, also in the words of an error."""
    X, y = dated(2000)
    about = budget(tmp_path, epsilon=9.0, unit="example")
    weighted = classifier(class_weight={"rare": 0.5}, **about)
    with pytest.raises(SordinoError, match="which is no class"):
        weighted.fit(X, y)
    assert about["ledger"].status("d").epsilon > 4
    with pytest.raises(SordinoError, match="budget") as refused:
        weighted.fit(X, y)
    assert refused.value.__context__ is None  # and nothing is said that was not paid for
    assert "rare" not in str(refused.value)


def test_a_ledger_says_no_number_of_rows_that_is_private(tmp_path: Path) -> None:
    X, y, ids, _ = table()
    about = budget(tmp_path, rows=500)
    classifier(classes=["no", "yes"], random_state=1, **about).fit(X, y, groups=ids)


def test_a_ledger_that_knows_persons_knows_them_in_a_raw_table(tmp_path: Path) -> None:
    X, y, ids, _ = table()
    ledger = Ledger.create(tmp_path / "team.ledger")
    marks = ledger.marks(person_ids(ids), persons=True)
    ledger.add_dataset(
        "d",
        epsilon=100,
        delta=1e-3,
        unit="person",
        adjacency="add-remove",
        fingerprint=ledger.fingerprint("elsewhere"),
        marks=marks,
    )
    about: dict[str, Any] = {"ledger": ledger, "dataset": "d"}
    classifier(classes=["no", "yes"], random_state=1, **about).fit(X, y, groups=ids)
    part = ids.to_numpy() < PERSONS // 2
    with pytest.raises(SordinoError, match="a part of a data set"):
        classifier(classes=["no", "yes"], random_state=2, **about).fit(
            X[part], y[part], groups=ids[part]
        )
    charged = classifier(classes=["no", "yes"], random_state=2, parts="charge", **about)
    charged.fit(X[part], y[part], groups=ids[part])


# ---- floats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["binary", "classes", "regression"])
def test_scores_have_no_bits_that_tell_what_noise_was_added_to(task: str) -> None:
    sigma, rng = 3.7, np.random.default_rng(0)
    query = Evaluation(task, sigma, 0.1)
    key = RunKey.from_insecure_seed(1)
    if task == "regression":
        answer = run_evaluation(query, rng.random(40), rng.random(40), None, key, bounds=(0.0, 1.0))
    else:
        count = 2 if task == "binary" else 3
        scores = rng.dirichlet(np.ones(count), 40)
        answer = run_evaluation(
            query, rng.integers(0, count, 40), scores, None, key, classes=list(range(count))
        )
    for part in answer.weights.values():
        assert (part * 2.0**19 % 1 == 0).all()  # sigma 2^-20, down to a power of two


def test_nor_has_a_trials_score() -> None:
    class Always:
        _estimator_type = "regressor"
        target_bounds_ = (0.0, 1.0)

        def predict(self, X: np.ndarray) -> np.ndarray:
            return np.zeros(len(X))

        def __sklearn_tags__(self) -> Any:
            return PrivateRegressor().__sklearn_tags__()

    X, y = np.zeros((64, 1)), np.random.default_rng(0).random(64)
    score = NoisyScore(X, y, 3.7, np.random.default_rng(1))(Always())  # type: ignore[arg-type]
    assert score * 64 * 2.0**19 % 1 == 0


# ---- plans are decided before the release ---------------------------------------------------------------


@pytest.mark.parametrize("persons", [500, 5000, None])
def test_a_task_that_the_release_settles_has_no_secret_batches(persons: int | None) -> None:
    """Of two plans whose curves cross, an outcome could choose the worse."""
    seen: list[Any] = []

    class EnoughError(Exception):
        pass

    def noted(task: str, count: int | None, beside: Any) -> Any:
        about = {"adjacency": Adjacency.ZERO_OUT.value, "unit": "example", "delta": 1e-5}
        if count is None and persons is None:
            about["adjacency"] = Adjacency.ADD_REMOVE.value
        seen.append(PrivateClassifier(epsilon=1)._open_plan(task, count, beside, **about))
        if len(seen) == 2:
            raise EnoughError
        return seen[-1]

    facts = TableFacts(names=("a",), declared={}, target="t", persons=persons, task=AUTO)
    asked = Asked(epsilon=1, delta=1e-5, adjacency="zero-out")
    arguments: dict[str, Callable[..., Any] | Any] = {
        "plan_for": noted,
        "rate_for": lambda *_: None,
        "key": None,
        "source": Source(np.zeros(1)),
        "unit": "example",
    }
    with pytest.raises(EnoughError):
        private_fit.fit_table(None, facts, asked, **arguments)  # type: ignore[arg-type]
    assert not any(plan.guarantee.is_amplified for plan in seen)


# ---- what is declared is counted -------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [[0, 1], ["10", "9"], [False, True], ["no", "yes"]], ids=str)
def test_declared_classes_are_counted_however_they_look(classes: list[Any]) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.integers(18, 90, 2000)})
    y = pd.Series([classes[i] for i in rng.choice(2, 2000, p=[0.8, 0.2])], name="t")
    model = PrivateClassifier(
        epsilon=8, delta=1e-5, epochs=1, classes=classes, class_weight="balanced", random_state=1
    ).fit(X, y)
    found = model.table_run_.found
    assert found.classes == tuple(classes)
    np.testing.assert_allclose(found.counts, [1600, 400], atol=120)
    assert found.persons == pytest.approx(2000, abs=150)
    assert model.table_run_.weights[str(classes[1])] == 1.0

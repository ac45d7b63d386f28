"""Searches in folds: what they pay, who trains and who scores, and scores that are released."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from sordino import Ledger, PrivateClassifier, PrivateRegressor, PrivateSearch
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino._base.keys import RunKey
from sordino.models import _scores as scores
from sordino.models._scores import FoldPrices, folds_of, owners_of
from sordino.models._search_plan import check_price
from sordino.privacy import Guarantee, mu_from_epsilon_delta

ROWS, FOLDS = 300, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (ROWS, 3))
Y = (X @ np.array([1.0, 2.0, -1.0]) > 0).astype(int)
INDEX = {tuple(row): number for number, row in enumerate(X)}
SPACE = {"learning_rate": [1e-6, 2.0]}
BASE = PrivateClassifier(classes=[0, 1], feature_bounds=(-1, 1), examples=ROWS, epochs=2)


def searching(**changes: Any) -> PrivateSearch:
    settings: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "method": "folds", "folds": FOLDS}
    estimator, space = changes.pop("estimator", BASE), changes.pop("space", SPACE)
    return PrivateSearch(estimator, space, **(settings | changes))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Rows of every training with what it cost, and every released score."""
    found: dict[str, list[Any]] = {"fits": [], "scores": []}
    fit, evaluate = PrivateClassifier.fit, scores.run_evaluation

    def fitted(self: Any, rows: Any, y: Any, **more: Any) -> Any:
        result = fit(self, rows, y, **more)
        own = [INDEX[tuple(row)] for row in np.asarray(rows)]
        found["fits"].append((own, self.guarantee_.mu, self))
        return result

    def evaluated(query: Any, truth: Any, guess: Any, *rest: Any, **more: Any) -> Any:
        found["scores"].append((query, np.array(guess)))
        return evaluate(query, truth, guess, *rest, **more)

    monkeypatch.setattr(PrivateClassifier, "fit", fitted)
    monkeypatch.setattr(scores, "run_evaluation", evaluated)
    return found


def test_the_page_s_prices() -> None:
    """Page 06, 7: eight candidates in five folds leave 0.174 mu a fit, 0.156 with scores at its price."""
    prices = FoldPrices.of(1.0, 8, 5)
    assert prices.fit == prices.score == pytest.approx(0.156, abs=5e-4)
    assert replace(prices, fit=0.174, score=0.0).total() == pytest.approx(1, abs=1e-3)
    for shared in (0.0, 0.3):
        assert FoldPrices.of(0.7, 3, 4, shared).total() <= 0.7 < 0.7 * (1 + 1e-9)
    assert FoldPrices.of(0.7, 3, 4, 0.3).total() == pytest.approx(0.7)
    with pytest.raises(SordinoError, match="leaves nothing"):
        FoldPrices.of(0.3, 3, 4, 0.3)


def test_a_row_trains_all_but_once_and_is_scored_where_it_did_not(seen: dict[str, Any]) -> None:
    found = searching().fit(X, Y)
    *fits, last = seen["fits"]
    assert len(fits) == 2 * FOLDS
    assert sorted(last[0]) == list(range(ROWS))
    for candidate in range(2):
        own = fits[candidate * FOLDS : (candidate + 1) * FOLDS]
        times = np.bincount(np.concatenate([rows for rows, _, _ in own]), minlength=ROWS)
        assert (times == FOLDS - 1).all()
        _, guess = seen["scores"][candidate]
        for rows, _, model in own:
            apart = np.setdiff1d(np.arange(ROWS), rows)
            np.testing.assert_array_equal(guess[apart], model.predict_proba(X[apart]))
    assert len(seen["scores"]) == 2
    # All that is paid for one row, in squares: two trainings of three for each candidate, the last one too.
    total = mu_from_epsilon_delta(8.0, 1e-5)
    (price,) = {round(mu, 12) for _, mu, _ in fits}
    paid = (2 * (FOLDS - 1) + 1) * price**2
    paid += sum((1 / query.sigma) ** 2 for query, _ in seen["scores"])
    assert 0.999 * total**2 < paid <= total**2
    assert found.guarantee_.mu == total
    assert isinstance(found.guarantee_, Guarantee)
    assert found.best_params_ == {"learning_rate": 2.0}
    assert found.best_score_ == max(trial["score"] for trial in found.trials_) > 0.7
    assert found.best_estimator_.guarantee_ == found.guarantee_
    assert "5 trainings and 2 scores" in str(found.guarantee_)
    assert "each in 3 folds" in str(found.plan_)


def test_a_plan_that_pays_less_than_it_costs_is_refused() -> None:
    plan = searching().fit(X, Y).plan_
    plan.verify()
    for folds in (
        replace(plan.folds, folds=4),
        replace(plan.folds, score=1.01 * plan.folds.score),
        replace(plan.folds, candidates=1),
    ):
        with pytest.raises(SordinoError, match="do not give"):
            replace(plan, folds=folds).verify()
    assert plan.to_json()["folds"]["folds"] == FOLDS
    assert "folds" not in replace(plan, folds=None).to_json()


def test_folds_are_of_persons_and_nobody_moves_another() -> None:
    key = RunKey.from_insecure_seed(1)
    groups = ["7", 7.0, " 7", "8", None, *range(100, 400)]
    ids, owners = owners_of(groups)
    assert ids is not None
    assert owners is not None
    assert owners[:5].tolist() == [0, 0, 0, 1, -1]
    place = folds_of(key, ids, len(ids), 5)
    assert len(set(place[:3])) == 1
    assert np.bincount(place).min() > 35
    without = folds_of(key, ids[3:], len(ids) - 3, 5)
    np.testing.assert_array_equal(without, place[3:])
    assert (folds_of(RunKey.from_insecure_seed(2), ids, len(ids), 5) != place).any()
    sizes = np.bincount(folds_of(key, None, 302, 3))
    assert sizes.tolist() in ([101, 101, 100], [101, 100, 101], [100, 101, 101])


def test_persons_with_one_row_each(seen: dict[str, Any]) -> None:
    base = clone(BASE).set_params(unit="user", one_row_per_person=True)
    searching(estimator=base).fit(X, Y, groups=[f"p{i}" for i in range(ROWS)])
    *fits, last = seen["fits"]
    assert len(last[0]) == ROWS
    for rows, _, model in fits:
        assert model.examples == len(rows)


def test_replacing_costs_more_noise_on_scores(seen: dict[str, Any]) -> None:
    """Page 06, 14.7: sqrt(2) / sigma, also for a person who comes back in another fold."""
    plan = searching(estimator=clone(BASE).set_params(adjacency="replace-one")).fit(X, Y).plan_
    for query, _ in seen["scores"]:
        cost = query.guarantee(adjacency="replace-one", unit="example", delta_hint=None).mu
        assert cost <= plan.folds.score * (1 + 1e-9)
        assert query.sigma == pytest.approx(math.sqrt(2) / plan.folds.score)


@pytest.mark.filterwarnings("ignore::sordino.PrivacyWarning")
def test_a_class_that_a_fold_does_not_have() -> None:
    """Classes that are not declared are those of all rows in every fold, and what is said is said once."""
    labels = np.where(np.arange(ROWS) == 5, "rare", np.where(Y == 1, "yes", "no"))
    base = PrivateClassifier(feature_bounds=(-1, 1), epochs=2, undeclared="take")
    found = searching(estimator=base, scoring="balanced_accuracy").fit(pd.DataFrame(X), labels)
    assert found.classes_.tolist() == ["no", "rare", "yes"]


def test_a_regression_in_folds() -> None:
    base = PrivateRegressor(target_bounds=(-4, 4), feature_bounds=(-1, 1), examples=ROWS, epochs=2)
    y = X @ np.array([1.0, 2.0, -1.0])
    space = {"learning_rate": [1e-6, 0.3]}
    found = searching(estimator=base, space=space, epsilon=40.0).fit(X, y)
    assert -3 < found.best_score_ < 0  # minus the error
    assert found.best_params_ == {"learning_rate": 0.3}
    with pytest.raises(SordinoError, match="neg_root_mean_squared_error"):
        searching(estimator=base, scoring="roc_auc").fit(X, y)


def test_what_folds_are_not_for() -> None:
    with pytest.raises(SordinoError, match="method='composition'"):
        searching().fit(X, Y, public=(X, Y))
    with pytest.raises(SordinoError, match="cut by their places"):
        searching(estimator=clone(BASE).set_params(adjacency="add-remove")).fit(X, Y)
    with pytest.raises(SordinoError, match="folds"):
        searching(folds=1).fit(X, Y)
    with pytest.raises(SordinoError, match="scoring by a function"):
        searching(scoring=lambda *_: 0.0).fit(X, Y)


@pytest.mark.parametrize("method", ["folds", "composition", "random-stopping"])
def test_a_search_does_not_pay_for_what_is_not_declared(method: str, tmp_path: Path) -> None:
    """Page 06, 7: no trial may find facts of its own inside its share of the price."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=9.0, delta=1e-4)
    account = {"ledger": ledger, "dataset": "people", "method": method}
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for change, words in (
        ({"examples": None}, r"not declared: the number of rows \(examples=\.\.\.\); declare it"),
        ({"undeclared": "pay"}, "leave undeclared='pay' out"),
        ({"evaluate": 0.1}, "evaluate is for single fits on raw tables"),
        ({"class_weight": "balanced"}, "class_weight is for single fits on raw tables"),
    ):
        with pytest.raises(SordinoError, match=words):
            searching(estimator=clone(BASE).set_params(**change), **account).fit(frame, Y)
    for name, words in (
        ("evaluate", "changes what a trial costs"),
        ("undeclared", "changes what a trial costs"),
        ("class_weight", "trains on what is declared"),
    ):
        with pytest.raises(SordinoError, match=words):
            searching(space={name: [None]}, **account).fit(frame, Y)
    assert ledger.reservations() == ()
    with pytest.warns(PrivacyWarning, match="does not know"):
        searching(**account).fit(frame, Y)
    assert len(ledger.reservations()) == 1


def test_what_may_show_a_text_is_in_no_search() -> None:
    """Page 06, 14.8: with random stopping its Renyi divergence would be infinite."""
    plan = searching().fit(X, Y).plan_
    price = Guarantee.gaussian(
        0.1, adjacency="zero-out", unit="example", participation="once", lost=1e-7
    )
    with pytest.raises(SordinoError, match="declare the categories"):
        check_price(price, plan)
    check_price(replace(price, lost=0.0), plan)


def test_a_search_in_folds_is_one_run_of_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=9.0, delta=1e-5, marks=ledger.marks(X))
    found = searching(ledger=ledger, dataset="people").fit(X, Y)
    (held,) = ledger.reservations()
    assert held.guarantee == found.guarantee_
    part = clone(BASE).set_params(examples=150)
    with pytest.raises(SordinoError, match="a part of a data set"):
        searching(estimator=part, ledger=ledger, dataset="people", epsilon=0.1).fit(
            X[:150], Y[:150]
        )


@pytest.mark.parametrize("method", ["composition", "random-stopping"])
def test_a_holdout_scored_by_its_area_under_the_curve(seen: dict[str, Any], method: str) -> None:
    found = searching(method=method, scoring="roc_auc", n_trials=2, random_state=1).fit(X, Y)
    assert 0.5 < found.best_score_ <= 1
    for query, guess in seen["scores"]:
        assert query.sigma == pytest.approx(1 / found.plan_.trial_mu)
        assert len(guess) == ROWS // 5
    assert len({query.name for query, _ in seen["scores"]}) == len(seen["scores"])

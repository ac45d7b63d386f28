"""Hyper-parameter search: what it pays, what it shows, and what it refuses."""

from __future__ import annotations

import math
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from sordino import BudgetExceeded, Ledger, PrivateClassifier, PrivateRegressor, PrivateSearch
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.models import _search as module
from sordino.privacy._gdp import mu_from_epsilon_delta
from sordino.privacy._guarantee import Guarantee
from sordino.privacy._selection import SelectionGuarantee, StoppingLaw

ROWS = 400
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (ROWS, 3))
Y = (X @ np.array([1.0, 2.0, -1.0]) > 0).astype(int)
PUBLIC = (RANDOM.uniform(-1, 1, (200, 3)), RANDOM.integers(0, 2, 200))
SPACE = {"learning_rate": [0.5, 2.0], "clip": [0.5, 1.0]}
BASE = PrivateClassifier(classes=[0, 1], feature_bounds=(-1, 1), examples=ROWS)


def searching(**changes: Any) -> PrivateSearch:
    settings: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "n_trials": 3}
    return PrivateSearch(
        changes.pop("estimator", BASE), changes.pop("space", SPACE), **(settings | changes)
    )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every trial that is fitted."""
    seen: list[Any] = []
    true = PrivateClassifier.fit

    def fit(self: Any, *data: Any, **more: Any) -> Any:
        seen.append(self)
        return true(self, *data, **more)

    monkeypatch.setattr(PrivateClassifier, "fit", fit)
    return seen


def test_the_best_of_a_random_number_of_runs_pays_for_the_selection(watched: list[Any]) -> None:
    found = searching(n_trials=6, random_state=3).fit(X, Y, public=PUBLIC)
    stated = found.guarantee_
    assert isinstance(stated, SelectionGuarantee)
    assert 1.9 < stated.epsilon(1e-5) <= 2.0
    assert stated.law == StoppingLaw.with_mean(6)
    assert len(watched) == stated.law.draw(
        float(_generator_after_candidates(3).random())
    )  # as the law says, not as data say
    for trial in watched:
        if trial is not found.best_estimator_:
            assert trial.guarantee_.mu <= stated.base_mu
    assert stated.base_mu < mu_from_epsilon_delta(2.0, 1e-5)
    assert found.best_estimator_.guarantee_ == stated
    assert found.best_estimator_.result_.guarantee == stated
    assert "selection included" in found.best_estimator_.result_.statement()
    assert not hasattr(found, "trials_")
    assert not any("n_trials_" in name for name in vars(found))


def _generator_after_candidates(seed: int) -> np.random.Generator:
    draw = module.RunKey.from_insecure_seed(seed).generator("search")
    draw.integers(0, 2**32, 8, dtype=np.uint64)
    return draw


def test_composition_pays_for_every_trial_and_shows_them(watched: list[Any]) -> None:
    found = searching(method="composition", n_trials=3).fit(X, Y, public=PUBLIC)
    stated = found.guarantee_
    assert isinstance(stated, Guarantee)
    assert stated.mu == mu_from_epsilon_delta(2.0, 1e-5)
    assert len(watched) == len(found.trials_) == 3
    trials = [t for t in watched if t is not found.best_estimator_]
    shares = [trial.guarantee_.mu for trial in trials]
    assert math.hypot(*shares, max(shares)) <= stated.mu
    assert found.best_score_ == max(trial["score"] for trial in found.trials_)
    assert len({str(trial["params"]) for trial in found.trials_}) == 3  # no candidate twice


def test_no_more_is_paid_than_there_are_candidates() -> None:
    found = searching(method="composition", n_trials=50).fit(X, Y, public=PUBLIC)
    assert len(found.trials_) == 4
    assert found.plan_.trial_mu == pytest.approx(mu_from_epsilon_delta(2.0, 1e-5) / 2)


def test_the_best_trial_is_the_one_that_scores_best() -> None:
    answers = iter([0.2, 0.9, 0.5, math.nan])

    def scoring(model: Any, X: Any, y: Any) -> float:
        return next(answers)

    found = searching(method="composition", n_trials=4, scoring=scoring).fit(X, Y, public=PUBLIC)
    assert found.best_score_ == 0.9
    assert found.best_params_ == found.trials_[1]["params"]
    for name, value in found.best_params_.items():
        assert getattr(found.best_estimator_, name) == value


def test_a_private_holdout_is_scored_with_noise_and_never_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: dict[str, Any] = {"trained": set(), "noise": []}
    true_fit, true_score = PrivateClassifier.fit, module.NoisyScore.__call__
    index = {tuple(row): number for number, row in enumerate(X)}

    def fit(self: Any, rows: Any, y: Any) -> Any:
        parts["trained"] |= {index[tuple(row)] for row in rows}
        assert self.examples == len(rows) == 300
        return true_fit(self, rows, y)

    def score(self: Any, model: Any) -> float:
        parts["scored"] = {index[tuple(row)] for row in self.X}
        value = true_score(self, model)
        exact = np.mean(model.predict(self.X) == self.y)
        parts["noise"].append((value - exact) * len(self.y) / self.std)
        parts["std"] = self.std
        return value

    monkeypatch.setattr(PrivateClassifier, "fit", fit)
    monkeypatch.setattr(module.NoisyScore, "__call__", score)
    made = searching(method="composition", n_trials=40, holdout=0.25, random_state=1)
    made.set_params(param_distributions={"learning_rate": loguniform(0.1, 4)})
    found = made.fit(X, Y)
    assert parts["trained"] | parts["scored"] == set(range(ROWS))
    assert not parts["trained"] & parts["scored"]
    # One row moves the sum by 1, so noise of 1 / mu is mu-GDP.
    assert parts["std"] == 1 / found.plan_.trial_mu
    noise = np.array(parts["noise"])
    assert len(noise) == 40
    assert 0.6 < noise.std() < 1.5
    assert abs(noise.mean()) < 0.8


def test_regression_is_scored_within_its_bounds() -> None:
    y = np.clip(X @ np.array([0.5, 0.2, 0.1]), -1, 1)
    base = PrivateRegressor(target_bounds=(-1, 1), feature_bounds=(-1, 1), examples=ROWS)
    found = searching(estimator=base, epsilon=8.0).fit(X, y)
    assert 0.5 < found.best_score_ < 1.5
    assert found.predict(X).shape == (ROWS,)
    score = module.NoisyScore(X, y, 0.0, np.random.default_rng(0))

    class Far:
        target_bounds_ = (-1.0, 1.0)

        def predict(self, X: Any) -> Any:
            return np.full(len(X), 1e9)

        def __sklearn_tags__(self) -> Any:
            return base.__sklearn_tags__()

    assert 0 <= score(Far()) <= 1


def test_a_search_is_one_run_of_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=3.0, delta=1e-5, marks=ledger.marks(X))
    settings = {"ledger": ledger, "dataset": "people"}
    found = searching(**settings).fit(X, Y, public=PUBLIC)
    (held,) = ledger.reservations()
    assert (held.recipe, held.state) == ("search", "released")
    assert held.guarantee == found.guarantee_
    assert held.plan_hash == found.plan_.hash
    assert ledger.status("people").epsilon == pytest.approx(2.0, abs=0.01)
    with pytest.raises(BudgetExceeded):
        searching(**settings).fit(X, Y, public=PUBLIC)
    # The same data as the estimator alone would be known by; other data is refused.
    clone(BASE).set_params(epsilon=0.3, delta=1e-5, **settings).fit(X, Y)
    with pytest.raises(SordinoError, match="other data"):
        searching(**(settings | {"epsilon": 0.1})).fit(X + 1, Y, public=PUBLIC)
    assert len(ledger.reservations()) == 2
    ledger.verify()


def test_a_search_that_fails_half_way_stays_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=3.0, delta=1e-5)
    monkeypatch.setattr(PrivateClassifier, "fit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        searching(ledger=ledger, dataset="people").fit(X, Y, public=PUBLIC)
    assert [held.state for held in ledger.reservations()] == ["running"]


def test_a_search_is_an_estimator() -> None:
    made = searching(random_state=0)
    copy = clone(made)
    assert copy.get_params()["estimator__classes"] == [0, 1]
    with pytest.raises(NotFittedError):
        made.predict(X)
    assert not hasattr(made, "classes_")
    made.fit(X, Y, public=PUBLIC)
    copy.fit(X, Y, public=PUBLIC)
    np.testing.assert_array_equal(made.best_estimator_.coef_, copy.best_estimator_.coef_)
    assert made.best_params_ == copy.best_params_
    assert made.predict_proba(X).shape == (ROWS, 2)
    assert made.decision_function(X).shape == (ROWS,)
    assert set(made.predict(X)) <= set(made.classes_)
    assert 0 <= made.score(*PUBLIC) <= 1
    assert made.n_features_in_ == 3
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.predict(X), made.predict(X))
    assert made.__sklearn_tags__().estimator_type == "classifier"


def test_fresh_searches_differ() -> None:
    one, other = (searching(n_trials=2).fit(X, Y, public=PUBLIC) for _ in range(2))
    assert not np.array_equal(one.best_estimator_.coef_, other.best_estimator_.coef_)


def test_warnings_of_the_trials_are_said_once() -> None:
    base = clone(BASE).set_params(classes=None, examples=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        searching(estimator=base, method="composition", n_trials=4).fit(X, Y, public=PUBLIC)
    privacy = [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
    assert sum("list of classes" in text for text in privacy) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "free"}, "method 'free' is not known"),
        ({"n_trials": 1}, "must be greater than 1"),
        ({"n_trials": 2.5, "method": "composition"}, "whole number"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"space": {}}, "must be a dict"),
        ({"space": {"epsilon": [1, 2]}}, "changes what a trial costs"),
        ({"space": {"noise": ["discrete"]}}, "changes what a trial costs"),
        ({"space": {"nonsense": [1]}}, "no parameter 'nonsense'"),
        ({"space": {"clip": "many"}}, "must be a list"),
        ({"space": {"clip": []}}, "must be a list"),
        ({"estimator": clone(BASE).set_params(noise="discrete")}, "gaussian noise"),
        ({"estimator": clone(BASE).set_params(ledger="a", dataset="b")}, "to the search"),
        ({"dataset": "people"}, "needs a ledger"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_trial(
    watched: list[Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SordinoError, match=words):
        searching(**changes).fit(X, Y, public=PUBLIC)
    assert not watched


def test_holdouts_that_would_not_be_private_are_refused(watched: list[Any]) -> None:
    with pytest.raises(SordinoError, match="for public validation data"):
        searching(scoring=len).fit(X, Y)
    with pytest.raises(SordinoError, match="leaves nothing"):
        searching(holdout=0.001).fit(X, Y)
    with pytest.raises(SordinoError, match="between training and scoring"):
        searching(estimator=clone(BASE).set_params(adjacency="add-remove")).fit(X, Y)
    with pytest.raises(SordinoError, match="must be a pair"):
        searching().fit(X, Y, public=X)
    with pytest.raises(SordinoError, match="y is None"):
        searching().fit(X, None)
    assert not watched


def test_amplified_trials_are_refused() -> None:
    class Sampled(PrivateClassifier):
        def fit(self, X: Any, y: Any, **more: Any) -> Any:
            super().fit(X, y, **more)
            self.guarantee_ = Guarantee(0.0, "zero-out", "example", "at random", distance=1e-9)
            return self

    base = Sampled(classes=[0, 1], feature_bounds=(-1, 1), examples=ROWS)
    with pytest.raises(SordinoError, match="price of a search is not known"):
        searching(estimator=base).fit(X, Y, public=PUBLIC)


def test_a_trial_that_costs_more_than_its_share_is_refused() -> None:
    class Dear(PrivateClassifier):
        def fit(self, X: Any, y: Any, **more: Any) -> Any:
            self.epsilon = 2 * self.epsilon
            return super().fit(X, y, **more)

    base = Dear(classes=[0, 1], feature_bounds=(-1, 1), examples=ROWS)
    with pytest.raises(SordinoError, match="a trial costs mu"):
        searching(estimator=base).fit(X, Y, public=PUBLIC)


def test_replacement_is_searched_at_its_own_price() -> None:
    base = clone(BASE).set_params(adjacency="replace-one")
    found = searching(estimator=base).fit(X, Y, public=PUBLIC)
    assert found.guarantee_.adjacency == "replace-one"
    assert found.guarantee_.epsilon(1e-5) <= 2.0

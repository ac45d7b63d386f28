"""What estimators and searches state covers what was done, and pickles hold no key."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from sordino import Ledger, PrivateClassifier, PrivateRegressor, PrivateSearch
from sordino._base.errors import PrivacyWarning
from sordino._base.keys import RunKey
from sordino.privacy._guarantee import Guarantee
from sordino.privacy._selection import SelectionGuarantee
from tests.cli.test_report import render_report

ROWS = 120
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(-1, 1, (ROWS, 3))
Y = (X[:, 0] > 0).astype(int)
PUBLIC = (RANDOM.uniform(-1, 1, (50, 3)), RANDOM.integers(0, 2, 50))
SPACE = {"learning_rate": [0.5, 2.0], "clip": [0.5, 1.0]}
OPTIONS: dict[str, Any] = {"feature_bounds": (-1, 1), "epochs": 1, "epsilon": 1.0, "delta": 1e-5}
QUALIFIED = "does NOT hold against anyone who knows or guesses the seed"


def base(**more: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"classes": [0, 1], **OPTIONS, **more})


def said(act: Any) -> list[str]:
    """The privacy warnings of an act."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]


def again(act: Any) -> int:
    """How often an act is warned about as one of several fits on the same rows."""
    return sum("each guarantee_ is of one fit alone" in text for text in said(act))


@pytest.mark.parametrize("method", ["random-stopping", "composition"])
def test_the_best_trial_states_what_the_search_costs(method: str) -> None:
    """a: plan, guarantee and result of the released trial state the search's cost, not a share."""
    search = PrivateSearch(base(), SPACE, epsilon=1.0, delta=1e-5, n_trials=3, method=method)
    best = search.fit(X, Y, public=PUBLIC).best_estimator_
    whole = search.guarantee_.epsilon(1e-5)
    assert 0.99 < whole <= 1.0
    for stated in (best.guarantee_, best.plan_.guarantee, best.result_.guarantee):
        assert stated.epsilon(1e-5) == whole
    assert best.result_.plan.guarantee.epsilon(1e-5) == whole
    page = str(best.plan_)
    assert search.guarantee_.sentence() in page
    assert "What the search releases satisfies (1, 1e-05)" in page
    # The trial's own plan is one step further, and says less than the whole.
    assert best.plan_.best.guarantee.epsilon(1e-5) < 0.8 * whole
    assert search.plan_.hash == best.plan_.hash


def test_a_secret_number_of_trials_shows_on_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """b: with random stopping, `verbose=1` shows nothing per trial, and no warning counts them."""
    search = PrivateSearch(base(verbose=1), SPACE, epsilon=1.0, delta=1e-5, n_trials=8)
    texts = said(lambda: search.fit(X, Y, public=PUBLIC))
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""
    assert not any("fitted before" in text for text in texts)
    composed = PrivateSearch(
        base(verbose=1), SPACE, epsilon=1.0, delta=1e-5, n_trials=2, method="composition"
    )
    composed.fit(X, Y, public=PUBLIC)
    assert "training" in capsys.readouterr().out  # that number is public


def holders(key: RunKey) -> list[Any]:
    """Fitted things that hold an estimator which holds a key."""
    model = base(run_key=key)
    return [
        model,  # before its fit
        clone(model).fit(X, Y),
        FixedThresholdClassifier(clone(model), threshold=0.4).fit(X, Y),
        make_pipeline(FunctionTransformer(), clone(model)).fit(X, Y),
        PrivateSearch(clone(model), SPACE),
        PrivateRegressor(target_bounds=(0, 1), run_key=key, **OPTIONS),
    ]


def test_no_pickle_holds_a_run_key() -> None:
    """e: neither a fitted estimator nor what holds it, nor the original, carries the key to a file."""
    key = RunKey.fresh()
    for held in holders(key):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            data = pickle.dumps(held, protocol)
            assert key.secret not in data
            assert repr(key.secret)[2:-1].encode() not in data
        assert b"RunKey" not in pickle.dumps(held)
        pickle.loads(pickle.dumps(held))
    model = base(run_key=key)
    assert pickle.loads(pickle.dumps(model)).get_params() == {**model.get_params(), "run_key": None}
    assert clone(model).run_key == key  # in this process a clone is the same run


def test_a_seeded_guarantee_is_qualified_wherever_it_is_printed() -> None:
    """n: with `random_state` the guarantee says that it does not hold against who knows the seed."""
    model = base(random_state=0).fit(X, Y)
    stated = model.guarantee_
    assert QUALIFIED in str(stated)
    assert QUALIFIED in stated.sentence(1e-7)
    assert "insecure=True" in repr(stated)
    assert stated.to_json()["insecure"] is True
    assert Guarantee.from_json(stated.to_json()) == stated
    assert model.result_.statement().count(QUALIFIED) == 1
    report = render_report(model.plan_, guarantee=stated, title="t")
    assert report.count(QUALIFIED) >= 2
    assert "Someone without the seed of the noise" in report
    for method in ("random-stopping", "composition"):
        search = PrivateSearch(
            base(), SPACE, epsilon=1.0, delta=1e-5, n_trials=2, method=method, random_state=1
        ).fit(X, Y, public=PUBLIC)
        assert QUALIFIED in str(search.guarantee_)
        assert QUALIFIED in str(search.best_estimator_.guarantee_)
        kind = SelectionGuarantee if method == "random-stopping" else Guarantee
        assert kind.from_json(search.guarantee_.to_json()) == search.guarantee_
    fresh = base().fit(X, Y)
    assert QUALIFIED not in str(fresh.guarantee_)
    assert "insecure" not in fresh.guarantee_.to_json()


def test_a_guarantee_says_whose_it_is() -> None:
    """q: the sentence of a fitted estimator is about this fit, and no other."""
    model = base().fit(X, Y)
    assert str(model.guarantee_).startswith("What this fit releases satisfies (1, 1e-05)")
    assert model.guarantee_ == model.plan_.guarantee


@pytest.mark.parametrize(
    "several",
    [
        lambda: GridSearchCV(base(), {"clip": [0.5, 1.0]}, cv=3).fit(X, Y),
        lambda: cross_val_score(base(), X, Y, cv=5),
        lambda: [base(learning_rate=rate).fit(X, Y) for rate in (0.5, 1.0, 2.0)],
        lambda: (
            make_pipeline(FunctionTransformer(), base()).fit(X, Y) and base().fit(X[:60], Y[:60])
        ),
    ],
    ids=["grid", "folds", "loop", "pipeline"],
)
def test_several_fits_on_the_same_rows_are_warned_about_once(several: Any) -> None:
    """q: many fits and a guarantee of one: said once, with what to use instead."""
    texts = [text for text in said(several) if "each guarantee_ is of one fit alone" in text]
    assert len(texts) == 1
    assert "PrivateSearch" in texts[0]
    assert "ledger=" in texts[0]
    assert again(several) == 0  # and not again


def test_fits_that_are_accounted_for_or_of_other_rows_are_not_warned_about(tmp_path: Path) -> None:
    """q: a ledger counts several fits, a search pays for its own, other rows are other people's."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=5.0, delta=1e-5, rows=len(X))

    def counted() -> None:
        for _ in range(2):
            base(ledger=ledger, dataset="people").fit(X, Y)

    def searched() -> None:
        PrivateSearch(base(), SPACE, epsilon=1.0, delta=1e-5, n_trials=3).fit(X, Y, public=PUBLIC)

    assert again(counted) == 0
    assert again(searched) == 0
    assert again(lambda: base().fit(X * 0.5, Y)) == 0
    assert again(searched) == 1  # a second search, or fit, on the same rows


def test_warning_about_several_fits_names_the_line_of_the_fit() -> None:
    """q: the warning points at the caller's line."""
    base().fit(X, Y)
    with pytest.warns(PrivacyWarning, match="of one fit alone") as caught:
        base().fit(X, Y)
    (own,) = [w for w in caught if "of one fit alone" in str(w.message)]
    assert own.filename == __file__

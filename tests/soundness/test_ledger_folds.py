"""A fold never becomes the data set that a ledger knows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_selection import RFECV
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    KFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

import sordino
from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.app.cli._main import app
from sordino.engine._charging import LedgerAccount
from sordino.engine.ledger._ledger import Ledger
from sordino.engine.ledger._marks import Marks
from sordino.models._linear import source_of
from sordino.parts._losses import Logistic
from tests.ledger.helpers import gaussian

N, D, FOLDS = 120, 3, 3
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, D))
Y = (X[:, 0] > 0).astype(int)
FOLD = N - N // FOLDS

pytestmark = pytest.mark.filterwarnings("ignore::sordino.PrivacyWarning")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "team.ledger")
    made.add_dataset("people", epsilon=5.0, delta=1e-5)
    return made


def model(ledger: Ledger | None, examples: int | None) -> Any:
    return sordino.PrivateClassifier(
        epsilon=1.0,
        delta=1e-5,
        classes=[0, 1],
        feature_bounds=(-1, 1),
        examples=examples,
        epochs=1,
        ledger=ledger,
        dataset=None if ledger is None else "people",
    )


def in_pipeline(made: Any) -> Any:
    return cross_validate(
        make_pipeline(FunctionTransformer(), made), X, Y, cv=FOLDS, error_score="raise"
    )


SPLITTING: dict[str, Callable[[Any], Any]] = {
    "cross_validate": lambda made: cross_validate(made, X, Y, cv=FOLDS, error_score="raise"),
    "quiet errors": lambda made: cross_val_score(made, X, Y, cv=FOLDS),
    "cross_val_predict": lambda made: cross_val_predict(made, X, Y, cv=FOLDS),
    "grid": lambda made: GridSearchCV(made, {"clip": [1.0, 2.0]}, cv=FOLDS).fit(X, Y),
    "pipeline": in_pipeline,
    "learning_curve": lambda made: learning_curve(
        made, X, Y, cv=FOLDS, train_sizes=[0.5, 1.0], error_score="raise"
    ),
    "threshold": lambda made: TunedThresholdClassifierCV(made, cv=FOLDS).fit(X, Y),
    "features": lambda made: RFECV(made, cv=FOLDS).fit(X, Y),
}


@pytest.mark.parametrize("examples", [N, FOLD, None])
@pytest.mark.parametrize("how", SPLITTING)
def test_a_fold_is_refused_before_anything_is_charged(
    ledger: Ledger, how: str, examples: int | None
) -> None:
    """r: fold 1 was charged and became the data set; fold 2 and the real fit were refused for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"PrivateSearch|examples|rows"):
            SPLITTING[how](model(ledger, examples))
    assert ledger.reservations() == ()
    model(ledger, N).fit(X, Y)
    assert len(ledger.reservations()) == 1


def test_the_way_that_works_is_named(ledger: Ledger) -> None:
    """r: the refusal says what to do instead, and that works and is charged once."""
    with pytest.raises(SordinoError, match=r"give the ledger to sordino\.PrivateSearch"):
        cross_validate(model(ledger, N), X, Y, cv=FOLDS, error_score="raise")
    search = sordino.PrivateSearch(
        model(None, N),
        {"clip": [1.0, 2.0]},
        epsilon=2.0,
        delta=1e-5,
        n_trials=2,
        ledger=ledger,
        dataset="people",
    )
    with pytest.raises(SordinoError, match="cross-validation"):
        cross_validate(search, X, Y, cv=FOLDS, error_score="raise")
    assert ledger.reservations() == ()
    search.fit(X, Y, public=(X[:20], Y[:20]))
    assert len(ledger.reservations()) == 1


@pytest.mark.parametrize("examples", [True, False])
def test_a_loop_of_ones_own(ledger: Ledger, examples: bool) -> None:
    """r: nobody's call stack tells of folds in a loop of one's own; each is charged, and pins nothing."""
    part, _ = next(KFold(FOLDS).split(X))
    with pytest.warns(PrivacyWarning, match="does not know which rows 'people' are"):
        model(ledger, FOLD if examples else None).fit(X[part], Y[part])
    search = sordino.PrivateSearch(
        model(None, FOLD if examples else None),
        {"clip": [1.0]},
        delta=1e-5,
        ledger=ledger,
        dataset="people",
    )
    search.fit(X[part], Y[part], public=(X[:20], Y[:20]))
    assert ledger.dataset("people").fingerprint is None
    model(ledger, N if examples else None).fit(X, Y)
    assert len(ledger.reservations()) == 3
    # Whoever is sure of the data says so; from then on its rows are what tells.
    plan = sordino.plan("dp-gd", examples=N, steps=2, epsilon=0.5, delta=1e-5)
    data = X.astype(np.float32), Y.astype(np.int32)
    sordino.train(plan, Logistic(), np.zeros(D, np.float32), data, ledger=ledger, dataset="people")
    with pytest.raises(SordinoError, match="other data"):
        model(ledger, None).fit(X[part], Y[part])


@pytest.fixture
def knowing(tmp_path: Path) -> Ledger:
    """A ledger that was told its rows, as a file has them."""
    made = Ledger.create(tmp_path / "knowing.ledger")
    table = pd.DataFrame(X).assign(ill=Y)
    table.to_csv(tmp_path / "people.csv", index=False)
    command = ["ledger", "add", "people", "--epsilon", "9", "--delta", "1e-5", "--target", "ill"]
    command += ["--data", str(tmp_path / "people.csv"), "--ledger", str(made.path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return made


def test_a_part_of_known_data_is_refused_or_charged_in_full(knowing: Ledger) -> None:
    """Page 06, 7 and 14.12: also what only overlaps; and nothing is charged by a refusal."""
    part, _ = next(KFold(FOLDS).split(X))
    more = np.concatenate([X[part], RNG.uniform(-1, 1, (3, D))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is known is not warned about
        warnings.filterwarnings("ignore", message=".*number of rows")
        for rows, labels in ((X[part], Y[part]), (more, np.resize(Y, len(more))), (X[:1], Y[:1])):
            fit = model(knowing, None).set_params(classes=[0, 1])
            with pytest.raises(SordinoError, match=r"more of 'people' than this.*PrivateSearch"):
                fit.fit(rows, labels)
        with pytest.raises(SordinoError, match="other data"):
            model(knowing, None).fit(X + 1e-9, Y)
        assert knowing.reservations() == ()
        model(knowing, None).fit(pd.DataFrame(X), Y)
    charged = model(knowing, None).set_params(parts="charge")
    charged.fit(X[part], Y[part])
    cross_validate(clone(charged), X, Y, cv=FOLDS, error_score="raise")
    with pytest.raises(SordinoError, match="other data"):
        clone(charged).fit(X + 1e-9, Y)
    assert len(knowing.reservations()) == 2 + FOLDS
    whole = charged.guarantee_.epsilon(1e-5)
    paid = [one.charge.epsilon(1e-5) for one in knowing.reservations()]
    assert paid == pytest.approx([whole] * len(paid), rel=1e-4)
    # A part never becomes the data set.
    assert Ledger.open(knowing.path).verify().reservations == 2 + FOLDS
    model(knowing, None).fit(X[::-1], Y[::-1])  # the same rows, in another order


def test_training_on_a_file_decides_which_rows_there_are(ledger: Ledger, tmp_path: Path) -> None:
    """What the command trained on is known to Python, and a fold of it for one."""
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(ill=Y)
    table.to_csv(tmp_path / "people.csv", index=False)
    command = [
        "train",
        str(tmp_path / "people.csv"),
        "--target",
        "ill",
        "--epsilon",
        "1",
        "--epochs",
        "1",
    ]
    command += ["--delta", "1e-5", "--ledger", str(ledger.path), "--undeclared", "take"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    model(ledger, None).fit(X, Y)
    with pytest.raises(SordinoError, match="more of 'people'"):
        model(ledger, None).fit(X[:FOLD], Y[:FOLD])


def test_persons_are_known_by_their_ids(tmp_path: Path) -> None:
    """Page 06, 7 and 9: 7, 7.0 and "7" are one person; other columns of the same persons are their data."""
    made = Ledger.create(tmp_path / "a.ledger")
    pd.DataFrame({"patient": [1, 2, 2, 7], "age": [3, 4, 5, 6]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    add = ["ledger", "add", "people", "--mu", "9", "--ledger", str(made.path), "--unit", "person"]
    add += ["--data", str(tmp_path / "t.csv")]
    done = CliRunner().invoke(app, [*add, "--person-column", "patent"])
    assert "did you mean 'patient'?" in " ".join(done.stderr.split())
    assert CliRunner().invoke(app, [*add, "--person-column", "patient"]).exit_code == 0
    assert made.knows_marks("people") == "persons"

    def charge(ids: list[Any], run: str, parts: str = "refuse") -> None:
        source = source_of(
            np.ones((len(ids), 2)), np.ones(len(ids)), rows=None, groups=ids, parts=parts
        )
        account = LedgerAccount.of(made, "people", source)
        assert account is not None
        account.charge(gaussian(0.1, unit="person"), run, None)

    charge(["7", 7.0, " 2", 1, None], "r1")
    with pytest.raises(SordinoError, match="knows more of 'people'"):
        charge([1, 2], "r2")
    charge([1, 2, 99], "r3", "charge")
    with pytest.raises(SordinoError, match="other data"):
        charge([98, 99], "r4", "charge")
    assert len(made.reservations()) == 2


def test_marks_are_of_values() -> None:
    """A table is the same in a file, a frame and an array; other cells, columns or keys are not."""
    frame = pd.DataFrame({"a": [1, 2, 3, -0.0], "b": ["x", "7", None, "x"]})
    text = pd.DataFrame({"a": ["1", "2.0", "3", "0"], "b": ["x", "7.0", "NA", "x"]})
    key = b"k" * 32
    mine = Marks.of(frame, "rows", key)
    assert len(mine.values) == 4
    for other in (text, frame.astype(object), frame.astype({"b": "category"}), frame[::-1]):
        assert Marks.of(other, "rows", key).is_all_of(mine)
    assert Marks.of(frame[["b", "a"]], "rows", key).share_in(mine) == 0
    assert Marks.of(frame, "rows", b"l" * 32).share_in(mine) == 0
    assert Marks.of(frame[:2], "rows", key).share_in(mine) == 1
    assert mine.share_in(Marks.of(frame[:1], "rows", key)) == 0.25
    array = frame["a"].to_numpy()[:, None]
    assert Marks.of(sparse.csr_array(array), "rows", key).is_all_of(Marks.of(array, "rows", key))
    ids = Marks.of(["7", None, "8", "7"], "persons", key)
    assert (len(ids.values), ids.share_in(mine)) == (2, 0)
    assert Marks.from_json(ids.to_json()).is_all_of(ids)


def test_the_number_of_rows_is_kept_with_the_budget(tmp_path: Path) -> None:
    """r: where the ledger says how many rows a data set has, no part of it is taken for it."""
    path = tmp_path / "team.ledger"
    run = CliRunner()
    for arguments in (
        ["init"],
        ["add", "people", "--epsilon", "5", "--delta", "1e-5", "--rows", str(N)],
    ):
        said = run.invoke(app, ["ledger", *arguments, "--ledger", str(path)])
        assert said.exit_code == 0, said.output
    ledger = Ledger.open(path)
    assert ledger.dataset("people").rows == N
    with pytest.raises(SordinoError, match=f"as {N} rows, and these are {FOLD}.*PrivateSearch"):
        model(ledger, FOLD).fit(X[:FOLD], Y[:FOLD])
    plan = sordino.plan("dp-gd", examples=FOLD, steps=2, epsilon=1.0, delta=1e-5)
    data = X[:FOLD].astype(np.float32), Y[:FOLD].astype(np.int32)
    with pytest.raises(SordinoError, match="a part of a data set"):
        sordino.train(
            plan, Logistic(), np.zeros(D, np.float32), data, ledger=ledger, dataset="people"
        )
    assert ledger.reservations() == ()
    model(ledger, None).fit(X, Y)  # as many as the ledger says: all of them
    ledger.verify()
    with pytest.raises(SordinoError, match="rows"):
        ledger.add_dataset("nothing", epsilon=1.0, delta=1e-5, rows=0)


def test_fits_on_all_rows_are_not_taken_for_folds(ledger: Ledger) -> None:
    """r: what scikit-learn fits on everything may be charged."""
    FixedThresholdClassifier(model(ledger, N), threshold=0.4).fit(X, Y)
    make_pipeline(FunctionTransformer(), model(ledger, N)).fit(X, Y)
    assert len(ledger.reservations()) == 2

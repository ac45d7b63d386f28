"""A person is not a row: per-person units are stated, checked where there are ids, else refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sordino
from sordino import PrivateClassifier, PrivateRegressor, PrivateSearch
from sordino._base.errors import SordinoError
from sordino.app.cli._main import app
from sordino.parts._losses import Logistic

ROWS = 60
X = np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))
Y = (X[:, 0] > 0).astype(int)
IDS = [f"patient-{i:03}" for i in range(ROWS)]
TWICE = [*IDS[:-1], IDS[3]]
OPTIONS: dict[str, Any] = {
    "epsilon": 3.0,
    "delta": 1e-4,
    "feature_bounds": (-1, 1),
    "examples": ROWS,
    "epochs": 1,
}


def classifier(**more: Any) -> PrivateClassifier:
    return PrivateClassifier(classes=[0, 1], **{**OPTIONS, **more})


def regressor(**more: Any) -> PrivateRegressor:
    return PrivateRegressor(target_bounds=(0, 1), **{**OPTIONS, **more})


def search(**more: Any) -> PrivateSearch:
    space = {"learning_rate": [1.0, 2.0]}
    return PrivateSearch(classifier(**more), space, epsilon=3.0, delta=1e-4, n_trials=2)


@pytest.mark.parametrize("unit", ["user", "client"])
@pytest.mark.parametrize("make", [classifier, regressor, search])
def test_a_unit_of_people_needs_the_statement(make: Any, unit: str) -> None:
    """S7: unit 'user' or 'client' without a statement about rows is refused in one sentence."""
    with pytest.raises(SordinoError, match=f"every {unit} has one row.*one_row_per_person=True"):
        make(unit=unit).fit(X, Y)


@pytest.mark.parametrize("make", [classifier, regressor, search])
@pytest.mark.parametrize("ids", [IDS, np.array(IDS), pd.Series(IDS, index=range(7, ROWS + 7))])
def test_the_statement_is_checked_by_ids(make: Any, ids: Any) -> None:
    """S7: with ids one row each is accepted, and a person's second row refused without a name."""
    model = make(unit="user", one_row_per_person=True).fit(X, Y, groups=ids)
    assert model.guarantee_.unit == "user"
    twice = pd.Series(ids)
    twice.iloc[-1] = twice.iloc[3]
    with pytest.raises(SordinoError, match="some user has more than one row") as caught:
        make(unit="user", one_row_per_person=True).fit(X, Y, groups=twice)
    assert "patient" not in str(caught.value)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (IDS[:-1], "59 ids of people for 60 rows"),
        ([None, *IDS[1:]], "some rows have no id"),
        ([np.nan, *range(ROWS - 1)], "some rows have no id"),
        ([[1, 2]] * ROWS, "one column"),
        (np.array([[1], [2]] * 30), "one column"),
    ],
)
def test_ids_that_tell_nothing_are_refused(ids: Any, words: str) -> None:
    """S7: ids that are missing or do not fit the rows check nothing, so they are refused."""
    with pytest.raises(SordinoError, match=words):
        classifier(unit="user", one_row_per_person=True).fit(X, Y, groups=ids)


def test_ids_protect_whole_persons_or_are_refused() -> None:
    """S7: ids never suggest a protection that is not there."""
    guarantee = classifier().fit(X, Y, groups=IDS).guarantee_
    assert guarantee.unit == "person"
    assert "one person" in guarantee.sentence()
    with pytest.raises(SordinoError, match=r"groups, .* go with undeclared='pay'"):
        classifier(undeclared="take").fit(X, Y, groups=IDS)


def test_train_and_session_ask_for_the_statement_too() -> None:
    """S7: where any plan for people meets data, the statement is asked for."""
    plan = sordino.plan("dp-gd", examples=ROWS, steps=2, epsilon=1.0, delta=1e-4, unit="user")
    start, data = np.zeros(2, np.float32), (X.astype(np.float32), Y.astype(np.float32))
    with pytest.raises(SordinoError, match="one_row_per_person=True"):
        sordino.train(plan, Logistic(), start, data)
    with pytest.raises(SordinoError, match="one_row_per_person=True"):
        sordino.Session(plan, Logistic(), start)
    assert (
        sordino.train(plan, Logistic(), start, data, one_row_per_person=True).guarantee.unit
        == "user"
    )
    assert sordino.Session(plan, Logistic(), start, one_row_per_person=True).steps == 2


def table(tmp_path: Path, ids: list[str]) -> Path:
    frame = pd.DataFrame({"patient": ids, "a": X[:, 0], "rich": Y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def train(path: Path, *more: str) -> Any:
    command = ["train", str(path), "--target", "rich", "--epsilon", "3", "--epochs", "1", *more]
    return CliRunner().invoke(app, command)


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    for word in words:
        assert word in result.stderr
    assert "patient-003" not in result.output


def test_the_command_line_asks_and_checks(tmp_path: Path) -> None:
    """S7: `--unit user` alone is refused; with ids it is checked, and ids are never a feature."""
    path = table(tmp_path, TWICE)
    for unit in ("user", "client"):
        refused(train(path, "--unit", unit), f"every {unit} has one row", "--one-row-per-person")
    people = ("--unit", "user", "--one-row-per-person", "--person-column", "patient")
    refused(train(path, *people), "some user has more than one row")
    take = ("--undeclared", "take", "--person-column", "patient")
    refused(train(path, *take), "--unit user --one-row-per-person")
    refused(train(path, *people[:-1], "pateint"), "did you mean 'patient'?")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]  # nothing half-written
    result = train(table(tmp_path, IDS), *people, "--undeclared", "take")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "t-sordino"
    with np.load(folder / "model.npz", allow_pickle=False) as model:
        assert model["feature_names"].tolist() == ["a"]
    stated = json.loads((folder / "guarantee.json").read_text())
    assert "replacing one user's contributions" in stated["sentence"]
    assert "checked: no id in the column 'patient' came twice" in " ".join(stated["notes"])
    assert "every user has one row" in (folder / "report.html").read_text(encoding="utf-8")
    assert all(name not in (folder / "report.html").read_text(encoding="utf-8") for name in IDS)


def test_a_schema_cannot_make_ids_a_feature(tmp_path: Path) -> None:
    """S7: the person column is refused as a feature, and without ids the report says so."""
    path = table(tmp_path, IDS)
    schema = tmp_path / "facts.json"
    columns = {"a": {"low": -1, "high": 1}, "patient": {"values": IDS[:2]}}
    public: dict[str, Any] = {"target": "rich", "classes": [0, 1], "examples": ROWS}
    schema.write_text(json.dumps({"columns": columns, **public}))
    people = ("--unit", "user", "--one-row-per-person")
    named = ("--schema", str(schema), "--person-column", "patient")
    refused(train(path, *people, *named), "has people's ids")
    del columns["patient"]
    schema.write_text(json.dumps({"columns": columns, **public}))
    # With everything declared, and with people held out.
    for more in (("--evaluate", "0"), ("--force",)):
        assert train(path, *people, "--schema", str(schema), *more).exit_code == 0
        stated = json.loads((tmp_path / "t-sordino" / "guarantee.json").read_text())
        assert "was not checked" in " ".join(stated["notes"])


def test_a_plan_for_people_says_what_it_rests_on() -> None:
    """S7: a plan sees no data, so `sordino plan --unit user` says what training will ask."""
    command = ["plan", "dp-gd", "--examples", "100", "--steps", "2", "--epsilon", "1"]
    result = CliRunner().invoke(app, [*command, "--delta", "1e-4", "--unit", "user"])
    assert result.exit_code == 0
    assert "only if every user has one row" in result.stderr


def test_parties_ask_for_the_statement_and_show_it() -> None:
    """S7: between data owners too, where a person may have records at several of them."""
    from sordino.together.parties._terms import agree

    sizes = {"examples": [200, 100], "parameters": 3, "batch_size": 60, "steps": 3}
    budget = {"epsilon": 2.0, "delta": 1e-5}
    with pytest.raises(SordinoError, match="one_row_per_person=True"):
        agree("dp-srm", unit="user", **sizes, **budget)
    terms = agree("dp-srm", unit="user", one_row_per_person=True, **sizes, **budget)
    assert "one record, at one party only" in terms.statement()
    assert "one party only" not in agree("dp-srm", **sizes, **budget).statement()

"""A pack is written the same by Python and by the command, and every byte of it counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sordino
from sordino import Plan, PrivateClassifier, PrivateRegressor, RunKey, SordinoError
from sordino.app.cli import _train
from sordino.app.cli._main import app
from sordino.models._evaluation import run_evaluation
from sordino.models._found import ColumnFact
from sordino.models._kinds import FoundCategorical, Spline
from sordino.models._metrics import EvaluationMetrics
from sordino.models._pack import FORMAT, FOUND, verify_pack
from sordino.models._rows import RowPreparation
from sordino.models._saved import load_model
from sordino.models._schema import Schema
from sordino.planning import Evaluation, TableRelease

N = 120
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"age": RNG.integers(0, 90, N), "work": RNG.choice(["a", "b", "c"], N)})
ANSWER = pd.Series((FRAME["age"] > 45).astype(int), name="old")
PUBLIC: dict[str, Any] = {
    "feature_bounds": {"age": (0, 90)},
    "categories": {"work": ["a", "b", "c"]},
    "examples": N,
}
FACTS = {
    "target": "old",
    "classes": [0, 1],
    "examples": N,
    "columns": {"age": {"low": 0, "high": 90}, "work": {"values": ["a", "b", "c"]}},
}


def classifier(**more: Any) -> PrivateClassifier:
    return PrivateClassifier(
        epsilon=2.0, delta=1e-5, classes=[0, 1], epochs=1, **{**PUBLIC, **more}
    )


def metrics() -> EvaluationMetrics:
    query = Evaluation("binary", 1.0, 0.2)
    answer = run_evaluation(
        query, ANSWER, RNG.uniform(0, 1, N), None, RunKey.from_insecure_seed(0), classes=(0, 1)
    )
    return answer.metrics()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with everything that one may have."""
    folder = tmp_path_factory.mktemp("pack") / "run"
    model = classifier().fit(FRAME, ANSWER)
    model.report(
        folder,
        notes=["Ein Hinweis mit Umlauten: Ärztin."],
        date="2026-01-31",
        columns=[ColumnFact("patient", False, "it says who somebody is", "declared")],
        person_column="patient",
        power=0.5,
        class_weights={"0": 0.5, "1": 1.0},
        preprocessing=SimpleNamespace(to_json=lambda: {"weights": [1.25, -0.5]}),
        evaluation=metrics(),
        ledger=("people", "ab" * 16),
    )
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_the_record_says_what_the_page_lists(made: Path) -> None:
    record = json.loads((made / "guarantee.json").read_text())
    plan = Plan.load(made / "plan.json")
    assert (record["format"], record["version"]) == (FORMAT, 2)
    assert (record["mu"], record["delta"], record["lost"]) == (plan.guarantee.mu, 1e-5, 0)
    assert record["epsilon"] == plan.guarantee.epsilon(1e-5)
    (part,) = record["parts"]
    assert (part["sigma"], part["mu"]) == (plan.noise_multiplier, plan.guarantee.mu)
    assert (part["kind"], part["side"], record["noise"]) == ("training", "training", "gaussian")
    age, work, patient = record["columns"]
    assert (age["encoding"], age["source"]) == ({"name": "age", "low": 0, "high": 90}, "declared")
    assert "middle" in age["missing"]
    assert "no indicator" in work["unknown"]
    assert (patient["used"], patient["why"]) == (False, "it says who somebody is")
    assert record["persons"]["column"] == "patient"
    assert "NFC" in record["persons"]["ids"]
    assert record["ledger"] == {"dataset": "people", "run": "ab" * 16}
    back = EvaluationMetrics.from_json(json.loads((made / "evaluation.json").read_text()))
    assert back.scores["auc"].text() in (made / "report.html").read_text()
    assert set(record["sha256"]) == {path.name for path in made.iterdir()} - {"guarantee.json"}
    assert verify_pack(made) == (
        "model.npz",
        "plan.json",
        "schema.json",
        "report.html",
        "preprocessing.json",
        "evaluation.json",
    )


def changed(content: bytes, at: int, draw: np.random.Generator) -> bytes:
    other = int(draw.integers(255))
    return content[:at] + bytes([other + (other >= content[at])]) + content[at + 1 :]


@pytest.mark.parametrize(
    "name",
    ["model.npz", "plan.json", "schema.json", "report.html", "evaluation.json", "guarantee.json"],
)
def test_any_changed_byte_is_noticed(folder: Path, name: str) -> None:
    """Oracle 13: of the record too, whatever the byte becomes; the difference is named."""
    path, draw = folder / name, np.random.default_rng(1)
    content = path.read_bytes()
    positions = draw.permutation(len(content))[: 250 if name == "guarantee.json" else 20]
    for at in positions.tolist():
        path.write_bytes(changed(content, at, draw))
        with pytest.raises(SordinoError, match=r"\.json|\.npz|\.html"):
            verify_pack(folder)
    for shorter in (content[:-1], content + b"\n", content[:-1] + b" \n", b""):
        path.write_bytes(shorter)
        with pytest.raises(SordinoError):
            verify_pack(folder)
    path.write_bytes(content)
    verify_pack(folder)


@pytest.mark.slow
def test_every_changed_byte_of_the_record_is_noticed(folder: Path) -> None:
    path, draw = folder / "guarantee.json", np.random.default_rng(2)
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(changed(content, at, draw))
        with pytest.raises(SordinoError):
            verify_pack(folder)


def leaves(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    return [
        one
        for key, value in pairs
        for one in (leaves(value, (*at, key)) if isinstance(value, dict | list) else [(*at, key)])
    ]


def test_any_edited_field_is_noticed_in_the_right_spelling(folder: Path) -> None:
    """Edits by a JSON editor: numbers in the last digit, texts, fields taken out or put in."""
    path = folder / "guarantee.json"
    record = json.loads(path.read_text())
    assert path.read_text() == json.dumps(record, indent=1) + "\n"
    for where in leaves(record):
        for edit in ("other", "none", "gone"):
            place = data = json.loads(json.dumps(record))
            for key in where[:-1]:
                place = place[key]
            old = place[where[-1]]
            if edit == "gone":
                del place[where[-1]]
            elif edit == "none" and old is not None:
                place[where[-1]] = None
            else:
                numeric = isinstance(old, float)
                place[where[-1]] = np.nextafter(old, 1e9).item() if numeric else f"{old}x"
            (folder / "guarantee.json").write_text(json.dumps(data, indent=1) + "\n")
            with pytest.raises(SordinoError):
                verify_pack(folder)
    (folder / "guarantee.json").write_text(json.dumps({**record, "more": 1}, indent=1) + "\n")
    with pytest.raises(SordinoError):
        verify_pack(folder)


def rewritten(folder: Path, record: dict[str, Any], **changes: Any) -> None:
    """As somebody would who makes the digests fit again."""
    from sordino._base.codec import digest_of
    from sordino.models._saved import digest, record_text

    hashes = {name: digest((folder / name).read_bytes()) for name in record["sha256"]}
    data = {**record, "sha256": hashes, **changes}
    del data["record"]
    data["record"] = digest_of(data)
    (folder / "guarantee.json").write_text(record_text(data))


def test_what_follows_from_the_files_is_computed_anew(folder: Path) -> None:
    """A smaller mu, another side, a schema that the model does not have: digests that fit do not help."""
    record = json.loads((folder / "guarantee.json").read_text())
    rewritten(folder, record)
    verify_pack(folder)
    for field, value in {
        "mu": record["mu"] * (1 - 1e-8),
        "epsilon": record["epsilon"] * (1 - 1e-8),
        "lost": 1e-6,
        "insecure": True,
        "noise": "discrete",
        "parts": [{**record["parts"][0], "side": "held out"}],
        "target": "young",
        "features": 7,
    }.items():
        rewritten(folder, record, **{field: value})
        with pytest.raises(SordinoError, match="another"):
            verify_pack(folder)
    age, work, patient = record["columns"]
    for columns in (
        [{**age, "encoding": {**age["encoding"], "high": 91}}, work, patient],
        [work, age, patient],
        [age, {**work, "used": False}, patient],
        [age, {**work, "missing": "whatever"}, patient],
    ):
        rewritten(folder, record, columns=columns)
        with pytest.raises(SordinoError, match="column"):
            verify_pack(folder)
    schema = folder / "schema.json"
    schema.write_text(schema.read_text().replace("90", "91"))
    rewritten(folder, record)
    with pytest.raises(
        SordinoError, match=r"the schema in model.npz is not the one in schema.json"
    ):
        verify_pack(folder)


def test_a_file_that_is_not_recorded_is_not_of_the_pack(folder: Path) -> None:
    (folder / "evaluation.json").unlink()
    with pytest.raises(SordinoError, match=r"there is no evaluation.json"):
        verify_pack(folder)


@pytest.mark.parametrize("share", ["0", "0.1"])
def test_the_command_and_python_write_the_same_bytes(
    share: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    write_run = _train.write_run

    def keep(folder: Path, model: Any, **about: Any) -> None:
        kept.extend([model, about])
        write_run(folder, model, **about)

    monkeypatch.setattr(_train, "write_run", keep)
    FRAME.assign(old=ANSWER).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "facts.json").write_text(json.dumps(FACTS))
    command = ["train", tmp_path / "t.csv", "--schema", tmp_path / "facts.json", "--epochs", 1]
    command += ["--epsilon", 2, "--evaluate", share]
    done = CliRunner().invoke(app, [str(one) for one in command])
    assert done.exit_code == 0, done.output
    model, about = kept
    assert about.pop("declared", True)
    model.report(tmp_path / "again", **about)
    model.save(tmp_path / "alone.npz", target="old")
    first, second = tmp_path / "t-sordino", tmp_path / "again"
    assert sorted(p.name for p in first.iterdir()) == sorted(p.name for p in second.iterdir())
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
    assert (tmp_path / "alone.npz").read_bytes() == (first / "model.npz").read_bytes()
    with pytest.raises(SordinoError, match="exists already"):
        model.report(second)
    model.report(second, force=True)


def test_undeclared_columns_are_said_to_be_outside(tmp_path: Path) -> None:
    FRAME.assign(old=ANSWER).to_csv(tmp_path / "t.csv", index=False)
    command = [
        "train",
        str(tmp_path / "t.csv"),
        "--target",
        "old",
        "--epsilon",
        "2",
        "--epochs",
        "1",
        "--undeclared",
        "take",
    ]
    assert CliRunner().invoke(app, command).exit_code == 0
    record = json.loads((tmp_path / "t-sordino" / "guarantee.json").read_text())
    assert all("NOT COVERED" in column["source"] for column in record["columns"])
    verify_pack(tmp_path / "t-sordino")


def test_a_pack_of_python_says_what_was_taken_from_the_data(tmp_path: Path) -> None:
    """What nobody declared is never called declared, and stands in the notes."""
    model = PrivateClassifier(epsilon=2.0, epochs=1, feature_bounds={"age": (0, 90)})
    model.set_params(undeclared="take").fit(FRAME, ANSWER).report(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert [column["source"][:8] for column in record["columns"]] == ["declared", "taken fr"]
    assert "classes" in record["notes"][0]
    assert "outside the guarantee" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("bounds", [(0, 90), None], ids=["bounds", "own norm"])
@pytest.mark.parametrize("intercept", [True, False])
def test_models_of_arrays_are_kept_too(tmp_path: Path, bounds: Any, intercept: bool) -> None:
    X = np.column_stack([FRAME["age"], RNG.uniform(0, 90, N)])
    model = PrivateClassifier(
        epsilon=5.0, classes=[0, 1], feature_bounds=bounds, examples=N, fit_intercept=intercept
    ).fit(X, ANSWER)
    model.save(tmp_path / "m.npz")
    back = PrivateClassifier.load(tmp_path / "m.npz")
    np.testing.assert_allclose(back.predict_proba(X), model.predict_proba(X))
    assert load_model(tmp_path / "m.npz")[1] == "old"
    model.report(tmp_path / "run")
    verify_pack(tmp_path / "run")
    assert not (tmp_path / "run" / "schema.json").exists()
    again = PrivateClassifier.load(tmp_path / "run")
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X))


def test_tables_without_an_intercept_come_back(tmp_path: Path) -> None:
    model = classifier(fit_intercept=False).fit(FRAME, ANSWER)
    model.save(tmp_path / "m.npz")
    back = PrivateClassifier.load(tmp_path / "m.npz")
    np.testing.assert_allclose(back.predict_proba(FRAME), model.predict_proba(FRAME))
    back.save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "m.npz").read_bytes()
    with pytest.raises(SordinoError, match=r"use PrivateClassifier\.load"):
        PrivateRegressor.load(tmp_path / "m.npz")
    with pytest.raises(SordinoError, match="a pack is about one run"):
        back.report(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_of_several_queries(tmp_path: Path) -> None:
    """Each part by its own mu and side; what may be lost, and what those held out see."""
    model = classifier().fit(FRAME, ANSWER)
    release = TableRelease.for_budget(("age", "work", "old"), 2.0, 1e-5, 0.1, "zero-out")
    evaluation = Evaluation.for_budget("binary", 2.0, 1e-5, 0.2, "zero-out")
    model.plan_ = plan = sordino.plan(
        "dp-gd", examples=N, steps=3, epsilon=2.0, delta=1e-5, beside=[release, evaluation]
    )
    model.guarantee_ = plan.guarantee
    model.report(tmp_path / "run")
    verify_pack(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "guarantee.json").read_text())
    assert record["lost"] == release.text_chance > 0
    parts = {part["name"]: part for part in record["parts"]}
    assert {name: part["side"] for name, part in parts.items()} == {
        "preprocessing": "training",
        "training": "training",
        "evaluation": "held out",
    }
    own = np.hypot(parts["preprocessing"]["mu"], parts["training"]["mu"])
    assert record["mu"] == pytest.approx(max(own, parts["evaluation"]["mu"]), rel=1e-9)
    assert (parts["evaluation"]["sigma"], parts["preprocessing"]["sigma"]) == (
        evaluation.sigma,
        release.sigma,
    )
    assert record["epsilon"] <= 2.0
    for name in parts:
        less = [
            {**part, "mu": part["mu"] * (1 - 1e-6)} if part["name"] == name else part
            for part in record["parts"]
        ]
        rewritten(tmp_path / "run", record, parts=less)
        with pytest.raises(SordinoError, match="'parts'"):
            verify_pack(tmp_path / "run")


def test_a_schema_that_was_found_is_in_the_pack(tmp_path: Path) -> None:
    """Knots, values and rules of columns that a release found come from the schema alone."""
    schema = Schema(
        (Spline("age", (0.0, 40.0, 90.0)), FoundCategorical("work", ("a", "b"))), target="old"
    )
    model = classifier(feature_bounds=None, categories=None)
    model.schema_, model.classes_, model.n_features_in_ = schema, np.array([0, 1]), 2
    model.feature_names_in_ = np.array(["age", "work"], dtype=object)
    model._preparation = prepare = RowPreparation.for_schema(schema)
    fitted = classifier().fit(FRAME, ANSWER)
    for name in ("plan_", "guarantee_", "history_", "result_"):
        setattr(model, name, getattr(fitted, name))
    weights = RNG.normal(size=(1, schema.width + 1))
    model.coef_, model.intercept_ = prepare.to_features(weights, 2)
    ignored = ColumnFact("note", False, "no text reached the threshold", "found", None, "a hint")
    model.report(tmp_path / "run", columns=[ignored], source=FOUND)
    verify_pack(tmp_path / "run")
    age, work, note = json.loads((tmp_path / "run" / "guarantee.json").read_text())["columns"]
    assert age["encoding"]["edges"] == [0, 40, 90]
    assert (age["source"], age["missing"]) == ("found", "a flag of its own")
    assert (work["encoding"]["values"], work["unknown"]) == (["a", "b"], "the indicator 'other'")
    assert (note["used"], note["hint"]) == (False, "a hint")
    back = PrivateClassifier.load(tmp_path / "run")
    np.testing.assert_allclose(back.predict_proba(FRAME), model.predict_proba(FRAME))

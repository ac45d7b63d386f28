"""A run's folder: what was swapped or edited is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino._base.errors import PrivacyWarning, SordinoError
from sordino.app.cli._main import app
from sordino.models._saved import load_model

SCHEMA = {
    "columns": {"a": {"low": 0, "high": 1}},
    "target": "rich",
    "classes": [0, 1],
    "examples": 80,
}


def sordino(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one small table."""
    root = tmp_path_factory.mktemp("runs")
    random = np.random.default_rng(0)
    a = random.uniform(0, 1, 80)
    pd.DataFrame({"a": a, "rich": (a > 0.5).astype(int)}).to_csv(root / "t.csv", index=False)
    (root / "facts.json").write_text(json.dumps(SCHEMA))
    for name, epsilon in (("one", 1), ("other", 5)):
        command = ["train", root / "t.csv", "--schema", root / "facts.json", "--epochs", 1]
        command += ["--evaluate", 0]
        result = sordino(*command, "--epsilon", epsilon, "--out", root / name)
        assert result.exit_code == 0, result.output
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the first run, to change."""
    return Path(shutil.copytree(made / "one", tmp_path / "run"))


def refused(result: Any, words: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    assert words in " ".join(result.stderr.split())


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_folder_as_it_was_written_is_verified(folder: Path) -> None:
    """t: model, plan and report have the recorded hashes, and what that cannot show is said."""
    result = sordino("verify", folder)
    assert result.exit_code == 0, result.output
    assert "model.npz, plan.json, schema.json and report.html are the files" in result.stdout
    assert "unless guarantee.json is signed" in result.stdout
    assert set(json.loads((folder / "guarantee.json").read_text())["sha256"]) == {
        "model.npz",
        "plan.json",
        "report.html",
        "schema.json",
    }
    load_model(folder / "model.npz")


def test_a_swapped_model_is_noticed(folder: Path, made: Path) -> None:
    """t: the model of another run is refused by `verify`, by `predict` and on loading."""
    shutil.copy(made / "other" / "model.npz", folder / "model.npz")
    refused(sordino("verify", folder), "model.npz is not the file that guarantee.json is about")
    out = folder.parent / "p.csv"
    again = sordino("predict", folder, made / "t.csv", "--out", out)
    refused(again, "it was exchanged or changed", code=2)
    assert not out.exists()
    with pytest.raises(SordinoError, match="it was exchanged or changed"):
        load_model(folder / "model.npz")


def test_an_edited_report_or_plan_is_noticed(folder: Path, made: Path) -> None:
    """t: one digit in the report, or another run's plan, is noticed."""
    report = folder / "report.html"
    original = report.read_text(encoding="utf-8")
    report.write_text(original.replace("epsilon", "Epsilon", 1), encoding="utf-8")
    refused(sordino("verify", folder), "report.html is not the file")
    report.write_text(original, encoding="utf-8")
    shutil.copy(made / "other" / "plan.json", folder / "plan.json")
    refused(sordino("verify", folder), "plan.json is not the file")
    (folder / "plan.json").unlink()
    refused(sordino("verify", folder), "there is no plan.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.1}, "states another guarantee"),
        ({"delta": 1e-9}, "states another guarantee"),
        ({"sentence": "What this fit releases is perfectly private."}, "states another guarantee"),
        ({"plan": "0" * 64}, "another plan"),
        ({"sha256": {"model.npz": "0" * 64}}, "model.npz is not the file"),
        ({"sha256": {}}, "records no hash for model.npz"),
        ({"sha256": 3}, "is no list of hashes"),
        ({"guarantee": {}}, "guarantee"),
    ],
)
def test_an_edited_guarantee_is_noticed(folder: Path, changes: dict[str, Any], words: str) -> None:
    """t: a changed number, sentence, plan or hash in guarantee.json is noticed."""
    edit(folder / "guarantee.json", **changes)
    refused(sordino("verify", folder), words)


def test_a_weaker_guarantee_with_its_own_sentence_is_noticed(folder: Path, made: Path) -> None:
    """t: a whole guarantee of another run, hashes kept, is not what the plan gives."""
    other = json.loads((made / "other" / "guarantee.json").read_text())
    taken = {name: other[name] for name in ("guarantee", "sentence", "epsilon", "delta")}
    edit(folder / "guarantee.json", **taken)
    refused(sordino("verify", folder), "states another guarantee")


def of_version_1(folder: Path) -> dict[str, Any]:
    """The record that versions up to 0.7 wrote for the folder."""
    record = json.loads((folder / "guarantee.json").read_text())
    kept = ("sentence", "epsilon", "delta", "guarantee", "notes", "plan", "date", "sha256")
    old = {name: record[name] for name in kept} | {"sordino": "0.7.0"}
    del old["sha256"]["schema.json"]
    (folder / "schema.json").unlink()
    (folder / "guarantee.json").write_text(json.dumps(old, indent=1) + "\n")
    return old


def test_a_folder_of_version_1_is_still_verified(folder: Path, made: Path) -> None:
    """t: model, plan and report as 0.7 recorded them; an edit is found, and version 2 is no version 1."""
    second = (folder / "guarantee.json").read_text()
    old = of_version_1(folder)
    result = sordino("verify", folder)
    assert result.exit_code == 0, result.output
    assert "model.npz, plan.json and report.html are the files" in result.stdout
    edit(folder / "guarantee.json", epsilon=0.5)
    refused(sordino("verify", folder), "states another guarantee")
    (folder / "guarantee.json").write_text(second.replace('"version": 2', '"revision": 2', 1))
    refused(sordino("verify", folder), "no record that is known here")
    edit(folder / "guarantee.json", **old)
    shutil.copy(made / "other" / "model.npz", folder / "model.npz")
    (folder / "guarantee.json").write_text(json.dumps(old))
    refused(sordino("verify", folder), "model.npz is not the file")


def test_a_folder_of_an_older_version_is_read_with_a_sentence(folder: Path, made: Path) -> None:
    """t: without hashes a model is read, and it is said that nothing could be checked."""
    record = of_version_1(folder)
    del record["sha256"]
    (folder / "guarantee.json").write_text(json.dumps(record))
    with pytest.warns(PrivacyWarning, match="records no hashes, as before version 0.5.1"):
        load_model(folder / "model.npz")
    result = sordino("predict", folder, made / "t.csv", "--out", folder.parent / "p.csv")
    assert result.exit_code == 0
    assert "records no hashes" in result.stderr
    result = sordino("verify", folder)
    assert result.exit_code == 0
    assert "cannot be told" in result.stderr


def test_what_is_no_folder_of_a_run_is_refused(tmp_path: Path, made: Path) -> None:
    """t: a missing or damaged record is one sentence; a model file by itself needs none."""
    refused(sordino("verify", tmp_path / "none"), "there is no folder", code=2)
    refused(sordino("verify", tmp_path), "there is no guarantee.json")
    (tmp_path / "guarantee.json").write_text("{")
    refused(sordino("verify", tmp_path), "it is not JSON")
    (tmp_path / "alone").mkdir()
    shutil.copy(made / "one" / "model.npz", tmp_path / "alone" / "model.npz")
    load_model(tmp_path / "alone" / "model.npz")

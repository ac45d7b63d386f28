"""A file that somebody sent decides nothing about what code runs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sordino._base.errors import SordinoError
from sordino.app.cli._main import app
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._terms import agree
from sordino.together.sites._federated import ClientSite, ServerSite, create
from sordino.together.sites._models import ModelSpec, load_model_description, own_model
from sordino.together.sites._parties import PartySite, create_party
from tests.sites.test_folders import agreed, model, table

INSTALLED = """
from pathlib import Path
import numpy as np
from sordino.parts._losses import Logistic
from sordino.together.sites._models import ModelSpec
Path({mark!r}).touch()
model = ModelSpec(Logistic(), np.zeros(4, np.float32), load=lambda path: ())
def called() -> ModelSpec:
    Path({mark!r}).with_name("called").touch()
    return model
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Is there when the module ``foreign_study`` has been imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_study", raising=False)
    mark = tmp_path / "imported"
    (tmp_path / "foreign_study.py").write_text(INSTALLED.format(mark=str(mark)))
    return mark


def consortium_file(folder: Path, name: str) -> Path:
    cards = tuple(
        create_party(folder / one, one, examples=n, port=7000 + 10 * i)
        for i, (one, n) in enumerate({"north": 120, "south": 80}.items())
    )
    terms = agree(
        "dp-sgd", examples=(120, 80), parameters=4, batch_size=50, steps=4, engine="mask",
        epsilon=1.0, delta=1e-4,
    )  # fmt: skip
    path = folder / "study.json"
    Consortium("study", cards, terms, {"kind": "own", "name": name}).save(path)
    return path


def client_folder(folder: Path, name: str) -> Path:
    create(folder / "study", agreed(), model(), deployed=False)
    for site in (folder / "study" / "clients" / "north", folder / "study" / "server"):
        (site / "model.json").write_text(json.dumps({"kind": "own", "name": name}))
    return folder / "study"


def run(*arguments: object, answer: str | None = None) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), input=answer)


def refused(result: Any, words: str) -> None:
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert words in errors[0]


@pytest.mark.parametrize("name", ["os:abort", "pytest:main"])
def test_code_that_a_consortium_file_names_is_not_run(tmp_path: Path, name: str) -> None:
    """C3: ``party sign`` with a file that names ``os:abort`` as its model says no, and lives on."""
    path = consortium_file(tmp_path, name)
    command = [sys.executable, "-m", "sordino", "party", "sign", str(tmp_path / "north"), str(path)]
    for more in ([], ["--yes", "--allow-model", name]):
        done = subprocess.run(
            [*command, *more], input="y\n", capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        allowed = "--allow-model" in more
        assert ("is not a sordino" if allowed else f"--allow-model {name}") in done.stderr
        assert "test session" not in done.stdout
    assert not (tmp_path / "north" / "signature").exists()


def test_nothing_is_imported_before_it_was_shown_and_confirmed(tmp_path: Path, mark: Path) -> None:
    """C3: the order is: allowed on one's own command line, shown, confirmed, imported, signed."""
    path, name = consortium_file(tmp_path, "foreign_study:model"), "foreign_study:model"
    north = tmp_path / "north"
    refused(run("party", "sign", north, path, "--yes"), f"--allow-model {name}")
    assert not mark.exists()
    other = "foreign_study:called"
    refused(run("party", "sign", north, path, "--yes", "--allow-model", other), "--allow-model")
    assert not mark.exists()
    looked = run("party", "sign", north, path, "--allow-model", name, answer="n\n")
    assert looked.exit_code == 1
    assert name in looked.stdout
    assert not mark.exists()
    signed = run("party", "sign", north, path, "--allow-model", name, answer="y\n")
    assert signed.exit_code == 0, signed.output
    assert mark.exists()
    # What was signed may run from then on, without being allowed again.
    assert PartySite.load(north).model.parameters == 4


def test_a_changed_file_in_a_partys_folder_names_nothing_new(tmp_path: Path, mark: Path) -> None:
    """C3: a consortium file that this party has not signed imports nothing at ``join`` or ``status``."""
    path = consortium_file(tmp_path, "foreign_study:model")
    (tmp_path / "north" / "consortium.json").write_text(path.read_text())
    (tmp_path / "north" / "signature").write_text("00" * 70)
    (tmp_path / "t.csv").write_text("a\n1\n")
    refused(
        run("party", "join", tmp_path / "north", "--data", tmp_path / "t.csv"), "has not signed"
    )
    refused(run("party", "status", tmp_path / "north"), "has not signed")
    assert not mark.exists()


def test_code_that_a_federated_folder_names_is_not_run(tmp_path: Path, mark: Path) -> None:
    """C3: the folder that a client is handed names code only if the client has named it itself."""
    name = "foreign_study:model"
    study = client_folder(tmp_path, name)
    data = table(tmp_path / "t.csv")
    for command in (
        ("federated", "client", study / "clients" / "north", "--data", data),
        ("federated", "server", study / "server"),
    ):
        refused(run(*command), f"--allow-model {name}")
    (study / "model.json").write_text(json.dumps({"kind": "own", "name": name}))
    refused(run("federated", "simulate", study, "--data", data), f"--allow-model {name}")
    for site in (ClientSite, ServerSite):
        where = study / "server" if site is ServerSite else study / "clients" / "north"
        with pytest.raises(SordinoError, match="--allow-model"):
            site.load(where)  # type: ignore[attr-defined]
    assert not mark.exists()
    # Allowed, it is imported: and has another number of parameters than was agreed.
    with pytest.raises(SordinoError, match="the model has 4 parameters"):
        ClientSite.load(study / "clients" / "north", allow=[name])
    assert mark.exists()


def test_what_is_not_a_model_is_never_called(tmp_path: Path, mark: Path) -> None:
    """C3: the type is checked, and nothing is called, even where it is named on the command line."""
    with pytest.raises(SordinoError, match=r"is not a sordino\.together\.sites\.ModelSpec"):
        own_model("foreign_study:called")
    assert not mark.with_name("called").exists()
    assert isinstance(own_model("foreign_study"), ModelSpec)


@pytest.mark.parametrize("name", ["../evil:model", "a b:model", "os:abort()", "x:y:z", "", ":", 3])
def test_names_that_are_none_are_refused_without_looking(tmp_path: Path, name: Any) -> None:
    """C3: what is not module:name is refused as such, allowed or not."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"kind": "own", "name": name}))
    with pytest.raises(SordinoError, match="module:name"):
        load_model_description(path, [name])


def test_tables_need_no_permission(tmp_path: Path) -> None:
    """C3: Sordino's own models stay: a table's schema names no code."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(model().description))
    assert load_model_description(path).parameters == model().parameters

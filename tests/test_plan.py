"""Plans as a person meets them: what they say, what they refuse, how they are kept."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import sordino
from sordino import Plan, PrivacyWarning, SordinoError

BASE: dict[str, Any] = {
    "examples": 60_000,
    "batch_size": 500,
    "epochs": 1,
    "epsilon": 0.1,
    "delta": 1e-6,
}


def make(recipe: str = "dp-memf", **changes: Any) -> Plan:
    return sordino.plan(recipe, **{**BASE, **changes})


def test_the_page_says_what_matters() -> None:
    page = str(make())
    for phrase in (
        "(0.1, 1e-06)-differential privacy",
        "replacing one example's contributions by zero",
        "60,000 examples, batches of 500, 120 steps (1 epochs)",
        "predicted error",
        "gradient evaluations  60,000",
        "memory",
    ):
        assert phrase in page
    assert make().hash[:16] in page


def test_the_papers_noise_is_matched_by_the_exact_conversion() -> None:
    """(0.1, 1e-6): 36.305 where the paper's zCDP conversion needs 52.660, 45 % more."""
    plan = make("dp-sgd", sampling="fixed")
    assert plan.noise_multiplier == pytest.approx(36.305, rel=1e-4)
    assert plan.guarantee.mu == pytest.approx(0.027545, rel=1e-4)
    assert make(
        "dp-sgd", sampling="fixed", adjacency="replace-one"
    ).noise_multiplier == pytest.approx(2 * plan.noise_multiplier, rel=1e-6)


def test_the_inverse_direction() -> None:
    given = sordino.plan("dp-memf", examples=1000, batch_size=100, epochs=2, noise_multiplier=5.0)
    assert given.epsilon is None
    assert given.noise_multiplier == 5.0
    back = sordino.plan(
        "dp-memf",
        examples=1000,
        batch_size=100,
        epochs=2,
        epsilon=given.guarantee.epsilon(1e-5),
        delta=1e-5,
    )
    assert back.noise_multiplier == pytest.approx(5.0, rel=1e-5)
    assert given.guarantee.delta(given.guarantee.epsilon(1e-5)) <= 1e-5 * (1 + 1e-9)


def test_plans_are_frozen_equal_by_content_and_independent_of_the_process() -> None:
    plan = make()
    assert plan == make()
    assert hash(plan) == hash(make())
    assert plan != make(clip=2.0)
    assert plan != "plan"
    with pytest.raises(AttributeError):
        plan.epsilon = 1.0  # type: ignore[misc]
    code = f"import sordino; print(sordino.plan('dp-memf', **{BASE!r}).hash)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == plan.hash


def test_a_plan_is_only_data(tmp_path: Any) -> None:
    plan = make(mechanism="blt", epochs=3)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    text = (tmp_path / "plan.json").read_text()
    assert json.loads(text)["version"] == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]  # nothing half-written is left
    (tmp_path / "bad.json").write_text(text[: len(text) // 2])
    with pytest.raises(SordinoError, match="is not a plan"):
        Plan.load(tmp_path / "bad.json")
    with pytest.raises(SordinoError, match="there is no plan"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(SordinoError, match="not a plan"):
        Plan.from_json([1, 2])


def test_an_update_is_post_processing() -> None:
    plan = make()
    other = plan.with_update(learning_rate=2.0, average=0.25)
    assert other.guarantee == plan.guarantee
    assert other.noise_multiplier == plan.noise_multiplier
    assert other.update.learning_rate == 2.0
    assert other.hash != plan.hash


def test_predictions_are_consistent() -> None:
    plan = make(mechanism="blt", epochs=4, momentum=0.9)
    errors = plan.error_per_step()
    assert errors.shape == plan.noise_per_step().shape == (480,)
    assert plan.predicted_error == pytest.approx(float(np.sqrt(np.mean(errors**2))))
    independent = make("dp-sgd", sampling="fixed", epochs=4)
    assert plan.relative_error < 0.35 * independent.relative_error
    ranked = sordino.compare([independent, plan])
    assert ranked == [plan, independent]
    # A row of noise, and heavy ball's velocity.
    assert plan.state_bytes(7850) == 4 * 7850 * (plan.mechanism.state_vectors() + 2)


def test_the_plot_has_labels(tmp_path: Any) -> None:
    figure = make().plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 1000
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": -1.0}, "epsilon must be a finite number greater than 0"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": 1e7}, "at most 1000"),
        ({"epsilon": "1"}, "epsilon must be a number"),
        ({"epsilon": None}, "give a budget"),
        ({"delta": None}, "delta is missing"),
        ({"delta": 0.0}, "delta must be greater than 0 and less than 1"),
        ({"delta": 1.0}, "delta must be"),
        ({"delta": -1e-5}, "delta must be"),
        ({"delta": math.nan}, "delta must be"),
        ({"noise_multiplier": 1.0}, "not both"),
        ({"batch_size": 60_001}, "batch_size 60,001 is larger than the 60,000 examples"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"batch_size": None}, "needs a batch_size"),
        ({"examples": 0}, "examples must be"),
        ({"examples": 10.5}, "examples must be a whole number"),
        ({"epochs": None}, "exactly one of epochs and steps"),
        ({"steps": 10}, "exactly one of epochs and steps"),
        ({"epochs": -1}, "epochs must be"),
        ({"clip": 0}, "clip must be"),
        ({"mechanism": "bltt"}, "did you mean 'blt'"),
        (
            {"sampling": "poisson"},
            "dp-memf works with fixed, reshuffled, cyclic-poisson or auto batches",
        ),
        ({"adjacency": "add-remove"}, "use 'zero-out', or Poisson batches"),
        ({"adjacency": "swap"}, "adjacency 'swap' is not known"),
        ({"unit": "persons"}, "unit 'persons' is not known"),
        ({"momentum": 1.0}, "momentum must be less than 1"),
        ({"learning_rate": 0}, "learning_rate must be"),
        ({"lr_schedule": "lin"}, "lr_schedule 'lin' is not known"),
        ({"average": 2}, "average must be between 0 and 1"),
        ({"bands": 1000, "mechanism": "banded"}, "bands must be between 1 and the 120 steps"),
        ({"steps": 5000, "epochs": None, "mechanism": "dense"}, "use 'blt'"),
        ({"clipp": 1.0}, "no option 'clipp'; did you mean 'clip'"),
    ],
)
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SordinoError) as error:
        make(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_recipes_get_the_nearest_name() -> None:
    with pytest.raises(SordinoError, match="there is no recipe 'dp-sdg'; did you mean 'dp-sgd'"):
        make("dp-sdg")


def test_weak_promises_are_pointed_out() -> None:
    with pytest.warns(PrivacyWarning, match="larger than 1/60,000"):
        make(delta=1e-3)
    with pytest.warns(PrivacyWarning, match="promises very little"):
        make(epsilon=50.0)


def test_full_batch_needs_no_batch_size() -> None:
    plan = sordino.plan("dp-gd", examples=1000, steps=10, epsilon=1.0, delta=1e-5)
    assert plan.population.is_full_batch
    assert plan.guarantee.mu * plan.noise_multiplier == pytest.approx(math.sqrt(10), rel=1e-5)
    with pytest.raises(SordinoError, match="leave batch_size out"):
        sordino.plan("dp-gd", examples=1000, batch_size=10, steps=10, epsilon=1.0, delta=1e-5)
    both = sordino.plan(
        "dp-gd", examples=1000, steps=10, epsilon=1.0, delta=1e-5, adjacency="add-remove"
    )
    assert both.noise_multiplier == plan.noise_multiplier

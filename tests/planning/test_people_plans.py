"""Plans for people: several rows of one of them, and a number of them that nobody may know."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sordino
from sordino import Logistic, Plan, SordinoError
from sordino._base.keys import RunKey
from sordino.parts.sampling import Population, slot_of
from sordino.privacy import (
    FixedBatches,
    MatrixStrategy,
    PatternList,
    ToeplitzStrategy,
    sensitivity,
)

ASKED: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "unit": "person"}
B, E = 20, 40  # papers/06, section 2.1
STEPS = B * E


def strategies() -> dict[str, ToeplitzStrategy]:
    k = np.arange(1, STEPS)
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return {
        "independent": ToeplitzStrategy(np.ones(1), STEPS),
        "toeplitz": ToeplitzStrategy(root, STEPS),
    }


# ---- several rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "k", "spread", "adjacent"),
    [
        ("independent", 2, 1.414, 1.414),
        ("independent", 4, 2.000, 2.000),
        ("independent", 10, 3.162, 3.162),
        ("toeplitz", 2, 1.967, 1.987),
        ("toeplitz", 4, 3.905, 3.952),
        ("toeplitz", 10, 9.723, 9.796),
    ],
)
def test_what_k_rows_cost_by_where_they_are(
    name: str, k: int, spread: float, adjacent: float
) -> None:
    """Page 06, 2.1: all in one slot cost k; no other place costs more, so that k is always enough."""
    strategy = strategies()[name]
    one = sensitivity(strategy, FixedBatches(STEPS, B)).value
    apart = sensitivity(strategy, FixedBatches(STEPS, B // k)).value / one
    assert apart == pytest.approx(spread, abs=6e-4)
    slots = [tuple(s for s in range(STEPS) if (s - j) % B < k) for j in range(B)]
    together = sensitivity(strategy, PatternList(STEPS, tuple(slots))).value / one
    assert together == pytest.approx(adjacent, abs=6e-4)
    assert max(apart, together) <= k


def test_rows_in_one_slot_count_with_their_multiplicity() -> None:
    """Page 06, 14.4: two rows in one slot cost 12.65 in 40 epochs; the union of patterns says 6.32."""
    strategy = strategies()["independent"]
    union = sensitivity(strategy, PatternList(STEPS, (tuple(range(0, STEPS, B)),))).value
    assert union == pytest.approx(6.32, abs=0.005)
    shift = np.zeros(STEPS)
    shift[::B] = 2
    truth = float(np.linalg.norm(shift))
    assert truth == pytest.approx(12.65, abs=0.005)
    plan = sordino.plan(
        "dp-sgd", examples=100, batch_size=5, epochs=E, noise_multiplier=1.0, sampling="fixed",
        unit="person", rows_per_person=2,
    )  # fmt: skip
    assert plan.guarantee.mu == pytest.approx(truth, rel=1e-5)
    assert plan.guarantee.mu >= truth


@pytest.mark.parametrize(
    ("rows", "noise", "epsilon"), [(1, 8, 0.441), (1, 16, 0.205), (8, 8, 6.70), (8, 16, 2.25)]
)
def test_people_in_secret_batches(rows: int, noise: float, epsilon: float) -> None:
    """Page 06, 2.3: q = .05, 400 steps; a person's rows are all there, or none is."""
    plan = sordino.plan(
        "dp-sgd", examples=1000, batch_size=50, steps=400, noise_multiplier=noise,
        sampling="poisson", unit="person", rows_per_person=rows,
    )  # fmt: skip
    # Its discretisation is 1e-4 of it.
    assert plan.guarantee.epsilon(1e-5) == pytest.approx(epsilon, abs=0.005 if rows > 1 else 5e-4)


@pytest.mark.parametrize("sampling", ["fixed", "poisson", "slots", "reshuffled"])
def test_k_rows_take_k_times_the_noise(sampling: str) -> None:
    sizes = {"slot_count": 20} if sampling == "slots" else {"examples": 1000, "batch_size": 50}
    one, other, three = (
        sordino.plan(
            "dp-sgd" if sampling == "poisson" else "dp-memf",
            steps=200,
            sampling=sampling,
            rows_per_person=rows,
            **sizes,
            **ASKED,
        )
        for rows in (None, 1, 3)
    )
    assert one.noise_multiplier == other.noise_multiplier
    assert three.noise_multiplier == pytest.approx(3 * one.noise_multiplier, rel=1e-4)
    assert three.guarantee.epsilon(1e-5) <= 1.0
    assert "with 3 rows at most" in three.guarantee.sentence()
    assert Plan.from_json(json.loads(json.dumps(three.to_json()))) == three
    assert "rows_per_person" not in one.to_json()["population"]
    fewer = three.with_training(population=replace(three.population, rows_per_person=2))
    with pytest.raises(SordinoError, match="states a guarantee"):
        replace(fewer, guarantee=replace(fewer.guarantee, gaussian_mu=0.01)).verify()


def test_sums_of_people_have_the_noise_that_they_must() -> None:
    """Page 06, 2.3 by Cauchy and Schwarz: k rows in each of E epochs move the sum of all steps by E k."""
    rng = np.random.default_rng(3)
    b, epochs, k = 3, 4, 2
    steps = b * epochs
    for _ in range(200):
        C = np.tril(rng.normal(size=(steps, steps)))
        C[np.diag_indices(steps)] = rng.uniform(0.3, 2, steps)
        # sensitivity() bounds mixed signs as well: at least what one sign attains.
        moved = k * sensitivity(MatrixStrategy(C), FixedBatches(steps, b)).value
        mu = moved / 1.7
        accumulated = 1.7 * float(np.linalg.norm(np.linalg.solve(C.T, np.ones(steps))))
        assert accumulated >= epochs * k / mu * (1 - 1e-9)


@pytest.mark.parametrize(
    "asked",
    [
        {"unit": "example", "rows_per_person": 2},
        {"unit": "person", "rows_per_person": 0},
        {"unit": "person", "rows_per_person": 1.5},
        {"unit": "person", "noise": "discrete"},
        {"unit": "user", "rows_per_person": 2, "noise": "discrete"},
    ],
)
def test_rows_that_are_not_accounted_for(asked: dict[str, Any]) -> None:
    with pytest.raises(SordinoError):
        sordino.plan("dp-memf", examples=100, batch_size=10, epochs=1, **{**ASKED, **asked})


def test_budgets_that_are_decided_during_the_run_count_one_row() -> None:
    for recipe, more in (("dp-agd", {}), ("dp-gd", {"schedule": "filter"})):
        asked = {"examples": 100, "steps": 5, **ASKED, **more}
        assert sordino.plan(recipe, rows_per_person=1, **asked).guarantee.is_private
        with pytest.raises(SordinoError, match="counts one row a person"):
            sordino.plan(recipe, rows_per_person=2, **asked)


def test_a_file_cannot_make_people_of_rows() -> None:
    plan = sordino.plan(
        "dp-memf", examples=100, batch_size=10, epochs=1, rows_per_person=2, **ASKED
    )
    data = plan.to_json()
    with pytest.raises(SordinoError, match="rows_per_person is for guarantees about people"):
        Plan.from_json({**data, "guarantee": {**data["guarantee"], "unit": "example"}})
    lattice = sordino.plan(
        "dp-memf", examples=100, batch_size=10, epochs=1, **{**ASKED, "unit": "user"},
        noise="discrete",
    )  # fmt: skip
    data = lattice.to_json()
    with pytest.raises(SordinoError, match="discrete noise is for units of one row each"):
        Plan.from_json({**data, "guarantee": {**data["guarantee"], "unit": "person"}})


@pytest.mark.parametrize("unit", ["person", "user", "client"])
def test_people_need_to_be_told_apart(unit: str) -> None:
    """Without ids, whoever runs the plan says that everybody has one row."""
    plan = sordino.plan("dp-memf", examples=40, batch_size=10, epochs=1, **{**ASKED, "unit": unit})
    data = np.zeros((40, 2), np.float32), np.zeros(40, np.float32)
    start = np.zeros(2, np.float32)
    with pytest.raises(SordinoError):
        sordino.train(plan, Logistic(), start, data, insecure_seed=0)
    with pytest.raises(SordinoError):
        sordino.Session(plan, Logistic(), start, insecure_seed=0)


# ---- secret slots ----------------------------------------------------------------------------------


def test_slots_cost_what_fixed_batches_cost_and_more_neighbours_are_covered() -> None:
    fixed = sordino.plan("dp-memf", examples=1000, batch_size=50, epochs=4, **ASKED)
    assert fixed.guarantee.adjacency == "zero-out"
    for adjacency in ("add-remove", "zero-out", "replace-one"):
        slots = sordino.plan("dp-memf", slot_count=20, epochs=4, adjacency=adjacency, **ASKED)
        factor = 2 if adjacency == "replace-one" else 1
        assert slots.noise_multiplier == pytest.approx(factor * fixed.noise_multiplier, rel=1e-6)
        assert slots.guarantee.adjacency == adjacency
    assert sordino.plan("dp-memf", slot_count=20, epochs=4, **ASKED).guarantee.adjacency == (
        "add-remove"
    )
    with pytest.raises(SordinoError, match="add-remove adjacency does not hold for fixed batches"):
        sordino.plan(
            "dp-memf", examples=1000, batch_size=50, epochs=4, adjacency="add-remove", **ASKED
        )


@pytest.mark.parametrize("recipe", ["dp-memf", "dp-gd", "dp-sgd", "dp-srm", "dp-nsgd-sr", "dp-mu2"])
def test_an_estimate_of_the_number_of_people_changes_nothing_private(recipe: str) -> None:
    count = 1 if recipe == "dp-gd" else 7
    plan = sordino.plan(recipe, slot_count=count, steps=4 * count, **ASKED)
    assert plan.population.is_open
    assert "predicted error" not in dict(plan.lines())
    for people in (1, 6, 7, 8, 1003, 10**7):
        settled = plan.settled(people, learning_rate=0.25)
        settled.verify()
        assert settled.guarantee == plan.guarantee
        assert settled.noise_multiplier == plan.noise_multiplier
        assert settled.divisor == -(-people // count)
        assert settled.population.steps_per_epoch == count
        assert settled.update.learning_rate == 0.25
        assert Plan.from_json(json.loads(json.dumps(settled.to_json()))) == settled
    assert "about 10,000,000, by a private release" in str(settled)


def test_no_warning_tells_how_many_people_there_are(recwarn: pytest.WarningsRecorder) -> None:
    """Page 06, 14.3: "delta > 1/n" is one."""
    sordino.plan("dp-memf", slot_count=20, epochs=1, epsilon=1.0, delta=0.2).settled(1000)
    assert not recwarn.list


@pytest.mark.parametrize(
    "asked",
    [
        {"slot_count": 20, "examples": 100},
        {"slot_count": 20, "batch_size": 5},
        {"slot_count": 20, "sampling": "fixed"},
        {"slot_count": 20, "sampling": "auto"},
        {"slot_count": 20, "noise": "discrete", "unit": "user"},
        {"slot_count": 20, "order_seed": 3},
        {"slot_count": 0},
        {"slot_count": 2.5},
        {"sampling": "slots"},
        {"sampling": "slots", "examples": 100, "batch_size": 5},
        {"slot_count": 20, "settings": "theory"},
        {},
    ],
)
def test_slots_that_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(SordinoError):
        sordino.plan("dp-memf", epochs=1, **{**ASKED, **asked})


@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("dp-gd", {"slot_count": 2}),
        ("dp-agd", {"slot_count": 1}),
        ("dp-psgd", {"slot_count": 20}),
        ("dp-srm", {"slot_count": 20, "first_batch": 40}),
    ],
)
def test_recipes_that_slots_do_not_go_with(recipe: str, more: dict[str, Any]) -> None:
    with pytest.raises(SordinoError):
        sordino.plan(recipe, steps=20, **ASKED, **more)


def test_populations_of_slots() -> None:
    open_ = Population.secret_slots(20, 800)
    assert (open_.examples, open_.batch_size, open_.order_seed) == (20, 1, None)
    assert open_.participation() == FixedBatches(800, 20)
    assert not open_.is_secret
    assert not open_.is_full_batch
    assert Population(**open_.to_json()) == open_
    assert "slot_count" not in Population(100, 10, 10).to_json()
    for bad in (
        {"batch_size": 2},
        {"slot_count": None},
        {"sampling": "fixed"},
        {"slots": "0" * 64},
        {"cycle": 2},
        {"first_batch": 2},
    ):
        with pytest.raises(SordinoError):
            replace(open_, **bad)  # type: ignore[arg-type]
    with pytest.raises(SordinoError, match="only slots leave it open"):
        Population(100, 10, 10).settled(90)
    with pytest.raises(SordinoError, match=r"use sordino\.train"):
        open_.batches(RunKey.from_insecure_seed(0), 0, 1)
    plan = sordino.plan("dp-memf", slot_count=20, epochs=1, epsilon=1.0, delta=1e-5)
    with pytest.raises(SordinoError, match="a session needs a public number of units"):
        sordino.Session(plan, Logistic(), np.zeros(2, np.float32))


def test_a_slot_is_a_function_of_the_key_and_the_id() -> None:
    """Page 06, 14.16: with and without a person, all others are in the very same slots."""
    key = RunKey.from_insecure_seed(5)
    ids = [f"person {i}" for i in range(5000)]
    slots = slot_of(key, ids, 20, len(ids))
    for left_out in (0, 17, 4999):
        rest = ids[:left_out] + ids[left_out + 1 :]
        assert np.array_equal(slot_of(key, rest, 20, len(rest)), np.delete(slots, left_out))
    assert np.array_equal(slot_of(key, ids[::-1], 20, len(ids)), slots[::-1])
    other = slot_of(RunKey.from_insecure_seed(6), ids, 20, len(ids))
    assert 0.02 < np.mean(slots == other) < 0.08
    counts = np.bincount(slots, minlength=20)
    assert float(((counts - 250) ** 2 / 250).sum()) < 45  # chi-square of 19, 99.9 %
    assert np.array_equal(
        slot_of(key, None, 7, 30), slot_of(key, [str(i) for i in range(30)], 7, 30)
    )
    assert slot_of(key, [], 7, 0).shape == (0,)
    assert set(slot_of(key, None, 1, 9)) == {0}
    with pytest.raises(SordinoError, match="give one each"):
        slot_of(key, ["a"], 7, 2)
    with pytest.raises(SordinoError):
        slot_of(key, ["a"], 0, 1)


def test_numbers_of_names_are_uniform() -> None:
    words = RunKey.from_insecure_seed(1).words("heldout", map(str, range(40_000)))
    share = words / 2.0**64
    assert float(share.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(1 / 12 / 40_000))
    assert float(np.mean(share < 0.1)) == pytest.approx(0.1, abs=0.006)
    again = RunKey.from_insecure_seed(1).words("another use", map(str, range(40_000)))
    assert not np.any(words == again)

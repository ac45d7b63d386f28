"""Table releases and evaluations: figures of papers/06, and plans that keep the budget on every side."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.special import ndtr

import sordino
from sordino import Plan, SordinoError
from sordino.engine.ledger import BudgetExceeded, Ledger
from sordino.planning import QUERIES, Evaluation, TableRelease
from sordino.planning._query import guarantee_of_all
from sordino.privacy import mu_from_epsilon_delta

COLUMNS = tuple(f"c{i}" for i in range(15))
DELTA = 1e-5
ADJACENCIES = ("zero-out", "add-remove", "replace-one")
# Ways to train, and the adjacencies that they have.
RUNS: dict[str, dict[str, Any]] = {
    "slots": {"slot_count": 20, "epochs": 10},
    "fixed": {"examples": 1000, "batch_size": 50, "epochs": 10},
    "poisson": {"examples": 1000, "batch_size": 50, "steps": 100, "sampling": "poisson"},
}


def release(epsilon: float, adjacency: str = "zero-out", share: float = 0.1) -> TableRelease:
    return TableRelease.for_budget(COLUMNS, epsilon, DELTA, share, adjacency)


def evaluation(epsilon: float, adjacency: str = "zero-out") -> Evaluation:
    return Evaluation.for_budget("binary", epsilon, DELTA, 0.1, adjacency)


def planned(kind: str, epsilon: float, adjacency: str, **more: Any) -> Plan:
    return sordino.plan(
        "dp-sgd" if kind == "poisson" else "dp-memf",
        epsilon=epsilon,
        delta=DELTA,
        adjacency=adjacency,
        unit="person",
        **{**RUNS[kind], **more},
    )


@pytest.mark.parametrize(
    ("epsilon", "sigma", "threshold", "of_8"),
    [(0.5, 86.72, 458.4, 448.3), (1.0, 45.98, 243.51, 238.15), (4.0, 13.31, 71.18, 69.63)],
)
def test_the_figures_of_the_page(
    epsilon: float, sigma: float, threshold: float, of_8: float
) -> None:
    """Page 06, 3.4, with all 15 columns and with the 8 that held texts."""
    asked = release(epsilon)
    assert asked.sigma == pytest.approx(sigma, abs=0.005)
    assert asked.text_chance == pytest.approx(1e-6)
    assert asked.threshold() == pytest.approx(threshold, abs=0.06 if epsilon == 0.5 else 0.006)
    fewer = TableRelease(COLUMNS[:8], asked.sigma, asked.text_chance)
    assert fewer.threshold() == pytest.approx(of_8, abs=0.06 if epsilon == 0.5 else 0.006)


@pytest.mark.parametrize("chance", [1e-9, 1e-6, 0.01, 0.9])
@pytest.mark.parametrize("columns", [1, 3, 15])
def test_the_threshold_lets_a_single_text_through_as_seldom_as_stated(
    chance: float, columns: int
) -> None:
    asked = TableRelease(COLUMNS[:columns], 3.0, chance)
    one = float(ndtr(-(asked.threshold() - 1) / asked.sigma))
    assert -math.expm1(columns * math.log1p(-one)) == pytest.approx(chance, rel=1e-9)
    assert -math.expm1(columns * math.log1p(-one)) <= chance


def test_without_texts_nothing_is_lost() -> None:
    asked = TableRelease.for_budget(COLUMNS, 1.0, DELTA, 0.1, "zero-out", may_hold_text=False)
    assert asked.threshold() == math.inf
    mu = asked.guarantee(adjacency="zero-out", unit="person", delta_hint=None)
    assert (mu.lost, mu.analysis) == (0.0, "exact")
    assert mu.mu == pytest.approx(math.sqrt(0.1) * mu_from_epsilon_delta(1.0, DELTA), rel=1e-9)


def test_replacing_one_moves_weights_by_a_root_of_two() -> None:
    for query in (release(1.0), evaluation(1.0)):
        one, two = (
            query.guarantee(adjacency=adjacency, unit="person", delta_hint=None).mu
            for adjacency in ("add-remove", "replace-one")
        )
        assert two / one == pytest.approx(math.sqrt(2))
    # The budget is one of replace-one then, so the noise is that much larger.
    assert evaluation(1.0, "replace-one").sigma == pytest.approx(
        math.sqrt(2) * evaluation(1.0).sigma
    )


@pytest.mark.parametrize("query", [release(1.0), evaluation(0.7), TableRelease(("é",), 1 / 3)])
def test_queries_are_read_back_bit_for_bit(query: Any) -> None:
    data = json.loads(json.dumps(query.to_json()))
    assert QUERIES[query.kind](data) == query
    for change in ({"sigma": -1.0}, {"sigma": "x"}, {"more": 1}, {"sigma": True}):
        with pytest.raises(SordinoError):
            QUERIES[query.kind]({**data, **change})
    with pytest.raises(SordinoError):
        QUERIES[query.kind]({"kind": query.kind})


@pytest.mark.parametrize(
    "bad",
    [
        {"columns": ()},
        {"columns": ("a", "a")},
        {"columns": "ab"},
        {"columns": (1, 2)},
        {"sigma": 0.0},
        {"sigma": math.inf},
        {"text_chance": 1.0},
        {"text_chance": -1e-9},
        {"text_chance": math.nan},
    ],
)
def test_releases_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(SordinoError):
        TableRelease(**{"columns": ("a",), "sigma": 1.0, **bad})


@pytest.mark.parametrize(
    "bad", [{"task": "ranking"}, {"sigma": 0}, {"share": 0.0}, {"share": 1.0}, {"cells": 1}]
)
def test_evaluations_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(SordinoError):
        Evaluation(**{"task": "binary", "sigma": 1.0, "share": 0.1, **bad})


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", RUNS)
def test_a_plan_keeps_its_budget_on_every_side(kind: str, adjacency: str, tmp_path: Path) -> None:
    if (kind, adjacency) == ("fixed", "add-remove"):
        pytest.skip("a removed row would move others")
    for epsilon in (0.5, 4.0):
        beside = [release(epsilon, adjacency), evaluation(epsilon, adjacency)]
        plan = planned(kind, epsilon, adjacency, beside=beside)
        stated = plan.guarantee
        assert stated.epsilon(DELTA) <= epsilon
        assert stated.delta(epsilon) <= DELTA
        # Evaluation has the whole budget, and takes nothing of the others'.
        assert stated.sides[0].epsilon(DELTA, adjacency) > epsilon * (1 - 1e-6)
        assert stated.own.epsilon(DELTA, adjacency) > epsilon * (1 - 1e-4)
        assert stated.lost == pytest.approx(1e-6)
        assert len(stated.sides) == (2 if adjacency == "replace-one" else 1)
        alone = planned(kind, epsilon, adjacency)
        assert 1.02 < plan.noise_multiplier / alone.noise_multiplier < 1.07
        without = planned(kind, epsilon, adjacency, beside=beside[:1])
        assert without.noise_multiplier == plan.noise_multiplier
        plan.save(tmp_path / "plan.json")
        again = Plan.load(tmp_path / "plan.json")
        assert (again, again.guarantee) == (plan, stated)


def test_the_whole_is_the_larger_side() -> None:
    """Page 06, 6.1: max(hypot(mu_pre, mu_train), mu_eval)-GDP."""
    plain = TableRelease.for_budget(COLUMNS, 1.0, DELTA, 0.1, "zero-out", may_hold_text=False)
    plan = planned("slots", 1.0, "zero-out", beside=[plain, evaluation(1.0)])
    pre, held_out, train = (
        query.guarantee(adjacency="zero-out", unit="person", delta_hint=None).mu
        for query in plan.queries
    )
    assert plan.guarantee.own.mu == pytest.approx(math.hypot(pre, train), rel=1e-12)
    assert plan.guarantee.mu == pytest.approx(max(math.hypot(pre, train), held_out), rel=1e-12)
    # Noise of 5 % more in training.
    assert train == pytest.approx(math.sqrt(0.9) * mu_from_epsilon_delta(1.0, DELTA), rel=1e-6)


def test_who_is_replaced_may_change_sides() -> None:
    """Then both sides count, each as for one who comes or goes: hypot of the one-sided costs."""
    queries = [release(1.0, "replace-one"), evaluation(1.0, "replace-one")]
    together = guarantee_of_all(queries, adjacency="replace-one", unit="person", delta_hint=DELTA)
    halves = [
        query.guarantee(adjacency="zero-out", unit="person", delta_hint=None) for query in queries
    ]
    crossing = together.sides[1]
    assert crossing.gaussian_mu == pytest.approx(math.hypot(*(half.mu for half in halves)))
    assert crossing.lost == together.lost
    assert crossing.gaussian_mu <= max(together.own.mu, together.sides[0].mu)


def test_secret_batches_of_fixed_size_make_room_for_changing_sides() -> None:
    """They have no one-sided analysis: a change of sides counts as a whole replacement there."""
    plan = sordino.plan(
        "dp-sgd", examples=1000, batch_size=50, steps=100, epsilon=1.0, delta=DELTA,
        sampling="without-replacement", unit="person", beside=[evaluation(1.0, "replace-one")],
    )  # fmt: skip
    assert plan.guarantee.epsilon(DELTA) <= 1.0
    assert plan.guarantee.sides[1].epsilon(DELTA, "replace-one") > 0.9
    with pytest.raises(SordinoError, match="held out cost more than the budget"):
        planned("slots", 0.5, "zero-out", beside=[evaluation(1.0)])


def test_a_plan_that_was_changed_is_refused() -> None:
    plan = planned("slots", 1.0, "zero-out", beside=[release(1.0), evaluation(1.0)])
    data = json.loads(json.dumps(plan.to_json()))
    for index, change in (
        (0, {"sigma": 1.0}),
        (0, {"text_chance": 1e-7}),
        (0, {"columns": ["a"]}),
        (1, {"sigma": 1.0}),
        (2, {"noise": 0.1}),
    ):
        edited = json.loads(json.dumps(data))
        edited["queries"][index].update(change)
        with pytest.raises(SordinoError):
            Plan.from_json(edited)
    for change in ({"lost": 0.0}, {"sides": []}, {"gaussian_mu": 0.1}):
        with pytest.raises(SordinoError):
            Plan.from_json({**data, "guarantee": {**data["guarantee"], **change}})
    less = replace(plan.guarantee.sides[0], gaussian_mu=0.1)
    with pytest.raises(SordinoError, match="states a guarantee"):
        replace(plan, guarantee=replace(plan.guarantee, sides=(less,))).verify()


def test_a_budget_of_mu_has_no_room_for_a_loss() -> None:
    asked: dict[str, Any] = {"slot_count": 20, "epochs": 2, "mu": 0.5, "unit": "person"}
    with pytest.raises(SordinoError, match="no exact mu; give epsilon and delta"):
        sordino.plan("dp-memf", beside=[TableRelease(("a",), 10.0, 1e-6)], **asked)
    plan = sordino.plan(
        "dp-memf", beside=[TableRelease(("a",), 10.0), Evaluation("binary", 2.0, 0.1)], **asked
    )
    assert plan.guarantee.mu <= 0.5 * (1 + 1e-9)
    with pytest.raises(SordinoError, match="held out cost more than the budget"):
        sordino.plan("dp-memf", beside=[Evaluation("binary", 1.0, 0.1)], **asked)


# ---- in a ledger -----------------------------------------------------------------------------------


def test_a_plan_spends_a_budget_to_its_end(tmp_path: Path) -> None:
    plan = planned("slots", 1.0, "add-remove", beside=[release(1.0), evaluation(1.0)])
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=1.0, delta=DELTA, adjacency="add-remove", unit="person")
    ledger.add_dataset("rows", epsilon=9.0, delta=DELTA, adjacency="add-remove")
    ledger.reserve("people", plan, run="first")
    status = ledger.status("people")
    assert 0.999 < status.epsilon <= 1.0
    again = Ledger.open(tmp_path / "a.ledger")
    assert again.status("people").epsilon == status.epsilon
    with pytest.raises(BudgetExceeded):
        again.reserve("people", plan, run="second")
    with pytest.raises(
        SordinoError, match="protects each example but the plan protects each person"
    ):
        again.reserve("rows", plan, run="third")


def test_a_budget_in_mu_takes_no_losses(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", mu=1.0, adjacency="zero-out", unit="person")
    plan = planned("slots", 1.0, "zero-out", beside=[release(1.0)])
    with pytest.raises(SordinoError, match="a budget in mu is for runs with Gaussian guarantees"):
        ledger.reserve("people", plan, run="first")

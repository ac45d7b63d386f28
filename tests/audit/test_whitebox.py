"""The white-box audit's interface: plans alone, small copies of plans, and bounds on epsilon."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import sordino
from sordino import SordinoError, audit
from sordino.audit._plans import affordable, miniature
from sordino.audit._statistics import best_epsilon_threshold, epsilon_of_event
from sordino.planning._plans import Plan
from sordino.planning.recipes import RECIPES
from sordino.privacy._gdp import epsilon_from_mu

from ..contract.cases import PLANNED


def test_a_bound_on_epsilon_is_missed_as_rarely_as_stated() -> None:
    """2,000 experiments on a pair whose epsilon at delta is known: too high in at most 2 tails.

    Clopper-Pearson bounds are conservative; 5 standard errors above the nominal rate is the limit.
    """
    rng, mu, delta, runs, tail = np.random.default_rng(0), 1.0, 0.05, 500, 0.05
    truth = epsilon_from_mu(mu, delta)
    # The event that attains epsilon at delta: the ratio above epsilon.
    cut = truth / mu + mu / 2
    hits_b = rng.binomial(runs, norm.sf(cut), 2000)
    hits_a = rng.binomial(runs, norm.sf(cut - mu), 2000)
    bounds = [
        epsilon_of_event(int(a), int(b), runs, delta, tail)
        for a, b in zip(hits_a, hits_b, strict=True)
    ]
    assert np.mean(np.array(bounds) > truth) < 2 * tail + 5 * math.sqrt(2 * tail / 2000)
    assert np.median(bounds) > 0.3 * truth
    assert epsilon_of_event(0, 0, runs, delta, tail) == 0.0


def test_the_event_is_chosen_where_it_pays() -> None:
    rng = np.random.default_rng(1)
    without, having = rng.normal(size=4000), rng.normal(size=4000) + 2
    chosen = best_epsilon_threshold(without, having, 20_000, 1e-3, 1e-3)
    # Far enough out that few are accused wrongly, not so far that none is found.
    assert 1.5 < chosen < 4.0


def test_epsilon_follows_from_mu_where_releases_are_gaussian() -> None:
    plan = audit.reference_plan("dp-gd")
    result = audit.white_box(plan, runs=500, confidence=0.99)
    assert result.delta == plan.delta
    assert result.epsilon_low == epsilon_from_mu(result.mu_low, plan.delta)
    assert result.epsilon_claimed == plan.guarantee.epsilon(plan.delta)
    assert result.epsilon_low < result.epsilon_claimed
    assert f"epsilon at least {result.epsilon_low:.4g} at delta 0.001" in result.verdict()
    other = audit.white_box(plan, runs=500, confidence=0.99, delta=1e-4)
    assert other.epsilon_low > result.epsilon_low
    fpr, tpr = np.array(result.curve).T
    assert (tpr >= fpr - 1e-12).all()


def test_amplified_plans_have_an_event_of_their_own() -> None:
    plan = audit.reference_plan("dp-sgd")
    result = audit.white_box(plan, runs=2000)
    assert not result.violates, result.verdict()
    assert 1.0 < result.epsilon_low < result.epsilon_claimed
    assert result.epsilon == 1.0


def test_discrete_noise_is_audited_too() -> None:
    plan = audit.reference_plan("dp-gd", noise="discrete")
    result = audit.white_box(plan, runs=250)
    assert not result.violates, result.verdict()
    assert result.mu_high >= 0.9 * plan.guarantee.mu


def test_a_result_is_plain_data() -> None:
    result = audit.white_box(audit.reference_plan("dp-gd"), runs=200, confidence=0.9)
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["kind"] == "white-box"
    assert data["exceeded"] is False
    assert data["mu_low"] == result.mu_low
    assert data["verdict"] == result.verdict()
    assert data["guarantee"]["adjacency"] == "zero-out"
    beyond = replace(result, epsilon_claimed=math.inf).to_json()
    assert json.dumps(beyond, allow_nan=False)
    assert replace(result, mu_claimed=0.1).to_json()["exceeded"] is True
    assert replace(result, epsilon_claimed=0.1).violates


@pytest.mark.parametrize("name", PLANNED)
def test_every_recipe_has_a_reference_plan(name: str) -> None:
    plan = audit.reference_plan(name)
    assert plan.population.examples == 7
    assert plan.guarantee.is_private


BIG: list[tuple[str, dict[str, Any]]] = [
    ("dp-memf", {"examples": 60_000, "batch_size": 500, "epochs": 1.5}),
    ("dp-memf", {"examples": 1001, "batch_size": 100, "epochs": 2}),
    ("dp-ftrl", {"examples": 900, "batch_size": 100, "epochs": 3}),
    ("dp-gd", {"examples": 5000, "steps": 20}),
    ("dp-sgd", {"examples": 60_000, "batch_size": 500, "steps": 40}),
    ("dp-nsgd-sr", {"examples": 400, "batch_size": 100, "steps": 12}),
]


@pytest.mark.parametrize(("name", "size"), BIG)
def test_a_miniature_is_the_same_plan_with_fewer_bystanders(
    name: str, size: dict[str, Any]
) -> None:
    if "difference_clip" in RECIPES[name].defaults():
        size = {**size, "difference_clip": 0.1}
    plan = sordino.plan(name, epsilon=2.0, delta=1e-5, **size)
    small = miniature(plan)
    assert small.population.examples < plan.population.examples / 10
    assert small.guarantee == plan.guarantee
    # The stated guarantee, computed anew for the small population, is the same one.
    assert Plan.from_json(small.to_json()) == small
    assert small.population.steps_per_epoch == plan.population.steps_per_epoch
    assert np.array_equal(small.noise_stds(), plan.noise_stds())
    if plan.population.is_secret:
        assert small.population.rate == plan.population.rate


def test_only_large_plans_are_made_small() -> None:
    small = audit.reference_plan("dp-memf")
    assert affordable(small) is small
    large = sordino.plan(
        "dp-memf", examples=60_000, batch_size=500, epochs=1, epsilon=1.0, delta=1e-6
    )
    assert affordable(large).population.examples == 240
    irregular = sordino.plan(
        "dp-sgd", examples=997, batch_size=100, steps=200, epsilon=1.0, delta=1e-6
    )
    # A rate of 100/997 needs all 997.
    assert affordable(irregular) is irregular


def test_a_large_plan_is_audited_in_small() -> None:
    plan = sordino.plan(
        "dp-memf", examples=10_000, batch_size=1000, epochs=2, epsilon=8.0, delta=1e-5
    )
    result = audit.white_box(miniature(plan), runs=2000)
    assert not result.violates, result.verdict()
    assert result.mu_high >= 0.9 * plan.guarantee.mu
    assert result.epsilon_claimed == plan.guarantee.epsilon(1e-5)


def test_what_is_refused() -> None:
    plan = audit.reference_plan("dp-gd")
    with pytest.raises(SordinoError, match="together, or the plan alone"):
        audit.white_box(plan, data=np.zeros((7, 2)))
    with pytest.raises(SordinoError, match="needs params and data"):
        audit.white_box(plan, lambda w, x: 0.0)
    with pytest.raises(SordinoError, match="epsilon must be"):
        audit.white_box(plan, epsilon=-1.0)
    with pytest.raises(SordinoError, match="delta must be"):
        audit.white_box(plan, runs=200, delta=2.0)

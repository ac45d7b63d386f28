"""Budgets in whole numbers: papers/04, section 1.1 and oracle 11."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import allocate
from sordino.parts.schedules._influence import geometric, uniform
from sordino.privacy._budget import (
    BudgetExhausted,
    PrivacyFilter,
    cost_of,
    cost_of_mu_squared,
    units_of,
)

UNIT = Fraction(1, 2**96)
sigmas = st.floats(1e-3, 1e6)


@given(sigma=sigmas, kappa=st.sampled_from([1, 2, 0.5]))
def test_a_cost_is_the_exact_one_rounded_up(sigma, kappa):
    exact = Fraction(kappa) ** 2 / Fraction(sigma) ** 2
    cost = cost_of(sigma, kappa) * UNIT
    assert exact <= cost < exact + UNIT


@given(value=st.floats(0, 1e6))
def test_other_costs_round_up_and_budgets_down(value):
    assert Fraction(value) <= cost_of_mu_squared(value) * UNIT < Fraction(value) + UNIT
    if value > 0:
        assert Fraction(value) - UNIT < units_of(value) * UNIT <= Fraction(value)


@settings(max_examples=50)
@given(st.lists(sigmas, min_size=1, max_size=20), st.floats(1e-3, 10))
def test_never_overspends_and_a_refusal_changes_nothing(values, R):
    budget, spent = PrivacyFilter.of(R), Fraction(0)
    for sigma in values:
        before = budget.remaining
        if cost_of(sigma) <= before:
            budget.spend(sigma)
            spent += 1 / Fraction(sigma) ** 2
        else:
            with pytest.raises(BudgetExhausted):
                budget.spend(sigma)
            assert budget.remaining == before
    assert spent <= Fraction(R)
    assert Fraction(budget.remaining_mu_squared) <= budget.remaining * UNIT


def test_spending_exactly_everything_is_legal():
    budget = PrivacyFilter.of(1.0)
    for _ in range(16):
        budget.spend(4.0)
    assert budget.remaining == 0
    with pytest.raises(BudgetExhausted, match="left of 1"):
        budget.spend(1e6)


def test_what_is_left_can_be_spent_as_mu_squared():
    budget = PrivacyFilter.of(0.7)
    budget.spend(sigma=3.0, kappa=2)
    budget.spend_cost(0.01)
    budget.spend_cost(budget.remaining_mu_squared)
    assert budget.remaining * UNIT < Fraction(1, 2**50)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan, "1", None, True])
def test_what_is_no_noise_is_refused_before_anything_is_spent(sigma):
    budget = PrivacyFilter.of(1.0)
    with pytest.raises(SordinoError):
        budget.spend(sigma)
    assert budget.remaining == budget.total


@pytest.mark.parametrize("R", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_budget_is_refused(R):
    with pytest.raises(SordinoError):
        PrivacyFilter.of(R)


@pytest.mark.parametrize("mu_squared", [-1e-9, math.inf, math.nan])
def test_what_is_no_cost_is_refused(mu_squared):
    with pytest.raises(SordinoError, match="at least 0"):
        PrivacyFilter.of(1.0).spend_cost(mu_squared)


def runs_exactly(sigma, R):
    """Every step fits, one more does not, and next to nothing is left."""
    budget = PrivacyFilter.of(R)
    for value in sigma.tolist():
        budget.spend(value)
    assert budget.remaining * UNIT <= Fraction(R) * Fraction(1e-11)
    with pytest.raises(BudgetExhausted):
        budget.spend(float(sigma[-1]))


def check_all(steps):
    for T in steps:
        R = (0.3927, 1.0, 0.0718514047, 12.5)[T % 4]
        runs_exactly(allocate(uniform(T), R), R)
        runs_exactly(allocate(geometric(0.99, T), R), R)


def test_planned_schedules_run_all_their_steps():
    check_all([*range(1, 41), *range(43, 1001, 97), 1000])


@pytest.mark.slow
def test_planned_schedules_run_all_their_steps_for_every_length():
    check_all(range(1, 1001))


def test_floats_in_the_same_place_lose_steps():
    """Why integers: the paper's float check refuses about half of all uniform schedules."""
    lost = 0
    for T in range(1, 501):
        left, x = 0.3927, 0.3927 / T
        for _ in range(T):
            if x > left:
                lost += 1
                break
            left -= x
    assert lost > 100


def test_refusal_comes_before_the_data():
    opened = []

    def batches():
        opened.append(True)
        yield from range(3)

    def step(budget, sigma):
        budget.spend(sigma)
        return next(batches())

    with pytest.raises(BudgetExhausted):
        step(PrivacyFilter.of(0.1), sigma=1.0)
    assert not opened


def test_float32_noise_costs_what_it_is():
    """A value in the compute dtype is spent as it is: refusals do not depend on precision."""
    sigma = np.float32(1.1)
    assert cost_of(sigma) == cost_of(float(sigma)) != cost_of(1.1)
    budgets = PrivacyFilter.of(1.0), PrivacyFilter.of(1.0)
    for budget, value in zip(budgets, (sigma, float(sigma)), strict=True):
        budget.spend(value)
        with pytest.raises(BudgetExhausted):
            budget.spend(value)
    assert budgets[0].remaining == budgets[1].remaining


def test_huge_budgets_print():
    assert "1e+300" in repr(PrivacyFilter.of(1e300))

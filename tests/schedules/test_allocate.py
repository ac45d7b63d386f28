"""Allocation, costs, number of steps: papers/04, sections 1.4, 2.1 and 5, oracles 3 to 5."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import (
    allocate,
    capped,
    check_allocation,
    optimal_cost,
    predicted_cost,
    uniform_cost,
    uniform_over_optimal,
)
from sordino.parts.schedules._bounds import (
    best_dynamic_steps,
    best_momentum_steps,
    best_steps,
    best_uniform_steps,
    dynamic_error,
    real_best_steps,
    uniform_error,
)
from sordino.parts.schedules._influence import expinfl, geometric, quadratic
from sordino.privacy._budget import units_of
from tests.support.schedules import quadratic_bias

influences = st.lists(st.floats(-8, 8), min_size=1, max_size=30).map(np.array)
budgets = st.floats(1e-3, 1e3)


def exact_spent(sigma):
    return sum(1 / Fraction(s) ** 2 for s in np.asarray(sigma).tolist())


# ---- oracle 3 ---------------------------------------------------------------------------------------


def test_small_cases():
    sigma = allocate(np.log([1.0, 4.0, 9.0]), 1.0)
    np.testing.assert_allclose(sigma**2, [6, 3, 2], rtol=1e-9)
    assert predicted_cost(np.log([1.0, 4.0, 9.0]), sigma) == pytest.approx(36)
    assert optimal_cost(np.log([1.0, 4.0, 9.0]), 1.0) == pytest.approx(36)
    assert uniform_cost(np.log([1.0, 4.0, 9.0]), 1.0) == pytest.approx(42)


@pytest.mark.parametrize(
    ("gamma", "R", "expected"),
    [
        (0.81, 2.0, [1.67283951, 1.50555556, 1.355]),
        (0.9, 1.0, [5.57098551, 5.28510091, 5.01388696, 4.75659082, 4.51249827]),
    ],
)
def test_geometric_cases(gamma, R, expected):
    T = len(expected)
    np.testing.assert_allclose(allocate(geometric(gamma, T), R) ** 2, expected, rtol=1e-8)
    t = np.arange(1, T + 1)
    closed = gamma ** (t / 2) * (gamma ** (-T / 2) - 1) / ((1 - math.sqrt(gamma)) * R)
    np.testing.assert_allclose(closed, expected, rtol=1e-8)


def test_steep_influence_needs_a_cap():
    log_q = geometric(0.5, 5000)
    with pytest.raises(SordinoError, match="give a ratio_cap"):
        allocate(log_q, 1.0)
    sigma = allocate(log_q, 1.0, ratio_cap=2.0)
    assert sigma[0] / sigma[-1] == pytest.approx(2, rel=1e-12)
    assert 1 - 1e-11 < exact_spent(sigma) <= 1


# ---- properties, oracle 5 ---------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(influences, budgets, st.floats(-500, 500))
def test_spends_the_budget_exactly_and_only_ratios_matter(log_q, R, shift):
    sigma = allocate(log_q, R)
    spent = exact_spent(sigma)
    assert Fraction(R) * (1 - Fraction(1, 2**36)) <= spent <= Fraction(R)
    np.testing.assert_allclose(allocate(log_q + shift, R), sigma, rtol=1e-10)


@settings(deadline=None, max_examples=60)
@given(influences, budgets, st.integers(0, 2**32 - 1))
def test_no_other_schedule_is_better(log_q, R, seed):
    x = np.random.default_rng(seed).dirichlet(np.ones(log_q.size)) * R + 1e-12
    x *= R / x.sum()
    best = optimal_cost(log_q, R)
    assert predicted_cost(log_q, x**-0.5) >= best * (1 - 1e-9)
    assert predicted_cost(log_q, allocate(log_q, R)) == pytest.approx(best, rel=1e-9)
    assert uniform_cost(log_q, R) / best == pytest.approx(uniform_over_optimal(log_q), rel=1e-9)


def test_nothing_to_win_unless_T_is_far_above_4_kappa():
    assert uniform_over_optimal(geometric(0.99, 4000)) == pytest.approx(4000 / 400, rel=0.02)
    assert uniform_over_optimal(geometric(0.99, 100)) < 1.03


# ---- caps -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(influences, st.floats(1, 4))
def test_the_ratio_cap_holds_and_beats_the_pages_rule(log_q, ratio):
    sigma = allocate(log_q, 1.0, ratio_cap=ratio)
    assert sigma.max() <= sigma.min() * ratio * (1 + 1e-12)
    floored = np.maximum(log_q, log_q.max() - 4 * math.log(ratio))
    cost = predicted_cost(log_q, sigma)
    assert cost <= predicted_cost(log_q, allocate(floored, 1.0)) * (1 + 1e-9)
    assert cost <= uniform_cost(log_q, 1.0) * (1 + 1e-9)


def test_the_ratio_cap_is_optimal():
    """Against a generic solver: least sum q/x with sum x = 1 and max x <= r^2 min x."""
    log_q = np.array([0.0, 1.0, 4.0, 0.5, 3.0, 6.0, 2.0])
    ratio, q = 1.5, np.exp(log_q)
    sigma = allocate(log_q, 1.0, ratio_cap=ratio)
    constraints = [
        {"type": "eq", "fun": lambda v: v[:-1].sum() - 1},
        {"type": "ineq", "fun": lambda v: v[:-1] - v[-1]},
        {"type": "ineq", "fun": lambda v: ratio**2 * v[-1] - v[:-1]},
    ]
    start = np.append(np.full(7, 1 / 7), 0.1)
    found = minimize(
        lambda v: (q / v[:-1]).sum() / 1000,
        start,
        method="SLSQP",
        bounds=[(1e-4, 1)] * 8,
        constraints=constraints,
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert predicted_cost(log_q, sigma) == pytest.approx(found.fun * 1000, rel=1e-6)


def test_a_cap_that_is_not_needed_changes_nothing():
    log_q = geometric(0.99, 50)
    np.testing.assert_array_equal(capped(log_q, 2.0), log_q)
    np.testing.assert_array_equal(allocate(log_q, 1.0, ratio_cap=2.0), allocate(log_q, 1.0))


@settings(deadline=None, max_examples=40)
@given(influences, st.floats(1.0001, 10))
def test_hard_caps_hold_and_are_optimal(log_q, slack):
    T, R = log_q.size, 2.0
    largest = math.sqrt(T / R) * slack
    sigma = allocate(log_q, R, largest=largest)
    assert sigma.max() <= largest * (1 + 1e-12)
    assert exact_spent(sigma) <= R
    assert float(exact_spent(sigma)) == pytest.approx(R, rel=1e-10)
    # KKT: q/x^2 is one number where the cap does not bind, and no larger where it does.
    price = log_q + 4 * np.log(sigma)
    free = sigma < largest * (1 - 1e-9)
    if free.any():
        assert np.ptp(price[free]) < 1e-6
        assert (price <= price[free].max() + 1e-6).all()


def test_hard_caps_that_need_exactly_the_budget():
    np.testing.assert_allclose(allocate(np.zeros(4), 1.0, largest=2.0), 2.0, rtol=1e-11)
    with pytest.raises(SordinoError, match="cost more than R"):
        allocate(np.zeros(4), 1.0, largest=1.99)


# ---- fixed batches ----------------------------------------------------------------------------------


def test_batches_in_a_fixed_order_have_a_budget_each():
    log_q = geometric(0.9, 23)
    sigma = allocate(log_q, 1.5, separation=5)
    for j in range(5):
        np.testing.assert_allclose(sigma[j::5], allocate(log_q[j::5], 1.5), rtol=1e-11)
    # one pass: no budget to move between steps
    np.testing.assert_allclose(allocate(log_q, 1.5, separation=23), 1.5**-0.5, rtol=1e-11)
    np.testing.assert_allclose(
        allocate(log_q, 1.5, separation=5, largest=2.0)[1::5],
        allocate(log_q[1::5], 1.5, largest=2.0),
        rtol=1e-9,
    )


def test_patterns_together_beat_one_schedule_for_all():
    log_q = geometric(0.9, 20)
    naive = allocate(log_q, 1.0)
    worst = max((naive[j::5] ** -2.0).sum() for j in range(5))
    aware = predicted_cost(log_q, allocate(log_q, worst, separation=5))
    assert aware < predicted_cost(log_q, naive)


# ---- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_q", [[], [np.nan], [0.0, -np.inf], [np.inf], [[0.0]]])
def test_bad_influence(log_q):
    with pytest.raises(SordinoError, match="log_q"):
        allocate(log_q, 1.0)


@pytest.mark.parametrize("R", [0.0, -1.0, np.inf, np.nan])
def test_bad_budget(R):
    with pytest.raises(SordinoError, match="R must be"):
        allocate([0.0], R)


@pytest.mark.parametrize("ratio", [0.5, np.inf, np.nan])
def test_bad_ratio(ratio):
    with pytest.raises(SordinoError, match="ratio_cap"):
        allocate([0.0, 1.0], 1.0, ratio_cap=ratio)


def test_overspending_is_noticed():
    check_allocation([2.0] * 4, 1.0)
    with pytest.raises(SordinoError, match="more than its budget"):
        check_allocation([2.0] * 5, 1.0)
    with pytest.raises(SordinoError, match="more than its budget"):
        check_allocation([2.0] * 4, 1.0, kappa=2)
    check_allocation([1.0] * 4, 1.0, separation=4)


def test_tiny_budgets():
    sigma = allocate(np.zeros(1000), 1e-24)
    assert exact_spent(sigma) <= units_of(1e-24) * Fraction(1, 2**96)
    with pytest.raises(SordinoError, match="too small to be divided"):
        allocate(np.zeros(1000), 1e-27)


# ---- number of steps: oracle 4, and the table of section 5 ------------------------------------------


def test_number_of_steps_oracle():
    assert real_best_steps(0.9, 1e-4) == pytest.approx(62.796442, rel=1e-7)
    best = best_dynamic_steps(0.9, 1e-4)
    assert best.steps == 63
    assert dynamic_error(real_best_steps(0.9, 1e-4), 0.9, 1e-4) == pytest.approx(0.0365844214)
    assert [dynamic_error(T, 0.9, 1e-4) for T in (62, 63, 64, 139)] == pytest.approx(
        [0.03658697, 0.03658458, 0.03658966, 0.03792396], abs=5e-9
    )
    flat = best_uniform_steps(0.9, 1e-4)
    assert (flat.steps, flat.error) == (44, pytest.approx(0.05327104, abs=5e-9))
    assert flat == min(
        ((T, uniform_error(T, 0.9, 1e-4)) for T in range(500)), key=lambda pair: pair[1]
    )


@given(st.floats(0.05, 0.999), st.floats(1e-6, 10))
def test_best_steps_is_the_minimum_of_a_scan(gamma, alpha):
    best = best_dynamic_steps(gamma, alpha)
    scan = range(max(0, best.steps - 50), best.steps + 50)
    assert best.error <= min(dynamic_error(T, gamma, alpha) for T in scan)
    a = alpha / (1 - math.sqrt(gamma)) ** 2
    assert best.error >= a / (1 + a) * (1 - 1e-6)


def test_sometimes_it_is_best_not_to_train():
    """kappa = 1e4, alpha = .1: the paper's T has an error of 10.98."""
    assert best_uniform_steps(1 - 1e-4, 0.1) == (0, 1.0)
    assert best_steps(lambda T: 1.0 + T, 10) == (0, 1.0)


@pytest.mark.parametrize(
    ("kappa", "distance", "flat", "flat_T", "bound", "bound_T", "exact", "exact_T"),
    [
        (2, 1, 0.00565, 3, -20.6, 4, -43.2, 5),
        (10, 1, 0.01172, 6, -6.9, 7, -28.3, 9),
        (10, 10, 0.03308, 21, -33.8, 26, -68.4, 42),
        (100, 1, 0.01205, 7, -0.4, 7, -11.5, 8),
        (100, 10, 0.09485, 55, -7.0, 61, -44.2, 97),
    ],
)
def test_what_schedules_buy_on_quadratics(
    kappa, distance, flat, flat_T, bound, bound_T, exact, exact_T
):
    N, D, G, R = 1000, 100, 4, 0.3927
    lam = np.geomspace(1 / kappa, 1, D)
    unit = (G / N) ** 2

    def bias(T):
        return 0.5 * float(lam @ quadratic_bias(lam, 1.0, T) ** 2) * distance**2 / D

    def with_noise(cost):
        return lambda T: bias(T) + (unit * cost(quadratic(lam, 1.0, T)) if T else 0.0)

    uniform = best_steps(with_noise(lambda q: uniform_cost(q, R)), 110)
    by_bound = best_steps(
        with_noise(lambda q: predicted_cost(q, allocate(geometric(1 - 1 / kappa, q.size), R))), 110
    )
    by_spectrum = best_steps(with_noise(lambda q: optimal_cost(q, R)), 110)
    assert uniform.error == pytest.approx(flat, abs=6e-6)
    assert 100 * (by_bound.error / uniform.error - 1) == pytest.approx(bound, abs=0.06)
    assert 100 * (by_spectrum.error / uniform.error - 1) == pytest.approx(exact, abs=0.06)
    assert (uniform.steps, by_bound.steps, by_spectrum.steps) == (flat_T, bound_T, exact_T)


def test_flat_influence_and_a_safe_exponential():
    """Section 1.6: ratio 1.5 costs 5.6 % if influence is flat, 2: 17 %, 3: 47 %."""
    for ratio, loss in ((1.5, 0.056), (2.0, 0.17), (3.0, 0.47)):
        T = 400
        sigma = allocate(expinfl(4 * math.log(ratio) / (T - 1), T), 1.0)
        assert predicted_cost(np.zeros(T), sigma) / T**2 - 1 == pytest.approx(loss, abs=0.006)


def test_costs_do_not_overflow_on_the_way():
    log_q = expinfl(5.0, 100)
    assert logsumexp(log_q) < 600
    assert predicted_cost(log_q - 500, np.ones(100)) == pytest.approx(1.0067836549, rel=1e-6)


# papers/04, section 5: what the best schedule saves with momentum, each at its best number of steps.
@pytest.mark.parametrize(
    ("kappa", "beta", "gain"),
    [
        (10, 0.0, -69),
        (10, 0.5, -53),
        (10, 0.9, -40),
        (100, 0.0, -44),
        (100, 0.5, -37),
        (100, 0.9, -16),
    ],
)
def test_best_steps_of_momentum(kappa, beta, gain):
    lam = np.geomspace(1 / kappa, 1, 100)
    run = {"distances": 1.0, "R": 0.3927, "scale": 4 / 1000, "most": 110}
    best = best_momentum_steps(lam, 1.0, beta, **run)
    flat = best_momentum_steps(lam, 1.0, beta, **run, uniform=True)
    assert 100 * (best.error / flat.error - 1) == pytest.approx(gain, abs=0.6)
    if beta == 0:  # gradient descent, as in the table above
        assert (flat.steps, best.steps) == {10: (21, 42), 100: (55, 97)}[kappa]


def test_best_steps_of_momentum_may_be_none():
    run = {"distances": 1.0, "R": 1e-6, "most": 20}
    assert best_momentum_steps([0.1, 1.0], 1.0, 0.9, scale=1.0, **run) == (0, 1.0)
    # Directions without curvature change nothing.
    some = best_momentum_steps([0.1, 1.0], 1.0, 0.9, scale=1e-4, **run)
    assert some == best_momentum_steps([0.0, 0.1, 1.0], 1.0, 0.9, scale=1e-4, **run)
    with pytest.raises(SordinoError, match="distances"):
        best_momentum_steps([1.0], 1.0, 0.9, scale=1.0, **{**run, "distances": 0.0})

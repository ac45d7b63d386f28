"""Allocation under Poisson sampling: papers/04, section 2.2, oracles 9 and 10."""

from __future__ import annotations

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import allocate, optimal_cost, predicted_cost
from sordino.parts.schedules._base import Uniform
from sordino.parts.schedules._influence import geometric
from sordino.parts.schedules._shapes import FixedSchedule
from sordino.parts.schedules._subsampled import (
    ORDERS,
    allocate_subsampled,
    renyi_slope,
    search_subsampled,
    stepwise,
    subsampled_schedule,
)
from sordino.privacy._amplification import composed_epsilon, levels, sampled_levels
from sordino.privacy._gdp import mu_from_epsilon_delta
from tests.support.schedules import allocate_lambert

SMALL = {"rate": 0.02, "steps": 60, "epsilon": 1.0, "delta": 1e-5}
STEEP = geometric(0.85, 60)


def epsilon_of(sigma, rate, delta, adjacency="add-remove"):
    parts = sampled_levels(sigma, rate=rate, adjacency=adjacency)
    return composed_epsilon(parts, delta)


def test_lambert_oracle():
    log_q = np.log([1.0, 4.0, 9.0])
    sigma = allocate_lambert(log_q, 3.0)
    u = sigma**-2.0
    np.testing.assert_allclose(u, [0.3992646, 0.69036545, 0.9222043], rtol=1e-6)
    assert np.expm1(u).sum() == pytest.approx(3)
    assert predicted_cost(log_q, sigma) == pytest.approx(18.0578632, rel=1e-8)

    def at_cost_3(shape):
        low, high = 0.0, 10.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.expm1(middle * shape).sum() < 3 else (low, middle)
        return predicted_cost(log_q, (low * shape) ** -0.5)

    assert at_cost_3(np.array([1.0, 2.0, 3.0])) == pytest.approx(18.2524256, rel=1e-8)
    assert at_cost_3(np.ones(3)) == pytest.approx(20.1977306, rel=1e-8)


def test_lambert_is_the_lemma_for_much_noise():
    log_q = geometric(0.8, 10)
    sigma = allocate_lambert(log_q, 1e-6)
    np.testing.assert_allclose(sigma, allocate(log_q, 1e-6), rtol=1e-6)
    assert np.isfinite(allocate_lambert(geometric(0.5, 900), 1e-3)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_renyi_slope_is_a_decreasing_derivative(order):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant  # its divergence is that of papers/04

    def divergence(sigma):
        accountant = RdpAccountant([order])
        accountant.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(sigma)))
        return accountant._rdp[0]

    for sigma in (0.7, 1.3, 4.0):
        h = 1e-4
        slope = -(divergence(sigma + h) - divergence(sigma - h)) / (2 * h) / (2 * sigma)
        assert renyi_slope(np.array([sigma]), 0.05, order)[0] == pytest.approx(slope, rel=1e-4)
    grid = renyi_slope(np.geomspace(0.1, 100, 300), 0.05, order)
    assert (np.diff(grid) < 0).all()


def test_stepwise_keeps_the_budget_and_next_to_all_of_the_gain():
    log_q = geometric(0.99, 1000)
    sigma = allocate(log_q, 1.0, ratio_cap=2.0)
    few = stepwise(sigma)
    assert len(np.unique(few)) <= 13
    assert (few**-2.0).sum() == pytest.approx((sigma**-2.0).sum())
    assert predicted_cost(log_q, few) <= predicted_cost(log_q, sigma) * 1.005
    np.testing.assert_allclose(stepwise(np.full(5, 3.0)), 3.0)


@pytest.mark.parametrize("method", ["lemma", "lambert", "rdp-kkt", "auto", "uniform"])
def test_every_method_keeps_the_promise(method):
    found = search_subsampled(STEEP, **SMALL, method=method, ratio_cap=2.0)
    spent = epsilon_of(found.sigma, 0.02, 1e-5)
    assert spent == pytest.approx(1.0, rel=1e-4)
    assert found.sigma.max() <= 2 * found.sigma.min() * (1 + 1e-9)
    # few levels: the accountant sees the very schedule
    assert sum(count for _, count in levels(found.sigma)) == 60
    assert {level for level, _ in levels(found.sigma)} == set(found.sigma.tolist())
    flat = np.full(60, found.uniform_sigma)
    ratio = predicted_cost(STEEP, found.sigma) / predicted_cost(STEEP, flat)
    assert found.relative_cost == pytest.approx(ratio)
    if method == "auto":
        assert found.relative_cost < 0.95


def test_the_accountant_accepts_what_is_allocated():
    sigma = allocate_subsampled(STEEP, **SMALL, ratio_cap=2.0)
    assert 0.999 < epsilon_of(sigma, 0.02, 1e-5) <= 1.0


def test_replace_one():
    sigma = allocate_subsampled(STEEP, **SMALL, adjacency="replace-one", ratio_cap=2.0)
    assert 0.999 < epsilon_of(sigma, 0.02, 1e-5, "replace-one") <= 1.0


def test_without_replacement():
    kind = {"adjacency": "replace-one", "sampling": "without-replacement"}
    found = search_subsampled(STEEP, **SMALL, ratio_cap=2.0, method="lemma", **kind)
    assert found.relative_cost < 0.95
    assert composed_epsilon(sampled_levels(found.sigma, rate=0.02, **kind), 1e-5) == pytest.approx(
        1.0, rel=1e-4
    )
    # Fixed sizes cost more than Poisson batches.
    assert epsilon_of(found.sigma, 0.02, 1e-5, "replace-one") < 0.9
    with pytest.raises(SordinoError, match="no proved amplification"):
        search_subsampled(STEEP, **SMALL, sampling="without-replacement")


def test_flat_influence_stays_uniform():
    found = search_subsampled(np.zeros(60), **SMALL)
    assert found.method == "uniform"
    assert isinstance(subsampled_schedule(np.zeros(60), **SMALL), Uniform)


def test_a_schedule_for_plans():
    schedule = subsampled_schedule(STEEP, **SMALL)
    assert isinstance(schedule, FixedSchedule)
    assert "Poisson" in schedule.describe()
    relative = schedule.relative_noise(60)
    assert relative.max() <= 2 * relative.min() * (1 + 1e-9)


def test_full_batches_are_a_plain_composition():
    R = mu_from_epsilon_delta(1.0, 1e-5) ** 2
    whole = {**SMALL, "rate": 1.0}
    sigma = allocate_subsampled(STEEP, **whole)
    assert predicted_cost(STEEP, sigma) == pytest.approx(optimal_cost(STEEP, R), rel=1e-9)
    doubled = allocate_subsampled(STEEP, **whole, adjacency="replace-one")
    np.testing.assert_allclose(doubled, 2 * sigma, rtol=1e-9)
    flat = search_subsampled(STEEP, **whole, method="uniform")
    assert np.ptp(flat.sigma) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 61}, "60 entries for 61 steps"),
        ({"method": "lamda"}, "did you mean"),
        ({"adjacency": "other"}, "adjacency"),
        ({"rate": 0.0}, "rate"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"delta": 1e-17}, "down to delta"),
        ({"ratio_cap": 0.9}, "ratio_cap"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(SordinoError, match=message):
        search_subsampled(STEEP, **{**SMALL, **change})


def test_steep_influence_needs_a_cap():
    log_q = geometric(1e-30, 60)
    with pytest.raises(SordinoError, match="ratio_cap"):
        search_subsampled(log_q, **SMALL, method="lemma")
    found = search_subsampled(log_q, **SMALL, ratio_cap=2.0)
    assert found.sigma.max() <= 2 * found.sigma.min() * (1 + 1e-9)


# papers/04, table 2.2: uniform sigma, then cost relative to uniform for lemma, lambert, rdp-kkt.
# That table averages levels, which flatters its schedules by 2 to 4 %, and discretises the losses of
# row 4 so coarsely that its uniform sigma is 1.5 % too high; what is found here is accounted for.
TABLE = [
    (0.01, 1000, 0.99, 4, 1e-8, 0.857, 1.183, 0.920, 0.854),
    (0.01, 1000, 0.99, 8, 1e-5, 0.586, 1.030, 0.784, 0.800),
    (0.01, 1000, 0.99, 1, 1e-6, 1.569, 0.684, 0.605, 0.589),
    (0.01, 10_000, 0.999, 2, 1e-6, 2.392, 0.460, 0.453, 0.452),
    (0.1, 1000, 0.99, 4, 1e-6, 3.890, 0.430, 0.428, 0.427),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "steps", "gamma", "epsilon", "delta", "flat", "lemma", "lambert", "kkt"), TABLE
)
def test_the_table_of_the_page(rate, steps, gamma, epsilon, delta, flat, lemma, lambert, kkt):
    run = {"rate": rate, "steps": steps, "epsilon": epsilon, "delta": delta}
    log_q = geometric(gamma, steps)
    for method, expected in (("lemma", lemma), ("lambert", lambert), ("rdp-kkt", kkt)):
        found = search_subsampled(log_q, **run, method=method)
        assert found.uniform_sigma == pytest.approx(flat, rel=0.016)
        assert found.relative_cost == pytest.approx(expected, rel=0.045)
    best = search_subsampled(log_q, **run)
    assert best.relative_cost <= min(1.0, lambert * 1.045)


@pytest.mark.slow
def test_a_ratio_of_2_keeps_most_of_the_gain():
    for rate, steps, gamma, epsilon, delta, *_ in TABLE[:3]:
        run = {"rate": rate, "steps": steps, "epsilon": epsilon, "delta": delta}
        free = search_subsampled(geometric(gamma, steps), **run)
        safe = search_subsampled(geometric(gamma, steps), **run, ratio_cap=2.0)
        assert safe.relative_cost <= free.relative_cost * 1.02


@pytest.mark.slow
def test_the_accountant_accepts_the_first_row():
    sigma = allocate_subsampled(
        geometric(0.99, 1000), rate=0.01, steps=1000, epsilon=4.0, delta=1e-8, ratio_cap=2.0
    )
    assert 3.99 < epsilon_of(sigma, 0.01, 1e-8) <= 4.0

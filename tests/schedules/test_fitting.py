"""Fits of estimates and of schedules: papers/04, sections 1.3, 1.5 and erratum l."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import allocate
from sordino.parts.schedules._influence import (
    expinfl,
    exponential_fit,
    fit_exponential,
    fitted_expinfl,
    fitted_momexpinfl,
    momentum_bound,
    momexpinfl,
    smoothed,
)
from sordino.privacy._gdp import epsilon_from_mu

R = 0.3927
T = np.arange(1, 101)


def spent(sigma):
    return float(sum(1 / Fraction(s) ** 2 for s in np.asarray(sigma).tolist()))


@pytest.mark.parametrize(("slope", "until", "overspent"), [(0.5, 15, 1.80), (0.3, 30, 194)])
def test_a_fit_alone_overspends(slope, until, overspent):
    log_q = slope * np.minimum(T, until)
    fit = fit_exponential(allocate(log_q, R))
    raw = fit.sigma_0 * np.exp(-fit.k * T)
    assert spent(raw) / R == pytest.approx(overspent, rel=5e-3)
    on_budget = exponential_fit(log_q, R)
    assert R * (1 - 1e-11) <= spent(on_budget) <= R
    np.testing.assert_allclose(on_budget / on_budget[0], raw / raw[0], rtol=1e-9)
    if until == 15:
        assert epsilon_from_mu(math.sqrt(spent(raw)), 1e-8) == pytest.approx(4.76, abs=0.01)


@pytest.mark.parametrize("k", [0.0, 1e-4, 0.02, 0.3, -0.05])
def test_an_exponential_fits_itself(k):
    fit = fit_exponential(3.0 * np.exp(-k * T))
    assert fit.k == pytest.approx(k, abs=1e-7)
    assert fit.sigma_0 == pytest.approx(3.0, rel=1e-4)


def test_the_fit_is_a_least_squares_optimum():
    sigma = allocate(momentum_bound(0.9, 0.99, 100), R)
    fit = fit_exponential(sigma)

    def loss(sigma_0, k):
        return np.sum((sigma - sigma_0 * np.exp(-k * T)) ** 2)

    best = loss(*fit)
    for factor in (0.99, 1.01):
        assert loss(fit.sigma_0 * factor, fit.k) > best
        assert loss(fit.sigma_0, fit.k * factor) > best


def test_one_step_has_nothing_to_fit():
    np.testing.assert_allclose(exponential_fit([0.0], 1.0), 1.0)
    with pytest.raises(SordinoError, match="at least two"):
        fit_exponential([1.0])


def test_a_rate_from_noisy_estimates():
    rng = np.random.default_rng(5)
    q = 1e-6 * np.exp(0.03 * T)
    error = np.where(T < 50, 2.0, 0.2) * 1e-6
    assert fitted_expinfl(q) == pytest.approx(0.03, abs=1e-6)
    rough = q + error * rng.normal(size=100)
    assert (rough <= 0).any()
    assert fitted_expinfl(rough, error) == pytest.approx(0.03, abs=0.002)


def test_a_rate_is_never_negative():
    falling = np.exp(-0.1 * T)
    assert fitted_expinfl(falling) == pytest.approx(0.0, abs=1e-9)
    assert fitted_expinfl(-falling) == 0.0
    assert fitted_expinfl([1.0]) == 0.0


def test_smoothing():
    raw = np.array([-1.0, 0.0, 1.0, 2.0, 3.0, 100.0, 1.0])
    found = np.exp(smoothed(raw, window=5))
    mean = [0.0, 0.5, 1.0, 21.2, 21.4, 26.5, 104 / 3]
    np.testing.assert_allclose(found, np.maximum(mean, 1e-3 * 104 / 3))
    np.testing.assert_allclose(smoothed(np.exp(expinfl(0.1, 9)), window=1), expinfl(0.1, 9))


def test_hopeless_estimates_are_refused():
    with pytest.raises(SordinoError, match="nowhere positive"):
        smoothed([-1.0, -2.0])
    with pytest.raises(SordinoError, match="finite"):
        smoothed([np.nan])
    with pytest.raises(SordinoError, match="standard errors"):
        fitted_expinfl([1.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize(
    "made", [(1.0, 1e-3, 0.06), (1.0, 0.0, 0.02), (0.0, 1.0, 0.02), (1.0, 1e-5, 0.1)]
)
def test_both_ends_fit_themselves(made):
    q = np.exp(momexpinfl(*made, 100))
    fit = fitted_momexpinfl(7.0 * q)
    found = np.exp(momexpinfl(*fit, 100))
    np.testing.assert_allclose(found / found.max(), q / q.max(), rtol=1e-5, atol=1e-7)
    assert max(fit.c1, fit.c2) == 1.0
    assert fit.k == pytest.approx(made[2], rel=1e-4)


def test_both_ends_are_least_squares_with_weights():
    rng = np.random.default_rng(0)
    error = rng.uniform(0.5, 2.0, 100)
    q = np.exp(momexpinfl(5.0, 0.02, 0.05, 100)) + error * rng.normal(size=100)
    fit = fitted_momexpinfl(q, error)

    def loss(c1, c2, k):
        shape = np.exp(momexpinfl(c1, c2, k, 100)) / error
        size = shape @ (q / error) / (shape @ shape)
        return np.sum((q / error - size * shape) ** 2)

    best = loss(*fit)
    assert best <= loss(5.0, 0.02, 0.05)
    for c1, c2, k in (
        (1.02, 1, 1),
        (0.98, 1, 1),
        (1, 1.02, 1),
        (1, 0.98, 1),
        (1, 1, 1.01),
        (1, 1, 0.99),
    ):
        assert loss(fit.c1 * c1, fit.c2 * c2, fit.k * k) > best
    # Errors count: a point that nobody trusts is not followed.
    moved, sure = q.copy(), error.copy()
    moved[50], sure[50] = 1e3, 1e6
    assert fitted_momexpinfl(moved, sure).k == pytest.approx(fit.k, rel=0.05)
    assert fitted_momexpinfl(moved, error).k != pytest.approx(fit.k, rel=0.05)


def test_both_ends_of_nothing():
    assert fitted_momexpinfl(-np.ones(10)) == (1.0, 1.0, 0.0)
    assert fitted_momexpinfl(np.ones(1)).k >= 0
    with pytest.raises(SordinoError, match="standard errors"):
        fitted_momexpinfl(np.ones(3), [1.0, 0.0, 1.0])

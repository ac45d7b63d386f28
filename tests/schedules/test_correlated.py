"""Correlated noise under full participation: papers/04, section 2.3, oracle 12."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.optimize import minimize

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import optimal_cost
from sordino.parts.schedules._bounds import (
    full_participation_bound,
    row_scaling,
)
from sordino.parts.schedules._influence import quadratic
from tests.support.schedules import quadratic_objective


def random_psd(rng, T, rank=None):
    A = rng.normal(size=(T, rank or T))
    return A @ A.T


def test_no_correlation_beats_the_schedule():
    rng = np.random.default_rng(12)
    for _ in range(200):
        W, X = random_psd(rng, 6), random_psd(rng, 6) + 1e-3 * np.eye(6)
        root = np.sqrt(np.diag(W))
        K = W / np.outer(root, root)
        cost = np.trace(W @ np.linalg.inv(X)) * np.trace(K @ X)
        assert cost >= full_participation_bound(W) * (1 - 1e-9)
        middle = np.real(sqrtm(np.real(sqrtm(W)) @ K @ np.real(sqrtm(W))))
        assert np.trace(middle) ** 2 == pytest.approx(full_participation_bound(W), rel=1e-5)


def test_the_schedule_attains_the_bound():
    lam = [0.1, 0.5, 1.0]
    W = quadratic_objective(lam, 0.7, 9)
    log_q = quadratic(lam, 0.7, 9)
    np.testing.assert_allclose(np.diag(W), np.exp(log_q))
    assert full_participation_bound(W, 0.4) == pytest.approx(optimal_cost(log_q, 0.4))


@pytest.mark.parametrize("seed", range(5))
def test_row_scaling_is_the_numerical_optimum(seed):
    rng = np.random.default_rng(seed)
    T, R = 6, 0.7
    C0 = np.tril(rng.normal(size=(T, T))) + 2 * np.eye(T)
    W = random_psd(rng, T)
    found = row_scaling(C0, W, R)
    length = np.abs(C0).sum(axis=1)
    assert found.weights @ length**2 == pytest.approx(R)

    def cost(log_y):
        y = np.exp(log_y)
        y *= R / (y @ length**2)
        C = np.sqrt(y)[:, None] * C0
        return np.trace(W @ np.linalg.inv(C.T @ C))

    best = minimize(cost, np.zeros(T), method="BFGS", options={"gtol": 1e-10, "maxiter": 2000})
    assert found.cost == pytest.approx(best.fun, rel=1e-9)
    assert cost(np.log(found.weights)) == pytest.approx(found.cost, rel=1e-12)
    assert found.cost >= full_participation_bound(W, R) * (1 - 1e-12)


def test_rows_of_the_identity_are_the_schedule():
    W = quadratic_objective([0.2, 1.0], 0.5, 7)
    assert row_scaling(np.eye(7), W, 2.0).cost == pytest.approx(full_participation_bound(W, 2.0))


def test_refusals():
    with pytest.raises(SordinoError, match="invertible"):
        row_scaling(np.zeros((2, 2)), np.eye(2))
    with pytest.raises(SordinoError, match="square"):
        row_scaling(np.ones((2, 3)), np.eye(2))
    with pytest.raises(SordinoError, match="one size"):
        row_scaling(np.eye(3), np.eye(2))
    with pytest.raises(SordinoError, match="without any cost"):
        row_scaling(np.eye(2), np.diag([1.0, 0.0]))
    with pytest.raises(SordinoError, match="semidefinite"):
        full_participation_bound(-np.eye(2))

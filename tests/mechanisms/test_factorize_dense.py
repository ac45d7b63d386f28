"""Dense optima: the oracles of papers/03, certificates, and feasibility by brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.support import jax_privacy

from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._dense import optimize_dense
from sordino.parts.mechanisms.factorize._error import completed, dense_error, rmse

PREFIX = Workload.prefix()
MAL = Workload.recursive(0.9, np.exp(-2.5))


def pattern_bound(strategy, separation):
    n = len(strategy)
    gram = np.abs(strategy.T @ strategy)
    patterns = [range(j, n, separation) for j in range(min(separation, n))]
    return np.sqrt(max(gram[np.ix_(p, p)].sum() for p in patterns))


@pytest.mark.parametrize(
    ("n", "total"),
    [
        (1, 1.0),
        (2, (3 + np.sqrt(5)) / 2),
        (3, 4.607861648),
        (4, 6.874144097),
        (8, 17.866177333),
        (16, 45.665356812),
        (32, 114.559702825),
        (64, 282.201421052),
        (128, 683.613024773),
    ],
)
def test_optimal_prefix_error_oracle(n, total):
    # papers/03, oracle 4.
    result = optimize_dense(PREFIX, n, tolerance=1e-8)
    assert n * result.rmse**2 == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize(
    ("workload", "n", "epochs", "expected"),
    [
        (PREFIX, 1024, 1, 2.9555),
        (MAL, 120, 1, 14.722),
        (MAL, 100, 1, 14.064),
        (PREFIX, 600, 6, 7.2623),
    ],
)
def test_tables_of_paper_03(workload, n, epochs, expected):
    result = optimize_dense(workload, n, epochs)
    assert result.gap <= 1e-4
    assert result.rmse == pytest.approx(expected, rel=1.5e-4)


@pytest.mark.slow
def test_recursive_momentum_over_six_epochs():
    result = optimize_dense(MAL, 600, 6, tolerance=2e-5)
    assert result.rmse == pytest.approx(56.334, abs=2e-3)
    assert result.rmse / (1 + result.gap) >= 56.33
    # Negative entries in C, yet orthogonal inside every pattern (section 2.3).
    assert result.strategy.min() == pytest.approx(-0.030, abs=1e-3)
    assert pattern_bound(result.strategy, 100) == pytest.approx(1.0, rel=1e-12)


def test_recursive_momentum_over_six_epochs_within_two_percent_quickly():
    result = optimize_dense(MAL, 600, 6, tolerance=0.02)
    assert result.rmse <= 56.34 * 1.02
    assert result.rmse / (1 + result.gap) <= 56.334


def test_optimising_for_the_prefix_costs_on_another_workload():
    strategy = optimize_dense(PREFIX, 120).strategy
    error = dense_error(strategy, MAL)
    assert (rmse(error), error.max()) == pytest.approx((16.88, 21.6), rel=1e-3)


@pytest.mark.parametrize(("alpha", "expected"), [(0.1, 0.14508), (0.01, 0.02123), (0.001, 0.00271)])
def test_momentum_optima_of_paper_00(alpha, expected):
    result = optimize_dense(Workload.ema(alpha), 1024, tolerance=1e-3)
    assert result.rmse == pytest.approx(expected, abs=6e-6)


def test_vector_contributions_cost_more_than_scalars():
    # papers/03, section 2.4: 46.9312 for d >= k, where one-dimensional data would allow 46.8545.
    result = optimize_dense(MAL, 3, separation=1, tolerance=1e-8)
    assert 3 * result.rmse**2 == pytest.approx(46.9312, abs=5e-5)


@pytest.mark.parametrize(("kappa", "expected"), [(1.0, 50.51), (0.5, 25.5)])
def test_workload_that_is_not_toeplitz(kappa, expected):
    # papers/03, section 3.7: y-iterates of Algorithm 1 with frozen gradients, T = 128, beta = 1.
    n = 128
    eta = np.arange(1.0, n + 1)
    tau = eta / np.cumsum(eta)
    x, z, rows = np.zeros(n), np.zeros(n), []
    for t, noise in enumerate(np.eye(n)):
        z = z - kappa * noise
        y = x - noise / eta[t]
        rows.append(y)
        if t + 1 < n:
            x = (1 - tau[t + 1]) * y + tau[t + 1] * z
    workload = np.array(rows) @ np.tril(np.ones((n, n)))
    assert optimize_dense(workload, n).rmse == pytest.approx(expected, rel=3e-4)


@pytest.mark.parametrize("separation", [32, 8])
@pytest.mark.parametrize("rank", [1, 2, 5, 20])
def test_nearly_low_rank_does_not_derail_the_search(rank, separation):
    """Most patterns end up with no weight; unguarded, the large steps overshoot and overflow."""
    eigenvalues = np.linspace(0.05, 1, 20)[:rank]
    final_loss = np.sqrt(eigenvalues)[:, None] * (1 - 0.5 * eigenvalues[:, None]) ** np.arange(32)
    result = optimize_dense(completed(final_loss), 32, separation=separation)
    assert result.gap <= 1e-4
    assert pattern_bound(result.strategy, separation) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("n", "separation"), [(4, 2), (5, 2), (5, 3), (6, 2), (4, 4), (3, 1)])
def test_no_direct_search_does_better(n, separation):
    """A penalty-free search over all lower-triangular C, normalised by its own sensitivity."""
    rng = np.random.default_rng(n)
    lower = np.tril_indices(n)
    result = optimize_dense(PREFIX, n, separation=separation, tolerance=1e-7)

    def loss(entries):
        strategy = np.zeros((n, n))
        strategy[lower] = entries
        if np.min(np.abs(np.diag(strategy))) < 1e-3:
            return 1e3
        return rmse(dense_error(strategy, PREFIX)) * pattern_bound(strategy, separation)

    assert loss(result.strategy[lower]) == pytest.approx(result.rmse, rel=1e-9)
    for _ in range(3):
        start = np.eye(n)[lower] + 0.2 * rng.random(len(lower[0]))
        options = {"maxiter": 3000, "maxfev": 3000}
        searched = minimize(loss, start, method="Powell", options=options)
        assert searched.fun >= result.rmse / (1 + result.gap) * (1 - 1e-9)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40),
    st.floats(0.0, 1.0),
    st.sampled_from([PREFIX, MAL, Workload.ema(0.1), Workload.identity(), None]),
    st.integers(0, 2**32 - 1),
)
def test_feasible_certified_and_lower_triangular(n, spacing, workload, seed):
    separation = 1 + int(spacing * (n - 1))
    rng = np.random.default_rng(seed)
    if workload is None:
        workload = np.tril(rng.normal(size=(n, n)) * 0.3 + 2 * np.eye(n))
    result = optimize_dense(workload, n, separation=separation)
    assert not np.any(np.triu(result.strategy, 1))
    assert -1e-9 <= result.gap <= 1e-4
    assert result.rmse == pytest.approx(rmse(dense_error(result.strategy, workload)), rel=1e-9)
    assert pattern_bound(result.strategy, separation) == pytest.approx(1.0, rel=1e-12)
    # No contributions of norm one, in any directions, move the release by more than 1.
    for start in range(separation):
        contributions = np.zeros((n, 4))
        directions = rng.normal(size=(len(range(start, n, separation)), 4))
        contributions[start::separation] = directions / np.linalg.norm(
            directions, axis=1, keepdims=True
        )
        assert np.linalg.norm(result.strategy @ contributions) <= 1 + 1e-12


def test_jax_privacy_agrees_on_sensitivity():
    result = optimize_dense(MAL, 60, 6)
    assert jax_privacy.fixed_epoch_sensitivity(result.strategy, 6) == pytest.approx(1.0, rel=1e-9)


def test_out_of_time_still_returns_an_honest_gap():
    result = optimize_dense(MAL, 120, 6, tolerance=1e-9, max_seconds=1e-3)
    best = optimize_dense(MAL, 120, 6, tolerance=1e-6)
    assert result.gap > 1e-6
    assert best.rmse / (1 + best.gap) <= result.rmse <= (1 + result.gap) * best.rmse
    assert pattern_bound(result.strategy, 20) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"workload": PREFIX, "n": 0}, "n must be a whole number of at least 1, got 0"),
        ({"workload": PREFIX, "n": 6, "epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"workload": PREFIX, "n": 6, "separation": 0}, "separation must be a whole number"),
        ({"workload": PREFIX, "n": 6, "epochs": 2, "separation": 2}, "give only one of them"),
        ({"workload": PREFIX, "n": 6, "tolerance": 0.0}, "tolerance must be a finite number"),
        ({"workload": np.ones((3, 2)), "n": 3}, "workload must have 3 columns"),
        ({"workload": np.ones((3, 3)), "n": 3}, "full column rank"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(kwargs, message):
    with pytest.raises(ValueError, match=message):
        optimize_dense(**kwargs)

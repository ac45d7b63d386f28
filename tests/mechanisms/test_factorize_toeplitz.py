"""Toeplitz strategies and errors against dense matrices and the tables of the papers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from scipy.special import ellipk
from tests.support import jax_privacy
from tests.support.toeplitz import fixed_order_sensitivity

from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._error import (
    dense_error,
    noising_error,
    rmse,
    toeplitz_error,
)
from sordino.parts.mechanisms.factorize._toeplitz import (
    column_norms,
    inverse_coefficients,
    sqrt_toeplitz,
)

PREFIX = Workload.prefix()
MAL = Workload.recursive(0.9, np.exp(-2.5))
positive_coefficients = st.lists(st.floats(0.0, 1.0), max_size=8).map(lambda c: [1.0, *c])


def dense(coef, n):
    padded = np.zeros(n)
    padded[: min(n, len(coef))] = coef[:n]
    return toeplitz(padded, np.zeros(n))


def pattern_bound(strategy, separation, participations):
    """max_j sum_{s,t in P_j} |X_st|, from the dense Gram matrix."""
    n = len(strategy)
    gram = np.abs(strategy.T @ strategy)
    patterns = [list(range(j, n, separation))[:participations] for j in range(n)]
    return np.sqrt(max(gram[np.ix_(p, p)].sum() for p in patterns))


@pytest.mark.parametrize(
    ("n", "expected"), [(2, 1.25), (4, 1.488281), (8, 1.718379), (128, 2.610104)]
)
def test_square_root_max_error_oracle(n, expected):
    # papers/03, oracle 5.
    coef = sqrt_toeplitz(PREFIX, n)
    error = toeplitz_error(coef, PREFIX, n)[-1] * fixed_order_sensitivity(coef, n)
    assert error == pytest.approx(expected, abs=5e-7)


def test_sensitivity_oracle():
    assert fixed_order_sensitivity(sqrt_toeplitz(PREFIX, 4), 4, 2, 2) ** 2 == pytest.approx(
        3.80078125, rel=1e-14
    )
    assert fixed_order_sensitivity(sqrt_toeplitz(PREFIX, 600), 600, 100, 6) == pytest.approx(
        5.903139705, abs=5e-10
    )


@pytest.mark.parametrize(
    ("coef", "workload", "n", "k", "expected"),
    [
        # papers/03, sections 3.6 and 3.7: RMSE and max error.
        ([1.0], PREFIX, 1024, 1, (22.64, 32.00)),
        (sqrt_toeplitz(PREFIX, 1024), PREFIX, 1024, 1, (3.110, 3.273)),
        (sqrt_toeplitz(PREFIX, 32), PREFIX, 1024, 1, (5.539, 7.622)),
        ([1.0], MAL, 120, 1, (75.38, 112.3)),
        (sqrt_toeplitz(PREFIX, 120), MAL, 120, 1, (17.74, 20.79)),
        (sqrt_toeplitz(MAL, 120), MAL, 120, 1, (15.79, 17.81)),
        ([1.0], MAL, 600, 6, (452.0, 646.1)),
        (sqrt_toeplitz(PREFIX, 600), MAL, 600, 6, (81.37, 89.58)),
        (sqrt_toeplitz(MAL, 600), MAL, 600, 6, (79.38, 86.22)),
        ([1.0], PREFIX, 600, 6, (42.46, 60.0)),
        (sqrt_toeplitz(MAL, 720), MAL, 720, 6, (81.2, 87.94)),
    ],
)
def test_tables_of_paper_03(coef, workload, n, k, expected):
    sensitivity = fixed_order_sensitivity(coef, n, n // k, k)
    error = toeplitz_error(coef, workload, n)
    assert (rmse(error, sensitivity), error[-1] * sensitivity) == pytest.approx(expected, rel=6e-4)


@pytest.mark.parametrize(
    ("workload", "n", "expected"), [(PREFIX, 1024, (2.991, 3.081)), (MAL, 120, (15.04, 16.22))]
)
def test_column_normalised_square_root(workload, n, expected):
    coef = sqrt_toeplitz(workload, n)
    strategy = dense(coef, n) / column_norms(coef, n)
    np.testing.assert_allclose(np.linalg.norm(strategy, axis=0), 1.0, rtol=1e-12)
    error = dense_error(strategy, workload)
    assert (rmse(error), error.max()) == pytest.approx(expected, rel=4e-4)


@pytest.mark.parametrize(
    ("alpha", "independent", "root"),
    [(0.1, 0.22894, 0.14512), (0.01, 0.06916, 0.02129), (0.001, 0.01696, 0.00278)],
)
def test_momentum_table_of_paper_00(alpha, independent, root):
    workload, n = Workload.ema(alpha), 1024
    assert rmse(toeplitz_error([1.0], workload, n)) == pytest.approx(independent, abs=6e-6)
    coef = sqrt_toeplitz(workload, n)
    value = rmse(toeplitz_error(coef, workload, n), fixed_order_sensitivity(coef, n))
    assert value == pytest.approx(root, abs=6e-6)


def test_momentum_limit_of_paper_00():
    alpha, n = 0.01, 20_000
    workload = Workload.ema(alpha)
    coef = sqrt_toeplitz(workload, n)
    limit = alpha * 2 / np.pi * ellipk((1 - alpha) ** 2)
    last = toeplitz_error(coef, workload, n)[-1] * fixed_order_sensitivity(coef, n)
    assert last == pytest.approx(limit, rel=1e-9)


@pytest.mark.parametrize(
    ("alpha", "separation", "epochs", "expected"),
    [(0.01, 1000, 5, 0.0477), (0.1, 509, 10, 0.459), (0.01, 509, 10, 0.0676)],
)
def test_multi_epoch_momentum_of_paper_00(alpha, separation, epochs, expected):
    workload, n = Workload.ema(alpha), separation * epochs
    coef = sqrt_toeplitz(workload, n)
    sensitivity = fixed_order_sensitivity(coef, n, separation, epochs)
    value = rmse(toeplitz_error(coef, workload, n), sensitivity)
    assert value == pytest.approx(expected, rel=2e-3)


@settings(deadline=None)
@given(positive_coefficients, st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_sensitivity_is_the_exact_bound(coef, n, separation, participations):
    claimed = fixed_order_sensitivity(coef, n, separation, participations)
    assert claimed == pytest.approx(pattern_bound(dense(coef, n), separation, participations))


@settings(deadline=None)
@given(positive_coefficients, st.integers(2, 10), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_no_contributions_exceed_the_sensitivity(coef, n, separation, seed):
    rng = np.random.default_rng(seed)
    claimed = fixed_order_sensitivity(coef, n, separation, n)
    for start in range(min(separation, n)):
        contributions = np.zeros((n, 3))
        directions = rng.normal(size=(len(range(start, n, separation)), 3))
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        contributions[start::separation] = directions / np.maximum(lengths, 1e-9)
        assert np.linalg.norm(dense(coef, n) @ contributions) <= claimed * (1 + 1e-12)


@settings(deadline=None)
@given(positive_coefficients, st.integers(1, 12), st.sampled_from([PREFIX, MAL, Workload.ema(0.3)]))
def test_error_equals_the_dense_one(coef, n, workload):
    strategy = dense(coef, n)
    expected = np.linalg.norm(workload.matrix(n) @ np.linalg.inv(strategy), axis=1)
    np.testing.assert_allclose(toeplitz_error(coef, workload, n), expected, rtol=1e-8)
    np.testing.assert_allclose(dense_error(strategy, workload), expected, rtol=1e-8)
    np.testing.assert_allclose(dense_error(strategy, workload.matrix(n)), expected, rtol=1e-8)
    inverse = inverse_coefficients(coef, n)
    np.testing.assert_allclose(noising_error(inverse, workload), expected, rtol=1e-8)


@settings(deadline=None)
@given(positive_coefficients, st.integers(1, 12))
def test_column_norms_equal_the_dense_ones(coef, n):
    expected = np.linalg.norm(dense(coef, n), axis=0)
    np.testing.assert_allclose(column_norms(coef, n), expected, rtol=1e-12)


@pytest.mark.parametrize("workload", [PREFIX, MAL, Workload.ema(0.01)], ids=lambda w: w.name)
def test_long_inverse_agrees_with_the_recursion(workload):
    n = 10_000
    coef = sqrt_toeplitz(workload, n)
    newton = inverse_coefficients(coef, n)
    np.testing.assert_allclose(newton[:5000], inverse_coefficients(coef[:5000], 5000), atol=1e-13)
    # The inverse of the square root is the square root of the inverse.
    root = workload.sqrt_coefficients(n)
    np.testing.assert_allclose(workload.apply(newton) / root[0], root, atol=1e-11)


def test_a_million_steps():
    n = 1_000_000
    coef = sqrt_toeplitz(PREFIX, n)
    error = toeplitz_error(coef, PREFIX, n)[-1] * fixed_order_sensitivity(coef, n)
    assert error == pytest.approx(5.464, abs=5e-4)


def test_jax_privacy_agrees_on_sensitivity():
    coef = sqrt_toeplitz(PREFIX, 60)
    ours = fixed_order_sensitivity(coef, 60, 10, 6)
    assert jax_privacy.fixed_epoch_sensitivity(dense(coef, 60), 6) == pytest.approx(ours)
    for separation, participations in ((10, 3), (7, 9), (60, 1)):
        squared = fixed_order_sensitivity(coef, 60, separation, participations) ** 2
        theirs = jax_privacy.minsep_sensitivity_squared(coef, 60, separation, participations)
        assert theirs == pytest.approx(squared)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inverse_coefficients([0.0, 1.0], 3), "first coefficient must not be zero"),
        (lambda: inverse_coefficients([], 3), "coef must be a non-empty vector"),
        (lambda: inverse_coefficients([1.0, np.inf], 3), "coef must be finite"),
        (lambda: column_norms([1.0], 0), "n must be a whole number of at least 1, got 0"),
        (lambda: fixed_order_sensitivity([1.0, -0.5], 3), "coef must be non-negative"),
        (lambda: fixed_order_sensitivity([1.0], 3, None, 2), "separation must be given"),
        (lambda: fixed_order_sensitivity([1.0], 3, 0, 2), "separation must be a whole number"),
        (lambda: dense_error(np.ones((2, 2)), PREFIX), "must be a lower-triangular matrix"),
        (lambda: dense_error(np.diag([1.0, 0.0]), PREFIX), "non-zero diagonal"),
        (lambda: dense_error(np.eye(2), np.ones((2, 3))), "workload must have 2 columns"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()

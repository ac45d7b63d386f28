"""Banded Toeplitz strategies against the tables of papers/03 and other optimizers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from tests.support.toeplitz import fixed_order_sensitivity

from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._error import dense_error, rmse, toeplitz_error
from sordino.parts.mechanisms.factorize._toeplitz import (
    column_norms,
    optimize_banded,
    sqrt_toeplitz,
)

PREFIX = Workload.prefix()
MAL = Workload.recursive(0.9, np.exp(-2.5))


def figures(coef, workload, n, epochs=1):
    sensitivity = fixed_order_sensitivity(coef, n, -(-n // epochs), epochs)
    error = toeplitz_error(coef, workload, n)
    return rmse(error, sensitivity), error[-1] * sensitivity


@pytest.mark.parametrize(
    ("bands", "expected"),
    [(8, (8.444, 11.73)), (16, (6.343, 8.659)), (32, (4.956, 6.590)), (64, (4.066, 5.219))],
)
def test_prefix_table(bands, expected):
    coef = optimize_banded(PREFIX, 1024, bands)
    assert figures(coef, PREFIX, 1024) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(
    ("n", "bands", "epochs", "expected"),
    [
        (120, 30, 1, (17.35, 23.64)),
        (120, 60, 1, (15.61, 19.95)),
        (120, 120, 1, (15.24, 18.62)),
        (600, 30, 6, (88.24, 122.9)),
        (600, 60, 6, (69.02, 93.13)),
        (600, 100, 6, (60.52, 78.94)),
    ],
)
def test_recursive_momentum_table(n, bands, epochs, expected):
    coef = optimize_banded(MAL, n, bands, epochs)
    assert figures(coef, MAL, n, epochs) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("workload", "n", "bands", "epochs", "expected"),
    [
        (MAL, 120, 120, 1, (14.98, 17.28)),
        (MAL, 600, 100, 6, (60.25, 75.52)),
        (PREFIX, 600, 100, 6, (7.80, 9.10)),
    ],
)
def test_column_normalised_rows(workload, n, bands, epochs, expected):
    coef = optimize_banded(workload, n, bands, epochs)
    padded = np.concatenate([coef, np.zeros(n - bands)])
    strategy = toeplitz(padded, np.zeros(n)) / column_norms(coef, n)
    error = np.sqrt(epochs) * dense_error(strategy, workload)
    assert (rmse(error), error.max()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("workload", [PREFIX, MAL, Workload.ema(0.1)], ids=lambda w: w.name)
@pytest.mark.parametrize(("bands", "epochs"), [(2, 1), (3, 2), (6, 3)])
def test_no_direct_search_does_better(workload, bands, epochs):
    n = 12
    coef = optimize_banded(workload, n, bands, epochs)

    def loss(free):
        return np.log(figures(np.concatenate([[1.0], np.abs(free)]), workload, n, epochs)[0])

    searched = minimize(
        loss,
        np.full(bands - 1, 0.3),
        method="Nelder-Mead",
        options={"maxiter": 4000, "xatol": 1e-7},
    )
    assert loss(coef[1:]) <= searched.fun + 1e-7


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(1, 8),
    st.sampled_from([PREFIX, MAL, Workload.ema(0.2), Workload.identity()]),
)
def test_never_worse_than_where_it_starts(n, bands, epochs, workload):
    bands, epochs = min(bands, n), min(epochs, n)
    coef = optimize_banded(workload, n, bands, epochs)
    assert coef.shape == (bands,)
    assert coef[0] == 1.0
    assert np.all(coef >= 0.0)
    ours, _ = figures(coef, workload, n, epochs)
    start, _ = figures(sqrt_toeplitz(workload, bands), workload, n, epochs)
    assert ours <= start * (1 + 1e-9)


def test_explicit_separation():
    # Steps 0, 4, 8: nine steps in epochs of four, the last one short.
    coef = optimize_banded(PREFIX, 9, 4, epochs=3, separation=4)
    other = optimize_banded(PREFIX, 9, 4, epochs=3)
    error = rmse(toeplitz_error(coef, PREFIX, 9), fixed_order_sensitivity(coef, 9, 4, 3))
    assert error < rmse(toeplitz_error(other, PREFIX, 9), fixed_order_sensitivity(other, 9, 4, 3))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n": 8, "bands": 9}, "bands must be at most n = 8, got 9"),
        ({"n": 8, "bands": 0}, "bands must be a whole number of at least 1, got 0"),
        ({"n": 8, "bands": 2, "epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"n": 8, "bands": 2, "separation": 0}, "separation must be a whole number"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(kwargs, message):
    with pytest.raises(ValueError, match=message):
        optimize_banded(PREFIX, **kwargs)

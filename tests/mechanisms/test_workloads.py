"""Workloads against dense linear algebra and the closed forms of the papers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.parts.mechanisms._workloads import Workload

WORKLOADS = [
    Workload.identity(),
    Workload.prefix(),
    Workload.ema(0.1),
    Workload.ema(1.0),
    Workload.heavy_ball(0.9),
    Workload.heavy_ball(1.0),
    Workload.recursive(0.9, np.exp(-2.5)),
    Workload("three of a kind", 2.0, (0.5, 0.5, 0.5)),
    Workload("close", 1.0, (0.9, 0.9 + 1e-12)),
]
ids = [w.name for w in WORKLOADS]
ratio = st.floats(0.0, 1.0)
workload = st.builds(
    Workload,
    name=st.just("any"),
    scale=st.floats(1e-3, 1e3),
    ratios=st.lists(ratio, max_size=4).map(tuple),
)


def product_of_factors(w: Workload, n: int) -> np.ndarray:
    """Independent of the code under test: multiply dense matrices of single factors."""
    result = w.scale * np.eye(n)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    for r in w.ratios:
        result = result @ np.where(lag >= 0, float(r) ** np.maximum(lag, 0), 0.0)
    return result


@pytest.mark.parametrize("w", WORKLOADS, ids=ids)
def test_matrix_is_the_product_of_its_accumulators(w):
    expected = product_of_factors(w, 12)
    np.testing.assert_allclose(w.matrix(12), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(w.coefficients(12), expected[:, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("w", WORKLOADS, ids=ids)
def test_square_root_squares_to_the_workload(w):
    for n in (1, 2, 50, 1500):
        root = w.sqrt_coefficients(n)
        square = np.convolve(root, root)[:n]
        assert root.shape == (n,)
        assert np.all(root >= 0.0)
        np.testing.assert_allclose(square, w.coefficients(n), rtol=1e-9, atol=1e-13 * w.scale)


@settings(deadline=None)
@given(workload, st.integers(1, 30))
def test_any_workload_has_a_square_root(w, n):
    root = w.sqrt_coefficients(n)
    square = np.convolve(root, root)[:n]
    np.testing.assert_allclose(square, w.coefficients(n), rtol=1e-9, atol=1e-12 * w.scale)


@settings(deadline=None)
@given(workload, st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_apply_is_matrix_multiplication(w, n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 3))
    scale = np.abs(w.matrix(n)).sum()
    np.testing.assert_allclose(w.apply(x), w.matrix(n) @ x, rtol=0, atol=1e-13 * scale * 10)
    np.testing.assert_allclose(w.apply(x[:, 0]), w.apply(x)[:, 0])


def test_momentum_is_what_an_optimizer_does():
    noise = np.random.default_rng(0).normal(size=40)
    recursion = velocity = position = 0.0
    positions = []
    for value in noise:
        recursion = 0.3 * recursion + value
        velocity = 0.9 * velocity + recursion
        position += velocity
        positions.append(position)
    np.testing.assert_allclose(Workload.recursive(0.9, 0.3).apply(noise), positions, rtol=1e-12)


def test_ema_square_root_oracle():
    # papers/00, oracle 9.
    expected = [0.3162277660, 0.1423024947, 0.0960541839, 0.0720406379, 0.0567320024]
    np.testing.assert_allclose(Workload.ema(0.1).sqrt_coefficients(5), expected, atol=5e-11)


def test_a_million_steps():
    n = 1_000_000
    root = Workload.prefix().sqrt_coefficients(n)
    assert root[-1] == pytest.approx(1 / np.sqrt(np.pi * (n - 0.75)), rel=1e-9)
    # (1 - z)^(-1/2) (1 - m z)^(-1/2) tends to the first factor times its value at z = 1.
    heavy = Workload.heavy_ball(0.9).sqrt_coefficients(n)
    assert heavy[-1] == pytest.approx(root[-1] / np.sqrt(0.1), rel=1e-5)


@pytest.mark.parametrize("w", WORKLOADS, ids=ids)
def test_json_round_trip(w):
    assert Workload.from_json(json.loads(json.dumps(w.to_json()))) == w


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload("w", ratios=(1.5,)), "every ratio must be between 0 and 1, got 1.5"),
        (lambda: Workload("w", ratios=(np.nan,)), "every ratio must be between 0 and 1"),
        (lambda: Workload("w", scale=0.0), "scale must be a finite number greater than 0"),
        (lambda: Workload.ema(0.0), "alpha must be a finite number greater than 0 and at most 1"),
        (lambda: Workload.heavy_ball(-0.1), "momentum must be between 0 and 1"),
        (lambda: Workload.recursive(0.9, 2.0), "decay must be between 0 and 1"),
        (lambda: Workload.prefix().coefficients(0), "n must be a whole number of at least 1"),
        (lambda: Workload.from_json({"name": "w"}), "this is not a workload"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()

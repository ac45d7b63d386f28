"""No example ever contributes more than the clip, whatever it holds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.losses import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.privacy.values import ClippedSum
from sordino.streams.base import Stream
from sordino.streams.gradient import GradientStream
from sordino.streams.linear import LinearGradientStream

LOSSES = {"logistic": Logistic(), "softmax": Softmax(3), "least squares": LeastSquares()}
hostile = st.floats(width=32, allow_nan=True, allow_infinity=True)


def one_example(stream: Stream, loss: LinearLoss, params: np.ndarray, x: np.ndarray, y: float):
    label = np.int32(abs(int(y)) % 3) if isinstance(loss, Softmax) else np.float32(y)
    data, valid = stream.prepare((jnp.asarray(x)[None], jnp.asarray(label)[None]), jnp.ones(1))
    total = stream.contribution(jnp.asarray(params), data, valid, jnp.float32(0.7))
    return np.asarray(total.value, np.float64)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=150, deadline=None)
@given(x=hnp.arrays(np.float32, 4, elements=hostile), y=st.floats(-5, 5), w=st.floats(-1e6, 1e6))
def test_norm_of_one_contribution(name: str, x: np.ndarray, y: float, w: float) -> None:
    loss = LOSSES[name]
    shape = loss.parameter_shape(4)
    params = np.full(shape, w, np.float32)
    for stream in (LinearGradientStream(loss), GradientStream(loss)):
        value = one_example(stream, loss, params, x, y)
        assert np.isfinite(value).all()
        assert np.linalg.norm(value) <= 0.7


@pytest.mark.parametrize("name", LOSSES)
def test_closed_form_is_vmap(name: str) -> None:
    loss = LOSSES[name]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)).astype(np.float32) * rng.lognormal(size=(50, 1)).astype(np.float32)
    y = rng.integers(0, 3, 50).astype(np.int32 if name == "softmax" else np.float32)
    mask = (rng.random(50) < 0.8).astype(np.float32)
    params = rng.normal(size=loss.parameter_shape(4)).astype(np.float32)
    results = []
    for stream in (LinearGradientStream(loss), GradientStream(loss), GradientStream(loss, 8)):
        data, valid = stream.prepare((jnp.asarray(X), jnp.asarray(y)), jnp.asarray(mask))
        results.append(stream.contribution(params, data, valid, jnp.float32(0.9)).value)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-4, atol=1e-5)


def test_a_bad_row_contributes_nothing_and_poisons_nobody() -> None:
    X = np.ones((4, 3), np.float32)
    X[1, 0], X[2, 1] = np.nan, np.inf
    y = np.array([1, 0, 1, np.nan], np.float32)
    for stream in (LinearGradientStream(Logistic()), GradientStream(Logistic())):
        data, valid = stream.prepare((jnp.asarray(X), jnp.asarray(y)), jnp.ones(4))
        total = stream.contribution(jnp.zeros(3), data, valid, jnp.float32(10.0)).value
        np.testing.assert_allclose(total, jax.grad(Logistic())(jnp.zeros(3), X[0], y[0]), rtol=1e-5)


def test_a_clipped_sum_shows_nothing() -> None:
    assert "1234.5" not in repr(ClippedSum(np.array([1234.5])))
    assert "1234.5" not in f"{ClippedSum(1234.5)}"

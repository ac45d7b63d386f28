"""Rounding to the lattice: the exact norm of the whole numbers never exceeds the planned bound."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sordino.parts._losses import Logistic, Softmax
from sordino.parts._rounding import lattice_bounds, sum_of_squares, to_lattice
from sordino.parts.contributions._base import Batch
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.parts.contributions._linear import LinearEvaluator
from sordino.parts.contributions._rules import PLAIN

ROUND = jax.jit(to_lattice)


def whole(vector: Any, bound: float, exponent: int) -> np.ndarray:
    """The vector in lattice steps, with the engine's own bound."""
    limit = lattice_bounds(np.array([bound]))[0]
    found = ROUND(jax.tree.map(np.float32, vector), limit, np.float32(2.0**exponent))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(found)])


def within(numbers: np.ndarray, bound: float, exponent: int) -> bool:
    """In exact integers: |numbers|^2 <= (bound / step)^2."""
    square = sum(int(k) ** 2 for k in numbers.tolist())
    # bound / step, squared, as a quotient of integers
    top, bottom = (float(bound) * 2.0**-exponent).as_integer_ratio()
    return square * bottom**2 <= top**2


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float32, st.sampled_from([1, 7, 33]), elements=st.floats(width=32)),
    st.floats(1e-3, 1e3),
    st.integers(-30, -12),
)
def test_no_vector_is_longer_than_its_bound(
    vector: np.ndarray, bound: float, exponent: int
) -> None:
    found = whole(vector, bound, exponent)
    assert within(found, bound, exponent)
    if not np.isfinite(vector).all():
        assert not found.any()


@pytest.mark.parametrize("size", [31, 1000, 7850, 300_001])
def test_long_vectors_keep_the_bound_and_most_of_their_length(size: int) -> None:
    rng = np.random.default_rng(size)
    exponent = -22
    for vector in (
        np.full(size, 0.1),  # a running float32 sum of its squares goes wrong the most
        np.geomspace(1, 1e-7, size),
        np.r_[4096.0, np.full(size - 1, 0.7)],  # ... and loses all that comes after the first
        rng.normal(size=size) * rng.lognormal(0, 3, size),
    ):
        single = vector.astype(np.float32).astype(np.float64)
        found = whole({"a": single[:10], "b": single[10:]}, 1.0, exponent)
        assert within(found, 1.0, exponent)
        exact = single / max(1.0, float(np.linalg.norm(single)))
        np.testing.assert_allclose(
            found * 2.0**exponent, exact, atol=1.1 * 2.0**exponent, rtol=2e-5
        )
        assert (np.abs(found) <= np.abs(exact) / 2.0**exponent).all()  # towards zero


def test_nested_sums_are_accurate_where_a_running_sum_is_not() -> None:
    values = np.r_[4096.0, np.full(1 << 20, 0.7)].astype(np.float32)
    exact = float((values.astype(np.float64) ** 2).sum())
    running = np.cumsum(values**2, dtype=np.float32)[-1]
    assert abs(running - exact) / exact > 1e-3
    assert float(jax.jit(sum_of_squares)([values])) == pytest.approx(exact, rel=128 * 2.0**-24)


def test_short_vectors_are_not_scaled_and_bounds_are_rounded_down() -> None:
    np.testing.assert_array_equal(whole([3.99, -3.99, 0.0, 0.5], 100.0, 0), [3, -3, 0, 0])
    bounds = np.array([1.0, 0.1, 1 / 3, 1e6])
    found = lattice_bounds(bounds).astype(np.float64)
    assert (found <= bounds * (1 - 1e-5)).all()
    assert (found > bounds * (1 - 1.02e-5)).all()


def summing(stream: Any, data: Any, step: float) -> Any:
    """The stream's sum over the examples of a mask, as a compiled function of (params, mask)."""
    terms = {
        "clip": np.float32(0.5),
        "bound": lattice_bounds(np.array([0.5])),
        "step": np.float32(step),
    }

    @jax.jit
    def run(params: Any, mask: Any) -> Any:
        prepared, valid = stream.prepare(data, jnp.ones_like(mask))
        batch = Batch(prepared, mask * valid)
        return stream.total(params, (), batch, terms, jnp.int32(0)).clipped

    return lambda params, mask: np.asarray(run(params, mask))


@pytest.mark.parametrize("classes", [1, 3])
def test_linear_and_general_streams_make_the_same_whole_sums(classes: int) -> None:
    rng = np.random.default_rng(3)
    n, d = 40, 9
    X = (rng.normal(size=(n, d)) * rng.lognormal(0, 2, (n, 1))).astype(np.float32)
    X[3] = 0
    X[5, 2] = np.nan
    mask = (rng.random(n) < 0.8).astype(np.float32)
    if classes == 1:
        loss: Any = Logistic()
        y: np.ndarray = rng.integers(0, 2, n).astype(np.float32)
        params = np.zeros(d, np.float32)
    else:
        loss, y = Softmax(classes), rng.integers(0, classes, n).astype(np.int32)
        params = np.zeros((classes, d), np.float32)

    def one(p: Any, x: Any, t: Any) -> Any:
        return loss.value(loss.logits(p, x[None]), t[None])[0]

    step = 2.0**-20
    closed = LinearEvaluator(loss, PLAIN, lattice=True)
    general = summing(VmapEvaluator(one, PLAIN, lattice=True), (X, y), step)
    linear = summing(closed, (X, y), step)
    found, expected = linear(params, mask), general(params, mask)
    assert found.dtype == expected.dtype == np.int32
    # Gradients differ in their last float32 digits, so entries of each example by a step at most.
    assert np.abs(found - expected).max() <= n
    plain = summing(LinearEvaluator(loss, PLAIN), (X, y), step)(params, mask)
    assert np.abs(found * step - plain).max() <= n * (step + 1e-5)
    micro = summing(VmapEvaluator(one, PLAIN, 7, lattice=True), (X, y), step)(params, mask)
    assert np.abs(micro - expected).max() <= n
    # One example: the bound in exact integers, for every row.
    for stream in (general, linear):
        for i in range(n):
            alone = (np.arange(n) == i).astype(np.float32)
            single = stream(params, alone).ravel()
            assert within(single, 0.5, -20)
            assert single.any() == (i not in (3, 5))

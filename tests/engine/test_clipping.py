"""No example ever contributes more than the plan counts, whatever it holds and whatever the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sordino.parts._losses import LeastSquares, LinearLoss, Logistic, Softmax
from sordino.parts.contributions._base import Batch, Evaluator
from sordino.parts.contributions._contributions import (
    Anchored,
    Contribution,
    Gradient,
    GradientPair,
    Lagged,
    Recursive,
    TwoClip,
)
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.parts.contributions._linear import LinearEvaluator
from sordino.parts.contributions._weighted import (
    ClipSequence,
    VaryingRecursive,
    WeightedGradient,
    WeightedRecursive,
    contribution_from_json,
)
from sordino.privacy._values import ClippedSum

LOSSES = {"logistic": Logistic(), "softmax": Softmax(3), "least squares": LeastSquares()}
CONTRIBUTIONS = (
    Gradient(0.7),
    WeightedGradient(0.7),
    Recursive(0.7, 0.4),
    WeightedRecursive(0.7),
    WeightedGradient(0.7, 2.0),
    WeightedRecursive(0.7, 0.5),
    VaryingRecursive(0.7, (0.0, 0.4, 0.1, 0.9, 0.0, 0.2, 0.3)),
    ClipSequence(0.7, (0.1, 0.7, 0.01, 0.3, 0.7, 0.2, 0.5)),
    TwoClip(0.7, 0.05, 0.2),
    GradientPair(0.7),
    Lagged(0.7, 0.05, 0.2, 3),
    Anchored(0.7, 0.05, 0.2, 3, 0.1),
)
hostile = st.floats(width=32, allow_nan=True, allow_infinity=True)


def streams(loss: LinearLoss, made: Contribution) -> tuple[Evaluator, ...]:
    rule = made.rule()
    return (
        LinearEvaluator(loss, rule),
        VmapEvaluator(loss, rule),
        VmapEvaluator(loss, rule, 8),
    )


def contribution(
    stream: Evaluator, made: Contribution, walk: list[Any], data: Any, mask: Any, step: int
) -> list[np.ndarray]:
    """The channels of step `step` on a walk of parameters."""
    prepared, valid = stream.prepare(data, mask)
    memory = stream.init(walk[0])
    for t in range(step):
        memory = stream.remember(memory, walk[t], jnp.int32(t))
    terms = {name: jnp.float32(v[step]) for name, v in made.terms(step + 1).items()}
    batch = Batch(prepared, valid)
    total = stream.total(walk[step], memory, batch, terms, jnp.int32(step)).clipped
    return [np.asarray(part, np.float64) for part in (total if made.channels > 1 else (total,))]


def cases() -> Iterator[Any]:
    """Every contribution with one loss, and all losses with one contribution; the rest takes long."""
    for made in CONTRIBUTIONS:
        for name in LOSSES:
            short = name == "softmax" or made is CONTRIBUTIONS[0]
            marks = () if short else (pytest.mark.slow,)
            yield pytest.param(name, made, id=f"{name}-{made.kind}", marks=marks)


@pytest.mark.parametrize(("name", "made"), list(cases()))
@settings(max_examples=10, deadline=None)
@given(
    x=hnp.arrays(np.float32, 4, elements=hostile),
    y=st.floats(-5, 5),
    walk=hnp.arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32)),
    step=st.sampled_from([0, 1, 4]),
)
def test_norm_of_one_contribution(
    name: str, made: Contribution, x: np.ndarray, y: float, walk: np.ndarray, step: int
) -> None:
    loss = LOSSES[name]
    label = np.int32(abs(int(y)) % 3) if isinstance(loss, Softmax) else np.float32(y)
    data = (jnp.asarray(x)[None], jnp.asarray(label)[None])
    points = [jnp.full(loss.parameter_shape(4), w) for w in walk]
    bounds = made.bounds(step + 1)[:, step]
    for stream in streams(loss, made)[:2]:
        found = contribution(stream, made, points, data, jnp.ones(1), step)
        for value, bound in zip(found, bounds, strict=True):
            assert np.isfinite(value).all()
            assert np.linalg.norm(value) <= bound


@pytest.mark.parametrize(("name", "made"), list(cases()))
def test_closed_form_is_vmap(name: str, made: Contribution) -> None:
    loss = LOSSES[name]
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 4)).astype(np.float32) * rng.lognormal(size=(50, 1)).astype(np.float32)
    y = rng.integers(0, 3, 50).astype(np.int32 if name == "softmax" else np.float32)
    mask = (rng.random(50) < 0.8).astype(np.float32)
    walk = [jnp.asarray(rng.normal(size=loss.parameter_shape(4)), jnp.float32) for _ in range(5)]
    for step in (0, 4):
        results = [
            contribution(stream, made, walk, (jnp.asarray(X), jnp.asarray(y)), mask, step)
            for stream in streams(loss, made)
        ]
        for closed, by_vmap, microbatched in zip(*results, strict=True):
            np.testing.assert_allclose(closed, by_vmap, rtol=1e-4, atol=2e-5)
            np.testing.assert_allclose(by_vmap, microbatched, rtol=1e-4, atol=2e-5)


def test_two_clips_on_given_gradients() -> None:
    """papers/01 oracle 2, where S = 0.109."""
    made = TwoClip(1.0, 0.01, 0.1)
    now, before = np.array([[3, 4], [0.3, 0.4]]), np.array([[3, 3], [0.3, 0.39]])
    terms = {name: values[1] for name, values in made.terms(2).items()}

    def clip(v: np.ndarray, c: float) -> np.ndarray:
        return v * np.minimum(1, c / np.linalg.norm(v, axis=1, keepdims=True))

    (w,) = made.rule().combine((now, before), clip, terms)
    np.testing.assert_allclose(w, [[0.06, 0.089], [0.03, 0.049]], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), [0.107336, 0.057454], atol=1e-6)
    v = made.decay * np.array([0.3, -0.2]) + np.asarray(w).sum(0) / 2
    np.testing.assert_allclose(v, [0.315, -0.111], atol=1e-12)


@pytest.mark.parametrize(
    ("C1", "C2", "gamma", "S"),
    [(1, 0.01, 0.01, 0.0199), (1.5, 0.99, 0.99, 1.4949), (2, 0.7, 0.7, 1.61), (2, 0.5, 1, 2)],
)
def test_bound_of_two_clips(C1: float, C2: float, gamma: float, S: float) -> None:
    """papers/01 oracle 1; the first step is a plain gradient."""
    bounds = TwoClip(C1, C2, gamma).bounds(3)
    np.testing.assert_allclose(bounds, [[C1, S, S]])
    gain = TwoClip(C1, C2, gamma).low_frequency_gain()
    assert gain == pytest.approx(1 + (1 - gamma) * C2 / (gamma * C1))


def test_separate_clips_would_not_do() -> None:
    """papers/01 2.1 and papers/03 E15: two clipped gradients differ by up to (2 - gamma) C1."""
    made = TwoClip(1.0, 0.01, 0.1)
    now, before = np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0]])
    separate = np.linalg.norm(now - 0.9 * before)
    assert separate == pytest.approx(1.9)
    assert separate / made.bounds(2)[0, 1] > 17


@pytest.mark.parametrize("made", CONTRIBUTIONS, ids=lambda made: made.kind)
def test_contributions_read_back(made: Contribution) -> None:
    assert contribution_from_json(made.to_json()) == made
    assert len(made.describe()) > 20
    assert made.bounds(7).shape == (made.channels, 7)
    assert all(values.shape == (7,) for values in made.terms(7).values())


def test_a_bad_row_contributes_nothing_and_poisons_nobody() -> None:
    X = np.ones((4, 3), np.float32)
    X[1, 0], X[2, 1] = np.nan, np.inf
    y = np.array([1, 0, 1, np.nan], np.float32)
    made = Gradient(10.0)
    for stream in streams(Logistic(), made)[:2]:
        data = (jnp.asarray(X), jnp.asarray(y))
        (total,) = contribution(stream, made, [jnp.zeros(3)], data, jnp.ones(4), 0)
        np.testing.assert_allclose(total, jax.grad(Logistic())(jnp.zeros(3), X[0], y[0]), rtol=1e-5)


def test_a_clipped_sum_shows_nothing() -> None:
    assert "1234.5" not in repr(ClippedSum(np.array([1234.5])))
    assert "1234.5" not in f"{ClippedSum(1234.5)}"

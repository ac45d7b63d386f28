"""Small runs whose every number is known: the oracles of the paper pages, through the real engine."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino.parts._losses import Logistic
from sordino.parts.mechanisms._toeplitz import Independent
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.updates._descent import named_transform

from .helpers import NO_NOISE, binary, quiet_plan

WIDE = 1e6


def trajectory(plan: Any, loss: Any, params: Any, data: Any, **options: Any) -> np.ndarray:
    """What the run would return after each step (at most 20 of them)."""
    seen: list[np.ndarray] = []
    sordino.train(
        plan,
        loss,
        params,
        data,
        callbacks=[lambda snapshot: seen.append(np.asarray(snapshot.params, np.float64))],
        **options,
    )
    assert len(seen) == plan.population.steps
    return np.stack(seen)


def squared_distance(params: Any, z: Any) -> Any:
    return 0.5 * jnp.sum((params - z) ** 2)


def test_mu2_by_hand() -> None:
    """papers/02 oracle 1: f = (x - z)^2 / 2 on [-1, 1], eta = .1, z = (1, .5, -.5)."""
    z = np.array([1, 0.5, -0.5], np.float32)
    settings = {"examples": 3, "batch_size": 1, "steps": 3, "order_seed": None}
    expected = [[0.0666667], [0.1516667], [0.2074667]]
    private = sordino.plan(
        "dp-mu2", clip=WIDE, noise_multiplier=NO_NOISE, radius=1.0, learning_rate=0.1, **settings
    )
    plain = sordino.plan("mu2", radius=1.0, learning_rate=0.1, **settings)
    for plan in (private, plain):
        found = trajectory(plan, squared_distance, np.zeros(1, np.float32), z)
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("kappa", "first"),
    [
        (1.0, [0.1, 0.19, 0.3115, 0.45163, 0.596944, 0.7350142857]),
        (0.5, [0.1, 0.16, 0.2365, 0.32512, 0.421239, 0.5202797143]),
    ],
)
def test_accelerated_coupling_by_hand(kappa: float, first: list[float]) -> None:
    """papers/03 oracle 1: H = diag(1, 10), g = (1, 1), beta = 10; and telescoping: the recursive
    stream on one batch is the plain accelerated method."""

    def loss(params: Any, h: Any) -> Any:
        return 0.5 * jnp.sum(h * params**2) - jnp.sum(params)

    data = np.array([[1.0, 10.0]], np.float32)
    settings = {"examples": 1, "batch_size": 1, "steps": 6, "learning_rate": 0.1, "kappa": kappa}
    recursive = sordino.plan("dp-srgd", clip=WIDE, noise_multiplier=NO_NOISE, **settings)
    plain = sordino.plan("nesterov", **settings)
    for plan in (recursive, plain):
        found = trajectory(plan, loss, np.zeros(2, np.float32), data)
        np.testing.assert_allclose(found[:, 0], first, atol=2e-6)
        np.testing.assert_allclose(found[:, 1], 0.1, atol=2e-6)


def test_recursive_gradients_by_hand() -> None:
    """papers/03 oracle 2: means 1, 2, 3, c = .5, lr = .1: x = .1, .24, .441."""
    z = np.array([1, 2, 3], np.float32)
    plan = sordino.plan(
        "dp-srg-memf",
        examples=3,
        batch_size=1,
        steps=3,
        order_seed=None,
        clip=WIDE,
        noise_multiplier=NO_NOISE,
        decay=0.5,
        learning_rate=0.1,
        momentum=0.0,
    )
    found = trajectory(plan, squared_distance, np.zeros(1, np.float32), z)
    np.testing.assert_allclose(found[:, 0], [0.1, 0.24, 0.441], atol=1e-6)


def fit(recipe: str, **options: Any) -> np.ndarray:
    X, y = binary()
    settings = {"examples": 60, "batch_size": 12, "steps": 15, "noise_multiplier": 0.8, "clip": 0.4}
    plan = sordino.plan(recipe, **{**settings, **options})
    return np.asarray(
        sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), insecure_seed=7).params
    )


def test_limits_are_bit_identical() -> None:
    """papers/03 1.5 and papers/01 oracle 11: no recursion is dp-memf, no correlation is dp-sgd, and
    gamma = 1 is dp-sgd, with the very same noise."""
    for mechanism in ("blt", "tree"):
        np.testing.assert_array_equal(
            fit("dp-srg-memf", decay=0.0, mechanism=mechanism), fit("dp-memf", mechanism=mechanism)
        )
    for sampling in ("fixed", "poisson"):
        np.testing.assert_array_equal(
            fit("dp-srm", gamma=1.0, optimizer="sgd", momentum=0.9, sampling=sampling),
            fit("dp-sgd", sampling=sampling),
        )
    np.testing.assert_array_equal(
        fit("dp-memf", mechanism="independent"), fit("dp-sgd", sampling="fixed")
    )


def test_limits_are_approached() -> None:
    """The recursive programs themselves tend to those limits: there is no jump at the very end."""
    near = fit("dp-srg-memf", decay=1e-7, mechanism="blt")
    np.testing.assert_allclose(near, fit("dp-memf", mechanism="blt"), rtol=1e-5)
    near = fit("dp-srm", gamma=1.0 - 1e-7, optimizer="sgd", momentum=0.9, sampling="fixed")
    np.testing.assert_allclose(near, fit("dp-sgd", sampling="fixed"), rtol=1e-5)


def test_without_recursion_gradients_are_taken_once() -> None:
    settings = {"examples": 60, "batch_size": 12, "steps": 15, "noise_multiplier": 0.8}
    for recipe, still, off in (
        ("dp-srg-memf", {"decay": 0.1}, {"decay": 0.0}),
        ("dp-srm", {"gamma": 0.9}, {"gamma": 1.0}),
    ):
        plans = [sordino.plan(recipe, **settings, **options) for options in (still, off)]
        assert plans[0].gradient_evaluations == 2 * plans[1].gradient_evaluations


def test_srm_on_all_examples_tracks_the_gradient() -> None:
    """papers/01 oracle 11: batch n, no noise, nothing clipped: any gamma is gradient descent."""
    X, y = binary()
    start = np.zeros(5, np.float32)
    plain = quiet_plan("dp-gd", clip=WIDE, learning_rate=0.3)
    expected = sordino.train(plain, Logistic(), start, (X, y)).params
    for gamma in (1e-3, 0.5):
        plan = quiet_plan(
            "dp-srm",
            batch_size=60,
            sampling="fixed",
            clip=WIDE,
            difference_clip=WIDE,
            gamma=gamma,
            optimizer="sgd",
            learning_rate=0.3,
        )
        found = sordino.train(plan, Logistic(), start, (X, y)).params
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


def test_srm_noise_recursion() -> None:
    """papers/01 oracle 10: gamma .1, first noise 1, then .2: variance .2105473 after 50 steps."""
    weights = np.array([1.0] + [0.2] * 50)
    recursion = Workload("recursion", ratios=(0.9,))
    error = Independent(51).workload_error(recursion, weights)
    assert error[-1] ** 2 == pytest.approx(0.2105473, rel=1e-6)


@pytest.mark.parametrize("form", ["anchor-free", "anchored"])
@pytest.mark.parametrize("gamma", [0.05, 0.7, 1.0])
def test_lagged_differences_rebuild_the_momentum(form: str, gamma: float) -> None:
    """papers/00 oracle 3: fixed batches, differences unclipped, no noise: the momentum of dp-nsgd."""
    X, y = binary()
    start = np.zeros(5, np.float32)
    settings = {"batch_size": 12, "steps": 18, "clip": 0.4, "learning_rate": 0.1}
    plain = trajectory(quiet_plan("dp-nsgd", **settings), Logistic(), start, (X, y))
    rest = {"residual_clip": 9.0} if form == "anchored" else {}
    plan = quiet_plan("dp-nsgd-sr", gamma=gamma, form=form, difference_clip=9.0, **rest, **settings)
    found = trajectory(plan, Logistic(), start, (X, y))
    np.testing.assert_allclose(found, plain, rtol=2e-4, atol=2e-6)


def test_bias_corrected_momentum() -> None:
    """papers/04 oracle 6: beta = .9, g = 1, 2, 3."""
    transform = named_transform("bias-corrected", 0.9)
    state = transform.init(jnp.zeros(()))
    found = []
    for g in (1.0, 2.0, 3.0):
        m, state = transform.update(jnp.float32(g), state)
        found.append(float(m))
    np.testing.assert_allclose(found, [1, 1.5263157895, 2.0701107011], rtol=1e-6)


def test_adaptive_step_is_never_longer_than_its_length() -> None:
    X, y = binary()
    plan = quiet_plan("dp-srm", sampling="fixed", step_length=0.05, learning_rate=100.0)
    found = trajectory(plan, Logistic(), np.zeros(5, np.float32), (X, y))
    lengths = np.linalg.norm(np.diff(found, axis=0), axis=1)
    np.testing.assert_allclose(lengths, 0.05, rtol=1e-4)


def test_a_random_iterate_is_one_of_the_visited() -> None:
    X, y = binary()
    start = np.zeros(5, np.float32)
    settings = {"sampling": "fixed", "learning_rate": 0.3, "momentum": 0.0, "steps": 12}
    visited = trajectory(quiet_plan("dp-sgd", **settings), Logistic(), start, (X, y))
    visited = np.vstack([start, visited[:-1]])
    plan = quiet_plan("dp-sgd", output="random", **settings)
    picked = set()
    for seed in range(40):
        found = sordino.train(plan, Logistic(), start, (X, y), insecure_seed=seed).params
        distance = np.abs(visited - np.asarray(found)).max(axis=1)
        assert distance.min() < 1e-6
        picked.add(int(distance.argmin()))
    # 40 draws from 12: fewer than 8 different ones has probability below 1e-9.
    assert len(picked) >= 8


def test_a_first_batch_of_its_own_size() -> None:
    """papers/01 1.1: b0, divided by the constant b0; accounted at its own rate."""
    X, y = binary()
    plan = quiet_plan("dp-srm", first_batch=40, steps=5, batch_size=10)
    sizes = [(part.rate, part.steps) for part in plan.guarantee.sampled]
    assert sizes == [(40 / 60, 1), (10 / 60, 4)]
    assert plan.gradient_evaluations == 2 * (40 + 4 * 10)
    found = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), insecure_seed=0)
    assert np.isfinite(found.params).all()
    whole = quiet_plan("dp-srm", first_batch=60, steps=1, batch_size=10, optimizer="sgd", clip=9.0)
    step = sordino.train(whole, Logistic(), np.zeros(5, np.float32), (X, y)).params
    expected = -0.5 * ((0.5 - y) @ X) / 60
    np.testing.assert_allclose(step, expected, rtol=1e-5)

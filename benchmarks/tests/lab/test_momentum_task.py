"""Experiment F: models, watched runs, and the noise in momentum estimates."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.lab.experiment import TargetBudget
from benchmarks.lab.seeds import train_seeds
from benchmarks.lab.tasks.momentum import (
    MomentumSetting,
    RunRow,
    chosen_way,
    make_plan,
    noise_in_estimate,
)
from benchmarks.lab.tasks.momentum_models import LogisticModel, NetworkModel
from benchmarks.lab.tasks.watching import watch
from sordino.parts._losses import Logistic
from sordino.planning._decide import plan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (RNG.random(60) < 0.5).astype(np.int32)


def entry(
    recipe: str, printed: bool = False, curvature: float | None = None, **options: object
) -> RunRow:
    return RunRow(
        recipe=recipe,
        options=tuple(sorted(options.items())),
        ways=(1.0,),
        printed=printed,
        curvature=curvature,
        budget=TargetBudget(1.0, 1e-5),
        seeds=(1000, 2),
        data="synthetic",
        folder=None,
    )


@pytest.mark.parametrize(
    "model", [NetworkModel(hidden=3), pytest.param(LogisticModel(), marks=pytest.mark.slow)]
)
def test_gradients_are_those_of_the_loss(model):
    start = jax.tree.map(lambda leaf: leaf + np.float32(0.1), model.start(4))
    per_row = jax.vmap(jax.grad(model.loss), (None, 0, 0))(start, X, Y)
    rows = np.concatenate(
        [np.asarray(leaf).reshape(len(Y), -1) for leaf in jax.tree.leaves(per_row)], axis=1
    )
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)]).astype(np.float64)
    gradient, norms = model.gradient(flat, X.astype(np.float64), Y.astype(np.float64))
    assert gradient == pytest.approx(rows.mean(axis=0), abs=1e-5)
    assert norms == pytest.approx(np.linalg.norm(rows, axis=1), abs=1e-5)
    assert model.row_gradients(flat, X.astype(np.float64), Y) == pytest.approx(rows, abs=1e-5)
    values = jax.vmap(model.loss, (None, 0, 0))(start, jnp.asarray(X), jnp.asarray(Y))
    assert model.mean_loss(flat, X, Y) == pytest.approx(float(np.mean(values)), abs=1e-5)


def test_movement_of_clipped_gradients():
    model, rows = LogisticModel(), X.astype(np.float64)
    now, before = np.full(4, 0.3), np.zeros(4)
    moved = model.moved(now, before, rows, Y.astype(np.float64), 0.5)
    for i in range(5):
        clipped = []
        for point in (now, before):
            gradient = (1 / (1 + np.exp(-rows[i] @ point)) - Y[i]) * rows[i]
            clipped.append(gradient * min(1.0, 0.5 / np.linalg.norm(gradient)))
        assert moved[i] == pytest.approx(np.linalg.norm(clipped[0] - clipped[1]), rel=1e-9)
    assert np.all(model.moved(now, now, rows, Y, 0.5) == 0)


def test_clips_of_differences_follow_the_way():
    """C2 = L eta B; a smaller clip costs less noise in the estimate."""
    setting, chosen = MomentumSetting("logistic", 50, 4), entry("dp-nsgd-sr", curvature=0.5)
    short, long = (make_plan(chosen, setting, 1000, way) for way in (0.4, 1.0))
    # 40 steps of two gradients, 20 of them an epoch.
    assert short.contribution.difference_clip == pytest.approx(0.5 * 0.4 / 40 * 20)
    assert short.contribution.gamma == pytest.approx(0.1)
    assert noise_in_estimate(short) < noise_in_estimate(long)
    assert make_plan(chosen, setting, 1000, 100.0).contribution.difference_clip == 1.0
    assert short.guarantee.epsilon(1e-5) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dp-nsgd", "dp-nsgd-sr"])
def test_watched_runs_are_the_runs_and_show_the_estimate_of_each_step(recipe):
    built = plan(
        recipe, examples=60, batch_size=20, steps=5, epsilon=1.0, delta=1e-5, learning_rate=0.1,
        mechanism="tree",
    )  # fmt: skip
    start = np.zeros(4, np.float32)
    seen = watch(built, Logistic(), start, (X, Y), first=7, count=2, points=5)
    ended = train_seeds(built, Logistic(), start, (X, Y), 7, 2).params
    assert np.array_equal(seen.iterates[-1], ended)
    assert seen.iterates.shape == seen.estimates.shape == (5, 2, 4)
    # Steps of one length along the estimate.
    moved = seen.iterates[1:] - seen.iterates[:-1]
    along = seen.estimates[1:] / np.linalg.norm(seen.estimates[1:], axis=-1, keepdims=True)
    assert moved == pytest.approx(-0.1 * along, abs=1e-5)
    assert seen.steps == (1, 2, 3, 4, 5)
    if recipe == "dp-nsgd":
        assert seen.lagged is None
    else:
        # Three batches an epoch: after four steps the next one compares with the point after one.
        assert np.array_equal(seen.lagged[3:], seen.iterates[:2])


def test_noise_in_the_estimate_of_independent_noise():
    setting = MomentumSetting("logistic", 100, 3)
    built = make_plan(entry("dp-sgd", sampling="fixed"), setting, 1000, 2.0)
    steps = built.population.steps
    assert steps == 30
    assert built.update.learning_rate == pytest.approx(2.0 / 30)
    weights = 0.1 * 0.9 ** np.arange(steps)
    variance = np.cumsum(weights**2) * (built.noise_multiplier * built.clip / 100) ** 2
    assert noise_in_estimate(built) == pytest.approx(np.sqrt(variance.mean()), rel=1e-6)


def test_equal_gradient_evaluations_and_printed_noise():
    setting = MomentumSetting("logistic", 50, 4)
    one = make_plan(entry("dp-nsgd", mechanism="tree"), setting, 1000, 1.0)
    two = make_plan(entry("dp-nsgd-sr", mechanism="tree"), setting, 1000, 1.0)
    assert (one.population.steps, two.population.steps) == (80, 40)
    assert one.gradient_evaluations == pytest.approx(two.gradient_evaluations, rel=0.05)
    printed = make_plan(entry("dp-nsgd", printed=True, mechanism="tree"), setting, 1000, 1.0)
    assert printed.noise_multiplier > 5 * one.noise_multiplier
    assert printed.guarantee.epsilon(1e-5) < 1.0
    assert noise_in_estimate(printed) / noise_in_estimate(one) == pytest.approx(
        printed.noise_multiplier / one.noise_multiplier
    )


@pytest.mark.slow
def test_runs_are_tuned_where_the_setting_says():
    setting = MomentumSetting("logistic", 1000, 8, tuned=2)
    assert setting.tuning == MomentumSetting("logistic", 1000, 2)
    assert MomentumSetting("logistic", 1000, 8).tuning.epochs == 8
    # A way of almost nothing learns nothing.
    choice = replace(entry("dp-sgd", sampling="fixed"), ways=(1e-6, 20.0))
    assert chosen_way(choice, setting.tuning) == 20.0

"""The one door for noise, its layout, and runs with many seeds at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import LeastSquares, Logistic, SordinoError
from sordino._base.keys import RunKey
from sordino.engine import DrawnRows, GaussianNoise, Stepper, add_noise, train_many
from sordino.engine._noise import Layout, noise_rows
from sordino.engine._release import estimate_of
from sordino.engine._run import TrainingRun
from sordino.parts.contributions import Batch
from sordino.parts.mechanisms._gaussian import gaussian_key, standard_normal_rows
from sordino.parts.mechanisms._toeplitz import Independent
from sordino.privacy import ClippedSum, NoisedSum

PARAMS = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.float32)}


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_layout_cuts_rows_in_the_order_of_the_leaves(channels: int) -> None:
    layout = Layout.of(PARAMS, channels)
    assert layout.size == 10 * channels
    rows = np.arange(5 * layout.size).reshape(5, layout.size)
    cut = layout.cut(rows)
    parts = (cut,) if channels == 1 else cut
    assert len(parts) == channels
    flat = np.concatenate(
        [leaf.reshape(5, -1) for part in parts for leaf in jax.tree.leaves(part)], axis=1
    )
    np.testing.assert_array_equal(flat, rows)
    assert [leaf.shape for leaf in jax.tree.leaves(parts[0])] == [(5, 4), (5, 2, 3)]
    with pytest.raises(SordinoError, match="layout 1"):
        Layout(layout.structure, layout.shapes, version=2)


def test_a_source_gives_the_rows_of_the_key_whatever_the_chunks() -> None:
    layout = Layout.of(PARAMS)
    key = gaussian_key(RunKey.from_insecure_seed(3), "gradient")
    source = GaussianNoise(Independent(12), key, layout)
    whole, _ = noise_rows(source, (), np.int32(0), 12)
    wanted = standard_normal_rows(key, 0, 12, layout.size)
    flat = np.concatenate([leaf.reshape(12, -1) for leaf in jax.tree.leaves(whole)], axis=1)
    np.testing.assert_allclose(flat, wanted, rtol=1e-6)
    later, _ = noise_rows(source, (), np.int32(5), 4)
    for a, b in zip(jax.tree.leaves(later), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b[5:9], rtol=1e-6)


def test_each_channel_has_its_own_scale() -> None:
    rows = ({"w": np.full(3, 2.0, np.float32)}, {"w": np.full(3, 5.0, np.float32)})
    total = ClippedSum(({"w": np.ones(3, np.float32)}, {"w": np.zeros(3, np.float32)}))
    noised = add_noise(total, rows, np.array([10.0, 0.5], np.float32)).noised
    np.testing.assert_array_equal(noised[0]["w"], 21.0)
    np.testing.assert_array_equal(noised[1]["w"], 2.5)


def test_what_rounding_left_out_meets_the_noise() -> None:
    """2^24 + 1 is no float32: the 1 is carried beside it and comes back with the noise."""
    total = ClippedSum(jnp.float32([2.0**24]), jnp.float32([1.0]))
    noised = add_noise(total, jnp.float32([1.0]), jnp.float32([1.0])).noised
    assert float(noised[0]) == 2.0**24 + 2


def test_whole_numbers_meet_as_whole_numbers() -> None:
    total = ClippedSum(jnp.int32([2**31 - 1, 7]))
    noised = add_noise(total, jnp.int32([1, -9]), jnp.float32([0.25]))
    assert noised.noised.dtype == jnp.int32
    np.testing.assert_array_equal(noised.noised, [-(2**31), -2])  # wraps, and is not scaled
    mean = estimate_of(NoisedSum(jnp.int32([6])), np.float32(4), step=np.float32(0.5)).value
    np.testing.assert_array_equal(mean, [0.75])


class Foreign:
    """An array of another library: operators only."""

    def __init__(self, value: float, dtype: str = "torch.float32") -> None:
        self.value, self.dtype = value, dtype

    def __add__(self, other: Foreign) -> Foreign:
        return Foreign(self.value + other.value, self.dtype)

    def __mul__(self, other: float) -> Foreign:
        return Foreign(self.value * other, self.dtype)


def test_arrays_of_other_libraries_may_meet() -> None:
    noised = add_noise(ClippedSum([Foreign(1.0)]), [Foreign(3.0)], [2.0]).noised
    assert noised[0].value == 7.0


@pytest.mark.parametrize(
    ("sums", "noise"),
    [("float16", "float16"), ("float32", "float16"), ("int32", "float32"), ("float32", "int32"),
     ("bfloat16", "float32"), ("float64", "float64"), ("int64", "int64")],
)  # fmt: skip
def test_other_types_are_refused(sums: str, noise: str) -> None:
    with pytest.raises(SordinoError, match="added in float32, or as whole numbers"):
        add_noise(ClippedSum([Foreign(1.0, sums)]), [Foreign(1.0, noise)], [1.0])


def test_drawn_rows_are_given_as_they_are() -> None:
    layout = Layout.of(PARAMS)
    values = np.arange(3 * layout.size, dtype=np.int32).reshape(3, -1)
    rows, state = DrawnRows(values, layout).rows((), 0, 3)
    assert state == ()
    np.testing.assert_array_equal(rows["b"], values[:, :4])


# ---- the executor ------------------------------------------------------------------------------------

N, D = 60, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)
START = np.zeros(D, np.float32)


def test_a_run_taken_apart_is_the_same_run() -> None:
    """total, door, apply, one after the other as parties and devices would, bit for bit."""
    plan = sordino.plan("dp-sgd", examples=N, batch_size=20, steps=7, noise_multiplier=1.0,
                        sampling="fixed", momentum=0.0)  # fmt: skip
    run = TrainingRun(plan, Logistic(), START, (X, Y), key=RunKey.from_insecure_seed(5))
    stepper: Stepper = run.stepper
    state, noise_state = run.state, run.driver.noise.init()
    slices = run.driver.batches.slices
    assert slices is not None
    for t in range(7):
        now = run.driver.table.at(t)
        total = jax.jit(stepper.total)(state, slices.batch(run.driver.records, t), now)
        rows, noise_state = run.driver.noise.chunk(t, 1).rows(noise_state, t, 1)
        noised = add_noise(total, jax.tree.map(lambda leaf: leaf[0], rows), now.noise)
        state = jax.jit(stepper.apply)(state, noised, now)
    whole = sordino.train(plan, Logistic(), START, (X, Y), insecure_seed=5).params
    np.testing.assert_allclose(stepper.output(state), whole, rtol=2e-6, atol=1e-7)


def test_absent_rows_add_nothing() -> None:
    plan = sordino.plan("dp-gd", examples=N, steps=1, noise_multiplier=1.0)
    run = TrainingRun(plan, Logistic(), START, (X, Y), key=RunKey.from_insecure_seed(0))
    now = run.driver.table.at(0)
    present = np.zeros(run.driver.records.valid.shape, np.float32)
    total = run.stepper.total(run.state, Batch(run.driver.records.data, present), now)
    np.testing.assert_array_equal(total.clipped, 0)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dp-sgd", {}),
        ("dp-memf", {}),
        ("dp-memf", {"mechanism": "dense"}),
        ("rrpsgd", {}),
        ("dp-nsgd-sr", {"form": "anchored"}),
        ("dp-memf", {"noise": "discrete"}),
    ],
)
def test_many_runs_are_the_runs_of_their_seeds(recipe: str, options: dict[str, Any]) -> None:
    plan = sordino.plan(recipe, examples=N, batch_size=15, steps=8, noise_multiplier=1.0, **options)
    seeds = (4, 11, 5)
    together = train_many(plan, Logistic(), START, (X, Y), seeds)
    for seed, params in zip(seeds, together, strict=True):
        alone = sordino.train(plan, Logistic(), START, (X, Y), insecure_seed=seed).params
        np.testing.assert_allclose(params, alone, rtol=1e-5, atol=1e-6)


def test_many_runs_of_any_loss_and_a_figure_of_each() -> None:
    plan = sordino.plan("dp-gd", examples=N, steps=3, noise_multiplier=1.0)

    def loss(w: Any, x: Any, y: Any) -> Any:
        return (x @ w - y) ** 2

    lengths = train_many(
        plan, loss, START, (X, Y), [1, 2], evaluate=lambda w: float(np.linalg.norm(w))
    )
    wanted = [
        float(np.linalg.norm(sordino.train(plan, loss, START, (X, Y), insecure_seed=s).params))
        for s in (1, 2)
    ]
    assert lengths == wanted
    assert lengths[0] != lengths[1]


def test_many_runs_refuse_an_edited_plan() -> None:
    plan = sordino.plan("dp-gd", examples=N, steps=3, epsilon=1.0, delta=1e-5)
    with pytest.raises(SordinoError, match="this plan"):
        train_many(plan.with_training(noise_multiplier=1e-3), LeastSquares(), START, (X, Y), [1, 2])

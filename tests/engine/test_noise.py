"""The noise is what the plan says: its covariance, its tails, its dependence on nothing but the key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sordino
from sordino._base.keys import RunKey
from sordino.parts.mechanisms._base import mechanism_from_json
from sordino.parts.mechanisms._catalogue import fit_mechanism
from sordino.parts.mechanisms._gaussian import (
    KEY_WORDS,
    gaussian_key,
    standard_normal_rows,
    threefry_keys,
)
from sordino.parts.mechanisms._workloads import Workload
from sordino.planning._plans import Plan
from sordino.privacy._participation import FixedBatches

from .helpers import MECHANISMS

T = 20


def noising_matrix(plan: Plan) -> np.ndarray:
    """``C^-1`` from the privacy side: the inverse of a factor of the Gram matrix, by sizes only."""
    X = plan.mechanism.strategy().gram()
    return np.linalg.inv(X)  # covariance of C^-1 Z


def engine_noise(plan: Plan, d: int, seed: int) -> np.ndarray:
    """The noise of each step, recovered from a run of the real engine whose gradients are all zero."""
    iterates = []
    sordino.train(
        plan,
        lambda params, x: 0.0 * jnp.sum(params) * x,
        np.zeros(d, np.float32),
        np.ones(plan.population.examples, np.float32),
        insecure_seed=seed,
        callbacks=[lambda snapshot: iterates.append(np.asarray(snapshot.params, np.float64))],
    )
    steps = np.diff(np.stack([np.zeros(d), *iterates]), axis=0)
    return -steps * plan.divisor / plan.update.learning_rate


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("epochs", [1, 4])
def test_engine_noise_has_the_planned_covariance(mechanism: str, epochs: int) -> None:
    """All T(T+1)/2 covariances within 4.9 standard errors: false alarm below 2e-4 per case."""
    d = 6000
    plan = sordino.plan(
        "dp-memf",
        examples=40,
        batch_size=2 * epochs,
        steps=T,
        noise_multiplier=3.0,
        clip=0.7,
        mechanism=mechanism,
        momentum=0.0,
        learning_rate=1.0,
    )
    noise = engine_noise(plan, d, seed=epochs)
    assert noise.shape == (T, d)
    planned = plan.noise_std**2 * noising_matrix(plan)
    found = noise @ noise.T / d
    spread = np.sqrt((np.outer(np.diag(planned), np.diag(planned)) + planned**2) / d)
    assert np.abs((found - planned) / spread).max() < 4.9
    # The test can fail: a tenth more noise, or the wrong correlation, is seen.
    assert np.abs((1.21 * found - planned) / spread).max() > 4.9
    predicted = plan.noise_per_step() * plan.divisor
    np.testing.assert_allclose(np.sqrt(np.diag(planned)), predicted, rtol=1e-5)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("steps", "separation"), [(1, 1), (2, 2), (7, 3), (33, 33), (48, 12)])
def test_streamed_rows_are_the_inverse_of_the_stated_strategy(
    mechanism: str, steps: int, separation: int
) -> None:
    """Feeding Z = I materialises C^-1; its Gram matrix must be the one the guarantee used."""
    rule = FixedBatches(steps, separation)
    made = fit_mechanism(mechanism, Workload.heavy_ball(0.9), rule, None)

    def draw(first: object, count: int) -> jax.Array:
        return jax.lax.dynamic_slice(jnp.eye(steps), (first, 0), (count, steps))

    whole, _ = made.rows(made.init(steps), draw, 0, steps)
    N = np.asarray(whole, np.float64)
    assert np.abs(np.triu(N, 1)).max(initial=0.0) == 0.0
    C = np.linalg.inv(N)
    X = made.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())
    # In two pieces, state carried over: the same rows to float32 rounding.
    cut = steps // 3
    if cut:
        first, state = made.rows(made.init(steps), draw, 0, cut)
        rest, _ = made.rows(state, draw, cut, steps - cut)
        np.testing.assert_allclose(np.concatenate([first, rest]), N, rtol=1e-5, atol=1e-6)
    read = mechanism_from_json(made.to_json())
    again, _ = read.rows(read.init(steps), draw, 0, steps)
    assert np.array_equal(np.asarray(again), np.asarray(whole))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_predicted_workload_error_is_the_materialised_one(mechanism: str) -> None:
    workload = Workload.heavy_ball(0.9)
    made = fit_mechanism(mechanism, workload, FixedBatches(24, 12), None)
    covariance = np.linalg.inv(made.strategy().gram())
    W = workload.matrix(24)
    expected = np.sqrt(np.diag(W @ covariance @ W.T))
    np.testing.assert_allclose(made.workload_error(workload), expected, rtol=1e-4)


def test_rows_depend_on_key_and_step_only() -> None:
    key = gaussian_key(RunKey.from_insecure_seed(1), "gradient")
    whole = np.asarray(standard_normal_rows(key, 0, 50, 7))
    for first, count in [(0, 1), (13, 5), (49, 1)]:
        part = np.asarray(standard_normal_rows(key, first, count, 7))
        assert np.array_equal(part, whole[first : first + count])
    other = gaussian_key(RunKey.from_insecure_seed(1), "another stream")
    assert not np.array_equal(whole, np.asarray(standard_normal_rows(other, 0, 50, 7)))
    assert len(np.unique(whole)) == whole.size


def test_draws_are_standard_normal() -> None:
    """Kolmogorov-Smirnov over 8 keys (false alarm 1e-4), moments, and independence of neighbours."""
    values = []
    for seed in range(8):
        key = gaussian_key(RunKey.from_insecure_seed(seed), "gradient")
        x = np.asarray(standard_normal_rows(key, 1000 * seed, 101, 997), np.float64)
        values.append(x.ravel())
        n = x.size
        # The two halves of a row share radii; they must be uncorrelated, and so must rows.
        assert abs(np.mean(x[:, :498] * x[:, 499:997])) < 5 / np.sqrt(n / 2)
        assert abs(np.mean(x[:, :498] ** 2 * x[:, 499:997] ** 2) - 1) < 5 * np.sqrt(8 / (n / 2))
        assert abs(np.mean(x[1:] * x[:-1])) < 5 / np.sqrt(n)
    everything = np.concatenate(values)
    assert stats.kstest(everything, "norm").pvalue > 1e-4
    n = everything.size
    assert abs(np.mean(everything)) < 4 / np.sqrt(n)
    assert abs(np.mean(everything**2) - 1) < 4 * np.sqrt(2 / n)
    assert abs(np.mean(everything**4) - 3) < 4 * np.sqrt(96 / n)


def test_tails_reach_nine_standard_deviations(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the random words all at their smallest, the radius is the largest that can be drawn."""
    from sordino.parts.mechanisms import _gaussian as gaussian

    monkeypatch.setattr(
        gaussian,
        "_random_words",
        lambda key, first, count, width: jnp.zeros((count, width), jnp.uint32),
    )
    row = np.asarray(gaussian.standard_normal_rows(None, 0, 1, 2))  # type: ignore[arg-type]
    assert np.hypot(*row[0]) > 9.4
    # jax.random.normal stops at 5.5: the test above is not vacuous.
    assert float(jnp.sqrt(2.0) * jax.scipy.special.erfinv(jnp.float32(1 - 2**-24))) < 5.6


def test_short_radii_do_not_collapse_to_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform numbers next to 1: a float32 would round them all to 1, whose radius is 0."""
    from sordino.parts.mechanisms import _gaussian as gaussian

    def words(key: object, first: int, count: int, width: int) -> jax.Array:
        return jnp.full((count, width), 2**32 - 1, jnp.uint32)

    monkeypatch.setattr(gaussian, "_random_words", words)
    row = np.asarray(gaussian.standard_normal_rows(None, 0, 1, 2))  # type: ignore[arg-type]
    np.testing.assert_allclose(np.hypot(*row[0]), 2.0**-32, rtol=1e-5)  # sqrt(2 * 2^-65)


def test_radii_are_exact_on_both_sides_of_a_half(monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.parts.mechanisms import _gaussian as gaussian

    for high in (1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 2**9, 2**32 - 1):

        def words(key: object, first: int, count: int, width: int, high: int = high) -> jax.Array:
            return jnp.array([[high, 12345, 0]], jnp.uint32)

        monkeypatch.setattr(gaussian, "_random_words", words)
        row = np.asarray(gaussian.standard_normal_rows(None, 0, 1, 2), np.float64)  # type: ignore[arg-type]
        t = (2**32 - 1 - high + (2**32 - 1 - 12345 + 0.5) / 2**32) / 2**32
        np.testing.assert_allclose(np.hypot(*row[0]), np.sqrt(-2 * np.log1p(-t)), rtol=2e-6)


def test_every_word_of_a_noise_key_counts() -> None:
    words = np.arange(1, 7, dtype=np.uint32)
    base = np.asarray(standard_normal_rows(threefry_keys(words), 0, 3, 400))
    for i in range(KEY_WORDS):
        flipped = words.copy()
        flipped[i] = ~flipped[i]
        other = np.asarray(standard_normal_rows(threefry_keys(flipped), 0, 3, 400))
        # Whitened counters may repeat a block of another column, never one in its place.
        assert (other == base).mean() < 0.01
    # Without whitening it is threefry as jax has it, on the counters (row, column).
    plain = standard_normal_rows(threefry_keys(np.array([1, 2, 0, 0, 0, 0], np.uint32)), 0, 3, 400)
    ordinary = jax.random.wrap_key_data(words[:2], impl="threefry2x32")
    np.testing.assert_array_equal(plain, standard_normal_rows(ordinary, 0, 3, 400))
    with pytest.raises(sordino.SordinoError, match="noise keys are for noise rows"):
        jax.random.normal(threefry_keys(words), (3,))


def test_keys_are_wide_and_separate() -> None:
    assert RunKey.fresh().secret != RunKey.fresh().secret
    a, b = RunKey.from_insecure_seed(5), RunKey.from_insecure_seed(2**32 + 5)
    assert not np.array_equal(
        jax.random.key_data(gaussian_key(a, "g")), jax.random.key_data(gaussian_key(b, "g"))
    )
    assert a.derive("noise/x") != a.derive("noise/y")
    assert "secret" in repr(a)
    assert a.secret.hex() not in repr(a)

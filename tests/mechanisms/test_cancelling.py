"""Cancelling and leaky noise: the figures of papers/02 sections 2.1 to 2.5, and the stream itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import Mechanism, mechanism_from_json
from sordino.parts.mechanisms._cancelling import Cancelling
from sordino.parts.mechanisms._catalogue import fit_mechanism
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._maps import AnytimeMap, Channels
from sordino.parts.mechanisms._toeplitz import Independent
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    MinSeparation,
    Participation,
    PatternList,
    SinglePass,
)
from sordino.privacy._sensitivity import sensitivity

SUMS = Workload.prefix()
ITERATES = Workload("double prefix", ratios=(1.0, 1.0))


def identity_draw(n: int) -> Any:
    return lambda first, count: jax.lax.dynamic_slice(jnp.eye(n), (first, 0), (count, n))


def squared_error(mechanism: Mechanism, workload: LinearMap, rule: Participation) -> float:
    """Total squared error of the workload at mu = 1."""
    shift = sensitivity(mechanism.strategy(), rule).value
    return float(shift**2 * np.sum(mechanism.workload_error(workload) ** 2))


class Averaged:
    """The averaged iterate of papers/02: x_{t+1} = x_t + 2/(t+2) (w_{t+1} - x_t). Only `apply`."""

    def apply(self, x: Any) -> np.ndarray:
        w = np.cumsum(np.cumsum(np.asarray(x, np.float64), axis=0), axis=0)
        averages, last = [], np.zeros_like(w[0])
        for t, row in enumerate(w, start=1):
            last = last + 2 / (t + 2) * (row - last)
            averages.append(last)
        return np.array(averages)


@pytest.mark.parametrize("leak", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 33])
def test_streamed_rows_are_the_inverse_of_the_stated_strategy(steps: int, leak: float) -> None:
    made = Cancelling(steps, leak)
    draw = identity_draw(steps)
    rows, state = made.rows(made.init(steps), draw, 0, steps)
    assert state == ()
    N = np.asarray(rows, np.float64)
    assert np.array_equal(N, made.noising_matrix())
    C = np.linalg.inv(N)
    X = made.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())
    read = mechanism_from_json(made.to_json())
    assert read == made
    again, _ = read.rows(read.init(steps), draw, 0, steps)
    assert np.array_equal(np.asarray(again), np.asarray(rows))


def test_rows_need_no_state_and_no_known_place() -> None:
    """Any block, from a traced first step, is the same rows bit for bit."""
    made, d = Cancelling(20, 0.9), 5
    z = np.random.default_rng(3).normal(size=(20, d)).astype(np.float32)

    def draw(first: Any, count: int) -> jax.Array:
        return jax.lax.dynamic_slice(jnp.asarray(z), (first, 0), (count, d))

    whole = np.asarray(made.rows((), draw, 0, 20)[0])
    expected = z - np.float32(0.9) * np.concatenate([np.zeros((1, d), np.float32), z[:-1]])
    np.testing.assert_allclose(whole, expected, atol=1e-6)
    block = jax.jit(lambda first: made.rows((), draw, first, 4)[0])
    for first in (0, 1, 7, 16):
        np.testing.assert_allclose(block(first), whole[first : first + 4], rtol=0, atol=3e-7)
    # What is left in the prefix sums of fully cancelling noise is the last draw.
    cancelled = np.asarray(Cancelling(20).rows((), draw, 0, 20)[0], np.float64)
    np.testing.assert_allclose(np.cumsum(cancelled, axis=0), z, atol=1e-5)


def test_leak_is_the_float32_number_in_use() -> None:
    made = Cancelling(4, 0.1)
    assert made.leak == float(np.float32(0.1)) != 0.1
    np.testing.assert_array_equal(made.strategy_coefficients(), made.leak ** np.arange(4.0))
    assert Cancelling(4, 1 - 1e-9).leak == 1


@pytest.mark.parametrize(
    ("workload", "optimum", "root", "fresh", "leaky", "gap"),
    [
        (SUMS, 0.050, 0.056, 0.505, None, None),
        (ITERATES, 0.721, 1.09, 17.17, 0.738, 2.2),
        (Averaged(), 0.587, 0.854, 10.3, 0.597, 3.0),
    ],
    ids=["q", "w", "x"],
)
def test_total_error_relative_to_cancelling_noise(
    workload: Any, optimum: float, root: float, fresh: float, leaky: float | None, gap: float | None
) -> None:
    """papers/02 2.4: n = 100, one participation, equal mu."""
    n = 100
    rule = SinglePass(n)
    base = squared_error(Cancelling(n), workload, rule)

    def relative(mechanism: Mechanism) -> float:
        return squared_error(mechanism, workload, rule) / base

    assert relative(Independent(n)) == pytest.approx(fresh, rel=2e-3)
    half = Dense.from_encoder(
        np.linalg.inv(_root(n)),
        "square root of the prefix sums, columns not normalised",
    )
    assert relative(half) == pytest.approx(root, rel=5e-3)
    assert relative(Dense.optimized(workload, rule)) == pytest.approx(optimum, abs=6e-4)
    found = Cancelling.leaky(workload, rule)
    if gap is not None and leaky is not None:
        assert relative(Cancelling(n, 1 - gap / n)) == pytest.approx(leaky, abs=6e-4)
        assert relative(found) <= relative(Cancelling(n, 1 - gap / n))
        assert (1 - found.leak) * n == pytest.approx(gap, rel=0.02)
    # Leaky noise leaves less than a quarter of the noise in the sums, too.
    if workload is ITERATES:
        kept = squared_error(found, SUMS, rule) / squared_error(Cancelling(n), SUMS, rule)
        assert kept == pytest.approx(0.233, abs=2e-3)


def _root(n: int) -> np.ndarray:
    """The inverse of the square root of the prefix sums."""
    from scipy.linalg import toeplitz

    coefficients = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1.0, n)]))
    return np.linalg.inv(toeplitz(coefficients, np.zeros(n)))


@pytest.mark.parametrize(
    ("epochs", "leak", "variance", "uniform"),
    [
        (1, 0.99630, 0.735, 1.00),
        (2, 0.99422, 0.709, 1.58),
        (5, 0.98872, 0.656, 3.32),
        (10, 0.98165, 0.614, 6.21),
        (30, 0.96150, 0.563, None),
    ],
)
def test_best_leak_over_several_epochs(
    epochs: int, leak: float, variance: float, uniform: float | None
) -> None:
    """papers/02 2.3: K = 600 messages, one sample in message j, j + K/E, ...; noise in w."""
    K = 600
    rule = FixedBatches(K, K // epochs)
    found = Cancelling.leaky(ITERATES, rule)
    assert found.leak == pytest.approx(leak, abs=1.5e-5)
    base = squared_error(Cancelling(K), ITERATES, rule)
    assert squared_error(found, ITERATES, rule) / base == pytest.approx(variance, abs=6e-4)
    if uniform is not None:
        cost = sensitivity(Cancelling(K).strategy(), rule).value
        assert cost / np.sqrt(K) == pytest.approx(uniform, abs=6e-3)
        fresh = sensitivity(Independent(K).strategy(), rule).value
        assert fresh == pytest.approx(np.sqrt(epochs))


def test_noise_that_one_client_needs() -> None:
    """papers/02, oracle 8, and 2.5: noise fitted to K0 = 600 messages when there are others."""
    delta, mu, K0 = 2 * 118.1232, 8.0, 600
    leak = 1 - 2.2 / K0
    uniform = sensitivity(Cancelling(K0).strategy(), SinglePass(K0)).value
    assert delta / mu * uniform == pytest.approx(723.35, abs=0.01)
    unbounded = sensitivity(Cancelling(20_000, leak).strategy(), SinglePass(20_000)).value
    assert unbounded == pytest.approx((1 - leak**2) ** -0.5, rel=1e-5)
    assert delta / mu * unbounded == pytest.approx(345.16, abs=0.02)
    for K, figure in ((300, 0.88), (600, 0.74), (1200, 0.82), (2400, 1.13), (150, 1.29)):
        noise = unbounded**2 * np.sum(Cancelling(K, leak).workload_error(ITERATES) ** 2)
        known = squared_error(Cancelling(K), ITERATES, SinglePass(K))
        assert noise / known == pytest.approx(figure, abs=6e-3)


def test_a_unit_in_every_step() -> None:
    """papers/02 2.2 and oracle 13: for whole clients cancellation hurts, and the best leak is 0."""
    K = 600
    every = FixedBatches(K, 1)
    one = sensitivity(Cancelling(K).strategy(), SinglePass(K)).value
    everything = sensitivity(Cancelling(K).strategy(), every).value
    assert everything / one == pytest.approx(np.sqrt((K + 1) * (2 * K + 1) / 6))
    assert everything / one == pytest.approx(346.8, abs=0.05)
    fresh = sensitivity(Independent(K).strategy(), every).value
    assert fresh == pytest.approx(24.495, abs=5e-4)
    base = squared_error(Independent(K), ITERATES, every)
    assert squared_error(Cancelling(K), ITERATES, every) / base == pytest.approx(2.0, abs=0.01)
    sums = squared_error(Cancelling(K), SUMS, every) / squared_error(Independent(K), SUMS, every)
    assert sums == pytest.approx(400, rel=2e-3)
    for workload in (SUMS, ITERATES):
        assert Cancelling.leaky(workload, every).leak == 0


@pytest.mark.parametrize(
    "rule",
    [
        SinglePass(24),
        FixedBatches(24, 7),
        FreshPermutations(24, 12),
        MinSeparation(24, 5, 3),
        PatternList(24, ((0, 3, 20), (5,), (1, 2))),
    ],
)
@pytest.mark.parametrize("workload", [SUMS, ITERATES, AnytimeMap(), Workload.ema(0.9)])
def test_no_other_leak_is_better(workload: LinearMap, rule: Participation) -> None:
    found = squared_error(Cancelling.leaky(workload, rule), workload, rule)
    for leak in [*np.linspace(0, 0.9, 31), *(1 - np.geomspace(1e-3, 0.1, 20)), 1.0]:
        other = squared_error(Cancelling(24, float(leak)), workload, rule)
        assert found <= other * (1 + 1e-7)


def test_a_map_counts_by_what_it_does() -> None:
    """Toeplitz or not, from `apply` alone or not: the same errors, the same leak."""

    class OnlyApply:
        def apply(self, x: Any) -> np.ndarray:
            return ITERATES.apply(x)

    rule = FixedBatches(700, 300)
    expected = Cancelling.leaky(ITERATES, rule)
    for same in (OnlyApply(), Channels((ITERATES,))):
        assert Cancelling.leaky(same, rule).leak == pytest.approx(expected.leak, abs=1e-6)  # type: ignore[arg-type]
    assert Cancelling.leaky(Averaged(), rule) == Cancelling.leaky(AnytimeMap(), rule)  # type: ignore[arg-type]
    made = Cancelling(50, 0.9)
    W = AnytimeMap().matrix(50)
    direct = np.linalg.norm(W @ made.noising_matrix(), axis=1)
    np.testing.assert_allclose(made.workload_error(AnytimeMap()), direct, rtol=1e-12)
    np.testing.assert_allclose(
        made.workload_error(ITERATES),
        np.linalg.norm(ITERATES.matrix(50) @ made.noising_matrix(), axis=1),
        rtol=1e-12,
    )


def test_long_runs() -> None:
    """Toeplitz workloads have no limit; other maps are judged by the nearest one of them."""
    assert Cancelling.leaky(ITERATES, FixedBatches(100_000, 1000)).leak > 0.98
    rule = FixedBatches(5000, 1000)
    assert Cancelling.leaky(AnytimeMap(), rule) == Cancelling.leaky(ITERATES, rule)
    with pytest.raises(SordinoError, match="at most 4,096 steps, got 5,000"):
        Cancelling.leaky(Averaged(), rule)  # type: ignore[arg-type]
    assert Cancelling(1_000_000).state_vectors() == 0


def test_by_name() -> None:
    rule = FixedBatches(60, 20)
    assert fit_mechanism("cancelling", ITERATES, rule) == Cancelling(60, 1.0)
    assert fit_mechanism("leaky", ITERATES, rule) == Cancelling.leaky(ITERATES, rule)
    assert "takes back" in Cancelling(60).describe()
    assert "0.5" in Cancelling(60, 0.5).describe()


@pytest.mark.parametrize("leak", [-0.1, 1.1, float("nan")])
def test_bad_leaks_are_refused(leak: float) -> None:
    with pytest.raises(SordinoError, match="leak must be between 0 and 1"):
        Cancelling(5, leak)

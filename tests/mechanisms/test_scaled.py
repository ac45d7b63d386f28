"""Scaled draws: their Gram matrix, and the noise schedules of papers/02 and papers/04."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import Mechanism, mechanism_from_json
from sordino.parts.mechanisms._cancelling import Cancelling
from sordino.parts.mechanisms._catalogue import fit_mechanism
from sordino.parts.mechanisms._combined import Parallel, Phases, ScaledDraws
from sordino.parts.mechanisms._toeplitz import Independent
from sordino.parts.mechanisms._tree import Tree, full_tree
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._participation import FixedBatches, SinglePass
from sordino.privacy._sensitivity import sensitivity

HEAVY_BALL = Workload.heavy_ball(0.9)
T = 24


def inner(name: str) -> Mechanism:
    if name == "phases":
        return Phases((Tree(10, 0.9), Cancelling(14, 0.8)), (1.5, 0.7))
    return fit_mechanism(name, HEAVY_BALL, FixedBatches(T, 12))


def growing(steps: int) -> np.ndarray:
    """``sigma(N)^2 ~ N``: the participation schedule of papers/02 1.3."""
    return np.sqrt(np.arange(1.0, steps + 1)).astype(np.float32)


@pytest.mark.parametrize(
    "name", ["independent", "cancelling", "leaky", "tree", "blt", "banded", "dense", "phases"]
)
def test_streamed_rows_are_the_inverse_of_the_stated_strategy(name: str) -> None:
    scales = np.exp(np.random.default_rng(0).normal(size=T)).astype(np.float32)
    made = ScaledDraws(inner(name), scales)

    def draw(first: object, count: int) -> jax.Array:
        return jax.lax.dynamic_slice(jnp.eye(T), (first, 0), (count, T))

    whole, _ = made.rows(made.init(T), draw, 0, T)
    N = np.asarray(whole, np.float64)
    assert np.abs(np.triu(N, 1)).max() == 0.0
    C = np.linalg.inv(N)
    X = made.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())
    # In two pieces, the second from a traced step on.
    cut = 10
    first, state = made.rows(made.init(T), draw, 0, cut)
    later = jax.jit(lambda m, state, at: m.rows(state, draw, at, T - cut)[0])
    rest = later(made, state, cut)
    np.testing.assert_allclose(np.concatenate([first, rest]), N, rtol=1e-5, atol=1e-6)
    read = mechanism_from_json(made.to_json())
    assert isinstance(read, ScaledDraws)
    assert np.array_equal(read.scales, scales)
    again, _ = read.rows(read.init(T), draw, 0, T)
    assert np.array_equal(np.asarray(again), np.asarray(whole))
    expected = np.linalg.norm(HEAVY_BALL.matrix(T) @ N, axis=1)
    np.testing.assert_allclose(made.workload_error(HEAVY_BALL), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["independent", "leaky", "tree", "blt", "banded", "dense"])
def test_equal_scales_change_nothing_but_the_size(name: str) -> None:
    plain = inner(name)
    made = ScaledDraws(plain, np.full(T, 2.0, np.float32))
    X = plain.strategy().gram()
    np.testing.assert_allclose(4 * made.strategy().gram(), X, rtol=0, atol=1e-6 * X.max())


def test_every_message_has_a_noise_of_its_own() -> None:
    """papers/02, oracle 4: sigma^2 = (1, 2, 3), full cancellation."""
    made = ScaledDraws(Cancelling(3), growing(3))
    X = made.strategy().gram()
    np.testing.assert_allclose(np.sqrt(np.diag(X)), [1.354006, 0.912871, 0.577350], atol=1e-6)
    # ... which is the inverse of the covariance of the messages.
    covariance = np.array([[1.0, -1.0, 0.0], [-1.0, 3.0, -2.0], [0.0, -2.0, 5.0]])
    np.testing.assert_allclose(X, np.linalg.inv(covariance), atol=1e-6)
    assert sensitivity(made.strategy(), SinglePass(3)).exact


def test_the_paper_schedule_at_600_messages() -> None:
    """papers/02 2.2, 2.3 and oracles 8 and 13: mu over the rho it was calibrated for."""
    K, rounds = 600, 1200
    made = ScaledDraws(Cancelling(K), growing(K))
    strategy = made.strategy()
    # sigma(N)^2 = Delta^2 (1 + ln T) N / rho^2.
    unit = 1 / np.sqrt(1 + np.log(rounds))
    one = sensitivity(strategy, SinglePass(K)).value
    assert one**2 == pytest.approx(6.974978, rel=1e-6)
    assert one * unit == pytest.approx(0.928528, rel=1e-6)
    figures = ((1, 0.93), (2, 1.06), (3, 1.23), (5, 1.65), (10, 2.81), (20, 5.25))
    for epochs, figure in figures:
        found = sensitivity(strategy, FixedBatches(K, K // epochs))
        assert found.exact
        assert found.value * unit == pytest.approx(figure, abs=6e-3)
    everything = sensitivity(strategy, FixedBatches(K, 1)).value
    assert everything * unit == pytest.approx(149.3, abs=0.06)


def test_the_uniform_schedule_is_the_best_for_cancelled_noise() -> None:
    """papers/02 2.5: the sum of variances at equal mu, K = 600, exact harmonic sum: 3.49 x."""
    K = 600
    made = ScaledDraws(Cancelling(K), growing(K))

    def cost(mechanism: Mechanism) -> float:
        shift = sensitivity(mechanism.strategy(), SinglePass(K)).value
        return float(shift**2 * np.sum(mechanism.workload_error(Workload.prefix()) ** 2))

    assert cost(made) / cost(Cancelling(K)) == pytest.approx(3.49, abs=5e-3)


def test_row_scaling_for_full_participation() -> None:
    """papers/04 2.3: y_r ~ sqrt(p_r) / l_r, and (sum sqrt(p) l)^2 at sensitivity 1."""
    n = 6
    rng = np.random.default_rng(1)
    plain = full_tree(n)
    C0 = np.linalg.inv(plain.noising_matrix())
    W = np.linalg.norm(rng.normal(size=n)) * HEAVY_BALL.matrix(n)
    p = ((W @ plain.noising_matrix()) ** 2).sum(axis=0)
    length = np.abs(C0).sum(axis=1)
    y = np.sqrt(p) / length / (np.sqrt(p) * length).sum()
    best = (np.sqrt(p) * length).sum() ** 2

    def cost(weights: np.ndarray) -> float:
        made = ScaledDraws(plain, (weights**-0.5).astype(np.float32))
        shift = sensitivity(made.strategy(), FixedBatches(n, 1)).value
        return float(shift**2 * np.sum((W @ made.noising_matrix()) ** 2))

    # C0 >= 0, so the bound on the sensitivity by row sums is attained.
    assert cost(y) == pytest.approx(best, rel=1e-5)
    for _ in range(30):
        assert cost(y * np.exp(0.3 * rng.normal(size=n))) >= best * (1 - 1e-5)


def test_bad_input_is_refused() -> None:
    plain = Independent(3)
    for scales in ([1.0, 2.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0], [1.0, np.nan, 1.0], [1e-42] * 3):
        with pytest.raises(SordinoError, match=r"scales (must be 3 positive numbers|of draws)"):
            ScaledDraws(plain, np.array(scales, np.float32))
    with pytest.raises(SordinoError, match="at most 4,096 steps"):
        ScaledDraws(Independent(5000), np.ones(5000, np.float32))
    with pytest.raises(SordinoError, match="channel by channel"):
        ScaledDraws(Parallel((plain, plain), (1.0, 1.0)), np.ones(3, np.float32))
    assert (
        "draws scaled by 1 to 2" in ScaledDraws(plain, np.array([1, 2, 2], np.float32)).describe()
    )

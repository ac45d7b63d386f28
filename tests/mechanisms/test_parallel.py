"""Parallel channels: blocks of columns of the same draws, each with its own strategy and scale."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import mechanism_from_json
from sordino.parts.mechanisms._combined import Parallel, Phases
from sordino.parts.mechanisms._maps import AnytimeMap, Channels, LaggedMomentumMap
from sordino.parts.mechanisms._toeplitz import BLT, Independent
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._participation import FixedBatches, MinSeparation, SinglePass
from sordino.privacy._sensitivity import sensitivity

T = 12


def anchored() -> Parallel:
    return Parallel((Phases((Tree(4, 0.9), Tree(8, 0.9)), (1.5, 0.5)), Tree(T, 0.9)), (1.0, 0.3))


def buffered() -> Parallel:
    theta, omega = np.array([0.9, 0.4], np.float32), np.array([0.2, 0.1], np.float32)
    return Parallel((Independent(T), BLT(theta, omega, None, T), Tree(T)), (1.0, 2.0, 3.0))


@pytest.mark.parametrize("mechanism", [anchored(), buffered()])
def test_each_channel_has_its_own_noise(mechanism: Parallel) -> None:
    """With the identity over all draws of all channels, the rows are block-diagonal C^-1."""
    k = mechanism.channels
    width = k * T

    def draw(first, count):
        # Channel p of step t is coordinate p T + t: row t holds one 1 in each block of columns.
        return jnp.tile(jax.lax.dynamic_slice(jnp.eye(T), (first, 0), (count, T)), (1, k))

    @jax.jit
    def step(state, t):
        return mechanism.rows(state, draw, t, 1)

    state, rows = mechanism.init(width), []
    for t in range(T):
        row, state = step(state, jnp.int32(t))
        rows.append(np.asarray(row[0], np.float64))
    found = np.stack(rows)
    whole = jax.jit(lambda state: mechanism.rows(state, draw, 0, T)[0])(mechanism.init(width))
    np.testing.assert_allclose(whole, found, rtol=1e-5, atol=1e-6)
    N = np.zeros((width, width))
    for p, (part, scale) in enumerate(zip(mechanism.parts, mechanism.scales, strict=True)):
        own = slice(p * T, (p + 1) * T)
        np.testing.assert_allclose(found[:, own], scale * part.noising_matrix(), atol=2e-6)
        N[own, own] = found[:, own]
    C = np.linalg.inv(N)
    X = mechanism.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())


def test_channels_share_no_draw() -> None:
    draws = np.arange(3 * 2 * 4.0).reshape(3, 8)
    two = Parallel((Independent(3), Independent(3)), (1.0, 10.0))
    rows, _ = two.rows(two.init(8), lambda a, n: jax.lax.dynamic_slice(draws, (a, 0), (n, 8)), 0, 3)
    np.testing.assert_allclose(rows, draws * np.repeat([1.0, 10.0], 4))


def test_shape() -> None:
    assert (anchored().channels, anchored().steps, anchored().boundaries) == (2, T, (4,))
    assert (buffered().channels, buffered().boundaries) == (3, ())
    assert anchored().state_vectors() == 3 + 4 + 4
    assert anchored().strategy().channels == 2
    two = Parallel((Phases((Tree(4), Tree(8)), (1, 1)), Phases((Tree(9), Tree(3)), (1, 1))), (1, 1))
    assert two.boundaries == (4, 9)


def test_error_is_that_of_the_sum() -> None:
    mechanism = anchored()
    maps = Channels((LaggedMomentumMap(4, 0.9, 0.2, 0.1), Workload.ema(0.1)))
    covariance = np.linalg.inv(mechanism.strategy().gram())
    rng = np.random.default_rng(0)
    for weights in (None, rng.random(T), rng.random((T, 2))):
        scale = np.ones((T, 2)) if weights is None else np.broadcast_to(weights.T, (2, T)).T
        W = maps.matrix(T) * scale.T.ravel()
        expected = np.sqrt(np.diag(W @ covariance @ W.T))
        np.testing.assert_allclose(mechanism.workload_error(maps, weights), expected, rtol=1e-5)
    # Any other map is that of every channel.
    np.testing.assert_allclose(
        mechanism.workload_error(AnytimeMap()),
        mechanism.workload_error(Channels((AnytimeMap(), AnytimeMap()))),
    )
    np.testing.assert_allclose(
        mechanism.step_error() ** 2,
        mechanism.parts[0].step_error() ** 2 + 0.3**2 * mechanism.parts[1].step_error() ** 2,
        rtol=1e-6,
    )


def test_sensitivity_adds_up_over_the_channels() -> None:
    mechanism = buffered()
    parts = [part.strategy() for part in mechanism.parts]
    rule = SinglePass(T)
    at_zero = sum(part.gram()[0, 0] / s**2 for part, s in zip(parts, mechanism.scales, strict=True))
    found = sensitivity(mechanism.strategy(), rule)
    assert found.value**2 == pytest.approx(at_zero, rel=1e-12)
    assert found.exact
    several = sensitivity(mechanism.strategy(), FixedBatches(T, 4))
    energies = [
        part.fixed_batch_energy(4) / s**2 for part, s in zip(parts, mechanism.scales, strict=True)
    ]
    assert several.value**2 == pytest.approx(sum(energies).max(), rel=1e-12)
    # Listed patterns, of which those of the fixed batches are some.
    listed = sensitivity(mechanism.strategy(), MinSeparation(T, 4, 3))
    assert listed.value >= several.value * (1 - 1e-12)


def test_json_round_trip() -> None:
    for mechanism in (anchored(), buffered()):
        read = mechanism_from_json(json.loads(json.dumps(mechanism.to_json())))
        assert isinstance(read, Parallel)
        assert read.scales == mechanism.scales
        assert np.array_equal(read.strategy().gram(), mechanism.strategy().gram())
        assert "beside" in read.describe()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Parallel((), ()), "every channel needs a mechanism and a scale"),
        (lambda: Parallel((Tree(3), Tree(4)), (1.0, 1.0)), "the same number of steps"),
        (lambda: Parallel((anchored(), Tree(T)), (1.0, 1.0)), "cannot have several channels"),
        (lambda: anchored().init(7), "7 numbers cannot be split into 2 equal channels"),
        (lambda: anchored().noising_matrix(), "one noising matrix each"),
        (lambda: anchored().workload_error(Channels((AnytimeMap(),))), "1 channels cannot judge"),
        (lambda: anchored().workload_error(AnytimeMap(), np.ones((2, T))), "weights must be"),
        (
            lambda: sensitivity(anchored().strategy(), SinglePass(T), np.ones(T)),
            "clips of several channels",
        ),
        (lambda: anchored().strategy().fixed_batch_energy(4, np.ones(T)), "clips of several"),
        (lambda: mechanism_from_json({"kind": "parallel"}), "channels in this plan"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, message: str) -> None:
    with pytest.raises(SordinoError, match=message):
        make()

"""Linear maps against the recursions they stand for, and the noise that mechanisms leave in them."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms import _base as base
from sordino.parts.mechanisms._base import Mechanism
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._independent import Independent
from sordino.parts.mechanisms._maps import (
    AnytimeMap,
    Channels,
    Composed,
    LaggedMomentumMap,
    NesterovMap,
    VaryingDecay,
)
from sordino.parts.mechanisms._toeplitz import BLT, Banded
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import LinearMap, Workload, linear_map_from_json
from sordino.privacy._participation import SinglePass
from sordino.privacy._sensitivity import sensitivity

MAPS: list[LinearMap] = [
    Workload.heavy_ball(0.9),
    AnytimeMap(),
    NesterovMap(),
    NesterovMap(kappa=1.0, beta=3.0),
    LaggedMomentumMap(5, 0.9, 0.2, 0.1),
    LaggedMomentumMap(1, 0.5, 0.0, 0.5),
    LaggedMomentumMap(40, 1.0, 1.0, 2.0),
    VaryingDecay(tuple(t / (t + 1) for t in range(23))),
    Composed((LaggedMomentumMap(4, 0.9, 0.3, 0.1), Workload.prefix())),
]
ids = [f"{i} {m.name}" for i, m in enumerate(MAPS)]


def recursion(m: LinearMap, x: np.ndarray) -> np.ndarray:
    """The algorithm as the notes on its paper have it, one step after the other."""
    out = []
    if isinstance(m, Composed):
        for part in m.maps:
            x = recursion(part, x)
        return x
    if isinstance(m, AnytimeMap):
        q = w = average = 0.0
        for t, s in enumerate(x, start=1):
            q = q + s
            w = w + q
            average = average + 2 / (t + 2) * (w - average)
            out.append(average)
    elif isinstance(m, NesterovMap):
        S = z = point = 0.0
        for t, delta in enumerate(x):
            S = S + delta
            z = z + m.kappa * S / m.beta
            y = point + S / (m.beta * (t + 1))
            tau = (t + 2) / sum(range(1, t + 3))  # eta_{t+1} / sum of all eta so far
            point = (1 - tau) * y + tau * z
            out.append(y)
    elif isinstance(m, LaggedMomentumMap):
        M: list = [0.0]
        Y = 0.0
        for t, value in enumerate(x, start=1):
            if t <= m.lag:
                M.append(m.beta * M[-1] + value)
            else:
                Y = m.beta * Y + value
                lagged = (1 - m.gamma) * M[t - m.lag]
                M.append(lagged + m.beta ** (t - m.lag) * M[m.lag] + Y)
        out = [m.alpha * value for value in M[1:]]
    elif isinstance(m, VaryingDecay):
        G = 0.0
        for t, value in enumerate(x):
            G = m.decays[t] * G + value
            out.append(G)
    else:
        assert isinstance(m, Workload)
        return m.matrix(len(x)) @ x
    return np.array(out)


@pytest.mark.parametrize("m", MAPS, ids=ids)
@pytest.mark.parametrize("n", [1, 2, 5, 23])
def test_apply_is_the_recursion(m: LinearMap, n: int) -> None:
    rng = np.random.default_rng(n)
    for columns in (3, 70):
        x = rng.normal(size=(n, columns))
        before = x.copy()
        np.testing.assert_allclose(m.apply(x), recursion(m, x), rtol=1e-12, atol=1e-12)
        assert np.array_equal(x, before)
    np.testing.assert_allclose(m.apply(x[:, 0]), m.apply(x)[:, 0], rtol=1e-12, atol=1e-12)
    W = m.matrix(n)
    assert W.shape == (n, n)
    assert not np.triu(W, 1).any()
    np.testing.assert_allclose(W @ x, m.apply(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [*MAPS, Channels((AnytimeMap(), Workload.prefix()))])
def test_json_round_trip(m: LinearMap) -> None:
    data = json.loads(json.dumps(m.to_json()))
    read = linear_map_from_json(data)
    assert read == m
    assert hash(read) == hash(m)
    assert read.name == m.name
    assert ("kind" in data) != isinstance(m, Workload)


def test_product_of_workloads() -> None:
    both = Workload.ema(0.1).then(Workload.heavy_ball(0.9))
    expected = Workload.heavy_ball(0.9).matrix(20) @ Workload.ema(0.1).matrix(20)
    np.testing.assert_allclose(both.matrix(20), expected, rtol=1e-12)
    assert both.name == "ema then heavy_ball"
    assert Workload.identity().then(Workload.prefix()) == Workload.prefix()
    assert Workload.identity().then(Workload.identity()) == Workload.identity()


def test_toeplitz_stand_ins() -> None:
    """Where the map is Toeplitz after all, its stand-in is the map itself."""
    assert NesterovMap().nearest_toeplitz().ratios == (1.0, 1.0)
    assert Workload.ema(0.2).nearest_toeplitz() == Workload.ema(0.2)
    lagged = LaggedMomentumMap(30, 0.9, 0.2, 0.1)
    np.testing.assert_allclose(lagged.nearest_toeplitz().matrix(30), lagged.matrix(30), rtol=1e-12)
    constant = Composed((VaryingDecay((0.7,) * 9), Workload.prefix()))
    np.testing.assert_allclose(
        constant.nearest_toeplitz().matrix(9), constant.matrix(9), rtol=1e-12
    )
    assert VaryingDecay((0.3,)).nearest_toeplitz().ratios == (0.0,)
    assert AnytimeMap.prefers_leaky
    assert AnytimeMap().nearest_toeplitz().ratios == (1.0, 1.0)
    assert not Workload.prefix().prefers_leaky
    assert lagged.decay == 0.9


def test_channels_add_up_their_maps() -> None:
    both = Channels((AnytimeMap(), Workload.prefix()))
    x, y = np.random.default_rng(0).normal(size=(2, 7, 3))
    expected = AnytimeMap().apply(x) + Workload.prefix().apply(y)
    np.testing.assert_allclose(both.apply(np.concatenate([x, y], axis=1)), expected)
    np.testing.assert_allclose(both.matrix(7) @ np.concatenate([x, y]), expected)
    assert both.parts == both.maps


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NesterovMap(kappa=0), "kappa must be a finite number greater than 0"),
        (lambda: LaggedMomentumMap(0, 0.9, 0.1, 0.1), "lag must be a whole number"),
        (lambda: LaggedMomentumMap(3, 1.1, 0.1, 0.1), "beta must be between 0 and 1"),
        (lambda: LaggedMomentumMap(3, 0.9, -0.1, 0.1), "gamma must be between 0 and 1"),
        (lambda: LaggedMomentumMap(3, 0.9, 0.1, 0.0), "alpha must be a finite number"),
        (lambda: VaryingDecay(()), "at least one decay"),
        (lambda: VaryingDecay((0.5, 1.5)), "every decay must be between 0 and 1"),
        (lambda: VaryingDecay((0.5, 0.5)).matrix(3), "3 steps need as many decays, got 2"),
        (lambda: Composed(()), "needs one or more linear maps"),
        (lambda: Composed((Channels((AnytimeMap(),)),)), "compose the maps of each channel"),
        (lambda: Channels((None,)), "needs one or more linear maps"),  # type: ignore[arg-type]
        (lambda: Channels((Channels((AnytimeMap(),)),)), "channels of their own"),
        (
            lambda: Channels((AnytimeMap(), AnytimeMap())).apply(np.ones((3, 3))),
            "(steps, 2 k) numbers",
        ),
        (lambda: Channels((AnytimeMap(),)).nearest_toeplitz(), "channel by channel"),
        (lambda: linear_map_from_json({"kind": "nested"}), "linear map 'nested' is not known"),
        (lambda: linear_map_from_json({"kind": "varying-decay"}), "not a varying-decay map"),
        (lambda: linear_map_from_json({"kind": "composed", "maps": 3}), "not a composed map"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, message) -> None:
    with pytest.raises(SordinoError, match=re.escape(message)):
        make()


# ---- what noise leaves in them -------------------------------------------------------------------


def rmse(mechanism: Mechanism, m: LinearMap) -> float:
    """Sensitivity times error, for one participation."""
    sens = sensitivity(mechanism.strategy(), SinglePass(mechanism.steps)).value
    return float(sens * np.sqrt(np.mean(mechanism.workload_error(m) ** 2)))


def plain_root(n: int) -> Dense:
    """The square root of prefix sums, columns not normalised."""
    C = np.zeros((n, n))
    for lag, value in enumerate(Workload.prefix().sqrt_coefficients(n)):
        C += value * np.eye(n, k=-lag)
    return Dense.from_encoder(C, "root")


def test_accelerated_figures() -> None:
    """papers/03 3.7: Algorithm 1, T = 128, y-iterates, beta = 1, for kappa = 1 and 1/2."""
    for mechanism, printed, proved in (
        (Independent(128), 238.0, 120.4),
        (Tree(128), 82.2, 41.5),
        (plain_root(128), 61.8, 31.2),
    ):
        assert rmse(mechanism, NesterovMap(kappa=1.0)) == pytest.approx(printed, rel=3e-3)
        assert rmse(mechanism, NesterovMap()) == pytest.approx(proved, rel=3e-3)


def test_anytime_figures() -> None:
    """papers/02 2.4: squared error of the averaged iterates relative to independent prefix noise."""
    n = 100
    prefix_noise = Dense.from_encoder(np.tril(np.ones((n, n))), "prefix sums")
    reference = rmse(prefix_noise, AnytimeMap()) ** 2
    assert rmse(Independent(n), AnytimeMap()) ** 2 / reference == pytest.approx(10.3, rel=5e-3)
    assert rmse(plain_root(n), AnytimeMap()) ** 2 / reference == pytest.approx(0.85, rel=1e-2)
    decay = 1 - 3 / n
    leaky = Dense.from_encoder(Workload("leaky", ratios=(decay,)).matrix(n), "leaky")
    assert rmse(leaky, AnytimeMap()) ** 2 / reference == pytest.approx(0.597, abs=1e-3)


def mechanisms(n: int) -> list[Mechanism]:
    normalised = BLT(
        np.array([0.9], np.float32),
        np.array([0.2], np.float32),
        np.linspace(2, 1, n).astype(np.float32),
        n,
    )
    return [
        Independent(n),
        Tree(n, 0.75),
        Banded(np.array([1.0, 0.5, 0.25], np.float32), None, n),
        BLT(np.array([0.97, 0.5], np.float32), np.array([0.1, 0.3], np.float32), None, n),
        normalised,
        Dense.square_root(Workload.heavy_ball(0.9), SinglePass(n)),
    ]


def test_noising_matrix_is_the_inverse_of_the_strategy() -> None:
    for mechanism in mechanisms(24):
        N = mechanism.noising_matrix()
        assert N.dtype == np.float64
        C = np.linalg.inv(N)
        X = mechanism.strategy().gram()
        np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())
        # What a subclass writes out is what its rows add up to.
        np.testing.assert_allclose(
            N, Mechanism.noising_matrix(mechanism), rtol=0, atol=1e-6 * np.abs(N).max()
        )


@pytest.mark.parametrize("m", [*MAPS, Workload.identity()])
def test_error_of_any_map_with_any_weights(m: LinearMap) -> None:
    n = 20
    for mechanism in mechanisms(n):
        covariance = np.linalg.inv(mechanism.strategy().gram())
        for weights in (None, np.linspace(0, 2, n)):
            W = m.matrix(n) if weights is None else m.matrix(n) * weights
            expected = np.sqrt(np.diag(W @ covariance @ W.T))
            found = mechanism.workload_error(m, weights)
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-9)
            one = mechanism.workload_error(Channels((m,)), weights)
            assert np.array_equal(one, found)


def test_long_runs_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 probes: 4.4 % in each step (5 standard errors here), the same answer every time."""
    tree, m = Tree(300, 0.9), LaggedMomentumMap(50, 0.9, 0.2, 0.1)
    exact = tree.workload_error(m)
    monkeypatch.setattr(base, "LONGEST_MATRIX", 100)
    found = tree.workload_error(m)
    assert not np.array_equal(found, exact)
    np.testing.assert_allclose(found, exact, rtol=0.22)
    rms, exact_rms = (np.sqrt(np.mean(e**2)) for e in (found, exact))
    assert rms == pytest.approx(exact_rms, rel=0.03)
    assert np.array_equal(tree.workload_error(m), found)
    # A Toeplitz workload without weights stays exact.
    assert tree.workload_error(Workload.ema(0.1))[0] == pytest.approx(0.1, rel=1e-12)
    with pytest.raises(SordinoError, match="written out for at most 100 steps, got 300"):
        tree.noising_matrix()


def test_bad_weights_and_maps_are_refused() -> None:
    with pytest.raises(SordinoError, match=r"shape \(9,\), got \(8,\)"):
        Tree(9).workload_error(AnytimeMap(), np.ones(8))
    with pytest.raises(SordinoError, match="finite"):
        Tree(2).workload_error(AnytimeMap(), [1.0, np.nan])
    with pytest.raises(SordinoError, match="2 channels cannot judge a mechanism of one"):
        Tree(9).workload_error(Channels((AnytimeMap(), AnytimeMap())))
    for mechanism in (Tree(5000), Independent(5000)):
        with pytest.raises(SordinoError, match="at most 4,096 steps, got 5,000"):
            mechanism.noising_matrix()


def test_plain_mechanisms_have_one_channel_and_no_breaks() -> None:
    for mechanism in mechanisms(8):
        assert mechanism.channels == 1
        assert mechanism.boundaries == ()

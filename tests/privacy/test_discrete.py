"""Discrete against rounded Gaussian noise, and the guarantee that follows: against exact sums."""

from __future__ import annotations

import itertools
import json
import math

import mpmath
import numpy as np
import pytest

from sordino import Guarantee, SordinoError
from sordino.privacy._gdp import LEAST_VARIANCE, delta_from_mu, epsilon_from_mu, rounding_distance
from sordino.privacy._guarantee import compose

STATED = {"adjacency": "zero-out", "unit": "example", "participation": "once"}


def laws(variance: float) -> list[tuple[int, mpmath.mpf, mpmath.mpf]]:
    """(k, P(k), Q(k)) of rounded and discrete noise, to 80 digits, for k = 0 .. 30 sigma."""
    S = mpmath.mpf(variance)
    root = mpmath.sqrt(2 * (S - mpmath.mpf(1) / 12))
    reach = int(30 * math.sqrt(variance)) + 3
    edges = [mpmath.erfc((k - mpmath.mpf(1) / 2) / root) for k in range(reach + 1)]
    weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * S)) for k in range(reach)]
    total = 2 * sum(weights) - 1
    return [(k, (edges[k] - edges[k + 1]) / 2, weights[k] / total) for k in range(reach)]


@pytest.mark.parametrize("variance", [4, 5.3, 9, 30, 100])
def test_the_stated_bounds_hold_for_every_integer(variance: float) -> None:
    with mpmath.workprec(300):
        c = mpmath.mpf(variance) - mpmath.mpf(1) / 12
        divergence = distance = mpmath.mpf(0)
        for k, P, Q in laws(variance):
            X, ratio = k * k / c, mpmath.log(P / Q)
            assert (
                -(X**2 / 2880 + mpmath.mpf(1) / 50) <= ratio * c**2 <= X / 288 + mpmath.mpf(1) / 80
            )
            sides = 1 if k == 0 else 2
            divergence -= sides * Q * ratio
            distance += sides * abs(P - Q) / 2
        assert 0 < divergence < 1 / (2048 * mpmath.mpf(variance) ** 4)
        # 24 / (2 * 2880^2) to leading order: the bound is safe by a factor, and of the right order.
        assert float(divergence * variance**4) == pytest.approx(24 / (2 * 2880**2), rel=0.01)
        assert distance < rounding_distance(math.floor(variance), 1)


def test_without_the_twelfth_the_two_would_be_far_apart() -> None:
    """What Sheppard's correction gains: order sigma^-4 instead of sigma^-2."""
    S = 100.0
    k = np.arange(-400, 401)
    Q = np.exp(-(k**2) / (2 * S))
    Q /= Q.sum()

    def tv(variance: float) -> float:
        edges = (k[:, None] + [-0.5, 0.5]) / math.sqrt(2 * variance)
        P = np.array([(math.erf(b) - math.erf(a)) / 2 for a, b in edges])
        return float(np.abs(P - Q).sum() / 2)

    assert tv(S) > 1000 * tv(S - 1 / 12)


def exact_delta(epsilon: float, shift: tuple[int, ...], variance: float) -> float:
    """delta(epsilon) between discrete noise around 0 and around `shift`, by adding up all of it."""
    reach = math.ceil(14 * math.sqrt(variance)) + max(map(abs, shift))
    x = np.arange(-reach, reach + 1)
    total = np.exp(-(x**2) / (2 * variance)).sum()
    grids = np.meshgrid(*[x] * len(shift), indexing="ij")
    here = sum(g.astype(float) ** 2 for g in grids)
    there = sum((g - s).astype(float) ** 2 for g, s in zip(grids, shift, strict=True))
    P, Q = (np.exp(-square / (2 * variance)) / total ** len(shift) for square in (here, there))
    return float(np.maximum(P - math.exp(epsilon) * Q, 0).sum())


@pytest.mark.parametrize("variance", [LEAST_VARIANCE, 9, 50])
@pytest.mark.parametrize("shift", [(1,), (2,), (7,), (1, 1), (3, -4), (0, 5)])
def test_the_guarantee_covers_discrete_noise_by_brute_force(
    shift: tuple[int, ...], variance: int
) -> None:
    mu = math.hypot(*shift) / math.sqrt(variance - 1 / 12)
    stated = Guarantee.gaussian(mu, distance=rounding_distance(variance, len(shift)), **STATED)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        exact = exact_delta(epsilon, shift, variance)
        assert exact <= stated.delta(epsilon)
        if exact > 0.01:  # and its main part is close: nothing is given away
            assert delta_from_mu(epsilon, mu) < 1.3 * exact


def test_several_adaptive_releases_are_covered() -> None:
    """Two draws, the second shift chosen by the first release: delta over all pairs."""
    variance, epsilon = 9, 0.7
    reach = 45
    x = np.arange(-reach, reach + 1)
    law = np.exp(-(x.astype(float) ** 2) / (2 * variance))
    law /= law.sum()
    total = 0.0
    moved = {s: np.exp(-((x - s).astype(float) ** 2) / (2 * variance)) for s in (-2, 2)}
    moved = {
        s: value / np.exp(-(x.astype(float) ** 2) / (2 * variance)).sum()
        for s, value in moved.items()
    }
    for i, first in enumerate(x):
        second = 2 if first > 0 else -2
        P, Q = law[i] * law, moved[2][i] * moved[second]
        total += float(np.maximum(P - math.exp(epsilon) * Q, 0).sum())
    mu = math.sqrt(8 / (variance - 1 / 12))
    stated = Guarantee.gaussian(mu, distance=rounding_distance(variance, 2), **STATED)
    assert 0.8 * stated.delta(epsilon) < total <= stated.delta(epsilon)


def test_distance_grows_with_draws_and_falls_with_sigma() -> None:
    assert rounding_distance(10**6, 2**40) == pytest.approx(2**20 / 64 / 1e12, rel=1e-9)
    assert rounding_distance(4, 2**60) == 1.0
    with pytest.raises(SordinoError):
        rounding_distance(3, 1)


@pytest.mark.parametrize(("mu", "distance"), [(0.3, 1e-9), (1.0, 1e-8), (3.0, 1e-16), (0.01, 1e-7)])
def test_epsilon_and_delta_invert_and_pay_for_the_distance(mu: float, distance: float) -> None:
    stated = Guarantee.gaussian(mu, distance=distance, **STATED)
    for delta in (1e-6, 1e-5, 1e-3):
        epsilon, ideal = stated.epsilon(delta), epsilon_from_mu(mu, delta)
        assert epsilon >= ideal
        if (1 + math.exp(ideal)) * distance > delta:  # nothing is left for the noise itself
            assert epsilon == math.inf
            continue
        assert stated.delta(epsilon) <= delta * (1 + 1e-9)
        if epsilon > 0:
            assert stated.delta(epsilon * (1 - 1e-6)) > delta
        expected = delta_from_mu(epsilon, mu) + (1 + math.exp(epsilon)) * distance
        assert stated.delta(epsilon) == pytest.approx(expected, rel=1e-9)
    assert stated.epsilon(distance) == math.inf
    assert stated.delta(1000.0) == 1.0


def test_distance_travels_with_the_guarantee() -> None:
    plain = Guarantee.gaussian(0.5, **STATED)
    stated = Guarantee.gaussian(0.5, delta_hint=1e-5, distance=1e-9, **STATED)
    assert "distance" not in plain.to_json()
    for one in (plain, stated):
        assert Guarantee.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert "up to a total variation of 1e-09" in stated.sentence()
    assert "total variation" not in plain.sentence(1e-5)
    assert stated.under_replace_one().distance == 1e-9
    for parts in itertools.permutations((plain, stated, stated)):
        assert 2e-9 <= compose(parts).distance <= 2e-9 * (1 + 1e-14)
    for wrong in (-1e-9, 1.5, math.nan):
        with pytest.raises(SordinoError):
            Guarantee.gaussian(0.5, distance=wrong, **STATED)


def test_large_epsilons_of_discrete_noise_come_from_its_zcdp() -> None:
    stated = Guarantee.gaussian(8.0, distance=1e-24, is_zcdp=True, delta_hint=1e-5, **STATED)
    assert Guarantee.gaussian(8.0, distance=1e-24, **STATED).epsilon(1e-5) == math.inf
    epsilon = stated.epsilon(1e-5)
    # papers/02 2.1: 65.3 by GDP; by zCDP a little more, and never less.
    assert 65.3 < epsilon < 70.4
    assert stated.delta(71.0) < 1e-5 < stated.delta(66.0)
    assert "(68.62, 1e-05)" in stated.sentence()
    assert Guarantee.from_json(stated.to_json()) == stated
    plain = Guarantee.gaussian(1.0, **STATED)
    assert compose([stated, plain]).is_zcdp
    assert not compose([stated, Guarantee.gaussian(1.0, distance=1e-9, **STATED)]).is_zcdp
    # Where the distance does not matter, nothing changes.
    small = Guarantee.gaussian(0.5, distance=1e-24, is_zcdp=True, **STATED)
    assert small.epsilon(1e-5) == Guarantee.gaussian(0.5, distance=1e-24, **STATED).epsilon(1e-5)
    assert "inf" in Guarantee.gaussian(8.0, distance=1e-20, delta_hint=1e-5, **STATED).sentence()


@pytest.mark.parametrize(("sigma", "shift"), [(2, 1), (3, 5), (1, 3)])
def test_the_zcdp_of_discrete_noise_is_that_of_gaussian_noise(sigma: int, shift: int) -> None:
    points = np.arange(-60, 61).astype(float)
    log_p, log_q = (-((points - at) ** 2) / (2 * sigma**2) for at in (0, shift))
    log_p = log_p - np.log(np.exp(log_p).sum())
    log_q = log_q - np.log(np.exp(log_q).sum())
    for order in (1.5, 2.0, 4.0, 8.0):
        divergence = np.log(np.exp(order * log_p + (1 - order) * log_q).sum()) / (order - 1)
        assert divergence <= order * shift**2 / (2 * sigma**2) * (1 + 1e-9)

"""Accounting of noised sums against brute force in mpmath: pmfs, convolutions, divergences."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from sordino import SordinoError
from sordino.privacy._guarantee import compose
from sordino.together.secure._base import (
    TrustAssumption,
    engine_distance,
    published_variance,
    share_variance,
)
from sordino.together.secure._table import ladder, table
from tests.support.sum_noise import SumNoise, required_variance

mp.dps = 40


def inside(parties: int = 3) -> TrustAssumption:
    return TrustAssumption("plain", parties, 1, 3, 1, False, "inside")


def tables(parties: int = 3) -> TrustAssumption:
    return TrustAssumption("spu", parties, 1, 3, 1, False, "inside")


def shares(parties: int, colluders: int) -> TrustAssumption:
    return TrustAssumption("mask", parties, colluders, parties, colluders, False, "shares")


# The independent implementation: probabilities as lists over -reach..reach.


@lru_cache(maxsize=32)
def pmf(variance: int, draws: int) -> dict[int, mpf]:
    """The sum of `draws` discrete Gaussians, to 1e-35 and in 40 digits."""
    reach = int(13 * math.sqrt(variance)) + 3
    weights = {x: mpmath.exp(-mpf(x * x) / (2 * variance)) for x in range(-reach, reach + 1)}
    total = mpmath.fsum(weights.values())
    one = {x: w / total for x, w in weights.items()}
    law = dict(one)
    for _ in range(draws - 1):
        wide = max(law) + reach
        law = {
            z: mpmath.fsum(law[z - y] * p for y, p in one.items() if z - y in law)
            for z in range(-wide, wide + 1)
        }
    return law


def renyi(law: dict[int, mpf], shift: int, order: float) -> mpf:
    """Where both sides have been computed well (the middle 80 % of the reach)."""
    most = int(max(law) * 0.8)
    terms = [
        law[x] ** order * law[x - shift] ** (1 - mpf(order))
        for x in range(-most, most + 1)
        if x - shift in law
    ]
    return mpmath.log(mpmath.fsum(terms)) / (mpf(order) - 1)


def hockey_stick(laws: list[dict[int, mpf]], shift: list[int], epsilon: float) -> mpf:
    """Exact delta of one or two coordinates."""
    factor = mpmath.exp(epsilon)
    zero = mpf(0)
    if len(laws) == 1:
        (law,), (k,) = laws, shift
        return mpmath.fsum(
            max(zero, p - factor * law.get(x - k, zero)) for x, p in law.items() if x - k in law
        )
    (a, b), (k, j) = laws, shift
    pairs_a = [(float(p), float(a.get(x - k, zero))) for x, p in a.items()]
    pairs_b = [(float(p), float(b.get(x - j, zero))) for x, p in b.items()]
    f = float(factor)
    return mpf(math.fsum(max(0.0, p * q - f * s * t) for p, s in pairs_a for q, t in pairs_b))


ORDERS = (1.5, 2.0, 3.0, 7.5)


@pytest.mark.parametrize("variance", [1, 4, 9])
@pytest.mark.parametrize("shift", [1, 3])
def test_one_draw_has_the_exact_divergence(variance: int, shift: int) -> None:
    noise = SumNoise(shift**2, variance, 1, inside())
    for order in ORDERS:
        true = renyi(pmf(variance, 1), shift, order)
        bound = noise.rdp(order)
        assert true <= bound
        if order == int(order):  # attained
            assert bound == pytest.approx(float(true), rel=1e-10)
    assert noise.rho == pytest.approx(shift**2 / (2 * variance))


@pytest.mark.parametrize(("share", "n"), [(1, 2), (1, 3), (1, 4), (2, 3), (4, 2)])
def test_shares_stay_below_the_published_bound(share: int, n: int) -> None:
    law = pmf(share, n)
    for shift in (1, 2):
        noise = SumNoise(shift**2, share * n, 1, shares(n + 2, 2))
        assert (noise.shares, noise.share, noise.remaining) == (n, share, share * n)
        for order in ORDERS:
            assert renyi(law, shift, order) <= noise.rdp(order)
            # Two coordinates with the same shift add up, and the bound follows.
            both = SumNoise(2 * shift**2, share * n, 2, shares(n + 2, 2))
            assert 2 * renyi(law, shift, order) <= both.rdp(order)
            assert noise.rdp(order) <= order * noise.rho * (1 + 1e-12)


@pytest.mark.parametrize(("share", "n"), [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3)])
def test_a_sum_of_shares_is_one_discrete_gaussian_up_to_the_stated_factors(
    share: int, n: int
) -> None:
    law, target = pmf(share, n), pmf(share * n, 1)
    noise = SumNoise(1, share * n, 1, shares(n + 1, 1))
    middle = range(-int(5 * math.sqrt(share * n)), int(5 * math.sqrt(share * n)) + 1)
    worst = max(abs(mpmath.log(law[x] / target[x])) for x in middle)
    assert worst <= noise.log_ratio <= noise.tau
    if n == 2:  # nearly attained; later shares smooth what earlier ones left
        assert worst > 0.4 * noise.log_ratio


def test_tau_as_printed() -> None:
    noise = SumNoise(1, 8, 1, shares(6, 2))  # four shares of variance 2
    printed = 10 * sum(math.exp(-2 * math.pi**2 * 2 * k / (k + 1)) for k in (1, 2, 3))
    assert noise.tau == pytest.approx(printed, rel=1e-10)
    assert noise.tau >= printed
    million = SumNoise(10**6, 25 * 4, 10**6, shares(5, 1))  # deviation 5 per share
    assert million.tau * 10**6 < 1e-20
    assert million.rho == pytest.approx(10**6 / 200)
    small = SumNoise(10**6, 4 * 7, 10**6, shares(5, 1))  # deviation above 2.5 per share
    assert small.tau * 10**6 < 1e-20


@pytest.mark.parametrize("kind", ["inside", "shares"])
@pytest.mark.parametrize("total", [6, 24])
def test_no_delta_is_understated(kind: str, total: int) -> None:
    n = 1 if kind == "inside" else 3
    assumption = inside() if kind == "inside" else shares(4, 1)
    law = pmf(total // n, n)
    for shift in (1, 4):
        noise = SumNoise(shift**2, total, 1, assumption)
        one = noise.guarantee(rounds=1, adjacency="zero-out", unit="client", participation="once")
        two = noise.guarantee(rounds=2, adjacency="zero-out", unit="client", participation="twice")
        for epsilon in (0.0, 0.3, 1.0, 2.5):
            assert hockey_stick([law], [shift], epsilon) <= one.delta(epsilon)
            # Two rounds are two coordinates.
            assert hockey_stick([law, law], [shift, shift], epsilon) <= two.delta(epsilon)
        # And not by much: within a tenth where delta is large.
        assert one.delta(0.3) < 1.1 * float(hockey_stick([law], [shift], 0.3)) + 2 * one.distance


@pytest.mark.parametrize("bits", [16, 20])
def test_no_delta_is_understated_with_tables(bits: int) -> None:
    """Two rungs of coarse tables, whose own distance is most of delta."""
    variance, shift = 12_300, 300
    made = ladder(variance, bits)
    law = np.ones(1)
    for k, v in made.rungs:
        weights = np.array(table(v, bits).weights, float) / 2.0**bits
        one = np.zeros(2 * k * (len(weights) - 1) + 1)
        one[::k] = np.concatenate([weights[:0:-1] / 2, weights[:1], weights[1:] / 2])
        law = np.convolve(law, one)
    noise = SumNoise(shift**2, variance, 1, tables(), bits)
    stated = noise.guarantee(rounds=1, adjacency="zero-out", unit="client", participation="once")
    assert not stated.is_zcdp
    here = np.concatenate([law, np.zeros(shift)])
    there = np.concatenate([np.zeros(shift), law])
    for epsilon in (0.0, 1.0, 2.5, 5.0, 30.0):
        true = float(np.maximum(0, here - math.exp(epsilon) * there).sum())
        assert true <= stated.delta(epsilon)
    # Bounded noise is not zCDP at all: what exact noise has would be false here.
    assert true > 10 * math.exp(-((30 - noise.rho) ** 2) / (4 * noise.rho))
    # By way of RDP too, the tables are counted.
    exact = SumNoise(shift**2, variance, 1, inside())
    assert noise.epsilon_by_rdp(1e-3) > exact.epsilon_by_rdp(1e-3)
    assert noise.epsilon_by_rdp(1e-9) == math.inf


def test_distances_of_engines() -> None:
    draws = 26_010 * 1000
    for variance in (64, 2**24 + 1, 2**44):
        assert engine_distance(variance, draws, inside()) == 0
        for bits in (63, 126):
            exact = ladder(variance, bits).distance(draws)
            found = engine_distance(variance, draws, tables(), bits)
            assert exact <= Fraction(found) <= exact * Fraction(1 + 1e-15)
            # And counted in what is stated, beside the distance from rounded noise.
            noise = SumNoise(1, variance, 26_010, tables(), bits)
            without = SumNoise(1, variance, 26_010, inside()).distance(1000)
            assert noise.distance(1000) == pytest.approx(without + found)
            assert noise.distance(1000) >= found
        few, many = shares(5, 4), shares(5, 1)
        assert engine_distance(variance, draws, few) == 0  # one share left: exact
        assert engine_distance(variance, draws, many) > 0  # however small
        assert engine_distance(variance, draws, tables()) < 5e-9
    assert engine_distance(2**24, 0, tables()) == 0
    small = SumNoise(1, 8, 1, shares(6, 2))
    assert engine_distance(8, 10, shares(6, 2)) == pytest.approx(10 * small.log_ratio)
    assert small.distance(10) >= 10 * small.log_ratio
    assert engine_distance(8, 2**62, shares(6, 2)) == engine_distance(8, 2**62, tables()) == 1
    with pytest.raises(SordinoError, match="coarser grid"):
        engine_distance(2**48 + 1, 1, tables())


@pytest.mark.parametrize("assumption", [inside(), tables(), shares(5, 2)])
def test_epsilons_agree_and_are_ordered(assumption: TrustAssumption) -> None:
    noise = SumNoise(2**20, 2**24, 123, assumption)
    for rounds in (1, 50):
        stated = noise.guarantee(
            rounds=rounds, adjacency="zero-out", unit="client", participation="in every round"
        )
        by_rdp = noise.epsilon_by_rdp(1e-6, rounds)
        assert stated.epsilon(1e-6) <= by_rdp <= 1.35 * stated.epsilon(1e-6)
        assert stated.mu == pytest.approx(math.sqrt(rounds / 16), rel=1e-6)
        assert stated.is_zcdp == (assumption.engine != "spu")
        # A brute search over orders finds nothing below.
        grid = [1 + 10 ** (x / 50) for x in range(-100, 250)]
        rho = rounds * noise.rho

        def converted(a: float, rho: float = rho) -> float:
            extra = (math.log(1e6) + (a - 1) * math.log1p(-1 / a) - math.log(a)) / (a - 1)
            return a * rho + extra

        assert by_rdp == pytest.approx(min(converted(a) for a in grid), rel=1e-3)
    several = compose([stated, stated])
    assert several.is_zcdp == stated.is_zcdp
    assert several.mu == pytest.approx(stated.mu * math.sqrt(2))


def test_replacing_costs_twice() -> None:
    noise = SumNoise(2**20, 2**24, 123, inside())
    options = {"rounds": 3, "unit": "example", "participation": "in every round"}
    zero_out = noise.guarantee(adjacency="zero-out", **options)  # type: ignore[arg-type]
    other = noise.guarantee(adjacency="replace-one", **options)  # type: ignore[arg-type]
    assert other.mu == pytest.approx(2 * zero_out.mu)


@pytest.mark.parametrize(
    "assumption", [inside(), tables(), shares(5, 1), shares(5, 4), shares(2, 1)]
)
def test_the_required_variance_is_the_smallest(assumption: TrustAssumption) -> None:
    options = {"square": 2**20, "dimension": 123, "assumption": assumption}
    found = required_variance(1.0, 1e-6, rounds=10, **options)  # type: ignore[arg-type]

    def epsilon(variance: int) -> float:
        return (
            SumNoise(2**20, variance, 123, assumption)
            .guarantee(rounds=10, adjacency="zero-out", unit="client", participation="")
            .epsilon(1e-6)
        )

    assert epsilon(found) <= 1.0
    # With shares the variance that counts is a multiple of n: go below by one share's step.
    n = assumption.parties - assumption.colluders if assumption.noise == "shares" else 1
    assert epsilon(found - n) > 1.0
    with pytest.raises(SordinoError, match="coarser grid"):
        required_variance(1e-6, 1e-9, rounds=10**6, **options)  # type: ignore[arg-type]


def test_variances_of_shares() -> None:
    assert share_variance(100, shares(5, 2)) == 34
    assert published_variance(100, shares(5, 2)) == 170
    assert SumNoise(1, 100, 1, shares(5, 2)).remaining == 102
    assert published_variance(100, inside()) == share_variance(100, inside()) == 100


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SordinoError, match="finer grid"):
        _ = SumNoise(1, 3, 1, inside()).mu
    with pytest.raises(SordinoError, match="coarser grid"):
        SumNoise(1, 2**48 + 1, 1, inside())
    with pytest.raises(SordinoError, match="order"):
        SumNoise(1, 10, 1, inside()).rdp(1.0)
    with pytest.raises(SordinoError):
        SumNoise(-1, 10, 1, inside())
    assert SumNoise(0, 10, 1, inside()).epsilon_by_rdp(1e-6) == 0.0

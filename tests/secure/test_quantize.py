"""Whole numbers on a grid: norms bounded for every input, roundings unbiased, sums that fit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chdtrc

from sordino import SordinoError
from sordino.parts.mechanisms._discrete import ChaCha20Generator
from sordino.together.secure._base import require_fit
from tests.support.grid import Grid


def generator(number: int = 0) -> ChaCha20Generator:
    return ChaCha20Generator(number.to_bytes(32, "little"))


def exact_square(whole: np.ndarray) -> int:
    return sum(int(x) ** 2 for x in whole)


def published_bound(r: float, d: int, b: float) -> float:
    """Kairouz, Liu & Steinke 2021, written once more."""
    return min(
        r + math.sqrt(d),
        math.sqrt(r**2 + d / 4 + math.sqrt(2 * math.log(1 / b)) * (r + math.sqrt(d) / 2)),
    )


@pytest.mark.parametrize(
    ("steps", "d", "percent"), [(8192, 26_000, 0.015), (8192, 10**6, 0.21), (64, 123, 1.25)]
)
def test_the_inflation_is_the_published_one(steps: int, d: int, percent: float) -> None:
    grid = Grid(clip=1.0, step=1 / steps, dimension=d)
    expected = published_bound(steps, d, math.exp(-0.5))
    assert grid.rounded_square == math.floor(expected**2 * (1 + 1e-13))
    assert 0 < grid.inflation - 1 < percent / 100


VECTORS = st.lists(
    st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=12
)


@settings(max_examples=200, deadline=None)
@given(VECTORS, st.sampled_from([1.0, 0.3, 7e-5, 1e12]), st.sampled_from([3.0, 77.7, 4096.0]))
def test_no_vector_is_longer_than_its_bound(vector: list[float], clip: float, steps: float) -> None:
    grid = Grid(clip=clip, step=clip / steps, dimension=len(vector))
    whole = grid.truncate([vector])[0]
    assert Fraction(exact_square(whole)) <= grid.steps**2
    rounded = grid.round_randomly(vector, generator(len(vector)))
    assert exact_square(rounded) <= grid.rounded_square
    assert np.abs(rounded).max() <= grid.largest_rounded
    if not np.isfinite(vector).all():
        assert not whole.any()
        assert not rounded.any()


def test_vectors_on_the_sphere_stay_within_and_lose_less_than_a_step() -> None:
    rng = np.random.default_rng(0)
    for steps in (1.0, 10.0, 1000.5, 2.0**25):
        grid = Grid(clip=2.5, step=2.5 / steps, dimension=50)
        rows = rng.normal(size=(2000, 50)) * 10.0 ** rng.uniform(-3, 200, (2000, 1))
        whole = grid.truncate(rows)
        assert max(exact_square(row) for row in whole) <= grid.truncated_square
        norms = np.sqrt((whole.astype(float) ** 2).sum(axis=1))
        clipped = np.sqrt((rows / 1e100) ** 2).sum(axis=1) > 1e-90  # far beyond the clip
        assert norms[clipped].min() > steps - math.sqrt(50) - 1e-6


def test_axis_vectors_meet_the_bound_exactly() -> None:
    grid = Grid(clip=1.0, step=2.0**-20, dimension=3)
    assert grid.truncate([[5.0, 0, 0], [-1.0, 0, 0], [0, 0, 0]]).tolist() == [
        [2**20, 0, 0],
        [-(2**20), 0, 0],
        [0, 0, 0],
    ]
    assert grid.largest_sum(3) == 3 * 2**20
    assert (grid.sum_of_records([[5.0, 0, 0], [-0.5, 0, np.nan]]) == [2**20, 0, 0]).all()


def test_random_rounding_is_unbiased_where_nothing_is_refused() -> None:
    # 4,000 roundings of 5 numbers: each mean within 5 standard errors (3e-6 to fail by chance).
    grid = Grid(clip=100.0, step=1.0, dimension=5)
    x = np.array([0.25, -0.25, 3.5, -7.125, 1e-3])
    source, count = generator(3), 4_000
    draws = np.array([grid.round_randomly(x, source) for _ in range(count)])
    assert np.isin(draws - np.floor(x), (0, 1)).all()
    frac = x - np.floor(x)
    error = np.sqrt(frac * (1 - frac) / count)
    assert (np.abs(draws.mean(axis=0) - x) <= 5 * error).all()


def test_the_conditional_law_is_the_right_one() -> None:
    """All 2^d roundings of a vector at the clip, those that are too long removed: chi-square."""
    x = np.array([1.3, 1.6, 0.5, 0.8, 1.9, 0.45])
    d, clip = len(x), float(np.linalg.norm(x)) * (1 + 1e-9)
    grid = Grid(clip=clip, step=1.0, dimension=d, refusal=0.9)
    law: dict[tuple[int, ...], float] = {}
    for coins in np.ndindex(*[2] * d):
        y = np.floor(x).astype(int) + coins
        if exact_square(y) <= grid.rounded_square:
            frac = x - np.floor(x)
            law[tuple(y)] = float(np.prod(np.where(coins, frac, 1 - frac)))
    kept = sum(law.values())
    assert 0.1 <= kept < 0.99  # the test does refuse something, and not more than promised
    source, count = generator(5), 5_000
    seen = dict.fromkeys(law, 0)
    for _ in range(count):
        seen[tuple(grid.round_randomly(x, source))] += 1
    expected = {y: count * p / kept for y, p in law.items()}
    often = [y for y in law if expected[y] >= 5]
    statistic = sum((seen[y] - expected[y]) ** 2 / expected[y] for y in often)
    assert chdtrc(len(often) - 1, statistic) > 1e-6  # the error rate


@pytest.mark.parametrize("d", [1, 22, 123, 4096])
@pytest.mark.parametrize("steps", [2.0, 64.0, 8192.0])
def test_a_rounding_is_refused_no_more_often_than_promised(d: int, steps: float) -> None:
    grid = Grid(clip=1.0, step=1 / steps, dimension=d)
    rng, counted = np.random.default_rng(d), [0]

    class Counting(ChaCha20Generator):
        def words(self, count: int) -> np.ndarray:
            counted[0] += 1
            return super().words(count)

    source = Counting(bytes(32))
    for _ in range(100):
        x = rng.normal(size=d)
        grid.round_randomly(x / np.linalg.norm(x), source)
    # Refused at most 60.7 % of the time: 255 draws expected at the very most, 20 std errors above.
    assert counted[0] <= 600


def test_what_makes_no_sense_is_refused() -> None:
    grid = Grid(clip=1.0, step=0.5, dimension=3)
    with pytest.raises(SordinoError, match=r"\(n, 3\)"):
        grid.truncate([1.0, 2.0, 3.0])
    with pytest.raises(SordinoError, match=r"shape \(3,\)"):
        grid.round_randomly([1.0], generator())
    with pytest.raises(SordinoError, match="coarser grid"):
        Grid(clip=1.0, step=2.0**-31, dimension=3)
    for wrong in ({"clip": 0.0}, {"step": -1.0}, {"dimension": 0}, {"refusal": 1.0}):
        with pytest.raises(SordinoError):
            Grid(**{"clip": 1.0, "step": 1.0, "dimension": 1, **wrong})  # type: ignore[arg-type]


def test_sums_that_would_not_fit_are_refused() -> None:
    assert require_fit(largest=2**40, parties=1000, variance=2**48, dimension=10**6) < 1e-24
    with pytest.raises(SordinoError, match=r"2\^62"):
        require_fit(largest=2**60, parties=4, variance=1, dimension=1)
    require_fit(largest=2**60, parties=3, variance=2**48, dimension=1)
    with pytest.raises(SordinoError, match=r"2\^31"):
        require_fit(largest=2**20, parties=2**11, variance=4, dimension=1, bits=32)
    with pytest.raises(SordinoError, match=r"2\^31"):  # the noise alone
        require_fit(largest=0, parties=1, variance=2**56, dimension=1, bits=32)
    with pytest.raises(SordinoError, match="32 or 64"):
        require_fit(largest=1, parties=1, variance=1, dimension=1, bits=16)

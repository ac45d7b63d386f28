"""The discrete Gaussian sampler: its exact parts by proof-like checks, its output by statistics.

Statistical tests have fixed keys, so they never flicker; each would fail by chance for one key in ten
thousand (`ERROR`). That they can fail is tested as well.
"""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from sordino import SordinoError
from sordino.parts.mechanisms._discrete import (
    _BAND,
    _CAPACITY,
    _COLUMNS,
    _POINT,
    ChaCha20Generator,
    _staircase,
    discrete_gaussian,
    exp_enclosure,
)

ERROR = 1e-4
SIGMAS = [Fraction(1, 4), 1, Fraction(31, 3), 10**4, 2**20 + 1, Fraction(10**12, 7), 2**48]


def generator(name: int = 0) -> ChaCha20Generator:
    return ChaCha20Generator(name.to_bytes(32, "little"))


# ---- the generator ---------------------------------------------------------------------------------


def test_chacha_gives_the_keystream_of_rfc_8439() -> None:
    zero = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"  # A.1, vector 1
    words = ChaCha20Generator(bytes(32)).words(4)
    assert words.astype("<u8").tobytes().hex() == zero
    # The same stream, however it is asked for; another one for another key.
    again = ChaCha20Generator(bytes(32))
    assert [again.word() for _ in range(4)] == words.tolist()
    assert ChaCha20Generator(bytes(31) + b"\1").words(4).tolist() != words.tolist()


def test_chacha_wants_a_whole_key_and_never_repeats() -> None:
    with pytest.raises(SordinoError, match="32 bytes"):
        ChaCha20Generator(b"short")
    with pytest.raises(SordinoError, match="derive another key"):
        generator().words(2**35 + 1)


# ---- exact parts ---------------------------------------------------------------------------------------


def test_enclosures_hold_the_exponential() -> None:
    rng = np.random.default_rng(0)
    with mpmath.workprec(500):
        for _ in range(500):
            exponent = Fraction(int(rng.integers(2**40)), int(rng.integers(1, 2**37)))
            bits = int(rng.choice([0, 30, 64, 200]))
            low, high = exp_enclosure(exponent, bits)
            exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            assert low <= exact * 2**bits <= high <= low + 2


@pytest.mark.parametrize("variance", SIGMAS)
def test_the_table_has_the_weights_and_they_cover_the_curve(variance: Fraction | int) -> None:
    stairs = _staircase(Fraction(variance))
    columns = [0] * _COLUMNS
    for column, (cut, other) in enumerate(zip(stairs.cut, stairs.other, strict=True)):
        columns[column] += int(cut)
        columns[int(other)] += _CAPACITY - int(cut)
    wanted = [*stairs.weights, 2**63 - sum(stairs.weights)]
    assert columns == [*wanted, *[0] * (_COLUMNS - len(wanted))]
    # Every acceptance probability is at most 1, and none is needlessly small.
    for a, weight in enumerate(stairs.weights[:-1]):
        exponent = Fraction((a << stairs.shift) ** 2) / (2 * stairs.variance)
        # To 2^-64 of a unit; the first weight is exact.
        low, _ = exp_enclosure(exponent, 128)
        assert stairs.scale * low <= weight << 128
        assert weight << 128 <= (stairs.scale * low) + (2 << 128)
    ratio = Fraction(stairs.ratio, 2**64)
    for i in range(20):
        x = (stairs.buckets + i) << stairs.shift
        _, high = exp_enclosure(Fraction(x * x) / (2 * stairs.variance), 2048)
        assert stairs.scale * Fraction(high, 2**2048) <= stairs.weights[-1] * (1 - ratio) * ratio**i


@pytest.mark.parametrize("variance", [s for s in SIGMAS if s > 1024])
def test_the_quick_comparison_is_within_its_band(variance: Fraction | int) -> None:
    stairs = _staircase(Fraction(variance))
    rng = np.random.default_rng(1)
    buckets = np.r_[rng.integers(stairs.buckets, size=300), 0, stairs.buckets - 1]
    places = np.r_[rng.integers(1 << stairs.shift, size=300), 0, (1 << stairs.shift) - 1]
    low = buckets << stairs.shift
    found = stairs._approximate(places * (2 * low + places))
    for a, b, quick in zip(buckets.tolist(), places.tolist(), found.tolist(), strict=True):
        x = (a << stairs.shift) + b
        exponent = Fraction(x * x) / (2 * stairs.variance)
        below, above = exp_enclosure(exponent, 128)
        exact = [
            Fraction(e * stairs.scale, stairs.weights[a] << (128 - _POINT)) for e in (below, above)
        ]
        # A uniform number's interval is one unit long; outside the band it is on one side.
        assert quick - _BAND <= exact[0]
        assert exact[1] + 1 <= quick + _BAND + 1


def test_the_long_comparison_has_the_exact_probability() -> None:
    stairs = _staircase(Fraction(9))
    source, trials = generator(5), 4000
    for x in (1, 4, 9):
        chance = stairs.scale * math.exp(-x * x / 18) / stairs.weights[0]
        kept = sum(stairs._decided(x, stairs.weights[0], source, 0, 0) for _ in range(trials))
        assert stats.binomtest(kept, trials, chance).pvalue > ERROR
    # A prefix that decides is not asked again, one that does not is continued.
    half = 2 ** (_POINT - 1)
    assert stairs._decided(0, Fraction(3 * stairs.scale, 2), source, half, _POINT)
    assert not stairs._decided(0, 3 * stairs.scale, source, half, _POINT)
    undecided = [
        stairs._decided(0, 2 * stairs.scale, source, half - 1, _POINT - 1) for _ in range(9)
    ]
    assert not any(undecided)  # U is just below 1


@pytest.mark.parametrize("variance", [Fraction(1, 4), 4, 10**4])
def test_the_tail_has_the_exact_law(variance: Fraction | int) -> None:
    stairs = _staircase(Fraction(variance))
    source = generator(6)
    kept = [x for _ in range(3000) if (x := stairs._tail(source)) is not None]
    first = stairs.buckets << stairs.shift
    assert min(kept) >= first
    assert len(kept) > 200
    x = np.arange(first, first + 40 * (1 + math.isqrt(math.ceil(variance))))
    weights = np.exp(-(x.astype(float) ** 2 - first**2) / (2 * float(variance)))
    assert _chi_square(np.array(kept) - first, weights / weights.sum()) > ERROR


# ---- the output ----------------------------------------------------------------------------------------


def _chi_square(values: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of `values` (indices of cells), cells with few expected hits put together."""
    expected = len(values) * probabilities
    observed = np.bincount(np.minimum(values, len(expected) - 1), minlength=len(expected))
    rare = expected < 10
    expected = np.r_[expected[~rare], expected[rare].sum()]
    observed = np.r_[observed[~rare], observed[rare].sum()]
    if expected[-1] < 5:  # too few to count on their own
        expected = np.r_[expected[:-2], expected[-2:].sum()]
        observed = np.r_[observed[:-2], observed[-2:].sum()]
    if len(expected) < 2:
        return 1.0
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def _small_law(variance: float) -> tuple[int, np.ndarray]:
    """The exact probabilities of -R..R."""
    reach = math.ceil(12 * math.sqrt(variance)) + 2
    x = np.arange(-reach, reach + 1, dtype=float)
    weights = np.exp(-(x**2) / (2 * variance))
    return reach, weights / weights.sum()


@pytest.mark.parametrize(
    "variance", [Fraction(1, 4), Fraction(1, 2), 1, 2, Fraction(31, 3), 200, 290, 1030, 5000]
)
def test_every_integer_has_its_exact_probability(variance: Fraction | int) -> None:
    reach, law = _small_law(float(variance))
    draws = discrete_gaussian(variance, 300_000, generator(1))
    assert draws.dtype == np.int64
    assert _chi_square(draws + reach, law) > ERROR


@pytest.mark.parametrize("variance", [10**4, 2**20, Fraction(10**12, 7), 2**44 + 12345, 2**48])
def test_large_sigmas_have_the_exact_law_in_cells(variance: Fraction | int) -> None:
    """200 cells of equal chance; from sigma 100 on, sums are integrals to 1e-300."""
    sigma = math.sqrt(variance)
    draws = discrete_gaussian(variance, 200_000, generator(2))
    cells = 200
    edges = np.round(sigma * stats.norm.ppf(np.arange(1, cells) / cells)) + 0.5
    law = np.diff(np.r_[0.0, stats.norm.cdf(edges / sigma), 1.0])
    assert _chi_square(np.searchsorted(edges, draws), law) > ERROR
    standard = draws / sigma
    count = len(draws)
    assert abs(standard.mean()) < 4 / math.sqrt(count)
    assert abs(standard.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs((standard**4).mean() - 3) < 4 * math.sqrt(96 / count)


@pytest.mark.parametrize("modulus", [2, 3, 7, 64, 1000])
@pytest.mark.parametrize("variance", [10**6, 2**40 + 3])
def test_residues_are_uniform(variance: int, modulus: int) -> None:
    """A coarser lattice inside the noise would show here (papers/01 section 3.1)."""
    draws = discrete_gaussian(variance, 100_000, generator(3))
    assert _chi_square(draws % modulus, np.full(modulus, 1 / modulus)) > ERROR


def test_no_integer_of_the_bulk_is_missing() -> None:
    draws = discrete_gaussian(1000, 400_000, generator(4))
    seen = set(draws.tolist())
    assert seen.issuperset(range(-79, 80))  # 2.5 sigma: the rarest is expected 220 times


def test_the_tests_can_tell_a_wrong_sigma_and_a_coarse_lattice() -> None:
    reach, law = _small_law(200.0)
    wrong = discrete_gaussian(206, 300_000, generator(1))
    assert _chi_square(wrong + reach, law) < ERROR
    coarse = 8 * discrete_gaussian(15625, 100_000, generator(3))
    assert _chi_square(coarse % 64, np.full(64, 1 / 64)) < ERROR
    short = np.clip(discrete_gaussian(1, 300_000, generator(1)), -3, 3)
    reach, law = _small_law(1.0)
    assert _chi_square(short + reach, law) < ERROR


def test_draws_are_a_function_of_the_key() -> None:
    same = [discrete_gaussian(10**6, 20_000, generator(7)) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    other = discrete_gaussian(10**6, 20_000, generator(8))
    assert (same[0] == other).mean() < 0.01
    assert discrete_gaussian(10**6, 0, generator(7)).shape == (0,)


@pytest.mark.parametrize("variance", [0, Fraction(1, 5), 2**48 + 1, -1, 1.0, True, math.nan])
def test_other_sigmas_are_refused(variance: object) -> None:
    with pytest.raises(SordinoError, match="sigma_squared must be"):
        discrete_gaussian(variance, 1, generator())  # type: ignore[arg-type]

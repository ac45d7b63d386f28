"""Tables of the discrete Gaussian and ladders of them: thresholds, and the distances that they claim."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.stats import chi2, norm

from sordino._base.errors import SordinoError
from sordino.together.secure._table import (
    BITS,
    LARGEST_NOISE,
    WIDEST,
    Columns,
    Ladder,
    Table,
    ladder,
    log_ratio_of_sum,
    table,
)

VARIANCES = (4, 64, 1024)


def require_ladder(noise: np.ndarray, variance: int) -> None:
    """An engine's draws: mean, variance, and what the lowest rung alone decides.

    A false alarm in ten million for all together, with room for what the limits of chi-square leave.
    """
    share = 1e-8
    made, d = ladder(variance), len(noise)
    assert len(made.rungs) > 1
    assert np.abs(noise).max() <= made.largest
    assert abs(noise.mean()) < norm.isf(share) * (variance / d) ** 0.5
    square = float((noise.astype(float) ** 2).sum()) / variance
    assert chi2.isf(1 - share, d) < square < chi2.isf(share, d)
    # Modulo the second factor, the noise is the lowest rung's: some 90 steps over 43 residues, uniform.
    factor = made.rungs[1][0]
    cells = np.bincount(noise % factor, minlength=factor)
    assert chi2.sf(((cells - d / factor) ** 2).sum() * factor / d, factor - 1) > share


def magnitudes(variance: int) -> list[mpf]:
    """P(|x| = k) to 150 digits, by another library, far beyond where the tables end."""
    mp.dps = 150
    last = 26 * int(mp.sqrt(variance))
    weights = [mp.exp(-mpf(k * k) / (2 * variance)) for k in range(last)]
    whole = weights[0] + 2 * mp.fsum(weights[1:])
    return [weights[0] / whole, *(2 * weight / whole for weight in weights[1:])]


def drawn(made: Table, columns: Columns | None = None) -> dict[int, int]:
    """How many of the 2^L words give each magnitude, by the columns."""
    columns = columns or made.columns()
    counts = dict.fromkeys(range(made.largest + 1), 0)
    for i, (cut, other) in enumerate(zip(columns.cut, columns.other, strict=True)):
        assert 0 <= cut < 1 << columns.level_bits
        if cut:
            counts[i] += cut
        counts[other] += (1 << columns.level_bits) - cut
    return counts


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("bits", [20, BITS, 126])
def test_thresholds_are_the_exact_probabilities_rounded_down(variance: int, bits: int) -> None:
    exact = magnitudes(variance)
    made = table(variance, bits)
    for k, t in enumerate((*made.thresholds, 0), start=1):
        assert t == int(mp.floor(mp.fsum(exact[k:]) * mpf(2) ** bits))
    assert made.thresholds[-1] >= 1
    assert sum(made.weights) == 1 << bits
    assert min(made.weights) >= 0


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("bits", [20, BITS, 126])
def test_the_total_variation_is_within_the_claim_and_not_far_below(
    variance: int, bits: int
) -> None:
    exact = magnitudes(variance)
    made = table(variance, bits)
    weights = [*made.weights, *[0] * (len(exact) - len(made.weights))]
    off = mp.fsum(abs(p - mpf(w) / mpf(2) ** bits) for p, w in zip(exact, weights, strict=True))
    claimed = made.distance(1)
    assert claimed == Fraction(made.largest + 2, 2 << bits)
    assert off / 2 < mpf(claimed.numerator) / claimed.denominator
    assert off / 2 > mpf(claimed.numerator) / claimed.denominator / 20


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("bits", [20, BITS, 126])
def test_columns_give_the_same_distribution_exactly(variance: int, bits: int) -> None:
    made = table(variance, bits)
    assert tuple(drawn(made).values()) == made.weights


def test_distance_grows_with_the_draws_and_stops_at_one() -> None:
    assert ladder(64).distance(123) == 123 * ladder(64).distance(1)
    assert table(64).distance(123) < ladder(64).distance(123) < 1.05 * table(64).distance(123)
    assert float(ladder(64).distance(26_010)) < 2e-13
    assert float(ladder(64, 126).distance(26_010)) < 2e-32
    assert ladder(64).distance(0) == 0
    assert ladder(64, 20).distance(2**40) == 1


@pytest.mark.parametrize("variance", [1, 2, 3])
def test_the_smallest_variances_have_tables_too(variance: int) -> None:
    made = table(variance)
    assert tuple(drawn(made).values()) == made.weights


@pytest.mark.parametrize(
    ("variance", "bits", "reason"),
    [(2**48 + 1, 63, "coarser grid"), (0, 63, "at least 1"), (64, 127, "between 16 and 126")],
)
def test_what_does_not_fit_is_refused(variance: int, bits: int, reason: str) -> None:
    with pytest.raises(SordinoError, match=reason):
        ladder(variance, bits)


def test_what_is_not_a_table_or_a_ladder_is_refused() -> None:
    with pytest.raises(SordinoError, match="take a ladder"):
        table(2**20 + 1)
    for rungs in ((), ((2, 64),), ((1, 64), (0, 64)), ((1, 64), (8, 0))):
        with pytest.raises(SordinoError):
            Ladder(rungs)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 48).flatmap(lambda e: st.integers(max(1, 2**e // 2), 2**e)),
    st.sampled_from((20, BITS, 126)),
)
def test_a_ladder_has_exactly_the_variance_and_stands_firm(variance: int, bits: int) -> None:
    made = ladder(variance, bits)
    assert made.variance == variance
    assert made.bits == bits
    assert made.rungs[0][0] == 1
    assert max(v for _, v in made.rungs) <= WIDEST
    assert made.largest < LARGEST_NOISE
    below = made.rungs[0][1]
    for k, v in made.rungs[1:]:
        assert Fraction(below * v, below + k * k * v) >= Fraction(9, 2)
        below += k * k * v
    if variance <= WIDEST:
        assert made.rungs == ((1, variance),)
        assert made.log_ratio == 0
    else:
        # Not 0, and below what tables to 126 bits leave; no more rungs than it takes.
        assert 0 < made.log_ratio < 6e-38
        assert 2 <= len(made.rungs) <= 5
        assert (
            WIDEST * 47 ** (2 * len(made.rungs) - 2)
            >= variance
            > WIDEST * 40 ** (2 * len(made.rungs) - 4)
        )


def test_how_many_rungs() -> None:
    for power, rungs in ((13, 1), (16, 2), (24, 2), (34, 3), (40, 4), (44, 4), (48, 5)):
        assert len(ladder(2**power).rungs) == rungs
        assert ladder(2**power).columns()[0].bits <= 10


@pytest.mark.parametrize("variance", [64, 12_289, 2**24 + 77, 2**48])
@pytest.mark.parametrize("bits", [BITS, 126])
def test_a_ladders_columns_are_its_tables(variance: int, bits: int) -> None:
    made = ladder(variance, bits)
    columns = made.columns()
    assert len({one.bits for one in columns}) == len({one.level_bits for one in columns}) == 1
    largest = 0
    for (factor, v), one in zip(made.rungs, columns, strict=True):
        exact = table(v, bits)
        assert tuple(drawn(exact, one).values()) == exact.weights
        assert all(other <= exact.largest for other in one.other)
        assert len(one.cut) == len(one.other) == 1 << one.bits
        largest += factor * exact.largest
    assert largest <= made.largest < 1.05 * largest
    own = sum(table(v, bits).distance(1) for _, v in made.rungs)
    assert own <= made.distance(1) < Fraction(106, 100) * own
    if len(made.rungs) == 1:
        assert columns == (table(variance, bits).columns(),)


def convolved(laws: list[dict[int, mpf]], factors: list[int]) -> dict[int, mpf]:
    law = {0: mpf(1)}
    for one, factor in zip(laws, factors, strict=True):
        wide: dict[int, mpf] = {}
        for y, p in law.items():
            for x, q in one.items():
                wide[y + factor * x] = wide.get(y + factor * x, mpf(0)) + p * q
        law = wide
    return law


def both_signs(magnitude: list[mpf]) -> dict[int, mpf]:
    law = {k: p / 2 for k, p in enumerate(magnitude) if k}
    return {0: magnitude[0], **law, **{-k: p for k, p in law.items()}}


@pytest.mark.parametrize(
    "rungs",
    [((1, 2), (2, 2)), ((1, 4), (3, 4)), ((1, 3), (2, 5)), ((1, 2), (2, 2), (4, 2))],
)
def test_a_ladder_of_exact_draws_is_one_discrete_gaussian_up_to_the_stated_factors(
    rungs: tuple[tuple[int, int], ...],
) -> None:
    made = Ladder(rungs)
    law = convolved([both_signs(magnitudes(v)) for _, v in rungs], [k for k, _ in rungs])
    target = both_signs(magnitudes(made.variance))
    middle = range(-int(6 * made.variance**0.5), int(6 * made.variance**0.5) + 1)
    worst = max(abs(mp.log(law[z] / target[z])) for z in middle)
    # Half of what is stated where the factors go both ways alike; lower rungs' are smoothed by upper ones.
    assert made.log_ratio * (0.15 if len(rungs) > 2 else 0.45) < worst < made.log_ratio < 0.01
    # Another factor would be another distribution altogether.
    other = convolved([both_signs(magnitudes(v)) for _, v in rungs], [1] * len(rungs))
    assert max(abs(mp.log(other[z] / target[z])) for z in middle) > 100 * made.log_ratio


@pytest.mark.parametrize(
    "rungs", [((1, 2), (2, 2)), ((1, 4), (2, 4)), ((1, 9), (2, 8)), ((1, 4), (2, 4), (4, 4))]
)
@pytest.mark.parametrize("bits", [16, 20, 24])
def test_a_ladder_of_tables_is_within_its_distance(
    rungs: tuple[tuple[int, int], ...], bits: int
) -> None:
    """The tables' draws added up exactly, as whole numbers over a power of two."""
    made = Ladder(rungs, bits)
    law = {0: 1}
    for k, v in rungs:
        weights = table(v, bits).weights
        signed = {
            0: 2 * weights[0],
            **{s * x: weights[x] for x in range(1, len(weights)) for s in (-1, 1)},
        }
        wide: dict[int, int] = {}
        for y, p in law.items():
            for x, q in signed.items():
                wide[y + k * x] = wide.get(y + k * x, 0) + p * q
        law = wide
    whole = 1 << ((bits + 1) * len(rungs))
    assert sum(law.values()) == whole
    target = both_signs(magnitudes(made.variance))
    off = mp.fsum(abs(p - mpf(law.get(z, 0)) / whole) for z, p in target.items()) / 2
    claimed = made.distance(1)
    assert off < mpf(claimed.numerator) / claimed.denominator
    assert off > mpf(claimed.numerator) / claimed.denominator / 40


def test_factors_are_never_zero_and_are_infinite_where_nothing_holds() -> None:
    assert 0 < log_ratio_of_sum(1e9) < 1e-298
    assert log_ratio_of_sum(0.01) == float("inf")
    assert Ladder(((1, 1), (64, 1))).distance(3) == 1  # gaps between the multiples of 64

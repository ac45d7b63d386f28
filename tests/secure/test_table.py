"""The table of the discrete Gaussian: proven thresholds, and the distance that it claims."""

from __future__ import annotations

from fractions import Fraction

import pytest
from mpmath import mp, mpf

from sordino.errors import SordinoError
from sordino.secure.table import BITS, Table, distance, table

VARIANCES = (4, 64, 1024)


def magnitudes(variance: int) -> list[mpf]:
    """P(|x| = k) to 150 digits, by another library, far beyond where the tables end."""
    mp.dps = 150
    last = 26 * int(mp.sqrt(variance))
    weights = [mp.exp(-mpf(k * k) / (2 * variance)) for k in range(last)]
    whole = weights[0] + 2 * mp.fsum(weights[1:])
    return [weights[0] / whole, *(2 * weight / whole for weight in weights[1:])]


def drawn(made: Table) -> dict[int, int]:
    """How many of the 2^L words give each magnitude, by the columns."""
    columns = made.columns()
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


def test_distance_grows_with_the_dimension_and_stops_at_one() -> None:
    assert distance(123, 64) == 123 * table(64).distance(1)
    assert float(distance(26_010, 64)) < 2e-13
    assert float(distance(26_010, 64, 126)) < 2e-32
    assert distance(2**40, 64, 20) == 1


@pytest.mark.parametrize("variance", [1, 2, 3])
def test_the_smallest_variances_have_tables_too(variance: int) -> None:
    made = table(variance)
    assert tuple(drawn(made).values()) == made.weights


@pytest.mark.parametrize(
    ("variance", "bits", "reason"),
    [(2**20 + 1, 63, "coarser grid"), (0, 63, "at least 1"), (64, 127, "between 16 and 126")],
)
def test_what_does_not_fit_is_refused(variance: int, bits: int, reason: str) -> None:
    with pytest.raises(SordinoError, match=reason):
        table(variance, bits)

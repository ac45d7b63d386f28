"""Trade-off curves: what a guarantee allows, against definitions and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from sordino.audit._statistics import largest_power, measured_curve
from sordino.privacy._amplification import SampledRelease
from sordino.privacy._guarantee import Guarantee

RATES = np.array([0.0, 1e-4, 0.01, 0.3, 0.9, 1.0])
WORDS = {"adjacency": "zero-out", "unit": "example", "participation": "once"}


def test_a_gaussian_curve_is_that_of_two_bells() -> None:
    guarantee = Guarantee.gaussian(1.3, **WORDS)
    inner = RATES[1:-1]
    thresholds = norm.isf(inner)
    np.testing.assert_allclose(largest_power(guarantee, inner), norm.sf(thresholds - 1.3))
    assert largest_power(guarantee, [0.0, 1.0]).tolist() == [0.0, 1.0]
    twice = largest_power(guarantee, largest_power(guarantee, inner))
    np.testing.assert_allclose(largest_power(guarantee, inner, changes=2), twice)


def test_a_distance_from_the_ideal_is_allowed_on_both_sides() -> None:
    ideal = Guarantee.gaussian(0.5, **WORDS)
    close = Guarantee.gaussian(0.5, distance=1e-3, **WORDS)
    inner = RATES[1:-1]
    expected = np.minimum(largest_power(ideal, inner + 1e-3) + 1e-3, 1.0)
    np.testing.assert_allclose(largest_power(close, inner), expected)


def test_without_privacy_everything_is_allowed() -> None:
    assert (largest_power(Guarantee.nothing(**WORDS), RATES) == 1).all()


def upper_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least concave curve above all points."""
    kept: list[tuple[float, float]] = []
    for point in sorted(zip(x, y, strict=True)):
        while (
            len(kept) > 1
            and np.cross(
                (*np.subtract(kept[-1], kept[-2]), 0.0), (*np.subtract(point, kept[-2]), 0.0)
            )[2]
            >= 0
        ):
            kept.pop()
        kept.append(point)
    return np.array(kept).T[0], np.array(kept).T[1]


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_an_amplified_curve_is_that_of_the_mixture(rate: float) -> None:
    """One step: N(0, s) against (1 - q) N(0, s) + q N(1, s), both ways, randomised tests included."""
    std = 0.8
    part = SampledRelease(std, 1.0, rate, 1, "poisson", "zero-out")
    guarantee = Guarantee(0.0, sampled=(part,), analysis="amplified", **WORDS)
    thresholds = np.linspace(-5, 6, 2001)
    fpr = norm.sf(thresholds / std)
    tpr = (1 - rate) * fpr + rate * norm.sf((thresholds - 1) / std)
    allowed = largest_power(guarantee, fpr)
    assert (allowed >= tpr - 1e-9).all()
    hull = upper_hull(
        np.concatenate([fpr, 1 - tpr, [0.0, 1.0]]), np.concatenate([tpr, 1 - fpr, [0.0, 1.0]])
    )
    np.testing.assert_allclose(allowed, np.interp(fpr, *hull), atol=2e-3)
    assert (largest_power(guarantee, fpr, changes=2) >= allowed).all()


def test_a_measured_curve_counts() -> None:
    without, having = np.array([0.0, 1.0, 2.0, 3.0]), np.array([2.5, 3.5, 4.5, 5.5])
    curve = np.array(measured_curve(without, having))
    assert curve[0].tolist() == [0.0, 0.0]
    assert curve[-1].tolist() == [1.0, 1.0]
    assert (np.diff(curve, axis=0) >= 0).all()
    assert [0.0, 0.75] in curve.tolist()
    assert [0.25, 1.0] in curve.tolist()

"""Grouping noise levels for composition, and the quick composition used by searches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.privacy._amplification import (
    SampledRelease,
    composed_epsilon,
    levels,
    sampled_levels,
)
from sordino.privacy._gdp import SLACK, epsilon_from_mu

from .one_step import poisson_delta


@given(
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=80),
    st.integers(1, 12),
)
def test_every_sigma_is_at_least_its_level(sigma, most):
    found = levels(sigma, most)
    assert len(found) <= most
    assert sum(count for _, count in found) == len(sigma)
    values = [level for level, _ in found]
    assert values == sorted(set(values))
    assert min(sigma) == values[0]
    # Worst to best: the k-th smallest sigma is at least the k-th smallest level.
    floored = np.repeat(values, [count for _, count in found])
    assert (floored <= np.sort(sigma)).all()
    width = (max(sigma) / min(sigma)) ** (1 / most)
    assert (np.sort(sigma) <= floored * width * (1 + 1e-12)).all()


def test_few_distinct_values_are_kept_as_they_are():
    assert levels([2.0, 1.0, 2.0]) == [(1.0, 1), (2.0, 2)]


def test_levels_scale():
    sigma = np.geomspace(1, 3, 100)
    doubled = levels(2 * sigma)
    assert [(2 * level, count) for level, count in levels(sigma)] == doubled


@pytest.mark.parametrize("sigma", [[], [1.0, 0.0], [np.inf], [[1.0]], [np.nan]])
def test_bad_levels(sigma):
    with pytest.raises(SordinoError, match="noise levels"):
        levels(sigma)


def test_sampled_levels_are_releases():
    parts = sampled_levels([1.0, 2.0, 2.0], rate=0.1, adjacency="zero-out")
    assert parts == (
        SampledRelease(1.0, 1.0, 0.1, 1, "poisson", "zero-out"),
        SampledRelease(2.0, 1.0, 0.1, 2, "poisson", "zero-out"),
    )


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("s", "rate"), [(0.6, 0.01), (2.0, 0.1), (5.0, 0.5), (1.0, 1.0)])
def test_one_step_profile_is_the_integral(s, rate, adjacency):
    x = np.linspace(-12 * s, 12 * s, 400_001)

    def density(mean):
        return np.exp(-((x - mean) ** 2) / (2 * s * s)) / np.sqrt(2 * np.pi * s * s)

    P = (1 - rate) * density(0) + rate * density(1)
    Q = density(0)
    if adjacency == "replace-one":
        Q = (1 - rate) * density(0) + rate * density(-1)
    for epsilon in (-0.5, -0.01, 0.0, 0.01, 0.3, 1.0):
        direct = np.maximum(P - np.exp(epsilon) * Q, 0).sum() * (x[1] - x[0])
        found = poisson_delta(epsilon, s, rate, adjacency)[0]
        assert found == pytest.approx(direct, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(
    ("sigma", "count", "rate", "adjacency", "delta"),
    [
        ((1.0,), 1000, 0.01, "add-remove", 1e-5),
        ((1.0,), 1000, 0.01, "replace-one", 1e-5),
        ((3.0, 4.0, 5.0), 300, 0.1, "add-remove", 1e-6),
        ((1.5, 2.0), 100, 0.02, "replace-one", 1e-6),
    ],
)
def test_quick_composition_agrees_with_the_stated_one(sigma, count, rate, adjacency, delta):
    parts = sampled_levels(np.repeat(sigma, count), rate=rate, adjacency=adjacency)
    stated = composed_epsilon(parts, delta)
    assert stated * (1 - 1e-9) <= composed_epsilon(parts, delta, quick=True) <= stated * (1 + 2e-3)


def test_papers_04_oracle_10_quickly():
    def at(s, adjacency="add-remove", delta=1e-5):
        return composed_epsilon(sampled_levels([s] * 1000, rate=0.01, adjacency=adjacency), delta)

    assert at(1.0) == pytest.approx(1.8282, abs=1e-3)
    assert at(1.0, "replace-one") == pytest.approx(2.844, abs=1e-3)
    # claimed as epsilon = 4 elsewhere
    assert at(0.504623, delta=1e-8) == pytest.approx(18.98, abs=0.02)


@pytest.mark.parametrize(("gamma", "epsilon"), [(1.0, 3.94), (0.999, 6.0), (0.998, 12.3)])
def test_papers_04_erratum_f(gamma, epsilon):
    """sum p^2/sigma^2 = R is no bound, and dynamic schedules make it worse (4 is claimed)."""
    T, p = 10_000, 0.01
    t = np.arange(1, T + 1)
    x = gamma ** ((T - t) / 2)
    sigma = np.sqrt(x.sum() / x * p**2 / 0.392704)
    down = levels(sigma, 24)
    ends = np.cumsum([count for _, count in down]) - 1
    up = [(float(np.sort(sigma)[end]), count) for end, (_, count) in zip(ends, down, strict=True)]
    above, below = (
        composed_epsilon(
            tuple(SampledRelease(s, 1.0, p, count, "poisson", "add-remove") for s, count in found),
            1e-8,
        )
        for found in (down, up)
    )
    assert below - 0.01 <= epsilon <= above + 0.01


def test_next_to_no_noise_gets_no_credit_for_sampling():
    few = sampled_levels([1e-3] * 10, rate=0.5, adjacency="add-remove")
    assert composed_epsilon(few, 1e-6) == epsilon_from_mu(math.sqrt(10) / 1e-3 / (1 - SLACK), 1e-6)

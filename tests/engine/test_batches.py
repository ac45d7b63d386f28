"""Batches obey the rule their guarantee was computed for."""

from __future__ import annotations

import numpy as np
import pytest

from sordino._base.keys import RunKey
from sordino.parts.sampling import _kinds as batches
from sordino.parts.sampling._kinds import BLOCK, poisson_width, public_order
from sordino.parts.sampling._population import Population

KEY = RunKey.from_insecure_seed(0)


def members(population: Population, key: RunKey, steps: int) -> list[np.ndarray]:
    indices, mask = population.batches(key, 0, steps)
    return [np.sort(row[present > 0]) for row, present in zip(indices, mask, strict=True)]


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "reshuffled"])
def test_chunks_do_not_matter(sampling: str) -> None:
    population = Population(100, 13, 300, sampling)
    whole = members(population, KEY, 300)
    for first, count in [(0, 7), (60, 10), (BLOCK - 1, 2), (299, 1)]:
        indices, mask = population.batches(KEY, first, count)
        for i in range(count):
            assert np.array_equal(np.sort(indices[i][mask[i] > 0]), whole[first + i])


def test_poisson_batches_are_independent_coin_flips() -> None:
    """Marginals, pairs and sizes over 6400 draws, within 5 standard errors (seed fixed)."""
    n, b, steps = 40, 7, 6400
    population = Population(n, b, steps, "poisson")
    taken = np.zeros((steps, n))
    for t, rows in enumerate(members(population, KEY, steps)):
        assert len(np.unique(rows)) == len(rows)
        taken[t, rows] = 1
    q = population.rate
    assert np.abs(taken.mean(0) - q).max() < 5 * np.sqrt(q * (1 - q) / steps)
    pairs = taken.T @ taken / steps
    off = pairs[~np.eye(n, dtype=bool)]
    assert np.abs(off - q * q).max() < 5 * np.sqrt(q * q * (1 - q * q) / steps)
    sizes = taken.sum(1)
    assert abs(sizes.var() - n * q * (1 - q)) < 5 * n * q * np.sqrt(2 / steps)
    assert (sizes == 0).any()  # empty batches happen and are all padding
    steps_apart = (taken[1:] * taken[:-1]).mean()
    assert abs(steps_apart - q * q) < 5 * q / np.sqrt(steps * n)


def test_poisson_overflow_widens_and_drops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    population = Population(200, 50, 64, "poisson")
    monkeypatch.setattr(batches, "poisson_width", lambda n, q: 16)
    indices, mask = population.batches(KEY, 0, 64)
    assert indices.shape[1] > 16
    mean = mask.sum(1).mean()
    assert abs(mean - 50) < 5 * np.sqrt(50 * 0.75 / 64)


def test_a_rate_of_one_takes_everybody() -> None:
    assert all(len(rows) == 12 for rows in members(Population(12, 12, 3, "poisson"), KEY, 3))


def test_width_is_enough_and_never_more_than_everybody() -> None:
    assert poisson_width(10, 1.0) == 10
    assert poisson_width(32561, 254 / 32561) <= 384


def test_fixed_size_batches_are_uniform() -> None:
    n, b, steps = 30, 6, 6400
    count = np.zeros(n)
    for rows in members(Population(n, b, steps, "without-replacement"), KEY, steps):
        assert len(np.unique(rows)) == b
        count[rows] += 1
    q = b / n
    assert np.abs(count / steps - q).max() < 5 * np.sqrt(q * (1 - q) / steps)


def test_secret_batches_follow_the_key_public_ones_the_seed() -> None:
    other = RunKey.from_insecure_seed(1)
    for sampling in ("poisson", "without-replacement"):
        population = Population(100, 13, 10, sampling)
        a, b = members(population, KEY, 10), members(population, other, 10)
        assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    shuffled = Population(100, 13, 30, "reshuffled")
    assert all(
        np.array_equal(x, y)
        for x, y in zip(members(shuffled, KEY, 30), members(shuffled, other, 30), strict=True)
    )
    assert sorted(np.concatenate(members(shuffled, KEY, 8))) == list(range(100))
    order = public_order(Population(100, 13, 30))
    assert order is not None
    assert sorted(order) == list(range(100))
    assert public_order(Population(100, 13, 30, order_seed=None)) is None

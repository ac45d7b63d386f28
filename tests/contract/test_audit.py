"""The audit's own arithmetic: intervals that cover, keys that are those of a run, honest attackers."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.stats import norm

from sordino.audit._canary import Canary
from sordino.audit._recording import audit_key, audit_seeds
from sordino.audit._statistics import equivalent_mu, hockey_stick, proportion, separation_interval
from sordino.audit._whitebox import Neighbours
from sordino.engine._many import secret_batches, seeded_noise_keys
from sordino.parts.mechanisms._gaussian import gaussian_key
from sordino.privacy._gdp import delta_from_mu

from .cases import PLANNED, audited


def test_a_separation_is_covered_as_often_as_stated() -> None:
    """2,000 experiments at 90 %: the miss rate within 5 standard errors of a tenth."""
    rng, mu, runs = np.random.default_rng(0), 2.5, 400
    a = rng.normal(mu, 1.0, size=(2000, runs))
    b = rng.normal(0.0, 1.0, size=(2000, runs))
    missed = 0
    for x, y in zip(a, b, strict=True):
        low, estimate, high = separation_interval(x.mean(), y.mean(), x.var(), y.var(), runs, 0.9)
        assert low < estimate < high
        missed += not low <= mu <= high
    assert abs(missed / 2000 - 0.1) < 5 * np.sqrt(0.09 / 2000)


def test_proportions_are_covered() -> None:
    rng = np.random.default_rng(1)
    for p in (0.001, 0.2, 0.97):
        bounds = [proportion(int(hits), 300, 0.05) for hits in rng.binomial(300, p, 1000)]
        assert np.mean([low > p for low, _ in bounds]) <= 0.05 + 5 * np.sqrt(0.05 / 1000)
        assert np.mean([high < p for _, high in bounds]) <= 0.05 + 5 * np.sqrt(0.05 / 1000)
    assert proportion(0, 10, 0.01)[0] == 0.0
    assert proportion(10, 10, 0.01)[1] == 1.0


def test_deltas_and_mus_belong_together() -> None:
    for mu in (0.1, 1.0, 3.0):
        assert equivalent_mu(1.0, delta_from_mu(1.0, mu)) == pytest.approx(mu, rel=1e-6)
    assert equivalent_mu(1.0, 0.0) == equivalent_mu(1.0, -0.2) == 0.0
    assert equivalent_mu(1.0, 1.0) > 1e3
    runs, mu = 10**6, 1.5
    # The best event of a Gaussian pair at epsilon 1.
    cut = 1.0 / mu + mu / 2
    hits = round(runs * norm.sf(cut - mu)), round(runs * norm.sf(cut))
    low, estimate, high = hockey_stick(*hits, runs, 1.0, 0.99)
    assert low < estimate < high
    assert equivalent_mu(1.0, estimate) == pytest.approx(mu, rel=1e-3)


def test_keys_and_batches_are_those_of_a_run() -> None:
    population = audited("dp-sgd").population
    keys = jax.random.key_data(seeded_noise_keys(audit_seeds(3, 5, 4)))
    indices, mask = secret_batches(population, audit_seeds(3, 5, 4), 2, 6)
    for i in range(4):
        key = audit_key(3, 5 + i)
        assert np.array_equal(keys[i], jax.random.key_data(gaussian_key(key, "gradient")))
        own, present = population.batches(key, 2, 6)
        for t in range(6):
            taken = indices[i, t][mask[i, t] > 0]
            assert np.array_equal(taken, own[t][present[t] > 0])
    assert len(np.unique(keys, axis=0)) == 4


@pytest.mark.parametrize("name", PLANNED)
def test_the_canary_is_the_worst_example_there_is(name: str) -> None:
    """By design it attains the stated mu, wherever batches are public."""
    plan = audited(name)
    canary = Canary.of(plan)
    if not plan.population.is_secret:
        assert canary.mu / plan.noise_multiplier == pytest.approx(plan.guarantee.mu, rel=1e-3)
    lengths = np.linalg.norm(canary.directions, axis=2)
    assert np.allclose(lengths[:, list(canary.pattern)], 1.0)
    assert np.count_nonzero(lengths) == lengths.shape[0] * len(canary.pattern)


def test_the_same_seed_is_the_same_audit() -> None:
    pair = Neighbours.of(audited("dp-gd"))
    first, again, other = (pair.audit(runs=500, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.mu_estimate != other.mu_estimate

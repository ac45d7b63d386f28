"""Parties together are the centralized run on the pooled records, in distribution."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

import sordino
from sordino.parts._losses import Logistic
from sordino.together.parties._learner import train_together
from sordino.together.parties._terms import Terms, agree

DATA = os.environ.get("SORDINO_DATA", "")
SEEDS = 200
# Each p-value is compared with this; with six of them, 0.6 % of all choices of seeds would fail.
LEAST_P = 1e-3


FAST = 80


def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3)).astype(np.float32)
    return X, (X @ np.array([1.0, -1.0, 0.5]) > 0).astype(np.int32)


def terms_of(engine: str, colluders: int | None = None) -> Terms:
    return agree(
        "dp-srm", examples=(100, 50, 90), parameters=3, engine=engine, colluders=colluders,
        batch_size=48, steps=6, first_batch=96, epsilon=1.0, delta=1e-4, gamma=0.5,
        learning_rate=2.0,
    )  # fmt: skip


def apart(terms: Terms) -> np.ndarray:
    """Parameters of runs between three parties (seeds, 3)."""
    parts = list(zip(*(np.split(array, (100, 150)) for array in records()), strict=True))
    start = np.zeros(3, np.float32)
    runs = [train_together(terms, Logistic(), start, parts, insecure_seed=s) for s in range(FAST)]
    return np.stack([run.params for run in runs])


def p_values(found: np.ndarray, pooled: np.ndarray) -> list[float]:
    """Two-sample tests of a coordinate, of the length, and of how far runs are from the middle."""
    middle = np.median(pooled, axis=0)

    def seen(w: np.ndarray) -> list[np.ndarray]:
        return [w[:, 0], np.linalg.norm(w, axis=1), np.linalg.norm(w - middle, axis=1)]

    return [ks_2samp(a, b).pvalue for a, b in zip(seen(found), seen(pooled), strict=True)]


@pytest.fixture(scope="module")
def pooled() -> np.ndarray:
    plan, start = terms_of("plain").plan, np.zeros(3, np.float32)
    seeds = range(10_000, 10_000 + FAST)
    runs = [sordino.train(plan, Logistic(), start, records(), insecure_seed=s) for s in seeds]
    return np.stack([np.asarray(run.params) for run in runs])


def test_three_parties_equal_the_pooled_run_in_distribution(pooled: np.ndarray) -> None:
    found = apart(terms_of("plain"))
    for p in p_values(found, pooled):
        assert p > LEAST_P


def test_other_noise_would_be_noticed(pooled: np.ndarray) -> None:
    """With two colluders of three, shares are three times the planned variance: the test can tell."""
    found = apart(terms_of("mask", 2))
    assert min(p_values(found, pooled)) < LEAST_P


@pytest.mark.slow
@pytest.mark.skipif(
    not Path(DATA, "a9a").is_dir(), reason="set SORDINO_DATA to a folder with a9a/ and ijcnn1/"
)
@pytest.mark.parametrize("name", ["a9a", "ijcnn1"])
def test_ten_parties_on_real_data(name: str) -> None:
    """200 seeds, epsilon 0.2: the same distribution, and within the paper's table."""
    from benchmarks.parties import PAPER, two_ways

    found = two_ways(name, 0.2, SEEDS)
    assert found["KS p"] > LEAST_P
    assert found["t p"] > LEAST_P
    assert found["ten parties"] <= PAPER[name, 0.2][0]

"""Predicted losses rank the plans of section 6's grid as training does (page 05, oracle 15).

The published tables are not here: these rows are synthetic, made like them (a few of many binary columns).
`python -m benchmarks prediction` is the measurement on a9a, ijcnn1 and MNIST.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from benchmarks import prediction


def rows(examples: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Binary columns, rarer and rarer, some of them copies with errors; rows of norm at most 1."""
    rng = np.random.default_rng(0)
    often = 0.6 / np.arange(1, columns + 1) ** 0.5
    X = (rng.random((examples, columns)) < often).astype(np.float32)
    X[:, columns // 2 :] = np.where(
        rng.random((examples, columns - columns // 2)) < 0.7,
        X[:, : columns - columns // 2],
        X[:, columns // 2 :],
    )
    w = rng.normal(size=columns) * 1.5
    z = X @ w - np.median(X @ w)
    y = (rng.random(examples) < 1 / (1 + np.exp(-z))).astype(np.float32)
    X = np.concatenate([X, np.ones((examples, 1), np.float32)], axis=1)
    return X / np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True)), y


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", prediction.EPSILONS)
def test_plans_are_ranked_as_training_ranks_them(epsilon: float) -> None:
    X, y = rows(20_000, 100)
    made = prediction.plans(len(X), epsilon)
    found = prediction.trained(made, X, y, seeds=4)
    every, best, first = prediction.agreement(found, partial(prediction._loss, made, None))
    by_noise, *_ = prediction.agreement(found, partial(prediction._noise, made))
    assert every >= 0.9
    assert best >= 0.9
    assert first <= 1.1
    assert by_noise < 0.5  # by which 0.6 ranked

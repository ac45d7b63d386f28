"""Small problems the engine tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

import sordino
from sordino.planning._plans import Plan

MECHANISMS = ("independent", "blt", "banded", "toeplitz", "dense", "tree")
# A draw of this size is lost in float32: "no noise" for a plan, which insists on some.
NO_NOISE = 1e-20


def regression(n: int = 60, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, (X @ rng.normal(size=d)).astype(np.float32)


def binary(n: int = 60, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = regression(n, d, seed)
    return X, (y > 0).astype(np.float32)


def multiclass(n: int = 60, d: int = 5, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, _ = regression(n, d, seed)
    W = np.random.default_rng(seed + 1).normal(size=(d, k))
    return X, np.argmax(X @ W, axis=1).astype(np.int32)


def quiet_plan(recipe: str = "dp-sgd", **options: Any) -> Plan:
    """A plan with no noise to speak of."""
    settings = {
        "examples": 60,
        "batch_size": 16,
        "steps": 10,
        "noise_multiplier": NO_NOISE,
        **options,
    }
    if recipe == "dp-gd":
        settings.pop("batch_size")
    return sordino.plan(recipe, **settings)

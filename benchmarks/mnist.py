"""MNIST softmax regression, one epoch, (0.1, 1e-6), zero-out, batch 500, no amplification.

Preprocessing is record-wise: each image is centred by its own mean and scaled to norm 1; no statistic of
the data set is used. Correlated noise (dp-memf) beside independent noise (dp-sgd with fixed batches), each
with its own learning rate, over 20 noise seeds. The settings were found on other seeds and another batch
order; that search is not paid for in epsilon.

    SORDINO_DATA=folder/with/mnist python -m benchmarks.mnist
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sordino
from sordino import Softmax
from sordino.engine import compilation_cache

SEEDS = 20
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp-memf, square-root Toeplitz": (
        "dp-memf",
        {"mechanism": "toeplitz", "momentum": 0.95, "learning_rate": 2.0},
    ),
    "dp-memf, BLT": ("dp-memf", {"mechanism": "blt", "momentum": 0.95, "learning_rate": 2.0}),
    "dp-memf, optimal dense": (
        "dp-memf",
        {"mechanism": "dense", "momentum": 0.95, "learning_rate": 2.0},
    ),
    "independent noise": ("dp-sgd", {"sampling": "fixed", "momentum": 0.9, "learning_rate": 0.7}),
}


def read_idx(path: Path) -> np.ndarray:
    """One gzipped IDX file of unsigned bytes."""
    with gzip.open(path) as file:
        raw = file.read()
    dimensions = raw[3]
    shape = struct.unpack(f">{dimensions}I", raw[4 : 4 + 4 * dimensions])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (rows of norm 1) and labels."""

    def images(name: str) -> np.ndarray:
        x = (
            read_idx(folder / f"{name}-images-idx3-ubyte.gz").reshape(-1, 784).astype(np.float32)
            / 255
        )
        x -= x.mean(axis=1, keepdims=True)
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)

    def labels(name: str) -> np.ndarray:
        return read_idx(folder / f"{name}-labels-idx1-ubyte.gz").astype(np.int32)

    return images("train"), labels("train"), images("t10k"), labels("t10k")


@compilation_cache()
def main(order_seed: int = 20) -> list[dict[str, object]]:
    """Train 20 models per setting; print a table and return its rows."""
    root = os.environ.get("SORDINO_DATA")
    if root is None:
        sys.exit("set SORDINO_DATA to the folder that holds mnist/")
    X, y, X_test, y_test = load(Path(root) / "mnist")
    rows = []
    for name, (recipe, options) in SETTINGS.items():
        plan = sordino.plan(
            recipe,
            examples=len(X),
            batch_size=500,
            epochs=1,
            epsilon=0.1,
            delta=1e-6,
            adjacency="zero-out",
            clip=0.3,
            order_seed=order_seed,
            **options,
        )
        accuracies = []
        for seed in range(1000, 1000 + SEEDS):
            result = sordino.train(
                plan, Softmax(10), np.zeros((10, 784)), (X, y), insecure_seed=seed
            )
            W = np.asarray(result.params)
            accuracies.append(100 * np.mean(np.argmax(X_test @ W.T, axis=1) == y_test))
        row = {
            "setting": name,
            "mean accuracy": round(float(np.mean(accuracies)), 2),
            "std": round(float(np.std(accuracies, ddof=1)), 2),
            "worst": round(float(np.min(accuracies)), 2),
            "seeds": SEEDS,
            "guarantee": plan.guarantee.sentence(),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))

"""The task every peer runs, and its data; numpy alone, so all environments see the same arrays.

Logistic regression with a bias on a9a (Adult income, binarised: 32,561 rows, 123 features that are
0 or 1). `load` reads the real file when the environment variable `SORDINO_DATA` names it, and
otherwise makes data of the same size, sparsity and class balance.
"""

import bz2
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

N, D = 32_561, 123
BATCH, EPOCHS = 256, 5
STEPS_PER_EPOCH = -(-N // BATCH)  # 128
STEPS = EPOCHS * STEPS_PER_EPOCH  # 640
RATE = 1.0 / STEPS_PER_EPOCH  # Poisson sampling rate; a batch holds 254.4 rows on average
CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.5

# The number of values each of Adult's 14 attributes takes in a9a: each row has one 1 per attribute.
GROUPS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)


def synthetic(seed: int = 0) -> tuple[Floats, Floats]:
    """Rows of 14 one-hot attributes; 0/1 labels from a noisy linear rule, 24 % of them 1."""
    rng = np.random.default_rng(seed)
    x = np.zeros((N, D), np.float32)
    rows, start = np.arange(N), 0
    for size in GROUPS:
        x[rows, start + rng.choice(size, N, p=rng.dirichlet(np.ones(size)))] = 1.0
        start += size
    score = x @ rng.normal(size=D) + 0.5 * rng.logistic(size=N)
    return x, (score > np.quantile(score, 0.76)).astype(np.float32)


def read_svmlight(path: Path, d: int = D) -> tuple[Floats, Floats]:
    """Dense features and 0/1 labels of an svmlight file with labels -1/+1, bz2 or plain."""
    text = bz2.decompress(path.read_bytes()) if path.suffix == ".bz2" else path.read_bytes()
    lines = [line.split() for line in text.decode("ascii").splitlines() if line.strip()]
    x = np.zeros((len(lines), d), np.float32)
    y = np.zeros(len(lines), np.float32)
    for i, (label, *entries) in enumerate(lines):
        y[i] = float(label) > 0
        for entry in entries:
            column, value = entry.split(":")
            x[i, int(column) - 1] = float(value)
    return x, y


def load() -> tuple[Floats, Floats, str]:
    """Features, labels and the data's name: `a9a` if `SORDINO_DATA` leads to it, else `synthetic`.

    `SORDINO_DATA` is the svmlight file itself, or a folder that has it as `a9a`, `a9a.bz2`,
    `a9a/a9a` or `a9a/a9a.bz2`. A path that leads to no such file is an error, so that a typo does
    not change the data.
    """
    given = os.environ.get("SORDINO_DATA")
    if not given:
        return *synthetic(), "synthetic"
    root = Path(given)
    candidates = [root, *(root / name for name in ("a9a", "a9a.bz2", "a9a/a9a", "a9a/a9a.bz2"))]
    result = next((path for path in candidates if path.is_file()), None)
    if result is None:
        raise FileNotFoundError(f"SORDINO_DATA={given!r} is not a9a, nor a folder with it")
    x, y = read_svmlight(result)
    if x.shape != (N, D):
        raise ValueError(f"{result} holds {x.shape[0]} rows; the training part of a9a has {N}")
    return x, y, "a9a"


def accuracy(x: Floats, y: Floats, weights: Floats, bias: float) -> float:
    """Share of the training rows that the linear rule puts on the right side."""
    return float(((x @ weights + bias > 0) == (y > 0.5)).mean())

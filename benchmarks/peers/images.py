"""The image task every peer runs, and its data; numpy alone, so all environments see the same arrays.

The network of Opacus' MNIST example (26,010 parameters) on 12,800 images of 28 x 28, one epoch of SGD in
batches of 256 (50 steps), learning rate 0.5; the private ones clip each example's gradient to norm 1 and
add Gaussian noise of multiplier 1. The images are synthetic, a random pattern per class with noise: how
long a step takes does not depend on what is in them.
"""

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timing import MIN_REPEATS, timed

BATCH, STEPS = 256, 50
N = BATCH * STEPS
CLIP, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.0, 0.5


def load(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (N, 28, 28) and labels from 0 to 9."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(10, 28, 28))
    labels = rng.integers(0, 10, N)
    images = patterns[labels] + rng.normal(size=(N, 28, 28))
    return images.astype(np.float32), labels


def report(name: str, run: Callable[[], Any], accuracy: Callable[[Any], float]) -> None:
    """Time `run`, which trains from scratch, and print one JSON line; see `timing.report`."""
    fit, cold_cpu, _ = timed(run)
    cpu: list[float] = []
    wall: list[float] = []
    while len(cpu) < MIN_REPEATS:
        fit, c, w = timed(run)
        cpu.append(c)
        wall.append(w)
    line = {
        "name": name,
        "cold_cpu": round(cold_cpu, 4),
        "warm_cpu": round(median(cpu), 4),
        "warm_wall": round(median(wall), 4),
        "steps": STEPS,
        "accuracy": round(accuracy(fit), 4),
    }
    print(json.dumps(line), flush=True)

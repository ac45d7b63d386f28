"""What a checkpoint file and a ledger add to a run: the same run with and without them, in turn.

    python -m benchmarks.durability [seconds] [rounds]

Softmax regression of the size of MNIST (60,000 x 785, ten classes) under `dp-ftrl` and `dp-sgd`, with as
many epochs as take about `seconds`. Most of what is added does not grow with the run, so the difference
between short runs, in turn, says more than the ratio of two long ones on a machine that varies.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import sordino
from sordino import Ledger, Softmax

ROWS, FEATURES, CLASSES, BATCH = 60_000, 785, 10, 500
# Epochs of the runs that the length is guessed from.
PILOT = 30


def timed(recipe: str, epochs: int, data: Any, folder: Path | None) -> tuple[float, float]:
    """Wall and CPU seconds of one run, planning left out; durable if there is a folder for it."""
    plan = sordino.plan(
        recipe, examples=ROWS, batch_size=BATCH, epochs=epochs, noise_multiplier=8.0
    )
    start = np.zeros(Softmax(CLASSES).parameter_shape(FEATURES), np.float32)
    settings: dict[str, Any] = {}
    if folder is not None:
        ledger = Ledger.create(folder / "ledger")
        ledger.add_dataset("people", mu=1e6)
        settings = {"checkpoint": folder / "run", "ledger": folder / "ledger", "dataset": "people"}
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    sordino.train(plan, Softmax(CLASSES), start, data, **settings)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(seconds: str = "8", rounds: str = "6") -> None:
    """Print one JSON object per recipe."""
    rng = np.random.default_rng(0)
    data = (
        rng.normal(size=(ROWS, FEATURES)).astype(np.float32) / np.float32(28),
        rng.integers(0, CLASSES, ROWS).astype(np.int32),
    )
    for recipe in ("dp-ftrl", "dp-sgd"):
        timed(recipe, PILOT, data, None)
        pilot, _ = timed(recipe, PILOT, data, None)
        epochs = max(2, round(PILOT * float(seconds) / pilot))
        walls, processors, lengths = [], [], []
        with tempfile.TemporaryDirectory() as root:
            for number in range(int(rounds)):
                plain = timed(recipe, epochs, data, None)
                folder = Path(root) / str(number)
                folder.mkdir()
                durable = timed(recipe, epochs, data, folder)
                walls.append(durable[0] - plain[0])
                processors.append(durable[1] - plain[1])
                lengths.append(plain[0])
        result = {
            "recipe": recipe,
            "steps": epochs * ROWS // BATCH,
            "seconds without": round(median(lengths), 1),
            "more wall seconds": round(median(walls), 2),
            "more CPU seconds": round(median(processors), 2),
            "more CPU, of a run of 60 s, in percent": round(median(processors) / 0.6, 2),
        }
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])

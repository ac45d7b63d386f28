"""What a checkpoint file and a ledger add to a run: the same run with and without them, in turn.

    python -m benchmarks.durability [seconds] [rounds]

Softmax regression of the size of MNIST (60,000 x 785, ten classes) under `dp-ftrl` and `dp-sgd`, with as
many epochs as take about `seconds`. A ratio is the median over rounds of the ratio within a round.
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
from sordino.ledger import Ledger
from sordino.losses import Softmax

ROWS, FEATURES, CLASSES, BATCH = 60_000, 785, 10, 500


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


def main(seconds: str = "60", rounds: str = "3") -> None:
    """Print one JSON object per recipe."""
    rng = np.random.default_rng(0)
    data = (
        rng.normal(size=(ROWS, FEATURES)).astype(np.float32) / np.float32(28),
        rng.integers(0, CLASSES, ROWS).astype(np.int32),
    )
    for recipe in ("dp-ftrl", "dp-sgd"):
        timed(recipe, 2, data, None)
        pilot, _ = timed(recipe, 2, data, None)
        epochs = max(2, round(2 * float(seconds) / pilot))
        walls, processors, plain_walls = [], [], []
        with tempfile.TemporaryDirectory() as root:
            for number in range(int(rounds)):
                plain = timed(recipe, epochs, data, None)
                folder = Path(root) / str(number)
                folder.mkdir()
                durable = timed(recipe, epochs, data, folder)
                walls.append(durable[0] / plain[0])
                processors.append(durable[1] / plain[1])
                plain_walls.append(plain[0])
        found = {
            "recipe": recipe,
            "steps": epochs * ROWS // BATCH,
            "seconds without": round(median(plain_walls), 1),
            "wall time with over without": round(median(walls), 4),
            "CPU time with over without": round(median(processors), 4),
        }
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])

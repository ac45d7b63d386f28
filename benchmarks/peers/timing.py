"""How each peer is timed: a first, cold run, then the median of warm runs in the same process."""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from data import Floats, accuracy

MIN_REPEATS, MIN_SECONDS = 5, 1.0


class Fit(NamedTuple):
    """What one run of the task returns."""

    weights: Floats
    bias: float
    steps: int


def timed(run: Callable[[], Fit]) -> tuple[Fit, float, float]:
    """Return the fit, its CPU seconds (all threads of this process) and its wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    fit = run()
    return fit, time.process_time() - cpu, time.perf_counter() - wall


def report(name: str, run: Callable[[], Fit], x: Floats, y: Floats, data: str) -> None:
    """Time `run` and print one JSON line.

    `run` starts from scratch every time and must return only when its arithmetic is done. Imports
    and loading the data are not timed; the first run carries tracing and compilation, if any. Warm
    runs are repeated at least five times and for at least a second, so that the median of a short
    run means something.
    """
    fit, cold_cpu, _ = timed(run)
    cpu: list[float] = []
    wall: list[float] = []
    while len(cpu) < MIN_REPEATS or sum(wall) < MIN_SECONDS:
        fit, c, w = timed(run)
        cpu.append(c)
        wall.append(w)
    line = {
        "name": name,
        "cold_cpu": round(cold_cpu, 5),
        "warm_cpu": round(median(cpu), 5),
        "warm_wall": round(median(wall), 5),
        "steps": fit.steps,
        "accuracy": round(accuracy(x, y, fit.weights, fit.bias), 4),
        "data": data,
    }
    print(json.dumps(line), flush=True)

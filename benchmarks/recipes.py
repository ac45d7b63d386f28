"""What the recipes cost per step: two gradients against one, and no growth with the run's length.

python -m benchmarks.recipes

CPU seconds per step, warm, alternating between the recipes in one run, so that ratios hold on a busy
machine; the median of several rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import jax
import numpy as np
from tests.support.windows import reconstruct

import sordino
from sordino import Logistic, RunKey, Softmax
from sordino.engine import TrainingRun
from sordino.planning.recipes import RECIPES

ROUNDS = 7


def seconds_per_step(plan: Any, loss: Any, params: Any, data: Any) -> float:
    """CPU seconds per step of one run, without planning and without preparing the data."""
    run = TrainingRun(plan, loss, params, data, key=RunKey.from_insecure_seed(0))
    jax.block_until_ready(run.output())
    began = time.process_time()
    while not run.finished:
        run.advance()
    jax.block_until_ready(run.output())
    return (time.process_time() - began) / run.steps


def two_gradients() -> dict[str, float]:
    """Softmax regression, d = 7,850, batches of 500: each recipe against dp-sgd on fixed batches."""
    rng = np.random.default_rng(0)
    n = 10_000
    X = rng.normal(size=(n, 785)).astype(np.float32) / 28
    y = rng.integers(0, 10, n).astype(np.int32)
    start = np.zeros((10, 785), np.float32)
    common: dict[str, Any] = {
        "examples": n,
        "batch_size": 500,
        "steps": 200,
        "noise_multiplier": 1.0,
    }
    ways: dict[str, dict[str, Any]] = {
        "dp-sgd": {"sampling": "fixed"},
        "dp-srm": {"sampling": "fixed"},
        "dp-mu2": {},
        "dp-srgd": {"mechanism": "blt"},
        "dp-srg-memf": {"mechanism": "blt"},
        "dp-nsgd": {"mechanism": "blt"},
        "dp-nsgd-sr": {"mechanism": "blt"},
        "dp-nsgd-sr, anchored": {"mechanism": "blt", "form": "anchored"},
    }
    plans = {
        name: sordino.plan(name.split(",")[0], **common, **options)
        for name, options in ways.items()
    }
    times: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(ROUNDS + 1):
        for name, plan in plans.items():
            times[name].append(seconds_per_step(plan, Softmax(10), start, (X, y)))
    base = times["dp-sgd"][1:]
    result = {"dp-sgd, CPU microseconds per step": round(1e6 * median(base), 1)}
    for name in list(plans)[1:]:
        ratios = [t / b for t, b in zip(times[name][1:], base, strict=True)]
        gradients = plans[name].contribution.gradients
        result[f"{name} ({gradients} gradients) over dp-sgd"] = round(median(ratios), 2)
    return result


def long_runs() -> dict[str, float]:
    """dp-nsgd-sr (logistic, d = 123, 20 batches of 64, tree): 1e5 steps against 1e3, per step."""
    rng = np.random.default_rng(0)
    n, lag = 1280, 20
    X = rng.normal(size=(n, 123)).astype(np.float32) / 11
    y = (X[:, 0] > 0).astype(np.float32)
    start = np.zeros(123, np.float32)

    def make(steps: int) -> Any:
        return sordino.plan(
            "dp-nsgd-sr",
            examples=n,
            batch_size=64,
            steps=steps,
            noise_multiplier=1.0,
            mechanism="tree",
        )

    short, long = make(1_000), make(100_000)
    ratios, per_step = [], []
    for _ in range(4):
        # As much work on either side: a hundred short runs against one long one.
        few = [seconds_per_step(short, Logistic(), start, (X, y)) for _ in range(20)]
        many = seconds_per_step(long, Logistic(), start, (X, y))
        ratios.append(many / median(few))
        per_step.append(many)
    result = {
        "dp-nsgd-sr, CPU microseconds per step at T = 1e5": round(1e6 * median(per_step[1:]), 1),
        "per step, T = 1e5 over T = 1e3": round(median(ratios[1:]), 3),
    }
    # The printed reconstruction reads the nodes of all earlier epochs in every step.
    for t in (1_000, 10_000, 100_000):
        nodes = _AnyNode(np.zeros(123))
        began = time.process_time()
        for _ in range(3):
            reconstruct(nodes, nodes, t, lag, 0.9, 0.1)
        spent = 1e3 * (time.process_time() - began) / 3
        result[f"printed reconstruction, CPU milliseconds at t = {t:,}"] = round(spent, 2)
    return result


class _AnyNode(dict[Any, Any]):
    """Stands for all nodes ever released; only the reads are timed."""

    def __init__(self, value: np.ndarray) -> None:
        super().__init__()
        self._value = value

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: object) -> np.ndarray:
        return self._value


def comparing() -> dict[str, float]:
    """`sordino plan --compare` over all recipes, from an empty cache and from a warm one."""
    import os
    import tempfile

    command = [
        sys.executable, "-m", "sordino", "plan", "--compare", "--examples", "60000", "--batch-size",
        "500", "--epochs", "10", "--epsilon", "1", "--delta", "1e-6", "--json",
    ]  # fmt: skip
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "cached"):
            began = time.perf_counter()
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, "XDG_CACHE_HOME": folder},
            )
            result[f"plan --compare, {name}, seconds"] = round(time.perf_counter() - began, 2)
    ranked = {row["recipe"] for row in json.loads(done.stdout)["ranked"]}
    result["private recipes ranked"] = len(ranked)
    result["private recipes"] = sum(recipe.private for recipe in RECIPES.values())
    return result


def main() -> None:
    for part in (two_gradients, long_runs, comparing):
        print(json.dumps(part(), indent=1), flush=True)


if __name__ == "__main__":
    main()

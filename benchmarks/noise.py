"""What discrete noise costs: draws per second, and a step beside one with Gaussian noise.

CPU time, warm, alternating between the two kinds; ratios are medians over rounds.

    python -m benchmarks.noise [rounds]
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import jax
import numpy as np

import sordino
from sordino import LinearLoss, Logistic, RunKey, Softmax
from sordino.engine import TrainingRun
from sordino.parts.mechanisms import (
    ChaCha20Generator,
    discrete_gaussian,
    gaussian_key,
    standard_normal_rows,
)

DRAWS = 1_000_000
ROUNDS = 7


def draws_per_second(variance: int, count: int) -> float:
    """Exact draws per CPU second, asked for `count` at a time."""
    source = ChaCha20Generator(bytes(32))
    discrete_gaussian(variance, count, source)  # the table is made once for each sigma
    rates = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(DRAWS // count):
            discrete_gaussian(variance, count, source)
        rates.append((DRAWS // count) * count / (time.process_time() - began))
    return median(rates)


def normals_per_second(count: int) -> float:
    """The same of the compiled float32 generator."""
    key = gaussian_key(RunKey.fresh(), "gradient")
    rows = DRAWS // count
    draw = jax.jit(lambda first: standard_normal_rows(key, first, rows, count))
    draw(0).block_until_ready()
    rates = []
    for i in range(5):
        began = time.process_time()
        draw(i * rows).block_until_ready()
        rates.append(rows * count / (time.process_time() - began))
    return median(rates)


class Case:
    """One model, planned with both kinds of noise."""

    def __init__(self, loss: LinearLoss, features: int, examples: int, batch: int, steps: int):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(examples, features)).astype(np.float32) / np.sqrt(features)
        kind: Any = np.int32 if isinstance(loss, Softmax) else np.float32
        classes = loss.classes if isinstance(loss, Softmax) else 2
        self.loss, self.data = loss, (X, rng.integers(0, classes, examples).astype(kind))
        self.start = np.zeros(loss.parameter_shape(features), np.float32)
        self.plans = {
            noise: sordino.plan(
                "dp-sgd",
                examples=examples,
                batch_size=batch,
                steps=steps,
                noise_multiplier=1.0,
                noise=noise,
                sampling="fixed",
            )
            for noise in ("gaussian", "discrete")
        }

    def seconds_per_step(self, noise: str) -> float:
        """CPU seconds of one step, without compilation and preparation."""
        plan = self.plans[noise]
        run = TrainingRun(plan, self.loss, self.start, self.data, key=RunKey.fresh())
        began = time.process_time()
        while not run.finished:
            run.advance()
        jax.block_until_ready(run.output())
        return (time.process_time() - began) / plan.population.steps


def main(rounds: int = ROUNDS) -> None:
    """Print the tables."""
    print("exact discrete Gaussian draws, millions per CPU second")
    for name, count in (
        ("1,000,000 at once", DRAWS),
        ("7,850 at once", 7850),
        ("124 at once", 124),
    ):
        rates = [draws_per_second(variance, count) / 1e6 for variance in (1, 2**20, 2**44)]
        shown = "  ".join(f"{rate:6.2f}" for rate in rates)
        print(f"  {name:>18}: {shown}   (sigma 1, 2^10, 2^22)")
    print(f"  float32 Gaussian, rows of 7,850: {normals_per_second(7850) / 1e6:.1f}")
    cases = {
        "softmax regression, d = 7,850, batch 500": Case(Softmax(10), 785, 20_000, 500, 100),
        "logistic regression, d = 124, batch 256 (a9a's size)": Case(
            Logistic(), 124, 32_561, 256, 640
        ),
    }
    for name, case in cases.items():
        for noise in case.plans:
            case.seconds_per_step(noise)
        times = [[case.seconds_per_step(noise) for noise in case.plans] for _ in range(rounds)]
        gaussian, discrete = (median(column) * 1e3 for column in zip(*times, strict=True))
        ratio = median(b / a for a, b in times)
        print(f"{name}: {gaussian:.3f} -> {discrete:.3f} ms of CPU per step, {ratio:.2f} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""One measurement of experiment H: what a step, a round, a plan or an audit takes at one size.

    python -m benchmarks.growth '{"part": "train", "recipe": "dp-sgd", "examples": 4096, "repeats": 3}'

A process of its own for each, so that its peak memory is its own. Prints one line of JSON: ``cpu_ms``
(one CPU time for each repeat, of one step, round, plan or audit, in milliseconds; the first run of a
program, which compiles, is left out), ``memory_mb`` (the peak of the whole process), where there is
something to compare with ``overhead`` (over a run without privacy, the two in turn), and ``counted``:
what follows from the sizes alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np

import sordino
from sordino import Logistic, RunKey
from sordino.engine import TrainingRun

# A repeat is the median of as many runs as take so long: single short ones say little.
_LEAST_SECONDS = 0.15
# Rows that are made at a time, so that making them does not decide the peak.
_AT_ONCE = 8192
_NONCE = "bench"


def peak_mb() -> float:
    """The largest memory that this process ever had, in MB of 1e6 bytes.

    Not `getrusage`: on Linux a process inherits that figure from the one that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
        return 1024 * int(line.split()[1]) / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def rows_of(examples: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of norm about 1, and labels."""
    rng = np.random.default_rng(0)
    X = np.empty((examples, features), np.float32)
    for first in range(0, examples, _AT_ONCE):
        part = X[first : first + _AT_ONCE]
        rng.standard_normal(out=part, dtype=np.float32)
        part /= np.float32(np.sqrt(features))
    return X, (X[:, 0] > 0).astype(np.float32)


def step_seconds(plan: Any, start: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> float:
    """CPU seconds per step, once the rows lie in their order.

    `benchmarks.recipes.seconds_per_step` does not wait for that copy, which grows with the rows.
    """
    run = TrainingRun(plan, Logistic(), start, data, key=RunKey.from_insecure_seed(0))
    jax.block_until_ready((run.output(), run.driver.records))
    began = time.process_time()
    while not run.finished:
        run.advance()
    jax.block_until_ready(run.output())
    return (time.process_time() - began) / run.steps


def train(
    recipe: str,
    examples: int,
    features: int,
    batch: int,
    steps: int,
    repeats: int,
    options: dict[str, Any],
    against: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Steps of logistic regression; `against` names the recipe that they are compared with."""
    sizes: dict[str, Any] = {"examples": examples, "batch_size": batch, "steps": steps}
    noise: dict[str, Any] = {"noise_multiplier": 1.0} if recipe != "sgd" else {}
    plan = sordino.plan(recipe, **sizes, **noise, **options)
    other = None if against is None else sordino.plan(**against, **sizes)
    data, start = rows_of(examples, features), np.zeros(features, np.float32)

    def once(made: Any) -> float:
        result: list[float] = []
        while not result or sum(result) * made.population.steps < _LEAST_SECONDS:
            result.append(step_seconds(made, start, data))
        return 1e3 * median(result)

    cpu, ratios = [], []
    for repeat in range(repeats + 1):
        mine = once(plan)
        plain = None if other is None else once(other)
        if repeat:  # the first compiles
            cpu.append(mine)
            ratios += [] if plain is None else [mine / plain]
    return {
        "cpu_ms": cpu,
        "memory_mb": peak_mb(),
        "overhead": ratios,
        "plan_hash": plan.hash,
        "guarantee": plan.guarantee.sentence() if recipe != "sgd" else "none",
        "steps": plan.population.steps,
        "counted": {
            "gradients": plan.gradient_evaluations,
            "state_kb": plan.state_bytes(features) / 1e3,
        },
    }


def federated(
    clients: int,
    per_client: int,
    features: int,
    rounds: int,
    repeats: int,
    trust: str = "untrusted",
) -> dict[str, Any]:
    """Simulated rounds, in each of which every client sends one example that it has not used yet."""
    from sordino.together.federated import agree, simulate, split

    X, y = rows_of(clients * per_client, features)
    built = agree(
        clients=clients,
        parameters=features,
        rounds=rounds,
        epsilon=4.0,
        trust=trust,
        nonce=_NONCE,
    )
    parts, start = split(X, y, clients, seed=0), np.zeros(features, np.float32)
    cpu = []
    for repeat in range(repeats + 1):
        began = time.process_time()
        simulate(built, Logistic(), start, parts, insecure_seed=repeat)
        cpu.append(1e3 * (time.process_time() - began) / rounds)
    return {
        "cpu_ms": cpu[1:],
        "memory_mb": peak_mb(),
        "plan_hash": built.digest,
        "guarantee": built.guarantee.sentence(),
        "steps": rounds,
        "counted": {"gradients": 2 * rounds * built.divisor},
    }


def planning(
    recipe: str, steps: int, epochs: int, repeats: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Plans of batches of 500; each is of a few steps more than the last, so nothing is remembered."""

    def make(count: int) -> Any:
        return sordino.plan(
            recipe,
            examples=500 * count // epochs,
            batch_size=500,
            steps=count,
            epsilon=1.0,
            delta=1e-10,
            **options,
        )

    make(20 * epochs)  # what is imported on the way
    cpu = []
    for repeat in range(repeats):
        began = time.process_time()
        plan = make(steps - repeat * epochs)
        cpu.append(1e3 * (time.process_time() - began))
    plan = make(steps)
    return {
        "cpu_ms": cpu,
        "memory_mb": peak_mb(),
        "plan_hash": plan.hash,
        "guarantee": plan.guarantee.sentence(),
        "steps": steps,
        "counted": {"gradients": plan.gradient_evaluations},
    }


def audit(recipe: str, runs: int, repeats: int, options: dict[str, Any]) -> dict[str, Any]:
    """White-box audits of the recipe's small reference plan, so many runs with and without."""
    from sordino.audit import reference_plan, white_box

    plan = reference_plan(recipe, **options)
    cpu = []
    for repeat in range(repeats + 1):
        began = time.process_time()
        white_box(plan, runs=runs, seed=repeat)
        cpu.append(1e3 * (time.process_time() - began))
    return {
        "cpu_ms": cpu[1:],
        "memory_mb": peak_mb(),
        "plan_hash": plan.hash,
        "guarantee": plan.guarantee.sentence(),
        "steps": plan.population.steps,
        "counted": {},
    }


def peer(contender: str, environments: str, repeats: int) -> dict[str, Any]:
    """One of the contenders of `benchmarks.speed` and Sordino in turn, each in a process of its own.

    Nothing but ``missing`` comes back where there is no environment for the contender.
    """
    from benchmarks.speed import CONTENDERS, run

    def once(name: str) -> dict[str, float] | None:
        return run(Path(environments), *CONTENDERS[name])

    return _in_turn(once, contender, "sordino, Poisson batches", repeats)


def network(contender: str, environments: str, repeats: int) -> dict[str, Any]:
    """The same for the convolutional network of `benchmarks.cnn`."""
    from benchmarks.cnn import CONTENDERS, OURS, run

    def once(name: str) -> dict[str, float] | None:
        where = CONTENDERS[name][0]
        python = Path(environments) / where / "bin" / "python"
        if where != "here" and not python.exists():
            return None
        return run(str(python), 1, *CONTENDERS[name])

    return _in_turn(once, contender, OURS, repeats)


def _in_turn(
    once: Callable[[str], dict[str, float] | None], contender: str, ours: str, repeats: int
) -> dict[str, Any]:
    cpu, ratios, steps = [], [], 0
    for _ in range(repeats):
        theirs = once(contender)
        mine = None if theirs is None else once(ours)
        if theirs is None or mine is None:
            return {"missing": contender}
        steps = int(theirs["steps"])
        cpu.append(1e3 * theirs["warm_cpu"] / steps)
        ratios.append(theirs["warm_cpu"] / mine["warm_cpu"])
    return {"cpu_ms": cpu, "over_sordino": ratios, "steps": steps, "counted": {}}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "train": train,
    "federated": federated,
    "planning": planning,
    "audit": audit,
    "peer": peer,
    "network": network,
}


def main(text: str) -> None:
    """Measure what the JSON says."""
    from sordino.engine import compilation_cache

    given = json.loads(text)
    with compilation_cache():
        print(json.dumps(PARTS[given.pop("part")](**given)))


if __name__ == "__main__":
    main(sys.argv[1])

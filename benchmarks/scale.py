"""Scale: planning time, memory of long runs, and what correlated noise costs per step.

python -m benchmarks.scale
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from statistics import median

import numpy as np

import sordino
from sordino import Softmax

FEATURES, CLASSES = 784, 10  # d = 7,840, and 7,850 with a bias


def problem(n: int, bias: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Random rows and labels of the right shape."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, FEATURES + bias)).astype(np.float32) / 28
    return X, rng.integers(0, CLASSES, n).astype(np.int32)


def planning() -> dict[str, float]:
    """CPU seconds to plan a million BLT steps: one epoch, and a hundred."""
    result = {}
    for epochs in (1, 100):
        began = time.process_time()
        sordino.plan(
            "dp-memf",
            examples=500_000_000 // epochs,
            batch_size=500,
            steps=1_000_000,
            epsilon=1.0,
            delta=1e-10,
            mechanism="blt",
        )
        result[f"plan 1e6 BLT steps, {epochs} epochs, CPU s"] = round(
            time.process_time() - began, 2
        )
    return result


def memory(steps: int = 100_000) -> dict[str, float]:
    """Peak memory of a whole process that trains `steps` steps at d = 7,850 (small batches)."""
    X, y = problem(2000)
    plan = sordino.plan(
        "dp-memf",
        examples=2000,
        batch_size=20,
        steps=steps,
        epsilon=1.0,
        delta=1e-6,
        mechanism="blt",
    )
    began = time.process_time()
    sordino.train(plan, Softmax(CLASSES), np.zeros((CLASSES, FEATURES + 1)), (X, y))
    return {
        "steps": steps,
        "peak memory, GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
        "CPU s": round(time.process_time() - began, 1),
    }


def noise_cost() -> dict[str, float]:
    """CPU time of softmax regression (d = 7,850, batch 500) with BLT against independent noise."""
    X, y = problem(10_000)
    seconds: dict[str, list[float]] = {"independent": [], "blt": []}
    plans = {
        name: sordino.plan(
            "dp-memf",
            examples=10_000,
            batch_size=500,
            steps=400,
            noise_multiplier=1.0,
            mechanism=name,
        )
        for name in seconds
    }
    for repeat in range(6):
        for name, plan in plans.items():
            began = time.process_time()
            sordino.train(plan, Softmax(CLASSES), np.zeros((CLASSES, FEATURES + 1)), (X, y))
            if repeat:  # the first compiles
                seconds[name].append(time.process_time() - began)
    result = {name: median(values) for name, values in seconds.items()}
    return {
        **{f"{name}, CPU s": round(value, 3) for name, value in result.items()},
        "BLT / independent": round(result["blt"] / result["independent"], 3),
    }


FIRST_CALL = """
import time
import numpy as np
import sordino
from sordino.parts._losses import Logistic
from sordino.engine._compilation import compilation_cache
sordino.plan, sordino.train
X = np.random.default_rng(0).normal(size=(32561, 124)).astype(np.float32)
y = (X[:, 0] > 0).astype(np.float32)
plan = sordino.plan("dp-sgd", examples=32561, batch_size=256, epochs=5, noise_multiplier=1.0, sampling="fixed")
began = time.process_time()
with compilation_cache():
    sordino.train(plan, Logistic(), np.zeros(124, np.float32), (X, y))
print(time.process_time() - began)
"""


def child_cpu(code: str) -> tuple[float, str]:
    """CPU seconds of a new process that runs `code`, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def starting() -> dict[str, float]:
    """Import time against `import jax`, and the first call with a warm compilation cache."""
    child_cpu(FIRST_CALL)  # fills the cache
    jax, ours = [], []
    for _ in range(5):
        jax.append(child_cpu("import jax")[0])
        ours.append(child_cpu("import sordino")[0])
    everything = median(
        child_cpu("import sordino; sordino.plan; sordino.train")[0] for _ in range(3)
    )
    first = median(float(child_cpu(FIRST_CALL)[1]) for _ in range(5))
    return {
        "import sordino / import jax": round(median(ours) / median(jax), 3),
        "import and resolve plan, train / import jax": round(everything / median(jax), 3),
        "first train() of a process, cache warm, CPU s": round(first, 3),
    }


def main() -> None:
    """Run everything; memory in a process of its own, so that its peak is its own."""
    for part in (planning, noise_cost, starting):
        print(json.dumps({part.__name__: part()}), flush=True)
    code = (
        "from benchmarks.scale import memory; import json; print(json.dumps({'memory': memory()}))"
    )
    print(child_cpu(code)[1].strip())


if __name__ == "__main__":
    main()

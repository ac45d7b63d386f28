"""Speed beside the peers: logistic regression, n=32,561, d=123, batch 256, 5 epochs, CPU seconds.

Every contender runs in its own process, pinned to one core with one thread, interleaved over several
rounds; a ratio is the median over rounds. CPU time, so a busy machine matters less.

    bash benchmarks/peers/setup.sh .bench          # the peers' environments, once
    python -m benchmarks.speed .bench [rounds]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

PEERS = Path(__file__).parent / "peers"
CONTENDERS = {
    "sordino, fixed batches": ("here", "sordino_logistic.py", "fixed"),
    "sordino, rows as given": ("here", "sordino_logistic.py", "given"),
    "sordino, Poisson batches": ("here", "sordino_logistic.py", "poisson"),
    "the same loop without privacy": ("here", "plain_jax_logistic.py", "--shuffle"),
    "... with rows as given": ("here", "plain_jax_logistic.py"),
    "jax-privacy loop, as in its example": (
        "jaxprivacy",
        "jax_privacy_logistic.py",
        "--gather",
        "eager",
    ),
    "jax-privacy loop, gather compiled": ("jaxprivacy", "jax_privacy_logistic.py"),
    "Opacus with DataLoader": ("opacus", "opacus_logistic.py"),
    "Opacus, tensors indexed by hand": ("opacus", "opacus_logistic.py", "--loader", "index"),
}


def one_thread() -> dict[str, str]:
    """An environment in which numerical libraries use one thread."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(names, "1"),
        "JAX_PLATFORMS": "cpu",
        "PYTHONWARNINGS": "ignore",
    }


def run(environments: Path, where: str, script: str, *arguments: str) -> dict[str, float] | None:
    """One process; None if its environment is missing."""
    python = sys.executable if where == "here" else str(environments / where / "bin" / "python")
    if not Path(python).exists():
        return None
    command = [python, str(PEERS / script), *arguments]
    if sys.platform == "linux":
        command = ["taskset", "-c", "0", *command]
    done = subprocess.run(command, env=one_thread(), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(folder: str = ".bench", rounds: str = "3") -> dict[str, float]:
    """Run all contenders; print a table of CPU seconds and how many times sordino is faster."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(int(rounds)):
        for name, (where, *rest) in CONTENDERS.items():
            line = run(Path(folder), where, *rest)
            if line is not None:
                seconds[name].append(line["warm_cpu"])
    result = {name: median(values) for name, values in seconds.items()}
    ours = result["sordino, fixed batches"]
    print(f"{'':38} {'CPU s':>8} {'x sordino':>10}")
    for name, value in result.items():
        print(f"{name:38} {value:8.4f} {value / ours:10.2f}")
    for mine, plain in (
        ("sordino, fixed batches", "the same loop without privacy"),
        ("sordino, rows as given", "... with rows as given"),
    ):
        print(f"{mine}: privacy costs {result[mine] / result[plain]:.2f} x")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])

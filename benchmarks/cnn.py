"""A private step of the MNIST CNN (26,010 parameters, batch 256) beside Opacus, warm, CPU seconds.

Each contender runs in its own process, all of them in turn over several rounds; a ratio is the median over
rounds of the ratios within a round. First on one core with one thread, then on two.

    bash benchmarks/peers/setup.sh .bench          # the peers' environments, once
    python -m benchmarks.cnn .bench/opacus/bin/python [rounds]
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
    "Opacus, hooks": ("opacus", "opacus_cnn.py"),
    "sordino": ("here", "sordino_cnn.py"),
    "Opacus, ghost clipping": ("opacus", "opacus_cnn.py", "--mode", "ghost"),
    "torch, no privacy": ("opacus", "opacus_cnn.py", "--mode", "plain"),
}
REFERENCE, OURS = "Opacus, hooks", "sordino"


def run(opacus: str, cores: int, where: str, script: str, *arguments: str) -> dict[str, float]:
    """One process on the first `cores` cores."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {
        **os.environ,
        **dict.fromkeys(threads, str(cores)),
        "JAX_PLATFORMS": "cpu",
        "PYTHONWARNINGS": "ignore",
    }
    command = [opacus if where == "opacus" else sys.executable, str(PEERS / script), *arguments]
    if sys.platform == "linux":
        command = ["taskset", "-c", f"0-{cores - 1}", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main(opacus: str = ".bench/opacus/bin/python", rounds: str = "3") -> dict[int, float]:
    """Print a table for one core and one for two; return our CPU time over Opacus' for each."""
    if not Path(opacus).exists():
        sys.exit(f"there is no {opacus}; make the environment with benchmarks/peers/setup.sh")
    ratios = {}
    for cores in (1, 2):
        lines: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(int(rounds)):
            for name, (where, *rest) in CONTENDERS.items():
                lines[name].append(run(opacus, cores, where, *rest))
        print(
            f"{f'50 steps, {cores} core(s)':28} {'CPU s':>8} {'wall s':>8} {'x Opacus':>9} {'cold':>7}"
        )
        for name, result in lines.items():
            pairs = zip(result, lines[REFERENCE], strict=True)
            ratio = median(line["warm_cpu"] / other["warm_cpu"] for line, other in pairs)
            cpu, wall, cold = (
                median(line[key] for line in result)
                for key in ("warm_cpu", "warm_wall", "cold_cpu")
            )
            print(f"{name:28} {cpu:8.3f} {wall:8.3f} {ratio:9.2f} {cold:7.2f}")
            if name == OURS:
                ratios[cores] = ratio
    return ratios


if __name__ == "__main__":
    main(*sys.argv[1:])

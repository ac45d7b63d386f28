"""What things take: CPU time and peak memory, each measured in a process of its own.

A cell calls ``python -m benchmarks.growth`` in the checkout, with the population's options and the
contender's settings joined (`part` among them says what is measured). Each repeat is a run of the cell.
Times and memory are measures of the kind that is never twice the same; what follows from the sizes alone
(gradients, bytes of state) is counted, and is always the same.

Peers need environments of their own (benchmarks/peers/README.md), in the folder that ``SORDINO_PEERS``
names, or `.bench`. Where one is missing its row is left out, and the settings say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.lab.cells import Cell
from benchmarks.lab.tasks.outside import checkout, environments
from sordino import SordinoError
from sordino._base.errors import shown

_PROGRAM = "benchmarks.growth"
# Parts that run other libraries.
_BESIDE = ("peer", "network")
# Figures of single repeats.
_REPEATED = ("cpu_ms", "overhead", "over_sordino")


def run_cell(cell: Cell, folder: str | None) -> dict[str, Any]:
    """Measure a cell, so many times as it has seeds."""
    root = checkout("growth.py")
    first, count = cell.seeds
    given = {**cell.population.options, **cell.settings}
    given.setdefault("repeats", count)
    if given.get("part") in _BESIDE:
        given["environments"] = str(environments(root))
    result = measured(given, root, folder)
    if "missing" in result:
        why = f"the environment of {result['missing']} is not there"
        return {**_NOTHING, "runs": [{"seed": first}], "facts": {"left out": why}}
    shared = {**result["counted"], **_memory(result)}
    columns = {name: result[name] for name in _REPEATED if result.get(name)}
    return {
        "plan_hash": result.get("plan_hash", ""),
        "guarantee": result.get("guarantee", "none"),
        "steps": result["steps"],
        "runs": [
            {"seed": first + i, **shared, **{name: values[i] for name, values in columns.items()}}
            for i in range(len(result["cpu_ms"]))
        ],
    }


_NOTHING: dict[str, Any] = {"plan_hash": "", "guarantee": "none", "steps": 0}


def measured(given: dict[str, Any], root: Path, folder: str | None) -> dict[str, Any]:
    """What ``benchmarks.growth`` says in the checkout at `root`."""
    data = {} if folder is None else {"SORDINO_DATA": folder}
    done = subprocess.run(
        [sys.executable, "-m", _PROGRAM, json.dumps(given)],
        cwd=root,
        env={**os.environ, **data},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SordinoError(f"measuring {shown(given)} failed: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _memory(found: dict[str, Any]) -> dict[str, float]:
    return {"memory_mb": found["memory_mb"]} if "memory_mb" in found else {}

"""Kills real training processes at random instants, and searches what is on disk after each.

``python -m tests.engine.killing FOLDER RECIPE KILLS SEED`` prints one JSON line. Processes are forked
from one that has imported everything and computed nothing, which saves most of their start. A run is
killed up to three times and then left to reach its end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._version import code_digest
from tests.engine.crashing import RESULT, prepare, run

SECRETS = "secrets.npz"
# A float32 sum may differ in its last bits from the one that a test computes.
CLOSE = 3e-5
# Three neighbouring numbers are all this close by chance once in 1e14 comparisons or less.
NEIGHBOURS = 3


def find_rows(raw: bytes, secrets: NDArray[np.float32]) -> int:
    """How many rows of `secrets` (rows, numbers) begin with three numbers that `raw` has in a row.

    As floats of either size, at any alignment, and up to rounding.
    """
    found = 0
    rows = np.asarray(secrets, np.float64)[:, :NEIGHBOURS]
    rows = rows[np.all(np.abs(rows) > 1e-6, axis=1)]
    for dtype in (np.float32, np.float64):
        width = np.dtype(dtype).itemsize
        for offset in range(width):
            usable = (len(raw) - offset) // width * width
            if usable < NEIGHBOURS * width:
                continue
            with np.errstate(all="ignore"):
                values = np.frombuffer(raw[offset : offset + usable], dtype).astype(np.float64)
                first = np.abs(values[: 1 - NEIGHBOURS])
                order = np.argsort(first)
                sizes = first[order]
                low = np.searchsorted(sizes, np.abs(rows[:, 0]) * (1 - CLOSE))
                high = np.searchsorted(sizes, np.abs(rows[:, 0]) * (1 + CLOSE))
                for i in np.flatnonzero(high > low):
                    windows = values[order[low[i] : high[i], None] + np.arange(NEIGHBOURS)]
                    near = np.abs(windows - rows[i]) <= CLOSE * np.abs(rows[i])
                    found += int(np.any(np.all(near, axis=1)))
    return found


def leaks(folder: Path, secrets: dict[str, Any]) -> list[str]:
    """Which secrets lie in which file of `folder`."""
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        raw = path.read_bytes()
        for name, values in secrets.items():
            if values.dtype == np.uint8:
                if values.tobytes() in raw:
                    found.append(f"{name} in {path.name}")
            elif find_rows(raw, values):
                found.append(f"{name} in {path.name}")
    return found


def start(folder: Path, recipe: str) -> int:
    """A forked process that trains."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        from sordino.engine._compilation import compilation_cache

        with compilation_cache():
            run(folder, recipe)
        status = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def ended_by_itself(child: int, after: float) -> bool:
    """Kill `child` after that many seconds; whether it had ended well before."""
    deadline = time.monotonic() + after
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status):
                sys.exit("a training process failed")
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def trials(
    folder: Path, recipe: str, kills: int, chance: random.Random, secrets: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Run after run, each killed at random instants and then left alone, until there were enough."""
    reference = folder / "reference"
    reference.mkdir()
    prepare(reference)
    began = time.monotonic()
    if not ended_by_itself(start(reference, recipe), 600):
        sys.exit("the reference run did not end")
    length = time.monotonic() - began
    began = time.monotonic()
    warm = folder / "warm"
    warm.mkdir()
    prepare(warm)
    if not ended_by_itself(start(warm, recipe), 600):
        sys.exit("the second run did not end")
    length = min(length, time.monotonic() - began)  # with programs compiled already
    yield {"run": "warm", "kills": 0, "leaks": leaks(warm, secrets), "result": _result(warm)}
    total, number = 0, 0
    while total < kills:
        mine = folder / f"run-{number}"
        mine.mkdir()
        prepare(mine)
        own, found = 0, []
        for after in [chance.uniform(0, length) for _ in range(chance.randint(1, 3))]:
            own += not ended_by_itself(start(mine, recipe), after)
            found += leaks(mine, secrets)
        if not ended_by_itself(start(mine, recipe), 600):
            sys.exit("a run that was killed did not end afterwards")
        found += leaks(mine, secrets)
        total, number = total + own, number + 1
        yield {"run": mine.name, "kills": own, "leaks": found, "result": _result(mine)}


def _result(folder: Path) -> str:
    return (folder / RESULT).read_bytes().hex()


def main(folder: str, recipe: str, kills: str, seed: str) -> None:
    """Print what happened."""
    where = Path(folder)
    with np.load(where / SECRETS) as file:
        secrets = dict(file)
    (where / SECRETS).unlink()
    code_digest()  # of the code that all of the processes have in memory
    records = list(trials(where, recipe, int(kills), random.Random(int(seed)), secrets))
    print(json.dumps(records))


if __name__ == "__main__":
    main(*sys.argv[1:])

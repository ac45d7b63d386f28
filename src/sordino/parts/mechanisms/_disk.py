"""Dense optima kept on disk: a search takes seconds to minutes, reading it back milliseconds.

Files live in the user's cache folder, under the hash of everything that decides the result: the
workload's numbers, the steps, the separation, the tolerance and the version of the algorithm. They
hold no data and no noise. Delete them at any time, or set SORDINO_CACHE=off.

Privacy never rests on a file. What is read is a matrix like any other: a mechanism rounds it to the
numbers it will multiply, and the sensitivity is computed from those. A file that someone changed
can make the noise worse suited, not smaller than the guarantee needs.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sordino._base.codec import canonical
from sordino._base.files import cache_folder, write_atomically
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._dense import ALGORITHM_VERSION, DenseResult, optimize_dense
from sordino.parts.mechanisms.factorize._linear import workload_matrix

# Shorter searches take less time than looking for their result.
SHORTEST = 64
_FORMAT = "sordino-strategy-1"


def remembered_dense(
    workload: LinearMap | npt.ArrayLike,
    n: int,
    separation: int,
    tolerance: float = 1e-4,
    max_seconds: float = 120.0,
) -> DenseResult:
    """`optimize_dense`, or what it found when it was last asked the same.

    A search that ran out of time is remembered too, and repeated only if it is given more time; of
    two results the one with the smaller gap is kept.
    """
    folder = cache_folder("strategies") if n >= SHORTEST else None
    if folder is None:
        return optimize_dense(
            workload, n, separation=separation, tolerance=tolerance, max_seconds=max_seconds
        )
    path = folder / f"{_key(workload, n, separation, tolerance)}.strategy"
    stored = _read(path, n)
    if stored is not None and (stored[0].gap <= tolerance or stored[1] >= max_seconds):
        return stored[0]
    result = optimize_dense(
        workload, n, separation=separation, tolerance=tolerance, max_seconds=max_seconds
    )
    if stored is not None and stored[0].gap < result.gap:
        result = stored[0]
    with suppress(OSError):  # a full disk costs the time of the next search, nothing else
        write_atomically(path, _written(result, max_seconds))
    return result


def _key(workload: LinearMap | npt.ArrayLike, n: int, separation: int, tolerance: float) -> str:
    """SHA-256 of the whole question."""
    head: dict[str, Any] = {
        "algorithm": ALGORITHM_VERSION,
        "steps": n,
        "separation": separation,
        "tolerance": float(tolerance).hex(),
    }
    if isinstance(workload, Workload):
        head["scale"] = float(workload.scale).hex()
        head["ratios"] = [float(ratio).hex() for ratio in workload.ratios]
        numbers = b""
    else:
        matrix = workload_matrix(workload, n)
        head["shape"] = list(matrix.shape)
        numbers = np.ascontiguousarray(matrix, "<f8").tobytes()
    return hashlib.sha256(canonical(head).encode() + b"\n" + numbers).hexdigest()


def _written(result: DenseResult, seconds: float) -> bytes:
    """One line of JSON, then the lower triangle as little-endian float64."""
    n = len(result.strategy)
    triangle = np.ascontiguousarray(result.strategy[np.tril_indices(n)], "<f8").tobytes()
    head = {
        "format": _FORMAT,
        "steps": n,
        "gap": result.gap,
        "rmse": result.rmse,
        "seconds": float(seconds),
        "sha256": hashlib.sha256(triangle).hexdigest(),
    }
    return json.dumps(head).encode() + b"\n" + triangle


def _read(path: Path, n: int) -> tuple[DenseResult, float] | None:
    """What `_written` wrote and the time it had; None for anything else, which is then replaced."""
    try:
        line, triangle = path.read_bytes().split(b"\n", 1)
        head = json.loads(line)
        if head["format"] != _FORMAT or head["steps"] != n:
            return None
        if head["sha256"] != hashlib.sha256(triangle).hexdigest():
            return None
        strategy = np.zeros((n, n))
        strategy[np.tril_indices(n)] = np.frombuffer(triangle, "<f8")
        result = DenseResult(strategy, float(head["gap"]), float(head["rmse"]))
        seconds = float(head["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = np.isfinite(strategy).all() and (np.diag(strategy) > 0).all()
    return (result, seconds) if sound and np.isfinite(result.gap) else None

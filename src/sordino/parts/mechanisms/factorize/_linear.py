"""Linear workloads of any kind as matrices: Toeplitz, other maps, weighted or not of full rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sordino._base.errors import SordinoError, require_count

Array = npt.NDArray[np.float64]

# A workload whose smallest singular value is below _SINGULAR x the largest leaves some noise free of
# charge; _FLOOR x (its rms column norm) is then charged for the noise of every single step. Honest
# workloads come close: accelerated methods over a thousand steps reach 1e-9.
_SINGULAR = 1e-11
_FLOOR = 1e-3
# Outputs count at least this fraction of the one that counts most, or their noise has no bound.
_LEAST_WEIGHT = 1e-6


def workload_matrix(workload: Any, n: int) -> Array:
    """``W`` with n columns, float64: from `matrix(n)`, from `apply`, or a matrix as it is."""
    n = require_count("n", n)
    if hasattr(workload, "matrix"):
        dense = workload.matrix(n)
    elif hasattr(workload, "apply"):
        dense = workload.apply(np.eye(n))
    else:
        dense = workload
    matrix = np.asarray(dense, np.float64)
    if matrix.ndim != 2 or matrix.shape[1] != n:
        raise SordinoError(f"workload must have {n} columns, got shape {matrix.shape}")
    return matrix


def weighted_rows(matrix: Array, weights: npt.ArrayLike) -> Array:
    """``diag(q)^(1/2) W``, whose mean squared error weighs output t by ``q_t`` (papers/04 2.3).

    Weights below a millionth of the largest count as a millionth of it.
    """
    q = np.asarray(weights, np.float64)
    if q.shape != (len(matrix),) or not np.isfinite(q).all() or (q < 0).any() or not q.any():
        raise SordinoError(
            f"weights must be {len(matrix)} finite numbers of at least 0, not all of them 0"
        )
    return np.sqrt(np.maximum(q, _LEAST_WEIGHT * q.max()))[:, None] * matrix


def completed(matrix: Array) -> Array:
    """`matrix`, with a multiple of the identity below it where its columns are not independent.

    The final loss of a model with fewer parameters than steps, say, leaves combinations of steps
    unjudged, and the best noise there would be infinite. Charging a thousandth of the rms column
    norm for the noise of each step keeps it finite and costs about a thousandth of the error.
    """
    if not np.isfinite(matrix).all() or not matrix.any():
        raise SordinoError("workload must be finite and not all zero")
    n = matrix.shape[1]
    scale = float(np.linalg.norm(matrix)) / np.sqrt(n)
    singular = np.linalg.svd(matrix, compute_uv=False)
    if len(singular) == n and singular[-1] >= _SINGULAR * singular[0]:
        return matrix
    return np.concatenate([matrix, _FLOOR * scale * np.eye(n)])

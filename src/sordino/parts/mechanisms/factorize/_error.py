"""The noise a strategy leaves in a workload, before sensitivity and noise multiplier.

``W C^{-1} Z`` with ``Z`` standard normal has, at step t, the standard deviation of row t of
``W C^{-1}``. A real run multiplies it by sensitivity x clip / (batch x mu).

Workloads of any kind become matrices here: Toeplitz, other maps, weighted or not of full rank.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._toeplitz import inverse_coefficients

Array = npt.NDArray[np.float64]

# A workload whose smallest singular value is below _SINGULAR x the largest leaves some noise free of
# charge; _FLOOR x (its rms column norm) is then charged for the noise of every single step. Honest
# workloads come close: accelerated methods over a thousand steps reach 1e-9.
_SINGULAR = 1e-11
_FLOOR = 1e-3
# Outputs count at least this fraction of the one that counts most, or their noise has no bound.
_LEAST_WEIGHT = 1e-6


def toeplitz_error(strategy_coef: npt.ArrayLike, workload: Workload, n: int) -> Array:
    """Row norms of ``W C^{-1}`` for a Toeplitz strategy, float64[n], in O(n log n)."""
    return noising_error(inverse_coefficients(strategy_coef, n), workload)


def noising_error(noising_coef: npt.ArrayLike, workload: Workload) -> Array:
    """Row norms of ``W C^{-1}`` from the first column of ``C^{-1}``, float64[n], in O(n).

    ``W C^{-1}`` is Toeplitz too, so row t holds its first t + 1 coefficients.
    """
    combined = workload.apply(noising_coef)
    return np.sqrt(np.cumsum(combined**2))


def dense_error(strategy: npt.ArrayLike, workload: LinearMap | npt.ArrayLike) -> Array:
    """Row norms of ``W C^{-1}`` for a lower-triangular float64[n, n] strategy.

    The workload may be any linear map, or a matrix with n columns.
    """
    c = np.asarray(strategy, np.float64)
    if c.ndim != 2 or c.shape[0] != c.shape[1] or np.any(np.triu(c, 1)):
        raise SordinoError(f"strategy must be a lower-triangular matrix, got shape {c.shape}")
    if np.any(np.diag(c) == 0.0):
        raise SordinoError("strategy must have a non-zero diagonal, or it has no inverse")
    w = workload_matrix(workload, len(c))
    # (W C^{-1})' = C^{-T} W'.
    rows: Array = solve_triangular(c, w.T, lower=True, trans="T")
    return np.asarray(np.linalg.norm(rows, axis=0), np.float64)


def rmse(error: npt.ArrayLike, sensitivity: float = 1.0) -> float:
    """``sensitivity * sqrt(mean(error^2))``, the figure strategies are compared by."""
    return float(sensitivity * np.sqrt(np.mean(np.square(error))))


def workload_matrix(workload: LinearMap | npt.ArrayLike, n: int) -> Array:
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

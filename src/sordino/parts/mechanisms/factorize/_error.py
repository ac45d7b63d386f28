"""The noise a strategy leaves in a workload, before sensitivity and noise multiplier.

``W C^{-1} Z`` with ``Z`` standard normal has, at step t, the standard deviation of row t of
``W C^{-1}``. A real run multiplies it by sensitivity x clip / (batch x mu).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._linear import workload_matrix
from sordino.parts.mechanisms.factorize._toeplitz import inverse_coefficients

Array = npt.NDArray[np.float64]


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

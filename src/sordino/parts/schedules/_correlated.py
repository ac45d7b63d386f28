r"""Schedules and correlated noise together (papers/04, section 2.3).

Noise ``C^-1 z`` on the gradients, ``X = C^T C``; to second order the expected final loss is
``bias + tr(W X^-1)`` with ``W_tt = q_t``.

If every record takes part in every step, ``tr(W X^-1) sens^2 >= (sum_t sqrt W_tt)^2`` for *every* X:
the independent schedule of `allocate` attains it, so correlation buys nothing there. For a given
encoder C0 (other participation, other reasons) the rows can still be scaled,
``C = diag(sqrt y) C0``, and the best y under full participation is in closed form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_positive

Array = NDArray[np.float64]


class RowScaling(NamedTuple):
    """Weights y of ``C = diag(sqrt y) C0``, and ``tr(W (C^T C)^-1)`` there."""

    weights: Array
    cost: float


def quadratic_objective(eigenvalues: ArrayLike, eta: float, T: int) -> Array:
    """``W_ts = (eta^2 / 2) sum_j lam_j (1 - eta lam_j)^(2T - t - s)``: final loss of a quadratic."""
    lam = np.asarray(eigenvalues, np.float64)
    powers = (1 - eta * lam) ** np.arange(T - 1, -1, -1.0)[:, None]
    return np.asarray(eta**2 / 2 * (powers * lam) @ powers.T)


def full_participation_bound(W: ArrayLike, R: float = 1.0) -> float:
    """``(sum_t sqrt W_tt)^2 / R``: no Gaussian mechanism, correlated or not, has a lower cost."""
    diagonal = np.diag(_square("W", W))
    if (diagonal < 0).any():
        raise SordinoError("W must be positive semidefinite; its diagonal has a negative entry")
    return float(np.sqrt(diagonal).sum() ** 2) / require_positive("R", R)


def row_scaling(C0: ArrayLike, W: ArrayLike, R: float = 1.0) -> RowScaling:
    """The best row weights of C0 when every record takes part in every step.

    With ``p_r = (C0^-T W C0^-1)_rr`` and ``l_r`` the l1 norm of row r (so that sens^2 is at most
    ``sum y_r l_r^2``, whatever the signs and directions of one record's contributions):
    ``y_r = R (sqrt(p_r) / l_r) / sum_k sqrt(p_k) l_k``, value ``(sum sqrt(p) l)^2 / R``.
    """
    C, W_ = _square("C0", C0), _square("W", W)
    if C.shape != W_.shape:
        raise SordinoError(f"C0 and W must have one size, got {C.shape} and {W_.shape}")
    require_positive("R", R)
    try:
        half = np.linalg.solve(C.T, W_)
        p = np.diag(np.linalg.solve(C.T, half.T))
    except np.linalg.LinAlgError:
        raise SordinoError("C0 must be invertible") from None
    if not (p > 0).all():
        raise SordinoError("the objective W leaves some rows of C0 without any cost; scale others")
    length = np.abs(C).sum(axis=1)
    total = float((np.sqrt(p) * length).sum())
    return RowScaling(R * np.sqrt(p) / length / total, total**2 / R)


def _square(name: str, matrix: ArrayLike) -> Array:
    A = np.asarray(matrix, np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.size or not np.isfinite(A).all():
        raise SordinoError(f"{name} must be a square matrix of finite numbers, got {A.shape}")
    return A

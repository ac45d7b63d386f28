r"""What a budget is worth: with correlated noise, and over how many steps.

**Schedules and correlated noise together** (papers/04, section 2.3).

Noise ``C^-1 z`` on the gradients, ``X = C^T C``; to second order the expected final loss is
``bias + tr(W X^-1)`` with ``W_tt = q_t``.

If every record takes part in every step, ``tr(W X^-1) sens^2 >= (sum_t sqrt W_tt)^2`` for *every* X:
the independent schedule of `allocate` attains it, so correlation buys nothing there. For a given
encoder C0 (other participation, other reasons) the rows can still be scaled,
``C = diag(sqrt y) C0``, and the best y under full participation is in closed form.

**How many steps** to take for a budget (papers/04, section 1.4).

For gradient descent with ``eta = 1/M`` on a PL loss, ``gamma = 1 - 1/kappa`` and
``alpha = D G^2 / (2 R M N^2 (f(theta_1) - f*))``, bounds relative to ``f(theta_1) - f*`` are

    E_dyn(T) = gamma^T + alpha ((1 - gamma^(T/2)) / (1 - sqrt gamma))^2,      best schedule
    E_uni(T) = gamma^T + alpha kappa (1 - gamma^T) T,                         uniform noise

and ``T* = (2 / ln(1/gamma)) ln(1 + (1 - sqrt gamma)^2 / alpha)`` minimises the first, with value
``a / (1 + a)``, ``a = alpha / (1 - sqrt gamma)^2``. Zero steps ("do not train") have error 1.

Momentum has no such formula: `best_momentum_steps` scans T with the exact bias and noise of a quadratic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino.parts.schedules._allocate import optimal_cost, uniform_cost
from sordino.parts.schedules._influence import momentum_quadratic

Array = NDArray[np.float64]


class RowScaling(NamedTuple):
    """Weights y of ``C = diag(sqrt y) C0``, and ``tr(W (C^T C)^-1)`` there."""

    weights: Array
    cost: float


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


class Horizon(NamedTuple):
    """A number of steps, and the error bound there (relative to not training at all)."""

    steps: int
    error: float


def dynamic_error(T: float, gamma: float, alpha: float) -> float:
    """``E_dyn(T)``."""
    _check(gamma, alpha)
    half = T * math.log(gamma) / 2
    return math.exp(2 * half) + alpha * (math.expm1(half) / _one_minus_root(gamma)) ** 2


def uniform_error(T: float, gamma: float, alpha: float) -> float:
    """``E_uni(T)``."""
    _check(gamma, alpha)
    return math.exp(T * math.log(gamma)) + _uniform_noise(T, gamma, alpha)


def real_best_steps(gamma: float, alpha: float) -> float:
    """``T*``, the real minimiser of `dynamic_error`."""
    _check(gamma, alpha)
    return -2 / math.log(gamma) * math.log1p(_one_minus_root(gamma) ** 2 / alpha)


def best_dynamic_steps(gamma: float, alpha: float) -> Horizon:
    """The better of T* rounded down, rounded up, and not training at all."""
    T = math.floor(real_best_steps(gamma, alpha))
    return _least(Horizon(steps, dynamic_error(steps, gamma, alpha)) for steps in (0, T, T + 1))


def best_uniform_steps(gamma: float, alpha: float) -> Horizon:
    """The integer minimiser of `uniform_error`, by a scan that knows when to stop."""
    _check(gamma, alpha)
    best, T = Horizon(0, 1.0), 0
    # The noise term alone only grows with T.
    while _uniform_noise(T, gamma, alpha) < best.error:
        T += 1
        best = _least([best, Horizon(T, uniform_error(T, gamma, alpha))])
    return best


def best_steps(error: Callable[[int], float], most: int) -> Horizon:
    """The integer minimiser of any error over 0..`most`, e.g. an exact bias plus `optimal_cost`."""
    return _least(Horizon(T, error(T)) for T in range(require_count("most", most, minimum=0) + 1))


def best_momentum_steps(
    eigenvalues: ArrayLike,
    eta: float,
    beta: float,
    *,
    distances: ArrayLike,
    R: float,
    scale: float,
    most: int,
    uniform: bool = False,
) -> Horizon:
    """The number of steps of (bias-corrected) momentum on a quadratic with the least expected loss.

    ``E(T) = 1/2 sum_j lam_j (bias_j(T) d_j)^2 + scale^2 (sum_t sqrt q_t)^2 / R`` over ``E(0)``, with
    `momentum_quadratic`'s bias and q: exact. The noise is the best schedule's, or with `uniform`
    ``T sum_t q_t`` in place of ``(sum_t sqrt q_t)^2``. Takes O(`most`^2) operations.

    Args:
      eigenvalues: of the Hessian, one for each coordinate (J,); `beta` 0 is gradient descent.
      distances: d_j, from the start to the optimum along each eigenvector (J,) or one number.
      R: the budget mu^2.
      scale: of one step's noise at multiplier 1: clip norm over the number of examples.
      most: the largest number of steps that is tried.
    """
    lam = np.atleast_1d(np.asarray(eigenvalues, np.float64))
    start = np.broadcast_to(np.asarray(distances, np.float64), lam.shape)[lam > 0]
    require_positive("R", R)
    require_positive("scale", scale)
    whole = float(lam[lam > 0] @ start**2) / 2
    if not 0 < whole < math.inf:
        raise SordinoError("distances must be finite numbers, one for each eigenvalue, not all 0")

    def error(T: int) -> float:
        if T == 0:
            return 1.0
        found = momentum_quadratic(lam, eta, beta, T)
        noise = uniform_cost(found.log_q, R) if uniform else optimal_cost(found.log_q, R)
        return (float(lam[lam > 0] @ (found.bias * start) ** 2) / 2 + scale**2 * noise) / whole

    return best_steps(error, most)


def _least(candidates: Iterable[Horizon]) -> Horizon:
    return min(candidates, key=lambda horizon: (horizon.error, horizon.steps))


def _uniform_noise(T: float, gamma: float, alpha: float) -> float:
    return -alpha / (1 - gamma) * math.expm1(T * math.log(gamma)) * T


def _one_minus_root(gamma: float) -> float:
    return (1 - gamma) / (1 + math.sqrt(gamma))


def _check(gamma: float, alpha: float) -> None:
    require_fraction("gamma", gamma)
    require_positive("alpha", alpha)

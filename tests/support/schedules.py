"""Closed forms that schedules are compared with: the papers' own, as corrected."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino.parts.schedules._allocate import capped
from sordino.parts.schedules._influence import _eigenvalues, _log_one_minus_power, _momentum
from sordino.parts.schedules._subsampled import _bisected, _central_limit, _clipped, _lambert

Array = NDArray[np.float64]


def quadratic_bias(eigenvalues: ArrayLike, eta: float, T: int) -> Array:
    """``(1 - eta lam_j)^T``: what T steps leave of the distance to the optimum, per eigenvalue."""
    return np.asarray((1 - eta * _eigenvalues(eigenvalues)) ** T)


def momentum_two_piece(beta: float, gamma: float, T: int) -> Array:
    """The closed form of Theorem 4.6 with its errors corrected, for reproduction only.

    With ``That = that(beta, gamma)``: ``q_t = c1 gamma^(T+t)`` for ``t <= That``,
    ``c1 = 2 / (gamma (gamma - beta^2))``, and ``gamma^(2 That - 1) gamma^(T-t) / (gamma - beta^2)``
    after. A loose bound, often worse than uniform noise; use `momentum_bound`.
    """
    T = require_count("T", T)
    _momentum(beta)
    require_positive("gamma", gamma, maximum=1)
    if not beta < gamma:
        raise SordinoError(f"Theorem 4.6 needs beta < gamma, got beta={beta:g}, gamma={gamma:g}")
    t, turn, log_gamma = np.arange(1.0, T + 1), that(beta, gamma), math.log(gamma)
    early = math.log(2) + (T + t - 1) * log_gamma
    late = (2 * turn - 1 + T - t) * log_gamma
    return np.where(t <= turn, early, late) - math.log(gamma - beta**2)


def that(beta: float, gamma: float) -> int:
    """The largest t with ``gamma^(t-1) (1 - beta^t) >= 1 - beta``, where momentum stops helping."""
    _momentum(beta)
    if not 0 < gamma < 1:
        raise SordinoError(f"gamma must be greater than 0 and less than 1, got {gamma!r}")

    def holds(t: int) -> bool:
        # A relative tolerance of 1e-13, because t = 1 and other ties hold with equality.
        left = (t - 1) * math.log(gamma) + float(_log_one_minus_power(beta, np.array(float(t))))
        return left >= math.log1p(-beta) - 1e-13

    # The left side rises, then falls, and starts at equality: where it holds is an interval [1, That].
    high = 2
    while holds(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def quadratic_objective(eigenvalues: ArrayLike, eta: float, T: int) -> Array:
    """``W_ts = (eta^2 / 2) sum_j lam_j (1 - eta lam_j)^(2T - t - s)``: final loss of a quadratic."""
    lam = np.asarray(eigenvalues, np.float64)
    powers = (1 - eta * lam) ** np.arange(T - 1, -1, -1.0)[:, None]
    return np.asarray(eta**2 / 2 * (powers * lam) @ powers.T)


def allocate_lambert(log_q: ArrayLike, cost: float) -> Array:
    """The least ``sum q sigma^2`` with ``sum (e^(1/sigma^2) - 1) = cost`` (which is mu^2 / p^2)."""
    values = capped(log_q, None)
    values = values - values.max()
    require_positive("cost", cost)
    family = _clipped(lambda log_q, z: _lambert(log_q, 4 * z), values, None)
    return family(_bisected(lambda z: _central_limit(family(z)) <= cost))

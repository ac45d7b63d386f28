"""Toeplitz strategies written out: their sensitivity in a fixed order, and the columns of a BLT."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms._workloads import lfilter
from sordino.parts.mechanisms.factorize._blt import BLTParameters
from sordino.parts.mechanisms.factorize._toeplitz import padded, resolve_participation

Array = npt.NDArray[np.float64]


def fixed_order_sensitivity(
    coef: npt.ArrayLike, n: int, separation: int | None = None, participations: int = 1
) -> float:
    """Sensitivity of a non-negative Toeplitz strategy to one example in a fixed order.

    The example takes part at steps ``j, j + separation, ...`` below n, at most ``participations``
    times. ``C >= 0`` makes all inner products of columns non-negative, so the bound
    ``sum |X_st|`` is attained (Choquette-Choo et al. 2023) and equals the norm of the sum of the
    columns; a later start j only cuts that sum short, so j = 0 is the worst.
    """
    c = padded(coef, n)
    if np.any(c < 0.0):
        raise SordinoError("coef must be non-negative, or the sum of columns is no bound")
    separation, participations = resolve_participation(n, separation, participations)
    total = np.zeros(n)
    for start in range(0, participations * separation, separation):
        total[start:] += c[: n - start]
    return float(np.linalg.norm(total))


def blt_coefficients(blt: BLTParameters, n: int) -> Array:
    """First column of ``C``, float64[n]."""
    coef = np.zeros(require_count("n", n))
    coef[0] = 1.0
    step = np.arange(n - 1, dtype=np.float64)
    for theta, omega in zip(blt.theta, blt.omega, strict=True):
        coef[1:] += omega * np.exp(step * math.log(theta))
    return coef


def blt_inverse_coefficients(blt: BLTParameters, n: int) -> Array:
    """First column of ``C^{-1}``, float64[n], in O(n) per buffer."""
    coef = np.zeros(require_count("n", n))
    coef[0] = 1.0
    # First-order sections: the expanded polynomials lose all digits when poles crowd near 1.
    for theta, phi in zip(sorted(blt.theta, reverse=True), blt.inverse_poles(), strict=True):
        coef = np.asarray(lfilter([1.0, -theta], [1.0, -phi], coef), np.float64)
    return coef

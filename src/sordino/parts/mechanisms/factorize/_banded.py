"""Banded Toeplitz strategies: the best first ``bands`` coefficients for a workload.

With at most ``n / epochs`` bands, the columns an example touches in different epochs do not
overlap, and several epochs cost no more than sqrt(epochs) (Choquette-Choo et al. 2023).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms._filters import correlate, lfilter
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._toeplitz import resolve_participation, sqrt_toeplitz

Array = npt.NDArray[np.float64]

_UNSTABLE = 1e200


def optimize_banded(
    workload: Workload, n: int, bands: int, epochs: int = 1, separation: int | None = None
) -> Array:
    """Banded Toeplitz strategy of least ``sensitivity x RMSE``, float64[bands], c_0 = 1, c >= 0.

    Minimises ``|sum of one example's columns|^2 * sum_t (n - t) e_t^2`` over the coefficients, with
    ``e`` the coefficients of ``W C^{-1}``, by L-BFGS-B with the exact gradient in O(n bands).

    Args:
        workload: What the noise is judged by.
        n: Number of steps.
        bands: Number of non-zero coefficients, at most n.
        epochs: Participations of one example, in a fixed order.
        separation: Steps between two of them, by default ``ceil(n / epochs)``.
    """
    n = require_count("n", n)
    bands, epochs = require_count("bands", bands), require_count("epochs", epochs)
    if bands > n:
        raise SordinoError(f"bands must be at most n = {n}, got {bands}")
    if separation is None:
        separation = -(-n // epochs)
    separation, participations = resolve_participation(n, separation, epochs)
    starts = np.arange(participations) * separation
    target = workload.coefficients(n)
    remaining = np.arange(n, 0, -1, dtype=np.float64)

    def loss(free: Array) -> tuple[float, Array]:
        coef = np.concatenate([[1.0], free])
        total = np.zeros(n + bands)
        for start in starts:
            total[start : start + bands] += coef
        total[n:] = 0.0
        sensitivity = float(total @ total)
        # d(total @ total) / d coef: the summed column read back at every place coef was added.
        pull = 2.0 * sum(total[start : start + bands] for start in starts)

        combined = lfilter([1.0], coef, target)
        weighted = remaining * combined
        with np.errstate(over="ignore", invalid="ignore"):
            error = float(weighted @ combined)
        if not error < _UNSTABLE:
            # The line search tried a strategy whose inverse explodes: turn it back.
            return math.log(_UNSTABLE), np.zeros(bands - 1)
        # d combined / d c_j = -(combined / C) shifted by j.
        response = lfilter([1.0], coef, combined)
        slope = -2.0 * _lagged_products(weighted, response, bands)
        gradient = pull / sensitivity + slope / error
        return math.log(sensitivity) + math.log(error), gradient[1:]

    initial = sqrt_toeplitz(workload, bands)
    if bands == 1:
        return initial
    from scipy.optimize import minimize  # here, because it takes long to import

    result = minimize(
        loss,
        initial[1:],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (bands - 1),
        options={"maxiter": 500, "maxcor": 30, "ftol": 1e-10, "gtol": 1e-7},
    )
    return np.concatenate([[1.0], result.x])


def _lagged_products(a: Array, b: Array, lags: int) -> Array:
    """``sum_t a_t b_{t-j}`` for j = 0..lags-1."""
    full = correlate(a, b, mode="full", method="fft")
    middle = len(b) - 1
    return np.asarray(full[middle : middle + lags], np.float64)

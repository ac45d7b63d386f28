"""Lower-triangular Toeplitz strategies, given by the first column of ``C``.

Every function takes ``coef``, the leading coefficients of the strategy (shorter than ``n`` means
banded: the rest is zero), and works in float64 without forming an n x n matrix.

**Banded** strategies: the best first ``bands`` coefficients for a workload.

With at most ``n / epochs`` bands, the columns an example touches in different epochs do not
overlap, and several epochs cost no more than sqrt(epochs) (Choquette-Choo et al. 2023).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms._workloads import Workload, correlate, lfilter

Array = npt.NDArray[np.float64]

# Below this many multiply-adds the plain recursion beats Newton's iteration, and it is exact.
_RECURSION_BUDGET = 60_000_000
_NEWTON_START = 1024
_UNSTABLE = 1e200


def sqrt_toeplitz(workload: Workload, n: int) -> Array:
    """Coefficients of the square-root strategy ``C = (W / w_0)^(1/2)``, float64[n] with c_0 = 1.

    Within a constant of the best max error for prefix sums at every n (Fichtenberger, Henzinger &
    Upadhyay 2023) and close to the optimum for the other workloads (Choquette-Choo et al. 2024).
    """
    coef: Array = workload.sqrt_coefficients(n)
    coef /= coef[0]
    return coef


def column_norms(coef: npt.ArrayLike, n: int) -> Array:
    """Norms of the columns of the n x n strategy, ``|coef[:n-t]|`` for t = 0..n-1, float64[n].

    ``C diag(1 / column_norms)`` has sensitivity exactly 1 for one participation; its noise is that
    of ``C`` with row t multiplied by ``column_norms[t]`` (Choquette-Choo et al. 2024).
    """
    squares = np.cumsum(padded(coef, n) ** 2)
    return np.sqrt(squares[::-1])


def inverse_coefficients(coef: npt.ArrayLike, n: int) -> Array:
    """First column of ``C^{-1}``, float64[n]: the power series inverse of ``coef``.

    A recursion where ``coef`` is short, Newton's iteration ``g <- g (2 - f g)`` with FFTs, doubling
    the number of correct terms, where it is long.
    """
    f = _checked(coef, n)
    if f[0] == 0.0:
        raise SordinoError("the first coefficient must not be zero, or C has no inverse")
    if len(f) * n <= _RECURSION_BUDGET:
        return _recursive_inverse(f, n)
    length = min(n, _NEWTON_START)
    g = _recursive_inverse(f[:length], length)
    while length < n:
        length = min(2 * length, n)
        size = next_fast_len(2 * length, real=True)
        g_hat = rfft(g, size)
        defect = irfft(rfft(f[:length], size) * g_hat, size)[:length]
        # The first half of g is already right: only the defect beyond it may change anything.
        defect[: len(g)] = 0.0
        correction = irfft(rfft(defect, size) * g_hat, size)[:length]
        g = np.concatenate([g, np.zeros(length - len(g))]) - correction
    return np.asarray(g, np.float64)


def resolve_participation(n: int, separation: int | None, participations: int) -> tuple[int, int]:
    """The spacing and the number of participations that fit below n, both checked."""
    n = require_count("n", n)
    participations = require_count("participations", participations)
    if separation is None:
        if participations > 1:
            raise SordinoError(
                f"separation must be given when an example takes part {participations} times"
            )
        separation = n
    separation = require_count("separation", separation)
    return separation, min(participations, math.ceil(n / separation))


def _checked(coef: npt.ArrayLike, n: int) -> Array:
    c = np.asarray(coef, np.float64)
    if c.ndim != 1 or len(c) == 0:
        raise SordinoError(f"coef must be a non-empty vector, got shape {c.shape}")
    if not np.all(np.isfinite(c)):
        raise SordinoError("coef must be finite")
    return c[: require_count("n", n)]


def padded(coef: npt.ArrayLike, n: int) -> Array:
    c = _checked(coef, n)
    return np.concatenate([c, np.zeros(n - len(c))])


def _recursive_inverse(f: Array, n: int) -> Array:
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], f, impulse), np.float64)


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
    full = correlate(a, b)
    middle = len(b) - 1
    return np.asarray(full[middle : middle + lags], np.float64)

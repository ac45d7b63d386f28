"""Lower-triangular Toeplitz strategies, given by the first column of ``C``.

Every function takes ``coef``, the leading coefficients of the strategy (shorter than ``n`` means
banded: the rest is zero), and works in float64 without forming an n x n matrix.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms._filters import lfilter
from sordino.parts.mechanisms._workloads import Workload

Array = npt.NDArray[np.float64]

# Below this many multiply-adds the plain recursion beats Newton's iteration, and it is exact.
_RECURSION_BUDGET = 60_000_000
_NEWTON_START = 1024


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
    squares = np.cumsum(_padded(coef, n) ** 2)
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


def fixed_order_sensitivity(
    coef: npt.ArrayLike, n: int, separation: int | None = None, participations: int = 1
) -> float:
    """Sensitivity of a non-negative Toeplitz strategy to one example in a fixed order.

    The example takes part at steps ``j, j + separation, ...`` below n, at most ``participations``
    times. ``C >= 0`` makes all inner products of columns non-negative, so the bound
    ``sum |X_st|`` is attained (Choquette-Choo et al. 2023) and equals the norm of the sum of the
    columns; a later start j only cuts that sum short, so j = 0 is the worst.
    """
    c = _padded(coef, n)
    if np.any(c < 0.0):
        raise SordinoError("coef must be non-negative, or the sum of columns is no bound")
    separation, participations = resolve_participation(n, separation, participations)
    total = np.zeros(n)
    for start in range(0, participations * separation, separation):
        total[start:] += c[: n - start]
    return float(np.linalg.norm(total))


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


def _padded(coef: npt.ArrayLike, n: int) -> Array:
    c = _checked(coef, n)
    return np.concatenate([c, np.zeros(n - len(c))])


def _recursive_inverse(f: Array, n: int) -> Array:
    impulse = np.zeros(n)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], f, impulse), np.float64)

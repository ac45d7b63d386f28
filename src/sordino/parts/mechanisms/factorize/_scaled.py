"""Streaming strategies for any linear map: a Toeplitz matrix whose columns have sizes of their own.

``C = T(c) diag(1/d)`` with few numbers: c belongs to a buffered (BLT) or banded Toeplitz matrix, and
``log d`` is linear between a few knots in time, times one factor per participation pattern that makes
every pattern cost the same. Over several epochs of a map that is not Toeplitz most of what the dense
optimum gains lies in d: steps whose noise matters less take more of it. For one participation d are
the norms of the columns.

Minimised is ``sens(C)^2 |W C^-1|^2``. The sensitivity is that of all patterns, absolute values included;
of the rows of W a sample stands for all where there are many. Value and gradient take a few FFTs of the
sample.

    C(z) = prod_i (1 - phi_i z) / (1 - theta_i z) ,     c_k = sum_i omega_i theta_i^(k-1)

The phi stay inside the unit circle, so noise never explodes; the omega may have either sign (two close
theta make c fall steeper than any sum of positive exponentials does), but the theta keep apart, or the
omega would be large and the buffers lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from sordino.parts.mechanisms._workloads import LinearMap, Workload, lfilter
from sordino.parts.mechanisms.factorize._toeplitz import inverse_coefficients

Array = npt.NDArray[np.float64]
# c, the first column of the inverse of T(c), and the slopes of c by each of the numbers it is made of.
Curve = tuple[Array, Array, Array]

# Rows of the map that stand for all, and columns of it written out at once to get them.
_ROWS = 64
_ROWS_OF_LONG, _LONG = 32, 2048
_COLUMNS = 512
# Where d bends, and how often L-BFGS may step.
_KNOTS = 9
_ITERATIONS = 80
# How far log d goes from 0: steps that do not count at all would take noise without end.
_STEEPEST = 8.0
# The gaps 1 / theta - 1 of two buffers differ by at least this factor.
_SPACING = 1.3
# One more buffer is one more vector of the model's size in memory: it must lower the error by this much.
_MIN_GAIN = 0.003
_MAX_BUFFERS = 3
# A strategy whose inverse explodes is worth this (the log of a square).
_UNSTABLE, _LARGEST = 1e3, 1e9


@dataclass(frozen=True, eq=False)
class ScaledResult:
    """``C = T(c) diag(1/d)`` of sensitivity 1.

    Attributes:
        theta, omega: the buffers; empty for a banded strategy.
        coefficients: c, as many as there are bands, or one for each step.
        scales: d, float64[n].
        rmse: root mean square of the row norms of ``W C^-1`` over the sampled rows.
    """

    theta: Array
    omega: Array
    coefficients: Array
    scales: Array
    rmse: float


def optimize_scaled(
    workload: LinearMap,
    n: int,
    separation: int,
    bands: int | None = None,
    buffers: int | None = None,
) -> ScaledResult:
    """The strategy of least ``sensitivity x RMSE`` with so many bands, or with buffers.

    Args:
        workload: Any linear map.
        n: Number of steps.
        separation: Steps between two participations of one example in a fixed order.
        bands: Number of non-zero coefficients; None for buffers.
        buffers: How many; by default as many as each lower the error by 0.3 %, at most 3.
    """
    problem = _ScaledProblem.of(workload, n, min(separation, n))
    if bands is not None:
        return problem.banded(bands)
    best, found = problem.buffered(problem.starts(1, None))
    for count in range(2, (buffers or _MAX_BUFFERS) + 1):
        candidate, x = problem.buffered(problem.starts(count, found))
        if buffers is None and candidate.rmse > (1.0 - _MIN_GAIN) * best.rmse:
            break
        best, found = candidate, x
    return best


def sampled_rmse(
    rows: Array, coefficients: Array, scales: npt.NDArray[np.floating] | None = None
) -> float:
    """Root mean square of the row norms of ``W diag(scales) T(c)^-1``, from `sampled_rows`."""
    n = rows.shape[1]
    size = next_fast_len(2 * n, real=True)
    inverse = rfft(inverse_coefficients(coefficients, n), size)
    weighted = rows if scales is None else rows * scales
    noise = irfft(rfft(weighted, size) * np.conj(inverse), size)[:, :n]
    return float(np.linalg.norm(noise)) / math.sqrt(n)


def sampled_rows(workload: LinearMap, n: int) -> Array:
    """Rows of W, times ``sqrt(n / rows)``: their squared norms stand for those of all n rows."""
    try:
        hash(workload)
    except TypeError:
        return _rows_of(workload, n)
    return _remembered_rows(workload, n)


def _rows_of(workload: LinearMap, n: int) -> Array:
    count = min(n, _ROWS if n <= _LONG else _ROWS_OF_LONG)
    chosen = ((np.arange(count) + 0.5) * n / count).astype(int)
    rows = np.zeros((count, n))
    if isinstance(workload, Workload):
        coefficients = workload.coefficients(n)
        for row, t in zip(rows, chosen, strict=True):
            row[: t + 1] = coefficients[t::-1]
    else:
        for first in range(0, n, _COLUMNS):
            width = min(_COLUMNS, n - first)
            rows[:, first : first + width] = workload.apply(np.eye(n, width, -first))[chosen]
    return rows * math.sqrt(n / count)


# 'auto' fits and judges by the same ones.
_remembered_rows = lru_cache(maxsize=2)(_rows_of)


@dataclass(frozen=True, eq=False)
class _ScaledProblem:
    rows: Array
    separation: int
    knots: Array  # [n, knots]: log d = knots @ x

    @classmethod
    def of(cls, workload: LinearMap, n: int, separation: int) -> _ScaledProblem:
        # With one participation the factor of each pattern says all.
        count = _KNOTS if separation < n else 0
        places = np.linspace(0.0, n - 1.0, max(count, 2))
        hats = [np.interp(np.arange(n), places, unit) for unit in np.eye(max(count, 2))]
        return cls(sampled_rows(workload, n), separation, np.array(hats).T[:, :count])

    @property
    def n(self) -> int:
        return self.rows.shape[1]

    def loss(self, c: Array, inverse: Array, log_d: Array) -> tuple[float, Array, Array, Array]:
        """``log |W C^-1|^2`` at sensitivity 1, its slopes in c and log d, and the d of that.

        c and the first column of the inverse of T(c) have n numbers.
        """
        n, size = self.n, next_fast_len(2 * self.n, real=True)
        pattern = np.arange(n) % self.separation
        terms = self._interactions(c, np.exp(-log_d))
        mine = sum((own for _, _, own in terms), np.zeros(n))  # of step t in its pattern's sum
        sums = np.bincount(pattern, mine, minlength=self.separation)
        d = np.exp(log_d) * np.sqrt(sums)[pattern]
        if not np.abs(inverse).max() < _LARGEST:
            return _UNSTABLE, np.zeros(n), np.zeros(n), d
        filtered = rfft(inverse, size)
        # Y = V T^-1 and Z = Y T^-T, row by row, V = W diag(d).
        Y = irfft(rfft(self.rows * d, size) * np.conj(filtered), size)[:, :n]
        Y_hat = rfft(Y, size)
        Z = irfft(Y_hat * filtered, size)[:, :n]
        error = float(np.sum(Y * Y))
        pull = np.sum(Y_hat * np.conj(rfft(Z, size)), axis=0)
        slope_c = -2.0 / error * irfft(pull, size)[:n]
        slope_d = 2.0 / error * d * np.sum(self.rows * Z, axis=0)
        # Through the sums of the patterns, of which log d has half the logarithm.
        through = (0.5 * np.bincount(pattern, slope_d, minlength=self.separation) / sums)[pattern]
        slope_d = slope_d - 2.0 * through * mine
        for lag, weight, _ in terms:
            inner = np.cumsum(weight * through[lag:])[::-1]
            slope_c[: n - lag] += inner * c[lag:]
            slope_c[lag:] += inner * c[: n - lag]
        return math.log(error), slope_c, slope_d, d

    def _interactions(self, c: Array, over_d: Array) -> list[tuple[int, Array, Array]]:
        """For each lag at which steps of one pattern meet: the signed weights of ``X[t - lag, t]`` in
        its sum ``sum |X_st| / (d_s d_t)``, t from lag on, and what each step has of the sum."""
        n, found = self.n, []
        bands = int(np.flatnonzero(c)[-1]) + 1
        for lag in range(0, bands, self.separation):
            gram = np.cumsum(c[: n - lag] * c[lag:])[::-1]
            weight = np.sign(gram) * over_d[: n - lag] * over_d[lag:] * (2.0 if lag else 1.0)
            own = np.zeros(n)
            own[lag:] += 0.5 * weight * gram
            own[: n - lag] += 0.5 * weight * gram
            found.append((lag, weight, own))
        return found

    def starts(self, count: int, previous: Array | None) -> list[Array]:
        """Where to look for `count` buffers from, given the solution with one less."""
        if previous is None:
            shape = [math.log(0.5 * self.separation), 0.0]
            return [np.concatenate([shape, np.zeros(self.knots.shape[1])])]
        fewer = count - 1
        theta, phi, rest = np.split(previous, [fewer, 2 * fewer])
        close = [*theta, 1.0], [*phi, 0.0]
        # A fast one, and each phi between two theta, as sums of positive exponentials have it.
        apart = [*theta, -math.log(10.0)], [*np.linspace(3.0, 1.5, fewer), 0.0]
        return [np.concatenate([*shape, rest]) for shape in (close, apart)]

    def buffered(self, starts: list[Array]) -> tuple[ScaledResult, Array]:
        """The best strategy reached from `starts`, and its numbers: of theta, phi and log d."""
        count = (len(starts[0]) - self.knots.shape[1]) // 2

        def curve(x: Array) -> Curve:
            theta, phi, slopes = _poles(x[: 2 * count])
            c = inverse = np.eye(1, self.n)[0]
            for zero, pole in zip(phi, theta, strict=True):
                c = lfilter([1.0, -zero], [1.0, -pole], c)
                inverse = lfilter([1.0, -pole], [1.0, -zero], inverse)
            moved = [lfilter([0.0, 1.0], [1.0, -pole], c) for pole in theta]
            moved += [lfilter([0.0, -1.0], [1.0, -zero], c) for zero in phi]
            return c, inverse, slopes @ np.array(moved)

        bounds = [(-4.0, 15.0)] * count + [(-4.0, 12.0)] * count
        found = [self._minimise(curve, start, bounds) for start in starts]
        x = min(found, key=lambda result: result[1])[0]
        theta, phi, _ = _poles(x[: 2 * count])
        to_theta = theta[:, None] - theta + np.eye(count)
        omega = np.prod((theta[:, None] - phi) / to_theta, axis=1)
        return self._result(theta, omega, curve(x), x[2 * count :]), x

    def banded(self, bands: int) -> ScaledResult:
        """The best strategy with so many bands, none of them negative."""

        def curve(x: Array) -> Curve:
            c = np.zeros(self.n)
            c[0], c[1:bands] = 1.0, x[: bands - 1]
            with np.errstate(over="ignore", invalid="ignore"):
                inverse = lfilter([1.0], c[:bands], np.eye(1, self.n)[0])
            return c, inverse, np.eye(bands - 1, self.n, 1)

        # A decay that has mostly died out after one epoch.
        decay = np.exp(-2.0 * np.arange(1, bands) / self.separation)
        start = np.concatenate([decay, np.zeros(self.knots.shape[1])])
        x, _ = self._minimise(curve, start, [(0.0, None)] * (bands - 1))
        empty = np.zeros(0)
        found = self._result(empty, empty, curve(x), x[bands - 1 :])
        return replace(found, coefficients=found.coefficients[:bands])

    def _minimise(
        self,
        curve: Callable[[Array], Curve],
        start: Array,
        bounds: Sequence[tuple[float, float | None]],
    ) -> tuple[Array, float]:
        """The numbers of least loss: those that `curve` makes c of, in `bounds`, then those of log d."""
        from scipy.optimize import minimize  # here, because it takes long to import

        free = len(bounds)

        def loss(x: Array) -> tuple[float, Array]:
            c, inverse, moved = curve(x)
            value, slope_c, slope_d, _ = self.loss(c, inverse, self.knots @ x[free:])
            return value, np.concatenate([moved @ slope_c, self.knots.T @ slope_d])

        if not len(start):
            return start, 0.0
        found = minimize(
            loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[*bounds, *[(-_STEEPEST, _STEEPEST)] * self.knots.shape[1]],
            options={"maxiter": _ITERATIONS, "maxcor": 20, "ftol": 1e-6, "gtol": 1e-5},
        )
        return np.asarray(found.x), float(found.fun)

    def _result(self, theta: Array, omega: Array, curve: Curve, shape: Array) -> ScaledResult:
        value, _, _, d = self.loss(*curve[:2], self.knots @ shape)
        return ScaledResult(theta, omega, curve[0], d, math.exp(0.5 * value) / math.sqrt(self.n))


def _poles(x: Array) -> tuple[Array, Array, Array]:
    """theta and phi, each [q], from 2q numbers, and their slopes [2q, 2q]: row i by number i.

    ``1 / theta_1 - 1 = e^-y_1``; each further such gap is ``_SPACING + e^-y_i`` times the one before.
    ``1 - phi = 2 sigmoid(-y)``.
    """
    q = len(x) // 2
    factors = np.concatenate([[0.0], np.full(q - 1, _SPACING)]) + np.exp(-x[:q])
    gaps = np.cumprod(factors)
    theta = 1.0 / (1.0 + gaps)
    slopes = np.zeros((2 * q, 2 * q))
    for i in range(q):
        relative = -np.exp(-x[i]) / factors[i]  # of gaps i, i + 1, ...
        slopes[i, i:q] = -gaps[i:] / (1.0 + gaps[i:]) ** 2 * relative
    half = 1.0 / (1.0 + np.exp(x[q:]))
    slopes[np.arange(q, 2 * q), np.arange(q, 2 * q)] = 2.0 * half * (1.0 - half)
    return theta, 1.0 - 2.0 * half, slopes

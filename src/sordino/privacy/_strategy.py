"""Strategies as the privacy analysis sees them: the Gram matrix ``X = W^T Sigma^-1 W``.

A run releases rows of ``W u + noise`` with noise covariance ``Sigma (x) I``; `X` is all that the
guarantee depends on. For a lower-triangular encoder ``C`` (noise ``C^-1 Z`` on the gradients, Z iid
with unit variance), ``X = C^T C``. Column t stands for the clipped sum of step t (or of one stream's
step t, if there are several streams).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError
from sordino.privacy._dyadic import node_matrix, used_nodes

Array = NDArray[np.float64]
# A dense Gram matrix of this many columns takes 0.5 GB; beyond it only structured paths are used.
DENSE_LIMIT = 8192
# What noise is multiplied by, one factor after the other in float32, is between one over this and this:
# products below 1e-38 are flushed to zero, which is no noise, whatever a later factor makes up for.
LARGEST_FACTOR = 1e12
# No float32 number is smaller; a coefficient that is was a power on its way to zero.
_UNDERFLOW = 1e-100


class Strategy(ABC):
    """Anything with a Gram matrix over `steps` columns, or over `steps` columns per channel."""

    steps: int

    @property
    def channels(self) -> int:
        """How many sums are released in each step."""
        return 1

    def bands(self) -> int | None:
        """The least b with ``C[s, t] = 0``, exactly, wherever ``s - t >= b``; None where nobody says so.

        Of C, not of its inverse, and not of X: zeros of X say that columns are orthogonal, not that
        they share no row.
        """
        return None

    @abstractmethod
    def gram(self) -> Array:
        """Dense ``X``, shape (steps, steps); with several channels (channels * steps) squared."""

    def absolute_gram(self) -> Array:
        """``|X|`` added up over the channels, shape (steps, steps)."""
        return np.abs(self.gram())

    def fixed_batch_energy(self, separation: int, clips: Array | None = None) -> Array:
        """``sum_{s,t in P_j} |X_st| c_s c_t`` for each pattern ``P_j = {j, j + separation, ...}``."""
        X = np.abs(self.gram())
        if clips is not None:
            X *= np.outer(clips, clips)
        count = min(separation, self.steps)
        if separation >= self.steps:
            return np.diag(X).copy()
        return np.array([X[j::separation, j::separation].sum() for j in range(count)])

    def block(self, pattern: ArrayLike) -> Array:
        """``X`` restricted to the steps of one pattern (in every channel)."""
        P = np.asarray(pattern)
        return self.gram()[np.ix_(P, P)]


def _check_dense(steps: int) -> None:
    if steps > DENSE_LIMIT:
        raise SordinoError(
            f"this participation rule needs a dense {steps:,} x {steps:,} Gram matrix; use fixed "
            f"batches, or at most {DENSE_LIMIT:,} steps"
        )


@dataclass(frozen=True, eq=False)
class MatrixStrategy(Strategy):
    """A strategy given by its Gram matrix; see `from_encoder` and `from_release`."""

    X: Array

    def __post_init__(self) -> None:
        X = np.asarray(self.X, dtype=np.float64)
        if X.ndim != 2 or X.shape[0] != X.shape[1] or not np.isfinite(X).all():
            raise SordinoError(f"a Gram matrix must be square and finite, got shape {X.shape}")
        object.__setattr__(self, "X", X)

    @property
    def steps(self) -> int:  # type: ignore[override]
        return int(self.X.shape[0])

    @classmethod
    def from_encoder(cls, C: ArrayLike) -> MatrixStrategy:
        """Noise ``C^-1 Z`` on the per-step sums, Z iid standard normal rows."""
        C = np.asarray(C, dtype=np.float64)
        return cls(C.T @ C)

    @classmethod
    def from_release(cls, W: ArrayLike, covariance: ArrayLike) -> MatrixStrategy:
        """Rows of ``W u + noise``; `covariance` is a vector of variances or a full matrix."""
        W = np.asarray(W, dtype=np.float64)
        Sigma = np.asarray(covariance, dtype=np.float64)
        if Sigma.ndim == 1:
            if not (Sigma > 0).all():
                raise SordinoError("every released row needs noise of positive variance")
            return cls(W.T @ (W / Sigma[:, None]))
        try:
            half = np.linalg.solve(np.linalg.cholesky(Sigma), W)
        except np.linalg.LinAlgError:
            raise SordinoError("a noise covariance must be square and positive definite") from None
        return cls(half.T @ half)

    def gram(self) -> Array:
        return self.X


@dataclass(frozen=True, eq=False)
class ToeplitzStrategy(Strategy):
    """Lower-triangular Toeplitz encoder ``C[s, t] = c[s - t] / norm[t]``.

    `coefficients` holds ``c_0, c_1, ...`` (missing ones are 0); `column_norms`, if given, divides
    column t (column normalisation).
    """

    coefficients: Array
    steps: int
    column_norms: Array | None = None

    def __post_init__(self) -> None:
        c = np.asarray(self.coefficients, dtype=np.float64)[: self.steps]
        if c.ndim != 1 or not np.isfinite(c).all() or c.size == 0 or c[0] == 0:
            raise SordinoError(
                "Toeplitz coefficients must be finite numbers with a first one not 0"
            )
        object.__setattr__(self, "coefficients", np.pad(c, (0, self.steps - c.size)))
        norms = self.column_norms
        if norms is not None and (norms.shape != (self.steps,) or not (norms > 0).all()):
            raise SordinoError(f"column norms must be {self.steps} positive numbers")
        check_factors("the first coefficient of a strategy", c[:1])
        check_factors("column norms", np.ones(1) if norms is None else norms)

    @staticmethod
    def from_blt(
        theta: ArrayLike, omega: ArrayLike, steps: int, column_norms: Array | None = None
    ) -> BLTStrategy:
        """Buffered linear Toeplitz: ``c_0 = 1``, ``c_k = sum_i omega_i theta_i^(k-1)``."""
        theta_, omega_ = np.asarray(theta, np.float64), np.asarray(omega, np.float64)
        c = np.empty(steps)
        c[0] = 1.0
        powers = np.arange(steps - 1, dtype=np.float64)
        c[1:] = sum((w * th**powers for th, w in zip(theta_, omega_, strict=True)), np.zeros(1))
        return BLTStrategy(c, steps, column_norms, theta_, omega_)

    @cached_property
    def is_monotone(self) -> bool:
        """Nonnegative, non-increasing and not column-normalised: closed forms are then exact."""
        c = self.coefficients
        return self.column_norms is None and bool((c >= 0).all() and (np.diff(c) <= 0).all())

    def bands(self) -> int:
        last = int(np.flatnonzero(self.coefficients)[-1])
        # Powers that double precision cannot hold any more are no zeros of C.
        return self.steps if abs(self.coefficients[last]) < _UNDERFLOW else last + 1

    def weights(self, clips: Array | None) -> Array | None:
        """What multiplies column t: its clip over its norm; None where all are 1."""
        if self.column_norms is None:
            return clips
        inverse: Array = 1.0 / self.column_norms
        return inverse if clips is None else inverse * clips

    def lag(self, lag: int) -> Array:
        """``X[t - lag, t]`` for t = lag .. steps-1, before column normalisation."""
        c = self.coefficients
        return np.cumsum(c[: self.steps - lag] * c[lag:])[::-1]

    def gram(self) -> Array:
        _check_dense(self.steps)
        X = np.empty((self.steps, self.steps))
        for lag in range(self.steps):
            values, t = self.lag(lag), np.arange(lag, self.steps)
            X[t - lag, t] = values
            X[t, t - lag] = values
        if self.column_norms is not None:
            X /= np.outer(self.column_norms, self.column_norms)
        return X

    def fixed_batch_energy(self, separation: int, clips: Array | None = None) -> Array:
        w = self.weights(clips)
        count = min(separation, self.steps)
        if w is None and (self.coefficients >= 0).all():
            # Pattern j is pattern 0 moved down by j rows and cut off: one pass serves them all.
            rows = -(-self.steps // separation)
            padded = np.pad(self.coefficients, (0, rows * separation - self.steps))
            total = np.cumsum(padded.reshape(rows, separation), axis=0).ravel()[: self.steps]
            return np.cumsum(total**2)[::-1][:count]
        # One cumulative sum per lag that is a multiple of the separation: O(steps x epochs), and
        # nothing beyond the bands.
        energy = np.zeros(count)
        for lag in range(0, self.bands(), separation):
            term = np.abs(self.lag(lag))
            if w is not None:
                term = term * w[: self.steps - lag] * w[lag:]
            t = np.arange(lag, self.steps) % separation
            energy += (1 if lag == 0 else 2) * np.bincount(t, term, minlength=energy.size)
        return energy

    def block(self, pattern: ArrayLike) -> Array:
        P = np.asarray(pattern)
        X = np.empty((P.size, P.size))
        c = self.coefficients
        for i, s in enumerate(P):
            for j, t in enumerate(P[i:], start=i):
                X[i, j] = X[j, i] = c[t - s : self.steps - s] @ c[: self.steps - t]
        if self.column_norms is not None:
            X /= np.outer(self.column_norms[P], self.column_norms[P])
        return X


@dataclass(frozen=True, eq=False)
class BLTStrategy(ToeplitzStrategy):
    """A Toeplitz strategy that is known by its buffers; made by `ToeplitzStrategy.from_blt`."""

    theta: Array = field(default_factory=lambda: np.zeros(0))
    omega: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, eq=False)
class TreeStrategy(Strategy):
    """Binary tree over EMA (``beta < 1``) or prefix sums (``beta = 1``): the used nodes only.

    Every used node holds ``sum_i beta^(end - i) u_i`` and has its own noise of unit variance.
    """

    steps: int
    beta: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise SordinoError(f"the tree's decay beta must be between 0 and 1, got {self.beta!r}")

    def gram(self) -> Array:
        _check_dense(self.steps)
        W = node_matrix(used_nodes(self.steps), self.steps, self.beta)
        return W.T @ W

    def fixed_batch_energy(self, separation: int, clips: Array | None = None) -> Array:
        """Level by level, all patterns at once: O(steps x levels)."""
        n, t = self.steps, np.arange(self.steps)
        energy = np.zeros(min(separation, n))
        # What step t weighs in the node of the current level that holds it.
        weight = np.ones(n) if clips is None else np.array(clips, np.float64)
        length = 1
        while length <= min(separation, n):
            # A pattern has at most one step in each node.
            node = t // length
            used = (node % 2 == 0) & ((node + 1) * length <= n)
            energy += np.bincount(t % separation, used * weight**2, minlength=energy.size)
            weight = np.where(node % 2 == 0, self.beta**length, 1.0) * weight
            length *= 2
        if length > n:
            return energy
        # From here on sums[v, j] is what pattern j weighs in node v.
        nodes = -(-n // length)
        where = t // length * separation + t % separation
        flat = np.asarray(np.bincount(where, weight, minlength=nodes * separation), np.float64)
        sums = flat.reshape(nodes, separation)
        while length <= n:
            used = np.arange(0, n // length, 2)
            energy += (sums[used] ** 2).sum(axis=0)
            sums = np.pad(sums, ((0, len(sums) % 2), (0, 0)))
            sums = self.beta**length * sums[0::2] + sums[1::2]
            length *= 2
        return energy


@dataclass(frozen=True, eq=False)
class PhasesStrategy(Strategy):
    """Independent strategies one after the other in time: ``X`` is block diagonal.

    The noise of part p is multiplied by ``scales[p]``, which divides its block by the square.
    """

    parts: tuple[Strategy, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_parts(self.parts, self.scales, "phase")

    @property
    def steps(self) -> int:  # type: ignore[override]
        return sum(part.steps for part in self.parts)

    def bands(self) -> int | None:
        return _most_bands(self.parts)

    def placed(self) -> Iterator[tuple[Strategy, int, float]]:
        """Each part with its first step and what multiplies its block."""
        first = 0
        for part, scale in zip(self.parts, self.scales, strict=True):
            yield part, first, scale**-2.0
            first += part.steps

    def gram(self) -> Array:
        _check_dense(self.steps)
        return _block_diagonal([part.gram() for part in self.parts], self.scales)

    def fixed_batch_energy(self, separation: int, clips: Array | None = None) -> Array:
        """Pattern j meets the part that starts at step o as that part's pattern ``j - o``."""
        j = np.arange(min(separation, self.steps))
        energy = np.zeros(j.size)
        for part, first, factor in self.placed():
            own = None if clips is None else clips[first : first + part.steps]
            local = part.fixed_batch_energy(separation, own)
            residue = (j - first) % separation
            met = residue < local.size  # a part shorter than an epoch misses some patterns
            energy[met] += factor * local[residue[met]]
        return energy

    def block(self, pattern: ArrayLike) -> Array:
        P = np.asarray(pattern)
        X = np.zeros((P.size, P.size))
        for part, first, factor in self.placed():
            local = P - first
            inside = np.flatnonzero((local >= 0) & (local < part.steps))
            if inside.size:
                X[np.ix_(inside, inside)] = factor * part.block(local[inside])
        return X


@dataclass(frozen=True, eq=False)
class ParallelStrategy(Strategy):
    """Independent strategies side by side: one unit adds to every channel of each of its steps.

    Column ``p * steps + t`` of ``X`` stands for channel p of step t, with a contribution of norm at
    most 1; other bounds are part of the `scales` of the noise.
    """

    parts: tuple[Strategy, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_parts(self.parts, self.scales, "channel")
        if len({part.steps for part in self.parts}) > 1:
            raise SordinoError(
                "all channels must have the same number of steps, got "
                f"{[part.steps for part in self.parts]}"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.parts[0].steps

    @property
    def channels(self) -> int:
        return len(self.parts)

    def bands(self) -> int | None:
        return _most_bands(self.parts)

    def gram(self) -> Array:
        _check_dense(self.channels * self.steps)
        return _block_diagonal([part.gram() for part in self.parts], self.scales)

    def absolute_gram(self) -> Array:
        return sum(
            (part.absolute_gram() / s**2 for part, s in zip(self.parts, self.scales, strict=True)),
            np.zeros((self.steps, self.steps)),
        )

    def fixed_batch_energy(self, separation: int, clips: Array | None = None) -> Array:
        if clips is not None:
            raise SordinoError("clips of several channels belong into the scales of their noise")
        return sum(
            (
                part.fixed_batch_energy(separation) / s**2
                for part, s in zip(self.parts, self.scales, strict=True)
            ),
            np.zeros(min(separation, self.steps)),
        )

    def block(self, pattern: ArrayLike) -> Array:
        return _block_diagonal([part.block(pattern) for part in self.parts], self.scales)


def _most_bands(parts: tuple[Strategy, ...]) -> int | None:
    each = [part.bands() for part in parts]
    return None if None in each else max(bands for bands in each if bands is not None)


def _check_parts(parts: tuple[Strategy, ...], scales: tuple[float, ...], what: str) -> None:
    if not parts or len(parts) != len(scales):
        raise SordinoError(
            f"every {what} needs a strategy and a scale, got {len(parts)} and {len(scales)}"
        )
    if not all(np.isfinite(s) and s > 0 for s in scales):
        raise SordinoError(f"the scale of every {what} must be a positive number, got {scales}")
    check_factors(f"the scale of every {what}", np.array(_factors(parts, scales)))
    if any(part.channels > 1 for part in parts):
        raise SordinoError(f"a {what} cannot have several channels of its own")


def _factors(parts: tuple[Strategy, ...], scales: tuple[float, ...]) -> list[float]:
    """What the noise of each part is multiplied by, with that of parts inside it."""
    return [
        scale * inner
        for part, scale in zip(parts, scales, strict=True)
        for inner in (
            _factors(part.parts, part.scales) if isinstance(part, PhasesStrategy) else [1.0]
        )
    ]


def check_factors(what: str, values: Array) -> None:
    """Refuse factors of noise (or its inverses) that float32 cannot be trusted with."""
    size = np.abs(values)
    if not ((size >= 1 / LARGEST_FACTOR) & (size <= LARGEST_FACTOR)).all():
        raise SordinoError(
            f"{what} must be between {1 / LARGEST_FACTOR:g} and {LARGEST_FACTOR:g}: noise that is "
            "multiplied by less may vanish in float32"
        )


def _block_diagonal(blocks: list[Array], scales: tuple[float, ...]) -> Array:
    """The blocks over the squares of their scales."""
    size = sum(len(block) for block in blocks)
    X = np.zeros((size, size))
    first = 0
    for block, scale in zip(blocks, scales, strict=True):
        own = slice(first, first + len(block))
        X[own, own] = block / scale**2
        first += len(block)
    return X

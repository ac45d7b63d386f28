"""Workloads: the linear map from the released sums to what the optimizer uses of them.

Noise is judged by what it does to the iterates, not to the single gradient. That map is a
lower-triangular matrix, a `LinearMap`. With a constant learning rate and constant momentum it is
Toeplitz, a `Workload`, with generating function ``scale / prod_i (1 - r_i z)``: one factor per
accumulator between the noisy sum and the iterate. Maps that are not Toeplitz are in `_maps.py`.

    >>> Workload.prefix().coefficients(4)
    array([1., 1., 1., 1.])
    >>> Workload.heavy_ball(0.5).coefficients(4)
    array([1.   , 1.5  , 1.75 , 1.875])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz

from sordino._base.errors import (
    DAMAGE,
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json

Array = npt.NDArray[np.float64]

# A kernel is cut where its coefficients have fallen to this fraction of the first one: below the
# rounding error of the sum they enter.
_NEGLIGIBLE = 1e-18
# Up to this length a direct convolution is both faster and more accurate than an FFT.
_SHORT_KERNEL = 512


class LinearMap(ABC):
    """A lower-triangular map from the noisy means of the steps to what the noise is judged by.

    Subclasses are frozen dataclasses, hashable and comparable.

    Attributes:
        name: How the map is called in plans and reports.
        prefers_leaky: Whether leaky cancellation (papers/02 1.7) is close to its best noise.
    """

    name: str
    prefers_leaky: ClassVar[bool] = False

    @abstractmethod
    def apply(self, x: npt.ArrayLike) -> Array:
        """The map along axis 0, float64 of the shape of `x`: (steps,) or (steps, columns)."""

    def matrix(self, n: int) -> Array:
        """The map of n steps as a dense lower-triangular float64[n, n]."""
        return self.apply(np.eye(require_count("n", n)))

    @abstractmethod
    def nearest_toeplitz(self) -> Workload:
        """The Toeplitz workload that stands for the map where only such can be optimized for."""

    @abstractmethod
    def to_json(self) -> Json:
        """Plain data that `linear_map_from_json` reads back."""


# Readers of the maps in `_maps.py`, by kind.
READERS: dict[str, Callable[[Json], LinearMap]] = {}


def linear_map_from_json(data: Json) -> LinearMap:
    """The map that `to_json` described; data without a "kind" are a Toeplitz `Workload`."""
    if "kind" not in data:
        return Workload.from_json(data)
    from sordino.parts.mechanisms import _maps as maps  # noqa: F401  (fills READERS; it imports this module)

    kind = require_choice("linear map", data["kind"], READERS)
    try:
        return READERS[kind](data)
    except SordinoError:
        raise
    except DAMAGE:
        raise SordinoError(f"this is not a {kind} map: {shown(data)}") from None


@dataclass(frozen=True)
class Workload(LinearMap):
    """Lower-triangular Toeplitz workload ``W`` with ``sum_k w_k z^k = scale / prod_i (1 - r_i z)``.

    Attributes:
        name: How the workload is called in plans and reports.
        scale: Factor in front, positive.
        ratios: The ``r_i``, each in [0, 1]; empty for the identity.
    """

    name: str
    scale: float = 1.0
    ratios: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        ratios = tuple(require_fraction("every ratio", r, closed=True) for r in self.ratios)
        object.__setattr__(self, "ratios", ratios)
        object.__setattr__(self, "scale", require_positive("scale", self.scale))

    @classmethod
    def identity(cls) -> Workload:
        """Only the released sums themselves matter."""
        return cls("identity", ratios=())

    @classmethod
    def prefix(cls) -> Workload:
        """Prefix sums, the iterates of plain SGD (``A`` in Denisov et al. 2022)."""
        return cls("prefix", ratios=(1.0,))

    @classmethod
    def ema(cls, alpha: float) -> Workload:
        """Exponential moving average ``m_t = (1 - alpha) m_{t-1} + alpha g_t``, alpha in (0, 1]."""
        alpha = require_positive("alpha", alpha, maximum=1.0)
        return cls("ema", scale=alpha, ratios=(1.0 - alpha,))

    @classmethod
    def heavy_ball(cls, momentum: float) -> Workload:
        """Iterates of SGD with heavy-ball momentum (``MA`` in Choquette-Choo et al. 2024)."""
        momentum = require_fraction("momentum", momentum, closed=True)
        return cls("heavy_ball", ratios=(1.0, momentum))

    @classmethod
    def recursive(cls, momentum: float, decay: float) -> Workload:
        """Iterates of heavy-ball SGD on ``G_t = decay G_{t-1} + Delta_t``.

        This is ``MAL`` in Choquette-Choo et al. 2024, the workload of DP-SRG-MEMF.
        """
        momentum = require_fraction("momentum", momentum, closed=True)
        decay = require_fraction("decay", decay, closed=True)
        return cls("recursive", ratios=(1.0, momentum, decay))

    def then(self, other: Workload) -> Workload:
        """This workload followed by `other`; Toeplitz maps commute, so the order is immaterial."""
        names = [w.name for w in (self, other) if w.ratios or w.scale != 1] or [self.name]
        return Workload(
            " then ".join(names), self.scale * other.scale, (*self.ratios, *other.ratios)
        )

    def nearest_toeplitz(self) -> Workload:
        return self

    def coefficients(self, n: int) -> Array:
        """First column of ``W``: the first ``n`` power-series coefficients, float64[n]."""
        return self.apply(_impulse(n))

    def sqrt_coefficients(self, n: int) -> Array:
        """First column of the Toeplitz square root ``W^(1/2)``, float64[n].

        Coefficients of ``scale^(1/2) prod_i (1 - r_i z)^(-1/2)``; one factor has the closed form
        ``r^k binom(2k, k) / 4^k`` (Fichtenberger, Henzinger & Upadhyay 2023). A ratio that occurs
        twice needs no root at all.
        """
        result = math.sqrt(self.scale) * _impulse(n)
        for ratio, count in sorted(Counter(self.ratios).items()):
            for _ in range(count // 2):
                result = _accumulate(result, ratio)
            if count % 2:
                result = _convolve(result, _root_kernel(ratio, n))
        # An FFT leaves noise of either sign where the exact value is below its rounding error; the
        # exact coefficients are non-negative, and the sensitivity formulas rely on it.
        return np.maximum(result, 0.0)

    def apply(self, x: npt.ArrayLike) -> Array:
        """``W @ x`` along axis 0, in O(n) per column."""
        result = np.asarray(x, np.float64) * self.scale
        for ratio in self.ratios:
            # One first-order recursion per factor: multiplying the polynomials out first would lose
            # digits where ratios are close to each other.
            result = _accumulate(result, ratio)
        return result

    def matrix(self, n: int) -> Array:
        """``W`` as a dense lower-triangular float64[n, n]."""
        dense: Array = toeplitz(self.coefficients(n), np.zeros(n))
        return dense

    def to_json(self) -> Json:
        """A plain dict of JSON types; inverse of :meth:`from_json`."""
        return {"name": self.name, "scale": self.scale, "ratios": list(self.ratios)}

    @classmethod
    def from_json(cls, data: Json) -> Workload:
        """Rebuild a workload from :meth:`to_json`."""
        try:
            return cls(str(data["name"]), data["scale"], tuple(data["ratios"]))
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a workload: {shown(data)}") from None


def _impulse(n: int) -> Array:
    impulse = np.zeros(require_count("n", n))
    impulse[0] = 1.0
    return impulse


def _accumulate(x: Array, ratio: float) -> Array:
    """Multiply by ``1 / (1 - ratio z)``."""
    return np.asarray(lfilter([1.0], [1.0, -ratio], x, axis=0), np.float64)


def _root_kernel(ratio: float, n: int) -> Array:
    """First coefficients of ``(1 - ratio z)^(-1/2)``, cut where they no longer matter."""
    if 0.0 < ratio < 1.0:
        n = min(n, 2 + int(math.log(_NEGLIGIBLE) / math.log(ratio)))
    elif ratio == 0.0:
        n = 1
    k = np.arange(1, n, dtype=np.float64)
    return np.cumprod(np.concatenate([[1.0], ratio * (1.0 - 0.5 / k)]))


def _convolve(x: Array, kernel: Array) -> Array:
    """Product of two power series, truncated to ``len(x)`` terms."""
    short = len(kernel) <= _SHORT_KERNEL
    product = np.convolve(x, kernel) if short else fftconvolve(x, kernel)
    return np.asarray(product[: len(x)], np.float64)


# ---- scipy's linear filters, imported when first used: `scipy.signal` alone takes longer than jax --------


def lfilter(numerator: ArrayLike, denominator: ArrayLike, x: ArrayLike, axis: int = -1) -> Array:
    """The power series of ``numerator / denominator`` applied to `x` along `axis`."""
    from scipy.signal import lfilter as scipy_lfilter

    return np.asarray(scipy_lfilter(numerator, denominator, x, axis=axis))


def fftconvolve(a: ArrayLike, b: ArrayLike) -> Array:
    """Full convolution by FFT."""
    from scipy.signal import fftconvolve as scipy_fftconvolve

    return np.asarray(scipy_fftconvolve(a, b))


def correlate(a: ArrayLike, b: ArrayLike) -> Array:
    """Full cross-correlation by FFT."""
    from scipy.signal import correlate as scipy_correlate

    return np.asarray(scipy_correlate(a, b, mode="full", method="fft"))

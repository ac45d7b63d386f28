"""scipy's linear filters, imported when first used: `scipy.signal` alone takes longer than jax."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def lfilter(numerator: ArrayLike, denominator: ArrayLike, x: Any, axis: int = -1) -> NDArray[Any]:
    """The power series of ``numerator / denominator`` applied to `x` along `axis`."""
    from scipy.signal import lfilter as scipy_lfilter

    return np.asarray(scipy_lfilter(numerator, denominator, x, axis=axis))


def fftconvolve(a: ArrayLike, b: ArrayLike) -> NDArray[Any]:
    """Full convolution by FFT."""
    from scipy.signal import fftconvolve as scipy_fftconvolve

    return np.asarray(scipy_fftconvolve(a, b))


def correlate(a: ArrayLike, b: ArrayLike, **options: Any) -> NDArray[Any]:
    """Cross-correlation, as scipy has it."""
    from scipy.signal import correlate as scipy_correlate

    return np.asarray(scipy_correlate(a, b, **options))

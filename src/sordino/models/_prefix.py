"""Noise for counts over ordered cells, shaped so that sums of neighbouring cells are accurate.

``released = w + sigma * D C^-1 z`` for weights w over N cells, with C the lower-triangular square root of
the matrix of ones (its coefficients are ``binom(2k, k) / 4^k``), D the norms of its columns, and z standard
normal. Whoever adds weights of total at most 1 moves ``C D^-1 w`` by at most 1, because each of its columns
has norm 1: the release is (1/sigma)-GDP. Sums from the first cell to any other have noise of about 3.4
sigma for 3,841 cells, where independent noise would add up to 62 (papers/06, sections 3.1 and 3.2).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

Array = NDArray[np.float64]
# Released numbers are multiples of sigma times about this: their last bits say nothing.
_RELEASED_BITS = 20


@lru_cache(maxsize=16)
def _series(cells: int) -> tuple[Array, Array]:
    """Coefficients of ``C^-1`` (cells,), and the norms of C's columns (cells,)."""
    k = np.arange(1, cells)
    root = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2 * k - 3) / (2 * k))])
    # Column s has the first cells - s coefficients; the last digit up, so that no norm is too small.
    norms = np.sqrt(np.cumsum(root**2))[::-1] * (1 + 1e-12)
    for shared in (inverse, norms):
        shared.setflags(write=False)
    return inverse, norms


def column_norms(cells: int) -> Array:
    """The norms of the columns of C (cells,): what D is made of."""
    return _series(cells)[1]


def prefix_noise(cells: int, rng: np.random.Generator, draws: tuple[int, ...] = ()) -> Array:
    """Noise for `cells` ordered cells at sigma 1 (*draws, cells): add it, times sigma, to their weights."""
    inverse, norms = _series(cells)
    z = rng.standard_normal((*draws, cells))
    inverse = inverse.reshape((1,) * len(draws) + (cells,))
    return np.asarray(norms * fftconvolve(z, inverse, axes=-1)[..., :cells])


def rounded_off(noisy: Array, sigma: float) -> Array:
    """Noisy numbers without the bits in which a float's own grid would show what the noise is added to."""
    if not sigma:
        return noisy  # of no noise
    unit = 2.0 ** (math.floor(math.log2(sigma)) - _RELEASED_BITS)
    return np.asarray(np.floor(noisy / unit) * unit)


def prefix_error(cells: int) -> Array:
    """Standard deviation of the sums from the first cell to each cell (cells,), at sigma 1."""
    inverse, norms = _series(cells)
    # Row i of A D C^-1 is the running sum over rows of D C^-1: sum_{j <= i} norms_j inverse_{j-k}.
    total = np.zeros(cells)
    result = np.empty(cells)
    for i in range(cells):
        total[: i + 1] += norms[i] * inverse[: i + 1][::-1]
        result[i] = np.sqrt(np.sum(total[: i + 1] ** 2))
    return result

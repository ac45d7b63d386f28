"""Many different noise levels as a few: what composing privacy-loss distributions needs.

Composing one distribution per step is slow, so steps are grouped into at most `most` levels and the
noise of each step is rounded *down* to its level. That only ever overstates the loss.

>>> levels([1.0, 2.0, 2.0, 1.0, 1.0])
[(1.0, 3), (2.0, 2)]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError, require_count
from sordino.privacy._amplification import POISSON, SampledRelease

# 24 levels over a ratio of 2 are 3 % apart.
MOST_LEVELS = 24


def levels(sigma: ArrayLike, most: int = MOST_LEVELS) -> list[tuple[float, int]]:
    """``(level, count)`` in increasing order: every sigma is at least its level, counts add up.

    With at most `most` distinct values they are the levels themselves and nothing is lost. Otherwise
    the range is cut into `most` bins of equal ratio and each bin's least value is its level.
    Multiplying all sigmas by one factor multiplies the levels by it.
    """
    values = np.asarray(sigma, np.float64)
    require_count("most", most)
    if values.ndim != 1 or not values.size or not (np.isfinite(values) & (values > 0)).all():
        raise SordinoError("noise levels must be a list of finite numbers greater than 0")
    distinct, counts = np.unique(values, return_counts=True)
    if distinct.size > most:
        position = np.log(distinct / distinct[0]) / np.log(distinct[-1] / distinct[0])
        bins = np.minimum((position * most).astype(np.intp), most - 1)
        # The least value of a bin is below all others in it, however the logarithms were rounded.
        first = np.flatnonzero(np.diff(bins, prepend=-1))
        distinct, counts = distinct[first], np.add.reduceat(counts, first)
    return [(float(level), int(count)) for level, count in zip(distinct, counts, strict=True)]


def sampled_levels(
    sigma: ArrayLike,
    *,
    rate: float,
    adjacency: str,
    sampling: str = POISSON,
    most: int = MOST_LEVELS,
) -> tuple[SampledRelease, ...]:
    """Steps with noise multipliers `sigma` (relative to the clip norm) as releases to compose."""
    return tuple(
        SampledRelease(level, 1.0, rate, count, sampling, adjacency)
        for level, count in levels(sigma, most)
    )

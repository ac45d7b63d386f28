r"""The summed message noise of many rounds, drawn as what it is: one Gaussian vector per round.

The course of a run depends on its messages only through their sum, so the m x d numbers that a round's
clients draw need not exist. Each coordinate of the sums is a Gaussian vector over the rounds with the
covariance Sigma of `sum_stream.py`, so

    N = L Z,   Sigma = L L^T,   Z independent standard normal (T, d),

has exactly the right distribution, for one draw of d numbers a round. L is banded like Sigma; a
chunk of rounds is one matrix product with the draws of this chunk and of the B rounds before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.together.federated._sum_stream import SumStream


class RoundNoise:
    """Rows of noise, in order; which chunks they are asked for in does not change the draws."""

    def __init__(self, stream: SumStream, d: int, seed: int, scale: float = 1.0) -> None:
        """Args:
        d: numbers in a row.
        seed: of the draws: research only, nobody's privacy rests on them.
        scale: what a unit of the stream's standard deviations is worth.
        """
        self._factor = (stream.factor * scale).astype(np.float32)
        self._chance = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, 0x5D])))
        self._before = np.zeros((stream.band.shape[0] - 1, d), np.float32)
        self._next = 0

    def rows(self, count: int) -> NDArray[np.float32]:
        """The noise of the next `count` rounds, float32 (count, d)."""
        first, width = self._next, len(self._before)
        fresh = self._chance.standard_normal((count, self._before.shape[1]), dtype=np.float32)
        draws = np.concatenate([self._before, fresh]) if width else fresh
        # Row r of the chunk needs draws r .. r + width; the one of its own round is the last.
        product = np.zeros((count, width + count), np.float32)
        rounds = np.arange(first, first + count)
        for gap in range(width + 1):
            known = rounds - gap >= 0
            place = (np.arange(count)[known], np.arange(width - gap, width - gap + count)[known])
            product[place] = self._factor[gap, rounds[known] - gap]
        self._next += count
        if width:
            self._before = draws[-width:].copy()
        return product @ draws

"""Three kinds of value that must never be confused.

A `ClippedSum` is as sensitive as the data: it exists only between clipping and noise. A `NoisedSum` is
what the one door (`sordino.engine.add_noise`) made of it, and a `PrivateEstimate` the mean that follows
from that: the optimizer, callbacks, logs and files see only these and what follows from them. All are
pytrees (named tuples), shaped like the parameters; with several channels, a tuple of such.
"""

from __future__ import annotations

from typing import NamedTuple

from sordino._base.types import PyTree


class ClippedSum(NamedTuple):
    """A sum of clipped contributions, not yet noised. Its repr shows nothing, on purpose.

    Attributes:
      clipped: float32, or whole numbers (int32) on a lattice.
      rest: shaped like `clipped`: what rounding it to float32 left out; None where nothing was.
    """

    clipped: PyTree
    rest: PyTree = None

    def __repr__(self) -> str:
        return "ClippedSum(<not private: hidden>)"


class NoisedSum(NamedTuple):
    """A sum with its noise: it may be seen. Float32, or whole lattice steps."""

    noised: PyTree


class PrivateEstimate(NamedTuple):
    """A noisy gradient estimate: a noised sum divided by the planned batch size."""

    value: PyTree

"""Two kinds of value that must never be confused.

A `ClippedSum` is as sensitive as the data: it exists only between clipping and noise, inside
compiled code. A `PrivateEstimate` is what the mechanism made of it: the optimizer, callbacks, logs
and files see only these and what follows from them. Both are pytrees (named tuples).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class ClippedSum(NamedTuple):
    """A sum of clipped contributions, not yet noised. Its repr shows nothing, on purpose.

    Attributes:
      value: float32, or whole numbers on a lattice.
      rest: shaped like `value`: what rounding it to float32 left out; None where nothing was.
    """

    value: Any
    rest: Any = None

    def __repr__(self) -> str:
        return "ClippedSum(<not private: hidden>)"


class PrivateEstimate(NamedTuple):
    """A noisy gradient estimate."""

    value: Any

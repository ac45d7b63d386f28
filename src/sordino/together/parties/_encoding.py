r"""Noise that later noise takes back, over sums whose noise is always fresh.

A secure sum adds noise that nobody knows, so nobody can take it back later. Nor does anybody have to.
Where row t of the planned noise is ``z_t - sum_{j in B(t)} z_j`` (`Mechanism.cancelled_draws`), every party
puts into turn t, instead of its own sum ``x_t``,

    e_t = x_t + sum_{j in B(t)} e_j,            so that   r_t = sum over parties of e_t, plus z_t

is released with fresh noise, and everybody computes ``r_t - sum_{j in B(t)} r_j = x_t + z_t - sum z_j``:
exactly, in whole numbers, the planned sum with the planned noise. It is the matrix mechanism read the
other way: e is ``C x``, and what follows is post-processing.

A turn that was lost has no r_t. From then on it is left out of all sums, at all parties. That takes
entries out of C and adds none; C has no negative ones, so what one record changes is not more than was
planned for, whatever decides which turns are lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.parts.mechanisms import Mechanism

Integers = NDArray[np.int64]


class DifferenceCodec:
    """Running sums ``v_t + sum_{j in B(t)} sign v_j`` over one party's vectors, or over releases.

    Args:
      mechanism: of the plan; on a lattice.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._live: dict[int, Integers] = {}
        self.is_plain = not any(
            mechanism.cancelled_draws(t) for t in range(min(2, mechanism.steps))
        )

    def encoded(self, step: int, values: Integers) -> Integers:
        """e_t of x_t, kept for later steps."""
        if self.is_plain:
            return values
        total = values.copy()
        for earlier in self._taken(step):
            total += earlier
        self._live[step] = total
        return total

    def decoded(self, step: int, released: Integers) -> Integers:
        """x_t with its noise, of r_t; r_t is kept for later steps."""
        if self.is_plain:
            return released
        total = released.copy()
        for earlier in self._taken(step):
            total -= earlier
        self._live[step] = released
        return total

    def lost(self, step: int) -> None:
        """The turn of this step has no release: nothing of it is kept."""
        if not self.is_plain:
            self._taken(step)
            self._live.pop(step, None)

    def _taken(self, step: int) -> list[Integers]:
        """What this step takes back and is there; no later step takes it back again."""
        result = (self._live.pop(j, None) for j in self._mechanism.cancelled_draws(step) or ())
        return [values for values in result if values is not None]


def growth(mechanism: Mechanism) -> int:
    """Largest row sum of C: how many steps' sums one vector may hold."""
    rows: list[int] = []
    for step in range(mechanism.steps):
        rows.append(1 + sum(rows[j] for j in mechanism.cancelled_draws(step) or ()))
    return max(rows)

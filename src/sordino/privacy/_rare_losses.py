r"""Many steps whose loss is next to nothing but for rare large ones: those are counted one by one.

At tiny rates one step's law m is a spike near 0 and a thin long tail. No tilt puts both in the middle of
one Fourier transform, and no lattice suits both. So m is cut at a loss c into common losses a (at most c)
and rare ones b (above). As measures,

    m^{*T} = sum_j C(T, j) a^{*(T-j)} * b^{*j},

and ``delta(eps)`` is the integral of ``(1 - e^{eps - L})_+``, which lies in [0, 1], over it. Hence it is at
most the sum of

* no rare loss: ``e^{K - x eps} max_y e^{-x y} (1 - e^{-y})``, any x > 0, ``K = T ln int e^{x L} da``;
* one of them: ``T int d_b(eps - S) a^{*(T-1)}(dS)``, ``d_b(e) = int (1 - e^{e - l})_+ b(dl)``;
* two or more: at most the probability that two steps have one, ``C(T, 2) |b|^2``, as ``|a| + |b| <= 1``.

a is put on a fine lattice as in `_loss_laws.py`: each of its cells is a post-processing of its two ends,
under both distributions, so no term becomes smaller. ``d_b`` is in closed form: with x the output at the
loss max(e, c), it is ``P(X > x) - e^e Q(X > x)``. c is such that the last term is a ten thousandth of
delta. In the second, |b| is tiny, so that rounding errors in the law of S, relative to 1, do no harm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sordino.privacy._loss_laws import Array, Law, Level, U, loss_at, output_at, tails

# Share of delta that two rare losses may take.
TWO_SHARE = 1e-4
# Blocks of the law of S, each counted at its upper end.
BLOCKS = 8192
_ORDERS = 24


def least_rare_loss(level: Level, delta: float) -> float:
    """c: two losses above it in all steps are unlikely."""
    enough = math.sqrt(2 * TWO_SHARE * delta) / level.steps
    low, high = 0.0, 1 + 40 * level.width
    for _ in range(60):
        middle = (low + high) / 2
        rare = float(tails(level, np.array([middle]))[0][0]) <= enough
        low, high = (low, middle) if rare else (middle, high)
    return float(loss_at(level, np.array([high]))[0])


@dataclass(frozen=True)
class Jumps:
    """delta of all steps together, as above.

    Attributes:
      level: the steps.
      common: the law of one step's common losses, the last of which is c.
      bulk, ends: measure of the sum S of all but one of them, in blocks with these upper ends.
      error: of either sign, in all sums of `bulk` with numbers up to 1, and what of it lies elsewhere.
    """

    level: Level
    common: Law
    bulk: Array
    ends: Array
    error: float

    @classmethod
    def of(
        cls, level: Level, common: Law, bulk: Array, first: int, rounding: float, outside: float
    ) -> Jumps:
        """From the measure `bulk` on the lattice, with the root of the sum of its squared errors."""
        size = -(-bulk.size // BLOCKS)
        starts = np.arange(0, bulk.size, size)
        ends = (first + np.minimum(starts + size, bulk.size) - 1) * common.h
        error = rounding * math.sqrt(bulk.size) + outside
        return cls(level, common, np.add.reduceat(bulk, starts), ends, error)

    @cached_property
    def total(self) -> float:
        """|b|."""
        return float(tails(self.level, self._edge)[0][0]) * (1 + 1e-9)

    @cached_property
    def _edge(self) -> Array:
        """The output at c: the very number at which the common law ends."""
        return output_at(self.level, self.common.losses[-1:])

    @cached_property
    def _chernoff(self) -> tuple[Array, Array]:
        """Orders x, and ``K + ln max_y`` of each."""
        losses, top = self.common.losses, float(self.common.losses[-1])
        orders, values = np.geomspace(1 / top, 300 / top, _ORDERS), []
        for x in orders:
            peak = x * top
            one = math.log(float((self.common.masses * np.exp(x * losses - peak)).sum())) + peak
            K = self.level.steps * (one + 16 * U * (1 + peak))
            values.append(K + x * math.log(x) - (1 + x) * math.log1p(x))
        return orders, np.array(values)

    def delta(self, epsilon: float) -> float:
        """An upper bound at `epsilon` >= 0."""
        T = self.level.steps
        orders, values = self._chernoff
        none = math.exp(min(float((values - orders * epsilon).min()), 0.0))
        # |a| + |b| may round to a little more than 1.
        two = 0.5 * (T * self.total) ** 2 * 1.01
        e = epsilon - self.ends
        x = np.maximum(output_at(self.level, e), self._edge)
        p, q = tails(self.level, x)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.where(q > 0, np.exp(e) * q, 0.0)
        # At the output of loss e both are equal: where it lies matters to second order only.
        exposed = np.minimum(np.maximum(p - scaled, 0.0) + 64 * U * (p + scaled), self.total)
        one = T * (float(self.bulk @ exposed) + self.error * self.total)
        return (none + one + two + T * self.common.cut) * (1 + 1e-9)

    def epsilon(self, delta: float, most: float) -> float:
        """An upper bound at `delta`, inf if it is above `most`."""
        if self.delta(0.0) <= delta:
            return 0.0
        if self.delta(most) > delta:
            return math.inf
        low, high = 0.0, most
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high

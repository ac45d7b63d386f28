r"""The discrete Gaussian as a table of whole numbers, for drawing it inside a secure computation.

Where nobody may see the random bits, nothing can depend on them: no rejection, no loop that ends early.
What can be done is to look a uniform word up in a public table. With ``M = |x|`` and

    t_k = floor(2^L P(M >= k)),   k = 1 .. K,   t_K >= 1 > t_{K+1},

a word r, uniform below 2^L, gives ``M = #{k : r < t_k}``, and a further bit the sign.

**How far that is from the discrete Gaussian.** With ``e_k = P(M >= k) - t_k / 2^L``, which is in
[0, 2^-L) for k <= K and for k = K + 1 too (there t is 0), the probability of M = k is off by
``|e_k - e_{k+1}| < 2^-L`` for each of the K + 1 values that the table can give, and all values beyond have
``e_{K+1} < 2^-L`` together. Half of the sum is the total variation: less than ``(K + 2) / 2^(L+1)`` for a
draw, and d times that for d of them. The thresholds are proven: each comes from an enclosure in
integers whose two ends round to the same number.

**Looking it up.** K comparisons of secret words would cost too much. Walker's alias table (`Columns`)
gives the very same distribution with one: the first c bits of r choose one of 2^c >= K + 1 columns, of
weight 2^(L-c) each, and the other L - c bits choose between the two magnitudes that share it.

A mechanism that is (epsilon, delta)-private with exact noise is (epsilon, delta + (1 + e^epsilon) eta)-
private with noise within total variation eta of it: eta counts once for either of two neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from sordino.errors import SordinoError, require_count
from sordino.mechanisms.discrete import exp_enclosure

# Bits of the uniform word beside the sign: one word of 64 bits, or two.
BITS = 63
LEAST_BITS, MOST_BITS = 16, 126
# Sigma to 1024 grid steps: K is 9,400, and the table is made in seconds.
MOST_VARIANCE = 1 << 20


@dataclass(frozen=True)
class Columns:
    """The alias table: a column i below 2^c, and a level below 2^(L-c), give a magnitude.

    It is ``i`` where ``level < cut[i]``, and ``other[i]`` where not.

    Attributes:
      bits: c.
      level_bits: L - c.
      cut: 2^c whole numbers below 2^(L-c).
      other: 2^c magnitudes.
    """

    bits: int
    level_bits: int
    cut: tuple[int, ...]
    other: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """The discrete Gaussian with a whole-number variance, to L bits.

    Attributes:
      variance: S, of the discrete Gaussian ``P(x) ~ exp(-x^2 / (2 S))``.
      bits: L.
      thresholds: t_1 >= ... >= t_K >= 1.
    """

    variance: int
    bits: int
    thresholds: tuple[int, ...]

    @property
    def largest(self) -> int:
        """K: the largest magnitude that can be drawn."""
        return len(self.thresholds)

    @property
    def weights(self) -> tuple[int, ...]:
        """2^L times the probability of each magnitude from 0 to K: they add up to 2^L."""
        steps = (1 << self.bits, *self.thresholds, 0)
        return tuple(above - below for above, below in pairwise(steps))

    def distance(self, draws: int) -> Fraction:
        """A bound on the total variation between so many draws and the exact distribution."""
        return min(Fraction(1), Fraction(draws * (self.largest + 2), 1 << (self.bits + 1)))

    def columns(self) -> Columns:
        """The same distribution as an alias table; equal at all parties."""
        return _columns(self)


def distance(dimension: int, variance: int, bits: int = BITS) -> Fraction:
    """The total variation of one release of `dimension` numbers from exact noise, bounded."""
    return table(variance, bits).distance(require_count("dimension", dimension))


@lru_cache(maxsize=32)
def table(variance: int, bits: int = BITS) -> Table:
    """The table for a variance of S grid steps squared, to `bits` bits.

    Args:
      variance: S, a whole number from 1 to 2^20.
      bits: L, from 16 to 126.
    """
    require_count("variance", variance)
    if variance > MOST_VARIANCE:
        raise SordinoError(
            f"noise inside a secure computation goes to a variance of 2^20 grid steps squared, "
            f"got {variance:,}: take a coarser grid"
        )
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise SordinoError(f"bits must be between {LEAST_BITS} and {MOST_BITS}, got {bits}")
    point = bits + 96
    while True:
        thresholds = _thresholds(variance, bits, point)
        if thresholds is not None:
            return Table(variance, bits, thresholds)
        point += 64


def _thresholds(variance: int, bits: int, point: int) -> tuple[int, ...] | None:
    """Every t_k that is not 0, or nothing where `point` bits do not decide one of them."""
    low: list[int] = []
    high: list[int] = []
    while not high or high[-1] >> (point - bits - 48):  # until a weight is below 2^-(L+48)
        below, above = exp_enclosure(Fraction(len(low) ** 2, 2 * variance), point)
        low.append(below)
        high.append(above)
    # The last weight stands for itself and all beyond: they fall by exp(-T/S) at least from one to the
    # next, and 1 / (1 - exp(-x)) <= 1 + 1/x.
    last = len(high) - 1
    high[-1] += -(-high[-1] * variance // last)
    whole_low, whole_high = low[0] + 2 * sum(low[1:]), high[0] + 2 * sum(high[1:])
    found = []
    tail_low, tail_high = 0, 0
    for below, above in zip(low[:0:-1], high[:0:-1], strict=True):
        tail_low, tail_high = tail_low + 2 * below, tail_high + 2 * above
        t = (tail_low << bits) // whole_high
        if t != (tail_high << bits) // whole_low:
            return None
        found.append(t)
    return tuple(t for t in reversed(found) if t)


@lru_cache(maxsize=32)
def _columns(made: Table) -> Columns:
    weights = made.weights
    bits = max(1, (len(weights) - 1).bit_length())
    capacity = 1 << (made.bits - bits)
    left = [*weights, *[0] * ((1 << bits) - len(weights))]
    cut, other = [0] * len(left), list(range(len(left)))
    small = [i for i, weight in enumerate(left) if weight < capacity]
    large = [i for i, weight in enumerate(left) if weight >= capacity]
    while small and large:
        i, j = small.pop(), large[-1]
        cut[i], other[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] < capacity:
            small.append(large.pop())
    # What is left is full, whole numbers leaving no rounding behind: `other` is the column itself.
    if any(left[i] != capacity for i in (*small, *large)):
        raise AssertionError("the weights do not fill the columns")
    return Columns(bits, made.bits - bits, tuple(cut), tuple(other))

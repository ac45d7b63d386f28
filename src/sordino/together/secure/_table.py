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

**A ladder of tables** (`Ladder`). A table's cost grows with the square root of its columns, and these
with sigma: beyond a variance of `WIDEST` the noise is ``k_0 X_0 + k_1 X_1 + ...`` instead, with ``k_0 = 1``
and independent draws X_l from small tables of whole-number variances V_l. Its parameter is ``R = sum_l
k_l^2 V_l``, and the remainders of a division make that *exactly* the variance S that was asked for. How
far it is from one discrete Gaussian of parameter R: say Y (the rungs so far) has the probabilities of
parameter A up to factors ``e^{+-l}``, and X is exact with parameter V. Adding ``k X`` keeps the factors
(probabilities are positive), and with exact Y the weight of ``z = Y + k X`` is

    sum_x exp(-(z - k x)^2 / 2A - x^2 / 2V)  =  exp(-z^2 / 2R) sum_x exp(-(x - c z)^2 / 2s^2),
    R = A + k^2 V,   s^2 = A V / R,   c = k V / R.

By Poisson's formula the inner sum is a constant times ``1 + 2 sum_{j>=1} q^(j^2) cos(2 pi j c z)`` with
``q = exp(-2 pi^2 s^2)``, and ``j^2 >= 1 + 3(j-1)``: it stays within ``1 +- eta``, ``eta = 2q / (1 - q^3)``.
Weights within ``1 +- eta`` are probabilities up to a factor of ``(1 + eta) / (1 - eta)``, so

    l  <-  l + log (1 + eta)/(1 - eta),   about 4 q for each rung above the lowest.

Probabilities up to factors ``e^{+-l}`` are a total variation of at most ``1 - e^-l <= l``. Together, for
one draw: l, and each table's own distance. With factors ``k_l = f^l`` and every ``V_l >= v (1 + f^2)`` all
``s^2`` are at least v: A is at least ``v (1 + f^2) (f^2l - 1)/(f^2 - 1)``, s^2 grows with A and V, and
``(1 + f^2) (f^2l - 1)/(f^(2l+2) - 1)`` is 1 for l = 1 and grows. Here v = 9/2, so l is 1e-38 for a rung:
below what tables to 126 bits leave.

A mechanism that is (epsilon, delta)-private with exact noise is (epsilon, delta + (1 + e^epsilon) tv)-
private with noise within total variation tv of it: it counts once for either of two neighbours.

>>> made = ladder(10**7)
>>> made.rungs, made.variance
(((1, 7520), (38, 6920)), 10000000)
>>> float(made.distance(draws=10**6)) < 2e-10
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count, pairwise

from sordino._base.errors import SordinoError, require_count
from sordino.parts.mechanisms import MOST_VARIANCE, exp_enclosure

# Bits of the uniform word beside the sign: one word of 64 bits, or two.
BITS = 63
LEAST_BITS, MOST_BITS = 16, 126
# Sigma to 1024 grid steps: K is 9,400, and the table is made in seconds.
_MOST_TABLE = 1 << 20
# The largest variance of a table in a ladder: 1,024 columns to 63 bits. Measured, for either engine: twice
# as many columns cost less than a third more, and a further rung as much as the first.
WIDEST = 12_288
# v: no s^2 is below this.
_LEAST_SQUARE = Fraction(9, 2)
# The largest f that leaves tables of lower rungs within WIDEST, whatever the remainder.
_MOST_FACTOR = 47
# No ladder to 126 bits and a variance of 2^48 gives more.
LARGEST_NOISE = 1 << 30
# A float that has been rounded down a dozen times; and what stands for one that is too small for a float.
_UP = 1 + 1e-12
_TINY = 1e-300


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

    def columns(self, least_bits: int = 1) -> Columns:
        """The same distribution as an alias table, equal at all parties; 2^`least_bits` columns or more."""
        return _columns(self, max(least_bits, self.largest.bit_length()))


@dataclass(frozen=True)
class Ladder:
    """Noise as a sum of multiples of draws from small tables; `ladder` makes good ones.

    Attributes:
      rungs: (k_l, V_l), the lowest first, with k_0 = 1.
      bits: L, of every table.
    """

    rungs: tuple[tuple[int, int], ...]
    bits: int = BITS

    def __post_init__(self) -> None:
        if not self.rungs or self.rungs[0][0] != 1:
            raise SordinoError("the lowest rung of a ladder must have the factor 1")
        for factor, variance in self.rungs:
            require_count("factor", factor)
            require_count("variance", variance)
        _require_bits(self.bits)

    @property
    def variance(self) -> int:
        """R, exactly: of the discrete Gaussian that the noise is compared with."""
        return sum(factor**2 * variance for factor, variance in self.rungs)

    @property
    def log_ratio(self) -> float:
        """l of the exact sum, without the tables' own distances; rounded up, and 0 for one rung."""
        total, below = 0.0, self.rungs[0][1]
        for factor, variance in self.rungs[1:]:
            above = below + factor**2 * variance
            total += log_ratio_of_sum(Fraction(below * variance, above))
            below = above
        return total * _UP

    @property
    def largest(self) -> int:
        """No draw is beyond this; a bound that needs no table."""
        return sum(factor * _most_drawn(variance, self.bits) for factor, variance in self.rungs)

    def distance(self, draws: int) -> Fraction:
        """A bound on the total variation between so many draws and the discrete Gaussian of parameter R.

        A few per cent above the tables' own, because none of them is made for it.
        """
        require_count("draws", draws, minimum=0)
        each = sum(_most_drawn(variance, self.bits) + 2 for _, variance in self.rungs)
        ratio = self.log_ratio
        if not ratio < 1:
            return Fraction(min(1, draws))
        return min(Fraction(1), draws * (Fraction(each, 2 << self.bits) + Fraction(ratio)))

    def columns(self) -> tuple[Columns, ...]:
        """Every rung's alias table, all with equally many columns."""
        tables = [table(variance, self.bits) for _, variance in self.rungs]
        bits = max(built.columns().bits for built in tables)
        return tuple(built.columns(bits) for built in tables)


def log_ratio_of_sum(square: Fraction | float) -> float:
    """``log (1 + eta)/(1 - eta)`` for s^2 = `square`: rounded up, never 0, infinite where nothing holds."""
    q = max(math.exp(-2 * math.pi**2 * float(square)) * _UP, _TINY)
    if q >= 0.4:  # eta would be near 1
        return math.inf
    eta = 2 * q / (1 - q**3)
    return (math.log1p(eta) - math.log1p(-eta)) * _UP


def _most_drawn(variance: int, bits: int) -> int:
    """At least K, whatever the table: ``2^-L <= P(M >= K) <= 2 exp(-K^2 / 2S)``, and log 2 < 7/10.

    (The discrete Gaussian is sub-Gaussian with its parameter: Canonne, Kamath & Steinke 2020.)
    """
    return math.isqrt(7 * (bits + 1) * variance // 5)


def _least(factor: int) -> int:
    """What every rung's variance has to be, so that s^2 is at least v."""
    return math.ceil(_LEAST_SQUARE * (1 + factor**2))


def _squares(factor: int, rungs: int) -> int:
    """The sum of k_l^2."""
    return sum(factor ** (2 * i) for i in range(rungs))


@lru_cache(maxsize=1024)
def ladder(variance: int, bits: int = BITS) -> Ladder:
    """As few rungs as do with tables of variance `WIDEST`, whose parameter is exactly `variance`.

    Args:
      variance: S, a whole number from 1 to 2^48.
      bits: L of each table, from 16 to 126.
    """
    variance = require_count("variance", variance)
    if variance > MOST_VARIANCE:
        raise SordinoError(
            f"noise inside a secure computation goes to a variance of 2^48 grid steps squared, "
            f"got {variance:,}: take a coarser grid"
        )
    if variance <= WIDEST:
        return Ladder(((1, variance),), bits)
    for rungs in count(2):
        # The largest f for which there is enough for every rung, the top among them.
        factor = _MOST_FACTOR
        while (left := variance - _least(factor) * _squares(factor, rungs)) < 0:
            factor -= 1
        result = []
        for k in (factor**i for i in reversed(range(rungs))):
            more, left = divmod(left, k**2)
            result.append((k, _least(factor) + more))
        if result[0][1] <= WIDEST:
            return Ladder(tuple(reversed(result)), bits)
    raise AssertionError


@lru_cache(maxsize=32)
def table(variance: int, bits: int = BITS) -> Table:
    """The table for a variance of S grid steps squared, to `bits` bits.

    Args:
      variance: S, a whole number from 1 to 2^20; `ladder` goes beyond.
      bits: L, from 16 to 126.
    """
    variance = require_count("variance", variance)
    if variance > _MOST_TABLE:
        raise SordinoError(
            f"a table goes to a variance of 2^20 grid steps squared, got {variance:,}: take a ladder"
        )
    _require_bits(bits)
    point = bits + 96
    while True:
        thresholds = _thresholds(variance, bits, point)
        if thresholds is not None:
            return Table(variance, bits, thresholds)
        point += 64


def _require_bits(bits: int) -> None:
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise SordinoError(f"bits must be between {LEAST_BITS} and {MOST_BITS}, got {bits}")


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
    result = []
    tail_low, tail_high = 0, 0
    for below, above in zip(low[:0:-1], high[:0:-1], strict=True):
        tail_low, tail_high = tail_low + 2 * below, tail_high + 2 * above
        t = (tail_low << bits) // whole_high
        if t != (tail_high << bits) // whole_low:
            return None
        result.append(t)
    return tuple(t for t in reversed(result) if t)


@lru_cache(maxsize=32)
def _columns(made: Table, bits: int) -> Columns:
    weights = made.weights
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

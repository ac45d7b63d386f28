r"""Exact draws of the discrete Gaussian, in whole numbers and vectorised.

The discrete Gaussian with parameter ``sigma^2`` has ``P(x) ~ exp(-x^2 / (2 sigma^2))`` on the
integers (Canonne, Kamath & Steinke 2020, definition 1). Every probability here is exact: nothing is
computed in floating point, and a draw that short integers cannot decide is decided in long ones.

**Rejection from a staircase.** |x| is split into buckets of ``m = 2^k <= sigma / 16`` neighbours. A
bucket ``a`` is chosen with a whole-number weight ``W_a >= c exp(-(a m)^2 / 2 sigma^2)``, the exact
weights adding up to 2^63 by an alias table; the place in it uniformly; and ``x = a m + b`` is kept
with probability ``c exp(-x^2 / 2 sigma^2) / W_a``, 97 % of the time. A sign of either kind, with
(-, 0) rejected, ends it. Beyond 5.4 sigma (one draw in 10^7) one further "bucket" stands for all the
rest, with a geometric tail over buckets in place of the staircase, so the support is all of Z.

**One comparison decides.** The last probability is compared with a uniform number lazily: 30 bits of
both, from a table and two products in int64, leave 33 cases in 2^30 open (`_BAND`; the error bound
is derived at `_approximate`). Those, and the tail, are decided by an enclosure of the exponential in
integers of any length, with as many further random bits as it takes.

**Random bits** come from ChaCha20. The number of words used depends on the draws, never on data; see
docs/threat-model.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from sordino._base.errors import SordinoError

KEY_BYTES = 32
# The block counter of RFC 8439 has 32 bits and a block 64 bytes: beyond, the keystream repeats.
MOST_WORDS = 2**32 * 64 // 8


class ChaCha20Generator:
    """The keystream of ChaCha20 (RFC 8439, section 2.4) under one 256-bit key, read in order.

    Equal keys give equal bits, so noise whose key is derived from (run key, stream, step) is the same
    whenever a step is run again; and nobody who sees a part of the stream can tell the rest from coin
    flips without 2^256 work. A key is for one use: derive another one for another step.

    >>> hex(ChaCha20Generator(bytes(32)).word())  # RFC 8439, A.1, the first test vector
    '0x903df1a0ade0b876'
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise SordinoError(f"a ChaCha20 key has {KEY_BYTES} bytes, got {len(key)}")
        # The nonce is fixed: no key is used twice, so none has to be told apart from another use.
        self._stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._left = MOST_WORDS

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of 64 random bits, uint64 (count,)."""
        if count > self._left:
            raise SordinoError("a ChaCha20 key is good for 2^38 bytes; derive another key")
        self._left -= count
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")

    def word(self) -> int:
        """The next 64 random bits as a number."""
        return int(self.words(1)[0])


# ---- the discrete Gaussian --------------------------------------------------------------------------

Integers = NDArray[np.int64]

LEAST_VARIANCE = Fraction(1, 4)
MOST_VARIANCE = 2**48

# Draws are made this many at a time, so that the arrays stay in the processor's cache.
_TOGETHER = 1 << 13
# Columns of the alias table, and what one holds: together 2^63.
_COLUMNS = 256
_CAPACITY = 1 << 55
# A bucket is in the table if its first weight is at least this (5.4 sigma).
_RARE = 21
# The fixed point of the quick comparison, and how far off its two sides may be.
_POINT = 30
_BAND = 16
# exp(-i / 2^10) for the quick comparison.
_FINE = 20
# Precision of the table's own exponentials, in bits.
_PRECISION = 192


def discrete_gaussian(
    sigma_squared: Fraction | int, count: int, generator: ChaCha20Generator
) -> Integers:
    """`count` independent draws with ``P(x) ~ exp(-x^2 / (2 sigma_squared))``, int64 (count,).

    Args:
      sigma_squared: an exact number from 1/4 to 2^48 (sigma from 0.5 to 2^24).
      count: how many.
      generator: where the random bits come from; the draws are a function of its key, of
        `sigma_squared` and of `count`.
    """
    if not isinstance(sigma_squared, (int, Fraction)) or isinstance(sigma_squared, bool):
        raise SordinoError(
            f"sigma_squared must be a whole number or a Fraction, got {sigma_squared!r}"
        )
    if not LEAST_VARIANCE <= sigma_squared <= MOST_VARIANCE:
        raise SordinoError(
            f"sigma_squared must be between 1/4 and 2^48 (sigma from 0.5 to 2^24), got {sigma_squared}"
        )
    staircase = _staircase(Fraction(sigma_squared))
    draws = np.empty(count, np.int64)
    done = 0
    while done < count:
        wanted = count - done
        result = staircase.propose(min(_TOGETHER, wanted + wanted // 24 + 8), generator)
        result = result[:wanted]
        draws[done : done + len(result)] = result
        done += len(result)
    return draws


@dataclass(frozen=True, eq=False)
class _Staircase:
    """Everything that proposals with one sigma need.

    Attributes:
      variance: sigma^2.
      shift: k; buckets hold 2^k neighbours.
      buckets: how many are in the table; number `buckets` is the tail, the next one is nothing.
      scale: c; a whole number.
      weights: W_a, the tail's last.
      ratio: of the tail's geometric law, over 2^64.
      cut, other: the alias table (256,).
      squeeze, multiplier, back: Y = ((N >> squeeze) * multiplier) >> back is 2^30 N / (2 sigma^2).
      table: floor(2^30 exp(-i / 2^10)), int64 (1024,).
    """

    variance: Fraction
    shift: int
    buckets: int
    scale: int
    weights: tuple[int, ...]
    ratio: int
    cut: Integers
    other: Integers
    squeeze: int
    multiplier: int
    back: int
    table: Integers

    def propose(self, count: int, generator: ChaCha20Generator) -> Integers:
        """What is left of `count` proposals, in their order."""
        words = generator.words(2 * count)
        first, second = words[:count], words[count:]
        # 8 bits for the column, 55 to choose between its two buckets, 1 for the sign.
        column = (first >> np.uint64(56)).astype(np.int64)
        level = ((first >> np.uint64(1)) & np.uint64(_CAPACITY - 1)).astype(np.int64)
        negative = (first & np.uint64(1)).astype(bool)
        bucket = np.where(level < self.cut[column], column, self.other[column])
        low = bucket << self.shift
        uniform = (second & np.uint64((1 << _POINT) - 1)).astype(np.int64)
        ordinary = bucket < self.buckets
        if self.shift:
            # The top bits of the word; the lowest 30 are the uniform number.
            place = (second >> np.uint64(64 - self.shift)).astype(np.int64)
            x = low + place
            gap = uniform - self._approximate(np.where(ordinary, place * (low + x), 0))
        else:
            x = low
            gap = uniform - (1 << _POINT)
        kept = (gap < -_BAND) & ordinary
        for i in np.flatnonzero((np.abs(gap) <= _BAND) & ordinary):
            kept[i] = self._decided(
                int(x[i]), self.weights[bucket[i]], generator, int(uniform[i]), _POINT
            )
        for i in np.flatnonzero(bucket == self.buckets):
            far = self._tail(generator)
            kept[i], x[i] = far is not None, far or 0
        kept &= ~(negative & (x == 0))
        return np.where(negative, -x, x)[kept]

    def _approximate(self, numerator: Integers) -> Integers:
        """2^30 exp(-N / (2 sigma^2)) to within 9 units, for N = b (2 a m + b) below 0.6 sigma^2.

        Y: shifting N down costs at most 2 units, the multiplier's truncation 0.6, the last shift 1.
        With Y = i 2^20 + l, ``2^30 (1 - exp(-l)) = l - l^2/2^31 + less than 0.2``; the table's entry is
        off by 1, that difference by 1.2, the product by 1. With W_a instead of its exact value (less
        than 1 unit: W_a > 2^36), and a uniform number that is the lower end of an interval of 1
        unit, 16 covers all.
        """
        Y = ((numerator >> self.squeeze) * self.multiplier) >> self.back
        rest = Y & ((1 << _FINE) - 1)
        start = self.table[Y >> _FINE]
        return start - ((start * (rest - ((rest * rest) >> (_POINT + 1)))) >> _POINT)

    def _decided(
        self, x: int, weight: Fraction | int, generator: ChaCha20Generator, uniform: int, bits: int
    ) -> bool:
        """Whether U < scale exp(-x^2 / 2 sigma^2) / weight, of whose U the first bits are given."""
        exponent = Fraction(x * x) / (2 * self.variance)
        while True:
            below, above = exp_enclosure(exponent, bits + 64)
            # Against (uniform + [0, 1)) / 2^bits * weight / scale.
            unit = Fraction(weight) / self.scale * (1 << 64)
            if (uniform + 1) * unit <= below:
                return True
            if uniform * unit >= above:
                return False
            uniform, bits = (uniform << 64) | generator.word(), bits + 64

    def _tail(self, generator: ChaCha20Generator) -> int | None:
        """A proposal from beyond the table, if it is kept."""
        beyond = 0
        while generator.word() < self.ratio:
            beyond += 1
        x = (self.buckets + beyond) << self.shift
        if self.shift:
            x += generator.word() >> (64 - self.shift)
        ratio = Fraction(self.ratio, 1 << 64)
        weight = self.weights[-1] * (1 - ratio) * ratio**beyond
        return x if self._decided(x, weight, generator, 0, 0) else None


@lru_cache(maxsize=64)
def _staircase(variance: Fraction) -> _Staircase:
    shift = max(0, math.isqrt(math.floor(variance)).bit_length() - 5)
    width = 1 << shift
    # w_a = exp(-a^2 h) with h = m^2 / 2 sigma^2, rounded up: w_{a+1} = w_a e^{-2ah} e^{-h}.
    one = 1 << _PRECISION
    _, single = exp_enclosure(Fraction(width * width) / (2 * variance), _PRECISION)
    double = _up(single * single)
    weight, step, upper = one, single, []
    while weight >= one >> _RARE:
        upper.append(weight)
        weight, step = _up(weight * step), _up(step * double)
    buckets = len(upper)
    # Weights of the buckets beyond fall at least geometrically: (A+i)^2 >= A^2 + 2 A i.
    _, ratio = exp_enclosure(Fraction(buckets * width * width) / variance, 64)
    tail = -(-(weight << 64) // ((1 << 64) - ratio))
    scale = (((1 << 63) - buckets - 2) << _PRECISION) // (sum(upper) + tail)
    weights = tuple(_up(scale * w) for w in (*upper, tail))
    nothing = (1 << 63) - sum(weights)
    cut, other = _alias([*weights, nothing])
    doubled = 2 * variance
    length = math.floor(doubled).bit_length()
    squeeze = max(0, length - _POINT)
    back = max(0, length - squeeze)
    return _Staircase(
        variance=variance,
        shift=shift,
        buckets=buckets,
        scale=scale,
        weights=weights,
        ratio=ratio,
        cut=cut,
        other=other,
        squeeze=squeeze,
        multiplier=math.floor(Fraction(1 << (_POINT + squeeze + back)) / doubled),
        back=back,
        table=_exponentials(),
    )


def _up(product: int) -> int:
    """A product of two fixed-point numbers (or of one and a whole number), rounded up."""
    return -(-product >> _PRECISION)


@lru_cache(maxsize=1)
def _exponentials() -> Integers:
    fine = 1 << (_POINT - _FINE)
    entries = [exp_enclosure(Fraction(i, fine), _POINT + 32)[0] >> 32 for i in range(fine)]
    return np.array(entries, np.int64)


def _alias(weights: list[int]) -> tuple[Integers, Integers]:
    """Walker's table of 256 columns for whole-number weights that add up to 2^63: exact."""
    left = [*weights, *[0] * (_COLUMNS - len(weights))]
    if len(left) != _COLUMNS or sum(left) != _COLUMNS * _CAPACITY or min(left) < 0:
        raise AssertionError("the weights of a staircase do not fit its table")
    cut, other = np.zeros(_COLUMNS, np.int64), np.arange(_COLUMNS, dtype=np.int64)
    small = [i for i, weight in enumerate(left) if weight < _CAPACITY]
    large = [i for i, weight in enumerate(left) if weight >= _CAPACITY]
    while small and large:
        i, j = small.pop(), large[-1]
        cut[i], other[i] = left[i], j
        left[j] -= _CAPACITY - left[i]
        if left[j] < _CAPACITY:
            small.append(large.pop())
    for i in (*small, *large):  # what is left is full: whole numbers leave no rounding behind
        assert left[i] == _CAPACITY
        cut[i] = _CAPACITY
    return cut, other


def exp_enclosure(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Whole numbers around ``2^bits exp(-exponent)``, not more than 2 apart, for an exponent >= 0."""
    halvings = max(0, math.floor(exponent).bit_length() + 1)
    point = bits + halvings + 24
    r = math.floor(exponent * (1 << point)) >> halvings  # below 1/2, too small by less than 2 units
    term, total, n = 1 << point, 1 << point, 0
    while term:
        n += 1
        term = (term * r >> point) // n
        total += -term if n % 2 else term
    # Each term is too small by less than 2 units, and so is r; what is left out is less than that.
    error = 2 * n + 4
    low, high = max(0, total - error), total + error
    for _ in range(halvings):
        low, high = low * low >> point, (high * high >> point) + 1
    return low >> (point - bits), -(-high >> (point - bits))

r"""From real vectors to whole numbers on a public grid, with a norm bound that integers decide.

Two ways, for two units of privacy; with ``r = D / g``, the clip in grid steps:

**One vector per record, summed by its party** (`truncate`; the default). Each record's vector is
clipped to ``r`` and rounded towards zero, which lengthens nothing: the exact squared norm is at most
``floor(r^2)``, so a record changes the integer sum by a vector of norm at most ``r``. No inflation, no
randomness; it is what the contribution's lattice does on the device in float32.

**One vector per party** (`round_randomly`), where the party itself is the unit. Rounding at random is
unbiased, and costs a little length. ``Y = floor(x) + Bernoulli(frac x)``, coordinate by coordinate, is
drawn again until ``|Y|^2 <= B`` with

    B = floor( min( (r + sqrt d)^2,  r^2 + d/4 + sqrt(2 ln(1/b)) (r + sqrt(d)/2) ) ).

*That it ends.* No coordinate moves by more than 1: ``|Y| <= |x| + sqrt d``, the first term, holds
always. For the second: ``|Y|^2 = |x|^2 + 2<x, e> + |e|^2`` with independent errors ``e_i = Y_i - x_i``
of mean 0, each on two points one step apart. ``E|e|^2 = sum f(1-f) <= d/4``. Centred, coordinate i adds
``(Y_i^2 - E Y_i^2)``, which takes two values ``|2 floor(x_i) + 1|`` apart, and Hoeffding's lemma makes
the sum sub-Gaussian with variance proxy ``sum (2 floor(x_i) + 1)^2 / 4 <= (|x| + sqrt(d)/2)^2`` (each
term is ``|x_i + (1/2 - f_i)|^2``, and ``|1/2 - f_i| <= 1/2``). So ``P(|Y|^2 > B) <= b``: a draw is kept
with probability at least ``1 - b``.

*That conditioning does no harm.* It changes the law of Y (no longer quite unbiased: the bias is a vector
of norm at most ``sqrt(d) b / (1-b)``), but privacy asks for one thing only: the whole numbers that noise is
added to have norm at most ``sqrt B`` for every outcome of the coins. Given the coins the release is a
Gaussian one with that sensitivity, and Rényi divergence is quasi-convex in the mixture over them. Coins
are independent of the other parties' vectors, and the zero vector (a party taken out) has norm 0.

**Do not round a party's sum of records with `round_randomly` and claim privacy for a record.** The test
``|Y|^2 <= B`` bounds the party's vector, not what one record changes: the coins that are accepted with the
record and without it are different ones. Without the test the same coins can be used on both sides, which
gives ``r + sqrt d`` for a record of norm ``r``; truncating each record gives ``r``, so that is not offered.

Vectors that are not finite contribute zero. Norms are tested in int64 sums that cannot overflow
(``r + sqrt d <= 2^30``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino.parts.mechanisms import ChaCha20Generator

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# Norms in steps stay below this, so that squared norms stay below 2^60 and are exact in int64.
MOST_STEPS = 2**30
# A draw is refused with probability at most exp(-1/2): so many in a row mean that something is wrong.
_MOST_DRAWS = 2000
_UNIFORM_BITS = 53


@dataclass(frozen=True)
class Grid:
    """All multiples of a public step, for vectors of one length and one clip.

    Attributes:
      clip: D, the L2 norm that vectors are clipped to.
      step: g, the distance of neighbours on the grid.
      dimension: d.
      refusal: b, the largest probability with which a random rounding is drawn again.

    >>> grid = Grid(clip=1.0, step=2.0**-10, dimension=4)
    >>> grid.truncate([[0.5, -0.25, 0.0, 3e-4]]).tolist()
    [[512, -256, 0, 0]]
    """

    clip: float
    step: float
    dimension: int
    refusal: float = math.exp(-0.5)

    def __post_init__(self) -> None:
        require_positive("clip", self.clip)
        require_positive("step", self.step)
        require_count("dimension", self.dimension)
        require_fraction("refusal", self.refusal)
        if self.steps + math.isqrt(self.dimension) + 1 > MOST_STEPS:
            raise SordinoError(
                f"the clip is {float(self.steps):.4g} grid steps and the dimension {self.dimension}; "
                "together they must stay below 2^30, so choose a coarser grid"
            )

    @cached_property
    def steps(self) -> Fraction:
        """r: the clip in grid steps, exactly."""
        return Fraction(self.clip) / Fraction(self.step)

    @cached_property
    def truncated_square(self) -> int:
        """Largest squared norm that `truncate` lets a record have, in squared grid steps."""
        return math.floor(self.steps**2)

    @cached_property
    def rounded_square(self) -> int:
        """B: largest squared norm of `round_randomly`, in squared grid steps."""
        r, d = float(self.steps), float(self.dimension)
        always = (r + math.sqrt(d)) ** 2
        spread = math.sqrt(-2 * math.log(self.refusal))
        mostly = r * r + d / 4 + spread * (r + math.sqrt(d) / 2)
        # What a float gets wrong here costs nothing: this whole number is what is tested and accounted.
        return math.floor(min(always, mostly) * (1 + 1e-14))

    @property
    def inflation(self) -> float:
        """How much longer than the clip a randomly rounded vector may be: ``sqrt(B) / r``."""
        return math.sqrt(self.rounded_square) / float(self.steps)

    def largest_sum(self, records: int) -> int:
        """Bound on any entry of a sum of so many truncated records: a party's `largest`."""
        return require_count("records", records) * math.isqrt(self.truncated_square)

    @property
    def largest_rounded(self) -> int:
        """Bound on any entry of a randomly rounded vector."""
        return math.isqrt(self.rounded_square)

    def truncate(self, records: ArrayLike) -> Integers:
        """Records' vectors (n, d), each clipped and rounded towards zero, int64 (n, d).

        Every row's exact squared norm is at most `truncated_square`.
        """
        rows = np.asarray(records, np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise SordinoError(
                f"records must be an array (n, {self.dimension}), got shape {rows.shape}"
            )
        scaled = self._clipped(rows)
        whole = np.trunc(scaled).astype(np.int64)
        shrink = 1e-14
        while len(over := np.flatnonzero(_squares(whole) > self.truncated_square)):
            # Rounding errors of the norm, a few parts in 10^16: a little shorter, and look again.
            scaled[over] *= 1 - shrink
            whole[over] = np.trunc(scaled[over]).astype(np.int64)
            shrink *= 4
        return whole

    def sum_of_records(self, records: ArrayLike) -> Integers:
        """`truncate`, summed over records: what a party puts in, int64 (d,)."""
        return self.truncate(records).sum(axis=0, dtype=np.int64)

    def round_randomly(self, vector: ArrayLike, generator: ChaCha20Generator) -> Integers:
        """One party's vector (d,), clipped and rounded at random, int64 (d,).

        Its exact squared norm is at most `rounded_square`.

        Args:
          generator: of the coins; secret, and for this vector only.
        """
        x = np.asarray(vector, np.float64)
        if x.shape != (self.dimension,):
            raise SordinoError(f"a vector must have shape ({self.dimension},), got {x.shape}")
        scaled = self._clipped(x[None, :])[0]
        low = np.floor(scaled)
        # Exact for x >= 0, and to 2^-53 for negative numbers next to 0.
        threshold = ((scaled - low) * 2.0**_UNIFORM_BITS).astype(np.uint64)
        base, limit = low.astype(np.int64), self.rounded_square
        for _ in range(_MOST_DRAWS):
            coins = generator.words(self.dimension) >> np.uint64(64 - _UNIFORM_BITS)
            whole = base + (coins < threshold)
            if int(_squares(whole[None, :])[0]) <= limit:
                return whole
        raise AssertionError("random rounding did not end")

    def to_reals(self, whole: Integers) -> Floats:
        """Grid multiples as real numbers."""
        return whole.astype(np.float64) * self.step

    def _clipped(self, rows: Floats) -> Floats:
        """Rows in grid steps, of norm at most r but for rounding errors; zero where not finite."""
        largest = np.max(np.abs(rows), axis=1, initial=0.0)
        good = np.isfinite(largest) & (largest > 0)
        safe = np.where(good, largest, 1.0)[:, None]
        unit = np.where(good[:, None], rows, 0.0) / safe  # largest entry 1: squares do not overflow
        length = np.sqrt(np.einsum("ij,ij->i", unit, unit))[:, None]
        with np.errstate(over="ignore"):
            norm = safe * length
            short = np.where(good[:, None], rows, 0.0) / self.step
        r = float(self.steps)
        long = unit * (r / np.where(length > 0, length, 1.0))
        return np.where(norm > self.clip, long, np.where(norm <= self.clip, short, 0.0))


def _squares(rows: Integers) -> Integers:
    """Exact squared norms, of rows that are below 2^30 long."""
    return np.einsum("ij,ij->i", rows, rows)

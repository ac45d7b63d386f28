"""Noise on a lattice: sums and noise are whole multiples of one step, a power of two.

One example's clipped vector is rounded towards zero to multiples of the step, which lengthens no
vector (`to_lattice`); sums of whole numbers are exact in any order; the noise is an exact
discrete Gaussian in the same multiples (`_discrete.py`). So what is released is ``step * (sum +
noise)`` with nothing rounded on the way, and its guarantee is that of rounded Gaussian noise up to
a total variation that is stated (`rounding_distance`).

Correlated noise stays on the lattice where its rows add and subtract whole draws: independent noise,
the binary tree over plain sums, noise that the next step takes back. Other mechanisms have real
coefficients; their noise is on no lattice that the sums are on.

Sums are int32. One that is too large wraps around, noise and all: the release is then useless, not
less private, because reducing modulo 2^32 is post-processing. The step is chosen so that it does not
happen: all examples of a batch at their bounds in one coordinate, and 10 standard deviations of
noise, still fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import Mechanism
from sordino.parts.mechanisms._discrete import ChaCha20Generator, discrete_gaussian
from sordino.privacy import rounding_distance

# Draws that a run's stated total variation is for: steps times released coordinates.
MOST_DRAWS = 2**40
# Standard deviation of the noise and bound of a contribution, in steps: at least.
LEAST_STEPS = 2**10
# Largest standard deviation, in steps, that is drawn.
_MOST_STEPS = 2**24 - 2**4
_FITS = 2**31 - 1
_DEVIATIONS = 10
# Rows of few coordinates are drawn together, up to this many numbers.
_BLOCK = 1 << 13

Variances = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Lattice:
    """All multiples of ``2^exponent``."""

    exponent: int

    def __post_init__(self) -> None:
        # The limits that `to_lattice` relies on: squares of a step are normal in float32.
        if isinstance(self.exponent, bool) or not isinstance(self.exponent, int):
            raise SordinoError(f"a lattice has a whole exponent, got {self.exponent!r}")
        if not -60 <= self.exponent <= 60:
            raise SordinoError(
                f"a lattice step must be between 2^-60 and 2^60, got 2^{self.exponent}; choose "
                "another clip"
            )

    @property
    def step(self) -> float:
        """The distance of neighbours."""
        return 2.0**self.exponent

    @classmethod
    def fitted(
        cls,
        *,
        bounds: NDArray[np.float64],
        stds: NDArray[np.float32],
        mechanism: Mechanism,
        largest_batch: int,
    ) -> Lattice:
        """The finest lattice on which sums and noise fit into int32.

        Args:
          bounds: norm bound of one example's vector in each channel and step (channels, steps).
          stds: standard deviation of the draws of each step and channel (steps, channels).
          mechanism: how rows are made of draws.
          largest_batch: most examples in one sum.
        """
        drawn = draw_stds(mechanism, stds)
        parts = max(
            (len(mechanism.cancelled_draws(t) or ()) for t in range(mechanism.steps)), default=0
        )
        noise = _DEVIATIONS * math.sqrt(1 + parts) * float(drawn.max())
        largest = max(
            (largest_batch * float(bounds.max()) + noise) / _FITS, float(drawn.max()) / _MOST_STEPS
        )
        built = cls(math.ceil(math.log2(largest)))
        least = min(float(drawn.min()), float(bounds.min())) / built.step
        if least < LEAST_STEPS:
            raise SordinoError(
                f"discrete noise cannot be made here: next to sums of {largest_batch:,} contributions "
                f"in 32 bits, the smallest noise or bound is only {least:.3g} lattice steps, and "
                f"{LEAST_STEPS:,} are needed; use smaller batches, or noise='gaussian'"
            )
        return built

    def variances(self, mechanism: Mechanism, stds: NDArray[np.float32]) -> Variances:
        """``S`` of the draws of each step and channel, in squared lattice steps, as whole numbers.

        A twelfth more than the planned variance, rounded up: discrete noise of parameter S is
        compared with rounded Gaussian noise of variance S - 1/12.
        """
        known: dict[float, int] = {}

        def variance(std: float) -> int:
            if std not in known:
                units = Fraction(std) / Fraction(2) ** self.exponent
                known[std] = math.ceil(units**2 + Fraction(1, 12))
            return known[std]

        rows = draw_stds(mechanism, stds).tolist()
        return tuple(tuple(variance(std) for std in row) for row in rows)

    def distance(self, mechanism: Mechanism, stds: NDArray[np.float32]) -> float:
        """Total variation from rounded Gaussian noise over up to `MOST_DRAWS` draws."""
        drawn = draw_stds(mechanism, stds)
        least = float(drawn.min())
        smallest = math.ceil((Fraction(least) / Fraction(2) ** self.exponent) ** 2)
        return rounding_distance(smallest, MOST_DRAWS)

    def describe(self) -> str:
        return f"discrete noise in multiples of 2^{self.exponent}"


def is_on_lattice(mechanism: Mechanism) -> bool:
    """Whether noise of whole numbers stays so under `mechanism`."""
    return mechanism.channels == 1 and mechanism.cancelled_draws(mechanism.steps - 1) is not None


def draw_stds(mechanism: Mechanism, stds: NDArray[np.float32]) -> NDArray[np.float64]:
    """Standard deviation of each fresh draw (steps, channels)."""
    correlated = any(mechanism.cancelled_draws(t) for t in range(min(mechanism.steps, 2)))
    if correlated and not np.all(stds == stds[0]):
        raise SordinoError(
            "correlated discrete noise needs the same bound in every step: noise that is scaled by "
            "step is on no common lattice; use mechanism='independent'"
        )
    return stds.astype(np.float64) * mechanism.draw_scales()[:, None]


class LatticeNoise:
    """The noise rows of a run in lattice steps: a function of (derive, step), however it is asked.

    Draws are made in blocks of whole rows, each from a ChaCha20 key of its own that `derive` makes
    of the stream's name and the block's first step. Blocks depend on the plan and the model's size
    alone, so a step that is run again, in whatever chunks, gets the same noise.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        variances: Variances,
        size: int,
        derive: Callable[[str], bytes],
        stream: str = "gradient",
    ) -> None:
        """Args:
        mechanism: which draws a row takes back.
        variances: of each step and channel.
        size: numbers in one row, all channels together.
        derive: 32 secret bytes for a named use (`RunKey.derive`).
        stream: the name of the noise.
        """
        if len(variances) * size > MOST_DRAWS:
            raise SordinoError(
                f"discrete noise is stated for up to 2^40 draws in a run; {len(variances):,} steps "
                f"of {size:,} numbers are more"
            )
        self._mechanism, self._variances, self._size = mechanism, variances, size
        self._derive, self._stream = derive, stream
        self._starts = _block_starts(variances, max(1, _BLOCK // size))
        self._block: tuple[int, NDArray[np.int64]] | None = None
        # Draws that later rows take back; one that is missing is made again.
        self._live: dict[int, NDArray[np.int64]] = {}

    def rows(self, first: int, count: int) -> NDArray[np.int32]:
        """Rows ``first .. first+count-1``, int32 (count, size), modulo 2^32."""
        out = np.empty((count, self._size), np.int32)
        correlated = any(
            self._mechanism.cancelled_draws(t) for t in range(min(2, len(self._variances)))
        )
        for i in range(count):
            row = self._draw(first + i)
            if correlated:
                self._live[first + i] = row
                for j in self._mechanism.cancelled_draws(first + i) or ():
                    earlier = self._live.pop(j, None)
                    row = row - (self._draw(j) if earlier is None else earlier)
            out[i] = row.astype(np.int32)
        return out

    def _draw(self, step: int) -> NDArray[np.int64]:
        """The fresh draws of one step (size,)."""
        block = int(np.searchsorted(self._starts, step, side="right")) - 1
        if self._block is None or self._block[0] != block:
            self._block = (block, self._drawn(block))
        return self._block[1][step - self._starts[block]]

    def _drawn(self, block: int) -> NDArray[np.int64]:
        first, end = self._starts[block], self._starts[block + 1]
        generator = ChaCha20Generator(self._derive(f"noise/discrete/{self._stream}/{first}"))
        variances = self._variances[first]
        each = self._size // len(variances)
        return np.concatenate(
            [
                discrete_gaussian(variance, (end - first) * each, generator).reshape(-1, each)
                for variance in variances
            ],
            axis=1,
        )


def _block_starts(variances: Variances, rows: int) -> list[int]:
    """First steps of the blocks, and the end: at most `rows` steps, of equal variances."""
    starts: list[int] = []
    for step, now in enumerate(variances):
        if not starts or step - starts[-1] == rows or now != variances[step - 1]:
            starts.append(step)
    return [*starts, len(variances)]

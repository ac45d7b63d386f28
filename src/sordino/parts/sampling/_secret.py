"""Secret batches: a function of the run key and the step, drawn on the host in double precision.

They are drawn in aligned blocks of steps, so that a resumed run draws the same ones. Poisson batches
are padded to one static width. A block that needs more gets a wider array (and a compilation of its
own): no example is ever dropped, an empty batch is all padding, and nothing about the realised sizes
leaves the process.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.parts._rounding import even_width
from sordino.parts.sampling._base import SAMPLINGS, Indices, Mask, Sampling, padded
from sordino.privacy import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Adjacency,
    FixedBatches,
    Participation,
    SampledRelease,
    levels,
)

if TYPE_CHECKING:
    from sordino.parts.mechanisms import Mechanism
    from sordino.parts.sampling._population import Population

# Secret batches are drawn in blocks of this many steps, whatever the chunks of the loop are.
BLOCK = 64


class SecretSampling(Sampling):
    """Batches that are drawn anew in every step, and stay unseen."""

    secret = True

    def participation(self, population: Population) -> Participation:
        return FixedBatches(population.steps, separation=1)  # anyone, every step

    def evaluations(self, population: Population) -> int:
        return sum(size * count for size, count in population.batch_sizes())

    def amplified(
        self,
        population: Population,
        mechanism: Mechanism,
        noise: float,
        relative: NDArray[np.float64] | None,
        adjacency: str,
    ) -> tuple[SampledRelease, ...] | None:
        """One release for each batch size and level of noise."""
        if mechanism.kind != "independent":
            raise SordinoError(
                "random batches amplify independent noise only; use mechanism='independent', or "
                "sampling='fixed'"
            )
        parts, first = [], 0
        for size, count in population.batch_sizes():
            here = [(1.0, count)] if relative is None else levels(relative[first : first + count])
            parts += [
                SampledRelease(
                    noise_std=noise * level,
                    contribution=1.0,
                    rate=size / population.examples,
                    steps=steps,
                    sampling=self.kind,
                    adjacency=adjacency,
                )
                for level, steps in here
            ]
            first += count
        return tuple(parts)

    @abstractmethod
    def draw(self, population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
        """The rows of a block of steps (BLOCK, width), padded with -1."""

    def batches(
        self, population: Population, key: RunKey, first: int, count: int
    ) -> tuple[Indices, Mask]:
        if population.first_batch is not None and first == 0:
            # A batch of its own size and width: the loop makes a chunk of it.
            alone = population.without_first_batch(population.first_batch)
            return padded(self.draw(alone, key.generator("batches/first"))[:count])
        blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
        parts = [self.draw(population, key.generator(f"batches/{block}")) for block in blocks]
        width = max(part.shape[1] for part in parts)
        wide = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in parts]
        start = first - blocks[0] * BLOCK
        return padded(np.concatenate(wide)[start : start + count])


def _first(population: Population) -> str:
    """The first batch's size, where it is another one."""
    return "" if population.first_batch is None else f" (the first: {population.first_batch:,})"


class Poisson(SecretSampling):
    """Every example independently with one probability."""

    kind = POISSON
    title = "Poisson batches: every example independently, secretly, in each step"

    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        return (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)

    def uses(self, population: Population) -> str:
        share = f"1 in {1 / population.rate:,.4g}"
        return (
            f"in each of {population.steps:,} steps with probability {share}{_first(population)}, "
            "secretly"
        )

    def draw(self, population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
        # At places drawn at random: then that a row is absent leaves all others where they are, in
        # distribution, and only one block of the batch's sum knows of it (see `rounding.py`).
        return rng.permuted(poisson_block(population.examples, population.rate, rng), axis=1)


class WithoutReplacement(SecretSampling):
    """Batches of fixed size, each equally likely."""

    kind = WITHOUT_REPLACEMENT
    title = "secret batches of fixed size, drawn without replacement in each step"

    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        return (Adjacency.REPLACE_ONE,)

    def refusal(self, adjacency: str) -> str:
        return (
            "batches drawn without replacement are analysed under replace-one adjacency; "
            f"use adjacency={Adjacency.REPLACE_ONE.value!r}, not {adjacency!r}"
        )

    def uses(self, population: Population) -> str:
        return (
            f"in {population.steps:,} secret random batches of {population.batch_size:,}"
            f"{_first(population)} out of {population.examples:,}"
        )

    def draw(self, population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
        n, b = population.examples, population.batch_size
        return np.stack([rng.choice(n, b, replace=False) for _ in range(BLOCK)])


for _kind in (Poisson, WithoutReplacement):
    SAMPLINGS.add(_kind.kind, _kind)


def poisson_width(examples: int, rate: float) -> int:
    """A batch width that a Poisson draw exceeds with probability below 1e-9 per step."""
    mean = examples * rate
    spread = math.sqrt(mean * (1 - rate))
    wide = math.ceil(mean + 6.2 * spread + 8)
    return min(even_width(-(-wide // 8) * 8), examples)


def poisson_block(n: int, q: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Independent Bernoulli inclusions by geometric gaps: O(batch) draws instead of O(n).

    The gap to the next included row is ``1 + floor(E / -ln(1 - q))``, E standard exponential:
    geometric, exactly, up to double precision. Returns (BLOCK, width), padded with -1.
    """
    if q >= 1:
        return np.tile(np.arange(n), (BLOCK, 1))
    width = poisson_width(n, q)
    scale = -1.0 / math.log1p(-q)
    position = np.full((BLOCK, 1), -1.0)
    columns: list[NDArray[np.float64]] = []
    while position.min() < n:
        gaps = np.floor(rng.standard_exponential((BLOCK, width)) * scale) + 1.0
        columns.append(position + np.cumsum(gaps, axis=1))
        position = columns[-1][:, -1:]
    rows = np.concatenate(columns, axis=1)
    included = rows < n
    longest = int(included.sum(axis=1).max())
    # One static width for nearly every block; a rare wider one is padded to a multiple of it.
    keep = width * max(1, -(-longest // width))
    return np.where(included, rows, -1.0)[:, :keep].astype(np.int64)

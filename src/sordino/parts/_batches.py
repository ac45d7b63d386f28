"""Which rows take part in which step, as the plan says.

Public orders (fixed, reshuffled) are a function of the plan's `order_seed`. Secret batches (Poisson,
without replacement) are a function of the run key and the step, drawn on the host in double
precision in aligned blocks of steps, so that a resumed run draws the same ones.

Poisson batches are padded to one static width. A block that needs more gets a wider array (and a
compilation of its own): no example is ever dropped, an empty batch is all padding, and nothing about
the realised sizes leaves the process.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.parts._population import FIXED, POISSON, RESHUFFLED, Population
from sordino.parts._rounding import even_width

Indices = NDArray[np.int32]
Mask = NDArray[np.float32]

# Secret batches are drawn in blocks of this many steps, whatever the chunks of the loop are.
BLOCK = 64


@lru_cache(maxsize=4)
def public_order(population: Population) -> NDArray[np.int64] | None:
    """The public order of the rows under fixed batches; None keeps them as given."""
    if population.order_seed is None:
        return None
    order = np.random.default_rng([population.order_seed, 0]).permutation(population.examples)
    order.setflags(write=False)  # shared by all runs of this population
    return order


def epoch_order(population: Population, epoch: int) -> NDArray[np.int64]:
    """The public order of one epoch under reshuffled batches."""
    seed = 0 if population.order_seed is None else population.order_seed
    return np.random.default_rng([seed, 1, epoch]).permutation(population.examples)


def poisson_width(examples: int, rate: float) -> int:
    """A batch width that a Poisson draw exceeds with probability below 1e-9 per step."""
    mean = examples * rate
    spread = math.sqrt(mean * (1 - rate))
    wide = math.ceil(mean + 6.2 * spread + 8)
    return min(even_width(-(-wide // 8) * 8), examples)


def batch_indices(
    population: Population, key: RunKey, first: int, count: int
) -> tuple[Indices, Mask]:
    """Rows of steps ``first .. first+count-1``: indices and mask, both (count, width)."""
    if population.sampling == RESHUFFLED:
        return _reshuffled(population, first, count)
    draw = _poisson_block if population.sampling == POISSON else _fixed_size_block
    if population.first_batch is not None and first == 0:
        # A batch of its own size and width: the loop makes a chunk of it.
        alone = population.without_first_batch(population.first_batch)
        return _padded(draw(alone, key.generator("batches/first"))[:count])
    blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
    parts = [draw(population, key.generator(f"batches/{block}")) for block in blocks]
    width = max(part.shape[1] for part in parts)
    padded = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in parts]
    start = first - blocks[0] * BLOCK
    return _padded(np.concatenate(padded)[start : start + count])


def _padded(rows: NDArray[np.int64]) -> tuple[Indices, Mask]:
    """Rows with -1 for padding, as indices and mask, of a width that divides into blocks."""
    more = even_width(rows.shape[1]) - rows.shape[1]
    rows = np.pad(rows, ((0, 0), (0, more)), constant_values=-1)
    return np.maximum(rows, 0).astype(np.int32), (rows >= 0).astype(np.float32)


def _poisson_block(population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
    # At places drawn at random: then that a row is absent leaves all others where they are, in
    # distribution, and only one block of the batch's sum knows of it (see `rounding.py`).
    return rng.permuted(poisson_block(population.examples, population.rate, rng), axis=1)


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


def _fixed_size_block(population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
    n, b = population.examples, population.batch_size
    return np.stack([rng.choice(n, b, replace=False) for _ in range(BLOCK)])


def _reshuffled(population: Population, first: int, count: int) -> tuple[Indices, Mask]:
    n, b, per_epoch = population.examples, population.batch_size, population.steps_per_epoch
    rows = np.full((count, b), -1, np.int64)
    orders: dict[int, NDArray[np.int64]] = {}
    for i, step in enumerate(range(first, first + count)):
        epoch, slot = divmod(step, per_epoch)
        if epoch not in orders:
            orders = {epoch: epoch_order(population, epoch)}
        members = orders[epoch][slot * b : min((slot + 1) * b, n)]
        rows[i, : len(members)] = members
    return _padded(rows)


def is_sliced(population: Population) -> bool:
    """Whether batches are contiguous slices of the (once reordered) data."""
    return population.sampling == FIXED

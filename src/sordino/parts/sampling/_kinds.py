"""Kinds of sampling: who takes part in which step, and what the guarantee may count on.

A kind knows the steps that one unit can be in (`participation`), what its secrecy is worth
(`amplified`), and the rows of each step (`batches`). A new one is a subclass of `Sampling` and one
line: ``SAMPLINGS.add(kind.kind, kind)``.

*Public batches* follow an order that everyone may know, a function of the plan's `order_seed`.

*Secret batches* are a function of the run key and the step, drawn on the host in double precision, in
aligned blocks of steps, so that a resumed run draws the same ones. Poisson batches are padded to one
static width. A block that needs more gets a wider array (and a compilation of its own): no example is
ever dropped, an empty batch is all padding, and nothing about the realised sizes leaves the process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino._base.registry import Registry
from sordino.parts._rounding import even_width
from sordino.privacy import (
    POISSON,
    WITHOUT_REPLACEMENT,
    Adjacency,
    FixedBatches,
    FreshPermutations,
    Participation,
    SampledRelease,
    levels,
)

if TYPE_CHECKING:
    from sordino.parts.mechanisms import Mechanism
    from sordino.parts.sampling._population import Population

Indices = NDArray[np.int32]
Rows = NDArray[np.int64]
Mask = NDArray[np.float32]


class Sampling(ABC):
    """One way to choose the batches of a run. Subclasses have no fields; the population has the numbers."""

    kind: ClassVar[str]
    title: ClassVar[str]
    # Whether batches are random and must stay unseen; then their secrecy may be credited.
    secret: ClassVar[bool] = False

    @abstractmethod
    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        """The adjacencies that the analysis holds under, the natural one first."""

    def refusal(self, adjacency: str) -> str:
        """Why an adjacency is not among them, and what would be right."""
        return f"{self.kind} batches are not analysed under {adjacency} adjacency"

    @abstractmethod
    def participation(self, population: Population) -> Participation:
        """The steps that one unit can be in, at worst."""

    def amplified(
        self,
        population: Population,
        mechanism: Mechanism,
        noise: float,
        relative: NDArray[np.float64] | None,
        adjacency: str,
    ) -> tuple[SampledRelease, ...] | None:
        """The run as releases whose secret batches are credited; None where batches are public.

        Args:
          noise: standard deviation of a fresh draw in units of the bound of a contribution.
          relative: of each step's noise (steps,), or None where all are equal.
        """
        return None

    @abstractmethod
    def batches(
        self, population: Population, key: RunKey, first: int, count: int
    ) -> tuple[Indices, Mask]:
        """Rows of steps ``first .. first+count-1``: indices and mask, both (count, width).

        A function of the population, the key and the step.
        """

    def check(
        self, population: Population, t: int, rows: Rows, due: Rows, seen: Rows | None
    ) -> Rows | None:
        """Refuse rows of a caller's own for step t that the participation does not allow.

        Args:
          rows: distinct rows of the population.
          due: the rows that `batches` has for this step.
          seen: what this returned for the steps before, None at the first.
        """
        if not np.array_equal(np.sort(rows), np.sort(due)):
            raise PlanMismatchError(
                f"{self.kind} batches are drawn by the session; use the rows of next_rows()"
            )
        return seen

    def is_contiguous(self) -> bool:
        """Whether batches are slices of the rows in one public order, the same in every epoch."""
        return False

    @abstractmethod
    def evaluations(self, population: Population) -> int:
        """Expected number of examples that the steps use, counted as often as they are used."""

    def uses(self, population: Population) -> str:
        """How often one unit is used, in words."""
        return self.participation(population).describe()


def _admit(name: str, kind: object) -> Sampling:
    if not (isinstance(kind, type) and issubclass(kind, Sampling)) or kind.kind != name:
        raise SordinoError(f"a sampling is a class of Sampling of its kind, got {kind!r}")
    return kind()


SAMPLINGS: Registry[Sampling] = Registry("sampling", group="sordino.samplings", admit=_admit)


def padded(rows: NDArray[np.int64]) -> tuple[Indices, Mask]:
    """Rows with -1 for padding, as indices and mask, of a width that divides into blocks."""
    wide = np.full((len(rows), even_width(rows.shape[1])), -1, np.int32)
    wide[:, : rows.shape[1]] = rows
    return np.maximum(wide, 0), (wide >= 0).astype(np.float32)


FIXED = "fixed"
RESHUFFLED = "reshuffled"


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


class PublicSampling(Sampling):
    """Batches in a public order, epoch after epoch."""

    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        everyone = (Adjacency.ADD_REMOVE,) if population.is_full_batch else ()
        return (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE, *everyone)

    def refusal(self, adjacency: str) -> str:
        return (
            f"{adjacency} adjacency does not hold for {self.kind} batches, where a removed row moves "
            "every later one to another batch; use 'zero-out', or Poisson batches"
        )

    def evaluations(self, population: Population) -> int:
        whole, rest = divmod(population.steps, population.steps_per_epoch)
        return whole * population.examples + min(rest * population.batch_size, population.examples)

    def order(self, population: Population, epoch: int) -> NDArray[np.int64]:
        """The order of the rows in one epoch."""
        raise NotImplementedError

    def batches(
        self, population: Population, key: RunKey, first: int, count: int
    ) -> tuple[Indices, Mask]:
        n, b, per_epoch = population.examples, population.batch_size, population.steps_per_epoch
        rows = np.full((count, b), -1, np.int64)
        orders: dict[int, NDArray[np.int64]] = {}
        for i, step in enumerate(range(first, first + count)):
            epoch, slot = divmod(step, per_epoch)
            if epoch not in orders:
                orders = {epoch: self.order(population, epoch)}
            members = orders[epoch][slot * b : min((slot + 1) * b, n)]
            rows[i, : len(members)] = members
        return padded(rows)


class FixedOrder(PublicSampling):
    """The same batches in every epoch."""

    kind = FIXED
    title = "the same batches every epoch, in one public order"

    def participation(self, population: Population) -> Participation:
        return FixedBatches(population.steps, population.steps_per_epoch)

    def is_contiguous(self) -> bool:
        return True

    def check(
        self, population: Population, t: int, rows: Rows, due: Rows, seen: Rows | None
    ) -> Rows | None:
        """Batches of the first epoch may be the caller's own; `seen` (taken over) has each row's, or -1."""
        if len(rows) > population.batch_size:
            raise PlanMismatchError(
                f"the plan has batches of {population.batch_size:,}, got {len(rows):,} rows"
            )
        slots = np.full(population.examples, -1, np.int64) if seen is None else seen
        slot = t % population.steps_per_epoch
        known = slots[rows]
        moved = (known >= 0) & (known != slot)
        if moved.any():
            row = int(rows[np.argmax(moved)])
            raise PlanMismatchError(
                f"row {row} was in batch {int(slots[row]) + 1} of the epoch and is now in "
                f"batch {slot + 1}: the plan counts on the same batches in every epoch; plan with "
                "sampling='reshuffled' for a loader that shuffles"
            )
        slots[rows] = slot
        return slots

    def order(self, population: Population, epoch: int) -> NDArray[np.int64]:
        order = None if population.is_full_batch else public_order(population)
        return np.arange(population.examples) if order is None else order


class Reshuffled(PublicSampling):
    """A fresh public permutation in every epoch."""

    kind = RESHUFFLED
    title = "a fresh public permutation every epoch (accounted for its worst case)"

    def participation(self, population: Population) -> Participation:
        return FreshPermutations(population.steps, population.steps_per_epoch)

    def order(self, population: Population, epoch: int) -> NDArray[np.int64]:
        return epoch_order(population, epoch)


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
        # distribution, and only one block of the batch's sum knows of it (see `_rounding.py`).
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


for _kind in (FixedOrder, Reshuffled, Poisson, WithoutReplacement):
    SAMPLINGS.add(_kind.kind, _kind)

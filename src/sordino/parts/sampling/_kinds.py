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
    GROUPED,
    MOST_USES,
    POISSON,
    WITHOUT_REPLACEMENT,
    Adjacency,
    FixedBatches,
    FreshPermutations,
    Participation,
    SampledRelease,
    levels,
    times,
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
    # Whether a batch has the planned number of rows, or that many on average.
    fixed_size: ClassVar[bool] = True

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

    def order(self, population: Population, epoch: int) -> NDArray[np.int64]:
        """The order of the rows in one epoch, where batches are public."""
        raise NotImplementedError

    def describe(self, population: Population) -> str:
        """How batches are chosen, in words."""
        return self.title

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


def _check_size(population: Population, rows: Rows) -> None:
    if len(rows) > population.batch_size:
        raise PlanMismatchError(
            f"the plan has batches of {population.batch_size:,}, got {len(rows):,} rows"
        )


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
        _check_size(population, rows)
        slots = np.full(population.examples, -1, np.int64) if seen is None else seen
        slot = t % population.steps_per_epoch
        known = slots[rows]
        moved = (known >= 0) & (known != slot)
        if moved.any():
            row = int(rows[np.argmax(moved)])
            raise PlanMismatchError(
                f"row {row} was in batch {int(slots[row]) + 1} of the epoch and is now in "
                f"batch {slot + 1}: the plan counts on the same batches in every epoch; plan with "
                "sampling='reshuffled', order_seed=None for a loader that shuffles"
            )
        slots[rows] = slot
        return slots

    def order(self, population: Population, epoch: int) -> NDArray[np.int64]:
        order = None if population.is_full_batch else public_order(population)
        return np.arange(population.examples) if order is None else order


class Reshuffled(PublicSampling):
    """A fresh public permutation in every epoch.

    A population with a digest of its `slots` is accounted for these very permutations, any other for the
    worst ones; a session may then have rows of its own, each at most once in an epoch.
    """

    kind = RESHUFFLED
    title = "a fresh public permutation every epoch"

    def participation(self, population: Population) -> Participation:
        return FreshPermutations(population.steps, population.steps_per_epoch)

    def uses(self, population: Population) -> str:
        rule = self.participation(population)
        if population.slots is None:
            return rule.describe()
        return (
            f"at most {times(rule.max_participations)}, in one step of each epoch of "
            f"{population.steps_per_epoch:,} (these public permutations)"
        )

    def describe(self, population: Population) -> str:
        if population.slots is not None:
            return f"{self.title} (accounted for these permutations)"
        uses = population.examples * self.participation(population).max_participations
        many = f": {uses:,} uses are too many to count one by one"
        if uses <= MOST_USES or population.order_seed is None:
            many = ""
        return f"{self.title} (accounted for its worst case{many})"

    def check(
        self, population: Population, t: int, rows: Rows, due: Rows, seen: Rows | None
    ) -> Rows | None:
        """Where the worst case is accounted for, rows may be the caller's own, once in every epoch.

        `seen` (taken over) has the latest step of each row, or -1.
        """
        if population.slots is not None:
            if not np.array_equal(np.sort(rows), np.sort(due)):
                raise PlanMismatchError(
                    "this plan is accounted for the session's own permutations; use the rows of "
                    "next_rows(), or plan with order_seed=None for a loader that shuffles"
                )
            return seen
        _check_size(population, rows)
        latest = np.full(population.examples, -1, np.int64) if seen is None else seen
        known, per_epoch = latest[rows], population.steps_per_epoch
        again = (known >= 0) & (known != t) & (known // per_epoch == t // per_epoch)
        if again.any():
            row = int(rows[np.argmax(again)])
            raise PlanMismatchError(
                f"row {row} was used in step {int(latest[row]) + 1} and is again in step {t + 1}: "
                f"the plan counts on one use in each epoch of {per_epoch:,} steps"
            )
        latest[rows] = t
        return latest

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
                f"{self.kind} batches amplify independent noise only; use mechanism='independent', or "
                "sampling='cyclic-poisson' for banded noise, or 'fixed'"
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
        drawn = [self.draw(population, key.generator(f"batches/{block}")) for block in blocks]
        return cut_to_steps(drawn, first, count)


def cut_to_steps(blocks: list[NDArray[np.int64]], first: int, count: int) -> tuple[Indices, Mask]:
    """Steps ``first .. first+count-1`` of blocks (BLOCK, width) that begin with the one of `first`."""
    width = max(block.shape[1] for block in blocks)
    wide = [np.pad(b, ((0, 0), (0, width - b.shape[1])), constant_values=-1) for b in blocks]
    return padded(np.concatenate(wide)[first % BLOCK : first % BLOCK + count])


def _first(population: Population) -> str:
    """The first batch's size, where it is another one."""
    return "" if population.first_batch is None else f" (the first: {population.first_batch:,})"


class Poisson(SecretSampling):
    """Every example independently with one probability."""

    kind = POISSON
    title = "Poisson batches: every example independently, secretly, in each step"
    fixed_size = False

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


def poisson_block(
    n: int, q: float, rng: np.random.Generator, width: int | None = None
) -> NDArray[np.int64]:
    """Independent Bernoulli inclusions by geometric gaps: O(batch) draws instead of O(n).

    The gap to the next included row is ``1 + floor(E / -ln(1 - q))``, E standard exponential:
    geometric, exactly, up to double precision. Returns (BLOCK, width), padded with -1; a draw of more
    than `width` rows gets a multiple of it.
    """
    width = width or poisson_width(n, q)
    if q >= 1:
        everyone = np.tile(np.arange(n), (BLOCK, 1))
        return np.pad(everyone, ((0, 0), (0, -n % width)), constant_values=-1)
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


CYCLIC = "cyclic-poisson"
NOT_BANDED = (
    "the credit of cyclic-poisson batches needs noise whose strategy C has no more bands than the cycle "
    "has steps, and {what}; use mechanism='banded', or sampling='fixed'"
)


class CyclicPoisson(SecretSampling):
    """Poisson batches of one group of the examples after the other (papers/05, section 2).

    Every example is in one of `cycle` groups for the whole run, and step t draws from group
    ``t mod cycle`` only: each member independently with probability ``cycle * batch_size / examples``. An
    example's steps are then at least `cycle` apart. If C has no entry that far below its diagonal, the
    columns of those steps share no row, and the run is, for one example, a composition of Poisson releases:
    correlated noise and the credit for secret batches at once (Choquette-Choo et al. 2023).

    Groups are drawn from the run key, each example's on its own, which holds under every adjacency. With an
    `order_seed` they are a public split into equal parts, for neighbours with as many rows.
    """

    kind = CYCLIC
    title = "cyclic Poisson batches: secret draws from one group of the examples after the other"
    fixed_size = False

    def adjacencies(self, population: Population) -> tuple[Adjacency, ...]:
        if population.order_seed is None:
            return (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
        return (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)

    def refusal(self, adjacency: str) -> str:
        return (
            f"{adjacency} adjacency does not hold for groups by position, where a removed row moves others "
            "to another group; leave order_seed out, and groups are drawn secretly"
        )

    def participation(self, population: Population) -> Participation:
        return FixedBatches(population.steps, separation=_cycle(population))

    def uses(self, population: Population) -> str:
        cycle, steps = _cycle(population), population.steps
        share = f"1 in {1 / group_rate(population):,.4g}"
        group = "a secret" if population.order_seed is None else "its"
        return (
            f"in at most {-(-steps // cycle):,} of {steps:,} steps, those of {group} group, each with "
            f"probability {share}, secretly"
        )

    def amplified(
        self,
        population: Population,
        mechanism: Mechanism,
        noise: float,
        relative: NDArray[np.float64] | None,
        adjacency: str,
    ) -> tuple[SampledRelease, ...] | None:
        """Of each cycle one release, of the longest column (over its noise) in it.

        A unit of group j is in steps ``j, j + cycle, ...``, one of each cycle; the longest column of each
        cycle dominates all groups at once.
        """
        strategy, cycle, steps = mechanism.strategy(), _cycle(population), population.steps
        if population.first_batch is not None:
            raise SordinoError("cyclic-poisson batches have one size; leave first_batch out")
        bands = strategy.bands()
        if bands is None:
            raise SordinoError(
                NOT_BANDED.format(what=f"that of {mechanism.kind} noise has no bands")
            )
        if bands > cycle:
            what = f"here it has {bands} for a cycle of {cycle}"
            raise SordinoError(NOT_BANDED.format(what=what))
        clips = None if relative is None else 1.0 / np.asarray(relative, np.float64)
        norms = np.sqrt(strategy.fixed_batch_energy(steps, clips))
        if norms.shape != (steps,):
            raise SordinoError(f"{mechanism.kind} noise does not add its channels up, step by step")
        longest = np.maximum.reduceat(norms, np.arange(0, steps, cycle))
        # Nearly equal ones, such as columns of norm 1 after rounding, count as the longest.
        longest[longest > (1 - 1e-3) * longest.max()] = longest.max()
        # Groups by position are no Poisson sampling of a data set whose rows come and go.
        by_position = population.order_seed is not None and cycle > 1
        return tuple(
            SampledRelease(
                noise_std=noise,
                contribution=1.0 / level,
                rate=group_rate(population),
                steps=count,
                sampling=GROUPED if by_position else POISSON,
                adjacency=adjacency,
            )
            for level, count in levels(1.0 / longest)
        )

    def draw(self, population: Population, rng: np.random.Generator) -> NDArray[np.int64]:
        raise NotImplementedError  # a step's group is not a function of the generator alone

    def batches(
        self, population: Population, key: RunKey, first: int, count: int
    ) -> tuple[Indices, Mask]:
        rows, starts = groups_of(population, key if population.order_seed is None else None)
        sizes = np.diff(starts)
        blocks = []
        for block in range(first // BLOCK, (first + count - 1) // BLOCK + 1):
            rng = key.generator(f"batches/{block}")
            group = np.arange(block * BLOCK, (block + 1) * BLOCK) % _cycle(population)
            place = poisson_block(
                int(sizes.max()),
                group_rate(population),
                rng,
                poisson_width(population.examples, population.rate),
            )
            there = (place >= 0) & (place < sizes[group][:, None])
            blocks.append(
                np.where(there, rows[np.where(there, starts[group][:, None] + place, 0)], -1)
            )
            # As for Poisson batches: that a row is absent leaves all others where they are.
            rng.permuted(blocks[-1], axis=1, out=blocks[-1])
        return cut_to_steps(blocks, first, count)


def _cycle(population: Population) -> int:
    assert population.cycle is not None  # the population refuses to be without
    return population.cycle


def group_rate(population: Population) -> float:
    """Inclusion probability of one example in the steps of its group."""
    return _cycle(population) * population.batch_size / population.examples


@lru_cache(maxsize=4)
def groups_of(
    population: Population, key: RunKey | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows sorted by their group, and where each group starts (cycle + 1,); public without a key."""
    n, cycle = population.examples, _cycle(population)
    if key is None:
        group = np.empty(n, np.int64)
        group[np.random.default_rng([population.order_seed or 0, 2]).permutation(n)] = (
            np.arange(n) % cycle
        )
    else:
        group = key.generator("batches/groups").integers(cycle, size=n)
    rows = np.argsort(group, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=cycle))])
    for shared in (rows, starts):
        shared.setflags(write=False)
    return rows, starts


for _kind in (FixedOrder, Reshuffled, Poisson, WithoutReplacement, CyclicPoisson):
    SAMPLINGS.add(_kind.kind, _kind)

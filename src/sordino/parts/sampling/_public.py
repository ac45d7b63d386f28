"""Public batches: an order that everyone may know, a function of the plan's `order_seed`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.parts.sampling._base import SAMPLINGS, Indices, Mask, Sampling, padded
from sordino.privacy import Adjacency, FixedBatches, FreshPermutations, Participation

if TYPE_CHECKING:
    from sordino.parts.sampling._population import Population

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


for _kind in (FixedOrder, Reshuffled):
    SAMPLINGS.add(_kind.kind, _kind)

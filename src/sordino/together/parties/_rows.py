"""Which of its own records a party takes in which step.

Secret batches are each party's own: every record independently with the party's rate (Poisson), or so
many of them without replacement. With one rate for all parties, Poisson batches of the parties together
are a Poisson batch of the pooled records. Public batches are dealt: a party's records go into the
slots of an epoch, as evenly as they go, each into one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.parts.sampling import BLOCK, FIXED, poisson_block, poisson_width
from sordino.privacy import POISSON
from sordino.together.parties._terms import Terms

Rows = NDArray[np.int64]


class PartyRows:
    """The rows of one party's steps: a function of its key and the step.

    Args:
      terms: what was agreed on.
      place: which party this is, from 0.
      key: its own run key.
    """

    def __init__(self, terms: Terms, place: int, key: RunKey) -> None:
        self._population = terms.plan.population
        self._place, self._key = place, key
        self._examples = terms.examples[place]
        self._batch = terms.batches[place] if terms.batches else 0.0
        self._first = terms.first_batches[place] if terms.first_batches else None
        self._block: tuple[str, Rows] | None = None

    def of(self, step: int) -> Rows:
        """Indices into the party's own records, without padding."""
        if self._population.is_secret:
            return self._secret(step)
        slots = self._population.steps_per_epoch
        epoch, slot = divmod(step, slots)
        fixed = self._population.sampling == FIXED
        parts = np.array_split(self._order(0 if fixed else epoch), slots)
        # Slots that get one more record are others at other parties.
        return parts[(slot + self._place) % slots]

    def width(self, step: int) -> int:
        """Room for a step's rows, hardly ever too small: the time of a turn does not tell its batch."""
        n = self._examples
        if not self._population.is_secret:
            return -(-n // self._population.steps_per_epoch)
        size = self._first if step == 0 and self._first is not None else self._batch
        if self._population.sampling == POISSON and size:
            return poisson_width(n, size / n)
        return max(1, int(size))

    def _order(self, epoch: int) -> Rows:
        if self._population.sampling == FIXED and self._population.order_seed is None:
            return np.arange(self._examples)
        return self._key.generator(f"order/{epoch}").permutation(self._examples)

    def _secret(self, step: int) -> Rows:
        if step == 0 and self._first is not None:
            rows = self._drawn("batches/first", self._first)[0]
        else:
            rows = self._drawn(f"batches/{step // BLOCK}", self._batch)[step % BLOCK]
        return rows[rows >= 0]

    def _drawn(self, use: str, size: float) -> Rows:
        """A block of steps, kept until another one is asked for."""
        if self._block is None or self._block[0] != use:
            self._block = (use, self._draw(self._key.generator(use), size))
        return self._block[1]

    def _draw(self, rng: np.random.Generator, size: float) -> Rows:
        n = self._examples
        if size == 0:
            return np.full((BLOCK, 1), -1)
        if self._population.sampling == POISSON:
            return poisson_block(n, size / n, rng)
        count = int(size)
        return np.stack([rng.choice(n, count, replace=False, shuffle=False) for _ in range(BLOCK)])

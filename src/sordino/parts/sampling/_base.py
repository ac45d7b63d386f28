"""What a kind of sampling is: who takes part in which step, and what the guarantee may count on.

A kind knows the steps that one unit can be in (`participation`), what its secrecy is worth
(`amplified`), and the rows of each step (`batches`). A new one is a subclass of `Sampling` and one
line: ``SAMPLINGS.add(kind.kind, kind)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.registry import Registry
from sordino.parts._rounding import even_width
from sordino.privacy import Adjacency, Participation, SampledRelease

if TYPE_CHECKING:
    from sordino.parts.mechanisms import Mechanism
    from sordino.parts.sampling._population import Population

Indices = NDArray[np.int32]
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
    more = even_width(rows.shape[1]) - rows.shape[1]
    rows = np.pad(rows, ((0, 0), (0, more)), constant_values=-1)
    return np.maximum(rows, 0).astype(np.int32), (rows >= 0).astype(np.float32)

"""Participation rules: in which steps can one example (or user, or client) take part?

A rule is public, fixed before the run, and part of the guarantee: a run whose batches do not obey
it has no guarantee at all. Steps are counted from 0. A *pattern* is the increasing tuple of steps
in which one unit takes part; sensitivity is the maximum over the patterns that can occur, and it
grows with the pattern, so only the maximal ones matter.

>>> FixedBatches.of(examples=10, batch_size=4, steps=7)      # 3 batches an epoch, partial last epoch
FixedBatches(steps=7, separation=3)
>>> list(FixedBatches(steps=7, separation=3).patterns())
[(0, 3, 6), (1, 4), (2, 5)]
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count, shown
from sordino._base.types import Json

Pattern = tuple[int, ...]


@dataclass(frozen=True)
class Participation(ABC):
    """One rule over `steps` steps."""

    steps: int
    kind: ClassVar[str]

    def __post_init__(self) -> None:
        self._count("steps")

    def _count(self, name: str, minimum: int = 1) -> None:
        """Check a field and keep it as a plain int (JSON or numpy may bring 6.0)."""
        object.__setattr__(self, name, require_count(name, getattr(self, name), minimum=minimum))

    @property
    @abstractmethod
    def max_participations(self) -> int:
        """The most steps in which one unit can take part."""

    @abstractmethod
    def pattern_count(self) -> float:
        """How many patterns `patterns` yields (a float: it may be astronomically large)."""

    @abstractmethod
    def patterns(self) -> Iterator[Pattern]:
        """Every maximal pattern that can occur."""

    @abstractmethod
    def describe(self) -> str:
        """A phrase for a sentence: "each example is used ..."."""

    def to_json(self) -> Json:
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def from_json(data: Json) -> Participation:
        fields = dict(data)
        kind = require_choice("participation", fields.pop("kind", None), _KINDS)
        try:
            rule: Participation = _KINDS[kind](**fields)
        except TypeError:
            raise SordinoError(f"this is not a {kind} participation rule: {shown(data)}") from None
        return rule


def times(count: int) -> str:
    """How often, in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


@dataclass(frozen=True)
class SinglePass(Participation):
    """Every unit takes part in at most one step."""

    kind: ClassVar[str] = "single-pass"

    @property
    def max_participations(self) -> int:
        return 1

    def pattern_count(self) -> float:
        return self.steps

    def patterns(self) -> Iterator[Pattern]:
        return ((t,) for t in range(self.steps))

    def describe(self) -> str:
        return "in at most one step"


@dataclass(frozen=True)
class FixedBatches(Participation):
    """The same batches in the same public order every epoch: steps ``j, j + b, j + 2b, ...``.

    `separation` is b, the number of steps in an epoch; ``separation=1`` is full-batch training.
    The last epoch may be cut short.
    """

    separation: int
    kind: ClassVar[str] = "fixed-batches"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("separation")

    @classmethod
    def of(cls, *, examples: int, batch_size: int, steps: int) -> FixedBatches:
        """Batches of `batch_size` cut from `examples` rows; the last one may be short."""
        examples = require_count("examples", examples)
        return cls(steps=steps, separation=-(-examples // require_count("batch_size", batch_size)))

    @property
    def max_participations(self) -> int:
        return -(-self.steps // self.separation)

    def pattern_count(self) -> float:
        return min(self.separation, self.steps)

    def patterns(self) -> Iterator[Pattern]:
        for j in range(min(self.separation, self.steps)):
            yield tuple(range(j, self.steps, self.separation))

    def describe(self) -> str:
        if self.separation == 1:
            return "in every step (full batch)"
        if self.max_participations == 1:
            return "in at most one step (fixed public batches, less than or just one epoch)"
        return (
            f"at most {times(self.max_participations)}, every {self.separation:,} steps "
            "(the same public batches every epoch)"
        )


@dataclass(frozen=True)
class FreshPermutations(Participation):
    """A new data-independent permutation every epoch: one step in each epoch, any step.

    The worst case over permutations. If they are drawn before the run, `realised` conditions on
    them instead and is usually much tighter.
    """

    steps_per_epoch: int
    kind: ClassVar[str] = "fresh-permutations"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("steps_per_epoch")

    def epochs(self) -> list[range]:
        """The steps of each epoch, the last one possibly short."""
        b = self.steps_per_epoch
        return [range(s, min(s + b, self.steps)) for s in range(0, self.steps, b)]

    @property
    def max_participations(self) -> int:
        return -(-self.steps // self.steps_per_epoch)

    def pattern_count(self) -> float:
        return math.prod(float(len(epoch)) for epoch in self.epochs())

    def patterns(self) -> Iterator[Pattern]:
        return product(*self.epochs())

    def describe(self) -> str:
        return (
            f"at most {times(self.max_participations)}, in any one step of each epoch of "
            f"{self.steps_per_epoch:,} (worst case over fresh permutations)"
        )

    @staticmethod
    def realised(permutations: NDArray[np.integer], batch_size: int, steps: int) -> PatternList:
        """The patterns of given permutations, shape (epochs, examples): row e lists the order."""
        epochs, examples = permutations.shape
        per_epoch = -(-examples // require_count("batch_size", batch_size))
        if not np.array_equal(
            np.sort(permutations, axis=1), np.tile(np.arange(examples), (epochs, 1))
        ):
            raise SordinoError("every row must be a permutation of 0 .. examples - 1")
        if steps > epochs * per_epoch:
            raise SordinoError(
                f"{steps} steps need {-(-steps // per_epoch)} permutations, got {epochs}"
            )
        slot = np.empty_like(permutations)
        for e in range(epochs):
            slot[e, permutations[e]] = np.arange(examples) // batch_size + e * per_epoch
        rows = {tuple(int(t) for t in column if t < steps) for column in slot.T}
        return PatternList(steps=steps, rows=tuple(sorted(rows)))


@dataclass(frozen=True)
class MinSeparation(Participation):
    """At most `participations` steps, any two at least `separation` apart."""

    separation: int
    participations: int
    kind: ClassVar[str] = "min-separation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("separation")
        self._count("participations")

    @property
    def max_participations(self) -> int:
        return min(self.participations, -(-self.steps // self.separation))

    def pattern_count(self) -> float:
        total = 0.0
        for k in range(1, self.max_participations + 1):
            total += math.comb(self.steps - (k - 1) * (self.separation - 1), k)
        return total

    def patterns(self) -> Iterator[Pattern]:
        def extend(prefix: Pattern) -> Iterator[Pattern]:
            if prefix:
                yield prefix
            if len(prefix) < self.participations:
                start = prefix[-1] + self.separation if prefix else 0
                for t in range(start, self.steps):
                    yield from extend((*prefix, t))

        return extend(())

    def describe(self) -> str:
        return (
            f"at most {times(self.max_participations)}, any two uses at least "
            f"{self.separation:,} steps apart"
        )


@dataclass(frozen=True)
class PatternList(Participation):
    """Exactly the listed patterns (each an increasing sequence of distinct steps)."""

    rows: tuple[Pattern, ...]
    kind: ClassVar[str] = "pattern-list"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            rows = tuple(tuple(int(t) for t in row) for row in self.rows)
        except (TypeError, ValueError):
            raise SordinoError("a pattern list holds patterns, each a sequence of steps") from None
        object.__setattr__(self, "rows", rows)
        if not any(self.rows):
            raise SordinoError("a pattern list needs at least one non-empty pattern")
        for row in self.rows:
            inside = all(0 <= t < self.steps for t in row)
            if not inside or any(a >= b for a, b in pairwise(row)):
                raise SordinoError(
                    f"pattern {row} must be increasing steps between 0 and {self.steps - 1}"
                )

    @property
    def max_participations(self) -> int:
        return max(len(row) for row in self.rows)

    def pattern_count(self) -> float:
        return len(self.rows)

    def patterns(self) -> Iterator[Pattern]:
        return iter(self.rows)

    def describe(self) -> str:
        return f"at most {times(self.max_participations)}, as one of {len(self.rows):,} listed patterns"


_KINDS: dict[str, type[Participation]] = {
    rule.kind: rule
    for rule in (SinglePass, FixedBatches, FreshPermutations, MinSeparation, PatternList)
}


def as_pattern_array(rows: Sequence[Pattern]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Ragged patterns as a padded (count, longest) array and its mask."""
    longest = max(len(row) for row in rows)
    steps = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=bool)
    for i, row in enumerate(rows):
        steps[i, : len(row)] = row
        mask[i, : len(row)] = True
    return steps, mask

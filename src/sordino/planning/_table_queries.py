r"""What is asked of a table beside training: facts about its columns, and scores of units held out.

Both are Gaussian releases in which a unit has the total weight 1 in every column, spread over its rows,
and noise shaped over the cells so that weight 1 moves them by at most 1 sigma (papers/06, sections 3 and
6). Replacing one unit moves them by at most ``sqrt(2)`` sigma: weights are nonnegative, and so are all
inner products of the strategy's columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from scipy.special import ndtri

from sordino._base.errors import (
    SordinoError,
    known_fields,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.planning._query import HELD_OUT, QUERIES, TRAINING
from sordino.privacy import Adjacency, Guarantee, mu_of_budget_beside

TASKS = ("binary", "classes", "regression")
# Of delta, one part in so many may go to texts that only one unit has.
TEXT_PART = 10


def _distance(adjacency: str) -> float:
    """How far one unit moves a release of weights, in units of sigma."""
    return math.sqrt(2) if adjacency == Adjacency.REPLACE_ONE else 1.0


def _fields(data: Json, query: type) -> Json:
    given = {name: value for name, value in data.items() if name != "kind"}
    return known_fields("this query", given, query)


@dataclass(frozen=True)
class TableRelease:
    """Noisy weights of the values of each column: numbers, texts, dates, missing (papers/06, section 3).

    A column of any kind costs mu ``1 / sigma``, and m of them ``sqrt(m) / sigma``.

    Attributes:
      columns: the columns that are asked for, the target among them.
      sigma: standard deviation of the noise on a column whose weights move by 1.
      text_chance: the probability that a text shows which only one unit has; 0 if no texts are kept.
    """

    columns: tuple[str, ...]
    sigma: float
    text_chance: float = 0.0
    name: str = "preprocessing"

    kind: ClassVar[str] = "table-release"
    side: ClassVar[str] = TRAINING

    def __post_init__(self) -> None:
        columns = self.columns
        if isinstance(columns, str) or not all(isinstance(one, str) for one in columns):
            raise SordinoError(f"columns are a list of names, got {shown(columns)}")
        object.__setattr__(self, "columns", tuple(columns))
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise SordinoError("a table release needs columns, each of them once")
        object.__setattr__(self, "sigma", require_positive("sigma", self.sigma))
        if self.text_chance != 0:
            require_fraction("text_chance", self.text_chance)
        object.__setattr__(self, "text_chance", float(self.text_chance))

    @classmethod
    def for_budget(
        cls,
        columns: tuple[str, ...],
        epsilon: float,
        delta: float,
        share: float,
        adjacency: str,
        may_hold_text: bool = True,
    ) -> TableRelease:
        """The release that costs `share` of mu^2 of the budget for everything, losses taken off first."""
        lost = delta / TEXT_PART if may_hold_text else 0.0
        mu = mu_of_budget_beside(epsilon, delta, lost, adjacency)
        mu *= math.sqrt(require_fraction("share", share))
        return cls(tuple(columns), _distance(adjacency) * math.sqrt(len(columns)) / mu, lost)

    def threshold(self) -> float:
        """The least noisy weight at which a text is kept.

        One unit has at most weight 1 on one text of a column; over all columns the probability that such a
        text is kept which nobody else has is ``1 - (1 - p)^m = text_chance``.
        """
        if not self.text_chance:
            return math.inf
        one = -math.expm1(math.log1p(-self.text_chance) / len(self.columns))
        least = 1 - self.sigma * float(ndtri(one))
        return least + 1e-12 * abs(least)

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        return Guarantee.gaussian(
            _distance(adjacency) * math.sqrt(len(self.columns)) / self.sigma * (1 + 1e-12),
            adjacency=adjacency,
            unit=unit,
            participation=f"once, with weight 1 in each of {len(self.columns)} columns",
            exact=not self.text_chance,
            delta_hint=delta_hint,
            lost=self.text_chance,
        )

    def decisive(self) -> tuple[object, ...]:
        return (self,)

    def describe(self) -> str:
        text = f", texts kept from {self.threshold():.4g}" if self.text_chance else ""
        return (
            f"{self.name}: noisy weights of the values of {len(self.columns)} columns (noise of standard "
            f"deviation {self.sigma:.5g}{text})"
        )

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "name": self.name,
            "columns": list(self.columns),
            "sigma": self.sigma,
            "text_chance": self.text_chance,
        }

    @classmethod
    def from_json(cls, data: Json) -> TableRelease:
        return cls(**_fields(data, cls))


@dataclass(frozen=True)
class Evaluation:
    """Noisy counts of scores of units that are held out from training (papers/06, section 6).

    Training does not move with these units, and they show in nothing else: they have the whole budget.

    Attributes:
      task: "binary", "classes" or "regression".
      sigma: standard deviation of the noise, were there a single release; several share ``1/sigma^2``.
      share: of the units, how many are held out.
      cells: into how many scores are sorted.
    """

    task: str
    sigma: float
    share: float
    cells: int = 256
    name: str = "evaluation"

    kind: ClassVar[str] = "evaluation"
    side: ClassVar[str] = HELD_OUT

    def __post_init__(self) -> None:
        require_choice("task", self.task, TASKS)
        object.__setattr__(self, "sigma", require_positive("sigma", self.sigma))
        object.__setattr__(self, "share", require_fraction("share", self.share))
        object.__setattr__(self, "cells", require_count("cells", self.cells, minimum=2))

    @classmethod
    def for_budget(
        cls, task: str, epsilon: float, delta: float, share: float, adjacency: str
    ) -> Evaluation:
        """The evaluation that costs the whole budget of the units held out."""
        mu = mu_of_budget_beside(epsilon, delta, 0.0, adjacency)
        return cls(task, _distance(adjacency) / mu * (1 + 1e-9), share)

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        return Guarantee.gaussian(
            _distance(adjacency) / self.sigma * (1 + 1e-12),
            adjacency=adjacency,
            unit=unit,
            participation=f"once, with weight 1, if it is among the {self.share:.4g} held out",
            delta_hint=delta_hint,
        )

    def decisive(self) -> tuple[object, ...]:
        return (self,)

    def describe(self) -> str:
        return (
            f"{self.name}: noisy scores of the {self.share:.4g} held out (noise of standard deviation "
            f"{self.sigma:.5g})"
        )

    def to_json(self) -> Json:
        return {
            "kind": self.kind,
            "name": self.name,
            "task": self.task,
            "sigma": self.sigma,
            "share": self.share,
            "cells": self.cells,
        }

    @classmethod
    def from_json(cls, data: Json) -> Evaluation:
        return cls(**_fields(data, cls))


QUERIES.add(TableRelease.kind, TableRelease.from_json)
QUERIES.add(Evaluation.kind, Evaluation.from_json)

"""A run between data owners in words; light, so that the command line can use it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino._base.errors import shown
from sordino.together.parties._terms import Terms


@dataclass(frozen=True)
class PaperCost:
    """One noised sum of 5 parties as the paper computed it (papers/01 table 4: garbled circuits)."""

    numbers: int
    seconds: float
    megabytes: float

    def words(self) -> str:
        size = (
            f"{self.megabytes / 1000:,.0f} GB"
            if self.megabytes >= 1e4
            else f"{self.megabytes:,.0f} MB"
        )
        return f"{self.numbers:,} numbers: {self.seconds:,.4g} s and {size}"


PAPER = (
    PaperCost(22, 3.52, 292),
    PaperCost(123, 18.04, 1634),
    PaperCost(26_010, 2370, 337_000),
)
_CLOSE = 1.5


def paper_cost(parameters: int) -> PaperCost | None:
    """The paper's figures for a sum of about so many numbers, if it has any."""
    for cost in PAPER:
        if max(parameters / cost.numbers, cost.numbers / parameters) <= _CLOSE:
            return cost
    return None


def shares(terms: Terms) -> list[tuple[str, str]]:
    """Of each party: how many of its records are in a step, and the rate of one of them."""
    population = terms.plan.population
    result = []
    for place, n in enumerate(terms.examples):
        if terms.batches:
            b = terms.batches[place]
            batch = f"{b:,.4g}" if b < 1000 else f"{b:,.0f}"
            result.append((batch, f"1 in {n / b:.4g}" if b else "never"))
        elif population.steps_per_epoch == 1:
            result.append((f"{n:,}", "every step"))
        else:
            result.append((f"{n / population.steps_per_epoch:,.4g}", "once an epoch"))
    return result


def collusion(terms: Terms) -> str:
    """How many may put together what they see, of how many."""
    assumption = terms.assumption
    if assumption.compute_nodes != assumption.parties or assumption.engine == "spu":
        return f"{assumption.node_colluders:,} of {assumption.compute_nodes:,} nodes"
    return f"{assumption.colluders:,} of {assumption.parties:,}"


def described(model: Mapping[str, Any]) -> str:
    """A model's description."""
    if model.get("kind") == "table":
        schema = model.get("schema")
        target = schema.get("target") if isinstance(schema, Mapping) else None
        return f"linear, of a table, predicting {shown(target)}"
    return f"{shown(model.get('name'))}, each party's own installed code"


def size_of(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"

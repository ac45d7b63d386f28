"""Charged questions: a plan is a composition of them, under one guarantee.

Today's plans ask one, the training run. Others (private preprocessing, private evaluation) are classes
with the same methods: what they cost follows from their own numbers, never from data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

from sordino._base.errors import SordinoError, shown
from sordino._base.registry import Registry
from sordino._base.types import Json
from sordino.privacy import Guarantee, compose


@runtime_checkable
class Query(Protocol):
    """One charged question. Implementations are frozen, and known to `QUERIES` by their kind."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Unique in its plan; the noise of a query other than training is derived from it."""
        ...

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        """What its answer costs, computed from its numbers."""
        ...

    def decisive(self) -> tuple[object, ...]:
        """The objects that decide what it costs; equal ones (the same objects) cost the same."""
        ...

    def describe(self) -> str:
        """A short phrase for the plan's page."""
        ...

    def to_json(self) -> Json:
        """Plain data with its `kind` and `name`, that its reader in `QUERIES` takes back bit for bit."""
        ...


# How each kind is read from a plan's file.
QUERIES: Registry[Callable[[Json], Query]] = Registry("query", group="sordino.queries")


def query_from_json(data: object) -> Query:
    """The query that `to_json` described."""
    if not isinstance(data, dict):
        raise SordinoError(f"a query must be a table of fields, got {shown(data)}")
    return QUERIES[data.get("kind", "")](data)


def guarantee_of_all(
    queries: Sequence[Query], *, adjacency: str, unit: str, delta_hint: float | None
) -> Guarantee:
    """The guarantee of all answers together, on the same data."""
    names = [query.name for query in queries]
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise SordinoError(f"the name of a query must be a text, got {shown(name)}")
        if names.count(name) > 1:  # they would have the same noise
            raise SordinoError(
                f"two queries of this plan are called {name!r}; give each its own name"
            )
    alone = [
        query.guarantee(adjacency=adjacency, unit=unit, delta_hint=delta_hint) for query in queries
    ]
    if len(alone) == 1:
        return alone[0]
    if not all(guarantee.is_private for guarantee in alone):
        return Guarantee.nothing(
            adjacency=adjacency, unit=unit, participation=alone[-1].participation
        )
    uses = "; ".join(
        f"{query.name}: {guarantee.participation}"
        for query, guarantee in zip(queries, alone, strict=True)
    )
    together = compose(alone)
    return replace(
        together, participation=f"in {len(alone)} queries ({uses})", delta_hint=delta_hint
    )

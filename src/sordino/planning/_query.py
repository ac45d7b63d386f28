"""Charged questions: a plan is a composition of them, under one guarantee.

One is the training run. Others (private preprocessing, private evaluation) are classes with the same
methods: what they cost follows from their own numbers, never from data.

A query asks one *side* of the data: the units that train, unless its class says ``side = HELD_OUT``. Who is
on which side is drawn secretly, unit by unit, and a unit shows only in what its own side is asked: the
guarantee is that of the worse side. A unit that is replaced may leave one side and come in on the other:
that is one more side, on which both count as for removing and adding one (papers/06, section 6.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol, runtime_checkable

from sordino._base.errors import SordinoError, require_choice, shown
from sordino._base.registry import Registry
from sordino._base.types import Json
from sordino.privacy import Adjacency, Guarantee, Side, both_of, compose

# The sides of the data.
TRAINING, HELD_OUT = "training", "held out"


@runtime_checkable
class Query(Protocol):
    """One charged question. Implementations are frozen, and known to `QUERIES` by their kind.

    A class may have a `side`; see `side_of`.
    """

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

    def costs(query: Query, adjacency: str) -> Guarantee:
        return query.guarantee(adjacency=adjacency, unit=unit, delta_hint=delta_hint)

    alone = [costs(query, adjacency) for query in queries]
    held_out = [side_of(query) == HELD_OUT for query in queries]
    if len(alone) == 1 and not any(held_out):
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
    if any(held_out):
        sides = [_side(alone, held_out, at) for at in (False, True)]
        if adjacency == Adjacency.REPLACE_ONE:
            halves = [_one_sided(query, costs) for query in queries]
            sides.append(both_of(_side(halves, held_out, at) for at in (False, True)))
        together = replace(
            together,
            gaussian_mu=sides[0].gaussian_mu,
            sampled=sides[0].sampled,
            lost=sides[0].lost,
            sides=tuple(sides[1:]),
        )
    return replace(
        together, participation=f"in {len(alone)} queries ({uses})", delta_hint=delta_hint
    )


def side_of(query: Query) -> str:
    """The side of the data that a query asks."""
    side: str = getattr(query, "side", TRAINING)
    return str(require_choice("side of a query", side, (TRAINING, HELD_OUT)))


def _side(costs: Sequence[Guarantee], held_out: Sequence[bool], wanted: bool) -> Side:
    """What the units of one side see."""
    there = [one for one, is_held_out in zip(costs, held_out, strict=True) if is_held_out == wanted]
    return compose(there).own if there else Side(0.0)


def _one_sided(query: Query, costs: Callable[[Query, str], Guarantee]) -> Guarantee:
    """What a query costs whoever only comes or goes; at most what a replacement costs."""
    try:
        return costs(query, Adjacency.ZERO_OUT.value)
    except SordinoError:
        return costs(query, Adjacency.REPLACE_ONE.value)

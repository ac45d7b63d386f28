"""The queries of a plan beside its training run: asked once, before the first step.

An answer is a function of the data, the query and the run's key, so a run that goes on after a crash
asks again and gets the same answer: nothing more is released, and nothing has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino._base.registry import Registry
from sordino.planning import Plan, Query

# How a query of each kind is answered: (query, data, its own key, earlier answers) -> answer.
Runner = Callable[[Any, Any, RunKey, Mapping[str, Any]], Any]
RUNNERS: Registry[Runner] = Registry("runner of queries", group="sordino.runners")


def check_runners(plan: Plan) -> None:
    """Refuse a plan with a query that nobody here can answer."""
    for query in plan.others:
        if query.kind not in RUNNERS:
            raise SordinoError(
                f"this plan also asks {query.name!r} of the data, and no runner for {query.kind!r} "
                "queries is known here; add one to sordino.engine.RUNNERS"
            )


def refuse_others(plan: Plan, what: str) -> None:
    """Refuse a plan that asks more than training, where only that can be done."""
    if plan.others:
        names = ", ".join(repr(query.name) for query in plan.others)
        raise SordinoError(
            f"{what} is for a plan of training alone, and this one also asks {names}"
        )


def answers(plan: Plan, data: Any, key: RunKey) -> dict[str, Any]:
    """The answers to the plan's other queries, by name, in their order."""
    known: dict[str, Any] = {}
    for query in plan.others:
        known[query.name] = RUNNERS[query.kind](query, data, query_key(query, key), dict(known))
    return known


def query_key(query: Query, key: RunKey) -> RunKey:
    """The secret behind one query's noise: no two queries of a run share any."""
    return RunKey(key.derive(f"query/{query.name}"), insecure=key.insecure)

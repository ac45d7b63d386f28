"""White-box audits whose canary is a whole person (papers/06, section 2.6 and oracle 8)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino.audit import white_box
from sordino.audit._plans import reference_plan
from sordino.engine import _stepper
from sordino.parts.contributions import PersonBatch, sum_of_persons

RECIPES = {
    "dp-memf": {},
    "dp-sgd": {"sampling": "poisson"},
    "dp-srg-memf": {},
    "dp-srm": {"sampling": "fixed"},
    "dp-nsgd-sr": {"form": "anchor-free"},
    "anchored": {"form": "anchored"},
}


def plan_of(name: str, **options: Any) -> sordino.Plan:
    recipe = "dp-nsgd-sr" if name == "anchored" else name
    return reference_plan(recipe, unit="person", **{**RECIPES[name], **options})


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_whole_persons_attain_the_claim_and_no_more(rows: int) -> None:
    result = white_box(plan_of("dp-memf"), person_rows=rows, runs=1500)
    assert not result.violates, result.verdict()
    assert result.ratio > 0.9
    assert result.moved is not None
    assert result.moved.ratio > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("name", list(RECIPES))
def test_whole_persons_of_every_kind(name: str, rows: int) -> None:
    # Secret batches of persons are slow to map over runs.
    result = white_box(plan_of(name), person_rows=rows, runs=500 if name == "dp-sgd" else 2000)
    assert not result.violates, result.verdict()
    assert result.ratio > 0.9


@pytest.fixture
def row_clip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The mutation: every row is clipped by itself, as if it were a person."""

    def by_rows(rule: Any, gradients: Any, like: Any, batch: PersonBatch, terms: Any) -> Any:
        return sum_of_persons(
            rule, gradients, like, batch._replace(after=jnp.ones_like(batch.after)), terms
        )

    jax.clear_caches()
    monkeypatch.setattr(_stepper, "sum_of_persons", by_rows)
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("row_clip")
@pytest.mark.parametrize(
    "name", ["dp-memf", "dp-srg-memf", pytest.param("dp-sgd", marks=pytest.mark.slow)]
)
def test_a_clip_of_rows_is_found_out(name: str) -> None:
    result = white_box(plan_of(name), person_rows=50, runs=200)
    assert result.violates
    assert result.moved is not None
    assert result.moved.ratio > 40
    if name == "dp-memf":  # the runs alone would do as well
        assert result.mu_low > 20 * result.mu_claimed


@pytest.mark.usefixtures("row_clip")
def test_a_clip_of_rows_is_right_for_one_row() -> None:
    assert not white_box(plan_of("dp-memf"), person_rows=1, runs=200).violates


def test_rows_of_a_person_that_are_clipped_one_by_one() -> None:
    """Way 1: the worst person has as many rows as the plan lets in, and all of them count."""
    plan = plan_of("dp-memf")
    population = replace(plan.population, rows_per_person=3)
    several = plan.with_training(population=population).restated()
    assert several.guarantee.mu == pytest.approx(3 * plan.guarantee.mu)
    result = white_box(several, runs=1500)
    assert not result.violates, result.verdict()
    assert result.ratio > 0.9
    claimed = replace(several, guarantee=plan.guarantee)
    with pytest.raises(sordino.SordinoError, match="states a guarantee"):
        white_box(claimed)


def test_what_an_audit_of_persons_refuses() -> None:
    plan = plan_of("dp-memf")
    with pytest.raises(sordino.SordinoError, match="unit='person'"):
        white_box(reference_plan("dp-memf"), person_rows=2)
    with pytest.raises(sordino.SordinoError, match="the plan alone"):
        white_box(plan, lambda w, x: w @ x, np.zeros(2), np.zeros((7, 2)), person_rows=2)
    slots = sordino.plan("dp-memf", slot_count=4, epochs=2, epsilon=1.0, delta=1e-5, unit="person")
    with pytest.raises(sordino.SordinoError, match="secret slots"):
        white_box(slots)

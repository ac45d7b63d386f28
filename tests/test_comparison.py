"""Ranking recipes: equal guarantees, equal gradients, honest words."""

from __future__ import annotations

from pathlib import Path

import pytest

import sordino
from sordino._base.errors import SordinoError
from sordino.planning._comparison import (
    RecipeRanking,
    arguments_for,
    candidates,
    compare_recipes,
    conclusion,
)
from sordino.planning.recipes import RECIPES

REQUEST = {"examples": 2000, "batch_size": 100, "epochs": 3, "epsilon": 1.0, "delta": 1e-5}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_every_private_recipe_is_a_candidate() -> None:
    named = {candidate.recipe for candidate in candidates()}
    assert named == {name for name, recipe in RECIPES.items() if recipe.private}
    with pytest.raises(SordinoError, match="sgd is not private"):
        candidates(["sgd"])
    with pytest.raises(SordinoError, match="did you mean 'dp-srm'"):
        candidates(["dp-smr"])


def test_all_at_one_guarantee_and_one_number_of_gradients() -> None:
    found = compare_recipes(**REQUEST)
    ranks = [row.relative_error for row in found.ranked]
    assert ranks == sorted(ranks)
    for row in found.ranked:
        assert row.gradient_evaluations == pytest.approx(6000, rel=0.04)
        request = {"steps": None, "adjacency": found.adjacency, "unit": "example", **REQUEST}
        plan = sordino.plan(row.recipe, **arguments_for(row.recipe, row.options, request))
        assert plan.relative_error == row.relative_error
        assert plan.guarantee.epsilon(1e-5) <= 1.0
        assert plan.guarantee.adjacency == found.adjacency
    # Without replacement is analysed under another adjacency, and is not silently mixed in.
    assert {label for label, _ in found.left_out} == {
        "dp-sgd, batches without replacement",
        "dp-srm, batches without replacement",
    }


def test_a_comparison_is_kept(own_cache: Path) -> None:
    planned: list[str] = []
    first = compare_recipes(["dp-gd", "dp-memf"], watch=planned.append, **REQUEST)
    assert planned
    planned.clear()
    second = compare_recipes(["dp-gd", "dp-memf"], watch=planned.append, **REQUEST)
    assert not planned
    assert second == first
    assert RecipeRanking.from_json(first.to_json()) == first
    for path in (own_cache / "sordino" / "comparisons").iterdir():
        path.write_text("{}")
    assert compare_recipes(["dp-gd", "dp-memf"], watch=planned.append, **REQUEST) == first
    assert planned


def test_recursive_momentum_loses_to_dp_sgd_and_the_words_say_why() -> None:
    """papers/01, section 4: the recursion's gain at low frequencies; and half the steps."""
    found = compare_recipes(["dp-sgd", "dp-srm"], gamma=0.01, difference_clip=0.01, **REQUEST)
    rows = {row.label: row for row in found.ranked}
    assert rows["dp-srm, Poisson batches"].gain == pytest.approx(1.99)
    assert found.best.label == "dp-sgd, Poisson batches"
    text = conclusion(found)
    assert "slow noise counts 1.99 times" in text
    assert "dp-sgd, Poisson batches beats it" in text


def test_bad_requests() -> None:
    with pytest.raises(SordinoError, match="tries every sampling"):
        compare_recipes(sampling="fixed", **REQUEST)
    with pytest.raises(SordinoError, match="one budget for all"):
        compare_recipes(examples=100, batch_size=10, epochs=1)

"""Ranking recipes: equal guarantees, equal gradients, honest words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino._base.errors import SordinoError
from sordino._base.threads import one_blas_thread
from sordino.planning import Spectrum, _comparison
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
    losses = [row.predicted_loss for row in found.ranked]
    assert losses[-1] is None
    assert losses[:-1] == sorted(losses[:-1])
    assert found.ranked[-1].recipe == "dp-agd"
    assert "decides on its steps" in found.ranked[-1].unpredicted
    for row in found.ranked:
        if "steps" not in row.options:
            assert row.gradient_evaluations == pytest.approx(6000, rel=0.04)
        assert row.gradient_evaluations <= 6240
        request = {"steps": None, "adjacency": found.adjacency, "unit": "example", **REQUEST}
        plan = sordino.plan(row.recipe, **arguments_for(row.recipe, row.options, request))
        assert plan.relative_error == row.relative_error
        assert plan.population.steps == row.steps
        if row.learning_rate is not None:
            at_best = plan.with_update(learning_rate=row.learning_rate)
            assert at_best.predicted_loss() == pytest.approx(row.predicted_loss, rel=1e-6)
            assert row.predicted_loss <= 1.02 * plan.predicted_loss()
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


def test_few_steps_on_all_examples_are_not_first_for_their_little_noise() -> None:
    """Page 05, section 6: dp-gd-momentum with few steps has the least noise and gets nowhere."""
    found = compare_recipes(["dp-gd-momentum", "dp-sgd", "dp-memf"], **REQUEST)
    quietest = min(found.ranked, key=lambda row: row.relative_error)
    assert (quietest.recipe, quietest.steps) == ("dp-gd-momentum", 3)
    assert found.best.recipe != "dp-gd-momentum"
    assert "The least predicted loss: " in conclusion(found)
    assert f"at learning rate {found.best.learning_rate:.3g}" in conclusion(found)


def test_fewer_steps_are_chosen_where_noise_rules() -> None:
    """At a tiny epsilon the noise of one step is all that can be afforded."""
    weak = compare_recipes(["dp-gd"], **{**REQUEST, "epochs": 40, "epsilon": 0.001})
    strong = compare_recipes(["dp-gd"], **{**REQUEST, "epochs": 40, "epsilon": 8.0})
    assert strong.best.steps == 40
    assert weak.best.steps <= strong.best.steps
    assert weak.best.predicted_loss > 10 * strong.best.predicted_loss


def test_a_given_learning_rate_is_kept_and_a_spectrum_counts() -> None:
    fixed = compare_recipes(["dp-gd", "dp-sgd"], learning_rate=0.01, **REQUEST)
    assert {row.learning_rate for row in fixed.ranked} == {0.01}
    free = compare_recipes(["dp-gd", "dp-sgd"], **REQUEST)
    assert free.best.predicted_loss < fixed.best.predicted_loss
    steep = compare_recipes(["dp-gd", "dp-sgd"], spectrum=Spectrum((4.0,), (1.0,)), **REQUEST)
    assert steep.best.learning_rate < free.best.learning_rate
    wild = compare_recipes(["dp-gd"], learning_rate=1e200, **REQUEST)
    assert wild.best.predicted_loss is None
    assert "diverges" in wild.best.unpredicted
    assert "No loss can be predicted" in conclusion(wild)


def test_bad_requests() -> None:
    with pytest.raises(SordinoError, match="tries every sampling"):
        compare_recipes(sampling="fixed", **REQUEST)
    with pytest.raises(SordinoError, match="one budget for all"):
        compare_recipes(examples=100, batch_size=10, epochs=1)


def _blas_threads() -> set[int]:
    from threadpoolctl import threadpool_info

    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_comparisons_keep_linear_algebra_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.linalg  # noqa: F401  so that its library is there to limit
    from threadpoolctl import threadpool_limits

    seen = []
    row = _comparison._row

    def watched(*arguments: Any) -> Any:
        seen.append(_blas_threads())
        return row(*arguments)

    monkeypatch.setattr(_comparison, "_row", watched)
    with threadpool_limits(2, user_api="blas"):
        if _blas_threads() != {2}:
            pytest.skip("this BLAS has one thread")
        request = {"examples": 1000, "batch_size": 100, "epochs": 1, "epsilon": 1, "delta": 1e-6}
        compare_recipes(["dp-gd", "dp-nesterov"], **request, keep=False)
        assert seen == [{1}, {1}]
        assert _blas_threads() == {2}
        # nested and overlapping uses: only the last one to leave lifts the limit
        first, second = one_blas_thread(), one_blas_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert _blas_threads() == {1}
        second.__exit__(None, None, None)
        assert _blas_threads() == {2}

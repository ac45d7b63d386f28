"""Every recipe in the table can be planned, says what it is, and learns something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sordino
from sordino import SordinoError
from sordino.parts._losses import Logistic
from sordino.parts.contributions import Contribution, Gradient
from sordino.parts.mechanisms._tree import Tree
from sordino.planning.recipes import COMMON_OPTIONS, OPTIONS, RECIPES
from sordino.privacy._gdp import mu_from_epsilon_delta


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_described(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.name == name
    for text in (recipe.title, recipe.reference, recipe.use_when, recipe.avoid_when):
        assert len(text) > 10
    assert {*COMMON_OPTIONS, *recipe.options} <= set(OPTIONS)
    assert isinstance(recipe.contribution_for(recipe.defaults(), 4), Contribution)
    assert recipe.defaults()["mechanism"] in recipe.mechanisms
    assert recipe.defaults()["sampling"] in recipe.samplings


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_learns(name: str) -> None:
    """An easy problem at a comfortable budget: 90 % right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 4)).astype(np.float32) / 2
    y = (X @ np.array([2.0, -1.0, 0.5, 0.0]) > 0).astype(np.float32)
    size = {} if RECIPES[name].full_batch else {"batch_size": 200}
    budget = {"epsilon": 4.0, "delta": 1e-5} if RECIPES[name].private else {}
    plan = sordino.plan(name, examples=4000, epochs=10, **budget, **size)
    result = sordino.train(plan, Logistic(), np.zeros(4, np.float32), (X, y), insecure_seed=0)
    assert np.mean((X @ np.asarray(result.params) > 0) == (y > 0.5)) > 0.9
    if RECIPES[name].private:
        assert result.guarantee.epsilon(1e-5) <= 4.0
    else:
        assert result.guarantee.epsilon(1e-5) == np.inf
        assert "NOT private" in str(plan)


def test_the_papers_algorithm_at_its_exact_cost() -> None:
    """DP-NSGD, N=32561, b=64, 10 epochs, alpha=.1: max SS 19.841 instead of the paper's V=106.

    Noise per node in units of alpha C/b: sqrt(19.841)/mu (zero-out), against 4 sqrt(106) sigma with
    sigma = 2 sqrt(log(1/delta))/eps: 16.8 times less at (1, 1e-5), 8.41 under replace-one.
    """
    plan = sordino.plan(
        "dp-nsgd",
        examples=32561,
        batch_size=64,
        epochs=10,
        epsilon=1.0,
        delta=1e-5,
        mechanism="tree",
        momentum=0.9,
    )
    assert isinstance(plan.mechanism, Tree)
    assert plan.population.steps == 5090
    mu = mu_from_epsilon_delta(1.0, 1e-5)
    assert plan.noise_multiplier**2 * mu**2 == pytest.approx(19.841, rel=1e-4)
    printed = 4 * np.sqrt(106) * 2 * np.sqrt(np.log(1e5))
    assert printed / plan.noise_multiplier == pytest.approx(16.8, abs=0.05)
    assert printed / (2 * plan.noise_multiplier) == pytest.approx(8.41, abs=0.02)


@pytest.mark.parametrize(
    ("recipe", "given", "words"),
    [
        ("dp-memf", {"mechanism": "blt", "bands": 4}, "bands has no effect with mechanism 'blt'"),
        ("dp-srm", {"optimizer": "sgd", "step_length": 0.3}, "it goes with 'adaptive'"),
        (
            "dp-nsgd-sr",
            {"residual_clip": 0.3},
            "residual_clip has no effect with form 'anchor-free'",
        ),
        ("dp-nsgd-sr", {"schedule": "exponential"}, "schedule of dp-nsgd-sr 'exponential'"),
        ("dp-mu2", {"optimizer": "adam"}, "optimizer of dp-mu2 'adam' is not known"),
        ("dp-memf", {"momentun": 0.3}, "has no option 'momentun'; did you mean 'momentum'"),
    ],
)
def test_options_without_effect_are_refused(recipe: str, given: dict[str, Any], words: str) -> None:
    budget = {"epsilon": 4.0, "delta": 1e-5}
    with pytest.raises(SordinoError, match=words):
        sordino.plan(recipe, examples=400, batch_size=100, epochs=2, **budget, **given)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_says_what_it_means(name: str) -> None:
    option = OPTIONS[name]
    assert option.name == name
    assert len(option.help) > 10
    assert option.type in (int, float, str)
    assert all(other in OPTIONS for other, _ in option.needs)
    assert option.idle_with is None or option.idle_with[0] in OPTIONS
    users = [r for r in RECIPES.values() if name in r.option_names()]
    assert users
    for recipe in users:
        value = recipe.defaults()[name]
        assert value is None or isinstance(value, (option.type, int))
        assert not option.choices or value in option.choices


def test_a_mechanism_of_ones_own_has_fields_of_its_own() -> None:
    """What its `fit` takes by name can be set, and is read by its type."""
    from sordino.parts.mechanisms import MECHANISMS, Independent
    from sordino.planning import read_settings

    seen: list[Any] = []

    def fit(workload: Any, rule: Any, *, bands: int | None = None, width: float = 1.0) -> Any:
        seen.append(width)
        return Independent(rule.steps)

    recipe = sordino.Recipe("dp-wide", "for a test", Gradient, mechanisms=("wide",))
    with MECHANISMS.temporary(), RECIPES.temporary():
        MECHANISMS.add("wide", fit)
        RECIPES.add("dp-wide", recipe)
        options = read_settings("dp-wide", {}, ["mechanism.width=2"])
        assert options == {"mechanism.width": 2.0}
        size = {"examples": 40, "batch_size": 10, "epochs": 1, "epsilon": 1.0, "delta": 1e-3}
        sordino.plan("dp-wide", **size, **options)
        assert seen == [2.0]
        with pytest.raises(SordinoError, match="has no field 'wide'; did you mean 'width'"):
            sordino.plan("dp-wide", **size, **{"mechanism.wide": 2.0})


def test_an_option_of_ones_own_recipe_is_read_by_its_type() -> None:
    from sordino.planning import read_settings

    recipe = sordino.Recipe(
        "dp-own", "for a test", lambda clip, beta: Gradient(clip * beta), options={"beta": 2.0}
    )
    with RECIPES.temporary():
        RECIPES.add("dp-own", recipe)
        assert read_settings("dp-own", {}, ["beta=3"]) == {"beta": 3.0}
        with pytest.raises(SordinoError, match="beta must be a number"):
            read_settings("dp-own", {}, ["beta=x"])


def test_a_recipe_knows_what_its_parts_never_use() -> None:
    unused = {
        name: {option for option in recipe.option_names() if not recipe.has_use_for(option)}
        for name, recipe in RECIPES.items()
    }
    assert unused["dp-gd"] == {"bands", "workload"}
    assert unused["dp-memf"] == set()
    assert unused["dp-srgd"] == set()  # bands shape the noise, and a momentum may
    assert unused["storm"] >= {"bands", "workload", "momentum"}
    assert "momentum" not in unused["dp-srm"]  # with optimizer "sgd"

"""The worked example of docs/own-recipe.md passes the contract suite: every test of it, for that recipe."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino import SordinoError
from sordino.parts.contributions import CONTRIBUTIONS
from sordino.planning import recipes
from sordino.planning import recipes as registry
from sordino.planning.recipes import Recipe

from . import cases, reference, test_contract

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_recipe.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("own_recipe", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_recipe"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


own = load()
NAME = own.RECIPE.name


@pytest.fixture
def registered(own_recipes: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recipe is in the table, and in that of the contract suite; afterwards it never was."""
    registry.register(own.RECIPE)
    # What it is, written down a second time, in double precision.
    monkeypatch.setitem(reference.OWN, own.ShrinkingClip.kind, own.reference)
    yield
    cases.make.cache_clear()
    cases.neighbours.cache_clear()


def contract() -> Iterator[Any]:
    """Every test of the suite that takes a recipe's name, with what else it takes."""
    for label, test in vars(test_contract).items():
        if not label.startswith("test_") or "name" not in inspect.signature(test).parameters:
            continue
        for arguments in calls(test):
            quick = arguments.get("mechanism", "tree") in ("auto", "tree", "independent")
            marks = [] if quick and "drivers" not in label else [pytest.mark.slow]
            name = "-".join([label[5:], *arguments.values()])
            yield pytest.param(test, arguments, marks=marks, id=name)


def calls(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """What else to call it with; nothing for tests of amplified curves and of chosen variants."""
    needs = set(inspect.signature(test).parameters) - {"name"}
    if not needs:
        yield {}
    elif needs == {"sampling", "mechanism"}:
        # All of them, but for what the library refuses; the optimum takes seconds.
        for sampling in own.RECIPE.samplings:
            for mechanism in own.RECIPE.mechanisms:
                if mechanism not in ("dense", "auto") or sampling == "fixed":
                    yield {"sampling": sampling, "mechanism": mechanism}


@pytest.mark.usefixtures("registered", "quick_compilation")
@pytest.mark.parametrize(("test", "arguments"), list(contract()))
def test_the_example_keeps_the_contract(
    test: Callable[..., None], arguments: dict[str, Any]
) -> None:
    test(NAME, **arguments)


@pytest.mark.usefixtures("registered", "quick_compilation")
def test_without_noise_the_example_is_the_plain_algorithm() -> None:
    test_contract.test_without_noise_it_is_the_plain_algorithm(NAME, {})


@pytest.mark.usefixtures("registered")
def test_registered_it_is_like_any_other() -> None:
    found = sordino.compare_recipes(
        [NAME, "dp-memf"],
        examples=500,
        batch_size=100,
        epochs=1,
        epsilon=1.0,
        delta=1e-5,
    )
    assert NAME in {row.recipe for row in found.ranked}
    registry.register(own.RECIPE)  # again: nothing happens
    bound = own.ShrinkingClip(clip=0.5, shrink=0.25).bounds(3)
    np.testing.assert_array_equal(bound, [[0.5, 0.125, 0.05]])


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{**vars(own.RECIPE), **changes})


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "dp-gd"}, "another recipe called 'dp-gd'"),
        ({"name": NAME, "title": "another"}, f"another recipe called {NAME!r}"),
        ({"name": "dp-x", "options": {}}, "no default for 'shrink'"),
        ({"name": "dp-x", "mechanisms": ("blp",)}, "no mechanism 'blp'; did you mean 'blt'"),
        (
            {"name": "dp-x", "schedules": ("unifrom",)},
            "no schedule 'unifrom'; did you mean 'uniform'",
        ),
        ({"name": "dp-x", "samplings": ("poissson",)}, "sampling of dp-x 'poissson' is not known"),
        (
            {"name": "dp-x", "contribution": "gradient"},
            "must be a class of Contribution or a function",
        ),
    ],
)
def test_what_cannot_be_registered(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SordinoError, match=words):
        registry.register(recipe(**changes))
    assert "dp-x" not in recipes.RECIPES


def test_only_recipes_are_registered() -> None:
    with pytest.raises(SordinoError, match="got a str"):
        registry.register("dp-gd")  # type: ignore[arg-type]


@pytest.mark.usefixtures("own_recipes")
def test_nobody_takes_the_place_of_a_contribution_of_the_library() -> None:
    """Otherwise dp-sgd, or a plan read from a file, would promise what somebody else's class does."""
    kinds = dict(CONTRIBUTIONS)
    kind, known = next(iter(kinds.items()))
    double = type(known.__qualname__, (own.ShrinkingClip,), {"kind": kind})
    double.__qualname__ = known.__qualname__
    with pytest.raises(SordinoError, match="another contribution"):
        registry.register(recipe(name="dp-third", contribution=double))
    assert dict(CONTRIBUTIONS) == kinds
    assert "dp-third" not in recipes.RECIPES


def test_the_example_is_short_and_gone_after_a_test() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    assert NAME not in recipes.RECIPES

"""Recipes of your own, beside those of `sordino.planning.recipes`, for as long as the process lives.

    register(Recipe(name="dp-mine", stream="gradient", ...))            # a new combination of parts
    register(Recipe(..., stream="my stream"), contribution=MyStream)    # with a new part

Plans, runs, audits, comparisons and the command line know it from then on, and `tests/contract` can
hold it to what every recipe promises (docs/own-recipe.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from sordino._base.errors import SordinoError
from sordino.parts.contributions import KINDS, Contribution
from sordino.planning import recipes
from sordino.planning.recipes import Recipe

# Names of the recipes that were registered.
OWN: set[str] = set()
# And of their streams.
OWN_STREAMS: set[str] = set()


def register(recipe: Recipe, *, contribution: type[Contribution] | None = None) -> None:
    """Enter a recipe into the table; the same one again changes nothing.

    Args:
      recipe: its name must be free, its stream known or made by `contribution`.
      contribution: the class behind a new stream. Its fields are options of the recipe.
    """
    if recipes.RECIPES.get(recipe.name) == recipe:
        return
    if recipe.name in recipes.RECIPES:
        raise SordinoError(f"there is another recipe called {recipe.name!r} already")
    if contribution is not None:
        _register_stream(recipe, contribution)
    elif recipe.stream not in recipes.STREAMS:
        raise SordinoError(
            f"the stream {recipe.stream!r} of {recipe.name} is not known; give the class of what an "
            "example contributes as contribution="
        )
    # The table is replaced, never changed: whoever holds the old one is not surprised.
    recipes.RECIPES = MappingProxyType({**recipes.RECIPES, recipe.name: recipe})
    OWN.add(recipe.name)


def _register_stream(recipe: Recipe, contribution: type[Contribution]) -> None:
    kind = contribution.kind
    # Whoever took the place of a known stream or kind would change what other recipes, and plans that
    # are read from files, promise. By name: a module that is run twice defines its classes twice.
    if recipe.stream in recipes.STREAMS and recipe.stream not in OWN_STREAMS:
        raise SordinoError(f"there is another stream called {recipe.stream!r} already")
    known = KINDS.get(kind, contribution)
    if (known.__module__, known.__qualname__) != (
        contribution.__module__,
        contribution.__qualname__,
    ):
        raise SordinoError(f"there is another contribution of kind {kind!r} already")
    needed = [field.name for field in fields(contribution)]
    missing = [name for name in needed if name not in recipe.options({})]
    if missing:
        raise SordinoError(f"{recipe.name} has no default for {missing[0]!r}, which {kind!r} needs")

    def make(options: Mapping[str, Any], steps_per_epoch: int) -> Contribution:
        return contribution(**{name: options[name] for name in needed})

    OWN_STREAMS.add(recipe.stream)
    KINDS[kind] = contribution
    recipes.STREAMS = MappingProxyType({**recipes.STREAMS, recipe.stream: make})

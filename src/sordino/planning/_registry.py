"""Recipes of your own, beside those of `sordino.planning.recipes`, for as long as the process lives.

    register(Recipe("dp-mine", "my combination", Gradient, mechanisms=("blt",)))

Plans, runs, audits, comparisons and the command line know it from then on, and
`sordino.audit.check_recipe` holds it to what every recipe promises (docs/own-recipe.md). A package does
the same for good by an entry point of the group ``sordino.recipes``.
"""

from __future__ import annotations

from dataclasses import replace

from sordino._base.errors import SordinoError
from sordino.planning.recipes import RECIPES, Recipe, same_part


def register(recipe: Recipe) -> None:
    """Enter a recipe into the table; the same one again changes nothing.

    Args:
      recipe: its name must be free. A new class of contributions among its parts becomes known as
        well, for plans that are read from files.
    """
    if not isinstance(recipe, Recipe):
        raise SordinoError(f"register takes a sordino.Recipe, got a {type(recipe).__name__}")
    known = RECIPES.get(recipe.name)
    if (
        known is not None
        and same_part(known.contribution, recipe.contribution)
        and replace(known, contribution=recipe.contribution) == recipe
    ):
        return
    RECIPES.add(recipe.name, recipe)

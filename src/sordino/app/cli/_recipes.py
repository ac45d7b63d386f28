"""``sordino recipes``: the named algorithms, and when to use which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.app.cli._console import out

if TYPE_CHECKING:
    from sordino.planning import Recipe


def recipes() -> None:
    """List the recipes: what each does, and when to use it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sordino.planning.recipes import RECIPES

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_lines=False)
    table.add_column("recipe", style="bold cyan", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for recipe in RECIPES.values():
        text = Text()
        text.append(f"{recipe.title}\n", style="bold")
        parts = (
            ("contribution", _contribution(recipe)),
            ("noise", ", ".join(recipe.mechanisms)),
            ("schedule", _schedules(recipe)),
            ("update", _updates(recipe)),
            ("batches", "all examples" if recipe.full_batch else ", ".join(recipe.samplings)),
            ("defaults", ", ".join(f"{k} {_short(v)}" for k, v in recipe.options.items())),
            ("theory's settings from", _facts(recipe.name)),
            ("use when", recipe.use_when),
            ("avoid when", recipe.avoid_when),
            ("from", recipe.reference),
        )
        for name, value in parts:
            if value:
                text.append(f"{name}: ", style="dim")
                text.append(f"{value}\n")
        table.add_row(recipe.name, text)
    console = out()
    console.print(table)
    console.print(
        "See what one would do with: sordino plan RECIPE --examples 60000 --batch-size 500 "
        "--epochs 4 --epsilon 1 --delta 1e-6"
    )


def _facts(name: str) -> str:
    """What `theory_defaults` needs to know, where a theorem gives settings at all."""
    from sordino._base.errors import SordinoError
    from sordino.planning import needed_facts

    try:
        return ", ".join(needed_facts(name))
    except SordinoError:
        return ""


def _short(value: object) -> str:
    """A default as it is typed; "none" for the clip of algorithms without privacy."""
    if isinstance(value, float):
        return f"{value:g}" if value < 1e20 else "none"
    return str(value)


def _contribution(recipe: Recipe) -> str:
    """What one example adds, by its kind or by the function that chooses it."""
    part = recipe.contribution
    return str(getattr(part, "kind", getattr(part, "__name__", ""))).replace("_", " ")


def _schedules(recipe: Recipe) -> str:
    if not recipe.private:
        return ""
    return "decided by the run" if recipe.adaptive else ", ".join(recipe.schedules) or "any"


def _updates(recipe: Recipe) -> str:
    if recipe.adaptive:
        return "decided by the run"
    return ", ".join(recipe.optimizers) or f"{recipe.defaults()['optimizer']}, or any other"

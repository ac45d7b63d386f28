"""``sordino recipes``: the named algorithms, and when to use which."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import planning
from sordino._base.errors import SordinoError
from sordino.app.cli._console import new_table, out

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from sordino.planning import Recipe


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe, with all its options.")] = None,
) -> None:
    """List the recipes: what each does, and when to use it; with a name, also its options."""
    listed = list(planning.RECIPES.values()) if name is None else [planning.RECIPES[name]]
    table = new_table(show_lines=False)
    table.add_column("recipe", style="bold cyan", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for recipe in listed:
        table.add_row(recipe.name, _page(recipe))
    console = out()
    console.print(table)
    if name is not None:
        console.print(_options(listed[0]))
        console.print(
            "Each is an option of the same name, as --learning-rate, or --set learning_rate=0.1. "
            "--set schedule.NAME=VALUE sets a field of the chosen schedule, --set mechanism.NAME=VALUE "
            "of the mechanism.",
            style="dim",
        )
    console.print(
        f"See what {'one' if name is None else 'it'} would do with: sordino plan "
        f"{'RECIPE' if name is None else name} --examples 60000 "
        f"{'' if name is not None and listed[0].full_batch else '--batch-size 500 '}"
        "--epochs 4 --epsilon 1 --delta 1e-6"
    )


def _page(recipe: Recipe) -> Text:
    from rich.text import Text

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
    return text


def _options(recipe: Recipe) -> Table:
    """The recipe's options with their defaults: the values that it allows, where it allows fewer."""
    from rich.markup import escape

    table = new_table()
    table.add_column("option", style="cyan", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    defaults, offered = recipe.defaults(), recipe.option_names()
    allowed = recipe.allowed()
    for name in sorted(offered, key=[*planning.OPTIONS, *sorted(offered)].index):
        if not recipe.has_use_for(name):
            continue
        option = recipe.option(name)
        if allowed.get(name):
            option = replace(option, choices=allowed[name])
        table.add_row(name, _short(defaults[name]), escape(option.described()))
    return table


def _facts(name: str) -> str:
    """What `theory_defaults` needs to know, where a theorem gives settings at all."""
    try:
        return ", ".join(planning.needed_facts(name))
    except SordinoError:
        return ""


def _short(value: object) -> str:
    """A default as it is typed; "none" for the clip of algorithms without privacy."""
    if isinstance(value, float):
        return f"{value:g}" if value < 1e20 else "none"
    return "none" if value is None else str(value)


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

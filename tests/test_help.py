"""What the commands say of themselves, and the page of options: a snapshot, so that changes are seen.

``python -m tests.test_help`` writes ``tests/help.txt`` and the tables of ``docs/options.md`` anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sordino.app.cli._main import app
from sordino.parts.mechanisms import MECHANISMS
from sordino.parts.schedules import SCHEDULES
from sordino.planning import OPTIONS, RECIPES
from sordino.planning.recipes import COMMON_OPTIONS

HELP = Path(__file__).parent / "help.txt"
SPELLINGS = Path(__file__).parent / "cli" / "spellings-0.5.1.txt"
PAGE = Path(__file__).parent.parent / "docs" / "options.md"
OPTIONS_AT, SCHEDULES_AT = "options", "schedules"
# Known by name, but made by the library itself.
NOT_CHOSEN = {"adaptive", "filter"}
# Commands that name a recipe.
WITH_RECIPES = {
    "plan",
    "train",
    "audit white-box",
    "audit one-run",
    "party propose",
    "party simulate",
}


def commands() -> Iterator[tuple[str, Any]]:
    """All commands by their full names, in the order of the help."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, sub in command.commands.items():
                yield from walk(sub, (*path, name))
        else:
            yield " ".join(path), command

    return walk(typer.main.get_command(app), ())


def options_of(command: Any) -> dict[str, Any]:
    """By spelling."""
    return {
        spelling: one
        for one in command.params
        if one.param_type_name == "option"
        for spelling in (*one.opts, *one.secondary_opts)
    }


def described(command: Any) -> Iterator[str]:
    """A command's help, panel by panel; in words of our own, whatever version of Typer shows it."""
    yield f"  {' '.join((command.help or '').split())}"
    panels: dict[str, list[str]] = {}
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        name = ", ".join(one.opts) if one.param_type_name == "option" else one.name.upper()
        kind = "" if getattr(one, "is_flag", False) else f" {one.metavar or one.type.name}"
        need = " (required)" if one.required else ""
        panel = getattr(one, "rich_help_panel", None) or ""
        panels.setdefault(panel, []).append(f"    {name}{kind}{need}: {one.help or ''}".rstrip())
    for panel, lines in panels.items():
        yield from ([f"  {panel}"] if panel else [])
        yield from lines


def all_help() -> str:
    lines = []
    for name, command in commands():
        if command.hidden:
            lines.append(f"sordino {name} (hidden)")
        else:
            lines += [f"sordino {name}", *described(command)]
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """The tables of the page of options."""
    from sordino.parts.schedules import schedule_fields

    def short(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:g}"
        return "" if value is None else str(value)

    rows = ["| option | default | what it means |", "| --- | --- | --- |"]
    rows += [
        f"| `{name}` | {short(COMMON_OPTIONS.get(name))} | {OPTIONS[name].described()} |"
        for name in OPTIONS
    ]
    kinds = ["| schedule | fields |", "| --- | --- |"]
    for kind in OPTIONS["schedule"].choices:
        fields = ", ".join(f"`{name}`" for name in schedule_fields(kind))
        kinds.append(f"| `{kind}` | {fields}{', or `file`' if kind == 'influence' else ''} |")
    return {OPTIONS_AT: "\n".join(rows), SCHEDULES_AT: "\n".join(kinds)}


def page() -> str:
    """The page with its tables written anew."""
    text = PAGE.read_text()
    for name, table in tables().items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        assert mark, f"the page has no place for the table {name}"
        text = f"{before}{mark}{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def test_help_is_what_was_decided() -> None:
    assert all_help() == HELP.read_text(), "python -m tests.test_help rewrites it"


def test_the_page_of_options_comes_from_the_table() -> None:
    assert page() == PAGE.read_text(), "python -m tests.test_help rewrites it"


def test_commands_of_a_recipe_have_every_option_once() -> None:
    known = dict(commands())
    for name, command in known.items():
        found = options_of(command)
        if name not in WITH_RECIPES:
            assert "--set" not in found
            continue
        assert "--set" in found
        for option in OPTIONS.values():
            assert found[option.flag].help.lower().startswith(option.help[:10].lower())
        names = [one.name for one in command.params]
        assert len(names) == len(set(names))
    assert set(known) >= WITH_RECIPES


def test_every_option_of_every_recipe_is_in_the_table() -> None:
    used = {name for recipe in RECIPES.values() for name in recipe.option_names()}
    assert used == set(OPTIONS)


def test_names_in_the_table_are_those_of_the_parts() -> None:
    from sordino.parts.sampling import SAMPLINGS
    from sordino.parts.updates._settings import LR_SCHEDULES, OPTIMIZERS, OUTPUTS, WORKLOADS

    def choices(name: str) -> set[str]:
        return set(OPTIONS[name].choices)

    assert choices("mechanism") == set(MECHANISMS)
    assert choices("schedule") == set(SCHEDULES) - NOT_CHOSEN
    assert choices("sampling") == {*SAMPLINGS, "auto"}
    assert choices("optimizer") == set(OPTIMIZERS)
    assert choices("lr_schedule") == set(LR_SCHEDULES)
    assert choices("output") == set(OUTPUTS)
    assert choices("workload") == set(WORKLOADS)


@pytest.mark.parametrize("line", SPELLINGS.read_text().splitlines())
def test_spellings_of_the_last_release_work(line: str) -> None:
    name, _, spellings = line.partition(":")
    assert set(spellings.split()) <= set(options_of(dict(commands())[name]))


def test_brackets_in_help_are_shown() -> None:
    """Unescaped they would be taken for markup, and vanish."""
    from typing import get_args

    from sordino.app.cli._options import _annotated
    from sordino.planning import Option

    _, about = get_args(_annotated(Option("x", int, "one of [a, b]")))
    assert about.help == r"One of \[a, b]."


if __name__ == "__main__":
    HELP.write_text(all_help())
    PAGE.write_text(page())

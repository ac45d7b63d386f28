"""Options of commands that come from tables: one for each option of recipes, and ``--set name=value``.

    @app.command()
    @with_options()
    def plan(recipe: str, *, options: RecipeOptions) -> None: ...

Typer reads a command's signature, so the decorators here write one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, wraps
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.markup import escape

from sordino import planning
from sordino._base.errors import SordinoError
from sordino._base.types import Json
from sordino.app.cli._console import err
from sordino.planning import OPTIONS, Option

F = TypeVar("F", bound=Callable[..., Any])

_SET = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any of the options below by name; schedule.NAME and mechanism.NAME set a field of the "
        "chosen schedule or mechanism. May be repeated.",
        rich_help_panel="Options of the recipe",
    ),
]
_OLD_RECIPE = Annotated[str | None, typer.Option("--method", hidden=True)]


@dataclass(frozen=True)
class RecipeOptions:
    """What was asked of a recipe: by options of the command, and by ``--set``."""

    given: Json = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    def of(self, recipe: str | None, **also: type) -> Json:
        """Options for `sordino.plan`; what this recipe (None: any) does not have is refused.

        `also` are arguments besides that may be set, with their types.
        """
        return planning.read_settings(recipe, self.given, self.texts, also)


def with_options(
    names: Iterable[str] | None = None, *, old_recipe: bool = False
) -> Callable[[F], F]:
    """Append one option for each option of recipes, and ``--set``; the command gets `options`.

    Args:
      names: which; by default all.
      old_recipe: whether ``--method`` is an old name of the command's ``--recipe``.
    """
    table = [OPTIONS[name] for name in (OPTIONS if names is None else names)]
    added = [_keyword("settings", _SET), *(_keyword(o.name, _annotated(o)) for o in table)]
    if old_recipe:
        added.append(_keyword("method", _OLD_RECIPE))

    def gather(values: Json) -> RecipeOptions:
        texts = tuple(values.pop("settings") or ())
        if old_recipe and (old := values.pop("method")) is not None:
            if values["recipe"] != "auto":
                raise SordinoError("give --recipe only; --method is its old name")
            err().print("note: --method is called --recipe now", style="dim")
            values["recipe"] = old
        asked = {option.name: values.pop(option.name) for option in table}
        return RecipeOptions({k: v for k, v in asked.items() if v is not None}, texts)

    return lambda command: _extended(command, "options", added, gather)


def with_fields(cls: type, name: str) -> Callable[[F], F]:
    """Append an option for each annotated field of a dataclass; the command gets one of it as `name`."""
    hints = get_type_hints(cls, include_extras=True)
    added = [
        _keyword(
            one.name, hints[one.name], Parameter.empty if one.default is MISSING else one.default
        )
        for one in fields(cls)
    ]

    def gather(values: Json) -> object:
        return cls(**{one.name: values.pop(one.name) for one in fields(cls)})

    return lambda command: _extended(command, name, added, gather)


@cache
def _annotated(option: Option) -> object:
    limits = (option.low, option.high)
    within = "" if None in limits else f", from {option.low:g} to {option.high:g}"
    # Brackets would be taken for markup, and vanish.
    text = escape(option.described() + within)
    about = typer.Option(
        option.flag, help=f"{text[0].upper()}{text[1:]}.", rich_help_panel=option.panel
    )
    return Annotated[option.type | None, about]


def _keyword(name: str, annotation: object, default: object = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _extended(
    command: F, name: str, added: Sequence[Parameter], gather: Callable[[Json], object]
) -> F:
    """`command` with the parameters `added` in the place of `name`, for which they are gathered."""
    # Resolved here: Typer takes annotations that are still text for those of arguments.
    hints = get_type_hints(command, include_extras=True)
    own = [
        one.replace(annotation=hints[one.name])
        for one in signature(command).parameters.values()
        if one.name != name
    ]

    @wraps(command)
    def run(*arguments: object, **values: object) -> object:
        gathered = gather(values)
        return command(*arguments, **values, **{name: gathered})

    everything = [*own, *added]
    run.__signature__ = signature(command).replace(parameters=everything)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in everything} | {"return": None}
    del run.__wrapped__
    return run  # type: ignore[return-value]

"""Options as people type them: ``name=value``, and ``schedule.ratio=1.8`` for a field of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Union, get_args, get_origin

from sordino._base.errors import SordinoError, shown
from sordino.planning._options import OPTIONS, OptionValue, parse_as
from sordino.planning.recipes import COMMON_OPTIONS, is_field, recipe_named


def read_settings(
    recipe: str | None,
    given: Mapping[str, object],
    texts: Sequence[str],
    also: Mapping[str, type] = MappingProxyType({}),
) -> dict[str, object]:
    """`given`, and each ``name=value`` of `texts` by its type: options for `sordino.plan`.

    Without a recipe they may be options of any, for `sordino.compare_recipes`. `also` are other
    names that may be set, with their types.

    >>> read_settings("dp-gd", {"schedule": "gd-pl"}, ["schedule.gamma=.9"])
    {'schedule': 'gd-pl', 'schedule.gamma': 0.9}
    """
    spec = None if recipe is None else recipe_named(recipe)
    result, fields = dict(given), {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SordinoError(f"--set takes name=value, not {shown(text)}")
        if name in result or name in fields:
            raise SordinoError(f"{name} is set twice")
        if name in also:
            result[name] = parse_as(name, also[name], value)
        elif is_field(name) and (spec is None or name.partition(".")[0] in spec.option_names()):
            fields[name] = value
        elif spec is not None and name not in spec.option_names():
            raise spec.unknown(name)
        else:
            option = OPTIONS[name] if spec is None else spec.option(name)
            result[name] = option.parse(value)
    chosen = {**(COMMON_OPTIONS if spec is None else spec.defaults()), **result}
    for name, value in fields.items():
        part, _, field = name.partition(".")
        result[name] = _parsed(name, _types(part, chosen[part]).get(field), value)
    return result


def _types(part: str, name: str) -> dict[str, object]:
    """The fields of a part, and what their values are."""
    if part == "mechanism":
        from sordino.parts.mechanisms import mechanism_fields

        return mechanism_fields(name)
    from sordino.parts.schedules import schedule_fields

    return {"file": str, **schedule_fields(name)}


def _parsed(name: str, kind: object, text: str) -> OptionValue:
    """A field's value; one that nobody knows stays for the part itself to refuse."""
    optional = get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)
    if optional:
        kind = next(one for one in get_args(kind) if one is not NoneType)
    return parse_as(name, kind, text, optional=optional or kind is None)

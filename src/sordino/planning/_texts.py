"""Options as people type them: ``name=value``, and ``schedule.ratio=1.8`` for a field of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from sordino._base.errors import SordinoError, shown
from sordino.planning._options import parse_as
from sordino.planning.recipes import PARTS, recipe_named


def read_settings(recipe: str, given: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """`given`, and each ``name=value`` of `texts` by its type: options for `sordino.plan`.

    >>> read_settings("dp-gd", {"schedule": "gd-pl"}, ["schedule.gamma=.9"])
    {'schedule': 'gd-pl', 'schedule.gamma': 0.9}
    """
    spec = recipe_named(recipe)
    offered = spec.option_names()
    result, fields = dict(given), {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SordinoError(f"--set takes name=value, not {shown(text)}")
        if name in result or name in fields:
            raise SordinoError(f"{name} is set twice")
        part, _, field = name.partition(".")
        if field and part in PARTS and part in offered:
            fields[name] = value
        elif name in offered:
            result[name] = spec.option(name).parse(value)
        else:
            raise spec.unknown(name)
    chosen = {**spec.defaults(), **result}
    for name, value in fields.items():
        part, _, field = name.partition(".")
        result[name] = _parsed(name, _types(part, chosen[part]).get(field), value)
    return result


def _types(part: str, name: str) -> dict[str, Any]:
    """The fields of a part, and what their values are."""
    if part == "mechanism":
        from sordino.parts.mechanisms import mechanism_fields

        return mechanism_fields(name)
    from sordino.parts.schedules import schedule_fields

    return {"file": str, **schedule_fields(name)}


def _parsed(name: str, kind: Any, text: str) -> Any:
    """A field's value; one that nobody knows stays for the part itself to refuse."""
    optional = get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)
    if optional:
        kind = next(one for one in get_args(kind) if one is not NoneType)
    return parse_as(name, kind, text, optional=optional or kind is None)

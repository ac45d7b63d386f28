"""Names that are imported when they are first used, so that importing a room stays light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, file: str, public: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``.

    What it has is what its ``if TYPE_CHECKING:`` block imports: written once, for type checkers and for
    here. ``__all__`` lists the public part of it; the rest is for other rooms of Sordino.

    Args:
      package: its ``__name__``.
      file: its ``__file__``.
      public: its ``__all__``.
    """

    def get(name: str) -> Any:
        where = _imports(file)
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = where[name]
        if module == package:
            value = import_module(f"{package}.{name}")
        else:
            value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(public)

    return get, names


@cache
def _imports(file: str) -> dict[str, str]:
    """From each name that a module imports under ``if TYPE_CHECKING:`` to where it comes from.

    Read when a name is first asked for: many rooms are imported whose names are not needed.
    """
    where: dict[str, str] = {}
    for node in ast.parse(Path(file).read_bytes()).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            for line in node.body:
                if isinstance(line, ast.ImportFrom) and line.module is not None:
                    where.update({name.asname or name.name: line.module for name in line.names})
    return where

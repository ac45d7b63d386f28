"""The workshop uses Sordino as everybody does: by public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The one public module that is no door (`tests/test_house.py`).
PUBLIC = ("sordino.planning.recipes",)


def imported() -> Iterator[tuple[str, str]]:
    """(module, name) of all that the workshop, without its tests, imports from Sordino."""
    for path in sorted(ROOT.rglob("*.py")):
        if "tests" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "sordino":
                yield from ((str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("sordino."):
                        yield alias.name, ""


def private() -> set[str]:
    """What it imports that is in no ``__all__``."""
    return {
        f"{module}.{name}".rstrip(".")
        for module, name in imported()
        if name not in getattr(import_module(module), "__all__", ()) and module not in PUBLIC
    }


# How many names each room lends to the workshop that are not public. They may only become fewer: what a
# benchmark needs, a user may need too, and then it belongs into an `__all__`.
LENT = {
    "_base": 11,
    "app": 4,
    "engine": 9,
    "parts": 14,
    "privacy": 13,
    "report": 4,
    "together": 12,
}


def test_the_workshop_imports_public_names() -> None:
    found = private()
    for room in {name.split(".")[1] for name in found}:
        lent = sorted(name for name in found if name.split(".")[1] == room)
        assert len(lent) <= LENT.get(room, 0), f"not in an __all__: {lent}"


def test_private_modules_are_not_opened_but_for_the_foundation() -> None:
    wrong = [
        name
        for name in private()
        if any(part.startswith("_") for part in name.split(".")[:-1]) and "._base." not in name
    ]
    assert not wrong, wrong

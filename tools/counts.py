"""The size of the house, and limits that keep it.

    python tools/counts.py            the figures, one in a line
    python tools/counts.py check      the same; ends with an error if a limit is exceeded
    python tools/counts.py --json     the figures for a program

Read from the source alone; nothing is imported. An annotation counts as `Any` if the word occurs in it.
Of tests, functions and methods are counted, not their parameters (`pytest --collect-only` counts those).
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "sordino"
TESTS = (ROOT / "tests", ROOT / "benchmarks" / "tests")


@dataclass(frozen=True)
class Limit:
    """What a figure may be. `goal` is where it should go; only `least` and `most` are enforced."""

    least: float = 0
    most: float = float("inf")
    goal: str = ""


# Of code, what it was when the limit was set, with a little air: they follow an improvement, never a
# decline. Of tests, what 0.5.1 had.
LIMITS = {
    "files": Limit(most=240, goal="215 without persons and raw tables"),
    "lines": Limit(most=61_500, goal="40,500"),
    "longest file": Limit(most=640),
    "imports inside functions": Limit(most=120),
    "Any, % of annotations": Limit(most=8),
    "class names that mean two things": Limit(most=0),
    "test functions": Limit(least=1_950),
    "asserts in tests": Limit(least=4_770),
    "pytest.raises in tests": Limit(least=805),
}


def parsed(folders: Iterable[Path]) -> Iterator[tuple[Path, str, ast.Module]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
            text = path.read_text(encoding="utf-8")
            yield path, text, ast.parse(text)


def annotated(tree: ast.AST) -> Iterator[ast.expr]:
    """Of arguments, results and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            yield node.returns


def inner_imports(tree: ast.AST) -> set[ast.AST]:
    """Import statements in the body of a function, however deep."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }


def counts() -> dict[str, float]:
    code = list(parsed([PACKAGE]))
    lines = [text.count("\n") for _, text, _ in code]
    all_annotations = [one for _, _, tree in code for one in annotated(tree)]
    vague = sum("Any" in {getattr(n, "id", "") for n in ast.walk(one)} for one in all_annotations)
    classes: dict[str, set[Path]] = defaultdict(set)
    for path, _, tree in code:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(path)
    for name, where in sorted(classes.items()):
        if len(where) > 1:
            places = ", ".join(path.relative_to(PACKAGE).as_posix() for path in sorted(where))
            print(f"{name} is a class of {places}", file=sys.stderr)
    tests = list(parsed(TESTS))
    nodes = [node for _, _, tree in tests for node in ast.walk(tree)]
    return {
        "files": len(code),
        "lines": sum(lines),
        "longest file": max(lines),
        "imports inside functions": sum(len(inner_imports(tree)) for _, _, tree in code),
        "Any, % of annotations": round(100 * vague / len(all_annotations), 1),
        "class names that mean two things": sum(len(where) > 1 for where in classes.values()),
        "test functions": sum(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in nodes
        ),
        "asserts in tests": sum(isinstance(node, ast.Assert) for node in nodes),
        "pytest.raises in tests": sum(
            isinstance(node, ast.Attribute) and node.attr == "raises" for node in nodes
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The size of the house.")
    parser.add_argument("what", nargs="?", choices=["show", "check"], default="show")
    parser.add_argument("--json", action="store_true", help="as JSON")
    given = parser.parse_args()
    found = counts()
    if given.json:
        print(json.dumps(found, indent=1))
    wrong = []
    for name, value in found.items():
        limit = LIMITS[name]
        if "test" in name and not TESTS[1].is_dir():
            limit = Limit()  # a source archive, without the workshop and its tests
        if not given.json:
            print(f"{name:34} {value:>9,}" + (f"   (goal: {limit.goal})" if limit.goal else ""))
        if not limit.least <= value <= limit.most:
            bound = f"at most {limit.most:,}" if value > limit.most else f"at least {limit.least:,}"
            wrong.append(f"{name}: {value:,}, but {bound} is allowed")
    if given.what == "check" and wrong:
        sys.exit("\n".join(["counts:", *wrong]))


if __name__ == "__main__":
    main()

"""Killed at every write: never a half-written file, and the old one survives.

The tests fork, so they run in a process of their own that has loaded neither jax nor threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

FILES = """
import sys, tempfile
from pathlib import Path
from sordino._base.files import write_atomically
from tests.robustness.killing import DIED, die_at, points

OLD, NEW = b"old " * 5000, b"new " * 7000
def check(before, seen):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.json"
        def work(): write_atomically(path, NEW)
        def reset():
            for entry in Path(folder).iterdir(): entry.unlink()
            if before is not None: path.write_bytes(before)
        reset()
        total = points(work)
        for point in range(total):
            reset()
            assert die_at(point, work) == DIED, point
            found = path.read_bytes() if path.exists() else None
            assert found in (before, NEW), (point, found and found[:20])
            seen.add(found)
        reset()
        assert die_at(total, work) == 0
        assert path.read_bytes() == NEW and len(list(Path(folder).iterdir())) == 1
    return total
seen = set()
print(check(OLD, seen), check(None, seen))
assert seen == {OLD, NEW, None}  # some died before, some after
"""

FOLDERS = """
import sys, tempfile, shutil
from pathlib import Path
import sordino._base.files, sordino.app.cli._output as output
from sordino._base.files import write_atomically
from sordino.app.cli._output import staged_folder
from tests.robustness.killing import DIED, die_at, points

if "--no-exchange" in sys.argv:
    output.exchange = lambda one, other: False
NAMES = ("model.npz", "plan.json", "guarantee.json", "report.html")
def contents(folder):
    return {entry.name: entry.read_text() for entry in folder.iterdir()} if folder.exists() else None
def run(path, word):
    with staged_folder(path, force=True) as staging:
        for name in NAMES: write_atomically(staging / name, word * 3000)
def whole(word): return {name: word * 3000 for name in NAMES}
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "out"
    for before in (None, whole("old ")):
        def reset():
            shutil.rmtree(folder); Path(folder).mkdir()
            if before is not None: run(path, "old ")
        def work(): run(path, "new ")
        reset()
        total, seen = points(work), []
        for point in range(total):
            reset()
            assert die_at(point, work) == DIED, point
            found = contents(path)
            if found is None and before is not None:
                # Only where folders cannot be exchanged: the next run brings the old one back.
                assert "--no-exchange" in sys.argv, point
                try:
                    with staged_folder(path, force=True): raise KeyboardInterrupt
                except KeyboardInterrupt: pass
                found = contents(path)
            assert found in (before, whole("new ")), (point, found and sorted(found))
            seen.append(found)
            run(path, "next ")  # nothing left behind stands in the way, or stays
            assert contents(path) == whole("next ")
            assert [entry.name for entry in Path(folder).iterdir()] == ["out"], point
        assert before in seen and whole("new ") in seen
        print(total)
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_file_is_whole_wherever_its_writer_dies() -> None:
    with_old, without = (int(number) for number in run(FILES).split())
    assert min(with_old, without) >= 8  # open, write, sync, rename: before, within and after


@pytest.mark.parametrize("options", [[], ["--no-exchange"]], ids=["exchange", "two renames"])
def test_a_runs_folder_is_whole_wherever_its_writer_dies(options: list[str]) -> None:
    new, replaced = (int(number) for number in run(FOLDERS, *options).split())
    assert min(new, replaced) >= 40

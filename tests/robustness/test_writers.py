"""Full disks, folders that cannot be written to, several writers at once, clocks that go back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.app.cli._output import staged_folder

ROOT = Path(__file__).parent.parent.parent
OLD = "what was there before"


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, erred = process.communicate()
    return process.returncode, said, erred


FULL_DISK = """
import resource, sys
from pathlib import Path
from sordino._base.files import write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_atomically(Path(sys.argv[1]), b"x" * 10_000)
except OSError as error:
    print(error.filename)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits on file sizes")
def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(OLD)
    code, said, erred = finish(start(FULL_DISK, path))
    assert (code, said.strip()) == (0, str(path)), erred
    assert path.read_text() == OLD
    assert os.listdir(tmp_path) == [path.name]


FULL_DISK_RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from sordino.app.cli import _main as main, _released as predict
from sordino._base.files import write_atomically
from pathlib import Path
import typer
app = typer.Typer(cls=main.CommandGroup, pretty_exceptions_enable=False)
@app.command()
def write(path: Path) -> None:
    write_atomically(path, b"x" * 10_000)
@app.command()
def other() -> None: ...
app(["write", sys.argv[1]])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits on file sizes")
def test_a_full_disk_is_one_line_in_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code, _, erred = finish(start(FULL_DISK_RUN, path))
    assert code == 2
    assert len(erred.splitlines()) == 1
    assert str(path) in erred
    assert "Traceback" not in erred


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_a_write_that_fails_late_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small writes fail only when they are flushed."""
    real = os.open

    def full(path: object, *rest: int) -> int:
        handle = real(path, *rest)  # type: ignore[arg-type]
        return os.dup2(real("/dev/full", os.O_WRONLY), handle)

    path = tmp_path / "plan.json"
    path.write_text(OLD)
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match=r"plan\.json"):
        write_atomically(path, "new")
    monkeypatch.undo()
    assert path.read_text() == OLD
    assert os.listdir(tmp_path) == [path.name]


def test_a_place_that_cannot_be_written_to_is_found_out_before_the_run(tmp_path: Path) -> None:
    """A file in place of a folder stops even the superuser, whom permissions do not."""
    (tmp_path / "file").write_text(OLD)
    began = []
    with pytest.raises(OSError), staged_folder(tmp_path / "file" / "out", force=False):
        began.append("the run")
    assert not began
    assert (tmp_path / "file").read_text() == OLD
    with pytest.raises(OSError):
        write_atomically(tmp_path / "file" / "plan.json", "new")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not stop the superuser"
)
def test_a_read_only_folder(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(OLD)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match=r"plan\.json"):
            write_atomically(path, "new")
        with pytest.raises(PermissionError), staged_folder(tmp_path / "out", force=False):
            pytest.fail("the run began")
    finally:
        tmp_path.chmod(0o700)
    assert path.read_text() == OLD


def test_permissions_follow_the_users_mask(tmp_path: Path) -> None:
    """Predictions about people are not for everybody if the user says so."""
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "private", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o077 == 0


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    write_atomically(path, "x")
    assert os.listdir(tmp_path) == [path.name]


MANY_WRITERS = """
import sys
from pathlib import Path
from sordino._base.files import write_atomically
word = sys.argv[2]
input()
for _ in range(150):
    write_atomically(Path(sys.argv[1]), word * 20_000)
"""


def test_several_writers_of_one_file_leave_one_of_their_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ("alpha ", "beta ", "gamma ")
    path.write_text(words[0] * 20_000)
    writers = [start(MANY_WRITERS, path, word) for word in words]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    whole = {word * 20_000 for word in words}
    looked = 0
    while any(writer.poll() is None for writer in writers):
        assert path.read_text() in whole
        looked += 1
    assert [finish(writer)[0] for writer in writers] == [0] * len(writers)
    assert looked > 0
    assert path.read_text() in whole
    assert os.listdir(tmp_path) == [path.name]


HOLD = """
import sys
from pathlib import Path
from sordino.app.cli._output import staged_folder
with staged_folder(Path(sys.argv[1]), force=True) as staging:
    (staging / "plan.json").write_text(sys.argv[2])
    print("holding", flush=True)
    input()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_second_run_into_one_folder_is_refused_before_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first = start(HOLD, path, "first")
    assert first.stdout is not None
    assert first.stdout.readline() == "holding\n"
    with (
        pytest.raises(SordinoError, match="another run is writing to"),
        staged_folder(path, force=True),
    ):
        pytest.fail("the second run began")
    assert not path.exists()
    first.communicate("\n")
    assert first.returncode == 0
    assert (path / "plan.json").read_text() == "first"
    with staged_folder(path, force=True) as staging:
        (staging / "plan.json").write_text("second")
    assert (path / "plan.json").read_text() == "second"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_killed_run_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "out"
    first = start(HOLD, path, "first")
    assert first.stdout is not None
    first.stdout.readline()
    first.kill()
    first.communicate()
    assert not path.exists()
    with staged_folder(path, force=False) as staging:
        (staging / "plan.json").write_text("second")
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_run_paid_for_is_kept_when_its_place_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "out"

    def run() -> None:
        with staged_folder(path, force=False) as staging:
            (staging / "plan.json").write_text("paid for")
            path.mkdir()
            (path / "other").write_text(OLD)

    with pytest.raises(SordinoError, match="its files are in") as caught:
        run()
    assert (path / "other").read_text() == OLD
    (kept,) = (entry for entry in tmp_path.iterdir() if entry != path)
    assert str(kept) in str(caught.value)
    assert (kept / "plan.json").read_text() == "paid for"

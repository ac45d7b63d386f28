"""A run's folder: all of it appears at once, or none."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sordino._base.errors import SordinoError
from sordino._base.files import swap, sync_folder

MODEL, PLAN, SCHEMA, REPORT, GUARANTEE = (
    "model.npz",
    "plan.json",
    "schema.json",
    "report.html",
    "guarantee.json",
)
# Answers about a table, where the run asked for them.
PREPROCESSING, EVALUATION = "preprocessing.json", "evaluation.json"
_OR_REPLACE = ", or replace it (--force, or force=True)"
FILES = (MODEL, PLAN, SCHEMA, REPORT, PREPROCESSING, EVALUATION, GUARANTEE)


@contextmanager
def staged_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write into that takes the place of `path` when all went well.

    Made before the run, so that a place that cannot be written to is found out at no cost. An
    existing `path` is replaced only with `force`, and only if it holds nothing but a run's files.
    While it lasts nobody else can stage a folder for `path`; one that was left behind by a killed
    process is removed.
    """
    check_free(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _only_writer(path):
        _clear_up_after_the_dead(path)
        staging = path.with_name(f"{_hidden(path)}.{secrets.token_hex(6)}{_STAGED}")
        staging.mkdir()
        try:
            yield staging
            sync_folder(staging)
            _put_in_place(staging, path, force=force)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


# Folders that are being written, and ones that were just replaced, beside the one they are for.
_STAGED, _RETIRED, _LOCK = ".staged", ".retired", ".lock"


def _hidden(path: Path) -> str:
    return f".{path.name[:40]}"


def _put_in_place(staging: Path, path: Path, *, force: bool) -> None:
    try:
        if not path.exists():
            os.rename(staging, path)
        elif not force:
            raise FileExistsError
        elif not swap(staging, path):
            retired = staging.with_suffix(_RETIRED)
            os.rename(path, retired)
            os.rename(staging, path)
            shutil.rmtree(retired, ignore_errors=True)
    except OSError:
        # The budget is spent: what it paid for must not be lost because of a name.
        kept = path.with_name(f"{path.name}-{secrets.token_hex(3)}")
        os.rename(staging, kept)
        raise SordinoError(
            f"{str(path)!r} was written by somebody else while the run went on; its files are in "
            f"{str(kept)!r} instead"
        ) from None
    sync_folder(path.parent)


def _clear_up_after_the_dead(path: Path) -> None:
    """What killed processes left: only the holder of the lock may call this."""
    for left in path.parent.glob(f"{glob.escape(_hidden(path))}.*{_RETIRED}"):
        if not path.exists():
            os.rename(left, path)  # killed between the two renames: the old folder comes back
    for suffix in (_STAGED, _RETIRED):
        for left in path.parent.glob(f"{glob.escape(_hidden(path))}.*{suffix}"):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """Refuse to go on while another process stages a folder for `path`.

    The operating system drops the lock when its holder dies. Where it has no such locks there is
    none, and the last one to finish is told so.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = path.with_name(f"{_hidden(path)}{_LOCK}")
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise SordinoError(
                f"another run is writing to {str(path)!r}; wait for it, or choose another folder"
            ) from None
        except OSError:
            break  # a file system without locks
        if _is_same_file(handle, lock):
            break
        os.close(handle)  # its last holder removed it in the meantime
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def check_free(path: Path, *, force: bool) -> None:
    """Refuse an output folder that exists already, or that holds other things than a run."""
    if not path.exists() and not path.is_symlink():
        return
    if not force:
        raise SordinoError(f"{str(path)!r} exists already; choose another folder{_OR_REPLACE}")
    if not path.is_dir() or path.is_symlink():
        raise SordinoError(f"{str(path)!r} is not a folder; choose another place")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in FILES)
    if others:
        raise SordinoError(
            f"{str(path)!r} holds other files, such as {others[0]!r}, and is not replaced; choose "
            "another folder"
        )

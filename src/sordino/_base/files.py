"""Files: written so that a reader never sees half of one, unpacked within bounds; and where caches are.

The guarantees of `write_atomically`, and how they are tested, are in docs/robustness.md.
"""

from __future__ import annotations

import bz2
import ctypes
import glob
import gzip
import lzma
import os
import re
import secrets
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sordino._base.errors import SordinoError, one_line

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# A packed file may unpack to this much in any case, and to so many times its own size. Data that are
# worth packing stay far below; a few kilobytes that become gigabytes are an attack or a mistake.
UNPACKED_FREELY = 128 << 20
LARGEST_RATIO = 250
# Enough for every preset of xz; what a file asks for is not to be trusted.
_XZ_MEMORY = 256 << 20
_CHUNK = 1 << 18
_TEMPORARY = ".tmp"
# What `write_beside` makes, and what versions before 0.5.1 made for new keys.
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{12}\.tmp|\.new-[a-z0-9_]{8}")


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write `content` to `path` so that it is there in full or not at all.

    It goes to a temporary file beside `path`, is synced to disk, and renamed into place. Whatever
    happens before that (a full disk, a killed process, a lost machine) leaves the old file as it was.

    Args:
      mode: permissions of the file, less what the process's umask takes away.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        write_beside(path, data, lambda temporary: os.replace(temporary, path), mode=mode)
    except OSError as error:
        # A failed write does not say which file; people need to know.
        raise type(error)(error.errno, error.strerror, str(path)) from None


def write_beside(path: Path, data: bytes, place: Callable[[Path], None], *, mode: int) -> None:
    """Write a temporary file beside `path`, synced, and have `place` give it its name.

    The file is locked until then, and by nobody once its process has died: `remove_leftovers` knows by
    that which ones are nobody's any more.
    """
    temporary, handle = _new_temporary(path, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                place(temporary)
        if fcntl is None:  # Windows renames no open file, and deletes none: that is its lock
            place(temporary)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _new_temporary(path: Path, mode: int) -> tuple[Path, int]:
    while True:
        # The name is shortened because it gets longer here, and names have a limit.
        temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}{_TEMPORARY}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        if fcntl is None:
            return temporary, handle
        with suppress(OSError):  # file systems without locks: then nothing is taken for a left-over
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return temporary, handle
        os.close(handle)  # taken for a left-over before it was locked


def remove_leftovers(folder: Path) -> None:
    """Overwrite and remove temporary files in `folder` whose writers have died.

    A killed process leaves what it was writing, and that may be a secret of which the rest of the
    program believes that it is gone. Files that are being written are locked, and stay.
    """
    try:
        names = [name for name in os.listdir(folder) if _LEFTOVER.fullmatch(name)]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            _remove_leftover(Path(folder) / name)


def _remove_leftover(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | _BINARY | getattr(os, "O_NOFOLLOW", 0))
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its writer may have given it its name before the lock was free: then it is a file in use.
            if not os.path.samestat(os.fstat(handle), os.stat(path)):
                return
            path.unlink()
        info = os.fstat(handle)
        # A key has its name from a link: killed just then, its writer has left the key itself here.
        if info.st_nlink == (0 if fcntl is not None else 1):
            os.write(handle, bytes(info.st_size))
            os.fsync(handle)
    finally:
        os.close(handle)
    if fcntl is None:
        path.unlink()


def staging_folder(folder: Path) -> Path:
    """Where this process puts a folder's files together before it has its name."""
    return folder.with_name(f".{folder.name}.new-{os.getpid()}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that becomes `folder` at the end: all of it or nothing.

    Only the user can look into it. What is at `folder` already must be empty.
    """
    if folder.exists() and any(folder.iterdir()):
        raise SordinoError(f"there is something at {str(folder)!r} already; choose a new folder")
    remove_staging(folder)
    staging = staging_folder(folder)
    try:
        staging.mkdir(mode=0o700, parents=True)
        yield staging
        if folder.exists():
            folder.rmdir()
        os.rename(staging, folder)
    except OSError as error:
        raise SordinoError(
            f"{str(folder)!r} cannot be written: {error.strerror or error}"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_staging(folder: Path) -> None:
    """Remove what processes that were killed had put together for `folder`: keys are among it."""
    for left in folder.parent.glob(f".{glob.escape(folder.name)}.new-*"):
        number = left.name.rpartition("-")[2]
        if number.isdecimal() and not _is_running(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # there is no harmless way to ask
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process != os.getpid()  # this one has none yet


def require_private(path: Path, what: str = "the key") -> None:
    """Refuse a secret's file, or a folder of secrets, that others can open; fine if there is none."""
    try:
        info = os.stat(path)
    except OSError:  # whoever reads it says so
        return
    mode = stat.S_IMODE(info.st_mode)
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        folder = stat.S_ISDIR(info.st_mode)
        raise SordinoError(
            f"{what} {str(path)!r} can be {'opened' if folder else 'read'} by others (mode "
            f"{mode:04o}); if nobody has, allow its owner only with chmod {'700' if folder else '600'}"
        )


_BINARY = getattr(os, "O_BINARY", 0)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` last through a loss of power, where the system can."""
    with suppress(
        OSError
    ):  # Windows cannot open folders; some network file systems cannot sync them
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def swap(one: Path, other: Path) -> bool:
    """Swap two paths on one file system in one step; False where the system has no such call."""
    if sys.platform == "linux":
        call, flags = getattr(_libc(), "renameat2", None), 2  # RENAME_EXCHANGE
        arguments: tuple[int | bytes, ...] = (
            -100,
            os.fsencode(one),
            -100,
            os.fsencode(other),
            flags,
        )
    elif sys.platform == "darwin":
        call, flags = getattr(_libc(), "renamex_np", None), 2  # RENAME_SWAP
        arguments = (os.fsencode(one), os.fsencode(other), flags)
    else:
        return False
    if call is None or call(*arguments) != 0:
        return False
    sync_folder(one.parent)
    return True


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def read_unpacked(path: Path) -> bytes:
    """A file's bytes, unpacked as its name says (.gz, .bz2, .xz).

    What it unpacks to is limited in proportion to its size, so that a small file cannot fill the
    memory.
    """
    unpack = _UNPACKERS.get(path.suffix.lower())
    try:
        if unpack is None:
            return path.read_bytes()
        with open(path, "rb") as file:
            return b"".join(_bounded(path, unpack(file)))
    except SordinoError:
        raise
    except OSError as error:
        raise SordinoError(
            f"cannot read {str(path)!r}: {one_line(error.strerror or error)}"
        ) from None
    except (EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise SordinoError(f"cannot read {str(path)!r}: {one_line(error)}") from None


def _bounded(path: Path, pieces: Iterator[bytes]) -> Iterator[bytes]:
    limit = max(UNPACKED_FREELY, LARGEST_RATIO * path.stat().st_size)
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise SordinoError(
                f"{str(path)!r} unpacks to more than {limit:,} bytes, which is out of proportion to "
                "its size; if that is right, unpack it and give the unpacked file"
            )
        yield piece


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        while piece := unpacked.read(_CHUNK):
            yield piece


def _streams(
    new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
) -> Callable[[IO[bytes]], Iterator[bytes]]:
    """An unpacker of one stream after the other, each by a fresh decompressor."""

    def unpack(file: IO[bytes]) -> Iterator[bytes]:
        unpacker, packed = new(), file.read(_CHUNK)
        while True:
            yield unpacker.decompress(packed, _CHUNK)
            packed = b""
            if unpacker.eof:
                packed = unpacker.unused_data.lstrip(b"\0") or file.read(_CHUNK)
                if not packed:
                    return
                unpacker = new()
            elif unpacker.needs_input:
                packed = file.read(_CHUNK)
                if not packed:
                    raise EOFError("the packed data end too early")

    return unpack


_UNPACKERS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".gz": _gunzip,
    ".bz2": _streams(bz2.BZ2Decompressor),
    ".xz": _streams(lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
}
UNPACKED_SUFFIXES = tuple(_UNPACKERS)


def cache_folder(name: str) -> Path | None:
    """The user's folder for one kind of cached files (they hold no data), if it can be had.

    ``$XDG_CACHE_HOME/sordino/name``, or where the platform keeps caches; None where the variable
    SORDINO_CACHE is "off" or the folder cannot be made. Others cannot read it.
    """
    if os.environ.get("SORDINO_CACHE", "").strip().lower() == "off":
        return None
    try:
        folder = _cache_root() / "sordino" / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # no home at all is a RuntimeError
        return None
    return folder


def _cache_root() -> Path:
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home())
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path.home() / ".cache"

"""Files: written so that a reader never sees half of one, unpacked within bounds; and where caches are.

The guarantees of `write_atomically`, and how they are tested, are in docs/robustness.md.
"""

from __future__ import annotations

import bz2
import ctypes
import gzip
import lzma
import os
import secrets
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sordino.errors import SordinoError, one_line

# A packed file may unpack to this much in any case, and to so many times its own size. Data that are
# worth packing stay far below; a few kilobytes that become gigabytes are an attack or a mistake.
UNPACKED_FREELY = 128 << 20
LARGEST_RATIO = 250
# Enough for every preset of xz; what a file asks for is not to be trusted.
_XZ_MEMORY = 256 << 20
_CHUNK = 1 << 18


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write `content` to `path` so that it is there in full or not at all.

    It goes to a temporary file beside `path`, is synced to disk, and renamed into place. Whatever
    happens before that (a full disk, a killed process, a lost machine) leaves the old file as it was.

    Args:
      mode: permissions of the file, less what the process's umask takes away.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    # The name is shortened because it gets longer here, and names have a limit.
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(6)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        # A failed write does not say which file; people need to know.
        raise type(error)(error.errno, error.strerror, str(path)) from None
    sync_folder(path.parent)


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


def exchange(one: Path, other: Path) -> bool:
    """Swap two paths on one file system in one step; False where the system has no such call."""
    call: Any
    if sys.platform == "linux":
        call, flags = getattr(_libc(), "renameat2", None), 2  # RENAME_EXCHANGE
        arguments: tuple[Any, ...] = (-100, os.fsencode(one), -100, os.fsencode(other), flags)
    elif sys.platform == "darwin":
        call, flags = getattr(_libc(), "renamex_np", None), 2  # RENAME_SWAP
        arguments = (os.fsencode(one), os.fsencode(other), flags)
    else:
        return False
    if call is None or call(*arguments) != 0:
        return False
    sync_folder(one.parent)
    return True


def _libc() -> Any:
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


def _streams(new: Callable[[], Any]) -> Callable[[IO[bytes]], Iterator[bytes]]:
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

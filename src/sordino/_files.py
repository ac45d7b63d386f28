"""Writing files so that a reader never sees half of one, and where caches are kept."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a temporary file beside `path`, sync it, and rename it into place."""
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


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

"""JAX's persistent compilation cache, for the command line and the estimators.

A first fit spends most of its time compiling; the cache brings that from about 0.9 s to 0.2 s in
every later process. A cache the user has configured is left alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for compiled programs (they hold no data)."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "sordino" / "compiled"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or str(Path.home())
        return Path(local) / "sordino" / "compiled"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sordino" / "compiled"
    return Path.home() / ".cache" / "sordino" / "compiled"


def use_compilation_cache() -> None:
    """Switch the cache on, unless the user configured one or the folder cannot be made."""
    import jax

    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

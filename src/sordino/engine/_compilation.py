"""JAX's compiled programs on disk, for Sordino's own programs and for no others.

A first fit spends most of its time compiling; programs kept on disk bring that from about 0.9 s to
0.2 s in every later process.

A compiled program holds every constant that its function closes over. Sordino's own programs take
data as arguments and hold none; a user's function may close over a whole table. So programs are
kept only while `compilation_cache` is entered, and only those of the threads that entered it: JAX
itself knows one cache for the whole process. A cache that the user has configured is left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from sordino._base.files import cache_folder

if TYPE_CHECKING:
    from jax._src.compilation_cache_interface import CacheInterface
    from jax._src.lru_cache import LRUCache

_LOCK = threading.Lock()
_HERE = threading.local()  # how often this thread has entered
_ENTERED = 0  # by all threads together


@contextmanager
def compilation_cache(*, wanted: bool = True) -> Iterator[None]:
    """Keep the programs that this thread compiles meanwhile on disk; they must hold no data.

    Nothing is kept where the user configured a cache or switched caching off, where there is no
    folder for it, where JAX has other insides than are known here, or unless `wanted`.
    """
    jax_config = _enter() if wanted else None
    if jax_config is None:
        yield
        return
    try:
        with ExitStack() as stack:
            # Both only for this thread: also programs that were compiled quickly are kept.
            stack.enter_context(jax_config.persistent_cache_min_compile_time_secs(0.0))
            stack.enter_context(jax_config.persistent_cache_min_entry_size_bytes(-1))
            yield
    finally:
        _leave()


def _enter() -> ModuleType | None:
    """Put a cache in JAX's only place for one; its configuration, or None where that cannot be."""
    global _ENTERED
    try:
        from jax._src import compilation_cache as place
        from jax._src import config
        from jax._src.compilation_cache_interface import CacheInterface
        from jax._src.lru_cache import LRUCache

        # Looked up here, so that a JAX without them is found out before anything is changed.
        _ = config.persistent_cache_min_compile_time_secs
        _ = config.persistent_cache_min_entry_size_bytes
        with _LOCK:
            if not _ENTERED:
                folder = None if _is_configured(place, config) else cache_folder("compiled")
                if folder is None:
                    return None
                files = LRUCache(str(folder), max_size=-1)
                with place._cache_initialized_mutex:
                    place._cache, place._cache_initialized = _gated(CacheInterface, files), True
            _ENTERED += 1
            _HERE.times = getattr(_HERE, "times", 0) + 1
    except (ImportError, AttributeError, TypeError, OSError, RuntimeError):
        return None
    return config


def _leave() -> None:
    """Take the cache out again when the last one leaves, so that JAX is as it was."""
    global _ENTERED
    from jax._src import compilation_cache as place

    with _LOCK:
        _HERE.times -= 1
        _ENTERED -= 1
        if not _ENTERED:
            with place._cache_initialized_mutex:
                place._cache, place._cache_initialized = None, False


def _is_configured(place: ModuleType, config: ModuleType) -> bool:
    """Whether the user chose a cache, or none."""
    return bool(
        config.compilation_cache_dir.value is not None
        or not config.enable_compilation_cache.value
        or place._cache_initialized
        or place._cache is not None
    )


def _gated(interface: type, files: LRUCache) -> CacheInterface:
    """`files` for the threads that entered; for all others it is empty and keeps nothing."""

    class Gated(interface):  # type: ignore[misc]
        _path = files._path

        def get(self, key: str) -> bytes | None:
            result: bytes | None = files.get(key) if getattr(_HERE, "times", 0) else None
            return result

        def put(self, key: str, value: bytes) -> None:
            if getattr(_HERE, "times", 0):
                files.put(key, value)

    return Gated()

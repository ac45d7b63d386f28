"""Linear algebra on one thread, where its problems are small and come by the thousand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_inside = 0
_limits: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread; also in other threads of the process, until the last of them leaves.

    Threads that wait for each other in every small product cost more than they save: a comparison of all
    recipes took three times the CPU time with two of them, measured on two busy cores.
    """
    global _inside, _limits
    import numpy.linalg  # noqa: F401  limits hold for libraries that are loaded
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits

    with _lock:
        if _inside == 0:
            _limits = threadpool_limits(1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.restore_original_limits()
                _limits = None

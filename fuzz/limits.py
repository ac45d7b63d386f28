"""A limit on memory: what asks for more fails at once instead of taking the machine down."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def limit_memory(extra: int) -> None:
    """Make allocations of much more than `extra` bytes beyond the present ones fail (on Linux)."""
    if sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

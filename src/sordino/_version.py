"""The version, and a digest of the code, which changes more often."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.7.0"


@cache
def code_digest() -> str:
    """Of this package's own source: what an earlier state of it made may not fit this one."""
    total = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()

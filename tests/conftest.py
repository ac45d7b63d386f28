"""Shared by all tests: one thread per process (tests run two processes), caches of their own."""

from __future__ import annotations

import os
import tempfile

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A cache of compiled programs that lives as long as the machine's temporary files.
os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), "sordino-test-cache")

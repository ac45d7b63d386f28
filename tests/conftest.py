"""Shared by all tests: one thread per process (tests run two processes), caches of their own."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # So it is for what a script starts in the background, and what tests start and stop would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# A cache of compiled programs that lives as long as the machine's temporary files.
os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), "sordino-test-cache")


@pytest.fixture
def own_recipes() -> Iterator[None]:
    """Recipes that a test registers are gone after it."""
    from sordino.parts.contributions import CONTRIBUTIONS
    from sordino.planning import RECIPES

    with RECIPES.temporary(), CONTRIBUTIONS.temporary():
        yield


@pytest.fixture(autouse=True)
def _first_fits() -> None:
    """To each test its fits are the first of the process: a second one on the same rows is warned about."""
    if (fits := sys.modules.get("sordino.models._linear")) is not None:
        fits.forget_fits()


@pytest.fixture(scope="session", autouse=True)
def _own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the user's keys; processes that tests start inherit the variable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORDINO_KEYS", str(tmp_path_factory.mktemp("keys") / "sordino"))
        yield

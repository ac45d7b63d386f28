"""What the contract tests share."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def quick_compilation() -> Iterator[None]:
    """Compile with less optimization: most of the time of a tiny run is spent on that."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

"""Shared by tests of whole runs: the process that parties are forked from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.parties.faults import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()

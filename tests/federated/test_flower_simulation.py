"""The same app under Flower's simulation engine. This file is also the program that the test starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from sordino._base.errors import MissingExtraError, SordinoError
from sordino.together.federated.flower import _app as simulation
from sordino.together.federated.flower._app import simulate


class Adder:
    def __init__(self, name: str) -> None:
        self.own = len(name)

    def answer(self, message: bytes) -> bytes:
        return str(int(message) + self.own).encode()


class Summer:
    def __init__(self) -> None:
        self.sums: list[int] = []
        self.values: dict[str, int] = {}

    waits = True

    @property
    def finished(self) -> bool:
        return len(self.sums) == 3

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        return [(n, str(len(self.sums)).encode()) for n in present if n not in self.values]

    def receive(self, client: str, reply: bytes) -> None:
        self.values[client] = int(reply)
        if len(self.values) == 4:
            self.sums.append(sum(self.values.values()))
            self.values = {}

    def missing(self, client: str, reason: str) -> None:
        raise AssertionError(reason)


def test_names_must_be_different() -> None:
    pytest.importorskip("ray")
    with pytest.raises(SordinoError, match="each its own"):
        simulate(Summer(), ["a", "a"], Adder)


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'flwr\[simulation\]'"):
        simulate(Summer(), ["a"], Adder)


@pytest.mark.slow
def test_clients_in_rays_workers(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "FLWR_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [10, 14, 18]


if __name__ == "__main__":
    coordinator = Summer()
    simulate(coordinator, ["a", "bb", "ccc", "dddd"], Adder, workers=2)
    print(json.dumps(coordinator.sums))

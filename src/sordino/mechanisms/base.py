"""Mechanisms: how the noise of the released sums is correlated over time.

A mechanism stands for a lower-triangular encoder ``C`` (steps x steps). The noise added to the
clipped sum of step t is row t of ``std * C^-1 Z`` with Z iid N(0, 1): one fresh draw per step, the
rest is memory of earlier draws. Because C is lower triangular and the noise Gaussian, inputs may
depend on everything released before.

A mechanism states its own privacy: `strategy()` gives the Gram matrix of exactly the (float32)
numbers that `rows` uses, so the noise can never be calibrated to another matrix.

    mechanism = BLT.optimized(workload=heavy_ball(0.9), steps=640, ...)
    state = mechanism.start(d)
    rows, state = mechanism.rows(state, draw, first=0, count=64)     # inside jit

`draw(first, count)` returns iid standard normal rows (see `gaussian.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from sordino.errors import require_choice
from sordino.mechanisms.workloads import Workload
from sordino.privacy.strategy import Strategy
from sordino.privacy.values import ClippedSum, PrivateEstimate

Draw = Callable[[Any, int], jax.Array]
State = Any


class Mechanism(ABC):
    """One way to correlate noise. Subclasses are frozen dataclasses registered as pytrees."""

    kind: ClassVar[str]
    steps: int

    @abstractmethod
    def strategy(self) -> Strategy:
        """The privacy analysis' view of the very numbers `rows` uses."""

    @abstractmethod
    def start(self, d: int) -> State:
        """State before step 0 for vectors of length d (numpy arrays: no device work)."""

    @abstractmethod
    def rows(
        self, state: State, draw: Draw, first: jax.Array | int, count: int
    ) -> tuple[jax.Array, State]:
        """Rows ``first .. first+count-1`` of ``C^-1 Z``, shape (count, d), and the state after."""

    def step_error(self) -> NDArray[np.float64]:
        """Standard deviation of each row of ``C^-1 Z`` (steps,)."""
        return self.workload_error(Workload.identity())

    @abstractmethod
    def workload_error(self, workload: Workload) -> NDArray[np.float64]:
        """Standard deviation of each row of ``W C^-1 Z`` (steps,)."""

    @abstractmethod
    def state_vectors(self) -> int:
        """How many vectors of the model's size the noise state holds."""

    @abstractmethod
    def describe(self) -> str:
        """A short phrase for a plan's page."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data that `mechanism_from_json` reads back bit for bit."""


REGISTRY: dict[str, Callable[[dict[str, Any]], Mechanism]] = {}


def mechanism_from_json(data: dict[str, Any]) -> Mechanism:
    """The mechanism that `to_json` described."""
    kind = require_choice("mechanism", data.get("kind", ""), REGISTRY)
    return REGISTRY[kind](data)


def privatize(total: ClippedSum, noise: Any, divisor: Any) -> PrivateEstimate:
    """``(sum + noise) / divisor``: the only door out of the clipped world.

    `divisor` is a public constant (the planned batch size), never the realised count.
    """
    return PrivateEstimate(jax.tree.map(lambda s, n: (s + n) / divisor, total.value, noise))

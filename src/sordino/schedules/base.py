"""Schedules: how the budget is spread over the steps.

A schedule gives the *relative* noise of each step, fixed before the run from public information. The
plan scales it to the budget; the sensitivity formula takes ``1 / relative noise`` as column weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.errors import require_choice


class Schedule(ABC):
    """One way to spread the budget."""

    kind: ClassVar[str]

    @abstractmethod
    def relative_noise(self, steps: int) -> NDArray[np.float64] | None:
        """Noise standard deviation of each step relative to the plan's, or None for all ones."""

    @abstractmethod
    def describe(self) -> str:
        """A short phrase for a plan's page."""

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class Uniform(Schedule):
    """The same noise in every step."""

    kind: ClassVar[str] = "uniform"

    def relative_noise(self, steps: int) -> None:
        return None

    def describe(self) -> str:
        return "the same noise level in every step"


_SCHEDULES: dict[str, type[Schedule]] = {Uniform.kind: Uniform}


def schedule_from_json(data: dict[str, Any]) -> Schedule:
    """The schedule that `to_json` described."""
    fields = dict(data)
    kind = require_choice("schedule", fields.pop("kind", ""), _SCHEDULES)
    return _SCHEDULES[kind](**fields)

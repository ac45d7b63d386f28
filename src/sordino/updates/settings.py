"""The public settings of a plan's update, and the update they describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import (
    SordinoError,
    require_choice,
    require_fraction,
    require_positive,
)
from sordino.mechanisms.workloads import Workload
from sordino.updates.averaging import TailAveraged
from sordino.updates.base import Update
from sordino.updates.descent import OPTIMIZERS, Descent, Optax, named_transform
from sordino.updates.projection import Projected

LR_SCHEDULES = ("constant", "linear", "cosine")
WORKLOADS = ("auto", "prefix", "momentum")


@dataclass(frozen=True)
class UpdateSettings:
    """How the model moves: none of it touches privacy, all of it touches accuracy."""

    optimizer: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.0
    lr_schedule: str = "constant"
    average: float = 0.0
    radius: float | None = None

    def __post_init__(self) -> None:
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_positive("learning_rate", self.learning_rate)
        require_choice("lr_schedule", self.lr_schedule, LR_SCHEDULES)
        require_fraction("average", self.average, closed=True)
        if self.radius is not None:
            require_positive("radius", self.radius)
        if require_fraction("momentum", self.momentum, closed=True) == 1:
            raise SordinoError("momentum must be less than 1")

    def learning_rates(self, steps: int) -> NDArray[np.float32]:
        """The learning rate of each step (steps,)."""
        left = 1.0 - np.arange(steps) / steps
        shape = {
            "constant": np.ones(steps),
            "linear": left,
            "cosine": 0.5 * (1 - np.cos(np.pi * left)),
        }[self.lr_schedule]
        return np.asarray(self.learning_rate * shape, np.float32)

    def build(self, optimizer: Any | None = None) -> Update:
        """The update itself; `optimizer`, an optax optimizer, replaces the named one."""
        update: Update
        if optimizer is not None:
            update = Optax(optimizer)
        else:
            update = Descent(named_transform(self.optimizer, self.momentum))
        if self.radius is not None:
            update = Projected(update, self.radius)
        return TailAveraged(update, self.average) if self.average else update

    def workload(self, name: str = "auto") -> Workload:
        """The map from released sums to iterates (constant learning rate) that noise is shaped for."""
        require_choice("workload", name, WORKLOADS)
        heavy_ball = self.optimizer == "sgd" and self.momentum > 0
        if name == "auto" and self.optimizer == "normalized":
            return Workload.ema(1 - self.momentum)
        if name == "momentum" or (name == "auto" and heavy_ball):
            return Workload.heavy_ball(self.momentum)
        return Workload.prefix()

    def describe(self) -> str:
        parts = [f"{self.optimizer}, learning rate {self.learning_rate:g} ({self.lr_schedule})"]
        if self.optimizer in ("sgd", "normalized") and self.momentum:
            parts.append(f"momentum {self.momentum:g}")
        if self.radius is not None:
            parts.append(f"projected onto the ball of radius {self.radius:g}")
        if self.average:
            parts.append(f"average of the last {self.average:.0%} of the iterates")
        return ", ".join(parts)

"""What a contender of a comparison of noise schedules does: its settings, for computed and for real runs.

schedule    "uniform"
            "eq-7": influence gamma^(T-t) by the convergence bound of gradient descent
            "exact": the true influence, known for quadratic losses
            "exponential": influence e^(kt), with the given ``k`` or the best one
            "influence": the same with k estimated by a reverse pass through the training loop
rows        what influence is estimated on: "public" (other rows of the same source) or "training"
            (an oracle, not private)
matched     whether the gamma of "eq-7" belongs to the learning rate in use; else it is 1 - mu/M
decay       whether the learning rate falls linearly to 0
tail        the share of the last iterates that is averaged
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sordino._base.errors import known_fields, require_choice, require_fraction

SCHEDULES = ("uniform", "eq-7", "exact", "exponential", "influence")


@dataclass(frozen=True)
class ScheduleMethod:
    """A contender's settings; see the module."""

    schedule: str = "uniform"
    k: float | None = None
    rows: str = "public"
    matched: bool = True
    decay: bool = False
    tail: float = 0.0

    def __post_init__(self) -> None:
        require_choice("schedule", self.schedule, SCHEDULES)
        require_choice("rows", self.rows, ("public", "training"))
        require_fraction("tail", self.tail, closed=True)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ScheduleMethod:
        return cls(**known_fields("a schedule's settings", settings, cls))

    @property
    def post_processed(self) -> bool:
        """Whether it changes what is done with the noisy gradients."""
        return self.decay or self.tail > 0


UNIFORM = ScheduleMethod()

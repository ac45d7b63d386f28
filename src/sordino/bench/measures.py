"""What is measured of a trained model, and how it is written in tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Measure:
    """One column of a table.

    Attributes:
      title: heading, and label of an axis.
      digits: after the point.
      lower: whether less is better.
      varies: whether it depends on the seed; others are facts of the plan.
      timed: whether it is never twice the same, as seconds are; such figures are apart from the page.
    """

    title: str
    digits: int
    lower: bool = True
    varies: bool = True
    timed: bool = False

    def text(self, value: float) -> str:
        """The value as tables show it."""
        return f"{value:,.{self.digits}f}"


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "objective": Measure("test objective", 4),
        "log_loss": Measure("test log-loss", 4),
        "error": Measure("test error, %", 2),
        "accuracy": Measure("test accuracy, %", 2, lower=False),
        "gradient_norm": Measure("gradient norm (training)", 4),
        "passes": Measure("passes (gradients per row)", 1, varies=False),
    }
)

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
        "change": Measure("change against uniform noise, %", 2),
        "train_loss": Measure("final training loss", 5),
        "excess": Measure("training loss above its minimum", 5),
        "best_steps": Measure("steps chosen", 0, varies=False),
        "gradient_random": Measure("gradient norm of a random iterate (training)", 4),
        "estimate_noise": Measure("noise in the momentum estimate, rms", 5, varies=False),
        "estimate_error": Measure("momentum estimate less the gradient of all rows, rms", 5),
        "clipped": Measure("rows with a clipped gradient at the end, %", 1),
        "clipped_differences": Measure("rows whose difference C2 clips, %", 1),
        "passes": Measure("passes (gradients per row)", 1, varies=False),
        "cpu_ms": Measure("CPU ms", 4, timed=True),
        "memory_mb": Measure("peak memory, MB", 0, timed=True),
        "overhead": Measure("times the same without privacy", 2, timed=True),
        "over_sordino": Measure("times Sordino's, in turn", 2, timed=True),
        "gradients": Measure("gradients of single examples", 0, varies=False),
        "state_kb": Measure("state of the noise, kB", 1, varies=False),
    }
)

"""How a measure grows along the axis of a figure of lines: slopes on log-log axes.

A slope of 0 is flat, 1 is linear, 2 quadratic. It is fitted by least squares to the means at each x, and
its standard error follows from how far these lie off the line; with two places there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.lab.measures import MEASURES
from benchmarks.lab.panels import over_x, panels
from benchmarks.lab.results import Results
from sordino import SordinoError

# Fewer places than these make no line.
_LEAST = 2


@dataclass(frozen=True)
class Slope:
    """``log y = slope log x + constant``.

    Attributes:
      error: one standard error of the slope; NaN where two places leave none.
      points: how many places it was fitted to.
      low, high: the range of x.
    """

    slope: float
    error: float
    points: int
    low: float
    high: float

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> Slope:
        """Of positive values at two or more different x."""
        if len(x) != len(y) or len(set(x)) < _LEAST or min(*x, *y) <= 0:
            raise SordinoError("a slope needs positive values at two or more places")
        u, v = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
        u, v = u - u.mean(), v - v.mean()
        spread = float(u @ u)
        slope = float(u @ v) / spread
        rest = v - slope * u
        free = len(x) - 2
        error = math.sqrt(float(rest @ rest) / free / spread) if free else math.nan
        return cls(slope, error, len(x), min(x), max(x))

    def __str__(self) -> str:
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        return f"{self.slope + 0.0:.2f}{error}"


def slopes(results: Results) -> Iterator[tuple[str, str, str, Slope]]:
    """Panel, contender, measure and slope, of every line that has one."""
    for panel in panels(results):
        for contender, pairs in over_x(results, panel).items():
            for name in results.experiment.measures:
                result = [
                    (x, line.estimates[name].mean)
                    for x, line in pairs
                    if x is not None and x > 0 and name in line.estimates
                ]
                result = [(x, y) for x, y in result if math.isfinite(y) and y > 0]
                if len({x for x, _ in result}) >= _LEAST:
                    yield panel, contender, name, Slope.fit(*zip(*result, strict=True))


def slope_rows(results: Results, *, timed: bool) -> tuple[list[str], list[list[str]]]:
    """The slopes as a table: of measures that are timed, or of the others."""
    header = ["panel", "", "measure", "slope ± standard error", "places", "from", "to"]
    rows = [
        [
            panel,
            contender,
            MEASURES[name].title,
            str(slope),
            str(slope.points),
            f"{slope.low:,g}",
            f"{slope.high:,g}",
        ]
        for panel, contender, name, slope in slopes(results)
        if MEASURES[name].timed == timed
    ]
    return header, rows

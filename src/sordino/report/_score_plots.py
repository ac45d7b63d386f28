"""Pictures of how a model does on persons that were held out; only noisy numbers come here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from sordino._base.errors import one_line
from sordino._base.types import Json
from sordino.report._plots import (
    BLUE,
    GREY,
    INK,
    NORMAL,
    VERMILION,
    add_legend,
    name_axes,
    new_figure,
)

ROC, CALIBRATION, ERRORS = "roc", "calibration", "errors"
# After Okabe and Ito; lines differ in their dashes too.
_LINES = (
    (BLUE, "-"),
    (VERMILION, (0, (5, 2))),
    ("#009E73", (0, (1, 1))),
    ("#CC79A7", (0, (5, 1, 1, 1))),
    ("#E69F00", (0, (3, 1, 1, 1, 1, 1))),
    ("#56B4E9", (0, (8, 3))),
)


@dataclass(frozen=True)
class ScoreCurve:
    """A curve with its 95 % interval at each of its places.

    Attributes:
      kind: "roc", "calibration" or "errors".
      name: the class that it is about; empty if it is about all.
    """

    kind: str
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def from_json(cls, data: Json) -> ScoreCurve:
        """From its fields."""
        lines = (tuple(float(value) for value in data[name]) for name in ("x", "y", "low", "high"))
        return cls(str(data["kind"]), str(data["name"]), *lines)


@dataclass(frozen=True)
class EvaluationFacts:
    """What a report shows of an evaluation.

    Attributes:
      persons: how many were held out, in words.
      metrics: (name, text).
      classes: heads of the table of true and predicted classes.
      confusion: (true class, cells).
      each: (class, [AUC, recall]), if there are more than two.
    """

    svg: str
    persons: str
    metrics: list[tuple[str, str]]
    warnings: list[str]
    classes: list[str] = field(default_factory=list)
    confusion: list[tuple[str, list[str]]] = field(default_factory=list)
    each: list[tuple[str, list[str]]] = field(default_factory=list)


def scores_figure(
    curves: Sequence[ScoreCurve], recalls: Sequence[tuple[str, float, float, float]] = ()
) -> Figure:
    """ROC curves with their bands; beside them calibration or, of several classes, each one's recall.

    Args:
      recalls: (class, value, low, high).
    """
    figure, (left, right) = new_figure(2, height=3.6)
    rates = [curve for curve in curves if curve.kind == ROC]
    left.plot([0, 1], [0, 1], color=GREY, linewidth=1.2, linestyle=":", label="chance")
    for (colour, dashes), curve in zip(_LINES, rates, strict=False):
        left.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        left.plot(
            curve.x, curve.y, color=colour, linestyle=dashes, linewidth=2, label=_plain(curve.name)
        )
    name_axes(left, "ROC curve", "false positive rate", "true positive rate")
    _square(left)
    groups = [curve for curve in curves if curve.kind == CALIBRATION]
    if groups:
        _calibration(right, groups[0])
    else:
        _recalls(right, recalls)
    handles, labels = left.get_legend_handles_labels()
    add_legend(figure, handles, labels, columns=max(1, 60 // (8 + max(map(len, labels)))))
    return figure


def errors_figure(curve: ScoreCurve) -> Figure:
    """How many persons have an error of at most x."""
    figure, (axes,) = new_figure(1)
    axes.fill_between(curve.x, curve.low, curve.high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(curve.x, curve.y, color=BLUE, linewidth=2)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0, curve.x[-1])
    name_axes(axes, "Errors on held-out data", "absolute error", "share with at most that error")
    return figure


def _calibration(axes: Axes, curve: ScoreCurve) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.2, linestyle=":")
    ends = [
        [max(0.0, y - low) for y, low in zip(curve.y, curve.low, strict=True)],
        [max(0.0, high - y) for y, high in zip(curve.y, curve.high, strict=True)],
    ]
    axes.errorbar(
        curve.x,
        curve.y,
        yerr=ends,
        color=BLUE,
        marker="o",
        markersize=4.5,
        linewidth=1.2,
        capsize=3,
    )
    name_axes(axes, "Calibration", "predicted probability", "observed share")
    # Rare classes have small probabilities.
    furthest = max(*curve.x, *curve.high)
    _square(axes, next((end for end in (0.1, 0.2, 0.5) if furthest <= end), 1.0))


def _recalls(axes: Axes, recalls: Sequence[tuple[str, float, float, float]]) -> None:
    names = [_plain(name) for name, *_ in recalls]
    for place, (_, value, low, high) in enumerate(recalls):
        axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
        axes.plot([value], [place], "o", color=BLUE, markersize=6)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.tick_params(axis="y", length=0, labelsize=NORMAL)
    axes.grid(False, axis="y")
    name_axes(axes, "Recall by class", "recall", "")


def _square(axes: Axes, end: float = 1.0) -> None:
    axes.set_xlim(-0.02 * end, 1.02 * end)
    axes.set_ylim(-0.02 * end, 1.02 * end)
    axes.set_aspect("equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(end / 4 if end == 1 else end / 5))


def _plain(name: str) -> str:
    """Foreign text on a picture; a dollar sign would begin a formula."""
    return one_line(name, 20).replace("$", r"\$")

"""An experiment as one figure: a panel per population and budget, a dot with error bars per contender."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.lab.experiment import PopulationSpec, TargetBudget
from benchmarks.lab.lines_figure import finish_panel, lines_figure
from benchmarks.lab.measures import MEASURES
from benchmarks.lab.results import Estimate, Line, Results
from sordino.report import BLUE, GREY, INK, VERMILION

_WIDTH, _LEAST, _ROW, _AROUND, _DPI = 5.0, 7.2, 0.27, 1.3, 150
_SMALL, _NORMAL = 8.5, 9.5
# This share of the contenders is shown to scale; of those far behind, the figure is written.
_SHOWN = 0.8
_NOTHING = Estimate(math.nan, math.nan, math.nan)
_PRIVATE: dict[str, Any] = {"color": BLUE, "marker": "o", "markersize": 5, "linestyle": "none"}
_PLAIN: dict[str, Any] = {"color": GREY, "marker": "s", "markersize": 5, "linestyle": "none"}
_PAPER: dict[str, Any] = {"color": VERMILION, "linestyle": (0, (5, 2)), "linewidth": 1.4}
_TARGET: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.4}


def result_figure(results: Results) -> Figure:
    """The figure of a whole experiment."""
    if results.experiment.layout == "lines":
        return lines_figure(results)
    populations = results.populations()
    columns = max(len(results.stages(population)) for population in populations)
    rows = len(populations)
    heights = [
        _AROUND
        + _ROW * max(len(results.table(population, stage)) for stage in results.stages(population))
        for population in populations
    ]
    figure = Figure(
        figsize=(max(_LEAST, _WIDTH * columns), sum(heights)), dpi=_DPI, layout="constrained"
    )
    places = figure.add_gridspec(rows, columns, height_ratios=heights)
    for row, population in enumerate(populations):
        for column, budget in enumerate(results.stages(population)):
            _panel(figure.add_subplot(places[row, column]), results, population, budget)
    _legend(figure, results)
    return figure


def _legend(figure: Figure, results: Results) -> None:
    """One legend below all panels, where it covers nothing."""
    experiment = results.experiment
    handles = [
        Line2D([], [], **_PRIVATE, label="Sordino, mean and 95 % interval"),
        Line2D([], [], **_PLAIN, label="not private"),
    ]
    if experiment.printed:
        handles.append(Line2D([], [], **_PAPER, label="the paper's best private figure"))
    if experiment.targets:
        handles.append(Line2D([], [], **_TARGET, label="target"))
    legend = figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=_NORMAL,
    )
    for text in legend.get_texts():
        text.set_color(INK)


def _panel(
    axes: Any, results: Results, population: PopulationSpec, budget: TargetBudget | None
) -> None:
    experiment = results.experiment
    name, measure = experiment.headline, MEASURES[experiment.headline]
    table = list(reversed(results.table(population, budget)))
    low, high = _limits(results, population, budget, table)
    for place, line in enumerate(table):
        value = line.estimates.get(name, _NOTHING)
        colour = BLUE if line.private else GREY
        if not low <= value.mean <= high:
            edge = high if measure.lower else low
            side = "right" if measure.lower else "left"
            mark = ">" if measure.lower else "<"
            shown = measure.text(value.mean) if math.isfinite(value.mean) else "diverged"
            axes.annotate(
                f"{shown} {mark}" if measure.lower else f"{mark} {shown}",
                (edge, place),
                ha=side,
                va="center",
                fontsize=_SMALL - 1,
                color=colour,
            )
            continue
        half = value.half if math.isfinite(value.half) else 0.0
        style = _PRIVATE if line.private else _PLAIN
        axes.errorbar(value.mean, place, xerr=half, capsize=3, **style)
    _reference_lines(axes, results, population, budget)
    axes.set_yticks(range(len(table)), [_label(line, budget) for line in table], fontsize=_SMALL)
    axes.set_ylim(-0.7, len(table) - 0.3)
    axes.set_xlim(low, high)
    axes.set_xlabel(measure.title, fontsize=_NORMAL, color=INK)
    # On lines of their own: a title does not make its panel wider.
    title = population.name if budget is None else f"{population.name}\n{budget}"
    finish_panel(axes, title, grid="x")


def _reference_lines(
    axes: Any, results: Results, population: PopulationSpec, budget: TargetBudget | None
) -> None:
    """The paper's best private figure, and the target."""
    paper = _paper_best(results, population, budget)
    if paper is not None:
        axes.axvline(paper, **_PAPER)
    for limit in _target_limits(results, population, budget):
        axes.axvline(limit, **_TARGET)


def _target_limits(
    results: Results, population: PopulationSpec, budget: TargetBudget | None
) -> list[float]:
    """What the panel's figures should reach."""
    limits = [
        target.at_most if target.at_most is not None else target.at_least
        for target in results.experiment.targets
        if target.population == population.name
        and target.is_at(budget)
        and target.measure in ("", results.experiment.headline)
    ]
    return [limit for limit in limits if limit is not None]


def _paper_best(
    results: Results, population: PopulationSpec, budget: TargetBudget | None
) -> float | None:
    headline = results.experiment.headline
    result = [
        one.values[headline]
        for one in results.experiment.printed
        if one.population == population.name
        and (one.epsilon is not None or one.mu is not None or budget is None)
        and one.is_at(budget)
        and headline in one.values
    ]
    best = min if MEASURES[headline].lower else max
    return best(result) if result else None


def _limits(
    results: Results, population: PopulationSpec, budget: TargetBudget | None, table: Sequence[Line]
) -> tuple[float, float]:
    """The paper's best figure, targets, and all lines with their bars but those far behind the others."""
    headline = results.experiment.headline
    sign = 1 if MEASURES[headline].lower else -1
    ends = []
    for line in table:
        value = line.estimates.get(headline, _NOTHING)
        if math.isfinite(value.mean):
            half = value.half if math.isfinite(value.half) else 0.0
            ends.append((value.mean - half, value.mean + half))
    ends.sort(key=lambda pair: sign * (pair[0] + pair[1]))
    paper = _paper_best(results, population, budget)
    shown = [end for pair in ends[: math.ceil(_SHOWN * len(ends))] for end in pair]
    shown += [] if paper is None else [paper]
    shown += _target_limits(results, population, budget)
    low, high = min(shown), max(shown)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def _label(line: Line, budget: TargetBudget | None) -> str:
    if (
        line.private
        and budget is not None
        and line.adjacency != budget.adjacency
        and str(line.adjacency) not in line.contender
    ):
        return f"{line.contender} ({line.adjacency})"
    return line.contender

"""Figures for plans, guarantees and results.

    figure = plan_figure(plan)
    figure.savefig("plan.png"); svg = to_svg(figure)

Plain `matplotlib.figure.Figure` objects: no global state, no window, no display. The colours are
those of Okabe and Ito, which colour-blind readers can tell apart; line styles differ as well.
Figures show plans, guarantees and public metrics, never anything computed from private records.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from sordino.planning import Plan
from sordino.privacy import Guarantee
from sordino.report._measure import (
    COVERED,
    NO_PRIVATE_DATA,
    NOT_COVERED,
    ScoreTable,
    independent_counterpart,
    measured_noise,
)

BLUE, VERMILION = "#0072B2", "#D55E00"
# Text and axes; `to_svg` turns it into the colour of the surrounding text, for dark pages.
INK = "#24292f"
GREY = "#8c939b"
POINTS = 500
_COVERAGE = {COVERED: BLUE, NOT_COVERED: VERMILION, NO_PRIVATE_DATA: GREY}
_WIDTH, _HEIGHT, _DPI = 7.2, 3.2, 150
SMALL, NORMAL = 9.5, 10.5

Array = NDArray[np.float64]


def plan_figure(plan: Plan) -> Figure:
    """Noise per step, and predicted noise in the accumulated estimate, for one plan.

    Correlated noise is shown beside independent noise with the same guarantee.
    """
    figure, (left, right) = new_figure(2)
    steps = plan.population.steps
    at = decimated(steps)
    other = independent_counterpart(plan)
    label = "this plan" if other is not None else None
    if other is not None:
        style = {"color": VERMILION, "linestyle": (0, (5, 2)), "label": "independent noise"}
        _line(left, at, other.noise_per_step(), **style)
        _line(right, at, other.error_per_step(), **style)
    _line(left, at, plan.noise_per_step(), color=BLUE, label=label)
    _line(right, at, plan.error_per_step(), color=BLUE, label=label)
    name_axes(left, "Noise in each step", "step", "std per coordinate")
    name_axes(right, "Noise that adds up in the model", "step", "std per coordinate")
    for axes in (left, right):
        axes.set_ylim(0, axes.get_ylim()[1] * 1.1)
        step_ticks(axes)
    if other is not None:
        add_legend(figure, *left.get_legend_handles_labels())
    return figure


def tradeoff_figure(guarantee: Guarantee) -> Figure:
    """All the (epsilon, delta) pairs that one guarantee stands for."""
    figure, (axes,) = new_figure(1)
    deltas = tradeoff_deltas(guarantee)
    epsilons = [guarantee.epsilon(delta) for delta in deltas]
    axes.plot(epsilons, deltas, color=BLUE, linewidth=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    axes.set_xlim(0, max(epsilons) * 1.05)
    hint = guarantee.delta_hint
    if hint is not None:
        epsilon = guarantee.epsilon(hint)
        bottom, left = axes.get_ylim()[0], axes.get_xlim()[0]
        lines = [epsilon, epsilon, left], [bottom, hint, hint]
        axes.plot(*lines, color=GREY, linestyle=":", linewidth=1.2)
        axes.set_ylim(bottom=bottom)
        axes.plot([epsilon], [hint], "o", color=VERMILION, markersize=7)
        # Beside the point on the side with more room.
        late = epsilon > 0.6 * axes.get_xlim()[1]
        axes.annotate(
            f"epsilon {epsilon:.4g} at delta {hint:g}",
            (epsilon, hint),
            xytext=(-10 if late else 10, -14 if late else 6),
            textcoords="offset points",
            ha="right" if late else "left",
            fontsize=NORMAL,
            color=INK,
        )
    name_axes(axes, "One guarantee, many ways to state it", "epsilon", "delta")
    return figure


def tradeoff_deltas(guarantee: Guarantee, points: int = 60) -> list[float]:
    """Deltas for a curve: from one in a trillion, or below the hint, to where epsilon is 0."""
    hint = guarantee.delta_hint
    least = 1e-12 if hint is None else min(1e-12, max(hint / 10, 2e-13))
    most = min(0.1, guarantee.delta(0.0))
    if most <= 10 * least:
        most = 0.1
    deltas = [float(delta) for delta in np.geomspace(least, most, points)]
    # Below what the noise differs from exact noise by, nothing is promised.
    while deltas and math.isinf(guarantee.epsilon(deltas[0])):
        del deltas[0]
    return deltas


def curves_figure(history: Sequence[Mapping[str, float]], *, step: str = "step") -> Figure:
    """Public metrics over the steps of a run, one panel each (at most three).

    Args:
      step: what a step of this run is called.
    """
    names = metric_names(history)[:3]
    figure, panels = new_figure(max(1, len(names)))
    for axes, name in zip(panels, names, strict=False):
        rows = [row for row in history if name in row]
        steps = np.array([row["step"] for row in rows])
        values = np.array([row[name] for row in rows], np.float64)
        keep = decimated(len(rows)) - 1
        axes.plot(steps[keep], values[keep], color=BLUE, linewidth=2, marker="o", markersize=3.5)
        name_axes(axes, f"{_words(name).capitalize()} on public data", step, _words(name))
        step_ticks(axes)
    return figure


def metric_names(history: Sequence[Mapping[str, float]]) -> list[str]:
    """The metrics of a history, in order of appearance."""
    return list(dict.fromkeys(name for row in history for name in row if name != "step"))


def comparison_figure(comparison: ScoreTable) -> Figure:
    """The private result beside others, as bars from zero.

    For rates (accuracy) whiskers show the 95 % interval due to the size of the test set.
    """
    figure, (axes,) = new_figure(1, height=0.9 + 0.5 * len(comparison.rows))
    names = [row.name for row in comparison.rows]
    values = [row.value for row in comparison.rows]
    colours = [_COVERAGE[row.coverage] for row in comparison.rows]
    whiskers = [comparison.whisker(value) for value in values]
    bars = axes.barh(names, values, color=colours, height=0.62)
    if any(whiskers):
        axes.errorbar(
            values, names, xerr=whiskers, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3
        )
    for bar, row in zip(bars, comparison.rows, strict=True):
        if row.coverage == NOT_COVERED:
            bar.set_hatch("///")
            bar.set_edgecolor("#ffffff80")
    room = max((abs(value) for value in values), default=1.0) or 1.0
    for place, (value, whisker) in enumerate(zip(values, whiskers, strict=True)):
        axes.text(
            max(value, 0.0) + whisker + 0.015 * room,
            place,
            f"{value:.3f}" if comparison.is_rate else f"{value:.4g}",
            va="center",
            fontsize=NORMAL,
            color=INK,
        )
    low = min([0.0, *values])
    axes.set_xlim(low * 1.1, room * 1.15)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    name_axes(
        axes, "", f"{_words(comparison.metric)} on {comparison.test_rows:,} public test rows", ""
    )
    return figure


def noise_calibration_figure(plan: Plan, coordinates: int = 400) -> Figure:
    """Predicted noise against noise from the real mechanism code, step by step.

    The noise is drawn with a throwaway public key and has nothing to do with any run's.
    """
    result = measured_noise(plan, coordinates)
    figure, (left, right) = new_figure(2)
    count = len(result.per_step)
    at = decimated(count, 250)
    pairs = (
        (left, plan.noise_per_step(), result.per_step, "Noise in each step"),
        (right, plan.error_per_step(), result.accumulated, "Noise that adds up"),
    )
    # The standard deviation of m normal draws scatters by 1/sqrt(2 m) of itself.
    band = 2 / math.sqrt(2 * coordinates)
    for axes, predicted, measured, title in pairs:
        expected, seen = predicted[at - 1], measured[at - 1]
        axes.fill_between(
            at,
            expected * (1 - band),
            expected * (1 + band),
            color=BLUE,
            alpha=0.18,
            linewidth=0,
            label="chance (95 %)",
        )
        dots: dict[str, Any] = {"color": VERMILION, "alpha": 0.7, "markeredgewidth": 0}
        dots["markersize"] = 6 if count < 40 else 3
        axes.plot(at, seen, "o", label="measured", zorder=3, **dots)
        _line(axes, at, predicted, color=BLUE, label="predicted")
        name_axes(axes, title, "step", "std per coordinate")
        axes.set_ylim(0, float(max(expected.max() * (1 + band), seen.max())) * 1.15)
        step_ticks(axes)
    add_legend(figure, *left.get_legend_handles_labels())
    return figure


def to_svg(figure: Figure, *, label: str = "", prefix: str = "figure") -> str:
    """`figure` as an ``<svg>`` element to put into a page.

    Text is drawn as shapes, so it looks the same everywhere; `label` is read out instead. Give each
    figure of a page its own `prefix`, so that no two elements share an id.
    """
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "sordino"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'\bhref="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-").replace(INK, "currentColor")
    # A dark page may choose a lighter blue.
    text = text.replace(BLUE.lower(), f"var(--plot-blue, {BLUE.lower()})")
    text = re.sub(r'^<svg\b([^>]*?) width="[^"]*"', r"<svg\1", text)
    text = re.sub(r'^<svg\b([^>]*?) height="[^"]*"', r"<svg\1", text)
    name = label.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return re.sub(r"^<svg\b", f'<svg role="img" aria-label="{name}"', text).strip()


def new_figure(panels: int, height: float = _HEIGHT) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.08))
    axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
    for one in axes:
        plain_axes(one)
        one.grid(True, color=GREY, alpha=0.25, linewidth=0.8)
    return figure, axes


def plain_axes(
    axes: Axes, *, size: float = SMALL, sides: Sequence[str] = ("left", "bottom")
) -> None:
    """Ink for what stands beside the axes, nothing around them but the `sides`."""
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=size, colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(INK)


def _line(axes: Axes, at: NDArray[np.int64], values: Array, **style: Any) -> None:
    marker = "o" if len(at) == 1 else ""
    axes.plot(at, values[at - 1], linewidth=2, marker=marker, **style)


def name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    if title:
        axes.set_title(title, fontsize=NORMAL + 0.5, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=NORMAL, color=INK)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK)


def add_legend(
    figure: Figure, handles: Sequence[Artist], labels: Sequence[str], columns: int = 4
) -> None:
    """One legend below all panels, where it can never cover a curve, in as many rows as it needs."""
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(columns, len(labels)),
        frameon=False,
        fontsize=NORMAL,
    )
    for text in legend.get_texts():
        text.set_color(INK)


def step_ticks(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def decimated(steps: int, points: int = POINTS) -> NDArray[np.int64]:
    """Step numbers 1 .. steps, thinned to at most `points`, first and last kept."""
    if steps <= points:
        return np.arange(1, steps + 1)
    return np.unique(np.linspace(1, steps, points).round().astype(np.int64))


def _words(name: str) -> str:
    return name.replace("_", " ")

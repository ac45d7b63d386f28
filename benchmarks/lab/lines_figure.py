"""An experiment as lines over an axis: a panel per group of populations, a line per contender.

A panel that has one place only shows its contenders below each other, by name.
"""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from benchmarks.lab.measures import MEASURES
from benchmarks.lab.panels import axis_title, over_x, panels, place_text
from benchmarks.lab.results import Line, Results
from sordino.report import BLUE, GREY, INK

_WIDTH, _HEIGHT, _DPI, _COLUMNS = 5.2, 3.6, 150, 2
# The height of a line of the legend.
_LINE = 0.17
_SMALL, _NORMAL = 8.5, 9.5
# The better share of contenders is shown to scale if the others would take this much more room.
_SHOWN, _FAR = 0.75, 3.0
# Okabe and Ito's colours, in the order in which they are easiest to tell apart; then other dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MARKERS = "osD^vP*X<>hd"
# More lines than this, and a legend inside a panel would cover some of them.
_FEW = 4
_DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)))
# Over less than this ratio, a logarithmic axis is labelled at even distances, as a linear one is.
_NARROW = 3.0
# Between powers of ten, one over less than such a ratio is labelled at these multiples, too.
_MULTIPLES = ((5.0, (2.0, 3.0, 4.0, 6.0, 8.0)), (100.0, (2.0, 5.0)), (math.inf, ()))


def lines_figure(results: Results) -> Figure:
    """The figure of an experiment whose layout is lines."""
    names = panels(results)
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    contenders = list(dict.fromkeys(line.contender for line in results.lines()))
    styles = {contender: _style(place) for place, contender in enumerate(contenders)}
    handles: dict[str, Any] = {}
    single = {name for name in names if len(names) > 1 and len(_places(results, name)) < 2}
    # Panels with few lines that have little in common get a legend each.
    most = max((len(over_x(results, name)) for name in names if name not in single), default=0)
    own = most <= _FEW and 2 * most < len(contenders)
    below = 0.0 if own else _LINE * math.ceil(len(contenders) / 2)
    figure = Figure(
        figsize=(_WIDTH * columns if columns > 1 else _WIDTH * 1.4, _HEIGHT * rows + below),
        dpi=_DPI,
        layout="constrained",
    )
    for place, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, place + 1)
        if name in single:
            _dots(axes, results, name)
            continue
        drawn = _panel(axes, results, name, styles)
        if own:
            _legend(axes, results, drawn, loc="best")
        handles = drawn | handles  # as in the first panel that has it
    if handles and not own:
        known = {name: handles[name] for name in contenders if name in handles}
        _legend(figure, results, known, loc="outside lower center", ncols=2)
    return figure


def _legend(where: Any, results: Results, handles: dict[str, Any], **options: Any) -> None:
    """The legend of a panel or of the figure."""
    labels = [_label(results, name) for name in handles]
    legend = where.legend(
        list(handles.values()),
        labels,
        fontsize=_SMALL,
        frameon=False,
        handlelength=3.2,  # shorter, and dashes look like lines
        **options,
    )
    for text in legend.get_texts():
        text.set_color(INK)


def _style(place: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "linestyle": _DASHES[place // len(_COLOURS) % len(_DASHES)],
        "markersize": 4.5,
        "linewidth": 1.5,
    }


def _label(results: Results, contender: str) -> str:
    private = any(line.private for line in results.lines() if line.contender == contender)
    return contender if private else f"{contender} (not private)"


def _panel(axes: Any, results: Results, name: str, styles: dict[str, Any]) -> dict[str, Any]:
    experiment = results.experiment
    measure = MEASURES[experiment.headline]
    drawn: dict[str, Any] = {}
    for contender, pairs in over_x(results, name).items():
        result = [
            (x, line) for x, line in pairs if math.isfinite(line.headline(experiment.headline))
        ]
        if not result:
            continue
        style = styles[contender]
        if result[0][0] is None:  # the same wherever one looks
            value = result[0][1].headline(experiment.headline)
            plain = {key: style[key] for key in ("color", "linestyle", "linewidth")}
            drawn[contender] = axes.axhline(value, **plain)
            continue
        drawn[contender] = axes.errorbar(
            [x for x, _ in result],
            [line.headline(experiment.headline) for _, line in result],
            yerr=[_half(line, experiment.headline) for _, line in result],
            capsize=2.5,
            **style,
        )
    limits = None if experiment.y_log else _limits(results, name)
    if limits is not None:
        axes.set_ylim(*limits)
    if experiment.x_log:
        axes.set_xscale("log")
    if experiment.y_log:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis)
    _ticks(axes, results, name)
    axes.set_xlabel(axis_title(results, name), fontsize=_NORMAL, color=INK)
    axes.set_ylabel(measure.title, fontsize=_NORMAL, color=INK)
    finish_panel(axes, name, grid="both")
    return drawn


def _places(results: Results, name: str) -> list[float | None]:
    """The places of its axis at which a panel has figures."""
    return list({x: None for pairs in over_x(results, name).values() for x, _ in pairs})


def _dots(axes: Any, results: Results, name: str) -> None:
    """Contenders below each other, where there is one place and no line to draw."""
    experiment = results.experiment
    rows = [
        (contender, line)
        for contender, pairs in over_x(results, name).items()
        for _, line in pairs
        if math.isfinite(line.headline(experiment.headline))
    ]
    if experiment.y_log:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    for place, (contender, line) in enumerate(reversed(rows)):
        # Inside the panel: labels outside would make all panels of the column narrow.
        axes.annotate(
            _label(results, contender),
            (0.02, place + 0.22),
            xycoords=("axes fraction", "data"),
            fontsize=_SMALL,
            color=INK,
        )
        axes.errorbar(
            line.headline(experiment.headline),
            place,
            xerr=_half(line, experiment.headline),
            capsize=3,
            color=BLUE if line.private else GREY,
            marker="o" if line.private else "s",
            markersize=5,
        )
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(rows) - 0.2)
    places = [x for x in _places(results, name) if x is not None]
    where = [f"{axis_title(results, name)} {place_text(x)}" for x in places]
    title = ", ".join([MEASURES[experiment.headline].title, *where])
    axes.set_xlabel(title, fontsize=_NORMAL, color=INK)
    finish_panel(axes, name, grid="x")


def finish_panel(axes: Any, title: str, *, grid: str) -> None:
    """What all panels have in common; `grid` along "x", or "both"."""
    axes.set_title(title, fontsize=_NORMAL + 0.5, color=INK, loc="left", fontweight="bold")
    axes.grid(True, axis=grid, color=GREY, alpha=0.25, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=_SMALL, which="both", colors=INK)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def _plain_numbers(axis: Any) -> None:
    """Numbers as they are on a logarithmic axis; between powers of ten only where there is room."""

    def between(value: float, place: int | None) -> str:
        low, high = sorted(axis.get_view_interval())
        if high < _NARROW * low:
            return ""
        leading = value / 10.0 ** math.floor(math.log10(value) + 1e-9)
        written = next(multiples for ratio, multiples in _MULTIPLES if high < ratio * low)
        return f"{value:,g}" if any(math.isclose(leading, one) for one in written) else ""

    axis.set_major_locator(_Places())
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,g}"))
    axis.set_minor_formatter(FuncFormatter(between))


class _Places(LogLocator):
    """Powers of ten; where hardly two of them would fit, even distances."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        low, high = sorted((vmin, vmax))
        if low > 0 and high < _NARROW * low:
            return MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        return super().tick_values(vmin, vmax)


def _limits(results: Results, name: str) -> tuple[float, float] | None:
    """Where some lines are so far behind that the others could not be told apart: of the better ones.

    What leaves the panel then stands in the table.
    """
    headline = results.experiment.headline
    sign = 1 if MEASURES[headline].lower else -1
    spans = []
    for pairs in over_x(results, name).values():
        lines = [line for _, line in pairs if math.isfinite(line.headline(headline))]
        if lines:
            means = [line.headline(headline) for line in lines]
            low = min(line.headline(headline) - _half(line, headline) for line in lines)
            high = max(line.headline(headline) + _half(line, headline) for line in lines)
            spans.append((sign * sum(means) / len(means), low, high))
    spans.sort()
    better = spans[: math.ceil(_SHOWN * len(spans))]
    low, high = min(low for _, low, _ in better), max(high for _, _, high in better)
    whole = max(high for _, _, high in spans) - min(low for _, low, _ in spans)
    if whole <= _FAR * (high - low):
        return None
    pad = 0.08 * (high - low)
    return low - pad, high + pad


def _half(line: Line, name: str) -> float:
    half = line.estimates[name].half
    return half if math.isfinite(half) else 0.0


def _ticks(axes: Any, results: Results, name: str) -> None:
    """The places that were measured, where they are few enough to be written."""
    places = sorted(
        {x for pairs in over_x(results, name).values() for x, _ in pairs if x is not None}
    )
    few = not places or places[-1] < 10_000 or results.experiment.x_log
    if len(places) <= 8 and few:
        axes.set_xticks(places, [place_text(x, 3) for x in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif not results.experiment.x_log:
        axes.xaxis.set_major_formatter(ScalarFormatter())

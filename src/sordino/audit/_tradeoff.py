"""Trade-off curves of audits: what an attack did, beside what the claim allows.

    figure = audit_figure([panel_of(result)])
    figure.savefig("audit.svg")

Horizontal: how often an innocent is accused (false positive rate); vertical: how often a member is
missed (false negative rate). No attack may go below the claimed curve. On the diagonal is guessing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from sordino.audit._membership import MembershipReport
from sordino.audit._onerun import OneRunResult
from sordino.audit._statistics import Array, Points, largest_power, proportion
from sordino.audit._whitebox import AuditResult
from sordino.privacy import Guarantee
from sordino.report import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    add_legend,
    name_axes,
    new_figure,
    plain_axes,
)

# Of each whisker; it is for the eye, verdicts have their own.
CONFIDENCE = 0.95
WHISKERS = 12
COLUMNS = 4
# Okabe and Ito's bluish green, for a second attack; its marker differs as well.
GREEN = "#009E73"
_ATTACKS = ((VERMILION, "o"), (GREEN, "s"))


@dataclass(frozen=True)
class Attack:
    """One measured curve: (false positive rate, true positive rate), and the sample sizes."""

    label: str
    points: Points
    negatives: int
    positives: int


@dataclass(frozen=True)
class TradeoffPanel:
    """One panel: a claim and the attacks on it."""

    title: str
    guarantee: Guarantee
    attacks: tuple[Attack, ...]
    changes: int = 1
    exceeded: bool = False


def panel_of(result: AuditResult | OneRunResult | MembershipReport) -> TradeoffPanel:
    """What a figure needs of an audit."""
    if isinstance(result, MembershipReport):
        attacks = tuple(
            Attack(a.name, a.curve, result.others, result.members) for a in result.attacks
        )
        return TradeoffPanel(
            "membership", result.guarantee, attacks, result.changes, exceeded=result.violates
        )
    assert result.guarantee is not None
    sizes = (
        (result.canaries - result.included, result.included)
        if isinstance(result, OneRunResult)
        else (result.runs, result.runs)
    )
    attack = Attack("measured", result.curve, *sizes)
    return TradeoffPanel(result.recipe, result.guarantee, (attack,), exceeded=result.violates)


def audit_figure(panels: Sequence[TradeoffPanel]) -> Figure:
    """One claim twice, on linear and on logarithmic axes; several in a grid, logarithmic."""
    if len(panels) == 1:
        figure, (left, right) = new_figure(2, height=3.6)
        _draw(left, panels[0], logarithmic=False)
        _draw(right, panels[0], logarithmic=True)
        title = f"{panels[0].title}: CLAIM EXCEEDED" if panels[0].exceeded else panels[0].title
        for axes, text in ((left, title), (right, "the same, small error rates")):
            axes.set_title(text, loc="left", fontsize=11, color=INK, fontweight="bold")
        add_legend(figure, *left.get_legend_handles_labels())
        return figure
    rows = math.ceil(len(panels) / COLUMNS)
    figure, _ = new_figure(0, height=2.2 * rows + 0.5)
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, COLUMNS, place + 1)
        plain_axes(axes, size=8)
        axes.grid(True, color=GREY, alpha=0.25, linewidth=0.8)
        _draw(axes, panel, logarithmic=True, small=True)
        title = f"{panel.title}: EXCEEDED" if panel.exceeded else panel.title
        colour = VERMILION if panel.exceeded else INK
        axes.set_title(title, loc="left", fontsize=9, color=colour, fontweight="bold")
        if place % COLUMNS:
            axes.set_ylabel("")
        if place // COLUMNS < rows - 1:
            axes.set_xlabel("")
    add_legend(figure, *figure.axes[0].get_legend_handles_labels())
    return figure


def _draw(axes: Axes, panel: TradeoffPanel, *, logarithmic: bool, small: bool = False) -> None:
    least = _least(panel) if logarithmic else 0.0
    rates = np.geomspace(least, 1, 400) if logarithmic else np.linspace(0, 1, 400)
    missed = 1 - largest_power(panel.guarantee, rates, changes=panel.changes)
    axes.fill_between(rates, np.zeros_like(rates), missed, color=BLUE, alpha=0.12, linewidth=0)
    axes.plot(rates, missed, color=BLUE, linewidth=2, label="claimed: no attack goes below")
    axes.plot(rates, 1 - rates, color=GREY, linewidth=1.2, linestyle=":", label="guessing")
    styles = [_ATTACKS[i % len(_ATTACKS)] for i in range(len(panel.attacks))]
    for attack, (colour, marker) in zip(panel.attacks, styles, strict=True):
        fpr, fnr = _errors(attack, least)
        axes.plot(fpr, fnr, color=colour, linewidth=1, alpha=0.6)
        at = _spread(fpr, fnr, least, 6 if small else WHISKERS)
        axes.errorbar(
            fpr[at],
            fnr[at],
            xerr=_whiskers(fpr[at], attack.negatives),
            yerr=_whiskers(fnr[at], attack.positives),
            fmt=marker,
            color=colour,
            markersize=3 if small else 4.5,
            elinewidth=1,
            capsize=2,
            label=attack.label,
        )
    size = 8 if small else 10.5
    name_axes(axes, "", "false positive rate", "false negative rate")
    axes.xaxis.label.set_fontsize(size)
    axes.yaxis.label.set_fontsize(size)
    if logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(base=10, numticks=6))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set_xlim(least, 1)
        axes.set_ylim(least, 1.1)
    else:
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])


def _errors(attack: Attack, least: float) -> tuple[Array, Array]:
    """False positive and false negative rates, nothing below `least` (where logarithmic axes begin)."""
    points = np.array(attack.points, np.float64)
    return np.maximum(points[:, 0], least), np.maximum(1 - points[:, 1], least)


def _least(panel: TradeoffPanel) -> float:
    """Where logarithmic axes begin: a decade that the samples can speak about."""
    fewest = min(min(a.negatives, a.positives) for a in panel.attacks)
    return float(10.0 ** -math.floor(math.log10(max(fewest / 3, 10))))


def _spread(fpr: Array, fnr: Array, least: float, count: int) -> NDArray[np.int64]:
    """Places of about `count` points, evenly spread along the curve as it is seen."""
    if len(fpr) < 2:
        return np.arange(len(fpr))
    x, y = (np.log(v) if least else v for v in (fpr, fnr))
    length = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    return np.unique(
        np.searchsorted(length, np.linspace(0, length[-1], count)).clip(0, len(fpr) - 1)
    )


def _whiskers(rates: Array, runs: int) -> Array:
    """Lengths down and up (2, points) of the Clopper-Pearson intervals of some rates."""
    ends = [proportion(round(rate * runs), runs, (1 - CONFIDENCE) / 2) for rate in rates]
    low, high = np.array(ends).T
    return np.maximum(np.stack([rates - low, high - rates]), 0.0)

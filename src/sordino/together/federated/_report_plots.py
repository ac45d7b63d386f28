"""Figures of a federated run: who took part, what was spent, and one client's own picture.

Public facts only. Client names reach a figure as tick labels, where no letter has a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sordino.report import (
    BLUE,
    GREY,
    VERMILION,
    add_legend,
    decimated,
    name_axes,
    new_figure,
    plain_axes,
    step_ticks,
    to_svg,
)
from sordino.together.federated._report_facts import (
    CURVE_POINTS,
    ClientFacts,
    Facts,
    Floats,
    shares,
)

# Okabe and Ito's orange: told from the blue by its lightness too, also on paper.
ORANGE = "#E69F00"
# The blue of pictures made of dots, which do not change with the page's colours.
_DOT = "#0173b2"
# Line colours and styles for a few clients.
_LINES = (
    (BLUE, "-"),
    ("#009E73", "-."),
    ("#CC79A7", ":"),
    ("#56B4E9", (0, (5, 1))),
    (GREY, (0, (3, 1, 1, 1))),
)
FEW = len(_LINES)
# Up to so many clients get a row with their name, up to so many a row of their own.
_NAMED, _ROWS, _COLUMNS = 30, 200, 300
_GRID_CELLS = 1200
_ASKED = "asked, round done without it"
_TAKEN = "message taken"


def participation_figure(facts: Facts) -> Figure:
    """Clients by rounds: whose message was taken, and who was asked in vain."""
    taken, in_vain = shares(facts, _ROWS, _COLUMNS)
    rows, columns = taken.shape
    M, T = len(facts.clients), facts.done
    height = 1.2 + (0.19 * max(rows, 2) if rows <= _NAMED else min(5.2, 2.4 + 0.022 * rows))
    figure, (axes,) = new_figure(1, height=height)
    # Where a cell stands for several rounds or clients, the most frequent ones are drawn in full.
    either = taken + in_vain
    full = float(np.quantile(either[either > 0], 0.95)) if either.any() else 1.0
    strength = np.clip(either / full, 0, 1)
    share = np.divide(in_vain, either, out=np.zeros_like(taken), where=either > 0)
    picture = np.empty((rows, columns, 4))
    picture[..., :3] = _rgb(_DOT) + share[..., None] * (_rgb(ORANGE) - _rgb(_DOT))
    picture[..., 3] = strength
    axes.imshow(picture, aspect="auto", interpolation="none", extent=(0.5, T + 0.5, M + 0.5, 0.5))
    axes.grid(False)
    if rows <= _NAMED:
        axes.set_yticks(range(1, M + 1), [_short(c.name) for c in facts.clients])
        axes.tick_params(axis="y", length=0)
        if M * T <= _GRID_CELLS:
            axes.set_xticks(np.arange(0.5, T + 1), minor=True)
            axes.set_yticks(np.arange(0.5, M + 1), minor=True)
            axes.grid(True, which="minor", color=GREY, alpha=0.35, linewidth=0.6)
            axes.tick_params(which="minor", length=0)
        name_axes(axes, "", "round", "")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        name_axes(axes, "", "round", "client (number in the table)")
    step_ticks(axes)
    add_legend(figure, [Patch(color=_DOT), Patch(color=ORANGE)], [_TAKEN, _ASKED])
    return figure


def spent_figure(facts: Facts) -> Figure:
    """Spent mu of the clients over the rounds, below the budget: each one's, or how they spread."""
    figure, (axes,) = new_figure(1)
    rounds = decimated(facts.done, CURVE_POINTS)
    handles: list[Artist] = []
    labels: list[str] = []
    if len(facts.clients) <= FEW:
        for client, (colour, style) in zip(facts.clients, _LINES, strict=False):
            (line,) = axes.plot(
                *_steps(client.curve, facts.done), color=colour, linestyle=style, linewidth=2
            )
            handles.append(line)
            labels.append(_short(client.name))
    else:
        values = np.stack([_at(client.curve, rounds) for client in facts.clients])
        low, tenth, middle, ninetieth, top = np.quantile(values, [0, 0.1, 0.5, 0.9, 1], axis=0)
        band: dict[str, Any] = {"color": BLUE, "linewidth": 0, "step": "post"}
        wide = axes.fill_between(rounds, low, top, alpha=0.15, **band)
        narrow = axes.fill_between(rounds, tenth, ninetieth, alpha=0.3, **band)
        (line,) = axes.plot(rounds, middle, color=BLUE, linewidth=2, drawstyle="steps-post")
        handles += [line, narrow, wide]
        labels += ["median client", "middle 80 %", "all clients"]
    budget = facts.agreement.mu
    handles.append(axes.axhline(budget, color=VERMILION, linestyle=(0, (5, 2)), linewidth=1.6))
    labels.append("budget")
    # A client may say anything about itself; the picture stays one of the budget.
    axes.set_ylim(0, budget * 1.12)
    axes.set_xlim(*_span(facts.done))
    name_axes(axes, "", "round", "spent mu")
    step_ticks(axes)
    add_legend(figure, handles, labels)
    return figure


class ClientPicture:
    """One client's spent mu and epsilon, and its rounds: drawn once, filled in for every client.

    All clients' pictures have the same axes, so that they can be compared, and a thousand of them cost
    little more than one.
    """

    _LABEL = "the-label-of-this-picture"

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        budget, T = facts.agreement.mu, facts.done
        top = facts.epsilon(budget)
        self._has_epsilon = bool(np.isfinite(top)) and top > 0
        panels = 2 if self._has_epsilon else 1
        figure, old = new_figure(panels, height=3.9)
        grid = figure.add_gridspec(2, panels, height_ratios=[1, 0.1])
        for place, axes in enumerate(old):
            axes.set_subplotspec(grid[0, place])
        strip = figure.add_subplot(grid[1, :])
        self._axes: dict[str, tuple[Axes, float]] = {"mu": (old[0], budget * 1.12)}
        if self._has_epsilon:
            self._axes["epsilon"] = (old[1], top * 1.12)
        for name, (axes, most) in self._axes.items():
            (line,) = axes.plot([1, 1 + T], [0, most], color=BLUE, linewidth=2)
            line.set_gid(name)
            limit = budget if name == "mu" else top
            dash = axes.axhline(limit, color=VERMILION, linestyle=(0, (5, 2)), linewidth=1.6)
            axes.set_xlim(*_span(T))
            axes.set_ylim(0, most)
            text = "spent mu" if name == "mu" else f"epsilon at delta {facts.agreement.delta:g}"
            name_axes(axes, "", "round", text)
            step_ticks(axes)
        thick = float(np.clip(300 / T, 0.7, 7.0))
        for name, colour in (("taken", BLUE), ("asked", ORANGE)):
            (mark,) = strip.plot([1, T], [0, 1], color=colour, linewidth=thick)
            mark.set_solid_capstyle("butt")
            mark.set_gid(name)
        strip.set_xlim(*_span(T))
        strip.set_ylim(0, 1)
        strip.set_yticks([])
        plain_axes(strip, sides=("bottom",))
        name_axes(strip, "", "round: asked for", "")
        step_ticks(strip)
        self._axes |= {"taken": (strip, 1.0), "asked": (strip, 1.0)}
        handles = [line, dash, Patch(color=BLUE), Patch(color=ORANGE)]
        add_legend(figure, handles, ["spent", "budget", _TAKEN, _ASKED])
        text = to_svg(figure, label=self._LABEL, prefix="client")
        # Where the axes are: known only now that the figure was laid out.
        size = figure.get_size_inches() * 72
        self._boxes = {name: _Box(axes, size, most) for name, (axes, most) in self._axes.items()}
        self._parts = self._cut(text)

    def svg(self, client: ClientFacts, label: str) -> str:
        """The picture of `client`."""
        rounds, values = _steps(client.curve, self._facts.done)
        drawn = {"mu": self._stairs("mu", rounds, values)}
        if self._has_epsilon:
            epsilons = np.interp(values, *self._conversion())
            drawn["epsilon"] = self._stairs("epsilon", rounds, epsilons)
        drawn["taken"] = self._marks([message.round for message in client.taken])
        drawn["asked"] = self._marks(client.only_asked)
        drawn[self._LABEL] = escape(label)
        return "".join(drawn.get(part, part) for part in self._parts)

    def _conversion(self) -> tuple[Floats, Floats]:
        """Pairs of mu and epsilon, close enough together for the eye."""
        if not hasattr(self, "_pairs"):
            mus = np.linspace(0, self._facts.agreement.mu * 1.12, 120)
            epsilons = np.array([self._facts.epsilon(float(mu)) for mu in mus])
            largest = self._axes["epsilon"][1]
            self._pairs = mus, np.where(np.isfinite(epsilons), epsilons, largest)
        return self._pairs

    def _cut(self, text: str) -> list[str]:
        """The drawing in pieces; names of what is filled in stand between them."""
        names = "|".join(self._axes)
        result = re.split(
            rf'(?s)(?<=<g id="client-)({names})(">\s*<path d=")[^"]*(?=")|({self._LABEL})', text
        )
        parts: list[str] = []
        for plain, name, opening, label in zip(
            result[0::4], [*result[1::4], ""], [*result[2::4], ""], [*result[3::4], ""], strict=True
        ):
            parts.append(plain)
            if name:
                parts += [name + opening, name]
            if label:
                parts.append(label)
        expected = {*self._axes, self._LABEL}
        assert expected <= set(parts), "the drawing has another form than expected"
        return parts

    def _stairs(self, name: str, rounds: Floats, values: Floats) -> str:
        corners = zip(*self._boxes[name].place(rounds, values), strict=True)
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)

    def _marks(self, rounds: Sequence[int]) -> str:
        if not rounds:
            return "M0 0"
        at = np.asarray(rounds, np.float64)
        x, bottom = self._boxes["taken"].place(at, np.zeros_like(at))
        _, top = self._boxes["taken"].place(at, np.ones_like(at))
        places = np.unique(np.round(x, 1))  # marks on the same spot are one mark
        return "".join(f"M{place:.1f} {bottom[0]:.1f}V{top[0]:.1f}" for place in places)


class _Box:
    """Where the numbers of some axes, from 0 to `most`, lie in a drawing of this size."""

    def __init__(self, axes: Axes, size: Floats, most: float) -> None:
        place, (width, height) = axes.get_position(), size
        self._x = place.x0 * width, place.x1 * width, *axes.get_xlim()
        self._y = (1 - place.y0) * height, (1 - place.y1) * height, most

    def place(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        (left, right, first, last), (bottom, top, most) = self._x, self._y
        return (
            left + (x - first) / (last - first) * (right - left),
            bottom + np.clip(y / most, 0, 1) * (top - bottom),
        )


def _steps(curve: Sequence[tuple[int, float]], last: int) -> tuple[Floats, Floats]:
    """Corners of the stairs from nothing at round 1 to the last round."""
    kept = curve
    if len(curve) > CURVE_POINTS:
        kept = [curve[i - 1] for i in decimated(len(curve), CURVE_POINTS)]
    rounds, values, now = [0.5], [0.0], 0.0
    for at, value in kept:
        rounds += [at, at]
        values += [now, value]
        now = value
    return np.array([*rounds, last + 0.5]), np.array([*values, now])


def _at(curve: Sequence[tuple[int, float]], rounds: NDArray[np.int64]) -> Floats:
    """The curve's values at some rounds; 0 before it begins."""
    known = np.array([0, *(at for at, _ in curve)])
    values = np.array([0.0, *(value for _, value in curve)])
    return values[np.searchsorted(known, rounds, side="right") - 1]


def _span(last: int) -> tuple[float, float]:
    return 0.5, last + 0.5


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _short(name: str, longest: int = 18) -> str:
    """A name fit for a label; a dollar sign would begin a formula."""
    cut = name if len(name) <= longest else f"{name[: longest - 6]}…{name[-5:]}"
    return cut.replace("$", r"\$")

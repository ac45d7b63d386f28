"""Experiments as lines over an axis: which population belongs to which panel, and where it stands."""

from __future__ import annotations

import math

from benchmarks.lab.experiment import PopulationSpec
from benchmarks.lab.results import Line, Results


def panel_of(population: PopulationSpec) -> str:
    """The panel of a population in a figure of lines."""
    return population.panel or population.name


def panels(results: Results) -> list[str]:
    """The panels of a figure of lines, in order."""
    return list(dict.fromkeys(panel_of(population) for population in results.populations()))


def place_text(x: float, digits: int = 4) -> str:
    """A place on an axis, as a person writes it."""
    return f"{x:,.0f}" if x >= 1000 and x == int(x) else f"{x:.{digits}g}"


def axis_title(results: Results, panel: str) -> str:
    """What the x axis of a panel is."""
    result = [one.x_title for one in results.populations() if panel_of(one) == panel]
    return next(filter(None, result), results.experiment.x_title)


def panel_at(results: Results, line: Line) -> str:
    """The panel of a line."""
    named = {population.name: panel_of(population) for population in results.populations()}
    return named[line.population]


def over_x(results: Results, panel: str) -> dict[str, list[tuple[float | None, Line]]]:
    """For each contender of a panel, its lines with their place on the x axis, in order.

    The place is None where it holds for every x: no budget, and epsilon is the axis.
    """
    places = {one.name: one.x for one in results.populations() if panel_of(one) == panel}
    result: dict[str, list[tuple[float | None, Line]]] = {}
    for line in results.lines():
        if line.population in places:
            x = places[line.population]
            place = line.epsilon if x is None else x
            result.setdefault(line.contender, []).append((place, line))
    for rows in result.values():
        rows.sort(key=lambda pair: -math.inf if pair[0] is None else pair[0])
    return result

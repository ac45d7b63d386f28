"""The report: one self-contained HTML file about one private run.

    write_report("report.html", plan, guarantee=plan.guarantee, title="Income", history=history)

It takes a plan, a guarantee and public metrics, and nothing else, so that nothing private can get
into it. The file has no scripts and asks no other place for anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino._base.files import write_atomically
from sordino.planning import Plan
from sordino.privacy import Guarantee
from sordino.report import _plots as plots
from sordino.report._facts import (
    curve_facts,
    guarantee_numbers,
    plan_facts,
    tradeoff_facts,
)
from sordino.report._measure import MEASURED_STEPS, NOT_COVERED, Measured, ScoreTable
from sordino.report._render import render


def write_report(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    guarantee: Guarantee,
    title: str,
    history: Sequence[Mapping[str, float]] = (),
    results: ScoreTable | None = None,
    notes: Sequence[str] = (),
    date: str = "",
) -> None:
    """Write the report of one run to `path`, atomically.

    Args:
      guarantee: what the run's release satisfies (usually ``plan.guarantee``).
      history: public metrics over the steps, as in `Result.history`.
      results: scores on public test data.
      notes: what the reader must know about this run, one sentence each; shown at the top.
      date: when the run was made, as text; there is no clock in here.
    """
    text = render_report(
        plan,
        guarantee=guarantee,
        title=title,
        history=history,
        results=results,
        notes=notes,
        date=date,
    )
    write_atomically(Path(path), text)


def render_report(
    plan: Plan,
    *,
    guarantee: Guarantee,
    title: str,
    history: Sequence[Mapping[str, float]] = (),
    results: ScoreTable | None = None,
    notes: Sequence[str] = (),
    date: str = "",
) -> str:
    """The report as text; see `write_report`."""
    return render(
        "sordino.report",
        "run.html.j2",
        title=title,
        date=date,
        guarantee=guarantee,
        numbers=guarantee_numbers(guarantee),
        notes=list(notes),
        results=None if results is None else _results(results),
        curves=curve_facts(history),
        plan=plan_facts(plan),
        calibration=_calibration(plan),
        tradeoff=tradeoff_facts(guarantee),
    )


@dataclass(frozen=True)
class ResultFacts:
    """Scores as they are shown: each row with its score as text."""

    svg: str
    metric: str
    test_rows: int
    is_rate: bool
    rows: list[tuple[Measured, str]]
    has_uncovered: bool


def _results(results: ScoreTable) -> ResultFacts:
    def score(value: float) -> str:
        half = results.whisker(value)
        spread = f" ± {half:.3f}" if half else ""
        return (f"{value:.3f}" if results.is_rate else f"{value:.4g}") + spread

    metric = results.metric.replace("_", " ")
    bars = ", ".join(f"{row.name} {row.value:.3g}" for row in results.rows)
    figure = plots.comparison_figure(results)
    return ResultFacts(
        plots.to_svg(figure, label=f"Bars of the {metric}: {bars}", prefix="results"),
        metric,
        results.test_rows,
        results.is_rate,
        [(row, score(row.value)) for row in results.rows],
        any(row.coverage == NOT_COVERED for row in results.rows),
    )


@dataclass(frozen=True)
class CalibrationFacts:
    """Noise that was generated beside noise that was planned."""

    svg: str
    steps: int
    is_part: bool


def _calibration(plan: Plan) -> CalibrationFacts:
    label = (
        "Measured standard deviation of generated noise beside the predicted one, per step and "
        "accumulated"
    )
    svg = plots.to_svg(plots.noise_calibration_figure(plan), label=label, prefix="noise")
    return CalibrationFacts(svg, MEASURED_STEPS, plan.population.steps > MEASURED_STEPS)

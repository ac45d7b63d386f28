"""The report: one self-contained HTML file about one private run.

    write_report("report.html", plan, guarantee=plan.guarantee, title="Income", history=history)

It takes a plan, a guarantee and public metrics, and nothing else, so that nothing private can get
into it. The file has no scripts and asks no other place for anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sordino._base.files import write_atomically
from sordino.planning import Plan
from sordino.privacy import Guarantee
from sordino.report import _plots as plots
from sordino.report._facts import curve_facts, guarantee_numbers, plan_facts, tradeoff_facts
from sordino.report._measure import MEASURED_STEPS, ScoreTable
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
    text = render(
        "sordino.report",
        "run.html.j2",
        title=title,
        date=date,
        guarantee=guarantee,
        numbers=guarantee_numbers(guarantee),
        notes=list(notes),
        results=results,
        results_svg="" if results is None else _results_svg(results),
        curves=curve_facts(history),
        plan=plan_facts(plan),
        noise_svg=plots.to_svg(
            plots.noise_calibration_figure(plan),
            label="Measured standard deviation of generated noise beside the predicted one, per step "
            "and accumulated",
            prefix="noise",
        ),
        noise_steps=MEASURED_STEPS if plan.population.steps > MEASURED_STEPS else None,
        tradeoff=tradeoff_facts(guarantee),
    )
    write_atomically(Path(path), text)


def _results_svg(results: ScoreTable) -> str:
    bars = ", ".join(f"{row.name} {row.value:.3g}" for row in results.rows)
    label = f"Bars of the {results.metric.replace('_', ' ')}: {bars}"
    return plots.to_svg(plots.comparison_figure(results), label=label, prefix="results")

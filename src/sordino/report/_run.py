"""The report: one self-contained HTML file about one private run, and facts that other pages state too.

    write_report("report.html", plan, guarantee=plan.guarantee, title="Income", history=history)

It takes a plan, a guarantee and public metrics, and nothing else, so that nothing private can get
into it. The file has no scripts and asks no other place for anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import one_line
from sordino._base.files import write_atomically
from sordino.planning import Plan
from sordino.privacy import Guarantee, rounded_up
from sordino.report import _plots as plots
from sordino.report._measure import MEASURED_STEPS, ScoreTable, independent_counterpart
from sordino.report._render import render
from sordino.report._score_plots import EvaluationFacts


def write_report(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    guarantee: Guarantee,
    title: str,
    history: Sequence[Mapping[str, float]] = (),
    results: ScoreTable | None = None,
    evaluation: EvaluationFacts | None = None,
    notes: Sequence[str] = (),
    date: str = "",
    columns: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the report of one run to `path`, atomically.

    Args:
      guarantee: what the run's release satisfies (usually ``plan.guarantee``).
      history: public metrics over the steps, as in `Result.history`.
      results: scores on public test data.
      evaluation: noisy scores on held-out data, which `guarantee` covers.
      notes: what the reader must know about this run, one sentence each; shown at the top.
      columns: of the table: names, and what each is used as.
      date: when the run was made, as text; there is no clock in here.
    """
    text = render(
        "sordino.report",
        "run.html.j2",
        title=title,
        date=date,
        columns=list(columns),
        guarantee=guarantee,
        numbers=guarantee_numbers(guarantee),
        notes=list(notes),
        results=results,
        results_svg="" if results is None else _results_svg(results),
        evaluation=evaluation,
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


_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)


@dataclass(frozen=True)
class CurveFacts:
    """Public metrics over a run, and where they end, in words."""

    svg: str
    ends: str


@dataclass(frozen=True)
class PlanFacts:
    """A plan: its picture, its lines, and how much more noise would be independent, if it is not."""

    svg: str
    lines: list[tuple[str, str]]
    ratio: str
    hash: str


@dataclass(frozen=True)
class TradeoffFacts:
    """Pairs of delta and epsilon."""

    svg: str
    rows: list[tuple[float, float]]


def guarantee_numbers(guarantee: Guarantee) -> list[tuple[str, str]]:
    """A guarantee in numbers, as (name, value)."""
    hint = guarantee.delta_hint
    result: list[tuple[str, str]] = []
    if hint is not None:
        result += [("epsilon", rounded_up(guarantee.epsilon(hint))), ("delta", rounded_up(hint))]
    if not guarantee.is_amplified:
        result.append(("mu (Gaussian differential privacy)", rounded_up(guarantee.mu)))
    if guarantee.lost:
        text = f"chance that a value shows which only one {guarantee.unit} has, beside that"
        result.append((text, rounded_up(guarantee.lost)))
    return [*result, ("protected unit", guarantee.unit)]


def curve_facts(history: Sequence[Mapping[str, float]], *, step: str = "step") -> CurveFacts | None:
    """None if nothing was measured. Names of metrics may be foreign text.

    Args:
      step: what a step of this run is called.
    """
    names = plots.metric_names(history)
    if not names:
        return None
    last = {name: [row[name] for row in history if name in row][-1] for name in names}
    ends = ", ".join(f"{one_line(n, 40).replace('_', ' ')} {v:.4g}" for n, v in last.items())
    # A dollar sign would begin a formula.
    plain = [{one_line(k, 40).replace("$", r"\$"): v for k, v in row.items()} for row in history]
    label = f"Public metrics over the {step}s, ending at {ends}"
    figure = plots.curves_figure(plain, step=step)
    return CurveFacts(plots.to_svg(figure, label=label, prefix="curves"), ends)


def plan_facts(plan: Plan) -> PlanFacts:
    label = (
        f"Noise per step ends at {plan.noise_per_step()[-1]:.3g} and accumulated noise at "
        f"{plan.error_per_step()[-1]:.3g} per coordinate"
    )
    other = independent_counterpart(plan)
    ratio = "" if other is None else f"{other.predicted_error / plan.predicted_error:.2g}"
    svg = plots.to_svg(plots.plan_figure(plan), label=label, prefix="plan")
    return PlanFacts(svg, plan.lines(), ratio, plan.hash)


def tradeoff_facts(guarantee: Guarantee) -> TradeoffFacts:
    hint = guarantee.delta_hint
    deltas = sorted({*_DELTAS, *([hint] if hint else [])}, reverse=True)
    # Below what the noise differs from exact noise by, nothing is promised.
    rows = [(at, epsilon) for at in deltas if math.isfinite(epsilon := guarantee.epsilon(at))]
    label = "Curve of delta against epsilon, falling"
    figure = plots.tradeoff_figure(guarantee)
    return TradeoffFacts(plots.to_svg(figure, label=label, prefix="tradeoff"), rows)

"""Facts that several kinds of pages state: a guarantee's numbers, a plan, public metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sordino._base.errors import one_line
from sordino.planning import Plan
from sordino.privacy import Guarantee, rounded_up
from sordino.report import _plots as plots
from sordino.report._measure import independent_counterpart

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

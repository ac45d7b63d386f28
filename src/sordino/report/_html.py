"""The report: one self-contained HTML file about one private run.

    write_report("report.html", plan, guarantee=plan.guarantee, title="Income", history=history)

It takes a plan, a guarantee and public metrics, and nothing else, so that nothing private can get
into it. The file has no scripts and asks no other place for anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from sordino._base.files import write_atomically
from sordino._version import __version__
from sordino.planning import Plan
from sordino.privacy import ADJACENCIES, Guarantee, rounded_up
from sordino.report import _plots as plots
from sordino.report._measure import (
    COVERED,
    MEASURED_STEPS,
    NOT_COVERED,
    ScoreTable,
    independent_counterpart,
)
from sordino.report._style import CSS
from sordino.report._words import GLOSSARY, guessing, limits, meaning

_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)
# Nothing may be fetched or run, even by mistake.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_CAUTION = (
    "A row marked “not covered” was computed without noise. Where it was trained on the same "
    "private data, this guarantee does not hold for it: its score, and a report that shows it, may "
    "be published only if those data are public; otherwise leave the comparison out."
)


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
    when = f", {escape(date)}" if date else ""
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="kicker">A model trained with differential privacy{when}</p>',
        _headline(guarantee),
        notes_html(notes),
        "</header>",
        "<main>",
        meaning_html(guarantee),
        _results(results),
        _curves(history),
        plan_html(plan),
        _calibration(plan),
        tradeoff_html(guarantee),
        glossary_html(),
        "</main>",
        f"<footer><p>Sordino {escape(__version__)} · plan <code>{plan.hash}</code>{when}</p>",
        "</footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _headline(guarantee: Guarantee) -> str:
    hint = guarantee.delta_hint
    numbers: list[tuple[str, str]] = []
    if hint is not None:
        numbers += [("epsilon", rounded_up(guarantee.epsilon(hint))), ("delta", rounded_up(hint))]
    if not guarantee.is_amplified:
        numbers.append(("mu (Gaussian differential privacy)", rounded_up(guarantee.mu)))
    numbers.append(("protected unit", guarantee.unit))
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in numbers
    )
    return (
        f'<section class="headline" aria-label="Guarantee"><dl class="numbers">{items}</dl>'
        f"<p><strong>{escape(guarantee.sentence())}</strong></p>"
        f"<p>{escape(guessing(guarantee))}</p></section>"
    )


def notes_html(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    return f'<section class="notes"><h2>Before you rely on this</h2>{list_html(notes)}</section>'


def meaning_html(guarantee: Guarantee) -> str:
    return (
        '<section><h2>What the guarantee means</h2><div class="two">'
        f"<div><h3>What it promises</h3>{list_html(meaning(guarantee))}</div>"
        f"<div><h3>What it does not promise</h3>{list_html(limits(guarantee))}</div></div></section>"
    )


def _results(results: ScoreTable | None) -> str:
    if results is None:
        return ""
    rate = results.is_rate
    rows = []
    for row in results.rows:
        half = results.whisker(row.value)
        value = f"{row.value:.3f}" if rate else f"{row.value:.4g}"
        spread = f" ± {half:.3f}" if half else ""
        style = ' class="covered"' if row.coverage == COVERED else ""
        rows.append(
            f'<tr{style}><th scope="row">{escape(row.name)}</th>'
            f'<td class="number">{value}{spread}</td><td>{escape(row.coverage)}</td>'
            f"<td>{escape(row.note)}</td></tr>"
        )
    metric = results.metric.replace("_", " ")
    label = f"Bars of the {metric}: " + ", ".join(
        f"{row.name} {row.value:.3g}" for row in results.rows
    )
    interval = "; ± is the 95 % interval due to the size of the test set" if rate else ""
    extra = (
        f'<p class="small">{_CAUTION}</p>'
        if any(row.coverage == NOT_COVERED for row in results.rows)
        else ""
    )
    return (
        "<section><h2>Results</h2>"
        + figure_html(plots.comparison_figure(results), label, "results")
        + '<div class="scroll"><table>'
        f"<caption>On {results.test_rows:,} test rows declared public{interval}.</caption>"
        f'<thead><tr><th scope="col">model</th><th scope="col" class="number">{escape(metric)}</th>'
        '<th scope="col">guarantee</th><th scope="col">how</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{extra}</section>"
    )


def _curves(history: Sequence[Mapping[str, float]]) -> str:
    names = plots.metric_names(history)
    if not names:
        return ""
    last = {name: [row[name] for row in history if name in row][-1] for name in names}
    ends = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in last.items())
    return (
        "<section><h2>Training</h2>"
        + figure_html(
            plots.curves_figure(history),
            f"Public metrics over the steps of training, ending at {ends}",
            "curves",
            f"Measured on public data while training; at the end: {ends}. This costs no privacy.",
        )
        + "</section>"
    )


def plan_html(plan: Plan) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(heading)}</th><td>{escape(text)}</td></tr>'
        for heading, text in plan.lines()
    )
    noise, error = plan.noise_per_step(), plan.error_per_step()
    caption = (
        "Left: the noise in each step's mean gradient. Right: the noise that has added up in the "
        "model after each step (times the learning rate), which is what costs accuracy."
    )
    if (other := independent_counterpart(plan)) is not None:
        ratio = other.predicted_error / plan.predicted_error
        caption += (
            f" Independent noise with the same guarantee (dashed) would be {ratio:.2g} times as "
            "much on the right."
        )
    label = (
        f"Noise per step ends at {noise[-1]:.3g} and accumulated noise at {error[-1]:.3g} per "
        "coordinate"
    )
    return (
        "<section><h2>The plan</h2><p>Everything about privacy was decided here, before "
        f"training began.</p>{figure_html(plots.plan_figure(plan), label, 'plan', caption)}"
        f'<div class="scroll"><table><tbody>{rows}</tbody></table></div></section>'
    )


def _calibration(plan: Plan) -> str:
    steps = plan.population.steps
    part = f" The first {MEASURED_STEPS:,} steps are shown." if steps > MEASURED_STEPS else ""
    caption = (
        "Noise for 400 coordinates, made by the same code as the run's but from a throwaway public "
        "key: its standard deviation (dots) must follow the plan's prediction (line), up to chance "
        "(band)." + part
    )
    return (
        "<section><h2>Is the noise what the plan says?</h2>"
        + figure_html(
            plots.noise_calibration_figure(plan),
            "Measured standard deviation of generated noise beside the predicted one, per step and "
            "accumulated",
            "noise",
            caption,
        )
        + "</section>"
    )


def tradeoff_html(guarantee: Guarantee) -> str:
    deltas = sorted({*_DELTAS, *([guarantee.delta_hint] if guarantee.delta_hint else [])})
    rows = "".join(
        f"<tr{_mark(delta == guarantee.delta_hint)}>"
        f'<td class="number">{delta:g}</td>'
        f'<td class="number">{rounded_up(epsilon)}</td></tr>'
        for delta in reversed(deltas)
        # Below what the noise differs from exact noise by, nothing is promised.
        if math.isfinite(epsilon := guarantee.epsilon(delta))
    )
    change = ADJACENCIES[guarantee.adjacency].format(unit=guarantee.unit)
    return (
        "<section><h2>Epsilon and delta</h2>"
        + figure_html(
            plots.tradeoff_figure(guarantee),
            "Curve of delta against epsilon, falling",
            "tradeoff",
            f"Every point holds, for {change}. Read off epsilon at the delta you need.",
        )
        + '<div class="scroll"><table class="narrow"><thead><tr>'
        '<th scope="col" class="number">delta</th>'
        '<th scope="col" class="number">epsilon (rounded up)</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def glossary_html() -> str:
    items = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in GLOSSARY)
    return f'<section><h2>How to read this</h2><dl class="words">{items}</dl></section>'


def figure_html(figure: Figure, label: str, prefix: str, caption: str = "") -> str:
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{plots.to_svg(figure, label=label, prefix=prefix)}{below}</figure>"


def list_html(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _mark(chosen: bool) -> str:
    return ' class="covered"' if chosen else ""

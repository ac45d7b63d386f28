"""An experiment's page in Markdown: protocol, tables with the paper's figures beside ours, facts.

The page holds nothing that changes from run to run; CPU times are on a page of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sordino.bench.experiment import Budget, Experiment, Population, Printed
from sordino.bench.measures import MEASURES
from sordino.bench.results import Estimate, Line, Results

NOT_AS_PUBLISHED = (
    "The files of this data set that were read are not, byte for byte, the published ones: figures may "
    "differ a little from those on the originals."
)


def page(results: Results) -> str:
    """The whole page."""
    experiment = results.experiment
    parts = [f"# {experiment.title}", _one_paragraph(experiment.source)]
    if results.quick:
        parts.append("**A quick run, with few seeds: intervals are wide.**")
    parts.append(_one_paragraph(experiment.protocol))
    for population in experiment.populations:
        parts += [f"## {population.name}"]
        parts += [_one_paragraph(text) for text in (population.note,) if text]
        lines = [line for line in results.lines() if line.population == population.name]
        if not all(line.as_published for line in lines):
            parts.append(NOT_AS_PUBLISHED)
        for budget in population.budgets:
            parts += _budget_section(results, population, budget)
    parts += ["## Settings", _settings(results)]
    parts += ["## Made with", _facts(results)]
    return "\n\n".join(parts) + "\n"


def times_page(results: Results) -> str:
    """CPU times: they differ from run to run, so they are apart from the figures."""
    experiment = results.experiment
    header = ["", "population", "budget", "CPU s per run"]
    rows = [
        [line.contender, line.population, _epsilon(line.epsilon), f"{line.cpu_seconds:.3f}"]
        for line in results.lines()
    ]
    return (
        f"# {experiment.title}: CPU time\n\nOne thread, compilation and planning apart; runs of all "
        "seeds go together where they can, and their time is divided by their number.\n\n"
        + markdown(header, rows)
        + "\n"
    )


def verdicts(results: Results) -> list[str]:
    """One sentence per target: what the best private contender has, and whether that is enough."""
    experiment = results.experiment
    found = []
    for target in experiment.targets:
        population = next(p for p in experiment.populations if p.name == target.population)
        budget = next(b for b in population.budgets if b.epsilon == target.epsilon)
        best = _best(results.table(population, budget), budget)
        if best is None:
            continue
        measure = MEASURES[experiment.headline]
        value = best.estimates[experiment.headline]
        word = "reached" if target.reached(value.mean) else "NOT reached"
        found.append(
            f"{target.population}, epsilon {target.epsilon:g}: {best.contender} has "
            f"{_shown(value, experiment.headline)} {measure.title.removeprefix('test ')}; target "
            f"{target}: {word}."
        )
    return found


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, numbers are set to the right."""
    lines = [
        "| " + " | ".join(header) + " |",
        "| --- |" + " ---: |" * (len(header) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def tables(results: Results) -> Iterator[tuple[str, str]]:
    """The tables alone, each with its heading."""
    for population in results.experiment.populations:
        for budget in population.budgets:
            yield f"{population.name}, {budget}", _table(results, population, budget)


def _budget_section(results: Results, population: Population, budget: Budget) -> list[str]:
    table = results.table(population, budget)
    heading = f"### {budget}, {budget.adjacency} adjacency"
    seeds = ", ".join(str(count) for count in sorted({line.seeds for line in table}))
    caption = f"Mean over {seeds} seeds ± half of the 95 % confidence interval."
    wanted = [
        sentence
        for sentence in verdicts(results)
        if sentence.startswith(f"{population.name}, epsilon {budget.epsilon:g}:")
    ]
    return [heading, _table(results, population, budget), caption, *wanted]


def _table(results: Results, population: Population, budget: Budget) -> str:
    experiment = results.experiment
    table = results.table(population, budget)
    best = _best(table, budget)
    header = ["", *(MEASURES[name].title for name in experiment.measures)]
    rows = [[_name(line, budget, line is best), *_figures(line, experiment)] for line in table]
    rows += [
        [f"*{one.label}, as printed*", *_printed(one, experiment)]
        for one in experiment.printed
        if one.population == population.name and one.epsilon in (None, budget.epsilon)
    ]
    return markdown(header, rows)


def _best(table: Sequence[Line], budget: Budget) -> Line | None:
    """The best private line with the budget's own adjacency."""
    return next((one for one in table if one.private and one.adjacency == budget.adjacency), None)


def _name(line: Line, budget: Budget, best: bool) -> str:
    name = line.contender
    if not line.private:
        name += " (NOT private)"
    elif line.adjacency != budget.adjacency and str(line.adjacency) not in name:
        name += f" ({line.adjacency})"
    return f"**{name}**" if best else name


def _figures(line: Line, experiment: Experiment) -> list[str]:
    return [_shown(line.estimates.get(name), name) for name in experiment.measures]


def _shown(value: Estimate | None, name: str) -> str:
    measure = MEASURES[name]
    if value is None:
        return ""
    if not math.isfinite(value.mean):
        return "diverged"
    if not measure.varies or math.isnan(value.half):
        return measure.text(value.mean)
    return f"{measure.text(value.mean)} ± {measure.text(value.half)}"


def _printed(one: Printed, experiment: Experiment) -> list[str]:
    shown = []
    for name in experiment.measures:
        value, spread = one.values.get(name), one.values.get(f"{name}_std")
        half = one.values.get(f"{name}_half")
        text = "" if value is None else MEASURES[name].text(value)
        if spread is not None:
            text += f" (std {MEASURES[name].text(spread)})"
        if half is not None:
            text += f" ± {MEASURES[name].text(half)}"
        shown.append(text)
    return shown


def _settings(results: Results) -> str:
    rows = [
        [
            line.contender,
            line.population,
            _epsilon(line.epsilon),
            ", ".join(f"{name} {_value(value)}" for name, value in sorted(line.settings.items())),
            f"`{line.plan_hash[:12]}`",
        ]
        for line in results.lines()
    ]
    return markdown(["", "population", "epsilon", "settings", "plan"], rows)


def _facts(results: Results) -> str:
    experiment = results.experiment
    count = experiment.quick_seeds if results.quick else experiment.seeds
    first = experiment.first_seed
    lines = [_machine(one) for one in results.machines()]
    lines.append(
        f"Seeds {first} to {first + count - 1}, which anybody can repeat: the data are public."
    )
    return "\n".join(f"- {line}" for line in lines)


def _machine(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}; Python {facts['python']}, "
        f"jax {facts['jax']}, numpy {facts['numpy']}, sordino {facts['sordino']}"
    )


def _epsilon(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:g}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _one_paragraph(text: str) -> str:
    """Paragraphs with their lines joined."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))

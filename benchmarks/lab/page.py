"""An experiment's page in Markdown: protocol, tables with the paper's figures beside ours, facts.

The page holds nothing that changes from run to run; CPU times are on a page of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.lab.experiment import PopulationSpec, Printed, TargetBudget
from benchmarks.lab.measures import MEASURES
from benchmarks.lab.panels import axis_title, over_x, panel_at, panel_of, panels, place_text
from benchmarks.lab.results import Estimate, Line, Results
from benchmarks.lab.slopes import slope_rows

NOT_AS_PUBLISHED = (
    "The files of this data set that were read are not, byte for byte, the published ones: figures may "
    "differ a little from those on the originals."
)
# Targets that are told one by one in the index.
_MANY = 12
_MISSED = "NOT reached."


def page(results: Results) -> str:
    """The whole page."""
    experiment = results.experiment
    parts = [f"# {experiment.title}", _one_paragraph(experiment.source)]
    if results.quick:
        parts.append("**A quick run, with few seeds: intervals are wide.**")
    if results.left_out:
        parts.append(f"**Not run here, for want of the data: {', '.join(results.left_out)}.**")
    parts.append(_one_paragraph(experiment.protocol))
    parts.append(f"![{experiment.title}]({experiment.name}.svg)")
    parts += _sections(results)
    parts += ["## Settings", _settings(results)]
    parts += ["## Made with", _facts(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(results: Results) -> Iterator[str]:
    """A section for each population, or for each panel of a figure of lines."""
    by_panel = results.experiment.layout == "lines"
    reported = None
    for population in results.populations():
        panel = panel_of(population)
        if by_panel and panel == reported:
            continue
        reported = panel
        yield f"## {panel if by_panel else population.name}"
        yield _one_paragraph(population.note)
        lines = [line for line in results.lines() if line.population == population.name]
        if not all(line.as_published for line in lines):
            yield NOT_AS_PUBLISHED
        if by_panel:
            for heading, text in panel_tables(results, panel, timed=False):
                yield f"**{heading}**"
                yield text
            yield _caption([line for line in results.lines() if panel_at(results, line) == panel])
            yield from (text for where, text in _verdicts(results) if panel_of(where[0]) == panel)
            continue
        for budget in results.stages(population):
            yield from _budget_section(results, population, budget)


def times_page(results: Results) -> str:
    """What differs from run to run, apart from the other figures."""
    experiment = results.experiment
    lines = results.lines()
    names = list(dict.fromkeys(name for line in lines for name in line.times))
    header = ["", "population", "budget", "CPU s per run", *names]
    rows = [
        [
            line.contender,
            line.population,
            _epsilon(line.epsilon),
            "" if line.cpu_seconds is None else f"{line.cpu_seconds:.3f}",
            *(f"{line.times[name]:.4g}" if name in line.times else "" for name in names),
        ]
        for line in lines
    ]
    parts = [
        f"# {experiment.title}: CPU time",
        "One thread, compilation and planning apart; runs of all seeds go together where they can, and "
        "their time is divided by their number.",
    ]
    for heading, text in tables(results, timed=True):
        parts += [f"## {heading}", text]
    if experiment.x_log and experiment.y_log:
        parts += ["## Slopes on log-log axes", markdown(*slope_rows(results, timed=True))]
    if any(line.cpu_seconds is not None or line.times for line in lines):
        parts.append(markdown(header, rows))
    return "\n\n".join(parts) + "\n"


def index_page(found: Sequence[Results]) -> str:
    """A list of experiments, and what became of every target."""
    parts = ["# Results", "Each page has its protocol, tables, settings, seeds and machine."]
    for results in found:
        experiment = results.experiment
        parts.append(f"## [{experiment.title}]({experiment.name}.md)")
        parts.append("\n".join(f"- {sentence}" for sentence in _in_short(verdicts(results))))
    return "\n\n".join(part for part in parts if part) + "\n"


def _in_short(sentences: list[str]) -> list[str]:
    """Of many targets, how many were reached, and which were not."""
    if len(sentences) <= _MANY:
        return sentences
    missed = [sentence for sentence in sentences if sentence.endswith(_MISSED)]
    return [f"{len(sentences) - len(missed)} of {len(sentences)} targets were reached.", *missed]


def verdicts(results: Results) -> list[str]:
    """One sentence per target: what the best private contender has, and whether that is enough."""
    return [sentence for _, sentence in _verdicts(results)]


def _verdicts(results: Results) -> list[tuple[tuple[PopulationSpec, TargetBudget | None], str]]:
    experiment = results.experiment
    # What a quick run shortens says nothing about a target.
    shortened = [one.label for one in experiment.contenders if isinstance(one.quick, Mapping)]
    shortened = shortened if results.quick else []
    result = []
    for target in experiment.targets:
        name = target.measure or experiment.headline
        measure = MEASURES[name]
        for population in results.populations():
            for budget in results.stages(population):
                if population.name != target.population or not target.is_at(budget):
                    continue
                table = results.table(population, budget)
                if target.contender:
                    best = next((one for one in table if one.contender == target.contender), None)
                else:
                    best = _best(table, budget)
                if best is None or name not in best.estimates or best.contender in shortened:
                    continue
                value = best.estimates[name]
                word = "reached." if target.reached(value.mean) else _MISSED
                where = ", ".join([population.name, *([] if budget is None else [budget.short])])
                sentence = (
                    f"{where}: {best.contender} has {_shown(value, name)} "
                    f"{measure.title.removeprefix('test ')}; target {target}: {word}"
                )
                result.append(((population, budget), sentence))
    return result


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, numbers are set to the right."""
    lines = [
        "| " + " | ".join(header) + " |",
        "| --- |" + " ---: |" * (len(header) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines)


def tables(results: Results, *, timed: bool = False) -> Iterator[tuple[str, str]]:
    """The tables alone, each with its heading; of what is timed, or of everything else."""
    names = [name for name in results.experiment.measures if MEASURES[name].timed == timed]
    if results.experiment.layout == "lines":
        for panel in panels(results):
            for heading, text in panel_tables(results, panel, timed=timed):
                yield f"{panel}: {heading}", text
        return
    if not names:
        return
    for population in results.populations():
        for budget in results.stages(population):
            heading = population.name if budget is None else f"{population.name}, {budget}"
            yield heading, _table(results, population, budget, names)


def panel_tables(results: Results, panel: str, *, timed: bool) -> Iterator[tuple[str, str]]:
    """A table per measure: contenders as rows, places on the x axis as columns."""
    experiment = results.experiment
    rows = over_x(results, panel)
    places = sorted({x for pairs in rows.values() for x, _ in pairs if x is not None})
    for name in experiment.measures:
        measured = [line for pairs in rows.values() for _, line in pairs if name in line.estimates]
        if MEASURES[name].timed != timed or not measured:
            continue
        best = {x: _best_at(rows, x, name) for x in places}
        body = []
        for contender, pairs in rows.items():
            if not any(name in line.estimates for _, line in pairs):
                continue
            at = dict(pairs)
            shown = [_in_bold(at.get(x, at.get(None)), name, best[x]) for x in places]
            private = pairs[0][1].private
            body.append([contender if private else f"{contender} (NOT private)", *shown])
        for one in experiment.printed:
            population = next(p for p in experiment.populations if p.name == one.population)
            if panel_of(population) == panel and name in one.values:
                column = one.epsilon if population.x is None else population.x
                shown = [_printed(one, [name])[0] if x == column else "" for x in places]
                body.append([f"*{one.label}, as printed*", *shown])
        header = [axis_title(results, panel), *(place_text(x) for x in places)]
        yield MEASURES[name].title, markdown(header, _merged(body))


def _merged(body: list[list[str]]) -> list[list[str]]:
    """Rows of the same name as one, where they fill different columns."""
    result: dict[str, list[str]] = {}
    for name, *cells in body:
        old = result.setdefault(name, [""] * len(cells))
        result[name] = [mine or other for mine, other in zip(old, cells, strict=True)]
    return [[name, *cells] for name, cells in result.items()]


def _best_at(
    rows: Mapping[str, list[tuple[float | None, Line]]], x: float, name: str
) -> Line | None:
    sign = 1 if MEASURES[name].lower else -1
    result = [
        line
        for pairs in rows.values()
        for place, line in pairs
        if place == x and line.private and math.isfinite(line.headline(name))
    ]
    return min(result, key=lambda line: sign * line.headline(name), default=None)


def _in_bold(line: Line | None, name: str, best: Line | None) -> str:
    if line is None:
        return ""
    text = _shown(line.estimates.get(name), name)
    return f"**{text}**" if line is best and text and MEASURES[name].varies else text


def _budget_section(
    results: Results, population: PopulationSpec, budget: TargetBudget | None
) -> Iterator[str]:
    names = [name for name in results.experiment.measures if not MEASURES[name].timed]
    if budget is not None:
        yield f"### {budget}, {budget.adjacency} adjacency"
    if names:
        yield _table(results, population, budget, names)
        yield _caption(results.table(population, budget))
    yield from (text for where, text in _verdicts(results) if where == (population, budget))


def _caption(lines: Sequence[Line]) -> str:
    counts = sorted({line.seeds for line in lines})
    if counts == [1]:
        return "One run each."
    runs = " or ".join(str(count) for count in counts)
    return f"Mean over {runs} runs ± half of the 95 % confidence interval."


def _table(
    results: Results, population: PopulationSpec, budget: TargetBudget | None, names: Sequence[str]
) -> str:
    experiment = results.experiment
    table = results.table(population, budget)
    best = _best(table, budget)
    header = ["", *(MEASURES[name].title for name in names)]
    rows = [[_name(line, budget, line is best), *_figures(line, names)] for line in table]
    rows += [
        [f"*{one.label}, as printed*", *_printed(one, names)]
        for one in experiment.printed
        if one.population == population.name and one.is_at(budget)
    ]
    return markdown(header, rows)


def _best(table: Sequence[Line], budget: TargetBudget | None) -> Line | None:
    """The best private line with the budget's own adjacency."""
    adjacency = None if budget is None else budget.adjacency
    return next((one for one in table if one.private and one.adjacency == adjacency), None)


def _name(line: Line, budget: TargetBudget | None, best: bool) -> str:
    name = line.contender
    if not line.private:
        name += " (NOT private)"
    elif (
        budget is not None
        and line.adjacency != budget.adjacency
        and str(line.adjacency) not in name
    ):
        name += f" ({line.adjacency})"
    return f"**{name}**" if best else name


def _figures(line: Line, names: Sequence[str]) -> list[str]:
    return [_shown(line.estimates.get(name), name) for name in names]


def _shown(value: Estimate | None, name: str) -> str:
    measure = MEASURES[name]
    if value is None:
        return ""
    if not math.isfinite(value.mean):
        return "diverged"
    if not measure.varies or math.isnan(value.half):
        return measure.text(value.mean)
    return f"{measure.text(value.mean)} ± {measure.text(value.half)}"


def _printed(one: Printed, names: Sequence[str]) -> list[str]:
    shown = []
    for name in names:
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
            ", ".join(
                f"{name} {_value(value)}"
                for name, value in sorted({**line.settings, **line.facts}.items())
            ),
            f"`{line.plan_hash[:12]}`" if line.plan_hash else "",
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

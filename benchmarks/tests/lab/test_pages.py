"""Tables and figures of both layouts, from cells that are made up here."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lab.cells import Cell, cells_of
from benchmarks.lab.experiment import Experiment, TargetBudget, read_experiment
from benchmarks.lab.figure import result_figure
from benchmarks.lab.page import page, times_page, verdicts
from benchmarks.lab.results import Results
from sordino._base.errors import SordinoError

from .helpers import write_toy

LINES = """
name = "toy"
title = "Lines"
source = "Printed nowhere."
protocol = "Nothing is public."
measures = ["accuracy", "passes"]
seeds = 2
quick_seeds = 1
task = "parties"
layout = "lines"
x_title = "epochs"
x_log = true
targets = [{ population = "ten", mu = 1.0, at_least = 71.0 }]

[[populations]]
name = "one"
panel = "all"
x = 1
budgets = [{ mu = 1.0, delta = 1e-5 }]

[[populations]]
name = "ten"
panel = "all"
x = 10
quick = false
budgets = [{ mu = 1.0, delta = 1e-5 }]

[[contenders]]
label = "first"
settings = { parties = 3 }
quick = { parties = 2 }

[[contenders]]
label = "second"
private = false

[[contenders]]
label = "third"
like = "first"
quick = false

[[printed]]
population = "ten"
label = "A paper"
mu = 1.0
values = { accuracy = 70.0, accuracy_half = 1.0 }
"""


def part(cell: Cell, accuracy: float) -> dict[str, Any]:
    runs = [{"seed": i, "accuracy": accuracy + i, "passes": 2.0} for i in range(2)]
    machine = dict.fromkeys(
        ("processor", "cores", "system", "python", "jax", "numpy", "sordino"), "?"
    )
    return {
        "key": cell.key,
        "cell": asdict(cell),
        "runs": runs,
        "plan_hash": "",
        "guarantee": "none",
        "steps": 1,
        "times": {"seconds": accuracy / 10},
        "facts": {"fact": 3},
        "machine": machine,
    }


@pytest.fixture
def results(tmp_path: Path) -> Results:
    experiment = read_experiment(write_toy(tmp_path, text=LINES, chosen=False))
    cells = cells_of(experiment, quick=False)
    result = [part(cell, 60.0 + 3 * i) for i, cell in enumerate(cells)]
    return Results(experiment, tuple(result))


def test_a_table_of_lines_has_a_column_for_each_place(results: Results) -> None:
    text = page(results)
    assert "| epochs | 1 | 10 |" in text
    # Cells come population by population: 60, 63, 66 at one epoch, 69, 72, 75 at ten.
    assert "| first | 60.50 ± 6.35 | 69.50 ± 6.35 |" in text
    assert "| second (NOT private) | 63.50 ± 6.35 | 72.50 ± 6.35 |" in text
    assert "| third | **66.50 ± 6.35** | **75.50 ± 6.35** |" in text
    assert "| *A paper, as printed* |  | 70.00 ± 1.00 |" in text
    assert "fact 3, parties 3" in text
    assert "seconds" not in text
    assert "| first | one | 4.37" in times_page(results)
    assert verdicts(results) == [
        "ten, mu 1: third has 75.50 ± 6.35 accuracy, %; target at least 71: reached."
    ]


def test_a_quick_run_is_not_held_to_targets_where_it_was_shortened(results: Results) -> None:
    contenders = tuple(replace(one, quick={"parties": 1}) for one in results.experiment.contenders)
    experiment = replace(results.experiment, contenders=contenders)
    assert verdicts(replace(results, experiment=experiment, quick=True)) == []
    assert len(verdicts(replace(results, experiment=experiment))) == 1


def test_the_figure_of_lines_has_an_axis_for_each_panel(results: Results) -> None:
    (axes,) = result_figure(results).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epochs", "test accuracy, %")
    assert axes.get_xscale() == "log"
    assert len(axes.containers) == 3


def test_a_quick_run_leaves_out_and_changes_what_it_is_told_to(results: Results) -> None:
    cells = cells_of(results.experiment, quick=True)
    assert [(cell.population.name, cell.contender) for cell in cells] == [
        ("one", "first"),
        ("one", "second"),
    ]
    assert cells[0].settings == {"parties": 2}
    slow = replace(results.experiment.populations[0].budgets[0], quick=False)
    populations = tuple(replace(one, budgets=(slow,)) for one in results.experiment.populations)
    left = cells_of(replace(results.experiment, populations=populations), quick=True)
    assert [cell.contender for cell in left] == ["second"]  # not private: no budget
    assert cells_of(results.experiment, quick=False)[2].settings == {"parties": 3}


def test_a_contender_may_take_part_in_some_budgets_only(tmp_path: Path) -> None:
    budgets = "budgets = [{ epsilon = 1.0, delta = 1e-5 }, { epsilon = 2.0, delta = 1e-5 }]"
    text = LINES.replace("budgets = [{ mu = 1.0, delta = 1e-5 }]", budgets)
    text = text.replace('label = "third"', 'label = "third"\nepsilons = [2.0]')
    cells = cells_of(read_experiment(write_toy(tmp_path, text=text, chosen=False)), quick=False)
    result = [(cell.contender, cell.budget.epsilon) for cell in cells if cell.budget is not None]
    assert result[:3] == [("first", 1.0), ("first", 2.0), ("third", 2.0)]


def test_a_budget_of_mu_has_the_epsilon_that_follows() -> None:
    budget = TargetBudget(mu=1.0, delta=1e-5)
    assert budget.epsilon == pytest.approx(4.3771781, rel=1e-6)
    assert budget.short == "mu 1"
    with pytest.raises(SordinoError, match="not by both"):
        TargetBudget(epsilon=1.0, mu=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('task = "parties"', 'task = "partys"', "did you mean 'parties'"),
        ('layout = "lines"', 'layout = "bars"', "layout"),
        ('like = "first"', 'like = "frist"', "did you mean 'first'"),
        ('task = "parties"', "", "recipe"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(SordinoError) as caught:
        read_experiment(write_toy(tmp_path, text=LINES.replace(old, new, 1), chosen=False))
    assert message in str(caught.value)


def test_cells_without_a_budget_have_one_table(results: Results) -> None:
    experiment = results.experiment
    bare = Experiment(
        **{
            **{name: getattr(experiment, name) for name in experiment.__dataclass_fields__},
            "populations": tuple(type(p)(name=p.name) for p in experiment.populations),
            "printed": (),
            "targets": (),
            "layout": "dots",
        }
    )
    cells = cells_of(bare, quick=False)
    assert {cell.budget for cell in cells} == {None}
    text = page(Results(bare, tuple(part(cell, 50.0) for cell in cells)))
    assert text.count("| | test accuracy, % |") + text.count("|  | test accuracy, % |") == 2
    assert len(result_figure(Results(bare, tuple(part(c, 50.0) for c in cells))).axes) == 2


def test_a_target_is_in_the_figure_however_far_it_is(results: Results) -> None:
    dots = replace(results.experiment, layout="dots", printed=())
    figure = result_figure(Results(dots, tuple(part(c, 50.0) for c in cells_of(dots, quick=False))))
    (panel,) = (axes for axes in figure.axes if axes.get_title(loc="left").startswith("ten\n"))
    low, high = panel.get_xlim()
    assert low < 50 < 71 < high


def test_panels_that_share_little_have_legends_of_their_own_and_one_place_has_names(
    results: Results,
) -> None:
    base = results.experiment
    at = {"over": [1.0, 10.0], "beside": [5.0], "later": [2.0, 3.0]}
    populations = tuple(
        replace(base.populations[0], name=f"{panel} {x}", panel=panel, x=x)
        for panel, places in at.items()
        for x in places
    )
    contenders = tuple(
        replace(
            base.contenders[0],
            label=f"{panel}, {label}",
            private=label == "a",
            populations=tuple(one.name for one in populations if one.panel == panel),
        )
        for panel in at
        for label in "ab"
    )
    mixed = replace(
        base, populations=populations, contenders=contenders, printed=(), targets=(), y_log=True
    )
    parts = tuple(part(cell, 50.0) for cell in cells_of(mixed, quick=False))
    figure = result_figure(Results(mixed, parts))
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert not figure.legends
    for name in ("over", "later"):
        reported = [text.get_text() for text in panels[name].get_legend().get_texts()]
        assert reported == [f"{name}, a", f"{name}, b (not private)"]
    beside = panels["beside"]
    assert beside.get_legend() is None
    assert [text.get_text() for text in beside.texts] == [
        "beside, b (not private)",
        "beside, a",
    ]
    assert (beside.get_xlabel(), beside.get_xscale()) == ("test accuracy, %, epochs 5", "log")
    beside.set_xlim(20, 300)
    assert beside.xaxis.get_major_formatter()(1000.0, None) == "1,000"
    between = beside.xaxis.get_minor_formatter()
    assert [between(value, None) for value in (50.0, 60.0, 200.0)] == ["50", "", "200"]
    beside.set_xlim(30, 120)
    assert [between(value, None) for value in (50.0, 60.0)] == ["", "60"]
    beside.set_xlim(40, 90)
    assert [between(value, None) for value in (50.0, 60.0)] == ["", ""]
    shown = [place for place in beside.get_xticks() if 40 <= place <= 90]
    assert shown == [40, 60, 80]
    beside.set_xlim(1, 1000)
    assert between(50.0, None) == ""


def test_a_contender_without_a_budget_looks_the_same_in_every_panel(results: Results) -> None:
    """Over an axis it has marks, over epsilon it is a level; colour, dashes and legend stay."""
    base = results.experiment
    budgets = tuple(TargetBudget(epsilon=epsilon, delta=1e-5) for epsilon in (1.0, 2.0))
    over = replace(base.populations[0], name="over epsilon", panel="budgets", x=None)
    both = replace(
        base,
        populations=(*base.populations, replace(over, budgets=budgets)),
        printed=(),
        targets=(),
    )
    parts = tuple(part(cell, 50.0) for cell in cells_of(both, quick=False))
    figure = result_figure(Results(both, parts))
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    place = [one.label for one in base.contenders].index("second")
    marked, level = panels["all"].lines[3 * place], panels["budgets"].lines[3 * place]
    assert level.get_marker() == "None" != marked.get_marker()
    for seen in ("color", "linestyle", "linewidth"):
        assert getattr(level, f"get_{seen}")() == getattr(marked, f"get_{seen}")()
    (legend,) = figure.legends
    reported = dict(
        zip((text.get_text() for text in legend.get_texts()), legend.legend_handles, strict=True)
    )
    # A level's handle is a line; that of the first panel has error bars, too.
    assert not hasattr(reported["second (not private)"], "get_marker")

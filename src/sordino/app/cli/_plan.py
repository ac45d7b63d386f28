"""``sordino plan``: decide a private run, or compare the ways to do it; no data is read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino import planning
from sordino._base.errors import SordinoError, require_count
from sordino._base.files import write_atomically
from sordino.app.cli._console import check_outputs, err, new_table, out, say, show_plan
from sordino.app.cli._options import RecipeOptions, with_options

if TYPE_CHECKING:
    from sordino.planning import Plan, RecipeRanking

_RUN = "The run"
_BUDGET = "The budget"
_OUTPUT = "Output"


@with_options()
def plan(
    recipe: Annotated[
        list[str] | None,
        typer.Argument(
            help="A name from `sordino recipes`; with --compare any number of them (none: all)."
        ),
    ] = None,
    *,
    examples: Annotated[
        int, typer.Option(help="Number of examples (or users, clients).", rich_help_panel=_RUN)
    ],
    batch_size: Annotated[
        int | None, typer.Option(help="Examples per step.", rich_help_panel=_RUN)
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the data.", rich_help_panel=_RUN)
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps, instead of epochs.", rich_help_panel=_RUN)
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget.", rich_help_panel=_BUDGET)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Well below 1/examples.", rich_help_panel=_BUDGET),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Noise in units of the clip, instead of epsilon.", rich_help_panel=_BUDGET
        ),
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            help="gaussian, or discrete: on a lattice, from a cryptographic generator.",
            rich_help_panel=_BUDGET,
        ),
    ] = "gaussian",
    adjacency: Annotated[
        str | None,
        typer.Option(help="zero-out, add-remove or replace-one.", rich_help_panel=_BUDGET),
    ] = None,
    unit: Annotated[
        str,
        typer.Option(
            help="example, or user or client: then everyone must have one row.",
            rich_help_panel=_BUDGET,
        ),
    ] = "example",
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Rank all recipes at this budget.", rich_help_panel=_OUTPUT),
    ] = False,
    out_file: Annotated[
        Path | None,
        typer.Option("--out", help="Save the plan as JSON.", rich_help_panel=_OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw the plan (.png, .svg or .pdf).", rich_help_panel=_OUTPUT),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON only.", rich_help_panel=_OUTPUT)
    ] = False,
    parameters: Annotated[
        int | None,
        typer.Option(help="Model size, to show the noise's memory.", rich_help_panel=_OUTPUT),
    ] = None,
    options: RecipeOptions,
) -> None:
    """Decide a private run and print it as a page; no data is read and no budget is spent."""
    names = recipe or []
    if not names and not compare:
        raise SordinoError("name a recipe (see `sordino recipes`), or add --compare to rank all")
    if len(names) > 1 and not compare:
        raise SordinoError("one plan is of one recipe; add --compare to rank several")
    if parameters is not None:
        require_count("parameters", parameters)
    request: dict[str, Any] = {
        "examples": examples,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps,
        "epsilon": epsilon,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
        "noise": noise,
        "adjacency": adjacency,
        "unit": unit,
    }
    check_outputs(out_file, plot=plot)
    if compare:
        wanted = out_file is not None or plot is not None
        built = _compared(names, request, options, as_json, wanted=wanted)
        _save(built, out_file, plot)
        return

    built = planning.plan(names[0], **request, **options.of(names[0]))
    if as_json:
        say(json.dumps(built.to_json(), indent=1))
    else:
        show_plan(built, parameters)
    if unit != "example":
        err().print(
            f"[bold yellow]note:[/] this holds for a {unit} only if every {unit} has one row of the "
            "data; training asks for that statement (--one-row-per-person)",
            soft_wrap=True,
        )
    _save(built, out_file, plot)


def _compared(
    names: list[str],
    request: dict[str, Any],
    options: RecipeOptions,
    as_json: bool,
    *,
    wanted: bool,
) -> Plan | None:
    """Show the ranking; the best plan if it is `wanted` for a file."""
    request |= options.of(names[0] if len(names) == 1 else None)
    if request.pop("noise_multiplier") is not None:
        raise SordinoError(
            "a comparison needs one budget for all: give epsilon and delta, not noise_multiplier"
        )
    if request.pop("noise") != "gaussian":
        raise SordinoError("a comparison is of gaussian noise; plan one recipe with --noise")
    with err().status("planning") as status:
        result = planning.compare_recipes(
            names or None, watch=lambda label: status.update(f"planning {label}"), **request
        )
    if as_json:
        say(json.dumps(result.to_json(), indent=1))
    else:
        _show_comparison(result)
    if not wanted:
        return None

    asked = {**request, "adjacency": result.adjacency}
    arguments = planning.arguments_for(result.best.recipe, result.best.options, asked)
    return planning.plan(result.best.recipe, **arguments)


def _save(made: Plan | None, out_file: Path | None, plot: Path | None) -> None:
    if made is None:
        return
    if out_file is not None:
        made.save(out_file)
    if plot is not None:
        buffer = io.BytesIO()
        made.plot().savefig(buffer, format=plot.suffix.lower()[1:])
        write_atomically(plot, buffer.getvalue())


def _show_comparison(found: RecipeRanking) -> None:
    """The ranking as a table, what was left out, and the conclusion in words."""
    from rich.markup import escape

    console = out()
    best = found.best
    console.print(
        f"All at epsilon {found.epsilon:.4g}, delta {found.delta:g}, {found.adjacency} adjacency and "
        f"about {best.gradient_evaluations:,} gradient evaluations:"
    )
    table = new_table()
    table.add_column("")
    table.add_column("recipe and noise", overflow="fold")
    table.add_column("noise", justify="right")
    table.add_column("slow\ngain", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("needs secret\nrandom batches")
    for place, row in enumerate(found.ranked):
        table.add_row(
            "best" if place == 0 else "",
            row.label,
            f"{row.relative_error / best.relative_error:.2f} x",
            f"{row.gain:.3g}",
            f"{row.steps:,}",
            f"{row.noise_vectors:,}",
            "yes" if row.secret_batches else "no",
            style="bold green" if place == 0 else "",
        )
    console.print(table)
    console.print(
        "noise: in the iterates, relative to the way of a gradient of norm clip; slow gain: how much "
        "of slow noise gets there, against a plain gradient; memory: vectors of the model's size. "
        "Recipes that pay for differences assume that those stay within their clip.",
        style="dim",
    )
    for label, reason in found.left_out:
        console.print(f"left out: {escape(label)}: {escape(reason)}", style="dim")
    console.print()
    console.print(escape(planning.conclusion(found)), style="bold")

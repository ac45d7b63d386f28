"""``sordino plan``: decide a private run, or compare the ways to do it; no data is read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino._base.errors import SordinoError, require_count
from sordino._base.files import write_atomically
from sordino.app.cli._console import err, out, show_plan

if TYPE_CHECKING:
    from sordino.planning import Plan

_RUN = "The run"
_BUDGET = "The budget"
_OPTIONS = "Options of the recipe"
_OUTPUT = "Output"


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
    clip: Annotated[
        float | None,
        typer.Option(help="Largest norm of a contribution.", rich_help_panel=_OPTIONS),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="auto, independent, blt, dense, tree, leaky, ...", rich_help_panel=_OPTIONS
        ),
    ] = None,
    bands: Annotated[
        int | None,
        typer.Option(help="Bands of the banded mechanism.", rich_help_panel=_OPTIONS),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(help="auto, prefix or momentum.", rich_help_panel=_OPTIONS)
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="fixed, reshuffled, poisson or without-replacement.", rich_help_panel=_OPTIONS
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="From 0 to below 1.", rich_help_panel=_OPTIONS)
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate.", rich_help_panel=_OPTIONS)
    ] = None,
    lr_schedule: Annotated[
        str | None, typer.Option(help="constant, linear or cosine.", rich_help_panel=_OPTIONS)
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(help="Average this last share of the iterates.", rich_help_panel=_OPTIONS),
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(help="Keep the parameters in this ball.", rich_help_panel=_OPTIONS),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(help="sgd, adam, normalized, ...", rich_help_panel=_OPTIONS),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="How noise is spread over the steps.", rich_help_panel=_OPTIONS),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="last or random iterate.", rich_help_panel=_OPTIONS)
    ] = None,
    difference_clip: Annotated[
        float | None,
        typer.Option(help="Largest norm of a gradient's change.", rich_help_panel=_OPTIONS),
    ] = None,
    residual_clip: Annotated[
        float | None,
        typer.Option(help="The same since the epoch began (anchored).", rich_help_panel=_OPTIONS),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Share of the plain gradient.", rich_help_panel=_OPTIONS),
    ] = None,
    decay: Annotated[
        float | None,
        typer.Option(help="Share of the last estimate that is kept.", rich_help_panel=_OPTIONS),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="anchor-free or anchored.", rich_help_panel=_OPTIONS)
    ] = None,
    first_batch: Annotated[
        int | None, typer.Option(help="Size of the first batch.", rich_help_panel=_OPTIONS)
    ] = None,
    step_length: Annotated[
        float | None,
        typer.Option(help="How far an adaptive step may go.", rich_help_panel=_OPTIONS),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(help="Second step of the coupling, 0.5 or 1.", rich_help_panel=_OPTIONS),
    ] = None,
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
) -> None:
    """Decide a private run and print it as a page; no data is read and no budget is spent."""
    names = recipe or []
    if not names and not compare:
        raise SordinoError("name a recipe (see `sordino recipes`), or add --compare to rank all")
    if len(names) > 1 and not compare:
        raise SordinoError("one plan is of one recipe; add --compare to rank several")
    if parameters is not None:
        require_count("parameters", parameters)
    given = {
        "clip": clip,
        "mechanism": mechanism,
        "bands": bands,
        "workload": workload,
        "sampling": sampling,
        "momentum": momentum,
        "learning_rate": learning_rate,
        "lr_schedule": lr_schedule,
        "average": average,
        "radius": radius,
        "optimizer": optimizer,
        "schedule": schedule,
        "output": output,
        "difference_clip": difference_clip,
        "residual_clip": residual_clip,
        "gamma": gamma,
        "decay": decay,
        "form": form,
        "first_batch": first_batch,
        "step_length": step_length,
        "kappa": kappa,
    }
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
        **{name: value for name, value in given.items() if value is not None},
    }
    _check_outputs(out_file, plot)
    if compare:
        built = _compared(names, request, as_json, wanted=out_file is not None or plot is not None)
        _save(built, out_file, plot)
        return
    from sordino.planning import plan as make_plan

    built = make_plan(names[0], **request)
    if as_json:
        out().print(json.dumps(built.to_json(), indent=1), soft_wrap=True, markup=False)
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
    names: list[str], request: dict[str, Any], as_json: bool, *, wanted: bool
) -> Plan | None:
    """Show the ranking; the best plan if it is `wanted` for a file."""
    from sordino.app.cli._compare import show_comparison
    from sordino.planning import arguments_for, compare_recipes

    if request.pop("noise_multiplier") is not None:
        raise SordinoError(
            "a comparison needs one budget for all: give epsilon and delta, not noise_multiplier"
        )
    if request.pop("noise") != "gaussian":
        raise SordinoError("a comparison is of gaussian noise; plan one recipe with --noise")
    with err().status("planning") as status:
        result = compare_recipes(
            names or None, watch=lambda label: status.update(f"planning {label}"), **request
        )
    if as_json:
        out().print(json.dumps(result.to_json(), indent=1), soft_wrap=True, markup=False)
    else:
        show_comparison(result)
    if not wanted:
        return None
    from sordino.planning import plan as make_plan

    asked = {**request, "adjacency": result.adjacency}
    arguments = arguments_for(result.best.recipe, result.best.options, asked)
    return make_plan(result.best.recipe, **arguments)


def _check_outputs(out_file: Path | None, plot: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise SordinoError(f"a plot is a .png, .svg or .pdf file, got {str(plot)!r}")
    for path in (out_file, plot):
        if path is not None and not path.parent.is_dir():
            raise SordinoError(f"there is no folder {str(path.parent)!r} to write into")


def _save(made: Plan | None, out_file: Path | None, plot: Path | None) -> None:
    if made is None:
        return
    if out_file is not None:
        made.save(out_file)
    if plot is not None:
        buffer = io.BytesIO()
        made.plot().savefig(buffer, format=plot.suffix.lower()[1:])
        write_atomically(plot, buffer.getvalue())

"""``sordino plan`` and ``sordino recipes``: decide a private run, or compare the ways; no data is read."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from sordino import planning
from sordino._base.errors import SordinoError, require_count
from sordino._base.files import write_atomically
from sordino._base.types import Json
from sordino.app.cli._console import check_outputs, err, new_table, out, say, show_plan
from sordino.app.cli._options import RecipeOptions, with_fields, with_options

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.planning import Plan, Recipe, RecipeRanking, Spectrum

_RUN = "The run"
_BUDGET = "The budget"
_OUTPUT = "Output"
_THEORY = "Theory"


def _fact(name: str) -> Any:
    """An option for a fact about the loss."""
    text = planning.FACTS[name]
    return typer.Option(help=f"{text[0].upper()}{text[1:]}.", rich_help_panel=_THEORY)


@dataclass(frozen=True)
class _LossFacts:
    """What a theorem needs to know about the loss."""

    lipschitz: Annotated[float | None, _fact("lipschitz")] = None
    smoothness: Annotated[float | None, _fact("smoothness")] = None
    curvature: Annotated[float | None, _fact("curvature")] = None
    gap: Annotated[float | None, _fact("gap")] = None
    diameter: Annotated[float | None, _fact("diameter")] = None
    dimension: Annotated[int | None, _fact("dimension")] = None

    def given(self) -> Json:
        return {name: value for name, value in asdict(self).items() if value is not None}


@with_options()
@with_fields(_LossFacts, "facts")
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
        str | None,
        typer.Option(
            help="Steps, instead of epochs; auto with --theory: as many as its bound is least for.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy budget.", rich_help_panel=_BUDGET)
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="Well below 1/examples.", rich_help_panel=_BUDGET),
    ] = None,
    mu: Annotated[
        float | None,
        typer.Option(help="Gaussian DP, instead of epsilon.", rich_help_panel=_BUDGET),
    ] = None,
    rho: Annotated[
        float | None,
        typer.Option(help="zCDP, instead of epsilon: mu^2 / 2.", rich_help_panel=_BUDGET),
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
    spectrum_file: Annotated[
        Path | None,
        typer.Option(
            "--spectrum",
            help="Predict losses for this file of `sordino spectrum`.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
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
        typer.Option(help="Model size, to show what memory a run needs.", rich_help_panel=_OUTPUT),
    ] = None,
    theory: Annotated[
        bool,
        typer.Option(
            "--theory",
            help="Take the settings of the theorem about the recipe, and show its bound.",
            rich_help_panel=_THEORY,
        ),
    ] = False,
    facts: _LossFacts,
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
    request: Json = {
        "examples": examples,
        "batch_size": batch_size,
        "epochs": epochs,
        "steps": steps
        if steps in (None, "auto")
        else planning.Option("steps", int, "").parse(steps),
        "epsilon": epsilon,
        "delta": delta,
        "mu": mu,
        "rho": rho,
        "noise_multiplier": noise_multiplier,
        "noise": noise,
        "adjacency": adjacency,
        "unit": unit,
    }
    check_outputs(out_file, plot=plot)
    spectrum = None if spectrum_file is None else planning.Spectrum.load(spectrum_file)
    if facts.given() and not theory:
        raise SordinoError(f"{next(iter(facts.given()))} is a fact for a theorem: add --theory")
    if compare:
        if theory:
            raise SordinoError("a theorem is about one recipe; leave --compare out")
        wanted = out_file is not None or plot is not None
        built = _compared(names, request, options, spectrum, as_json, wanted=wanted)
        _save(built, out_file, plot)
        return

    if theory:
        request |= {"settings": "theory", **facts.given()}
    built = planning.plan(names[0], **request, **options.of(names[0]))
    if as_json:
        say(json.dumps(built.to_json(), indent=1))
    else:
        show_plan(built, parameters, spectrum)
    if unit != "example":
        err().print(
            f"[bold yellow]note:[/] this holds for a {unit} only if every {unit} has one row of the "
            "data; training asks for that statement (--one-row-per-person)",
            soft_wrap=True,
        )
    _save(built, out_file, plot)


def _compared(
    names: list[str],
    request: Json,
    options: RecipeOptions,
    spectrum: Spectrum | None,
    as_json: bool,
    *,
    wanted: bool,
) -> Plan | None:
    """Show the ranking; the best plan if it is `wanted` for a file."""
    request |= options.of(names[0] if len(names) == 1 else None)
    for other in ("noise_multiplier", "mu", "rho"):
        if request.pop(other) is not None:
            raise SordinoError(
                f"a comparison needs one budget for all: give epsilon and delta, not {other}"
            )
    if request.pop("noise") != "gaussian":
        raise SordinoError("a comparison is of gaussian noise; plan one recipe with --noise")
    with err().status("planning") as status:
        result = planning.compare_recipes(
            names or None,
            spectrum=spectrum,
            watch=lambda label: status.update(f"planning {label}"),
            **request,
        )
    if as_json:
        say(json.dumps(result.to_json(), indent=1))
    else:
        _show_comparison(result)
    if not wanted:
        return None

    asked = {**request, "adjacency": result.adjacency}
    best = result.best
    built = planning.plan(best.recipe, **planning.arguments_for(best.recipe, best.options, asked))
    if best.learning_rate is None:
        return built
    return built.with_update(learning_rate=best.learning_rate)


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
    console = out()
    best = found.best
    console.print(
        f"All at epsilon {found.epsilon:.4g}, delta {found.delta:g}, {found.adjacency} adjacency and "
        f"about {max(row.gradient_evaluations for row in found.ranked):,} gradient evaluations:"
    )
    table = new_table()
    table.add_column("recipe and noise", overflow="fold")
    table.add_column("loss", justify="right")
    table.add_column("rate", justify="right")
    table.add_column("noise", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("needs secret\nbatches")
    for place, row in enumerate(found.ranked):
        table.add_row(
            row.label,
            "-" if row.predicted_loss is None else f"{row.predicted_loss:.4f}",
            "-" if row.learning_rate is None else f"{row.learning_rate:.2g}",
            f"{row.relative_error / best.relative_error:.2f}",
            f"{row.steps:,}",
            f"{row.noise_vectors:,}",
            "yes" if row.secret_batches else "no",
            style="bold green" if place == 0 else "",
        )
    console.print(table)
    console.print(
        "loss: predicted, above the optimum, at the best learning rate (rate); noise: in the iterates, "
        "against the first row's; memory: vectors of the model's size. "
        "Recipes that pay for differences assume that those stay within their clip.",
        style="dim",
    )
    for row in found.ranked:
        if row.unpredicted:
            console.print(
                f"no prediction: {escape(row.label)}: {escape(row.unpredicted)}", style="dim"
            )
    for label, reason in found.left_out:
        console.print(f"left out: {escape(label)}: {escape(reason)}", style="dim")
    console.print()
    console.print(escape(planning.conclusion(found)), style="bold")


def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe, with all its options.")] = None,
) -> None:
    """List the recipes: what each does, and when to use it; with a name, also its options."""
    listed = list(planning.RECIPES.values()) if name is None else [planning.RECIPES[name]]
    table = new_table(show_lines=False)
    table.add_column("recipe", style="bold cyan", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for recipe in listed:
        table.add_row(recipe.name, _page(recipe))
    console = out()
    console.print(table)
    if name is not None:
        console.print(_options(listed[0]))
        console.print(
            "Each is an option of the same name, as --learning-rate, or --set learning_rate=0.1. "
            "--set schedule.NAME=VALUE sets a field of the chosen schedule, --set mechanism.NAME=VALUE "
            "of the mechanism.",
            style="dim",
        )
    console.print(
        f"See what {'one' if name is None else 'it'} would do with: sordino plan "
        f"{'RECIPE' if name is None else name} --examples 60000 "
        f"{'' if name is not None and listed[0].full_batch else '--batch-size 500 '}"
        "--epochs 4 --epsilon 1 --delta 1e-6"
    )


def _page(recipe: Recipe) -> Text:
    text = Text()
    text.append(f"{recipe.title}\n", style="bold")
    parts = (
        ("contribution", _contribution(recipe)),
        ("noise", ", ".join(recipe.mechanisms)),
        ("schedule", _schedules(recipe)),
        ("update", _updates(recipe)),
        ("batches", "all examples" if recipe.full_batch else ", ".join(recipe.samplings)),
        ("defaults", ", ".join(f"{k} {_short(v)}" for k, v in recipe.options.items())),
        ("--theory needs", _facts(recipe.name)),
        ("use when", recipe.use_when),
        ("avoid when", recipe.avoid_when),
        ("from", recipe.reference),
    )
    for name, value in parts:
        if value:
            text.append(f"{name}: ", style="dim")
            text.append(f"{value}\n")
    return text


def _options(recipe: Recipe) -> Table:
    """The recipe's options with their defaults: the values that it allows, where it allows fewer."""
    table = new_table()
    table.add_column("option", style="cyan", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it means", overflow="fold")
    defaults, offered = recipe.defaults(), recipe.option_names()
    allowed = recipe.allowed()
    for name in sorted(offered, key=[*planning.OPTIONS, *sorted(offered)].index):
        if not recipe.has_use_for(name):
            continue
        option = recipe.option(name)
        if allowed.get(name):
            option = replace(option, choices=allowed[name])
        table.add_row(name, _short(defaults[name]), escape(option.described()))
    return table


def _facts(name: str) -> str:
    """What theorems about a recipe need to know, where there is one."""
    own = [", ".join(t.facts) for t in planning.THEOREMS if t.recipe == name]
    return "; or ".join(own)


def _short(value: object) -> str:
    """A default as it is typed; "none" for the clip of algorithms without privacy."""
    if isinstance(value, float):
        return f"{value:g}" if value < 1e20 else "none"
    return "none" if value is None else str(value)


def _contribution(recipe: Recipe) -> str:
    """What one example adds, by its kind or by the function that chooses it."""
    part = recipe.contribution
    return str(getattr(part, "kind", getattr(part, "__name__", ""))).replace("_", " ")


def _schedules(recipe: Recipe) -> str:
    if not recipe.private:
        return ""
    return "decided by the run" if recipe.adaptive else ", ".join(recipe.schedules) or "any"


def _updates(recipe: Recipe) -> str:
    if recipe.adaptive:
        return "decided by the run"
    return ", ".join(recipe.optimizers) or f"{recipe.defaults()['optimizer']}, or any other"

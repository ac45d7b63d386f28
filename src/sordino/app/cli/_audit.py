"""``sordino audit``: hold a recipe, a plan, a training run or a trained model to its claim.

Exit code 0: no claim was exceeded; 3: one was; 2: bad input. (1 is left to Python's own failures, so
that a script never takes one for the other.)
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import audit, engine, models, planning
from sordino._base.errors import SordinoError, require_choice, require_count, require_fraction
from sordino._base.files import write_atomically
from sordino._version import __version__
from sordino.app.cli._console import check_outputs, err, new_table, out, show_plan
from sordino.app.cli._options import RecipeOptions, with_fields, with_options
from sordino.app.cli._output import MODEL, PLAN
from sordino.app.cli._train import TableRun
from sordino.parts import schedules
from sordino.together import federated

if TYPE_CHECKING:
    from sordino.audit import AuditResult, MembershipReport, OneRunResult
    from sordino.planning import Plan

FORMAT, FORMAT_VERSION = "sordino-audit", 1
EXCEEDED = 3
QUICK_RUNS = 2000
EVERY = "all"

app = typer.Typer(
    help="Hold recipes, plans, training runs and trained models to their claims.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the result as JSON, for scripts.")
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", help="Draw the trade-off curves (.svg, .png or .pdf).")
]
Confidence = Annotated[
    float, typer.Option(help="Probability that no claim is called exceeded by chance.")
]


@app.command("white-box")
@with_options()
def white_box(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names from `sordino recipes`, or `all`; small plans are made of them."
        ),
    ] = None,
    *,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Audit this plan (JSON of `sordino plan --out`).")
    ] = None,
    runs: Annotated[
        int, typer.Option(help="With the worst example, and as many without.")
    ] = 10_000,
    confidence: Confidence = 0.999,
    delta: Annotated[
        float | None, typer.Option(help="Where epsilon is stated; default: the plan's.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the audit's own noise.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"{QUICK_RUNS:,} runs: wider intervals, seconds.")
    ] = False,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    options: RecipeOptions,
) -> None:
    """Run the real training loop thousands of times with and without the worst example."""
    runs = QUICK_RUNS if quick else require_count("runs", runs, minimum=100)
    require_fraction("confidence", confidence)
    check_outputs(json_file, plot=plot_file)
    plans, skipped = _plans(recipes or [], plan_file, options)

    # All claims together are wrongly called exceeded with probability 1 - confidence at most.
    each = 1 - (1 - confidence) / len(plans)
    results = []
    with err().status("auditing") as status, engine.compilation_cache():
        for built in plans:
            status.update(f"auditing {built.recipe}")
            results.append(
                audit.white_box(built, runs=runs, confidence=each, delta=delta, seed=seed)
            )
    _show_white_box(results, confidence, skipped)
    _finish("white-box", results, json_file, plot_file)


@app.command("client", hidden=True)  # its name up to 0.5
@app.command("message-chain")
def message_chain(
    agreement_file: Annotated[
        Path, typer.Argument(help="A federated run's agreement.json; best of a short run.")
    ],
    *,
    runs: Annotated[int, typer.Option(help="With the worst example, and as many without.")] = 1000,
    honest: Annotated[
        bool, typer.Option("--honest", help="A server that does as agreed, not one that lies.")
    ] = False,
    unit: Annotated[
        str | None, typer.Option(help="example or client; default: the agreement's.")
    ] = None,
    confidence: Confidence = 0.999,
    seed: Annotated[int, typer.Option(help="Of the audit's own noise.")] = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Let a lying server talk to the real client code, with and without the worst example."""
    require_count("runs", runs, minimum=100)
    require_fraction("confidence", confidence)
    check_outputs(json_file, plot=plot_file)

    agreement = federated.Agreement.load(agreement_file)
    with err().status("auditing a client"):
        result = audit.audit_client(
            agreement,
            trials=runs,
            adaptive=not honest,
            unit=unit,
            insecure_seed=seed,
            confidence=confidence,
        )
    _finish("client", [result], json_file, plot_file)


@app.command("one-run")
@with_options(old_recipe=True)
@with_fields(TableRun, "asked")
def one_run(
    file: Annotated[Path, typer.Argument(help="The private table: .csv or .parquet.")],
    *,
    canaries: Annotated[
        int, typer.Option(help="How many; each is in with probability 1/2.")
    ] = 1000,
    kind: Annotated[str, typer.Option(help="gradient, mislabelled or random.")] = "gradient",
    confidence: Confidence = 0.95,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    asked: TableRun,
    options: RecipeOptions,
) -> None:
    """Train once on a table with canaries in it, and bound epsilon from below.

    The model is thrown away, but it was trained on the table: letting the result out of the house is a
    release with the plan's guarantee, and a ledger is charged for it.
    """
    check_outputs(json_file, plot=plot_file)
    require_count("canaries", canaries, minimum=20)
    require_fraction("confidence", confidence)

    audit.auditing()  # before anything is read
    charged = asked.check(file)
    from sordino.app.cli._fitting import KINDS, prepared

    require_choice("kind", kind, KINDS)
    settings = asked.settings(options)
    frame = models.read_table(file)
    if charged:
        # A run like any other: the data set is known by the table, not by table and canaries.
        charged["identified_by"] = frame
    chosen, schema = asked.schema(frame)
    table = prepared(chosen, frame, schema, settings)
    built = table.plan(canaries)
    show_plan(built)
    with err().status("training"), engine.compilation_cache():
        result = audit.one_run(
            built,
            table.loss,
            table.start(),
            (table.rows, table.labels),
            table.canaries(kind, canaries),
            kind=kind,
            confidence=confidence,
            **charged,
        )
    _show_one_run(result)
    _finish("one-run", [result], json_file, plot_file)


@app.command()
def membership(
    model: Annotated[Path, typer.Argument(help="A folder of `sordino train`.")],
    *,
    members: Annotated[Path, typer.Option(help="Rows that the model was trained on.")],
    non_members: Annotated[Path, typer.Option(help="Rows like them that it was not.")],
    public: Annotated[
        Path | None, typer.Option(help="PUBLIC rows like them, for the shadow models of LiRA.")
    ] = None,
    shadows: Annotated[int, typer.Option(help="How many shadow models.")] = 32,
    confidence: Confidence = 0.95,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Attack a trained model: can it tell members of its training data from others?"""
    check_outputs(json_file, plot=plot_file)
    require_count("shadows", shadows, minimum=2)
    require_fraction("confidence", confidence)
    from sordino.app.cli._fitting import LoadedModel

    released = LoadedModel(*models.load_model(model / MODEL))
    built = planning.Plan.load(model / PLAN)
    inside, outside = (
        released.rows(models.read_table(path), name)
        for path, name in ((members, "members"), (non_members, "non-members"))
    )
    loss, weights = released.loss, released.weights
    attacks = [audit.loss_attack(loss, weights, inside, outside)]
    if public is not None:
        rows, labels = released.rows(models.read_table(public), "public rows")
        with err().status("training shadow models"), engine.compilation_cache():
            start = 0 * weights.astype("float32")
            trained = audit.shadow_models(
                built, loss, start, schedules.PublicData(rows, labels), shadows
            )
        attacks.append(audit.lira_attack(loss, weights, inside, outside, trained))
    report = audit.membership_report(built.guarantee, *attacks, confidence=confidence)
    _show_membership(report)
    if public is None:
        out().print("LiRA was left out: give public rows with --public", style="dim")
    _finish("membership", [report], json_file, plot_file)


def _plans(
    names: list[str], plan_file: Path | None, options: RecipeOptions
) -> tuple[list[Plan], list[str]]:
    """The plans to audit, and recipes of `all` that cannot be."""
    if plan_file is not None:
        if names or options.given or options.texts:
            raise SordinoError("give recipes and their options, or --plan, not both")
        built = planning.Plan.load(plan_file)
        small = audit.affordable(built)
        if small != built:
            population = small.population
            err().print(
                f"audited with {population.examples:,} bystanders in batches of {population.batch_size:,} "
                "instead of all; steps, noise, clips and participation are the plan's",
                style="dim",
                soft_wrap=True,
            )
        return [small], []
    if not names:
        raise SordinoError("name recipes (see `sordino recipes`), `all`, or a plan with --plan")
    if EVERY not in names:
        specs = [planning.RECIPES[name] for name in dict.fromkeys(names)]
        return [audit.reference_plan(spec.name, **options.of(spec.name)) for spec in specs], []
    audited = [r for r in planning.RECIPES.values() if r.private and not r.adaptive]
    skipped = [r.name for r in planning.RECIPES.values() if r.private and r.adaptive]
    return [audit.reference_plan(spec.name, **options.of(spec.name)) for spec in audited], skipped


def _show_white_box(
    results: Sequence[AuditResult], confidence: float, skipped: Sequence[str]
) -> None:
    from math import isfinite

    table = new_table(collapse_padding=True)
    table.add_column("recipe", no_wrap=True)
    headings = ("mu\nclaimed", "mu measured\n(interval)", "epsilon\nclaimed", "epsilon\nat least")
    for heading in (*headings, "seen\nfrom"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("viola-\ntion", no_wrap=True)
    for result in results:
        table.add_row(
            result.recipe,
            f"{result.mu_claimed:.3f}",
            f"{result.mu_estimate:.2f} ({result.mu_low:.2f}-{result.mu_high:.2f})",
            f"{result.epsilon_claimed:.4g}",
            f"{result.epsilon_low:.4g}",
            f"+{audit.above(result.detectable)}" if isfinite(result.detectable) else "-",
            "FOUND" if result.violates else "none",
            style="bold red" if result.violates else "",
        )
    out().print(table)
    out().print(
        f"{results[0].runs:,} runs of the real loop with the worst example of each plan and as many "
        f"without; all intervals together hold with probability {confidence:g}. Epsilon at delta "
        f"{' and '.join(dict.fromkeys(f'{r.delta:g}' for r in results))}; with secret batches, mu of the "
        'privacy curve at epsilon 1. A mu above the claim by "seen from" is detected with probability '
        f"{audit.POWER:g}.",
        style="dim",
    )
    for name in skipped:
        out().print(f"left out: {name}, which decides during the run what it releases", style="dim")


def _show_one_run(result: OneRunResult) -> None:

    table = new_table(show_header=False)
    table.add_column(style="cyan")
    table.add_column(justify="right")
    by_gdp = result.epsilon_low_gdp
    rows = [
        ("canaries, in / all", f"{result.included:,} / {result.canaries:,}"),
        ("guesses, right / all", f"{result.right:,} / {result.guesses:,}"),
        ("area under the curve", f"{result.exposure:.3f}"),
        ("epsilon at least, any mechanism", f"{result.epsilon_low:.4g}"),
        ("epsilon at least, Gaussian noise", "-" if by_gdp is None else f"{by_gdp:.4g}"),
        (f"epsilon claimed at delta {result.delta:g}", f"{result.epsilon_claimed:.4g}"),
        ("adjacency of the claim", result.adjacency),
        ("violation", "FOUND" if result.violates else "none found"),
    ]
    for row in rows:
        table.add_row(*row)
    out().print(table)


def _show_membership(report: MembershipReport) -> None:

    table = new_table()
    table.add_column("attack", no_wrap=True)
    for heading in ("measure", "found", "interval", "allowed"):
        table.add_column(heading, justify="left" if heading == "measure" else "right", no_wrap=True)
    for attack in report.attacks:
        table.add_row(
            attack.name,
            "area under curve",
            f"{attack.auc:.3f}",
            f"{attack.auc_low:.3f} .. {attack.auc_high:.3f}",
            f"{report.auc_bound:.3f}",
            style="bold red" if attack.auc_low > report.auc_bound else "",
        )
        for power in attack.powers:
            table.add_row(
                "",
                f"found at {power.fpr:.1%} false",
                f"{power.tpr:.1%}",
                f"{power.tpr_low:.1%} .. {power.tpr_high:.1%}",
                f"{power.bound:.1%}",
                style="bold red" if power.exceeds else "",
            )
    out().print(table)


def _finish(
    kind: str,
    results: Sequence[AuditResult | OneRunResult | MembershipReport],
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Say the verdicts, write the files, and leave with the exit code of the outcome."""
    exceeded = [result for result in results if result.violates]
    for result in exceeded or (results if len(results) == 1 else []):
        style = "bold red" if exceeded else "bold"
        out().print(result.verdict(), style=style, markup=False, soft_wrap=True)
    if not exceeded and len(results) > 1:
        out().print(
            f"No violation found in {len(results)} audits. A violation as large as the table says for "
            "each would have been detected.",
            style="bold green",
        )
    if json_file is not None:
        data = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "sordino": __version__,
            "kind": kind,
            "exceeded": bool(exceeded),
            "audits": [result.to_json() for result in results],
        }
        write_atomically(json_file, json.dumps(data, indent=1, allow_nan=False) + "\n")
    if plot_file is not None:
        buffer = io.BytesIO()
        figure = audit.audit_figure([audit.panel_of(result) for result in results])
        figure.savefig(buffer, format=plot_file.suffix.lower()[1:])
        write_atomically(plot_file, buffer.getvalue())
    if exceeded:
        raise typer.Exit(EXCEEDED)

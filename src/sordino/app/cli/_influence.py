"""``sordino influence`` and ``sordino spectrum``: what public data says about noise and curvature."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import engine, models, planning
from sordino._base.errors import PrivacyWarning, require_choice, require_count
from sordino.app.cli._console import check_outputs, err, say
from sordino.app.cli._train import TASKS, public_schema, resolve_task
from sordino.engine import influence as influences
from sordino.parts import schedules

if TYPE_CHECKING:
    from sordino.app.cli._fitting import AuditTable


def influence(
    file: Annotated[Path, typer.Argument(help="A PUBLIC table like the private one.")],
    *,
    plan_file: Annotated[
        Path, typer.Option("--plan", help="The run whose noise is to be scheduled (JSON).")
    ],
    out_file: Annotated[Path, typer.Option("--out", help="The influence file to write.")],
    target: Annotated[
        str | None, typer.Option(help="The column to predict (or named in the schema).")
    ] = None,
    schema_file: Annotated[
        Path | None, typer.Option("--schema", help="Bounds, categories and classes, as for train.")
    ] = None,
    task: Annotated[str, typer.Option(help="auto, classification or regression.")] = "auto",
    fit: Annotated[
        str,
        typer.Option(
            help="What is fitted: exponential, mom-exponential (both ends matter, as with momentum), "
            "smooth (anything), or auto: the best of them."
        ),
    ] = "auto",
    ratio_cap: Annotated[
        float, typer.Option(help="Largest ratio between the noise of two steps.")
    ] = 2.0,
    runs: Annotated[int, typer.Option(help="Simulated trainings to average over.")] = 200,
    seed: Annotated[int, typer.Option(help="Of their noise and batches.")] = 0,
) -> None:
    """Measure on public data in which steps noise matters most; write a file for plans.

    Plans with as many steps use it with --schedule influence --set schedule.file=FILE.
    """
    require_choice("fit", fit, influences.FITS)
    require_count("runs", runs, minimum=2)
    check_outputs(out_file)
    built = planning.Plan.load(plan_file)
    table, public = _public_table(file, target, schema_file, task)
    with err().status("simulating runs on public data"), engine.compilation_cache():
        estimate = influences.influence_by_gradient(
            built, table.loss, table.start(), public, runs=runs, seed=seed
        )
    schedule = estimate.save(out_file, fit, ratio_cap=ratio_cap)
    noise = schedule.relative_noise(built.population.steps)
    say(
        f"{runs:,} simulated runs of {built.recipe} on {len(public):,} public rows\n"
        f"noise of the first step: {noise[0] / noise[-1]:.3g} x the last step's\n"
        f"wrote {out_file}; plan with it: sordino plan {built.recipe} ... --schedule influence "
        f"--set schedule.file={out_file}"
    )


def spectrum(
    file: Annotated[Path, typer.Argument(help="A PUBLIC table like the private one.")],
    *,
    out_file: Annotated[Path, typer.Option("--out", help="The spectrum file to write.")],
    target: Annotated[
        str | None, typer.Option(help="The column to predict (or named in the schema).")
    ] = None,
    schema_file: Annotated[
        Path | None, typer.Option("--schema", help="Bounds, categories and classes, as for train.")
    ] = None,
    task: Annotated[str, typer.Option(help="auto, classification or regression.")] = "auto",
) -> None:
    """Measure a problem's curvature on public data; write a file for predicted losses.

    Plans and comparisons use it with --spectrum FILE.
    """
    check_outputs(out_file)
    table, public = _public_table(file, target, schema_file, task)
    with err().status("fitting the public rows"), engine.compilation_cache():
        found = influences.public_spectrum(table.loss, table.start(), public)
    found.save(out_file)
    say(
        f"{len(found.eigenvalues):,} eigenvalues on {len(public):,} public rows, the largest "
        f"{max(found.eigenvalues):.3g}, all together {sum(found.eigenvalues):.3g}\n"
        f"wrote {out_file}; use it: sordino plan --compare ... --spectrum {out_file}"
    )


def _public_table(
    file: Path, target: str | None, schema_file: Path | None, task: str
) -> tuple[AuditTable, schedules.PublicData]:
    """A public table as `sordino train` would prepare it."""
    require_choice("task", task, TASKS)
    from sordino.app.cli._fitting import prepared

    frame = models.read_table(file)
    with warnings.catch_warnings():
        # What is taken from this table is public: that is what giving it here says.
        warnings.simplefilter("ignore", PrivacyWarning)
        schema = public_schema(frame, target, schema_file)
        chosen, schema = resolve_task(task, schema)
        table = prepared(chosen, frame, schema, {})
    return table, schedules.PublicData(table.rows, table.labels)

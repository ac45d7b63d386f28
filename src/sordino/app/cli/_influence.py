"""``sordino influence``: how much noise in each step matters, measured on public data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from sordino import engine, models, planning
from sordino._base.errors import PrivacyWarning, require_choice, require_count
from sordino.app.cli._console import check_outputs, err, say
from sordino.app.cli._train import TASKS, public_schema, resolve_task
from sordino.engine import influence as influences
from sordino.parts import schedules


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
        typer.Option(help="exponential, or smooth: for momentum, or where it does not just rise."),
    ] = "exponential",
    ratio_cap: Annotated[
        float, typer.Option(help="Largest ratio between the noise of two steps.")
    ] = 2.0,
    runs: Annotated[int, typer.Option(help="Simulated trainings to average over.")] = 200,
    seed: Annotated[int, typer.Option(help="Of their noise and batches.")] = 0,
) -> None:
    """Measure on public data in which steps noise matters most; write a file for plans.

    Plans with as many steps use it with --schedule influence --set schedule.file=FILE.
    """
    require_choice("task", task, TASKS)
    require_count("runs", runs, minimum=2)
    check_outputs(out_file)
    from sordino.app.cli._fitting import prepared

    built = planning.Plan.load(plan_file)
    frame = models.read_table(file)
    with warnings.catch_warnings():
        # What is taken from this table is public: that is what giving it here says.
        warnings.simplefilter("ignore", PrivacyWarning)
        schema = public_schema(frame, target, schema_file)
        chosen, schema = resolve_task(task, schema)
        table = prepared(chosen, frame, schema, {})
    public = schedules.PublicData(table.rows, table.labels)
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

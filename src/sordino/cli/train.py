"""``sordino train``: from a table to a private model, its guarantee and a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.console import err, out, show_guarantee, show_scores, spoken_warnings
from sordino.errors import SordinoError, nearest, require_choice, require_positive

if TYPE_CHECKING:
    from sordino.models.schema import Schema

TASKS = ("auto", "classification", "regression")


def train(
    file: Annotated[Path, typer.Argument(help="The private table: .csv or .parquet.")],
    *,
    target: Annotated[
        str | None, typer.Option(help="The column to predict (or named in the schema).")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")],
    delta: Annotated[
        float | None, typer.Option(help="Default: a tenth of 1 over the rows.")
    ] = None,
    schema_file: Annotated[
        Path | None,
        typer.Option(
            "--schema", help="What is public about the table: bounds, categories, classes, rows."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="auto, or a name from `sordino recipes`.")] = "auto",
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.")] = None,
    test_file: Annotated[
        Path | None, typer.Option(help="PUBLIC test data; the only data scores are computed on.")
    ] = None,
    task: Annotated[str, typer.Option(help="auto, classification or regression.")] = "auto",
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Default: <file>-sordino, beside the file.")
    ] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="zero-out, add-remove or replace-one.")
    ] = None,
    unit: Annotated[str, typer.Option(help="Whose data a row is: example, user, client.")] = (
        "example"
    ),
    noise: Annotated[
        str, typer.Option(help="gaussian, or discrete: exact on a lattice, slower.")
    ] = "gaussian",
    ledger: Annotated[
        Path | None,
        typer.Option(envvar="SORDINO_LEDGER", help="The ledger that keeps the data set's budget."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The data set's name in the ledger. Default: the file's.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from a checkpoint, and start nothing if there is none."
        ),
    ] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Drop an interrupted run and start anew, at its own cost."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier run's folder.")
    ] = False,
) -> None:
    """Train a private linear model on a table; write the model, plan, guarantee and report.

    A run that was interrupted goes on when the same command is given again.
    """
    from sordino.cli.output import check_free, staged_folder, write_run

    folder = out_folder if out_folder is not None else _beside(file)
    checkpoint = settle_checkpoint(folder, resume=resume, restart=restart)
    check_free(folder, force=force)
    # Checked again when planning; here so that a typo does not wait for a large file.
    require_choice("task", task, TASKS)
    require_positive("epsilon", epsilon)
    charged = check_account(ledger, dataset, file)

    from sordino.datasets import read_table
    from sordino.engine.recovery import forget

    with spoken_warnings() as notes:
        frame = read_table(file)
        schema = public_schema(frame, target, schema_file)
        test = None if test_file is None else read_table(test_file)
        chosen, schema = resolve_task(task, schema)
        from sordino.cli.fitting import fit, score

        settings: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "method": method,
            "epochs": epochs,
            "batch_size": batch_size,
            "adjacency": adjacency,
            "unit": unit,
            "noise": noise,
            "checkpoint": str(checkpoint),
        }
        settings |= charged
        if test is not None:
            schema.split(test)
        with resumable(checkpoint), staged_folder(folder, force=force) as staging:
            model = fit(chosen, frame, schema, settings, test)
            results = None if test is None else score(model, test, schema)
            assert schema.target is not None
            write_run(
                staging,
                model,
                title=f"Predicting {schema.target} from {file.name}",
                target=schema.target,
                notes=notes,
                results=results,
                date=today(),
            )
    forget(checkpoint)
    if results is None:
        out().print("not scored: give public test data with --test-file to see how good it is")
    else:
        show_scores(results)
    show_guarantee(model.guarantee_.sentence())
    show_folder(folder)


def check_account(ledger: Path | None, dataset: str | None, file: Path) -> dict[str, Any]:
    """The estimator's settings for a ledger; a wrong name is found out before the table is read."""
    if ledger is None:
        if dataset is not None:
            raise SordinoError("--dataset names a data set in a ledger; give --ledger too")
        return {}
    from sordino.ledger import Ledger

    opened = Ledger.open(ledger)
    name = dataset if dataset is not None else file.stem.removesuffix(".csv")
    opened.dataset(name)
    return {"ledger": opened, "dataset": name}


def checkpoint_of(folder: Path) -> Path:
    """Where an interrupted run is kept: ``income-sordino.checkpoint`` beside ``income-sordino``."""
    return folder.with_name(f"{folder.name}.checkpoint")


def settle_checkpoint(folder: Path, *, resume: bool, restart: bool) -> Path:
    """The run's checkpoint file, after what an earlier run may have left there was dealt with."""
    from sordino.engine.checkpoint import read_progress
    from sordino.engine.recovery import forget

    path = checkpoint_of(folder)
    if resume and restart:
        raise SordinoError("give --resume or --restart, not both")
    if not path.exists():
        if resume:
            raise SordinoError(f"there is no interrupted run at {str(path)!r} to go on with")
        return path
    done, steps = read_progress(path)
    if restart or (done == steps and folder.exists()):
        # Finished and written, or given up: its key is of no use to anyone but an attacker.
        forget(path)
    else:
        out().print(f"going on with an interrupted run after step {done:,} of {steps:,}")
    return path


@contextmanager
def resumable(checkpoint: Path) -> Iterator[None]:
    """Say how to go on, if the run is stopped from the keyboard."""
    try:
        yield
    except KeyboardInterrupt:
        if not checkpoint.exists():
            raise
        from sordino.cli.main import INTERRUPTED

        err().print("stopped; the same command goes on from the last checkpoint", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _beside(file: Path) -> Path:
    """``income.csv`` and ``income.csv.gz`` both become ``income-sordino``."""
    return file.with_name(f"{file.stem.removesuffix('.csv')}-sordino")


def public_schema(frame: Any, target: str | None, path: Path | None) -> Schema:
    """The schema given, or one taken from the data with a warning; its target is settled."""
    from dataclasses import replace

    from sordino.models.schema import Schema

    given = None if path is None else Schema.load(path)
    named = given.target if given is not None else None
    if target is None and named is None:
        raise SordinoError("name the column to predict with --target")
    if target is not None and named is not None and target != named:
        raise SordinoError(f"the schema's target is {named!r}, but --target is {target!r}")
    wanted = target if target is not None else named
    assert wanted is not None
    names = [str(name) for name in frame.columns]
    if wanted not in names:
        raise SordinoError(f"the table has no column {wanted!r}{nearest(wanted, names)}")
    return Schema.infer(frame, wanted) if given is None else replace(given, target=wanted)


def resolve_task(task: str, schema: Schema) -> tuple[str, Schema]:
    """The task, from what the schema says about the target, and the schema that fits it."""
    from dataclasses import replace

    if task == "auto":
        if schema.classes is not None:
            return "classification", schema
        if schema.target_bounds is not None:
            return "regression", schema
        raise SordinoError(
            "the schema has neither classes nor target_bounds; add one of them, or give --task"
        )
    if task == "classification":
        return task, replace(schema, target_bounds=None)
    return task, replace(schema, classes=None)


def today() -> str:
    """The date for reports; the library itself reads no clock."""
    from datetime import date

    return date.today().isoformat()


def show_folder(folder: Path) -> None:
    """Where everything is."""
    console = out()
    for name in sorted(entry.name for entry in folder.iterdir()):
        console.print(f"wrote {folder / name}", soft_wrap=True, markup=False)

"""``sordino train``: from a table to a private model, its guarantee and a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import engine, models, privacy
from sordino._base.errors import SordinoError, nearest, require_choice, require_positive
from sordino._base.types import Json
from sordino.app.cli._console import (
    INTERRUPTED,
    err,
    out,
    say,
    show_guarantee,
    show_scores,
    spoken_warnings,
)
from sordino.app.cli._options import RecipeOptions, with_fields, with_options
from sordino.app.cli._output import check_free, staged_folder, write_run
from sordino.app.cli._raw_options import RawOptions, check_column
from sordino.engine import ledger as ledgers
from sordino.privacy import ROW

if TYPE_CHECKING:
    import pandas as pd

    from sordino.models import Schema

TASKS = ("auto", "classification", "regression")
LedgerFile = Annotated[
    Path | None,
    typer.Option(envvar="SORDINO_LEDGER", help="The ledger that keeps the data set's budget."),
]
DatasetName = Annotated[
    str | None, typer.Option(help="The data set's name in the ledger. Default: the file's.")
]


@dataclass(frozen=True, kw_only=True)
class TableRun:
    """A private run on a table: what `train` and `audit one-run` are asked for."""

    target: Annotated[
        str | None, typer.Option(help="The column to predict (or named in the schema).")
    ] = None
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")]
    delta: Annotated[float | None, typer.Option(help="Default: a tenth of 1 over the rows.")] = None
    schema_file: Annotated[
        Path | None,
        typer.Option(
            "--schema", help="What is public about the table: bounds, categories, classes, rows."
        ),
    ] = None
    recipe: Annotated[str, typer.Option(help="auto, or a name from `sordino recipes`.")] = "auto"
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.")] = None
    task: Annotated[str, typer.Option(help="auto, classification or regression.")] = "auto"
    adjacency: Annotated[str | None, typer.Option(help="zero-out, add-remove or replace-one.")] = (
        None
    )
    ledger: LedgerFile = None
    dataset: DatasetName = None

    def check(self, file: Path) -> Json:
        """Find typos before a large file is read; the estimator's settings for a ledger."""
        require_choice("task", self.task, TASKS)
        require_positive("epsilon", self.epsilon)
        return check_account(self.ledger, self.dataset, file)

    def settings(self, options: RecipeOptions) -> Json:
        """What the estimator is told."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "recipe": self.recipe,
            "options": options.of(models.automatic_recipe(self.recipe)),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "adjacency": self.adjacency,
        }

    def schema(self, frame: pd.DataFrame) -> tuple[str, Schema]:
        """The task and the schema of a table."""
        return resolve_task(self.task, public_schema(frame, self.target, self.schema_file))


@with_options(old_recipe=True)
@with_fields(RawOptions, "raw")
@with_fields(TableRun, "asked")
def train(
    file: Annotated[Path, typer.Argument(help="The private table: .csv or .parquet.")],
    *,
    test_file: Annotated[
        Path | None, typer.Option(help="PUBLIC test data to score on, instead of people held out.")
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Default: <file>-sordino, beside the file.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            help="Who is protected: example (one row), person, user or client. Default: person with "
            "--person-column, else example."
        ),
    ] = None,
    one_row_per_person: Annotated[
        bool,
        typer.Option(
            "--one-row-per-person",
            help="Your statement that every person has one row; --unit user without ids needs it.",
        ),
    ] = False,
    person_column: Annotated[
        str | None,
        typer.Option(help="The column with people's ids: all rows of one are protected together."),
    ] = None,
    noise: Annotated[
        str, typer.Option(help="gaussian, or discrete: exact on a lattice, slower.")
    ] = "gaussian",
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
    asked: TableRun,
    raw: RawOptions,
    options: RecipeOptions,
) -> None:
    """Train a private linear model on a table; write the model, plan, guarantee and report.

    What is public about the table may stand in a schema. Everything else is found inside the budget, and
    one person in ten is held out to say how good the model is. A run that was interrupted goes on when the
    same command is given again.
    """
    folder = out_folder if out_folder is not None else _beside(file)
    checkpoint = settle_checkpoint(folder, resume=resume, restart=restart)
    check_free(folder, force=force)
    public = None if asked.schema_file is None else models.Schema.load(asked.schema_file)
    share = raw.share(tested=test_file is not None, noise=noise)
    if raw.applies(public, share, persons=person_column is not None and not one_row_per_person):
        return _train_raw(
            file,
            asked,
            raw,
            options,
            public,
            folder=folder,
            checkpoint=checkpoint,
            force=force,
            test_file=test_file,
            person_column=person_column,
            about={
                "unit": unit or ROW,
                "one_row_per_person": one_row_per_person,
                "noise": noise,
                **raw.settings(public, share),
            },
        )
    unit = unit or ROW
    check_unit(unit, one_row_per_person, person_column)
    charged = asked.check(file)
    settings = asked.settings(options)
    with spoken_warnings() as notes:
        frame = models.read_table(file)
        features, population = apart(frame, person_column)
        chosen, schema = asked.schema(features)
        check_no_feature(person_column, schema)
        test = None if test_file is None else models.read_table(test_file)
        from sordino.app.cli._fitting import fit, score

        settings |= {
            "unit": unit,
            "one_row_per_person": one_row_per_person,
            "noise": noise,
            "checkpoint": str(checkpoint),
            # What is not in the schema was taken from the table by now.
            "undeclared": "take",
        }
        settings |= charged
        if test is not None:
            schema.split(test)
        with resumable(checkpoint), staged_folder(folder, force=force) as staging:
            model = fit(chosen, frame, schema, settings, test, people=population)
            results = None if test is None else score(model, test, schema)
            assert schema.target is not None
            write_run(
                staging,
                model,
                title=f"Predicting {schema.target} from {file.name}",
                target=schema.target,
                notes=[*notes, *_people_note(unit, person_column)],
                results=results,
                date=today(),
                declared=asked.schema_file is not None,
            )
    engine.forget(checkpoint)
    if results is None:
        out().print("not scored: give public test data with --test-file to see how good it is")
    else:
        show_scores(results)
    show_guarantee(model.guarantee_.sentence())
    show_folder(folder)


def _train_raw(
    file: Path,
    asked: TableRun,
    raw: RawOptions,
    options: RecipeOptions,
    schema: Schema | None,
    *,
    folder: Path,
    checkpoint: Path,
    force: bool,
    test_file: Path | None,
    person_column: str | None,
    about: Json,
) -> None:
    """The same on a table that is read as it is."""
    from sordino.app.cli._raw import fit_raw, people_note, score_raw

    if about["unit"] != ROW and person_column is None:
        check_unit(about["unit"], about["one_row_per_person"], None)
    settings = asked.settings(options) | {"checkpoint": str(checkpoint)} | asked.check(file) | about
    # Persons of one row each are a statement, which ids only check.
    stated = _people_note(about["unit"], person_column) if about["one_row_per_person"] else []
    asked_for = None if about["one_row_per_person"] else person_column
    with spoken_warnings() as notes:
        target = target_of(asked.target, schema)
        table = models.read_raw(file, raw.separator)
        frame = raw.without(table)
        for name in (target, *(() if person_column is None else (person_column,))):
            check_column(frame, name)
        if schema is not None:
            check_no_feature(person_column, schema)
        test = None if test_file is None else models.read_raw(test_file, raw.separator)
        with resumable(checkpoint), staged_folder(folder, force=force) as staging:
            model = fit_raw(
                asked.task,
                frame,
                target,
                schema,
                settings,
                class_weight=raw.class_weight,
                person_column=person_column,
                file=table,
            )
            results = None if test is None else score_raw(model, test, target, raw.decimal)
            write_run(
                staging,
                model,
                title=f"Predicting {target} from {file.name}",
                target=target,
                notes=[*notes, *stated, *people_note(asked_for, model.person_power)],
                results=results,
                date=today(),
            )
    engine.forget(checkpoint)
    if results is not None:
        show_scores(results)
    if hasattr(model, "evaluation_"):
        for line in model.evaluation_.lines():
            say(line)
    elif results is None:
        say("not scored: hold people out with --evaluate 0.1, or give --test-file")
    show_guarantee(model.guarantee_.sentence())
    show_folder(folder)


def target_of(target: str | None, schema: Schema | None) -> str:
    """The column to predict, as the command or the schema names it."""
    named = None if schema is None else schema.target
    if target is None and named is None:
        raise SordinoError("name the column to predict with --target")
    if target is not None and named is not None and target != named:
        raise SordinoError(f"the schema's target is {named!r}, but --target is {target!r}")
    wanted = target if target is not None else named
    assert wanted is not None
    return wanted


def check_unit(unit: str, stated: bool, person_column: str | None) -> None:
    """Refuse a unit without its statement in this command's words, before the table is read."""
    require_choice("unit", unit, privacy.UNITS)
    if unit == "example":
        if person_column is not None:
            raise SordinoError(
                "--person-column is checked where people are protected, with --unit user "
                "--one-row-per-person; --unit example protects one row of a person and no more"
            )
    elif not stated:
        raise SordinoError(
            f"--unit {unit} protects a {unit} only if every {unit} has one row of the table; say so "
            "with --one-row-per-person (and name their ids with --person-column to have it "
            "checked), or use --unit example, which protects single rows"
        )


def _people_note(unit: str, person_column: str | None) -> list[str]:
    """What the report says about people and rows, where that is what the guarantee rests on."""
    if unit == "example":
        return []
    basis = (
        "by whoever trained the model, and was not checked"
        if person_column is None
        else f"and checked: no id in the column {person_column!r} came twice"
    )
    return [
        f"The guarantee protects a whole {unit} only if every {unit} has one row of the table. That "
        f"was stated {basis}."
    ]


def apart(frame: pd.DataFrame, person_column: str | None) -> tuple[pd.DataFrame, pd.Series | None]:
    """The table without the column of people's ids, and that column."""
    if person_column is None:
        return frame, None
    names = [str(name) for name in frame.columns]
    if person_column not in names:
        raise SordinoError(
            f"the table has no column {person_column!r}{nearest(person_column, names)}"
        )
    return frame.drop(columns=[person_column]), frame[person_column]


def check_no_feature(person_column: str | None, schema: Schema) -> None:
    """Refuse a schema that makes people's ids a feature or the target."""
    if person_column is not None and person_column in (*schema.names, schema.target):
        raise SordinoError(
            f"{person_column!r} has people's ids, which say nothing but who they are; take it out "
            "of the schema's columns"
        )


def check_account(ledger: Path | None, dataset: str | None, file: Path) -> Json:
    """The estimator's settings for a ledger; a wrong name is found out before the table is read."""
    if ledger is None:
        if dataset is not None:
            raise SordinoError("--dataset names a data set in a ledger; give --ledger too")
        return {}

    opened = ledgers.Ledger.open(ledger)
    name = dataset if dataset is not None else file.stem.removesuffix(".csv")
    opened.dataset(name)
    return {"ledger": opened, "dataset": name}


def checkpoint_of(folder: Path) -> Path:
    """Where an interrupted run is kept: ``income-sordino.checkpoint`` beside ``income-sordino``."""
    return folder.with_name(f"{folder.name}.checkpoint")


def settle_checkpoint(folder: Path, *, resume: bool, restart: bool) -> Path:
    """The run's checkpoint file, after what an earlier run may have left there was dealt with."""
    path = checkpoint_of(folder)
    if resume and restart:
        raise SordinoError("give --resume or --restart, not both")
    if not path.exists():
        if resume:
            raise SordinoError(f"there is no interrupted run at {str(path)!r} to go on with")
        return path
    done, steps = engine.read_progress(path)
    if restart or (done == steps and folder.exists()):
        # Finished and written, or given up: its key is of no use to anyone but an attacker.
        engine.forget(path)
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
        err().print("stopped; the same command goes on from the last checkpoint", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _beside(file: Path) -> Path:
    """``income.csv`` and ``income.csv.gz`` both become ``income-sordino``."""
    return file.with_name(f"{file.stem.removesuffix('.csv')}-sordino")


def public_schema(frame: pd.DataFrame, target: str | None, path: Path | None) -> Schema:
    """The schema given, or one taken from the data with a warning; its target is settled."""
    given = None if path is None else models.Schema.load(path)
    wanted = target_of(target, given)
    names = [str(name) for name in frame.columns]
    if wanted not in names:
        raise SordinoError(f"the table has no column {wanted!r}{nearest(wanted, names)}")
    return models.Schema.infer(frame, wanted) if given is None else replace(given, target=wanted)


def resolve_task(task: str, schema: Schema) -> tuple[str, Schema]:
    """The task, from what the schema says about the target, and the schema that fits it."""
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
    return date.today().isoformat()


def show_folder(folder: Path) -> None:
    """Where everything is."""
    for name in sorted(entry.name for entry in folder.iterdir()):
        say(f"wrote {folder / name}")

"""Options that commands of ``sordino party`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_RUN, _BUDGET, _TOGETHER, _RECIPE = "The run", "The budget", "Together", "Options of the recipe"
Party = Annotated[Path, typer.Argument(help="This party's folder.")]
Schema = Annotated[
    Path | None,
    typer.Option(
        help="What is public about the tables: bounds, categories, classes (JSON, TOML).",
        rich_help_panel=_RUN,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="Instead: a model of your own, as module:name.", rich_help_panel=_RUN),
]
AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        envvar="SORDINO_ALLOW_MODEL",
        help="Code of this machine that the file may name as its model, as module:name.",
    ),
]
Recipe = Annotated[str, typer.Option(help="From `sordino recipes`.", rich_help_panel=_RUN)]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Records of all parties in a step.", rich_help_panel=_RUN),
]
Batches = Annotated[
    str | None,
    typer.Option(help="Instead: each party's own, with commas.", rich_help_panel=_RUN),
]
Epochs = Annotated[float | None, typer.Option(help="Passes over all data.", rich_help_panel=_RUN)]
Steps = Annotated[int | None, typer.Option(help="Turns, instead of epochs.", rich_help_panel=_RUN)]
Name = Annotated[str | None, typer.Option(help="Of the run.", rich_help_panel=_RUN)]
Epsilon = Annotated[float, typer.Option(help="Each record's budget.", rich_help_panel=_BUDGET)]
Delta = Annotated[
    float | None,
    typer.Option(help="Default: a tenth of 1 over all records.", rich_help_panel=_BUDGET),
]
Adjacency = Annotated[
    str | None,
    typer.Option(help="zero-out, add-remove or replace-one.", rich_help_panel=_BUDGET),
]
Unit = Annotated[
    str | None,
    typer.Option(help="Whose data a record is: example, user, client.", rich_help_panel=_BUDGET),
]
OneRow = Annotated[
    bool,
    typer.Option(
        "--one-row-per-person",
        help="Your statement, for --unit user or client: each has one record, at one party only.",
        rich_help_panel=_BUDGET,
    ),
]
Engine = Annotated[
    str, typer.Option(help="How sums are kept secret: mask, mpyc, spu.", rich_help_panel=_TOGETHER)
]
Colluders = Annotated[
    int | None,
    typer.Option(help="How many parties may work together.", rich_help_panel=_TOGETHER),
]
Timeout = Annotated[
    float, typer.Option(help="Seconds that a turn may take.", rich_help_panel=_TOGETHER)
]
Clip = Annotated[
    float | None, typer.Option(help="Largest norm of a contribution.", rich_help_panel=_RECIPE)
]
Rate = Annotated[
    float | None,
    typer.Option(help="For tables, by default chosen from the plan.", rich_help_panel=_RECIPE),
]
Momentum = Annotated[float | None, typer.Option(help="From 0 to below 1.", rich_help_panel=_RECIPE)]
Sampling = Annotated[
    str | None,
    typer.Option(help="fixed, reshuffled, poisson, without-replacement.", rich_help_panel=_RECIPE),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other one, as name=value.", rich_help_panel=_RECIPE),
]
Test = Annotated[
    Path | None,
    typer.Option(
        "--test", "--test-file", help="PUBLIC test data; the only data scores are computed on."
    ),
]
Every = Annotated[
    int | None, typer.Option(help="Turns between two scores; a tenth of them by default.")
]

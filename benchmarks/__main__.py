"""The workshop's command: ``python -m benchmarks run | calibration | accountant | prediction | amplified | tables | speed``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from benchmarks.accountant import accountant
from benchmarks.calibration import calibration
from benchmarks.command import bench
from sordino.app import CommandGroup, run_app

app = typer.Typer(
    name="python -m benchmarks",
    cls=CommandGroup,
    help="Experiments, the papers' printed calibrations, and speed; in a checkout of Sordino.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(bench)
app.command("calibration")(calibration)
app.command("accountant")(accountant)


@app.command()
def prediction(
    data: Annotated[
        list[str] | None, typer.Argument(help="a9a, ijcnn1, mnist or breast-cancer.")
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option("--data", envvar="SORDINO_DATA", help="The folder of the data sets."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each plan and learning rate.")] = 8,
) -> None:
    """Compare predicted with trained losses; minutes."""
    from benchmarks import prediction as compared

    compared.main(data or ["a9a", "ijcnn1", "mnist"], folder, seeds)


@app.command()
def amplified(
    data: Annotated[list[str] | None, typer.Argument(help="mnist or a9a.")] = None,
    folder: Annotated[
        str | None,
        typer.Option("--data", envvar="SORDINO_DATA", help="The folder of the data sets."),
    ] = None,
) -> None:
    """The untuned classifier beside tuned Poisson DP-SGD at small epsilon; half an hour."""
    from benchmarks import amplified as compared

    compared.main(data or ["mnist", "a9a"], folder)


@app.command()
def tables(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="adult, nasscds, tv16, churn, loans, credit, survey or flights."),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option("--data", envvar="SORDINO_DATA", help="The folder of the data sets."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each table and epsilon.")] = 5,
) -> None:
    """Raw tables with nothing declared, beside models without privacy; a quarter of an hour."""
    from benchmarks import tables as raw

    raw.main(
        names or ["adult", "nasscds", "tv16", "churn", "loans", "credit", "survey"], folder, seeds
    )


@app.command()
def speed(
    peers: Annotated[
        str | None, typer.Argument(help="The folder of the other libraries' environments.")
    ] = None,
) -> None:
    """Measure planning, training, noise and speed beside other libraries; minutes."""
    from benchmarks import mnist, noise, recipes, scale
    from benchmarks import speed as side_by_side

    scale.main()
    recipes.main()
    noise.main()
    side_by_side.main(*([] if peers is None else [peers]))
    if "SORDINO_DATA" in os.environ:
        mnist.main()
    else:
        print("mnist: skipped; set SORDINO_DATA to a folder that holds mnist/")


if __name__ == "__main__":
    run_app(app)

"""``python -m benchmarks run``: run declared experiments, and tell them as tables and figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino import SordinoError
from sordino.app import err, out

if TYPE_CHECKING:
    from benchmarks.lab.results import Results
    from benchmarks.lab.suite import Progress

LIST = "list"
INTERRUPTED = 130
_PLACE = Path("benchmarks") / "experiments"


def bench(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT]...",
            help="Names, or TOML files; all of them if left out. 'list' lists them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few seeds: minutes, not hours.")] = False,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Choose settings on public rows instead, and write them down."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(envvar="SORDINO_DATA", show_envvar=True, help="The folder of the data sets."),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where results go. [default: bench-results, or -quick]"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes, of one thread each.")] = 2,
) -> None:
    """Run experiments and write their tables and figures; a second call goes on from the first."""
    names = experiments or []
    folder = experiments_folder()
    if names == [LIST]:
        _list(folder)
        return
    from benchmarks.lab.experiment import named_experiments
    from benchmarks.lab.suite import run_experiments, tune_experiments

    paths = named_experiments(names, folder)
    where = out_folder or Path("bench-results-quick" if quick else "bench-results")
    source = None if data is None else str(data)
    result: list[Results] | None = None
    try:
        with _bar() as progress:
            if tune:
                for path in tune_experiments(
                    paths, data=source, out=where, jobs=jobs, progress=progress
                ):
                    out().print(f"wrote {path}", markup=False, soft_wrap=True)
                return
            result = run_experiments(
                paths, quick=quick, data=source, out=where, jobs=jobs, progress=progress
            )
    except KeyboardInterrupt:
        pass  # said below, when nothing holds on to the workers any more
    if result is None:
        err().print("stopped; finished cells are kept, the same command goes on from them")
        raise typer.Exit(INTERRUPTED)
    for results in result:
        _show(results, where)


def experiments_folder() -> Path | None:
    """The experiments of this checkout: under the current folder, or where the package's source is."""
    for root in (Path(), Path(__file__).resolve().parents[3]):
        if (root / _PLACE).is_dir():
            return root / _PLACE
    return None


def _list(folder: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from benchmarks.lab.experiment import find_experiments, read_experiment

    if folder is None:
        raise SordinoError("there is no folder benchmarks/experiments here; run this in a checkout")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "what", "data", "contenders", "seeds"):
        table.add_column(heading, overflow="fold")
    for name, path in find_experiments(folder).items():
        experiment = read_experiment(path)
        data = sorted({population.data for population in experiment.populations})
        table.add_row(
            name,
            escape(experiment.title),
            ", ".join(data),
            str(len(experiment.contenders)),
            f"{experiment.seeds} (quick {experiment.quick_seeds})",
        )
    out().print(table)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar over cells; the time left follows from the cells done."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from benchmarks.lab.suite import Progress

    bar = Bar(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("cells,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=err(),
        speed_estimate_period=3600,
    )
    with bar:
        task = bar.add_task("starting", total=None)

        def begin(total: int, finished: int) -> None:
            # Those that were finished before say nothing about the time of the others.
            bar.reset(task, total=total - finished, description="running")
            if finished:
                bar.console.print(f"{finished} of {total} cells were finished before")

        def done(name: str) -> None:
            bar.update(task, advance=1, description=name)

        def tell(sentence: str) -> None:
            bar.console.print(sentence, markup=False, soft_wrap=True)

        yield Progress(begin, done, tell)


def _show(results: Results, folder: Path) -> None:
    from rich.markdown import Markdown

    from benchmarks.lab.page import tables, verdicts

    console = out()
    console.print(f"[bold]{results.experiment.title}[/]")
    for heading, text in tables(results):
        console.print(f"\n{heading}", markup=False)
        console.print(Markdown(text) if console.is_terminal else text, markup=False, soft_wrap=True)
    for sentence in verdicts(results):
        console.print(sentence, markup=False, soft_wrap=True)
    name = results.experiment.name
    console.print(
        f"\nwrote {name}.md, {name}.parquet, {name}.svg, {name}.png and {name}-times.md to {folder}",
        markup=False,
        soft_wrap=True,
    )

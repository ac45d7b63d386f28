"""What the commands say, and how: one voice for plans, warnings and errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from sordino._base.errors import PrivacyWarning, SordinoError

if TYPE_CHECKING:
    from rich.progress import Progress

    from sordino.planning import Plan, Spectrum
    from sordino.report import ScoreTable


# The exit code of a command that was stopped from the keyboard.
INTERRUPTED = 130


def out() -> Console:
    """Standard output. A new console each time, so that it follows redirection in tests."""
    return Console(highlight=False)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def say(text: str) -> None:
    """Text on standard output as it is: no markup, and lines as long as they are."""
    out().print(text, markup=False, soft_wrap=True)


def say_error(message: object) -> None:
    """One red line on standard error."""
    text = " ".join(str(message).split())
    err().print(f"[bold red]error:[/] {escape(text)}", soft_wrap=True)


@contextmanager
def spoken_warnings() -> Iterator[list[str]]:
    """Privacy warnings as yellow lines on standard error, each once; yields the messages so far."""
    said: list[str] = []

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        text = " ".join(str(message).split())
        if not issubclass(category, PrivacyWarning):
            before(message, category, *rest, **more)
        elif text not in said:
            said.append(text)
            err().print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", PrivacyWarning)
        before = warnings.showwarning
        warnings.showwarning = show
        yield said


def new_table(**settings: Any) -> Table:
    """A table as all commands show them: a line below the headings, and no frame."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, **settings)


def show_plan(plan: Plan, parameters: int | None = None, spectrum: Spectrum | None = None) -> None:
    """The plan's page: a panel on a terminal, plain lines elsewhere."""
    lines = plan.lines(spectrum)
    if parameters is not None:
        size = plan.state_bytes(parameters)
        lines.insert(-1, ("memory in all", f"{_bytes(size)} for {parameters:,} parameters"))
    console = out()
    if not console.is_terminal:
        width = max(len(heading) for heading, _ in lines)
        for heading, text in lines:
            say(f"{heading:>{width}}  {text}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right", style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for heading, text in lines:
        grid.add_row(heading, Text(text, style="bold" if heading == "guarantee" else ""))
    console.print(Panel(grid, title="[bold]plan[/]", title_align="left", border_style="cyan"))


def show_scores(comparison: ScoreTable) -> None:
    """Scores on public test data, the private one first."""
    table = new_table()
    table.add_column("model", overflow="fold")
    table.add_column(comparison.metric.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("guarantee")
    table.add_column("how", overflow="fold")
    for row in comparison.rows:
        half = comparison.whisker(row.value)
        value = f"{row.value:.3f} ± {half:.3f}" if half else f"{row.value:.4g}"
        style = {"covered": "bold green", "not covered": "red"}.get(row.coverage, "")
        table.add_row(escape(row.name), value, row.coverage, escape(row.note), style=style)
    out().print(table)


def show_guarantee(sentence: str) -> None:
    """The guarantee, set apart on a terminal."""
    console = out()
    if not console.is_terminal:
        console.print(sentence, soft_wrap=True, markup=False)
        return
    body = Text(sentence)
    console.print(Panel(body, title="[bold]guarantee[/]", title_align="left", border_style="green"))


def progress_bar(what: str, console: Console, *, width: int) -> Progress:
    """A bar over the turns or rounds of a run, with a description; only on a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn(what),
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=False)),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )


def check_outputs(*files: Path | None, plot: Path | None = None) -> None:
    """Refuse files that cannot be written, before any work is done for them."""
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise SordinoError(f"a plot is a .png, .svg or .pdf file, got {str(plot)!r}")
    for path in (*files, plot):
        if path is not None and not path.parent.is_dir():
            raise SordinoError(f"there is no folder {str(path.parent)!r} to write into")


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"

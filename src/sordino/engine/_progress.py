"""The progress bar: steps, steps per second, time left. It sees step counts and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class Advance(Protocol):
    """Called with the number of steps done so far and, if there are any, public metrics."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(
    steps: int, *, show: bool = True, console: Console | None = None
) -> Iterator[Advance]:
    """A bar over `steps` steps (a no-op unless `show`)."""
    if not show:
        yield lambda done, note="": None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        """Steps per second since the start."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", no_wrap=True)

    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("steps,"),
        Speed(),
        TimeRemainingColumn(compact=True),
        TextColumn("left {task.fields[note]}"),
        console=console,
        speed_estimate_period=600,
    )
    with bar:
        task = bar.add_task("training", total=steps, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)

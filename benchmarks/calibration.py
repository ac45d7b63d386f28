"""``python -m benchmarks calibration``: the papers' printed noise beside the exact one, as one table."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.app import err, out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.papers.table import CalibrationRow


def calibration(
    everything: Annotated[
        bool, typer.Option("--all", help="Add the comparisons that take several seconds each.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Compare the noise that papers print with the least that is needed; no data is read."""
    from benchmarks.papers.table import rows

    with err().status("calibrating"):
        result = list(rows(slow=everything))
    if as_json:
        text = json.dumps([row.to_json() for row in result], indent=1)
        out().print(text, soft_wrap=True, markup=False)
    else:
        _show(result)


def _show(found: Sequence[CalibrationRow]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    console = out()
    for paper, group in groupby(found, key=lambda row: row.paper):
        members = list(group)
        budgets = {(row.epsilon, row.delta) for row in members}
        shared = f" at {_budget(members[0])}" if len(budgets) == 1 else ""
        console.print(f"[bold cyan]{escape(paper + shared)}[/]")
        table = Table(box=SIMPLE_HEAD, pad_edge=False, width=min(console.width, 100))
        table.add_column("case", overflow="fold", ratio=1)
        table.add_column("adjacency", no_wrap=True)
        for heading in ("printed", "ours", "factor"):
            table.add_column(heading, justify="right", no_wrap=True, min_width=7)
        for row in members:
            others = "".join(f"; {name} {value:.4g}" for name, value in row.others.items())
            note = f"{row.note}{others}".removeprefix("; ")
            case = row.case if shared else f"{row.case}, {_budget(row)}"
            table.add_row(
                escape(case) + (f"\n[dim]{escape(note)}[/]" if note else ""),
                row.adjacency,
                f"{row.printed:.4g}",
                f"{row.ours:.4g}",
                f"x{row.factor:.2f}",
                style="" if row.factor >= 1 else "red",
            )
        console.print(table)
    console.print(
        "Noise: standard deviation on the sum of contributions over their norm bound, at equal "
        "(epsilon, delta) and adjacency; below x1 the printed noise breaks its promise. N: steps in "
        "an epoch; fixed, fresh: the same batches or new ones in every epoch.",
        style="dim",
    )


def _budget(row: CalibrationRow) -> str:
    return f"({row.epsilon:.3g}, {row.delta:g})"

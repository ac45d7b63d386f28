"""A comparison of recipes as a table, with its conclusion in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.app.cli._console import out

if TYPE_CHECKING:
    from sordino.planning import RecipeRanking


def show_comparison(found: RecipeRanking) -> None:
    """The ranking as a table, what was left out, and the conclusion in words."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from sordino.planning import conclusion

    console = out()
    best = found.best
    console.print(
        f"All at epsilon {found.epsilon:.4g}, delta {found.delta:g}, {found.adjacency} adjacency and "
        f"about {best.gradient_evaluations:,} gradient evaluations:"
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("recipe and noise", overflow="fold")
    table.add_column("noise", justify="right")
    table.add_column("slow\ngain", justify="right")
    table.add_column("steps", justify="right")
    table.add_column("memory", justify="right")
    table.add_column("needs secret\nrandom batches")
    for place, row in enumerate(found.ranked):
        table.add_row(
            "best" if place == 0 else "",
            row.label,
            f"{row.relative_error / best.relative_error:.2f} x",
            f"{row.gain:.3g}",
            f"{row.steps:,}",
            f"{row.noise_vectors:,}",
            "yes" if row.secret_batches else "no",
            style="bold green" if place == 0 else "",
        )
    console.print(table)
    console.print(
        "noise: in the iterates, relative to the way of a gradient of norm clip; slow gain: how much "
        "of slow noise gets there, against a plain gradient; memory: vectors of the model's size. "
        "Recipes that pay for differences assume that those stay within their clip.",
        style="dim",
    )
    for label, reason in found.left_out:
        console.print(f"left out: {escape(label)}: {escape(reason)}", style="dim")
    console.print()
    console.print(escape(conclusion(found)), style="bold")

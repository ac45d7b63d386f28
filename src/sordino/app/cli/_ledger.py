"""``sordino ledger``: budgets that runs share, and who spent what."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from sordino import models, planning, privacy
from sordino._base.errors import SordinoError, nearest
from sordino._base.types import Json
from sordino.app.cli._console import new_table, out, say
from sordino.engine import ledger as ledgers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from sordino.engine.ledger import Headroom, Ledger, LedgerEntry, Status

app = typer.Typer(
    no_args_is_help=True,
    help="Keep budgets that several runs share: reserved before a record is read, never lost.",
)

_File = Annotated[
    Path | None,
    typer.Option("--ledger", envvar="SORDINO_LEDGER", help="The ledger file.", show_envvar=True),
]
_Who = Annotated[str | None, typer.Option(help="Who does this; by default user@host.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
_DatasetFilter = Annotated[
    str | None, typer.Argument(help="A data set; all of them if left out.", show_default=False)
]


@app.command()
def init(ledger: _File = None, who: _Who = None) -> None:
    """Make a new, empty ledger."""
    built = ledgers.Ledger.create(_named(ledger), who=who)
    out().print(f"made {str(built.path)!r}; its key is in your key folder", markup=False)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The data set's public name.")],
    epsilon: Annotated[float | None, typer.Option(help="The budget of all runs together.")] = None,
    delta: Annotated[float | None, typer.Option(help="Well below 1/examples.")] = None,
    mu: Annotated[float | None, typer.Option(help="Instead: a budget of mu-GDP.")] = None,
    adjacency: Annotated[
        str, typer.Option(help="zero-out, add-remove or replace-one.")
    ] = "zero-out",
    unit: Annotated[str, typer.Option(help="example, user or client.")] = "example",
    rows: Annotated[
        int | None, typer.Option(help="How many rows it has, if public; other runs are refused.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The table: runs on other data are refused, parts of it are recognised."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column of --data that models predict.")
    ] = None,
    person_column: Annotated[
        str | None, typer.Option(help="The column of --data with people's ids: whose data it is.")
    ] = None,
    ledger: _File = None,
    who: _Who = None,
) -> None:
    """Give a data set a budget. It cannot be changed later.

    Without --data, the first `sordino train` on a file decides which data the name stands for.
    """
    book = _opened(ledger)
    known: Json = {}
    if data is not None:
        known = _known(book, models.read_table(data), target, person_column)
    elif target is not None or person_column is not None:
        raise SordinoError("--target and --person-column are columns of --data; give --data too")
    built = book.add_dataset(
        name,
        epsilon=epsilon,
        delta=delta,
        mu=mu,
        adjacency=adjacency,
        unit=unit,
        rows=rows,
        who=who,
        **known,
    )
    say(f"{built.name}: {built.describe()}")


@app.command()
def show(dataset: _DatasetFilter = None, ledger: _File = None, as_json: _Json = False) -> None:
    """What is spent of each budget, by which runs, and what is left."""
    book = _opened(ledger)
    names = [dataset] if dataset is not None else [result.name for result in book.datasets()]
    result = [book.status(name) for name in names]
    if as_json:
        _print_json([status.to_json() for status in result])
        return
    if not result:
        out().print("no data set yet; add one with: sordino ledger add NAME --epsilon E --delta D")
    for status in result:
        show_status(status)


@app.command()
def history(dataset: _DatasetFilter = None, ledger: _File = None, as_json: _Json = False) -> None:
    """Every entry, in the order in which they were made."""
    result = _opened(ledger).history(dataset)
    if as_json:
        _print_json([entry.to_json() for entry in result])
    else:
        _show_history(result)


@app.command("what-fits", hidden=True)  # its name up to 0.5
@app.command()
def headroom(
    dataset: Annotated[str, typer.Argument(help="The data set.")],
    plan: Annotated[
        Path | None, typer.Option(help="Also say whether this plan (JSON) fits.", exists=False)
    ] = None,
    ledger: _File = None,
    as_json: _Json = False,
) -> None:
    """The largest single run that the budget still has room for; nothing is reserved.

    With --plan, exits with code 1 if the plan does not fit.
    """
    book = _opened(ledger)
    fits = book.what_fits(dataset)
    answer: Json = {"mu": fits.mu, "epsilon": fits.epsilon, "delta": fits.delta}
    lines = [_room(fits)]
    if plan is not None:
        try:
            book.check(dataset, planning.Plan.load(plan))
            answer["plan"] = {"fits": True}
            lines.append("the plan fits")
        except ledgers.BudgetExceeded as refused:
            answer["plan"] = {"fits": False, "noise_factor": refused.fits.noise_factor}
            lines.append(f"the plan does not fit: {refused}")
    if as_json:
        _print_json(answer)
    else:
        for line in lines:
            say(line)
    if not answer.get("plan", {"fits": True})["fits"]:
        raise typer.Exit(1)


@app.command()
def cancel(
    run: Annotated[str, typer.Argument(help="The run's identity, or how it begins.")],
    ledger: _File = None,
    who: _Who = None,
) -> None:
    """Give back the reservation of a run that never started."""
    book = _opened(ledger)
    names = [held.run for held in book.reservations()]
    begins = [name for name in names if name.startswith(run)]
    if run not in names and len(begins) > 1:
        raise SordinoError(f"{len(begins)} runs begin with {run!r}; give more of its identity")
    name = begins[0] if run not in names and begins else run
    book.cancel(name, who=who)
    say(f"{name} is cancelled and no longer charged")


@app.command()
def verify(ledger: _File = None, as_json: _Json = False) -> None:
    """Check every seal, table and plan, and that this is the latest copy."""
    result = _opened(ledger).verify()
    if as_json:
        _print_json(asdict(result))
        return
    out().print(
        f"all {result.entries} entries are sealed and in order: {result.datasets} data sets, "
        f"{result.reservations} runs, head {result.head[:16]}",
        soft_wrap=True,
    )


def _known(book: Ledger, frame: pd.DataFrame, target: str | None, person: str | None) -> Json:
    """What a ledger knows a table by: all of it, and its rows without the target or its persons."""
    names = [str(name) for name in frame.columns]
    for name in (target, person):
        if name is not None and name not in names:
            raise SordinoError(f"the table has no column {name!r}{nearest(name, names)}")
    if person is not None:
        marks = book.marks(privacy.person_ids(frame[person]), persons=True)
    else:
        marks = book.marks(frame.drop(columns=[] if target is None else [target]))
    return {"fingerprint": book.fingerprint(frame), "marks": marks}


def _named(path: Path | None) -> Path:
    if path is None:
        raise SordinoError("name the ledger with --ledger FILE or the variable SORDINO_LEDGER")
    return path


def _opened(path: Path | None) -> Ledger:
    return ledgers.Ledger.open(_named(path))


def _print_json(data: object) -> None:
    say(json.dumps(data, indent=1))


def _room(fits: Headroom) -> str:
    return f"still possible: {fits.describe()}"


_STYLES = {
    "reserved": "yellow",
    "running": "cyan",
    "spent": "",
    "released": "green",
    "cancelled": "dim",
}


def show_status(status: Status) -> None:
    console, allowance = out(), status.dataset.allowance
    if status.epsilon is not None:
        assert allowance.epsilon is not None
        share, spent = (
            status.epsilon / allowance.epsilon,
            f"epsilon {privacy.rounded_up(status.epsilon)}",
        )
    else:
        assert allowance.mu is not None
        share, spent = status.mu / allowance.mu, f"mu {privacy.rounded_up(status.mu)}"
    console.print(
        f"[bold cyan]{escape(status.dataset.name)}[/]  {escape(status.dataset.describe())}",
        soft_wrap=True,
    )
    console.print(f"{_bar(share)} {spent} reserved by {_runs(len(status.reservations))}")
    say(_room(status.fits))
    if status.reservations:
        table = new_table()
        table.add_column("run", overflow="ellipsis", no_wrap=True, max_width=16)
        table.add_column("state", no_wrap=True)
        table.add_column("recipe", no_wrap=True)
        alone = "mu" if allowance.delta is None else "epsilon"
        table.add_column(f"{alone}, alone", justify="right", no_wrap=True)
        table.add_column("who", overflow="fold")
        table.add_column("when (UTC)", no_wrap=True)
        for held in status.reservations:
            delta = allowance.delta
            cost = held.charge.mu if delta is None else held.charge.epsilon(delta)
            table.add_row(
                escape(held.run),
                held.state,
                escape(held.recipe),
                privacy.rounded_up(cost),
                escape(held.who),
                _when(held.at),
                style=_STYLES.get(held.state, ""),
            )
        console.print(table)
    console.print()


def _show_history(entries: Sequence[LedgerEntry]) -> None:
    table = new_table()
    table.add_column("", justify="right", style="dim")
    table.add_column("when (UTC)", no_wrap=True)
    table.add_column("who", overflow="fold")
    table.add_column("what", no_wrap=True)
    table.add_column("about", overflow="fold")
    for entry in entries:
        about = " ".join(part for part in (entry.dataset, entry.run) if part)
        table.add_row(
            str(entry.number),
            _when(entry.at),
            escape(entry.who),
            entry.what,
            escape(about),
            style=_STYLES.get(entry.what, ""),
        )
    out().print(table)


def _bar(share: float, width: int = 24) -> str:
    """How much of the budget is gone; anything spent shows, and only all of it fills the bar."""
    filled = min(width, max(int(share * width), 1 if share > 0 else 0))
    style = "red" if share > 0.9 else "yellow" if share > 0.5 else "green"
    return f"[{style}]{'█' * filled}[/][dim]{'░' * (width - filled)}[/]"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _when(at: str) -> str:
    return at[:16].replace("T", " ")

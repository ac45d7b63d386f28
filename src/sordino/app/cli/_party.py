"""``sordino party``: owners of data train one model together; only noised sums are ever seen."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino import engine, models
from sordino._base.errors import PlanMismatchError, SordinoError, require_count, shown
from sordino._base.types import PyTree
from sordino.app.cli._console import INTERRUPTED, err, out, say, say_error, show_guarantee
from sordino.app.cli._ledger import show_status
from sordino.app.cli._options import RecipeOptions, with_fields, with_options
from sordino.app.cli._party_run import (
    GUARANTEE,
    REPORT,
    SCORES,
    ScoredRun,
    Scoring,
    finish,
    history_of,
    keep_scores,
    kept_scores,
    lines,
    progress,
    show_end,
    write_results,
)
from sordino.app.cli._party_terms import ProposalOptions, show_consortium, show_members, show_shares
from sordino.app.cli._train import DatasetName, LedgerFile, check_account, today
from sordino.engine import ledger as ledgers
from sordino.together import parties as parties_room
from sordino.together import secure, sites

if TYPE_CHECKING:
    import pandas as pd

    from sordino.together.parties import Consortium, TurnRecord
    from sordino.together.sites import PartySite

app = typer.Typer(
    no_args_is_help=True,
    help="Train one model between owners of data who show each other nothing but noised sums.",
)

# A run that was stopped by the others or by the network, and can go on; bad input is 2.
STOPPED = 1
_AGAIN = "give the same command again to go on"

Party = Annotated[Path, typer.Argument(help="This party's folder.")]
Test = Annotated[
    Path | None,
    typer.Option(
        "--test", "--test-file", help="PUBLIC test data; the only data scores are computed on."
    ),
]
AllowModel = Annotated[
    list[str] | None,
    typer.Option(
        envvar="SORDINO_ALLOW_MODEL",
        help="Code of this machine that the file may name as its model, as module:name.",
    ),
]
Every = Annotated[
    int | None, typer.Option(help="Turns between two scores; a tenth of them by default.")
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for this party.")],
    *,
    name: Annotated[str, typer.Option(help="What the others call it.")],
    examples: Annotated[int, typer.Option(help="Records it brings; they become public.")],
    host: Annotated[str, typer.Option(help="Where the others reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first of three that engines use.")] = 7000,
) -> None:
    """Make a party's keys, its certificate, and the card that it hands to the others."""
    card = sites.create_party(folder, name, examples=examples, host=host, port=port)
    say(
        f"{name}: {examples:,} records, at {host}:{port} (and the next two ports)\n"
        f"certificate {card.member.fingerprint}\n"
        f"wrote {folder}; all in it but {sites.CARD} is secret\n"
        f"next: give {folder / sites.CARD} to whoever proposes the run, and tell the others the "
        "certificate's number"
    )


@app.command()
@with_options()
@with_fields(ProposalOptions, "wanted")
def propose(
    cards: Annotated[
        list[Path], typer.Argument(help="The parties' cards; the first is in the middle.")
    ],
    *,
    out_file: Annotated[Path, typer.Option("--out", help="The consortium file.")],
    wanted: ProposalOptions,
    options: RecipeOptions,
) -> None:
    """Write the file that all parties sign: who, what, how, and for what budget. Reads no record."""
    if not out_file.parent.is_dir():
        raise SordinoError(f"there is no folder {str(out_file.parent)!r} to write into")
    result = [
        parties_room.PartyCard.load(path / sites.CARD if path.is_dir() else path) for path in cards
    ]
    trained = wanted.made_model()
    sizes = [card.examples for card in result]
    terms = wanted.terms(trained, sizes, wanted.asked(options))
    assert trained.description is not None
    name = wanted.name or out_file.stem
    consortium = parties_room.Consortium(
        name, tuple(result), terms, trained.description, wanted.timeout
    )
    consortium.save(out_file)
    show_consortium(consortium)
    show_guarantee(terms.statement())
    say(
        f"wrote {out_file}, digest {consortium.digest}\n"
        "next: give it to all parties; each looks at it and signs with\n"
        f"      sordino party sign FOLDER {out_file.name}"
    )


@app.command()
def sign(
    folder: Party,
    file: Annotated[Path, typer.Argument(help="The consortium file.")],
    *,
    allow_model: AllowModel = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Look at what is being agreed to, and agree."""
    site, consortium = sites.PartySite.load(folder), parties_room.Consortium.load(file)
    allow = tuple(allow_model or ())
    site.may_sign(consortium, allow=allow)
    console = out()
    console.print(f"{consortium.name}: {len(consortium.names)} parties", markup=False)
    show_consortium(consortium, own=site.name)
    show_members(consortium)
    show_guarantee(consortium.terms.statement())
    say(f"digest {consortium.digest}")
    if not yes and not typer.confirm(f"Sign this as {site.name!r}?"):
        err().print("not signed")
        raise typer.Exit(STOPPED)
    site.sign(consortium, allow=allow)
    say(f"signed; next: sordino party join {folder} --data TABLE, at the same time as the others")


@app.command()
def join(
    folder: Party,
    *,
    data: Annotated[Path, typer.Option(help="This party's table, or what its model loads.")],
    ledger: LedgerFile = None,
    dataset: DatasetName = None,
    test_file: Test = None,
    every: Every = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the others at first.")] = 600.0,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: FOLDER/report.html.")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Write none.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on a line for each turn.")
    ] = False,
    part: Annotated[
        str | None, typer.Option(hidden=True, help="i/m: every m-th record from the i-th on.")
    ] = None,
) -> None:
    """Take part until the model is trained. Started again, it goes on where it was."""
    site = sites.PartySite.load(folder)
    consortium, steps = site.consortium, site.consortium.terms.plan.population.steps
    if every is not None:
        require_count("every", every)
    if not 0 < wait <= 7 * 86400:
        raise SordinoError(f"wait must be up to 604,800 seconds, got {wait:g}")
    require_engine(consortium, consortium.place(site.name))
    charged = check_account(ledger, dataset, data)
    arrays = dealt(site.model.load(data), part)
    if charged:
        charged["known_by"] = _table(consortium, data)
    before = records_of(site)
    evaluate = None
    if test_file is not None:
        evaluate = site.model.evaluator(site.model.load(test_file))
    scoring = Scoring(
        evaluate,
        every or max(1, steps // 10),
        kept_scores(folder / SCORES),
        lambda scores: keep_scores(folder / SCORES, scores),
    )
    met = False
    lost = sum(record.lost for record in before)
    opened = lines() if as_json else progress(steps, lost=lost)
    if not as_json:
        show_shares(consortium, own=site.name)
    try:
        # A model of one's own may close over data, which a compiled program would hold.
        kept = engine.compilation_cache(
            wanted=(site.model.description or {}).get("kind") == "table"
        )
        with _stoppable(), kept, opened as display:

            def begun(session: Any, settled: int) -> None:
                nonlocal met
                met = True
                display.met(settled, session.lost)

            def turned(record: TurnRecord, learner: ScoredRun) -> None:
                scores = scoring.after(record, learner)
                display.turned(record.turn + 1, record.seconds, record.sent, scores)

            others = [name for name in consortium.names if name != site.name]
            display.waiting(", ".join(others))
            finished = site.run(
                arrays,
                join_timeout=wait,
                callbacks=parties_room.Callbacks(begun, turned),
                **charged,
            )
            if steps not in scoring.scores:
                display.scored(steps, scoring.of(steps, lambda: finished.params))
    except KeyboardInterrupt:
        if not (met or before):
            raise
        err().print(f"stopped, and the others too; {_AGAIN}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except PlanMismatchError:
        raise  # the same again would be refused again
    except SordinoError as error:
        say_error(error)
        after = records_of(site)
        if len(after) == steps:
            err().print(
                f"all {steps:,} turns are done and {folder / 'model.npz'} is written, but not all parties "
                f"have confirmed that theirs is the same: {_AGAIN} before you use it",
                markup=False,
                soft_wrap=True,
            )
        elif met or after:
            err().print(
                f"{len(after):,} of {steps:,} turns are settled and kept; {_AGAIN}", soft_wrap=True
            )
        raise typer.Exit(STOPPED) from None
    finish(site, finished, scoring, None if no_report else report or folder / REPORT, as_json)


@app.command()
@with_options()
@with_fields(ProposalOptions, "wanted")
def simulate(
    folder: Annotated[Path, typer.Argument(help="A folder for all parties of the simulation.")],
    *,
    data: Annotated[
        list[Path], typer.Option(help="One table to deal out, or one for each party in order.")
    ],
    parties: Annotated[
        str, typer.Option("--parties", "--names", help="How many, or their names with commas.")
    ],
    wanted: ProposalOptions,
    options: RecipeOptions,
    test_file: Test = None,
    every: Every = None,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: FOLDER/report.html.")
    ] = None,
) -> None:
    """Run all parties on this machine, each in a process of its own, to try a run out.

    The same command again goes on with a simulation that was stopped.
    """
    # Processes and sockets: for this command only.
    from sordino.app.cli._party_simulation import Simulation

    if every is not None:
        require_count("every", every)
    simulation = Simulation.prepared(folder, wanted, wanted.asked(options), data, _names(parties))
    consortium = simulation.consortium
    for place in range(len(consortium.names)):
        require_engine(consortium, place)
    show_consortium(consortium)
    simulation.run(test_file, every)
    records = simulation.records()
    history = history_of(kept_scores(simulation.folder_of(consortium.names[0]) / SCORES))
    target = report or folder / REPORT
    write_results(folder, consortium)
    written = [simulation.copy_model(), folder / GUARANTEE, target]
    parties_room.write_parties_report(
        target,
        consortium,
        records,
        title=f"{consortium.name} (simulated)",
        own=None,
        history=history,
        date=today(),
    )
    show_end(consortium, records, history, written)


@app.command()
def status(
    folder: Party,
    *,
    ledger: Annotated[
        Path | None, typer.Option(envvar="SORDINO_LEDGER", help="Also show this ledger's budget.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's name in the ledger.")] = None,
) -> None:
    """How far a party is, and what it has agreed to."""
    site = sites.PartySite.load(folder)
    say(f"{site.name}: {site.card.examples:,} records, at {site.card.host}:{site.card.port}")
    if not (folder / sites.CONSORTIUM).exists():
        say(f"nothing signed yet; next: sordino party sign {folder} FILE")
        return
    consortium = site.consortium
    terms = consortium.terms
    show_shares(consortium, own=site.name)
    seen = folder / sites.SIGNATURES
    signed = {site.name, *(json.loads(seen.read_text()) if seen.exists() else {})}
    missing = [name for name in consortium.names if name not in signed]
    say(f"signed {consortium.name}, digest {consortium.digest}")
    say(
        f"not yet seen to have signed: {', '.join(missing)}"
        if missing
        else "signatures of all parties were seen"
    )
    steps = terms.plan.population.steps
    try:
        records = records_of(site)
    except SordinoError as error:
        say(str(error))  # it is running, or its seal is elsewhere
    else:
        lost = sum(record.lost for record in records)
        left = f", {_AGAIN.replace('the same command', '`join`')}" if len(records) < steps else ""
        say(
            f"{len(records):,} of {steps:,} turns settled, {lost:,} of them lost{left if records else ''}"
        )
        if (folder / sites.MODEL).exists():
            say(f"the model is in {folder / sites.MODEL}")
    show_guarantee(terms.statement())
    if ledger is not None and dataset is not None:
        show_status(ledgers.Ledger.open(ledger).status(dataset))


def require_engine(consortium: Consortium, place: int) -> None:
    """An error that says what to install, before the others have come."""
    if consortium.terms.engine == "mpyc":
        secure.require_mpyc()
    if consortium.terms.engine == "spu" and place < 3:
        secure.find_environment()


def records_of(site: PartySite) -> list[TurnRecord]:
    """Turns that a party has settled so far."""
    if not (site.folder / sites.JOURNAL).exists():
        return []
    journal = site.journal()
    try:
        return journal.records()
    finally:
        journal.close()


def dealt(arrays: tuple[PyTree, ...], part: str | None) -> tuple[PyTree, ...]:
    """Every m-th record from the i-th on, for ``i/m``."""
    if part is None:
        return arrays
    import jax

    first, _, count = part.partition("/")
    if not (first.isdecimal() and count.isdecimal() and int(first) < int(count)):
        raise SordinoError(f"a part is i/m with i below m, not {shown(part)}")
    result: tuple[PyTree, ...] = jax.tree.map(lambda leaf: leaf[int(first) :: int(count)], arrays)
    return result


def _names(parties: str) -> list[str]:
    if not parties.isdecimal():
        return [one.strip() for one in parties.split(",")]
    return [f"party-{i + 1}" for i in range(require_count("parties", int(parties)))]


def _table(consortium: Consortium, path: Path) -> pd.DataFrame | None:
    """What a ledger knows a table by: the same that `sordino train` says."""
    if consortium.model.get("kind") != "table":
        return None

    return models.read_table(path)


@contextmanager
def _stoppable() -> Iterator[None]:
    """What a service manager sends ends a run as the keyboard does: the others are told."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""``sordino party``: owners of data train one model together; only noised sums are ever seen."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.console import _bytes, err, out, say_error, show_guarantee
from sordino.cli.party_progress import Scores, Scoring, lines, progress
from sordino.cli.party_terms import Wanted, show_consortium, show_members, show_shares
from sordino.errors import PlanMismatchError, SordinoError, require_count, shown

if TYPE_CHECKING:
    from sordino.parties.consortium import Consortium
    from sordino.parties.journal import TurnRecord
    from sordino.parties.party import Finished
    from sordino.sites.parties import PartySite

app = typer.Typer(
    no_args_is_help=True,
    help="Train one model between owners of data who show each other nothing but noised sums.",
)

# A run that was stopped by the others or by the network, and can go on; bad input is 2.
STOPPED = 1
SCORES, GUARANTEE, REPORT = "scores.json", "guarantee.json", "report.html"
_AGAIN = "give the same command again to go on"

_RUN, _BUDGET, _TOGETHER, _RECIPE = "The run", "The budget", "Together", "Options of the recipe"
_Party = Annotated[Path, typer.Argument(help="This party's folder.")]
_Schema = Annotated[
    Path | None,
    typer.Option(
        help="What is public about the tables: bounds, categories, classes (JSON, TOML).",
        rich_help_panel=_RUN,
    ),
]
_Model = Annotated[
    str | None,
    typer.Option(help="Instead: a model of your own, as module:name.", rich_help_panel=_RUN),
]
_Recipe = Annotated[str, typer.Option(help="From `sordino recipes`.", rich_help_panel=_RUN)]
_BatchSize = Annotated[
    int | None,
    typer.Option(help="Records of all parties in a step.", rich_help_panel=_RUN),
]
_Batches = Annotated[
    str | None,
    typer.Option(help="Instead: each party's own, with commas.", rich_help_panel=_RUN),
]
_Epochs = Annotated[float | None, typer.Option(help="Passes over all data.", rich_help_panel=_RUN)]
_Steps = Annotated[int | None, typer.Option(help="Turns, instead of epochs.", rich_help_panel=_RUN)]
_Name = Annotated[str | None, typer.Option(help="Of the run.", rich_help_panel=_RUN)]
_Epsilon = Annotated[float, typer.Option(help="Each record's budget.", rich_help_panel=_BUDGET)]
_Delta = Annotated[
    float | None,
    typer.Option(help="Default: a tenth of 1 over all records.", rich_help_panel=_BUDGET),
]
_Adjacency = Annotated[
    str | None,
    typer.Option(help="zero-out, add-remove or replace-one.", rich_help_panel=_BUDGET),
]
_Unit = Annotated[
    str | None,
    typer.Option(help="Whose data a record is: example, user, client.", rich_help_panel=_BUDGET),
]
_Engine = Annotated[
    str, typer.Option(help="How sums are kept secret: mask, mpyc, spu.", rich_help_panel=_TOGETHER)
]
_Colluders = Annotated[
    int | None,
    typer.Option(help="How many parties may work together.", rich_help_panel=_TOGETHER),
]
_Timeout = Annotated[
    float, typer.Option(help="Seconds that a turn may take.", rich_help_panel=_TOGETHER)
]
_Clip = Annotated[
    float | None, typer.Option(help="Largest norm of a contribution.", rich_help_panel=_RECIPE)
]
_Rate = Annotated[
    float | None,
    typer.Option(help="For tables, by default chosen from the plan.", rich_help_panel=_RECIPE),
]
_Momentum = Annotated[
    float | None, typer.Option(help="From 0 to below 1.", rich_help_panel=_RECIPE)
]
_Sampling = Annotated[
    str | None,
    typer.Option(help="fixed, reshuffled, poisson, without-replacement.", rich_help_panel=_RECIPE),
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other one, as name=value.", rich_help_panel=_RECIPE),
]
_Test = Annotated[
    Path | None,
    typer.Option(
        "--test", "--test-file", help="PUBLIC test data; the only data scores are computed on."
    ),
]
_Every = Annotated[
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
    from sordino.sites.parties import CARD, create_party

    card = create_party(folder, name, examples=examples, host=host, port=port)
    out().print(
        f"{name}: {examples:,} records, at {host}:{port} (and the next two ports)\n"
        f"certificate {card.member.fingerprint}\n"
        f"wrote {folder}; all in it but {CARD} is secret\n"
        f"next: give {folder / CARD} to whoever proposes the run, and tell the others the "
        "certificate's number",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def propose(
    cards: Annotated[
        list[Path], typer.Argument(help="The parties' cards; the first is in the middle.")
    ],
    *,
    out_file: Annotated[Path, typer.Option("--out", help="The consortium file.")],
    recipe: _Recipe = "dp-srm",
    schema: _Schema = None,
    model: _Model = None,
    batch_size: _BatchSize = None,
    batches: _Batches = None,
    epochs: _Epochs = None,
    steps: _Steps = None,
    name: _Name = None,
    epsilon: _Epsilon,
    delta: _Delta = None,
    adjacency: _Adjacency = None,
    unit: _Unit = None,
    engine: _Engine = "mask",
    colluders: _Colluders = None,
    timeout: _Timeout = 60.0,
    clip: _Clip = None,
    learning_rate: _Rate = None,
    momentum: _Momentum = None,
    sampling: _Sampling = None,
    settings: _Set = None,
) -> None:
    """Write the file that all parties sign: who, what, how, and for what budget. Reads no record."""
    from sordino.parties.consortium import Consortium, Partner
    from sordino.sites.parties import CARD

    if not out_file.parent.is_dir():
        raise SordinoError(f"there is no folder {str(out_file.parent)!r} to write into")
    found = [Partner.load(path / CARD if path.is_dir() else path) for path in cards]
    wanted = Wanted(
        recipe=recipe,
        epsilon=epsilon,
        delta=delta,
        schema=schema,
        model=model,
        engine=engine,
        colluders=colluders,
        batch_size=batch_size,
        batches=batches,
        epochs=epochs,
        steps=steps,
        clip=clip,
        learning_rate=learning_rate,
        momentum=momentum,
        sampling=sampling,
        adjacency=adjacency,
        unit=unit,
        settings=settings or (),
    )
    trained = wanted.made_model()
    terms = wanted.terms(trained, [card.examples for card in found])
    assert trained.description is not None
    consortium = Consortium(
        name or out_file.stem, tuple(found), terms, trained.description, timeout
    )
    consortium.save(out_file)
    show_consortium(consortium)
    show_guarantee(terms.statement())
    out().print(
        f"wrote {out_file}, digest {consortium.digest}\n"
        "next: give it to all parties; each looks at it and signs with\n"
        f"      sordino party sign FOLDER {out_file.name}",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def sign(
    folder: _Party,
    file: Annotated[Path, typer.Argument(help="The consortium file.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Look at what is being agreed to, and agree."""
    from sordino.parties.consortium import Consortium
    from sordino.sites.parties import PartySite

    site, consortium = PartySite.load(folder), Consortium.load(file)
    site.may_sign(consortium)
    console = out()
    console.print(f"{consortium.name}: {len(consortium.names)} parties", markup=False)
    show_consortium(consortium, own=site.name)
    show_members(consortium)
    show_guarantee(consortium.terms.statement())
    console.print(f"digest {consortium.digest}", markup=False, soft_wrap=True)
    if not yes and not typer.confirm(f"Sign this as {site.name!r}?"):
        err().print("not signed")
        raise typer.Exit(STOPPED)
    site.sign(consortium)
    console.print(
        f"signed; next: sordino party join {folder} --data TABLE, at the same time as the others",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def join(
    folder: _Party,
    *,
    data: Annotated[Path, typer.Option(help="This party's table, or what its model loads.")],
    ledger: Annotated[
        Path | None,
        typer.Option(envvar="SORDINO_LEDGER", help="The ledger that keeps the data set's budget."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="The data set's name in the ledger. Default: the file's.")
    ] = None,
    test_file: _Test = None,
    every: _Every = None,
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
    from sordino.cli.train import check_account
    from sordino.engine.compilation import use_compilation_cache
    from sordino.parties.party import Watcher
    from sordino.sites.parties import PartySite

    site = PartySite.load(folder)
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
        _kept_scores(folder / SCORES),
        lambda scores: _keep_scores(folder / SCORES, scores),
    )
    use_compilation_cache()
    met = False
    lost = sum(record.lost for record in before)
    opened = lines() if as_json else progress(steps, lost=lost)
    if not as_json:
        show_shares(consortium, own=site.name)
    try:
        with _stoppable(), opened as display:

            def begun(session: Any, settled: int) -> None:
                nonlocal met
                met = True
                display.met(settled, session.lost)

            def turned(record: TurnRecord, learner: Any) -> None:
                scores = scoring.after(record, learner)
                display.turned(record.turn + 1, record.seconds, record.sent, scores)

            others = [name for name in consortium.names if name != site.name]
            display.waiting(", ".join(others))
            finished = site.run(
                arrays, join_timeout=wait, watcher=Watcher(begun, turned), **charged
            )
            if steps not in scoring.scores:
                display.scored(steps, scoring.of(steps, lambda: finished.params))
    except KeyboardInterrupt:
        from sordino.cli.main import INTERRUPTED

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
    _finish(site, finished, scoring, None if no_report else report or folder / REPORT, as_json)


@app.command()
def simulate(
    folder: Annotated[Path, typer.Argument(help="A folder for all parties of the simulation.")],
    *,
    data: Annotated[
        list[Path], typer.Option(help="One table to deal out, or one for each party in order.")
    ],
    parties: Annotated[
        str, typer.Option("--parties", "--names", help="How many, or their names with commas.")
    ],
    recipe: _Recipe = "dp-srm",
    schema: _Schema = None,
    model: _Model = None,
    batch_size: _BatchSize = None,
    batches: _Batches = None,
    epochs: _Epochs = None,
    steps: _Steps = None,
    name: _Name = None,
    epsilon: _Epsilon,
    delta: _Delta = None,
    adjacency: _Adjacency = None,
    unit: _Unit = None,
    engine: _Engine = "mask",
    colluders: _Colluders = None,
    timeout: _Timeout = 60.0,
    clip: _Clip = None,
    learning_rate: _Rate = None,
    momentum: _Momentum = None,
    sampling: _Sampling = None,
    settings: _Set = None,
    test_file: _Test = None,
    every: _Every = None,
    report: Annotated[
        Path | None, typer.Option(help="Where the report goes. Default: FOLDER/report.html.")
    ] = None,
) -> None:
    """Run all parties on this machine, each in a process of its own, to try a run out.

    The same command again goes on with a simulation that was stopped.
    """
    from sordino.cli.party_simulation import Simulation

    if every is not None:
        require_count("every", every)
    wanted = Wanted(
        recipe=recipe,
        epsilon=epsilon,
        delta=delta,
        schema=schema,
        model=model,
        engine=engine,
        colluders=colluders,
        batch_size=batch_size,
        batches=batches,
        epochs=epochs,
        steps=steps,
        clip=clip,
        learning_rate=learning_rate,
        momentum=momentum,
        sampling=sampling,
        adjacency=adjacency,
        unit=unit,
        settings=settings or (),
    )
    simulation = Simulation.prepared(
        folder, wanted, data, _names(parties), name=name or folder.name, timeout=timeout
    )
    consortium = simulation.consortium
    for place in range(len(consortium.names)):
        require_engine(consortium, place)
    show_consortium(consortium)
    simulation.run(test_file, every)
    records = simulation.records()
    history = _history(_kept_scores(simulation.folder_of(consortium.names[0]) / SCORES))
    target = report or folder / REPORT
    _write_results(folder, consortium)
    written = [simulation.copy_model(), folder / GUARANTEE, target]
    _write_report(
        target, consortium, records, history, title=f"{consortium.name} (simulated)", own=None
    )
    _show_end(consortium, records, history, written)


@app.command()
def status(
    folder: _Party,
    *,
    ledger: Annotated[
        Path | None, typer.Option(envvar="SORDINO_LEDGER", help="Also show this ledger's budget.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The data set's name in the ledger.")] = None,
) -> None:
    """How far a party is, and what it has agreed to."""
    from sordino.sites.parties import CONSORTIUM, MODEL, SIGNATURES, PartySite

    site, console = PartySite.load(folder), out()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    say(f"{site.name}: {site.card.examples:,} records, at {site.card.host}:{site.card.port}")
    if not (folder / CONSORTIUM).exists():
        say(f"nothing signed yet; next: sordino party sign {folder} FILE")
        return
    consortium = site.consortium
    terms = consortium.terms
    show_shares(consortium, own=site.name)
    seen = folder / SIGNATURES
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
        if (folder / MODEL).exists():
            say(f"the model is in {folder / MODEL}")
    show_guarantee(terms.statement())
    if ledger is not None and dataset is not None:
        from sordino.cli.ledger import _show_status
        from sordino.ledger import Ledger

        _show_status(Ledger.open(ledger).status(dataset))


def require_engine(consortium: Consortium, place: int) -> None:
    """An error that says what to install, before the others have come."""
    if consortium.terms.engine == "mpyc":
        from sordino.secure.mpyc_engine import require_mpyc

        require_mpyc()
    if consortium.terms.engine == "spu" and place < 3:
        from sordino.secure.spu_engine import find_environment

        find_environment()


def records_of(site: PartySite) -> list[TurnRecord]:
    """Turns that a party has settled so far."""
    from sordino.sites.parties import JOURNAL

    if not (site.folder / JOURNAL).exists():
        return []
    journal = site.journal()
    try:
        return journal.records()
    finally:
        journal.close()


def dealt(arrays: tuple[Any, ...], part: str | None) -> tuple[Any, ...]:
    """Every m-th record from the i-th on, for ``i/m``."""
    if part is None:
        return arrays
    import jax

    first, _, count = part.partition("/")
    if not (first.isdecimal() and count.isdecimal() and int(first) < int(count)):
        raise SordinoError(f"a part is i/m with i below m, not {shown(part)}")
    found: tuple[Any, ...] = jax.tree.map(lambda leaf: leaf[int(first) :: int(count)], arrays)
    return found


def _names(parties: str) -> list[str]:
    if not parties.isdecimal():
        return [one.strip() for one in parties.split(",")]
    return [f"party-{i + 1}" for i in range(require_count("parties", int(parties)))]


def _table(consortium: Consortium, path: Path) -> Any:
    """What a ledger knows a table by: the same that `sordino train` says."""
    if consortium.model.get("kind") != "table":
        return None
    from sordino.datasets import read_table

    return read_table(path)


@contextmanager
def _stoppable() -> Iterator[None]:
    """What a service manager sends ends a run as the keyboard does: the others are told."""

    def stop(number: int, frame: Any) -> None:
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


def _kept_scores(path: Path) -> dict[int, Scores]:
    """Scores of earlier calls; they are for show, so what cannot be read is left out."""
    try:
        found = json.loads(path.read_text("utf-8"))
        return {
            int(turn): {str(k): float(v) for k, v in row.items()} for turn, row in found.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _keep_scores(path: Path, scores: Any) -> None:
    from sordino._files import write_atomically

    write_atomically(path, json.dumps(scores) + "\n")


def _history(scores: dict[int, Scores]) -> list[dict[str, float]]:
    return [{"step": turn, **found} for turn, found in sorted(scores.items())]


def _finish(
    site: PartySite, finished: Finished, scoring: Scoring, report: Path | None, as_json: bool
) -> None:
    """Write guarantee and report; say how it ended."""
    consortium, folder = site.consortium, site.folder
    _write_results(folder, consortium)
    written = [folder / "model.npz", folder / GUARANTEE]
    records = {site.name: list(finished.records)}
    if report is not None:
        _write_report(
            report, consortium, records, scoring.history, title=consortium.name, own=site.name,
            different=finished.different,
        )  # fmt: skip
        written.append(report)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "event": "finished",
                    "seconds": finished.seconds,
                    "different": list(finished.different),
                }
            )
        )
        return
    if finished.different:
        err().print(
            f"{', '.join(finished.different)} computed the same model up to rounding, not to the last "
            "bit: other processors or versions of libraries",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    _show_end(consortium, records, scoring.history, written)


def _write_results(folder: Path, consortium: Consortium) -> None:
    from sordino._files import write_atomically
    from sordino._version import __version__
    from sordino.cli.train import today

    terms = consortium.terms
    guarantee = terms.guarantee
    delta = guarantee.delta_hint
    stated = {
        "sentence": terms.statement(),
        "epsilon": None if delta is None else guarantee.epsilon(delta),
        "delta": delta,
        "guarantee": guarantee.to_json(),
        "assumption": asdict(terms.assumption),
        "consortium": consortium.digest,
        "plan": terms.plan.hash,
        "sordino": __version__,
        "date": today(),
    }
    write_atomically(folder / GUARANTEE, json.dumps(stated, indent=1) + "\n")


def _write_report(
    path: Path,
    consortium: Consortium,
    records: dict[str, list[TurnRecord]],
    history: Sequence[dict[str, float]],
    *,
    title: str,
    own: str | None,
    different: Sequence[str] = (),
) -> None:
    from sordino.cli.train import today
    from sordino.report.parties import write_parties_report

    write_parties_report(
        path,
        consortium,
        records,
        title=title,
        own=own,
        history=history,
        different=different,
        date=today(),
    )


def _show_end(
    consortium: Consortium,
    records: dict[str, list[TurnRecord]],
    history: Sequence[dict[str, float]],
    written: Sequence[Path],
) -> None:
    """Totals, the score, the guarantee, and where everything is."""
    console = out()
    turns = next(iter(records.values()))
    lost = sum(record.lost for record in turns)
    # A turn lasts until the slowest party has its sum.
    together = zip(*records.values(), strict=True)
    seconds = sum(max(record.seconds for record in same) for same in together)
    sent = sum(record.sent for found in records.values() for record in found)
    who = "sent by all parties" if len(records) > 1 else "sent by this party"
    console.print(
        f"{len(turns):,} turns, {lost:,} of them lost; {seconds:.3g} s in sums, {_bytes(sent)} {who}",
        markup=False,
        soft_wrap=True,
    )
    if history:
        last = {name: value for name, value in history[-1].items() if name != "step"}
        console.print(
            "on public data: " + ", ".join(f"{name} {value:.4g}" for name, value in last.items()),
            markup=False,
        )
    show_guarantee(consortium.terms.statement())
    for path in written:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)

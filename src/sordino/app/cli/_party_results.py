"""What a run between parties leaves: scores, the guarantee, a report, and the last words on the screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sordino.app.cli._console import _bytes, err, out, show_guarantee
from sordino.app.cli._party_progress import Scores, Scoring

if TYPE_CHECKING:
    from sordino.together.parties import Consortium, PartyResult, TurnRecord
    from sordino.together.sites import PartySite

SCORES, GUARANTEE, REPORT = "scores.json", "guarantee.json", "report.html"


def kept_scores(path: Path) -> dict[int, Scores]:
    """Scores of earlier calls; they are for show, so what cannot be read is left out."""
    try:
        result = json.loads(path.read_text("utf-8"))
        return {
            int(turn): {str(k): float(v) for k, v in row.items()} for turn, row in result.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def keep_scores(path: Path, scores: Any) -> None:
    from sordino._base.files import write_atomically

    write_atomically(path, json.dumps(scores) + "\n")


def history_of(scores: dict[int, Scores]) -> list[dict[str, float]]:
    return [{"step": turn, **result} for turn, result in sorted(scores.items())]


def finish(
    site: PartySite, finished: PartyResult, scoring: Scoring, report: Path | None, as_json: bool
) -> None:
    """Write guarantee and report; say how it ended."""
    consortium, folder = site.consortium, site.folder
    write_results(folder, consortium)
    written = [folder / "model.npz", folder / GUARANTEE]
    records = {site.name: list(finished.records)}
    if report is not None:
        write_report(
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
    show_end(consortium, records, scoring.history, written)


def write_results(folder: Path, consortium: Consortium) -> None:
    from sordino._base.files import write_atomically
    from sordino._version import __version__
    from sordino.app.cli._train import today

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


def write_report(
    path: Path,
    consortium: Consortium,
    records: dict[str, list[TurnRecord]],
    history: Sequence[dict[str, float]],
    *,
    title: str,
    own: str | None,
    different: Sequence[str] = (),
) -> None:
    from sordino.app.cli._train import today
    from sordino.together.parties import write_parties_report

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


def show_end(
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
    sent = sum(record.sent for result in records.values() for record in result)
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

"""For ``sordino party``: what a run shows while it lasts, and what it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from sordino._base.files import write_atomically
from sordino._base.types import PyTree
from sordino._version import __version__
from sordino.app.cli._console import _bytes, err, out, progress_bar, say, show_guarantee
from sordino.app.cli._train import today
from sordino.together import federated, parties

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.progress import Progress, TaskID

    from sordino.together.parties import Consortium, PartyResult, TurnRecord
    from sordino.together.sites import PartySite

Scores = Mapping[str, float]
SCORES, GUARANTEE, REPORT = "scores.json", "guarantee.json", "report.html"


class Display(Protocol):
    """Is told how a run goes."""

    def waiting(self, whom: str) -> None:
        """Until all parties are there."""

    def met(self, settled: int, lost: int | None) -> None:
        """All parties have come; so many turns are settled, and this one was given up."""

    def turned(self, settled: int, seconds: float, sent: int, scores: Scores) -> None:
        """A turn is settled."""

    def scored(self, settled: int, scores: Scores) -> None:
        """The model after so many turns was scored."""


class Lines:
    """One JSON object on a line for each thing that happens; for programs."""

    def waiting(self, whom: str) -> None:
        self._say("waiting")

    def met(self, settled: int, lost: int | None) -> None:
        self._say("met", settled=settled, lost=lost)

    def turned(self, settled: int, seconds: float, sent: int, scores: Scores) -> None:
        self._say("turn", settled=settled, seconds=seconds, sent=sent, scores=dict(scores))

    def scored(self, settled: int, scores: Scores) -> None:
        self._say("score", settled=settled, scores=dict(scores))

    def _say(self, event: str, **fields: object) -> None:
        typer.echo(json.dumps({"event": event, **fields}))


class Bar:
    """A bar on a terminal; elsewhere a line now and then."""

    def __init__(self, bar: Progress, task: TaskID, steps: int, lost: int) -> None:
        self._bar, self._task, self._steps = bar, task, steps
        self._plain = bar.disable
        self._lost = lost
        self._count, self._seconds, self._sent = 0, 0.0, 0
        self._scores: Scores = {}

    def waiting(self, whom: str) -> None:
        self._bar.update(self._task, description=f"waiting for {whom}")
        if self._plain:
            self._print(f"waiting for {whom}")

    def met(self, settled: int, lost: int | None) -> None:
        self._bar.reset(self._task, completed=settled, description="all parties are here")
        if lost is not None:
            self._lost += 1
            err().print(
                f"turn {lost + 1:,} is lost: somebody stopped in it. It counts as released, and is "
                "not repeated",
                style="yellow",
                soft_wrap=True,
            )
        if self._plain:
            self._print(f"all parties are here; {settled:,} of {self._steps:,} turns are settled")

    def turned(self, settled: int, seconds: float, sent: int, scores: Scores) -> None:
        self._count += 1
        self._seconds += seconds
        self._sent += sent
        self._scores = scores or self._scores
        words = [f"{self._seconds / self._count:.3g} s, {_bytes(self._sent / self._count)} a turn"]
        if self._lost:
            words.append(f"{self._lost} lost")
        words += [f"{name} {value:.4g}" for name, value in self._scores.items()]
        text = ", ".join(words)
        self._bar.update(self._task, completed=settled, description=text)
        if self._plain and (settled == self._steps or settled % max(1, self._steps // 10) == 0):
            self._print(f"turn {settled:,} of {self._steps:,}: {text}")

    def scored(self, settled: int, scores: Scores) -> None:
        self._scores = scores

    def _print(self, text: str) -> None:
        self._bar.console.print(text, markup=False, soft_wrap=True)


@contextmanager
def progress(steps: int, *, lost: int = 0) -> Iterator[Display]:
    """A bar over the turns of a run.

    Args:
      lost: turns that were lost before.
    """
    with progress_bar("turns", out(), width=16) as bar:
        yield Bar(bar, bar.add_task("", total=steps), steps, lost)


@contextmanager
def lines() -> Iterator[Display]:
    """JSON lines on standard output."""
    yield Lines()


class ScoredRun(Protocol):
    """What is scored between two turns."""

    @property
    def finished(self) -> bool: ...
    @property
    def params(self) -> PyTree: ...


class Scoring:
    """Scores of the model on public data every so many turns, kept in a file of the party's folder.

    Args:
      evaluate: scores of a vector of parameters; None for no scores.
      every: turns between two scores.
      kept: scores of earlier calls, by turn.
      keep: called with all scores when there is a new one.
    """

    def __init__(
        self,
        evaluate: Callable[[NDArray[np.float32]], Scores] | None,
        every: int,
        kept: Mapping[int, Scores],
        keep: Callable[[Mapping[int, Scores]], None],
    ) -> None:
        self._evaluate, self._every, self._keep = evaluate, every, keep
        self.scores = dict(kept)

    def after(self, record: TurnRecord, learner: ScoredRun) -> Scores:
        """Scores after this turn, if they are due."""
        settled = record.turn + 1
        if settled % self._every and not learner.finished:
            return {}
        return self.of(settled, lambda: learner.params)

    def of(self, settled: int, params: Callable[[], PyTree]) -> Scores:
        """Scores of these parameters."""
        if self._evaluate is None:
            return {}

        self.scores[settled] = dict(self._evaluate(federated.flattened(params())))
        self._keep(self.scores)
        return self.scores[settled]

    @property
    def history(self) -> list[dict[str, float]]:
        return history_of(self.scores)


def kept_scores(path: Path) -> dict[int, Scores]:
    """Scores of earlier calls; they are for show, so what cannot be read is left out."""
    try:
        result = json.loads(path.read_text("utf-8"))
        return {
            int(turn): {str(k): float(v) for k, v in row.items()} for turn, row in result.items()
        }
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def keep_scores(path: Path, scores: Mapping[int, Scores]) -> None:
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
        parties.write_parties_report(
            report,
            consortium,
            records,
            title=consortium.name,
            own=site.name,
            history=scoring.history,
            different=finished.different,
            date=today(),
        )
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
    say(
        f"{len(turns):,} turns, {lost:,} of them lost; {seconds:.3g} s in sums, {_bytes(sent)} {who}"
    )
    if history:
        last = {name: value for name, value in history[-1].items() if name != "step"}
        console.print(
            "on public data: " + ", ".join(f"{name} {value:.4g}" for name, value in last.items()),
            markup=False,
        )
    show_guarantee(consortium.terms.statement())
    for path in written:
        say(f"wrote {path}")

"""The report of a run between data owners: one self-contained page.

    write_parties_report("report.html", consortium, {"north": records}, title="Lung study", own="north")

It takes the file that all parties signed, what journals say about turns but not their sums, and scores
on public data: all of it public. The page has no scripts and asks no other place for anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, one_line
from sordino._base.files import write_atomically
from sordino._version import __version__
from sordino.privacy import rounded_up
from sordino.report import (
    BLUE,
    CSS,
    POLICY,
    VERMILION,
    add_legend,
    curves_figure,
    decimated,
    figure_html,
    glossary_html,
    guessing,
    list_html,
    meaning_html,
    metric_names,
    name_axes,
    new_figure,
    notes_html,
    plan_html,
    step_ticks,
    tradeoff_html,
)
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._journal import TurnRecord
from sordino.together.parties._report_words import (
    PAPER,
    collusion,
    described,
    paper_cost,
    rests_on,
    shares,
    size_of,
)
from sordino.together.parties._terms import assumption_sentence

_CSS = (
    CSS
    + """
table.tight { font-size: .9rem; } .tight th, .tight td { padding-top: .28rem; padding-bottom: .28rem; }
tbody th.name { white-space: normal; overflow-wrap: break-word; min-width: 7rem; max-width: 15rem; }
"""
)


@dataclass(frozen=True)
class Turns:
    """What the turns cost, as far as it was seen from here.

    Attributes:
      seconds: of each turn, the slowest party's; nan where nobody here saw it.
      sent: bytes of each turn, of all parties here together; nan likewise.
      lost: numbers of turns that are lost, from 1.
    """

    seconds: NDArray[np.float64]
    sent: NDArray[np.float64]
    lost: tuple[int, ...]

    @classmethod
    def of(cls, records: Mapping[str, Sequence[TurnRecord]]) -> Turns:
        """Raises where parties have settled different turns."""
        if not records:
            raise SordinoError("a report is about at least one party's turns")
        outcomes = {tuple(record.lost for record in result) for result in records.values()}
        if len(outcomes) != 1:
            raise SordinoError("the parties have settled different turns; let them go on first")
        (lost,) = outcomes
        shape = (len(records), len(lost))
        seconds = np.array([[r.seconds for r in result] for result in records.values()], float)
        sent = np.array([[r.sent for r in result] for result in records.values()], float)
        seconds, sent = seconds.reshape(shape), sent.reshape(shape)
        unseen = (seconds <= 0).any(axis=0) | np.array(lost, bool)
        return cls(
            np.where(unseen, np.nan, seconds.max(axis=0, initial=0)),
            np.where(unseen, np.nan, sent.sum(axis=0)),
            tuple(turn + 1 for turn, gone in enumerate(lost) if gone),
        )

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def seen(self) -> bool:
        return bool(np.isfinite(self.seconds).any())


def write_parties_report(
    path: str | os.PathLike[str],
    consortium: Consortium,
    records: Mapping[str, Sequence[TurnRecord]],
    *,
    title: str,
    own: str | None = None,
    history: Sequence[Mapping[str, float]] = (),
    different: Sequence[str] = (),
    date: str = "",
) -> None:
    """Write the report to `path`, atomically.

    Args:
      records: the turns of the parties that this report knows about: its own, or all in a simulation.
      own: the party whose report this is; None for one about all of them.
      history: scores on public data, with "step" the number of turns.
      different: parties whose model was not the same to the last bit.
      date: when the report was made, as text; there is no clock in here.
    """
    text = render_parties_report(
        consortium, records, title=title, own=own, history=history, different=different, date=date
    )
    write_atomically(Path(path), text)


def render_parties_report(
    consortium: Consortium,
    records: Mapping[str, Sequence[TurnRecord]],
    *,
    title: str,
    own: str | None = None,
    history: Sequence[Mapping[str, float]] = (),
    different: Sequence[str] = (),
    date: str = "",
) -> str:
    """The report as text; see `write_parties_report`."""
    terms, turns = consortium.terms, Turns.of(records)
    when = f", {escape(date)}" if date else ""
    whose = f"; as {escape(own)} saw it" if own is not None else ""
    body = [
        "<header>",
        f"<h1>{escape(one_line(title))}</h1>",
        f'<p class="kicker">A model that {terms.parties:,} owners of data train together with '
        f"differential privacy; none shows its records to another{whose}{when}</p>",
        _headline(consortium),
        notes_html(_remarks(consortium, turns, own, different)),
        "</header>",
        "<main>",
        _agreed(consortium, own),
        meaning_html(terms.guarantee),
        _scores(history),
        _cost(consortium, turns, own),
        plan_html(terms.plan),
        tradeoff_html(terms.guarantee),
        glossary_html(),
        "</main>",
        f"<footer><p>Sordino {escape(__version__)} · consortium <code>{consortium.digest}</code> · "
        f"plan <code>{terms.plan.hash}</code>{when}</p></footer>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(one_line(title))}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _headline(consortium: Consortium) -> str:
    terms, guarantee = consortium.terms, consortium.terms.guarantee
    hint = guarantee.delta_hint
    numbers: list[tuple[str, str]] = []
    if hint is not None:
        numbers += [("epsilon", rounded_up(guarantee.epsilon(hint))), ("delta", rounded_up(hint))]
    if not guarantee.is_amplified:
        numbers.append(("mu (Gaussian differential privacy)", rounded_up(guarantee.mu)))
    numbers += [
        ("protected unit", guarantee.unit),
        ("parties", f"{terms.parties:,}"),
        ("may collude", collusion(terms)),
    ]
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in numbers
    )
    return (
        f'<section class="headline" aria-label="Guarantee"><dl class="numbers">{items}</dl>'
        f"<p><strong>{escape(guarantee.sentence())}</strong> "
        f"{escape(assumption_sentence(terms.assumption))}</p>"
        f"<p>{escape(guessing(guarantee))}</p></section>"
    )


def _remarks(
    consortium: Consortium, turns: Turns, own: str | None, different: Sequence[str]
) -> list[str]:
    steps = consortium.terms.plan.population.steps
    result = []
    if own is None:
        result.append(
            "A simulation: all parties ran on one machine, and whoever ran it could see everything. The "
            "guarantee holds against those who see the model and the sums only."
        )
    if turns.count < steps:
        result.append(
            f"The run is not over: {turns.count:,} of {steps:,} turns are settled. What it has released "
            "so far is covered by the guarantee of the whole."
        )
    if turns.lost:
        some = ", ".join(f"{turn:,}" for turn in turns.lost[:10])
        more = f" and {len(turns.lost) - 10:,} more" if len(turns.lost) > 10 else ""
        one = len(turns.lost) == 1
        result.append(
            f"Turn{'' if one else 's'} {some}{more} {'was' if one else 'were'} lost, because a party "
            "stopped or could not be reached. A lost turn counts as released and is not repeated: the "
            "model took fewer steps, and the guarantee is the same."
        )
    if different:
        result.append(
            f"{', '.join(different)} computed the same model up to rounding, and not to the last bit: "
            "other processors or versions of libraries."
        )
    return result


def _agreed(consortium: Consortium, own: str | None) -> str:
    terms = consortium.terms
    rows = []
    for partner, (batch, rate) in zip(consortium.partners, shares(terms), strict=True):
        mark = ' class="covered"' if partner.name == own else ""
        rows.append(
            f'<tr{mark}><th scope="row" class="name">{escape(partner.name)}</th>'
            f'<td class="number">{partner.examples:,}</td><td class="number">{batch}</td>'
            f'<td class="number">{escape(rate)}</td>'
            f"<td><code>{partner.member.fingerprint[:16]}…</code></td></tr>"
        )
    heads = "".join(
        f'<th scope="col" class="number">{text}</th>' for text in ("records", "in a step", "rate")
    )
    facts = (
        ("engine", terms.engine),
        ("may collude", f"up to {collusion(terms)}"),
        ("model", f"{described(consortium.model)}; {terms.parameters:,} parameters"),
        ("turns", f"{terms.plan.population.steps:,}, each within {consortium.timeout:g} s"),
        ("consortium file", consortium.digest),
    )
    lines = "".join(
        f'<tr><th scope="row">{name}</th><td>{escape(text)}</td></tr>' for name, text in facts
    )
    return (
        "<section><h2>What was agreed</h2><p>All parties have signed the same file before anything "
        "was computed; nobody trains with a party whose signature it has not seen.</p>"
        '<div class="scroll"><table class="tight"><thead><tr><th scope="col">party</th>'
        f'{heads}<th scope="col">certificate (SHA-256)</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f'<div class="scroll"><table><tbody>{lines}</tbody></table></div>'
        f"<h3>What this rests on</h3>{list_html(rests_on(terms))}</section>"
    )


def _scores(history: Sequence[Mapping[str, float]]) -> str:
    names = metric_names(history)
    if not names:
        return ""
    # A dollar sign would begin a formula.
    plain = [{one_line(k, 40).replace("$", r"\$"): v for k, v in row.items()} for row in history]
    last = {name: [row[name] for row in history if name in row][-1] for name in names}
    ends = ", ".join(f"{one_line(n, 40).replace('_', ' ')} {v:.4g}" for n, v in last.items())
    return (
        "<section><h2>The model</h2>"
        + figure_html(
            curves_figure(plain, step="turn"),
            f"Public metrics over the turns, ending at {ends}",
            "curves",
            f"Measured on public data after the turns; at the end: {ends}. This costs no privacy.",
        )
        + "</section>"
    )


def _cost(consortium: Consortium, turns: Turns, own: str | None) -> str:
    terms = consortium.terms
    if not turns.count:
        return ""
    who = "all parties together" if own is None else own
    rows = [
        ("turns settled", f"{turns.count:,} of {terms.plan.population.steps:,}"),
        ("turns lost", f"{len(turns.lost):,}"),
    ]
    drawing = ""
    if turns.seen:
        seconds, sent = turns.seconds, turns.sent
        rows += [
            (
                "time of a turn",
                f"{_time(np.nanmedian(seconds))} (median), {_time(np.nanmax(seconds))} (longest)",
            ),
            ("bytes of a turn", f"{size_of(float(np.nanmedian(sent)))} (median), sent by {who}"),
            (
                "whole run",
                f"{_time(np.nansum(seconds))} in sums, {size_of(float(np.nansum(sent)))} sent by {who}",
            ),
        ]
        drawing = figure_html(
            cost_figure(turns),
            f"Time and bytes of each turn, {_time(np.nanmedian(seconds))} and "
            f"{size_of(float(np.nanmedian(sent)))} in the middle",
            "cost",
            "From the moment a party may send until it has the noised sum: waiting for the slowest "
            "party is in it, the party's own gradients are not."
            + (" Marks at the bottom are lost turns." if turns.lost else ""),
        )
    body = "".join(
        f'<tr><th scope="row">{name}</th><td>{escape(text)}</td></tr>' for name, text in rows
    )
    near = paper_cost(terms.parameters)
    source = "one noised sum of 5 parties by garbled circuits (DP-SRM paper, table 4)"
    if near is not None:
        note = f"For comparison, {source} takes, for {near.words()}."
    else:
        listed = "; ".join(cost.words() for cost in PAPER)
        note = f"For comparison, {source} takes, for {listed}. A sum here has {terms.parameters:,} numbers."
    return (
        f"<section><h2>Time and bytes</h2>{drawing}"
        f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'
        f'<p class="small">{escape(note)}</p></section>'
    )


def cost_figure(turns: Turns) -> Figure:
    """Seconds and bytes of each turn; lost ones are marked."""
    figure, (left, right) = new_figure(2)
    at = decimated(turns.count)
    largest = np.nanmax(turns.sent)
    power = min(3, int(math.log10(max(largest, 1)) // 3))
    unit, scale = ("B", "kB", "MB", "GB")[power], 1000.0**power
    dots: dict[str, Any] = {"color": BLUE, "markersize": 3.5, "linewidth": 1}
    for axes, values, title, label in (
        (left, turns.seconds, "Time of each turn", "seconds"),
        (right, turns.sent / scale, "Bytes of each turn", unit),
    ):
        axes.plot(at, values[at - 1], "o-", label="settled", **dots)
        axes.set_ylim(0, float(np.nanmax(values)) * 1.15 or 1.0)
        axes.set_xlim(0.5, turns.count + 0.5)
        if turns.lost:
            axes.plot(
                turns.lost,
                np.zeros(len(turns.lost)),
                "x",
                color=VERMILION,
                markersize=7,
                markeredgewidth=2,
                clip_on=False,
                label="lost",
            )
        name_axes(axes, title, "turn", label)
        step_ticks(axes)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if turns.lost:
        add_legend(figure, left)
    return figure


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"

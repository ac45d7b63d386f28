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
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, one_line
from sordino._base.files import write_atomically
from sordino.report import (
    BLUE,
    VERMILION,
    add_legend,
    curve_facts,
    decimated,
    guarantee_numbers,
    name_axes,
    new_figure,
    plan_facts,
    render,
    step_ticks,
    to_svg,
    tradeoff_facts,
)
from sordino.together.parties._consortium import Consortium, described
from sordino.together.parties._journal import TurnRecord
from sordino.together.parties._terms import assumption_sentence, collusion, shares


@dataclass(frozen=True)
class PaperCost:
    """One noised sum of 5 parties as the paper computed it (papers/01 table 4: garbled circuits)."""

    numbers: int
    seconds: float
    megabytes: float

    def words(self) -> str:
        size = (
            f"{self.megabytes / 1000:,.0f} GB"
            if self.megabytes >= 1e4
            else f"{self.megabytes:,.0f} MB"
        )
        return f"{self.numbers:,} numbers: {self.seconds:,.4g} s and {size}"


PAPER = (PaperCost(22, 3.52, 292), PaperCost(123, 18.04, 1634), PaperCost(26_010, 2370, 337_000))
_CLOSE = 1.5


def paper_cost(parameters: int) -> PaperCost | None:
    """The paper's figures for a sum of about so many numbers, if it has any."""
    for cost in PAPER:
        if max(parameters / cost.numbers, cost.numbers / parameters) <= _CLOSE:
            return cost
    return None


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
    terms, turns = consortium.terms, Turns.of(records)
    near = paper_cost(terms.parameters)
    text = render(
        "sordino.together.parties",
        "parties.html.j2",
        title=one_line(title),
        date=date,
        own=own,
        terms=terms,
        turns=turns,
        different=list(different),
        numbers=[
            *guarantee_numbers(terms.guarantee),
            ("parties", f"{terms.parties:,}"),
            ("may collude", collusion(terms)),
        ],
        assumption=assumption_sentence(terms.assumption),
        partners=list(zip(consortium.partners, shares(terms), strict=True)),
        agreed=_agreed(consortium),
        curves=curve_facts(history, step="turn"),
        costs=_costs(terms.plan.population.steps, turns, own),
        cost_svg=_cost_svg(turns) if turns.seen else "",
        near="; ".join(cost.words() for cost in ([near] if near else PAPER)),
        is_near=near is not None,
        plan=plan_facts(terms.plan),
        tradeoff=tradeoff_facts(terms.guarantee),
        digest=consortium.digest,
    )
    write_atomically(Path(path), text)


def _agreed(consortium: Consortium) -> list[tuple[str, str]]:
    terms = consortium.terms
    return [
        ("engine", terms.engine),
        ("may collude", f"up to {collusion(terms)}"),
        ("model", f"{described(consortium.model)}; {terms.parameters:,} parameters"),
        ("turns", f"{terms.plan.population.steps:,}, each within {consortium.timeout:g} s"),
        ("consortium file", consortium.digest),
    ]


def _costs(steps: int, turns: Turns, own: str | None) -> list[tuple[str, str]]:
    result = [
        ("turns settled", f"{turns.count:,} of {steps:,}"),
        ("turns lost", f"{len(turns.lost):,}"),
    ]
    if turns.seen:
        seconds, sent = turns.seconds, turns.sent
        by = f"sent by {'all parties together' if own is None else own}"
        median, longest = _time(np.nanmedian(seconds)), _time(np.nanmax(seconds))
        whole = size_of(float(np.nansum(sent)))
        result += [
            ("time of a turn", f"{median} (median), {longest} (longest)"),
            ("bytes of a turn", f"{size_of(float(np.nanmedian(sent)))} (median), {by}"),
            ("whole run", f"{_time(np.nansum(seconds))} in sums, {whole} {by}"),
        ]
    return result


def _cost_svg(turns: Turns) -> str:
    label = (
        f"Time and bytes of each turn, {_time(np.nanmedian(turns.seconds))} and "
        f"{size_of(float(np.nanmedian(turns.sent)))} in the middle"
    )
    return to_svg(cost_figure(turns), label=label, prefix="cost")


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
        add_legend(figure, *left.get_legend_handles_labels())
    return figure


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"


def size_of(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TB"

"""The report of a federated run: one page about all of it, and one about each client.

    write_federated_report(
        "report", agreement, server.history(), server.events(), title="Five hospitals",
        out=server.state.out)

It is made from the agreement and from what a server wrote down, all of which is public; nothing
without noise is anywhere near. The pages link to each other, have no scripts, and ask no other place
for anything. Names and sentences of clients are foreign text, and stay text.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sordino._base.files import write_atomically
from sordino.privacy import change, plural, rounded_up
from sordino.report import curve_facts, render, to_svg
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import LEAK_UNITS
from sordino.together.federated._coordinator import RoundRecord
from sordino.together.federated._report_facts import ClientFacts, Events, Facts, gathered
from sordino.together.federated._report_plots import (
    ClientPicture,
    participation_figure,
    spent_figure,
)

# Of larger federations, pages and table leave out clients that were never asked, then the last ones.
MOST_PAGES = 5000
# Longer lists are shortened, and say so.
_MOST_MESSAGES = 100


def write_federated_report(
    folder: Path | str | os.PathLike[str],
    agreement: Agreement,
    history: Sequence[RoundRecord],
    events: Events = (),
    *,
    title: str,
    date: str = "",
    out: Mapping[str, str] | None = None,
    seen_by_clients: Mapping[str, float] | None = None,
    insecure: bool = False,
) -> Path:
    """Write ``index.html`` and ``clients/NAME.html`` to `folder`; the index is returned.

    Each file is written atomically, the index last, so that its links lead somewhere.

    Args:
      history: the rounds that are over, in order (`DurableServer.history`).
      events: what was rejected, refused or missing (`DurableServer.events`).
      date: when the report was made, as text; there is no clock in here.
      out: who refused for good, and why (`ServerState.out`).
      seen_by_clients: mu of a client's example against the other clients, who see the model only.
      insecure: whether the noise came from a seed; every page then says so.
    """
    facts = replace(gathered(agreement, history, events, out), insecure=insecure)
    pages = _pages(facts)
    where = Path(folder)
    (where / "clients").mkdir(parents=True, exist_ok=True)
    picture = ClientPicture(facts) if facts.done else None
    shown = [client for client in facts.clients if client.name in pages]
    for place, client in enumerate(shown):
        beside = [("previous", place - 1)] * bool(place) + [("next", place + 1)]
        around = [
            (text, shown[other].name, pages[shown[other].name])
            for text, other in beside
            if other < len(shown)
        ]
        mu = (seen_by_clients or {}).get(client.name)
        text = _client_page(facts, client, picture, around, mu, title, date)
        write_atomically(where / "clients" / pages[client.name], text)
    index = where / "index.html"
    write_atomically(index, _index_page(facts, pages, title, date))
    return index


def _pages(facts: Facts) -> dict[str, str]:
    """File name of the page of every client that gets one."""
    clients: Sequence[ClientFacts] = facts.clients
    if len(clients) > MOST_PAGES:
        busy = [c for c in clients if c.taken or c.only_asked or c.out is not None]
        clients = busy[:MOST_PAGES]
    names: dict[str, str] = {}
    used: set[str] = set()
    for client in clients:
        # Some file systems take "a" and "A" for the same; no name has a "~".
        name, number = client.name, 1
        while name.lower() in used:
            number += 1
            name = f"{client.name}~{number}"
        used.add(name.lower())
        names[client.name] = f"{name}.html"
    return names


def _index_page(facts: Facts, pages: Mapping[str, str], title: str, date: str) -> str:
    agreement = facts.agreement
    asked = sum(len(client.only_asked) for client in facts.clients)
    taken = sum(len(client.taken) for client in facts.clients)
    most = max(facts.clients, key=lambda client: client.mu)
    drawings = {"participation_svg": "", "spent_svg": ""}
    if facts.done:
        part = f"Clients by rounds: {taken:,} messages taken, {asked:,} times asked in vain"
        spent = (
            f"Spent mu over the rounds, at most {most.mu:.4g}, and the budget {agreement.mu:.4g}"
        )
        drawings = {
            "participation_svg": to_svg(
                participation_figure(facts), label=part, prefix="participation"
            ),
            "spent_svg": to_svg(spent_figure(facts), label=spent, prefix="spent"),
        }
    return render(
        "sordino.together.federated",
        "index.html.j2",
        title=title,
        date=date,
        facts=facts,
        numbers=[
            ("epsilon", facts.epsilon_text(agreement.mu)),
            ("delta", rounded_up(agreement.delta)),
            ("mu (Gaussian differential privacy)", rounded_up(agreement.mu)),
            ("protected unit", agreement.unit),
        ],
        trusted=TRUST_NAMES[agreement.trust],
        colluding=colluding(agreement),
        left=sum(client.out is None for client in facts.clients),
        curves=curve_facts(facts.metrics(), step="round"),
        taken=taken,
        asked=asked,
        most=most,
        rows=[
            (client, pages[client.name], _status(facts, client))
            for client in facts.clients
            if client.name in pages
        ],
        lines=plan_lines(agreement, facts.done),
        happened=[(at, text) for at, _, text in facts.events],
        **drawings,
    )


def _status(facts: Facts, client: ClientFacts) -> str:
    result = client.status
    if client.out is not None:
        whole = client.sent >= facts.agreement.cap
        result = "sent all it agreed to" if whole else "refused for good"
    if facts.is_over_budget(client):
        result += "; its messages cost more than was agreed"
    return result


def _client_page(
    facts: Facts,
    client: ClientFacts,
    picture: ClientPicture | None,
    around: Sequence[tuple[str, str, str]],
    others: float | None,
    title: str,
    date: str,
) -> str:
    agreement = facts.agreement
    rounds = [message.round for message in client.taken]
    seen = others is not None and math.isfinite(others) and others >= 0
    return render(
        "sordino.together.federated",
        "client.html.j2",
        title=title,
        date=date,
        facts=facts,
        client=client,
        around=around,
        numbers=[
            ("spent mu, at most", rounded_up(client.mu)),
            (f"epsilon at delta {agreement.delta:g}", facts.epsilon_text(client.mu)),
            ("of the budget", _percent(client.mu / agreement.mu)),
            (f"messages (at most {agreement.cap:,})", f"{client.sent:,}"),
        ],
        colluding=colluding(agreement),
        spent=_both(facts, client.mu),
        others=_both(facts, others) if seen and others is not None else "",
        level=_both(facts, client.client_level) if client.client_level is not None else "",
        svg="" if picture is None else picture.svg(client, _label(facts, client)),
        taken_runs=_runs(rounds),
        asked_runs=_runs(client.only_asked),
        shown=client.taken[-_MOST_MESSAGES:],
        curve=dict(client.curve) if agreement.trust != "trusted" else {},
    )


def _label(facts: Facts, client: ClientFacts) -> str:
    return (
        f"Spent mu over the rounds, now {client.mu:.4g} of {facts.agreement.mu:.4g}, and epsilon; "
        f"{len(client.taken):,} messages taken, {len(client.only_asked):,} times asked in vain"
    )


def _both(facts: Facts, mu: float) -> str:
    """mu and epsilon."""
    epsilon = facts.epsilon(mu)
    if not math.isfinite(epsilon):
        return f"mu = {rounded_up(mu)} (too much for an epsilon to mean anything)"
    return (
        f"mu = {rounded_up(mu)} (epsilon {rounded_up(epsilon)} at delta {facts.agreement.delta:g})"
    )


def _percent(share: float) -> str:
    return f"{math.ceil(round(1000 * share, 3)) / 10:g} %"


def _runs(rounds: Sequence[int], most: int = 60) -> str:
    """Numbers with runs drawn together: 1-3, 7, 9-12."""
    runs: list[list[int]] = []
    for number in rounds:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{a:,}" if a == b else f"{a:,}-{b:,}" for a, b in runs]
    if len(texts) > most:
        texts = [*texts[: most // 2], "...", *texts[-most // 2 :]]
    return ", ".join(texts)


TRUST_NAMES = {
    "untrusted": "nobody but the client itself",
    "secure-sum": "the other clients, in part",
    "trusted": "the server",
}


def colluding(agreement: Agreement) -> str:
    """Who may work with the server, under a secure sum."""
    if not agreement.colluders:
        return "no member of a cohort"
    if agreement.colluders == 1:
        return "one member of a cohort"
    return f"up to {agreement.colluders:,} members of a cohort"


def schedule(agreement: Agreement) -> str:
    """How noise develops from message to message."""
    whose = "the server's noise" if agreement.trust == "trusted" else "a client's noise"
    before = (
        "the round before" if agreement.trust == "trusted" else "its last message that was taken"
    )
    if agreement.leak == 0:
        return f"fresh: {whose} is independent from message to message, and nothing is taken back"
    if agreement.growing:
        return (
            f"the paper's: all of the noise of {before} is taken back, and the variance of the k-th "
            "message's noise is k times that of the first"
        )
    if agreement.leak == LEAK_UNITS:
        return (
            f"uniform: all of the noise of {before} is taken back; always the same amount of noise"
        )
    share = agreement.leak / LEAK_UNITS
    return (
        f"leaky: {100 * share:.4g} % of the noise of {before} is taken back; always the same amount "
        "of noise"
    )


def plan_lines(agreement: Agreement, done: int) -> list[tuple[str, str]]:
    """The agreement's numbers, as (heading, text)."""
    M, m, T = len(agreement.clients), agreement.per_round, agreement.rounds
    std = math.sqrt(agreement.variance) * agreement.step
    spare = f"; {m + agreement.extra:,} are asked" if agreement.extra else ""
    one = agreement.unit
    sees = "each round's sum" if agreement.trust == "trusted" else "each message"
    grows = ", times the root of the message's number" if agreement.growing else ""
    factor = "" if agreement.unit == "client" else f" x {agreement.batch:,}"
    rest = agreement.divisor
    radius = "" if agreement.radius is None else f"; within {agreement.radius:g} of the start"
    if one == "client":
        uses, clipped = "any number of times", "one message"
    else:
        uses = "once" if agreement.uses == 1 else f"at most {agreement.uses:,} times"
        clipped = "what one example adds to a message"
    return [
        ("clients", f"M = {M:,}, of which m = {m:,} make a round{spare}"),
        ("rounds", f"T = {T:,}; {done:,} are over"),
        ("budget", f"mu = {agreement.mu:.6g} for {change(agreement.adjacency, one)}"),
        ("message", f"{plural(agreement.batch, 'example')}; each one is used {uses}"),
        ("cap", f"a client sends at most {agreement.cap:,} messages"),
        ("clip", f"S = {agreement.clip:g}: the largest norm of {clipped}"),
        (
            "noise",
            f"standard deviation {std:.5g} in each coordinate of {sees} ({std / agreement.clip:.4g} "
            f"times the clip){grows}",
        ),
        ("schedule", schedule(agreement)),
        ("leak", f"{agreement.leak / LEAK_UNITS:.5f} ({agreement.leak:,} / {LEAK_UNITS:,})"),
        ("divisor", f"{m:,}{factor} = {rest:,}, whoever answers"),
        (
            "model",
            f"{agreement.parameters:,} parameters; {agreement.algorithm}, learning rate "
            f"{agreement.learning_rate:.4g}{radius}",
        ),
        ("arithmetic", f"whole multiples of 2^{agreement.exponent}, so that noise cancels exactly"),
    ]

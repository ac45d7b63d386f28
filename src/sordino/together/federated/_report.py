"""The report of a federated run: one page about all of it, and one about each client.

    write_federated_report(
        "report", agreement, server.history(), server.events(), title="Five hospitals",
        out=server.state.out)

It is made from the agreement and from what a server wrote down, all of which is public; nothing
without noise is anywhere near. The pages link to each other, have no scripts, and ask no other place
for anything. Names and sentences of clients are foreign text, and stay text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from sordino._base.errors import one_line
from sordino._base.files import write_atomically
from sordino.privacy import rounded_up
from sordino.report import curves_figure, guessing, metric_names
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._coordinator import RoundRecord
from sordino.together.federated._report_client import client_page
from sordino.together.federated._report_facts import ClientFacts, Events, Facts, gathered
from sordino.together.federated._report_html import (
    LONG_TABLE,
    escaped,
    event_table,
    listed,
    number_row,
    page,
    shown_figure,
)
from sordino.together.federated._report_plots import (
    ClientPicture,
    participation_figure,
    spent_figure,
)
from sordino.together.federated._report_words import (
    FEDERATED_GLOSSARY,
    TRUST_NAMES,
    assumptions,
    not_covered,
    plan_lines,
    promises,
    trust,
)

# Of larger federations, pages and table leave out clients that were never asked, then the last ones.
MOST_PAGES = 5000


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
) -> Path:
    """Write ``index.html`` and ``clients/NAME.html`` to `folder`; the index is returned.

    Each file is written atomically, the index last, so that its links lead somewhere.

    Args:
      history: the rounds that are over, in order (`DurableServer.history`).
      events: what was rejected, refused or missing (`DurableServer.events`).
      date: when the report was made, as text; there is no clock in here.
      out: who refused for good, and why (`ServerState.out`).
      seen_by_clients: mu of a client's example against the other clients, who see the model only.
    """
    facts = gathered(agreement, history, events, out)
    pages = _pages(facts)
    where = Path(folder)
    (where / "clients").mkdir(parents=True, exist_ok=True)
    picture = ClientPicture(facts) if facts.done else None
    shown = [client for client in facts.clients if client.name in pages]
    for place, client in enumerate(shown):
        around = (shown[place - 1] if place else None, *shown[place + 1 : place + 2])
        mu = (seen_by_clients or {}).get(client.name)
        text = client_page(facts, client, picture, pages, around, mu, title, date)
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
    when = f", {escape(date)}" if date else ""
    body = [
        "<header>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="kicker">A model that {len(agreement.clients):,} clients train together with '
        f"differential privacy: {escaped(agreement.name)}{when}</p>",
        _headline(facts),
        "</header><main>",
        _trust(agreement),
        "<section><h2>What the guarantee means</h2>"
        f"<h3>What it promises</h3>{listed(promises(agreement))}"
        f"<h3>What it does not cover</h3>{listed(not_covered(agreement))}</section>",
        _progress(facts),
        _curves(facts),
        _participation(facts),
        _spent(facts),
        _table(facts, pages),
        _plan(facts),
        event_table("Events", [(at, text) for at, _, text in facts.events]),
        _glossary(),
        "</main>",
    ]
    return page(title, body, facts, date)


def _headline(facts: Facts) -> str:
    agreement, guarantee = facts.agreement, facts.guarantee
    numbers = [
        ("epsilon", facts.epsilon_text(agreement.mu)),
        ("delta", rounded_up(agreement.delta)),
        ("mu (Gaussian differential privacy)", rounded_up(agreement.mu)),
        ("protected unit", agreement.unit),
    ]
    return (
        f'<section class="headline" aria-label="Guarantee">{number_row(numbers)}'
        f"<p><strong>{escape(guarantee.sentence())}</strong></p>"
        f"<p>{escape(guessing(guarantee))}</p></section>"
    )


def _trust(agreement: Agreement) -> str:
    return (
        f"<section><h2>Who is trusted: {escape(TRUST_NAMES[agreement.trust])}</h2>"
        f"<p>{escape(trust(agreement))}</p><h3>What this rests on</h3>"
        f"{listed(assumptions(agreement))}</section>"
    )


def _progress(facts: Facts) -> str:
    agreement, done = facts.agreement, facts.done
    left = sum(client.out is None for client in facts.clients)
    text = f"{done:,} of {agreement.rounds:,} rounds are over."
    if gone := len(facts.clients) - left:
        who = "One client has" if gone == 1 else f"{gone:,} clients have"
        text += f" {who} refused for good; why is on their pages."
    if left < agreement.per_round and done < agreement.rounds:
        text += (
            f" The {left:,} that are left are fewer than the {agreement.per_round:,} a round needs: the "
            "run has ended early."
        )
    return f"<section><h2>Progress</h2><p>{text}</p></section>"


def _curves(facts: Facts) -> str:
    history = facts.metrics()
    names = metric_names(history)
    if not names:
        return ""
    # A dollar sign would begin a formula.
    plain = [{one_line(k, 40).replace("$", r"\$"): v for k, v in row.items()} for row in history]
    last = {name: [row[name] for row in history if name in row][-1] for name in names}
    ends = ", ".join(f"{one_line(n, 40).replace('_', ' ')} {v:.4g}" for n, v in last.items())
    return (
        "<section><h2>The model</h2>"
        + shown_figure(
            curves_figure(plain, step="round"),
            f"Public metrics over the rounds, ending at {ends}",
            "curves",
            f"Measured on public data after the rounds; at the end: {ends}. This costs no privacy.",
        )
        + "</section>"
    )


def _participation(facts: Facts) -> str:
    if not facts.done:
        return ""
    asked = sum(len(c.only_asked) for c in facts.clients)
    taken = sum(len(c.taken) for c in facts.clients)
    label = f"Clients by rounds: {taken:,} messages taken, {asked:,} times asked in vain"
    caption = (
        f"{taken:,} messages were taken; {asked:,} times a client was asked and the round was done "
        "without it, because it refused, was silent or came too late. Where a dot stands for several "
        "rounds or clients, its colour is the stronger the more often. Only the last attempt at a "
        "round counts."
    )
    return (
        "<section><h2>Who took part</h2>"
        + shown_figure(participation_figure(facts), label, "participation", caption)
        + "</section>"
    )


def _spent(facts: Facts) -> str:
    if not facts.done:
        return ""
    most = max(facts.clients, key=lambda client: client.mu)
    source = (
        "computed from the server's noise"
        if facts.agreement.trust == "trusted"
        else "at most, from which messages were taken"
    )
    caption = (
        f"mu of each client's worst {facts.agreement.unit}, {source}. The most is "
        f"{rounded_up(most.mu)} of {rounded_up(facts.agreement.mu)} ({one_line(most.name)})."
    )
    if facts.agreement.unit == "client":
        caption = caption.replace("each client's worst client", "each client")
    label = (
        f"Spent mu over the rounds, at most {most.mu:.4g}, and the budget {facts.agreement.mu:.4g}"
    )
    return (
        "<section><h2>What was spent</h2>"
        + shown_figure(spent_figure(facts), label, "spent", caption)
        + "</section>"
    )


def _table(facts: Facts, pages: Mapping[str, str]) -> str:
    agreement = facts.agreement
    rows = []
    for client in facts.clients:
        if client.name not in pages:
            continue
        status = client.status
        if client.out is not None:
            whole = client.sent >= agreement.cap
            status = "sent all it agreed to" if whole else "refused for good"
        if facts.is_over_budget(client):
            status += "; its messages cost more than was agreed"
        rows.append(
            f'<tr><td class="number">{client.number}</td>'
            f'<th scope="row" class="name"><a href="clients/{pages[client.name]}">'
            f"{escaped(client.name)}</a></th>"
            f'<td class="number">{client.sent:,}</td><td class="number">{len(client.taken):,}</td>'
            f'<td class="number">{client.uncommitted:,}</td>'
            f'<td class="number">{rounded_up(client.mu)}</td>'
            f'<td class="number">{facts.epsilon_text(client.mu)}</td>'
            f'<td class="status">{escaped(status)}</td></tr>'
        )
    heads = ("messages", "taken", "not taken", "spent mu", "epsilon")
    numbers = "".join(f'<th scope="col" class="number">{escape(head)}</th>' for head in heads)
    left = len(facts.clients) - len(pages)
    note = f" {left:,} more clients are left out." if left else ""
    tall = " tall" if len(rows) > LONG_TABLE else ""
    return (
        f'<section><h2>The clients</h2><div class="scroll{tall}"><table class="tight">'
        "<caption>“Messages” are those a client had sent by its last one that was taken (later ones "
        "are known to the client only); those not taken were paid for all the "
        f"same. Epsilon is at delta {agreement.delta:g}.{note}</caption>"
        f'<thead><tr><th scope="col" class="number">no.</th><th scope="col">client</th>{numbers}'
        f'<th scope="col">status</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        "</section>"
    )


def _plan(facts: Facts) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(heading)}</th><td>{escape(text)}</td></tr>'
        for heading, text in plan_lines(facts.agreement, facts.done)
    )
    return (
        "<section><h2>The agreement</h2><p>Every client holds its own copy and keeps to it, whatever "
        'a server says. It was made before a record was read.</p><div class="scroll"><table><tbody>'
        f"{rows}</tbody></table></div></section>"
    )


def _glossary() -> str:
    items = "".join(
        f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in FEDERATED_GLOSSARY
    )
    return f'<section><h2>How to read this</h2><dl class="words">{items}</dl></section>'

"""One client's page of a federated report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from sordino.privacy import rounded_up
from sordino.together.federated._report_facts import ClientFacts, Facts
from sordino.together.federated._report_html import (
    escaped,
    event_table,
    listed,
    moment,
    number_row,
    page,
)
from sordino.together.federated._report_plots import ClientPicture
from sordino.together.federated._report_words import colluding, trust

# Longer lists are shortened, and say so.
_MOST_MESSAGES = 100


def client_page(
    facts: Facts,
    client: ClientFacts,
    picture: ClientPicture | None,
    pages: Mapping[str, str],
    around: Sequence[ClientFacts | None],
    others: float | None,
    title: str,
    date: str,
) -> str:
    before, after = (*around, None)[:2]
    links = [f'<a href="../index.html">← {escape(title)}</a>']
    for text, other in (("previous", before), ("next", after)):
        if other is not None:
            links.append(f'<a href="{pages[other.name]}">{text}: {escaped(other.name)}</a>')
    when = f", {escape(date)}" if date else ""
    body = [
        f'<nav aria-label="Pages">{"".join(links)}</nav>',
        "<header>",
        f"<h1>{escaped(client.name)}</h1>",
        f'<p class="kicker">Client {client.number:,} of {len(facts.clients):,}: '
        f"{escaped(client.status, 440)}{when}</p>",
        _client_numbers(facts, client),
        "</header><main>",
        _against(facts, client, others),
        _client_picture(facts, client, picture),
        _client_rounds(facts, client),
        event_table("Refusals and other events", client.events),
        _reading(facts),
        "</main>",
    ]
    return page(f"{client.name} - {title}", body, facts, date)


def _client_numbers(facts: Facts, client: ClientFacts) -> str:
    agreement = facts.agreement
    numbers = [
        ("spent mu, at most", rounded_up(client.mu)),
        (f"epsilon at delta {agreement.delta:g}", facts.epsilon_text(client.mu)),
        ("of the budget", _percent(client.mu / agreement.mu)),
        (f"messages (at most {agreement.cap:,})", f"{client.sent:,}"),
    ]
    guarantee = facts.guarantee
    whole = (
        f"Whatever still happens, the agreed budget is mu = {rounded_up(agreement.mu)}"
        + (
            f" (epsilon {facts.epsilon_text(agreement.mu)} at delta {agreement.delta:g})"
            if guarantee.delta_hint is not None
            else ""
        )
        + ", and this client refuses to spend more."
    )
    if agreement.trust == "trusted":
        whole = whole.replace("this client refuses", "the server refuses")
    warning = ""
    if facts.is_over_budget(client):
        warning = (
            "<p><strong>This client's messages cost more than was agreed. It does not run this code, "
            "or not on this agreement.</strong></p>"
        )
    return (
        f'<section class="headline" aria-label="Spent budget">{number_row(numbers)}'
        f"<p>{escape(whole)}</p>{warning}</section>"
    )


def _against(facts: Facts, client: ClientFacts, others: float | None) -> str:
    agreement = facts.agreement
    spent = _both(facts, client.mu)
    one = "one example of this client" if agreement.unit == "example" else "this client"
    if agreement.trust == "trusted":
        rows = [
            ("the server", "none: it is trusted, and sees sums without noise"),
            ("everybody else", f"{spent}: all that is published, about {one}"),
        ]
    elif agreement.trust == "secure-sum":
        rows = [
            (
                f"the server with {colluding(agreement)}",
                f"{spent}: all sums, about {one}",
            ),
            (
                "the server with more of them",
                "none is promised: if all others work with it, this client's own noise is all that "
                "hides its examples, and alone it is too little",
            ),
        ]
    else:
        rows = [
            (
                "the server, and all others with it",
                f"{spent}: all of this client's messages, about {one}",
            )
        ]
    if others is not None and math.isfinite(others) and others >= 0:
        rows.append(
            (
                "the other clients, if none works with the server",
                f"{_both(facts, others)}: they see the model only, in which everybody's noise adds up "
                "(from who took part when; rounding to whole steps is left out)",
            )
        )
    if client.client_level is not None:
        own = agreement.trust != "trusted" and client.sent
        upto = f", up to message {client.sent:,}" if own else ""
        rows.append(
            (
                "for information: all examples of this client at once",
                f"{_both(facts, client.client_level)}{upto}. Nothing limits this figure; the promise "
                "is for one example",
            )
        )
    table = "".join(
        f'<tr><th scope="row" class="name">{escape(who)}</th><td>{escape(what)}</td></tr>'
        for who, what in rows
    )
    return (
        "<section><h2>What the guarantee means here, and against whom</h2>"
        f"<p>{escape(trust(agreement))}</p>"
        '<div class="scroll"><table><thead><tr><th scope="col">against</th>'
        f'<th scope="col">protection so far</th></tr></thead><tbody>{table}</tbody></table>'
        "</div></section>"
    )


def _client_picture(facts: Facts, client: ClientFacts, picture: ClientPicture | None) -> str:
    if picture is None:
        return ""
    label = (
        f"Spent mu over the rounds, now {client.mu:.4g} of {facts.agreement.mu:.4g}, and epsilon; "
        f"{len(client.taken):,} messages taken, {len(client.only_asked):,} times asked in vain"
    )
    return (
        "<section><h2>Its budget over the rounds</h2><figure>"
        + picture.svg(client, label)
        + "<figcaption>The axes are the same on every client's page. Below: the rounds for which this "
        "client was asked.</figcaption></figure></section>"
    )


def _client_rounds(facts: Facts, client: ClientFacts) -> str:
    taken = [message.round for message in client.taken]
    lines = [
        f"Messages taken in {len(taken):,} rounds: {_runs(taken)}."
        if taken
        else "No message taken.",
    ]
    if client.only_asked:
        lines.append(
            f"Asked in vain for {len(client.only_asked):,} rounds: {_runs(client.only_asked)}."
        )
    if client.uncommitted:
        lines.append(
            f"{client.uncommitted:,} messages came to nothing: they were paid for, and their noise is "
            "never taken back."
        )
    shown = client.taken[-_MOST_MESSAGES:]
    spent = dict(client.curve) if facts.agreement.trust != "trusted" else {}
    reported = facts.agreement.tells_blocks
    rows = "".join(
        f'<tr><td class="number">{m.round:,}</td><td class="number">{m.index:,}</td>'
        + (f'<td class="number">{f"{m.block + 1:,}" if m.block >= 0 else "none"}</td>' * reported)
        + (f'<td class="number">{rounded_up(spent[m.round])}</td>' if spent else "")
        + f'<td class="when">{moment(m.at)}</td></tr>'
        for m in shown
    )
    table = ""
    if shown:
        heads = ["round", "message", *["block of examples"] * reported]
        heads += ["spent mu, at most"] if spent else []
        columns = "".join(f'<th scope="col" class="number">{head}</th>' for head in heads)
        some = f"The last {len(shown):,} of" if len(shown) < len(taken) else "All"
        table = (
            f"<details><summary>{some} {len(taken):,} messages that were taken</summary>"
            f'<div class="scroll"><table class="tight"><thead><tr>{columns}'
            f'<th scope="col">when (UTC)</th></tr></thead><tbody>{rows}</tbody></table></div></details>'
        )
    return f"<section><h2>Its rounds</h2>{listed(lines)}{table}</section>"


def _reading(facts: Facts) -> str:
    agreement = facts.agreement
    if agreement.trust == "trusted":
        lines = [
            "What is spent grows with every round, with or without this client: later rounds take "
            "back noise that hides earlier examples."
            if agreement.leak
            else "What is spent grows with the rounds this client takes part in.",
        ]
    else:
        lines = [
            "What is spent grows with every message that this client sends, taken or not: a message "
            "that takes back noise tells a little more about the examples before it."
            if agreement.leak
            else "What is spent grows with the messages an example is used in, taken or not.",
            "The figures follow from which messages were taken, as if each had an example in it. The "
            "client's journal, on its own machine, has every message and is what counts.",
        ]
    lines += [
        f"mu is for the worst {agreement.unit}; most have less."
        if agreement.unit == "example"
        else "mu is for all that this client has sent.",
        "Epsilon is the same promise in the usual form: the odds of anything anyone concludes change "
        "by a factor of at most e^epsilon, except with probability about delta.",
        "What is not covered, and what the words mean, is on the front page.",
    ]
    return f"<section><h2>How to read this</h2>{listed(lines)}</section>"


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

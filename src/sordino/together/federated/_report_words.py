"""Numbers of a federated run in words; more words are in the templates."""

from __future__ import annotations

import math

from sordino.privacy import change, plural
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import LEAK_UNITS

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
        (
            "message",
            f"{plural(agreement.batch, 'example')}; each one is used {uses}",
        ),
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

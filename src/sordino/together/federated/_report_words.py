"""A federated run in words: who is trusted, what is not covered, what the numbers are."""

from __future__ import annotations

import math

from sordino.privacy import ADJACENCIES
from sordino.report import GLOSSARY, limits, meaning
from sordino.together.federated._account import LEAK_UNITS
from sordino.together.federated._agreement import Agreement

TRUST_NAMES = {
    "untrusted": "nobody but the client itself",
    "secure-sum": "the other clients, in part",
    "trusted": "the server",
}

_EXTRA_GLOSSARY = (
    (
        "message",
        "what a client sends in one round: a clipped sum over a few of its examples, with noise unless "
        "the server is trusted. “Taken” or “committed” messages are in the model; one that came too "
        "late, or was one too many, is not, but has cost its budget all the same.",
    ),
    (
        "noise that is taken back",
        "a message may subtract (a part of) the noise of the client's last message that was taken. "
        "In the model most of the noise then cancels; in the messages it does not, and the price is "
        "counted.",
    ),
    (
        "spent",
        "mu of the client's worst example (or of the client, if that is the protected unit), for all "
        "messages so far, at most. It never exceeds the budget: a client refuses what it cannot pay. "
        "Under a secure sum with cancelled noise it includes what the other clients may still cancel.",
    ),
)
FEDERATED_GLOSSARY = (*GLOSSARY, *_EXTRA_GLOSSARY)


def trust(agreement: Agreement) -> str:
    """Who sees what, in a few sentences."""
    if agreement.trust == "untrusted":
        return (
            "No one is trusted with a client's data but the client itself. It clips and adds noise on "
            "its own machine before anything leaves. The promise holds against the server, against "
            "the other clients and against whoever listens, also if they all work together and "
            "deviate from the protocol."
        )
    if agreement.trust == "secure-sum":
        return (
            f"The server sees sums over {agreement.per_round:,} clients and no single message, and may "
            f"work together with {colluding(agreement)}; the noise of the other {agreement.honest:,} "
            "adds up and hides each one's examples. The promise holds for whatever cohorts the server "
            "chooses."
        )
    return (
        "The server is trusted. It sees what every client sends, clipped but without noise, and adds "
        "one noise for all. The promise holds against whoever sees the model or the points that are "
        "sent to clients. Against the server, and whoever can read its memory, it promises nothing."
    )


def colluding(agreement: Agreement) -> str:
    """Who may work with the server, under a secure sum."""
    if not agreement.colluders:
        return "no member of a cohort"
    if agreement.colluders == 1:
        return "one member of a cohort"
    return f"up to {agreement.colluders:,} members of a cohort"


def assumptions(agreement: Agreement) -> list[str]:
    """What the promise rests on."""
    result = {
        "untrusted": [
            "The client's own machine runs this code on its own copy of the agreement.",
            "The secret that its noise is made from stays on that machine.",
            "Nothing is assumed about the server, the other clients or the network.",
        ],
        "secure-sum": [
            f"In every cohort at least {agreement.honest:,} members run this code, keep their noise "
            "secret, and do not work with the server.",
            "The public keys in the agreement are really the clients'; each got its copy of the "
            "agreement in a way that the server cannot change.",
            "The server cannot break X25519 and the pads that are made from it.",
        ],
        "trusted": [
            "The server runs this code, and keeps what it is sent and its noise to itself.",
            "Messages cannot be read on their way to the server: connections are encrypted.",
            "Clients clip what they send; one that does not can spoil the model, and its own "
            "promise, not the others'.",
        ],
    }
    return result[agreement.trust]


def promises(agreement: Agreement) -> list[str]:
    """What is covered."""
    result = meaning(agreement.guarantee)[:2]
    result.append("It was fixed before training began, and assumes nothing about data or model.")
    if agreement.trust == "untrusted":
        result.append("It covers every single message that a client sends, taken or not.")
    if agreement.trust == "secure-sum":
        result.append("It covers every sum that the server ever sees, of rounds given up as well.")
    return result


def not_covered(agreement: Agreement) -> list[str]:
    """What is not covered: of every guarantee, and of a federated one."""
    result = limits(agreement.guarantee)
    if agreement.unit == "example":
        result.append(
            "It is about examples, not about clients. What all examples of one client have in common "
            "is protected far less; where it can be computed, that figure is on the client's page."
        )
    else:
        result.append(
            "It is about clients. Whoever has records at several clients is protected less, and "
            "several clients that act as one are not one."
        )
    result += [
        "It does not hide who takes part: who was asked, who answered and when. Where being there "
        "depends on the data, that tells about them.",
        *_sizes(agreement),
        "It does not count what a machine sends that was put back to an earlier state together with "
        "its seal (a restored disk image or virtual machine): it may answer for a round again, unpaid. "
        "A journal that was restored alone is noticed.",
        "It does not keep the run going: a server or clients that stay away can stop it, and nothing "
        "here makes them answer.",
        "It does not make the model right: a client may send nonsense within its bounds.",
    ]
    return result


def _sizes(agreement: Agreement) -> list[str]:
    """What may tell how many examples a client has."""
    if agreement.tells_blocks:
        return [
            "It does not hide how many blocks of examples a client has: messages name their block, so "
            "that the server can count uses."
        ]
    if agreement.uses > 1 and agreement.unit == "example" and agreement.trust != "trusted":
        return [
            "It may not hide that a client has few examples: examples that are used again sooner cost "
            "more, so such a client may refuse earlier than others."
        ]
    return []


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
    change = ADJACENCIES[agreement.adjacency].format(unit=one)
    if one == "client":
        uses, clipped = "any number of times", "one message"
    else:
        uses = "once" if agreement.uses == 1 else f"at most {agreement.uses:,} times"
        clipped = "what one example adds to a message"
    return [
        ("clients", f"M = {M:,}, of which m = {m:,} make a round{spare}"),
        ("rounds", f"T = {T:,}; {done:,} are over"),
        ("budget", f"mu = {agreement.mu:.6g} for {change}"),
        (
            "message",
            f"{agreement.batch:,} example{'s' if agreement.batch > 1 else ''}; each one is used {uses}",
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

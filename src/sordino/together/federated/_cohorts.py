"""Simulated clients: who has which rows (`split`), who takes part when, and with which of its messages.

    cohorts = random_cohorts(agreement, seed=1)       # as a server would pick them
    cohorts.messages.index                          # (T, m): the member's how-many-th message

In the protocol a client's k-th message has its k-th block of examples, noise of variance V_k, and takes
back the noise of its last message that was committed. All of that follows from the cohorts alone, so it
is known before a simulation begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_choice, require_count, require_positive
from sordino.together.federated._agreement import Agreement

Counts = NDArray[np.int32]

# Kinds of cohorts that `cohorts_of` knows by name.
COHORTS = ("random", "round-robin", "fixed", "all")


@dataclass(frozen=True, eq=False)
class Messages:
    """The committed messages, each array int32 (T, m) in the order of the cohorts' members.

    Attributes:
      index: how many messages the client has sent, this one included (late ones count).
      before: the round, from 0, of its last committed message; -1 for none.
      before_index: that message's index; 0 for none.
    """

    index: Counts
    before: Counts
    before_index: Counts


@dataclass(frozen=True, eq=False)
class Cohorts:
    """The clients of every round, as numbers 0 .. clients-1.

    Attributes:
      clients: M.
      members: whose messages are committed, (T, m), in the order in which they are asked.
      late: who answers too late, (T, e): such a message has its index, its examples and its price, but
        is not in the sum, and its noise is never taken back (papers/02 E3).
    """

    clients: int
    members: Counts
    late: Counts = field(default_factory=lambda: np.zeros((0, 0), np.int32))

    def __post_init__(self) -> None:
        require_count("clients", self.clients)
        members = _table("members", self.members)
        late = _table("late", self.late)
        if not late.size:
            late = np.zeros((len(members), 0), np.int32)
        if len(late) != len(members) or not members.size:
            raise SordinoError(
                f"members and late must be tables of as many rounds, got {members.shape} and "
                f"{late.shape}"
            )
        everyone = np.sort(np.concatenate([members, late], axis=1), axis=1)
        if everyone.min() < 0 or everyone.max() >= self.clients:
            raise SordinoError(f"members must be numbers from 0 to {self.clients - 1}")
        if (everyone[:, 1:] == everyone[:, :-1]).any():
            raise SordinoError("a client is in a round at most once")
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "late", late)

    @property
    def rounds(self) -> int:
        return len(self.members)

    @property
    def per_round(self) -> int:
        return self.members.shape[1]

    def sent(self) -> NDArray[np.int64]:
        """How many messages each client sends, (M,), late ones included."""
        counts = np.bincount(self.members.ravel(), minlength=self.clients)
        return counts + np.bincount(self.late.ravel(), minlength=self.clients)

    @cached_property
    def messages(self) -> Messages:
        """Index and parent of every committed message."""
        sent = np.zeros(self.clients, np.int32)
        last = np.full(self.clients, -1, np.int32)
        last_index = np.zeros(self.clients, np.int32)
        built = Messages(*(np.empty(self.members.shape, np.int32) for _ in range(3)))
        for t, (members, late) in enumerate(zip(self.members, self.late, strict=True)):
            sent[members] += 1
            sent[late] += 1
            built.index[t] = sent[members]
            built.before[t] = last[members]
            built.before_index[t] = last_index[members]
            last[members] = t
            last_index[members] = sent[members]
        return built

    def check(self, agreement: Agreement) -> None:
        """Raise unless clients that hold `agreement` would answer all of it."""
        shape = (len(agreement.clients), agreement.per_round)
        if (self.clients, self.per_round) != shape:
            raise SordinoError(
                f"the agreement has {shape[1]:,} of {shape[0]:,} clients in a round, these cohorts "
                f"{self.per_round:,} of {self.clients:,}"
            )
        if self.rounds > agreement.rounds:
            raise SordinoError(
                f"the agreement has {agreement.rounds:,} rounds, these cohorts {self.rounds:,}"
            )
        most = int(self.sent().max())
        if most > agreement.cap:
            raise SordinoError(
                f"these cohorts ask one client for {most:,} messages, agreed are {agreement.cap:,}; "
                f"make the agreement with cap={most}"
            )


def cohorts_of(agreement: Agreement, kind: str, seed: int) -> Cohorts:
    """Cohorts by name: one of `COHORTS`."""
    makers = {
        "random": lambda: random_cohorts(agreement, seed),
        "round-robin": lambda: round_robin_cohorts(agreement),
        "fixed": lambda: fixed_cohorts(agreement),
        "all": lambda: fixed_cohorts(agreement),
    }
    if kind not in makers:
        raise SordinoError(f"cohorts {kind!r} are not known; known are {', '.join(COHORTS)}")
    if kind == "all" and agreement.per_round != len(agreement.clients):
        raise SordinoError(
            f"the agreement has {agreement.per_round:,} of {len(agreement.clients):,} clients in a "
            "round, not all"
        )
    return makers[kind]()


def random_cohorts(agreement: Agreement, seed: int) -> Cohorts:
    """What a server picks with ``np.random.default_rng(seed)`` if everybody is there and answers.

    The very picks of `Server.ask`, in their order; the first m of those asked are in time. A client
    that was asked for more than the agreed number of messages refuses, is left out from then on, and
    another one is picked; when fewer than m are left the run is over.
    """
    clients, m = len(agreement.clients), agreement.per_round
    wanted = min(m + agreement.extra, clients)
    chance = np.random.default_rng(seed)
    sent = np.zeros(clients, np.int64)
    out = np.zeros(clients, bool)
    table = np.empty((agreement.rounds, wanted), np.int32)
    for t in range(agreement.rounds):
        if sent.max() < agreement.cap:
            answering = chance.choice(clients, wanted, replace=False)
        else:
            answering = _answering(agreement, sent, out, chance)
        if len(answering) < m:
            table = table[:t]
            break
        if len(answering) < wanted:
            raise SordinoError(
                "so many clients have sent all their messages that some rounds have fewer than "
                f"{wanted:,}; make the agreement with a larger cap"
            )
        sent[answering] += 1
        table[t] = answering
    return Cohorts(clients, table[:, :m], table[:, m:])


def _answering(
    agreement: Agreement,
    sent: NDArray[np.int64],
    out: NDArray[np.bool_],
    chance: np.random.Generator,
) -> NDArray[np.int64]:
    """Who answers a round, where some refuse: they are marked as out, and others asked instead."""
    m = agreement.per_round
    asked = answering = np.zeros(0, np.int64)
    while len(answering) < m <= len(out) - out.sum():
        free = np.setdiff1d(np.flatnonzero(~out), asked, assume_unique=True)
        count = min(m + agreement.extra - len(answering), len(free))
        asked = np.concatenate([asked, free[chance.choice(len(free), count, replace=False)]])
        out[asked[sent[asked] >= agreement.cap]] = True
        answering = asked[~out[asked]]
        if agreement.trust == "secure-sum" and len(answering) < len(asked):
            raise SordinoError(
                "a client has sent all its messages, and under a secure sum its whole cohort is given "
                "up; make the agreement with a larger cap"
            )
    return answering


def fixed_cohorts(agreement: Agreement) -> Cohorts:
    """The first m clients, always: the worst cohorts under a secure sum (papers/02 5.4)."""
    m = agreement.per_round
    members = np.broadcast_to(np.arange(m, dtype=np.int32), (agreement.rounds, m))
    return Cohorts(len(agreement.clients), members)


def round_robin_cohorts(agreement: Agreement) -> Cohorts:
    """m clients after the other m: round t has clients ``t m .. t m + m - 1`` modulo M."""
    m, clients = agreement.per_round, len(agreement.clients)
    first = np.arange(agreement.rounds, dtype=np.int64)[:, None] * m
    return Cohorts(clients, ((first + np.arange(m)) % clients).astype(np.int32))


def _table(name: str, values: ArrayLike) -> Counts:
    array = np.asarray(values)
    if array.ndim != 2 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise SordinoError(f"{name} must be a table of whole numbers, (rounds, clients of a round)")
    return array.astype(np.int32)


# Shares of clients of sizes "dirichlet": the flat distribution over all ways to share.
_FLAT = 1.0


def split(
    X: ArrayLike,
    y: ArrayLike,
    clients: int,
    *,
    seed: int,
    sizes: str | Sequence[int] = "equal",
    skew: float | None = None,
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Every row to exactly one client, as ``[(X_0, y_0), ..., (X_{M-1}, y_{M-1})]``.

    Args:
      X, y: arrays of n rows, and their labels (n,).
      clients: M.
      seed: of the split.
      sizes: "equal" (they differ by at most 1), "dirichlet" (shares uniform over all ways to share, at
        least one row for each), or the M sizes themselves, which add up to at most n.
      skew: None for random rows; else the concentration alpha of a Dirichlet distribution around the
        labels' frequencies, from which each client's own frequencies are drawn (Hsu, Qi & Brown
        2019): at 100 they are alike, at 0.1 most clients have one or two labels. Labels that run out
        are replaced by what is left.
    """
    X, y = np.asarray(X), np.asarray(y)
    clients = require_count("clients", clients)
    if len(X) != len(y) or y.ndim != 1:
        raise SordinoError(f"X and y must have as many rows, got {X.shape} and {y.shape}")
    rng = np.random.default_rng(seed)
    counts = _sizes(len(y), clients, sizes, rng)
    if skew is None:
        order = rng.permutation(len(y))
        parts = np.split(order[: counts.sum()], np.cumsum(counts)[:-1])
    else:
        parts = _skewed(y, counts, require_positive("skew", skew), rng)
    return [(X[rows], y[rows]) for rows in parts]


def _sizes(
    n: int, clients: int, sizes: str | Sequence[int], rng: np.random.Generator
) -> NDArray[np.int64]:
    if not isinstance(sizes, str):
        counts = np.array([require_count("size", size, minimum=0) for size in sizes], np.int64)
        if len(counts) != clients or counts.sum() > n:
            raise SordinoError(f"sizes must be {clients:,} numbers that add up to at most {n:,}")
        return counts
    require_choice("sizes", sizes, ("equal", "dirichlet"))
    if n < clients:
        raise SordinoError(f"{n:,} rows are too few for {clients:,} clients")
    if sizes == "equal":
        counts = np.full(clients, n // clients)
        counts[: n % clients] += 1
        return counts
    shares = rng.dirichlet(np.full(clients, _FLAT))
    return 1 + rng.multinomial(n - clients, shares)


def _skewed(
    y: NDArray[Any], counts: NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    labels, numbers = np.unique(y, return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(numbers == label)) for label in range(len(labels))]
    frequencies = np.array([len(pool) for pool in pools]) / len(y)
    left = np.array([len(pool) for pool in pools])
    parts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(counts)
    # In random order, so that no client is always the one that gets what is left.
    for client in rng.permutation(len(counts)):
        wish = rng.dirichlet(alpha * len(labels) * frequencies)
        taken = np.zeros(len(labels), np.int64)
        while (missing := int(counts[client] - taken.sum())) > 0:
            open_labels = left > taken
            chances = np.where(open_labels, wish, 0.0)
            if chances.sum() <= 0:
                chances = np.where(open_labels, left - taken, 0).astype(np.float64)
            drawn = rng.multinomial(missing, chances / chances.sum())
            taken = np.minimum(taken + drawn, left)
        rows = [pool[end - size : end] for pool, end, size in zip(pools, left, taken, strict=True)]
        left = left - taken
        parts[client] = rng.permutation(np.concatenate(rows))
    return parts

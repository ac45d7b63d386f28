"""What is public about a federated run and each of its clients, put in order for a report.

Everything here follows from the agreement and from what the server wrote down: who was asked, which
message of whom is in which round. Clients do not say what they have spent, because that can tell how many
examples they have; an honest server's word fixes every parent, so an upper bound follows from the rounds.
A trusted server's own noise is accounted for once more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import one_line
from sordino.privacy import Guarantee, rounded_up
from sordino.report import decimated
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import ROUNDED, ChainAccountant
from sordino.together.federated._coordinator import RoundRecord
from sordino.together.federated._server import Server

Events = Sequence[tuple[str, str | None, str]]
Floats = NDArray[np.float64]

# Rounds at which curves are drawn, at most.
CURVE_POINTS = 240
_LONGEST_EVENT = 400
# What rounding may add to a budget that is used up.
_WITHIN = 1 + 1e-6
# As in `ChainAccountant.mu_squared`: square roots are rounded against the user.
_UP = 1 + 1e-12


@dataclass(frozen=True)
class CommittedMessage:
    """One message that is in the sum: its round, its index, its block of examples, and when."""

    round: int
    index: int
    block: int
    at: str


@dataclass(frozen=True)
class ClientFacts:
    """One client.

    Attributes:
      number: from 1, in the order of the agreement.
      taken: its messages that are in the sum.
      only_asked: rounds for which it was asked, and that were done without it.
      curve: (round, mu from then on): what it has spent at most, rising.
      client_level: mu of all its examples together; None if it cannot be told.
      out: why it refused for good; None if it did not.
      events: (when, sentence), in order.
    """

    name: str
    number: int
    taken: tuple[CommittedMessage, ...]
    only_asked: tuple[int, ...]
    curve: tuple[tuple[int, float], ...]
    client_level: float | None
    out: str | None
    events: tuple[tuple[str, str], ...]

    @property
    def sent(self) -> int:
        """Messages that it has sent, as far as the server can tell: later ones may have been lost."""
        return self.taken[-1].index if self.taken else 0

    @property
    def uncommitted(self) -> int:
        """Messages that came to nothing, before the last one that did not."""
        return max(0, self.sent - len(self.taken))

    @property
    def mu(self) -> float:
        """What it has spent at most."""
        return self.curve[-1][1] if self.curve else 0.0

    @property
    def status(self) -> str:
        if self.out is not None:
            return f"refused for good: {self.out}"
        if self.taken:
            return "takes part"
        return "asked, no message taken" if self.only_asked else "never asked"


@dataclass(frozen=True)
class Facts:
    """A whole run."""

    agreement: Agreement
    rounds: tuple[RoundRecord, ...]
    clients: tuple[ClientFacts, ...]
    events: tuple[tuple[str, str | None, str], ...]
    insecure: bool = False
    _epsilons: dict[float, float] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The last round that is over."""
        return self.rounds[-1].round if self.rounds else 0

    @property
    def guarantee(self) -> Guarantee:
        """The agreement's, and whether its noise came from a seed."""
        return replace(self.agreement.guarantee, insecure=self.insecure)

    def epsilon(self, mu: float) -> float:
        """Epsilon of `mu` at the agreement's delta, rounded up."""
        if mu not in self._epsilons:
            spent = replace(self.agreement.guarantee, gaussian_mu=mu)
            self._epsilons[mu] = spent.epsilon(self.agreement.delta)
        return self._epsilons[mu]

    def epsilon_text(self, mu: float) -> str:
        result = self.epsilon(mu)
        return rounded_up(result) if math.isfinite(result) else "none"

    def is_over_budget(self, client: ClientFacts) -> bool:
        """Whether a client's messages cost more than was agreed: then it does not run this code."""
        return client.mu > self.agreement.mu * _WITHIN

    def metrics(self) -> list[dict[str, float]]:
        """Public metrics, as `report.plots` takes them."""
        return [{"step": r.round, **r.metrics} for r in self.rounds if r.metrics]


def gathered(
    agreement: Agreement,
    history: Sequence[RoundRecord],
    events: Events = (),
    out: Mapping[str, str] | None = None,
) -> Facts:
    """The facts of a run.

    Args:
      history: all rounds that are over, in order.
      events: what was rejected, refused or missing.
      out: who refused for good, and why.
    """
    names = set(agreement.clients)
    taken: dict[str, list[CommittedMessage]] = defaultdict(list)
    only_asked: dict[str, list[int]] = defaultdict(list)
    for record in history:
        for name, index in record.committed.items():
            block = record.blocks.get(name, -1)
            taken[name].append(CommittedMessage(record.round, index, block, record.at))
        for name in record.asked:
            if name not in record.committed:
                only_asked[name].append(record.round)
    reported = [(at, client, one_line(text, _LONGEST_EVENT)) for at, client, text in events]
    by_client: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for at, client, text in reported:
        if client in names:
            assert client is not None
            by_client[client].append((at, text))
    if agreement.trust == "trusted":
        curves = _server_curves(agreement, history)
        levels = _server_levels(agreement, history)
    else:
        turns = history[-1].turn if history else 0
        curves = {name: _curve(agreement, taken[name], turns) for name in agreement.clients}
        levels = {name: _level(agreement, taken[name], turns) for name in agreement.clients}
    reasons = {name: one_line(why, _LONGEST_EVENT) for name, why in (out or {}).items()}
    clients = tuple(
        ClientFacts(
            name,
            number,
            tuple(taken[name]),
            tuple(only_asked[name]),
            tuple(curves[name]),
            levels[name],
            reasons.get(name),
            tuple(by_client[name]),
        )
        for number, name in enumerate(agreement.clients, start=1)
    )
    return Facts(agreement, tuple(history), clients, tuple(reported))


def _curve(
    agreement: Agreement, taken: Sequence[CommittedMessage], turns: int
) -> list[tuple[int, float]]:
    """What a client has spent at most after each of its messages that was taken, from public facts only.

    As if every message had an example in it. Where examples are used more than once, how often each one
    was depends on how many there are: then all of what their uses can cost, or what was agreed.
    """
    once = agreement.uses == 1 or agreement.unit == "client"
    if not once and agreement.leak:
        return [(message.round, agreement.mu) for message in taken]
    if taken and taken[-1].index > turns:
        # More than one message a turn: not an honest client's, and not replayed one by one.
        each = agreement.reach**2 / (agreement.variance - ROUNDED)
        most = taken[-1].index if agreement.unit == "client" else agreement.uses
        worst = math.sqrt(agreement.total(taken[-1].index * most**2 * each))
        return [(message.round, worst) for message in taken]

    def groups(index: int) -> list[int]:
        if agreement.uses == 1 and agreement.unit == "example":
            return [index - 1]
        return [0] if agreement.unit == "client" or index <= agreement.uses else []

    accounts = _replayed(agreement, agreement.account(), taken, groups)
    spent = [math.sqrt(agreement.total(account.mu_squared)) for account in accounts]
    return list(zip([message.round for message in taken], spent, strict=True))


def _replayed(
    agreement: Agreement,
    account: ChainAccountant,
    taken: Sequence[CommittedMessage],
    groups: Callable[[int], list[int]],
) -> Iterator[ChainAccountant]:
    """The account after each message that was taken; `groups`: who is in the message of an index.

    An honest server's word fixes every parent: a message is sent in a later turn than the last one that
    was committed, so all messages after that, up to the next one committed, take back its noise.
    """
    parent = 0
    for message in taken:
        for index in range(parent + 1, message.index + 1):
            account = account.after(index, parent, groups(index), agreement.variance_of(index))
            account = account.keeping([parent, index])
        parent = message.index
        yield account


def _whole_client(agreement: Agreement) -> ChainAccountant:
    """An account of all examples of a message together."""
    return ChainAccountant.opened(
        reach=agreement.reach * agreement.batch,
        leak=agreement.leak,
        parameters=agreement.parameters,
    )


def _level(agreement: Agreement, taken: Sequence[CommittedMessage], turns: int) -> float | None:
    """mu of a whole client against whoever sees its messages, up to its last one in the sum."""
    if agreement.unit == "client":
        return None  # that is the guarantee itself
    if agreement.trust == "secure-sum" and agreement.leak:
        return None  # a unit in more than one message is accounted for fresh noise only
    if taken and taken[-1].index > turns:
        return None  # more than one message a turn: not what an honest client says
    opened = _whole_client(agreement)
    *_, account = opened, *_replayed(agreement, opened, taken, lambda _: [0])
    return math.sqrt(account.mu_squared * agreement.honest)


def _server_curves(
    agreement: Agreement, history: Sequence[RoundRecord]
) -> dict[str, list[tuple[int, float]]]:
    """What a trusted server's noise has left of each client's worst example (or of the client)."""
    # The secret is never used: only the server's way of accounting is.
    server = Server(agreement, np.zeros(agreement.parameters, np.float32), bytes(32))
    numbers = {name: i for i, name in enumerate(agreement.clients)}
    once = agreement.unit == "example" and agreement.uses == 1
    wanted = set(decimated(len(history), CURVE_POINTS).tolist())
    account = agreement.account()
    owners: list[int] = []
    groups: list[int] = []
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, record in enumerate(history, start=1):
        account = server.paid(account, record.round, record.blocks)
        if once:  # the messages of a round are one group, whosever they are
            owners += [numbers[name] for name in record.committed]
            groups += [record.round - 1] * len(record.committed)
        if place not in wanted:
            continue
        worst = np.zeros(len(numbers))
        if once:
            np.maximum.at(worst, owners, account.spent[groups])
        else:
            np.maximum.at(worst, np.arange(len(account.spent)) % len(numbers), account.spent)
        for number in np.flatnonzero(worst):
            value = math.sqrt(float(worst[number])) * _UP
            curves[agreement.clients[number]].append((record.round, value))
    return curves


def _server_levels(agreement: Agreement, history: Sequence[RoundRecord]) -> dict[str, float | None]:
    """mu of every whole client against whoever sees what a trusted server publishes."""
    if agreement.unit == "client":
        return dict.fromkeys(agreement.clients)
    numbers = {name: i for i, name in enumerate(agreement.clients)}
    account = _whole_client(agreement)
    for record in history:
        t = record.round
        members = [numbers[name] for name in record.committed]
        account = account.after(t, t - 1, members, agreement.variance_of(t)).keeping([t])
    spent = np.zeros(len(numbers))
    spent[: len(account.spent)] = account.spent
    return {name: math.sqrt(float(spent[i])) * _UP for name, i in numbers.items()}


def shares(facts: Facts, rows: int, columns: int) -> tuple[Floats, Floats]:
    """How often clients were in a round, and asked in vain: means over a table of at most that size.

    Row by row clients in order, column by column rounds in order, each cell a share of its pairs.
    """
    M, T = len(facts.clients), max(1, facts.done)
    rows, columns = min(rows, M), min(columns, T)
    result = np.zeros((2, rows, columns))
    for client in facts.clients:
        row = (client.number - 1) * rows // M
        for kind, rounds in enumerate(([t.round for t in client.taken], client.only_asked)):
            places = (np.asarray(rounds, np.int64) - 1) * columns // T
            np.add.at(result[kind, row], places, 1.0)
    heights = np.bincount(np.arange(M) * rows // M, minlength=rows)
    widths = np.bincount(np.arange(T) * columns // T, minlength=columns)
    result /= heights[:, None] * widths[None, :]
    return result[0], result[1]

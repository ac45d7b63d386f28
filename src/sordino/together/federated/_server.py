"""The server as a pure state machine: whom to ask what, what a reply is good for, when a round is done.

A round is done with exactly m messages, divided by a constant (papers/02 E4). Their sum goes into q as
whole numbers, so what a client adds now and takes back later cancels to the last bit (Lemma 4.1):

    q <- q + sum of m messages ;  w <- Proj(w - eta q / divisor) ;  x <- x + 2/(t+2) (w - x)

Each client is told which of its messages is in q. A message that came too late, or was one too many, is
not, and its noise is never taken back. The server needs no client's values for this, only their noised
sums; it knows neither noise nor data. (A trusted server is sent sums without noise, and adds its own, as
the one link of a chain whose length is the number of rounds.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import ChainAccountant, cancelled_draws, drawn, noise_key
from sordino.together.federated._messages import Message, Refusal, Reply, RoundRequest

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ReplyOutcome:
    """What became of a message: taken or not, and one sentence."""

    taken: bool
    reason: str


@dataclass(frozen=True)
class RoundOutcome:
    """A round that is over.

    Attributes:
      committed: index of the message of each client that is in it.
      blocks: the block of each, where it was told (`Agreement.tells_blocks`); else -1.
    """

    round: int
    turn: int
    committed: Mapping[str, int]
    blocks: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class ServerState:
    """Everything a server must not forget. All of it may be seen, but for `inbox` if it is trusted.

    Attributes:
      turn: number of the current attempt; grows with every round, and with every one given up.
      round: t, from 1; ``rounds + 1`` when all are done.
      point, previous: x_t and x_{t-1}, float32 (d,): the bytes that are sent.
      weights: w_t, float64.
      total: q in lattice steps, int64.
      average: mean of the iterates so far, for algorithms that return it.
      committed: index of each client's last message in q.
      asked: whom the current turn has asked, in order.
      inbox: this turn's messages, in order of arrival.
      out: who refused for good, and why.
      account: of a trusted server's own noise.
      last_key: of its last noise.
    """

    turn: int
    round: int
    point: NDArray[np.float32]
    previous: NDArray[np.float32]
    weights: Vector
    total: NDArray[np.int64]
    average: Vector
    committed: Mapping[str, int] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    inbox: Mapping[str, Reply] = field(default_factory=dict, repr=False)
    out: Mapping[str, str] = field(default_factory=dict)
    account: ChainAccountant | None = None
    last_key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Server:
    """What never changes about a server.

    Attributes:
      secret: of a trusted server's noise; None for the others.
    """

    agreement: Agreement
    start: NDArray[np.float32]
    secret: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.start.shape != (self.agreement.parameters,):
            raise SordinoError(
                f"the agreement is for {self.agreement.parameters:,} parameters, the start has "
                f"{self.start.size:,}"
            )
        if not np.isfinite(self.start).all():
            raise SordinoError("the start has numbers that are not finite")
        if (self.agreement.trust == "trusted") != (self.secret is not None):
            raise SordinoError("a trusted server has a secret for its noise, and no other has one")

    def begin(self) -> ServerState:
        start = self.start.astype(np.float32)
        weights = start.astype(np.float64)
        account = self.agreement.account() if self.secret else None
        zero = np.zeros(self.agreement.parameters, np.int64)
        return ServerState(1, 1, start, start, weights, zero, weights, account=account)

    def is_finished(self, state: ServerState) -> bool:
        return state.round > self.agreement.rounds or not self.can_go_on(state)

    def can_go_on(self, state: ServerState) -> bool:
        """Whether enough clients are left for another round."""
        return len(self.agreement.clients) - len(state.out) >= self.agreement.per_round

    def ask(
        self, state: ServerState, present: Iterable[str], chance: np.random.Generator
    ) -> tuple[ServerState, dict[str, RoundRequest]]:
        """Whom to ask now: those who were asked and have not answered, and as many more as needed.

        Args:
          present: who can be reached.
          chance: picks among them; it must not depend on data.
        """
        if self.is_finished(state):
            return state, {}
        agreement = self.agreement
        here = [name for name in dict.fromkeys(present) if name in set(agreement.clients)]
        wanted = agreement.per_round + agreement.extra
        asked = [name for name in state.asked if name not in state.out]
        if agreement.trust == "secure-sum" and state.asked:
            picked: list[str] = []  # a cohort is all or nothing
        else:
            hopeful = [name for name in asked if name in here or name in state.inbox]
            free = [name for name in here if name not in asked and name not in state.out]
            count = min(max(0, wanted - len(hopeful)), len(free))
            if agreement.trust == "secure-sum" and count < agreement.per_round:
                return state, {}
            picked = [free[i] for i in chance.choice(len(free), size=count, replace=False)]
        after = replace(state, asked=(*state.asked, *picked))
        waiting = [name for name in (*asked, *picked) if name in here and name not in state.inbox]
        return after, {name: self.request(after, name) for name in waiting}

    def request(self, state: ServerState, client: str) -> RoundRequest:
        """What the current turn asks of `client`."""
        cohort = state.asked if self.agreement.trust == "secure-sum" else ()
        return RoundRequest(
            self.agreement.digest,
            state.turn,
            state.round,
            state.point,
            state.previous,
            state.committed.get(client, 0),
            cohort,
        )

    def receive(
        self, state: ServerState, client: str, message: Message
    ) -> tuple[ServerState, ReplyOutcome, RoundOutcome | None]:
        """The state with a message taken or not; with the m-th one, the round is done."""
        if isinstance(message, Refusal):
            return self._refused(state, client, message)
        fault = self._fault(state, client, message)
        if fault:
            return state, ReplyOutcome(False, fault), None
        assert isinstance(message, Reply)
        state = replace(state, inbox={**state.inbox, client: message})
        verdict = ReplyOutcome(True, f"message {message.index} of {client}")
        if len(state.inbox) < self.agreement.per_round:
            return state, verdict, None
        done = RoundOutcome(
            state.round,
            state.turn,
            {name: reply.index for name, reply in state.inbox.items()},
            self._blocks(state),
        )
        return self._commit(state), verdict, done

    def give_up(self, state: ServerState) -> ServerState:
        """The same round in another turn, with other clients; what was sent stays uncommitted."""
        return replace(state, turn=state.turn + 1, asked=(), inbox={})

    def output(self, state: ServerState) -> NDArray[np.float32]:
        """The model: x after the last round, or the mean of the iterates."""
        if self.agreement.kind.accumulates:
            return state.point
        return state.average.astype(np.float32)

    def _refused(
        self, state: ServerState, client: str, message: Refusal
    ) -> tuple[ServerState, ReplyOutcome, RoundOutcome | None]:
        verdict = ReplyOutcome(False, f"{client} refuses: {message.reason}")
        known = client in state.asked and client not in state.inbox and message.client == client
        known &= message.agreement == self.agreement.digest and message.turn == state.turn
        if known and message.is_final:
            state = replace(state, out={**state.out, client: message.reason})
        return state, verdict, None

    def _fault(self, state: ServerState, client: str, message: Message) -> str | None:
        """What is wrong with a message; None if it can be taken."""
        agreement = self.agreement
        if not isinstance(message, Reply):
            return f"{client} sent something that is no reply"
        if message.agreement != agreement.digest:
            return f"{client} answers under another agreement"
        if message.client != client:
            return f"{client} speaks for {message.client!r}"
        if message.turn != state.turn:
            late = " too late" if message.turn < state.turn else ""
            return f"{client} answers turn {message.turn}{late}; this is turn {state.turn}"
        if client not in state.asked:
            return f"{client} was not asked"
        if client in state.inbox:
            return f"{client} has answered turn {state.turn} already"
        if message.asked != self.request(state, client).digest().hex():
            return f"{client} answers another request than the one it was sent"
        if message.index <= state.committed.get(client, 0):
            return f"{client} sends message {message.index} again"
        if message.index > agreement.cap:
            return f"{client} sends more than the agreed {agreement.cap:,} messages"
        if agreement.tells_blocks:
            if message.block is None:
                return f"{client} does not name its block, and its uses cannot be counted"
            if message.block >= message.index:
                return (
                    f"{client} names block {message.block}, which its messages cannot have reached"
                )
        width = 8 if agreement.trust == "secure-sum" else 4
        if message.values.shape != (agreement.parameters,) or message.values.itemsize != width:
            return f"{client} sends an array of another shape"
        return None

    def _commit(self, state: ServerState) -> ServerState:
        """The state after the round whose m messages are in the inbox."""
        agreement = self.agreement
        with np.errstate(over="ignore"):
            added = np.zeros(agreement.parameters, np.int64)
            for reply in state.inbox.values():
                added += reply.values.astype(np.int64)  # modulo 2^64 where it has pads
        account, key = state.account, None
        if self.secret is not None:
            added, account, key = self._noised(state, added)
        return replace(
            self.moved(state, added),
            turn=state.turn + 1,
            committed={
                **state.committed,
                **{name: reply.index for name, reply in state.inbox.items()},
            },
            asked=(),
            inbox={},
            account=account,
            last_key=key,
        )

    def moved(self, state: ServerState, added: NDArray[np.int64]) -> ServerState:
        """q, w and x after a round whose sum is `added`, noise included."""
        agreement, t = self.agreement, state.round
        total = state.total + added
        estimate = (total if agreement.kind.accumulates else added) * (
            agreement.step / agreement.divisor
        )
        weights = self._projected(state.weights - agreement.learning_rate * estimate)
        point = weights
        if agreement.kind.accumulates:
            point = state.point + 2 / (t + 2) * (weights - state.point)
        return replace(
            state,
            round=t + 1,
            point=point.astype(np.float32),
            previous=state.point,
            weights=weights,
            total=total,
            average=state.average + (weights - state.average) / t,
        )

    def _noised(
        self, state: ServerState, added: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], ChainAccountant, bytes]:
        """A trusted server's own noise: the sum as the next message of one chain, and its price."""
        agreement = self.agreement
        assert self.secret is not None
        assert state.account is not None
        t = state.round
        account = self.paid(state.account, t, self._blocks(state))
        if account.mu_squared > agreement.limit * (1 + 1e-9):
            raise SordinoError("another round costs more than the budget that was agreed")
        content = hashlib.sha256(added.tobytes()).digest()
        text = f"{agreement.digest}/{state.turn}/{t}/".encode()
        key = noise_key(self.secret, hashlib.sha256(text + content).digest())
        added = added + drawn(key, agreement.variance_of(t), agreement.parameters)
        if state.last_key is not None and agreement.leak:
            before = drawn(state.last_key, agreement.variance_of(t - 1), agreement.parameters)
            added = added - cancelled_draws(before, agreement.leak)
        return added, account, key

    def _blocks(self, state: ServerState) -> dict[str, int]:
        """The block of each message in the inbox; -1 where it has none, or is not to be known."""
        reported = self.agreement.tells_blocks
        return {
            name: reply.block if reported and reply.block is not None else -1
            for name, reply in state.inbox.items()
        }

    def paid(self, account: ChainAccountant, t: int, blocks: Mapping[str, int]) -> ChainAccountant:
        """A trusted server's account after round t, given which block each message in it had."""
        agreement = self.agreement
        variance = agreement.variance_of(t)
        return account.after(t, t - 1, self._groups(t, blocks), variance).keeping([t])

    def _groups(self, t: int, blocks: Mapping[str, int]) -> list[int]:
        """Numbers of the groups of examples (or of the clients) that a round's messages hold."""
        agreement = self.agreement
        if agreement.unit == "example" and agreement.uses == 1:
            return [t - 1]  # all of them for the only time
        numbers = {name: i for i, name in enumerate(agreement.clients)}
        if agreement.unit == "client":
            return [numbers[name] for name in blocks]
        return [
            numbers[name] + len(numbers) * block for name, block in blocks.items() if block >= 0
        ]

    def _projected(self, weights: Vector) -> Vector:
        radius = self.agreement.radius
        if radius is None:
            return weights
        centre = self.start.astype(np.float64)
        away = weights - centre
        norm = math.sqrt(float(away @ away))
        return weights if norm <= radius else centre + away * (radius / norm)

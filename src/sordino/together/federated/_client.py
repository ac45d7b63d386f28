"""A client as a pure state machine: (state, request) -> (state, reply or refusal).

Whatever it is asked, by whomever, a client

- answers a turn at most once; the same request again gets the same bytes, another one for the same turn
  a refusal (papers/02 E2);
- clips every example itself, with the clip of its own agreement (E1);
- cancels only noise of a message that the server says it has committed, and that may still be the
  last one committed (E3): commits never go back;
- takes every example at most as often as agreed; when there are none left it sends noise alone,
  because silence would tell (E8);
- pays before it answers (`_chain.py`), and refuses what it cannot pay;
- says no more than it must: a refusal is a code (why exactly stays here, in `Refusal.detail`), and a
  reply tells neither what was spent nor, unless a trusted server counts uses, which examples are in it.
  Both would tell how many examples there are.

No disk, clock or entropy here: `_durable.py` keeps the state, and has it on disk before a reply leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms import MOST_VARIANCE
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import (
    ChainAccountant,
    cancelled_draws,
    drawn,
    noise_key,
    turned,
)
from sordino.together.federated._contribution import LocalData
from sordino.together.federated._messages import Refusal, Reply, RoundRequest, message_from_bytes

# Messages that were sent after the last commit and may still be committed; more are not waited for.
MOST_OPEN = 16

# Adds the pads of a secure sum to a message (uint64), given the request and the message's index.
Mask = Callable[[RoundRequest, int, NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class SentMessage:
    """A message that was sent, without its content.

    Attributes:
      index: from 1.
      turn, round: of its request.
      asked: digest of its request.
      parent: index of the message whose noise it took back; 0 for none.
      block: of examples; -1 for none.
    """

    index: int
    turn: int
    round: int
    asked: bytes
    parent: int
    block: int

    def binding(self) -> bytes:
        """What the message's noise is bound to: the request, the examples, the index."""
        text = f"{self.index}/{self.block}/{self.parent}/".encode()
        return hashlib.sha256(text + self.asked).digest()


@dataclass(frozen=True)
class ClientState:
    """Everything a client must not forget.

    Attributes:
      sent: its last message; None before the first.
      live: messages whose noise may still be taken back: the committed one and later ones.
      keys: the noise keys of those, by index.
      ratchet: the secret of the next message's key.
      committed: index of the last message the server says it has committed; 0 for none.
      pending: the last reply, as bytes; None if it holds what must not be kept.
      recent: the noise of the last message, so that it need not be drawn again; never kept on disk.
      account: what the agreement's unit has paid.
      other: the same for the other unit (whole client, or example), which nothing limits.
    """

    ratchet: bytes = field(repr=False)
    account: ChainAccountant
    other: ChainAccountant
    sent: SentMessage | None = None
    live: tuple[SentMessage, ...] = ()
    keys: dict[int, bytes] = field(default_factory=dict, repr=False)
    committed: int = 0
    pending: bytes | None = None
    recent: tuple[int, NDArray[np.int64]] | None = field(default=None, repr=False)

    @property
    def index(self) -> int:
        """How many messages were sent."""
        return self.sent.index if self.sent else 0

    @property
    def turn(self) -> int:
        return self.sent.turn if self.sent else 0


@dataclass(frozen=True)
class Client:
    """What never changes about a client: its name, its copy of the agreement, its data.

    Attributes:
      mu: a budget of its own, below the agreement's, if it wants one. Under a secure sum with cancelled
        noise it covers what the others may still cancel (`Agreement.total`), so it cannot be far below.
      mask: adds pads, under a secure sum.
    """

    name: str
    agreement: Agreement
    data: LocalData
    mu: float | None = None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        if self.name not in self.agreement.clients:
            raise SordinoError(f"the agreement has no client {self.name!r}")
        if self.mu is not None:
            self.agreement.check_own_budget(self.mu)
        if (self.agreement.trust == "secure-sum") != (self.mask is not None):
            raise SordinoError("a secure sum needs pads, and nothing else does")

    def begin(self, secret: bytes) -> ClientState:
        """The state before the first message."""
        agreement = self.agreement
        account = agreement.account()
        other = ChainAccountant.opened(
            reach=agreement.other_reach, leak=agreement.leak, parameters=agreement.parameters
        )
        return ClientState(ratchet=secret, account=account, other=other)

    def respond(
        self, state: ClientState, request: RoundRequest
    ) -> tuple[ClientState, Reply | Refusal]:
        """The answer, and the state that must be kept before it leaves."""
        asked = request.digest()
        if state.sent and request.turn == state.turn and asked == state.sent.asked:
            return state, self._again(state, request)
        objection = self._objection(state, request)
        if objection:
            return state, self.refusal(request.turn, *objection)
        reported = self._told(state, request.committed)
        charged = self._charged(reported, self._next(reported, request, asked))
        objection = self._objection_to_cost(charged)
        if objection:
            return state, self.refusal(request.turn, *objection)
        return self._answer(charged, request)

    def refusal(self, turn: int, code: str, detail: str) -> Refusal:
        return Refusal(self.agreement.digest, self.name, turn, code, detail)

    def message(
        self, state: ClientState, request: RoundRequest, sent: SentMessage, noise: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """``s + y - rho(y_parent)`` in lattice steps, given y; `state` has the parent's key."""
        agreement = self.agreement
        total = self.data.total(request.point, request.previous, request.round, sent.block)
        values: NDArray[np.int64] = total.clipped
        if agreement.trust != "trusted":
            values = values + noise
            if sent.parent and agreement.leak:
                values = values - cancelled_draws(self.noise(state, sent.parent), agreement.leak)
        if self.mask is not None:
            values = self.mask(request, sent.index, values)
        return values

    def noise(self, state: ClientState, index: int) -> NDArray[np.int64]:
        """y of a live message: as secret as the data."""
        if state.recent is not None and state.recent[0] == index:
            return state.recent[1]
        agreement = self.agreement
        return drawn(state.keys[index], agreement.variance_of(index), agreement.parameters)

    def spent(self, state: ClientState) -> float:
        """mu of the worst example (or of the client), against whoever sees the messages.

        Under a secure sum, against who sees the sums, now and whatever the other clients do later.
        """
        return float(np.sqrt(self.agreement.total(state.account.mu_squared)))

    def advanced(
        self, state: ClientState, request_committed: int, sent: SentMessage
    ) -> ClientState:
        """The state after sending `sent`, for a journal that is read back."""
        reported = self._told(state, request_committed)
        return self._charged(reported, sent)

    def next_block(self, index: int) -> int:
        """Which block the message of that index has: each is used as often as agreed, then none."""
        blocks = self.data.blocks
        if not blocks or (index - 1) // blocks >= self.agreement.uses:
            return -1
        return (index - 1) % blocks

    def _again(self, state: ClientState, request: RoundRequest) -> Reply | Refusal:
        """The very same reply: from memory, or computed again where it must not be kept."""
        assert state.sent is not None
        if state.pending is not None:
            result = message_from_bytes(state.pending)
            assert isinstance(result, Reply)
            return result
        noise = self.noise(state, state.sent.index)
        return self._reply(state, self.message(state, request, state.sent, noise))

    def _objection(self, state: ClientState, request: RoundRequest) -> tuple[str, str] | None:
        """Why this request is not answered, as (code, sentence); None if it is."""
        agreement = self.agreement
        if request.agreement != agreement.digest:
            return (
                "agreement",
                "the request is for another agreement than the one this client holds",
            )
        if request.turn <= state.turn:
            if request.turn == state.turn:
                return "repeated", f"turn {request.turn} was already answered for another request"
            return "repeated", f"turn {request.turn} is over; the last one was {state.turn}"
        if not 1 <= request.round <= agreement.rounds:
            return "round", f"round {request.round:,} is not one of the agreed {agreement.rounds:,}"
        if state.sent and request.round < state.sent.round:
            return (
                "round",
                f"round {request.round:,} is over; the last one was {state.sent.round:,}",
            )
        if request.committed != state.committed:
            live = [sent.index for sent in state.live if sent.index > state.committed]
            if request.committed > state.index:
                return "journal", (
                    f"the server has committed message {request.committed}, but this client knows of "
                    f"{state.index} only: its journal is older than what it has sent; put the newest "
                    "one back"
                )
            if request.committed not in live:
                return "commit", (
                    f"the server says that message {request.committed} is its last, which cannot be: "
                    f"it was {state.committed} before, and open since then are {live or 'none'}"
                )
        if agreement.trust == "secure-sum":
            members = set(request.cohort)
            if len(members) != len(request.cohort) or not members <= set(agreement.clients):
                return "cohort", "the cohort has names that are not in the agreement, or one twice"
            if len(members) < agreement.per_round or self.name not in members:
                return "cohort", (
                    f"the cohort has {len(members)} members; {agreement.per_round} with this client "
                    "among them are agreed"
                )
        elif request.cohort:
            return "cohort", "there are no cohorts in this agreement"
        if state.index >= agreement.cap:
            return "cap", f"all {agreement.cap:,} messages that were agreed are sent"
        if agreement.variance_of(state.index + 1) > MOST_VARIANCE:
            return "cap", f"the noise of message {state.index + 1:,} is larger than can be drawn"
        return self._objection_to_point(request)

    def _objection_to_point(self, request: RoundRequest) -> tuple[str, str] | None:
        d, radius = self.agreement.parameters, self.agreement.radius
        for name, point in (("point", request.point), ("previous point", request.previous)):
            if point.shape != (d,):
                return "point", f"the {name} has {point.size:,} numbers, agreed are {d:,}"
            if not np.isfinite(point).all():
                return "point", f"the {name} has numbers that are not finite"
            if radius is not None:
                far = float(np.linalg.norm(point.astype(np.float64) - self.data.start))
                # float32 numbers around a start that is far from 0 are that coarse.
                coarse = 1e-6 * float(np.linalg.norm(self.data.start))
                if far > radius * (1 + 1e-4) + coarse:
                    return (
                        "point",
                        f"the {name} is {far:.4g} from the start; agreed are {radius:.4g}",
                    )
        return None

    def _objection_to_cost(self, after: ClientState) -> tuple[str, str] | None:
        """Whether a message that would leave the client in the state `after` can be paid."""
        agreement = self.agreement
        if agreement.trust == "trusted":
            return None
        mu = agreement.mu if self.mu is None else min(agreement.mu, self.mu)
        if after.account.mu_squared > min(agreement.limit, agreement.allowance(mu)) * (1 + 1e-9):
            return "budget", (
                f"one more message would bring this client to mu = {self.spent(after):.6g}, and its "
                f"budget is {mu:.6g}"
            )
        return None

    def _told(self, state: ClientState, committed: int) -> ClientState:
        """The state once the client knows what is committed: earlier noise is forgotten."""
        if committed == state.committed:
            return state
        live = tuple(sent for sent in state.live if sent.index >= committed)
        kept = {sent.index for sent in live}
        keys = {index: key for index, key in state.keys.items() if index in kept}
        # The accounts forget the others when the next message is paid for.
        return replace(state, committed=committed, live=live, keys=keys)

    def _next(self, state: ClientState, request: RoundRequest, asked: bytes) -> SentMessage:
        index = state.index + 1
        block = self.next_block(index)
        return SentMessage(index, request.turn, request.round, asked, state.committed, block)

    def _charged(self, state: ClientState, sent: SentMessage) -> ClientState:
        """The state once `sent` is paid for and its key is made."""
        agreement = self.agreement
        account, other, variance = state.account, state.other, agreement.variance_of(sent.index)
        example = [sent.block] if sent.block >= 0 else []
        if agreement.uses == 1:
            # Whether it has an example or not: under a secure sum it hides the others' too, and when
            # the budget is spent must not tell how many examples there are.
            example = [sent.index - 1]
        groups = ([0], example) if agreement.unit == "client" else (example, [0])
        # The committed message stays, and the newest of the others.
        later = [old for old in state.live if old.index > state.committed][-(MOST_OPEN - 1) :]
        first = [old for old in state.live if old.index == state.committed]
        live = (*first, *later, sent)
        kept = {old.index for old in live}
        if agreement.trust != "trusted":
            account = account.after(sent.index, sent.parent, groups[0], variance, kept)
            other = other.after(sent.index, sent.parent, groups[1], variance, kept)
        keys = {index: key for index, key in state.keys.items() if index in kept}
        keys[sent.index] = noise_key(state.ratchet, sent.binding())
        return ClientState(
            ratchet=turned(state.ratchet),
            account=account,
            other=other,
            sent=sent,
            live=live,
            keys=keys,
            committed=state.committed,
            recent=state.recent,
        )

    def _answer(self, after: ClientState, request: RoundRequest) -> tuple[ClientState, Reply]:
        """The reply of a client that has paid for it."""
        assert after.sent is not None
        trusting = self.agreement.trust == "trusted"
        index = after.sent.index
        noise = np.zeros(0, np.int64) if trusting else self.noise(after, index)
        reply = self._reply(after, self.message(after, request, after.sent, noise))
        if trusting:
            return after, reply
        return replace(after, pending=reply.to_bytes(), recent=(index, noise)), reply

    def _reply(self, state: ClientState, values: NDArray[np.int64]) -> Reply:
        sent = state.sent
        assert sent is not None
        width = np.int64 if self.mask is not None else np.int32
        return Reply(
            self.agreement.digest,
            self.name,
            sent.turn,
            sent.index,
            sent.asked.hex(),
            values.astype(width),
            sent.block if self.agreement.tells_blocks else None,
        )

"""What the adversarial tests share: a server that says anything, and an auditor with code of its own.

`Attacker` talks to the real client and writes down what it sent. `Audit` replays that from the client's
first secret with nothing of the code under test but the sampler: keys by hashlib, parents from the
requests, noise taken back in `fractions`; and it adds up what the whole tree of messages reveals.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.parts._losses import LeastSquares
from sordino.parts.mechanisms._discrete import ChaCha20Generator, discrete_gaussian
from sordino.privacy._values import ClippedSum
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._client import Client, ClientState, SentMessage
from sordino.together.federated._contribution import LocalData
from sordino.together.federated._messages import Refusal, Reply, RoundRequest, message_from_bytes

D = 4
SECRET = bytes(range(32))
LOSS = LeastSquares()
Integers = NDArray[np.int64]


def small(**options: Any) -> Agreement:
    """A small agreement."""
    settings: dict[str, Any] = {
        "clients": 1,
        "parameters": D,
        "rounds": 12,
        "mu": 1.0,
        "learning_rate": 0.1,
        "nonce": "00" * 16,
    }
    return agree(**{**settings, **options})


def coarse(agreement: Agreement, reach: float) -> Agreement:
    """The same on a lattice on which one example moves a message by about `reach` steps only.

    Noise shrinks alike, so that the budget lasts as long but for the rounding.
    """
    up = round(math.log2(agreement.reach / reach))
    variance = max(4, math.ceil(agreement.variance / 4.0**up))
    return replace(agreement, exponent=agreement.exponent + up, variance=variance)


@dataclass
class Scripted:
    """Data whose sums are what the test says: for tests of the protocol, not of gradients.

    The vector of message number k is the k-th row of `sums`, which nobody clips.
    """

    agreement: Agreement
    sums: Any
    blocks: int
    start: Any = field(default_factory=lambda: np.zeros(D, np.float32))

    def total(self, point: Any, previous: Any, t: int, block: int) -> ClippedSum:
        if block < 0:
            return ClippedSum(np.zeros(self.agreement.parameters, np.int64))
        return ClippedSum(np.asarray(self.sums[block], np.int64))


def scripted(
    agreement: Agreement,
    *,
    name: str | None = None,
    seed: int = 0,
    blocks: int = 64,
    **options: Any,
) -> Client:
    """A client whose sums are random whole vectors within its clip."""
    rng = np.random.default_rng(seed)
    largest = agreement.clip / agreement.step / math.sqrt(agreement.parameters)
    sums = np.trunc(rng.uniform(-largest, largest, (blocks, agreement.parameters)))
    start = np.zeros(agreement.parameters, np.float32)
    data: Any = Scripted(agreement, sums, blocks, start)
    return Client(name or agreement.clients[0], agreement, data, **options)


def real(
    agreement: Agreement, rows: Any, targets: Any, start: Any = None, **options: Any
) -> Client:
    """A client with real data and least squares, whose gradients grow with the distance."""
    start = np.zeros(agreement.parameters, np.float32) if start is None else start
    data = LocalData(agreement, LOSS, start, (rows, targets))
    return Client(agreement.clients[0], agreement, data, **options)


@dataclass
class Attacker:
    """A server that asks one client whatever it likes."""

    client: Client
    secret: bytes = SECRET
    state: ClientState = field(init=False)
    log: list[tuple[RoundRequest, Reply]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    turn: int = 0

    def __post_init__(self) -> None:
        self.state = self.client.begin(self.secret)

    def request(self, **changes: Any) -> RoundRequest:
        """An honest request, but for `changes`."""
        agreement = self.client.agreement
        zero = np.zeros(agreement.parameters, np.float32)
        secure = agreement.trust == "secure-sum"
        fields: dict[str, Any] = {
            "agreement": agreement.digest,
            "turn": self.turn + 1,
            "round": self.state.sent.round if self.state.sent else 1,
            "point": zero,
            "previous": zero,
            "committed": self.state.committed,
            "cohort": agreement.clients[: agreement.per_round] if secure else (),
        }
        return RoundRequest(**{**fields, **changes})

    def ask(self, **changes: Any) -> Reply | Refusal:
        return self.send(self.request(**changes))

    def send(self, request: RoundRequest) -> Reply | Refusal:
        """Through bytes both ways, as in a network."""
        found = message_from_bytes(request.to_bytes())
        assert isinstance(found, RoundRequest)
        before = self.state
        self.state, answer = self.client.respond(self.state, found)
        if isinstance(answer, Refusal):
            assert self.state == before, "a refusal must leave the state alone"
            assert message_from_bytes(answer.to_bytes()) == answer
            self.refused.append(answer)
            return answer  # with its detail, which is never sent
        found_again = message_from_bytes(answer.to_bytes())
        assert isinstance(found_again, Reply)
        answer = found_again
        if answer.index > len(self.log):
            self.log.append((found, answer))
            self.turn = max(self.turn, found.turn)
        return answer

    def audit(self) -> Audit:
        return Audit(self.client, [pair[0] for pair in self.log], self.secret)

    def check(self) -> Audit:
        """After an attack: nothing was sent that is not paid for, and the plan is kept."""
        found = self.audit()
        for (_, reply), message in zip(self.log, found.messages, strict=True):
            np.testing.assert_array_equal(reply.values, message.astype(reply.values.dtype))
        agreement = self.client.agreement
        paid = self.client.spent(self.state) ** 2
        assert found.mu_squared() <= paid * (1 + 1e-9)
        assert paid <= agreement.mu**2 * (1 + 1e-8)
        found.assert_noise_is_fresh()
        return found


class Audit:
    """What a client sent, computed again from its first secret and the requests it answered."""

    def __init__(self, client: Client, requests: Sequence[RoundRequest], secret: bytes) -> None:
        self.agreement = agreement = client.agreement
        self.noise: list[Integers] = []
        self.sums: list[Integers] = []
        self.messages: list[Integers] = []
        self.parents: list[int | None] = []
        self.blocks: list[int] = []
        ratchet = secret
        for index, request in enumerate(requests, start=1):
            block = _block(client, index)
            binding = SentMessage(index, 0, 0, request.digest(), request.committed, block)
            text = f"{index}/{block}/{request.committed}/".encode() + request.digest()
            assert binding.binding() == hashlib.sha256(text).digest()
            key = _keyed(ratchet, b"noise/" + binding.binding())
            ratchet = _keyed(ratchet, b"ratchet")
            variance = agreement.variance * (index if agreement.growing else 1)
            generator = ChaCha20Generator(key)
            y = discrete_gaussian(Fraction(variance), agreement.parameters, generator)
            s = client.data.total(request.point, request.previous, request.round, block).clipped
            parent = request.committed
            message = s + y
            if parent:
                message = message - rho(self.noise[parent - 1], agreement.leak)
            self.noise.append(y)
            self.sums.append(np.asarray(s, np.int64))
            self.messages.append(message)
            self.parents.append(parent - 1 if parent else None)
            self.blocks.append(block)

    @property
    def variances(self) -> list[float]:
        growing, variance = self.agreement.growing, self.agreement.variance
        return [variance * (k + 1 if growing else 1) - 1 / 12 for k in range(len(self.noise))]

    def groups(self) -> list[list[int]]:
        """Places of the messages that each unit is in."""
        if self.agreement.unit == "client":
            return [list(range(len(self.blocks)))] if self.blocks else []
        found = sorted(set(self.blocks) - {-1})
        return [[i for i, block in enumerate(self.blocks) if block == group] for group in found]

    def mu_squared(self) -> float:
        """Of the worst unit, without rounding: ``reach^2 sum_l a_l^2 / V_l`` (papers/02 2.3)."""
        share = self.agreement.leak / 65536
        worst = 0.0
        for group in self.groups():
            a = np.zeros(len(self.parents))
            for i, parent in enumerate(self.parents):
                a[i] = (i in group) + (0.0 if parent is None else share * a[parent])
            worst = max(worst, float(np.sum(a * a / np.array(self.variances))))
        return worst * self.agreement.reach**2 * self.agreement.honest

    def moved(self, unit: list[int], change: Integers) -> float:
        """mu^2 of one real pair of neighbours, in whole numbers: what really moves, message by message.

        The unit's sum in each of its messages is less by `change`; everything that was sent stays the
        same, so that the noise must have been another one: by how much?
        """
        agreement = self.agreement
        seen: list[Integers] = []
        differ: list[Integers] = []
        total = 0.0
        for i, parent in enumerate(self.parents):
            now = self.messages[i].copy()
            d = change.copy() if i in unit else np.zeros_like(change)
            if parent is not None:
                now += rho(seen[parent], agreement.leak)
                # R_p - A_p is the parent's noise in one world, that plus its difference in the other.
                y = self.noise[parent]
                d += rho(y + differ[parent], agreement.leak) - rho(y, agreement.leak)
            seen.append(now)
            differ.append(d)
            total += float(d @ d) / self.variances[i]
        return total

    def assert_noise_is_fresh(self) -> None:
        keys = {y.tobytes() for y in self.noise}
        assert len(keys) == len(self.noise), "two messages share their noise"


def rho(noise: Integers, leak: int) -> Integers:
    """``floor(leak y + 1/2)``, by fractions."""
    half = Fraction(1, 2)
    found = [math.floor(Fraction(leak, 65536) * int(y) + half) for y in np.ravel(noise)]
    return np.array(found, np.int64).reshape(np.shape(noise))


def mask(request: RoundRequest, index: int, values: Integers) -> Integers:
    """Pads of a secure sum in which everybody is alone: none."""
    return values


def _block(client: Client, index: int) -> int:
    blocks = client.data.blocks
    turn, place = divmod(index - 1, blocks) if blocks else (client.agreement.uses, 0)
    return place if turn < client.agreement.uses else -1


def _keyed(secret: bytes, use: bytes) -> bytes:
    return hashlib.blake2b(use, key=secret, digest_size=32).digest()

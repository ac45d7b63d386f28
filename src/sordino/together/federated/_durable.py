"""A client that survives: whatever it sends is paid for and on its disk before it leaves.

    client = DurableClient.open(Client(...), journal="hospital-a.journal")
    reply = client.answer(request_bytes)

Killed at any instant and started again, it goes on with the same counters; asked the same again, it
sends the same bytes. It implements `Endpoint`.

Its journal has one row for each message: the request that it answers, its parent and its block of
examples; beside the rows are the last reply's bytes. All of that may be seen. The seal has the keys of the
noise that may still be cancelled, the ratchet, how many messages there were and the last row's hash. The
rules of `sordino.together._journal` hold.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sordino._base.codec import utc_now
from sordino._base.errors import SordinoError
from sordino._base.keystore import KeyStore
from sordino._base.sqlite import FileKind
from sordino._base.types import PyTree
from sordino.together._journal import JournalKind, Seal, SealedJournal
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import Integers, fresh_secret, order_key, permuted
from sordino.together.federated._client import Client, ClientState, Mask, SentMessage
from sordino.together.federated._contribution import LocalData, Loss
from sordino.together.federated._messages import Refusal, Reply, RoundRequest, message_from_bytes
from sordino.together.secure._mask import Pads

_FILE = FileKind(
    name="the journal",
    identity=0x534F4643,  # "SOFC"
    version=1,
    schema=(
        """CREATE TABLE messages (
 number INTEGER PRIMARY KEY NOT NULL,
 turn INTEGER NOT NULL,
 round INTEGER NOT NULL,
 asked BLOB NOT NULL,
 committed INTEGER NOT NULL,
 parent INTEGER NOT NULL,
 block INTEGER NOT NULL,
 spent REAL NOT NULL,
 at TEXT NOT NULL,
 hash BLOB NOT NULL
)""",
        "CREATE TABLE last (number INTEGER PRIMARY KEY NOT NULL, reply BLOB)",
    ),
    busy="this client is running already",
)


@dataclass(frozen=True)
class JournalEntry:
    """One message of the journal: what was sent, what the server had said, what was spent, and when."""

    sent: SentMessage
    committed: int
    spent: float
    at: str
    hash: bytes = b""

    @classmethod
    def read(
        cls,
        number: int,
        turn: int,
        round_: int,
        asked: bytes,
        parent: int,
        block: int,
        committed: int,
        spent: float,
        at: str,
        digest: bytes,
    ) -> JournalEntry:
        """An entry as the file has it."""
        sent = SentMessage(number, turn, round_, bytes(asked), parent, block)
        return cls(sent, committed, spent, at, bytes(digest))

    @property
    def number(self) -> int:
        return self.sent.index

    def chained(self, before: bytes) -> bytes:
        """The hash of this entry after the one whose hash is given."""
        sent = self.sent
        body = [sent.index, sent.turn, sent.round, sent.asked.hex(), self.committed]
        body += [sent.parent, sent.block, self.spent, self.at]
        return hashlib.sha256(before + json.dumps(body).encode()).digest()


@dataclass(frozen=True, repr=False)
class MessageSeal(Seal):
    """A client's seal.

    Attributes:
      index: of the last message that may have been sent.
      keys: of noise that may still be cancelled, by index.
      hash: of the last message's row.
      ratchet: secret of the next message's key.
      order: key of the order in which examples are taken.
      fingerprint: keyed digest of the examples.
    """

    index: int = 0
    keys: dict[int, bytes] = field(default_factory=dict)
    hash: bytes = b""
    ratchet: bytes = b""
    order: bytes = b""
    fingerprint: bytes = b""
    member = "client"
    folder = "federated"

    @property
    def rows(self) -> int:
        return self.index

    def fits(self, hashes: Sequence[bytes | None]) -> bool:
        # The keys of the noise are in the seal only: more than one row ahead, some would be missing.
        last = hashes[self.index - 1] if 0 < self.index <= len(hashes) else b""
        return len(hashes) - self.index in (0, 1) and last == self.hash


_KIND = JournalKind(
    file=_FILE,
    about=("agreement", "client"),
    row=("message", "sent"),
    first=1,
    query="SELECT number, turn, round, asked, parent, block, committed, spent, at, hash "
    "FROM messages ORDER BY number",
    read=JournalEntry.read,
    seal=MessageSeal,
)


class MessageJournal(SealedJournal[MessageSeal, JournalEntry]):
    """A client's journal and seal; one process at a time holds them."""

    def __init__(
        self,
        path: Path | str,
        agreement: str,
        client: str,
        new_seal: Callable[[], MessageSeal],
        store: KeyStore | None = None,
    ) -> None:
        super().__init__(_KIND, path, agreement, client, new_seal, store)

    def last_reply(self, number: int) -> bytes | None:
        """The bytes of the last reply, if they were kept."""
        with self._file.reading() as link:
            result = link.execute("SELECT reply FROM last WHERE number = ?", (number,)).fetchone()
        return None if result is None or result[0] is None else bytes(result[0])

    def add(self, entry: JournalEntry, reply: bytes | None) -> None:
        """Keep a message and its bytes, in place of the bytes before; synced when this returns."""
        sent = entry.sent
        row = (sent.index, sent.turn, sent.round, sent.asked, entry.committed, sent.parent)
        with self._file.transaction() as link:
            link.execute(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, sent.block, entry.spent, entry.at, entry.hash),
            )
            link.execute("DELETE FROM last")
            link.execute("INSERT INTO last VALUES (?, ?)", (sent.index, reply))
        self.hashes.append(entry.hash)


Clock = Callable[[], str]


@dataclass(frozen=True)
class ClientConfig:
    """What a client brings: who it is, what it agreed to, its model and its data.

    Attributes:
      loss, params, data: as in `sordino.train`.
      mu: a budget of its own, below the agreement's.
      private: its X25519 key, under a secure sum.
    """

    name: str
    agreement: Agreement
    loss: Loss
    params: PyTree
    data: PyTree
    mu: float | None = None
    private: bytes | None = None

    def __post_init__(self) -> None:
        if self.mu is not None:  # before a journal is made
            self.agreement.check_own_budget(self.mu)

    def client(self, order: bytes) -> Client:
        """The state machine; `order` is the key of the order of its examples."""
        arrays = self.data if isinstance(self.data, tuple) else (self.data,)
        picked = permuted(order, len(arrays[0]))
        local = LocalData(self.agreement, self.loss, self.params, arrays, order=picked)
        return Client(self.name, self.agreement, local, self.mu, self._mask())

    def fingerprint(self, key: bytes) -> bytes:
        """A keyed digest of the data: other data under an old journal would be used unpaid."""
        arrays = self.data if isinstance(self.data, tuple) else (self.data,)
        result = hashlib.blake2b(key=key, digest_size=32)
        for array in arrays:
            dense = np.ascontiguousarray(array)
            result.update(f"{dense.dtype.str}{dense.shape}".encode())
            result.update(dense.tobytes())
        return result.digest()

    def _mask(self) -> Mask | None:
        if self.agreement.trust != "secure-sum":
            return None
        if self.private is None or not self.agreement.keys:
            raise SordinoError(
                "a secure sum needs the clients' public keys in the agreement, and the private key "
                f"of {self.name!r}"
            )
        names = zip(self.agreement.clients, self.agreement.keys, strict=True)
        pads = Pads(self.name, self.private, {name: bytes.fromhex(key) for name, key in names})

        def mask(request: RoundRequest, index: int, values: Integers) -> Integers:
            # One context for all members: everything in their requests but what differs.
            text = f"{request.agreement}/{request.turn}/{request.round}/{'/'.join(request.cohort)}"
            points = hashlib.sha256(request.point.tobytes() + request.previous.tobytes())
            return pads.padded(values, request.cohort, text.encode() + points.digest())

        return mask


class VolatileClient:
    """A client whose state is in memory only: for simulations and tests, never for real data."""

    def __init__(self, part: ClientConfig, secret: bytes) -> None:
        self.client = part.client(order_key(secret))
        self.state: ClientState = self.client.begin(secret)
        self.detail = ""

    def answer(self, message: bytes) -> bytes:
        result = _request(self.client, message)
        if isinstance(result, Refusal):
            return self._said(result)
        self.state, reply = self.client.respond(self.state, result)
        return self._said(reply)

    def _said(self, reply: Reply | Refusal) -> bytes:
        self.detail = reply.detail if isinstance(reply, Refusal) else ""
        return _bytes(self.state, reply)


class DurableClient:
    """A client with a journal and a seal.

    Attributes:
      detail: why the last request was refused, for whoever runs this client; the server is told a code.
    """

    def __init__(self, client: Client, state: ClientState, journal: MessageJournal) -> None:
        self.client, self.state = client, state
        self._journal = journal
        self._lock = threading.Lock()
        self.clock: Clock = utc_now
        self.detail = ""

    @classmethod
    def open(
        cls,
        part: ClientConfig,
        journal: Path | str,
        *,
        store: KeyStore | None = None,
        secret: bytes | None = None,
    ) -> DurableClient:
        """The client as its journal left it, or a new one.

        Args:
          part: who it is and what it brings.
          journal: its file.
          store: where the seal is kept; the user's key folder unless given.
          secret: the first secret of a new client; from the system's entropy unless given (tests).
        """

        def new_seal() -> MessageSeal:
            ratchet = secret or fresh_secret()
            order = order_key(ratchet)
            return MessageSeal(ratchet=ratchet, order=order, fingerprint=part.fingerprint(order))

        held = MessageJournal(journal, part.agreement.digest, part.name, new_seal, store)
        try:
            held.flush()
            if part.fingerprint(held.seal.order) != held.seal.fingerprint:
                raise SordinoError(
                    f"the examples of {part.name!r} are not those it began with; a client goes on with "
                    "the same data in the same order, or begins anew under a new agreement"
                )
            client = part.client(held.seal.order)
            return cls(client, _recovered(client, held), held)
        except BaseException:
            held.close()
            raise

    @property
    def spent(self) -> float:
        """mu so far."""
        return self.client.spent(self.state)

    def answer(self, message: bytes) -> bytes:
        with self._lock:
            result = _request(self.client, message)
            reply = self._answer(result) if isinstance(result, RoundRequest) else result
            self.detail = reply.detail if isinstance(reply, Refusal) else ""
            return _bytes(self.state, reply)

    def _answer(self, request: RoundRequest) -> Reply | Refusal:
        try:
            self._journal.flush()
            after, reply = self.client.respond(self.state, request)
            if after.index != self.state.index:
                self._keep(after, request)
        except (SordinoError, OSError) as error:
            # Nothing left the machine. What was written counts as sent all the same.
            return self.client.refusal(request.turn, "local", str(error))
        return reply

    def close(self) -> None:
        self._journal.close()

    def entries(self) -> list[JournalEntry]:
        """Everything that was sent."""
        return list(self._journal.rows())

    def _keep(self, after: ClientState, request: RoundRequest) -> None:
        assert after.sent is not None
        entry = JournalEntry(after.sent, request.committed, self.client.spent(after), self.clock())
        entry = replace(entry, hash=entry.chained(self._journal.seal.hash))
        self._journal.add(entry, after.pending)
        # From here on the message counts, and nothing is sent until the seal says so too.
        seal = _sealed(self._journal.seal, after, entry.hash)
        self.state = after
        self._journal.keep(seal)


def _request(client: Client, message: bytes) -> RoundRequest | Refusal:
    """The request, or the refusal to send back."""
    try:
        result = message_from_bytes(message)
        if not isinstance(result, RoundRequest):
            raise SordinoError("a client answers requests only")
        return result
    except SordinoError as error:
        return client.refusal(0, "malformed", str(error))


def _bytes(state: ClientState, reply: Reply | Refusal) -> bytes:
    """A reply as it was kept, or any other message written out."""
    kept = isinstance(reply, Reply) and state.pending is not None
    return state.pending if kept and state.pending is not None else reply.to_bytes()


def _sealed(seal: MessageSeal, state: ClientState, digest: bytes) -> MessageSeal:
    return replace(
        seal, index=state.index, hash=digest, ratchet=state.ratchet, keys=dict(state.keys)
    )


def _recovered(client: Client, journal: MessageJournal) -> ClientState:
    """The state after all messages; the seal is brought up to date."""
    seal, entries = journal.seal, list(journal.rows())
    state = client.begin(bytes(32))
    for entry in entries[: seal.index]:
        state = client.advanced(state, entry.committed, entry.sent)
    state = replace(state, ratchet=seal.ratchet, keys=dict(seal.keys))
    for entry in entries[seal.index :]:  # the row of a process that ended before its seal
        state = client.advanced(state, entry.committed, entry.sent)
        journal.keep(_sealed(seal, state, entry.hash))
    pending = journal.last_reply(len(entries)) if entries else None
    return replace(state, pending=_as_sent_now(pending))


def _as_sent_now(pending: bytes | None) -> bytes | None:
    """A kept reply without what earlier versions told in it; a trusted server's are never kept."""
    if pending is None:
        return None
    reply = message_from_bytes(pending)
    assert isinstance(reply, Reply)
    return replace(reply, block=None).to_bytes()

"""A client's journal: one row for each message, and the seal with the keys of its noise.

A row has the request that a message answers, its parent and its block of examples; beside the rows are
the last reply's bytes. All of that may be seen. The seal has the keys of the noise that may still be
cancelled, the ratchet, how many messages there were and the last row's hash. The rules of
`sordino.together._journal` hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sordino._base.keystore import KeyStore
from sordino._base.sqlite import FileKind
from sordino.together._journal import JournalKind, Seal, SealedJournal
from sordino.together.federated._client import SentMessage

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

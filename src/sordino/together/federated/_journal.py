"""What a client has sent, on its own disk: a list that only grows, and a seal that lies elsewhere.

The journal (SQLite, fully synchronised) has one row for each message: the request it answers, its
parent, its block of examples, and the last reply's bytes. All of that may be seen. Each row holds a hash
over itself and the row before. The *seal* is one small file in the user's key folder (0600): the keys of
the noise that may still be taken back, the ratchet, how many messages there were and the last row's
hash. It is replaced before a message leaves, so that

- a journal that was restored from a copy is noticed (the seal is ahead of it), and nothing is sent: a
  message could otherwise answer for a round a second time, with other noise and unpaid;
- whoever gets the journal gets no noise;
- a crash between the two writes is made good: the seal is at most one message behind, and the row says
  what is missing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino._base.errors import DAMAGE, SordinoError
from sordino._base.keystore import KeyStore
from sordino._base.sqlite import Database, FileKind
from sordino.together.federated._client import SentMessage

_FORMAT = 1
_JOURNAL = FileKind(
    name="the journal",
    identity=0x534F4643,  # "SOFC"
    version=_FORMAT,
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
_KIND = "federated"


@dataclass(frozen=True)
class JournalEntry:
    """One message of the journal: what was sent, what the server had said, what was spent, and when."""

    sent: SentMessage
    committed: int
    spent: float
    at: str
    hash: bytes = b""

    def chained(self, before: bytes) -> bytes:
        """The hash of this entry after the one whose hash is given."""
        sent = self.sent
        body = [sent.index, sent.turn, sent.round, sent.asked.hex(), self.committed]
        body += [sent.parent, sent.block, self.spent, self.at]
        return hashlib.sha256(before + json.dumps(body).encode()).digest()


@dataclass(frozen=True)
class Seal:
    """The secret side of a journal.

    Attributes:
      index: of the last message that may have been sent.
      hash: of its row.
      ratchet: secret of the next message's key.
      keys: of noise that may still be taken back, by index.
      order: key of the order in which examples are taken.
      fingerprint: keyed digest of the examples.
    """

    index: int
    hash: bytes
    ratchet: bytes
    keys: dict[int, bytes]
    order: bytes
    fingerprint: bytes

    def to_bytes(self) -> bytes:
        body: dict[str, Any] = {
            "version": _FORMAT,
            "index": self.index,
            "keys": {str(index): key.hex() for index, key in self.keys.items()},
        }
        for name in ("hash", "ratchet", "order", "fingerprint"):
            body[name] = getattr(self, name).hex()
        return json.dumps(body).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Seal:
        try:
            body = json.loads(raw)
            if body["version"] != _FORMAT:
                raise SordinoError(f"this client's seal has format version {body['version']!r}")
            return cls(
                int(body["index"]),
                bytes.fromhex(body["hash"]),
                bytes.fromhex(body["ratchet"]),
                {int(index): bytes.fromhex(key) for index, key in body["keys"].items()},
                bytes.fromhex(body["order"]),
                bytes.fromhex(body["fingerprint"]),
            )
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(
                "this client's seal is damaged; without it the client cannot go on"
            ) from None

    def __repr__(self) -> str:
        return f"Seal(<secret>, index={self.index})"


class SealFile:
    """Where a client's seal is kept."""

    def __init__(self, store: KeyStore, agreement: str, client: str) -> None:
        self._store, self._name = store, f"{agreement[:32]}-{client}"

    def load(self) -> Seal | None:
        raw = self._store.load(_KIND, self._name)
        return None if raw is None else Seal.from_bytes(raw)

    def keep(self, seal: Seal) -> None:
        """Replace the seal; it is on disk when this returns."""
        self._store.replace(_KIND, self._name, seal.to_bytes())

    @property
    def path(self) -> Path:
        return self._store.path(_KIND, self._name)


class Journal:
    """The file; one process at a time holds it."""

    def __init__(self, path: Path | str, agreement: str, client: str) -> None:
        self.path = Path(path)
        self._file = Database(self.path, _JOURNAL, {"agreement": agreement, "client": client})

    def entries(self) -> list[JournalEntry]:
        """All messages in order; an error if a row was changed or is missing."""
        with self._file.reading() as link:
            rows = link.execute(
                "SELECT number, turn, round, asked, parent, block, committed, spent, at, hash "
                "FROM messages ORDER BY number"
            ).fetchall()
        result, before = [], b""
        for position, row in enumerate(rows, start=1):
            number, turn, round_, asked, parent, block, committed, spent, at, digest = row
            try:
                sent = SentMessage(number, turn, round_, bytes(asked), parent, block)
                entry = JournalEntry(sent, committed, spent, at, bytes(digest))
                sound = number == position and entry.chained(before) == entry.hash
            except (TypeError, ValueError):
                sound = False
            if not sound:
                raise SordinoError(
                    f"the journal {str(self.path)!r} was changed at message {position}; put the "
                    "right one back"
                )
            result.append(entry)
            before = entry.hash
        return result

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

    def close(self) -> None:
        self._file.close()

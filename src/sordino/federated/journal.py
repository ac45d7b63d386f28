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
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.errors import DAMAGE, SordinoError, one_line
from sordino.federated.client import Sent
from sordino.keystore import KeyStore

_APPLICATION_ID = 0x534F4643  # "SOFC"
_FORMAT = 1
_SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
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
)
_KIND = "federated"


@dataclass(frozen=True)
class Entry:
    """One message of the journal: what was sent, what the server had said, what was spent, and when."""

    sent: Sent
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
        self.is_new = not self.path.exists()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.is_new:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                os.close(handle)
            self._link = sqlite3.connect(
                self.path, isolation_level=None, timeout=1.0, check_same_thread=False
            )
            try:
                self._open(agreement, client)
            except BaseException:
                self._link.close()
                raise
        except OSError as error:
            raise SordinoError(
                f"the journal {str(self.path)!r} cannot be opened: {error.strerror or error}"
            ) from None
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _open(self, agreement: str, client: str) -> None:
        link = self._link
        link.execute("PRAGMA trusted_schema = OFF")
        # Held until the process ends: two that answer from one journal would send two messages.
        link.execute("PRAGMA locking_mode = EXCLUSIVE")
        link.execute("PRAGMA journal_mode = WAL")
        link.execute("PRAGMA synchronous = FULL")
        link.execute("PRAGMA secure_delete = ON")
        link.execute("BEGIN EXCLUSIVE")
        (identity,) = link.execute("PRAGMA application_id").fetchone()
        (tables,) = link.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if identity == 0 and tables == 0:
            self.is_new = True
            link.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            link.execute(f"PRAGMA user_version = {_FORMAT}")
            for statement in _SCHEMA:
                link.execute(statement)
            rows = [("agreement", agreement), ("client", client)]
            link.executemany("INSERT INTO about VALUES (?, ?)", rows)
        elif identity != _APPLICATION_ID:
            raise SordinoError(f"{str(self.path)!r} is not a client's journal")
        link.execute("COMMIT")
        (version,) = link.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise SordinoError(
                f"the journal {str(self.path)!r} has format version {version}; {_FORMAT} is known"
            )
        about = dict(link.execute("SELECT name, value FROM about").fetchall())
        if about != {"agreement": agreement, "client": client}:
            raise SordinoError(
                f"the journal {str(self.path)!r} belongs to another client or another agreement"
            )

    def entries(self) -> list[Entry]:
        """All messages in order; an error if a row was changed or is missing."""
        try:
            rows = self._link.execute(
                "SELECT number, turn, round, asked, parent, block, committed, spent, at, hash "
                "FROM messages ORDER BY number"
            ).fetchall()
            found, before = [], b""
            for position, row in enumerate(rows, start=1):
                number, turn, round_, asked, parent, block, committed, spent, at, digest = row
                sent = Sent(number, turn, round_, bytes(asked), parent, block)
                entry = Entry(sent, committed, spent, at, bytes(digest))
                if number != position or entry.chained(before) != entry.hash:
                    raise SordinoError(
                        f"the journal {str(self.path)!r} was changed at message {position}; put the "
                        "right one back"
                    )
                found.append(entry)
                before = entry.hash
            return found
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        except (TypeError, ValueError) as error:
            if isinstance(error, SordinoError):
                raise
            raise SordinoError(f"the journal {str(self.path)!r} is damaged") from None

    def last_reply(self, number: int) -> bytes | None:
        """The bytes of the last reply, if they were kept."""
        try:
            found = self._link.execute(
                "SELECT reply FROM last WHERE number = ?", (number,)
            ).fetchone()
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        return None if found is None or found[0] is None else bytes(found[0])

    def add(self, entry: Entry, reply: bytes | None) -> None:
        """Keep a message and its bytes, in place of the bytes before; synced when this returns."""
        sent = entry.sent
        row = (sent.index, sent.turn, sent.round, sent.asked, entry.committed, sent.parent)
        link = self._link
        try:
            link.execute("BEGIN IMMEDIATE")
            link.execute(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, sent.block, entry.spent, entry.at, entry.hash),
            )
            link.execute("DELETE FROM last")
            link.execute("INSERT INTO last VALUES (?, ?)", (sent.index, reply))
            link.execute("COMMIT")
        except sqlite3.Error as error:
            if link.in_transaction:
                link.execute("ROLLBACK")
            raise self._trouble(error) from None

    def close(self) -> None:
        self._link.close()

    def _trouble(self, error: sqlite3.Error) -> SordinoError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return SordinoError(
                f"the journal {str(self.path)!r} is in use: this client is running already"
            )
        return SordinoError(
            f"the journal {str(self.path)!r} cannot be used ({one_line(error)}); put a good copy back"
        )

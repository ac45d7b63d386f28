"""The SQLite file: its tables, and transactions that several processes take turns in.

Write-ahead log and full synchronisation: when a call has returned, what it wrote survives a power cut.
A connection stays open between calls (opening and closing costs four times a commit), but is only used
again by the process that opened it and while the file of that name is still the same one. While it is
open, the latest entries may lie in the file's ``-wal`` companion; a copy without it is an older copy.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import SordinoError, one_line
from sordino._base.files import sync_folder

APPLICATION_ID = 0x534F5244  # "SORD"
FORMAT_VERSION = 1
# How long a process waits for others that are writing.
PATIENCE = 120.0
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SCHEMA = (
    "CREATE TABLE about (id TEXT PRIMARY KEY NOT NULL)",
    """CREATE TABLE datasets (
 name TEXT PRIMARY KEY NOT NULL,
 fingerprint TEXT,
 unit TEXT NOT NULL,
 adjacency TEXT NOT NULL,
 epsilon REAL,
 delta REAL,
 mu REAL
)""",
    """CREATE TABLE reservations (
 run TEXT PRIMARY KEY NOT NULL,
 dataset TEXT NOT NULL REFERENCES datasets (name),
 state TEXT NOT NULL,
 recipe TEXT NOT NULL,
 plan_hash TEXT NOT NULL,
 plan TEXT NOT NULL,
 guarantee TEXT NOT NULL,
 fingerprint TEXT,
 who TEXT NOT NULL,
 at TEXT NOT NULL
)""",
    """CREATE TABLE entries (
 number INTEGER PRIMARY KEY NOT NULL,
 body TEXT NOT NULL,
 seal BLOB NOT NULL
)""",
    """CREATE TRIGGER entries_stay BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END""",
    """CREATE TRIGGER entries_remain BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'entries are never removed'); END""",
)


def create_file(path: Path, identity: str, first: tuple[str, bytes]) -> None:
    """A new ledger file with its first entry; whole before it has its name, never over another."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as link:
                link.execute("PRAGMA journal_mode = WAL")
                link.execute("PRAGMA synchronous = FULL")
                link.execute("BEGIN IMMEDIATE")
                link.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                link.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                for statement in _SCHEMA:
                    link.execute(statement)
                link.execute("INSERT INTO about VALUES (?)", (identity,))
                link.execute("INSERT INTO entries VALUES (1, ?, ?)", first)
                link.execute("COMMIT")
            os.link(temporary, path)  # unlike a rename, fails where the name is taken
        finally:
            for name in (temporary, f"{temporary}-wal", f"{temporary}-shm"):
                Path(name).unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError:
        raise SordinoError(f"there is a file at {str(path)!r} already; open it instead") from None
    except OSError as error:
        raise SordinoError(
            f"the ledger {str(path)!r} cannot be written: {error.strerror or error}"
        ) from None
    except sqlite3.Error as error:
        raise SordinoError(f"the ledger {str(path)!r} cannot be written: {error}") from None


class File:
    """A ledger file, and this process's connection to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = _Open()
        weakref.finalize(self, _Open.close, self._open)

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is kept, or nothing. Writers wait for one another."""
        try:
            link = self._begin(write)
            try:
                yield link
                link.execute("COMMIT")
            finally:
                if link.in_transaction:
                    link.execute("ROLLBACK")
        except (sqlite3.Error, UnicodeError) as error:  # text that is none is damage too
            self.close()
            raise refusal(self.path, error) from None
        if write and self._inode() != self._open.inode:
            raise SordinoError(
                f"the ledger {str(self.path)!r} was replaced while it was written to; put the file "
                "back that was there before"
            )

    def close(self) -> None:
        """Let go of the file; the next transaction opens it again."""
        self._open.close()

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _begin(self, write: bool) -> sqlite3.Connection:
        """A connection inside a transaction, once other writers have let go."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                link = self._connected()
                link.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                return link
            except sqlite3.OperationalError as error:
                self.close()
                # Who leaves last cleans up behind a lock that does not wait (sqlite.org/wal.html, 9).
                busy = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))
            except BaseException:
                self.close()
                raise

    def _connected(self) -> sqlite3.Connection:
        """The open connection, if it is this process's and leads to the file of that name."""
        inode, held = self._inode(), self._open
        if inode is None:  # SQLite would only say that it cannot open it
            self.close()
            raise SordinoError(f"there is no ledger at {str(self.path)!r}")
        if held.link is not None and (held.owner, held.inode) == (os.getpid(), inode):
            return held.link
        held.close()
        held.link = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode=rw",
            uri=True,
            timeout=10.0,
            isolation_level=None,
            check_same_thread=False,  # the ledger takes care of threads
        )
        held.owner, held.inode = os.getpid(), inode
        _prepare(held.link, self.path)
        return held.link


@dataclass
class _Open:
    """A connection, whose it is, and to which file."""

    link: sqlite3.Connection | None = None
    owner: int = 0
    inode: tuple[int, int] | None = None

    def close(self) -> None:
        link, self.link = self.link, None
        if link is not None and self.owner == os.getpid():
            link.close()
        elif link is not None:
            _INHERITED.append(link)


# Connections of a parent process: closing one here would take the parent's locks away.
_INHERITED: list[sqlite3.Connection] = []


def refusal(path: Path, error: Exception) -> SordinoError:
    """What SQLite says, as one sentence about the file."""
    text = one_line(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return SordinoError(f"{str(path)!r} is not a ledger")
    if code in _BUSY:
        return SordinoError(
            f"the ledger {str(path)!r} is in use by another process that does not finish; try again"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, 0):
        return SordinoError(f"the ledger {str(path)!r} is damaged ({text}); put a good copy back")
    return SordinoError(f"the ledger {str(path)!r} cannot be used: {text}")


def _prepare(link: sqlite3.Connection, path: Path) -> None:
    link.execute("PRAGMA trusted_schema = OFF")
    (identity,) = link.execute("PRAGMA application_id").fetchone()
    if identity != APPLICATION_ID:
        raise SordinoError(f"{str(path)!r} is not a ledger")
    (version,) = link.execute("PRAGMA user_version").fetchone()
    if version != FORMAT_VERSION:
        raise SordinoError(
            f"the ledger {str(path)!r} has format version {version}; {FORMAT_VERSION} is known"
        )
    statements = {
        sql for (sql,) in link.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    }
    if statements != set(_SCHEMA):
        raise SordinoError(
            f"the ledger {str(path)!r} was changed by hand: its tables are not as they were made"
        )
    link.execute("PRAGMA synchronous = FULL")
    link.execute("PRAGMA foreign_keys = ON")

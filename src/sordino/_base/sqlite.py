"""SQLite files that one process holds: a client's or party's journal, a server's state.

Write-ahead log and full synchronisation: when a transaction has returned, what it wrote survives a power
cut. The file is locked until it is closed, because two processes that answer from one journal would
send two messages for one turn.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import SordinoError, one_line

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@dataclass(frozen=True)
class FileKind:
    """What a file is.

    Attributes:
      name: in sentences, "the journal" for example.
      identity: SQLite's application id.
      version: of the tables.
      schema: the statements that make them.
      busy: what it means if another process has the file.
    """

    name: str
    identity: int
    version: int
    schema: Sequence[str]
    busy: str


class Database:
    """One open file of a kind."""

    def __init__(self, path: Path, kind: FileKind, about: dict[str, str]) -> None:
        """Open a file, or make it.

        Args:
          about: what a new file says about itself, and an old one must have said.
        """
        self.path, self._kind = path, kind
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            raise SordinoError(
                f"{kind.name} {str(path)!r} cannot be opened: {error.strerror or error}"
            ) from None
        with self._sentences():
            # Threads take turns in the classes above this one.
            self.link = sqlite3.connect(
                path, isolation_level=None, timeout=1.0, check_same_thread=False
            )
            try:
                self._prepare(about)
            except BaseException:
                self.link.close()
                raise

    def _prepare(self, about: dict[str, str]) -> None:
        link, kind = self.link, self._kind
        for setting in (
            "trusted_schema = OFF",
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = FULL",
            "secure_delete = ON",
        ):
            link.execute(f"PRAGMA {setting}")
        link.execute("BEGIN EXCLUSIVE")
        (identity,) = link.execute("PRAGMA application_id").fetchone()
        (tables,) = link.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if identity == 0 and tables == 0:
            link.execute(f"PRAGMA application_id = {kind.identity}")
            link.execute(f"PRAGMA user_version = {kind.version}")
            link.execute("CREATE TABLE about (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)")
            for statement in kind.schema:
                link.execute(statement)
            link.executemany("INSERT INTO about VALUES (?, ?)", sorted(about.items()))
        link.execute("COMMIT")
        (identity,) = link.execute("PRAGMA application_id").fetchone()
        (version,) = link.execute("PRAGMA user_version").fetchone()
        if (identity, version) != (kind.identity, kind.version):
            raise SordinoError(f"{str(self.path)!r} is not {kind.name} of version {kind.version}")
        result = dict(link.execute("SELECT name, value FROM about").fetchall())
        if result != about:
            different = [name for name in about if result.get(name) != about[name]]
            raise SordinoError(
                f"{kind.name} {str(self.path)!r} belongs to another {' and another '.join(different)}"
            )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of what is written inside, or nothing; synced when it is left."""
        with self._sentences():
            self.link.execute("BEGIN IMMEDIATE")
            try:
                yield self.link
                self.link.execute("COMMIT")
            finally:
                if self.link.in_transaction:
                    self.link.execute("ROLLBACK")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite's trouble told in a sentence."""
        with self._sentences():
            yield self.link

    def close(self) -> None:
        self.link.close()

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            where = f"{self._kind.name} {str(self.path)!r}"
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY:
                raise SordinoError(f"{where} is in use: {self._kind.busy}") from None
            raise SordinoError(
                f"{where} cannot be used ({one_line(error)}); put a good copy back"
            ) from None

"""What a member of a training together has taken part in, on its own disk: rows, and a seal elsewhere.

A party's journal has one row for each turn, a client's one for each message. The file is SQLite, fully
synchronised, and only grows. The *seal* is one small file in the user's key folder (0600) with the
member's secrets and how far it has come. These rules hold for both:

- *Claimed before it leaves.* A row is on disk before anything about it is sent, and then the seal says so
  too. Where the seal cannot be written nothing leaves until it can (`flush`). A process that ended
  between the two writes left a seal that is one row behind: the row says what is missing.
- *A changed row is refused.* Each row has a hash over itself and the row before.
- *A journal older than its seal is refused.* Put back from a copy, it would answer a second time, with
  other noise and unpaid. Rows without a seal are refused as well.
- Whoever gets the journal gets no secret.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from sordino._base.errors import DAMAGE, SordinoError
from sordino._base.keystore import KeyStore
from sordino._base.sqlite import Database, FileKind

_FORMAT = 1
# By annotation, which is a text: nothing is compiled to read a seal.
_READ: dict[object, Callable[[Any], object]] = {
    "int": int,
    "str": str,
    "bytes": bytes.fromhex,
    "dict[int, bytes]": lambda body: {int(name): bytes.fromhex(one) for name, one in body.items()},
}


@dataclass(frozen=True)
class Seal(ABC):
    """The secret side of a journal; a kind of it is a frozen dataclass of the types in `_READ`.

    Attributes:
      member: what its owner is called in sentences.
      folder: of the key store.
    """

    member: ClassVar[str]
    folder: ClassVar[str]

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows may have been sent."""

    def fits(self, hashes: Sequence[bytes | None]) -> bool:
        """Whether a journal whose rows have these hashes is this seal's newest."""
        return len(hashes) >= self.rows

    def to_bytes(self) -> bytes:
        body = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        return json.dumps({"version": _FORMAT, **body}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        try:
            body = json.loads(raw)
            if body["version"] != _FORMAT:
                raise SordinoError(
                    f"this {cls.member}'s seal has format version {body['version']!r}"
                )
            return cls(**{one.name: _READ[one.type](body[one.name]) for one in fields(cls)})
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(
                f"this {cls.member}'s seal is damaged; without it the {cls.member} cannot go on"
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<secret>, rows={self.rows})"


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return value.hex() if isinstance(value, bytes) else value


class JournalRow(Protocol):
    """One row as it was read."""

    @property
    def number(self) -> int: ...

    @property
    def hash(self) -> bytes | None:
        """As the file has it; None for a row that is still open, which only the last may be."""

    def chained(self, before: bytes) -> bytes | None:
        """As it must be after the row whose hash is given."""


S = TypeVar("S", bound=Seal)
R = TypeVar("R", bound=JournalRow)


@dataclass(frozen=True)
class JournalKind(Generic[S, R]):
    """What a journal is about.

    Attributes:
      file: its tables.
      about: what the file calls the agreement and the member.
      row: what a row is called in sentences, and what was done with it.
      first: number of the first row.
      query: of all rows in order.
      read: makes a row from what the query gives.
      seal: its type.
    """

    file: FileKind
    about: tuple[str, str]
    row: tuple[str, str]
    first: int
    query: str
    read: Callable[..., R]
    seal: type[S]


class SealedJournal(Generic[S, R]):
    """A journal and its seal; one process at a time holds them.

    Attributes:
      seal: a new journal has a new one, which is not kept before `flush` or `keep`.
      hashes: of all rows.
    """

    def __init__(
        self,
        kind: JournalKind[S, R],
        path: Path | str,
        agreement: str,
        member: str,
        new_seal: Callable[[], S],
        store: KeyStore | None,
    ) -> None:
        """Open a journal, or make it.

        Args:
          agreement: digest of what was agreed on (hex).
          member: name.
          store: where the seal is kept; the user's key folder unless given.
        """
        self.path = Path(path)
        self._kind, self._member = kind, member
        self._store, self._name = store or KeyStore(), f"{agreement[:32]}-{member}"
        about = dict(zip(kind.about, (agreement, member), strict=True))
        self._file = Database(self.path, kind.file, about)
        try:
            raw = self._store.load(kind.seal.folder, self._name)
            self._is_kept = raw is not None
            self.seal: S = new_seal() if raw is None else kind.seal.from_bytes(raw)
            self.hashes: list[bytes | None] = [row.hash for row in self.rows()]
            self._check()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        # A file without rows was left by a process that ended before it kept its seal.
        if self.hashes and not self._is_kept:
            where = self._store.path(self.seal.folder, self._name)
            raise SordinoError(
                f"the seal of {self._member!r} is missing at {str(where)!r}: without it this "
                f"{self.seal.member} cannot go on; bring it back"
            )
        if not self.seal.fits(self.hashes):
            row, done = self._kind.row
            raise SordinoError(
                f"the journal {str(self.path)!r} has {len(self.hashes)} {row}s, but {self.seal.rows} "
                f"were {done}: it is an old or another copy; put the newest one back, or begin anew "
                "under a new agreement"
            )

    def rows(self) -> Iterator[R]:
        """All rows in order; an error at one that was changed, or is missing."""
        before: bytes | None = b""
        with self._file.reading() as link:
            for position, values in enumerate(link.execute(self._kind.query), self._kind.first):
                try:
                    row = self._kind.read(*values)
                    sound = row.number == position and before is not None
                    sound = sound and row.chained(before or b"") == row.hash
                except (TypeError, ValueError):
                    sound = False
                if not sound:
                    raise SordinoError(
                        f"the journal {str(self.path)!r} was changed at {self._kind.row[0]} {position}; "
                        "put the right one back"
                    )
                yield row
                before = row.hash

    def keep(self, seal: S) -> None:
        """Replace the seal, after the row that it speaks of; it is on disk when this returns."""
        self.seal, self._is_kept = seal, False
        self.flush()

    def flush(self) -> None:
        """Write the seal if that is still due; nothing leaves before this has returned."""
        if not self._is_kept:
            self._store.replace(self.seal.folder, self._name, self.seal.to_bytes())
            self._is_kept = True

    def close(self) -> None:
        self._file.close()

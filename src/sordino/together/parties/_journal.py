"""A party's journal: one row for each turn, and the seal with the secret of its batches.

A turn is *claimed* before anything about it leaves this party, and *settled* when its sum is known, or
when the parties have agreed that nobody knows it: then it is lost, and counts as released all the same.
Rows hold noised sums, which all parties have seen, and nothing else: no vector, no key, no batch. The
rules of `sordino.together._journal` hold.

The *history* is a hash over all settled turns, one after the other; two parties with the same one have
seen the same sums.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import utc_now
from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import KEY_BYTES, RunKey
from sordino._base.keystore import KeyStore
from sordino._base.sqlite import FileKind
from sordino.together._journal import JournalKind, Seal, SealedJournal

Integers = NDArray[np.int64]

_FILE = FileKind(
    name="the journal",
    identity=0x534F5054,  # "SOPT"
    version=1,
    schema=(
        """CREATE TABLE turns (
 turn INTEGER PRIMARY KEY NOT NULL,
 claimed TEXT NOT NULL,
 settled TEXT,
 sum BLOB,
 history BLOB,
 seconds REAL,
 bytes INTEGER
)""",
    ),
    busy="this party is running already",
)


@dataclass(frozen=True)
class TurnRecord:
    """A settled turn.

    Attributes:
      turn: from 0.
      lost: whether its sum is known to nobody.
      seconds: from the claim to the sum, where this party saw it.
      sent: bytes that this party put on the network for it.
    """

    turn: int
    lost: bool
    seconds: float
    sent: int


@dataclass(frozen=True, repr=False)
class TurnSeal(Seal):
    """A party's seal.

    Attributes:
      secret: of this party's batches.
      claimed: how many turns were claimed.
      fingerprint: keyed digest of the party's data and model: with others the turns would not be its own.
    """

    secret: bytes
    claimed: int
    fingerprint: str
    member = "party"
    folder = "parties"

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError

    @property
    def rows(self) -> int:
        return self.claimed


@dataclass(frozen=True)
class TurnRow:
    """A turn as the file has it: whether it is settled, its sum, and the hash up to here."""

    number: int
    settled: bool
    sum: bytes | None = field(repr=False)
    hash: bytes | None

    def chained(self, before: bytes) -> bytes | None:
        return _chained(before, self.number, self.sum) if self.settled else None


_KIND = JournalKind(
    file=_FILE,
    about=("session", "party"),
    row=("turn", "claimed"),
    first=0,
    query="SELECT turn, settled IS NOT NULL, sum, history FROM turns ORDER BY turn",
    read=TurnRow,
    seal=TurnSeal,
)


class TurnJournal(SealedJournal[TurnSeal, TurnRow]):
    """A party's journal and seal; one process at a time holds them.

    Args:
      path: of the file.
      session: digest of what was agreed on (hex).
      party: name.
      store: where the seal is kept; the user's key folder unless given.
    """

    def __init__(
        self, path: Path | str, session: str, party: str, *, store: KeyStore | None = None
    ) -> None:
        def new() -> TurnSeal:
            return TurnSeal(secrets.token_bytes(KEY_BYTES), 0, "")

        super().__init__(_KIND, path, session, party, new, store)

    @property
    def claimed(self) -> int:
        """How many turns were claimed."""
        return len(self.hashes)

    @property
    def settled(self) -> int:
        """How many of them are settled: all, or all but the last."""
        is_open = bool(self.hashes) and self.hashes[-1] is None
        return len(self.hashes) - is_open

    @property
    def history(self) -> bytes:
        """The hash over all settled turns."""
        return next((one for one in reversed(self.hashes) if one is not None), b"")

    @property
    def key(self) -> RunKey:
        """What this party's batches come from."""
        return RunKey(self.seal.secret)

    @property
    def fingerprint(self) -> str:
        """Keyed digest of what the journal is held to: the party's data, model and code."""
        return self.seal.fingerprint

    def bind(self, *parts: bytes) -> None:
        """Hold the journal to its data, model and code; an error if it was begun with others.

        Nothing is kept before this: a party that is refused earlier leaves no seal behind.
        """
        result = hmac.new(self.key.derive("party data"), digestmod="sha256")
        for part in parts:
            result.update(len(part).to_bytes(8, "big") + part)
        fingerprint = result.hexdigest()
        if self.seal.fingerprint not in ("", fingerprint):
            raise PlanMismatchError(
                "this party has begun with other data, another model or other code, and its turns so "
                "far were about those: go on with what it began with"
            )
        # A process may have ended between a row and its seal: the seal says so from now on.
        self.keep(replace(self.seal, claimed=self.claimed, fingerprint=fingerprint))

    @property
    def open_turn(self) -> int | None:
        """The turn that was claimed and is not settled, if there is one."""
        return self.settled if self.claimed > self.settled else None

    def claim(self, turn: int) -> None:
        """Say that something about this turn may leave now; on disk when this returns."""
        if turn != self.claimed or self.open_turn is not None:
            raise SordinoError(
                f"turn {turn} cannot be taken part in: {self.claimed} were claimed and "
                f"{self.settled} are settled, and none is taken part in twice"
            )
        with self._file.transaction() as link:
            link.execute("INSERT INTO turns (turn, claimed) VALUES (?, ?)", (turn, utc_now()))
        self.hashes.append(None)
        self.keep(replace(self.seal, claimed=self.claimed))

    def settle(
        self, turn: int, noised: Integers | None, seconds: float = 0.0, sent: int = 0
    ) -> None:
        """Keep a turn's sum, or that it is lost; also of a turn that this party did not claim."""
        if turn != self.settled:
            raise SordinoError(f"turn {turn} cannot be settled: turn {self.settled} is due")
        raw = None if noised is None else _packed(noised)
        history = _chained(self.history, turn, raw)
        now = utc_now()
        with self._file.transaction() as link:
            link.execute("INSERT OR IGNORE INTO turns (turn, claimed) VALUES (?, ?)", (turn, now))
            link.execute(
                "UPDATE turns SET settled = ?, sum = ?, history = ?, seconds = ?, bytes = ? "
                "WHERE turn = ?",
                (now, raw, history, seconds, sent, turn),
            )
        self.hashes[turn:] = [history]
        if self.seal.claimed < self.claimed:
            self.keep(replace(self.seal, claimed=self.claimed))

    def history_with(self, noised: Integers | None) -> bytes:
        """The hash as it would be with the turn that is due settled so."""
        return _chained(self.history, self.settled, None if noised is None else _packed(noised))

    def history_after(self, settled: int) -> bytes:
        """The hash over the first so many turns."""
        return (self.hashes[settled - 1] if settled else None) or b""

    def sums(self) -> Iterator[Integers | None]:
        """Every settled turn's sum, in order; None for a lost one."""
        for turn in range(self.settled):
            yield self.sum_of(turn)

    def sum_of(self, turn: int) -> Integers | None:
        """A settled turn's sum."""
        with self._file.reading() as link:
            row = link.execute("SELECT sum FROM turns WHERE turn = ?", (turn,)).fetchone()
        return None if row[0] is None else unpacked(bytes(row[0]))

    def records(self) -> list[TurnRecord]:
        """What is known about every settled turn but its sum."""
        with self._file.reading() as link:
            rows = link.execute(
                "SELECT turn, sum IS NULL, seconds, bytes FROM turns WHERE settled IS NOT NULL "
                "ORDER BY turn"
            ).fetchall()
        return [
            TurnRecord(turn, bool(lost), seconds or 0.0, sent or 0)
            for turn, lost, seconds, sent in rows
        ]


def _chained(before: bytes, turn: int, raw: bytes | None) -> bytes:
    kind = b"lost" if raw is None else b"sum."
    body = hashlib.sha256(raw or b"").digest()
    return hashlib.sha256(before + turn.to_bytes(8, "big") + kind + body).digest()


def _packed(values: Integers) -> bytes:
    """Whole numbers in 4 bytes each where they fit, else in 8."""
    small = not len(values) or -(2**31) <= values.min() <= values.max() < 2**31
    return (b"\x04" if small else b"\x08") + values.astype("<i4" if small else "<i8").tobytes()


def unpacked(raw: bytes) -> Integers:
    """The whole numbers of a sum as it is kept and handed over."""
    kinds = {b"\x04": "<i4", b"\x08": "<i8"}
    width = 4 if raw[:1] == b"\x04" else 8
    if raw[:1] not in kinds or (len(raw) - 1) % width:
        raise SordinoError("this is not a sum")
    return np.frombuffer(raw, kinds[raw[:1]], offset=1).astype(np.int64)


def packed(values: Integers | None) -> bytes:
    """The bytes of a sum, or of a lost one, as parties hand it over."""
    return b"" if values is None else _packed(values)

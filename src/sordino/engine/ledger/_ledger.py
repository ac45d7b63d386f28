r"""The budget of each data set, and who spent what of it: one file that several processes share.

    ledger = Ledger.create("team.ledger")
    ledger.add_dataset("patients-2024", epsilon=3.0, delta=1e-6)
    ledger.reserve("patients-2024", plan, run=run, fingerprint=ledger.fingerprint(data))
    ledger.start(run)       # committed before the first record is read
    ...
    ledger.finish(run); ledger.release(run)

A reservation is charged from the moment it is made, whatever becomes of the run. The same run again is
the same release and free; it is the same if everything that decides its release is (`identity`), and a run
that cannot say so never is. The only way back is `cancel`, for a run that never started: `start` is a
transaction of its own before any record is read, so a reservation that is still "reserved" inside a write
transaction belongs to a run that has read nothing and, once cancelled, can no longer start.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import os
import secrets
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sordino._base.codec import canonical, utc_now
from sordino._base.errors import SordinoError, one_line, require_choice, require_count
from sordino._base.keys import Identity
from sordino._base.keystore import KeyStore
from sordino._base.types import Json, PyTree
from sordino.engine.ledger import _fingerprints as fingerprints
from sordino.engine.ledger._chain import (
    KIND,
    SEAL_BYTES,
    START,
    note_place,
    refuse_where_one_is_missing,
    same,
    seal,
    witness_of,
)
from sordino.engine.ledger._composition import Allowance, ComposedCost, Headroom, what_fits
from sordino.engine.ledger._database import File, create_file
from sordino.engine.ledger._marks import PERSONS, ROWS, Marks
from sordino.engine.ledger._records import (
    CANCELLED,
    CHARGE,
    CREATED,
    DATASET,
    KNOWN,
    REFUSE,
    RELEASED,
    RESERVED,
    RUNNING,
    SPENT,
    Chargeable,
    ChargeRequest,
    Dataset,
    LedgerEntry,
    LedgerState,
    Reservation,
    next_state,
)
from sordino.privacy import ADJACENCIES, UNITS

_LONGEST_NAME = 200
_DATASET_COLUMNS = ("name", "epsilon", "delta", "mu", "adjacency", "unit", "fingerprint")


@dataclass(frozen=True)
class Status:
    """Where a data set's budget stands.

    Attributes:
      epsilon: of everything charged together, at the budget's delta (None for a budget in mu).
      mu: of everything charged together, without credit for secret batches; infinite with searches.
      fits: the largest single Gaussian run that is still possible.
    """

    dataset: Dataset
    epsilon: float | None
    mu: float
    fits: Headroom
    reservations: tuple[Reservation, ...]

    def to_json(self) -> Json:
        return {
            **self.dataset.to_json(),
            "spent": {"epsilon": self.epsilon, "mu": None if math.isinf(self.mu) else self.mu},
            "fits": {"epsilon": self.fits.epsilon, "mu": self.fits.mu},
            "reservations": [held.to_json() for held in self.reservations],
        }


@dataclass(frozen=True)
class Verified:
    """What `verify` has checked: every seal, every table row, every plan's hash."""

    entries: int
    datasets: int
    reservations: int
    head: str


class Ledger:
    """Budgets that runs share. Methods may be called from several processes and threads at once."""

    def __init__(self, file: File, store: KeyStore, identity: str, key: bytes) -> None:
        """Use `Ledger.open` or `Ledger.create`."""
        self._file = file
        self.identity = identity
        self._store = store
        self._key = key
        self._witness = witness_of(store, identity)
        self._book = LedgerState()
        self._lock = threading.RLock()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, store: KeyStore | None = None, who: str | None = None
    ) -> Ledger:
        """A new, empty ledger file; its key goes to the user's key folder.

        Refused where a file is already, and where a ledger with entries was kept and is gone.
        """
        where, store = Path(path).absolute(), store or KeyStore()
        refuse_where_one_is_missing(where, store)
        identity, key = secrets.token_hex(16), secrets.token_bytes(32)
        text = canonical({"what": CREATED, "who": who or me(), "at": utc_now(), "ledger": identity})
        first = seal(key, START, 1, text)
        store.save(KIND, identity, key)
        # Before the file is there: a ledger without a witness is then never a matter of bad luck.
        witness_of(store, identity).advance(1, first)
        create_file(where, identity, (text, first))
        note_place(store, identity, where)
        return cls.open(where, store=store)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, store: KeyStore | None = None) -> Ledger:
        """An existing ledger, all of its entries checked."""
        where, store = Path(path).absolute(), store or KeyStore()
        if not where.exists():
            refuse_where_one_is_missing(where, store)
            raise SordinoError(
                f"there is no ledger at {str(path)!r}; make one with 'sordino ledger init'"
            )
        file = File(where)
        with file.transaction(write=False) as link:
            row = link.execute("SELECT id FROM about").fetchone()
        identity = row[0] if row is not None else None
        if not (isinstance(identity, str) and len(identity) == 32 and identity.isalnum()):
            raise SordinoError(f"the ledger {str(path)!r} was changed by hand: it has no identity")
        key = store.load(KIND, identity)
        if key is None:
            raise SordinoError(
                f"the key of the ledger {str(path)!r} is not in {str(store.folder)!r}: it was made by "
                "another user or on another computer; name that key folder with SORDINO_KEYS"
            )
        ledger = cls(file, store, identity, key)
        with ledger._reading() as (link, book):
            ledger._compare_tables(link, book)
        if book.count > ledger._witness.heads()[-1][0]:  # a crash came between the two writes
            ledger._witness.advance(book.count, book.seals[-1])
        note_place(store, identity, where)
        return ledger

    @property
    def path(self) -> Path:
        return self._file.path

    def close(self) -> None:
        """Let go of the file, so that all of it lies in one piece; any method opens it again."""
        self._file.close()

    def __reduce__(self) -> tuple[Callable[[str, KeyStore], Ledger], tuple[str, KeyStore]]:
        return _reopened, (str(self.path), self._store)

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}>"

    # What is on file

    def fingerprint(self, data: PyTree) -> str:
        """The keyed digest of `data` under which this ledger knows it; nothing of it is kept."""
        return fingerprints.data_fingerprint(data, self._derived("fingerprint"))

    def marks(self, units: PyTree, *, persons: bool = False) -> Marks:
        """Keyed hashes of rows, or of persons by their canonical ids: what a part is known by."""
        return Marks.of(units, PERSONS if persons else ROWS, self._derived("marks"))

    def knows_marks(self, dataset: str) -> str | None:
        """Whether the ledger knows a data set's rows or persons one by one, and which of the two."""
        with self._reading() as (_, book):
            known = book.marks(dataset)
        return None if known is None else known.by

    def knows_data(self, dataset: str) -> bool:
        """Whether anything decided which data the name stands for."""
        with self._reading() as (_, book):
            return bool(book.prints(dataset)) or book.marks(dataset) is not None

    def _derived(self, use: str) -> bytes:
        return hashlib.blake2b(use.encode(), key=self._key, digest_size=32).digest()

    def _sealed(self, identity: Identity) -> Identity:
        """The digests of an identity under the ledger's own key: a run key may be a seed others know."""
        own = self._derived("identity")
        return {
            name: hashlib.blake2b(f"{name}/{part}".encode(), key=own, digest_size=16).hexdigest()
            for name, part in identity.items()
        }

    def datasets(self) -> tuple[Dataset, ...]:
        with self._reading() as (_, book):
            return tuple(book.dataset(name) for name in book.datasets)

    def dataset(self, name: str) -> Dataset:
        with self._reading() as (_, book):
            return book.dataset(name)

    def reservation(self, run: str) -> Reservation:
        with self._reading() as (_, book):
            return book.reservation(run)

    def reservations(self, dataset: str | None = None) -> tuple[Reservation, ...]:
        """All of them, cancelled ones too, in the order in which they were made."""
        with self._reading() as (_, book):
            if dataset is not None:
                book.dataset(dataset)
            held = book.reservations.values()
            return tuple(one for one in held if dataset in (None, one.dataset))

    def history(self, dataset: str | None = None) -> tuple[LedgerEntry, ...]:
        """Every entry, in order; only those about one data set if it is named."""
        with self._reading() as (_, book):
            if dataset is None:
                return tuple(book.entries)
            book.dataset(dataset)
            runs = {run for run, held in book.reservations.items() if held.dataset == dataset}
            return tuple(e for e in book.entries if e.dataset == dataset or e.run in runs)

    def status(self, dataset: str) -> Status:
        """What is spent of a data set's budget, and what still fits."""
        with self._reading() as (_, book):
            known, held = book.dataset(dataset), book.charged(dataset)
        charges = [one.charge for one in held]
        total, delta = ComposedCost.of(charges), known.allowance.delta
        epsilon = None if delta is None else total.epsilon(delta)
        return Status(known, epsilon, total.mu, what_fits(charges, known.allowance), tuple(held))

    def what_fits(self, dataset: str) -> Headroom:
        """The largest single Gaussian run that a data set's budget still has room for."""
        return self.status(dataset).fits

    def check(self, dataset: str, plan: Chargeable) -> None:
        """Raise what `reserve` would raise for a new run of this plan; nothing is reserved."""
        with self._reading() as (_, book):
            known = book.dataset(dataset).fingerprint
            text = canonical(plan.to_json())
            asked = ChargeRequest.of(dataset, plan, text, run="", fingerprint=known)
            if not asked.fits(book):
                raise asked.exceeded(book)

    def verify(self) -> Verified:
        """Check everything anew: the file itself, every seal, every table, every stored plan."""
        with self._lock:
            self._book = LedgerState()
        with self._reading() as (link, book):
            for (verdict,) in link.execute("PRAGMA integrity_check"):
                if verdict != "ok":
                    raise SordinoError(
                        f"the ledger {str(self.path)!r} is damaged: {one_line(verdict)}"
                    )
            self._compare_tables(link, book)
            for run, digest, text in link.execute("SELECT run, plan_hash, plan FROM reservations"):
                if hashlib.sha256(text.encode()).hexdigest() != digest:
                    raise self._changed(f"the plan of run {run!r} is not the one it reserved for")
            return Verified(
                book.count, len(book.datasets), len(book.reservations), book.seals[-1].hex()
            )

    # What is written

    def add_dataset(
        self,
        name: str,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        mu: float | None = None,
        adjacency: str = "zero-out",
        unit: str = "example",
        fingerprint: str | None = None,
        rows: int | None = None,
        marks: Marks | None = None,
        who: str | None = None,
    ) -> Dataset:
        """Give a data set a budget: (epsilon, delta), or mu of mu-GDP. It cannot be changed later.

        Args:
          name: public; must not say anything about the data that others may not know.
          fingerprint: from `Ledger.fingerprint`; without it, the first run's data is the data set.
          rows: how many rows it has, where that is public: runs on any other number are refused.
          marks: from `Ledger.marks`: data with the same rows or persons are the data set, however they
            are stored, and a part of them is known for one.
        """
        _check_name("the name of a data set", name)
        built = Dataset(
            name,
            Allowance(epsilon, delta, mu),
            require_choice("adjacency", adjacency, ADJACENCIES),
            require_choice("unit", unit, UNITS),
            fingerprint,
            None if rows is None else require_count("rows", rows),
        )
        with self._writing() as (link, book, append):
            if name in book.datasets:
                if book.datasets[name] == built:
                    return built
                raise SordinoError(
                    f"the ledger has a data set {name!r} already, with "
                    f"{book.datasets[name].describe()}; a budget is never changed"
                )
            link.execute(
                "INSERT INTO datasets VALUES (:name, :fingerprint, :unit, :adjacency, :epsilon, "
                ":delta, :mu)",
                built.to_json(),
            )
            facts = built.to_json()
            if built.rows is None:
                del facts["rows"]  # as in the entries of sordino 0.5.0
            append(DATASET, who, {"dataset": facts.pop("name"), **facts})
            if marks is not None:
                append(KNOWN, who, {"dataset": name, **marks.to_json()})
        return built

    def reserve(
        self,
        dataset: str,
        plan: Chargeable,
        *,
        run: str,
        fingerprint: str | None = None,
        also: Sequence[str] = (),
        rows: int | None = None,
        pins: bool = True,
        identity: Identity | None = None,
        marks: Marks | None = None,
        parts: str = REFUSE,
        who: str | None = None,
    ) -> Reservation:
        """Charge a planned run to a data set's budget, or raise and change nothing.

        The plan is verified: it must give the guarantee that it states. In one transaction, everything
        reserved so far is composed with it and compared with the budget. The same run again, by its
        `identity`, is the reservation it already has; anything else under its name is refused.

        Args:
          run: the public identity of the run. Who runs twice under one identity must release the
            same values twice: derive it from the run key.
          fingerprint: of the data, from `Ledger.fingerprint`; None where the data is never seen as a
            whole, and the name is all there is to go by.
          also: other fingerprints the data set may be known by; one that is equal is enough.
          rows: how many rows the run uses, if the data set is to be checked for that.
          pins: whether a first run decides which data the name stands for; if not, it is charged to
            the name, whatever its data: they may be a fold.
          identity: everything that decides the release, as keyed digests by name; None where that
            cannot be said, and the run is then never the same as another.
          who: by default user@host.
        """
        _check_name("the identity of a run", run)
        text = canonical(plan.to_json())
        asked = ChargeRequest.of(
            dataset,
            plan,
            text,
            run=run,
            fingerprint=fingerprint,
            also=tuple(also),
            rows=rows,
            pins=pins,
            identity=None if identity is None else self._sealed(identity),
            marks=marks,
            parts=require_choice("parts", parts, (REFUSE, CHARGE)),
        )
        # Once before the file is locked: a long composition is then known, and others need not wait.
        with self._reading() as (_, book):
            if asked.held(book) is None and not asked.fits(book):
                raise asked.exceeded(book)
        with self._writing() as (link, book, append):
            held = asked.held(book)
            if held is not None:
                return held
            first = pins and not book.prints(dataset) and book.marks(dataset) is None
            if fits := asked.fits(book):
                body = append(RESERVED, who, asked.facts())
                link.execute(
                    "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        run,
                        dataset,
                        RESERVED,
                        asked.recipe,
                        asked.plan_hash,
                        text,
                        canonical(asked.guarantee.to_json()),
                        fingerprint,
                        body["who"],
                        body["at"],
                    ),
                )
                if first and marks is not None:
                    append(KNOWN, who, {"dataset": dataset, "run": run, **marks.to_json()})
        if fits:
            return self._book.reservation(run)
        with self._reading() as (_, book):  # somebody else was quicker
            raise asked.exceeded(book)

    def start(self, run: str, *, who: str | None = None) -> None:
        """Say that `run` is about to read its first record. From here on it cannot be cancelled."""
        self._move(run, RUNNING, who)

    def finish(self, run: str, *, who: str | None = None) -> None:
        """Say that `run` has come to its end."""
        self._move(run, SPENT, who)

    def release(self, run: str, *, who: str | None = None) -> None:
        """Say that the results of `run` were handed out."""
        self._move(run, RELEASED, who)

    def cancel(self, run: str, *, who: str | None = None) -> None:
        """Give back the reservation of a run that never started; an error for any other."""
        self._move(run, CANCELLED, who)

    def _move(self, run: str, state: str, who: str | None) -> None:
        with self._writing() as (link, book, append):
            if next_state(book.reservation(run), state):
                append(state, who, {"run": run})
                link.execute("UPDATE reservations SET state = ? WHERE run = ?", (state, run))

    # How it is kept

    @contextmanager
    def _reading(self) -> Iterator[tuple[sqlite3.Connection, LedgerState]]:
        # Heads first: what they tell of is then in what is read, whatever others write meanwhile.
        heads = self._witness.heads()
        with self._lock, self._file.transaction(write=False) as link:
            yield link, self._caught_up(link, heads)

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Connection, LedgerState, _Append]]:
        written: list[tuple[Json, bytes]] = []
        with self._lock:
            with self._file.transaction(write=True) as link:
                book = self._caught_up(link, self._witness.heads())

                def append(what: str, who: str | None, facts: Json) -> Json:
                    body = {"what": what, "who": who or me(), "at": utc_now(), **facts}
                    text, number = canonical(body), book.count + len(written) + 1
                    before = written[-1][1] if written else book.seals[-1]
                    built = seal(self._key, before, number, text)
                    link.execute("INSERT INTO entries VALUES (?, ?, ?)", (number, text, built))
                    written.append((body, built))
                    return body

                yield link, book, append
            # Committed. A crash before the witness knows of it only makes the witness lag behind.
            for body, built in written:
                book.add(body, built)
            if written:
                self._witness.advance(book.count, book.seals[-1])

    def _caught_up(self, link: sqlite3.Connection, heads: list[tuple[int, bytes]]) -> LedgerState:
        """The book with all entries that others have added, every seal checked."""
        book, path = self._book, str(self.path)
        if book.count:
            last = link.execute(
                "SELECT seal FROM entries WHERE number = ?", (book.count,)
            ).fetchone()
            if last is None or not _is_seal(last[0]) or not same(last[0], book.seals[-1]):
                raise SordinoError(
                    f"the ledger {path!r} is not the file that it was a moment ago; put the latest "
                    "one back"
                )
        rows = link.execute(
            "SELECT number, body, seal FROM entries WHERE number > ? ORDER BY number",
            (book.count,),
        )
        for number, text, stored_seal in rows:
            before = book.seals[-1] if book.count else START
            if number != book.count + 1 or not isinstance(text, str) or not _is_seal(stored_seal):
                raise self._changed(f"entry {book.count + 1} is missing or damaged")
            if not same(seal(self._key, before, number, text), stored_seal):
                raise self._changed(f"entry {number} does not match its seal")
            book.add(json.loads(text), stored_seal)
        if not book.count or book.entries[0].facts.get("ledger") != self.identity:
            raise self._changed("its first entry is missing")
        self._compare_heads(book, heads)
        return book

    def _compare_heads(self, book: LedgerState, heads: list[tuple[int, bytes]]) -> None:
        """What was noted of the chain must be part of it."""
        path = str(self.path)
        if not heads:
            raise SordinoError(
                f"how far the ledger {path!r} had got is no longer noted in the key folder "
                f"{str(self._store.folder)!r}; put that folder back as it was"
            )
        for number, head in heads:
            if number > book.count:
                raise SordinoError(
                    f"the ledger {path!r} is an older copy or was cut short: it ends with entry "
                    f"{book.count} but {number} were written; put the latest file back"
                )
            if not same(book.seals[number - 1], head):
                raise SordinoError(
                    f"the ledger {path!r} was continued in two places: its entry {number} is not the "
                    "one that was written first; put that file back"
                )

    def _compare_tables(self, link: sqlite3.Connection, book: LedgerState) -> None:
        """The tables must say what the entries say."""
        if link.execute("SELECT id FROM about").fetchall() != [(self.identity,)]:
            raise self._changed("its identity is not its own")
        datasets = link.execute(f"SELECT {', '.join(_DATASET_COLUMNS)} FROM datasets")
        if set(datasets) != {_table_row(one) for one in book.datasets.values()}:
            raise self._changed("its data sets are not as they were entered")
        runs = link.execute(
            "SELECT run, dataset, recipe, plan_hash, guarantee, state, fingerprint, who, at "
            "FROM reservations"
        )
        entered = {
            (
                one.run,
                one.dataset,
                one.recipe,
                one.plan_hash,
                canonical(one.guarantee.to_json()),
                one.state,
                one.fingerprint,
                one.who,
                one.at,
            )
            for one in book.reservations.values()
        }
        if set(runs) != entered:
            raise self._changed("its reservations are not as they were entered")

    def _changed(self, what: str) -> SordinoError:
        return SordinoError(f"the ledger {str(self.path)!r} was changed by hand: {what}")


class _Append(Protocol):
    def __call__(self, what: str, who: str | None, facts: Json) -> Json: ...


def me() -> str:
    """user@host, as far as the system tells."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname() or 'unknown'}"


def _table_row(dataset: Dataset) -> tuple[object, ...]:
    """A data set as the file's table has it; what is not in it is in the sealed entry alone."""
    facts = dataset.to_json()
    return tuple(facts[name] for name in _DATASET_COLUMNS)


def _is_seal(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == SEAL_BYTES


def _check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise SordinoError(
            f"{what} must be a printable text of 1 to {_LONGEST_NAME} characters, got {name!r}"
        )


def _reopened(path: str, store: KeyStore) -> Ledger:
    return Ledger.open(path, store=store)

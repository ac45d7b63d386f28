"""A server that survives: its state is one SQLite file, and a round is one transaction.

    server = DurableServer.open(Server(agreement, start), "server.db")
    for client, message in server.requests(present): ...
    server.receive(client, reply)

It implements `endpoints.Coordinator`. Killed at any instant and started again, it asks for the current
turn again, word for word, so that clients send the same bytes again; rounds that were done stay done.
All that is in the file may be seen. A trusted server keeps no messages (they have no noise yet), and the
key of its last noise lies in the user's key folder.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import utc_now
from sordino._base.errors import DAMAGE, SordinoError, one_line
from sordino._base.keystore import KeyStore
from sordino._base.sqlite import Database, FileKind
from sordino.together._callbacks import Callbacks
from sordino.together.federated._chain import ChainAccountant
from sordino.together.federated._messages import Reply, message_from_bytes
from sordino.together.federated._server import RoundOutcome, Server, ServerState

_STATE = FileKind(
    name="the server's file",
    identity=0x534F4653,  # "SOFS"
    version=1,
    schema=(
        "CREATE TABLE state (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL)",
        """CREATE TABLE inbox (
 client TEXT PRIMARY KEY NOT NULL,
 number INTEGER NOT NULL,
 reply BLOB NOT NULL
)""",
        """CREATE TABLE rounds (
 round INTEGER PRIMARY KEY NOT NULL,
 turn INTEGER NOT NULL,
 committed TEXT NOT NULL,
 blocks TEXT NOT NULL,
 asked TEXT NOT NULL,
 spent TEXT NOT NULL, -- what clients said up to 0.5.0; now empty, and never read
 metrics TEXT NOT NULL,
 at TEXT NOT NULL
)""",
        """CREATE TABLE events (
 number INTEGER PRIMARY KEY,
 at TEXT NOT NULL,
 client TEXT,
 text TEXT NOT NULL
)""",
    ),
    busy="it is running already",
)
_ARRAYS = {"point": "<f4", "previous": "<f4", "weights": "<f8", "total": "<i8", "average": "<f8"}
_KIND = "federated-server"
# Under a secure sum, a cohort of which a member stays silent this often is given up.
PATIENCE = 3


@dataclass(frozen=True)
class RoundRecord:
    """A round that is over, for progress and reports.

    Attributes:
      committed: index of each client's message in it.
      blocks: the block of examples of each, where it was told; else -1.
      asked: everybody who was asked.
      metrics: whatever `evaluate` said, on public data.
      at: when, UTC.
    """

    round: int
    turn: int
    committed: Mapping[str, int]
    blocks: Mapping[str, int]
    asked: tuple[str, ...]
    metrics: Mapping[str, float]
    at: str


@dataclass
class DurableServer:
    """See the module.

    Attributes:
      chance: picks clients; from the system's entropy unless given.
      evaluate: of the model after a round, on public data.
      every: how many rounds apart it is evaluated (the last one always is).
    """

    server: Server
    state: ServerState
    chance: np.random.Generator = field(default_factory=np.random.default_rng)
    evaluate: Callable[[NDArray[np.float32]], Mapping[str, float]] | None = None
    every: int = 1
    callbacks: Callbacks = field(default_factory=Callbacks)
    store: KeyStore | None = None
    _file: Database | None = None
    _silent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._history: list[RoundRecord] = []
        self._events: list[tuple[str, str | None, str]] = []
        self._turn_asked = 0

    @classmethod
    def in_memory(cls, server: Server, **options: Any) -> DurableServer:
        """A server that forgets: for simulations and tests."""
        return cls(server, server.begin(), **options)

    @classmethod
    def open(cls, server: Server, path: Path | str, **options: Any) -> DurableServer:
        """The server as its file left it, or a new one."""
        file = Database(Path(path), _STATE, {"agreement": server.agreement.digest})
        try:
            built = cls(server, server.begin(), _file=file, **options)
            built._load()
        except BaseException:
            file.close()
            raise
        return built

    @property
    def finished(self) -> bool:
        return self.server.is_finished(self.state)

    @property
    def waits(self) -> bool:
        return self.state.turn == self._turn_asked and not self.finished

    @property
    def params(self) -> NDArray[np.float32]:
        """The model so far, float32 (d,)."""
        return self.server.output(self.state)

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        with self._lock:
            before = self.state
            after, asked = self.server.ask(before, present, self.chance)
            if after is not before and after.asked != before.asked:
                self._write({"asked": list(after.asked)})
            self.state = after
            self._turn_asked = after.turn
            return [(name, request.to_bytes()) for name, request in asked.items()]

    def receive(self, client: str, reply: bytes) -> None:
        with self._lock:
            try:
                message = message_from_bytes(reply)
            except SordinoError as error:
                self._event(client, f"{client} sent what cannot be read: {error}")
                return
            before = self.state
            after, verdict, done = self.server.receive(before, client, message)
            if not verdict.taken:
                self._event(client, verdict.reason)
                if after.out != before.out:
                    self._write({"out": dict(after.out)})
                    self.state = after
                    if client in after.asked and self.server.agreement.trust == "secure-sum":
                        self._give_up(f"{client} is out")
                return
            self._silent.pop(client, None)
            if done is None:
                if self.server.secret is None:
                    self._keep_reply(client, reply)
                self.state = after
                return
            self._commit(after, done, before.asked)

    def missing(self, client: str, reason: str) -> None:
        with self._lock:
            self._event(
                client, f"{client} did not answer turn {self.state.turn}: {one_line(reason)}"
            )
            self._silent[client] = self._silent.get(client, 0) + 1
            cohort = self.server.agreement.trust == "secure-sum"
            if cohort and client in self.state.asked and self._silent[client] >= PATIENCE:
                self._give_up(f"{client} was silent {PATIENCE} times")

    def history(self) -> list[RoundRecord]:
        """All rounds that are over."""
        if self._file is None:
            return list(self._history)
        with self._file.reading() as link:
            rows = link.execute(
                "SELECT round, turn, committed, blocks, asked, metrics, at FROM rounds "
                "ORDER BY round"
            ).fetchall()
        return [_record(row) for row in rows]

    def events(self, last: int = 1000) -> list[tuple[str, str | None, str]]:
        """What was rejected, refused or missing: (when, client, sentence)."""
        if self._file is None:
            return self._events[-last:]
        with self._file.reading() as link:
            rows = link.execute(
                "SELECT at, client, text FROM events ORDER BY number DESC LIMIT ?", (last,)
            ).fetchall()
        return [(at, client, text) for at, client, text in reversed(rows)]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _give_up(self, why: str) -> None:
        """Another turn for the same round, with other clients."""
        self._event(None, f"turn {self.state.turn} is given up: {why}")
        self._silent.clear()
        self.state = self.server.give_up(self.state)
        self._write({"turn": self.state.turn, "asked": []}, clear=True)

    def _commit(self, after: ServerState, done: RoundOutcome, asked: tuple[str, ...]) -> None:
        agreement = self.server.agreement
        metrics: Mapping[str, float] = {}
        last = done.round == agreement.rounds
        if self.evaluate is not None and (done.round % self.every == 0 or last):
            metrics = {k: float(v) for k, v in self.evaluate(self.server.output(after)).items()}
        record = RoundRecord(
            done.round,
            done.turn,
            done.committed,
            done.blocks,
            asked,
            metrics,
            utc_now("milliseconds"),
        )
        if self.server.secret is not None:
            self._keep_key(after)
        self._write(
            {
                "turn": after.turn,
                "round": after.round,
                "asked": [],
                "committed": dict(after.committed),
                **{name: getattr(after, name) for name in _ARRAYS},
            },
            clear=True,
            record=record,
        )
        self.state = after
        self._history.append(record)
        self.callbacks.round_done(record)

    def _keep_key(self, after: ServerState) -> None:
        """The new noise's key and the one before, until the file says which of them holds."""
        old, new = self.state.last_key, after.last_key
        body = {
            str(self.state.round): new.hex() if new else "",
            str(self.state.round - 1): old.hex() if old else "",
        }
        name = self.server.agreement.digest[:32]
        (self.store or KeyStore()).replace(_KIND, name, json.dumps(body).encode())

    def _event(self, client: str | None, text: str) -> None:
        self.callbacks.event(text)
        self._events.append((utc_now("milliseconds"), client, text))
        if self._file is not None:
            with self._file.transaction() as link:
                link.execute(
                    "INSERT INTO events (at, client, text) VALUES (?, ?, ?)",
                    (utc_now("milliseconds"), client, text),
                )

    def _keep_reply(self, client: str, reply: bytes) -> None:
        if self._file is None:
            return
        with self._file.transaction() as link:
            link.execute(
                "INSERT OR REPLACE INTO inbox VALUES (?, ?, ?)",
                (client, len(self.state.inbox), reply),
            )

    def _write(
        self, values: Mapping[str, Any], *, clear: bool = False, record: RoundRecord | None = None
    ) -> None:
        """One transaction; synced when it returns."""
        if self._file is None:
            return
        with self._file.transaction() as link:
            for name, value in values.items():
                raw = _array_bytes(name, value) if name in _ARRAYS else json.dumps(value)
                link.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, raw))
            if clear:
                link.execute("DELETE FROM inbox")
            if record is not None:
                link.execute("INSERT INTO rounds VALUES (?,?,?,?,?,?,?,?)", _row(record))

    def _load(self) -> None:
        """The state in the file; a new file gets the beginning first."""
        assert self._file is not None
        with self._file.reading() as link:
            (count,) = link.execute("SELECT count(*) FROM state").fetchone()
        if not count:
            fields = {name: getattr(self.state, name) for name in _ARRAYS}
            self._write({"turn": 1, "round": 1, "asked": [], "committed": {}, "out": {}, **fields})
        try:
            self.state = self._read()
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"the server's file {str(self._file.path)!r} is damaged") from None

    def _read(self) -> ServerState:
        server = self.server
        assert self._file is not None
        with self._file.reading() as link:
            raw = dict(link.execute("SELECT name, value FROM state").fetchall())
            kept = link.execute("SELECT client, reply FROM inbox ORDER BY number").fetchall()
        arrays: dict[str, Any] = {
            name: _array(name, raw[name], server.agreement.parameters) for name in _ARRAYS
        }
        state = ServerState(
            turn=int(json.loads(raw["turn"])),
            round=int(json.loads(raw["round"])),
            committed=json.loads(raw["committed"]),
            asked=tuple(json.loads(raw["asked"])),
            out=json.loads(raw["out"]),
            **arrays,
        )
        if server.secret is not None:
            return self._with_own_noise(state)
        inbox = {}
        for client, reply in kept:
            message = message_from_bytes(bytes(reply))
            assert isinstance(message, Reply)
            inbox[client] = message
        return replace(state, inbox=inbox)

    def _with_own_noise(self, state: ServerState) -> ServerState:
        """A trusted server's account, replayed, and the key of its last noise."""
        account: ChainAccountant = self.server.agreement.account()
        for record in self.history():
            account = self.server.paid(account, record.round, record.blocks)
        key = None
        if state.round > 1:
            raw = (self.store or KeyStore()).load(_KIND, self.server.agreement.digest[:32])
            result = json.loads(raw).get(str(state.round - 1)) if raw else None
            if not result:
                raise SordinoError(
                    "the key of this server's last noise is missing: without it the noise stays in the "
                    "sum; put it back, or begin anew under a new agreement"
                )
            key = bytes.fromhex(result)
        return replace(state, account=account, last_key=key)


def _array_bytes(name: str, value: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(value).astype(_ARRAYS[name]).tobytes()


def _array(name: str, raw: bytes, size: int) -> NDArray[Any]:
    result = np.frombuffer(bytes(raw), _ARRAYS[name])
    if result.shape != (size,):
        raise ValueError(name)
    return result.astype(result.dtype.newbyteorder("="))


def _row(record: RoundRecord) -> tuple[int | str, ...]:
    spent: dict[str, float] = {}  # the column is there for files of earlier versions
    parts = (record.committed, record.blocks, list(record.asked), spent, record.metrics)
    texts = [json.dumps(part if isinstance(part, list) else dict(part)) for part in parts]
    return (record.round, record.turn, *texts, record.at)


def _record(row: tuple[Any, ...]) -> RoundRecord:
    round_, turn, committed, blocks, asked, metrics, at = row
    return RoundRecord(
        round_,
        turn,
        json.loads(committed),
        json.loads(blocks),
        tuple(json.loads(asked)),
        json.loads(metrics),
        at,
    )

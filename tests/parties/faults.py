"""For tests of whole runs: parties in processes that can be killed, and a network that fails.

    study = Study(tmp_path, engine="mask", parties=3, steps=50)
    session = study.start(zygote)          # m real processes
    session.kill(1)
    outcomes = session.wait(10)            # what the others say, within so many seconds
    study.check()                          # everything that must hold at the end

Parties are forked from a process that has imported everything (`Zygote`): a session begins within a second.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino._base.keystore import KeyStore
from sordino._version import code_digest
from sordino.parts._losses import Logistic
from sordino.privacy._values import ClippedSum
from sordino.together._callbacks import Callbacks
from sordino.together.parties import _party as engines
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._journal import TurnJournal, TurnRecord
from sordino.together.parties._learner import Learner, PartyRows
from sordino.together.parties._terms import agree
from sordino.together.secure._mask import MaskSum, Pads
from sordino.together.secure._transport import StarTransport
from sordino.together.sites._models import ModelSpec
from sordino.together.sites._parties import PartySite, create_party
from tests.secure.processes import free_ports

ROOT = Path(__file__).parents[2]
NARROW, WIDE = 8, 3000


def _none(path: Path) -> tuple[Any, ...]:
    return ()


def spoilt_loss(params: Any, x: Any, y: Any) -> Any:
    """Logistic, but not a number for some records, and infinite for some others."""
    bad = jnp.where(x[1] > 1.0, jnp.nan, jnp.where(x[1] < -1.0, jnp.inf, 0.0))
    return Logistic()(params, x, y) + bad * jnp.sum(params + 1.0)


model = ModelSpec(Logistic(), np.zeros(NARROW, np.float32), _none)
wide = ModelSpec(Logistic(), np.zeros(WIDE, np.float32), _none)
spoilt = ModelSpec(spoilt_loss, np.zeros(NARROW, np.float32), _none)


def records(place: int, count: int, features: int) -> tuple[Any, Any]:
    """A party's data."""
    rng = np.random.default_rng([place, features])
    X = rng.normal(size=(count, features)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.int32)


def planted(place: int, size: int, largest: int) -> Any:
    """Numbers that are a party's own, and that nobody would come across by chance: about 2^27 each."""
    rng = np.random.default_rng([place, 77])
    return rng.integers(largest // 2, largest, size) * rng.choice([-1, 1], size)


# What a party's process does. It says what it does in a file that outlives it.


def take_part(order: dict[str, Any]) -> dict[str, Any]:
    """Take part in a run as `order` says; what came of it."""
    site = PartySite.load(Path(order["folder"]))
    place, terms = site.consortium.place(site.name), site.consortium.terms
    log = os.open(order["log"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    pauses = random.Random(order["seed"])

    def note(*words: object) -> None:
        os.write(log, (" ".join(map(str, words)) + "\n").encode())
        if order.get("pause"):
            time.sleep(pauses.uniform(0, order["pause"]))

    heard = None
    if "heard" in order:
        heard = os.open(order["heard"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    if "pads" in order.get("without", ()):
        Pads.padded = lambda self, values, cohort, context: values  # type: ignore[method-assign]
    _watch_claims(note)
    _watch_engine(note, order.get("private"))
    if "port" in order:
        _go_through(order["port"])
    if order.get("plant"):
        own = planted(place, terms.parameters, terms.largest)
        Learner.vector = lambda self: ClippedSum(own)  # type: ignore[method-assign]
    if "entry" in order:
        beyond = np.zeros(terms.parameters, np.int64)
        beyond[-1] = order["entry"]
        Learner.vector = lambda self: ClippedSum(beyond)  # type: ignore[method-assign]
    if order.get("lie"):
        everything = np.arange(terms.examples[place])
        PartyRows.of = lambda self, step: everything  # type: ignore[method-assign]
    if "tls" in order.get("without", ()):
        engines.Tls = lambda *parts: None  # type: ignore[misc,assignment]
    if "taps" in order:
        _tap(place, order["taps"])

    def turned(record: TurnRecord, learner: Learner) -> None:
        note("turned", record.turn)

    finished = site.run(
        records(place, terms.examples[place], order["features"]),
        store=KeyStore(Path(order["keys"])),
        join_timeout=order["join_timeout"],
        callbacks=Callbacks(met=lambda session, settled: note("met", settled), turned=turned),
        watch=None if heard is None else lambda name, body: _heard(heard, body),
    )
    leaves = np.concatenate([np.ravel(leaf) for leaf in _leaves(finished.params)])
    return {
        "state": "done",
        "params": np.asarray(leaves, np.float32).tobytes().hex(),
        "finite": bool(np.isfinite(leaves).all()),
        "different": list(finished.different),
        "turns": len(finished.records),
    }


def _leaves(tree: Any) -> list[Any]:
    import jax

    return list(jax.tree.leaves(tree))


def _heard(file: int, body: bytes) -> None:
    os.write(file, body)


def _watch_claims(note: Callable[..., None]) -> None:
    claim, settle = TurnJournal.claim, TurnJournal.settle

    def claiming(self: TurnJournal, turn: int) -> None:
        note("claiming", turn)
        claim(self, turn)
        note("claimed", turn)

    def settling(self: TurnJournal, turn: int, noised: Any, *rest: Any) -> None:
        note("settling", turn)
        settle(self, turn, noised, *rest)
        note("settled", turn, "lost" if noised is None else "sum")

    TurnJournal.claim, TurnJournal.settle = claiming, settling  # type: ignore[method-assign]


def _watch_engine(note: Callable[..., None], private: str | None) -> None:
    """Every vector that leaves this party, as it leaves; with `private`, also what must not."""
    exchanged, padded = MaskSum._exchanged, Pads.padded

    def exchanging(self: MaskSum, body: Any, terms: bytes, turn: int, deadline: float) -> Any:
        note("sent", turn, self._nonce.hex(), hashlib.sha256(body.tobytes()).hexdigest())
        total = exchanged(self, body, terms, turn, deadline)
        note("sum", turn)
        return total

    def padding(self: Pads, values: Any, *rest: Any) -> Any:
        assert private is not None
        with Path(private).open("ab") as file:
            file.write(values.astype("<i8").tobytes())
        return padded(self, values, *rest)

    MaskSum._exchanged = exchanging  # type: ignore[method-assign]
    if private is not None:
        Pads.padded = padding  # type: ignore[method-assign]
    for name in ("mpyc", "spu"):
        _watch_other(name, note)


def _watch_other(name: str, note: Callable[..., None]) -> None:
    from sordino.together.secure import _mpyc as mpyc_engine
    from sordino.together.secure import _spu_engine as spu_engine

    kind: Any = mpyc_engine.MpycSum if name == "mpyc" else spu_engine.SpuSum
    summed = kind.noised_sum

    def summing(self: Any, values: Any, variance: int, turn: int) -> Any:
        note("sent", turn, id(self), hashlib.sha256(values.tobytes()).hexdigest())
        total = summed(self, values, variance, turn)
        note("sum", turn)
        return total

    kind.noised_sum = summing


def _go_through(port: int) -> None:
    """Reach the first party at another port."""
    join = StarTransport.join.__func__  # type: ignore[attr-defined]

    def joining(cls: type[StarTransport], roster: Any, *rest: Any, **options: Any) -> StarTransport:
        return join(cls, replace(roster, port=port), *rest, **options)

    StarTransport.join = classmethod(joining)  # type: ignore[method-assign,assignment]


def _tap(place: int, taps: dict[str, int]) -> None:
    """Reach the ports of other parties' engines through others."""
    plain = Consortium.addresses

    def addresses(self: Consortium, offset: int, count: int | None = None) -> list[str]:
        found = plain(self, offset, count)
        ports = [address.split(":")[1] for address in found]
        return [
            found[i] if i == place else f"127.0.0.1:{taps.get(port, port)}"
            for i, port in enumerate(ports)
        ]

    Consortium.addresses = addresses  # type: ignore[method-assign]


def _child(order: dict[str, Any]) -> None:
    """A party's process from its first to its last moment."""
    try:
        outcome = take_part(order)
    except SordinoError as error:
        outcome = {"state": "refused", "error": str(error)}
    except BaseException:
        outcome = {"state": "crashed", "error": traceback.format_exc()}
    outcome["at"], outcome["cpu"] = time.monotonic(), time.process_time()
    write_atomically(Path(order["outcome"]), json.dumps(outcome))


def serve() -> None:
    """Fork a party for each line on stdin, and say its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    code_digest()  # now, because files may be edited while tests run
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            _child(json.loads(line))
            os._exit(0)
        print(pid, flush=True)


class Zygote:
    """See the module."""

    def __init__(self) -> None:
        cache = Path(tempfile.gettempdir()) / "sordino-test-cache" / "parties"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "JAX_PLATFORMS": "cpu",
            # Every process compiles the same two programs.
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def fork(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()


# Runs, from outside.


class Study:
    """A consortium, its parties' folders, and everything that their processes have said.

    Args:
      folder: empty.
      timeout: of the consortium.
      kind: name of a model in this module.
      terms: of `agree`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        engine: str = "mask",
        parties: int = 3,
        steps: int = 50,
        timeout: float = 10.0,
        kind: str = "model",
        pause: float = 0.0,
        recipe: str = "dp-srm",
        **terms: Any,
    ) -> None:
        self.folder, self.pause, self.timeout = folder, pause, timeout
        self.features = WIDE if kind == "wide" else NARROW
        sizes = [60 + 10 * place for place in range(parties)]
        if recipe in ("dp-srm", "dp-sgd"):
            terms.setdefault("batch_size", 30)
        terms.setdefault("noise_multiplier", 4.0)
        self.terms = agree(
            recipe, examples=sizes, parameters=self.features, engine=engine, steps=steps, **terms
        )
        self.names = [f"p{place}" for place in range(parties)]
        ports = free_ports(3 * parties)
        # Three neighbouring ports each; far enough from each other that nobody takes one.
        self.cards = []
        for place, name in enumerate(self.names):
            port = _three_ports(ports[place])
            card = create_party(folder / name, name, examples=sizes[place], port=port)
            self.cards.append(card)
        described = {"kind": "own", "name": f"{__name__}:{kind}"}
        self.consortium = Consortium(
            f"study in {folder.name}", tuple(self.cards), self.terms, described, timeout
        )
        for name in self.names:
            PartySite.load(folder / name).sign(self.consortium, allow=[described["name"]])
        self.sessions = 0

    def log(self, place: int) -> list[list[str]]:
        """What a party's processes have said they do, in order."""
        path = self.folder / f"{self.names[place]}.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def start(
        self, zygote: Zygote, *, join_timeout: float | None = None, **options: Any
    ) -> Session:
        """All parties' processes; options of one party by its number, others of all."""
        self.sessions += 1
        own = {place: options.pop(str(place), {}) for place in range(len(self.names))}
        orders = []
        for place, name in enumerate(self.names):
            order: dict[str, Any] = {
                "folder": str(self.folder / name),
                "keys": str(self.folder / f"{name}.keys"),
                "log": str(self.folder / f"{name}.log"),
                "outcome": str(self.folder / f"{name}.outcome{self.sessions}"),
                "features": self.features,
                "pause": self.pause,
                "seed": 1000 * self.sessions + place,
                "join_timeout": self.timeout if join_timeout is None else join_timeout,
            }
            orders.append({**order, **options, **own[place]})
        return Session(self, [zygote.fork(order) for order in orders], orders)

    def finish(self, zygote: Zygote, **options: Any) -> list[dict[str, Any]]:
        """One more session, in which nothing goes wrong."""
        outcomes = self.start(zygote, join_timeout=60.0, **options).wait(900)
        assert all(o is not None and o["state"] == "done" for o in outcomes), outcomes
        return [o for o in outcomes if o is not None]

    def journal(self, place: int) -> TurnJournal:
        name = self.names[place]
        store = KeyStore(self.folder / f"{name}.keys")
        return PartySite.load(self.folder / name).journal(store)

    def check(self, outcomes: Sequence[dict[str, Any]]) -> set[int]:
        """After the last turn: one model, one history, every turn once. The turns that were lost."""
        steps = self.terms.plan.population.steps
        assert len({o["params"] for o in outcomes}) == 1
        assert all(not o["different"] and o["turns"] == steps and o["finite"] for o in outcomes)
        histories, losses = set(), []
        for place in range(len(self.names)):
            journal = self.journal(place)
            try:
                assert (journal.claimed, journal.settled) == (steps, steps)
                histories.add(journal.history)
                losses.append({t for t, noised in enumerate(journal.sums()) if noised is None})
            finally:
                journal.close()
            self._check_log(place, losses[-1])
        assert len(histories) == 1
        assert all(lost == losses[0] for lost in losses)
        return losses[0]

    def _check_log(self, place: int, lost: set[int]) -> None:
        """What left a party: for every turn at most one vector, claimed before, and never again."""
        said = self.log(place)
        claimed = [int(words[1]) for words in said if words[0] == "claimed"]
        sent = [(int(words[1]), *words[2:]) for words in said if words[0] == "sent"]
        assert len(claimed) == len(set(claimed))
        turns = [one[0] for one in sent]
        assert len(turns) == len(set(turns)), "a turn's vector left twice"
        assert len({one[2] for one in sent}) == len(sent) or self.terms.engine != "mask"
        began = {int(words[1]) for words in said if words[0] == "claiming"}
        assert set(turns) <= set(claimed) <= began
        positions = {(words[0], int(words[1])): i for i, words in enumerate(said) if len(words) > 1}
        assert all(positions["claimed", turn] < positions["sent", turn] for turn in turns)
        settled = [(int(words[1]), words[2]) for words in said if words[0] == "settled"]
        assert len({turn for turn, _ in settled}) == len(settled)
        for turn, how in settled:
            assert (how == "lost") == (turn in lost)


def _three_ports(first: int) -> int:
    """A free port whose two next neighbours are free too."""
    for port in (first, *range(first + 3, first + 3000, 3)):
        if port > 65000:
            port -= 30000
        with suppress(OSError):
            for offset in range(3):
                socket.create_server(("127.0.0.1", port + offset)).close()
            return port
    raise AssertionError("no three free ports")


class Session:
    """Processes of all parties."""

    def __init__(self, study: Study, pids: list[int], orders: list[dict[str, Any]]) -> None:
        self._study, self.pids, self._orders = study, pids, orders
        self.began = time.monotonic()
        self._before = [len(study.log(place)) for place in range(len(pids))]

    def alive(self, place: int) -> bool:
        try:
            stat = Path(f"/proc/{self.pids[place]}/stat").read_text()
        except OSError:
            return False
        return stat.rsplit(")", 1)[1].split()[0] not in "ZX"

    def kill(self, place: int) -> bool:
        """SIGKILL; whether the process was still running then, with nothing said about its end."""
        if not self.alive(place) or Path(self._orders[place]["outcome"]).exists():
            return False
        os.kill(self.pids[place], signal.SIGKILL)
        while self.alive(place):
            time.sleep(0.002)
        return not Path(self._orders[place]["outcome"]).exists()

    def until(self, mark: str, within: float = 60.0) -> bool:
        """Wait until every party has said that in this session; False if one has ended before."""
        places = range(len(self.pids))
        while time.monotonic() < self.began + within:
            if all(
                any(words[0] == mark for words in self._study.log(place)[self._before[place] :])
                for place in places
            ):
                return True
            if not all(self.alive(place) for place in places):
                return False
            time.sleep(0.01)
        return False

    def wait(self, within: float) -> list[dict[str, Any] | None]:
        """What each party says at its end, None for one that was killed; an error if it takes longer."""
        end = time.monotonic() + within
        while any(self.alive(place) for place in range(len(self.pids))):
            if time.monotonic() > end:
                late = [p for p in range(len(self.pids)) if self.alive(p)]
                for place in late:
                    os.kill(self.pids[place], signal.SIGKILL)
                pytest.fail(f"parties {late} still run after {within:g} s")
            time.sleep(0.01)
        found: list[dict[str, Any] | None] = []
        for order in self._orders:
            path = Path(order["outcome"])
            found.append(json.loads(path.read_text()) if path.exists() else None)
        return found


def clear(outcome: dict[str, Any] | None) -> str:
    """The error of a party that has stopped cleanly."""
    assert outcome is not None
    assert outcome["state"] == "refused", outcome
    text = str(outcome["error"])
    assert text
    assert "\n" not in text
    assert len(text) < 600
    assert "Traceback" not in text
    return text


# A network that fails.


class Network:
    """A port between a party and the first one: passes TLS records on, until it is told to spoil one.

    Args:
      port: of the first party.
    """

    FAULTS = ("cut", "stall", "truncate", "lose", "double", "swap", "flip")

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port, self._target = int(self._server.getsockname()[1]), port
        self._fault: tuple[str, bool] | None = None
        self._lock = threading.Lock()
        self.done = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def spoil(self, fault: str, *, to_hub: bool) -> None:
        """From now on, once: the next record in that direction."""
        with self._lock:
            self.done.clear()
            self._fault = (fault, to_hub)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    try:
                        far = socket.create_connection(("127.0.0.1", self._target))
                    except OSError:
                        time.sleep(0.02)
                        continue
                    for one, other, to_hub in ((near, far, True), (far, near, False)):
                        threading.Thread(
                            target=self._pass, args=(one, other, to_hub), daemon=True
                        ).start()
                    break
                else:
                    near.close()

    def _pass(self, one: socket.socket, other: socket.socket, to_hub: bool) -> None:
        held: bytes | None = None
        stalled = False
        with suppress(OSError):
            while record := _record(one):
                with self._lock:
                    fault = None
                    if self._fault is not None and self._fault[1] == to_hub and record[0] == 23:
                        fault, self._fault = self._fault[0], None
                        self.done.set()
                if fault == "swap":
                    held = record
                    continue
                if fault == "stall":
                    stalled = True
                if stalled or fault == "lose":
                    continue
                if fault == "cut":
                    break
                if fault == "truncate":
                    other.sendall(record[: len(record) // 2])
                    break
                if fault == "flip":
                    middle = len(record) // 2
                    record = record[:middle] + bytes([record[middle] ^ 16]) + record[middle + 1 :]
                if fault == "double":
                    record += record
                other.sendall(record)
                if held is not None:
                    other.sendall(held)
                    held = None
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._server.close()


def _record(source: socket.socket) -> bytes:
    """The next TLS record, whole; nothing at the end."""
    head = _exactly(source, 5)
    return head + _exactly(source, int.from_bytes(head[3:5], "big")) if head else b""


def _exactly(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = source.recv(count - len(found))
        if not piece:
            return b""
        found += piece
    return found


# What must not be found.


def traces(values: Any, step: float) -> list[bytes]:
    """Ways in which a vector might be written down; no shorter than 8 bytes, so chance finds none.

    One number in 8 bytes, or two neighbours in 4 each: whole numbers either way round, and as real numbers,
    in steps and times the step; and digits.
    """
    whole = np.asarray(values, np.int64)
    found = []
    for order in "<>":
        alone = [whole.astype(f"{order}i8")]
        real = whole.astype(np.float64)
        alone += [real.astype(f"{order}f8"), (real * step).astype(f"{order}f8")]
        pairs = [whole.astype(np.int32).astype(f"{order}i4")]
        pairs += [real.astype(f"{order}f4"), (real * step).astype(f"{order}f4")]
        for array in alone:
            found += [array[i : i + 1].tobytes() for i in range(len(array))]
        for array in pairs:
            found += [array[i : i + 2].tobytes() for i in range(len(array) - 1)]
    found += [str(abs(int(value))).encode() for value in whole]
    return [trace for trace in found if len(trace) >= 8]


def count_traces(heard: bytes, values: Any, step: float) -> int:
    """How many of them are in what was heard."""
    return sum(trace in heard for trace in traces(values, step))

"""Noised sums by SecretFlow SPU: three compute nodes (ABY3), any number of data owners.

Every owner splits its vector, and random words of its own, into three parts that add up to them modulo
2^64, and sends one to each node: a part alone is uniformly random. Each node adds up what it got and goes
into a computation with the other two, in which the words of all owners (uniform if one of them is) are
looked up in public tables of the discrete Gaussian (`_table.py`). All that is opened is the noised sum,
which each owner gets from all three nodes and compares.

Nodes 0, 1 and 2 are run by parties 0, 1 and 2, beside this process, in an environment of their own: SPU
needs older versions of jax and numpy than Sordino. Make it with

    python -m sordino.together.secure create PATH

and name it in SORDINO_SPU, or give its path.

Protects against: one of the three nodes, passive, with any number of the parties that run none. Two nodes
together see everything. Other modes of SPU are not offered: SEMI2K lets node 0 make all correlated
randomness (class `BeaverTfpUnsafe`), and CHEETAH has not been tested with this table.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import MissingExtraError, SordinoError, one_line, require_count, shown
from sordino._base.types import Json
from sordino.parts.mechanisms import KEY_BYTES, ChaCha20Generator
from sordino.together.secure import _spu_side as spu_side
from sordino.together.secure._base import Integers, TrustAssumption
from sordino.together.secure._child import Child, Tls, check_values, split_address
from sordino.together.secure._door import STRANGER_PATIENCE, Door, listening
from sordino.together.secure._spu_side import NODES, read_frame, write_frame
from sordino.together.secure._table import Ladder, ladder
from sordino.together.secure._tunnel import Tunnels

VARIABLE = "SORDINO_SPU"
REQUIREMENT = "spu==0.9.5"
# SPU has wheels for these, and wants jax of their time.
_PYTHONS = ((3, 11), (3, 10))
# Sums stay below this, and noise below `LARGEST_NOISE`: they are the same as whole numbers and modulo 2^64.
LARGEST_SUM = 1 << 62
# What a frame from the network may ask for at most: 2^27 numbers of three rows, or fewer of more.
_LONGEST_HEAD = 1 << 12
_LONGEST_BODY = 3 * 8 << 27
_PIECE = 1 << 18


class SpuSum:
    """One party's end.

    Args:
      index: which party this is; 0, 1 and 2 run a node each.
      parties: how many there are, at least 3.
      addresses: "host:port" of the three nodes for the parties.
      links: "host:port" of the three nodes for each other.
      environment: folder of SPU's environment; SORDINO_SPU where nothing is given. For parties 0 to 2.
      words: how many words of 64 bits a draw from a table takes: 1 to 63 bits, 2 to 126. What that leaves
        of the total variation is `Ladder.distance`.
      timeout: how many seconds to wait for any other party.
      tls: certificates; nothing for tests on one machine.
      protocol: ABY3; every other one is refused.
    """

    def __init__(
        self,
        index: int,
        parties: int,
        addresses: Sequence[str],
        links: Sequence[str],
        *,
        environment: Path | str | None = None,
        words: int = 1,
        timeout: float = 60.0,
        tls: Tls | None = None,
        protocol: str = "ABY3",
    ) -> None:
        if protocol != "ABY3":
            raise SordinoError(
                f"of SPU's protocols only ABY3 is secure as it comes, so {shown(protocol)} is refused"
            )
        if require_count("parties", parties) < NODES:
            raise SordinoError(f"the spu engine needs at least 3 parties, got {parties}")
        if not 0 <= index < parties:
            raise SordinoError(f"index must be between 0 and {parties - 1}, got {shown(index)}")
        if len(addresses) != NODES or len(links) != NODES:
            raise SordinoError("the spu engine needs the addresses and links of exactly 3 nodes")
        if words not in (1, 2):
            raise SordinoError(f"words must be 1 or 2, got {shown(words)}")
        self._parties, self._words, self._timeout = parties, words, timeout
        self._turn: int | None = None
        self._sent = 0
        self._node: _Node | None = None
        self._connections: list[_Connection] = []
        try:
            if index < NODES:
                python = find_environment(environment)
                self._node = _Node(index, parties, addresses, links, python, timeout, tls)
            for node, address in enumerate(addresses):
                self._connections.append(_connect(index, node, address, timeout, tls, self._node))
            # A node lets parties in when all are there, and itself is connected to the other two.
            for connection in self._connections:
                connection.receive()
        except BaseException:
            self.close()
            raise

    @property
    def assumption(self) -> TrustAssumption:
        """One party, because it may be one that runs a node; the others' nodes do not collude."""
        return TrustAssumption("spu", self._parties, 1, NODES, 1, False, "inside")

    @property
    def bytes_sent(self) -> int:
        """By this process and its node, without TCP's own headers."""
        return (
            self._sent
            + sum(connection.sent for connection in self._connections)
            + (self._node.sent if self._node is not None else 0)
        )

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """See `SecureSum`. Every entry has to be within ±2^62 over the number of parties."""
        if not self._connections:
            raise SordinoError("this end of the spu engine is closed")
        check_values(values, LARGEST_SUM // self._parties)
        require_count("turn", turn, minimum=0)
        if self._turn is not None and turn <= self._turn:
            raise SordinoError(f"turn {turn} has been used: the last one was {self._turn}")
        rungs = ladder(variance, 63 * self._words).rungs  # what is refused has not left yet
        self._turn = turn
        d, rows = len(values), 1 + len(rungs) * self._words
        head = {"turn": turn, "rungs": rungs, "dimension": d, "words": self._words}
        random = ChaCha20Generator(os.urandom(KEY_BYTES)).words(NODES * rows * d)
        shares = random.reshape(NODES, rows, d).copy()
        shares[2, 0] = values.view(np.uint64) - shares[0, 0] - shares[1, 0]
        try:
            for connection, share in zip(self._connections, shares, strict=True):
                connection.send(head, share.astype("<u8").tobytes())
            bodies = [connection.receive(8 * d) for connection in self._connections]
        except BaseException:
            self.close()
            raise
        if bodies.count(bodies[0]) != NODES:
            self.close()
            raise SordinoError(f"the nodes gave different sums in turn {turn}")
        return np.frombuffer(bodies[0], "<i8").astype(np.int64)

    def close(self) -> None:
        """Let go of the network, and end this party's node."""
        for connection in self._connections:
            self._sent += connection.sent
            connection.close()
        self._connections = []
        if self._node is not None:
            self._node.close()
            self._sent += self._node.sent
            self._node = None


class _Timed:
    """A socket as a file, with one deadline over everything that is read or written until the next."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self.deadline = connection, 0.0

    def read(self, count: int) -> bytes:
        pieces, left = [], count
        while left:
            self._socket.settimeout(self._left())
            piece = self._socket.recv(min(left, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._left())
            rest = rest[self._socket.send(rest[:_PIECE]) :]
        return len(data)

    def flush(self) -> None:
        pass

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Connection:
    """Frames over a TCP connection, with a bound on how long (in all) and how large.

    Attributes:
      name: of the other end, for messages.
      timeout: seconds that one frame may take to be sent or to come.
    """

    def __init__(self, name: str, connection: socket.socket, timeout: float) -> None:
        self.name, self._socket, self.timeout = name, connection, timeout
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timed = _Timed(connection)
        self._file = cast(IO[bytes], self._timed)
        self.sent = 0

    def send(self, head: Json, body: bytes = b"") -> None:
        self._timed.deadline = time.monotonic() + self.timeout
        try:
            self.sent += write_frame(self._file, head, body)
        except OSError as error:
            raise SordinoError(f"{self.name} is gone: {one_line(error)}") from None

    def take(self, longest: int = _LONGEST_BODY) -> tuple[Json, bytes]:
        """The next frame, whatever it says, if its body is not longer."""
        self._timed.deadline = time.monotonic() + self.timeout
        try:
            return read_frame(self._file, (_LONGEST_HEAD, longest))
        except TimeoutError:
            raise SordinoError(f"{self.name} did not answer within {self.timeout:g} s") from None
        except (EOFError, OSError):
            raise SordinoError(f"{self.name} is gone") from None
        except (ValueError, RecursionError):
            raise SordinoError(f"{self.name} sent something that cannot be read") from None

    def receive(self, length: int = 0) -> bytes:
        """The body of the next frame if it says yes and is so long."""
        head, body = self.take(length)
        if not isinstance(head, dict) or not head.get("ok"):
            reason = head.get("reason", "") if isinstance(head, dict) else ""
            raise SordinoError(f"{self.name} gave up: {one_line(reason)}")
        if len(body) != length:
            raise SordinoError(f"{self.name} sent {len(body)} bytes instead of {length}")
        return body

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()


def _connect(
    index: int, node: int, address: str, timeout: float, tls: Tls | None, own: _Node | None
) -> _Connection:
    """A connection from party `index` to a node, tried until the time is over."""
    end = time.monotonic() + timeout
    while True:
        try:
            built: socket.socket = socket.create_connection(split_address(address), timeout)
            break
        except OSError as error:
            if own is not None and own.failure:
                raise SordinoError(own.failure) from None
            if time.monotonic() > end:
                raise SordinoError(
                    f"node {node} at {address} cannot be reached: {one_line(error)}"
                ) from None
            time.sleep(0.05)
    try:
        if tls is not None:
            secured = tls.context(server=False).wrap_socket(built)
            built = secured
            tls.require(node, secured.getpeercert(binary_form=True))
        # Twice the time: a node gives others as long before it says that one of them is missing.
        connection = _Connection(f"node {node}", built, 2 * timeout)
        connection.send({"party": index})
    except OSError as error:
        built.close()
        raise SordinoError(f"node {node} refused the connection: {one_line(error)}") from None
    except BaseException:
        built.close()
        raise
    return connection


class _Node:
    """What a party that runs a node does for it: takes the parts in, adds them up, answers all parties."""

    def __init__(
        self,
        rank: int,
        parties: int,
        addresses: Sequence[str],
        links: Sequence[str],
        python: Path,
        timeout: float,
        tls: Tls | None,
    ) -> None:
        self._rank, self._parties, self._timeout, self._tls = rank, parties, timeout, tls
        self._owners: dict[int, _Connection] = {}
        self._computed = 0
        self.failure = ""
        self._context = None if tls is None else tls.context(server=True)
        for link in links:
            split_address(link)
        try:
            self._server = listening(*split_address(addresses[rank]))
        except OSError as error:
            raise SordinoError(f"node {rank} cannot listen: {one_line(error)}") from None
        self._tunnels: Tunnels | None = None
        try:
            if tls is not None:
                self._tunnels = Tunnels(rank, links, tls)
            # Isolated: SPU's own environment, and nothing of this one or of the working folder.
            command = [str(python), "-I", spu_side.__file__]
            self._child = Child(f"the SPU process of node {rank}", command)
        except BaseException:
            self._server.close()
            if self._tunnels is not None:
                self._tunnels.close()
            raise
        self._opening = {
            "do": "open",
            "rank": rank,
            "links": list(links) if self._tunnels is None else self._tunnels.local,
            "timeout": timeout,
        }
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def sent(self) -> int:
        return self._computed + sum(owner.sent for owner in self._owners.values())

    def close(self) -> None:
        """End the process, whatever it is doing; the thread ends with it."""
        self._child.stop()
        if self._tunnels is not None:
            self._tunnels.close()
            self._tunnels = None
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for owner in list(self._owners.values()):
            with suppress(OSError):
                owner._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for owner in self._owners.values():
            owner.close()

    def _run(self) -> None:
        try:
            self._child.ask(self._opening, timeout=self._timeout)
            self._admit()
            self._answer({"ok": True})
            while True:
                self._round()
        except SordinoError as error:
            self.failure = str(error)
            self._server.close()  # whoever has not been let in yet is told by that
            for owner in list(self._owners.values()):
                with suppress(SordinoError):
                    owner.send({"ok": False, "reason": one_line(error)})
                with suppress(OSError):
                    owner._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed meanwhile

    def _admit(self) -> None:
        """Wait until every party has connected."""
        end = time.monotonic() + self._timeout
        door = Door(self._server, self._greet, lambda admitted: admitted[1].close())
        try:
            while len(self._owners) < self._parties:
                try:
                    party, connection = door.next(end)
                except TimeoutError:
                    missing = sorted(set(range(self._parties)) - set(self._owners))
                    raise SordinoError(f"party {missing[0]} did not come") from None
                if party in self._owners:  # only the first is one that somebody waits at
                    connection.close()
                else:
                    self._owners[party] = connection
        finally:
            door.close()

    def _greet(self, made: socket.socket) -> tuple[int, _Connection]:
        """Which party has connected; an error if it is none."""
        try:
            if self._context is not None:
                made = self._context.wrap_socket(made, server_side=True)
            connection = _Connection("a party", made, STRANGER_PATIENCE)
            head, _ = connection.take(0)
            party = head.get("party") if isinstance(head, dict) else None
            if not isinstance(party, int) or not 0 <= party < self._parties:
                raise SordinoError("whoever connected is not a party")
            if self._tls is not None:
                self._tls.require(party, made.getpeercert(binary_form=True))  # type: ignore[attr-defined]
        except BaseException:
            made.close()
            raise
        connection.name, connection.timeout = f"party {party}", self._timeout
        return party, connection

    def _round(self) -> None:
        """One sum: every party's part in, the same answer to all."""
        first: Json | None = None
        waiting = dict(self._owners)
        end: float | None = None
        with selectors.DefaultSelector() as selector:
            for party, owner in waiting.items():
                selector.register(owner, selectors.EVENT_READ, party)
            while waiting:
                left = None if end is None else max(0.0, end - time.monotonic())
                ready = selector.select(left)
                if not ready:
                    raise SordinoError(f"party {min(waiting)} is late")
                for key, _ in ready:
                    party = key.data
                    head, body = waiting.pop(party).take()
                    selector.unregister(key.fileobj)
                    if first is None:
                        first, end = head, time.monotonic() + self._timeout
                        total = self._checked(party, head, body).copy()
                    elif head != first:
                        raise SordinoError(
                            f"party {party} is at another turn, or its vector or noise is another"
                        )
                    else:
                        total += self._checked(party, head, body)
        assert first is not None
        self._answer({"ok": True}, self._compute(first, total))

    def _checked(self, party: int, head: Json, body: bytes) -> NDArray[np.uint64]:
        try:
            words, d, rungs = head["words"], head["dimension"], _ladder(head).rungs
            good = words in (1, 2) and d > 0 and len(body) == 8 * d * (1 + len(rungs) * words)
        except (KeyError, TypeError, ValueError, SordinoError):
            good = False
        if not good:
            raise SordinoError(f"party {party} sent something that is not of this protocol")
        return np.frombuffer(body, "<u8")

    def _compute(self, head: Json, total: NDArray[np.uint64]) -> bytes:
        built = _ladder(head)
        columns = built.columns()
        request = {
            "do": "sum",
            "dimension": head["dimension"],
            "words": head["words"],
            "bits": columns[0].bits,
            "rungs": [
                {"factor": factor, "cut": one.cut, "other": one.other}
                for (factor, _), one in zip(built.rungs, columns, strict=True)
            ],
        }
        answer, body = self._child.ask(
            request, total.astype("<u8").tobytes(), timeout=self._timeout
        )
        self._computed = answer["sent"]
        return body

    def _answer(self, head: Json, body: bytes = b"") -> None:
        """To this node's own party last: when it has its answer, it may close everything."""
        for party in sorted(self._owners, key=lambda owner: (owner == self._rank, owner)):
            self._owners[party].send(head, body)


def _ladder(head: Json) -> Ladder:
    """What all owners ask for, if it is a ladder that this version of Sordino makes."""
    asked = Ladder(tuple((factor, variance) for factor, variance in head["rungs"]))
    if ladder(asked.variance, 63 * head["words"]).rungs != asked.rungs:
        raise SordinoError("another ladder")
    return ladder(asked.variance, 63 * head["words"])


def find_environment(path: Path | str | None = None) -> Path:
    """The Python of SPU's environment at `path`, or where SORDINO_SPU says."""
    folder = path if path is not None else os.environ.get(VARIABLE)
    if not folder:
        raise MissingExtraError(
            "the spu engine needs an environment of its own: make it with "
            f"`python -m sordino.together.secure create PATH` and set {VARIABLE}=PATH"
        )
    python = Path(folder) / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        raise MissingExtraError(
            f"there is no environment of SPU at {shown(str(folder))}: make it with "
            "`python -m sordino.together.secure create PATH`"
        )
    return python


def create_environment(path: Path | str) -> Path:
    """Make SPU's environment (1 GB) in a new folder, try it, and return its Python."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SordinoError(f"{shown(str(path))} exists and is not an empty folder")
    python = _suitable_python()
    steps = (
        ("made", [python, "-I", "-m", "venv", str(folder)]),
        (
            "filled",
            [
                str(folder / "bin" / "python"),
                *(
                    "-I",
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    REQUIREMENT,
                ),
            ],
        ),
        ("used", [str(folder / "bin" / "python"), "-I", "-c", "import spu.utils.frontend"]),
    )
    for what, command in steps:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise SordinoError(f"SPU's environment could not be {what}: {one_line(lines[-1])}")
    return find_environment(folder)


def _suitable_python() -> str:
    if sys.version_info[:2] in _PYTHONS:
        return sys.executable
    for major, minor in _PYTHONS:
        result = shutil.which(f"python{major}.{minor}")
        if result:
            return result
    raise SordinoError("SPU needs Python 3.11 or 3.10, and neither is on the path")


def main(arguments: Sequence[str]) -> None:
    """``create PATH``."""
    if len(arguments) != 2 or arguments[0] != "create":
        sys.exit("usage: python -m sordino.together.secure create PATH")
    try:
        create_environment(arguments[1])
    except SordinoError as error:
        sys.exit(f"error: {error}")
    print(f"done: set {VARIABLE}={Path(arguments[1]).resolve()}")

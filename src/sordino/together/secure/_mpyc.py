"""Noised sums by MPyC: the parties compute themselves, m >= 3 of them, of which t < m/2 may collude.

Every party shares its vector among all (Shamir, over the integers modulo 2^61 - 1). Together they make
random bits that nobody knows, look them up in public tables of the discrete Gaussian (`_table.py`), add,
and open the noised sum to everybody. Passive: parties may look at all they get, but do as they should. No
step is statistical: given random keys of MPyC's pseudo-random sharing (128 bits, one for every group of
m - t parties, made anew in each session), t parties see nothing but uniform shares and the sum.

    end = MpycSum(index, ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"], tls=Tls(...))
    total = end.noised_sum(values, variance=64, turn=0)

MPyC keeps one runtime for a process, made from its command line when it is imported, and an event loop with
it: so it gets a process, a child that ends with this object or with this process. This module is its
program too (`Party`). Requests and answers are the frames of `_spu_side.py`:

    {"do": "open", "index", "addresses", "threshold", "agreed", "timeout", "tls"}    connect to all others
    {"do": "sum", "dimension", "agreed", "turn", "bits", "level_bits", "rungs"} + vector

Two things of MPyC are not used. Its own start listens on every interface, believes whoever says which
party it is, and never notices that a party is gone: connections are made here. And it unpickles what
others send, which would let any party run code in all others: in `transfer` and `shutdown`, and, for
arrays, in `input`, `output` and every product. With `--mix32-64bit` these take plain numbers instead; and
in the child nothing can be unpickled at all (`forbid_pickle`). Needs the extra `mpc`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import pickle
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import MissingExtraError, SordinoError, one_line, require_count, shown
from sordino._base.processes import clean_environment, python_module
from sordino._base.types import Json
from sordino.together.secure._base import Integers, TrustAssumption
from sordino.together.secure._child import Child, Tls, check_values, split_address
from sordino.together.secure._door import STRANGER_PATIENCE, listening, open_door
from sordino.together.secure._spu_side import answer_requests
from sordino.together.secure._table import BITS, LARGEST_NOISE, ladder

T = TypeVar("T")

# The prime field of all shares.
MODULUS = 2**61 - 1
# With the noise of any variance, sums stay below half of the modulus: no sum is ever reduced.
LARGEST_SUM = MODULUS // 2 - LARGEST_NOISE
# No message between parties is as long as this.
_LONGEST_MESSAGE = 1 << 30
# Draws at a time, so that memory stays within bounds.
_TOGETHER = 1024


class MpycSum:
    """One party's end.

    Args:
      index: which party this is.
      addresses: "host:port" of every party, at least 3. A party listens on its own (party 0 does not
        have to).
      colluders: t, less than half of the parties; as many as possible where nothing is given.
      bits: of the tables, 16 to 126. What they leave of the total variation is `Ladder.distance`.
      timeout: how many seconds to wait for the others to come, and for a sum. A party whose process ends is
        noticed at once.
      tls: certificates; nothing for tests on one machine.
    """

    def __init__(
        self,
        index: int,
        addresses: Sequence[str],
        *,
        colluders: int | None = None,
        bits: int = BITS,
        timeout: float = 300.0,
        tls: Tls | None = None,
    ) -> None:
        self._parties = len(addresses)
        if self._parties < 3:
            raise SordinoError(f"the mpyc engine needs at least 3 parties, got {self._parties}")
        if not 0 <= index < self._parties:
            raise SordinoError(
                f"index must be between 0 and {self._parties - 1}, got {shown(index)}"
            )
        most = (self._parties - 1) // 2
        self._colluders = most if colluders is None else colluders
        if not 1 <= self._colluders <= most:
            raise SordinoError(
                f"with {self._parties} parties colluders must be between 1 and {most}, "
                f"got {shown(colluders)}"
            )
        hosts = [split_address(address) for address in addresses]
        require_mpyc()
        self._bits, self._timeout = bits, timeout
        self._turn: int | None = None
        self._sent = 0
        self._child: Child | None = Child(
            f"the MPyC process of party {index}",
            python_module("sordino.together.secure._mpyc"),
            clean_environment(),
        )
        opening = {
            "do": "open",
            "index": index,
            "addresses": hosts,
            "threshold": self._colluders,
            "agreed": agreement(parties=self._parties, colluders=self._colluders, bits=bits),
            "timeout": timeout,
            "tls": None
            if tls is None
            else {
                "certificate": str(Path(tls.certificate).resolve()),
                "key": str(Path(tls.key).resolve()),
                "authorities": str(Path(tls.authorities).resolve()),
                "fingerprints": list(tls.fingerprints),
            },
        }
        try:
            # The child gives up by itself, with a reason; this is for one that hangs.
            self._child.ask(opening, timeout=timeout + 30)
        except BaseException:
            self.close()
            raise

    @property
    def assumption(self) -> TrustAssumption:
        """Of the parties, who compute themselves, t may collude."""
        m, t = self._parties, self._colluders
        return TrustAssumption("mpyc", m, t, m, t, False, "inside")

    @property
    def bytes_sent(self) -> int:
        """To all others, without TLS's and TCP's own."""
        return self._sent

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """See `SecureSum`. Every entry has to be within ±2^60 over the number of parties, nearly."""
        if self._child is None:
            raise SordinoError("this end of the mpyc engine is closed")
        check_values(values, LARGEST_SUM // self._parties)
        require_count("turn", turn, minimum=0)
        if self._turn is not None and turn <= self._turn:
            raise SordinoError(f"turn {turn} has been used: the last one was {self._turn}")
        built = ladder(variance, self._bits)
        columns = built.columns()
        self._turn = turn
        d = len(values)
        request = {
            "do": "sum",
            "dimension": d,
            "turn": turn,
            "agreed": agreement(dimension=d, turn=turn, rungs=built.rungs, bits=self._bits),
            "bits": columns[0].bits,
            "level_bits": columns[0].level_bits,
            "rungs": [
                {"factor": factor, "cut": one.cut, "other": one.other}
                for (factor, _), one in zip(built.rungs, columns, strict=True)
            ],
        }
        try:
            answer, body = self._child.ask(
                request, values.astype("<i8").tobytes(), timeout=self._timeout + 30
            )
        except BaseException:
            self.close()
            raise
        self._sent = answer["sent"]
        return np.frombuffer(body, "<i8").astype(np.int64)

    def close(self) -> None:
        """End the child, and its connections with it."""
        if self._child is not None:
            self._child.stop()
            self._child = None


def require_mpyc() -> None:
    """Refuse to go on without MPyC."""
    if find_spec("mpyc") is None:
        raise MissingExtraError(
            "the mpyc engine needs MPyC: install it with `pip install 'sordino[mpc]'`"
        )


def forbid_pickle() -> None:
    """Make every attempt to unpickle in this process an error, by whatever library."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise SordinoError("another party sent a pickle, which nobody here opens")

    for module in (pickle, import_module("_pickle")):
        for name in ("load", "loads", "Unpickler", "_load", "_loads", "_Unpickler"):
            if hasattr(module, name):
                setattr(module, name, refuse)


@dataclass(frozen=True)
class Tables:
    """The ladder of a sum (`_table.py`), split for looking a column up by its two halves.

    Attributes:
      bits, level_bits: c and L - c, of all rungs.
      factors: k_l.
      public: (rungs, 2^low, 2^high (level_bits + 1)): for every column the bits of the level to compare
        with, highest first, and the other magnitude.
    """

    bits: int
    level_bits: int
    factors: tuple[int, ...]
    public: NDArray[np.object_]

    @classmethod
    def asked(cls, request: Json) -> Tables:
        bits, level_bits = int(request["bits"]), int(request["level_bits"])
        low, rungs = bits // 2, request["rungs"]
        rows = [
            [*((cut >> i) & 1 for i in reversed(range(level_bits))), other]
            for rung in rungs
            for cut, other in zip(rung["cut"], rung["other"], strict=True)
        ]
        split = np.array(rows, object).reshape(len(rungs), 1 << (bits - low), 1 << low, -1)
        public = split.transpose(0, 2, 1, 3).reshape(len(rungs), 1 << low, -1)
        return cls(bits, level_bits, tuple(int(rung["factor"]) for rung in rungs), public)


class Party:
    """This party's runtime and its connections."""

    def __init__(self, request: Json) -> None:
        addresses = [(host, int(port)) for host, port in request["addresses"]]
        self._index, self._timeout = int(request["index"]), float(request["timeout"])
        tls = request["tls"]
        self._tls = None
        if tls is not None:
            self._tls = Tls(
                Path(tls["certificate"]),
                Path(tls["key"]),
                Path(tls["authorities"]),
                tuple(tls["fingerprints"]),
            )
        named = [word for host, port in addresses for word in ("-P", f"{host}:{port}")]
        sys.argv = ["sordino", *named, "-I", str(self._index)]
        # The last one for what it also does: arrays go over the network as numbers, not as pickles.
        sys.argv += ["-T", str(int(request["threshold"])), "--no-log", "--mix32-64bit"]
        forbid_pickle()
        self._runtime = import_module("mpyc.runtime").mpc
        self._loop: asyncio.AbstractEventLoop = self._runtime._loop
        self._lost: asyncio.Future[int] = self._loop.create_future()
        self._field = self._runtime.SecFld(modulus=MODULUS)
        self._run(self._connect(addresses))
        # Whoever has not been let in by all finds out here, before anything is shared.
        self._run(self._agree(-1, bytes.fromhex(request["agreed"]), "was set up in another way"))

    def noised_sum(self, request: Json, body: bytes) -> bytes:
        """One sum; what is returned is the same at every party."""
        values = np.frombuffer(body, "<i8")
        if len(values) != request["dimension"]:
            raise SordinoError("the vector is not as long as it should be")
        return self._run(self._sum(request, values)).astype("<i8").tobytes()

    def sent(self) -> int:
        """Bytes sent to all others, without TLS's and TCP's own."""
        peers = self._peers()
        return sum(peer.protocol.nbytes_sent for peer in peers if peer.protocol is not None)

    def _peers(self) -> list[Any]:
        return [peer for peer in self._runtime.parties if peer.pid != self._index]

    def _run(self, work: Awaitable[T]) -> T:
        """Do it within the time, unless a party is lost meanwhile."""

        async def watched() -> T:
            task = asyncio.ensure_future(work)
            waited: set[asyncio.Future[Any]] = {task, self._lost}
            await asyncio.wait(waited, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if self._lost.done():
                raise SordinoError(f"party {self._lost.result()} is gone")
            missing = [peer.pid for peer in self._peers() if peer.protocol is None]
            who = f"party {missing[0]}" if missing else "another party"
            raise SordinoError(f"{who} did not answer within {self._timeout:g} s")

        return self._loop.run_until_complete(watched())

    async def _connect(self, addresses: Sequence[tuple[str, int]]) -> None:
        """To all later parties; and let all earlier ones connect."""
        runtime, loop = self._runtime, self._loop
        for peer in runtime.parties:
            peer.protocol = loop.create_future() if peer.pid == self._index else None
        everybody = runtime.parties[self._index].protocol
        built = _exchanger(self._tls, self._found_missing)
        door = None
        if self._index:
            context = None if self._tls is None else self._tls.context(server=True)

            async def greet(sock: socket.socket) -> None:
                transport, end = await loop.connect_accepted_socket(
                    lambda: built(runtime), sock, ssl=context
                )
                try:
                    await end.admitted
                finally:
                    if not end.known:
                        transport.abort()

            door = loop.create_task(open_door(listening(*addresses[self._index]), greet))
        try:
            for peer in range(self._index + 1, len(addresses)):
                await self._reach(addresses[peer], partial(built, runtime, peer))
            await everybody
        finally:
            if door is not None:
                door.cancel()

    async def _reach(self, address: tuple[str, int], made: Callable[[], asyncio.Protocol]) -> None:
        context = None if self._tls is None else self._tls.context(server=False)
        while True:
            try:
                patience = None if context is None else STRANGER_PATIENCE
                await self._loop.create_connection(
                    made, *address, ssl=context, ssl_handshake_timeout=patience
                )
                return
            except OSError:
                await asyncio.sleep(0.05)

    def _found_missing(self, party: int) -> None:
        if not self._lost.done():
            self._lost.set_result(party)

    async def _sum(self, request: Json, values: NDArray[np.int64]) -> NDArray[np.int64]:
        different = "is at another sum: its vector or its noise is another"
        await self._agree(int(request["turn"]), bytes.fromhex(request["agreed"]), different)
        runtime = self._runtime
        shared = runtime.input(self._field.array(values.astype(object) % MODULUS))
        total = shared[0]
        for vector in shared[1:]:
            total = total + vector
        tables = Tables.asked(request)
        together = max(1, _TOGETHER // len(tables.factors))
        result = []
        for first in range(0, len(values), together):
            part = total[first : first + together]
            noise = self._noise(part.shape[0], tables)
            result.append(await runtime.output(part + noise))
        opened = np.concatenate([np.array([int(v) for v in part], object) for part in result])
        return np.where(opened > MODULUS // 2, opened - MODULUS, opened).astype(np.int64)

    async def _agree(self, turn: int, digest: bytes, different: str) -> None:
        """Stop where a party means something else: shares of different things must not be added.

        Messages are labelled by numbers, MPyC's by what hashes give: small negative ones are free.
        """
        for peer in self._peers():
            if peer.protocol is None or peer.protocol.transport.is_closing():
                raise SordinoError(f"party {peer.pid} is gone")
            peer.protocol.send(-2 - turn, digest)
        for peer in self._peers():
            other = peer.protocol.receive(-2 - turn)
            other = await other if isinstance(other, asyncio.Future) else other
            if not hmac.compare_digest(bytes(other), digest):
                raise SordinoError(f"party {peer.pid} {different}")

    def _noise(self, size: int, tables: Tables) -> Any:
        """Shares of `size` draws, from shared random bits that nobody knows.

        Bits are compared one by one, with products only: MPyC's own comparisons mask a number
        statistically, and by default let 2^-30 of it through each time. A column is looked up by its two
        halves, of which one entry each is 1. All rungs are drawn at once, each from bits of its own: the
        draws of the lowest first.
        """
        runtime, field = self._runtime, self._field
        bits, level_bits, rungs = tables.bits, tables.level_bits, len(tables.factors)
        count, wanted = rungs * size, 1 + bits + level_bits
        coins = runtime.np_reshape(runtime.np_random_bits(field, count * wanted), (count, wanted))
        low, high = bits // 2, bits - bits // 2
        first = runtime.np_reshape(self._one_hot(coins[:, 1 : low + 1]), (rungs, size, 1 << low))
        second = runtime.np_reshape(
            self._one_hot(coins[:, low + 1 : bits + 1]), (count, 1, 1 << high)
        )
        chosen = runtime.np_reshape(
            runtime.np_matmul(first, tables.public), (count, 1 << high, level_bits + 1)
        )
        looked_up = runtime.np_reshape(runtime.np_matmul(second, chosen), (count, level_bits + 1))
        below = self._less(coins[:, bits + 1 :], looked_up[:, :level_bits])
        magnitude = looked_up[:, level_bits]
        powers = np.array([1 << i for i in range(bits)], object)
        column = runtime.np_matmul(coins[:, 1 : bits + 1], powers)
        magnitude = magnitude + below * (column - magnitude)
        drawn = magnitude - 2 * (coins[:, 0] * magnitude)
        factors = np.array(tables.factors, object)
        return runtime.np_matmul(factors, runtime.np_reshape(drawn, (rungs, size)))

    def _one_hot(self, coins: Any) -> Any:
        """(count, 2^n): 1 where the bits, the first one lowest, say so."""
        runtime = self._runtime
        count, n = coins.shape
        if not n:
            return self._field.array(np.ones((count, 1), object))
        result = runtime.np_concatenate([1 - coins[:, :1], coins[:, :1]], axis=1)
        for i in range(1, n):
            both = result * coins[:, i : i + 1]
            result = runtime.np_concatenate([result - both, both], axis=1)
        return result

    def _less(self, left: Any, right: Any) -> Any:
        """Whether the number of `left`'s bits is below that of `right`'s, highest bits first."""
        runtime = self._runtime
        both = left * right
        less, equal = right - both, 1 - left - right + 2 * both
        while (n := less.shape[1]) > 1:
            # Neighbours together: less in the higher, or equal there and less in the lower.
            even = n - n % 2
            upper = equal[:, 0:even:2]
            upper = runtime.np_concatenate([upper, upper], axis=1)
            lower = runtime.np_concatenate([less[:, 1:even:2], equal[:, 1:even:2]], axis=1)
            product = upper * lower
            parts = [less[:, 0:even:2] + product[:, : even // 2], product[:, even // 2 :]]
            if n % 2:
                parts = [
                    runtime.np_concatenate([part, rest[:, even:]], axis=1)
                    for part, rest in zip(parts, (less, equal), strict=True)
                ]
            less, equal = parts
        return less[:, 0]


def _exchanger(tls: Tls | None, lost: Callable[[int], None]) -> Any:
    """MPyC's end of a connection, made to check who is there and to notice who is not any more."""
    base: Any = import_module("mpyc.asyncoro").MessageExchanger

    class Exchanger(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            self.known = False
            self.admitted = self.runtime._loop.create_future()
            if self.peer_pid is not None:  # this party has connected to that one
                if not self._is(self.peer_pid, transport):
                    transport.abort()
                    return
                self.known = True
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            if not self.known:
                if len(self.bytes) + len(data) < 2:
                    self.bytes.extend(data)
                    return
                party = int.from_bytes((bytes(self.bytes) + data)[:2], "little")
                # Only earlier parties connect to this one, and each of them once.
                expected = party < self.runtime.pid and not self.runtime.parties[party].protocol
                if not expected or not self._is(party, self.transport):
                    self.transport.abort()
                    return
                self.known = True
                self.admitted.set_result(None)
            if len(self.bytes) + len(data) > _LONGEST_MESSAGE:
                self.transport.abort()
                return
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            if not self.admitted.done():
                self.admitted.cancel()
            if self.known and self.peer_pid is not None:
                lost(self.peer_pid)

        def _is(self, party: int, transport: asyncio.Transport) -> bool:
            if tls is None:
                return True
            try:
                secured = transport.get_extra_info("ssl_object")
                tls.require(party, secured.getpeercert(binary_form=True))
            except SordinoError:
                return False
            return True

    return Exchanger


def agreement(**fields: object) -> str:
    """What all parties must mean alike in a sum, as hexadecimal digits of one length."""
    return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()


def _told(error: Exception) -> str:
    """What went wrong."""
    reason = one_line(error)
    return reason if isinstance(error, SordinoError) else f"{type(error).__name__}: {reason}"


def main() -> None:
    """Be a party until stdin ends."""
    answer_requests(Party, _told)


if __name__ == "__main__":
    main()

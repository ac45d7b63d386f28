"""One compute node of the `spu` engine, as a program of its own (`_spu_engine.py` starts it).

It runs in SPU's environment, whose jax and numpy are older than Sordino's, and so imports nothing of
Sordino. Requests come in on stdin and answers go out on stdout, in frames: the lengths of a head and of a
body (4 and 8 bytes, little-endian), a head in JSON, a body of raw int64. It ends when stdin does.

    {"do": "open", "rank", "links", "timeout"}    connect to the other two nodes, ABY3
    {"do": "sum", "dimension", "words", "bits", "rungs"} + inputs    one noised sum

A node's inputs are its rows of an additive sharing modulo 2^64, (1 + rungs words, d): the vectors of all
owners, and random words that all owners had a part in. Nothing about a single owner comes in here, and all
that is opened is the noised sum.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np
    from numpy.typing import NDArray

# As in `sordino._base.types`, of which nothing is here.
Json: TypeAlias = dict[str, Any]

NODES = 3
LENGTHS = struct.Struct("<IQ")
# Where Linux keeps tcpi_bytes_sent in `struct tcp_info`.
_SENT = (200, 208)
# Any number but 0: R ^ FLIP is as uniform as R, and is kept as bits, so that they are taken only once.
_FLIP = 0x5DEECE66D1234567


def write_frame(stream: IO[bytes], head: Json, body: bytes = b"") -> int:
    """Send one frame; how many bytes that was."""
    text = json.dumps(head).encode()
    stream.write(LENGTHS.pack(len(text), len(body)) + text + body)
    stream.flush()
    return LENGTHS.size + len(text) + len(body)


def read_frame(
    stream: IO[bytes], longest: tuple[int, int] = (1 << 24, 1 << 40)
) -> tuple[Json, bytes]:
    """Receive one frame: EOFError if the other side is gone, ValueError if head or body is too long."""
    lengths = LENGTHS.unpack(_exactly(stream, LENGTHS.size))
    if lengths[0] > longest[0] or lengths[1] > longest[1]:
        raise ValueError("a frame is too long")
    head = json.loads(_exactly(stream, lengths[0]))
    return head, _exactly(stream, lengths[1])


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if data is None or len(data) != count:
        raise EOFError
    return data


def public_numbers(
    words: int, bits: int, rungs: Sequence[Json]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What all nodes know: tables (words + 1, rungs, 2^low, 2^high), and factors (rungs,).

    The tables hold the levels to compare with, upper part first, and the other magnitude of a column, which
    is split into the lower half of its bits and the rest.
    """
    numpy = import_module("numpy")

    def split(rung: Json) -> list[NDArray[np.int64]]:
        cut, low = rung["cut"], bits // 2
        parts = [[c >> 63 for c in cut], [c & (2**63 - 1) for c in cut]] if words == 2 else [cut]
        return [
            numpy.array(part, numpy.int64).reshape(-1, 1 << low).T
            for part in (*parts, rung["other"])
        ]

    tables = numpy.stack([split(rung) for rung in rungs], axis=1)
    return tables, numpy.array([rung["factor"] for rung in rungs], numpy.int64)


def drawing(words: int, bits: int, rungs: int) -> Callable[..., jax.Array]:
    """The program over secret inputs: the sum of all first rows, and noise from the other rows.

    One word of 64 bits is a sign, a column of `bits` bits and the upper part of the level; a second
    word holds the 63 lower bits of a longer level. See `_table.py` for what they are compared with, and for
    the rungs: all are drawn at once, each from words of its own. A column of c bits is looked up by its
    two halves: one entry in 2^(c/2) of either is 1, one product with the public table is free, and one of
    secret numbers is left for every entry of one half. Tables and factors are inputs, so that another
    variance seldom is another program.
    """
    jnp = import_module("jax").numpy
    low = bits // 2

    def program(
        one: jax.Array, two: jax.Array, three: jax.Array, tables: jax.Array, factors: jax.Array
    ) -> jax.Array:
        rows = one + two + three
        d = rows.shape[1]
        random = [
            jnp.concatenate([rows[1 + words * rung + w] for rung in range(rungs)])
            for w in range(words)
        ]
        random = [row.astype(jnp.uint64) ^ jnp.uint64(_FLIP) for row in random]
        coins = [
            ((random[0] >> jnp.uint64(i)) & jnp.uint64(1)).astype(jnp.int64)
            for i in range(bits + 1)
        ]
        first, second = _one_hot(coins[1 : low + 1]), _one_hot(coins[low + 1 :])
        *levels, magnitude = (
            jnp.sum(
                second
                * jnp.concatenate(
                    [first[d * r : d * (r + 1)] @ tables[part, r] for r in range(rungs)]
                ),
                axis=1,
            )
            for part in range(words + 1)
        )
        drawn = [(random[0] >> jnp.uint64(bits + 1)).astype(jnp.int64)]
        if words == 2:
            drawn.append((random[1] >> jnp.uint64(1)).astype(jnp.int64))
        below = (drawn[0] < levels[0]).astype(jnp.int64)
        if words == 2:
            equal = 1 - below - (levels[0] < drawn[0]).astype(jnp.int64)
            below = below + equal * (drawn[1] < levels[1]).astype(jnp.int64)
        column = sum(coin << i for i, coin in enumerate(coins[1:]))
        noise = magnitude + below * (column - magnitude)
        noise = noise - 2 * coins[0] * noise
        return rows[0] + sum(factors[r] * noise[d * r : d * (r + 1)] for r in range(rungs))

    def _one_hot(some: list[jax.Array]) -> jax.Array:
        """(d, 2^n): 1 where the bits, the first one lowest, say so."""
        result = jnp.ones((1, 1), jnp.int64)
        for coin in some:
            both = result * coin[:, None]
            result = jnp.concatenate([result - both, both], axis=1)
        return result

    return program


class Node:
    """A node's runtime and its links to the other two."""

    def __init__(self, rank: int, links: Sequence[str], timeout: float, others: set[int]) -> None:
        jax = import_module("jax")
        jax.config.update("jax_enable_x64", True)
        self._spu, self._lib = import_module("spu"), import_module("spu.libspu")
        self._frontend = import_module("spu.utils.frontend")
        if len(links) != NODES:
            raise ValueError(f"ABY3 has exactly {NODES} nodes, got {len(links)}")
        desc = self._lib.link.Desc()
        desc.recv_timeout_ms = desc.http_timeout_ms = int(1000 * timeout)
        desc.connect_retry_interval_ms = 200
        desc.connect_retry_times = max(1, int(timeout / 0.2))
        for i, link in enumerate(links):
            desc.add_party(f"node{i}", link)
        self._rank, self._others = rank, others
        self._link = self._lib.link.create_brpc(desc, rank)
        # The only protocol that is used here: see docs of `_spu_engine.py` for why.
        config = self._lib.RuntimeConfig(self._lib.ProtocolKind.ABY3, self._lib.FieldType.FM64, 18)
        self._io, self._runtime = (
            self._spu.Io(NODES, config),
            self._spu.Runtime(self._link, config),
        )
        self._compiled: dict[tuple[int, ...], Any] = {}

    def noised_sum(self, request: Json, body: bytes) -> bytes:
        """This node's part of one sum; what is returned is the same at all three."""
        numpy = import_module("numpy")
        d, words = int(request["dimension"]), int(request["words"])
        mine = numpy.frombuffer(body, "<i8").reshape(1 + len(request["rungs"]) * words, d).copy()
        shares = self._io.make_shares(mine, self._lib.Visibility.VIS_SECRET)
        for i in range(NODES):
            if i != self._rank:
                self._link.send_async(i, _packed(shares[i]))
        for i in range(NODES):
            share = shares[i] if i == self._rank else self._unpacked(self._link.recv(i))
            self._runtime.set_var(f"in{i}", share)
        public = public_numbers(words, int(request["bits"]), request["rungs"])
        for name, known in zip(("tables", "factors"), public, strict=True):
            shares = self._io.make_shares(known, self._lib.Visibility.VIS_PUBLIC)
            self._runtime.set_var(name, shares[self._rank])
        self._runtime.run(self._program(request, [mine] * NODES + list(public)))
        result = self._runtime.get_var("out")
        for i in range(NODES):
            if i != self._rank:
                self._link.send_async(i, _packed(result))
        opened = [
            result if i == self._rank else self._unpacked(self._link.recv(i)) for i in range(NODES)
        ]
        total = numpy.asarray(self._io.reconstruct(opened))
        if total.shape != (d,) or total.dtype != numpy.int64:
            raise ValueError("the nodes opened something else than a sum")
        return bytes(total.astype("<i8").tobytes())

    def sent(self) -> int:
        """Bytes that this process has sent over TCP, without headers; 0 where that is not known."""
        total = 0
        try:
            for name in os.listdir("/proc/self/fd"):
                total += _bytes_sent(int(name)) if int(name) not in self._others else 0
        except OSError:
            return total
        return total

    def _program(self, request: Json, examples: list[NDArray[np.int64]]) -> Any:
        """Compiled once for a dimension and a form of ladder."""
        form = int(request["words"]), int(request["bits"]), len(request["rungs"])
        key = (int(request["dimension"]), *form)
        if key not in self._compiled:
            kinds = self._lib.Visibility
            self._compiled[key] = self._frontend.compile(
                self._frontend.Kind.JAX,
                drawing(*form),
                examples,
                {},
                [*(f"in{i}" for i in range(NODES)), "tables", "factors"],
                [kinds.VIS_SECRET] * NODES + [kinds.VIS_PUBLIC] * 2,
                lambda _: ["out"],
            )[0]
        return self._compiled[key]

    def _unpacked(self, data: bytes) -> Any:
        """A share as `_packed` made it: lengths and bytes, never anything that could be run."""
        parts, at = [], 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            parts.append(bytes(data[at + 8 : at + 8 + length]))
            at += 8 + length
        share = self._lib.Share()
        share.meta, share.share_chunks = parts[0], parts[1:]
        return share


def _packed(share: Any) -> bytes:
    parts = [share.meta, *share.share_chunks]
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _bytes_sent(descriptor: int) -> int:
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # closed meanwhile, or not of TCP
        return 0
    return int.from_bytes(info[_SENT[0] : _SENT[1]], "little") if len(info) >= _SENT[1] else 0


def _told(error: BaseException) -> str:
    """What went wrong; where SPU's own network did, in words instead of its log's."""
    text = f"{type(error).__name__}: {error}"
    if "channel" in text or "yacl" in text:
        return "the connection to another node ended: its party is gone, or cannot be reached"
    return text[:2000]


def answer_requests(open_side: Callable[[Json], Any], told: Callable[[Exception], str]) -> None:
    """Answer what comes on stdin until it ends.

    Args:
      open_side: what to do with the first request; everything else is asked of what it returns.
      told: what to say of an error.
    """
    # Libraries print; answers must not be among what they print.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[tuple[Json, bytes]] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                requests.put(read_frame(sys.stdin.buffer))
        except (EOFError, OSError, ValueError):
            os._exit(0)  # whoever started this is gone, whatever is going on here

    threading.Thread(target=listen, daemon=True).start()
    side: Any = None
    answer: Json
    while True:
        head, body = requests.get()
        try:
            if head["do"] == "open":
                side = open_side(head)
                answer, result = {"ok": True}, b""
            elif side is not None:
                result = side.noised_sum(head, body)
                answer = {"ok": True, "sent": side.sent()}
            else:
                raise ValueError("not open")
        except Exception as error:  # whatever it is, the other side has to know
            answer, result = {"ok": False, "reason": told(error)}, b""
        write_frame(answers, answer, result)


def main() -> None:
    """Be a node until stdin ends."""

    def open_node(head: Json) -> Node:
        others = {int(name) for name in os.listdir("/proc/self/fd")}
        return Node(head["rank"], head["links"], head["timeout"], others)

    answer_requests(open_node, _told)


if __name__ == "__main__":
    main()

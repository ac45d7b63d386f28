"""TLS around links that have none worth the name: SPU's, between the three compute nodes.

SPU can be told to use TLS, but what it is built on (brpc, apache/brpc#2194) goes on to accept connections
without it at the same port, from anybody. So SPU's own ports stay on the loopback interface, and what goes
from node to node goes through here: mutual TLS 1.3 between certificates that are known beforehand.

    node 0's SPU -> 127.0.0.1 (a port for each other node) -> TLS -> links[1] -> 127.0.0.1 -> node 1's SPU

Ports on the loopback interface are open to every user of the machine. On Linux the tunnel's own take
connections of this user only. SPU's own port cannot be closed so: see docs/threat-model.md.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from weakref import WeakSet

from sordino._base.errors import SordinoError, one_line
from sordino.together.secure._child import Tls, split_address
from sordino.together.secure._door import STRANGER_PATIENCE, listening, open_door

_PIECE = 1 << 18
# A connection is lost, or everything is being closed; asyncio's servers complain about what is cancelled.
_OVER = (OSError, asyncio.CancelledError)


class Tunnels:
    """One node's tunnels to all others, in a thread.

    Args:
      rank: which node this is.
      links: "host:port" of every node's tunnel; this one listens on its own.
      tls: certificates; nodes are the first of the parties.

    Attributes:
      local: what to tell SPU instead of `links`.
    """

    def __init__(self, rank: int, links: Sequence[str], tls: Tls) -> None:
        self._rank, self._links, self._tls = rank, [split_address(link) for link in links], tls
        self._loop = asyncio.new_event_loop()
        self._inside: set[asyncio.Task[None]] = set()
        self._writers: WeakSet[asyncio.StreamWriter] = WeakSet()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._own: int = free.getsockname()[1]
        try:
            self.local: list[str] = self._loop.run_until_complete(self._open())
        except OSError as error:
            self._loop.close()
            raise SordinoError(f"node {rank} cannot listen: {one_line(error)}") from None
        except BaseException:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> list[str]:
        self._servers: list[asyncio.Server] = []
        context = self._tls.context(server=True)
        outside = listening(*self._links[self._rank])
        self._door = self._loop.create_task(open_door(outside, partial(self._greet, context)))
        ports = []
        for node in range(len(self._links)):
            port = self._own
            if node != self._rank:
                built = await asyncio.start_server(partial(self._outward, node), "127.0.0.1", 0)
                self._servers.append(built)
                port = built.sockets[0].getsockname()[1]
            ports.append(f"127.0.0.1:{port}")
        return ports

    async def _end(self) -> None:
        writers = list(self._writers)
        for server in self._servers:
            server.close()
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        # What was aborted is closed in the loop's next rounds.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _greet(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        """Let another node in, and nobody else."""
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock, ssl=context)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        if any(self._is(node, writer) for node in range(len(self._links))):
            inward = self._loop.create_task(self._inward(reader, writer))
            self._inside.add(inward)
            inward.add_done_callback(self._inside.discard)
        else:
            transport.abort()

    async def _inward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From another node to this one's SPU."""
        try:
            with suppress(*_OVER):
                own = await asyncio.open_connection("127.0.0.1", self._own)
                self._writers.update((writer, own[1]))
                await _joined(reader, writer, *own)
        finally:
            writer.close()

    async def _outward(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """From this node's SPU to another node; where that is not there yet, SPU tries again."""
        try:
            if not _is_own(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
                return
            with suppress(*_OVER):
                context = self._tls.context(server=False)
                there = await asyncio.open_connection(
                    *self._links[node], ssl=context, ssl_handshake_timeout=STRANGER_PATIENCE
                )
                self._writers.update((writer, there[1]))
                if self._is(node, there[1]):
                    await _joined(reader, writer, *there)
                there[1].close()
        finally:
            writer.close()

    def _is(self, node: int, writer: asyncio.StreamWriter) -> bool:
        if node == self._rank:
            return False
        secured = writer.get_extra_info("ssl_object")
        try:
            self._tls.require(node, secured.getpeercert(binary_form=True))
        except SordinoError:
            return False
        return True


def _is_own(there: tuple[str, int], here: tuple[str, int]) -> bool:
    """Whether a connection over the loopback interface was made by this user.

    Linux lists the owner of every socket; elsewhere there is nothing to ask, and all are let in.
    """
    if sys.platform != "linux":
        return True
    wanted = [_as_listed(*there[:2]), _as_listed(*here[:2])]
    try:
        lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return True
    rows = [line.split() for line in lines]
    owners = [row[7] for row in rows if row[1:3] == wanted]
    return owners == [str(os.getuid())]


def _as_listed(host: str, port: int) -> str:
    """An IPv4 address as Linux lists it: hexadecimal, in the machine's byte order."""
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"


async def _joined(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    other_reader: asyncio.StreamReader,
    other_writer: asyncio.StreamWriter,
) -> None:
    """Pass everything on, both ways, until one side ends."""
    both = [
        asyncio.ensure_future(_pass(reader, other_writer)),
        asyncio.ensure_future(_pass(other_reader, writer)),
    ]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        other_writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_PIECE):
            writer.write(data)
            await writer.drain()

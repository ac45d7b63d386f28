"""TLS around links that have none worth the name: SPU's, between the three compute nodes.

SPU can be told to use TLS, but what it is built on (brpc, apache/brpc#2194) goes on to accept connections
without it at the same port, from anybody. So SPU's own ports stay on the loopback interface, and what goes
from node to node goes through here: mutual TLS 1.3 between certificates that are known beforehand.

    node 0's SPU -> 127.0.0.1 (a port for each other node) -> TLS -> links[1] -> 127.0.0.1 -> node 1's SPU
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from sordino.errors import SordinoError, one_line
from sordino.secure.child import Tls, split_address

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
        self._servers = [
            await asyncio.start_server(
                self._inward, *self._links[self._rank], ssl=self._tls.context(server=True)
            )
        ]
        ports = []
        for node in range(len(self._links)):
            port = self._own
            if node != self._rank:
                made = await asyncio.start_server(partial(self._outward, node), "127.0.0.1", 0)
                self._servers.append(made)
                port = made.sockets[0].getsockname()[1]
            ports.append(f"127.0.0.1:{port}")
        return ports

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _inward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From another node to this one's SPU."""
        try:
            if any(self._is(node, writer) for node in range(len(self._links))):
                with suppress(*_OVER):
                    await _joined(
                        reader, writer, *await asyncio.open_connection("127.0.0.1", self._own)
                    )
        finally:
            writer.close()

    async def _outward(
        self, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """From this node's SPU to another node; where that is not there yet, SPU tries again."""
        try:
            with suppress(*_OVER):
                context = self._tls.context(server=False)
                there = await asyncio.open_connection(*self._links[node], ssl=context)
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

"""The door at which parties and clients come in: strangers are heard at once, briefly, and few at a time.

Whoever connects has `STRANGER_PATIENCE` seconds to prove who it is, whatever it sends or does not send.
All are heard at the same time, so that nobody waits for one who is silent; where more than
`MOST_STRANGERS` wait, the one that has waited longest is let go of. What a greeting reads before it knows
who is there must be bounded by itself.

    Door          in threads, for connections that block
    open_door     in an asyncio loop
"""

from __future__ import annotations

import asyncio
import errno
import queue
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

# Seconds to prove who one is, everywhere; and how many may be about it at the same time.
STRANGER_PATIENCE = 5.0
MOST_STRANGERS = 64
# Too many open files, here or on the machine: looked at again after a moment.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN = 0.05


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at one address, of either version of IP."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=128)


class Door(Generic[T]):
    """Greets whoever connects, each in a thread of its own.

    Args:
      listener: a listening socket; it stays open.
      greet: what to do with a new connection; returns what a caller of `next` gets, or raises. It owns
        the connection, and must end when that is shut down.
      let_go: what to do with what `greet` has returned when nobody asks any more.
    """

    def __init__(
        self,
        listener: socket.socket,
        greet: Callable[[socket.socket], T],
        let_go: Callable[[T], None],
    ) -> None:
        self._listener, self._greet, self._let_go = listener, greet, let_go
        self._found: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._waiting: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._closed, self._threads = False, 0
        self._bell, self._ring = socket.socketpair()
        self._ring.setblocking(False)

    def next(self, deadline: float) -> T:
        """The next one who was let in.

        Raises:
          TimeoutError: if nobody was until `deadline` (on the monotonic clock).
          OSError: if the listener was closed meanwhile.
        """
        while True:
            with suppress(queue.Empty):
                return self._found.get_nowait()
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError
            first = self._hurry(now)
            # Those who were let go of take a moment to be gone.
            room = self._threads <= 2 * MOST_STRANGERS
            ears = [self._bell, self._listener] if room else [self._bell]
            try:
                ready = select.select(ears, [], [], max(0.0, min(deadline, first) - now))[0]
            except ValueError:
                raise OSError("the listener is closed") from None
            if self._bell in ready:
                self._bell.recv(4096)
            if self._listener in ready:
                self._accept()

    def close(self) -> None:
        """Turn away whoever is still waiting."""
        with self._lock:
            self._closed = True
            for handle in self._waiting:
                _shut(handle)
        with suppress(queue.Empty):
            while True:
                self._let_go(self._found.get_nowait())
        self._bell.close()
        self._ring.close()

    def _hurry(self, now: float) -> float:
        """Let go of those whose time is over, and of the oldest of too many; when to look again."""
        with self._lock:
            waiting = sorted(self._waiting.items(), key=lambda item: item[1])
        surplus = len(waiting) - MOST_STRANGERS
        for place, (handle, until) in enumerate(waiting):
            if place < surplus or until <= now:
                with self._lock:
                    if self._waiting.pop(handle, None) is not None:
                        _shut(handle)
        left = [until for place, (_, until) in enumerate(waiting) if place >= surplus]
        return min((until for until in left if until > now), default=float("inf"))

    def _accept(self) -> None:
        self._listener.settimeout(0)
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            time.sleep(_ACCEPT_AGAIN)
            return
        try:
            handle = sock.dup()  # TLS takes the other one over
        except OSError:
            sock.close()
            return
        sock.settimeout(STRANGER_PATIENCE)
        with self._lock:
            self._waiting[handle] = time.monotonic() + STRANGER_PATIENCE
            self._threads += 1
        threading.Thread(target=self._hear, args=(sock, handle), daemon=True).start()

    def _hear(self, sock: socket.socket, handle: socket.socket) -> None:
        result: T | None = None
        try:
            result = self._greet(sock)
        except Exception:  # whatever a stranger makes of it, the door stays open
            with suppress(OSError):
                sock.close()
        with self._lock:
            self._threads -= 1
            # One whose time was over has been shut down, whatever the greeting made of it.
            known = self._waiting.pop(handle, None) is not None
            handle.close()
            if result is not None and known and not self._closed:
                self._found.put(result)
                result = None
            if not self._closed:
                with suppress(OSError):
                    self._ring.send(b"!")
        if result is not None:
            self._let_go(result)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


async def open_door(
    listener: socket.socket, greet: Callable[[socket.socket], Awaitable[None]]
) -> None:
    """Greet whoever connects until this is cancelled; then turn away who is still being greeted.

    Args:
      listener: a listening socket; closed at the end.
      greet: takes the connection over, and returns when it knows who is there; it is cancelled when the
        time is over. If it does not know by then, it must close what it has made of the connection.
    """
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    waiting: list[asyncio.Task[None]] = []

    async def heard(sock: socket.socket) -> None:
        with suppress(Exception):  # whatever a stranger makes of it, the door stays open
            async with asyncio.timeout(STRANGER_PATIENCE):
                await greet(sock)

    try:
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:  # of this one connection, or too many files are open
                await asyncio.sleep(_ACCEPT_AGAIN)
                continue
            waiting = [task for task in waiting if not task.done()]
            waiting.append(loop.create_task(heard(sock)))
            if len(waiting) > MOST_STRANGERS:
                waiting.pop(0).cancel()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        listener.close()

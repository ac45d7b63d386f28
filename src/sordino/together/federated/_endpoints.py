"""Where the protocol meets the network: two interfaces of bytes.

The core (client and server state machines) stands behind them and knows no network; `flower/` stands
in front of them and knows no protocol. Whatever carries the bytes may lose, delay or repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Endpoint(Protocol):
    """One client."""

    def answer(self, message: bytes) -> bytes:
        """The reply to one message.

        Bytes that make no sense, or that ask for too much, are answered with an encoded refusal;
        nothing is raised for them. When this returns, whatever the reply depends on is on disk: the
        reply may leave the machine at once.
        """
        ...


class Coordinator(Protocol):
    """The server."""

    @property
    def finished(self) -> bool:
        """Whether the run is over; nothing is asked of the coordinator afterwards."""
        ...

    @property
    def waits(self) -> bool:
        """Whether replies to the last requests still matter; a round may be done without some."""
        ...

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        """What to send now, as (client, message); nothing while there is something to wait for.

        Called again only when every request of the last call was either received or missing.

        Args:
          present: names of the clients that can be reached, in alphabetical order.
        """
        ...

    def receive(self, client: str, reply: bytes) -> None:
        """A client's reply. The bytes are as the client sent them: not to be trusted."""
        ...

    def missing(self, client: str, reason: str) -> None:
        """There will be no reply to the last request to this client.

        The client may have seen the request and answered it: what it released counts as released.
        """
        ...

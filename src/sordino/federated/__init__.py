"""Federated training: data stay with their owners, what leaves them is already private.

    from sordino import federated
    agreement = federated.agree(clients=5, parameters=21, rounds=40, epsilon=2.0)    # before any data
    federated.simulate(agreement, ...)                        # in one process, to choose settings
    federated.DurableClient, federated.DurableServer          # the real thing, over any transport

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._lazy import lazy_names

if TYPE_CHECKING:
    from sordino.federated.agreeing import agree as agree
    from sordino.federated.agreement import Agreement as Agreement
    from sordino.federated.coordinator import DurableServer as DurableServer
    from sordino.federated.durable import DurableClient as DurableClient
    from sordino.federated.durable import Part as Part
    from sordino.federated.partition import split as split
    from sordino.federated.server import Server as Server
    from sordino.federated.simulator import simulate as simulate

_WHERE = {
    "Agreement": "agreement",
    "DurableClient": "durable",
    "DurableServer": "coordinator",
    "Part": "durable",
    "Server": "server",
    "agree": "agreeing",
    "simulate": "simulator",
    "split": "partition",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)

"""Federated training: data stay with their owners, what leaves them is already private.

    from sordino import federated
    agreement = federated.agree(clients=5, parameters=21, rounds=40, epsilon=2.0)    # before any data
    federated.simulate(agreement, ...)                        # in one process, to choose settings
    federated.DurableClient, federated.DurableServer          # the real thing, over any transport

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "Agreement",
    "ClientConfig",
    "DurableClient",
    "DurableServer",
    "Server",
    "agree",
    "simulate",
    "split",
]

if TYPE_CHECKING:
    from sordino.together._callbacks import Callbacks as Callbacks
    from sordino.together.federated._agreeing import agree as agree
    from sordino.together.federated._agreement import ALGORITHMS as ALGORITHMS
    from sordino.together.federated._agreement import UNITS as UNITS
    from sordino.together.federated._agreement import Agreement as Agreement
    from sordino.together.federated._chain import LEAK_UNITS as LEAK_UNITS
    from sordino.together.federated._chain import ROUNDED as ROUNDED
    from sordino.together.federated._chain import insecure_secret as insecure_secret
    from sordino.together.federated._client import Client as Client
    from sordino.together.federated._client import ClientState as ClientState
    from sordino.together.federated._cohorts import split as split
    from sordino.together.federated._contribution import ClientEvaluator as ClientEvaluator
    from sordino.together.federated._contribution import LocalData as LocalData
    from sordino.together.federated._contribution import flattened as flattened
    from sordino.together.federated._coordinator import DurableServer as DurableServer
    from sordino.together.federated._coordinator import RoundRecord as RoundRecord
    from sordino.together.federated._durable import ClientConfig as ClientConfig
    from sordino.together.federated._durable import DurableClient as DurableClient
    from sordino.together.federated._messages import Refusal as Refusal
    from sordino.together.federated._messages import Reply as Reply
    from sordino.together.federated._messages import RoundRequest as RoundRequest
    from sordino.together.federated._messages import message_from_bytes as message_from_bytes
    from sordino.together.federated._report import write_federated_report as write_federated_report
    from sordino.together.federated._server import Server as Server
    from sordino.together.federated._simulator import Simulated as Simulated
    from sordino.together.federated._simulator import simulate as simulate
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

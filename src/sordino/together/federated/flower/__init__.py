"""Federated training on Flower: the adapter between its messages and the core's bytes.

    app           a ClientApp that carries bytes to an `Endpoint`, a Strategy that drives a `Coordinator`
    inprocess     both in one process, without a network: for tests, studies and simulations
    simulation    both under Flower's own simulation engine (Ray)
    deployment    the real thing: TLS, clients known by their keys, code that only its owner installs
    losses        a bad line, for tests: requests and replies that do not arrive

No protocol is in here. Importing any of these modules imports flwr, with its telemetry, its update
check and its installing of packages at run time switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["MissingExtraError"]

if TYPE_CHECKING:
    from sordino._base.errors import MissingExtraError as MissingExtraError
    from sordino.together.federated.flower._superlink import serve as serve
    from sordino.together.federated.flower._supernode import join as join
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

"""Federated training on Flower: the adapter between its messages and the core's bytes.

    # on the server's machine; `sordino federated init` makes the keys and certificates
    serve(coordinator, clients={"north": folder / "north.pub"}, host="192.0.2.7", port=8000,
          certificate=folder / "server.crt", key=folder / "server.key")
    # on each client's machine
    join(endpoint, name="north", key=folder / "north.key", server="fl.example.org:8000",
         authority=folder / "ca.crt")

`serve` and `join` each are one process without children, with TLS between them and clients known by their
keys. Both end in good order on SIGINT and SIGTERM, and both may be killed at any moment and started again.
`_app.py` has a ClientApp that carries bytes to an `Endpoint` and a Strategy that drives a `Coordinator`,
and runs both without a network.

No protocol is in here. Importing any of these modules imports flwr, with its telemetry, its update
check and its installing of packages at run time switched off.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sordino._base.errors import MissingExtraError
from sordino._base.lazy import lazy_names

if find_spec("flwr") is None:
    raise MissingExtraError(
        "federated training needs flwr; install it with: pip install 'sordino[fl]'"
    )

# Flower reads some of these while it is being imported, so they are set here, before that. A library
# for private training calls nobody on its own.
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
)

__all__ = ["join", "serve"]

if TYPE_CHECKING:
    from sordino.together.federated.flower._superlink import serve as serve
    from sordino.together.federated.flower._supernode import join as join
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

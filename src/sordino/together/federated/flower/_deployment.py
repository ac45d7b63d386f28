"""A real deployment: one server, its clients, TLS between them, and keys that say who is who.

    # on the server's machine, once
    create_authority(folder)
    create_server_certificate(folder, ["fl.example.org"])
    # on each client's machine, once; ca.crt comes from the server, north.pub goes to it
    create_client_key(folder, "north")

    # the server
    serve(coordinator, clients={"north": folder / "north.pub"}, host="192.0.2.7", port=8000,
          certificate=folder / "server.crt", key=folder / "server.key")
    # each client
    join(endpoint, name="north", key=folder / "north.key", server="fl.example.org:8000",
         authority=folder / "ca.crt")

`serve` and `join` each are one process without children. Both end in good order on SIGINT and SIGTERM,
and both may be killed at any moment and started again.
"""

from __future__ import annotations

from sordino.together.federated.flower._keys import (
    create_authority,
    create_client_key,
    create_server_certificate,
)
from sordino.together.federated.flower._superlink import serve
from sordino.together.federated.flower._supernode import join

__all__ = [
    "create_authority",
    "create_client_key",
    "create_server_certificate",
    "join",
    "serve",
]

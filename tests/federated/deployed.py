"""One process of a real deployment that tests kill: ``python -m tests.federated.deployed FOLDER WHO``.

WHO is "server" or a client's name. Clients lose a tenth of all requests and a tenth of all replies, and
their first secret is known to the tests; nothing else differs from ``sordino federated``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sordino.together.federated._durable import DurableClient
from sordino.together.federated.flower._superlink import serve
from sordino.together.federated.flower._supernode import join
from sordino.together.sites._federated import ClientSite, ServerSite
from tests.federated.worlds import secret_of
from tests.support.lossy import LossyEndpoint

TABLE = "table.csv"


def serve_forever(folder: Path) -> None:
    site = ServerSite.load(folder / "server")
    coordinator = site.open()
    print("serving", coordinator.state.round, flush=True)
    serve(
        coordinator,
        clients=site.nodes(),
        certificate=site.folder / "server.crt",
        key=site.folder / "server.key",
        host=site.settings.host,
        port=site.settings.port,
        timeout=site.settings.timeout,
    )
    print("finished", flush=True)


def take_part(folder: Path, name: str, lost: float) -> None:
    site = ClientSite.load(folder / "clients" / name)
    part = site.part(site.folder / TABLE)
    client = DurableClient.open(part, site.folder / "journal.db", secret=secret_of(name))
    print("messages", client.state.index, flush=True)
    join(
        LossyEndpoint(client, requests=lost, replies=lost, seed=client.state.index),
        name=name,
        key=site.node_key,
        server=site.settings.server,
        authority=site.folder / "ca.crt",
    )


if __name__ == "__main__":
    where, who, rate = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    if who == "server":
        serve_forever(where)
    else:
        take_part(where, who, rate)

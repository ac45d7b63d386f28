"""The same app under Flower's own simulation engine, which spreads clients over Ray's workers.

    simulate(coordinator, ["north", "south"], open_client)

Ray moves every message to another process, which costs milliseconds: this pays off where a client's
own work takes longer than that. `inprocess` is faster for everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from flwr.app import Context

from sordino._base.errors import MissingExtraError, SordinoError, shown
from sordino.together.federated._endpoints import Coordinator, Endpoint
from sordino.together.federated.flower._app import CoordinatorStrategy, client_app, server_app

_START_SECONDS = 120.0


def simulate(
    coordinator: Coordinator,
    names: Sequence[str],
    endpoint_of: Callable[[str], Endpoint],
    *,
    timeout: float = 60.0,
    cpus: float = 1.0,
    workers: int | None = None,
) -> None:
    """Run a coordinator with simulated clients until it has finished.

    Args:
      names: the clients' names.
      endpoint_of: opens the client of a name. It is sent to Ray's workers and called there for every
        message, each time in any of them, so what a client remembers has to be on disk.
      timeout: seconds that a round trip may take, the client's work included.
      cpus: processors that one client takes.
      workers: processors that Ray may use; all of them, by default.
    """
    if find_spec("ray") is None:
        raise MissingExtraError(
            "Flower's simulation engine needs Ray; install it with: pip install 'flwr[simulation]'"
        )
    from flwr.simulation import run_simulation

    if not names or len(set(names)) != len(names):
        raise SordinoError(f"clients must have names, each its own, not {shown(list(names))}")
    listed = list(names)

    def name_of(context: Context) -> str:
        return listed[int(context.node_config["partition-id"])]

    # Ray's workers take a while to start, and the first thing asked of them is the clients' names.
    strategy = CoordinatorStrategy(coordinator, timeout=timeout, hello=_START_SECONDS)
    ray: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False}
    if workers is not None:
        ray["num_cpus"] = workers
    logging.getLogger("flwr").setLevel(logging.WARNING)
    run_simulation(
        server_app(strategy),
        client_app(endpoint_of, name_of=name_of),
        num_supernodes=len(listed),
        backend_config={
            "init_args": ray,
            "client_resources": {"num_cpus": cpus, "num_gpus": 0.0},
        },
    )
    if not coordinator.finished:
        raise SordinoError("the simulation ended before the coordinator had finished")

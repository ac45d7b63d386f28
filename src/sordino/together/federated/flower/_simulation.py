"""The same ClientApp and Strategy without a network: in this process, or under Flower's simulation engine.

    run_in_process(coordinator, {"north": endpoint_1, "south": endpoint_2})
    simulate(coordinator, ["north", "south"], open_client)

In one process every message goes through Flower's own message types and through the ClientApp's routing;
only the transport is missing. One message there and back costs about a fifth of a millisecond. Flower's
simulation engine spreads clients over Ray's workers. Ray moves every message to another process, which
costs milliseconds: it pays off where a client's own work takes longer than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from sordino._base.errors import MissingExtraError, SordinoError, one_line, shown
from sordino.together.federated._messages import Coordinator, Endpoint
from sordino.together.federated.flower._app import (
    CLIENT_KEY,
    CoordinatorStrategy,
    client_app,
    server_app,
)

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


# Flower's SuperLink is node 1, and the nodes of a deployment have random numbers of 64 bits; those
# here are as large, so that whatever would round them does so in a test.
_SERVER = 1
_FIRST_NODE = (1 << 63) + (1 << 53) + 1
_RUN = 1
_FAILED = 0


class InProcessGrid(Grid):
    """A Flower grid that calls a ClientApp in this process, one message after the other.

    Clients come and go with `connect` and `disconnect`; one that comes back has another node id, as
    in a deployment without keys.
    """

    def __init__(self, app: ClientApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._run = Run.create_empty(_RUN)
        self._nodes: dict[int, Context] = {}
        self._next_node = _FIRST_NODE
        self._next_message = 0
        self._replies: dict[str, Message] = {}
        for name in names:
            self.connect(name)

    def connect(self, name: str) -> int:
        """Let a client come; its node's number."""
        node, self._next_node = self._next_node, self._next_node + 1
        self._nodes[node] = Context(
            run_id=_RUN,
            node_id=node,
            node_config={CLIENT_KEY: name},
            state=RecordDict(),
            run_config={},
        )
        return node

    def disconnect(self, name: str) -> None:
        """Let a client go."""
        left = {n: c for n, c in self._nodes.items() if c.node_config[CLIENT_KEY] != name}
        if len(left) == len(self._nodes):
            raise SordinoError(f"no client named {shown(name)} is connected")
        self._nodes = left

    def set_run(self, run: Run) -> None:
        """Take over a run's description; nothing here depends on it."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run's description, which is empty."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as `flwr.app.Message` makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes of the clients that are connected."""
        # Flower makes messages only in a process that has said which task it is.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = _RUN, _RUN, _SERVER
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have every message answered at once; the replies wait to be pulled."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        self._next_message += 1
        name = str(self._next_message)
        message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do it
        context = self._nodes.get(message.metadata.dst_node_id)
        if context is None:
            return ""
        try:
            self._replies[name] = self._app(message, context)
        except Exception as error:
            self._replies[name] = Message(Error(_FAILED, one_line(error)), reply_to=message)
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Both in one; there is never anything to wait for."""
        return self.pull_messages(self.push_messages(messages))


def run_in_process(
    coordinator: Coordinator,
    endpoints: Mapping[str, Endpoint],
    *,
    patience: float = 5.0,
) -> None:
    """Run a coordinator with clients of this process until it has finished.

    Args:
      endpoints: the clients, by name.
      patience: seconds after which a run with nothing to send is given up.
    """
    grid = InProcessGrid(client_app(endpoints.__getitem__), endpoints)
    CoordinatorStrategy(coordinator, patience=patience).run(grid)

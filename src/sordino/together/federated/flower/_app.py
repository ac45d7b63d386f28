"""The two halves of a Flower app: a ClientApp for an `Endpoint`, a Strategy for a `Coordinator`.

A request and its reply are each one array of bytes in a Flower message. Before a client gets requests
it is asked for its name, because Flower knows nodes by numbers, and a client that went away may come
back with another one.

    app = client_app({"north": endpoint}.__getitem__)
    strategy = CoordinatorStrategy(coordinator, timeout=60.0)
    strategy.run(grid)

The same two without a network, in this process or under Flower's simulation engine:

    run_in_process(coordinator, {"north": endpoint_1, "south": endpoint_2})
    simulate(coordinator, ["north", "south"], open_client)

In one process every message goes through Flower's own message types and through the ClientApp's routing;
only the transport is missing. One message there and back costs about a fifth of a millisecond. Flower's
simulation engine spreads clients over Ray's workers. Ray moves every message to another process, which
costs milliseconds: it pays off where a client's own work takes longer than that.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from sordino._base.errors import MissingExtraError, SordinoError, one_line, shown
from sordino.together.federated._messages import Coordinator, Endpoint

logger = logging.getLogger(__name__)

# Where a node's own configuration says which client it is.
CLIENT_KEY = "client"
HELLO = f"{MessageType.QUERY}.hello"
LONGEST_NAME = 100

_MESSAGE = "message"
# The array's data are its bytes and nothing else, so that reading it parses nothing.
_BYTES = "bytes"
# A node that was refused is asked again after this many seconds.
_REFUSED_SECONDS = 10.0
_SLOWEST_POLL = 0.25


class MessageLostError(Exception):
    """Raised in place of an answer to stand for a message that was lost on the way."""


# All that a server is told of a failure that is no refusal.
FAILED = "the client failed; its own log says why"


class ClientFailedError(Exception):
    """The client could not answer. The server learns that much and no more."""


def pack(message: bytes) -> RecordDict:
    """A Flower message's content: one array of uint8."""
    array = Array("uint8", (len(message),), _BYTES, message)
    return RecordDict({_MESSAGE: ArrayRecord({_MESSAGE: array})})


def unpack(content: RecordDict) -> bytes:
    """The bytes of a Flower message; whoever sent it may have put anything in it."""
    record = content.get(_MESSAGE)
    array = record.get(_MESSAGE) if isinstance(record, ArrayRecord) else None
    if (
        not isinstance(array, Array)
        or array.stype != _BYTES
        or array.dtype != "uint8"
        or tuple(array.shape) != (len(array.data),)
    ):
        raise SordinoError(f"a message's content must be one array of bytes named {_MESSAGE!r}")
    return array.data


def configured_name(context: Context) -> str:
    """The client's name, from its own configuration and from nowhere else."""
    name = context.node_config.get(CLIENT_KEY)
    if not isinstance(name, str):
        raise SordinoError(f"this node's configuration has no client name under {CLIENT_KEY!r}")
    return name


def client_app(
    endpoint_of: Callable[[str], Endpoint], *, name_of: Callable[[Context], str] = configured_name
) -> ClientApp:
    """A ClientApp that hands each request to a client's endpoint and carries the reply back.

    Args:
      endpoint_of: the endpoint of the client of that name.
      name_of: the client that a node stands for.
    """
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        record = ConfigRecord({CLIENT_KEY: name_of(context)})
        return Message(RecordDict({CLIENT_KEY: record}), reply_to=message)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        # What Flower does with an exception is to send its text to the server, and an exception out
        # of local training may quote local data.
        try:
            reply = endpoint_of(name_of(context)).answer(unpack(message.content))
        except MessageLostError:
            raise
        except Exception as error:
            # Its text may quote data, so the log has its kind and place only.
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = type(error).__name__
            logger.error("the client failed: %s at %s:%s", kind, where.filename, where.lineno)
            raise ClientFailedError(FAILED) from None
        return Message(pack(reply), reply_to=message)

    return app


def server_app(strategy: CoordinatorStrategy) -> ServerApp:
    """A ServerApp that does nothing but run the strategy until its coordinator has finished."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.run(grid)

    return app


def _expired(reply: Message) -> bool:
    return reply.has_error() and reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE


class CoordinatorStrategy(Strategy):
    """Drives a coordinator over any Flower grid.

    `run` goes on until the coordinator has finished; Flower's own `start` does a given number of
    round trips. Messages that were given up are never received later: the coordinator is told that
    they are missing, once.

    Args:
      coordinator: the server.
      timeout: seconds that one round trip may take, the client's work included.
      poll: seconds between two looks for replies, at first; then more, up to a quarter of a second.
      names: for each node, the client that its key belongs to, where nodes have keys: a node that
        says another name, or that is not listed, is refused.
      hello: seconds that a node may take to say its name; then it is asked again.
      patience: seconds with nothing to send after which the run is given up; never, by default.
      stop: ends `run` early when it is set.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        timeout: float = 60.0,
        poll: float = 0.01,
        names: Mapping[int, str] | None = None,
        hello: float = 10.0,
        patience: float | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        for what, seconds in (("timeout", timeout), ("poll", poll), ("hello", hello)):
            if not 0 < seconds < float("inf"):
                raise SordinoError(f"{what} must be seconds above 0, not {shown(seconds)}")
        self.coordinator = coordinator
        self.timeout = timeout
        self.poll = poll
        self.hello = hello
        self.patience = patience
        self._registered = names
        self._stop = stop if stop is not None else threading.Event()
        self._name: dict[int, str] = {}
        self._greeted: dict[str, tuple[int, float]] = {}  # message id: node, when to give it up
        self._refused: dict[int, float] = {}  # node: when to ask it again
        self._asked: list[tuple[str, Message]] = []

    def run(self, grid: Grid) -> None:
        """Send, receive and wait until the coordinator has finished, or `stop` is set."""
        trip, idle_since = 0, time.monotonic()
        while not self.coordinator.finished and not self._stop.is_set():
            trip += 1
            messages = self.configure_train(trip, ArrayRecord(), ConfigRecord(), grid)
            if messages:
                self._exchange(grid, messages)
                idle_since = time.monotonic()
            elif not self.coordinator.finished:
                idle = time.monotonic() - idle_since
                if self.patience is not None and idle > self.patience:
                    raise SordinoError(
                        f"nothing to send to the {len(self._name)} clients present for "
                        f"{self.patience:g} seconds; the run is given up"
                    )
                self._stop.wait(min(max(self.poll, idle / 4), _SLOWEST_POLL))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The coordinator's requests to the clients that are present, as messages."""
        node_of = self._present(grid)
        self._asked = []
        if self.coordinator.finished:
            return []
        for client, request in self.coordinator.requests(sorted(node_of)):
            if client in node_of:
                self._asked.append((client, self._message(request, node_of[client], server_round)))
            else:
                self.coordinator.missing(client, "the client is not connected")
        return [message for _, message in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand every reply to the coordinator, and tell it which ones are missing."""
        result = {reply.metadata.reply_to_message_id: reply for reply in replies}
        asked, self._asked = self._asked, []
        for client, message in asked:
            name = message.metadata.message_id
            self._hand_over(client, message, result.get(name) if name else None)
        return None, None

    def _hand_over(self, client: str, message: Message, reply: Message | None) -> None:
        """One reply to the coordinator, or the news that there is none."""
        if reply is None or _expired(reply):
            self.coordinator.missing(client, f"no reply within {self.timeout:g} seconds")
        elif reply.has_error():
            self.coordinator.missing(client, one_line(reply.error.reason or "an error"))
        elif reply.metadata.src_node_id != message.metadata.dst_node_id:
            self.coordinator.missing(client, "the reply came from another node")
        else:
            try:
                content = unpack(reply.content)
            except ValueError as error:  # Flower has one of its own where there is no content
                self.coordinator.missing(client, one_line(error))
            else:
                self.coordinator.receive(client, content)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: clients release what they agreed to, and an evaluation is not in it."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, for nothing was asked."""
        return None

    def summary(self) -> None:
        """One line for Flower's log."""
        logger.info("round trips of at most %g seconds", self.timeout)

    def _message(self, request: bytes, node: int, trip: int) -> Message:
        # A message that was given up must not be delivered later, so it lives no longer than the trip.
        return Message(pack(request), node, MessageType.TRAIN, ttl=self.timeout, group_id=str(trip))

    def _exchange(self, grid: Grid, messages: list[Message]) -> None:
        """Send, and hand over replies as they come, until none is waited for or the time is over."""
        sent = list(grid.push_messages(messages))
        asked, self._asked = self._asked, []
        waiting = {name: pair for name, pair in zip(sent, asked, strict=True) if name}
        for name, (client, message) in zip(sent, asked, strict=True):
            if not name:
                self._hand_over(client, message, None)
        deadline = time.monotonic() + self.timeout
        pause = self.poll
        while waiting:
            arrived = list(grid.pull_messages(set(waiting)))
            for reply in arrived:
                client, message = waiting.pop(reply.metadata.reply_to_message_id)
                self._hand_over(client, message, reply)
            left = deadline - time.monotonic()
            if not waiting or left <= 0 or not self.coordinator.waits:
                break
            pause = self.poll if arrived else min(1.5 * pause, max(_SLOWEST_POLL, self.poll))
            if self._stop.wait(min(pause, left)):
                break
        for client, message in waiting.values():
            self._hand_over(client, message, None)

    def _present(self, grid: Grid) -> dict[str, int]:
        """The node of each client that is connected and has said its name."""
        online = set(grid.get_node_ids())
        now = time.monotonic()
        self._name = {node: name for node, name in self._name.items() if node in online}
        self._refused = {node: until for node, until in self._refused.items() if until > now}
        self._greeted = {
            message: (node, until)
            for message, (node, until) in self._greeted.items()
            if until > now and node in online
        }
        known = self._name.keys() | self._refused.keys() | {n for n, _ in self._greeted.values()}
        self._greet(grid, online - known, now)
        if self._greeted:
            for reply in grid.pull_messages(set(self._greeted)):
                node, _ = self._greeted.pop(reply.metadata.reply_to_message_id, (None, 0.0))
                if node is not None:
                    self._welcome(node, reply, now)
        return {name: node for node, name in self._name.items()}

    def _greet(self, grid: Grid, nodes: Collection[int], now: float) -> None:
        if not nodes:
            return
        messages = [
            Message(RecordDict(), node, HELLO, ttl=self.hello, group_id="hello")
            for node in sorted(nodes)
        ]
        sent = set(grid.push_messages(messages))
        for data in (message.metadata for message in messages):
            if data.message_id in sent:
                self._greeted[data.message_id] = (data.dst_node_id, now + self.hello)

    def _welcome(self, node: int, reply: Message, now: float) -> None:
        """Enter a node under the name it says, or refuse it for a while."""
        if reply.has_error():  # it may have gone and come back meanwhile; it is asked again at once
            logger.info("node %d did not say its name: %s", node, one_line(reply.error.reason))
            return
        record = reply.content.get(CLIENT_KEY) if reply.has_content() else None
        name = record.get(CLIENT_KEY) if isinstance(record, ConfigRecord) else None
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            why = f"it does not say a name of 1 to {LONGEST_NAME} letters"
        elif self._registered is not None and self._registered.get(node) != name:
            why = f"its key does not belong to a client named {shown(name)}"
        elif name in self._name.values():
            why = f"another node that is connected is the client {shown(name)}"
        else:
            self._name[node] = name
            return
        logger.warning("node %d is refused: %s", node, why)
        self._refused[node] = now + _REFUSED_SECONDS


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
        backend_config={"init_args": ray, "client_resources": {"num_cpus": cpus, "num_gpus": 0.0}},
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
    coordinator: Coordinator, endpoints: Mapping[str, Endpoint], *, patience: float = 5.0
) -> None:
    """Run a coordinator with clients of this process until it has finished.

    Args:
      endpoints: the clients, by name.
      patience: seconds after which a run with nothing to send is given up.
    """
    grid = InProcessGrid(client_app(endpoints.__getitem__), endpoints)
    CoordinatorStrategy(coordinator, patience=patience).run(grid)

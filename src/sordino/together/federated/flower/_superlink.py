"""The server's process: Flower's SuperLink, and the strategy that uses it, in one.

Clients reach Flower's Fleet API over TLS and nothing else of it. Its Control API would let anybody who
can open a connection start runs and register keys, and its Runtime API is for apps in other processes,
of which there are none: the strategy is installed here, and works on the SuperLink's state directly.

Flower's state is no part of what has to survive. It is in memory by default; a server that was killed
registers the same keys again when it is back, the clients notice and come back under new node numbers,
and the coordinator goes on from its own journal.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from base64 import b64decode
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import uvicorn
from flwr.app import Message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    TRANSPORT_TYPE_GRPC_RERE,
    Status,
    SubStatus,
)
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse
from flwr.proto.runtime_pb2 import (
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    verify_signature,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.superlink.servicer.runtime import runtime_handlers
from uvicorn.protocols.http.h11_impl import H11Protocol

from sordino._base.errors import SordinoError, one_line
from sordino._base.files import require_private
from sordino._base.processes import stopping
from sordino.together._certificates import read_public_keys
from sordino.together.federated._messages import Coordinator
from sordino.together.federated.flower._app import CoordinatorStrategy
from sordino.together.secure._door import listening, open_door

logger = logging.getLogger(__name__)

_FLEET = "/v1/fleet/"
# A request's head; clients' own have less than a tenth of it.
_LARGEST_HEAD = 16 << 10
# Flower sends messages in parts of at most 20 MB; a body above this is none of them.
LARGEST_BODY = 64 << 20
_BEAT_SECONDS = 10.0
# What a refusal has to get through.
_REFUSAL_SECONDS = 0.5
_APP = "sordino/federated"

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_AsgiApp = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


def serve(
    coordinator: Coordinator,
    *,
    clients: Mapping[str, Path],
    certificate: Path,
    key: Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    timeout: float = 60.0,
    poll: float = 0.02,
    database: Path | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run a coordinator with the clients that connect, until it has finished.

    Args:
      coordinator: the server; what must survive a crash, it keeps itself.
      clients: the public key of each client, by name; nobody else is let in.
      certificate: the server's certificate, made by `create_server_certificate`.
      key: the certificate's private key.
      host: the one address to listen on.
      port: the port to listen on.
      timeout: seconds that a round trip may take, the client's work included.
      poll: seconds between two looks for replies.
      database: a file for Flower's state, where it should outlive the process; memory otherwise. Never
        with a trusted server: what it is sent has no noise yet, and would lie in that file.
      stop: ends this when it is set. SIGINT and SIGTERM set it, where this runs in the main thread.

    Raises:
      SordinoError: if a key cannot be read, or the address cannot be listened on.
    """
    require_private(key)
    keys = {name: public_key_to_bytes(k) for name, k in read_public_keys(clients).items()}
    stop = stop if stop is not None else threading.Event()
    app = _superlink(host, port, str(database) if database else FLWR_IN_MEMORY_DB_NAME)
    state: LinkState = app.state.linkstate_factory.state()
    names = _register(state, keys)
    for run in state.get_run_info(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING]):
        state.stop_run(run.run_id)  # of a server that was killed; its messages are void
    strategy = CoordinatorStrategy(coordinator, timeout=timeout, poll=poll, names=names, stop=stop)
    grid = _StateGrid(state)
    known = frozenset(keys.values())
    with stopping(stop), _listening(_fleet_only(app), known, host, port, certificate, key):
        try:
            strategy.run(grid)
        finally:
            grid.finish()


def _superlink(host: str, port: int, database: str) -> Any:
    """Flower's SuperLink as an ASGI app that starts no process and trusts no node without a key."""
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=None,
        superexec_auth_secret=None,
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=database,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    return create_app(config, SuperLinkLifespan)


def _fleet_only(app: _AsgiApp) -> _AsgiApp:
    """The app without anything but the API for nodes, and with a limit on what it reads."""

    async def filtered(scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        status = 404
        if scope["type"] == "http" and scope["path"].startswith(_FLEET):
            length = dict(scope["headers"]).get(b"content-length", b"")
            if length.isdigit() and int(length) <= LARGEST_BODY:
                await app(scope, receive, send)
                return
            status = 413
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    return filtered


def is_signed(headers: Iterable[tuple[bytes, bytes]], known: Collection[bytes]) -> bool:
    """Whether a request's head is signed, now, by one of these keys: what Flower also asks, but earlier.

    Flower's own check comes after it has read and parsed the body.
    """
    fields = {name.decode("latin-1").lower(): value for name, value in headers}
    try:
        key = b64decode(fields[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
        if key not in known:
            return False
        stamp = fields[TIMESTAMP_HEADER.lower()]
        age = (now() - datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        signature = b64decode(fields[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
        fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return fresh and verify_signature(bytes_to_public_key(key), stamp, signature)
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


class _Guarded(H11Protocol):
    """A connection that gets nothing but refusals until a request on it is signed by a client.

    No body is read before that, so that a stranger holds no more than a head's worth of memory.

    Attributes:
      admitted: done when a request was signed, or the connection has ended.
    """

    def __init__(self, known: Collection[bytes], **given: Any) -> None:
        super().__init__(**given)
        self._known, self._inner = known, self.app
        self.app = self._answer
        self.admitted: asyncio.Future[None] = self.loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.admitted.cancel()
        super().connection_lost(exc)

    async def _answer(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if is_signed(scope["headers"], self._known):
            if not self.admitted.done():
                self.admitted.set_result(None)
            await self._inner(scope, receive, send)
            return
        headers = [(b"connection", b"close"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        # TLS would go on to read, and drop, all that the stranger still sends.
        self.loop.call_later(_REFUSAL_SECONDS, self.transport.abort)


class _Server(uvicorn.Server):
    """Uvicorn with a door: who is not a client is let go of after a moment."""

    def __init__(self, config: uvicorn.Config, known: Collection[bytes]) -> None:
        super().__init__(config)
        self._known = known
        self._doors: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        self.servers = []
        loop = asyncio.get_running_loop()
        self._doors = [loop.create_task(open_door(sock, self._greet)) for sock in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for door in self._doors:
            door.cancel()
        await asyncio.gather(*self._doors, return_exceptions=True)
        await super().shutdown(sockets)

    async def _greet(self, sock: socket.socket) -> None:
        built = _Guarded(
            self._known,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: built, sock, ssl=self.config.ssl)
        try:
            await built.admitted
        except BaseException:
            transport.abort()
            raise


@contextmanager
def _listening(
    app: _AsgiApp, known: Collection[bytes], host: str, port: int, certificate: Path, key: Path
) -> Iterator[None]:
    """Serve an app over TLS, to clients with these keys, in a thread of its own."""
    try:
        opened = listening(host, port)
    except OSError as error:
        raise SordinoError(
            f"cannot listen on {host} port {port}: {one_line(error.strerror or error)}"
        ) from None
    with opened:
        try:
            config = uvicorn.Config(
                app,
                ssl_certfile=str(certificate),
                ssl_keyfile=str(key),
                http="h11",
                h11_max_incomplete_event_size=_LARGEST_HEAD,
                ws="none",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=3,
            )
            config.load()
        except OSError as error:  # that of a damaged certificate is one as well
            raise SordinoError(
                f"cannot use the certificate {str(certificate)!r} with its key: {one_line(error)}"
            ) from None
        server = _Server(config, known)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [opened]}, name="superlink", daemon=True
        )
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise SordinoError(f"the SuperLink did not start on {host} port {port}")
                time.sleep(0.02)
            yield
        finally:
            server.should_exit = True
            thread.join()


def _register(state: LinkState, keys: Mapping[str, bytes]) -> dict[int, str]:
    """Let in the nodes that have these keys and no others; the client of each node."""
    names = {}
    for name, key in keys.items():
        node = state.get_node_id_by_public_key(key)
        if node is None:
            node = state.create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL, name=name
            )
        names[node] = name
    for info in state.get_node_info():
        if info.node_id not in names and not info.unregistered_at:
            state.delete_node(info.owner_aid, info.node_id)
    return names


class _StateGrid(HttpGrid):
    """Flower's grid, on the state of a SuperLink in this process.

    Flower's own waits until every part of a reply has come, up to two hours, and a node may announce
    a reply and never send it. This one leaves such a reply until later.
    """

    def __init__(self, state: LinkState) -> None:
        super().__init__(token="none")  # for HTTP, which is not used
        self._state = state
        self._task = Task()
        self._beat = 0.0
        self._arriving: dict[str, ObjectTree] = {}

    def get_node_ids(self) -> Iterable[int]:
        self._keep_alive()
        return self._state.get_nodes(self._task.run_id)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._keep_alive()
        asked = set(message_ids)
        self._arriving = {name: t for name, t in self._arriving.items() if name in asked}
        response = runtime_handlers.pull_messages(
            PullAppMessagesRequest(message_ids=asked - self._arriving.keys()),
            self._state,
            self._task,
        )
        for header, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            self._arriving[header.metadata.reply_to_message_id] = tree
        replies = []
        for name, tree in list(self._arriving.items()):
            contents = self._contents(tree)
            if contents is not None:
                del self._arriving[name]
                replies += self._inflated(tree, contents)
        return replies

    def finish(self) -> None:
        """End the run, so that nodes drop what they still have of it."""
        if self._task.task_id:
            self._state.finish_task(self._task.task_id, SubStatus.COMPLETED, "")

    def _contents(self, tree: ObjectTree) -> dict[str, bytes] | None:
        """The parts of a message; None while some have not come."""
        contents = {}
        for part in iterate_object_tree(tree):
            content = self._state.get_object(self._task.run_id, part.object_id)
            if not content:
                return None
            contents[part.object_id] = content
        return contents

    def _inflated(self, tree: ObjectTree, contents: dict[str, bytes]) -> list[Message]:
        self._state.object_store.delete(tree.object_id)
        try:
            message = inflate_object_from_contents(tree.object_id, contents)
        except Exception as error:  # nodes may send anything
            logger.warning("a reply cannot be read: %s", one_line(error))
            return []
        return [message] if isinstance(message, Message) else []

    def _keep_alive(self) -> None:
        """Say now and then that the run goes on; if that came too late, start another one."""
        now = time.monotonic()
        if self._task.task_id and now - self._beat < _BEAT_SECONDS:
            return
        self._beat = now
        if self._task.task_id and self._state.acknowledge_task_heartbeat(self._task.task_id):
            return
        run = self._state.create_run(
            _APP, "1", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        self._task = self._state.get_tasks(run_ids=[run])[0]
        task = self._task.task_id
        if not self._state.claim_task(task) or not self._state.activate_task(task):
            raise SordinoError("the SuperLink did not start a run")
        self.set_run(self._state.get_run_info(run_ids=[run])[0])
        TaskIdentity.task_id, TaskIdentity.run_id = task, run
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        self._client = _Direct(self._state, self._task)  # type: ignore[assignment]


class _Direct:
    """What `HttpGrid` calls to send messages, without HTTP."""

    def __init__(self, state: LinkState, task: Task) -> None:
        self._state = state
        self._task = task

    def GetNodes(self, request: GetNodesRequest) -> GetNodesResponse:
        return runtime_handlers.get_nodes(request, self._state, self._task)

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:
        return runtime_handlers.push_messages(request, self._state, self._task)

    def PushObject(self, request: PushObjectRequest) -> PushObjectResponse:
        return runtime_handlers.push_object(request, self._state, self._task)

"""A client's process: one connection to the server, one endpoint, and nobody else's code.

Flower's own SuperNode downloads the app that the server ships and runs it, in a new process for each
message. A server that is not trusted must not be given that: it would ship code that adds no noise. So
this is a SuperNode that speaks Flower's Fleet API with Flower's own HTTP client, and hands what it gets
to the endpoint that its owner installed. It never asks for an app, and has nothing that could run one.

It stays in one process, so an answer takes as long as the endpoint takes, and it looks for messages
often while there is something going on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_MAX_INTERVAL, HEARTBEAT_MIN_INTERVAL, ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sordino._base.errors import SordinoError, one_line, shown
from sordino._base.processes import stopping
from sordino.together._certificates import read_client_key
from sordino.together.federated._messages import Endpoint
from sordino.together.federated.flower._app import (
    CLIENT_KEY,
    FAILED,
    ClientFailedError,
    MessageLostError,
    client_app,
)

logger = logging.getLogger(__name__)

# Flower sends messages in parts of at most 20 MB: no answer is longer, and no message has more parts.
LARGEST_ANSWER = 64 << 20
_MOST_PARTS = 64
# Seconds between attempts to reach a server that is not there, or that refuses this node, and before
# the first attempt to come back to one that forgot it.
_RETRY = 2.0
_AGAIN = 0.5
# Seconds for the parts of a message to follow it, and between looks for them.
_PARTS_SECONDS = 30.0
_PARTS_POLL = 0.02


class _UnknownNodeError(Exception):
    """The server does not know this node any more; it has to be activated again."""


def join(
    endpoint: Endpoint,
    *,
    name: str,
    key: Path,
    server: str,
    authority: Path,
    lease: float = 20.0,
    poll: tuple[float, float] = (0.05, 1.0),
    patience: float | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Answer the server's messages until the process is asked to end.

    A server that is away is waited for. A node whose process was killed is refused by the server
    until its lease has run out, because two nodes with one key might be at work; this waits for that
    as well.

    Args:
      endpoint: the client.
      name: the client's name, which the server has this key under.
      key: the client's private key, made by `create_client_key`.
      server: the server's ``host:port``.
      authority: the certificate of the authority that the server's certificate must come from.
      lease: seconds without a sign of life after which the server gives this node up.
      poll: seconds between looks for messages, while busy and when idle.
      patience: seconds without a connection after which to give up; never, by default.
      stop: ends this when it is set, after the message at hand. SIGINT and SIGTERM set it, where
        this runs in the main thread.

    Raises:
      SordinoError: if the key or the certificate cannot be read, or `patience` is over.
    """
    interval = lease / 2
    if not HEARTBEAT_MIN_INTERVAL <= interval <= HEARTBEAT_MAX_INTERVAL:
        raise SordinoError(
            f"lease must be in {2 * HEARTBEAT_MIN_INTERVAL:g} to {2 * HEARTBEAT_MAX_INTERVAL:g} "
            f"seconds, not {shown(lease)}"
        )
    if not 0 < poll[0] <= poll[1]:
        raise SordinoError(f"poll must be two times in seconds, the shorter first, not {poll}")
    stop = stop if stop is not None else threading.Event()
    with stopping(stop), _connected(server, key, authority) as (client, public_key):
        node = _SuperNode(client_app(lambda _: endpoint), name, client, public_key, interval, stop)
        node.run(poll, patience)


@contextmanager
def _connected(server: str, key: Path, authority: Path) -> Iterator[tuple[FleetHttpClient, bytes]]:
    private = read_client_key(key)
    try:
        roots = Path(authority).read_bytes()
        client = FleetHttpClient.from_server_address(
            server,
            insecure=False,
            root_certificates=roots,
            interceptors=[_Version(), NodeAuthHttpInterceptor(private, private.public_key())],
        )
    except (OSError, ValueError) as error:
        raise SordinoError(
            f"cannot use {str(authority)!r} as an authority's certificate: {one_line(error)}"
        ) from None
    # Flower's client would follow the server anywhere, with its signature; and read anything.
    client._client.follow_redirects = False
    client._client.headers["accept-encoding"] = "identity"
    client._client.event_hooks = {"response": [_bounded]}
    with client:
        yield client, public_key_to_bytes(private.public_key())


def _bounded(response: httpx.Response) -> None:
    """Refuse what is packed, and stop reading where no answer of a server is as long."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.DecodingError("the server packs its answers", request=response.request)
    assert isinstance(response.stream, httpx.SyncByteStream)
    response.stream = _BoundedStream(response.stream, response.request)


class _BoundedStream(httpx.SyncByteStream):
    """A body up to a limit."""

    def __init__(self, body: httpx.SyncByteStream, request: httpx.Request) -> None:
        self._body, self._request = body, request

    def __iter__(self) -> Iterator[bytes]:
        left = LARGEST_ANSWER
        for piece in self._body:
            left -= len(piece)
            if left < 0:
                raise httpx.ReadError("the server's answer is too long", request=self._request)
            yield piece

    def close(self) -> None:
        self._body.close()


class _Version:
    """Says which Flower this is. Flower's own class also ends the process if the server says so."""

    def __init__(self) -> None:
        metadata = RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata()
        self._headers = dict(metadata)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        add_headers(context.request, self._headers)
        return call_next(context)


class _SuperNode:
    """The loop of one node: be activated, look for messages, answer them, be activated again."""

    def __init__(
        self,
        app: ClientApp,
        name: str,
        client: FleetHttpClient,
        public_key: bytes,
        interval: float,
        stop: threading.Event,
    ) -> None:
        self._app = app
        self._name = name
        self._client = client
        self._public_key = public_key
        self._interval = interval
        self._stop = stop

    def run(self, poll: tuple[float, float], patience: float | None) -> None:
        while not self._stop.is_set():
            node = self._activate(patience)
            if node is None:
                return
            logger.info("connected as node %d", node.node_id)
            unknown = threading.Event()
            done = threading.Event()
            beats = threading.Thread(
                target=self._beat, args=(node, done, unknown), name="heartbeat", daemon=True
            )
            beats.start()
            try:
                self._listen(node, poll, unknown)
            except _UnknownNodeError:
                logger.info("the server does not know node %d any more", node.node_id)
                self._stop.wait(_AGAIN)
            finally:
                done.set()
                beats.join()
                with suppress(httpx.HTTPError, ValueError):
                    self._client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _activate(self, patience: float | None) -> Node | None:
        """This key's node, once the server lets it in; None when asked to stop."""
        request = ActivateNodeRequest(
            public_key=self._public_key, heartbeat_interval=self._interval
        )
        started, said = time.monotonic(), ""
        while not self._stop.is_set():
            try:
                return Node(node_id=self._client.ActivateNode(request).node_id)
            except httpx.HTTPStatusError as error:
                why = f"refused ({error.response.status_code}): {one_line(error.response.text)}"
            except (httpx.HTTPError, ValueError) as error:
                why = f"not reached: {one_line(error)}"
            if why != said:
                logger.warning("the server is waited for; %s", why)
                said = why
            if patience is not None and time.monotonic() - started > patience:
                raise SordinoError(f"no connection to the server in {patience:g} seconds; {why}")
            self._stop.wait(_RETRY)
        return None

    def _beat(self, node: Node, done: threading.Event, unknown: threading.Event) -> None:
        """Keep the lease while the endpoint is at work, which may take long."""
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=self._interval)
        while not done.wait(self._interval / 3):
            try:
                known = self._client.SendNodeHeartbeat(request).success
            except httpx.HTTPStatusError as error:
                known = error.response.status_code != httpx.codes.UNAUTHORIZED
            except (httpx.HTTPError, ValueError):
                continue
            if not known:
                unknown.set()
                return

    def _listen(self, node: Node, poll: tuple[float, float], unknown: threading.Event) -> None:
        fastest, slowest = poll
        pause, away = fastest, False
        while not self._stop.is_set():
            if unknown.is_set():
                raise _UnknownNodeError
            try:
                busy = self._next(node)
                away = False
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    raise _UnknownNodeError from None
                # Among others: the run is over, or was started anew, while the message was here.
                logger.info("a message was dropped: the server says %s", one_line(error))
                busy = False
            except httpx.HTTPError as error:
                if not away:
                    logger.warning("the server is waited for; not reached: %s", one_line(error))
                busy, pause, away = False, slowest, True
            except Exception as error:
                # What comes from the server can be anything; none of it may end the client.
                logger.warning("a message was dropped: %s", one_line(error))
                busy = False
            pause = fastest if busy else min(1.5 * pause, slowest)
            self._stop.wait(pause)

    def _next(self, node: Node) -> bool:
        """Answer one message, if there is one."""
        response = self._client.PullMessages(PullMessagesRequest(node=node))
        if not response.messages_list:
            return False
        header = response.messages_list[0].metadata
        message = self._pull(node, header.run_id, response.message_object_trees[0])
        started = time.monotonic()
        reply = self._answer(node, message)
        if reply is not None:
            self._push(node, reply, time.monotonic() - started)
        return True

    def _pull(self, node: Node, run: int, tree: ObjectTree) -> Message:
        """The whole message, which the server keeps in parts."""
        parts = [part.object_id for part in islice(iterate_object_tree(tree), _MOST_PARTS + 1)]
        if len(parts) > _MOST_PARTS:
            raise SordinoError(f"the server sent a message of more than {_MOST_PARTS} parts")
        contents = pull_objects(
            parts,
            make_pull_object_fn_protobuf(self._client.PullObject, node, run),
            initial_backoff=_PARTS_POLL,
            max_time=_PARTS_SECONDS,
        )
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise SordinoError(f"the server sent a {type(message).__name__} for a message")
        message.metadata.__dict__["_message_id"] = tree.object_id  # as Flower's own node does it
        confirm = self._client.ConfirmMessageReceived
        make_confirm_message_received_fn_protobuf(confirm, node, run)(tree.object_id)
        return message

    def _push(self, node: Node, reply: Message, seconds: float) -> None:
        """Announce the reply, then send its parts."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            announced = self._client.PushMessages(
                PushMessagesRequest(
                    node=node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                )
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, node, reply.metadata.run_id, announced.session_id
            )
            parts = get_all_nested_objects(reply)
            push_objects(parts, push, object_ids_to_push=set(announced.objects_to_push))

    def _answer(self, node: Node, message: Message) -> Message | None:
        """The endpoint's reply, an error in its place, or nothing for a message that was lost."""
        context = Context(
            run_id=message.metadata.run_id,
            node_id=node.node_id,
            node_config={CLIENT_KEY: self._name},
            state=RecordDict(),
            run_config={},
        )
        try:
            return self._app(message, context)
        except MessageLostError:
            return None
        except Exception as error:
            # An exception's own text may have local paths or data in it: the server gets a fixed one.
            if not isinstance(error, ClientFailedError):
                logger.error("a message was not answered: %s", type(error).__name__)
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            return Message(Error(code=code, reason=FAILED), reply_to=message)

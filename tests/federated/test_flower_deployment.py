"""A server and its clients over TLS on the loopback interface, some of them killed now and then.

This file is also the program of the processes that it starts: ``server`` and ``client``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.timestamp_pb2 import Timestamp

from sordino._base.errors import SordinoError
from sordino._base.files import write_atomically
from sordino.together._certificates import (
    create_authority,
    create_client_key,
    create_server_certificate,
    read_client_key,
)
from sordino.together.federated.flower import join, serve
from sordino.together.federated.flower._app import pack, unpack
from sordino.together.federated.flower._superlink import _register, _StateGrid, _superlink
from tests.support.lossy import LossyEndpoint

HOST = "127.0.0.1"
ROUNDS = 30


class Counter:
    """Answers round t with t times its own number, and keeps on disk how often it did."""

    def __init__(self, own: int, path: Path | None = None) -> None:
        self.own, self.path = own, path
        self.answered = int(path.read_text()) if path and path.exists() else 0

    def answer(self, message: bytes) -> bytes:
        self.answered += 1
        if self.path:
            write_atomically(self.path, str(self.answered))
        return str(self.own * int(message)).encode()


class Summer:
    """Sums what all clients answer, round by round; whole rounds are kept on disk."""

    def __init__(self, names: Sequence[str], rounds: int, path: Path | None = None) -> None:
        self.names, self.rounds, self.path = names, rounds, path
        self.sums: list[int] = json.loads(path.read_text()) if path and path.exists() else []
        self.reasons: list[str] = []
        self._values: dict[str, int] = {}

    waits = True

    @property
    def finished(self) -> bool:
        return len(self.sums) >= self.rounds

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        assert set(present) <= set(self.names)
        number = str(len(self.sums)).encode()
        return [(name, number) for name in present if name not in self._values]

    def receive(self, client: str, reply: bytes) -> None:
        self._values[client] = int(reply)
        if len(self._values) == len(self.names):
            self.sums.append(sum(self._values.values()))
            self._values = {}
            if self.path:
                write_atomically(self.path, json.dumps(self.sums))

    def missing(self, client: str, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("federation") / "keys"
    create_authority(made)
    create_server_certificate(made, [HOST])
    for name in ("a", "b", "stranger"):
        create_client_key(made, name)
    return made


class Deployment:
    """A server and clients in threads of this process."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *arguments: Any, **named: Any) -> None:
        def run() -> None:
            try:
                work(*arguments, stop=self.stop, **named)
            except BaseException as error:
                self.failures.append(error)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def serve(self, coordinator: Summer, **options: Any) -> None:
        clients = {name: self.folder / f"{name}.pub" for name in ("a", "b")}
        serve(
            coordinator,
            clients=clients,
            certificate=self.folder / "server.crt",
            key=self.folder / "server.key",
            host=HOST,
            port=self.port,
            **{"timeout": 5.0, **options},
        )

    def client(self, name: str, endpoint: Any, key: str | None = None, **options: Any) -> None:
        self.start(
            join,
            endpoint,
            name=name,
            key=self.folder / f"{key or name}.key",
            server=f"{HOST}:{self.port}",
            authority=options.pop("authority", self.folder / "ca.crt"),
            **options,
        )


@pytest.fixture
def deployment(folder: Path, port: int) -> Iterator[Deployment]:
    made = Deployment(folder, port)
    yield made
    made.stop.set()
    for thread in made.threads:
        thread.join(30)
        assert not thread.is_alive()


def test_rounds_over_tls(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    asked: list[str] = []
    for name in ("GetFab", "GetRun"):
        monkeypatch.setattr(FleetHttpClient, name, lambda *_, name=name: asked.append(name))
    clients = {"a": Counter(1), "b": Counter(10)}
    for name, client in clients.items():
        deployment.client(name, client)
    coordinator = Summer(["a", "b"], 5)
    deployment.serve(coordinator)
    assert coordinator.sums == [11 * t for t in range(5)]
    assert [client.answered for client in clients.values()] == [5, 5]
    assert not coordinator.reasons
    assert not deployment.failures
    assert not asked  # no app is ever fetched, so none can be run


def test_losses_are_silence_and_time_out(deployment: Deployment) -> None:
    bad = LossyEndpoint(Counter(10), requests=0.3, replies=0.3, seed=2)
    deployment.client("a", Counter(1))
    deployment.client("b", bad)
    coordinator = Summer(["a", "b"], 4)
    deployment.serve(coordinator, timeout=0.7)
    assert coordinator.sums == [11 * t for t in range(4)]
    assert bad.lost_requests + bad.lost_replies > 0
    assert coordinator.reasons.count("no reply within 0.7 seconds") >= bad.lost_requests


def test_strangers_stay_outside(deployment: Deployment, tmp_path: Path) -> None:
    stranger = Counter(100)
    deployment.client("a", stranger, key="stranger", patience=0.5)  # a key nobody registered
    deployment.client("b", Counter(10), key="a")  # a key that belongs to another name
    create_authority(tmp_path)
    deployment.client("b", Counter(10), authority=tmp_path / "ca.crt", patience=0.5)
    coordinator = Summer(["a", "b"], 1)
    deployment.start(deployment.serve, coordinator)
    deployment.threads[0].join(30)
    deployment.threads[2].join(30)
    first, second = sorted(str(failure) for failure in deployment.failures)
    assert "no connection to the server in 0.5 seconds; not reached" in first
    assert "certificate" in first.lower()
    assert "no connection to the server in 0.5 seconds; refused" in second
    time.sleep(1)
    assert stranger.answered == 0
    assert not coordinator.sums


def signed(key: Path) -> dict[str, str]:
    """The head of a request, as a client with that key would write it now."""
    private = read_client_key(key)
    request = httpx.Request("POST", "https://nowhere")
    context = ProtobufRequestContext("x", Timestamp(), request)
    sender = NodeAuthHttpInterceptor(private, private.public_key())
    sender.intercept(context, lambda _: httpx.Response(200))
    return {name: value for name, value in request.headers.items() if name.startswith("flwr")}


def test_only_the_interface_for_nodes_is_there(deployment: Deployment) -> None:
    coordinator = Summer(["a", "b"], 1)
    deployment.start(deployment.serve, coordinator)
    url = f"https://{HOST}:{deployment.port}"
    trusted = ssl.create_default_context(cafile=str(deployment.folder / "ca.crt"))
    with httpx.Client(verify=trusted) as http:
        until = time.monotonic() + 20
        while True:
            try:
                http.get(url)
                break
            except httpx.TransportError:
                assert time.monotonic() < until
                time.sleep(0.1)
        for path in (
            "/",
            "/docs",
            "/openapi.json",
            "/v1/control/start-run",
            "/v1/control/register-node",
            "/v1/runtime/acquire-task",
            "/v1/fleet/../control/start-run",
        ):
            assert http.post(url + path, content=b"").status_code == 401
            known = http.post(url + path, content=b"", headers=signed(deployment.folder / "a.key"))
            assert known.status_code == 404
        protobuf = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
        for path in ("register-node", "activate-node", "pull-messages", "get-fab"):
            for more in ({}, signed(deployment.folder / "stranger.key")):
                answer = http.post(f"{url}/v1/fleet/{path}", content=b"", headers=protobuf | more)
                assert answer.status_code == 401
        protobuf |= signed(deployment.folder / "a.key")
        parts: Iterator[bytes] = iter([b"x"])  # of a length that is not said
        answer = http.post(f"{url}/v1/fleet/push-object", content=parts, headers=protobuf)
        assert answer.status_code == 413
        lines = "".join(f"{name}: {value}\r\n" for name, value in protobuf.items())
        with (
            socket.create_connection((HOST, deployment.port)) as plain,
            trusted.wrap_socket(plain, server_hostname=HOST) as line,
        ):
            line.sendall(
                b"POST /v1/fleet/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n"
                + lines.encode()
                + b"\r\n"
            )
            assert line.recv(12) == b"HTTP/1.1 413"


def test_a_taken_port_and_bad_files_are_named(deployment: Deployment, tmp_path: Path) -> None:
    coordinator = Summer(["a", "b"], 1)
    with (
        socket.create_server((HOST, deployment.port)),
        pytest.raises(SordinoError, match=f"cannot listen on {HOST} port {deployment.port}"),
    ):
        deployment.serve(coordinator)
    (tmp_path / "server.crt").write_text("nonsense")
    deployment.folder = tmp_path
    with pytest.raises(SordinoError, match="cannot read"):
        deployment.serve(coordinator)
    for name in ("a", "b"):
        create_client_key(tmp_path, name)
    with pytest.raises(SordinoError, match="cannot use the certificate"):
        deployment.serve(coordinator)
    with pytest.raises(SordinoError, match="as an authority's certificate"):
        join(
            Counter(1),
            name="a",
            key=tmp_path / "a.key",
            server=f"{HOST}:1",
            authority=tmp_path / "server.crt",
        )


@pytest.mark.parametrize("change", [{"lease": 1.0}, {"poll": (1.0, 0.5)}, {"poll": (0.0, 1.0)}])
def test_times_of_a_client_are_checked(folder: Path, change: dict[str, Any]) -> None:
    with pytest.raises(SordinoError, match=f"{next(iter(change))} must be"):
        join(
            Counter(1),
            name="a",
            key=folder / "a.key",
            server=f"{HOST}:1",
            authority=folder / "ca.crt",
            **change,
        )


class Node:
    """A node of a SuperLink's state, as the Fleet API sees it, that does whatever it likes."""

    def __init__(self, state: Any, key: bytes) -> None:
        self.state = state
        [self.node_id] = _register(state, {"a": key})
        assert state.activate_node(self.node_id, 10)

    def pull(self) -> Any:
        [message] = self.state.get_message_ins(self.node_id, 1)
        return message

    def push(self, reply: Any, parts: int | None) -> None:
        """Announce a reply, and send only the first parts of it."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
        run = reply.metadata.run_id
        session = self.state.start_session(run)
        stored, missing = self.state.store_message_and_object_tree(
            remove_content_from_message(reply), tree, session
        )
        assert stored
        for name in missing[:parts]:
            self.state.store_object(run, session, name, objects[name].deflate())


@pytest.fixture
def node(folder: Path) -> Node:
    state = _superlink(HOST, 1, FLWR_IN_MEMORY_DB_NAME).state.linkstate_factory.state()
    return Node(state, public_key_to_bytes(read_client_key(folder / "a.key").public_key()))


def test_a_reply_that_never_comes_in_full_stops_nobody(node: Node) -> None:
    grid = _StateGrid(node.state)
    assert list(grid.get_node_ids()) == [node.node_id]
    [sent] = grid.push_messages([Message(pack(b"1"), node.node_id, "train", ttl=5.0)])
    assert list(grid.pull_messages([sent])) == []
    node.push(Message(pack(b"2"), reply_to=node.pull()), parts=2)
    for _ in range(3):
        started = time.monotonic()
        assert list(grid.pull_messages([sent])) == []
        assert time.monotonic() - started < 0.5


def test_replies_come_once(node: Node) -> None:
    grid = _StateGrid(node.state)
    grid.get_node_ids()
    [sent] = grid.push_messages([Message(pack(b"1"), node.node_id, "train", ttl=5.0)])
    node.push(Message(pack(b"2"), reply_to=node.pull()), parts=None)
    [reply] = grid.pull_messages([sent])
    assert unpack(reply.content) == b"2"
    assert reply.metadata.reply_to_message_id == sent
    [again] = grid.pull_messages([sent])
    assert again.has_error()


def test_a_run_that_flower_gave_up_is_followed_by_another(node: Node) -> None:
    grid = _StateGrid(node.state)
    grid.get_node_ids()
    first = grid.run.run_id
    grid.finish()
    grid._beat = -1e9
    assert list(grid.get_node_ids()) == [node.node_id]
    assert grid.run.run_id != first
    [sent] = grid.push_messages([Message(pack(b"1"), node.node_id, "train", ttl=5.0)])
    assert sent


def test_keys_that_are_taken_off_the_list_are_let_in_no_more(node: Node, folder: Path) -> None:
    other = public_key_to_bytes(read_client_key(folder / "b.key").public_key())
    [kept] = _register(node.state, {"b": other})
    assert kept != node.node_id
    assert _register(node.state, {"b": other}) == {kept: "b"}
    assert not node.state.activate_node(node.node_id, 10)


@contextmanager
def processes(where: Path, port: int, folder: Path) -> Iterator[Callable[..., Any]]:
    """Starts processes of this file; none of them outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, arguments[0], str(port), str(folder), str(where)]
        with open(where / f"{'-'.join(arguments[:2])}.log", "ab") as log:
            process = subprocess.Popen(
                [*command, *arguments[1:]], stdout=log, stderr=subprocess.STDOUT
            )
        started.append(process)
        return process

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


def rounds(where: Path) -> int:
    path = where / "sums.json"
    return len(json.loads(path.read_text())) if path.exists() else 0


def wait_for(condition: Callable[[], bool], where: Path, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            logs = {p.name: p.read_text()[-2000:] for p in where.glob("*.log")}
            raise AssertionError(f"waited in vain; {logs}")
        time.sleep(0.05)


@pytest.mark.slow
def test_a_client_and_the_server_may_be_killed(folder: Path, port: int, tmp_path: Path) -> None:
    with processes(tmp_path, port, folder) as start:
        server = start("server", "memory")
        first, second = start("client", "a"), start("client", "b")
        wait_for(lambda: rounds(tmp_path) >= 3, tmp_path)
        second.kill()
        second.wait()
        reached = rounds(tmp_path)
        second = start("client", "b")  # refused until the killed one's lease is over
        wait_for(lambda: rounds(tmp_path) >= reached + 3, tmp_path)
        server.kill()
        server.wait()
        assert rounds(tmp_path) < ROUNDS
        server = start("server", "memory")
        assert server.wait(90) == 0
        sums = json.loads((tmp_path / "sums.json").read_text())
        assert sums == [11 * t for t in range(ROUNDS)]
        for name in ("a", "b"):  # an answer may be lost with who was killed, none is made up
            assert ROUNDS <= int((tmp_path / f"{name}.count").read_text()) <= ROUNDS + 4
        for client, number in ((first, signal.SIGTERM), (second, signal.SIGINT)):
            client.send_signal(number)
            assert client.wait(20) == 0


@pytest.mark.slow
def test_flowers_state_may_be_in_a_file(folder: Path, port: int, tmp_path: Path) -> None:
    with processes(tmp_path, port, folder) as start:
        server = start("server", "database")
        start("client", "a"), start("client", "b")
        wait_for(lambda: rounds(tmp_path) >= 3, tmp_path)
        server.kill()
        server.wait()
        server = start("server", "database")
        assert server.wait(90) == 0
        assert json.loads((tmp_path / "sums.json").read_text())[-1] == 11 * (ROUNDS - 1)
        # The nodes were known to the server that came back, and did not have to come back themselves.
        assert (tmp_path / "client-a.log").read_text().count("connected as node") == 1


@pytest.mark.slow
def test_a_server_is_asked_to_end(folder: Path, port: int, tmp_path: Path) -> None:
    with processes(tmp_path, port, folder) as start:
        server = start("server", "memory")
        start("client", "a"), start("client", "b")
        wait_for(lambda: rounds(tmp_path) >= 1, tmp_path)
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        if children.exists():
            assert children.read_text() == ""
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert rounds(tmp_path) < ROUNDS


EVIL = {
    "pyproject.toml": """
        [build-system]
        requires = ["hatchling"]
        build-backend = "hatchling.build"
        [project]
        name = "evil"
        version = "1.0.0"
        description = "An app whose client code must not run"
        license = { text = "Apache-2.0" }
        dependencies = ["flwr"]
        [tool.hatch.build.targets.wheel]
        packages = ["."]
        [tool.flwr.app]
        publisher = "evil"
        [tool.flwr.app.components]
        serverapp = "evil.server_app:app"
        clientapp = "evil.client_app:app"
        [tool.flwr.app.config]
        """,
    "evil/__init__.py": "",
    "evil/client_app.py": """
        import os
        from pathlib import Path
        from flwr.app import Message
        from flwr.clientapp import ClientApp
        (Path(os.environ["EVIL_MARKS"]) / os.environ["EVIL_NODE"]).touch()
        app = ClientApp()
        @app.train()
        def train(message, context):
            return Message(message.content, reply_to=message)
        """,
    "evil/server_app.py": """
        import json, os, time
        from pathlib import Path
        from flwr.app import Array, ArrayRecord, Message, RecordDict
        from flwr.serverapp import ServerApp
        app = ServerApp()
        @app.main()
        def main(grid, context):
            while len(nodes := list(grid.get_node_ids())) < 2:
                time.sleep(0.5)
            data = b"7"
            content = RecordDict(
                {"message": ArrayRecord({"message": Array("uint8", (1,), "bytes", data)})}
            )
            messages = [Message(content, node, "train") for node in nodes]
            replies = grid.send_and_receive(messages, timeout=60)
            found = sorted(r.content["message"]["message"].data.decode() for r in replies)
            target = Path(os.environ["EVIL_MARKS"]) / "replies"
            target.with_suffix(".new").write_text(json.dumps(found))
            target.with_suffix(".new").rename(target)
        """,
}


@pytest.mark.slow
def test_code_that_the_server_ships_is_not_run(folder: Path, port: int, tmp_path: Path) -> None:
    """Flower's own server ships an app to one of our clients and to one of Flower's own nodes."""
    marks = tmp_path / "marks"
    marks.mkdir()
    for name, text in EVIL.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{HOST}:{port}"\n'
        f'root-certificates = "{folder / "ca.crt"}"\n'
    )
    bin_folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "EVIL_MARKS": str(marks),
    }
    running: list[subprocess.Popen[bytes]] = []

    def start(what: str, node: str, *command: str) -> None:
        with open(tmp_path / f"{what}.log", "wb") as log:
            running.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**environment, "EVIL_NODE": node},
                    start_new_session=True,  # Flower's programs start others
                )
            )

    def flwr(*command: str) -> None:
        subprocess.run(
            [str(bin_folder / "flwr"), *command],
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    with socket.create_server((HOST, 0)) as taken:
        node_port = int(taken.getsockname()[1])
    try:
        start(
            "superlink",
            "server",
            str(bin_folder / "flower-superlink"),
            *("--ssl-ca-certfile", str(folder / "ca.crt")),
            *("--ssl-certfile", str(folder / "server.crt")),
            *("--ssl-keyfile", str(folder / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--host", HOST, "--port", str(port)),
        )
        wait_for(listening, tmp_path)
        for name in ("a", "b"):
            flwr("supernode", "register", str(folder / f"{name}.pub"), "local")
        start(
            "client-b", "ours", sys.executable, __file__, "client", str(port), str(folder),
            str(tmp_path), "b",
        )  # fmt: skip
        start(
            "flower",
            "flowers",
            str(bin_folder / "flower-supernode"),
            *("--root-certificates", str(folder / "ca.crt")),
            *("--auth-supernode-private-key", str(folder / "a.key")),
            *("--superlink", f"{HOST}:{port}", "--host", HOST, "--port", str(node_port)),
        )
        flwr("run", str(tmp_path / "app"), "local")
        wait_for((marks / "replies").exists, tmp_path)
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # Flower's node ran the app and echoed; ours answered with ten times the number, by its own code.
    assert json.loads((marks / "replies").read_text()) == ["7", "70"]
    assert (marks / "flowers").exists()
    assert not (marks / "ours").exists()
    assert (tmp_path / "b.count").read_text() == "1"


def main() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    kind, port, folder, where, which = sys.argv[1:6]
    keys, place = Path(folder), Path(where)
    if kind == "client":
        join(
            Counter({"a": 1, "b": 10}[which], place / f"{which}.count"),
            name=which,
            key=keys / f"{which}.key",
            server=f"{HOST}:{port}",
            authority=keys / "ca.crt",
        )
    else:
        serve(
            Summer(["a", "b"], ROUNDS, place / "sums.json"),
            clients={name: keys / f"{name}.pub" for name in ("a", "b")},
            certificate=keys / "server.crt",
            key=keys / "server.key",
            host=HOST,
            port=int(port),
            timeout=3.0,
            database=place / "flower.db" if which == "database" else None,
        )


if __name__ == "__main__":
    main()

"""Who has not proved who it is costs a moment and a little memory; who has, no more than a time-out."""

from __future__ import annotations

import http.server
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sordino._base.errors import SordinoError
from sordino.together.federated.flower._supernode import join
from sordino.together.secure._mpyc import MpycSum
from sordino.together.secure._spu_engine import _connect, _Node
from sordino.together.secure._tunnel import Tunnels
from tests.federated.test_flower_deployment import (  # noqa: F401 (fixtures)
    HOST,
    Counter,
    Deployment,
    Summer,
    deployment,
    folder,
    port,
)
from tests.secure.processes import addresses, certificates
from tests.secure.test_transport import World

PATIENCE = 5.0


@contextmanager
def silent(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    with ExitStack() as stack:
        yield [stack.enter_context(reached(address)) for _ in range(count)]


def reached(address: tuple[str, int], within: float = 20.0) -> socket.socket:
    until = time.monotonic() + within
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def closed_after(sock: socket.socket, most: float) -> float:
    """Seconds until the other end lets go; an error if that is not before `most`."""
    start = time.monotonic()
    sock.settimeout(most)
    with suppress(ConnectionError):
        while sock.recv(4096):
            pass
    return time.monotonic() - start


class TestStar:
    @pytest.mark.parametrize("count", [5, 100])
    def test_silent_connections_do_not_stop_a_meeting(self, tmp_path: Path, count: int) -> None:
        """C4: five silent connections made a join of 20 s fail; handshakes now go on at the same time."""
        world = World(tmp_path)
        try:
            with silent(("127.0.0.1", world.roster.port), count):
                before, start = threading.active_count(), time.monotonic()
                with world.joined(timeout=20.0):
                    took = time.monotonic() - start
                    assert threading.active_count() < before + 140  # threads have a cap, too
            assert took < PATIENCE
        finally:
            world.close()

    def test_what_a_peer_sends_after_a_failure_is_not_waited_for(self, tmp_path: Path) -> None:
        """C9: frames in the place of a farewell renewed a second each; there is one second for all."""
        world = World(tmp_path)
        with world.joined(timeout=5.0) as stars:
            link, stop = stars["b"]._links["a"], threading.Event()

            def talk() -> None:
                with suppress(Exception):
                    while not stop.wait(0.4):
                        link.send_frame(1, 0, b"x" * 1000, time.monotonic() + 1)

            # Nothing can be sent any more, and the other end goes on talking.
            stars["a"]._links["b"].sock.shutdown(socket.SHUT_WR)
            talking = threading.Thread(target=talk)
            threading.Timer(6.0, stop.set).start()
            talking.start()
            start = time.monotonic()
            with pytest.raises(SordinoError, match="'b' closed the connection"):
                stars["a"].send("b", kind=1, turn=1, body=b"x")
            took = time.monotonic() - start
            stop.set()
            talking.join()
        world.close()
        assert took < 2.5

    def test_giving_up_takes_a_moment_however_many_do_not_listen(self, tmp_path: Path) -> None:
        """C9: peers that take nothing held up a party that gives up for a second each."""
        names = tuple("abcdefg")
        world = World(tmp_path, names)
        with world.joined(timeout=20.0) as stars:
            until = time.monotonic() + 0.7
            for name in names[1:]:
                body = bytes(80_000_000)  # more than its buffers hold
                with pytest.raises(SordinoError, match="did not answer"):
                    stars["a"].send(name, kind=1, turn=1, body=body, deadline=until)
                until = time.monotonic() + 0.3
            start = time.monotonic()
            stars["a"].give_up("it is over")
            took = time.monotonic() - start
        world.close()
        assert took < 3.5


class TestSpu:
    def test_one_silent_connection_does_not_stop_a_node(self, tmp_path: Path) -> None:
        """C4: with SPU one silent connection was enough."""
        tls = certificates(tmp_path, 2)
        node: Any = object.__new__(_Node)
        node._rank, node._parties, node._timeout, node._tls = 0, 2, 4.0, tls[0]
        node._owners, node._context = {}, tls[0].context(server=True)
        with socket.create_server(("127.0.0.1", 0)) as node._server, ThreadPoolExecutor(3) as pool:
            address = node._server.getsockname()
            with silent(address, 3):
                time.sleep(0.2)
                admitting = pool.submit(node._admit)
                ends = [
                    pool.submit(_connect, i, 0, f"127.0.0.1:{address[1]}", 4.0, tls[i], None)
                    for i in range(2)
                ]
                admitting.result(20)
                made = [end.result(20) for end in ends]
                assert set(node._owners) == {0, 1}
            for one in (*made, *node._owners.values()):
                one.close()

    def test_a_party_that_trickles_does_not_stretch_the_time_out(self, tmp_path: Path) -> None:
        """C9: a frame has one deadline, however many pieces it comes in."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            end = _connect(0, 0, f"127.0.0.1:{server.getsockname()[1]}", 0.5, None, None)
            other, _ = server.accept()
            stop = threading.Event()

            def trickle() -> None:
                with suppress(OSError):
                    while not stop.wait(0.2):
                        other.sendall(b"\0")

            thread = threading.Thread(target=trickle)
            thread.start()
            start = time.monotonic()
            with pytest.raises(SordinoError):
                end.take()  # twice the time: see `_connect`
            took = time.monotonic() - start
            stop.set()
            thread.join()
            end.close()
            other.close()
        assert took < 2.0


def test_silent_strangers_are_let_go_of_after_five_seconds_everywhere(
    tmp_path: Path,
    deployment: Deployment,  # noqa: F811
) -> None:
    """C4: TLS of the tunnels, of MPyC and of the Flower link waited a minute for each handshake."""
    tls, links, parties = certificates(tmp_path, 3), addresses(3), addresses(3)
    tunnels = Tunnels(0, links, tls[0])
    deployment.start(deployment.serve, Summer(["a", "b"], 1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(MpycSum, 1, parties, timeout=8.0, tls=tls[1])
        doors = {
            "tunnel": links[0],
            "mpyc": parties[1],
            "flower": f"{HOST}:{deployment.port}",
        }
        try:
            with ExitStack() as stack:
                opened = {}
                for name, address in doors.items():
                    where, _, number = address.rpartition(":")
                    opened[name] = stack.enter_context(reached((where, int(number))))
                for name, sock in opened.items():
                    assert closed_after(sock, PATIENCE + 4) < PATIENCE + 3, name
        finally:
            tunnels.close()
            with suppress(SordinoError):
                waiting.result(60)


class TestFlower:
    def test_strangers_hold_no_memory_and_nobody_up(self, deployment: Deployment) -> None:  # noqa: F811
        """C4: bodies of strangers were read, of any number at once; now the signature comes first."""
        for name, own in (("a", 1), ("b", 10)):
            deployment.client(name, Counter(own))
        coordinator = Summer(["a", "b"], 8)
        deployment.start(deployment.serve, coordinator)
        trusted = ssl.create_default_context(cafile=str(deployment.folder / "ca.crt"))
        size = 60_000_000

        def push(_: int) -> None:
            """A long body, as fast as it is taken, and held open."""
            with suppress(OSError), reached((HOST, deployment.port)) as plain:
                plain.settimeout(3)
                with trusted.wrap_socket(plain, server_hostname=HOST) as line:
                    line.sendall(
                        b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n"
                        b"Content-Type: application/protobuf\r\n"
                        b"Content-Length: %d\r\n\r\n" % size
                    )
                    for _ in range(size // 100_000 - 1):
                        line.sendall(bytes(100_000))
                    time.sleep(1)

        reached((HOST, deployment.port)).close()
        before, most = memory(), 0
        with silent((HOST, deployment.port), 70), ThreadPoolExecutor(6) as pool:
            pushing = [pool.submit(push, i) for i in range(6)]
            while not all(one.done() for one in pushing):
                most = max(most, memory())
                time.sleep(0.02)
        assert most - before < 100_000_000
        until = time.monotonic() + 30
        while not coordinator.finished and time.monotonic() < until:
            time.sleep(0.05)
        assert coordinator.sums == [11 * t for t in range(8)]

    def test_a_redirect_is_not_followed(self, deployment: Deployment) -> None:  # noqa: F811
        """C5: a server that says 307 got the client to post to any address, with its signature."""
        seen: list[str] = []

        class Elsewhere(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                seen.append(self.headers.get("flwr-signature", ""))
                self.send_error(404)

        class Redirects(Elsewhere):
            def do_POST(self) -> None:
                self.send_response(307)
                self.send_header("Location", f"http://{HOST}:{target.server_port}/x")
                self.send_header("Content-Length", "0")
                self.end_headers()

        with (
            serving(Elsewhere) as target,
            serving(Redirects, deployment.folder) as server,
            pytest.raises(SordinoError, match=r"refused \(307\)"),
        ):
            join_at(server, deployment)
        assert seen == []

    @pytest.mark.parametrize("packed", [True, False])
    def test_an_answer_without_an_end_is_not_read(
        self,
        deployment: Deployment,  # noqa: F811
        packed: bool,
    ) -> None:
        """C5: nor does a server fill a client's memory, with a long answer or with a packed one."""
        import gzip

        longest = 0
        bomb = gzip.compress(bytes(300_000_000), 1)

        class Floods(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                nonlocal longest
                self.send_response(200)
                if packed:
                    self.send_header("Content-Encoding", "gzip")
                    self.send_header("Content-Length", str(len(bomb)))
                self.end_headers()
                with suppress(OSError):
                    if packed:
                        self.wfile.write(bomb)
                        return
                    for megabytes in range(1, 201):
                        self.wfile.write(bytes(1_000_000))
                        longest = max(longest, megabytes)

        before = peak_memory()
        with (
            serving(Floods, deployment.folder) as server,
            pytest.raises(SordinoError, match=r"too long|packs its answers"),
        ):
            join_at(server, deployment)
        assert longest < 100  # of any one answer: a client in its patience asks more than once
        assert peak_memory() - before < 200_000_000


def join_at(server: Any, deployment: Deployment) -> None:  # noqa: F811
    """A client that gives up at the first refusal."""
    folder = deployment.folder  # noqa: F811
    join(
        Counter(1),
        name="a",
        key=folder / "a.key",
        server=f"{HOST}:{server.server_port}",
        authority=folder / "ca.crt",
        patience=0.1,
    )


def memory() -> int:
    """Bytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    import resource

    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextmanager
def serving(
    handler: type[http.server.BaseHTTPRequestHandler],
    keys: Path | None = None,
) -> Iterator[Any]:
    """A server of one handler, with the TLS certificate in a folder if there is one."""
    handler.log_message = lambda *_: None  # type: ignore[assignment, method-assign]
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        if keys is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys / "server.crt", keys / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_tunnels_local_port_is_its_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: any user of the machine could send through a tunnel; it takes its own user's only."""
    tls, links = certificates(tmp_path, 2), addresses(2)
    with socket.create_server(("127.0.0.1", 0)) as target:  # in the place of node 1's SPU
        first, second = Tunnels(0, links, tls[0]), Tunnels(1, links, tls[1])
        second._own = target.getsockname()[1]
        number = int(first.local[1].rpartition(":")[2])
        try:
            user = os.getuid()
            with monkeypatch.context() as another:
                another.setattr(os, "getuid", lambda: user + 1)  # the tunnel's, as seen from here
                with reached(("127.0.0.1", number)) as own:
                    assert closed_after(own, 10) < 5
            target.settimeout(0.2)
            with pytest.raises(TimeoutError):
                target.accept()
            with reached(("127.0.0.1", number)) as own:
                own.sendall(b"hello")
                target.settimeout(10)
                there, _ = target.accept()
                with there:
                    assert there.recv(5) == b"hello"
        finally:
            first.close()
            second.close()

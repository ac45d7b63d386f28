"""For tests of engines: parties in processes of their own, certificates, a tap on a port."""

from __future__ import annotations

import hashlib
import multiprocessing
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from sordino._base.errors import SordinoError
from sordino.together.secure._base import SecureSum
from sordino.together.secure._child import Tls
from sordino.together.secure._table import table


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in found]


def addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def _party(engine: Callable[..., SecureSum], settings: dict[str, Any], pipe: Any) -> None:
    """A party's process: does the sums it is told to, and says what came of them."""
    try:
        end = engine(**settings)
        pipe.send(("open", end.assumption))
        while (asked := pipe.recv()) is not None:
            try:
                result = end.noised_sum(*asked)
                pipe.send(("sum", result, end.bytes_sent))
            except SordinoError as error:
                pipe.send(("error", str(error), time.monotonic()))
        end.close()
    except SordinoError as error:
        pipe.send(("error", str(error), time.monotonic()))


class Parties:
    """All parties' processes."""

    def __init__(self, engine: Callable[..., SecureSum], settings: list[dict[str, Any]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.processes, self.pipes = [], []
        for index, own in enumerate(settings):
            ours, theirs = context.Pipe()
            process = context.Process(target=_party, args=(engine, {"index": index, **own}, theirs))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def answers(self, which: list[int] | None = None, within: float = 120.0) -> list[Any]:
        found = []
        for i in which if which is not None else range(len(self.pipes)):
            assert self.pipes[i].poll(within), f"party {i} says nothing"
            found.append(self.pipes[i].recv())
        return found

    def ask(self, vectors: list[np.ndarray], variance: int, turn: int) -> list[Any]:
        for pipe, vector in zip(self.pipes, vectors, strict=True):
            pipe.send((vector, variance, turn))
        return self.answers()

    def children(self) -> list[int]:
        """Process ids of everything that the parties have started and that still runs."""
        ours = {process.pid for process in self.processes}
        listed = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
        )
        rows = [line.split() for line in listed.stdout.splitlines()]
        return [int(p) for p, parent, state in rows if int(parent) in ours and state[0] != "Z"]

    def end(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    process.kill()
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()


def chi_square(drawn: np.ndarray, variance: int) -> float:
    """The p-value of draws against the exact probabilities, cells of less than 8 joined."""
    from scipy.stats import chi2  # here, because every party's process imports this module

    made = table(variance)
    half = np.array(made.weights, float) / 2.0**made.bits
    exact = np.concatenate([half[:0:-1] / 2, half[:1], half[1:] / 2]) * len(drawn)
    seen = np.bincount(drawn + made.largest, minlength=len(exact)).astype(float)
    rare = exact < 8
    cells = np.append(exact[~rare], exact[rare].sum())
    found = np.append(seen[~rare], seen[rare].sum())
    return float(chi2.sf(((found - cells) ** 2 / cells).sum(), len(cells) - 1))


def gone(pids: list[int], within: float = 10.0) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


class Tap:
    """A port that passes everything on to another one, and keeps what went through."""

    def __init__(self, target: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.target = target
        self.seen = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._server.accept()
            except OSError:
                return
            while True:
                try:
                    theirs = socket.create_connection(("127.0.0.1", self.target))
                    break
                except OSError:
                    time.sleep(0.05)
            for source, sink in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def close(self) -> None:
        self._server.close()


def certificates(folder: Path, count: int) -> list[Tls]:
    """Everybody's own, signed by itself, and known to all."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    fingerprints, bundle = [], b""
    for i in range(count):
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"party {i}")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        encoded = made.public_bytes(serialization.Encoding.PEM)
        bundle += encoded
        fingerprints.append(
            hashlib.sha256(made.public_bytes(serialization.Encoding.DER)).hexdigest()
        )
        (folder / f"{i}.crt").write_bytes(encoded)
        (folder / f"{i}.key").touch(mode=0o600)
        (folder / f"{i}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    (folder / "all.crt").write_bytes(bundle)
    return [
        Tls(folder / f"{i}.crt", folder / f"{i}.key", folder / "all.crt", tuple(fingerprints))
        for i in range(count)
    ]

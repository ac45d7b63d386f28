"""What engines of other libraries share: side processes, certificates, and checks of what goes in.

An engine whose library cannot live in this process (other versions of jax, or a runtime that takes over
the whole process) runs in a child. A child reads requests on stdin and answers on stdout, in the frames
of `_spu_side.py`, and ends when stdin does: with the process that started it, however that ends.
"""

from __future__ import annotations

import hashlib
import os
import queue
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sordino._base.errors import SordinoError, one_line, shown
from sordino._base.files import require_private
from sordino._base.types import Json
from sordino.together.secure._base import Integers
from sordino.together.secure._spu_side import read_frame, write_frame


def check_values(values: Integers, bound: int) -> None:
    """Refuse what is not a vector of int64 within ±bound."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.ndim != 1:
        raise SordinoError("values must be a vector of int64")
    if not values.size:
        raise SordinoError("values must have at least one entry")
    if not (-bound <= int(values.min()) and int(values.max()) <= bound):
        raise SordinoError(f"an entry of this party's vector is beyond ±{bound:,}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port"."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise SordinoError(f"an address must be host:port, got {shown(address)}")
    return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Tls:
    """Mutual TLS between parties who know each other's certificates beforehand.

    Attributes:
      certificate, key: this party's, as PEM files.
      authorities: a PEM file of what certificates are checked against: an authority's, or everybody's.
      fingerprints: SHA-256 of every party's certificate (DER) as hexadecimal digits, in the order of the
        parties: who connects with another one is refused, whoever signed it.
    """

    certificate: Path
    key: Path
    authorities: Path
    fingerprints: tuple[str, ...]

    def context(self, *, server: bool) -> ssl.SSLContext:
        """For either end of a connection: TLS 1.3, with the certificates of both ends checked."""
        built = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        built.minimum_version = ssl.TLSVersion.TLSv1_3
        # Names say nothing here: fingerprints do.
        built.check_hostname = False
        built.verify_mode = ssl.CERT_REQUIRED
        require_private(self.key)
        try:
            built.load_cert_chain(self.certificate, self.key)
            built.load_verify_locations(self.authorities)
        except (OSError, ssl.SSLError) as error:
            raise SordinoError(f"the certificates cannot be used: {one_line(error)}") from None
        return built

    def require(self, party: int, certificate: bytes | None) -> None:
        """Refuse a connection that says it is from `party` and has another certificate."""
        known = self.fingerprints[party] if 0 <= party < len(self.fingerprints) else ""
        given = hashlib.sha256(certificate or b"").hexdigest()
        if given != known.replace(":", "").lower():
            raise SordinoError(f"party {party} connected with a certificate that is not its own")


class Child:
    """A side process, asked one thing at a time.

    Args:
      name: what it is called in messages.
      command: what to run.
      environment: its environment variables; this process's where nothing is given.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `stop`)
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=None if environment is None else dict(environment),
            )
        except OSError as error:
            self._errors.close()
            raise SordinoError(f"{name} cannot be started: {one_line(error)}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._output = self._process.stdin, self._process.stdout
        self._answers: queue.SimpleQueue[tuple[Json, bytes] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, head: Json, body: bytes = b"", *, timeout: float) -> tuple[Json, bytes]:
        """Its answer, or an error if it says no, says nothing for so many seconds, or has ended."""
        try:
            write_frame(self._requests, head, body)
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise SordinoError(f"{self._name} did not answer within {timeout:g} s") from None
        except (OSError, ValueError):
            answer = None
        if answer is None:
            last = self._last_words()
            raise SordinoError(f"{self._name} has ended{': ' + last if last else ''}")
        if not answer[0].get("ok"):
            raise SordinoError(f"{self._name} failed: {one_line(answer[0].get('reason', ''))}")
        return answer

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        with suppress(OSError):
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._requests, self._output, self._errors):
            with suppress(OSError):
                stream.close()

    def _read(self) -> None:
        try:
            while True:
                self._answers.put(read_frame(self._output))
        except (EOFError, OSError, ValueError):
            self._answers.put(None)

    def _last_words(self) -> str:
        try:
            size = os.fstat(self._errors.fileno()).st_size
            text = os.pread(self._errors.fileno(), 4096, max(0, size - 4096))
        except (OSError, ValueError):
            return ""
        lines = text.decode(errors="replace").strip().splitlines()
        return one_line(lines[-1]) if lines else ""

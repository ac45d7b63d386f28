"""What client and server say to each other, as values and as bytes.

    request   server -> client: the point to evaluate at, the one before, which message was committed
    reply     client -> server: a noised sum in whole lattice steps
    refusal   client -> server: a code from a closed list

The bytes are ``magic, kind, length of header, header (JSON), arrays``, with nothing left over. They come
from parties that are not trusted: reading them allocates no more than they hold and raises nothing but
`SordinoError`.

Up to 0.5.0 a reply (kind 2) also told its block and what was spent, and a refusal (kind 3) a sentence of
the client's. Both are still read; what they told is dropped but for the block, and kinds 4 and 5 are sent.

Where the protocol meets the network there are two interfaces of bytes, `Endpoint` and `Coordinator`. The
core (client and server state machines) stands behind them and knows no network; `flower/` stands in front
of them and knows no protocol. Whatever carries the bytes may lose, delay or repeat them.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino._base.codec import canonical
from sordino._base.errors import SordinoError, shown
from sordino._base.types import Json

_MAGIC = b"SORDFED1"
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
_FRAME = struct.Struct("<8sBI")
_LONGEST_HEADER = 1 << 20
# A turn, a round, an index: far beyond any run, far below what an int64 holds.
_MOST = 1 << 48

# Why a client refuses: all that a server is told. The second value says whether asking again later could
# help.
REFUSALS = {
    "malformed": ("the request cannot be read", False),
    "agreement": ("the request is for another agreement", False),
    "round": ("the round is not in the agreement", True),
    "repeated": ("this turn was answered, or is over", True),
    "commit": ("the server's word about earlier messages does not fit", False),
    "point": ("the point cannot be used", True),
    "cohort": ("the cohort is too small or not the agreed one", True),
    "budget": ("the budget is spent", False),
    "cap": ("the agreed number of messages is sent", False),
    "journal": ("the client's own record is older than what it has sent", False),
    "local": ("the client cannot answer", True),
}


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """What the server asks one client.

    Attributes:
      agreement: digest of the agreement (hex).
      turn: number of the attempt, from 1; never used twice for different requests.
      round: t of the algorithm, from 1; it weighs the gradients.
      point, previous: x_t and x_{t-1}, float32 (d,).
      committed: index of this client's last message that is in the server's sum; 0 for none.
      cohort: under a secure sum, the names of all who are asked; else empty.
    """

    agreement: str
    turn: int
    round: int
    point: NDArray[np.float32]
    previous: NDArray[np.float32]
    committed: int
    cohort: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        return self._raw

    # Kept: a message is sent, digested and compared, and small ones spend their time on being encoded.
    @cached_property
    def _raw(self) -> bytes:
        header = {
            "agreement": self.agreement,
            "turn": self.turn,
            "round": self.round,
            "committed": self.committed,
            "cohort": list(self.cohort),
            "parameters": len(self.point),
        }
        return _packed(1, header, (self.point, "<f4"), (self.previous, "<f4"))

    def digest(self) -> bytes:
        """What the answer's noise is bound to."""
        return hashlib.sha256(self._raw).digest()


@dataclass(frozen=True, eq=False)
class Reply:
    """One client's message.

    Attributes:
      client: its name.
      turn: of the request.
      index: how many messages the client has sent, this one included.
      asked: digest of the request (hex).
      values: whole lattice steps, int32 (d,), or int64 modulo 2^64 under a secure sum.
      block: which of its blocks of examples is in it, -1 for none; told only to a trusted server that
        counts uses, because it tells how many examples the client has. None where it is not told.
    """

    agreement: str
    client: str
    turn: int
    index: int
    asked: str
    # Not shown: for a trusted server they are sums without noise.
    values: NDArray[np.signedinteger] = field(repr=False)
    block: int | None = None

    def to_bytes(self) -> bytes:
        return self._raw

    @cached_property
    def _raw(self) -> bytes:
        header = {
            "agreement": self.agreement,
            "client": self.client,
            "turn": self.turn,
            "index": self.index,
            "asked": self.asked,
            "parameters": len(self.values),
            "bytes": self.values.dtype.itemsize,
        }
        if self.block is not None:
            header["block"] = self.block
        return _packed(4, header, (self.values, f"<i{self.values.dtype.itemsize}"))


@dataclass(frozen=True)
class Refusal:
    """Why a client does not answer.

    Attributes:
      code: one of `REFUSALS`; nothing else is said of why.
      detail: why exactly, for whoever runs the client; it may have paths and numbers that depend on the
        data, and is never sent.
    """

    agreement: str
    client: str
    turn: int
    code: str
    detail: str = field(default="", repr=False, compare=False)

    @property
    def reason(self) -> str:
        """The code in words."""
        return REFUSALS[self.code][0]

    @property
    def is_final(self) -> bool:
        """Whether asking again cannot help."""
        return not REFUSALS[self.code][1]

    def to_bytes(self) -> bytes:
        header = {
            "agreement": self.agreement,
            "client": self.client,
            "turn": self.turn,
            "code": self.code,
        }
        return _packed(5, header)


Message = RoundRequest | Reply | Refusal


def message_from_bytes(raw: bytes) -> Message:
    """The message that `raw` holds."""
    if len(raw) < _FRAME.size:
        raise SordinoError("this is not a message: it ends too early")
    magic, kind, length = _FRAME.unpack_from(raw)
    if magic != _MAGIC:
        raise SordinoError("this is not a message: it begins differently")
    if kind not in _READERS:
        raise SordinoError(f"a message of kind {kind} is not known")
    if length > min(_LONGEST_HEADER, len(raw) - _FRAME.size):
        raise SordinoError("a message's header is longer than the message")
    body = memoryview(raw)[_FRAME.size :]
    try:
        header = json.loads(bytes(body[:length]).decode("utf-8"))
    except (ValueError, RecursionError):
        raise SordinoError("a message's header is not JSON") from None
    if not isinstance(header, dict):
        raise SordinoError("a message's header must be a table of fields")
    return _READERS[kind](_Header(header), body[length:])


class _Header:
    """Fields of a header, each checked when it is taken."""

    def __init__(self, fields: Json) -> None:
        self._fields = fields

    def text(self, name: str, longest: int = 256) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise SordinoError(f"a message's {name} must be a short text, got {shown(value)}")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise SordinoError(f"a message's {name} must be a whole number, got {shown(value)}")
        return value

    def has(self, name: str) -> bool:
        return name in self._fields

    def digest(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not _DIGEST.fullmatch(value):
            raise SordinoError(f"a message's {name} must be a digest, got {shown(value)}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        value = self._fields.get(name)
        if not isinstance(value, list) or any(not isinstance(one, str) for one in value):
            raise SordinoError(f"a message's {name} must be a list of names, got {shown(value)}")
        return tuple(value)


def _request(header: _Header, body: memoryview) -> RoundRequest:
    parameters = header.whole("parameters", 1)
    point, previous = _arrays(body, parameters, "<f4", 2)
    return RoundRequest(
        header.digest("agreement"),
        header.whole("turn", 1),
        header.whole("round", 1),
        point,
        previous,
        header.whole("committed"),
        header.names("cohort"),
    )


def _reply(header: _Header, body: memoryview) -> Reply:
    width = header.whole("bytes")
    if width not in (4, 8):
        raise SordinoError(f"a reply's numbers have 4 or 8 bytes, got {width}")
    (values,) = _arrays(body, header.whole("parameters", 1), f"<i{width}", 1)
    return Reply(
        header.digest("agreement"),
        header.text("client"),
        header.whole("turn", 1),
        header.whole("index", 1),
        header.digest("asked"),
        values,
        header.whole("block", -1) if header.has("block") else None,
    )


def _refusal(header: _Header, body: memoryview) -> Refusal:
    if len(body):
        raise SordinoError("a refusal has nothing but its header")
    code = header.text("code")
    if code not in REFUSALS:
        raise SordinoError(f"a refusal's code {shown(code)} is not known")
    agreement = header.text("agreement")
    return Refusal(agreement, header.text("client"), header.whole("turn"), code)


_READERS: dict[int, Callable[[_Header, memoryview], Message]] = {
    1: _request,
    2: _reply,
    3: _refusal,
    4: _reply,
    5: _refusal,
}


def _arrays(body: memoryview, parameters: int, dtype: str, count: int) -> list[NDArray[Any]]:
    size = parameters * np.dtype(dtype).itemsize
    if len(body) != count * size:
        raise SordinoError(
            f"a message of {count} x {parameters:,} numbers must have {count * size:,} bytes of them, "
            f"got {len(body):,}"
        )
    parts = [np.frombuffer(body[i * size : (i + 1) * size], dtype) for i in range(count)]
    return [part.astype(part.dtype.newbyteorder("=")) for part in parts]


def _packed(kind: int, header: Json, *arrays: tuple[NDArray[Any], str]) -> bytes:
    text = canonical(header).encode()
    parts = [np.ascontiguousarray(array).astype(dtype).tobytes() for array, dtype in arrays]
    return b"".join([_FRAME.pack(_MAGIC, kind, len(text)), text, *parts])


class Endpoint(Protocol):
    """One client."""

    def answer(self, message: bytes) -> bytes:
        """The reply to one message.

        Bytes that make no sense, or that ask for too much, are answered with an encoded refusal;
        nothing is raised for them. When this returns, whatever the reply depends on is on disk: the
        reply may leave the machine at once.
        """
        ...


class Coordinator(Protocol):
    """The server."""

    @property
    def finished(self) -> bool:
        """Whether the run is over; nothing is asked of the coordinator afterwards."""
        ...

    @property
    def waits(self) -> bool:
        """Whether replies to the last requests still matter; a round may be done without some."""
        ...

    def requests(self, present: Sequence[str]) -> list[tuple[str, bytes]]:
        """What to send now, as (client, message); nothing while there is something to wait for.

        Called again only when every request of the last call was either received or missing.

        Args:
          present: names of the clients that can be reached, in alphabetical order.
        """
        ...

    def receive(self, client: str, reply: bytes) -> None:
        """A client's reply. The bytes are as the client sent them: not to be trusted."""
        ...

    def missing(self, client: str, reason: str) -> None:
        """There will be no reply to the last request to this client.

        The client may have seen the request and answered it: what it released counts as released.
        """
        ...

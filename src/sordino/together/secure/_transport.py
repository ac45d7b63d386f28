"""Messages between parties: a star of mutually authenticated TLS connections around the first party.

    roster = Roster("study-7", (RosterEntry("north", key, certificate), ...), "north.example.org", 7001)
    with StarTransport.join(roster, "south", Path("south.crt"), Path("south.key"), timeout=60) as star:
        star.send("north", kind=1, turn=5, body=b"...")
        answer = star.receive("north", kind=2, turn=5)

Every party has the same `Roster`: names, X25519 keys and certificates, and where the first party listens.
A connection is TLS 1.3 with certificates on both ends, each compared with the roster's by its SHA-256, so
nobody outside takes part and nobody inside speaks for another. Both ends then compare the session and
the whole roster.

A *frame* has a kind, a turn, a number that counts frames on the connection, and a body whose length is
limited before it is read. One that is of another kind, turn or number (lost, doubled, late) is an error;
changed bytes do not get through TLS. No call lasts longer than its time-out, counted over the whole call,
whatever the other end sends. After an error the star is closed, and the others are told why (`give_up`),
which takes no longer than two seconds. Strangers are met at a `Door`: all at once, for 5 seconds.

TLS protects parties from the network, not from each other: what passes through the first party can be
read and changed by it. Engines bring their own protection against that.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from sordino._base.errors import DAMAGE, SordinoError, one_line, require_positive, shown
from sordino._base.files import require_private
from sordino.together._certificates import ROSTER_VERSION, Roster, certificate_fingerprint
from sordino.together.secure._door import STRANGER_PATIENCE, Door, listening

T = TypeVar("T")

# No frame is longer than this, whatever a caller expects.
LONGEST_BODY = 1 << 30
# Seconds for what is said or heard after a connection has failed, of all connections together.
_LAST_WORDS_PATIENCE = 1.0
# Bytes that are looked through for why the other end has closed.
_LONGEST_LAST_WORDS = 1 << 20
_HEADER = struct.Struct(">4sBQQI")
_MAGIC = b"SOR1"
_HELLO, _WELCOME, _START, _GIVE_UP = 250, 251, 252, 255
_LONGEST_HELLO = 4096
_PIECE = 1 << 18


class _BrokenError(Exception):
    """A connection that cannot be used any more; the text completes a sentence about it."""


class _LateError(_BrokenError):
    pass


class _Link:
    """One TLS connection, with deadlines over whole operations and every byte counted."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self.sock = sock
        self.sent = self.received = 0
        self.frames_out = self.frames_in = 0
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handshake(self, deadline: float) -> str:
        """The other end's fingerprint, when both have proved who they are."""
        self._drive(self._tls.do_handshake, deadline)
        certificate = self._tls.getpeercert(binary_form=True)
        if certificate is None:
            raise _BrokenError("has no certificate")
        return certificate_fingerprint(certificate)

    def send_frame(self, kind: int, turn: int, body: bytes, deadline: float) -> None:
        header = _HEADER.pack(_MAGIC, kind, turn, self.frames_out, len(body))
        self.frames_out += 1
        rest = memoryview(header + body)
        while rest:
            written = self._drive(partial(self._tls.write, rest[:_PIECE]), deadline)
            rest = rest[written:]

    def receive_frame(self, longest: int, deadline: float) -> tuple[int, int, bytes]:
        """Kind, turn and body of the next frame."""
        magic, kind, turn, number, length = _HEADER.unpack(self._read(_HEADER.size, deadline))
        if magic != _MAGIC:
            raise _BrokenError("does not speak this protocol")
        if number != self.frames_in:
            raise _BrokenError(f"sent message {number} where {self.frames_in} was due")
        if length > min(longest if kind < _HELLO else max(longest, _LONGEST_HELLO), LONGEST_BODY):
            raise _BrokenError(f"sent a message of {length:,} bytes where {longest:,} are allowed")
        self.frames_in += 1
        return kind, turn, self._read(length, deadline)

    @property
    def has_more(self) -> bool:
        """Whether something was received that has not been read."""
        return bool(self._in.pending or self._tls.pending())

    def _read(self, count: int, deadline: float) -> bytes:
        pieces, left = [], count
        while left:
            piece = self._drive(partial(self._tls.read, min(left, _PIECE)), deadline)
            if not piece:
                raise _BrokenError("closed the connection")
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    def _drive(self, operation: Callable[[], T], deadline: float) -> T:
        """Do a TLS operation, moving bytes between it and the socket as it wants them."""
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._fill(deadline)
            except ssl.SSLZeroReturnError:
                raise _BrokenError("closed the connection") from None
            except ssl.SSLError as error:
                with suppress(_BrokenError):  # the alert that tells the other end
                    self._flush(min(deadline, time.monotonic() + _LAST_WORDS_PATIENCE))
                raise _BrokenError(_tls_reason(error)) from None
            else:
                self._flush(deadline)
                return result

    def _flush(self, deadline: float) -> None:
        data = self._out.read()
        if not data:
            return
        try:
            self.sock.settimeout(_left(deadline))
            self.sock.sendall(data)
        except TimeoutError:
            raise _LateError("does not take what it is sent") from None
        except OSError:
            # The other end may have said why before it closed.
            self._late_words()
            raise _BrokenError("closed the connection") from None
        self.sent += len(data)

    def _late_words(self) -> None:
        """Bring in what arrived before the connection broke."""
        left = _LONGEST_LAST_WORDS
        with suppress(OSError):
            self.sock.settimeout(0)
            while left > 0 and (data := self.sock.recv(min(left, _PIECE))):
                self.received += len(data)
                left -= len(data)
                self._in.write(data)

    def _fill(self, deadline: float) -> None:
        try:
            self.sock.settimeout(_left(deadline))
            data = self.sock.recv(_PIECE)
        except TimeoutError:
            raise _LateError("did not answer in time") from None
        except OSError:
            raise _BrokenError("closed the connection") from None
        if not data:
            raise _BrokenError("closed the connection")
        self.received += len(data)
        self._in.write(data)

    def close(self) -> None:
        self.sock.close()


def _close_gently(links: Iterable[_Link]) -> None:
    """Close when the other ends have closed, or have had a moment to.

    Closing at once, with something unread, would take the last words away from them.
    """
    open_ones: dict[socket.socket, _Link] = {}
    for link in links:
        with suppress(OSError):
            link.sock.settimeout(0)
            link.sock.shutdown(socket.SHUT_WR)
            open_ones[link.sock] = link
            continue
        link.close()
    deadline = time.monotonic() + _LAST_WORDS_PATIENCE
    while open_ones and (left := deadline - time.monotonic()) > 0:
        for sock in select.select(list(open_ones), [], [], left)[0]:
            with suppress(OSError):
                if sock.recv(_PIECE):
                    continue
            open_ones.pop(sock).close()
    for link in open_ones.values():
        link.close()


def _say_farewell(links: list[_Link], reason: object) -> None:
    """Tell the other ends why this one goes, all of them within the same moment."""
    text = one_line(reason, 400).encode()
    deadline = time.monotonic() + _LAST_WORDS_PATIENCE
    for place, link in enumerate(links):
        # One that takes nothing uses up its own share of the moment, and not the others'.
        now = time.monotonic()
        share = max(0.0, deadline - now) / (len(links) - place)
        with suppress(_BrokenError):
            link.send_frame(_GIVE_UP, 0, text, now + share)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _LateError("did not answer in time")
    return left


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (9, 10):  # not valid yet, no longer
            return f"has a certificate that is not valid now ({one_line(error.verify_message)})"
        return "has a certificate that is not in the roster"
    reason = (error.reason or "").upper()
    if "ALERT" in reason and ("UNKNOWN_CA" in reason or "CERTIFICATE" in reason):
        return "does not accept this party's certificate: it is not in its roster"
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return "has no certificate"
    if "EOF" in reason:
        return "closed the connection"
    return f"sent something that TLS refuses ({one_line(reason.replace('_', ' ').lower())})"


class StarTransport:
    """One party's end of the star; made by `join`.

    Attributes:
      roster: who takes part.
      name: this party's name.
      timeout: seconds that one call may take.
      patience: what this party makes of it: the first one waits a fifth less than the others, so that it is
        still in time to tell them who is missing.
    """

    def __init__(
        self,
        roster: Roster,
        name: str,
        links: dict[str, _Link],
        timeout: float,
        watch: Callable[[str, bytes], None] | None,
    ) -> None:
        self.roster, self.name, self.timeout = roster, name, timeout
        self.patience = 0.8 * timeout if name == roster.hub else timeout
        self._links, self._watch, self._open = links, watch, True
        self._past_sent = self._past_received = 0

    @classmethod
    def join(
        cls,
        roster: Roster,
        name: str,
        certificate: Path,
        key: Path,
        *,
        timeout: float = 60.0,
        join_timeout: float | None = None,
        listener: socket.socket | None = None,
        watch: Callable[[str, bytes], None] | None = None,
    ) -> StarTransport:
        """Connect, and wait until everybody in the roster has.

        Args:
          certificate: this party's, as in the roster.
          key: the private key that belongs to it.
          timeout: of one call later on, in seconds.
          join_timeout: of this call; the same if not given.
          listener: a listening socket for the first party, instead of the roster's address.
          watch: called with a party's name and what was received from it, decrypted; for tests.

        Raises:
          SordinoError: if somebody is missing at the end of the time, or is not who it should be.
        """
        require_positive("timeout", timeout)
        patience = timeout if join_timeout is None else join_timeout
        # The first party gives up a little earlier, so that it can tell the others who is missing.
        deadline = time.monotonic() + patience * (0.8 if name == roster.hub else 1.0)
        context = _context(roster, name, Path(certificate), Path(key), server=name == roster.hub)
        if name == roster.hub:
            links = _gather(roster, context, deadline, listener)
        else:
            links = {roster.hub: _reach(roster, name, context, deadline)}
        return cls(roster, name, links, timeout, watch)

    @property
    def is_hub(self) -> bool:
        return self.name == self.roster.hub

    @property
    def peers(self) -> tuple[str, ...]:
        """Those that this party has a connection with."""
        hub = self.roster.hub
        return tuple(n for n in self.roster.names if n != hub) if self.is_hub else (hub,)

    @property
    def bytes_sent(self) -> int:
        """What this party put on the network, TLS included, TCP's own headers not."""
        return self._past_sent + sum(link.sent for link in self._links.values())

    @property
    def bytes_received(self) -> int:
        return self._past_received + sum(link.received for link in self._links.values())

    def deadline(self) -> float:
        """When a call that begins now has to end, on the monotonic clock."""
        return time.monotonic() + self.patience

    def send(
        self, to: str, *, kind: int, turn: int, body: bytes, deadline: float | None = None
    ) -> None:
        """Send one frame."""
        if not 0 <= kind < _HELLO or not 0 <= turn < 2**63:
            raise SordinoError(f"a message has a kind below 250 and a turn, not {kind}, {turn}")
        if len(body) > LONGEST_BODY:
            raise SordinoError(f"a message of {len(body):,} bytes is too long to send")
        link, until = self._link(to), self._until(deadline)
        try:
            link.send_frame(kind, turn, body, until)
        except _BrokenError as error:
            if not isinstance(error, _LateError):
                self._raise_farewell(to, link, until)
            raise self._trouble(to, error) from None

    def receive(
        self,
        sender: str,
        *,
        kind: int,
        turn: int,
        longest: int = LONGEST_BODY,
        deadline: float | None = None,
    ) -> bytes:
        """The body of the next frame from `sender`, which must be of this kind and turn."""
        link = self._link(sender)
        try:
            return self._expect(sender, link, kind, turn, longest, self._until(deadline))
        except _BrokenError as error:
            raise self._trouble(sender, error) from None

    def receive_all(
        self,
        senders: Iterable[str],
        *,
        kind: int,
        turn: int,
        longest: int | Mapping[str, int] = LONGEST_BODY,
        deadline: float | None = None,
    ) -> dict[str, bytes]:
        """One frame from each sender, in the order in which they come; an error as soon as one fails.

        Args:
          longest: bytes that a body may have, of everybody or of each sender.
        """
        until = self._until(deadline)
        waiting = {sender: self._link(sender) for sender in senders}
        result: dict[str, bytes] = {}
        while waiting:
            ready = [n for n, link in waiting.items() if link.has_more]
            if not ready:
                sockets = {link.sock: n for n, link in waiting.items()}
                left = max(0.0, until - time.monotonic())
                ready = [sockets[s] for s in select.select(list(sockets), [], [], left)[0]]
            if not ready:
                names = ", ".join(map(repr, waiting))
                raise SordinoError(f"{names} did not answer within {self.patience:g} s")
            for sender in ready:
                link = waiting.pop(sender)
                most = longest if isinstance(longest, int) else longest[sender]
                try:
                    result[sender] = self._expect(sender, link, kind, turn, most, until)
                except _BrokenError as error:
                    raise self._trouble(sender, error) from None
        return result

    def give_up(self, reason: str) -> None:
        """Tell everybody that this party does not go on, and close. Nothing happens if it is closed."""
        if not self._open:
            return
        _say_farewell(list(self._links.values()), reason)
        _close_gently(self._let_go())

    def close(self) -> None:
        """Close all connections; no call after this."""
        for link in self._let_go():
            link.close()

    def _let_go(self) -> list[_Link]:
        self._open = False
        self._past_sent, self._past_received = self.bytes_sent, self.bytes_received
        links, self._links = list(self._links.values()), {}
        return links

    def __enter__(self) -> StarTransport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _until(self, deadline: float | None) -> float:
        return self.deadline() if deadline is None else deadline

    def _link(self, name: str) -> _Link:
        if not self._open:
            raise SordinoError("this party's connections are closed; join again")
        if name not in self._links:
            raise SordinoError(f"{self.name!r} has no connection with {shown(name)}")
        return self._links[name]

    def _expect(
        self, sender: str, link: _Link, kind: int, turn: int, longest: int, deadline: float
    ) -> bytes:
        result, at, body = link.receive_frame(longest, deadline)
        if self._watch is not None:
            self._watch(sender, body)
        if result == _GIVE_UP:
            said = one_line(body.decode(errors="replace"), 400)
            raise SordinoError(f"{sender!r} gave up: {said}")
        if (result, at) != (kind, turn):
            raise _BrokenError(
                f"sent a message of kind {result} for turn {at}, where kind {kind} of turn {turn} "
                "was due"
            )
        return body

    def _raise_farewell(self, name: str, link: _Link, deadline: float) -> None:
        """If the other end said why it closed, say that; what it sends instead is not waited for."""
        deadline = min(deadline, time.monotonic() + _LAST_WORDS_PATIENCE)
        left = _LONGEST_LAST_WORDS
        with suppress(_BrokenError):
            while left > 0:
                kind, _, body = link.receive_frame(left, deadline)
                left -= len(body) + _HEADER.size
                if kind == _GIVE_UP:
                    said = one_line(body.decode(errors="replace"), 400)
                    raise SordinoError(f"{name!r} gave up: {said}")

    def _trouble(self, name: str, error: _BrokenError) -> SordinoError:
        if isinstance(error, _LateError):
            return SordinoError(f"{name!r} did not answer within {self.patience:g} s")
        return SordinoError(f"{name!r} {error}")


def _context(
    roster: Roster, name: str, certificate: Path, key: Path, *, server: bool
) -> ssl.SSLContext:
    """TLS 1.3 that trusts the roster's certificates and nothing else."""
    mine = roster.member(name)
    try:
        require_private(key)
        if certificate_fingerprint(certificate.read_text()) != mine.fingerprint:
            raise SordinoError(f"{str(certificate)!r} is not the roster's certificate of {name!r}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # fingerprints say more
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata="\n".join(m.certificate for m in roster.members))
        context.load_cert_chain(certificate, key)
        if server:
            context.num_tickets = 0
    except (OSError, UnicodeDecodeError) as error:  # an SSLError is an OSError
        raise SordinoError(
            f"the certificate {str(certificate)!r} and its key cannot be used: {one_line(error)}"
        ) from None
    return context


def _reach(roster: Roster, name: str, context: ssl.SSLContext, deadline: float) -> _Link:
    """Connect to the first party, and wait until it says that everybody is there."""
    hub = roster.members[0]
    where = f"{roster.host}:{roster.port}"
    sock = _dial(roster, deadline)
    link = _Link(sock, context, server=False)
    try:
        try:
            result = link.handshake(deadline)
            if result != hub.fingerprint:
                others = [m.name for m in roster.members if m.fingerprint == result]
                who = repr(others[0]) if others else "somebody else"
                raise SordinoError(f"at {where} there is {who}, not {hub.name!r}")
            hello = {"session": roster.session, "roster": roster.digest.hex(), "name": name}
            hello["version"] = str(ROSTER_VERSION)
            link.send_frame(_HELLO, 0, json.dumps(hello).encode(), deadline)
            for due in (_WELCOME, _START):
                kind, _, body = link.receive_frame(_LONGEST_HELLO, deadline)
                if kind == _GIVE_UP:
                    said = one_line(body.decode(errors="replace"), 400)
                    raise SordinoError(f"{hub.name!r} refuses this party: {said}")
                if kind != due:
                    raise _BrokenError("does not speak this protocol")
        except _LateError:
            raise SordinoError(
                f"{hub.name!r} at {where} did not let this party in before the time was over"
            ) from None
        except _BrokenError as error:
            raise SordinoError(f"{hub.name!r} at {where} {error}") from None
    except BaseException:
        link.close()
        raise
    return link


def _dial(roster: Roster, deadline: float) -> socket.socket:
    pause = 0.02
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection((roster.host, roster.port), max(left, 0.001))
        except OSError as error:
            if left - pause <= 0:
                raise SordinoError(
                    f"{roster.hub!r} cannot be reached at {roster.host}:{roster.port}: "
                    f"{one_line(error.strerror or error)}"
                ) from None
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def _gather(
    roster: Roster, context: ssl.SSLContext, deadline: float, listener: socket.socket | None
) -> dict[str, _Link]:
    """Let everybody in; strangers are turned away, and named if somebody is missing in the end."""
    links: dict[str, _Link] = {}
    remarks: list[str] = []
    own = listener is None
    if listener is None:
        try:
            listener = listening(roster.host, roster.port)
        except OSError as error:
            raise SordinoError(
                f"{roster.hub!r} cannot listen at {roster.host}:{roster.port}: "
                f"{one_line(error.strerror or error)}"
            ) from None

    def greet(sock: socket.socket) -> tuple[str, _Link]:
        link = _Link(sock, context, server=True)
        try:
            return _admitted(roster, link, deadline), link
        except _BrokenError as error:
            # Silence says nothing about who it was; a reason to turn somebody away is kept.
            if not remarks or not isinstance(error, _LateError):
                remarks.append(f"one that connected {error}")
            _close_gently([link])
            raise

    door = Door(listener, greet, lambda admitted: admitted[1].close())
    try:
        while missing := [n for n in roster.names[1:] if n not in links]:
            try:
                name, link = door.next(deadline)
            except TimeoutError:
                reported = f"; {remarks[-1]}" if remarks else ""
                raise SordinoError(
                    f"{', '.join(map(repr, missing))} did not connect before the time was over{reported}"
                ) from None
            if name in links:  # it was started again
                links[name].close()
            links[name] = link
        for name, link in links.items():
            try:
                link.send_frame(_START, 0, b"", deadline)
            except _BrokenError as error:
                raise SordinoError(f"{name!r} {error}") from None
    except BaseException as error:
        _say_farewell(list(links.values()), error)
        _close_gently(links.values())
        raise
    finally:
        door.close()
        if own:
            listener.close()
    return links


def _admitted(roster: Roster, link: _Link, deadline: float) -> str:
    """Who has connected; an error, that the other end is told, if it does not belong here."""
    deadline = min(deadline, time.monotonic() + STRANGER_PATIENCE)
    result = link.handshake(deadline)
    kind, _, body = link.receive_frame(_LONGEST_HELLO, deadline)
    try:
        hello = json.loads(body) if kind == _HELLO else {}
        name, session, digest = hello["name"], hello["session"], hello["roster"]
        version = hello["version"]
    except DAMAGE:
        raise _BrokenError("does not speak this protocol") from None
    owner = [m.name for m in roster.members if m.fingerprint == result]
    refusal = ""
    if version != str(ROSTER_VERSION):
        refusal = f"speaks version {shown(version)} of this protocol, not {ROSTER_VERSION}"
    elif owner != [name]:
        refusal = f"calls itself {shown(name)} with the certificate of {', '.join(owner)!r}"
    elif name == roster.hub:
        refusal = f"calls itself {name!r}, as the party in the middle does"
    elif session != roster.session:
        refusal = f"({name!r}) is in session {shown(session)}, not {shown(roster.session)}"
    elif digest != roster.digest.hex():
        refusal = f"({name!r}) has another roster of this session"
    if refusal:
        link.send_frame(_GIVE_UP, 0, f"it {refusal}".encode(), deadline)
        raise _BrokenError(refusal)
    link.send_frame(_WELCOME, 0, b"", deadline)
    return str(name)

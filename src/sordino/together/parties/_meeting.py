"""Parties that come together find out where to go on, and that they mean the same run.

Everything here goes through the first party, which is not trusted more than any other: `exchange` sends
a text to everybody with a code for each receiver (HMAC under a key that only the two have), so that the
party in the middle can hold texts back, which ends the meeting, but not change one.

    session = meet(star, pads, journal, facts)

1. Everybody sends 32 fresh random bytes; their hash names the session. Whatever is made secret later is
   bound to it, so nothing from an earlier session fits into this one.
2. Everybody says what run it means (`facts`: code, terms, clock), and how far it is. Anything that differs
   is refused, with the reason, by everybody.
3. Everybody confirms to everybody what all have said: a party that tells some this and others that is
   found out before anything is kept.
4. A party may be one turn behind: it died, or its connection did, after the others had the sum. The first
   of the others gives it the sum, which must fit the history that all of them have. No party is further
   behind: nobody begins a turn that not everybody has come to.
5. A turn that somebody has claimed and nobody has the sum of is lost, for everybody; but only when
   everybody has confirmed that it has caught up, or one that dies meanwhile would be two turns behind.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sordino._base.errors import DAMAGE, SordinoError, one_line, shown
from sordino._base.types import Json
from sordino.together.parties._journal import TurnJournal, packed, unpacked
from sordino.together.secure._mask import Pads
from sordino.together.secure._transport import StarTransport

# Kinds of frames; the engine `mask`, which shares the connections, has 1 to 4.
_TEXTS, _ALL_TEXTS = 101, 102
_CODE_BYTES = 32
_LENGTH = struct.Struct(">I")
_LONGEST_FACTS = 1 << 14
_NUMBER_BYTES = 8
# 2^25 numbers, and their kind.
_LONGEST_SUM = (_NUMBER_BYTES << 25) + 2
# Clocks that are further apart are not set right, and then certificates and journals mean little.
MOST_SKEW = 300.0

# What everybody must have in common, and what to call it.
FACTS = {
    "version": "version of Sordino",
    "code": "code of Sordino, although it has the same version number",
    "consortium": "consortium file",
    "plan": "plan",
    "model": "model",
    "start": "model to start from",
    "source": "code of the model",
    "steps": "number of turns",
    "parameters": "number of parameters",
}


@dataclass(frozen=True)
class Meeting:
    """What a meeting has found.

    Attributes:
      nonce: names the session; fresh, and the same at every party.
      caught_up: whether this party was given a sum that it had missed.
      lost: the turn that was given up, if there is one.
    """

    nonce: bytes
    caught_up: bool
    lost: int | None


def exchange(
    star: StarTransport,
    pads: Pads,
    context: bytes,
    body: bytes,
    *,
    longest: int | Mapping[str, int],
    turn: int = 0,
) -> dict[str, bytes]:
    """Everybody's text, this party's own too, with codes that all fit.

    Args:
      context: what the texts are about; codes are bound to it.
      longest: bytes that a text may have, of everybody or of each party.
      turn: number of the frames.
    """
    names = star.roster.names
    limits = dict.fromkeys(names, longest) if isinstance(longest, int) else longest
    others = [name for name in names if name != star.name]
    keys = {name: pads.pair_key(name, context) for name in others}
    mine = _LENGTH.pack(len(body)) + body
    mine += b"".join(_code(keys[name], star.name, body) for name in others)
    most = {name: _LENGTH.size + limits[name] + _CODE_BYTES * len(others) for name in names}
    deadline = star.deadline()
    if star.is_hub:
        result = star.receive_all(
            star.peers, kind=_TEXTS, turn=turn, longest=most, deadline=deadline
        )
        result[star.name] = mine
        together = b"".join(_LENGTH.pack(len(result[name])) + result[name] for name in names)
        for name in star.peers:
            star.send(name, kind=_ALL_TEXTS, turn=turn, body=together, deadline=deadline)
    else:
        hub = star.roster.hub
        star.send(hub, kind=_TEXTS, turn=turn, body=mine, deadline=deadline)
        together = star.receive(
            hub,
            kind=_ALL_TEXTS,
            turn=turn,
            longest=sum(most.values()) + _LENGTH.size * len(names),
            deadline=deadline,
        )
        result = _divided(together, names)
        result[star.name] = mine  # whatever the first party makes of it
    texts = {}
    for name in names:
        receivers = [other for other in names if other != name]
        text, codes = _opened(name, result[name], len(receivers), limits[name])
        if name != star.name:
            at = _CODE_BYTES * receivers.index(star.name)
            code = codes[at : at + _CODE_BYTES]
            if not hmac.compare_digest(code, _code(keys[name], name, text)):
                raise SordinoError(f"what {name!r} says has been changed on the way")
        texts[name] = text
    return texts


def meet(
    star: StarTransport,
    pads: Pads,
    journal: TurnJournal,
    facts: Json,
    check: Callable[[str, Json], None] | None = None,
) -> Meeting:
    """See the module; the journal is at the same turn at every party afterwards.

    Args:
      facts: the values of `FACTS`, which must be the same everywhere; and "clock", in seconds, unless
        it is to be taken from this machine.
      check: called with every party's name and facts; raises if they are not good enough.

    Raises:
      SordinoError: if a party means another run, is elsewhere in it, or does not answer.
    """
    base = b"sordino meeting 1" + star.roster.digest
    own = secrets.token_bytes(32)
    nonces = exchange(star, pads, base, own, longest=32)
    names = star.roster.names
    if any(len(nonces[name]) != 32 for name in names):
        raise SordinoError("a party did not send 32 random bytes")
    nonce = hashlib.sha256(base + b"".join(nonces[name] for name in names)).digest()
    said = {"clock": time.time(), **facts, **_progress(journal)}
    texts = exchange(
        star, pads, base + nonce + b"facts", json.dumps(said).encode(), longest=_LONGEST_FACTS
    )
    all_facts = {name: _facts(name, text) for name, text in texts.items()}
    _compare(star.name, all_facts)
    if check is not None:
        for name, said in all_facts.items():
            check(name, said)
    heard = hashlib.sha256(json.dumps([texts[name].hex() for name in names]).encode())
    if confirm(star, pads, nonce, "facts", heard.hexdigest()):
        raise SordinoError("a party has told others something else than this one")
    length = facts.get("parameters")
    caught_up = _catch_up(star, pads, journal, all_facts, base + nonce + b"sum", length)
    lost = None
    if any(other["claimed"] > journal.settled for other in all_facts.values()):
        lost = journal.settled
    place = f"{journal.settled} {journal.history.hex()} {lost}"
    if confirm(star, pads, nonce, "place", place):
        raise SordinoError("the parties have not come to the same turn")
    if lost is not None:
        journal.settle(lost, None)
    return Meeting(nonce, caught_up, lost)


def confirm(star: StarTransport, pads: Pads, nonce: bytes, what: str, value: str) -> list[str]:
    """Names of the parties that have another `value` of something than this one."""
    context = b"sordino confirmation 1" + star.roster.digest + nonce + what.encode()
    texts = exchange(star, pads, context, value.encode(), longest=256)
    return [name for name, text in texts.items() if text != value.encode()]


def _progress(journal: TurnJournal) -> Json:
    before = journal.history_after(journal.settled - 1) if journal.settled else b""
    return {
        "settled": journal.settled,
        "claimed": journal.claimed,
        "history": journal.history.hex(),
        "before": before.hex(),
    }


def _facts(name: str, text: bytes) -> Json:
    try:
        result = json.loads(text)
        for field in ("settled", "claimed"):
            if isinstance(result[field], bool) or not isinstance(result[field], int):
                raise SordinoError(f"{name!r} says a {field} that is no number")
        for field in ("history", "before"):
            bytes.fromhex(result[field])
        float(result["clock"])
        return dict(result)
    except SordinoError:
        raise
    except DAMAGE:
        raise SordinoError(f"what {name!r} says cannot be read") from None


def _compare(own_name: str, facts: Mapping[str, Json]) -> None:
    """Refuse to go on where a party means another run, or is at another turn of it."""
    own = facts[own_name]
    for name, other in facts.items():
        for field, what in FACTS.items():
            if other.get(field) != own.get(field):
                mine, theirs = _short(own.get(field)), _short(other.get(field))
                raise SordinoError(
                    f"{name!r} has another {what} ({theirs}) than {own_name!r} ({mine})"
                )
        apart = abs(float(other["clock"]) - float(own["clock"]))
        if not apart <= MOST_SKEW:
            raise SordinoError(
                f"the clocks of {name!r} and {own_name!r} are {apart:,.0f} s apart; set them right"
            )
    furthest = max(other["settled"] for other in facts.values())
    ahead = next(o for o in facts.values() if o["settled"] == furthest)
    for name, other in facts.items():
        if max(other["settled"], other["claimed"]) > own.get("steps", math.inf):
            raise SordinoError(f"{name!r} says that it has been in more turns than were planned")
        if other["settled"] < furthest - 1 or other["claimed"] > furthest + 1:
            raise SordinoError(
                f"{name!r} is at turn {other['settled']}, and others at turn {furthest}: its journal "
                "is not the newest one, or theirs are not"
            )
        level = other["settled"] == furthest
        if other["history"] != ahead["history" if level else "before"]:
            raise SordinoError(f"{name!r} has seen other sums than the others in earlier turns")


def _catch_up(
    star: StarTransport,
    pads: Pads,
    journal: TurnJournal,
    facts: Mapping[str, Json],
    context: bytes,
    length: int | None,
) -> bool:
    """Hand the last sum, of so many numbers, to whoever has missed it; whether this party had."""
    furthest = max(other["settled"] for other in facts.values())
    behind = [name for name, other in facts.items() if other["settled"] < furthest]
    if not behind:
        return False
    missed = star.name in behind
    giver = next(name for name in facts if name not in behind)
    mine = b"+" + packed(journal.sum_of(furthest - 1)) if star.name == giver else b""
    # One party has something to say, and what it says is as long as the model.
    most = _LONGEST_SUM if length is None else 2 + _NUMBER_BYTES * length
    limits = {name: most if name == giver else 0 for name in facts}
    given = exchange(star, pads, context, mine, longest=limits)[giver]
    if missed:
        noised = unpacked(given[1:]) if len(given) > 1 else None
        if noised is not None and length is not None and len(noised) != length:
            raise SordinoError(f"{giver!r} gave a sum of turn {furthest - 1} of another length")
        if journal.history_with(noised).hex() != facts[giver]["history"]:
            raise SordinoError(
                f"{giver!r} gave another sum of turn {furthest - 1} than the others have"
            )
        journal.settle(furthest - 1, noised)
    return missed


def _divided(together: bytes, names: tuple[str, ...]) -> dict[str, bytes]:
    result, at = {}, 0
    for name in names:
        try:
            (length,) = _LENGTH.unpack_from(together, at)
        except struct.error:
            raise SordinoError("what the parties say ends too early") from None
        result[name] = together[at + _LENGTH.size : at + _LENGTH.size + length]
        at += _LENGTH.size + length
    if at != len(together):
        raise SordinoError("what the parties say has another length than it should")
    return result


def _opened(name: str, raw: bytes, receivers: int, longest: int) -> tuple[bytes, bytes]:
    """A text and its codes."""
    if len(raw) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(raw)
        body = raw[_LENGTH.size :]
        if length <= longest and len(body) == length + _CODE_BYTES * receivers:
            return body[:length], body[length:]
    raise SordinoError(f"what {name!r} says has another length than it should")


def _code(key: bytes, sender: str, body: bytes) -> bytes:
    return hmac.digest(key, sender.encode() + b"\0" + body, "sha256")


def _short(value: object) -> str:
    text = one_line(value) if isinstance(value, str) else shown(value)
    return text[:16]

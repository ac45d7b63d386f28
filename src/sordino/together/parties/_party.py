"""One party of a run, from its journal to the trained model.

    result = run_party(name, learner=learner, journal=journal, join=join, private_key=key, facts=facts,
                       open_engine=open_engine)

Meet the others, then turn by turn: claim, sum, keep, go on. Whatever goes wrong, the others are told, the
connections are closed, and what has been settled is on disk; the same call again goes on from there.
`engine_of` opens an engine by its name, on the connections and addresses of a consortium.

**Meeting.** Parties that come together find out where to go on, and that they mean the same run. Everything
goes through the first party, which is not trusted more than any other: `exchange` sends a text to everybody
with a code for each receiver (HMAC under a key that only the two have), so that the party in the middle can
hold texts back, which ends the meeting, but not change one.

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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import DAMAGE, SordinoError, one_line, shown
from sordino._base.files import write_atomically
from sordino._base.types import Json, PyTree
from sordino.together._callbacks import Callbacks
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._journal import TurnJournal, TurnRecord, packed, unpacked
from sordino.together.parties._learner import Learner
from sordino.together.secure._base import SecureSum
from sordino.together.secure._child import Tls
from sordino.together.secure._mask import MaskSum, Pads
from sordino.together.secure._mpyc import MpycSum
from sordino.together.secure._spu_engine import SpuSum
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


# Ports of a party beyond its first one: for the parties of an engine, and for its nodes.
PARTIES, NODES = 1, 2
Claim = Callable[[int, bytes], None]
OpenEngine = Callable[[StarTransport, Meeting, Claim], SecureSum]


@dataclass(frozen=True)
class PartyResult:
    """A party's run that has come to its end.

    Attributes:
      params: the trained parameters.
      records: of all turns.
      different: parties whose model is not bit for bit the same: other processors round otherwise.
      seconds: of this call.
    """

    params: PyTree
    records: tuple[TurnRecord, ...]
    different: tuple[str, ...]
    seconds: float


def run_party(
    name: str,
    *,
    learner: Learner,
    journal: TurnJournal,
    join: Callable[[], StarTransport],
    private_key: bytes,
    facts: Json,
    open_engine: OpenEngine,
    check: Callable[[str, Json], None] | None = None,
    callbacks: Callbacks | None = None,
) -> PartyResult:
    """Take part until the last turn.

    Args:
      name: of this party.
      learner: new, at turn 0.
      journal: this party's, bound to its data.
      join: connects with the others.
      private_key: X25519, of codes and pads.
      facts: see `meet`.
      open_engine: the engine on these connections, for a session; it calls what it is given with a turn
        and a digest before anything is sent, if it does so at all.
      check: called with every party's name and facts; raises if they are not good enough.
      callbacks: are told about progress.
    """
    callbacks = callbacks or Callbacks()
    began = time.perf_counter()
    for noised in journal.sums():
        learner.take(noised)
    star = join()
    engine: SecureSum | None = None
    try:
        pads = Pads(name, private_key, star.roster.public_keys)
        session = meet(star, pads, journal, facts, check)
        for turn in range(learner.done, journal.settled):
            learner.take(journal.sum_of(turn))
        callbacks.met(session, journal.settled)
        while not learner.finished:
            if engine is None:
                engine = open_engine(star, session, _claimed(journal))
            callbacks.turned(_turn(learner, journal, engine), learner)
        apart = confirm(star, pads, session.nonce, "history", journal.history.hex())
        if apart:
            raise SordinoError(f"{', '.join(map(repr, apart))} has seen other sums than {name!r}")
        different = confirm(star, pads, session.nonce, "model", learner.digest())
    except BaseException as error:
        # What a SordinoError says is public; anything else may quote data.
        said = one_line(error, 300) if isinstance(error, SordinoError) else "it was stopped"
        with suppress(SordinoError):
            star.give_up(said)
        raise
    finally:
        if engine is not None:
            engine.close()
        star.close()
    return PartyResult(
        learner.params, tuple(journal.records()), tuple(different), time.perf_counter() - began
    )


def _claimed(journal: TurnJournal) -> Callable[[int, bytes], None]:
    def check(turn: int, digest: bytes) -> None:
        if journal.open_turn != turn:
            raise SordinoError(f"turn {turn} was not claimed")

    return check


def _turn(learner: Learner, journal: TurnJournal, engine: SecureSum) -> TurnRecord:
    turn = learner.done
    vector = learner.vector()
    largest = learner.terms.largest
    # Engines have room for more; whatever went wrong, nothing beyond the plan leaves.
    if int(vector.clipped.max()) > largest or int(vector.clipped.min()) < -largest:
        raise SordinoError("this party's vector is not within what was planned: nothing was sent")
    journal.claim(turn)
    began, before = time.perf_counter(), engine.bytes_sent
    noised = engine.noised_sum(vector.clipped, learner.variance, turn)
    seconds, sent = time.perf_counter() - began, engine.bytes_sent - before
    journal.settle(turn, noised, seconds, sent)
    learner.take(noised)
    return TurnRecord(turn, False, seconds, sent)


def engine_of(
    consortium: Consortium, name: str, *, private_key: bytes, certificate: Path, key: Path
) -> OpenEngine:
    """How party `name` opens the consortium's engine.

    Args:
      private_key: X25519.
      certificate, key: PEM files of this party; the certificates of all are written beside.
    """
    place, terms = consortium.place(name), consortium.terms

    def tls() -> Tls:
        authorities = certificate.with_name("certificates.pem")
        text = "\n".join(partner.member.certificate for partner in consortium.partners)
        write_atomically(authorities, text)
        prints = tuple(partner.member.fingerprint for partner in consortium.partners)
        return Tls(certificate, key, authorities, prints)

    def mask(star: StarTransport, session: Meeting, claim: Claim) -> SecureSum:
        return MaskSum(
            name,
            private_key,
            consortium.roster,
            star,
            colluders=terms.colluders,
            largest=terms.largest,
            claim=claim,
            nonce=session.nonce,
        )

    def mpyc(star: StarTransport, session: Meeting, claim: Claim) -> SecureSum:
        return MpycSum(
            place,
            consortium.addresses(PARTIES),
            colluders=terms.colluders,
            timeout=consortium.timeout,
            tls=tls(),
        )

    def spu(star: StarTransport, session: Meeting, claim: Claim) -> SecureSum:
        return SpuSum(
            place,
            terms.parties,
            consortium.addresses(PARTIES, 3),
            consortium.addresses(NODES, 3),
            timeout=consortium.timeout,
            tls=tls(),
        )

    return {"mask": mask, "mpyc": mpyc, "spu": spu}[terms.engine]


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

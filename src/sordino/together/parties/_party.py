"""One party of a run, from its journal to the trained model.

    result = run_party(name, learner=learner, journal=journal, join=join, private_key=key, facts=facts,
                       open_engine=open_engine)

Meet the others, then turn by turn: claim, sum, keep, go on. Whatever goes wrong, the others are told, the
connections are closed, and what has been settled is on disk; the same call again goes on from there.
`engine_of` opens an engine by its name, on the connections and addresses of a consortium.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sordino._base.errors import SordinoError, one_line
from sordino._base.files import write_atomically
from sordino._base.types import Json, PyTree
from sordino.together._callbacks import Callbacks
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._journal import TurnJournal, TurnRecord
from sordino.together.parties._learner import Learner
from sordino.together.parties._meeting import Meeting, confirm, meet
from sordino.together.secure._base import SecureSum
from sordino.together.secure._child import Tls
from sordino.together.secure._mask import MaskSum, Pads
from sordino.together.secure._mpyc import MpycSum
from sordino.together.secure._spu_engine import SpuSum
from sordino.together.secure._transport import StarTransport

OpenEngine = Callable[[StarTransport, Meeting, Callable[[int, bytes], None]], SecureSum]


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


# Ports of a party beyond its first one: for the parties of an engine, and for its nodes.
PARTIES, NODES = 1, 2
Claim = Callable[[int, bytes], None]


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

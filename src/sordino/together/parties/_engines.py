"""Engines by name, on the connections and addresses of a consortium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sordino._base.files import write_atomically
from sordino.together.parties._consortium import Consortium
from sordino.together.parties._meeting import Meeting
from sordino.together.parties._party import OpenEngine
from sordino.together.secure._base import SecureSum
from sordino.together.secure._child import Tls
from sordino.together.secure._mask import MaskSum
from sordino.together.secure._mpyc_engine import MpycSum
from sordino.together.secure._spu_engine import SpuSum
from sordino.together.secure._transport import StarTransport

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

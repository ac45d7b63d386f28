"""The file that all parties sign: who they are, what they train, and how.

    consortium = Consortium("lung study", partners, terms, model={...})
    consortium.save(path)
    consortium.verify("north", consortium.sign(private_key_pem))

It has nothing secret in it. Its digest covers everything that decides what is released and to whom; a
party signs it with the key of its certificate, and nobody trains with a party whose signature of the very
same file it has not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sordino._base.codec import digest_of, load_json, save_json
from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino._base.types import Json
from sordino._version import __version__, code_digest
from sordino.together._certificates import Roster, RosterEntry
from sordino.together.parties._terms import Terms

FORMAT, VERSION = "sordino-consortium", 1
CARD, CARD_VERSION = "sordino-party", 1


@dataclass(frozen=True)
class PartyCard:
    """One party as the others know it: what `sordino party init` gives to be handed around.

    Attributes:
      member: name, X25519 key and certificate.
      examples: how many records it brings.
      host: where it can be reached.
      port: the first of three that engines may use: connections of all parties, of an engine's own
        parties, and of its nodes with each other.
    """

    member: RosterEntry
    examples: int
    host: str
    port: int

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host or not self.host.isprintable():
            raise SordinoError(f"{shown(self.host)} is not a host")
        for name, value, most in (("port", self.port, 65533), ("examples", self.examples, 1 << 40)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise SordinoError(f"{name} must be from 1 to {most:,}, got {shown(value)}")

    @property
    def name(self) -> str:
        return self.member.name

    def to_json(self) -> Json:
        return {
            "format": CARD,
            "version": CARD_VERSION,
            **self.member.to_json(),
            "examples": self.examples,
            "host": self.host,
            "port": self.port,
        }

    @classmethod
    def from_json(cls, data: Json) -> PartyCard:
        try:
            if (data["format"], data["version"]) != (CARD, CARD_VERSION):
                raise SordinoError(f"this is not a party's card of version {CARD_VERSION}")
            return cls(RosterEntry.from_json(data), data["examples"], data["host"], data["port"])
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a party's card: {shown(data)}") from None

    def save(self, path: Path) -> None:
        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> PartyCard:
        return load_json(path, "a party's card", cls.from_json)


@dataclass(frozen=True)
class Consortium:
    """See the module.

    Attributes:
      name: of the run.
      partners: the parties, in the order of the terms' sizes; the first one is in the middle.
      terms: plan, engine, colluders, grid.
      model: its description (`sites/_models.py`), the same everywhere.
      timeout: seconds that a turn may take.
    """

    name: str
    partners: tuple[PartyCard, ...]
    terms: Terms
    model: Json
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name) <= 200:
            raise SordinoError(
                f"a consortium's name has 1 to 200 characters, not {shown(self.name)}"
            )
        if not (isinstance(self.timeout, int | float) and 0 < self.timeout <= 86400):
            raise SordinoError(f"timeout must be up to 86,400 seconds, got {shown(self.timeout)}")
        sizes = tuple(partner.examples for partner in self.partners)
        if sizes != self.terms.examples:
            raise SordinoError(
                f"the terms are for parties with {self.terms.examples} records, the parties have {sizes}"
            )
        if self.terms.engine == "plain":
            raise SordinoError("the engine 'plain' protects nobody, and is not for a consortium")
        assert self.roster.names  # no two alike

    @cached_property
    def roster(self) -> Roster:
        first = self.partners[0]
        members = tuple(partner.member for partner in self.partners)
        return Roster(self.name, members, first.host, first.port)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(partner.name for partner in self.partners)

    def place(self, name: str) -> int:
        """Which party that is."""
        if name not in self.names:
            raise SordinoError(f"the consortium {self.name!r} has no party {shown(name)}")
        return self.names.index(name)

    def addresses(self, offset: int, count: int | None = None) -> list[str]:
        """``host:port`` of the parties' ports for one use."""
        return [f"{p.host}:{p.port + offset}" for p in self.partners[:count]]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, hex; what parties sign."""
        return digest_of(self.to_json())

    def facts(self, signature: str) -> Json:
        """What this party says about the run when it meets the others."""
        model = json.dumps(self.model, sort_keys=True)
        return {
            "version": __version__,
            "code": code_digest()[:16],
            "consortium": self.digest,
            "plan": self.terms.plan.hash,
            "model": hashlib.sha256(model.encode()).hexdigest(),
            "steps": self.terms.plan.population.steps,
            "parameters": self.terms.parameters,
            "signature": signature,
        }

    def sign(self, private_key: str) -> str:
        """A signature of the digest, hex, with a certificate's private key (PEM)."""
        key = serialization.load_pem_private_key(private_key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SordinoError("a party signs with the ECDSA key of its certificate")
        return key.sign(self._signed, ec.ECDSA(hashes.SHA256())).hex()

    def verify(self, name: str, signature: object) -> None:
        """An error unless that is the party's signature of this file."""
        certificate = self.partners[self.place(name)].member.certificate
        key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
        try:
            assert isinstance(key, ec.EllipticCurvePublicKey)
            key.verify(bytes.fromhex(str(signature)), self._signed, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, AssertionError, ValueError, TypeError):
            raise SordinoError(f"{name!r} has not signed this consortium file") from None

    @property
    def _signed(self) -> bytes:
        return b"sordino consortium 1 " + self.digest.encode()

    def to_json(self) -> Json:
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "partners": [partner.to_json() for partner in self.partners],
            "terms": self.terms.to_json(),
            "model": dict(self.model),
            "timeout": self.timeout,
        }

    @classmethod
    def from_json(cls, data: Json) -> Consortium:
        try:
            if (data["format"], data["version"]) != (FORMAT, VERSION):
                raise SordinoError(f"this is not a consortium file of version {VERSION}")
            if not isinstance(data["model"], dict):
                raise SordinoError("the model of a consortium is a table of fields")
            partners = tuple(PartyCard.from_json(one) for one in data["partners"])
            terms = Terms.from_json(data["terms"])
            return cls(data["name"], partners, terms, data["model"], data["timeout"])
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a consortium file: {shown(data)}") from None

    def save(self, path: Path) -> None:
        save_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Consortium:
        return load_json(path, "a consortium file", cls.from_json)


def described(model: Json) -> str:
    """A model's description."""
    if model.get("kind") == "table":
        schema = model.get("schema")
        target = schema.get("target") if isinstance(schema, Mapping) else None
        return f"linear, of a table, predicting {shown(target)}"
    return f"{shown(model.get('name'))}, each party's own installed code"

"""Who takes part in a secure sum: names, keys and certificates, and where the first party listens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino.together._certificates import (
    certificate_fingerprint,
    require_certificate,
    require_name,
)

VERSION = 1


@dataclass(frozen=True)
class RosterEntry:
    """One party as the others know it.

    Attributes:
      name: letters, digits, dots, dashes and underscores.
      public_key: X25519, 32 bytes.
      certificate: PEM.
    """

    name: str
    public_key: bytes
    certificate: str

    def __post_init__(self) -> None:
        require_name("a party", self.name)
        if not isinstance(self.public_key, bytes) or len(self.public_key) != 32:
            raise SordinoError(f"the public key of {self.name!r} must have 32 bytes")
        require_certificate(self.certificate)

    @property
    def fingerprint(self) -> str:
        return certificate_fingerprint(self.certificate)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "public_key": self.public_key.hex(),
            "certificate": self.certificate,
        }

    @classmethod
    def from_json(cls, data: Any) -> RosterEntry:
        """As `to_json` made it, in a table that may have more; raises what damage raises."""
        return cls(data["name"], bytes.fromhex(data["public_key"]), data["certificate"])


@dataclass(frozen=True)
class Roster:
    """Who takes part in a session, the same at every party; the first member is in the middle."""

    session: str
    members: tuple[RosterEntry, ...]
    host: str
    port: int

    def __post_init__(self) -> None:
        if not isinstance(self.session, str) or not 1 <= len(self.session) <= 256:
            raise SordinoError(
                f"a session is a text of 1 to 256 characters, not {shown(self.session)}"
            )
        if len(self.members) < 2:
            raise SordinoError(f"a sum needs at least two parties, got {len(self.members)}")
        for what in ("name", "public_key", "fingerprint"):
            if len({getattr(member, what) for member in self.members}) != len(self.members):
                raise SordinoError(f"two parties have the same {what.replace('_', ' ')}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def hub(self) -> str:
        """The first party, that all others connect to."""
        return self.members[0].name

    @property
    def public_keys(self) -> dict[str, bytes]:
        return {member.name: member.public_key for member in self.members}

    @property
    def digest(self) -> bytes:
        """Of everything but the address, which may look different from different places."""
        text = [self.session]
        text += [f"{m.name} {m.public_key.hex()} {m.fingerprint}" for m in self.members]
        return hashlib.sha256(json.dumps(["sordino roster 1", *text]).encode()).digest()

    def member(self, name: str) -> RosterEntry:
        for member in self.members:
            if member.name == name:
                return member
        raise SordinoError(f"there is no party {shown(name)} in the roster")

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "session": self.session,
            "members": [member.to_json() for member in self.members],
            "host": self.host,
            "port": self.port,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Roster:
        try:
            if data["version"] != VERSION:
                raise SordinoError(f"this roster has format version {shown(data['version'])}")
            members = tuple(RosterEntry.from_json(one) for one in data["members"])
            return cls(data["session"], members, str(data["host"]), int(data["port"]))
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a roster: {shown(data)}") from None

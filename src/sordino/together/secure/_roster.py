"""Who takes part in a secure sum: names, keys and certificates, and where the first party listens.

Each party has one certificate, signed by itself and trusted because the roster holds it.

    certificate, key = create_certificate(folder, "north")     # north.crt to give away, north.key to keep

ECDSA on P-256, good for both ends of a connection. There is no authority: nobody but the parties
themselves decides who is in a consortium, and a certificate that is not in the roster opens nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino._base.errors import DAMAGE, SordinoError, shown
from sordino._base.files import write_atomically

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Clocks differ; what is valid from now on would be refused by one that is slow.
_SLOW_CLOCK = timedelta(hours=1)


def create_certificate(folder: Path, name: str, *, days: int = 825) -> tuple[Path, Path]:
    """Make a party's certificate and private key (0600); the paths of both.

    Raises:
      SordinoError: if the folder has one of that name already: the others know the party by it.
    """
    folder = Path(folder)
    certificate, key = new_certificate(name, days=days)
    paths = folder / f"{name}.crt", folder / f"{name}.key"
    for path in paths:
        if path.exists():
            raise SordinoError(f"{str(path)!r} exists already and is not replaced")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(paths[1], key, mode=0o600)
    write_atomically(paths[0], certificate)
    return paths


def new_certificate(name: str, *, days: int = 825) -> tuple[str, str]:
    """A certificate and its private key, both PEM."""
    if not NAME.fullmatch(name):
        raise SordinoError(
            f"a party's name must be 1 to 64 letters, digits, dots, dashes and underscores, and start "
            f"with a letter or digit, not {shown(name)}"
        )
    if not 1 <= days <= 36500:
        raise SordinoError(f"a certificate must be valid for 1 to 36500 days, not {shown(days)}")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLOW_CLOCK)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), private.decode()


def require_certificate(text: Any) -> None:
    """Refuse what is not one PEM certificate with a key that signatures can be checked with.

    A card or a consortium file may have anything between the lines of a certificate.
    """
    try:
        if str(text).count("-----BEGIN") != 1:
            raise ValueError
        raw = ssl.PEM_cert_to_DER_cert(str(text).strip() + "\n")
        key = x509.load_der_x509_certificate(raw).public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise SordinoError(f"this is not a PEM certificate: {shown(text)}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SordinoError(f"this certificate has no ECDSA key: {shown(text)}")


def certificate_fingerprint(certificate: str | bytes) -> str:
    """SHA-256 of a certificate (PEM text, or DER bytes), in hexadecimal."""
    if isinstance(certificate, str):
        try:
            certificate = ssl.PEM_cert_to_DER_cert(certificate.strip() + "\n")
        except ValueError:
            raise SordinoError(f"this is not a PEM certificate: {shown(certificate)}") from None
    return hashlib.sha256(certificate).hexdigest()


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
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise SordinoError(f"{shown(self.name)} is not a party's name")
        if not isinstance(self.public_key, bytes) or len(self.public_key) != 32:
            raise SordinoError(f"the public key of {self.name!r} must have 32 bytes")
        require_certificate(self.certificate)

    @property
    def fingerprint(self) -> str:
        return certificate_fingerprint(self.certificate)


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
        members = [
            {"name": m.name, "public_key": m.public_key.hex(), "certificate": m.certificate}
            for m in self.members
        ]
        return {
            "version": VERSION,
            "session": self.session,
            "members": members,
            "host": self.host,
            "port": self.port,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Roster:
        try:
            if data["version"] != VERSION:
                raise SordinoError(f"this roster has format version {shown(data['version'])}")
            members = tuple(
                RosterEntry(m["name"], bytes.fromhex(m["public_key"]), m["certificate"])
                for m in data["members"]
            )
            return cls(data["session"], members, str(data["host"]), int(data["port"]))
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a roster: {shown(data)}") from None

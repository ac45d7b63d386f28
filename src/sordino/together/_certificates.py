"""Who is who in a deployment: certificates and keys of parties, servers and clients.

    certificate, key = new_certificate("north")                                       # of a party
    create_authority(folder); create_server_certificate(folder, ["fl.example.org"])   # of a server
    create_client_key(folder, "north")                                                # of its client

*Parties* have one certificate each, signed by itself and trusted because the roster holds it: ECDSA on
P-256, good for both ends of a connection. There is no authority: nobody but the parties themselves decides
who is in a consortium, and a certificate that is not in the `Roster` opens nothing.

*A server's clients* get its authority's certificate (``ca.crt``) and give their public keys
(``north.pub``), all ECDSA on P-384. Private keys stay where they were made, readable by their owner only.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sordino._base.errors import DAMAGE, SordinoError, one_line, shown
from sordino._base.files import require_private, write_atomically
from sordino._base.types import Json

AUTHORITY = "ca.crt"
AUTHORITY_KEY = "ca.key"
CERTIFICATE = "server.crt"
CERTIFICATE_KEY = "server.key"

_PRIVATE = 0o600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Clocks differ; what is valid from now on would be refused by one that is slow.
_SLOW_CLOCK = timedelta(hours=1)


def require_name(whose: str, name: object) -> str:
    """`name` if it can be a member's: files, certificates and key folders are named by it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SordinoError(
            f"{whose}'s name must be 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter "
            f"or digit, got {shown(name)}"
        )
    return name


def new_certificate(name: str, *, days: int = 825) -> tuple[str, str]:
    """A certificate and its private key, both PEM."""
    require_name("a party", name)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(name)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), private.decode()


def require_certificate(text: object) -> None:
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


def create_authority(folder: Path, *, days: int = 3650) -> Path:
    """Make the authority that signs the server's certificate; the path of its own certificate.

    Raises:
      SordinoError: if the folder has one already. Clients trust it, and would not trust another one.
    """
    folder = Path(folder)
    _must_be_new(folder / AUTHORITY_KEY, folder / AUTHORITY)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("Sordino federation")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), days, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / AUTHORITY_KEY, key)
    write_atomically(folder / AUTHORITY, certificate.public_bytes(Encoding.PEM))
    return folder / AUTHORITY


def create_server_certificate(folder: Path, hosts: Sequence[str], *, days: int = 825) -> Path:
    """Make the server's key and have it certified for these hosts; the certificate's path.

    The folder's authority signs it. An earlier certificate is replaced, which is how to renew one.

    Args:
      hosts: the names and addresses under which clients reach the server.
    """
    folder = Path(folder)
    if isinstance(hosts, str) or not hosts:
        raise SordinoError(
            f"hosts must be a list of at least one name or address, not {shown(hosts)}"
        )
    authority, signer = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("Sordino server")
    usage = _usage(digital_signature=True)
    certificate = (
        _builder(name, authority.subject, key.public_key(), days, signer.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write_private(folder / CERTIFICATE_KEY, key)
    write_atomically(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return folder / CERTIFICATE


def create_client_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a client's key pair, in OpenSSH's format; the paths of the private and the public key.

    Raises:
      SordinoError: if the client has one already. The server knows the client by it.
    """
    require_name("a client", name)
    folder = Path(folder)
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    _must_be_new(private, public)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    write_atomically(private, text, mode=_PRIVATE)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_atomically(public, line + f" {name}\n".encode())
    return private, public


def read_client_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key; an error if others can read it too."""
    text = _read(path)
    try:
        key = load_ssh_private_key(text, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SordinoError(
            f"{str(path)!r} is not a private ECDSA key in OpenSSH's format without a password"
        )
    require_private(path)
    return key


def read_public_keys(paths: Mapping[str, Path]) -> dict[str, ec.EllipticCurvePublicKey]:
    """The public key of each client, no two of them the same."""
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    owner: dict[bytes, str] = {}
    for name, path in paths.items():
        text = _read(path)
        try:
            key = load_ssh_public_key(text)
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise SordinoError(f"{str(path)!r} is not a public ECDSA key in OpenSSH's format")
        value = key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        if value in owner:
            raise SordinoError(
                f"the clients {shown(owner[value])} and {shown(name)} have the same key; "
                "each needs its own"
            )
        keys[name], owner[value] = key, name
    return keys


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    require_private(folder / AUTHORITY_KEY)
    public, private = _read(folder / AUTHORITY), _read(folder / AUTHORITY_KEY)
    try:
        certificate = x509.load_pem_x509_certificate(public)
        key = load_pem_private_key(private, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SordinoError(f"{str(folder)!r} does not hold an authority made by create_authority")
    return certificate, key


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    authority: ec.EllipticCurvePublicKey | None = None,
) -> x509.CertificateBuilder:
    """A certificate from now on; of an authority, with identifiers of both keys."""
    if not 1 <= days <= 36500:
        raise SordinoError(f"a certificate must be valid for 1 to 36500 days, not {shown(days)}")
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLOW_CLOCK)
        .not_valid_after(now + timedelta(days=days))
    )
    if authority is None:
        return built
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority)
    own = x509.SubjectKeyIdentifier.from_public_key(key)
    return built.add_extension(own, critical=False).add_extension(issued_by, critical=False)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except (ValueError, TypeError):
        raise SordinoError(f"{shown(host)} is neither a host's name nor an address") from None


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_atomically(path, text, mode=_PRIVATE)


def _must_be_new(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise SordinoError(f"{str(path)!r} exists already and is not replaced")


def _read(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SordinoError(
            f"cannot read {str(path)!r}: {one_line(error.strerror or error)}"
        ) from None


ROSTER_VERSION = 1


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

    def to_json(self) -> Json:
        return {
            "name": self.name,
            "public_key": self.public_key.hex(),
            "certificate": self.certificate,
        }

    @classmethod
    def from_json(cls, data: Json) -> RosterEntry:
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

    def to_json(self) -> Json:
        return {
            "version": ROSTER_VERSION,
            "session": self.session,
            "members": [member.to_json() for member in self.members],
            "host": self.host,
            "port": self.port,
        }

    @classmethod
    def from_json(cls, data: Json) -> Roster:
        try:
            if data["version"] != ROSTER_VERSION:
                raise SordinoError(f"this roster has format version {shown(data['version'])}")
            members = tuple(RosterEntry.from_json(one) for one in data["members"])
            return cls(data["session"], members, str(data["host"]), int(data["port"]))
        except SordinoError:
            raise
        except DAMAGE:
            raise SordinoError(f"this is not a roster: {shown(data)}") from None

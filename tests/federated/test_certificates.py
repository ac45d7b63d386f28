"""Certificates and keys: what they say, who may read them, and what else they are taken for."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sordino._base.errors import SordinoError
from sordino.together._certificates import (
    create_authority,
    create_client_key,
    create_server_certificate,
    read_client_key,
    read_public_keys,
)


def test_the_servers_certificate_is_for_its_hosts_and_from_its_authority(tmp_path: Path) -> None:
    authority = create_authority(tmp_path)
    certificate = create_server_certificate(tmp_path, ["fl.example.org", "127.0.0.1", "::1"])
    root = x509.load_pem_x509_certificate(authority.read_bytes())
    leaf = x509.load_pem_x509_certificate(certificate.read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for one in (root, leaf):
        key = one.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP384R1)
    ssl.create_default_context(cafile=str(authority))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "server.key")


def test_private_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    create_authority(folder)
    create_server_certificate(folder, ["localhost"])
    create_client_key(folder, "north")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    private = {path.name for path in folder.iterdir() if b"PRIVATE" in path.read_bytes()}
    assert private == {"ca.key", "server.key", "north.key"}
    for name in private:
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_a_clients_key_is_one_that_openssh_knows(tmp_path: Path) -> None:
    private, public = create_client_key(tmp_path, "north")
    assert private.read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert public.read_text().endswith(" north\n")
    known = read_public_keys({"north": public})["north"]
    assert known == read_client_key(private).public_key()


def test_nothing_that_others_rely_on_is_replaced(tmp_path: Path) -> None:
    create_authority(tmp_path)
    create_client_key(tmp_path, "north")
    with pytest.raises(SordinoError, match="exists already"):
        create_authority(tmp_path)
    with pytest.raises(SordinoError, match="exists already"):
        create_client_key(tmp_path, "north")
    first = create_server_certificate(tmp_path, ["a"]).read_bytes()
    assert create_server_certificate(tmp_path, ["a"]).read_bytes() != first


@pytest.mark.parametrize("name", ["", "../north", "a/b", ".north", "a b", "n" * 65, "a\n"])
def test_a_name_is_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(SordinoError, match="a client's name must be"):
        create_client_key(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_hosts_and_days_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="cannot read"):
        create_server_certificate(tmp_path, ["a"])
    create_authority(tmp_path)
    wrong: list[Sequence[str]] = [[], "localhost"]
    for hosts in wrong:
        with pytest.raises(SordinoError, match="hosts must be a list"):
            create_server_certificate(tmp_path, hosts)
    with pytest.raises(SordinoError, match="neither a host's name nor an address"):
        create_server_certificate(tmp_path, ["bücher.example"])
    with pytest.raises(SordinoError, match="valid for 1 to 36500 days"):
        create_server_certificate(tmp_path, ["a"], days=0)
    assert not (tmp_path / "server.key").exists()


def test_a_damaged_authority_is_named(tmp_path: Path) -> None:
    create_authority(tmp_path)
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(SordinoError, match="does not hold an authority"):
        create_server_certificate(tmp_path, ["a"])


def test_keys_that_are_none_are_named(tmp_path: Path) -> None:
    private, public = create_client_key(tmp_path, "north")
    with pytest.raises(SordinoError, match="cannot read"):
        read_client_key(tmp_path / "absent")
    with pytest.raises(SordinoError, match="is not a private ECDSA key"):
        read_client_key(public)
    with pytest.raises(SordinoError, match="is not a public ECDSA key"):
        read_public_keys({"north": private})
    other = tmp_path / "other.pub"
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    other.write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    with pytest.raises(SordinoError, match="is not a public ECDSA key"):
        read_public_keys({"north": other})


def test_no_two_clients_have_one_key(tmp_path: Path) -> None:
    _, public = create_client_key(tmp_path, "north")
    with pytest.raises(SordinoError, match="'north' and 'south' have the same key"):
        read_public_keys({"north": public, "south": public})

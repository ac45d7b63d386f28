"""A federated run on disk: one folder for the server, one for each client, each with its own copies.

    study/
      agreement.json  model.json            public, the same everywhere
      server/         server.toml  agreement.json  model.json  server.crt  server.key  nodes/*.pub
      clients/a/      client.toml  agreement.json  model.json  ca.crt  node.key  [pad.key]

`create` writes all of them; then each client's folder goes to its client, and nowhere else. What a run
adds (a server's and a client's SQLite file) is written beside; a client's seal lies in its key folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino._base.codec import save_json
from sordino._base.errors import (
    SordinoError,
    known_fields,
    one_line,
    require_count,
    require_positive,
    shown,
)
from sordino._base.files import (
    new_folder,
    remove_leftovers,
    require_private,
    write_atomically,
)
from sordino._base.keystore import KeyStore
from sordino.together._certificates import (
    create_authority,
    create_client_key,
    create_server_certificate,
)
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import SECRET_BYTES
from sordino.together.federated._contribution import flattened
from sordino.together.federated._coordinator import DurableServer
from sordino.together.federated._durable import ClientConfig, DurableClient
from sordino.together.federated._server import Server
from sordino.together.sites._models import ModelSpec, load_model_description

AGREEMENT, MODEL_DESCRIPTION = "agreement.json", "model.json"
AUTHORITY = "ca.crt"


@dataclass(frozen=True)
class ServerSettings:
    """``server.toml``: where a server listens.

    Attributes:
      host, port: the one address.
      timeout: seconds that a round trip may take, the client's work included.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    timeout: float = 60.0


@dataclass(frozen=True)
class ClientSettings:
    """``client.toml``: a client's own decisions.

    Attributes:
      name: in the agreement.
      server: ``host:port``.
      data: its table; may be given on the command line instead.
      mu: a budget of its own, if it wants less than what was agreed.
    """

    name: str
    server: str
    data: str | None = None
    mu: float | None = None

    def __post_init__(self) -> None:
        for name in ("name", "server", "data"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "data" and value is None):
                raise SordinoError(f"{name} in client.toml must be a text, got {shown(value)}")
        if self.mu is not None:
            require_positive("mu in client.toml", self.mu)


@dataclass(frozen=True)
class ServerSite:
    """A server's folder."""

    folder: Path
    settings: ServerSettings
    agreement: Agreement
    model: ModelSpec

    @classmethod
    def load(cls, folder: Path, *, allow: Collection[str] = ()) -> ServerSite:
        """Read a server's folder; `allow` as in `sites.models.model_from_json`."""
        remove_leftovers(folder)
        settings = ServerSettings(**_toml(folder / "server.toml", ServerSettings))
        require_count("port", settings.port)
        require_positive("timeout", settings.timeout)
        agreement, model = _common(folder, allow)
        return cls(folder, settings, agreement, model)

    def open(self, **options: Any) -> DurableServer:
        """The coordinator, new or as it was left."""
        secret = None
        if self.agreement.trust == "trusted":
            name = f"{self.agreement.digest[:32]}-noise"
            secret = KeyStore().load_or_create("federated-server", name, SECRET_BYTES)
        server = Server(self.agreement, flattened(self.model.params), secret)
        return DurableServer.open(server, self.folder / "server.db", **options)

    def nodes(self) -> dict[str, Path]:
        """Every client's public key."""
        return {name: self.folder / "nodes" / f"{name}.pub" for name in self.agreement.clients}


@dataclass(frozen=True)
class ClientSite:
    """A client's folder."""

    folder: Path
    settings: ClientSettings
    agreement: Agreement
    model: ModelSpec

    @classmethod
    def load(cls, folder: Path, *, allow: Collection[str] = ()) -> ClientSite:
        """Read a client's folder; `allow` as in `sites.models.model_from_json`."""
        remove_leftovers(folder)
        settings = ClientSettings(**_toml(folder / "client.toml", ClientSettings))
        agreement, model = _common(folder, allow)
        if settings.name not in agreement.clients:
            raise SordinoError(f"the agreement has no client {settings.name!r}")
        return cls(folder, settings, agreement, model)

    def part(self, data: Path | None) -> ClientConfig:
        """What this client brings, with the table named here or in its settings."""
        where = data or (self.folder / self.settings.data if self.settings.data else None)
        if where is None:
            raise SordinoError(
                f"name this client's table: with --data, or as data in "
                f"{str(self.folder / 'client.toml')!r}"
            )
        pad = self.folder / "pad.key"
        return ClientConfig(
            self.settings.name,
            self.agreement,
            self.model.loss,
            self.model.params,
            self.model.load(where),
            self.settings.mu,
            read_pad_key(pad) if pad.exists() else None,
        )

    def open(self, part: ClientConfig, *, store: KeyStore | None = None) -> DurableClient:
        """The client, new or as it was left."""
        return DurableClient.open(part, self.folder / "journal.db", store=store)

    @property
    def node_key(self) -> Path:
        return self.folder / "node.key"


def read_pad_key(path: Path) -> bytes:
    """A client's private key of a secure sum; an error if others can read it too."""
    require_private(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise SordinoError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def create(
    folder: Path,
    agreement: Agreement,
    model: ModelSpec,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    private: Mapping[str, bytes] | None = None,
    deployed: bool = True,
) -> None:
    """Write the folders of a new federated run; all of them or none.

    Args:
      private: under a secure sum, every client's private key.
      deployed: whether to make certificates and keys for a real network (which needs Flower).
    """
    if model.description is None:
        raise SordinoError("this model has no description that sites could share")
    with new_folder(folder) as staging:
        clients = {name: staging / "clients" / name for name in agreement.clients}
        for site in (staging, staging / "server", *clients.values()):
            site.mkdir(parents=True, exist_ok=True)
            agreement.save(site / AGREEMENT)
            save_json(site / MODEL_DESCRIPTION, model.description)
        server = staging / "server"
        settings = ServerSettings(host, port)
        write_atomically(server / "server.toml", _server_toml(settings))
        for name, site in clients.items():
            write_atomically(site / "client.toml", _client_toml(name, f"{host}:{port}"))
            if private is not None:
                write_atomically(site / "pad.key", private[name], mode=0o600)
        if deployed:
            _make_keys(staging, server, clients, host)


def _make_keys(staging: Path, server: Path, clients: Mapping[str, Path], host: str) -> None:
    """A certificate authority, the server's certificate, every client's key.

    The authority's own key stays in the server's folder, to renew the certificate with; it may be
    taken away from there.
    """
    authority = create_authority(server)
    hosts = list(dict.fromkeys([host, "127.0.0.1", "localhost"]))
    create_server_certificate(server, hosts)
    (server / "nodes").mkdir()
    for name, site in clients.items():
        private, public = create_client_key(site, name)
        os.rename(public, server / "nodes" / f"{name}.pub")
        os.rename(private, site / "node.key")
        shutil.copyfile(authority, site / AUTHORITY)


def _common(folder: Path, allow: Collection[str]) -> tuple[Agreement, ModelSpec]:
    agreement = Agreement.load(folder / AGREEMENT)
    model = load_model_description(folder / MODEL_DESCRIPTION, allow)
    if model.parameters != agreement.parameters:
        raise SordinoError(
            f"in {str(folder)!r} the model has {model.parameters:,} parameters, the agreement "
            f"{agreement.parameters:,}"
        )
    return agreement, model


def _toml(path: Path, cls: type) -> dict[str, Any]:
    try:
        return known_fields(path.name, tomllib.loads(path.read_text("utf-8")), cls)
    except OSError as error:
        raise SordinoError(
            f"cannot read {str(path)!r} ({error.strerror or error}); give a folder that "
            "`sordino federated init` has written"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SordinoError(f"{str(path)!r} is not TOML: {one_line(error)}") from None


def _server_toml(settings: ServerSettings) -> str:
    return (
        "# Where the server listens, and how long a round trip may take, in seconds.\n"
        f"host = {json.dumps(settings.host)}\nport = {settings.port}\n"
        f"timeout = {settings.timeout}\n"
    )


def _client_toml(name: str, server: str) -> str:
    return (
        "# This client's own decisions. Clip, noise and budget are in agreement.json beside this file;\n"
        "# no server can change them.\n"
        f"name = {json.dumps(name)}\nserver = {json.dumps(server)}\n"
        '# data = "table.csv"    # relative to this folder; or give --data\n'
        "# mu = 0.5             # a budget of your own, below the agreed one\n"
    )

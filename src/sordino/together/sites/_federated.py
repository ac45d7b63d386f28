"""A federated run on disk: one folder for the server, one for each client, each with its own copies.

    study/
      agreement.json  model.json            public, the same everywhere
      server/         server.toml  agreement.json  model.json  server.crt  server.key  nodes/*.pub
      clients/a/      client.toml  agreement.json  model.json  ca.crt  node.key  [pad.key]

`create` writes all of them; then each client's folder goes to its client, and nowhere else. What a run
adds (a server's and a client's SQLite file) is written beside; a client's seal lies in its key folder.

`local_clients` and `local_server` need no folders: all of a run in this process, to the end by `run_here`.
"""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sordino._base.codec import save_json
from sordino._base.errors import (
    SordinoError,
    known_fields,
    one_line,
    require_choice,
    require_count,
    require_positive,
    shown,
)
from sordino._base.files import new_folder, remove_leftovers, require_private, write_atomically
from sordino._base.keystore import KeyStore
from sordino._base.types import Json
from sordino.together._certificates import (
    AUTHORITY,
    create_authority,
    create_client_key,
    create_server_certificate,
)
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import SECRET_BYTES, fresh_secret, insecure_secret
from sordino.together.federated._cohorts import Cohorts
from sordino.together.federated._contribution import flattened
from sordino.together.federated._coordinator import DurableServer, RoundRecord
from sordino.together.federated._durable import ClientConfig, DurableClient, VolatileClient
from sordino.together.federated._messages import Coordinator, Endpoint
from sordino.together.federated._server import Server
from sordino.together.federated._sum_stream import SumStream
from sordino.together.secure._mask import new_private_key, public_key
from sordino.together.sites._models import Arrays, ModelSpec, load_model_description

AGREEMENT, MODEL_DESCRIPTION = "agreement.json", "model.json"


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


def _toml(path: Path, cls: type) -> Json:
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


ENGINES = ("direct", "flower", "ray")
# A run that gets nowhere for so many exchanges in a row is given up.
_STUCK = 1000
# Clients times rounds for which the sums' covariance is worked out for every onlooker.
_MOST_WORK = 50_000


def run_directly(coordinator: Coordinator, endpoints: Mapping[str, Endpoint]) -> None:
    """Ask and answer in this process, with nothing in between, until the coordinator has finished."""
    names = sorted(endpoints)
    idle = 0
    while not coordinator.finished:
        asked = coordinator.requests(names)
        idle = 0 if asked else idle + 1
        if idle > _STUCK:
            raise SordinoError("the run cannot go on: nobody is left to ask")
        for name, message in asked:
            coordinator.receive(name, endpoints[name].answer(message))


def local_parts(
    agreement: Agreement,
    model: ModelSpec,
    data: Sequence[Arrays],
    *,
    private: Mapping[str, bytes] | None = None,
) -> dict[str, ClientConfig]:
    """What each client of an agreement brings.

    Args:
      data: each client's arrays, in the order of the agreement's clients.
      private: under a secure sum, every client's private key.
    """
    if len(data) != len(agreement.clients):
        raise SordinoError(
            f"the agreement has {len(agreement.clients):,} clients, and there is data for {len(data):,}"
        )
    return {
        name: ClientConfig(
            name,
            agreement,
            model.loss,
            model.params,
            arrays,
            private=None if private is None else private[name],
        )
        for name, arrays in zip(agreement.clients, data, strict=True)
    }


def local_clients(
    agreement: Agreement,
    model: ModelSpec,
    data: Sequence[Arrays],
    *,
    insecure_seed: int | None = None,
    private: Mapping[str, bytes] | None = None,
) -> dict[str, VolatileClient]:
    """All clients of an agreement in this process, with memories that end with it.

    Args:
      data, private: as in `local_parts`.
      insecure_seed: makes all noise reproducible: for research, not private.
    """
    built = {}
    for name, part in local_parts(agreement, model, data, private=private).items():
        secret = fresh_secret() if insecure_seed is None else insecure_secret(insecure_seed, name)
        built[name] = VolatileClient(part, secret)
    return built


def local_server(
    agreement: Agreement, model: ModelSpec, *, insecure_seed: int | None = None, **options: Any
) -> DurableServer:
    """The coordinator of a run in this process; options are `DurableServer`'s."""
    secret = None
    if agreement.trust == "trusted":
        seeded = insecure_seed is not None
        secret = insecure_secret(insecure_seed or 0, "the server") if seeded else fresh_secret()
    chance = np.random.default_rng(insecure_seed)
    server = Server(agreement, flattened(model.params), secret)
    return DurableServer.in_memory(server, chance=chance, **options)


def run_here(
    coordinator: DurableServer, clients: Mapping[str, Endpoint], *, engine: str = "direct"
) -> None:
    """Run to the end in this process: directly, or through Flower's messages and strategy."""
    require_choice("engine", engine, ("direct", "flower"))
    if engine == "direct":
        run_directly(coordinator, clients)
        return
    from sordino.together.federated.flower._app import run_in_process

    run_in_process(coordinator, clients)


@dataclass(frozen=True)
class OpenedForEachMessage:
    """A client that is opened from its journal for one message and closed again.

    Flower's simulation engine hands each message to any of its worker processes, so that what a client
    remembers has to be on disk.
    """

    part: ClientConfig
    journal: Path
    keys: Path

    def answer(self, message: bytes) -> bytes:
        client = DurableClient.open(self.part, self.journal, store=KeyStore(self.keys))
        try:
            return client.answer(message)
        finally:
            client.close()


def run_on_ray(coordinator: DurableServer, parts: Mapping[str, ClientConfig], folder: Path) -> None:
    """Run to the end under Flower's simulation engine (Ray), with the clients' journals in `folder`."""
    from sordino.together.federated.flower._app import simulate

    built = {
        name: OpenedForEachMessage(part, folder / f"{name}.journal", folder / "keys")
        for name, part in parts.items()
    }
    simulate(coordinator, sorted(built), built.__getitem__)


def pad_keys(count: int) -> tuple[list[bytes], tuple[str, ...]]:
    """Private keys for so many clients, and the public ones for the agreement."""
    private = [new_private_key() for _ in range(count)]
    return private, tuple(public_key(key).hex() for key in private)


def seen_by_clients(
    agreement: Agreement, history: Sequence[RoundRecord]
) -> dict[str, float] | None:
    """mu of each client's worst example against any one other client, who sees the model only.

    From the sums' covariance over the rounds that are done (papers/02 2.6), without the noise of the
    client that looks on, which it knows. None where that is not known exactly: noise that grows, examples
    used more than once, whole clients, sums that nobody sees alone; or where it would take too long.
    """
    simple = agreement.uses == 1 and agreement.unit == "example" and not agreement.growing
    count = len(agreement.clients)
    if not simple or agreement.trust != "untrusted" or not history or count < 2:
        return None
    if count * len(history) > _MOST_WORK:
        return None
    numbers = {name: i for i, name in enumerate(agreement.clients)}
    members = np.array([[numbers[name] for name in record.committed] for record in history])
    cohorts = Cohorts(count, members)
    worst = np.zeros(count)
    for onlooker in range(count):
        precisions = SumStream.of_agreement(agreement, cohorts, [onlooker]).precisions()
        for t, record in enumerate(history):
            for (
                name
            ) in record.committed:  # as if each had an example in it: who has not is not known
                if numbers[name] != onlooker:
                    worst[numbers[name]] = max(worst[numbers[name]], precisions[t])
    return {name: agreement.reach * float(np.sqrt(worst[i])) for name, i in numbers.items()}

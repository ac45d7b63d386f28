"""A federated run on disk: all folders or none, and readers that say what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base import codec
from sordino._base.errors import SordinoError
from sordino._base.keystore import KeyStore
from sordino.models._schema import Numeric, Schema
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.sites._federated import (
    ClientSite,
    ServerSite,
    create,
    local_clients,
    pad_keys,
)
from sordino.together.sites._models import ModelSpec, table_model


def model() -> ModelSpec:
    return table_model(Schema((Numeric("a", 0, 1),), target="y", classes=(0, 1)))


def agreed(**options: Any) -> Agreement:
    settings: dict[str, Any] = {"rounds": 4, "epsilon": 4.0, "parameters": model().parameters}
    return agree(clients=["north", "south"], **(settings | options))


def table(path: Path, rows: int = 8) -> Path:
    lines = [f"{i / rows},{i % 2}" for i in range(rows)]
    path.write_text("\n".join(["a,y", *lines]) + "\n")
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "deep" / "study"
    create(folder, agreed(), model(), port=8123, deployed=False)
    return folder


def test_what_is_written_is_read(study: Path, tmp_path: Path) -> None:
    server = ServerSite.load(study / "server")
    assert (server.settings.host, server.settings.port, server.settings.timeout) == (
        "127.0.0.1",
        8123,
        60.0,
    )
    assert set(server.nodes()) == {"north", "south"}
    opened = server.open()
    assert not opened.finished
    opened.close()
    site = ClientSite.load(study / "clients" / "south")
    assert site.agreement.digest == server.agreement.digest
    assert site.settings.server == "127.0.0.1:8123"
    part = site.part(table(tmp_path / "t.csv"))
    assert (part.name, part.mu, part.private) == ("south", None, None)
    client = site.open(part, store=KeyStore(tmp_path / "keys"))
    assert client.state.index == 0
    client.close()
    assert sorted(path.name for path in study.parent.iterdir()) == ["study"]


def test_a_clients_own_decisions(study: Path) -> None:
    folder = study / "clients" / "north"
    site = ClientSite.load(folder)
    with pytest.raises(SordinoError, match=r"name this client's table.*client\.toml"):
        site.part(None)
    settings = (folder / "client.toml").read_text().replace("# data", "data")
    settings = settings.replace("# mu = 0.5", "mu = 0.9")
    (folder / "client.toml").write_text(settings)
    table(folder / "table.csv")
    part = ClientSite.load(folder).part(None)
    assert part.mu == 0.9
    assert len(part.data[0]) == 8


def test_a_secure_sum_has_pads(tmp_path: Path) -> None:
    private, keys = pad_keys(2)
    agreement = agreed(trust="secure-sum", keys=keys)
    pads = dict(zip(agreement.clients, private, strict=True))
    create(tmp_path / "study", agreement, model(), private=pads, deployed=False)
    for name, key in pads.items():
        site = ClientSite.load(tmp_path / "study" / "clients" / name)
        part = site.part(table(tmp_path / "t.csv"))
        assert part.private == key
        site.open(part, store=KeyStore(tmp_path / "keys")).close()
    (tmp_path / "study" / "clients" / "north" / "pad.key").write_bytes(pads["south"])
    site = ClientSite.load(tmp_path / "study" / "clients" / "north")
    with pytest.raises(SordinoError, match="does not belong to its public key"):
        site.open(site.part(tmp_path / "t.csv"), store=KeyStore(tmp_path / "more keys"))


def test_nothing_is_replaced_and_nothing_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(SordinoError, match="choose a new folder"):
        create(folder, agreed(), model(), deployed=False)
    assert os.listdir(folder) == ["mine"]
    bare = ModelSpec(model().loss, np.zeros(2, np.float32), load=lambda path: ())
    with pytest.raises(SordinoError, match="no description"):
        create(tmp_path / "other", agreed(), bare, deployed=False)

    calls = []

    def full(path: Path, *rest: Any, **more: Any) -> None:
        calls.append(path)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"")

    with monkeypatch.context() as patch:
        patch.setattr(codec, "write_atomically", full)
        with pytest.raises(SordinoError, match="cannot be written: No space left on device"):
            create(tmp_path / "other", agreed(), model(), deployed=False)
    assert len(calls) == 4
    assert os.listdir(tmp_path) == ["study"]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("server", "port = ", "is not TOML"),
        ("server", "port = 0", "port must be"),
        ("server", 'port = "80"', "port must be"),
        ("server", "timeout = -1.0", "timeout must be"),
        ("server", "colour = 3", "colour"),
        ("client", "name = [", "is not TOML"),
        ("client", 'name = "east"\nserver = "x:1"', "has no client 'east'"),
        ("client", 'name = "north"\nserver = "x:1"\nclip = 9', "clip"),
        ("client", 'server = "x:1"', "name"),
    ],
)
def test_settings_that_make_no_sense(study: Path, kind: str, text: str, words: str) -> None:
    site: Any = ServerSite if kind == "server" else ClientSite
    folder = study / "server" if kind == "server" else study / "clients" / "north"
    (folder / f"{kind}.toml").write_text(text)
    with pytest.raises(SordinoError, match=words):
        site.load(folder)


@pytest.mark.parametrize("site", [ServerSite, ClientSite])
def test_folders_that_are_none(site: Any, study: Path, tmp_path: Path) -> None:
    with pytest.raises(SordinoError, match="give a folder that `sordino federated init`"):
        site.load(tmp_path)
    folder = study / "server" if site is ServerSite else study / "clients" / "north"
    agreed(parameters=77).save(folder / "agreement.json")
    with pytest.raises(SordinoError, match="the model has 2 parameters, the agreement 77"):
        site.load(folder)
    (folder / "agreement.json").unlink()
    with pytest.raises(SordinoError, match=r"agreement\.json"):
        site.load(folder)
    agreed().save(folder / "agreement.json")
    (folder / "model.json").write_text("[]")
    with pytest.raises(SordinoError, match="not the description of a model"):
        site.load(folder)


def test_data_for_other_clients_than_were_agreed() -> None:
    with pytest.raises(SordinoError, match="2 clients, and there is data for 1"):
        local_clients(agreed(), model(), [(np.zeros((3, 2), np.float32), np.zeros(3, np.int32))])

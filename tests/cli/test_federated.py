"""`sordino federated`: folders, a run in one process, and what is refused before anything is sent."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sordino.app.cli._main import app
from sordino.privacy._guarantee import Guarantee
from sordino.together.federated._agreement import Agreement
from sordino.together.sites._federated import ClientSite

pytest.importorskip("flwr")

CLIENTS, EACH = 3, 60
SCHEMA = """target = "ill"
classes = [0, 1]
[columns]
age = {low = 18, high = 90}
smoker = {values = ["no", "yes"]}
"""


def run(*arguments: object) -> Any:
    """`sordino federated ...` in this process."""
    return CliRunner().invoke(app, ["federated", *map(str, arguments)])


def refused(result: Any, *words: str) -> None:
    """Exit code 2 and one line that starts with 'error:' and holds `words`; no traceback."""
    assert result.exit_code == 2, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in errors[0]


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, rows)
    smoker = rng.choice(["no", "yes"], rows)
    ill = (age + 25 * (smoker == "yes") + rng.normal(0, 5, rows) > 66).astype(int)
    return pd.DataFrame({"age": age, "smoker": smoker, "ill": ill})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the schema, a table for each client, one of them all, and a public one."""
    monkeypatch.setenv("SORDINO_KEYS", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    everybody = patients(CLIENTS * EACH, seed=0)
    everybody.to_csv("all.csv", index=False)
    for i in range(CLIENTS):
        everybody.iloc[i * EACH : (i + 1) * EACH].to_csv(f"h{i}.csv", index=False)
    patients(500, seed=1).to_csv("public.csv", index=False)
    return tmp_path


def wanted(folder: object, *more: object, **changes: object) -> list[object]:
    """Arguments of `init`; `changes` replace options, None leaves one out."""
    options: dict[str, object] = {
        "schema": "schema.toml",
        "clients": CLIENTS,
        "examples": EACH,
        "rounds": 6,
        "epsilon": 8,
    }
    options |= changes
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return [
        *("init", folder),
        *(word for pair in given if pair[1] is not None for word in pair),
        *more,
    ]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- init --------------------------------------------------------------------------------------


def test_init_writes_a_folder_for_everybody(here: Path) -> None:
    result = run(*wanted("study", clients="north,south, east", per_round=2))
    assert result.exit_code == 0, result.output
    assert "dp-mu2 over 3 clients, 2 of them in each of 6 rounds; untrusted" in result.stdout
    assert "(8, 1e-05)-differential privacy" in result.stdout.replace("\n", " ")
    study = here / "study"
    agreement = Agreement.load(study / "agreement.json")
    assert agreement.clients == ("north", "south", "east")
    assert agreement.name == "study"
    server = study / "server"
    names = {path.name for path in server.iterdir()}
    assert names >= {"server.toml", "agreement.json", "model.json", "server.crt", "server.key"}
    assert {path.name for path in (server / "nodes").iterdir()} == {
        "north.pub",
        "south.pub",
        "east.pub",
    }
    for name in agreement.clients:
        site = study / "clients" / name
        assert {path.name for path in site.iterdir()} == {
            "client.toml",
            "agreement.json",
            "model.json",
            "ca.crt",
            "node.key",
        }
        assert (site / "agreement.json").read_bytes() == (study / "agreement.json").read_bytes()
        assert ClientSite.load(site).settings.server == "127.0.0.1:8000"
    # Nobody's private key is in anybody else's folder, and nobody else may read it.
    keys = [*study.rglob("*.key")]
    assert {path.relative_to(study).as_posix() for path in keys} == {
        "server/server.key",
        "server/ca.key",
        *(f"clients/{name}/node.key" for name in agreement.clients),
    }
    assert [mode(path) for path in keys] == [0o600] * len(keys)
    assert not [path for path in here.iterdir() if path.name.startswith(".study")]


def test_init_for_a_secure_sum_makes_pads_and_local_needs_no_flower(here: Path) -> None:
    result = run(*wanted("study", "--local", trust="secure-sum"))
    assert result.exit_code == 0, result.output
    assert "next: sordino federated simulate study" in result.stdout
    study = here / "study"
    agreement = Agreement.load(study / "agreement.json")
    pads = sorted(study.rglob("*.key"))
    assert [path.parent.name for path in pads] == list(agreement.clients)
    assert [mode(path) for path in pads] == [0o600] * CLIENTS
    assert len({path.read_bytes() for path in pads}) == CLIENTS
    assert not [*study.rglob("*.crt")]


def test_init_leaves_what_is_there_alone(here: Path) -> None:
    (here / "study").mkdir()
    (here / "study" / "thesis.txt").write_text("three years of work")
    refused(run(*wanted("study", "--local")), "there is something at 'study' already")
    assert [path.name for path in (here / "study").iterdir()] == ["thesis.txt"]
    (here / "empty").mkdir()
    assert run(*wanted("empty", "--local")).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": None}, "give --schema for tables, or --model"),
        ({"model": "os:path"}, "give --schema for tables, or --model"),
        ({"schema": "nowhere.toml"}, "there is no schema at 'nowhere.toml'"),
        ({"schema": None, "model": "nowhere:model"}, "there is no model 'nowhere:model' here"),
        ({"schema": None, "model": "os:path"}, "is not a sordino.together.sites.Model"),
        ({"clients": "a,a"}, "clients of different names"),
        ({"clients": "a,../b"}, "a client's name must be 1 to 64 letters"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"per_round": 9}, "per_round must be at most the number of clients (3)"),
        ({"epsilon": -1}, "epsilon must be a finite number greater than 0"),
        ({"delta": 2}, "delta"),
        ({"clip": 0}, "clip must be"),
        ({"trust": "nobody"}, "trust 'nobody' is not known"),
        ({"schedule": "random"}, "schedule 'random' is not known"),
        ({"algorithm": "fedavg"}, "algorithm 'fedavg' is not known"),
        ({"unit": "hospital"}, "unit 'hospital' is not known"),
        ({"trust": "secure-sum", "colluders": 2}, "at least two honest clients"),
        ({"trust": "trusted", "extra": 1}, "extra=0"),
        ({"spare": -1}, "spare must be"),
        ({"clients": 0}, "clients must be"),
        ({"uses": 0}, "uses must be"),
        ({"examples": 0}, "examples must be"),
        ({"port": 99999}, "port"),
    ],
)  # fmt: skip
def test_init_refuses_in_a_sentence(here: Path, changes: dict[str, object], words: str) -> None:
    refused(run(*wanted("study", "--local", **changes)), words)
    assert not (here / "study").exists()


# --- simulate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["direct", "flower"])
def test_simulate_writes_a_model_a_guarantee_and_a_report(here: Path, engine: str) -> None:
    assert run(*wanted("study", "--local")).exit_code == 0
    tables = [word for i in range(CLIENTS) for word in ("--data", f"h{i}.csv")]
    result = run(
        *("simulate", "study", *tables, "--engine", engine),
        *("--test-file", "public.csv", "--every", 3, "--insecure-seed", 1),
    )
    assert result.exit_code == 0, result.output
    assert "round 6 of 6: 3 of 3 asked, accuracy" in result.stdout
    assert "NOT private" in result.stderr
    assert "differential privacy" not in result.stdout
    made = here / "study" / "simulated"
    assert not (made / "guarantee.json").exists()
    page = (made / "report" / "index.html").read_text()
    assert "study (seeded: NOT private)" in page
    assert "does NOT hold against anyone who knows or guesses the seed" in " ".join(page.split())
    for client in (made / "report" / "clients").glob("*.html"):
        assert "The noise came from a seed: none of this holds" in client.read_text()
    assert len([*(made / "report" / "clients").iterdir()]) >= CLIENTS
    used = CliRunner().invoke(app, ["predict", str(made), "public.csv", "--out", "guess.csv"])
    assert used.exit_code == 0, used.output
    truth, guess = pd.read_csv("public.csv")["ill"], pd.read_csv("guess.csv").iloc[:, 0]
    assert len(guess) == len(truth)
    assert set(guess) <= {0, 1}
    assert (guess == truth).mean() > 0.6


def test_simulate_without_a_seed_writes_the_guarantee(here: Path) -> None:
    assert run(*wanted("study", "--local")).exit_code == 0
    result = run("simulate", "study", "--data", "all.csv")
    assert result.exit_code == 0, result.output
    text = (here / "study" / "simulated" / "guarantee.json").read_text()
    promised = Guarantee.from_json(json.loads(text))
    assert promised == Agreement.load("study/agreement.json").guarantee
    assert promised.sentence() in " ".join(result.stdout.split())


@pytest.mark.slow
def test_engines_agree_to_the_last_bit(here: Path) -> None:
    assert run(*wanted("study", "--local", per_round=2)).exit_code == 0
    found = []
    for engine in ("direct", "flower"):
        result = run(
            "simulate", "study", "--data", "all.csv", "--engine", engine, "--insecure-seed", 5
        )
        assert result.exit_code == 0, result.output
        with np.load("study/simulated/model.npz", allow_pickle=False) as model:
            found.append({name: model[name].tobytes() for name in model.files})
    assert found[0] == found[1]


@pytest.mark.parametrize("trust", ["secure-sum", "trusted"])
@pytest.mark.slow
def test_simulate_with_the_other_kinds_of_trust(here: Path, trust: str) -> None:
    assert run(*wanted("study", "--local", trust=trust)).exit_code == 0
    result = run("simulate", "study", "--data", "all.csv", "--skew", 0.5)
    assert result.exit_code == 0, result.output
    assert "round 6 of 6" in result.stdout
    assert "not private" not in result.output
    if trust == "secure-sum":
        (here / "study" / "clients" / "client-1" / "pad.key").unlink()
        refused(run("simulate", "study", "--data", "all.csv"), "pad.key")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--data", "all.csv"], "cannot read 'nowhere/agreement.json'"),
        (["study", "--data", "h0.csv", "--data", "h1.csv"], "for each of the 3 clients; got 2"),
        (["study", "--data", "nowhere.csv"], "there is no file 'nowhere.csv'"),
        (["study", "--data", "all.csv", "--test-file", "no.csv"], "there is no file 'no.csv'"),
        (["study", "--data", "schema.toml"], "is not a known kind of table"),
        (["study", "--data", "other.csv"], "column"),
        (["study", "--data", "odd.csv"], "labels that are not among the classes"),
        (["study", "--data", "all.csv", "--engine", "carrier"], "engine 'carrier' is not known"),
        (["study", "--data", "all.csv", "--skew", "0"], "skew must be"),
        (["study", "--data", "all.csv", "--test-file", "public.csv", "--every", "0"], "every"),
        (["study", "--data", "all.csv", "--insecure-seed", "-1"], "seed"),
    ],
)  # fmt: skip
def test_simulate_refuses_in_a_sentence(here: Path, arguments: list[str], words: str) -> None:
    assert run(*wanted("study", "--local")).exit_code == 0
    patients(20, 0).rename(columns={"age": "size"}).to_csv("other.csv", index=False)
    patients(20, 0).assign(ill=7).to_csv("odd.csv", index=False)
    refused(run("simulate", *arguments), words)
    assert not (here / "study" / "simulated").exists()


# --- client and server -------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def study(here: Path) -> Path:
    """A run that could be deployed; its server is not there."""
    assert run(*wanted("study", port=free_port())).exit_code == 0
    return here / "study"


def client(study: Path, name: str = "client-0", data: str | None = "h0.csv") -> Any:
    more = [] if data is None else ["--data", data]
    return run("client", study / "clients" / name, *more, "--patience", 0)


def test_a_client_without_a_server_gives_up(study: Path) -> None:
    result = client(study)
    refused(result, "no connection to the server in 0 seconds")
    assert "client-0: 60 examples, 0 messages sent, spent mu 0 of" in result.stdout
    # The seal is made, and is this user's alone.
    (seal,) = (study.parent / "keys" / "federated").iterdir()
    assert mode(seal) == 0o600
    assert mode(study / "clients" / "client-0" / "journal.db") == 0o600


def test_a_client_refuses_before_anything_is_sent(study: Path) -> None:
    refused(run("client", study / "nowhere"), "cannot read", "client.toml")
    refused(client(study, data=None), "name this client's table: with --data")
    refused(client(study, data="nowhere.csv"), "there is no file 'nowhere.csv'")
    refused(client(study), "no connection")
    refused(client(study, data="h1.csv"), "not those it began with")
    site = study / "clients" / "client-0"
    (site / "node.key").write_text("no key")
    refused(client(study), "node.key")


def test_a_client_holds_to_its_agreement(study: Path) -> None:
    site = study / "clients" / "client-0"
    refused(client(study), "no connection")
    agreed = json.loads((site / "agreement.json").read_text())
    (site / "agreement.json").write_text(json.dumps(agreed | {"mu": 2 * agreed["mu"]}))
    refused(client(study), "belongs to another", "agreement")
    (site / "agreement.json").write_text(json.dumps(agreed | {"parameters": 77}))
    refused(client(study), "the agreement 77")
    (site / "agreement.json").write_text("{}")
    refused(client(study), "agreement.json")


def test_a_client_that_is_not_in_the_agreement(study: Path) -> None:
    settings = study / "clients" / "client-1" / "client.toml"
    settings.write_text(settings.read_text().replace("client-1", "stranger"))
    refused(client(study, "client-1"), "the agreement has no client 'stranger'")
    settings.write_text("name = ")
    refused(client(study, "client-1"), "is not TOML")
    settings.write_text('name = "client-1"\nserver = "x:1"\nclip = 3\n')
    refused(client(study, "client-1"), "client.toml", "clip")


@pytest.mark.parametrize("mu", ['"much"', "-1", "0", "inf"])
def test_a_clients_own_budget_must_be_a_number_above_0(study: Path, mu: str) -> None:
    settings = study / "clients" / "client-0" / "client.toml"
    settings.write_text(settings.read_text() + f"mu = {mu}\n")
    refused(client(study), "mu")


def test_a_server_refuses_before_it_listens(study: Path) -> None:
    refused(run("server", study / "nowhere"), "cannot read", "server.toml")
    refused(run("server", study / "clients" / "client-0"), "cannot read", "server.toml")
    server = study / "server"
    refused(run("server", server, "--test-file", "no.csv"), "there is no file 'no.csv'")
    settings = (server / "server.toml").read_text()
    (server / "server.toml").write_text(settings.replace("timeout = 60.0", "timeout = 0"))
    refused(run("server", server), "timeout")
    (server / "server.toml").write_text(settings)
    key = server / "nodes" / "client-2.pub"
    key.rename(server / "elsewhere")
    refused(run("server", server), "client-2.pub")
    (server / "elsewhere").rename(key)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lines = [f"port = {port}" if x.startswith("port") else x for x in settings.splitlines()]
        (server / "server.toml").write_text("\n".join(lines))
        refused(run("server", server), f"cannot listen on 127.0.0.1 port {port}")


@pytest.mark.slow
def test_a_real_server_and_real_clients(study: Path) -> None:
    """Four processes over TLS; what they write is what `predict` takes."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "sordino", "federated"]
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    try:
        server = start("server", study / "server", "--test-file", "public.csv", "--every", 6)
        clients = [
            start("client", study / "clients" / f"client-{i}", "--data", f"h{i}.csv")
            for i in range(CLIENTS)
        ]
        output, _ = server.communicate(timeout=100)
        assert server.returncode == 0, output
        assert "round 6 of 6: 3 of 3 asked, accuracy" in output
        for process in clients:
            process.terminate()
        said = [process.communicate(timeout=30)[0] for process in clients]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, text in zip(clients, said, strict=True):
        assert process.returncode == 0, text
        assert "round 6: sent message 6" in text
        assert "6 messages sent, spent mu" in text.splitlines()[-1]
    assert (study / "server" / "report" / "index.html").exists()
    used = CliRunner().invoke(app, ["predict", str(study / "server"), "public.csv"])
    assert used.exit_code == 0, used.output
    # Given again, the command has nothing left to do.
    began = time.monotonic()
    again = run("server", study / "server")
    assert again.exit_code == 0, again.output
    assert "going on with round 7" in again.stdout
    assert time.monotonic() - began < 20

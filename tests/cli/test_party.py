"""`sordino party`: keys, a file that all sign, and real processes that train, die and go on."""

from __future__ import annotations

import json
import os
import re
import signal
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

from sordino._base.errors import SordinoError
from sordino._base.keystore import KeyStore
from sordino.app.cli._main import app
from sordino.app.cli._party_simulation import free_ports
from sordino.engine.ledger._ledger import Ledger
from sordino.together.parties._consortium import Consortium, PartyCard
from sordino.together.parties._journal import TurnRecord
from sordino.together.sites._parties import PartySite

NAMES = ("north", "south", "east")
EACH = 60
SCHEMA = """target = "ill"
classes = [0, 1]
[columns]
age = {low = 18, high = 90}
smoker = {values = ["no", "yes"]}
"""


def patients(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, rows)
    smoker = rng.choice(["no", "yes"], rows)
    ill = (age + 25 * (smoker == "yes") + rng.normal(0, 5, rows) > 66).astype(int)
    return pd.DataFrame({"age": age, "smoker": smoker, "ill": ill})


def run(*arguments: object, given: str | None = None) -> Any:
    """`sordino party ...` in this process."""
    return CliRunner().invoke(app, ["party", *map(str, arguments)], input=given)


def refused(result: Any, *words: str, code: int = 2) -> None:
    """One line that starts with 'error:' and holds `words`; no traceback."""
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in errors[0]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the schema, a table for each party, one of them all, and a public one."""
    monkeypatch.setenv("SORDINO_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("SORDINO_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA)
    everybody = patients(len(NAMES) * EACH, seed=0)
    everybody.to_csv("all.csv", index=False)
    for i, name in enumerate(NAMES):
        everybody.iloc[i * EACH : (i + 1) * EACH].to_csv(f"{name}.csv", index=False)
    patients(500, seed=1).to_csv("public.csv", index=False)
    return tmp_path


@pytest.fixture
def parties(here: Path) -> Path:
    """With a folder for each party."""
    for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True):
        made = run("init", name, "--name", name, "--examples", EACH, "--port", port)
        assert made.exit_code == 0, made.output
    return here


def wanted(*more: object, names: tuple[str, ...] = NAMES, **changes: object) -> list[object]:
    """Arguments of `propose`; `changes` replace options, None leaves one out."""
    options: dict[str, object] = {
        "out": "study.json",
        "schema": "schema.toml",
        "recipe": "dp-gd",
        "epsilon": 4,
        "delta": 1e-4,
        "steps": 6,
        "timeout": 20,
    }
    options |= changes
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    cards = [f"{name}/party.json" for name in names]
    return ["propose", *cards, *(w for pair in given if pair[1] is not None for w in pair), *more]


def agreed(*more: object, **changes: object) -> Consortium:
    """Proposed, and signed by everybody."""
    made = run(*wanted(*more, **changes))
    assert made.exit_code == 0, made.output
    found = Consortium.load(Path("study.json"))
    for name in found.names:
        signed = run("sign", name, "study.json", "--yes")
        assert signed.exit_code == 0, signed.output
    return found


def settled_by(name: str) -> list[TurnRecord]:
    journal = PartySite.load(Path(name)).journal()
    try:
        return journal.records()
    finally:
        journal.close()


class Joined:
    """A party's process; what it says is in a file."""

    def __init__(self, name: str, *more: object) -> None:
        self.name, self.log = name, Path(f"{name}.log")
        self._file = self.log.open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sordino", "party", "join", name),
                *("--data", f"{name}.csv", "--no-report", *map(str, more)),
            ],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def turns(self) -> int:
        return self.text.count('"event": "turn"')

    def end(self, timeout: float = 240) -> int:
        code = self.process.wait(timeout)
        self._file.close()
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()


def everybody_joins(*more: object) -> list[Joined]:
    return [Joined(name, *more) for name in NAMES]


def until(condition: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- init, propose, sign, status ---------------------------------------------------------------


def test_init_makes_keys_and_a_card(here: Path) -> None:
    result = run("init", "site", "--name", "north", "--examples", 60, "--host", "h.example")
    assert result.exit_code == 0, result.output
    card = PartyCard.load(here / "site" / "party.json")
    assert (card.name, card.examples, card.host, card.port) == ("north", 60, "h.example", 7000)
    assert card.member.fingerprint in result.stdout
    assert "next: give site/party.json" in result.stdout
    for secret in ("party.key", "pad.key"):
        assert stat.S_IMODE((here / "site" / secret).stat().st_mode) == 0o600
        assert (here / "site" / secret).read_bytes() not in (
            here / "site" / "party.json"
        ).read_bytes()
    refused(run("init", "site", "--name", "north", "--examples", 60), "already")
    refused(run("init", "x", "--name", "no/th", "--examples", 60), "name")
    refused(run("init", "x", "--name", "n", "--examples", 0), "examples must be from 1")
    refused(run("init", "x", "--name", "n", "--examples", 5, "--port", 65535), "port must be")
    assert not Path("x").exists()


def test_propose_shows_the_plan_the_shares_and_what_it_rests_on(parties: Path) -> None:
    result = run(*wanted(recipe="dp-srm", batch_size=30, name="lung study"))
    assert result.exit_code == 0, result.output
    found = Consortium.load(Path("study.json"))
    assert found.name == "lung study"
    assert found.names == NAMES
    assert found.timeout == 20
    assert found.terms.batches == (10.0, 10.0, 10.0)
    assert found.terms.plan.update.learning_rate != 0.5  # chosen for this loss and noise
    said = " ".join(result.stdout.split())
    assert found.terms.statement() in said
    assert found.digest in said
    assert "recipe dp-srm" in said
    assert "1 in 6" in said
    assert "engine mask" in said
    for name in NAMES:
        assert name in said


def test_propose_takes_a_recipes_options(parties: Path) -> None:
    more = ("--set", "radius=3", "--set", "lr-schedule=cosine", "--learning-rate", 0.25)
    result = run(*wanted(*more, recipe="dp-sgd", batches="10,12,6.5", clip=0.7, steps=4))
    assert result.exit_code == 0, result.output
    terms = Consortium.load(Path("study.json")).terms
    assert terms.batches == (10, 12, 6.5)
    assert terms.plan.clip == 0.7
    update = terms.plan.update
    assert (update.learning_rate, update.radius, update.lr_schedule) == (0.25, 3, "cosine")
    assert terms.plan.population.steps == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": None}, "give --schema for tables, or --model"),
        ({"schema": "no.toml"}, "no.toml"),
        ({"schema": None, "model": "nowhere:model"}, "there is no model 'nowhere:model'"),
        ({"recipe": "dp-magic"}, "dp-magic"),
        ({"engine": "garbled"}, "engine 'garbled' is not known"),
        ({"engine": "plain"}, "protects nobody"),
        ({"colluders": 3}, "stands up to 2 colluders, not 3"),
        ({"recipe": "dp-sgd", "batches": "1,2"}, "2 sizes for 3 parties"),
        ({"recipe": "dp-sgd", "batches": "1,2,x"}, "numbers with commas"),
        ({"epsilon": -1}, "epsilon"),
        ({"timeout": 0}, "timeout"),
        ({"set": "radius"}, "--set takes name=value"),
        ({"set": "radios=3"}, "did you mean 'radius'?"),
        ({"recipe": "dp-srm", "set": "momentum=.5"}, "momentum has no effect"),
        ({"set": "schedule.ratio=2"}, "schedule 'uniform' has no parameter 'ratio'"),
        ({"set": "speed=3"}, "no option 'speed'"),
        ({"out": "nowhere/study.json"}, "there is no folder 'nowhere'"),
        ({"names": ("north",)}, "parties"),
        ({"names": ("north", "north")}, "two parties have the same"),
        ({"names": ("north", "west")}, "cannot read 'west/party.json'"),
    ],
)  # fmt: skip
def test_propose_refuses_in_a_sentence(parties: Path, changes: dict[str, Any], words: str) -> None:
    refused(run(*wanted(**changes)), words)
    assert not Path("study.json").exists()


def test_sign_shows_what_is_agreed_to_and_asks(parties: Path) -> None:
    assert run(*wanted()).exit_code == 0
    found = Consortium.load(Path("study.json"))
    no = run("sign", "south", "study.json", given="n\n")
    assert no.exit_code == 1
    assert "not signed" in no.stderr
    assert not Path("south/signature").exists()
    yes = run("sign", "south", "study.json", given="y\n")
    assert yes.exit_code == 0, yes.output
    said = " ".join(yes.stdout.split())
    assert found.terms.statement() in said
    assert found.digest in said
    for partner in found.partners:
        assert partner.member.fingerprint in said
    found.verify("south", Path("south/signature").read_text().strip())
    assert "south (this one)" in said


def test_a_file_that_says_something_else_about_a_party_is_not_signed(parties: Path) -> None:
    assert run(*wanted(names=("north", "south"))).exit_code == 0
    refused(run("sign", "east", "study.json", "--yes"), "has no party 'east'")
    changed = json.loads(Path("study.json").read_text())
    changed["partners"][0]["port"] += 1
    Path("study.json").write_text(json.dumps(changed))
    refused(
        run("sign", "north", "study.json", "--yes"), "another certificate, key, size or address"
    )
    refused(run("sign", "north", "schema.toml", "--yes"), "is not a consortium file")
    refused(run("sign", "nowhere", "study.json", "--yes"), "there is no party in 'nowhere'")
    assert not Path("north/signature").exists()


def test_status_before_a_run(parties: Path) -> None:
    assert "nothing signed yet" in run("status", "north").stdout
    agreed()
    said = run("status", "north").stdout
    assert "0 of 6 turns settled, 0 of them lost" in said
    assert "not yet seen to have signed: south, east" in said
    assert not Path("north/journal.db").exists()


# --- join --------------------------------------------------------------------------------------


def join(name: str, *more: object, data: str | None = None, wait: float = 0.3) -> Any:
    """One party, in this process, that waits in vain for the others."""
    return run("join", name, "--data", data or f"{name}.csv", "--wait", wait, *more)


def test_join_refuses_before_the_others_are_bothered(parties: Path) -> None:
    refused(join("north"), "has signed no consortium file yet")
    agreed()
    refused(join("nowhere"), "there is no party in 'nowhere'")
    refused(join("north", data="no.csv"), "there is no file 'no.csv'")
    refused(join("north", data="all.csv"), "agreed to bring 60 records, and its data has 180")
    refused(join("north", wait=0), "wait must be")
    refused(join("north", "--every", 0), "every")
    refused(join("north", "--dataset", "x"), "give --ledger too")
    assert run("status", "north").exit_code == 0
    # Nobody comes.
    alone = join("north")
    refused(alone, "'south', 'east' did not connect", code=1)
    assert "to go on" not in alone.stderr  # nothing was begun
    refused(join("south"), "'north' cannot be reached at 127.0.0.1", code=1)
    # Bound to its data from here on.
    refused(join("north", data="east.csv"), "begun with other data")


def test_join_refuses_another_key_or_a_changed_file(parties: Path) -> None:
    agreed()
    own = Path("north/party.key").read_text()
    Path("north/party.key").write_text(Path("south/party.key").read_text())
    refused(join("north"), "and its key cannot be used", code=1)
    Path("north/party.key").write_text(own)
    signature = Path("north/signature").read_text()
    Path("north/signature").write_text(Path("south/signature").read_text())
    refused(join("north"), "'north' has not signed this consortium file")
    Path("north/signature").write_text(signature)
    changed = json.loads(Path("north/consortium.json").read_text())
    changed["timeout"] = 5.0
    Path("north/consortium.json").write_text(json.dumps(changed))
    refused(join("north"), "'north' has not signed this consortium file")


def test_join_asks_the_ledger_before_the_others_come(parties: Path) -> None:
    agreed()
    book = Ledger.create("budget.db")
    book.add_dataset("north", epsilon=1, delta=1e-4)
    refused(join("north", "--ledger", "budget.db"), "budget", code=1)
    book.add_dataset("rich", epsilon=9, delta=1e-3)
    refused(join("north", "--ledger", "budget.db", "--dataset", "rich"), "connect", code=1)
    assert not book.reservations()
    said = run("status", "north", "--ledger", "budget.db", "--dataset", "rich").stdout
    assert "rich" in said


@pytest.mark.slow
def test_parties_that_signed_different_files_part(parties: Path) -> None:
    """Two real ends of a connection: this process, and one of its own."""
    pair = ("north", "south")
    assert run(*wanted(names=pair, name="study")).exit_code == 0
    assert run("sign", "north", "study.json", "--yes").exit_code == 0
    assert run(*wanted(names=pair, name="study", steps=5)).exit_code == 0
    assert run("sign", "south", "study.json", "--yes").exit_code == 0
    other = Joined("south", "--wait", 60)
    try:
        refused(join("north", wait=60), "has another consortium file", code=1)
        assert other.end() == 1
    finally:
        other.kill()
    assert "another consortium file" in other.text
    assert not settled_by("north")


@pytest.mark.slow
def test_a_killed_party_stops_all_and_all_go_on(parties: Path) -> None:
    steps = 120
    found = agreed(steps=steps, timeout=15)
    first = everybody_joins("--json")
    try:
        until(lambda: first[1].turns() >= 10)
        busy = run("status", "north")
        assert "this party is running already" in busy.stdout
        os.kill(first[1].process.pid, signal.SIGKILL)
        began = time.monotonic()
        assert [one.end() for one in first] == [1, -signal.SIGKILL, 1]
        assert time.monotonic() - began < 15 + 5
    finally:
        for one in first:
            one.kill()
    for one in (first[0], first[2]):
        assert "error: " in one.text
        assert "'south'" in one.text
        assert "give the same command again to go on" in one.text
        assert "Traceback" not in one.text
    settled = [len(settled_by(name)) for name in NAMES]
    assert min(settled) >= 10
    assert max(settled) - min(settled) <= 1 < steps - max(settled)

    again = [Joined(NAMES[0], "--test", "public.csv", "--every", 40)]
    again += [Joined(name, "--json") for name in NAMES[1:]]
    try:
        assert [one.end() for one in again] == [0, 0, 0], [one.text for one in again]
    finally:
        for one in again:
            one.kill()
    said = " ".join(again[0].text.split())
    assert f"{max(settled)} of {steps} turns are settled" in said or "lost" in said
    assert f"turn {steps} of {steps}" in said
    assert "on public data: accuracy" in said
    assert found.terms.statement() in said
    models = []
    for name in NAMES:
        records = settled_by(name)
        assert len(records) == steps
        assert sum(record.lost for record in records) <= 1
        models.append(Path(name, "model.npz").read_bytes())
        assert json.loads(Path(name, "signatures.json").read_text()).keys() >= set(NAMES) - {name}
        stated = json.loads(Path(name, "guarantee.json").read_text())
        assert stated["sentence"] == found.terms.statement()
    assert models[0] == models[1] == models[2]
    scores = json.loads(Path("north/scores.json").read_text())
    assert scores[str(steps)]["accuracy"] > 0.7
    used = CliRunner().invoke(app, ["predict", "north", "public.csv", "--out", "guess.csv"])
    assert used.exit_code == 0, used.output
    assert len(pd.read_csv("guess.csv")) == 500
    assert f"{steps} of {steps} turns settled" in run("status", "north").stdout
    refused(run("sign", "north", "study.json", "--yes"), "has begun a run already")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_party_that_is_stopped_tells_the_others(parties: Path, number: signal.Signals) -> None:
    agreed(steps=2000, timeout=15)
    all_of_them = everybody_joins("--json")
    try:
        until(lambda: all_of_them[2].turns() >= 5)
        all_of_them[2].process.send_signal(number)
        assert [one.end() for one in all_of_them] == [1, 1, 130]
    finally:
        for one in all_of_them:
            one.kill()
    assert "stopped, and the others too; give the same command again" in all_of_them[2].text
    assert "'east' gave up: " in all_of_them[0].text
    assert "it was stopped" in all_of_them[0].text
    for one in all_of_them:
        assert "Traceback" not in one.text


@pytest.mark.slow
def test_a_model_that_nobody_confirmed_is_kept_and_said_to_be_so(
    parties: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed(names=NAMES[:2])

    def gone(*arguments: object) -> list[str]:
        raise SordinoError("'south' closed the connection")

    other = Joined("south")
    try:
        with monkeypatch.context() as patched:
            patched.setattr("sordino.together.parties._party.confirm", gone)
            result = join("north", wait=200)
        refused(result, "'south' closed the connection", code=1)
        said = " ".join(result.stderr.split())
        assert "all 6 turns are done" in said
        assert "not all parties have confirmed" in said
        assert other.end() == 1
        first = Path("north/model.npz").read_bytes()
        other = Joined("south")
        assert join("north", "--no-report", wait=200).exit_code == 0
        assert other.end() == 0
    finally:
        other.kill()
    assert Path("north/model.npz").read_bytes() == first == Path("south/model.npz").read_bytes()


@pytest.mark.slow
def test_a_run_that_a_ledger_pays_for(parties: Path) -> None:
    """The table is the same to the ledger as for `sordino train`, and is charged once."""
    agreed()
    book = Ledger.create("budget.db")
    book.add_dataset("north", epsilon=30, delta=1e-3)
    trained = CliRunner().invoke(
        app,
        ["train", "north.csv", "--schema", "schema.toml", "--epsilon", "1", "--delta", "1e-4",
         "--ledger", "budget.db"],
    )  # fmt: skip
    assert trained.exit_code == 0, trained.output
    for _ in range(2):
        ends = [Joined("north", "--ledger", "budget.db"), Joined("south"), Joined("east")]
        try:
            assert [one.end() for one in ends] == [0, 0, 0], [one.text for one in ends]
        finally:
            for one in ends:
                one.kill()
    states = [held.state for held in book.reservations()]
    assert states == ["released", "released"]


# --- simulate ----------------------------------------------------------------------------------


def simulation(folder: str, *more: object, **changes: object) -> list[object]:
    options: dict[str, object] = {
        "data": "all.csv",
        "parties": "north,south",
        "schema": "schema.toml",
        "recipe": "dp-gd",
        "epsilon": 4,
        "steps": 12,
        "timeout": 20,
    }
    options |= changes
    given = [(f"--{name.replace('_', '-')}", value) for name, value in options.items()]
    return ["simulate", folder, *(w for pair in given if pair[1] is not None for w in pair), *more]


def test_simulate_runs_processes_and_writes_one_report(here: Path) -> None:
    result = run(*simulation("try", "--test", "public.csv", "--every", 4))
    assert result.exit_code == 0, result.output
    found = Consortium.load(Path("try/consortium.json"))
    assert found.terms.examples == (90, 90)
    assert "turn 12 of 12" in result.stdout
    assert "on public data: accuracy" in result.stdout
    assert found.terms.statement() in " ".join(result.stdout.split())
    page = Path("try/report.html").read_text()
    assert "A simulation" in page
    assert "south" in page
    assert {*Path("try").iterdir()} == {
        Path("try", name)
        for name in ("consortium.json", "north", "south", "keys-north", "keys-south", "model.npz",
                     "guarantee.json", "report.html")
    }  # fmt: skip
    assert Path("try/north/model.npz").read_bytes() == Path("try/south/model.npz").read_bytes()
    assert not Path("keys").exists()  # the user's own key folder
    for name in found.names:
        assert KeyStore(Path(f"try/keys-{name}")).folder.stat().st_mode & 0o077 == 0
    again = run(*simulation("try", "--test", "public.csv", "--every", 4))
    assert again.exit_code == 0, again.output
    assert "this simulation is done" in again.stdout
    refused(run(*simulation("try", steps=13)), "a simulation of another run")
    refused(run(*simulation("try", data="north.csv")), "a simulation with other data")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parties": 1}, "parties"),
        ({"parties": "a,a"}, "same name"),
        ({"parties": "a,../b"}, "name"),
        ({"data": "no.csv"}, "there is no file 'no.csv'"),
        ({"schema": None}, "give --schema for tables, or --model"),
        ({"engine": "plain"}, "protects nobody"),
    ],
)
def test_simulate_refuses_in_a_sentence(here: Path, changes: dict[str, Any], words: str) -> None:
    refused(run(*simulation("try", **changes)), words)
    refused(run(*simulation(".")), "there is something at '.' already")
    refused(run(*simulation("try", "--data", "all.csv", parties=3)), "one for each of the 3")


@pytest.mark.slow
def test_a_simulation_that_loses_a_process_goes_on(here: Path) -> None:
    command = [sys.executable, "-m", "sordino", "party"]
    command += map(str, simulation("try", parties="north,south,east", steps=600))
    with Path("first.log").open("w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: "turn 60 of" in Path("first.log").read_text())
        listed = subprocess.run(
            ["ps", "--ppid", str(first.pid), "-o", "pid=,args="],
            capture_output=True,
            text=True,
            check=True,
        )
        (south,) = [line for line in listed.stdout.splitlines() if "try/south" in line]
        os.kill(int(south.split()[0]), signal.SIGKILL)
        assert first.wait(120) == 1
    said = Path("first.log").read_text()
    assert "south: its process was ended by signal 9" in said
    assert "give the same command again to go on" in said
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "turn 600 of 600" in done.stdout
    lost = re.search(r"600 turns, (\d+) of them lost", done.stdout)
    assert lost is not None
    assert int(lost[1]) <= 1

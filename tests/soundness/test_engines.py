"""Engines' side processes run what is installed, and nothing that a party sends or that lies around."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.app.cli._party_simulation import _Group
from sordino.together.secure import _mpyc as mpyc_engine
from sordino.together.secure._mpyc import MpycSum
from sordino.together.secure._spu_engine import _Node
from sordino.together.secure._table import table
from tests.secure.processes import Parties, addresses

VARIANCE = 4

# A member's own side, changed by it: what it sends are pickles that leave a mark where they are opened.
HOSTILE = """
import os, pickle, sys
from pathlib import Path
marks, how = sys.argv[1:]
Path(marks, "attacker").write_text(str(os.getpid()))
dumps = pickle.dumps

class Bomb:
    def __init__(self, value):
        self.value = dumps(value)
    def __reduce__(self):
        write = f"open({marks!r} + '/' + str(__import__('os').getpid()), 'w').close()"
        return eval, (f"({write}, __import__('pickle').loads({self.value!r}))[1]",)

from sordino.together.secure import _mpyc as mpyc_engine
mpyc_engine.forbid_pickle = lambda: None
if how == "arrays":  # only what MPyC itself pickles: everybody's sums stay right
    pickle.dumps = lambda value, *_: dumps(Bomb(value))
else:  # whatever is sent, but for the first hello
    from mpyc import asyncoro
    send = asyncoro.MessageExchanger.send
    def hostile(self, label, payload):
        send(self, label, payload if -9 < label < 0 else dumps(Bomb(None)))
    asyncoro.MessageExchanger.send = hostile
mpyc_engine.main()
"""


def party(index: int, hostile: tuple[str, str, str] | None = None, **settings: Any) -> MpycSum:
    """A party; a hostile one has a side of its own."""
    if hostile is not None:
        real = mpyc_engine.Child

        def changed(name: str, command: Any, *rest: Any) -> Any:
            return real(name, [sys.executable, *hostile])

        mpyc_engine.Child = changed  # type: ignore[misc, assignment]
    return MpycSum(index, **settings)


def run_with(hostile: tuple[str, ...], timeout: float) -> tuple[list[Any], np.ndarray]:
    settings = {"addresses": addresses(3), "timeout": timeout}
    parties = Parties(party, [settings, {**settings, "hostile": hostile}, settings])
    try:
        assert {answer[0] for answer in parties.answers()} == {"open"}
        vectors = [np.arange(5) + 10 * i for i in range(3)]
        return parties.ask(vectors, VARIANCE, 0), sum(vectors)
    finally:
        parties.end()


def opened_by_others(marks: Path) -> list[str]:
    attacker = (marks / "attacker").read_text()
    return [path.name for path in marks.iterdir() if path.name not in ("attacker", attacker)]


def test_a_pickle_in_the_place_of_an_array_runs_nowhere(tmp_path: Path) -> None:
    """C1: MPyC's arrays are not pickles; with a member that made them bombs, sums still come out."""
    marks, script = tmp_path / "marks", tmp_path / "side.py"
    marks.mkdir()
    script.write_text(HOSTILE)
    answers, total = run_with((str(script), str(marks), "arrays"), 60.0)
    assert opened_by_others(marks) == []
    assert [answer[0] for answer in answers] == ["sum"] * 3
    for _, found, _ in answers:
        assert np.abs(found - total).max() <= table(VARIANCE).largest


def test_a_pickle_in_the_place_of_every_message_runs_nowhere(tmp_path: Path) -> None:
    """C1: whatever a member sends, no other side opens a pickle."""
    marks, script = tmp_path / "marks", tmp_path / "side.py"
    marks.mkdir()
    script.write_text(HOSTILE)
    answers, _ = run_with((str(script), str(marks), "everything"), 4.0)
    assert opened_by_others(marks) == []
    assert [answers[i][0] for i in (0, 2)] == ["error"] * 2


def test_nothing_can_be_unpickled_beside_mpyc() -> None:
    """C1: even if MPyC's options or code change, its process cannot unpickle."""
    program = (
        "from sordino.together.secure._mpyc import forbid_pickle; forbid_pickle()\n"
        "import pickle, _pickle, io, mpyc.runtime\n"
        f"raw = {pickle.dumps([1])!r}\n"
        "tried = 0\n"
        "for load in (pickle.loads, mpyc.runtime.pickle.loads, _pickle.loads, pickle._loads,\n"
        "             lambda r: pickle.load(io.BytesIO(r)), lambda r: _pickle.load(io.BytesIO(r)),\n"
        "             lambda r: pickle.Unpickler(io.BytesIO(r)).load(),\n"
        "             lambda r: pickle._Unpickler(io.BytesIO(r)).load()):\n"
        "    try:\n"
        "        load(raw)\n"
        "    except ValueError as error:\n"
        "        tried += 'sent a pickle' in str(error)\n"
        "print(tried)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "8", done.stderr


@pytest.fixture
def littered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files of libraries' names, and a PYTHONPATH that has an empty part."""
    marks = tmp_path / "ran"
    for name in ("gmpy2", "mpyc", "spu", "jax", "rich", "typer"):
        (tmp_path / f"{name}.py").write_text(
            f"open({str(marks)!r}, 'a').write({name!r} + ' ')\nraise ImportError\n"
        )
    monkeypatch.chdir(tmp_path)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{before or ''}{os.pathsep}")
    return marks


def test_files_in_the_working_folder_are_not_run_by_mpycs_side(littered: Path) -> None:
    """C6: a ``gmpy2.py`` that lies in the working folder is nothing to the MPyC child."""
    parties = Parties(MpycSum, [{"addresses": addresses(3), "timeout": 30.0}] * 3)
    try:
        kinds = [answer[0] for answer in parties.answers()]
    finally:
        parties.end()
    assert not littered.exists(), littered.read_text()
    assert kinds == ["open"] * 3


def test_files_in_the_working_folder_are_not_run_by_spus_side(littered: Path) -> None:
    """C6: nor to the SPU child, which has its own environment."""
    node = _Node(0, 3, addresses(3), addresses(3), Path(sys.executable), 20.0, None)
    try:
        until = time.monotonic() + 30
        while not node.failure and time.monotonic() < until:
            time.sleep(0.05)
        assert node.failure  # there is no SPU in this environment
    finally:
        node.close()
    assert not littered.exists(), littered.read_text()


def test_files_in_the_working_folder_are_not_run_by_simulated_parties(
    littered: Path, tmp_path: Path
) -> None:
    """C6: nor to the processes of ``sordino party simulate``."""
    group = _Group({"north": ["nowhere", "--data", "none.csv"]}, {"north": tmp_path / "keys"})
    process = group._processes["north"]
    assert process.wait(60) == 2
    for thread in group._threads:
        thread.join(10)
    assert "nowhere" in group._reason("north")
    assert not littered.exists(), littered.read_text()

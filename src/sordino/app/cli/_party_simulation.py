"""For ``sordino party simulate``: all parties on this machine, each a process that knows only its own part.

FOLDER/
  consortium.json
  NAME/  keys-NAME/         a party's folder, and its key folder: as on a machine of its own
  model.npz  guarantee.json  report.html
"""

from __future__ import annotations

import json
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sordino._base.errors import SordinoError
from sordino._base.processes import clean_environment, python_module
from sordino._base.types import Json
from sordino.app.cli._console import INTERRUPTED, err, out, say_error
from sordino.app.cli._party_run import Display, progress
from sordino.together import parties, sites

if TYPE_CHECKING:
    from sordino.app.cli._party_terms import ProposalOptions
    from sordino.together.parties import Consortium, TurnRecord
    from sordino.together.sites import ModelSpec

_PORTS = 3
# Below the ports that systems hand out by themselves.
_FIRST_PORT, _LAST_PORT = 20000, 32000
# So long may all processes take to start, and one that was told to stop.
_START, _LAST_WORDS = 300.0, 10.0


@dataclass(frozen=True)
class Simulation:
    """A simulation's folder.

    Attributes:
      tables: each party's file.
      parts: which of its records, as ``join --part`` takes it; None for all.
    """

    folder: Path
    consortium: Consortium
    tables: tuple[Path, ...]
    parts: tuple[str | None, ...]

    @classmethod
    def prepared(
        cls,
        folder: Path,
        wanted: ProposalOptions,
        options: Json,
        data: Sequence[Path],
        names: Sequence[str],
    ) -> Simulation:
        """Make what is not there yet: parties, the consortium file, signatures."""
        count = len(names)
        if len(data) not in (1, count):
            raise SordinoError(f"give one table, or one for each of the {count} parties")
        model = wanted.made_model()
        sizes = [_records(model, path) for path in data]
        tables: tuple[Path, ...] = tuple(data)
        parts: tuple[str | None, ...] = (None,) * count
        if len(data) == 1:
            tables, parts = tables * count, tuple(f"{i}/{count}" for i in range(count))
            sizes = [len(range(i, sizes[0], count)) for i in range(count)]
        terms = wanted.terms(model, sizes, options)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "consortium.json"
        if not file.exists() and any(
            entry.name not in {*names, *(f"keys-{name}" for name in names)}
            for entry in folder.iterdir()
        ):
            raise SordinoError(
                f"there is something at {str(folder)!r} already; choose a new folder"
            )
        made = []
        for one, size, port in zip(names, sizes, free_ports(count), strict=True):
            if not (folder / one).exists():
                sites.create_party(folder / one, one, examples=size, port=port)
            made.append(sites.PartySite.load(folder / one))
        assert model.description is not None
        cards = tuple(site.card for site in made)
        if [card.examples for card in cards] != sizes:
            raise SordinoError(f"{str(folder)!r} is a simulation with other data; {_NEW}")
        name = wanted.name or folder.name
        consortium = parties.Consortium(name, cards, terms, model.description, wanted.timeout)
        if file.exists() and parties.Consortium.load(file).digest != consortium.digest:
            raise SordinoError(f"{str(folder)!r} is a simulation of another run; {_NEW}")
        consortium.save(file)
        for site in made:
            if not (site.folder / "signature").exists():
                site.sign(consortium, allow=() if wanted.model is None else (wanted.model,))
        return cls(folder, consortium, tables, parts)

    def _code(self) -> list[Path]:
        """Where the model was found, if it is the user's own code: the parties find it there too."""
        name = sites.named_code(self.consortium.model)
        result = None if name is None else sites.code_folder(name)
        return [] if result is None else [result]

    def folder_of(self, name: str) -> Path:
        return self.folder / name

    def keys_of(self, name: str) -> Path:
        return self.folder / f"keys-{name}"

    @property
    def is_done(self) -> bool:
        return all((self.folder_of(name) / "model.npz").exists() for name in self.consortium.names)

    def records(self) -> dict[str, list[TurnRecord]]:
        """Every party's turns."""
        from sordino._base.keystore import KeyStore

        result = {}
        for name in self.consortium.names:
            journal = sites.PartySite.load(self.folder_of(name)).journal(
                KeyStore(self.keys_of(name))
            )
            try:
                result[name] = journal.records()
            finally:
                journal.close()
        return result

    def copy_model(self) -> Path:
        """The model, which is the same everywhere, beside the report."""
        target = self.folder / "model.npz"
        shutil.copyfile(self.folder_of(self.consortium.names[0]) / "model.npz", target)
        return target

    def run(self, test_file: Path | None, every: int | None) -> None:
        """Start all parties, show how they come on, and wait until they have ended."""
        if self.is_done:
            out().print("this simulation is done; its report is made anew")
            return
        names = self.consortium.names
        commands = []
        for place, name in enumerate(names):
            command = [str(self.folder_of(name)), "--data", str(self.tables[place])]
            part = self.parts[place]
            command += [] if part is None else ["--part", part]
            command += ["--wait", f"{_START:g}", "--json", "--no-report"]
            if test_file is not None and place == 0:
                command += ["--test", str(test_file)]
                command += [] if every is None else ["--every", str(every)]
            commands.append(command)
        steps = self.consortium.terms.plan.population.steps
        group = _Group(
            dict(zip(names, commands, strict=True)),
            {name: self.keys_of(name) for name in names},
            self._code(),
        )
        with progress(steps) as display:
            display.waiting(f"{len(names)} processes to start")
            failed = group.watch(display, patience=self.consortium.timeout + _LAST_WORDS)
        if failed:
            for name, text in failed.items():
                say_error(f"{name}: {text}")
            err().print("all parties have stopped; give the same command again to go on")
            raise typer.Exit(1)


_NEW = "give the same command again to go on with it, or choose a new folder"


class _Group:
    """The processes of all parties."""

    def __init__(
        self,
        commands: dict[str, list[str]],
        keys: dict[str, Path],
        folders: Sequence[Path] = (),
    ) -> None:
        self._events: queue.Queue[tuple[str, Json]] = queue.Queue()
        self._said: dict[str, list[str]] = {name: [] for name in commands}
        self._threads: list[threading.Thread] = []
        self._processes: dict[str, subprocess.Popen[str]] = {}
        for name, command in commands.items():
            # Each has its own key folder, and none charges the user's ledger.
            environment = {**clean_environment(*folders), "SORDINO_KEYS": str(keys[name])}
            environment.pop("SORDINO_LEDGER", None)
            process = subprocess.Popen(
                python_module("sordino", "party", "join", *command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which tells them once
            )
            self._processes[name] = process
            for work in (self._hear, self._note):
                thread = threading.Thread(target=work, args=(name, process), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _hear(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    self._events.put((name, json.loads(line)))
                except ValueError:
                    self._said[name].append(line)

    def _note(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            self._said[name].extend(lines)

    def watch(self, display: Display, *, patience: float) -> dict[str, str]:
        """Until all have ended; what those say that failed, the first to fail first.

        Args:
          patience: seconds that the others get to end by themselves when one has.
        """
        shown = _Together(display, list(self._processes))
        failed: list[str] = []
        deadline = float("inf")
        try:
            while True:
                running = [n for n, p in self._processes.items() if p.poll() is None]
                for name, process in self._processes.items():
                    if process.returncode and name not in failed:
                        failed.append(name)
                        deadline = min(deadline, time.monotonic() + patience)
                while not self._events.empty():
                    shown.take(*self._events.get())
                if not running:
                    break
                if time.monotonic() > deadline:
                    self._end()
                with suppress(queue.Empty):
                    shown.take(*self._events.get(timeout=0.1))
        except KeyboardInterrupt:
            self._end()
            err().print("stopped, all parties; give the same command again to go on")
            raise typer.Exit(INTERRUPTED) from None
        except BaseException:
            self._end()
            raise
        for thread in self._threads:
            thread.join(_LAST_WORDS)
        while not self._events.empty():
            shown.take(*self._events.get())
        return {name: self._reason(name) for name in failed}

    def _end(self) -> None:
        """Stop what is still running: asked first, and killed if it does not listen."""
        running = [p for p in self._processes.values() if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        until = time.monotonic() + _LAST_WORDS
        for process in running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _reason(self, name: str) -> str:
        code = self._processes[name].returncode
        if code < 0:
            return f"its process was ended by signal {-code}"
        said = " ".join("".join(self._said[name]).split())
        _, result, reason = said.partition("error: ")
        return reason if result else said or f"its process ended with code {code}"


class _Together:
    """What several parties say about the same turns, as one."""

    def __init__(self, display: Display, names: list[str]) -> None:
        self._display, self._names = display, names
        self._met: set[str] = set()
        self._turns: dict[int, list[Json]] = {}

    def take(self, name: str, event: Json) -> None:
        kind = event.get("event")
        if kind == "met":
            self._met.add(name)
            if len(self._met) == len(self._names):
                self._display.met(event["settled"], event["lost"])
        elif kind == "turn":
            result = self._turns.setdefault(event["settled"], [])
            result.append(event)
            if len(result) == len(self._names):
                scores: dict[str, float] = {}
                for one in result:
                    scores |= one["scores"]
                self._display.turned(
                    event["settled"],
                    max(one["seconds"] for one in result),
                    sum(one["sent"] for one in result),
                    scores,
                )
                del self._turns[event["settled"]]


def _records(model: ModelSpec, path: Path) -> int:
    import jax

    counts = {len(leaf) for leaf in jax.tree.leaves(model.load(path))}
    if len(counts) != 1:
        raise SordinoError(f"the arrays of {str(path)!r} have different lengths")
    return counts.pop()


def free_ports(count: int) -> list[int]:
    """First ports of `count` parties: each one and the two after it are free on this machine."""
    result: list[int] = []
    with ExitStack() as held:
        for _ in range(10_000):
            if len(result) == count:
                return result
            port = _FIRST_PORT + _PORTS * secrets.randbelow((_LAST_PORT - _FIRST_PORT) // _PORTS)
            taken = ExitStack()
            try:
                for offset in range(_PORTS):
                    one = taken.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port + offset))
            except OSError:
                taken.close()
                continue
            held.enter_context(taken)
            result.append(port)
    raise SordinoError(f"there are no {count} times {_PORTS} free ports on this machine")

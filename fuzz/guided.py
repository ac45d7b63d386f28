"""The coverage-guided fuzzer: one reader in one process, under a limit of time and of memory.

Started by `__main__.py`, which reads the tally that this process leaves behind. A broken contract does not
end the run: the first input of each kind is kept, the rest is counted. What takes too long ends it, because
nothing else can.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import atheris

# `sordino._base.errors` comes with the contract; instrument it, too.
with atheris.instrument_imports(include=["sordino"]):
    from fuzz.contract import BrokenContractError, attempt
from fuzz.limits import limit_memory
from fuzz.mutate import spoil_bytes
from fuzz.readers import READERS, Reader

# How much memory one input may take beyond what reading the seeds took.
MEMORY = 512 << 20
SECONDS = 20
LONGEST_INPUT = 1 << 15
# The share of mutations that keep the format's outer form, where there is one; the others are
# libFuzzer's own. Every second one starts from a seed again, or nothing would be left of the form.
STRUCTURED = 0.9
UNSTRUCTURED = 0.3
AGAIN = 0.5
INSTRUMENTED = ["sordino", "json", "zipfile", "tarfile", "tomllib", "gzip"]


@dataclass
class Tally:
    """What happened so far; written as JSON beside the findings."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    broken: int = 0
    slowest_seconds: float = 0.0
    seconds: float = 0.0
    sentences: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)


class Target:
    """Feeds inputs to one reader and keeps the tally."""

    def __init__(self, reader: Reader, folder: Path, findings: Path, runs: int) -> None:
        self.reader, self.folder, self.findings, self.runs = reader, folder, findings, runs
        self.tally = Tally()
        self.started = time.perf_counter()

    def __call__(self, data: bytes) -> None:
        name, content = self.reader.case(data)
        path = self.folder / name
        path.write_bytes(content)
        begin = time.perf_counter()
        try:
            sentence = attempt(self.reader, path, content)
        except Exception as error:
            self._broken(error, data)
        else:
            self._kept(sentence)
        took = time.perf_counter() - begin
        path.unlink()
        tally = self.tally
        tally.inputs += 1
        if took > tally.slowest_seconds:
            tally.slowest_seconds = took
            (self.findings / "slowest").write_bytes(data)
        if tally.inputs % 1000 == 0 or tally.inputs == self.runs:
            self.write()

    def _kept(self, sentence: str | None) -> None:
        if sentence is None:
            self.tally.read += 1
            return
        self.tally.refused += 1
        kind = _template(sentence)
        if kind in self.tally.sentences or len(self.tally.sentences) < 300:
            self.tally.sentences[kind] = self.tally.sentences.get(kind, 0) + 1

    def _broken(self, error: Exception, data: bytes) -> None:
        self.tally.broken += 1
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "sordino" in frame.filename] or frames
        kind = f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].lineno}"
        if isinstance(error, BrokenContractError):
            kind = f"{kind}, {_template(str(error))}"
        if kind not in self.tally.kinds and len(self.tally.kinds) < 100:
            self.tally.kinds[kind] = str(error)[:500]
            (self.findings / f"broken-{len(self.tally.kinds)}").write_bytes(data)
            self.write()

    def write(self) -> None:
        """Leave the tally for the parent process; a killed run still has the last one."""
        self.tally.seconds = time.perf_counter() - self.started
        self.tally.left_behind = sorted(entry.name for entry in self.folder.iterdir())
        (self.findings / "tally.json").write_text(json.dumps(asdict(self.tally)))


def _template(sentence: str) -> str:
    """The sentence without its numbers and quotations, to see how many different ones there are."""
    words = sentence.split()
    return " ".join(word for word in words if word.isalpha())[:120]


def main(name: str, findings: Path, options: list[str]) -> None:
    """Fuzz one reader until `-runs` are done; never returns."""
    reader = READERS[name]
    runs = next((int(o.removeprefix("-runs=")) for o in options if o.startswith("-runs=")), -1)
    findings.mkdir(parents=True, exist_ok=True)
    corpus = findings / "corpus"
    corpus.mkdir(exist_ok=True)
    # Imported here for the first time, so that the fuzzer sees which of their lines are run.
    with atheris.instrument_imports(include=INSTRUMENTED):
        inputs = reader.inputs()
    for at, seed in enumerate(inputs):
        (corpus / f"seed-{at}").write_bytes(seed)
    words = "".join(f'"{_escaped(word)}"\n' for word in reader.words)
    (findings / "words").write_text(words)
    warnings.simplefilter("ignore")

    scratch = Path(tempfile.mkdtemp(prefix="sordino-fuzz-"))
    target = Target(reader, scratch, findings, runs)
    with atheris.instrument_imports(include=INSTRUMENTED):
        for seed in inputs:
            target(
                seed
            )  # imports what the reader needs, and shows that the seeds are what they are
    if target.tally.broken:
        sys.exit(f"{name}: a seed breaks the contract: {target.tally.kinds}")
    target.tally = Tally()

    def mutate(data: bytes, largest: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() >= (UNSTRUCTURED if reader.spoil is spoil_bytes else STRUCTURED):
            return atheris.Mutate(data, largest)
        if rng.random() < AGAIN:
            data = rng.choice(inputs)
        if len(data) > LONGEST_INPUT:
            return atheris.Mutate(data, largest)
        head, body = (data[:1], data[1:]) if len(reader.names) > 1 else (b"", data)
        return (head + reader.spoil(body, rng))[:largest]

    settings: dict[str, Any] = {
        "timeout": SECONDS,
        "max_len": LONGEST_INPUT,
        "rss_limit_mb": 0,  # the limit below tells the reader, which can then refuse
        "dict": findings / "words",
        "artifact_prefix": f"{findings}{os.sep}",
        "print_final_stats": 1,
        "verbosity": 0,
    }
    if not reader.words:
        del settings["dict"]  # libFuzzer refuses an empty one
    given = {option.split("=")[0].lstrip("-") for option in options}
    settings_given = [f"-{key}={value}" for key, value in settings.items() if key not in given]
    argv = [sys.argv[0], *settings_given, *options, str(corpus)]
    limit_memory(MEMORY)
    atheris.Setup(argv, target, custom_mutator=mutate)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(
        f"\\x{byte:02x}" for byte in word.encode("utf-8" if "\ufeff" in word else "latin-1")
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])

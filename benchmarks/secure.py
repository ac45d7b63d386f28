"""What a noised sum between five data owners costs: seconds and bytes, beside the paper's.

Five real processes on this machine, each with its end of an engine, and mutual TLS between them. Noise of
standard deviation 8 grid steps, and of variance 2^24, as training with a fine grid needs it. Seconds are
from when all parties have their vectors until the last one has the sum: of the first sum, which also
compiles what is to be compiled and makes tables, and the median of a few later ones. Bytes are what all
parties together have sent in a later sum, without the headers of TCP and IP (for spu and mpyc also without
those of TLS).

    python -m benchmarks.secure [--all] [engine ...]

`plain` protects nobody: it is what the sum and its noise take by themselves, in one process. The paper
(DP-SRM, tables 4 to 6) used garbled circuits between two computing parties, on other machines and over
another network: its figures say what was possible, not what these engines would take there.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.support.certificates import create_certificate
from tests.support.plain_sums import noised_total
from tests.support.turn_file import TurnFile

from sordino.parts.mechanisms import KEY_BYTES, ChaCha20Generator
from sordino.together.secure import (
    SecureSum,
    Tls,
    certificate_fingerprint,
)

PARTIES = 5
VARIANCES = (64, 1 << 24)
TIMEOUT = 7200.0
# Entries of vectors stay below this.
LARGEST = 1 << 30
# d: seconds and megabytes of a sum.
PAPER = {22: (3.52, 292.0), 123: (18.04, 1_634.0), 26_010: (2_370.0, 337_000.0)}
DIMENSIONS = tuple(PAPER)
# Engine and d: seconds and megabytes that a later sum may take at most.
TARGETS = {
    ("mask", 26_010): (0.3, 3.0),
    ("spu", 123): (1.0, 10.0),
    ("mpyc", 123): (60.0, float("inf")),
}


def free_addresses(count: int) -> list[str]:
    """Ports of this machine that nobody uses now."""
    with ExitStack() as stack:
        result = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in result:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in result]


def certificates(folder: Path) -> list[Tls]:
    """Everybody's own, signed by itself and known to all."""
    built = [create_certificate(folder, f"party{i}") for i in range(PARTIES)]
    bundle = folder / "all.crt"
    bundle.write_text("".join(certificate.read_text() for certificate, _ in built))
    known = tuple(certificate_fingerprint(certificate.read_text()) for certificate, _ in built)
    return [Tls(certificate, key, bundle, known) for certificate, key in built]


@dataclass(frozen=True)
class Engine:
    """How an engine is started here.

    Attributes:
      end: makes a party's end; a function of this module, because it is called in that party's process.
      settings: what `end` is called with for each party, given a folder; made once for a set of parties.
      missing: why the engine cannot run here; empty where it can.
      slow: for which d it runs only if all are asked for, and then once after the first time.
      sums: how many are timed, after the first.
    """

    end: Callable[..., SecureSum]
    settings: Callable[[Path], list[dict[str, Any]]]
    missing: Callable[[], str]
    slow: tuple[int, ...] = ()
    sums: int = 5


def _mask_end(**settings: Any) -> SecureSum:
    from sordino.together.secure import MaskSum, StarTransport

    name, roster, tls = settings["name"], settings["roster"], settings["tls"]
    star = StarTransport.join(roster, name, tls.certificate, tls.key, timeout=TIMEOUT)
    turns = TurnFile(tls.key.with_suffix(".turns"), roster.session)
    return MaskSum(
        name, settings["private"], roster, star, colluders=2, largest=LARGEST, claim=turns
    )


def _mpyc_end(**settings: Any) -> SecureSum:
    from sordino.together.secure import MpycSum

    return MpycSum(**settings)


def _spu_end(**settings: Any) -> SecureSum:
    from sordino.together.secure import SpuSum

    return SpuSum(**settings)


def _mask(folder: Path) -> list[dict[str, Any]]:
    from sordino.together.secure import Roster, RosterEntry, new_private_key, public_key

    own = [(tls, new_private_key()) for tls in certificates(folder)]
    members = tuple(
        RosterEntry(tls.key.stem, public_key(private), tls.certificate.read_text())
        for tls, private in own
    )
    host, port = free_addresses(1)[0].split(":")
    roster = Roster("benchmark", members, host, int(port))
    return [
        {"name": tls.key.stem, "private": private, "roster": roster, "tls": tls}
        for tls, private in own
    ]


def _mpyc(folder: Path) -> list[dict[str, Any]]:
    shared = {"addresses": free_addresses(PARTIES), "timeout": TIMEOUT}
    return [{"index": i, "tls": tls, **shared} for i, tls in enumerate(certificates(folder))]


def _spu(folder: Path) -> list[dict[str, Any]]:
    result = free_addresses(6)
    shared = {
        "parties": PARTIES,
        "addresses": result[:3],
        "links": result[3:],
        "timeout": TIMEOUT,
    }
    return [{"index": i, "tls": tls, **shared} for i, tls in enumerate(certificates(folder))]


def _nothing_missing() -> str:
    return ""


def _without_mpyc() -> str:
    return "" if importlib.util.find_spec("mpyc") else "install the extra mpc"


def _without_spu() -> str:
    if "SORDINO_SPU" in os.environ:
        return ""
    return "make its environment with `python -m sordino.together.secure._spu_engine create PATH`, set SORDINO_SPU"


# Another engine is one more entry.
ENGINES: dict[str, Engine] = {
    "mask": Engine(_mask_end, _mask, _nothing_missing),
    "spu": Engine(_spu_end, _spu, _without_spu, sums=3),
    "mpyc": Engine(_mpyc_end, _mpyc, _without_mpyc, slow=(26_010,), sums=3),
}


@dataclass(frozen=True)
class SecureSumRow:
    """What sums of one kind cost: seconds of the first, of later ones, and megabytes."""

    variance: int
    d: int
    first: float
    later: float
    megabytes: float


def _party(
    index: int, made: Callable[..., SecureSum], settings: dict[str, Any], together: Any, pipe: Any
) -> None:
    """One party's process: a sum for each (d, variance, turn) it is told."""
    end = made(**settings)
    chance = np.random.default_rng(index)
    while (asked := pipe.recv()) is not None:
        d, variance, turn = asked
        values = chance.integers(-LARGEST, LARGEST, d)
        before = end.bytes_sent
        together.wait(TIMEOUT)
        began = time.perf_counter()
        total = end.noised_sum(values, variance, turn)
        took = time.perf_counter() - began
        pipe.send((took, end.bytes_sent - before, total, values))
    end.close()


def measure(name: str, *, everything: bool = False) -> Iterator[SecureSumRow]:
    """For every variance and d, as they are done."""
    engine = ENGINES[name]
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PARTIES)
    processes, pipes = [], []
    with tempfile.TemporaryDirectory() as folder:
        for index, settings in enumerate(engine.settings(Path(folder))):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_party, args=(index, engine.end, settings, together, theirs)
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        turn = 0
        try:
            for variance in VARIANCES:
                for d in DIMENSIONS:
                    if d in engine.slow and not everything:
                        continue
                    seconds, megabytes = [], []
                    for _ in range(2 if d in engine.slow else 1 + engine.sums):
                        for pipe in pipes:
                            pipe.send((d, variance, turn))
                        answers = [pipe.recv() for pipe in pipes]
                        turn += 1
                        _require_right(name, variance, answers)
                        seconds.append(max(answer[0] for answer in answers))
                        megabytes.append(sum(answer[1] for answer in answers) / 1e6)
                    later, sent = median(seconds[1:]), median(megabytes[1:])
                    yield SecureSumRow(variance, d, seconds[0], later, sent)
            for pipe in pipes:
                pipe.send(None)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        finally:
            for process in processes:
                process.join()


def _require_right(name: str, variance: int, answers: list[Any]) -> None:
    """The same sum everywhere, and off by noise of about that size."""
    off = answers[0][2] - sum(answer[3] for answer in answers)
    deviations = np.abs(off) / variance**0.5
    same = all((answer[2] == answers[0][2]).all() for answer in answers)
    if not same or deviations.max() > 20 or not off.any():
        raise AssertionError(f"{name}: the sum is wrong")


def measure_plain() -> Iterator[SecureSumRow]:
    """The sum and its noise alone, in this process."""
    generator = ChaCha20Generator(os.urandom(KEY_BYTES))
    for variance in VARIANCES:
        for d in DIMENSIONS:
            vectors = [np.arange(d)] * PARTIES
            seconds = []
            for _ in range(6):
                began = time.perf_counter()
                noised_total(vectors, variance, generator)
                seconds.append(time.perf_counter() - began)
            yield SecureSumRow(variance, d, seconds[0], median(seconds[1:]), 0.0)


COLUMNS = {
    "engine": 6,
    "noise": 8,
    "d": 8,
    "first s": 9,
    "later s": 9,
    "MB": 9,
    "paper s": 10,
    "paper MB": 10,
    "faster": 10,
    "less": 10,
    "target": 9,
}


def _print(*cells: str) -> None:
    widths = COLUMNS.values()
    print(
        "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)), flush=True
    )


def _print_row(name: str, row: SecureSumRow) -> None:
    seconds, megabytes = PAPER[row.d]
    target = ""
    if (name, row.d) in TARGETS:
        most = TARGETS[name, row.d]
        target = "met" if row.later <= most[0] and row.megabytes <= most[1] else "MISSED"
    _print(
        name,
        f"2^{row.variance.bit_length() - 1}",
        f"{row.d:,}",
        f"{row.first:.3f}",
        f"{row.later:.3f}",
        f"{row.megabytes:.3f}" if row.megabytes < 1 else f"{row.megabytes:,.1f}",
        f"{seconds:,.2f}",
        f"{megabytes:,.0f}",
        f"{seconds / row.later:,.0f} x" if row.megabytes else "",
        f"{megabytes / row.megabytes:,.0f} x" if row.megabytes else "",
        target,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Seconds and bytes of noised sums.")
    parser.add_argument("engines", nargs="*", metavar="engine", help=", ".join(ENGINES) + ", plain")
    parser.add_argument("--all", action="store_true", help="also what takes many minutes")
    asked = parser.parse_args()
    names = asked.engines or [*ENGINES, "plain"]
    unknown = sorted(set(names) - {*ENGINES, "plain"})
    if unknown:
        parser.error(f"there is no engine {unknown[0]!r}; known are {', '.join(ENGINES)}, plain")
    print(
        f"{PARTIES} processes on one machine, mutual TLS; noise: its variance in squared grid steps"
    )
    _print(*COLUMNS)
    for name in names:
        if name == "plain":
            for row in measure_plain():
                _print_row(name, row)
            continue
        reason = ENGINES[name].missing()
        if reason:
            print(f"{name:>6}  skipped: {reason}")
            continue
        for row in measure(name, everything=asked.all):
            _print_row(name, row)
        for d in () if asked.all else ENGINES[name].slow:
            print(f"{name:>6}  d = {d:,} skipped: takes many minutes for a sum; ask with --all")


if __name__ == "__main__":
    main()

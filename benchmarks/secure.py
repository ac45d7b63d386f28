"""What a noised sum between five data owners costs: seconds and bytes, beside the paper's.

Five real processes on this machine, each with its end of an engine; noise of standard deviation 8 grid
steps. Seconds are from when all parties have their vectors until the last one has the
sum (the median of a few sums after the first one, which also compiles what is to be compiled); bytes are
what all parties together have sent, without the headers of TCP and IP.

    python -m benchmarks.secure [engine ...]

The paper (DP-SRM, tables 4 to 6) used garbled circuits between two computing parties, on other machines
and over another network: its figures say what was possible, not what these engines would take there.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from sordino.secure.base import NoisedSum

PARTIES = 5
VARIANCE = 64
TIMEOUT = 600.0
# d: seconds and megabytes of a sum.
PAPER = {22: (3.52, 292.0), 123: (18.04, 1_634.0), 26_010: (2_370.0, 337_000.0)}
DIMENSIONS = tuple(PAPER)


def free_addresses(count: int) -> list[str]:
    """Ports of this machine that nobody uses now."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in found]


@dataclass(frozen=True)
class Engine:
    """How an engine is started here.

    Attributes:
      end: makes a party's end; a function of this module, because it is called in that party's process.
      settings: what `end` is called with for each party; made once for a set of parties.
      missing: why the engine cannot run here; empty where it can.
      dimensions: for which d it is worth it.
      sums: how many are timed, after the first.
    """

    end: Callable[..., NoisedSum]
    settings: Callable[[], list[dict[str, Any]]]
    missing: Callable[[], str]
    dimensions: tuple[int, ...] = DIMENSIONS
    sums: int = 5


def _mpyc_end(**settings: Any) -> NoisedSum:
    from sordino.secure.mpyc_engine import MpycSum

    return MpycSum(**settings)


def _spu_end(**settings: Any) -> NoisedSum:
    from sordino.secure.spu_engine import SpuSum

    return SpuSum(**settings)


def _mpyc() -> list[dict[str, Any]]:
    shared = {"addresses": free_addresses(PARTIES), "timeout": TIMEOUT}
    return [{"index": i, **shared} for i in range(PARTIES)]


def _spu() -> list[dict[str, Any]]:
    found = free_addresses(6)
    shared = {
        "parties": PARTIES,
        "addresses": found[:3],
        "links": found[3:],
        "timeout": TIMEOUT,
    }
    return [{"index": i, **shared} for i in range(PARTIES)]


def _without_mpyc() -> str:
    return "" if importlib.util.find_spec("mpyc") else "install the extra mpc"


def _without_spu() -> str:
    if "SORDINO_SPU" in os.environ:
        return ""
    return "make its environment with `python -m sordino.secure.spu_engine create PATH`, set SORDINO_SPU"


# Another engine is one more entry.
ENGINES: dict[str, Engine] = {
    "mpyc": Engine(_mpyc_end, _mpyc, _without_mpyc, (22, 123), sums=3),
    "spu": Engine(_spu_end, _spu, _without_spu),
}


def _party(
    index: int, made: Callable[..., NoisedSum], settings: dict[str, Any], together: Any, pipe: Any
) -> None:
    """One party's process: a sum for each (d, turn) it is told."""
    end = made(**settings)
    chance = np.random.default_rng(index)
    while (asked := pipe.recv()) is not None:
        d, turn = asked
        values = chance.integers(-1000, 1000, d)
        before = end.bytes_sent
        together.wait(TIMEOUT)
        began = time.perf_counter()
        total = end.noised_sum(values, VARIANCE, turn)
        took = time.perf_counter() - began
        pipe.send((took, end.bytes_sent - before, total, values))
    end.close()


def measure(name: str) -> list[tuple[int, float, float, float]]:
    """For every d: it, the first sum's seconds, the others' median, and megabytes of a sum."""
    engine = ENGINES[name]
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PARTIES)
    processes, pipes = [], []
    for index, settings in enumerate(engine.settings()):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_party, args=(index, engine.end, settings, together, theirs)
        )
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    rows = []
    turn = 0
    try:
        for d in engine.dimensions:
            seconds, megabytes = [], []
            for _ in range(1 + engine.sums):
                for pipe in pipes:
                    pipe.send((d, turn))
                answers = [pipe.recv() for pipe in pipes]
                turn += 1
                off = answers[0][2] - sum(answer[3] for answer in answers)
                if any((a[2] != answers[0][2]).any() for a in answers) or np.abs(off).max() > 1000:
                    raise AssertionError(f"{name}: the sum is wrong")
                seconds.append(max(answer[0] for answer in answers))
                megabytes.append(sum(answer[1] for answer in answers) / 1e6)
            rows.append((d, seconds[0], median(seconds[1:]), median(megabytes[1:])))
        for pipe in pipes:
            pipe.send(None)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    return rows


def main(*names: str) -> None:
    """Print the table."""
    unknown = sorted(set(names) - set(ENGINES))
    if unknown:
        sys.exit(f"there is no engine {unknown[0]!r}; known are {', '.join(ENGINES)}")
    print(f"{PARTIES} processes, noise of variance {VARIANCE}")
    columns = ("engine", "d", "first s", "s", "MB", "paper s", "paper MB", "times faster", "less")
    print("".join(f"{column:>13}" for column in columns))
    for name in names or ENGINES:
        reason = ENGINES[name].missing()
        if reason:
            print(f"{name:>13}  skipped: {reason}")
            continue
        for d, first, seconds, megabytes in measure(name):
            paper_seconds, paper_megabytes = PAPER[d]
            cells = (
                f"{name}",
                f"{d:,}",
                f"{first:.2f}",
                f"{seconds:.2f}",
                f"{megabytes:.2f}",
                f"{paper_seconds:,.2f}",
                f"{paper_megabytes:,.0f}",
                f"{paper_seconds / seconds:,.0f}",
                f"{paper_megabytes / megabytes:,.0f}",
            )
            print("".join(f"{cell:>13}" for cell in cells), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

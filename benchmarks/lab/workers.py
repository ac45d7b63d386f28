"""Cells on several cores: worker processes of one thread each, that end with their parent.

This module imports nothing heavy: a worker is held to its core before it imports jax.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino import SordinoError

if TYPE_CHECKING:
    from benchmarks.lab.cells import Cell, Trial

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_all(
    work: Sequence[Cell | Trial], *, data: str | None, out: Path, jobs: int
) -> Iterator[Cell | Trial]:
    """Run and store all of `work`; yields each piece when it is on disk, in whatever order."""
    if not work:
        return
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for i in range(jobs):
        cores.put(i)
    with (
        _OneThread(),
        ProcessPoolExecutor(
            min(jobs, len(work)),
            mp_context=context,
            initializer=_begin,
            initargs=(cores, os.getpid()),
        ) as pool,
    ):
        waiting: dict[Future[None], Cell | Trial] = {
            pool.submit(_run, piece, piece.key, data, out): piece for piece in work
        }
        try:
            while waiting:
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    piece = waiting.pop(done)
                    done.result()
                    yield piece
        except BrokenProcessPool:
            raise SordinoError(
                "a worker process was ended from outside, perhaps for want of memory; finished "
                "cells are kept: run the same command again, with --jobs 1"
            ) from None
        finally:
            for left in waiting:
                left.cancel()
            if waiting:
                for process in multiprocessing.active_children():
                    process.terminate()


class _OneThread:
    """One thread per library in the processes that are started meanwhile."""

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in _THREADS}
        os.environ.update(dict.fromkeys(_THREADS, "1"))

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _begin(cores: Any, parent: int) -> None:
    """In a worker, first of all: take one core, leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    place = cores.get()
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {allowed[place % len(allowed)]})


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _run(piece: Cell | Trial, key: str, data: str | None, out: Path) -> None:
    from benchmarks.lab.cells import Trial
    from benchmarks.lab.machine import machine
    from benchmarks.lab.store import Store
    from benchmarks.lab.tasks import run_task, tune_task
    from sordino.engine import compilation_cache

    with compilation_cache():  # its data are published
        if isinstance(piece, Trial):
            result = {**tune_task(piece, data), "machine": machine()}
        else:
            result = {"cell": asdict(piece), **run_task(piece, data), "machine": machine()}
    Store(out).write(piece.experiment, key, result)

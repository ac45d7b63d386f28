"""Processes that race for one budget, or are killed in the middle. Run as a script by the tests.

It forks from a small process of its own: the test's may hold threads that do not survive a fork.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback

from sordino._base.errors import SordinoError
from sordino.engine.ledger._composition import BudgetExceeded
from sordino.engine.ledger._ledger import Ledger

from .helpers import WHOLE_RUN, gaussian


def race(path: str, name: int, attempts: int, send: int) -> None:
    """Try `attempts` times to get a share; report what was promised to us."""
    ledger, draw = Ledger.open(path), random.Random(name)
    kept: dict[str, float] = {}
    given_back, refused = 0, 0
    for number in range(attempts):
        shared = draw.random() < 0.1  # several processes go for the same run
        mu = 0.05 if shared else draw.uniform(0.01, 0.1)
        run = f"shared-{number % 10}" if shared else f"{name}-{number}"
        try:
            ledger.reserve("people", gaussian(mu), run=run, fingerprint="f", identity=WHOLE_RUN)
        except BudgetExceeded:
            refused += 1
            continue
        if not shared and draw.random() < 0.2:
            ledger.cancel(run)
            given_back += 1
            continue
        kept[run] = mu
        ledger.start(run)
        if draw.random() < 0.5:
            ledger.finish(run)
    os.write(send, json.dumps([kept, given_back, refused]).encode() + b"\n")


def racing(path: str, processes: int, attempts: int) -> None:
    """Start all of them at once and print their reports as one list."""
    receive, send = os.pipe()
    children = []
    for name in range(processes):
        child = os.fork()
        if child == 0:
            os.close(receive)
            code = 1
            try:
                race(path, name, attempts, send)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    os.close(send)
    with os.fdopen(receive) as reports:
        lines = [json.loads(line) for line in reports]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(json.dumps({"codes": codes, "reports": lines}))


def killing(path: str, rounds: int, seed: int) -> None:
    """Kill a process that uses the ledger at a random instant, again and again; print what it was told.

    A child writes a line once a call has returned: what it was told must be on file.
    """
    draw, promised, unfinished = random.Random(seed), [], 0
    for turn in range(rounds):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            ledger = Ledger.open(path)
            os.write(send, b"ready\n")
            for number in range(10**6):
                run = f"{turn}-{number}"
                ledger.reserve("people", gaussian(0.001), run=run, fingerprint="f")
                os.write(send, f"{run} reserved\n".encode())
                ledger.start(run)
                os.write(send, f"{run} running\n".encode())
        os.close(send)
        with os.fdopen(receive) as told:
            assert told.readline() == "ready\n"
            time.sleep(draw.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            lines = told.read().split("\n")
        promised += [line.split() for line in lines[:-1]]
        try:
            found = Ledger.open(path).verify()
        except SordinoError as error:
            print(json.dumps({"error": str(error), "round": turn}))
            return
        unfinished = found.entries
    print(json.dumps({"promised": promised, "entries": unfinished}))


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    {"race": racing, "kill": killing}[what](where, *map(int, numbers))

"""``python -m fuzz READER [-runs=N]`` and ``python -m fuzz all --inputs 1000000``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fuzz.readers import READERS

DEFAULT_INPUTS = 10_000
MOST_SHOWN = 10


def main() -> int:
    """Run the fuzzer, print a table; 1 if a reader broke its contract or took too long."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Fuzz the readers of foreign bytes."
    )
    parser.add_argument("reader", choices=["all", *READERS], help="which reader, or all of them")
    parser.add_argument(
        "--inputs", type=int, default=DEFAULT_INPUTS, help="inputs in all, shared by the readers"
    )
    parser.add_argument(
        "--findings", type=Path, default=Path(".fuzz"), help="where inputs and tallies are kept"
    )
    given, options = parser.parse_known_args()
    chosen = list(READERS) if given.reader == "all" else [given.reader]
    whole = sum(READERS[name].share for name in chosen)
    rows = []
    for name in chosen:
        runs = round(given.inputs * READERS[name].share / whole)
        if not any(option.startswith("-runs=") for option in options):
            rows.append(_run(name, given.findings / name, [f"-runs={runs}", *options]))
        else:
            rows.append(_run(name, given.findings / name, options))
        _print(rows[-1:], heading=len(rows) == 1)
    if len(rows) > 1:
        total = {
            key: sum(row[key] for row in rows)
            for key in ("inputs", "read", "refused", "broken", "seconds")
        }
        slowest = max(row["slowest_seconds"] for row in rows)
        _print([{"reader": "all", **total, "slowest_seconds": slowest, "ended": ""}], heading=False)
    bad = [row for row in rows if row["broken"] or row["ended"] or row["left_behind"]]
    for row in bad:
        print(f"{row['reader']}: {row['ended']} left behind {row['left_behind']}")
        for kind, message in list(row["kinds"].items())[:MOST_SHOWN]:
            print(f"  {kind}: {message}")
    return 1 if bad else 0


def _run(name: str, findings: Path, options: list[str]) -> dict[str, Any]:
    """One reader in a process of its own: what hangs or dies there ends only its own run."""
    findings.mkdir(parents=True, exist_ok=True)
    tally = findings / "tally.json"
    tally.unlink(missing_ok=True)
    with open(findings / "log", "w", encoding="utf-8") as log:
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.guided", name, str(findings), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "SORDINO_CACHE": "off"},
            check=False,
        )
    row: dict[str, Any] = {"inputs": 0, "read": 0, "refused": 0, "broken": 0, "seconds": 0.0}
    row |= {"slowest_seconds": 0.0, "kinds": {}, "left_behind": []}
    if tally.exists():
        row |= json.loads(tally.read_text(encoding="utf-8"))
    ended = (
        f"ended with exit code {done.returncode}, see {findings / 'log'};"
        if done.returncode
        else ""
    )
    return {"reader": name, **row, "ended": ended}


def _print(rows: list[dict[str, Any]], heading: bool) -> None:
    if heading:
        names = f"{'reader':>14} {'inputs':>10} {'read':>9} {'refused':>9} {'broken':>7}"
        print(f"{names} {'slowest':>9} {'time':>8}")
    for row in rows:
        print(
            f"{row['reader']:>14} {row['inputs']:>10,} {row['read']:>9,} {row['refused']:>9,} "
            f"{row['broken']:>7,} {row['slowest_seconds']:>8.3f}s {row['seconds']:>7.0f}s {row['ended']}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())

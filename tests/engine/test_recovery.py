"""Runs killed at any instant end as if nothing had happened, and leave no secret on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.engine.loop import noise_block, parameter_count
from sordino.engine.run import Run
from sordino.ledger import Ledger
from sordino.losses import Logistic
from tests.engine.crashing import DATASET, FEATURES, KEY, LEDGER, data, planned
from tests.engine.killing import SECRETS, find_rows, leaks

ROOT = Path(__file__).parents[2]
# One recipe for each kind of state: a tree's stack, a filter's buffers, a remembered epoch, none, a search.
RECIPES = ("dp-ftrl", "dp-memf", "dp-nsgd-sr", "dp-srm", "dp-agd")


def secrets_of(recipe: str) -> dict[str, NDArray[Any]]:
    """What must never be on disk: data, clipped sums, noise, noise states and keys."""
    X, y = data()
    weights = np.zeros(Logistic().parameter_shape(FEATURES), np.float32)
    found: dict[str, Any] = {
        "run key": np.frombuffer(KEY.secret, np.uint8),
        "noise key": np.frombuffer(KEY.derive("noise/gradient")[:8], np.uint8),
        "data": X,
    }
    plan = planned(recipe)
    if plan.schedule.kind == "adaptive":
        return found  # its noise and sums are not searched for
    run = Run(plan, Logistic(), weights, (X, y), key=KEY, checkpointed=True)
    noise, sums, states = [], [], []
    while not run.finished:
        first = run.done
        carry, inputs = run._carry, run._schedule.inputs(first, 1, None)
        block, _ = noise_block(
            run.program,
            run._starts[run._chunk + 1] - first,
            carry,
            plan.mechanism,
            run._noise_key,
            np.int32(first),
        )
        noise.append(np.asarray(block))
        size = parameter_count(carry.params) * run.program.channels
        for leaf in jax.tree.leaves(carry.noise_state):
            array = np.asarray(leaf)
            if array.dtype == np.float32 and array.size % size == 0 and array.size:
                states.append(array.reshape(-1, size))
        # The sum of the chunk's first step, computed as the loop does.
        begin = (first % plan.population.steps_per_epoch) * plan.population.batch_size
        if run.program.sliced:
            rows = slice(begin, begin + plan.population.batch_size)
            batch = jax.tree.map(lambda leaf, rows=rows: leaf[rows], run._data)
            now = jax.tree.map(lambda leaf: leaf[0], inputs)
            total = run.program.stream.contribution(
                carry.params, carry.memory, batch, run._valid[rows], now.terms, now.step
            )
            flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total.value)])
            sums.append(flat[None])
        run.advance()
    rows = np.concatenate(noise)
    found["noise"] = rows
    found["scaled noise"] = rows * np.asarray(run._schedule.noise_stds[:, :1])
    if sums:
        found["sums"] = np.concatenate(sums).astype(np.float32)
    if states:
        found["noise states"] = np.concatenate(states)
    return found


def kill(folder: Path, recipe: str, kills: int, seed: int) -> list[dict[str, Any]]:
    np.savez(folder / SECRETS, **secrets_of(recipe))
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.killing", str(folder), recipe, str(kills), str(seed)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def check(folder: Path, recipe: str, kills: int, seed: int) -> None:
    records = kill(folder, recipe, kills, seed)
    assert sum(record["kills"] for record in records) >= kills
    results = {record["result"] for record in records}
    assert len(results) == 1, "a run that was killed ended with other parameters"
    assert [record["leaks"] for record in records] == [[]] * len(records)
    wanted = entries(folder / "warm")
    for record in records:
        assert entries(folder / record["run"]) == wanted


def entries(folder: Path) -> list[Any]:
    """The ledger's entries without their times, and that it is whole."""
    ledger = Ledger.open(folder / LEDGER)
    ledger.verify()
    (held,) = ledger.reservations(DATASET)
    told = [(entry.what, entry.dataset, entry.run) for entry in ledger.history()]
    ledger.close()
    return [*told, held.state, held.run]


@pytest.mark.parametrize("recipe", ["dp-ftrl", "dp-agd"])
def test_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path, recipe: str) -> None:
    check(tmp_path, recipe, kills=5, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_200_random_instants(tmp_path: Path, recipe: str) -> None:
    check(tmp_path, recipe, kills=40, seed=2)


def test_the_search_for_secrets_finds_them(tmp_path: Path) -> None:
    secrets = secrets_of("dp-ftrl")
    assert {"data", "noise", "scaled noise", "sums", "noise states", "run key"} <= set(secrets)
    rng = np.random.default_rng(0)
    for name, values in secrets.items():
        plain = rng.integers(0, 256, 4001, np.uint8).tobytes()
        (tmp_path / "file").write_bytes(plain)
        assert leaks(tmp_path, secrets) == []
        planted = values[len(values) // 2 :][:1] if values.dtype != np.uint8 else values
        (tmp_path / "file").write_bytes(plain[:1001] + planted.tobytes() + plain[1001:])
        assert any(leak.startswith(name) for leak in leaks(tmp_path, secrets)), name


def test_the_search_sees_through_rounding_and_width() -> None:
    secret = np.array([[1.234567, -7.654321, 2.0]], np.float32)
    assert find_rows((secret * (1 + 1e-6)).astype(np.float64).tobytes(), secret) == 1
    assert find_rows(b"abc" + (secret * (1 + 1e-6)).astype(np.float32).tobytes(), secret) == 1
    assert find_rows((secret * 1.01).astype(np.float32).tobytes(), secret) == 0

"""Runs killed at any instant end as if nothing had happened, and leave no secret on disk."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sordino.engine import _adaptive as adaptive
from sordino.engine import _noise as noise_module
from sordino.engine import _stepper as stepper
from sordino.engine._adaptive import AdaptiveRun
from sordino.engine._run import TrainingRun
from sordino.engine.ledger._ledger import Ledger
from sordino.parts._losses import Logistic
from tests.engine.crashing import DATASET, FEATURES, KEY, LEDGER, data, planned
from tests.engine.killing import SECRETS, find_rows, leaks

ROOT = Path(__file__).parents[2]
# One recipe for each kind of state: a tree's stack, a filter's buffers, a remembered epoch, none, a search.
RECIPES = ("dp-ftrl", "dp-memf", "dp-nsgd-sr", "dp-srm", "dp-agd")


class Watched:
    """Writes down what passes the line between sums and releases, at every step of a run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sums: list[NDArray[Any]] = []
        self.scaled: list[NDArray[Any]] = []
        self.noise: list[NDArray[Any]] = []
        self.losses: list[NDArray[Any]] = []

        def add_noise(total: Any, rows: Any, scale: Any) -> Any:
            noise = jax.tree.map(
                lambda leaf: leaf * scale[0], rows
            )  # one channel in all of RECIPES
            for kept, value in ((self.sums, total.clipped), (self.scaled, noise)):
                jax.debug.callback(kept.append, ravel_pytree(value)[0])
            return real_add_noise(total, rows, scale)

        def standard_normal_rows(*arguments: Any) -> Any:
            rows = real_rows(*arguments)
            jax.debug.callback(lambda given: self.noise.extend(np.array(given)), rows)
            return rows

        def exact(sums: Any) -> Any:
            self.losses.append(real_exact(sums))
            return self.losses[-1]

        real_add_noise, real_rows, real_exact = (
            stepper.add_noise,
            noise_module.standard_normal_rows,
            adaptive._exact,
        )
        for module in (stepper, adaptive):
            patch.setattr(module, "add_noise", add_noise)
        for module in (noise_module, adaptive):
            patch.setattr(module, "standard_normal_rows", standard_normal_rows)
        patch.setattr(adaptive, "_exact", exact)


def secrets_of(recipe: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """What must never be on disk (data, keys, and every sum and noise of every step), and the end.

    It is taken from the run itself, by looking at what goes into the line that adds noise.
    """
    X, y = data()
    plan = planned(recipe)
    kind = AdaptiveRun if plan.schedule.kind == "adaptive" else TrainingRun
    states: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        jax.clear_caches()
        watched = Watched(patch)
        weights = np.zeros(Logistic().parameter_shape(FEATURES), np.float32)
        run = kind(plan, Logistic(), weights, (X, y), key=KEY, checkpointed=True)
        while not run.finished:
            run.advance()
            if isinstance(run, TrainingRun):
                for leaf in jax.tree.leaves(run._noise_state):
                    array = np.asarray(leaf)
                    if array.dtype == np.float32 and array.size and array.size % weights.size == 0:
                        states.append(array.reshape(-1, weights.size))
        jax.effects_barrier()
    jax.clear_caches()
    assert len(watched.sums) == len(watched.scaled) >= run.done
    found: dict[str, Any] = {
        "run key": np.frombuffer(KEY.secret, np.uint8),
        "noise key": np.frombuffer(KEY.derive("noise/gradient")[:8], np.uint8),
        "data": X,
        "sums": np.stack(watched.sums),
        "scaled noise": np.stack(watched.scaled),
        "noise": np.stack(watched.noise),
    }
    if watched.losses:
        found["losses along the search"] = np.stack(watched.losses)[:, 1:]
    if states:
        found["noise states"] = np.concatenate(states)
    return {name: np.asarray(values) for name, values in found.items()}, run.output()


def kill(folder: Path, recipe: str, kills: int, seed: int) -> list[dict[str, Any]]:
    secrets, output = secrets_of(recipe)
    np.savez(folder / SECRETS, **secrets)
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.killing", str(folder), recipe, str(kills), str(seed)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    records = list(json.loads(done.stdout.splitlines()[-1]))
    # The run that was watched is the one that was killed, so its secrets are the same.
    end = np.load(io.BytesIO(bytes.fromhex(records[0]["result"])))
    np.testing.assert_allclose(output, end, rtol=1e-4, atol=1e-5)
    return records


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


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dp-ftrl"])
def test_killed_runs_end_as_if_nothing_had_happened(tmp_path: Path, recipe: str) -> None:
    check(tmp_path, recipe, kills=5, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_killed_at_200_random_instants(tmp_path: Path, recipe: str) -> None:
    check(tmp_path, recipe, kills=40, seed=2)


def test_the_search_for_secrets_finds_them(tmp_path: Path) -> None:
    secrets, _ = secrets_of("dp-ftrl")
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

"""Noise that can be enumerated is no noise: the attack on short seeds, and why it fails here.

No statistical audit can see a short seed: the noise has the right distribution, and only whoever tries
all seeds knows it. So this is an attack script: recompute the noise of every seed, subtract it from one
release, and look whether what is left is one of the two possible sums (papers/01 section 3.1,
papers/03 section 2.7).
"""

from __future__ import annotations

import secrets
import sys
from typing import Any

import jax
import numpy as np
import pytest

import sordino
from sordino._base.keys import KEY_BYTES, RunKey
from sordino.audit._plans import reference_plan
from sordino.audit._recording import Recording
from sordino.audit._whitebox import Neighbours
from sordino.engine._noise import GaussianNoise
from sordino.engine._run import scan_chunk
from sordino.parts._losses import Logistic
from sordino.parts.mechanisms._gaussian import gaussian_key, standard_normal_rows

from ..contract.cases import logistic_data

# 2^32 seeds take a graphics card some minutes; 2^10 show the same in a second.
SEEDS = 1 << 10
RUNS = 12


def short_key(self: RunKey, stream: str) -> jax.Array:
    """As `jax.random.key(int)` in most code: however long the secret is, few bits of it are kept."""
    seed = int.from_bytes(self.derive(f"noise/{stream}")[:4], "little") % SEEDS
    return jax.random.key(seed)


def first_release(world: Recording, key: RunKey) -> np.ndarray:
    """What the first step of a run with this key makes public: its noisy sum (d,)."""
    driver = world.driver
    layout = driver.noise.layout
    state, _ = scan_chunk(
        driver.stepper,
        driver.batches.slices,
        1,
        jax.tree.map(np.array, world.state),
        driver.noise.init(),
        driver.records,
        GaussianNoise(world.plan.mechanism, gaussian_key(key, "gradient"), layout),
        driver.table.rows(0, 1),
        None,
    )
    _, values, _ = state.update
    return np.asarray(values[0], np.float64) * float(driver.table.divisors[0])


def enumerate_seeds(pair: Neighbours, release: np.ndarray) -> set[int]:
    """The worlds (0 without the example, 1 with it) that some seed explains."""
    seeds = np.arange(SEEDS, dtype=np.uint32)
    keys = jax.vmap(jax.random.key)(seeds)
    rows = jax.vmap(lambda key: standard_normal_rows(key, 0, 1, release.size)[0])(keys)
    noise = np.asarray(rows, np.float64) * float(pair.plan.noise_stds()[0, 0])
    sums = [next(w.silenced().releases(0, 1)).sums[0, 0, 0] for w in pair.worlds]
    scale = float(pair.plan.noise_stds()[0, 0])
    return {
        world
        for world, clean in enumerate(sums)
        if (np.abs(release - noise - clean).max(axis=1) < 1e-3 * scale).any()
    }


@pytest.fixture(scope="module")
def pair() -> Neighbours:
    """A plan whose every step uses every example, with noise far above a contribution."""
    return Neighbours.of(reference_plan("dp-gd", epsilon=0.1, delta=1e-6))


def test_short_seeds_are_found_by_enumeration(
    pair: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """epsilon 0.1 is claimed, and yet one release tells for sure, in every run of either world."""
    monkeypatch.setattr(sys.modules[__name__], "gaussian_key", short_key)
    for i in range(RUNS):
        release = first_release(pair.worlds[i % 2], RunKey.fresh())
        assert enumerate_seeds(pair, release) == {i % 2}


def test_our_keys_are_not_among_them(pair: Neighbours) -> None:
    """The same attacker learns nothing. (A match by chance has probability below 1e-10.)"""
    for i in range(RUNS):
        release = first_release(pair.worlds[i % 2], RunKey.fresh())
        assert enumerate_seeds(pair, release) == set()


def test_keys_are_wider_than_32_bits() -> None:
    """300,000 keys: of 2^32 values about ten would come twice (none: e^-10); of 2^64, none.

    Every bit of them is 1 in half of the keys, to 6 standard errors.
    """
    count = 300_000
    words = np.frombuffer(
        b"".join(RunKey.fresh().derive("noise/gradient")[:8] for _ in range(count)), np.uint64
    )
    assert len(np.unique(words)) == count
    bits = np.unpackbits(words.view(np.uint8)).reshape(count, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(count)


def test_every_bit_of_the_secret_counts() -> None:
    """All 256 bits go into the noise key, which has 192: threefry's 64 and 128 that whiten it."""
    secret = secrets.token_bytes(KEY_BYTES)
    base = jax.random.key_data(gaussian_key(RunKey(secret), "gradient"))
    assert base.size * base.dtype.itemsize == 24
    seen = {bytes(np.asarray(base).tobytes())}
    for bit in range(8 * KEY_BYTES):
        changed = bytearray(secret)
        changed[bit // 8] ^= 1 << bit % 8
        data = jax.random.key_data(gaussian_key(RunKey(bytes(changed)), "gradient"))
        seen.add(np.asarray(data).tobytes())
    assert len(seen) == 8 * KEY_BYTES + 1


def test_a_run_asks_the_operating_system_for_a_full_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    honest = secrets.token_bytes

    def counted(count: int) -> bytes:
        asked.append(count)
        return honest(count)

    monkeypatch.setattr("sordino._base.keys.secrets.token_bytes", counted)
    plan: Any = reference_plan("dp-gd")
    data, start = logistic_data(7, 3), np.zeros(3, np.float32)
    results = [sordino.train(plan, Logistic(), start, data) for _ in range(2)]
    assert asked.count(KEY_BYTES) >= 2
    assert not any(result.insecure for result in results)
    assert not np.array_equal(results[0].params, results[1].params)
    assert sordino.train(plan, Logistic(), start, data, insecure_seed=1).insecure

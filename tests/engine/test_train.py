"""What a user of `train` meets: checks before anything runs, reproducibility, callbacks, pytrees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import PlanMismatchError, RunKey, SordinoError
from sordino.engine._run import chunk_length
from sordino.engine.ledger import Ledger
from sordino.parts._losses import Logistic, Softmax

from .helpers import MECHANISMS, binary, quiet_plan


def noisy_plan(**options):
    settings = {"examples": 60, "batch_size": 16, "steps": 30, "noise_multiplier": 1.0, **options}
    return sordino.plan("dp-memf", **settings)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_chunks_and_watchers_change_nothing(mechanism: str, monkeypatch) -> None:
    X, y = binary()
    plan = noisy_plan(mechanism=mechanism)
    start = np.zeros(5, np.float32)
    whole = sordino.train(plan, Logistic(), start, (X, y), insecure_seed=1).params
    watched = sordino.train(
        plan, Logistic(), start, (X, y), insecure_seed=1, evaluate=lambda w: {"norm": jnp.sum(w**2)}
    )
    np.testing.assert_allclose(watched.params, whole, rtol=1e-4, atol=1e-5)
    assert [row["step"] for row in watched.history][-1] == 30
    assert all(set(row) == {"step", "norm"} for row in watched.history)
    assert not np.allclose(
        sordino.train(plan, Logistic(), start, (X, y), insecure_seed=2).params, whole
    )


def test_keys_seeds_and_marks() -> None:
    X, y = binary()
    plan, start = noisy_plan(), np.zeros(5, np.float32)
    seeded = sordino.train(plan, Logistic(), start, (X, y), insecure_seed=1)
    assert seeded.insecure
    assert "does NOT hold" in seeded.statement()
    key = RunKey.fresh()
    a = sordino.train(plan, Logistic(), start, (X, y), run_key=key)
    b = sordino.train(plan, Logistic(), start, (X, y), run_key=key)
    assert np.array_equal(a.params, b.params)
    assert not a.insecure
    assert a.statement() == str(a.guarantee)
    fresh = sordino.train(plan, Logistic(), start, (X, y))
    assert not np.array_equal(fresh.params, a.params)
    with pytest.raises(SordinoError, match="not both"):
        sordino.train(plan, Logistic(), start, (X, y), run_key=key, insecure_seed=1)


def test_the_callers_arrays_survive() -> None:
    X, y = binary()
    start = jnp.ones(5)
    sordino.train(quiet_plan(), Logistic(), start, (X, y))
    assert np.array_equal(start, np.ones(5))


def test_wrong_data_is_refused_before_anything_runs() -> None:
    X, y = binary()
    plan, start = noisy_plan(), np.zeros(5, np.float32)
    with pytest.raises(PlanMismatchError, match="plan is for 60 examples but the data has 59"):
        sordino.train(plan, Logistic(), start, (X[:59], y[:59]))
    with pytest.raises(SordinoError, match="one row per example"):
        sordino.train(plan, Logistic(), start, (X, y[:59]))
    with pytest.raises(SordinoError, match="shape \\(5,\\)"):
        sordino.train(plan, Logistic(), np.zeros(6, np.float32), (X, y))
    with pytest.raises(SordinoError, match="shape \\(3, 5\\)"):
        sordino.train(plan, Softmax(3), start, (X, y))
    with pytest.raises(SordinoError, match="no data"):
        sordino.train(plan, Logistic(), start, ())
    with pytest.raises(SordinoError, match="must be numbers"):
        sordino.train(plan, Logistic(), start, (X.astype(str), y))
    with pytest.raises(SordinoError, match="float arrays"):
        sordino.train(plan, Logistic(), np.zeros(5, np.int32), (X, y))
    with pytest.raises(SordinoError, match="no parameters"):
        sordino.train(plan, lambda p, x, y: 0.0, {}, (X, y))
    with pytest.raises(SordinoError, match="function"):
        sordino.train(plan, "logistic", start, (X, y))  # type: ignore[arg-type]


def test_callbacks_see_steps_and_private_parameters_only() -> None:
    X, y = binary()
    seen = []
    sordino.train(
        noisy_plan(), Logistic(), np.zeros(5, np.float32), (X, y), callbacks=[seen.append]
    )
    assert [s.step for s in seen] == sorted({s.step for s in seen})
    assert seen[-1].step == 30
    assert set(vars(seen[0])) == {"step", "steps", "params", "metrics"}


@pytest.mark.parametrize("average", [0.0, 0.5])
def test_snapshots_can_be_kept(average: float) -> None:
    """What a callback keeps (the best so far, say) is still there when the run has gone on."""
    X, y = binary()
    seen, copies = [], []

    def keep(snapshot) -> None:
        seen.append(snapshot)
        copies.append(np.array(snapshot.params))

    plan = noisy_plan(average=average)
    result = sordino.train(plan, Logistic(), np.zeros(5, np.float32), (X, y), callbacks=[keep])
    for snapshot, then in zip(seen, copies, strict=True):
        assert np.array_equal(snapshot.params, then)
    assert np.array_equal(seen[-1].params, result.params)
    assert not np.array_equal(seen[0].params, seen[-1].params)


@pytest.mark.parametrize(("steps", "d"), [(640, 124), (7, 10**9), (100_000, 7850), (997, 4000)])
def test_chunks_are_bounded(steps: int, d: int) -> None:
    length = chunk_length(steps, d)
    assert 1 <= length <= min(steps, 1024)
    assert length == 1 or length * d <= 2**21


def test_dense_noise_refuses_what_would_not_fit() -> None:
    plan = noisy_plan(mechanism="dense")
    with pytest.raises(SordinoError, match="use mechanism 'blt'"):
        plan.mechanism.init(10**9)


def test_users_own_stream() -> None:
    """A stream that contributes a constant: the sum is the number of examples times it."""
    from sordino.parts.contributions._base import Evaluator
    from sordino.privacy._values import ClippedSum

    class Constant(Evaluator):
        clip = 1.0

        def total(self, params, memory, batch, terms, step):
            size = jnp.sum(batch.present) * terms["clip"] / jnp.sqrt(params.size)
            return ClippedSum(jnp.full_like(params, size))

    plan = quiet_plan("dp-gd", steps=1, learning_rate=1.0)
    moved = sordino.train(plan, Constant(), np.zeros(4, np.float32), np.ones(60)).params
    np.testing.assert_allclose(moved, -0.5, rtol=1e-5)


@pytest.mark.parametrize("recipe", ["dp-gd", "dp-agd"])
def test_a_callback_may_end_a_run(recipe: str, tmp_path: Path) -> None:
    """What is released is a prefix of the same run; what was planned is charged."""
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data, start = (X, (X[:, 0] > 0).astype(np.float32)), np.zeros(3, np.float32)
    plan = sordino.plan(recipe, examples=60, steps=40, epsilon=2.0, delta=1e-5)
    seen: list[Any] = []

    def watch(snapshot: sordino.Snapshot) -> bool:
        seen.append(snapshot)
        return snapshot.step >= 10

    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("rows", epsilon=3.0, delta=1e-5)
    whole: list[Any] = []
    sordino.train(plan, Logistic(), start, data, insecure_seed=1, callbacks=[whole.append])
    result = sordino.train(
        plan, Logistic(), start, data, insecure_seed=1, callbacks=[watch, lambda _: None],
        ledger=ledger, dataset="rows",
    )  # fmt: skip
    assert result.stopped_at == seen[-1].step < 40
    assert len(seen) < len(whole)
    np.testing.assert_array_equal(result.params, seen[-1].params)
    for a, b in zip(seen, whole, strict=False):
        np.testing.assert_array_equal(a.params, b.params)
    assert result.guarantee == plan.guarantee
    assert ledger.status("rows").epsilon == pytest.approx(plan.guarantee.epsilon(1e-5), rel=1e-6)
    # Only True ends a run, not whatever a callback happens to return.
    kept = sordino.train(plan, Logistic(), start, data, insecure_seed=1, callbacks=[lambda s: s])
    assert kept.stopped_at is None

"""Checkpoints: whole, authentic, and of no use to any other run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sordino
from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino._base.keystore import KeyStore
from sordino.engine._checkpoint import (
    MAGIC,
    RUNS,
    SHARE,
    Checkpoint,
    Recovery,
    forget,
    read_checkpoint,
    read_identity,
    read_progress,
    write_checkpoint,
)
from sordino.engine._run import TrainingRun
from sordino.engine.ledger._composition import BudgetExceeded
from sordino.engine.ledger._ledger import Ledger
from sordino.parts._losses import Logistic

N, D = 240, 4


class DeadError(Exception):
    """A run that dies."""


def data(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.int32)


def plan(recipe: str = "dp-ftrl", **options: Any) -> Any:
    return sordino.plan(
        recipe, examples=N, batch_size=8, epochs=2, epsilon=2.0, delta=1e-5, **options
    )


def loss(w: Any, x: Any, y: Any) -> Any:
    return jnp.logaddexp(0.0, -(2 * y - 1) * (x @ w["w"]))


START = {"w": np.zeros(D, np.float32)}


def dies_at(step: int) -> Callable[[Any], None]:
    def callback(snapshot: Any) -> None:
        if snapshot.step >= step:
            raise DeadError

    return callback


def go(path: Path, *, at: int = 10**9, **changes: Any) -> Any:
    """Train with a checkpoint at every chunk; die at step `at`."""
    settings: dict[str, Any] = {
        "plan": plan(),
        "loss": loss,
        "params": START,
        "data": data(),
        "checkpoint": path,
        "checkpoint_seconds": 0.0,
        "callbacks": [dies_at(at)],
        **changes,
    }
    return sordino.train(**settings)


def interrupted(path: Path, at: int = 30, **changes: Any) -> Path:
    with pytest.raises(DeadError):
        go(path, at=at, **changes)
    return path


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    done, steps = read_progress(path)
    assert 0 < done < steps == 60
    key = RunKey(KeyStore().load(RUNS, read_identity(path)) or b"")
    whole = go(tmp_path / "whole", run_key=key)
    resumed = go(path)
    assert resumed.resumed_at == done
    assert resumed.run == whole.run == key.identity
    np.testing.assert_array_equal(resumed.params["w"], whole.params["w"])
    assert read_progress(path) == (60, 60)


def test_an_old_copy_goes_on_identically(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run", at=12)
    old = path.read_bytes()
    interrupted(path, at=48)
    first = go(path)
    path.write_bytes(old)
    again = go(path)
    assert again.resumed_at < first.resumed_at
    np.testing.assert_array_equal(first.params["w"], again.params["w"])


def test_a_finished_run_is_read_not_run(tmp_path: Path) -> None:
    first = go(tmp_path / "run", evaluate=lambda w: {"size": float(jnp.sum(w["w"] ** 2))})
    seen: list[Any] = []
    again = go(
        tmp_path / "run",
        evaluate=lambda w: {"size": float(jnp.sum(w["w"] ** 2))},
        callbacks=[seen.append],
    )
    np.testing.assert_array_equal(first.params["w"], again.params["w"])
    assert again.history == first.history
    assert len(first.history) > 10
    assert seen == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": data(1)}, "the data"),
        ({"data": (np.asarray(data()[0], order="F") + np.float32(0), 1 - data()[1])}, "the data"),
        ({"plan": plan(learning_rate=0.3)}, "the plan"),
        ({"plan": plan("dp-memf")}, "the plan"),
        ({"params": {"w": np.full(D, 1e-3, np.float32)}}, "the initial parameters"),
        ({"loss": lambda w, x, y: 1.0000001 * loss(w, x, y)}, "the loss"),
        ({"optimizer": optax.sgd(0.125)}, "the loss"),
        ({"regularizer": lambda w: 0.5 * jnp.sum(w["w"] ** 2)}, "the loss"),
        ({"driver": "steps"}, "the driver"),
    ],
)
def test_other_inputs_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = interrupted(tmp_path / "run")
    before = path.read_bytes()
    with pytest.raises((PlanMismatchError, SordinoError), match=said):
        go(path, **changes)
    assert path.read_bytes() == before


def test_numbers_inside_a_loss_count(tmp_path: Path) -> None:
    def weighted(weights: Any) -> Any:
        return lambda w, x, y: loss(w, x * weights, y)

    path = interrupted(tmp_path / "run", loss=weighted(np.arange(D, dtype=np.float32)))
    with pytest.raises(PlanMismatchError, match="the loss"):
        go(path, loss=weighted(np.arange(D, dtype=np.float32)[::-1].copy()))
    go(path, loss=weighted(np.arange(D, dtype=np.float32)))


def test_every_byte_is_under_the_tag(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    key = RunKey(KeyStore().load(RUNS, read_identity(path)) or b"")
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    for place in [0, len(MAGIC), len(MAGIC) + 8, *rng.integers(0, len(whole), 60), len(whole) - 1]:
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(SordinoError, match="checkpoint"):
            read_checkpoint(path, key)
    for length in (0, 5, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(SordinoError, match="checkpoint"):
            read_checkpoint(path, key)
    path.write_bytes(whole)
    assert read_checkpoint(path, key).steps == 60


def test_another_key_cannot_read_it(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    with pytest.raises(SordinoError, match="another run key"):
        read_checkpoint(path, RunKey.fresh())
    with pytest.raises(SordinoError, match="another run key"):
        go(path, run_key=RunKey.fresh())


def test_a_lost_key_ends_the_run_and_says_so(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    KeyStore().remove(RUNS, read_identity(path))
    with pytest.raises(SordinoError, match="bring the key back"):
        go(path)


def test_the_key_lies_elsewhere_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    kept = KeyStore().path(RUNS, read_identity(path))
    assert tmp_path not in kept.parents
    secret = kept.read_bytes()
    assert len(secret) == 32
    assert secret not in path.read_bytes()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    os.chmod(kept, 0o644)
    with pytest.raises(SordinoError, match="read by others"):
        go(path)


def test_a_seeded_run_needs_its_seed_again(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run", insecure_seed=3)
    with pytest.raises(SordinoError, match="key"):
        go(path)
    with pytest.raises(SordinoError, match="another run key"):
        go(path, insecure_seed=4)
    assert go(path, insecure_seed=3).resumed_at is not None


def test_forgetting_removes_file_and_key(tmp_path: Path) -> None:
    path = interrupted(tmp_path / "run")
    identity = read_identity(path)
    forget(path)
    assert not path.exists()
    assert KeyStore().load(RUNS, identity) is None


def test_an_adaptive_run_goes_on(tmp_path: Path) -> None:
    X, y = data()
    made = sordino.plan("dp-agd", examples=N, steps=30, epsilon=8.0, delta=1e-5)
    common: dict[str, Any] = {"plan": made, "loss": Logistic(), "data": (X, y)}
    common["params"] = np.zeros(Logistic().parameter_shape(D), np.float32)
    key = RunKey.fresh()
    interrupted(tmp_path / "run", at=3, run_key=key, **common)
    whole = go(tmp_path / "whole", run_key=key, **common)
    resumed = go(tmp_path / "run", run_key=key, **common)
    np.testing.assert_array_equal(resumed.params, whole.params)


def test_checkpoints_are_spaced_by_time_and_cost(tmp_path: Path) -> None:
    X, y = data()
    key, now = RunKey.fresh(), [0.0]
    run = TrainingRun(plan(), loss, START, (X, y), key=key, checkpointed=True)
    recovery = Recovery(tmp_path / "run", key, seconds=10.0, clock=lambda: now[0])
    recovery.begin(run, {})
    steps = []
    for _ in range(50):
        run.advance()
        now[0] += 3.0
        recovery.keep(run, ())
        steps.append(read_progress(tmp_path / "run")[0])
    assert sorted(set(steps)) == [0, *range(4, 51, 4)]
    recovery._cost = 1.0  # a slow disk: at most this share of the time goes into it
    before = read_progress(tmp_path / "run")[0]
    now[0] += 1.0 / SHARE - 10
    recovery.keep(run, ())
    assert read_progress(tmp_path / "run")[0] == before
    now[0] += 5
    recovery.keep(run, ())
    assert read_progress(tmp_path / "run")[0] == 50
    recovery.seconds, recovery._cost = 0.0, 1.0  # after every chunk, whatever the disk takes
    run.advance()
    recovery.keep(run, ())
    assert read_progress(tmp_path / "run")[0] == 51


def test_a_clock_that_goes_backwards_costs_no_checkpoint_at_the_end(tmp_path: Path) -> None:
    X, y = data()
    key, now = RunKey.fresh(), [1e6]
    run = TrainingRun(plan(), loss, START, (X, y), key=key, checkpointed=True)
    recovery = Recovery(tmp_path / "run", key, clock=lambda: now[0])
    recovery.begin(run, {})
    while not run.finished:
        run.advance()
        now[0] -= 100.0
        recovery.keep(run, ())
    assert read_progress(tmp_path / "run") == (60, 60)


def test_nothing_is_left_where_the_budget_does_not_pay(tmp_path: Path) -> None:
    keys = set(KeyStore().folder.rglob("*")) if KeyStore().folder.exists() else set()
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("people", epsilon=1.0, delta=1e-5)
    with pytest.raises(BudgetExceeded):
        go(tmp_path / "run", ledger=ledger, dataset="people")
    assert not (tmp_path / "run").exists()
    assert ledger.reservations("people") == ()
    left = {path for path in KeyStore().folder.rglob("*") if path.parent.name == RUNS} - keys
    assert left == set()


def test_a_crash_leaves_the_charge_and_going_on_is_free(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("people", epsilon=2.01, delta=1e-5)
    path = interrupted(tmp_path / "run", ledger=ledger, dataset="people")
    (held,) = ledger.reservations("people")
    assert (held.state, held.run) == ("running", read_identity(path))
    with pytest.raises(BudgetExceeded):  # the charge stands: no second run fits
        go(tmp_path / "other", ledger=ledger, dataset="people")
    result = go(path, ledger=ledger, dataset="people")
    (held,) = ledger.reservations("people")
    assert (held.state, held.run) == ("released", result.run)
    go(path, ledger=ledger, dataset="people")
    assert len(ledger.reservations("people")) == 1
    ledger.verify()


def test_other_data_under_a_data_sets_name_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("people", epsilon=9.0, delta=1e-5)
    go(tmp_path / "run", ledger=ledger, dataset="people")
    with pytest.raises(SordinoError, match="people"):
        go(tmp_path / "more", ledger=ledger, dataset="people", data=data(5))
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dataset": "people"}, "needs a ledger"),
        ({"ledger": "missing.ledger", "dataset": "people"}, "there is no ledger"),
        ({"checkpoint": "nowhere/at/all/run"}, "no folder"),
        ({"checkpoint": "."}, "is a folder"),
    ],
)
def test_bad_places_are_found_out_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SordinoError, match=said):
        sordino.train(plan(), loss, START, data(), **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_session_is_charged(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("people", epsilon=2.01, delta=1e-5)
    X, y = data()
    session = sordino.Session(plan(), loss, START, ledger=ledger, dataset="people")
    assert ledger.reservations("people")[0].state == "running"
    for rows in session:
        session.step((X[rows], y[rows]))
    assert session.result().run == ledger.reservations("people")[0].run
    assert ledger.reservations("people")[0].state == "released"
    with pytest.raises(BudgetExceeded):
        sordino.Session(plan(), loss, START, ledger=ledger, dataset="people")


arrays = st.lists(
    st.builds(
        lambda shape, kind, seed: (
            np.random.default_rng(seed).integers(0, 256, shape).astype(kind)  # any bits will do
        ),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.sampled_from(["float32", "float64", "int32", "uint32", "int64", "uint8", "float16"]),
        st.integers(0, 9),
    ),
    max_size=4,
)


@given(arrays=arrays, step=st.integers(0, 10**9))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[Any], step: int
) -> None:
    path = tmp_path_factory.mktemp("round") / "run"
    key = RunKey.from_insecure_seed(1)
    written = Checkpoint(key.identity, {"a": "b"}, step, 10**9, tuple(arrays), ({"x": 1.5},))
    write_checkpoint(path, written, key)
    found = read_checkpoint(path, key)
    assert (found.run, found.step, found.history) == (key.identity, step, ({"x": 1.5},))
    for before, after in zip(arrays, found.arrays, strict=True):
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)


def test_half_precision_parameters_survive(tmp_path: Path) -> None:
    start = {"w": jnp.zeros(D, jnp.bfloat16)}
    path = interrupted(tmp_path / "run", params=start)
    result = go(path, params=start)
    assert result.params["w"].dtype == jnp.bfloat16
    assert jax.tree.structure(result.params) == jax.tree.structure(start)

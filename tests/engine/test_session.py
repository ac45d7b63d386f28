"""A loop of the caller's own, held to the plan."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino._base.errors import PlanMismatchError, SordinoError
from sordino.parts._losses import Logistic
from sordino.parts.contributions._base import Batch, Evaluator
from sordino.privacy._values import ClippedSum

from .helpers import binary

X, y = binary()
START = np.zeros(5, np.float32)


def make(recipe: str = "dp-memf", **options: Any) -> Any:
    settings = {"examples": 60, "batch_size": 16, "steps": 10, "noise_multiplier": 0.7, **options}
    return sordino.plan(recipe, **settings)


def session(plan: Any, **options: Any) -> sordino.Session:
    return sordino.Session(plan, Logistic(), START, insecure_seed=3, **options)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dp-memf", {"mechanism": "blt"}),
        ("dp-memf", {"mechanism": "tree", "sampling": "reshuffled"}),
        ("dp-sgd", {}),
        ("dp-sgd", {"sampling": "without-replacement"}),
        ("dp-srm", {"first_batch": 30}),
        ("dp-nsgd-sr", {"batch_size": 12, "steps": 14}),
        ("dp-mu2", {}),
    ],
)
def test_steps_by_hand_are_the_run(recipe: str, options: dict[str, Any]) -> None:
    plan = make(recipe, **options)
    whole = sordino.train(plan, Logistic(), START, (X, y), insecure_seed=3)
    by_hand = session(plan)
    for rows in by_hand:
        by_hand.step((X[rows], y[rows]))
    np.testing.assert_allclose(by_hand.result().params, whole.params, rtol=1e-5, atol=1e-6)
    assert by_hand.result().guarantee == plan.guarantee


def test_more_steps_than_planned_are_refused() -> None:
    plan = make(steps=2)
    by_hand = session(plan)
    for rows in by_hand:
        by_hand.step((X[rows], y[rows]))
    with pytest.raises(PlanMismatchError, match="all 2 planned steps are taken"):
        by_hand.step((X[:16], y[:16]))
    with pytest.raises(PlanMismatchError, match="planned steps"):
        by_hand.next_rows()


def test_a_loader_may_choose_its_batches_once() -> None:
    """Fixed batches of one's own are fine; reshuffling them under a fixed plan is not."""
    plan = make(steps=8)
    by_hand = session(plan)
    order = np.random.default_rng(0).permutation(60)
    for epoch in range(2):
        for slot in range(4):
            rows = order[slot * 16 : (slot + 1) * 16]
            if epoch == 1 and slot == 1:
                mixed = order[5:21]
                with pytest.raises(PlanMismatchError, match="same batches in every epoch"):
                    by_hand.step((X[mixed], y[mixed]), rows=mixed)
            by_hand.step((X[rows], y[rows]), rows=rows)
    assert by_hand.done == 8


def test_wrong_batches_are_refused() -> None:
    plan = make()
    by_hand = session(plan)
    with pytest.raises(PlanMismatchError, match="has a batch of 16 rows, got 3"):
        by_hand.step((X[:3], y[:3]))
    with pytest.raises(PlanMismatchError, match="one row twice"):
        by_hand.step((X[:2], y[:2]), rows=[4, 4])
    with pytest.raises(PlanMismatchError, match="between 0 and 59"):
        by_hand.step((X[:2], y[:2]), rows=[4, 60])
    with pytest.raises(PlanMismatchError, match="batches of 16"):
        by_hand.step((X[:20], y[:20]), rows=np.arange(20))
    with pytest.raises(SordinoError, match="3 rows are named"):
        by_hand.step((X[:2], y[:2]), rows=[1, 2, 3])
    with pytest.raises(PlanMismatchError, match="0 of 10 planned steps"):
        by_hand.result()
    secret = session(make("dp-sgd"))
    wrong = (secret.next_rows() + 1) % 60
    with pytest.raises(PlanMismatchError, match="drawn by the session"):
        secret.step((X[wrong], y[wrong]), rows=wrong)
    steps = iter(session(plan))
    next(steps)
    with pytest.raises(PlanMismatchError, match="asked for but not taken"):
        next(steps)


def test_a_run_key_serves_one_run() -> None:
    key = sordino.RunKey.fresh()
    plan = make(steps=2)
    sordino.train(plan, Logistic(), START, (X, y), run_key=key)
    with pytest.raises(SordinoError, match="already used by another run"):
        sordino.train(plan, Logistic(), START, (X[::-1], y), run_key=key)
    with pytest.raises(SordinoError, match="already used by another run"):
        sordino.Session(plan, Logistic(), START, run_key=key)
    again = sordino.RunKey(key.secret)
    with pytest.raises(SordinoError, match="already used"):
        sordino.train(make(steps=3), Logistic(), START, (X, y), run_key=again)
    with pytest.raises(SordinoError, match="already used"):
        sordino.train(plan, lambda w, x, label: 0.0, START, (X, y), run_key=again)
    # The very same run again is the same release.
    sordino.train(plan, Logistic(), START, (X, y), run_key=again)


class OwnStream(Evaluator):
    """Contributions of one's own: rows, scaled into the unit ball."""

    def __init__(self, clip: float | None) -> None:
        self.clip = clip

    def total(self, params: Any, memory: Any, batch: Batch, terms: Any, step: Any) -> ClippedSum:
        rows = batch.data[0] / jnp.maximum(
            jnp.linalg.norm(batch.data[0], axis=1, keepdims=True), 1.0
        )
        return ClippedSum(-(rows * batch.present[:, None]).sum(0))


def test_an_own_stream_declares_its_clip() -> None:
    plan = make(clip=1.0)
    with pytest.raises(SordinoError, match="OwnStream declares no clip"):
        sordino.train(plan, OwnStream(None), START, (X, y), insecure_seed=0)
    with pytest.raises(SordinoError, match=r"up to 2, but the plan's noise covers 1"):
        sordino.train(plan, OwnStream(2.0), START, (X, y), insecure_seed=0)
    found = sordino.train(plan, OwnStream(1.0), START, (X, y), insecure_seed=0)
    assert np.isfinite(found.params).all()

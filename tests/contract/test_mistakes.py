"""What people do wrong is refused, with a sentence, before anything is released."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import PlanMismatchError, RunKey, SordinoError
from sordino.engine._run import TrainingRun
from sordino.engine._session import Session
from sordino.engine.influence._estimate import influence_by_gradient, influence_by_retraining
from sordino.parts._losses import LeastSquares, Logistic
from sordino.parts.contributions._base import Batch, Evaluator
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.privacy._values import ClippedSum

from .cases import BATCH, EXAMPLES, logistic_data, make, start_run

FEATURES = 4
DATA = logistic_data(EXAMPLES, FEATURES)
START = np.zeros(FEATURES, np.float32)


@pytest.mark.parametrize("name", ["dp-memf", "dp-agd"])
def test_more_steps_than_planned(name: str) -> None:
    """Here in one scan; `test_contract` does the same step by step for every recipe."""
    plan = make(name, noise_multiplier=1.0)
    run = start_run(plan, Logistic(), START, DATA, key=RunKey.from_insecure_seed(0))
    while not run.finished:
        run.advance()
    assert run.done <= plan.population.steps
    with pytest.raises(PlanMismatchError, match="make a new plan"):
        run.advance()


def test_a_run_key_twice() -> None:
    """Another run with the same noise is refused; the very same run is the same release."""
    key, plan = RunKey.fresh(), make("dp-memf", noise_multiplier=1.0)
    first = sordino.train(plan, Logistic(), START, DATA, run_key=key).params
    other = DATA[0].copy()
    other[0, 0] += 1
    for changed in (
        {"plan": make("dp-memf", noise_multiplier=2.0)},
        {"plan": make("dp-gd", noise_multiplier=1.0)},
        {"data": (other, DATA[1])},
        {"params": START + 1},
        {"loss": LeastSquares()},
        {"regularizer": lambda params: jnp.sum(params**2)},
        # A key that equals a used one is the same key.
        {"run_key": RunKey(key.secret), "data": (other, DATA[1])},
    ):
        given = {"plan": plan, "loss": Logistic(), "params": START, "data": DATA, "run_key": key}
        with pytest.raises(SordinoError, match="already used"):
            sordino.train(**{**given, **changed})
    with pytest.raises(SordinoError, match="already used"):
        Session(plan, Logistic(), START, run_key=key)
    again = sordino.train(plan, Logistic(), START, DATA, run_key=key).params
    assert np.array_equal(again, first)


def test_a_key_is_not_spent_by_a_run_that_is_refused() -> None:
    key = RunKey.fresh()
    with pytest.raises(PlanMismatchError):
        sordino.train(
            make("dp-memf", noise_multiplier=1.0),
            Logistic(),
            START,
            (DATA[0][:3], DATA[1][:3]),
            run_key=key,
        )
    sordino.train(make("dp-memf", noise_multiplier=1.0), Logistic(), START, DATA, run_key=key)


class Constant(Evaluator):
    """Everybody adds a vector of norm 0.5."""

    def total(
        self, params: Any, memory: Any, batch: Batch, terms: Any, step: jax.Array
    ) -> ClippedSum:
        return ClippedSum(jnp.full_like(params, 0.5 / np.sqrt(FEATURES) * jnp.sum(batch.present)))


class Declared(Constant):
    clip = 0.5


class Excessive(Constant):
    clip = 1.5


class Negative(Constant):
    clip = -0.5


def test_a_stream_with_an_undeclared_clip() -> None:
    plan = make("dp-memf", noise_multiplier=1.0)
    with pytest.raises(SordinoError, match="declares no clip"):
        sordino.train(plan, Constant(), START, DATA)
    with pytest.raises(SordinoError, match="the plan's noise"):
        sordino.train(plan, Excessive(), START, DATA)
    with pytest.raises(SordinoError, match="declares"):
        sordino.train(plan, Negative(), START, DATA)
    sordino.train(plan, Declared(), START, DATA)


class Disguised(VmapEvaluator):
    """Clips nothing, and looks like a built-in stream."""

    def total(
        self, params: Any, memory: Any, batch: Batch, terms: Any, step: jax.Array
    ) -> ClippedSum:
        return ClippedSum(jnp.full_like(params, 1e6))


def test_a_stream_that_inherits_from_a_built_in_one() -> None:
    """Its `total` is its own, so its clip is what it declares: nothing."""
    with pytest.raises(SordinoError, match="declares no clip"):
        sordino.train(make("dp-memf", noise_multiplier=1.0), Disguised(Logistic()), START, DATA)


def test_private_data_for_influence_estimation() -> None:
    plan = sordino.plan("dp-gd", examples=EXAMPLES, steps=4, noise_multiplier=5.0)
    for estimate in (influence_by_gradient, influence_by_retraining):
        for private in (DATA, DATA[0], list(DATA), {"X": DATA[0]}):
            with pytest.raises(TypeError, match="public data only"):
                estimate(plan, Logistic(), START, private)


def test_reshuffled_batches_under_a_plan_of_fixed_ones() -> None:
    plan = make("dp-memf", noise_multiplier=1.0)
    X, y = DATA
    rng = np.random.default_rng(0)
    session = Session(plan, Logistic(), START, insecure_seed=0)
    per_epoch = plan.population.steps_per_epoch
    orders = [rng.permutation(EXAMPLES) for _ in range(2)]
    taken = [order[slot * BATCH :][:BATCH] for order in orders for slot in range(per_epoch)]

    def train() -> None:
        for rows in taken:
            session.step((X[rows], y[rows]), rows=rows)

    with pytest.raises(PlanMismatchError, match="same batches in every epoch"):
        train()
    assert per_epoch <= session.done < 2 * per_epoch


def test_a_reshuffled_epoch_after_one_by_the_book() -> None:
    """The first epoch takes the rows that are due, the second names others."""
    plan = make("dp-memf", noise_multiplier=1.0)
    X, y = DATA
    session = Session(plan, Logistic(), START, insecure_seed=0)
    first = []
    for _ in range(plan.population.steps_per_epoch):
        rows = session.next_rows()
        first.append(rows)
        session.step((X[rows], y[rows]))
    with pytest.raises(PlanMismatchError, match="same batches in every epoch"):
        session.step((X[first[1]], y[first[1]]), rows=first[1])


def test_a_row_twice_in_a_batch_or_beyond_the_data() -> None:
    plan = make("dp-memf", noise_multiplier=1.0)
    X, y = DATA
    session = Session(plan, Logistic(), START, insecure_seed=0)
    for rows in ([0, 0], [0, EXAMPLES]):
        taken = np.minimum(rows, EXAMPLES - 1)
        with pytest.raises(PlanMismatchError):
            session.step((X[taken], y[taken]), rows=rows)
    with pytest.raises(PlanMismatchError):
        session.step((X[: BATCH + 1], y[: BATCH + 1]), rows=np.arange(BATCH + 1))
    assert session.done == 0


def test_a_state_of_another_run() -> None:
    X, y = logistic_data(EXAMPLES, FEATURES)
    run = TrainingRun(
        make("dp-memf", noise_multiplier=1.0),
        Logistic(),
        START,
        (X, y),
        key=RunKey.from_insecure_seed(0),
    )
    state = run.released()._replace(step=5)
    with pytest.raises(SordinoError, match="no chunk that ends at step 5"):
        run.restore(state)


def test_other_data_than_planned() -> None:
    plan = make("dp-memf", noise_multiplier=1.0)
    X, y = DATA
    for data in ((X[:-1], y[:-1]), (np.tile(X, (2, 1)), np.tile(y, 2))):
        with pytest.raises(PlanMismatchError, match="plan again"):
            sordino.train(plan, Logistic(), START, data)

"""The audit in one run: honest error rates, canaries that are really absent, leaks that are found."""

from __future__ import annotations

import builtins
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import Plan, PlanMismatchError, SordinoError, audit
from sordino._base.errors import MissingExtraError
from sordino._base.keys import RunKey
from sordino.audit._onerun import FEWEST, _in_gradient_space, _in_input_space, flipped, scored
from sordino.engine._run import TrainingRun
from sordino.parts._losses import Logistic
from sordino.parts._rounding import sum_margin
from sordino.parts.contributions._base import Batch, Evaluator
from sordino.privacy._values import ClippedSum

from ..contract.cases import logistic_data

FEATURES, ROWS = 5, 60
DATA = logistic_data(ROWS, FEATURES)
START = np.zeros(FEATURES, np.float32)


def make(canaries: int, name: str = "dp-memf", epsilon: float = 2.0, **options: Any) -> Plan:
    settings = {"batch_size": 40, "epochs": 3, "epsilon": epsilon, "delta": 1e-4, "clip": 0.5}
    if name == "dp-gd":
        settings.pop("batch_size")
    return sordino.plan(name, examples=ROWS + canaries, **(settings | options))


def coins_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count) < 0.5


def random_canaries(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return X, rng.integers(0, 2, count).astype(np.float32)


def plain(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.logaddexp(0.0, x @ params) - y * (x @ params)


def without_noise(patch: pytest.MonkeyPatch) -> None:
    planned = Plan.noise_stds
    patch.setattr(Plan, "noise_stds", lambda self: planned(self) * np.float32(1e-6))


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_stated() -> None:
    """The worst case that the claim allows: every canary told with exactly the claimed mu.

    60 audits at 80 %: at most 12 alarms are expected, and 28 would be five standard errors more.
    """
    plan = make(120)
    rng, mu = np.random.default_rng(0), plan.guarantee.mu
    alarms = 0
    for _ in range(60):
        coins = rng.random(120) < 0.5
        scores = rng.normal(size=120) + mu * coins
        result = scored(plan, coins, scores, "simulated", 1e-4, 0.8)
        alarms += result.violates
    assert alarms <= 12 + 5 * math.sqrt(60 * 0.2 * 0.8)


def test_more_than_the_claim_is_found() -> None:
    """The same with six times the claimed mu: power, not chance (the alarms above are rare)."""
    plan = make(400, epsilon=0.5)
    rng, mu = np.random.default_rng(1), 6 * plan.guarantee.mu
    for _ in range(5):
        coins = rng.random(400) < 0.5
        result = scored(plan, coins, rng.normal(size=400) + mu * coins, "simulated", 1e-4, 0.95)
        assert result.violates, result.verdict()


@pytest.mark.parametrize("name", ["dp-memf", "dp-sgd"])
def test_an_honest_run_is_not_accused(name: str) -> None:
    """Fixed coins and noise, 99.9 % confidence; the canaries do show (area above one half)."""
    plan = make(300, name, epsilon=6.0)
    result = audit.one_run(plan, Logistic(), START, DATA, 300, coins=coins_of(300), insecure_seed=1)
    assert not result.violates, result.verdict()
    assert result.exposure > 0.6
    assert 0 <= result.best < result.epsilon_claimed
    assert (result.epsilon_low_gdp is None) == plan.guarantee.is_amplified
    assert result.training is not None
    assert result.verdict().startswith("No violation found.")


@pytest.mark.parametrize("kind", ["gradient-space", "input"])
def test_a_run_without_noise_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 canaries at 95 %, fixed coins: a perfect attack shows epsilon above 3, 1 is claimed."""
    without_noise(monkeypatch)
    if kind == "gradient-space":
        plan = make(300, epsilon=1.0)
        result = audit.one_run(
            plan, Logistic(), START, DATA, 300, coins=coins_of(300), confidence=0.95
        )
    else:
        # Input canaries show where the model can remember each of them: one feature apiece.
        X = np.zeros((ROWS, 300), np.float32)
        X[:, :FEATURES] = DATA[0]
        canaries = (10 * np.eye(300, dtype=np.float32), coins_of(300, 5).astype(np.float32))
        plan = make(300, epsilon=1.0)
        result = audit.one_run(
            plan,
            Logistic(),
            np.zeros(300, np.float32),
            (X, DATA[1]),
            canaries,
            coins=coins_of(300),
            confidence=0.95,
        )
    assert result.violates, result.verdict()
    assert result.exposure > 0.95
    assert "leaks more than its plan states" in result.verdict()
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["exceeded"] is True


# Clips leave room for rounding, more of it in larger batches.
ROOM = 2 * sum_margin(64)


def silent_sum(plan: Plan, loss: Any, params: Any, data: Any) -> np.ndarray:
    """The clipped sum of the first step."""
    run = TrainingRun(plan, loss, params, data, key=RunKey.from_insecure_seed(0))
    total = run.stepper.total(run.state, Batch(*run.driver.records[:2]), run.driver.table.at(0))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total.clipped)])


@pytest.mark.parametrize("loss", [Logistic(), plain], ids=["closed form", "any loss"])
def test_a_canary_that_lost_contributes_nothing(loss: Any) -> None:
    """All rows in one batch: with no canary in, the sum is that of the data alone."""
    canaries = random_canaries(30)
    plan, alone = make(30, "dp-gd"), make(0, "dp-gd")
    setting = _in_input_space(loss, START, DATA, canaries, None, None)
    nobody, everybody = np.zeros(30, bool), np.ones(30, bool)
    expected = silent_sum(alone, loss, START, DATA)
    found = silent_sum(plan, setting.loss, START, setting.data(nobody))
    np.testing.assert_allclose(found, expected, rtol=ROOM, atol=1e-5)
    joined = tuple(np.concatenate([a, b]) for a, b in zip(DATA, canaries, strict=True))
    np.testing.assert_allclose(
        silent_sum(plan, setting.loss, START, setting.data(everybody)),
        silent_sum(plan, loss, START, joined),
        rtol=ROOM,
        atol=1e-5,
    )


def test_a_gradient_canary_is_one_step_along_its_dial() -> None:
    plan = make(30, "dp-gd")
    setting = _in_gradient_space(plan, Logistic(), START, DATA, 30)
    coins = coins_of(30)
    found = silent_sum(plan, setting.loss, setting.params, setting.data(coins))
    dials, model = found[:30], found[30:]
    np.testing.assert_allclose(dials, plan.clip * coins, rtol=ROOM)
    np.testing.assert_allclose(
        model, silent_sum(make(0, "dp-gd"), Logistic(), START, DATA), rtol=ROOM, atol=1e-5
    )


def test_coins_are_fair_and_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def token_bytes(count: int) -> bytes:
        asked.append(count)
        return bytes(range(256)) * (count // 256)

    thrown = flipped(4000)
    assert abs(thrown.mean() - 0.5) < 5 * 0.5 / math.sqrt(4000)
    monkeypatch.setattr("sordino.audit._onerun.secrets.token_bytes", token_bytes)
    assert flipped(512).sum() == 256
    assert asked == [512]


class Sums(Evaluator):
    clip = 0.5

    def total(self, params: Any, memory: Any, batch: Batch, terms: Any, step: Any) -> ClippedSum:
        (X,) = batch.data
        norms = jnp.maximum(jnp.linalg.norm(X, axis=1, keepdims=True), 1e-9)
        return ClippedSum(batch.present @ (X * jnp.minimum(1.0, 0.499 / norms)))

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sums)


def test_a_stream_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its canaries need a score and something that stands for absence."""
    canaries = (np.eye(40, dtype=np.float32),)
    data = (np.zeros((ROWS, 40), np.float32),)
    start, plan = np.zeros(40, np.float32), make(40, epsilon=0.1)
    with pytest.raises(SordinoError, match="give `score`"):
        audit.one_run(plan, Sums(), start, data, canaries)
    without_noise(monkeypatch)
    result = audit.one_run(
        plan,
        Sums(),
        start,
        data,
        canaries,
        score=lambda params, rows: -np.asarray(params) @ rows[0].T,
        absent=(0.0,),
        coins=coins_of(40),
        confidence=0.95,
    )
    assert result.exposure == 1.0
    assert result.violates
    with pytest.raises(SordinoError, match="not a stream of your own"):
        audit.one_run(plan, Sums(), start, data, 40)


def test_what_is_refused() -> None:
    plan = make(FEWEST)
    with pytest.raises(PlanMismatchError, match=f"examples={ROWS + 30}"):
        audit.one_run(plan, Logistic(), START, DATA, 30)
    with pytest.raises(SordinoError, match="canaries must be a whole number of at least 20"):
        audit.one_run(plan, Logistic(), START, DATA, 3)
    with pytest.raises(SordinoError, match="not all alike"):
        audit.one_run(plan, Logistic(), START, DATA, FEWEST, coins=np.ones(FEWEST, bool))
    with pytest.raises(SordinoError, match="arrays like those of data"):
        audit.one_run(plan, Logistic(), START, DATA, (np.zeros((FEWEST, 2)), np.zeros(FEWEST)))
    with pytest.raises(SordinoError, match="one finite score"):
        audit.one_run(
            plan,
            Logistic(),
            START,
            DATA,
            random_canaries(FEWEST),
            score=lambda params, rows: np.full(FEWEST, np.nan),
        )


def test_without_jax_privacy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_jax_privacy(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("jax_privacy"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", no_jax_privacy)
    with pytest.raises(MissingExtraError, match=r"pip install 'sordino\[audit\]'"):
        audit.one_run(make(30), Logistic(), START, DATA, 30)

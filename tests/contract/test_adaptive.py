"""Recipes whose budget is spent as the run goes: every query is worth no more than its price.

Their releases are not linear in one planned noise, so the audit of a whole plan does not apply to
them. What does: the sum of all prices stays within the plan's mu^2, and each noisy gradient, taken
from the real run with the arguments it really had, is audited against what was paid for it.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from sordino._base.keys import RunKey
from sordino.audit._recording import audit_seeds
from sordino.audit._statistics import equivalent_mu, hockey_stick, separation_interval
from sordino.engine import _adaptive as adaptive
from sordino.engine._adaptive import AdaptiveRun
from sordino.engine._many import seeded_noise_keys
from sordino.engine._records import Records
from sordino.parts._losses import LeastSquares, Logistic
from sordino.planning._plans import Plan

from .cases import EXAMPLES, NAMES, is_adaptive, logistic_data, make

RUNS = 10_000
ADAPTIVE = [name for name in NAMES if is_adaptive(name)]


def canary_data(factor: float) -> tuple[np.ndarray, np.ndarray]:
    """One example whose gradient is far beyond the clip for every model in reach, among others."""
    X, y = np.zeros((EXAMPLES, 3), np.float32), np.zeros(EXAMPLES, np.float32)
    X[1:, 2] = 1.0
    X[0, :2] = factor
    y[0] = -1e4
    return X, y


def priced_queries(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[Any, ...], float]]:
    """The arguments of every noisy gradient of one run, and the mu^2 that was paid for it."""
    queries: list[tuple[tuple[Any, ...], float]] = []
    honest, paid = adaptive.noisy_gradient, adaptive.PrivacyFilter.spend
    prices: list[float] = []

    def spend(self: Any, sigma: float, kappa: float = 1) -> None:
        before = self.remaining
        paid(self, sigma, kappa)
        prices.append((before - self.remaining) / 2**96)

    def query(*arguments: Any) -> Any:
        # The price is on the table before the records are read.
        assert len(prices) == len(queries) + 1
        queries.append((arguments, prices[-1]))
        return honest(*arguments)

    monkeypatch.setattr(adaptive.PrivacyFilter, "spend", spend)
    monkeypatch.setattr(adaptive, "noisy_gradient", query)
    key = RunKey.from_insecure_seed(0)
    run = AdaptiveRun(plan, LeastSquares(), np.zeros(3, np.float32), canary_data(1.0), key=key)
    while not run.finished:
        run.advance()
    monkeypatch.undo()
    assert run.spent <= plan.guarantee.mu**2
    assert run.spent >= sum(price for _, price in queries)
    return queries


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_every_gradient_is_worth_its_price(
    name: str, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(name, adjacency=adjacency)
    queries = priced_queries(plan, monkeypatch)
    assert len(queries) > 2
    without = -1.0 if adjacency == "replace-one" else 0.0
    stream = queries[0][0][0]

    @jax.jit
    def many(params: Any, records: Any, std: Any, keys: Any, index: Any) -> Any:
        def one(key: jax.Array) -> Any:
            given = (params, records, plan.clip, std, key, index, plan.divisor)
            return adaptive.noisy_gradient(stream, *given).value

        return jax.vmap(one)(keys)

    seen = set()
    for arguments, price in queries[:3]:
        _, params, _, clip, std, _, index, divisor = arguments
        assert (clip, divisor) == (plan.clip, plan.divisor)
        assert int(index) not in seen  # no row of noise twice
        seen.add(int(index))
        released = []
        for world, factor in enumerate((without, 1.0)):
            records = Records(*stream.prepare(canary_data(factor), np.ones(EXAMPLES, np.float32)))
            values = many(
                params, records, std, seeded_noise_keys(audit_seeds(world, 0, RUNS)), index
            )
            # The canary's gradient has two equal coordinates.
            released.append(np.asarray(values, np.float64)[:, :2].sum(axis=1))
        zero, having = released
        low, _, high = separation_interval(
            having.mean(), zero.mean(), having.var(), zero.var(), RUNS, 0.999
        )
        assert low <= np.sqrt(price)
        assert high >= 0.9 * np.sqrt(price)


@pytest.mark.slow
@pytest.mark.parametrize("name", ADAPTIVE)
def test_whole_runs_do_not_tell_more_than_the_claim(name: str) -> None:
    """The final model of real runs, told apart by the best threshold of a pilot."""
    plan = make(name, steps=3)
    pilot, runs = 150, 500
    outputs = []
    for world, factor in enumerate((0.0, 1.0)):
        found = []
        for seed in range(pilot + runs):
            key = RunKey.from_insecure_seed(10_000 * world + seed)
            run = AdaptiveRun(
                plan, LeastSquares(), np.zeros(3, np.float32), canary_data(factor), key=key
            )
            while not run.finished:
                run.advance()
            found.append(np.asarray(run.output(), np.float64)[:2].sum())
        outputs.append(np.array(found))
    zero, having = outputs
    threshold = (np.median(zero[:pilot]) + np.median(having[:pilot])) / 2
    sign = np.sign(np.median(having[:pilot]) - np.median(zero[:pilot]))
    hits = [int((sign * (x[pilot:] - threshold) > 0).sum()) for x in (having, zero)]
    low, _, _ = hockey_stick(hits[0], hits[1], runs, 1.0, 0.999)
    assert equivalent_mu(1.0, low) <= plan.guarantee.mu


@pytest.mark.parametrize("name", ADAPTIVE)
def test_a_run_is_a_function_of_its_key(name: str) -> None:
    plan, data = make(name), logistic_data(EXAMPLES, 3)
    outputs = []
    for seed in (1, 1, 2):
        run = AdaptiveRun(
            plan, Logistic(), np.zeros(3, np.float32), data, key=RunKey.from_insecure_seed(seed)
        )
        while not run.finished:
            run.advance()
        outputs.append(np.asarray(run.output()))
    assert np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])

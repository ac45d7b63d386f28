"""dp-agd: what is spent never exceeds the budget, and what is left steers the descent."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino.engine import _adaptive as adaptive
from sordino.engine._adaptive import LEVELS, AdaptiveRun, clipped_losses
from sordino.engine._records import Records, as_records
from sordino.parts._losses import LeastSquares, Logistic, NonconvexLogistic
from sordino.parts.contributions._base import Evaluator
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.parts.contributions._linear import LinearEvaluator
from sordino.parts.contributions._rules import GradientRule
from sordino.parts.schedules._adaptive import AdaptiveBudget
from sordino.parts.schedules._base import schedule_from_json
from sordino.planning._accounting import FLOAT32_MARGIN
from sordino.planning._plans import Plan
from sordino.privacy._budget import UNIT_BITS
from sordino.privacy._gdp import mu_from_epsilon_delta, zcdp_from_epsilon_delta
from sordino.privacy._noisy_min import mu_of_pure
from tests.engine.helpers import binary

N, D = 400, 3


def make_plan(**changes: Any) -> Plan:
    settings = {"examples": N, "steps": 12, "epsilon": 2.0, "delta": 1e-5, **changes}
    return sordino.plan("dp-agd", **settings)


def quiet_plan(mu: float = 3e5, **changes: Any) -> Plan:
    """Next to no noise."""
    plan = make_plan(**changes)
    assert isinstance(plan.schedule, AdaptiveBudget)
    schedule = replace(plan.schedule, mu=mu)
    noise = schedule.first_noise(1) * FLOAT32_MARGIN
    return plan.with_training(schedule=schedule, noise_multiplier=noise).restated()


def start(plan: Plan, seed: int = 0, **options: Any) -> AdaptiveRun:
    return AdaptiveRun(
        plan,
        Logistic(),
        np.zeros(D, np.float32),
        binary(N, D),
        key=RunKey.from_insecure_seed(seed),
        **options,
    )


def finish(run: AdaptiveRun) -> AdaptiveRun:
    while not run.finished:
        run.advance()
    return run


class Recorder:
    """Stands before the functions that read data, and notes every call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stds: list[float] = []
        self.indices: list[int] = []
        self.searches = 0
        self.noisy_gradient = adaptive.noisy_gradient
        self.clipped_losses = adaptive.clipped_losses
        monkeypatch.setattr(adaptive, "noisy_gradient", self.gradient)
        monkeypatch.setattr(adaptive, "clipped_losses", self.losses)

    def gradient(self, *arguments: Any) -> Any:
        self.stds.append(float(arguments[4]))
        self.indices.append(int(arguments[6]))
        return self.noisy_gradient(*arguments)

    def losses(self, *arguments: Any) -> Any:
        self.searches += 1
        return self.clipped_losses(*arguments)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epsilon", [0.05, 2.0])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_what_is_spent_never_exceeds_the_budget(
    seed: int, epsilon: float, adjacency: str, recorder: Recorder
) -> None:
    """Exactly, in fractions, from the noise that was really used."""
    plan = make_plan(epsilon=epsilon, adjacency=adjacency, growth=0.5)
    schedule = plan.schedule
    assert isinstance(schedule, AdaptiveBudget)
    run = finish(start(plan, seed))
    kappa = 2 if adjacency == "replace-one" else 1
    clip = Fraction(plan.clip)
    gradients = sum((kappa * clip / Fraction(std)) ** 2 for std in recorder.stds)
    searches = recorder.searches * Fraction(mu_of_pure(schedule.search_epsilon)) ** 2
    spent = Fraction(run._total - run._budget.remaining, 1 << UNIT_BITS)
    assert gradients + searches <= spent <= Fraction(schedule.mu) ** 2
    # Noise is a function of the query's index, and no index is used twice.
    assert recorder.indices == list(range(len(recorder.indices)))


def test_a_budget_lasts_for_its_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no gradient has to be improved, there are exactly as many iterations as parts."""
    monkeypatch.setattr(adaptive, "noisy_min", lambda *_: 1)
    for splits in (1, 7, 30):
        assert finish(start(make_plan(steps=40, splits=splits))).done == splits


@pytest.mark.parametrize("splits", [1, 3, 7, 60, 997])
def test_all_parts_can_be_paid(splits: int) -> None:
    for epsilon in (0.01, 0.3, 4.0, 500.0):
        plan = make_plan(steps=splits, epsilon=epsilon)
        schedule = plan.schedule
        assert isinstance(schedule, AdaptiveBudget)
        budget = schedule.budget()
        for _ in range(splits):
            budget.spend(plan.noise_multiplier / FLOAT32_MARGIN)
            budget.spend_cost(schedule.search_cost)
        assert budget.remaining <= 1e-5 * budget.total


def test_nothing_is_read_that_cannot_be_paid(recorder: Recorder) -> None:
    plan = make_plan()
    dear = plan.with_training(noise_multiplier=plan.noise_multiplier / 10)
    run = start(dear)
    assert run.finished
    with pytest.raises(PlanMismatchError, match="budget"):
        run.advance()
    result = sordino.train(dear, Logistic(), np.ones(D), binary(N, D), insecure_seed=0)
    np.testing.assert_array_equal(result.params, np.ones(D))
    assert (recorder.stds, recorder.searches) == ([], 0)


def test_a_budget_that_ends_within_an_iteration(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step ever helps: the gradient is improved until the next query cannot be paid."""
    monkeypatch.setattr(adaptive, "noisy_min", lambda *_: 0)
    plan = make_plan(steps=5)
    schedule = plan.schedule
    assert isinstance(schedule, AdaptiveBudget)
    run = finish(start(plan))
    assert (run.done, run.trace) == (0, ())
    np.testing.assert_array_equal(run.output(), np.zeros(D))
    retries = len(recorder.stds) - 1
    assert recorder.searches in (retries, retries + 1)
    first = (plan.noise_multiplier / FLOAT32_MARGIN) ** -2
    gradients = first * 1.1**retries
    assert run.spent == pytest.approx(gradients + recorder.searches * schedule.search_cost)
    # One more query would have been too much.
    following = schedule.search_cost if recorder.searches == retries else 0.1 * gradients
    assert run.spent + following > schedule.mu**2


def test_an_improved_gradient_has_the_noise_of_all_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Averages weighted by budget: variance 1 / (sum of budgets)."""
    d = 4000
    X, y = np.zeros((50, d), np.float32), np.zeros(50, np.float32)
    choices = iter([0, 0, 0, 1])
    seen = []
    direction = adaptive.unit_direction

    def watch(penalty: Any, estimate: Any, params: Any) -> Any:
        seen.append(np.asarray(estimate.value))
        return direction(penalty, estimate, params)

    monkeypatch.setattr(adaptive, "noisy_min", lambda *_: next(choices))
    monkeypatch.setattr(adaptive, "unit_direction", watch)
    plan = make_plan(examples=50, steps=20, growth=1.0)
    key = RunKey.from_insecure_seed(3)
    run = AdaptiveRun(plan, Logistic(), np.zeros(d, np.float32), (X, y), key=key)
    run._iterate()
    unit = plan.noise_multiplier * plan.clip / 50
    stds = [float(np.std(estimate)) for estimate in seen]
    np.testing.assert_allclose(stds, unit * 2.0 ** (-np.arange(4) / 2), rtol=0.05)
    assert len(seen) == 4


def overlapping() -> tuple[np.ndarray, np.ndarray]:
    """Two classes that no line separates, so that the loss has a minimum; a narrow valley to it."""
    X, y = binary(N, D)
    return X * np.array([1, 0.3, 0.1], np.float32), np.where(
        np.random.default_rng(9).random(N) < 0.15, 1 - y, y
    )


def exact_descent(X: np.ndarray, y: np.ndarray, iterations: int, lam: float = 0.0) -> np.ndarray:
    """The algorithm without noise or clips, in float64."""

    def objective(w: np.ndarray) -> float:
        z = X @ w
        penalty = lam * np.sum(w**2 / (1 + w**2))
        return float(np.mean(np.logaddexp(0, z) - y * z) + penalty)

    w, largest, chosen = np.zeros(X.shape[1]), 2.0, []
    for t in range(1, iterations + 1):
        gradient = X.T @ (1 / (1 + np.exp(-X @ w)) - y) / len(y) + lam * 2 * w / (1 + w**2) ** 2
        u = gradient / np.linalg.norm(gradient)
        sizes = np.linspace(0, largest, 21)
        best = int(np.argmin([objective(w - a * u) for a in sizes]))
        while best == 0:
            largest *= 0.7
            sizes = np.linspace(0, largest, 21)
            best = int(np.argmin([objective(w - a * u) for a in sizes]))
        w, chosen = w - sizes[best] * u, [*chosen, sizes[best]]
        if t % 10 == 0:
            largest, chosen = min(1.1 * max(chosen), 2.0), []
    return w


@pytest.mark.parametrize("lam", [0.0, 0.01])
@pytest.mark.parametrize("generic", [False, True])
def test_without_noise_it_is_exact_line_search(lam: float, generic: bool) -> None:
    iterations = 12
    X, y = overlapping()
    wanted = exact_descent(X.astype(np.float64), y.astype(np.float64), iterations, lam)
    plan = quiet_plan(clip=100.0, objective_clip=20.0, steps=iterations, splits=60)
    linear = NonconvexLogistic(lam=lam) if lam else Logistic()
    loss: Any = linear
    options: dict[str, Any] = {}
    if generic:
        loss = lambda w, x, label: linear(w, x, label)  # noqa: E731
        options["microbatch_size"] = 64
        if lam:
            options["regularizer"] = NonconvexLogistic(lam=lam).penalty
    result = sordino.train(plan, loss, np.zeros(D, np.float32), (X, y), insecure_seed=0, **options)
    assert len(result.history) == iterations
    np.testing.assert_allclose(result.params, wanted, rtol=2e-3, atol=2e-3)


def test_the_objective_falls_with_every_step() -> None:
    X, y = overlapping()
    values = [math.log(2)]

    def watch(snapshot: Any) -> None:
        z = X @ np.asarray(snapshot.params)
        values.append(float(np.mean(np.logaddexp(0, z) - y * z)))

    plan = quiet_plan(clip=100.0, objective_clip=20.0, splits=60)
    sordino.train(plan, Logistic(), np.zeros(D), (X, y), insecure_seed=0, callbacks=[watch])
    assert len(values) == 13
    assert (np.diff(values) < 0).all()


def test_it_learns_at_a_comfortable_budget() -> None:
    X, y = binary(4000, 4)
    plan = sordino.plan("dp-agd", examples=4000, steps=30, epsilon=2.0, delta=1e-5)
    result = sordino.train(plan, Logistic(), np.zeros(4), (X, y), insecure_seed=0)
    assert np.mean((X @ np.asarray(result.params) > 0) == (y > 0.5)) > 0.95
    assert result.guarantee.epsilon(1e-5) <= 2.0
    assert [facts["step"] for facts in result.history] == list(range(1, len(result.history) + 1))
    spent = [facts["spent"] for facts in result.history]
    assert (np.diff(spent) > 0).all()
    assert spent[-1] <= plan.guarantee.mu**2


def test_any_pytree_and_an_evaluation() -> None:
    X, y = binary(N, D)

    def loss(params: Any, x: Any, label: Any) -> Any:
        z = x @ params["w"] + params["b"]
        return jnp.logaddexp(0.0, z) - label * z

    def accuracy(params: Any) -> dict[str, float]:
        z = X @ np.asarray(params["w"]) + np.asarray(params["b"])
        return {"accuracy": float(np.mean((z > 0) == (y > 0.5)))}

    params = {"w": np.zeros(D, np.float32), "b": np.zeros((), np.float32)}
    result = sordino.train(
        make_plan(epsilon=8.0), loss, params, (X, y), insecure_seed=0, evaluate=accuracy
    )
    assert result.params.keys() == params.keys()
    assert result.history[-1]["accuracy"] > 0.9
    assert result.history[-1]["step"] <= 12


def test_the_same_key_gives_the_same_run() -> None:
    plan = make_plan()
    first, again, other = (finish(start(plan, seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.output(), again.output())
    assert first.trace == again.trace
    assert not np.array_equal(first.output(), other.output())


def test_a_run_goes_on_from_what_it_released() -> None:
    plan = make_plan(steps=40, growth=0.3)
    whole = finish(start(plan))
    for advances in (1, 4):
        stopped = start(plan)
        for _ in range(advances):
            stopped.advance()
        resumed = start(plan)
        resumed.restore(stopped.released())
        assert resumed.done == stopped.done
        finish(resumed)
        np.testing.assert_array_equal(resumed.output(), whole.output())
        assert (resumed.done, resumed.spent) == (whole.done, whole.spent)
    over = start(plan)
    over.restore(whole.released())
    assert over.finished


def test_replacing_costs_four_times_as_much_for_the_same_noise() -> None:
    """So at the same budget every noise is doubled."""
    plans = [make_plan(adjacency=adjacency) for adjacency in ("zero-out", "replace-one")]
    assert plans[1].noise_multiplier == pytest.approx(2 * plans[0].noise_multiplier, rel=1e-6)
    schedule = plans[0].schedule
    assert isinstance(schedule, AdaptiveBudget)
    assert schedule == plans[1].schedule
    assert schedule.search_scale(2) == 2 * schedule.search_scale(1)
    runs = [start(plan) for plan in plans]
    for run in runs:
        run._gradient(1e-4)
    spent = [(run._total - run._budget.remaining) / (1 << UNIT_BITS) for run in runs]
    np.testing.assert_allclose(spent, [1e-4, 4e-4], rtol=1e-9)


def nasty(w: Any, x: Any) -> Any:
    """Losses of all kinds: negative, enormous, not a number."""
    return jnp.log(x[0]) * w[0] + x[1]


def test_one_example_changes_a_loss_sum_by_at_most_its_clip() -> None:
    """Exactly, whatever it is; and all sums in the same direction."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)).astype(np.float32) * 1000
    X[:4] = [[np.nan, 0], [np.inf, np.inf], [0, 1], [-1, -1]]
    stream = VmapEvaluator(nasty, GradientRule())
    w, u = np.ones(1, np.float32), np.ones(1, np.float32)
    sizes = np.linspace(0, 2, 5).astype(np.float32)

    def sums(valid: np.ndarray) -> np.ndarray:
        records = Records((X,), jnp.asarray(valid))
        found = clipped_losses(stream, w, u, sizes, records, np.float32(3))
        high, low = np.asarray(found.clipped, np.int64).T
        return high * 256 + low

    everyone = np.ones(200, np.float32)
    whole = sums(everyone)
    for i in range(200):
        without = everyone.copy()
        without[i] = 0
        change = whole - sums(without)
        assert (change >= 0).all()
        assert (change <= LEVELS).all()


def test_loss_sums_are_exact() -> None:
    X, y = binary(N, D)
    stream = LinearEvaluator(Logistic(), GradientRule())
    records = Records(*stream.prepare(as_records((X, y)), jnp.ones(N)))
    u = np.array([-1.0, 0.5, 0.0], np.float32)
    sizes = np.linspace(0, 2, 21).astype(np.float32)
    found = clipped_losses(stream, np.zeros(D, np.float32), u, sizes, records, np.float32(1.0))
    assert "hidden" in repr(found)
    high, low = np.asarray(found.clipped, np.float64).T
    z = -sizes[:, None] * (X @ u)
    wanted = np.clip(np.logaddexp(0, z) - y * z, 0, 1).sum(axis=1)
    np.testing.assert_allclose((high * 256 + low) / LEVELS, wanted, atol=N / LEVELS)


def test_plan_and_schedule_read_back() -> None:
    plan = make_plan(splits=5, line_search=0.25, candidates=11, adjacency="add-remove")
    assert Plan.from_json(plan.to_json()) == plan
    assert schedule_from_json(plan.schedule.to_json()) == plan.schedule
    assert plan.guarantee.mu == mu_from_epsilon_delta(2.0, 1e-5)
    assert plan.guarantee.analysis == "upper bound"
    assert "line search" in str(plan)
    assert np.isfinite(plan.relative_error)
    changed = plan.to_json()
    changed["schedule"]["mu"] *= 1.01
    with pytest.raises(SordinoError, match="changed by hand"):
        Plan.from_json(changed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": None, "noise_multiplier": 3.0}, "give epsilon and delta, or mu, not noise"),
        ({"momentum": 0.9}, "dp-agd has no option 'momentum'"),
        ({"learning_rate": 0.9}, "dp-agd has no option 'learning_rate'"),
        ({"schedule": "uniform"}, "dp-agd has no option 'schedule'"),
        ({"sampling": "poisson"}, "works with fixed batches"),
        ({"mechanism": "blt"}, "mechanism of dp-agd"),
        ({"batch_size": 10}, "leave batch_size out"),
        ({"splits": 0}, "splits"),
        ({"line_search": 1.0}, "line_search"),
        ({"growth": 0.0}, "growth"),
        ({"candidates": 1}, "candidates"),
        ({"largest_step": -1.0}, "largest_step"),
        ({"objective_clip": math.inf}, "objective_clip"),
        ({"shrink": 1.5}, "shrink"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SordinoError, match=message):
        make_plan(**options)


def test_other_recipes_do_not_take_an_adaptive_budget() -> None:
    request: dict[str, Any] = {"examples": N, "steps": 4, "epsilon": 1.0, "delta": 1e-5}
    with pytest.raises(SordinoError, match="more than epsilon and delta allow"):
        sordino.plan("dp-gd", schedule=AdaptiveBudget(mu=5.0), **request)
    small = AdaptiveBudget(mu=0.01)
    for recipe in ("dp-psgd", "dp-srm"):
        with pytest.raises(SordinoError, match="use recipe 'dp-agd'"):
            sordino.plan(recipe, schedule=small, batch_size=20, **request)


class OwnStream(Evaluator):
    clip = 1.0

    def total(self, *arguments: Any) -> Any:
        raise AssertionError("never read")


class Unvalued(LeastSquares):
    def regularizer_gradient(self, params: Any) -> Any:
        return params


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (Logistic(), {"optimizer": object()}, "an optax optimizer cannot take its place"),
        (OwnStream(), {}, "give the loss of one example"),
        (Unvalued(), {}, "a method `penalty`"),
    ],
)
def test_bad_runs_are_refused(loss: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SordinoError, match=message):
        sordino.train(make_plan(), loss, np.zeros(D), binary(N, D), insecure_seed=0, **options)
    plain = sordino.plan("dp-gd", examples=N, steps=2, epsilon=1.0, delta=1e-5)
    with pytest.raises(SordinoError, match="adaptive budget"):
        start(plain)


def test_the_papers_budget_in_zcdp() -> None:
    """For reference only (papers/01, 1.3): rho of Bun & Steinke at delta 1e-5; ours is exact."""
    assert zcdp_from_epsilon_delta(0.2, 1e-5) == pytest.approx(8.6113e-4, rel=1e-4)
    assert zcdp_from_epsilon_delta(0.5, 1e-5) == pytest.approx(5.31390e-3, rel=1e-4)
    for epsilon in (0.2, 0.5):
        assert mu_from_epsilon_delta(epsilon, 1e-5) ** 2 / 2 > zcdp_from_epsilon_delta(
            epsilon, 1e-5
        )

"""Influence estimation: three routes to one number, on public data only.

Statistical tests have fixed seeds; their limits are 4 standard errors, which a right estimate exceeds
with probability 6e-5 per comparison. Compiling takes most of the time, so the tests share shapes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import sordino
from sordino import SordinoError
from sordino.engine.influence import _proxy as proxy
from sordino.engine.influence._estimate import (
    EstimatedInfluence,
    _steps_to_measure,
    influence_by_gradient,
    influence_by_hessian,
    influence_by_retraining,
    public_eigenvalues,
)
from sordino.engine.influence._proxy import Proxy, noise_multipliers, proxy_key, proxy_population
from sordino.parts._losses import LeastSquares, Logistic, Softmax
from sordino.parts.contributions._base import Evaluator
from sordino.parts.schedules._allocate import check_allocation
from sordino.parts.schedules._base import PublicData
from sordino.parts.schedules._influence import momentum_quadratic, quadratic
from sordino.parts.schedules._shapes import ExpInfluence, Influence, MomentumQuadratic, Quadratic
from sordino.planning._accounting import FLOAT32_MARGIN
from sordino.planning._plans import Plan

N, D, T = 1000, 6, 60  # the plans' examples, parameters, steps
ROWS, RUNS = 150, 1000  # public rows, simulated runs
SIGMA = 12.4  # uniform noise at R = .3927, T = 60 (papers/04)
NO_CLIPPING = 1000.0


def regression(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features whose second moments have a condition number of about 10."""
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(rows, D)) * np.geomspace(1, 0.3, D)).astype(np.float32)
    return X, (X @ rng.normal(size=D) + rng.normal(size=rows)).astype(np.float32)


def binary(rows: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = regression(rows, seed)
    return X, (y > 0).astype(np.float32)


def quadratic_plan(recipe: str = "dp-gd", **options: Any) -> Plan:
    """A plan under which least squares is never clipped; the noise on the mean is 0.012 sigma."""
    settings = {"steps": T, "clip": NO_CLIPPING, "learning_rate": 0.5, **options}
    return sordino.plan(recipe, examples=N, noise_multiplier=SIGMA * 12 / NO_CLIPPING, **settings)


START = np.zeros(D, np.float32)
PUBLIC = PublicData(*regression())
LABELLED = PublicData(*binary())


@pytest.mark.parametrize(
    "private",
    [binary(), binary()[0], pd.DataFrame(binary()[0]), list(binary()), None],
    ids=["tuple", "array", "DataFrame", "list", "None"],
)
def test_anything_but_public_data_is_a_type_error_before_anything_runs(private: Any) -> None:
    for route in (influence_by_gradient, influence_by_retraining, influence_by_hessian):
        # No plan, no loss and no parameters: the data is looked at first, and only by its type.
        with pytest.raises(TypeError, match="takes public data only, wrapped as PublicData") as e:
            route(None, None, None, private)  # type: ignore[arg-type]
        assert str(e.value).endswith(type(private).__name__)
    with pytest.raises(TypeError, match="public data only"):
        public_eigenvalues(Logistic(), START, private)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dp-gd", {}),
        slow(
            "dp-srm",
            {
                "batch_size": 20,
                "sampling": "poisson",
                "mechanism": "independent",
                "first_batch": 60,
            },
        ),
        slow("dp-gd-momentum", {"average": 0.5}),
        slow("dp-sgd", {"batch_size": 40}),
        slow("dp-sgd", {"batch_size": 40, "sampling": "fixed", "output": "random"}),
        slow("dp-sgd", {"batch_size": 40, "sampling": "reshuffled", "radius": 0.5}),
    ],
)
def test_what_is_differentiated_is_what_is_trained(recipe: str, options: Any) -> None:
    X, y = LABELLED.arrays
    plan = sordino.plan(recipe, examples=ROWS, steps=T, noise_multiplier=1.0, **options)
    simulated = Proxy.of(plan, Logistic(), START, LABELLED)
    (draw,) = simulated.draws(seed=3, runs=RUNS if recipe == "dp-gd" else 2)
    values, slopes = simulated.values_and_slopes(simulated.sigma, draw)
    for index, value in enumerate(values[:2]):
        trained = sordino.train(plan, Logistic(), START, (X, y), run_key=proxy_key(3, index))
        loss = jnp.mean(Logistic().value(X @ trained.params, y))
        assert value == pytest.approx(float(loss), rel=1e-4)
    # The derivative along one direction in all steps, against a central difference.
    direction = np.linspace(0.5, 1.5, T)
    up, down = (
        simulated.values_and_slopes(simulated.sigma + sign * 0.02 * direction, draw)[0]
        for sign in (1, -1)
    )
    np.testing.assert_allclose(slopes @ direction, (up - down) / 0.04, rtol=0.02, atol=2e-4)


def test_the_noise_on_the_mean_is_the_plans_whatever_the_number_of_public_rows() -> None:
    X, y = LABELLED.arrays
    plan = sordino.plan("dp-gd", examples=ROWS, steps=T, noise_multiplier=2.0)
    values = []
    for public in (LABELLED, PublicData(np.concatenate([X, X]), np.concatenate([y, y]))):
        simulated = Proxy.of(plan, Logistic(), START, public)
        (draw,) = simulated.draws(seed=0, runs=RUNS)
        values.append(simulated.values_and_slopes(simulated.sigma, draw))
    np.testing.assert_allclose(values[0][0], values[1][0], rtol=1e-5)
    np.testing.assert_allclose(values[0][1], values[1][1], rtol=1e-3, atol=1e-5)
    # Batches keep their size, and with it the noise of sampling, as far as there are rows.
    people = sordino.plan(
        "dp-sgd", examples=1000, batch_size=50, steps=8, noise_multiplier=1.0
    ).population
    assert proxy_population(people, 200).batch_size == 50
    assert proxy_population(people, 30).batch_size == 30
    assert proxy_population(plan.population, 700).is_full_batch


def exact_influence(plan: Plan) -> np.ndarray:
    """q_t of least squares on `PUBLIC`, in units of the plan's sigma."""
    X = PUBLIC.arrays[0].astype(np.float64)
    eigenvalues = np.linalg.eigvalsh(X.T @ X / len(X))
    eta, beta = plan.update.learning_rate, plan.update.momentum
    if plan.update.optimizer == "sgd":
        log_q = quadratic(eigenvalues, eta, T)
    else:
        log_q = momentum_quadratic(eigenvalues, eta, beta, T).log_q
    return np.exp(log_q) * (plan.clip / N) ** 2


@pytest.mark.parametrize("recipe", ["dp-gd", "dp-gd-momentum"])
def test_three_routes_agree_on_least_squares(recipe: str) -> None:
    plan = quadratic_plan(recipe)
    exact = exact_influence(plan)
    found = influence_by_gradient(plan, LeastSquares(), START, PUBLIC, runs=RUNS)
    score = (found.q - exact) / found.standard_error
    assert np.abs(score).max() < 4  # 60 comparisons: a false alarm in 0.4 % of all seeds
    assert (found.standard_error < 0.1 * exact.max()).all()  # not everything would pass
    schedule = influence_by_hessian(plan, LeastSquares(), START, PUBLIC, ratio_cap=None)
    assert isinstance(schedule, Quadratic if recipe == "dp-gd" else MomentumQuadratic)
    # Eigenvalues leave out (G/N)^2, which changes no schedule.
    log_q = schedule.log_influence(T) + 2 * math.log(plan.clip / N)
    np.testing.assert_allclose(np.exp(log_q), exact, rtol=1e-4)
    if recipe == "dp-gd-momentum":
        return  # the third route once; it is compiled for each program
    retrained = influence_by_retraining(
        plan, LeastSquares(), START, PUBLIC, at=[10, 40, 58], runs=RUNS, seed=1
    )
    assert retrained.at.tolist() == [10, 40, 58]
    score = (retrained.q - exact[[9, 39, 57]]) / retrained.standard_error
    assert np.abs(score).max() < 4
    assert (retrained.standard_error < 0.5 * exact[[9, 39, 57]]).all()


def test_expected_loss_of_a_quadratic_is_a_constant_and_the_influence_of_the_noise() -> None:
    plan = quadratic_plan()
    simulated = Proxy.of(plan, LeastSquares(), START, PUBLIC)
    (draw,) = simulated.draws(seed=1, runs=RUNS)
    more = simulated.values(2 * simulated.sigma, draw) - simulated.values(simulated.sigma, draw)
    predicted = 3 * float(exact_influence(plan) @ simulated.sigma**2)
    error = more.std() / math.sqrt(len(more))
    assert abs(more.mean() - predicted) < 4 * error
    assert error < 0.05 * predicted


def test_gradient_and_retraining_agree_on_a_clipped_logistic_problem() -> None:
    plan = sordino.plan("dp-gd", examples=N, steps=T, noise_multiplier=100.0, clip=0.5)
    X, y = LABELLED.arrays
    best = np.linalg.lstsq(X, 4 * y - 2, rcond=None)[0]  # roughly
    norms = np.abs(jax.nn.sigmoid(X @ best) - y) * np.linalg.norm(X, axis=1)
    assert np.mean(norms > 0.5) > 0.1  # gradients are clipped to the end, and most at first
    assert np.mean(np.linalg.norm(X, axis=1) / 2 > 0.5) > 0.8
    problem = (plan, Logistic(), START, LABELLED)
    found = influence_by_gradient(*problem, runs=RUNS)
    steps = [10, 40, 58]
    exact = found.q[[t - 1 for t in steps]]
    # With the same draws and noise close to the plan's the two differ by the third order only.
    near = influence_by_retraining(*problem, at=steps, multiples=(0.9, 1.0, 1.1), runs=RUNS)
    np.testing.assert_allclose(near.q, exact, rtol=0.01)
    # As the paper has it, with other draws: up to 16 times the noise, no longer quite a quadratic.
    far = influence_by_retraining(*problem, at=steps, runs=RUNS, seed=1)
    error = np.hypot(far.standard_error, found.standard_error[[t - 1 for t in steps]])
    assert (np.abs(far.q - exact) < 4 * error + 0.2 * exact).all()
    assert (error[1:] < 0.2 * exact[1:]).all()


def test_a_schedule_from_an_estimate_spends_exactly_the_budget_and_saves_what_it_says() -> None:
    settings = {
        "examples": N,
        "steps": T,
        "epsilon": 4.0,
        "delta": 1e-8,
        "clip": 40.0,
        "learning_rate": 0.5,
    }
    plan = sordino.plan("dp-gd", **settings)
    estimate = influence_by_gradient(plan, LeastSquares(), START, PUBLIC, runs=RUNS)
    fits = {"exponential": ExpInfluence, "smooth": Influence}
    other = PublicData(*regression(seed=5))  # stands for the private data
    simulated = Proxy.of(plan, LeastSquares(), START, other)
    (draw,) = simulated.draws(seed=9, runs=RUNS)
    uniform = simulated.values(simulated.sigma, draw)
    for fit, kind in fits.items():
        schedule = estimate.schedule(fit)
        assert isinstance(schedule, kind)
        better = sordino.plan("dp-gd", **settings, schedule=schedule)
        assert better.schedule == schedule
        assert better.guarantee.gaussian_mu == pytest.approx(plan.guarantee.gaussian_mu, rel=1e-6)
        assert better.guarantee.epsilon(1e-8) <= 4.0
        sigma = noise_multipliers(better)
        assert np.sum(1 / sigma**2) == pytest.approx(np.sum(1 / simulated.sigma**2), rel=1e-6)
        check_allocation(sigma / FLOAT32_MARGIN, better.guarantee.gaussian_mu**2 * (1 + 1e-12))
        assert sigma.max() / sigma.min() == pytest.approx(2, rel=1e-6)
        assert Plan.from_json(better.to_json()) == better
        # The same draws with either noise: paired differences.
        saved = (uniform - simulated.values(sigma, draw)) / uniform.mean()
        error = saved.std() / math.sqrt(len(saved))
        assert saved.mean() > 10 * error  # it does pay here
        # The prediction was made on other data, from 1000 runs: right to a third.
        assert estimate.saving(better) == pytest.approx(saved.mean(), rel=0.33)
    flat = replace(estimate, q=np.ones(T), standard_error=np.ones(T))
    assert flat.schedule().relative_noise(T) == pytest.approx(np.ones(T))


def test_estimates_at_a_few_steps_make_schedules_too() -> None:
    plan = quadratic_plan()
    exact = exact_influence(plan)
    few = influence_by_retraining(plan, LeastSquares(), START, PUBLIC, at=[60, 40, 20], runs=RUNS)
    late = slice(30, None)
    slope = np.polyfit(np.arange(30), np.log(exact[late]), 1)[0]
    assert 0.3 * slope < few.rate() < 3 * slope
    np.testing.assert_allclose(few.smooth_log_q()[59], np.log(few.q[-1]))
    assert few.schedule("smooth").relative_noise(T).shape == (T,)
    assert _steps_to_measure(None, T).tolist() == [1, 8, 14, 21, 27, 34, 40, 47, 53, 60]


def plain_logistic(params: Any, x: Any, y: Any) -> Any:
    return Logistic()(params, x, y)


def test_another_stream_and_an_objective_of_ones_own() -> None:
    X, y = binary()
    X[0] = 0.0  # its gradient is 0 everywhere, and there the norm of a gradient has a kink
    public = PublicData(X, y)
    plan = sordino.plan("dp-gd", examples=N, steps=T, noise_multiplier=100.0, clip=0.5)
    usual = influence_by_gradient(plan, Logistic(), START, public, runs=RUNS)
    own = influence_by_gradient(
        plan,
        plain_logistic,
        START,
        public,
        runs=RUNS,
        objective=lambda w: 3 * jnp.mean(Logistic().value(X @ w, y)),
    )
    assert own.loss == pytest.approx(3 * usual.loss, rel=1e-4)
    np.testing.assert_allclose(own.q, 3 * usual.q, rtol=1e-2, atol=1e-3 * usual.q.max())


@pytest.mark.slow
@pytest.mark.parametrize("microbatch_size", [None, 40])
def test_little_memory_and_another_stream_change_nothing(
    monkeypatch: pytest.MonkeyPatch, microbatch_size: int | None
) -> None:
    X, y = binary()
    X[0] = 0.0
    public = PublicData(X, y)
    plan = sordino.plan("dp-gd", examples=N, steps=T, noise_multiplier=100.0, clip=0.5)
    roomy = Proxy.of(plan, Logistic(), START, public)
    (draw,) = roomy.draws(seed=0, runs=RUNS)
    values, slopes = roomy.values_and_slopes(roomy.sigma, draw)
    # 8 numbers per entry of the gradients at a time, states and noise of 60 steps.
    work, kept = 8 * (microbatch_size or ROWS) * D, 2 * D * T
    arguments = (plan, plain_logistic, START, public)
    monkeypatch.setattr(proxy, "MEMORY", 8 * (work + kept + D))
    several = Proxy.of(*arguments, microbatch_size=microbatch_size)
    assert (several.at_once, several.static.segment) == (8, T)
    assert [len(draw.chosen) for draw in several.draws(seed=0, runs=15)] == [8, 8]
    monkeypatch.setattr(proxy, "MEMORY", work + kept - 1)
    tight = Proxy.of(*arguments, microbatch_size=microbatch_size)
    assert (tight.at_once, tight.static.segment) == (1, 7)
    for index, alone in enumerate(tight.draws(seed=0, runs=3)):
        value, slope = tight.values_and_slopes(tight.sigma, alone)
        np.testing.assert_allclose(value, values[index], rtol=1e-4)
        np.testing.assert_allclose(slope[0], slopes[index], rtol=1e-2, atol=1e-3 * abs(slope).max())


@pytest.mark.slow
def test_residuals_of_exactly_zero_have_a_derivative() -> None:
    X, _ = binary()
    labels = (X.sum(axis=1) > 0).astype(np.int32)
    certain = 1e6 * np.stack([-np.ones(D), np.ones(D)])
    logits = X @ certain.T
    assert (np.argmax(logits, axis=1) == labels).all()
    plan = sordino.plan("dp-gd", examples=N, steps=5, noise_multiplier=1.0)
    influence_by_gradient(plan, Softmax(2), certain, PublicData(X, labels), runs=3)


def test_eigenvalues_in_closed_form_and_column_by_column() -> None:
    X, y = binary(40)
    W = np.random.default_rng(1).normal(size=D).astype(np.float32)

    def by_hand(weights: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh((X * weights[:, None]).T @ X / len(X))

    p = np.asarray(jax.nn.sigmoid(X @ W))
    found = public_eigenvalues(Logistic(), W, PublicData(X, y))
    np.testing.assert_allclose(found, by_hand(p * (1 - p)), rtol=1e-4)
    plain = public_eigenvalues(lambda w, x, y: Logistic()(w, x, y), W, PublicData(X, y))
    np.testing.assert_allclose(plain, found, rtol=1e-3, atol=1e-6)
    squares = public_eigenvalues(LeastSquares(), W, PublicData(X, y))
    np.testing.assert_allclose(squares, by_hand(np.ones(40)), rtol=1e-4)
    # Two classes: the logistic model twice over, in the direction of their difference.
    two = public_eigenvalues(Softmax(2), np.stack([0 * W, W]), PublicData(X, y.astype(np.int32)))
    np.testing.assert_allclose(two[D:], 2 * found, rtol=1e-3)
    np.testing.assert_allclose(two[:D], 0, atol=1e-6)
    # Fewer rows than features: the same eigenvalues but for zeros.
    few = public_eigenvalues(LeastSquares(), W, PublicData(X[:3], y[:3]))
    np.testing.assert_allclose(few, np.linalg.eigvalsh(X[:3].T @ X[:3] / 3)[-3:], rtol=1e-3)


class OwnStream(Evaluator):
    """A stream whose loss is not known."""

    clip = 1.0

    def total(self, *arguments: Any) -> Any:
        raise AssertionError("never called")


def test_what_cannot_be_estimated_says_so() -> None:
    public = PublicData(*binary(50))
    gd = sordino.plan("dp-gd", examples=50, steps=5, noise_multiplier=1.0)
    memf = sordino.plan("dp-memf", examples=50, batch_size=10, steps=5, noise_multiplier=1.0)
    plain = sordino.plan("sgd", examples=50, batch_size=10, steps=5)
    for route in (influence_by_gradient, influence_by_retraining, influence_by_hessian):
        with pytest.raises(SordinoError, match="defined for independent noise"):
            route(memf, Logistic(), START, public)
        with pytest.raises(SordinoError, match="sgd has no planned noise"):
            route(plain, Logistic(), START, public)
    for options in (
        {"momentum": 0.5},
        {"lr_schedule": "linear"},
        {"average": 0.5},
        {"radius": 1.0},
        {"optimizer": "adam"},
    ):
        other = sordino.plan("dp-gd", examples=50, steps=5, noise_multiplier=1.0, **options)
        with pytest.raises(SordinoError, match="use influence_by_gradient"):
            influence_by_hessian(other, Logistic(), START, public)
    wide = PublicData(np.zeros((2001, 3000)), np.zeros(2001))
    with pytest.raises(SordinoError, match="up to 2,000 rows, this one has 2,001"):
        public_eigenvalues(Logistic(), np.zeros(3000), wide)
    with pytest.raises(SordinoError, match="give an objective"):
        influence_by_gradient(gd, OwnStream(), START, public)
    with pytest.raises(SordinoError, match="steps from 1 to 5, got \\[6\\]"):
        influence_by_retraining(gd, Logistic(), START, public, at=[6])
    with pytest.raises(SordinoError, match="two different multiples"):
        influence_by_retraining(gd, Logistic(), START, public, multiples=[2.0])
    with pytest.raises(SordinoError, match="runs must be a whole number of at least 2"):
        influence_by_gradient(gd, Logistic(), START, public, runs=1)
    steep = sordino.plan("dp-gd", examples=N, steps=T, noise_multiplier=1e12, clip=1e26)
    with pytest.raises(SordinoError, match="diverged"):
        influence_by_gradient(steep, LeastSquares(), START, PUBLIC, runs=RUNS)
    estimate = EstimatedInfluence(gd, np.ones(5), np.ones(5), np.arange(1, 6), 1.0)
    with pytest.raises(SordinoError, match="fit 'linear' is not known"):
        estimate.schedule("linear")
    longer = sordino.plan("dp-gd", examples=50, steps=6, noise_multiplier=1.0)
    with pytest.raises(SordinoError, match="known for 5 steps, but the other plan has 6"):
        estimate.saving(longer)


def rising(plan: Plan, rate: float) -> EstimatedInfluence:
    steps = plan.population.steps
    q = np.exp(rate * np.arange(steps))
    return EstimatedInfluence(plan, q, np.ones(steps), np.arange(1, steps + 1), q.sum())


@pytest.mark.slow
def test_poisson_batches_get_a_schedule_that_their_accountant_accepts() -> None:
    settings = {"examples": N, "batch_size": 50, "steps": 40, "epsilon": 2.0, "delta": 1e-6}
    plan = sordino.plan("dp-sgd", **settings)
    estimate = rising(plan, 0.2)
    better = sordino.plan("dp-sgd", **settings, schedule=estimate.schedule())
    sigma = noise_multipliers(better)
    assert 1.1 < sigma.max() / sigma.min() < 2 + 1e-6
    assert 1.9 < better.guarantee.epsilon(1e-6) <= 2.0 * (1 + 1e-9)
    assert estimate.saving(better) > 0


def test_the_fit_is_chosen_by_what_the_estimate_shows() -> None:
    """Where influence does not just rise, an exponential is flat and wins nothing; "auto" sees it."""
    plan = sordino.plan("dp-gd", examples=N, steps=T, epsilon=1.0, delta=1e-6)
    t, rng = np.arange(1, T + 1), np.random.default_rng(0)
    shapes = {
        "exponential": np.exp(0.05 * (t - T)),
        "mom-exponential": np.exp(-0.1 * t) + 0.01,
        "smooth": 0.05 + np.exp(-(((t - 30) / 8) ** 2)),
    }
    for fit, q in shapes.items():
        error = np.full(T, 0.02)
        made = EstimatedInfluence(plan, q + error * rng.normal(size=T), error, t, q.sum())
        assert made.best_fit() == fit
        assert made.schedule() == made.schedule(fit)
        truth = EstimatedInfluence(plan, q, error, t, q.sum())

        def saved(fit: str, made: Any = made, truth: Any = truth) -> float:
            better = sordino.plan(
                "dp-gd", examples=N, steps=T, epsilon=1.0, delta=1e-6, schedule=made.schedule(fit)
            )
            return float(truth.saving(better))

        assert saved("auto") > max(saved("exponential") - 1e-9, 0.01)
    assert saved("exponential") == pytest.approx(0, abs=1e-6)
    with pytest.raises(SordinoError, match="is not known"):
        made.schedule("other")


def test_a_few_measured_steps_or_nothing_at_all_have_a_best_fit() -> None:
    plan = sordino.plan("dp-gd", examples=N, steps=T, epsilon=1.0, delta=1e-6)
    at = np.array([1, 20, 40, 60])
    few = EstimatedInfluence(plan, np.exp(0.05 * at), np.full(4, 0.1), at, 1.0)
    assert few.best_fit() == "exponential"
    assert few.rate() == pytest.approx(0.05, rel=1e-3)
    assert few.both_ends().k == pytest.approx(0.05, rel=1e-2)
    nothing = EstimatedInfluence(plan, -np.ones(4), np.ones(4), at, 1.0)
    assert nothing.schedule().relative_noise(T) == pytest.approx(np.ones(T))


@pytest.mark.slow
def test_batches_without_replacement_get_a_schedule_too() -> None:
    settings = {"examples": N, "batch_size": 50, "steps": 40, "epsilon": 2.0, "delta": 1e-6}
    settings |= {"sampling": "without-replacement"}
    estimate = rising(sordino.plan("dp-sgd", **settings), 0.2)
    better = sordino.plan("dp-sgd", **settings, schedule=estimate.schedule())
    assert 1.9 < better.guarantee.epsilon(1e-6) <= 2.0
    assert estimate.saving(better) > 0


def test_fixed_batches_keep_each_records_budget() -> None:
    settings = {"examples": N, "batch_size": 100, "steps": 40, "epsilon": 2.0, "delta": 1e-6}
    plan = sordino.plan("dp-sgd", **settings, sampling="fixed")
    for fit in ("exponential", "smooth"):
        schedule = rising(plan, 0.1).schedule(fit)
        better = sordino.plan("dp-sgd", **settings, sampling="fixed", schedule=schedule)
        spent = (1 / noise_multipliers(better) ** 2).reshape(4, 10).sum(axis=0)
        np.testing.assert_allclose(spent, spent[0], rtol=1e-9)
        assert better.guarantee.gaussian_mu == pytest.approx(plan.guarantee.gaussian_mu, rel=1e-6)

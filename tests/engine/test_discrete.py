"""Runs with discrete noise: exact releases on the lattice, one release per step, resumable."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import Plan, SordinoError
from sordino._base.keys import RunKey
from sordino.engine._noise import DrawnRows, Layout, lattice_noise
from sordino.engine._run import TrainingRun
from sordino.parts._losses import Logistic
from sordino.parts.contributions._base import Evaluator
from sordino.parts.updates._base import Update
from sordino.privacy._values import ClippedSum

N, D, STEPS = 60, 5, 12
KEY = RunKey.from_insecure_seed(4)


def planned(recipe: str = "dp-sgd", **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "examples": N,
        "batch_size": 16,
        "steps": STEPS,
        "noise_multiplier": 0.8,
        "noise": "discrete",
    }
    if recipe in ("dp-sgd", "dp-srm"):
        settings["sampling"] = "fixed"
    return sordino.plan(recipe, **{**settings, **changes})


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.float32)


def log_loss(params: Any, x: Any, y: Any) -> Any:
    z = params @ x
    return jnp.logaddexp(0.0, z) - y * z


PLANS = [
    planned(),
    planned(sampling="poisson"),
    planned("dp-srm", first_batch=30, sampling="poisson"),
    planned("dp-ftrl"),
    planned("dp-mu2", mechanism="cancelling"),
    planned("dp-mu2", mechanism="cancelling", schedule="participation"),
    planned("dp-memf", mechanism="tree"),
    planned("dp-gd", batch_size=None, schedule="exponential"),
]


@dataclasses.dataclass(frozen=True)
class Noting(Update):
    """Keeps every estimate; the parameters stay."""

    def init(self, params: Any) -> Any:
        return jnp.zeros((STEPS, D))

    def step(self, params: Any, state: Any, estimate: Any, info: Any) -> tuple[Any, Any]:
        return params, state.at[info.step].set(estimate.value)

    def output(self, params: Any, state: Any) -> Any:
        return state


@dataclasses.dataclass(frozen=True)
class Silence:
    """Noise of a run that is 0."""

    layout: Layout

    def init(self) -> Any:
        return ()

    def chunk(self, first: int, count: int) -> DrawnRows:
        return DrawnRows(np.zeros((count, self.layout.size), np.int32), self.layout)


def estimates(plan: Plan, key: RunKey, quiet: bool = False) -> np.ndarray:
    """Every released estimate (steps, d) at fixed parameters."""
    # Short rows: sums and noise are then below 2^24 steps, which float32 holds in full.
    X, y = data()
    run = TrainingRun(plan, Logistic(), np.zeros(D, np.float32), (X * 2.0**-10, y), key=key)
    noting = dataclasses.replace(run.stepper, update=Noting())
    run.driver = dataclasses.replace(run.driver, stepper=noting)
    run.state = run.state._replace(update=jnp.zeros((STEPS, D)))
    if quiet:
        run.driver = dataclasses.replace(run.driver, noise=Silence(run.driver.noise.layout))
    while not run.finished:
        run.advance()
    return np.asarray(run.output(), np.float64)


@pytest.mark.parametrize("recipe", ["dp-sgd", "dp-memf"])
def test_releases_are_whole_multiples_and_sum_and_noise_meet_exactly(recipe: str) -> None:
    plan = planned(recipe, noise_multiplier=2.0**-10)
    assert plan.lattice is not None
    step, divisor = plan.lattice.step, plan.divisor
    sums = estimates(plan, KEY, quiet=True) * divisor / step
    released = estimates(plan, KEY) * divisor / step
    noise = lattice_noise(plan, D, KEY)
    assert noise is not None
    np.testing.assert_array_equal(sums, np.round(sums))
    rows = noise.rows(0, STEPS)
    assert 2**10 < np.abs(rows).mean() < np.abs(rows).max() < 2**22
    assert 2**10 < np.abs(sums).max() < 2**23
    np.testing.assert_array_equal(released, sums + rows)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.recipe}-{plan.mechanism.kind}")
def test_runs_resume_bit_for_bit_whatever_the_driver(plan: Plan) -> None:
    results = {}
    for driver in ("scan", "steps"):
        options: dict[str, Any] = {"key": KEY, "driver": driver, "watched": True}
        start = np.zeros(D, np.float32)
        whole = TrainingRun(plan, log_loss, start, data(), **options)
        stops = []
        while not whole.finished:
            whole.advance()
            stops.append(whole.released())
        results[driver] = np.asarray(whole.output())
        for stop in (stops[0], stops[len(stops) // 2], stops[-2]):
            again = TrainingRun(plan, log_loss, start, data(), **options)
            again.restore(jax.tree.map(np.asarray, stop))
            while not again.finished:
                again.advance()
            np.testing.assert_array_equal(np.asarray(again.output()), results[driver])
    np.testing.assert_allclose(results["scan"], results["steps"], rtol=1e-4, atol=1e-5)
    other = TrainingRun(
        plan, log_loss, np.zeros(D, np.float32), data(), key=RunKey.from_insecure_seed(5)
    )
    while not other.finished:
        other.advance()
    assert not np.array_equal(np.asarray(other.output()), results["scan"])


def test_a_session_adds_the_same_noise_as_a_run() -> None:
    plan = planned("dp-ftrl")
    X, y = data()
    start = np.zeros(D, np.float32)
    session = sordino.Session(plan, log_loss, start, insecure_seed=4)
    for rows in session:
        session.step((X[rows], y[rows]))
    run = sordino.train(plan, log_loss, start, (X, y), insecure_seed=4)
    np.testing.assert_allclose(session.result().params, run.params, rtol=1e-5, atol=1e-6)


def test_noise_has_the_planned_size() -> None:
    plan = planned(noise_multiplier=3.0, clip=0.2)
    size = 40_000
    noise = lattice_noise(plan, size, KEY)
    assert noise is not None
    assert plan.lattice is not None
    found = noise.rows(0, 3).astype(np.float64) * plan.lattice.step
    np.testing.assert_allclose(found.std(axis=1), 0.6, rtol=5 / np.sqrt(2 * size))
    assert abs(np.corrcoef(found)[0, 1]) < 5 / np.sqrt(size)


def test_a_schedule_gives_each_step_its_own_variance() -> None:
    plan = PLANS[-1]
    variances = [row[0] for row in plan.noise_variances()]
    assert len(set(variances)) == STEPS
    assert plan.lattice is not None
    planned_stds = plan.noise_stds()[:, 0].astype(np.float64)
    np.testing.assert_allclose(np.sqrt(variances) * plan.lattice.step, planned_stds, rtol=1e-6)
    noise = lattice_noise(plan, 20_000, KEY)
    assert noise is not None
    found = noise.rows(0, STEPS).astype(np.float64).std(axis=1) * plan.lattice.step
    np.testing.assert_allclose(found, planned_stds, rtol=5 / np.sqrt(2 * 20_000))


def test_several_parameter_arrays_of_other_types_are_trained() -> None:
    plan = planned()

    def loss(params: Any, x: Any, y: Any) -> Any:
        return log_loss(params["w"].astype(jnp.float32), x, y) + params["b"].sum() ** 2

    start = {"w": jnp.zeros(D, jnp.bfloat16), "b": np.ones((2, 3), np.float32)}
    result = sordino.train(plan, loss, start, data(), insecure_seed=0)
    assert result.params["w"].dtype == jnp.bfloat16
    assert result.params["b"].shape == (2, 3)
    assert np.isfinite(np.asarray(result.params["b"])).all()


def test_broken_records_add_nothing() -> None:
    plan = planned()
    X, y = data()
    broken = X.copy()
    broken[7] = np.nan
    silent = X.copy()
    silent[7] = 0
    found = [
        sordino.train(plan, Logistic(), np.zeros(D, np.float32), (rows, y), insecure_seed=0).params
        for rows in (broken, silent)
    ]
    np.testing.assert_array_equal(*found)


class Own(Evaluator):
    clip = 0.5

    def total(self, *arguments: Any) -> ClippedSum:
        raise AssertionError("never called")


def test_streams_that_add_floats_are_refused() -> None:
    plan = planned(clip=1.0)
    with pytest.raises(SordinoError, match="rounded before it is added"):
        sordino.train(plan, Own(), np.zeros(D, np.float32), data())


@pytest.mark.parametrize(
    ("recipe", "changes", "words"),
    [
        ("dp-memf", {"mechanism": "blt"}, "works with 'tree' or 'independent'"),
        ("dp-memf", {"mechanism": "dense"}, "real numbers"),
        ("dp-mu2", {"mechanism": "leaky"}, "works with 'cancelling'"),
        ("dp-nsgd", {"mechanism": "tree"}, "works with 'independent'"),
        ("dp-nsgd-sr", {}, "no discrete noise"),
        ("dp-sgd", {"noise": "discreet"}, "did you mean 'discrete'"),
        ("dp-sgd", {"noise": 1.0}, "noise_multiplier=1.0"),
        ("dp-sgd", {"noise": None}, "noise_multiplier"),
        ("dp-sgd", {"noise_multiplier": 1e-6}, "use smaller batches"),
    ],
)
def test_what_is_on_no_lattice_is_refused_in_a_sentence(
    recipe: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SordinoError, match=words) as found:
        planned(recipe, **changes)
    assert "\n" not in str(found.value)


def test_adaptive_budgets_and_algorithms_without_noise_are_refused() -> None:
    common: dict[str, Any] = {"examples": N, "steps": 3, "noise": "discrete"}
    with pytest.raises(SordinoError, match="dp-agd has no discrete noise"):
        sordino.plan("dp-agd", epsilon=1.0, delta=1e-5, **common)
    with pytest.raises(SordinoError, match="it adds no noise"):
        sordino.plan("sgd", batch_size=5, **common)


def test_models_beyond_the_stated_draws_are_refused() -> None:
    plan = planned()
    with pytest.raises(SordinoError, match="draws"):
        lattice_noise(plan, 2**40 // STEPS + 1, KEY)


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_budget_is_met_and_the_distance_is_in_it(sampling: str) -> None:
    budget = {"noise_multiplier": None, "epsilon": 1.0, "delta": 1e-5, "sampling": sampling}
    plan, gaussian = planned(**budget), planned(**budget, noise="gaussian")
    assert plan.noise_kind == "discrete"
    assert gaussian.noise_kind == "gaussian"
    assert 0 < plan.guarantee.distance < 1e-15
    assert 0.999 < plan.guarantee.epsilon(1e-5) <= 1.0
    assert plan.guarantee.delta(1.0) <= 1e-5
    assert (
        gaussian.noise_multiplier <= plan.noise_multiplier <= gaussian.noise_multiplier * (1 + 1e-6)
    )
    assert "multiples of 2^" in str(plan)
    assert "total variation" in plan.guarantee.sentence() or sampling == "poisson"


def test_a_large_distance_is_paid_for() -> None:
    """Calibration leaves room for it: with a coarse lattice the noise is larger."""
    from sordino.planning._accounting import calibrated_noise

    plan = planned(noise_multiplier=None, epsilon=1.0, delta=1e-5)
    setting = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "population": plan.population,
        "mechanism": plan.mechanism,
        "schedule": plan.schedule,
        "adjacency": "zero-out",
    }
    without, having = calibrated_noise(**setting), calibrated_noise(**setting, distance=1e-6)
    assert having > 1.01 * without
    mu = plan.guarantee.mu * plan.noise_multiplier / having
    stated = dataclasses.replace(plan.guarantee, gaussian_mu=mu, distance=1e-6)
    assert 0.999 < stated.epsilon(1e-5) <= 1.0
    with pytest.raises(SordinoError, match="larger delta"):
        calibrated_noise(**setting, distance=1e-5)


def test_plans_survive_as_json_and_lies_are_refused() -> None:
    plan = planned(noise_multiplier=None, epsilon=1.0, delta=1e-5)
    written = json.loads(json.dumps(plan.to_json()))
    assert (written["noise_kind"], written["version"]) == ("discrete", 2)
    back = Plan.from_json(written)
    assert back == plan
    assert back.noise_variances() == plan.noise_variances()
    gaussian = planned(noise_multiplier=None, epsilon=1.0, delta=1e-5, noise="gaussian")
    old = gaussian.to_json()
    assert not {"noise_kind", "lattice", "distance"} & {*old, *old["guarantee"]}
    assert gaussian != plan
    for change in (
        {"lattice": written["lattice"] + 1},
        {"lattice": 2000},
        {"lattice": None},
        {"lattice": 1.5},
        {"noise_kind": "gaussian"},
        {"noise_kind": "other"},
        {"guarantee": {**written["guarantee"], "distance": 0.0}},
        {"mechanism": {"kind": "tree", "steps": STEPS, "beta": 0.5}},
    ):
        with pytest.raises(SordinoError):
            Plan.from_json({**written, **change})
    del written["lattice"]
    with pytest.raises(SordinoError):
        Plan.from_json(written)

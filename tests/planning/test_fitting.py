"""Streams and optimizers: every pair is refused, or is the algorithm that the noise is shaped for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import sordino
from sordino import Plan, SordinoError
from sordino.audit._contract import contribution_problems, mu_problems, noise_problems
from sordino.audit._plans import reference_plan
from sordino.audit._whitebox import Neighbours
from sordino.parts.contributions import Lagged, WeightedGradient, WeightedRecursive
from sordino.parts.mechanisms import Channels, linear_map_from_json
from sordino.parts.mechanisms._maps import NesterovMap, RunningMeanMap
from sordino.parts.updates._settings import OPTIMIZERS, UpdateSettings
from sordino.planning.recipes import RECIPES
from tests.contract import reference

STEPS, PER_EPOCH = 12, 4
LOOPS = [name for name, recipe in RECIPES.items() if not recipe.adaptive]
# Those whose steps are linear in the released sums. (A bias correction is left out of the map.)
LINEAR = ("sgd", "nesterov", "srg", "anytime")
# What may move what, and nothing else may.
ANY = {"sgd", "adam", "normalized", "bias-corrected"}
FITTING = {
    "dp-srm": ANY | {"adaptive"},
    "dp-mu2": {"anytime"},
    "mu2": {"anytime"},
    "dp-srgd": {"nesterov"},
    "dp-nesterov": {"nesterov"},
    "nesterov": {"nesterov"},
    "dp-srg": {"srg"},
    "storm": {"storm"},
}


def built(name: str, optimizer: str, **options: Any) -> Plan:
    spec = RECIPES[name]
    sizes: dict[str, Any] = {"examples": 40, "steps": STEPS}
    if not spec.full_batch:
        sizes["batch_size"] = 10
    if spec.private:
        sizes["noise_multiplier"] = 1.0
    if optimizer == "adaptive" and "step_length" in spec.options:
        options["step_length"] = 1.0
    quick = {"mechanism": "independent"} if "independent" in spec.mechanisms else {}
    return sordino.plan(name, optimizer=optimizer, **sizes, **quick, **options)


def simulated(plan: Plan) -> np.ndarray:
    """The reference's outputs after each step, for unit sums at rate 1 (steps, steps * channels)."""
    count = plan.contribution.channels
    columns = []
    for channel in range(count):
        for s in range(STEPS):
            move = reference.mover(plan, np.zeros(1), None)
            estimate = reference.Estimate(plan)
            x, column = np.zeros(1), []
            for t in range(STEPS):
                sums = [np.full(1, float((c, t) == (channel, s))) for c in range(count)]
                x = move(x, estimate(sums), t, 1.0)
                column.append(-float(getattr(move, "output", x)[0]))
            columns.append(column)
    return np.array(columns).T


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_pair_is_refused_or_is_what_its_noise_is_shaped_for(
    name: str, optimizer: str
) -> None:
    if optimizer not in FITTING.get(name, ANY):
        with pytest.raises(SordinoError, match=f"optimizer of {name} '{optimizer}' is not known"):
            built(name, optimizer)
        return
    plan = built(name, optimizer)
    if optimizer in LINEAR:
        found = plan.iterate_map.matrix(STEPS)
        if isinstance(plan.iterate_map, Channels):
            assert found.shape == (STEPS, 2 * STEPS)
        np.testing.assert_allclose(found, simulated(plan), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp-srgd", {"power": 0.5, "kappa": 1.0}),
        ("dp-srgd", {"power": 2.0}),
        ("dp-nesterov", {"power": 1.7}),
        ("dp-srg", {"power": 0.3}),
        ("dp-srg-memf", {"decay": (0.0, *np.linspace(0.9, 0.1, STEPS - 1)), "momentum": 0.7}),
        ("dp-nsgd-sr", {"form": "anchored", "optimizer": "sgd"}),
    ],
)
def test_maps_of_other_weights_and_decays(name: str, options: dict[str, Any]) -> None:
    plan = built(name, **{"optimizer": RECIPES[name].defaults()["optimizer"], **options})
    matrix = plan.iterate_map.matrix(STEPS)
    np.testing.assert_allclose(matrix, simulated(plan), rtol=1e-9, atol=1e-9)
    again = linear_map_from_json(plan.workload.to_json())
    np.testing.assert_array_equal(again.matrix(STEPS), plan.workload.matrix(STEPS))
    assert Plan.from_json(plan.to_json()) == plan


def test_an_update_that_does_not_fit_is_refused_when_it_is_changed_later() -> None:
    """`with_update` is post-processing; it still must not make another algorithm of it."""
    for name, optimizer in (("dp-memf", "nesterov"), ("dp-srgd", "sgd"), ("dp-srg", "anytime")):
        other = built(name, RECIPES[name].defaults()["optimizer"]).with_update(optimizer=optimizer)
        if (name, optimizer) == ("dp-srg", "anytime"):
            other.update.build(other.contribution)  # the same stream: dp-mu2
            continue
        X, y = np.ones((40, 3), np.float32), np.ones(40, np.float32)
        with pytest.raises(SordinoError, match=f"optimizer '{optimizer}' does not fit a stream"):
            sordino.train(other, sordino.Logistic(), np.zeros(3, np.float32), (X, y))
    settings = UpdateSettings(optimizer="anytime")
    for stream in (WeightedRecursive(1.0, 2.0), WeightedGradient(1.0)):
        with pytest.raises(SordinoError, match="does not fit"):
            settings.iterate_map(stream)


def test_sequences_fit_the_run_and_the_noise() -> None:
    with pytest.raises(SordinoError, match="has 13 of them, and the run has 12 steps"):
        built("dp-gd", "sgd", clip=[0.5] * 13)
    with pytest.raises(SordinoError, match="12 steps need as many clips, got 3"):
        built("dp-gd", "sgd", clip=[0.5] * 3)
    with pytest.raises(SordinoError, match="0 for the first, then less than 1"):
        built("dp-srg-memf", "sgd", decay=[0.5] * STEPS)
    for wrong in ([], ["a"] * STEPS, [1.0, None] * 6, [0.0] * STEPS):
        with pytest.raises(SordinoError, match="clip"):
            built("dp-gd", "sgd", clip=wrong)
    # Noise in proportion to the clip of its step; the guarantee is that of one clip.
    clips = np.linspace(1.0, 0.2, STEPS)
    plan = built("dp-gd", "sgd", clip=clips)
    np.testing.assert_allclose(plan.noise_stds()[:, 0], clips, rtol=1e-6)
    assert plan.guarantee.mu == built("dp-gd", "sgd").guarantee.mu
    assert plan.clip == 1.0


def test_noise_of_accelerated_gradients_grows_with_their_weights() -> None:
    """Theorem 4.11: the bound of step t is (t+1) C, and so is the noise; mu is that of one step."""
    plan = sordino.plan(
        "dp-nesterov", examples=120, batch_size=10, epochs=1, mu=0.5, clip=0.3, power=1.0
    )
    weights = np.arange(1.0, STEPS + 1)
    np.testing.assert_allclose(plan.contribution.bounds(STEPS)[0], 0.3 * weights)
    np.testing.assert_allclose(
        plan.noise_stds()[:, 0], 0.3 * weights * plan.noise_multiplier, rtol=1e-6
    )
    assert plan.noise_multiplier == pytest.approx(2.0, rel=2e-6)


def test_maps_of_power_one_are_the_closed_forms() -> None:
    near = NesterovMap(power=1 + 1e-12).matrix(30)
    np.testing.assert_allclose(near, NesterovMap().matrix(30), rtol=1e-9)
    assert NesterovMap(0.5, 2.0).to_json() == {
        "kind": "nesterov-coupling",
        "kappa": 0.5,
        "beta": 2.0,
    }
    running = [[1, 0, 0], [1.5, 0.5, 0], [11 / 6, 5 / 6, 1 / 3]]
    np.testing.assert_allclose(RunningMeanMap().matrix(3), running)


def test_ones_are_sums_of_what_is_released() -> None:
    """Paper 03 compares strategies for A ("ones") with those for M A L; "prefix" is A L."""
    common = {"examples": 120, "batch_size": 10, "epochs": 1, "mu": 1.0, "mechanism": "dense"}
    ones, prefix = (
        sordino.plan("dp-srg-memf", workload=word, decay=0.5, **common)
        for word in ("ones", "prefix")
    )
    np.testing.assert_array_equal(ones.workload.matrix(5), np.tri(5))
    assert prefix.workload.matrix(5)[1, 0] == 1.5
    with pytest.raises(SordinoError, match="workload 'momentum' is for steps with momentum"):
        sordino.plan("dp-srgd", workload="momentum", **common)


@pytest.mark.parametrize("name", LOOPS)
def test_memory_is_what_a_run_holds(name: str) -> None:
    """Counted from the arrays of a real run."""
    plan = built(name, RECIPES[name].defaults()["optimizer"], average=0.0)
    d = 50
    X, y = np.zeros((40, d), np.float32), np.zeros(40, np.float32)
    from sordino._base.keys import RunKey
    from sordino.engine._run import TrainingRun

    run = TrainingRun(
        plan, sordino.Logistic(), np.zeros(d, np.float32), (X, y), key=RunKey.from_insecure_seed(0)
    )
    held = jax.tree.leaves((run.state.memory, run.state.update))
    assert plan.training.state_vectors == sum(np.size(leaf) // d for leaf in held)
    if isinstance(plan.contribution, Lagged):
        # A ring of iterates and one of momenta.
        assert plan.training.state_vectors >= 2 * PER_EPOCH
    noise = sum(np.size(leaf) // d for leaf in jax.tree.leaves(run._noise_state))
    assert plan.training.noise_vectors >= noise
    assert plan.state_bytes(d) == 4 * d * (
        plan.training.noise_vectors + plan.training.state_vectors
    )


def test_a_start_outside_the_ball_is_refused() -> None:
    plan = built("dp-srgd", "nesterov", radius=1.0)
    X, y = np.ones((40, 3), np.float32), np.ones(40, np.float32)
    for start in (sordino.train, sordino.Session):
        data = ((X, y),) if start is sordino.train else ()
        with pytest.raises(
            SordinoError, match=r"have norm 3\.46[0-9]*, and all iterates are to stay in"
        ):
            start(plan, sordino.Logistic(), np.full(3, 2.0, np.float32), *data)


# ---- budgets by mu and rho -------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp-gd", {"steps": 7}),
        ("dp-gd", {"steps": 7, "schedule": "exponential", "schedule.ratio": 1.7}),
        ("dp-memf", {"batch_size": 100, "epochs": 2}),
        ("dp-nsgd-sr", {"batch_size": 100, "epochs": 2, "form": "anchored"}),
        ("dp-agd", {"steps": 7}),
    ],
)
def test_plans_by_mu_and_rho_spend_just_that(
    name: str, options: dict[str, Any], adjacency: str
) -> None:
    ways = [{"mu": 0.8}, {"rho": 0.32}, {"rho": 0.32, "delta": 1e-6}]
    plans = [sordino.plan(name, examples=2000, adjacency=adjacency, **options, **w) for w in ways]
    for plan in plans:
        assert 0.8 * (1 - 1e-6) < plan.guarantee.mu <= 0.8
        assert plan.epsilon is None
        assert Plan.from_json(plan.to_json()).hash == plan.hash
    by_epsilon = sordino.plan(
        name,
        examples=2000,
        adjacency=adjacency,
        epsilon=plans[0].guarantee.epsilon(1e-6),
        delta=1e-6,
        **options,
    )
    assert by_epsilon.noise_multiplier == pytest.approx(plans[0].noise_multiplier, rel=1e-5)


def test_budgets_that_are_no_mu_are_refused() -> None:
    common: dict[str, Any] = {"examples": 2000, "batch_size": 100, "epochs": 1}
    with pytest.raises(
        SordinoError, match="no mu or rho describes; give epsilon and delta, here 1"
    ):
        sordino.plan("dp-sgd", rho=0.125, delta=1e-5, **common)
    with pytest.raises(SordinoError, match="discrete noise is Gaussian up to a small distance"):
        sordino.plan("dp-gd", examples=2000, steps=3, mu=1.0, noise="discrete")
    for two in ({"epsilon": 1.0, "delta": 1e-5}, {"noise_multiplier": 1.0}, {"rho": 0.5}):
        with pytest.raises(SordinoError, match="give one budget"):
            sordino.plan("dp-memf", mu=1.0, **two, **common)
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 1e5, "1"):
        with pytest.raises(SordinoError, match="mu must be"):
            sordino.plan("dp-memf", mu=wrong, **common)
    with pytest.raises(SordinoError, match="not private: it takes no epsilon"):
        sordino.plan("sgd", mu=1.0, **common)


# ---- what the accelerated methods are for ----------------------------------------------------------------


def test_without_noise_acceleration_is_of_the_rate_that_is_proved() -> None:
    """``f(y_T) - f* <= 2 beta |x*|^2 / (T (T+1))`` on a quadratic, lr = 1/beta (papers/03 oracle 1).

    The stochastic recursive gradient of one batch that is the same in every step is exact, so dp-srgd,
    dp-nesterov and `nesterov` then are one method; dp-srg is plain gradient descent.
    """
    T, H = 40, np.geomspace(1.0, 1e-4, 6)
    X = np.diag(np.sqrt(H)).astype(np.float32) * np.sqrt(6)
    target = (X @ np.ones(6)).astype(np.float32)
    values = {}
    for name in ("dp-srgd", "dp-nesterov", "dp-srg"):
        plan = sordino.plan(
            name,
            examples=6,
            batch_size=6,
            steps=T,
            noise_multiplier=1e-20,
            clip=1e6,
            learning_rate=1.0,
            mechanism="independent",
        )
        x = sordino.train(plan, sordino.LeastSquares(), np.zeros(6, np.float32), (X, target)).params
        values[name] = 0.5 * float(H @ np.square(np.asarray(x, np.float64) - 1))
    assert values["dp-srgd"] == pytest.approx(values["dp-nesterov"], rel=1e-3)
    assert values["dp-srgd"] <= 2 * 6 / (T * (T + 1))
    plain = 0.5 * float(H @ (1 - H) ** (2 * T))
    assert values["dp-srg"] == pytest.approx(plain, rel=1e-3)
    assert values["dp-srgd"] < 0.5 * values["dp-srg"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp-srg-memf", {"decay": (0.0, 0.4, 0.1, 0.9, 0.0, 0.2, 0.3, 0.3)}),
        ("dp-gd", {"clip": (0.5, 0.1, 0.2, 0.3, 0.02, 0.4, 0.1, 0.2)}),
        ("dp-srgd", {"power": 2.0}),
    ],
)
def test_sequences_keep_their_bounds_and_state_the_true_mu(
    name: str, options: dict[str, Any]
) -> None:
    plan = reference_plan(name, **options)
    assert mu_problems(plan) == []
    pair = Neighbours.of(plan)
    assert contribution_problems(pair) == []
    assert noise_problems(pair) == []

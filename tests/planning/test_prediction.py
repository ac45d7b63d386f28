"""Predicted losses: brute-force simulation of the real updates, and what the prediction is used for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sordino
from sordino import LeastSquares, Logistic, Plan, PublicData, SordinoError
from sordino.engine.influence import public_eigenvalues, public_spectrum
from sordino.parts.mechanisms import fit_mechanism
from sordino.parts.updates import StepInfo
from sordino.planning import Spectrum
from sordino.planning._prediction import _noise_stds, best_rate, predicted_losses
from sordino.privacy import FixedBatches, PrivateEstimate

T = 50
RUN: dict[str, Any] = {"examples": 1000, "batch_size": 20, "steps": T, "noise_multiplier": 1.0}


def simulated(plan: Plan, curve: float, start: float, runs: int, parameters: int = 1) -> float:
    """Mean excess loss of the plan's own update on ``curve |x|^2 / 2``, with its own noise."""
    rng = np.random.default_rng(7)
    mechanism, part, steps = plan.mechanism, plan.contribution, plan.population.steps
    channels = [(mechanism, 1.0)]
    if mechanism.channels > 1:
        channels = list(zip(mechanism.parts, mechanism.scales, strict=True))
    noise = [
        stds[:, None] * scale * (one.noising_matrix() @ rng.normal(size=(steps, runs * parameters)))
        for (one, scale), stds in zip(channels, _noise_stds(plan.training), strict=True)
    ]
    update, rates = plan.update.build(part), plan.update.learning_rates(steps)
    keep, terms = part.carry_over(steps), part.terms(steps)

    shape = (runs, parameters)
    x = jnp.full(shape, start, jnp.float32)
    state, past = jax.vmap(update.init)(x), []
    chosen = jnp.asarray(np.arange(runs) % steps)

    @jax.jit
    def step(x: Any, state: Any, noisy: Any, t: Any, rate: Any, kept: Any) -> Any:
        def one(x: Any, state: Any, noisy: Any, own: Any) -> Any:
            info = StepInfo(t, jnp.int32(steps), rate, kept, own)
            return update.step(x, state, PrivateEstimate(noisy), info)

        return jax.vmap(one)(x, state, noisy, chosen)

    for t in range(steps):
        past.append(np.asarray(x))
        g, before = curve * past[t], curve * past[max(t - 1, 0)]
        if part.kind in ("recursive", "weighted-recursive"):
            value: Any = terms["now"][t] * g - terms["before"][t] * before
        elif part.kind == "two-clip":
            value = g - keep[t] * before
        elif part.kind in ("lagged", "anchored"):
            first = t - t % part.lag if part.kind == "anchored" else t
            value = curve * past[first]
            if t >= part.lag:
                value = value - (1 - part.gamma) * curve * past[first - part.lag]
            if part.kind == "anchored":
                value = (value, g - curve * past[first])
        else:
            value = terms.get("now", np.ones(steps))[t] * g
        own = [np.float32(row[t].reshape(shape)) for row in noise]
        pairs = zip(value, own, strict=True) if len(own) > 1 else [(value, own[0])]
        noisy = tuple(np.float32(v + n) for v, n in pairs)
        numbers = (jnp.int32(t), rates[t], np.float32(keep[t]))
        x, state = step(x, state, noisy if len(noisy) > 1 else noisy[0], *numbers)
    out = np.asarray(jax.vmap(update.output)(x, state), float)
    return float(curve / 2 * np.mean(np.sum(out**2, axis=1)))


def test_oracle_15_momentum_and_blt() -> None:
    plan = sordino.plan("dp-memf", mechanism="blt", **RUN).with_update(learning_rate=0.1)
    assert plan.update.momentum == 0.9
    predicted = plan.predicted_loss([0.1], radius2=0.25)
    assert predicted == pytest.approx(simulated(plan, 0.1, 0.5, 2000), rel=0.05)
    # Each of the two terms alone, so that neither hides behind the other.
    noise = plan.predicted_loss(Spectrum((0.1,), (0.0,)))
    assert noise == pytest.approx(simulated(plan, 0.1, 0.0, 2000), rel=0.05)
    assert 0.2 < noise / predicted < 0.8


LAGGED = {**RUN, "batch_size": 100, "optimizer": "sgd", "mechanism": "blt"}
LINEAR = {
    "tail average": ("dp-memf", 0.1, {"mechanism": "blt", "average": 0.5, **RUN}),
    "recursion .5": ("dp-srg-memf", 0.1, {"mechanism": "blt", "decay": 0.5, **RUN}),
    "cosine, tree": ("dp-memf", 0.1, {"mechanism": "tree", "lr_schedule": "cosine", **RUN}),
    "dense": ("dp-memf", 0.1, {"mechanism": "dense", **RUN}),
    "accelerated": ("dp-srgd", 0.1, {"mechanism": "leaky", **RUN}),
    "accelerated, averaged": ("dp-srgd", 0.1, {"mechanism": "leaky", "average": 0.3, **RUN}),
    "accelerated, weights t^2": ("dp-srgd", 0.1, {"mechanism": "leaky", "power": 2.0, **RUN}),
    "accelerated, fresh gradients": ("dp-nesterov", 0.1, RUN),
    "recursion without acceleration": ("dp-srg", 0.1, {"mechanism": "leaky", **RUN}),
    "anytime": ("dp-mu2", 0.02, RUN),
    "bias-corrected": (
        "dp-gd-momentum",
        0.5,
        {"examples": 1000, "steps": T, "noise_multiplier": 50.0, "schedule": "exponential"},
    ),
    "two clips": ("dp-srm", 0.5, {"optimizer": "sgd", "first_batch": 100, **RUN}),
    "lagged": ("dp-nsgd-sr", 0.5, LAGGED),
    "anchored": ("dp-nsgd-sr", 0.5, {**LAGGED, "form": "anchored"}),
    "random iterate": ("rrpsgd", 0.5, RUN),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_adjoint_equals_simulation(name: str) -> None:
    recipe, rate, options = LINEAR[name]
    plan = sordino.plan(recipe, **options).with_update(learning_rate=rate)
    for curve in (0.1, 1.0):
        measured = simulated(plan, curve, 0.3, 4000)
        assert plan.predicted_loss([curve], radius2=0.09) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dp-nsgd", {"mechanism": "blt", "learning_rate": 0.2}),
        ("dp-srm", {"step_length": 0.05, "learning_rate": 1.0}),
        ("dp-sgd", {"optimizer": "adam", "learning_rate": 0.02}),
    ],
)
def test_steps_by_length_are_close_to_simulation(recipe: str, options: dict[str, Any]) -> None:
    """An approximation: the norm of the estimate is taken for its mean. Many parameters help."""
    plan = sordino.plan(recipe, **options, **RUN)
    spectrum = Spectrum((0.5,) * 60, (0.09,) * 60)
    measured = simulated(plan, 0.5, 0.3, 200, parameters=60)
    assert plan.predicted_loss(spectrum) == pytest.approx(measured, rel=0.2)


def test_energy_of_draws_is_that_of_the_matrix() -> None:
    y = np.random.default_rng(0).normal(size=(40, 3))
    rule = FixedBatches(40, 10)
    workload = sordino.plan(
        "dp-memf", examples=40, batch_size=4, steps=40, noise_multiplier=1.0
    ).workload
    for name in ("blt", "banded", "tree", "independent", "dense"):
        mechanism = fit_mechanism(name, workload, rule)
        expected = np.sum((mechanism.noising_matrix().T @ y) ** 2, axis=0)
        assert mechanism.draw_energy(y) == pytest.approx(expected, rel=1e-4)


def test_long_runs_of_a_tree_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.parts.mechanisms import _base

    plan = sordino.plan("dp-ftrl", **RUN).with_update(learning_rate=0.1)
    exact = plan.predicted_loss()
    monkeypatch.setattr(_base, "LONGEST_MATRIX", 10)
    assert plan.predicted_loss() == pytest.approx(exact, rel=0.1)
    assert plan.predicted_loss() != exact


def test_binned_eigenvalues_change_little() -> None:
    plan = sordino.plan("dp-memf", mechanism="blt", **RUN)
    many = Spectrum.usual(1000)
    rates = np.array([0.05, 0.5])
    values, counts, distances2 = many.nodes()
    assert len(values) <= 32
    assert counts.sum() == 1000
    assert counts @ values == pytest.approx(sum(many.eigenvalues))
    assert distances2.sum() == pytest.approx(sum(many.distances2))
    exact = np.zeros(2)
    for curve, far in zip(many.eigenvalues, many.distances2, strict=True):
        exact += predicted_losses(plan.training, Spectrum((curve,), (far,)), rates)
    assert predicted_losses(plan.training, many, rates) == pytest.approx(exact, rel=0.01)


def test_the_usual_spectrum_scales_with_the_clip() -> None:
    """Gradients c times as long: the same run with a learning rate of 1/c^2."""
    common = {**RUN, "mechanism": "blt"}
    one = sordino.plan("dp-memf", clip=1.0, learning_rate=0.4, **common)
    three = sordino.plan("dp-memf", clip=3.0, learning_rate=0.4 / 9, **common)
    assert three.predicted_loss() == pytest.approx(one.predicted_loss(), rel=1e-6)
    usual = Spectrum.usual(57, clip=2.0)
    start = np.dot(usual.eigenvalues, usual.distances2) / 2
    assert start == pytest.approx(0.37)
    assert Spectrum.usual(1).eigenvalues == (0.1,)


def test_the_best_rate_is_steady_and_hard_to_beat() -> None:
    plan = sordino.plan("dp-gd", examples=10_000, steps=30, epsilon=8.0, delta=1e-6)
    spectrum = Spectrum((1.0, 0.01), (4.0, 40.0))
    rate, loss = best_rate(plan.training, spectrum)
    assert plan.best_learning_rate(spectrum) == rate
    assert plan.with_update(learning_rate=rate).predicted_loss(spectrum) == loss
    # Descent is steady up to 2 / 1; with room for curvature that is not constant.
    assert 1.0 < rate < 2 / math.sqrt(2) + 1e-9
    tried = predicted_losses(plan.training, spectrum, np.geomspace(0.01, rate, 50))
    assert loss <= tried.min() * 1.001


@pytest.mark.parametrize("recipe", ["dp-nsgd", "dp-mu2", "dp-srgd", "dp-srm", "dp-memf", "rrpsgd"])
def test_every_kind_of_step_has_a_best_rate_inside_the_grid(recipe: str) -> None:
    plan = sordino.plan(recipe, examples=2000, batch_size=100, epochs=4, epsilon=1.0, delta=1e-5)
    rate = plan.best_learning_rate()
    losses = [plan.with_update(learning_rate=rate * f).predicted_loss() for f in (1 / 8, 1, 8)]
    assert losses[1] < losses[0]
    assert losses[1] < losses[2]


def test_pages_say_it_in_one_line() -> None:
    page = dict(sordino.plan("dp-memf", mechanism="blt", **RUN).lines())
    assert "above the optimum at learning rate 0.5" in page["predicted loss"]
    assert "logistic regression with 100 parameters" in page["predicted loss"]
    wild = sordino.plan("dp-gd", examples=100, steps=30, noise_multiplier=1.0, learning_rate=1e6)
    assert "the run diverges at learning rate 1e+06" in dict(wild.lines())["predicted loss"]
    assert wild.predicted_loss() > 1e10
    spectrum = Spectrum((0.1,), (1.0,))
    assert "your spectrum" in dict(wild.lines(spectrum))["predicted loss"]
    own = sordino.plan("dp-agd", examples=1000, steps=20, epsilon=1.0, delta=1e-6)
    assert dict(own.lines())["predicted loss"] == f"none: {own.why_unpredicted()}"
    assert own.predicted_loss() is None
    assert own.best_learning_rate() is None
    long = sordino.plan("dp-sgd", examples=5000, batch_size=1, steps=5000, noise_multiplier=1.0)
    assert "4,096 steps" in dict(long.lines())["predicted loss"]
    assert 0 < long.predicted_loss() < math.inf
    assert "predicted loss" not in dict(
        sordino.plan("sgd", examples=9, batch_size=3, steps=3).lines()
    )


# ---- spectra from public data


def test_the_spectrum_of_least_squares_is_exact() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(4000, 4)).astype(np.float32) * [1.0, 0.6, 0.4, 0.2]
    w = np.array([1.0, -2.0, 0.5, 3.0])
    public = PublicData(X, (X @ w).astype(np.float32))
    found = public_spectrum(LeastSquares(), np.zeros(4, np.float32), public)
    at_zero = public_eigenvalues(LeastSquares(), np.zeros(4, np.float32), public)
    assert found.eigenvalues == pytest.approx(np.sort(at_zero)[::-1], rel=1e-4)
    assert sum(found.distances2) == pytest.approx(
        w @ w, rel=0.02
    )  # the penalty shortens it a little
    with pytest.raises(TypeError):
        public_spectrum(LeastSquares(), np.zeros(4, np.float32), (X, X @ w))  # type: ignore[arg-type]


def test_separable_rows_have_a_finite_spectrum(tmp_path: Path) -> None:
    X = np.array([[1.0, 0.2], [-1.0, 0.1], [0.9, -0.3], [-0.8, 0.4]], np.float32)
    public = PublicData(X, (X[:, 0] > 0).astype(np.float32))
    found = public_spectrum(Logistic(), np.zeros(2, np.float32), public)
    assert 0 < sum(found.distances2) < 100
    found.save(tmp_path / "spectrum.json")
    assert Spectrum.load(tmp_path / "spectrum.json") == found


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": "sordino-plan"}',
        '{"format": "sordino-spectrum"}',
        '{"format": "sordino-spectrum", "eigenvalues": [1], "distances2": [1, 2]}',
        '{"format": "sordino-spectrum", "eigenvalues": [-1], "distances2": [1]}',
        '{"format": "sordino-spectrum", "eigenvalues": ["x"], "distances2": [1]}',
        '{"format": "sordino-spectrum", "eigenvalues": [0], "distances2": [1]}',
    ],
)
def test_other_files_are_no_spectrum(tmp_path: Path, content: str) -> None:
    path = tmp_path / "spectrum.json"
    path.write_text(content)
    with pytest.raises(SordinoError, match="spectrum"):
        Spectrum.load(path)
    with pytest.raises(SordinoError, match="cannot read"):
        Spectrum.load(tmp_path / "none.json")


def test_a_prediction_leaves_the_plan_as_it_was() -> None:
    plan = sordino.plan("dp-memf", mechanism="blt", **RUN)
    before = json.dumps(plan.to_json())
    plan.predicted_loss()
    assert json.dumps(plan.to_json()) == before
    with pytest.raises(SordinoError, match="radius2"):
        plan.predicted_loss([0.1], radius2=-1.0)
    assert plan.predicted_loss([0.1]) == plan.predicted_loss([0.1], radius2=400.0)

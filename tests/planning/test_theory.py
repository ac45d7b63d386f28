"""Theorems as an option of plans: settings, bounds on the page, refusals, and files."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
from typer.testing import CliRunner

import sordino
from sordino.app.cli._main import app
from sordino.parts.contributions import Lagged
from sordino.parts.schedules import best_dynamic_steps, best_uniform_steps
from sordino.planning import FACTS, RECIPES, THEOREMS, Plan, theory_defaults
from sordino.privacy import mu_from_epsilon_delta

A9A: dict[str, Any] = {"examples": 32561, "epsilon": 1.0, "delta": 1e-6}
SMOOTH = {"lipschitz": 1.0, "smoothness": 0.25, "gap": 0.69, "dimension": 123}
PL = {**SMOOTH, "curvature": 0.01}
BALL = {"lipschitz": 1.0, "smoothness": 0.25, "diameter": 4.0, "dimension": 123}
# Small enough for a test, where the paper's own number of steps is not.
CASES: dict[str, dict[str, Any]] = {
    "dp-gd": SMOOTH,
    "dp-gd-momentum": {**PL, "momentum": 0.5},
    "dp-psgd": {**PL, "batch_size": 1000, "steps": 20},
    "dp-srm": SMOOTH,
    "dp-nsgd": {**SMOOTH, "examples": 200},
    "dp-nsgd-sr": {**SMOOTH, "examples": 64, "dimension": 16, "epsilon": 1.0},
    "dp-mu2": {**BALL, "batch_size": 100},
    "dp-srgd": BALL,
    "dp-srg": BALL,
    "dp-nesterov": BALL,
}


def planned(recipe: str, **change: Any) -> Plan:
    return sordino.plan(recipe, settings="theory", **{**A9A, **CASES[recipe], **change})


def value(plan: Plan) -> float:
    bound = plan.bound()
    assert bound is not None
    return bound.value


def test_the_table() -> None:
    assert {theorem.recipe for theorem in THEOREMS} == set(CASES)
    for theorem in THEOREMS:
        assert theorem.recipe in RECIPES
        assert set(theorem.facts) <= set(FACTS)


@pytest.mark.filterwarnings("ignore:delta")
@pytest.mark.parametrize("recipe", CASES)
def test_plans_keep_their_facts(recipe: str) -> None:
    plan = planned(recipe)
    bound = plan.bound()
    assert bound is not None
    assert 0 < bound.value < math.inf
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.bound() == bound
    assert pickle.loads(pickle.dumps(plan)).bound() == bound
    lines = dict(plan.lines())
    assert lines["theory"] == bound.sentence()
    assert lines["it assumes"] == bound.assumes
    assert f"learning rate {plan.update.learning_rate:.3g} where" in lines["it prescribes"]
    # What it decides is an ordinary plan: without the facts it is the plan that always was.
    data = plan.to_json()
    del data["facts"]
    assert Plan.from_json(data).bound() is None
    assert Plan.from_json(data).hash != plan.hash


def test_plans_without_facts_are_written_as_they_were() -> None:
    plan = sordino.plan("dp-gd", steps=10, **A9A)
    assert "facts" not in plan.to_json()
    assert plan.bound() is None
    assert "theory" not in dict(plan.lines())


def test_settings_are_the_papers() -> None:
    nsgd = planned("dp-nsgd")
    printed = theory_defaults("dp-nsgd", examples=200, dimension=123, epsilon=1.0, delta=1e-6)
    assert nsgd.population.steps == printed["steps"]
    assert nsgd.population.batch_size == 1
    assert nsgd.population.sampling == "reshuffled"
    assert nsgd.update.momentum == 1 - printed["alpha"]
    assert nsgd.update.learning_rate == printed["learning_rate"]
    assert nsgd.update.output == "random"
    assert nsgd.mechanism.kind == "tree"
    srgd = planned("dp-srgd")
    facts = {"examples": 32561, "dimension": 123, "epsilon": 1.0, "delta": 1e-6}
    printed = theory_defaults("dp-srgd", **facts, lipschitz=1.0, smoothness=0.25, diameter=4.0)
    assert srgd.update.learning_rate == 1 / printed["beta"]
    assert (srgd.clip, srgd.update.radius, srgd.update.kappa) == (printed["clip"], 2.0, 0.5)
    srm = planned("dp-srm")
    assert srm.population.first_batch is not None
    assert srm.population.first_batch > srm.population.batch_size
    assert srm.update.optimizer == "adaptive"
    assert planned("dp-mu2").mechanism.kind == "cancelling"


def test_settings_of_acceleration_with_independent_gradients() -> None:
    """papers/03, 1.7: beta and the bound in closed form, and the batch size with the least one."""
    plan, mu = planned("dp-nesterov"), mu_from_epsilon_delta(1.0, 1e-6)
    T, B = plan.population.steps, plan.population.batch_size
    assert 32561 // T == B
    v = 1 / B + 123 / (B * mu) ** 2
    beta = 0.25 + math.sqrt(T * (T + 1) * (T + 2) * v / 12) / 4
    assert plan.update.learning_rate == pytest.approx(1 / beta)
    assert (plan.clip, plan.update.radius, plan.update.kappa) == (1.0, 2.0, 0.5)
    closed = 2 * 0.25 * 16 / (T * (T + 1)) + 2 * 4 * math.sqrt((T + 2) * v / (3 * T * (T + 1)))
    assert value(plan) == pytest.approx(closed, rel=1e-4)
    for steps in (round(0.8 * T), round(1.25 * T)):
        other = planned("dp-nesterov", steps=steps)
        assert other.population.batch_size == 32561 // steps
        assert value(other) > value(plan)
    for rate in (0.8 / beta, 1.25 / beta):
        assert value(planned("dp-nesterov", learning_rate=rate)) > value(plan)
    given = planned("dp-nesterov", batch_size=1000)
    assert (given.population.steps, given.population.batch_size) == (32, 1000)


def test_settings_of_recursion_without_acceleration() -> None:
    """papers/03, 1.8: the clip in closed form; the learning rate is near the one with the least bound."""
    plan, mu = planned("dp-srg"), mu_from_epsilon_delta(1.0, 1e-6)
    n, T, B = 32561, plan.population.steps, plan.population.batch_size
    assert (B, T) == (180, 180)
    assert (plan.update.average, plan.update.radius, plan.mechanism.kind) == (1.0, 2.0, "tree")
    moved = 0.25 * plan.update.learning_rate * T  # M eta T
    tails = math.sqrt(8 * T * math.log(2 * n) / B)
    tails += 8 / (B * mu) * (math.sqrt(123) + math.sqrt(2 * math.log(n * T)))
    assert plan.clip == pytest.approx((1 + moved) / (1 - moved / T * tails))
    assert value(planned("dp-srg", mechanism="blt")) < value(plan)
    for factor in (0.8, 1.25):
        rate = plan.update.learning_rate * factor
        moved = 0.25 * rate * T
        clip = (1 + moved) / (1 - moved / T * tails)
        assert value(planned("dp-srg", learning_rate=rate, clip=clip)) > value(plan)


def test_numbers_of_steps_that_are_out_of_reach() -> None:
    """The theorem's own number is said; with fewer steps eta and gamma are those of that number."""
    real = {**A9A, "lipschitz": 3.74, "smoothness": 3.5, "gap": 0.36, "dimension": 123}
    asked = "asks for 1,368,856,658 steps, out of reach of a run, which has at most 10,000,000"
    for steps in (None, "auto"):
        with pytest.raises(sordino.SordinoError, match=asked) as refused:
            sordino.plan("dp-nsgd-sr", settings="theory", steps=steps, **real)
        # papers/00, erratum 11: 0.49 G is left whatever T is, and sqrt(2 M gap) is 1.587
        assert "leaves 1.845, more than sqrt(2 x smoothness x gap) = 1.587" in str(refused.value)
    # no such sentence where what is left is not vacuous by itself
    with pytest.raises(sordino.SordinoError, match=r"give fewer steps to see the bound$"):
        sordino.plan("dp-nsgd-sr", settings="theory", **{**real, "gap": 2.0})
    with pytest.raises(sordino.SordinoError, match=r"Theorem 6 .* asks for .* steps, out of reach"):
        sordino.plan("dp-nsgd", settings="theory", **{**real, "examples": 200_000})


@pytest.mark.filterwarnings("ignore:delta")
def test_fewer_steps_than_theorem_9_asks_for() -> None:
    whole = planned("dp-nsgd-sr")
    T = whole.population.steps
    assert T > 5 * 64
    fewer = planned("dp-nsgd-sr", steps=300)
    assert fewer.update.learning_rate == pytest.approx(1 / math.sqrt(64 * 300))
    contribution = fewer.contribution
    assert isinstance(contribution, Lagged)
    assert contribution.gamma == pytest.approx(64 / math.sqrt(64 * 300))
    assert contribution.difference_clip == pytest.approx(0.25 * 64 / math.sqrt(64 * 300))
    assert planned("dp-nsgd-sr", epochs=5).update.learning_rate == pytest.approx(1 / 64 / 5**0.5)
    # gamma is at most 1/2, as with four epochs; more steps than asked for change nothing
    least = planned("dp-nsgd-sr", steps=100)
    assert least.update.learning_rate == pytest.approx(1 / 128)
    assert planned("dp-nsgd-sr", steps=T + 9).update == whole.update


def test_what_is_given_stays() -> None:
    plan = planned("dp-gd", steps=7, learning_rate=1.0)
    assert (plan.population.steps, plan.update.learning_rate) == (7, 1.0)
    assert planned("dp-gd", epochs=9).population.steps == 9


def test_auto_steps_have_the_least_bound() -> None:
    best = planned("dp-gd", steps="auto")
    T = best.population.steps
    around = [value(planned("dp-gd", steps=steps)) for steps in (T - 1, T + 1, T // 2, 2 * T)]
    assert value(best) <= min(around)
    assert value(best) <= value(planned("dp-gd"))
    mu = mu_from_epsilon_delta(1.0, 1e-6)
    assert pytest.approx(32561 * mu * math.sqrt(2 * 0.25 * 0.69 / 123), abs=1) == T
    # twice the noise, half the steps
    other = planned("dp-gd", steps="auto", adjacency="replace-one")
    assert other.population.steps == pytest.approx(T / 2, abs=1)


def test_auto_steps_of_paper_04() -> None:
    """gamma and alpha of the page at the exact mu: its best numbers of steps, and its errors."""
    gamma, mu = 1 - 0.01 / 0.25, mu_from_epsilon_delta(1.0, 1e-6)
    alpha = 123 / (2 * mu**2 * 0.25 * 32561**2 * 0.69)
    uniform = planned("dp-gd", curvature=0.01, schedule="uniform", steps="auto")
    horizon = best_uniform_steps(gamma, alpha)
    assert uniform.population.steps == horizon.steps
    assert value(uniform) == pytest.approx(0.69 * horizon.error, rel=1e-4)
    free = planned("dp-gd", curvature=0.01, steps="auto", **{"schedule.ratio_cap": None})
    horizon = best_dynamic_steps(gamma, alpha)
    assert free.population.steps == horizon.steps
    assert value(free) == pytest.approx(0.69 * horizon.error, rel=1e-4)
    capped = planned("dp-gd", curvature=0.01, steps="auto")
    assert value(free) < value(capped) < value(uniform)
    T = capped.population.steps
    for steps in (round(0.9 * T), round(1.1 * T)):
        assert value(planned("dp-gd", curvature=0.01, steps=steps)) >= value(capped)


@pytest.mark.parametrize("recipe", ["dp-gd-momentum", "dp-psgd"])
def test_auto_steps_of_momentum_and_of_batches(recipe: str) -> None:
    given = {"lipschitz": 0.1, "steps": "auto"}
    best = planned(recipe, **given)
    T = best.population.steps
    for steps in (round(0.8 * T), round(1.25 * T)):
        assert value(planned(recipe, **{**given, "steps": steps})) > value(best) * 0.999


def test_vacuous_bounds_say_so() -> None:
    plan = planned("dp-gd", epsilon=0.001, steps=300)
    bound = plan.bound()
    assert bound is not None
    assert bound.is_vacuous
    assert bound.known == pytest.approx(math.sqrt(2 * 0.25 * 0.69))
    assert "vacuous here: larger than sqrt(2 x smoothness x gap) = 0.5874" in str(plan)
    good = planned("dp-gd").bound()
    assert good is not None
    assert not good.is_vacuous
    assert "7% of sqrt" in good.sentence()
    # the smaller of the two things that are known
    steep = planned("dp-gd", lipschitz=0.5).bound()
    assert steep is not None
    assert (steep.known, steep.known_as) == (0.5, "the Lipschitz constant")


@pytest.mark.parametrize(
    ("recipe", "change", "message"),
    [
        ("dp-gd", {"clip": 0.5}, "clip 0.5 is below the Lipschitz constant 1"),
        ("dp-gd", {"learning_rate": 8.0}, "learning rate 8 is not below 2/smoothness = 8"),
        ("dp-gd", {"momentum": 0.5}, "about momentum=0, not 0.5"),
        ("dp-gd", {"output": "last"}, "about output='random', not 'last'"),
        ("dp-gd", {"lr_schedule": "linear"}, "lr_schedule='constant', not 'linear'"),
        ("dp-gd", {"radius": 1.0}, "radius=None, not 1.0"),
        ("dp-gd", {"curvature": 0.01, "average": 0.5}, "about average=0, not 0.5"),
        ("dp-gd", {"curvature": 0.3}, "the wrong way round"),
        ("dp-gd", {"curvature": 0.01, "gap": 1e-9}, "least at 0 steps"),
        ("dp-gd", {"diameter": 1.0}, "no place for 'diameter'"),
        ("dp-gd", {"gap": None}, "lacks 'gap' .first loss less the least one.; it needs lipschitz"),
        ("dp-gd", {"gap": -1.0}, "gap must be"),
        ("dp-gd", {"epsilon": None, "noise_multiplier": 3.0}, "give epsilon and delta"),
        ("dp-gd-momentum", {"learning_rate": 1.0}, "is above .* the largest at momentum 0.5"),
        ("dp-gd-momentum", {"optimizer": "sgd", "steps": 9}, "optimizer='bias-corrected'"),
        ("dp-psgd", {"batch_size": None}, "batch_size of your choice"),
        ("dp-srm", {"sampling": "fixed"}, "needs poisson or without-replacement"),
        ("dp-srm", {"difference_clip": 1e-3}, "differences are clipped"),
        ("dp-srm", {"learning_rate": 3.0}, "above 1/.2 smoothness. = 2"),
        ("dp-srm", {"output": "last"}, "about output='random', not 'last'"),
        ("dp-srm", {"gamma": 1.0}, "gamma below 1"),
        ("dp-nsgd", {"batch_size": 3}, "do not divide"),
        ("dp-nsgd", {"optimizer": "sgd"}, "optimizer='normalized'"),
        ("dp-nsgd-sr", {"difference_clip": 1e-4}, "differences are clipped"),
        ("dp-mu2", {"steps": 326}, "used once"),
        ("dp-mu2", {"radius": 3.0}, "a ball of diameter 4: radius=2"),
        ("dp-mu2", {"learning_rate": 1.0}, "not below 1/.2 smoothness"),
        ("dp-mu2", {"clip": 2.0}, "clip 2 is below 3"),
        ("dp-srgd", {"kappa": 1.0}, "kappa = 1/2"),
        ("dp-srgd", {"power": 2.0}, "power=1, not 2"),
        ("dp-srg", {"power": 2.0}, "power=1, not 2"),
        ("dp-srg", {"average": 0.5}, "about average=1, not 0.5"),
        ("dp-srg", {"clip": 1.1}, "too small for learning rate"),
        ("dp-srg", {"learning_rate": 4.0}, "not below 1/smoothness = 4"),
        ("dp-nesterov", {"power": 2.0}, "power=1, not 2"),
        ("dp-nesterov", {"kappa": 1.0}, "kappa = 1/2"),
        ("dp-nesterov", {"learning_rate": 4.0}, "not below 1/smoothness = 4"),
        ("dp-nesterov", {"sampling": "poisson"}, "used once"),
        ("dp-nesterov", {"clip": 0.5}, "clip 0.5 is below the Lipschitz constant 1"),
        ("dp-nesterov", {"steps": 40000}, "used once"),
        ("dp-srgd", {"learning_rate": 4.0}, "not below 1/smoothness = 4"),
        ("dp-srgd", {"clip": 3.0}, "contributions are clipped"),
    ],
)
@pytest.mark.filterwarnings("ignore:delta")
def test_conditions(recipe: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(sordino.SordinoError, match=message):
        planned(recipe, **change)


def test_who_asks_for_what_there_is_not() -> None:
    with pytest.raises(sordino.SordinoError, match="no theorem gives settings for dp-ftrl"):
        sordino.plan("dp-ftrl", settings="theory", batch_size=10, **A9A, **SMOOTH)
    with pytest.raises(sordino.SordinoError, match="did you mean 'theory'"):
        sordino.plan("dp-gd", settings="theroy", **A9A, **SMOOTH)
    with pytest.raises(sordino.SordinoError, match="add settings='theory'"):
        sordino.plan("dp-gd", steps="auto", **A9A)
    with pytest.raises(sordino.SordinoError, match="no option 'gap'"):
        sordino.plan("dp-gd", steps=10, gap=1.0, **A9A)


def test_changed_plans_do_not_keep_a_bound_that_is_gone() -> None:
    plan = planned("dp-gd").with_update(learning_rate=9.0)
    with pytest.raises(sordino.SordinoError, match="not below 2/smoothness"):
        plan.bound()
    assert dict(plan.lines())["theory"].startswith("no bound: Wang, Ye & Xu")
    less = planned("dp-gd").with_update(learning_rate=2.0)
    assert value(less) != value(planned("dp-gd"))


def test_damaged_facts() -> None:
    data = planned("dp-gd").to_json()
    for facts in ({"gap": 1.0}, {**SMOOTH, "gap": "a"}, {**SMOOTH, "colour": 1.0}, 3):
        with pytest.raises(sordino.SordinoError, match="the field 'facts' of this plan is damaged"):
            Plan.from_json({**data, "facts": facts})


def asked(*words: str) -> str:
    return CliRunner().invoke(app, ["plan", *words, *["--epsilon", "1", "--delta", "1e-6"]]).output


def test_the_command_line() -> None:
    facts = ["--lipschitz", "1", "--smoothness", ".25", "--gap", ".69", "--dimension", "123"]
    size = ["--examples", "32561"]
    said = asked("dp-gd", "--theory", *size, *facts, "--steps", "auto")
    best = planned("dp-gd", steps="auto")
    assert best.hash[:16] in said
    assert "which holds without training" in " ".join(said.split())
    assert "add --theory" in asked("dp-gd", *size, *facts, "--steps", "10")
    assert "lacks 'lipschitz'" in asked("dp-gd", "--theory", *size)
    assert "a whole number" in asked("dp-gd", *size, "--steps", "many")
    assert "leave --compare out" in asked("dp-gd", "--theory", "--compare", *size, *facts)
    recipes = CliRunner().invoke(app, ["recipes", "dp-gd"]).output
    assert "dimension, curvature" in " ".join(recipes.split())

"""Theorems as an option of plans: the settings they prescribe, and their bound at a plan's own noise.

    plan = sordino.plan("dp-gd", settings="theory", examples=32561, epsilon=1, delta=1e-6,
                        lipschitz=1, smoothness=0.25, gap=0.69, dimension=123)
    plan.bound()

Each is one entry of `THEOREMS`: the public facts about the loss that it needs, the options of `plan` that
follow from them, and the inequality of its proof (`_bounds`) at the plan's noise, which the exact
accounting makes smaller than the paper's. What is set otherwise keeps its bound as long as the
theorem's conditions hold; `Theorem.bound` refuses a plan that breaks one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import (
    SordinoError,
    nearest,
    require_choice,
    require_count,
    require_positive,
    shown,
)
from sordino.parts.contributions import Lagged, TwoClip
from sordino.parts.sampling import FIXED, LARGEST_STEPS, RESHUFFLED
from sordino.parts.schedules import SAFE_RATIO, allocate, best_dynamic_steps, best_uniform_steps
from sordino.planning import _bounds as bounds
from sordino.planning._bounds import FACTS, Asked, Facts, Theorem
from sordino.planning._one_pass import ONE_PASS
from sordino.planning._theory import AUTO, FACT_CHECKS, budget, prescribed, refuse_unless, some
from sordino.planning._training import Training
from sordino.privacy import POISSON, WITHOUT_REPLACEMENT

Array = NDArray[np.float64]

THEORY = "theory"


def theorem_for(recipe: str, given: Mapping[str, object]) -> Theorem:
    """The theorem about a recipe that has a place for these facts, all that it needs among them."""
    own = [theorem for theorem in THEOREMS if theorem.recipe == recipe]
    if not own:
        names = dict.fromkeys(theorem.recipe for theorem in THEOREMS)
        raise SordinoError(
            f"no theorem gives settings for {recipe}{nearest(recipe, names)}; there is one for "
            f"{', '.join(names)}"
        )
    fitting = [theorem for theorem in own if set(given) <= set(theorem.facts)]
    if not fitting:
        extra = next(fact for fact in given if fact not in own[-1].facts)
        raise SordinoError(
            f"{own[-1].name} has no place for {extra!r}; it needs {', '.join(own[-1].facts)}"
        )
    missing = [fact for fact in fitting[0].facts if fact not in given]
    if missing:
        raise SordinoError(
            f"{fitting[0].name} lacks {missing[0]!r} ({FACTS[missing[0]]}); it needs "
            f"{', '.join(fitting[0].facts)}"
        )
    return fitting[0]


def checked_facts(recipe: str, given: object) -> Facts:
    """Facts for the theorem about a recipe, as numbers that they can be."""
    if not isinstance(given, Mapping):
        raise SordinoError(f"facts are a table of names and numbers, got {shown(given)}")
    theorem = theorem_for(recipe, given)
    facts = {name: float(FACT_CHECKS[name](name, given[name])) for name in theorem.facts}
    if facts.get("curvature", 0.0) > facts["smoothness"]:
        raise SordinoError(
            f"curvature {facts['curvature']:g} is the least one and smoothness "
            f"{facts['smoothness']:g} the largest: they are the wrong way round"
        )
    return facts


def with_theory(recipe: str, settings: str | None, request: Asked) -> tuple[Facts, dict[str, Any]]:
    """The facts in a request, and the request with what the theorem prescribes; what was given stays.

    Args:
      settings: must be "theory".
      request: the arguments of `plan`, options and facts among them.
    """
    if settings is None:
        raise SordinoError(
            "steps='auto' takes the number of steps from a theorem: add settings='theory' and its "
            "facts (see docs/theory.md)"
        )
    require_choice("settings", settings, (THEORY,))
    facts = checked_facts(
        recipe, {n: v for n, v in request.items() if n in FACTS and v is not None}
    )
    rest = {name: value for name, value in request.items() if name not in FACTS}
    if rest["epsilon"] is None or rest["delta"] is None:
        raise SordinoError("settings of a theorem follow from a budget: give epsilon and delta")
    require_count("examples", rest["examples"])
    theorem = theorem_for(recipe, facts)
    chosen = theorem.settings({**rest, **facts})
    if rest["steps"] == AUTO:
        rest["steps"] = None
    if rest["epochs"] is not None or rest["steps"] is not None:
        chosen.pop("steps")
    elif chosen["steps"] > LARGEST_STEPS:
        raise SordinoError(_out_of_reach(theorem.name, chosen["steps"]))
    return facts, {**chosen, **{name: v for name, v in rest.items() if v is not None}}


def _out_of_reach(theorem: str, steps: int) -> str:
    return (
        f"{theorem} asks for {steps:,} steps, out of reach of a run, which has at most "
        f"{LARGEST_STEPS:,}; give fewer steps to see the bound"
    )


# ---- what holds without training -------------------------------------------------------------------


def _known_norm(facts: Facts) -> tuple[float, str]:
    """Of a gradient: G, and at the start sqrt(2 M gap) for any smooth loss."""
    start = math.sqrt(2 * facts["smoothness"] * facts["gap"])
    if start < facts["lipschitz"]:
        return start, "sqrt(2 x smoothness x gap)"
    return facts["lipschitz"], "the Lipschitz constant"


def _known_gap(facts: Facts) -> tuple[float, str]:
    return facts["gap"], "the gap at the start"


# ---- gradient descent on all examples --------------------------------------------------------------


def _descent_settings(asked: Asked) -> dict[str, Any]:
    L, gap, G, d = (asked[n] for n in ("smoothness", "gap", "lipschitz", "dimension"))
    facts = ("delta", "lipschitz", "smoothness", "gap")
    settings = {**prescribed(asked, "dp-gd", *facts), "output": "random"}
    if asked["steps"] == AUTO:
        # Of 2 L gap / T + d G^2 T / (n mu)^2: the paper gives the order, this is the least bound.
        best = asked["examples"] * budget(asked) * math.sqrt(2 * L * gap / d) / G
        low = max(math.floor(best), 1)
        settings["steps"] = low if best**2 <= low * (low + 1) else low + 1
    return settings


def _descent(theorem: Theorem, facts: Facts, run: Training) -> float:
    _plain(theorem, run, facts["smoothness"], output="random")
    rate, known = run.update.learning_rate, some(facts, "smoothness", "gap", "dimension")
    return bounds.descent_norm(run.noise_per_step(), rate=rate, **known)


def _plain(theorem: Theorem, run: Training, smoothness: float, **wanted: object) -> None:
    """Demand plain gradient steps below 2/M."""
    theorem.demand_update(run, optimizer="sgd", momentum=0, **wanted)
    rate = run.update.learning_rate
    theorem.demand(
        rate * smoothness < 2,
        f"learning rate {rate:g} is not below 2/smoothness = {2 / smoothness:g}",
    )


def _relative_noise(asked: Asked) -> float:
    """``alpha = d G^2 / (2 R M N^2 gap)`` of papers/04, at the exact R = mu^2."""
    G, M, gap, d = (asked[n] for n in ("lipschitz", "smoothness", "gap", "dimension"))
    return float(d * (G / (budget(asked) * asked["examples"])) ** 2 / (2 * M * gap))


def _contraction(asked: Asked) -> float:
    """``gamma = 1 - curvature/smoothness``, below 1 and above 0."""
    return float(np.clip(1 - asked["curvature"] / asked["smoothness"], 1e-12, 1 - 1e-12))


def _pl_settings(asked: Asked) -> dict[str, Any]:
    gamma, M = _contraction(asked), asked["smoothness"]
    settings = {"learning_rate": 1 / M, "clip": asked["lipschitz"]}
    cap = asked.get("schedule.ratio_cap", SAFE_RATIO)
    if asked.get("schedule") is None:
        settings |= {"schedule": "gd-pl", "schedule.gamma": gamma, "schedule.ratio_cap": cap}
    steps = _pl_steps(gamma, _relative_noise(asked), asked.get("schedule"), cap)
    _worthwhile(asked, steps, _GD_PL)
    return {**settings, "steps": steps}


def _pl_steps(gamma: float, alpha: float, schedule: object, cap: float | None) -> int:
    """The number of steps with the least bound: uniform noise, Eq. 7's, or Eq. 7's with a ratio cap."""
    if schedule == "uniform":
        return best_uniform_steps(gamma, alpha).steps
    best = best_dynamic_steps(gamma, alpha).steps
    if best == 0 or cap is None or schedule is not None:
        return best

    def error(T: int) -> float:
        log_q = math.log(gamma) * np.arange(T - 1.0, -1.0, -1.0)
        variance = allocate(log_q, 1.0, ratio_cap=cap) ** 2
        return gamma**T + alpha * float(np.exp(log_q) @ variance)

    # Between those of uniform noise and of noise without a cap.
    tried = np.unique(np.geomspace(1, best, 200).astype(np.int64))
    return int(min(tried, key=lambda T: error(int(T))))


def _worthwhile(asked: Asked, steps: int, theorem: str) -> None:
    refuse_unless(
        steps > 0 or asked["steps"] not in (None, AUTO) or asked["epochs"] is not None,
        theorem,
        "its bound is least at 0 steps, so training cannot be shown to help; say how many steps to "
        "see the bound",
    )


def _pl(theorem: Theorem, facts: Facts, run: Training) -> float:
    # Any step sizes below the first will do.
    _plain(theorem, run, facts["smoothness"], output="last", lr_schedule=run.update.lr_schedule)
    rates = run.update.learning_rates(run.population.steps).astype(np.float64)
    known = some(facts, "smoothness", "curvature", "gap")
    return bounds.contracted_gap(_variance(facts, run), rates, **known)


def _variance(facts: Facts, run: Training) -> Array:
    """Of the gradient estimates: noise, and which examples were drawn (steps,)."""
    drawn = 0.0 if run.population.is_full_batch else _drawn(run, facts["lipschitz"])
    return facts["dimension"] * run.noise_per_step() ** 2 + drawn


def _drawn(run: Training, norm: float, batch_size: int | None = None) -> float:
    """Variance of the mean of a secret random batch of vectors of this norm.

    ``(1 - q) norm^2 / b`` under Poisson sampling; less without replacement.
    """
    b = batch_size or run.population.batch_size
    return norm**2 / b * (1 - b / run.population.examples)


def _sampled_settings(asked: Asked) -> dict[str, Any]:
    """papers/04, Theorems 4.7 and 4.8: as on all examples, with the variance of the batches."""
    n, b = asked["examples"], asked["batch_size"]
    if b is None:
        raise SordinoError(f"{_PSGD} is for a batch_size of your choice; give one")
    rate, gamma = require_count("batch_size", b) / n, _contraction(asked)
    # The choice of T alone uses the central limit theorem of accounting; noise is calibrated exactly.
    T = np.unique(np.geomspace(1, 1e6, 4000).astype(np.int64)).astype(np.float64)
    sigma2 = 1 / np.log1p((budget(asked) / rate) ** 2 / T)
    G, M = asked["lipschitz"], asked["smoothness"]
    variance = asked["dimension"] * (G / b) ** 2 * sigma2 + (1 - rate) * G**2 / b
    kept = gamma**T
    error = kept * asked["gap"] + variance / (2 * M) * (1 - kept) / (1 - gamma)
    best = int(T[np.argmin(error)]) if error.min() < asked["gap"] else 0
    _worthwhile(asked, best, _PSGD)
    # The variance of the batches outweighs what a schedule saves.
    return {"steps": best, "learning_rate": 1 / M, "clip": G, "schedule": "uniform"}


def _momentum_settings(asked: Asked) -> dict[str, Any]:
    beta, M = asked.get("momentum"), asked["smoothness"]
    beta = 0.9 if beta is None else beta
    kappa = M / asked["curvature"]
    eta_0 = bounds.momentum_limit(beta, kappa)
    gamma, alpha = 1 - eta_0 / (2 * kappa), _relative_noise(asked)
    # gamma^T + eta_0 alpha T A_T with A_T = gamma A_T-1 + (noise of the average); it is at least
    # (1-beta)/(1+beta), so beyond this T the noise alone is above 1.
    most = int(min((1 + beta) / (1 - beta) / (eta_0 * alpha) + 1, 1e6))
    T = np.arange(1, most + 1)
    log_A = np.logaddexp.accumulate(
        np.log(bounds.averaged_noise(beta, most)) - T * math.log(gamma)
    ) + T * math.log(gamma)
    error = gamma**T + eta_0 * alpha * T * np.exp(log_A)
    best = int(T[np.argmin(error)]) if error.min() < 1 else 0
    _worthwhile(asked, best, _MOMENTUM)
    return {"steps": best, "learning_rate": eta_0 / (2 * M), "clip": asked["lipschitz"]}


def _momentum(theorem: Theorem, facts: Facts, run: Training) -> float:
    update, M = run.update, facts["smoothness"]
    theorem.demand_update(run, optimizer="bias-corrected", output="last")
    most = bounds.momentum_limit(update.momentum, M / facts["curvature"]) / (2 * M)
    theorem.demand(
        update.learning_rate <= most * (1 + 1e-6),
        f"learning rate {update.learning_rate:g} is above {most:.4g}, the largest at momentum "
        f"{update.momentum:g}",
    )
    numbers = {"beta": update.momentum, "rate": update.learning_rate}
    known = some(facts, "curvature", "gap")
    return bounds.momentum_gap(_variance(facts, run), **numbers, **known)


# ---- recursive momentum, normalized steps ----------------------------------------------------------


def _srm_settings(asked: Asked) -> dict[str, Any]:
    found = prescribed(asked, "dp-srm", "delta", "lipschitz", "smoothness", "gap")
    found["first_batch"] = math.ceil(found.pop("first_batch_size"))
    return {**found, "batch_size": math.ceil(found["batch_size"]), "output": "random"}


def _srm(theorem: Theorem, facts: Facts, run: Training) -> float:
    update, population, L = run.update, run.population, facts["smoothness"]
    contribution = run.contribution
    if not isinstance(contribution, TwoClip):
        raise SordinoError(f"{theorem.name} does not hold here: it has gamma below 1")
    theorem.demand(
        population.sampling in (POISSON, WITHOUT_REPLACEMENT),
        "its batches are drawn at random: sampling='poisson'",
    )
    theorem.demand_update(run, optimizer="adaptive", output="random")
    theorem.demand(
        update.learning_rate * L <= 0.5 * (1 + 1e-9),
        f"learning rate {update.learning_rate:g} is above 1/(2 smoothness) = {0.5 / L:g}",
    )
    assert update.step_length is not None
    moved = L * update.step_length
    theorem.demand(
        contribution.difference_clip >= moved * (1 - 1e-9),
        f"difference_clip {contribution.difference_clip:g} is below smoothness x step_length = "
        f"{moved:g}, so that differences are clipped",
    )
    G, gamma = facts["lipschitz"], contribution.gamma
    first = population.first_batch or population.batch_size
    noise = run.noise_per_step().copy()
    noise[0] *= population.batch_size / first
    return bounds.recursive_norm(
        noise,
        gamma=gamma,
        step_length=update.step_length,
        sampling=(_drawn(run, G, first), _drawn(run, (1 - gamma) * moved + gamma * G)),
        **some(facts, "smoothness", "gap", "dimension"),
    )


def _averaged(found: dict[str, Any]) -> dict[str, Any]:
    """``alpha`` as momentum, and what both algorithms of papers/00 share."""
    found |= {"batch_size": int(found["batch_size"]), "momentum": 1 - found.pop("alpha")}
    return {**found, "mechanism": "tree", "output": "random"}


def _nsgd_settings(asked: Asked) -> dict[str, Any]:
    found = _averaged(prescribed(asked, "dp-nsgd", "delta"))
    return {**found, "clip": asked["lipschitz"], "sampling": RESHUFFLED}


def _nsgd_sr_settings(asked: Asked) -> dict[str, Any]:
    """Of Theorem 9; with fewer steps than it asks for, eta and gamma are those of that number."""
    found = _averaged(prescribed(asked, "dp-nsgd-sr", "lipschitz", "smoothness"))
    N = asked["examples"]
    if asked["epochs"] is not None:
        T = require_positive("epochs", asked["epochs"]) * -(-N // (asked["batch_size"] or 1))
    elif asked["steps"] in (None, AUTO):
        if found["steps"] > LARGEST_STEPS:
            said = _out_of_reach("Theorem 9 of Tran & Cutkosky (2022)", found["steps"])
            raise SordinoError(f"{said}{_left_by_one_order(asked, found['momentum'])}")
        return found
    else:
        T = require_count("steps", asked["steps"])
    if found["steps"] <= T:
        return found
    eta = 1 / math.sqrt(N * max(T, 4 * N))  # gamma is at most 1/2
    clip = asked["smoothness"] * eta * N
    return {**found, "learning_rate": eta, "gamma": eta * N, "difference_clip": clip}


def _left_by_one_order(asked: Asked, beta: float) -> str:
    """What no number of steps changes, if that is vacuous already."""
    left = bounds.one_order_norm(beta, asked["examples"], asked["lipschitz"])
    known, why = _known_norm(asked)
    if left < known:
        return ""
    return (
        f". The bound is vacuous for any number: one order for all epochs leaves {left:.4g}, more "
        f"than {why} = {known:.4g}, which holds without training"
    )


def _nsgd(theorem: Theorem, facts: Facts, run: Training) -> float:
    update, population, contribution = run.update, run.population, run.contribution
    theorem.demand_update(run, optimizer="normalized", output="random")
    theorem.demand(population.examples > 1, "one example has no order")
    theorem.demand(
        population.examples % population.batch_size == 0,
        f"batches of {population.batch_size:,} do not divide {population.examples:,} examples, so "
        "that the last of an epoch weighs less",
    )
    B = population.steps_per_epoch
    if isinstance(contribution, Lagged):
        moved = facts["smoothness"] * update.learning_rate * B
        least = min(contribution.difference_clip, getattr(contribution, "residual_clip", math.inf))
        theorem.demand(
            least >= moved * (1 - 1e-9),
            f"a clip of {least:g} is below smoothness x learning_rate x {B} = {moved:g}, so that "
            "differences are clipped",
        )
    return bounds.normalized_norm(
        run.noise_in(update.workload(contribution)),
        beta=update.momentum,
        rate=update.learning_rate,
        per_epoch=B,
        batch_size=population.batch_size,
        fresh=population.sampling != FIXED,
        **facts,
    )


# ---- the table -------------------------------------------------------------------------------------

# Facts, what is bounded, and for which losses.
_SMOOTH_NORM = (
    ("lipschitz", "smoothness", "gap", "dimension"),
    "expected gradient norm of the returned model",
    "every example's loss is lipschitz and smooth with these constants, convex or not",
)
_PL_GAP = (
    ("lipschitz", "smoothness", "gap", "dimension", "curvature"),
    "expected excess training loss",
    "a smooth loss that is strongly convex, or PL, and no gradient on the path is clipped",
)
_GD = "Wang, Ye & Xu (2017), gradient descent"
_GD_PL = "paper 04, Eq. 7 with the corrected number of steps"
_MOMENTUM = "paper 04, Theorem 4.4 corrected"
_PSGD = "paper 04, Theorem 4.7 corrected"
_SRM = "Theorem 4.4 of Wang et al. (2023)"
_THEOREM_6 = "Theorem 6 of Tran & Cutkosky (2022)"
_THEOREM_9 = "Tran & Cutkosky (2022) for one fixed order, at the settings of Theorem 9"

# Of several for one recipe, the first that has a place for all given facts is meant.
THEOREMS: tuple[Theorem, ...] = (
    Theorem("dp-gd", _GD, *_SMOOTH_NORM, _descent_settings, _descent, _known_norm),
    Theorem("dp-gd", _GD_PL, *_PL_GAP, _pl_settings, _pl, _known_gap),
    Theorem("dp-gd-momentum", _MOMENTUM, *_PL_GAP, _momentum_settings, _momentum, _known_gap),
    Theorem("dp-psgd", _PSGD, *_PL_GAP, _sampled_settings, _pl, _known_gap),
    Theorem("dp-srm", _SRM, *_SMOOTH_NORM, _srm_settings, _srm, _known_norm),
    Theorem("dp-nsgd", _THEOREM_6, *_SMOOTH_NORM, _nsgd_settings, _nsgd, _known_norm),
    Theorem("dp-nsgd-sr", _THEOREM_9, *_SMOOTH_NORM, _nsgd_sr_settings, _nsgd, _known_norm),
    *ONE_PASS,
)

"""Theorems about convex losses on the population, in one pass over the data (papers/02 and papers/03)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from sordino._base.errors import SordinoError, require_count
from sordino.parts.contributions import Weighted
from sordino.parts.mechanisms import LONGEST_MATRIX, Workload
from sordino.parts.sampling import FIXED
from sordino.planning import _bounds as bounds
from sordino.planning._bounds import Asked, Facts, Theorem
from sordino.planning._theory import AUTO, budget, prescribed, some
from sordino.planning._training import Training

Array = NDArray[np.float64]

# Facts, what is bounded, and for which losses.
_CONVEX_GAP = (
    ("lipschitz", "smoothness", "diameter", "dimension"),
    "expected excess loss on the population",
    "independent examples, convex lipschitz smooth losses, and a start inside the ball",
)
_APPENDIX_F = "Appendix F of Reshef & Levy (2025)"
_THEOREM_4_10 = "Theorem 4.10 of Choquette-Choo et al. (2024), corrected"
_THEOREM_4_11 = "Theorem 4.11 of Choquette-Choo et al. (2024), corrected"
_SECTION_4_3 = "paper 03, 1.8, on section 4.3 of Choquette-Choo et al. (2024)"


def _known_diameter(facts: Facts) -> tuple[float, str]:
    return facts["lipschitz"] * facts["diameter"], "lipschitz x diameter"


def _mu2_settings(asked: Asked) -> dict[str, Any]:
    if asked["batch_size"] is None:
        raise SordinoError(f"{_APPENDIX_F} is for a batch_size of your choice; give one")
    facts = ("batch_size", "delta", "lipschitz", "smoothness", "diameter")
    return {**prescribed(asked, "dp-mu2", *facts), "mechanism": "cancelling"}


def _srgd_settings(asked: Asked) -> dict[str, Any]:
    found = prescribed(asked, "dp-srgd", "delta", "lipschitz", "smoothness", "diameter")
    rate = 1 / found.pop("beta")
    return {
        **found,
        "batch_size": int(found["batch_size"]),
        "learning_rate": rate,
        "mechanism": "tree",
    }


def _nesterov_settings(asked: Asked) -> dict[str, Any]:
    """papers/03, 1.7: the batches of one pass with the least bound, unless given, and its beta."""
    n, steps, b = asked["examples"], asked["steps"], asked["batch_size"]
    G, d = asked["lipschitz"], asked["dimension"]
    if b is not None:
        T = np.array([_pass(n, b)])
    elif steps in (None, AUTO):
        T = np.unique(np.geomspace(1, n, 4000).astype(np.int64))
    else:
        T = np.array([min(require_count("steps", steps), n)])
    B = n // T if b is None else np.array([b])
    variance = G**2 / B + d * (G / (B * budget(asked))) ** 2
    beta, bound = bounds.best_coupling(T, variance, **some(asked, "smoothness", "diameter"))
    best = int(np.argmin(bound))
    settings = {"steps": int(T[best]), "batch_size": int(B[best]), "clip": G}
    return {**settings, "learning_rate": 1 / float(beta[best]), "radius": asked["diameter"] / 2}


def _srg_settings(asked: Asked) -> dict[str, Any]:
    """papers/03, 1.8: the learning rate with the least bound at the noise of a tree, and its clip."""
    n, G, M, D = (asked[name] for name in ("examples", "lipschitz", "smoothness", "diameter"))
    B = math.isqrt(n) if asked["batch_size"] is None else asked["batch_size"]
    T = _pass(n, B)
    node = math.sqrt(T.bit_length()) / (B * budget(asked))
    nodes = np.array([t.bit_count() for t in range(1, T + 1)])
    prefix, predictable = node * np.sqrt(nodes), node * np.sqrt(nodes - 1)
    # What sampling and noise add to the sums, relative to the clip, but for a chance of 2/n.
    tail = math.sqrt(asked["dimension"]) + math.sqrt(2 * math.log(n * T))
    tail = math.sqrt(8 * T * math.log(2 * n) / B) + math.sqrt(T.bit_length()) * node * tail
    most = min(T / tail, T) * (1 - 1e-6)

    def clip(moved: float) -> float:
        return float(G * (1 + moved) / (1 - moved * tail / T))

    def error(log_moved: float) -> float:
        moved = math.exp(log_moved)  # M eta T
        rate, scale = moved / (M * T), clip(moved)
        value = bounds.recursive_gap(
            prefix * scale,
            predictable * scale,
            rate=rate,
            clip=scale,
            batch_size=B,
            **some(asked, *_CONVEX_GAP[0]),
        )
        return math.log(value)

    span = (math.log(most) - 12, math.log(most))
    best = math.exp(minimize_scalar(error, span, bounds=span, method="bounded").x)
    settings = {"steps": T, "batch_size": B, "clip": clip(best), "mechanism": "tree"}
    return {**settings, "learning_rate": best / (M * T), "radius": D / 2, "average": 1.0}


def _pass(examples: int, batch_size: int) -> int:
    """Steps of one pass."""
    return max(examples // require_count("batch_size", batch_size), 1)


def _one_pass(theorem: Theorem, facts: Facts, run: Training, clip: float, **wanted: object) -> None:
    """Demand fresh examples, a ball, and noise of one size."""
    population, update, D = run.population, run.update, facts["diameter"]
    theorem.demand(
        population.sampling == FIXED
        and population.steps * population.batch_size <= population.examples,
        "it is for one pass, in which every example is used once",
    )
    theorem.demand(
        update.radius is not None and update.radius <= D / 2 * (1 + 1e-9),
        f"its iterates stay in a ball of diameter {D:g}: radius={D / 2:g}",
    )
    theorem.demand_update(run, **{"output": "last", "radius": update.radius, **wanted})
    theorem.demand(
        run.clip >= clip * (1 - 1e-9),
        f"clip {run.clip:g} is below {clip:g}, so that contributions are clipped",
    )
    theorem.demand(
        run.schedule.relative_noise(population.steps) is None, "its noise is the same in every step"
    )


def _noise_of_sums(run: Training) -> tuple[Array, Array]:
    """Of the sums of the means, per coordinate, and what of it earlier releases determine."""
    scale = run.noise_multiplier * run.clip / run.divisor
    if run.population.steps > LONGEST_MATRIX:
        prefix = run.noise_in(Workload.prefix())
        return prefix, prefix
    rows = scale * np.cumsum(run.mechanism.noising_matrix(), axis=0)
    prefix = np.linalg.norm(rows, axis=1)
    # Row t draws anew with its diagonal entry; the rest is of earlier draws.
    return prefix, np.sqrt(np.maximum(prefix**2 - np.diag(rows) ** 2, 0))


def _mu2(theorem: Theorem, facts: Facts, run: Training) -> float:
    G, M, D = (facts[name] for name in ("lipschitz", "smoothness", "diameter"))
    _one_pass(theorem, facts, run, G + 2 * M * D)
    prefix, predictable = _noise_of_sums(run)
    rate, T = run.update.learning_rate, run.population.steps
    value = bounds.anytime_gap(
        prefix,
        predictable,
        rate=rate,
        batch_size=run.population.batch_size,
        **facts,
    )
    theorem.demand(
        math.isfinite(value),
        f"learning rate {rate:g} is not below 1/(2 smoothness (T+1)) = {1 / (2 * M * (T + 1)):.4g}",
    )
    return value


def _coupled(theorem: Theorem, run: Training) -> None:
    """Demand linear coupling as the proof has it."""
    theorem.demand(
        run.update.kappa == 0.5, f"its proof is for kappa = 1/2, not {run.update.kappa:g}"
    )
    _linear_weights(theorem, run)


def _linear_weights(theorem: Theorem, run: Training) -> None:
    contribution = run.contribution
    power = contribution.power if isinstance(contribution, Weighted) else 0.0
    theorem.demand(power == 1, f"its weights are t+1: power=1, not {power:g}")


def _srgd(theorem: Theorem, facts: Facts, run: Training) -> float:
    G, M, D = (facts[name] for name in ("lipschitz", "smoothness", "diameter"))
    _one_pass(theorem, facts, run, G + 2 * M * D)
    prefix, predictable = _noise_of_sums(run)
    _coupled(theorem, run)
    beta = 1 / run.update.learning_rate
    theorem.demand(beta > M, f"learning rate {1 / beta:g} is not below 1/smoothness = {1 / M:g}")
    value = bounds.coupled_gap(
        prefix,
        predictable,
        beta=beta,
        clip=run.clip,
        batch_size=run.population.batch_size,
        **facts,
    )
    return _unclipped(theorem, value, run)


def _nesterov(theorem: Theorem, facts: Facts, run: Training) -> float:
    _one_pass(theorem, facts, run, facts["lipschitz"])
    _coupled(theorem, run)
    rate, M = run.update.learning_rate, facts["smoothness"]
    theorem.demand(rate * M < 1, f"learning rate {rate:g} is not below 1/smoothness = {1 / M:g}")
    noise, b = run.noise_per_step(), run.population.batch_size
    return bounds.independent_gap(noise, beta=1 / rate, batch_size=b, **facts)


def _srg(theorem: Theorem, facts: Facts, run: Training) -> float:
    _one_pass(theorem, facts, run, facts["lipschitz"], average=1)
    prefix, predictable = _noise_of_sums(run)
    _linear_weights(theorem, run)
    rate, M = run.update.learning_rate, facts["smoothness"]
    theorem.demand(rate * M < 1, f"learning rate {rate:g} is not below 1/smoothness = {1 / M:g}")
    value = bounds.recursive_gap(
        prefix,
        predictable,
        rate=rate,
        clip=run.clip,
        batch_size=run.population.batch_size,
        **facts,
    )
    return _unclipped(theorem, value, run)


def _unclipped(theorem: Theorem, value: float, run: Training) -> float:
    """`value`, which is not finite where clips bind."""
    theorem.demand(
        math.isfinite(value),
        f"clip {run.clip:g} is too small for learning rate {run.update.learning_rate:g}, so that "
        "contributions are clipped",
    )
    return value


ONE_PASS: tuple[Theorem, ...] = (
    Theorem("dp-mu2", _APPENDIX_F, *_CONVEX_GAP, _mu2_settings, _mu2, _known_diameter),
    Theorem("dp-srgd", _THEOREM_4_10, *_CONVEX_GAP, _srgd_settings, _srgd, _known_diameter),
    Theorem("dp-srg", _SECTION_4_3, *_CONVEX_GAP, _srg_settings, _srg, _known_diameter),
    Theorem(
        "dp-nesterov", _THEOREM_4_11, *_CONVEX_GAP, _nesterov_settings, _nesterov, _known_diameter
    ),
)

"""Settings that the papers' theorems state their rates for, by recipe.

>>> theory_defaults("dp-gd", examples=32561, dimension=123, epsilon=0.2, delta=1e-5,
...                 lipschitz=1.0, smoothness=3.502, gap=0.3589)["steps"]
195.0
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sordino._base.errors import (
    SordinoError,
    nearest,
    require_count,
    require_fraction,
    require_positive,
)
from sordino.privacy import Adjacency, mu_from_epsilon_delta

# The number of steps with the least bound.
AUTO = "auto"
_THEOREM_4_10 = "Theorem 4.10 of Choquette-Choo et al. (2024)"


def refuse_unless(holds: bool, theorem: str, condition: str) -> None:
    """Refuse a theorem outside its conditions."""
    if not holds:
        raise SordinoError(f"{theorem} does not hold here: {condition}")


def _dp_nsgd(*, examples: int, dimension: int, epsilon: float, delta: float) -> dict[str, float]:
    """Theorem 6: steps, learning rate and averaging weight of DP-NSGD, one example per step.

    ``T = eps N^2 / (log2 T sqrt(d ln(1/delta)))`` (solved for T), ``eta = 1/sqrt(N T)``,
    ``alpha = eps N / (T log2 T sqrt(d ln(1/delta))) = 1/N``; momentum is ``1 - alpha``.
    """
    N = examples
    scale = epsilon * N**2 / math.sqrt(dimension * -math.log(delta))
    refuse_unless(
        scale >= 2,
        "Theorem 6 of Tran & Cutkosky (2022)",
        f"epsilon N^2 / sqrt(d ln(1/delta)) = {scale:.3g} leaves no steps to take",
    )
    # T log2 T = scale: Newton's method on a convex increasing function, from above.
    T = scale
    for _ in range(100):
        T -= (T * math.log2(T) - scale) / (math.log2(T) + 1 / math.log(2))
    return {
        "steps": float(math.ceil(T)),
        "batch_size": 1.0,
        "alpha": scale / (N * T * math.log2(T)),
        "learning_rate": 1 / math.sqrt(N * T),
    }


def _dp_nsgd_sr(
    *, examples: int, dimension: int, epsilon: float, lipschitz: float, smoothness: float
) -> dict[str, float]:
    """Theorem 9: settings of the sensitivity-reduced algorithm, one example per step.

    Its rate has no proof (papers/00, erratum 11): Lemma 17 needs one order for all epochs, Lemma 11 an
    order that is drawn anew in each.

    ``T = N^(7/3) eps^(4/3) / d^(2/3)``, ``alpha = N^(3/4) eps / (T^(3/4) sqrt(d)) = 1/N``,
    ``eta = 1/sqrt(N T)``, ``gamma = eta N`` (at most 1/2). ``difference_clip = L eta N`` never binds,
    because steps have length eta.
    """
    N, d = examples, dimension
    T = N ** (7 / 3) * epsilon ** (4 / 3) / d ** (2 / 3)
    refuse_unless(
        T >= 4 * N,
        "Theorem 9 of Tran & Cutkosky (2022)",
        f"gamma = eta N is above 1/2, because T = {T:.3g} steps are less than four epochs",
    )
    eta = 1 / math.sqrt(N * T)
    return {
        "steps": float(math.ceil(T)),
        "batch_size": 1.0,
        "alpha": N**0.75 * epsilon / (T**0.75 * math.sqrt(d)),
        "learning_rate": eta,
        "gamma": eta * N,
        "clip": lipschitz,
        "difference_clip": smoothness * eta * N,
    }


def _dp_srm(
    *,
    examples: int,
    dimension: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    smoothness: float,
    gap: float,
) -> dict[str, float]:
    """Theorem 4.4 and appendix B.2: settings of DP-SRM; `gap` is ``F(theta_0) - min F``.

    ``zeta = sqrt(G) (L gap d ln(1/delta))^(1/4) / sqrt(n eps)``, ``T = floor(4 L gap / zeta^2) + 1``,
    ``gamma = sqrt(2) zeta``, ``b = G^2 / zeta``, ``b0 = G^2 / (zeta^2 L gap)``; steps of
    ``min(zeta / (L ||v||), 1 / (2 L))``, which keep differences below the clip zeta. Batch sizes are
    as the formulas give them, not rounded.
    """
    G, L, descent = lipschitz, smoothness, smoothness * gap
    zeta = math.sqrt(G) * (descent * dimension * -math.log(delta)) ** 0.25
    zeta /= math.sqrt(examples * epsilon)
    gamma = math.sqrt(2) * zeta
    refuse_unless(
        gamma <= 1, "Theorem 4.4 of Wang et al.", f"gamma = sqrt(2) zeta = {gamma:.3g} is above 1"
    )
    return {
        "steps": float(math.floor(4 * descent / zeta**2) + 1),
        "batch_size": G**2 / zeta,
        "first_batch_size": G**2 / (zeta**2 * descent),
        "gamma": gamma,
        "clip": G,
        "difference_clip": zeta,
        "step_length": zeta / L,
        "learning_rate": 1 / (2 * L),
    }


def _dp_gd(
    *,
    examples: int,
    dimension: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    smoothness: float,
    gap: float,
) -> dict[str, float]:
    """DP-GD of Wang, Ye & Xu 2017: ``eta = 1/L``, ``T = n eps sqrt(L gap) / (G sqrt(d ln(1/delta)))``.

    The paper gives the order of T; the constant here is 1.
    """
    steps = examples * epsilon * math.sqrt(smoothness * gap)
    steps /= lipschitz * math.sqrt(dimension * -math.log(delta))
    return {"steps": float(math.ceil(steps)), "learning_rate": 1 / smoothness, "clip": lipschitz}


def _dp_mu2(
    *,
    examples: int,
    batch_size: int,
    dimension: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    smoothness: float,
    diameter: float,
) -> dict[str, float]:
    """Appendix F for one data set: T = n/m steps that use every example once.

    The clip is ``S = G + 2 L D``, the ball's radius D/2, and the learning rate the appendix's at the
    rho of (epsilon, delta) under replace-one, converted exactly.
    """
    n, m, L = examples, batch_size, smoothness
    refuse_unless(m <= n, "Appendix F of Reshef & Levy (2025)", f"a batch of {m} needs {m} rows")
    S = lipschitz + 2 * L * diameter
    T = n // m
    rho = mu_from_epsilon_delta(epsilon, delta)
    rate = min(rho * diameter * m / (2 * S * T * math.sqrt(dimension)), 1 / (4 * L * T))
    return {"steps": float(T), "learning_rate": rate, "clip": S, "radius": diameter / 2}


def _dp_srgd(
    *,
    examples: int,
    dimension: int,
    epsilon: float,
    delta: float,
    lipschitz: float,
    smoothness: float,
    diameter: float,
) -> dict[str, float]:
    """Theorem 4.10: settings of Accelerated-DP-SRGD with ``eta_t = t + 1``, one epoch.

    ``B = floor(sqrt(n))``, or less where the noise asks for it (with the 1/M that is missing in
    print), ``T = floor(n/B)``, ``beta = M + (8 L + 16 M D) n^1.5 / (D B^2)``, ``zeta = 4 L + 8 M D``.
    """
    n, d, M, D = examples, dimension, smoothness, diameter
    zeta = 4 * lipschitz + 8 * M * D
    B = math.isqrt(n)
    while (most := _largest_batch(n, d, epsilon, delta, n // B, zeta / 4, M * D)) < B:
        B = math.floor(most)
        refuse_unless(
            B >= 1,
            _THEOREM_4_10,
            f"its largest batch is {most:.3g} here: too many dimensions for {n:,} examples at "
            f"epsilon {epsilon:g}",
        )
    T = n // B
    beta = M + 2 * zeta * n**1.5 / (D * B**2)
    refuse_unless(beta >= 2 * M * T, _THEOREM_4_10, f"beta {beta:g} is below 2 M T = {2 * M * T:g}")
    return {"steps": float(T), "batch_size": float(B), "beta": beta, "clip": zeta, "radius": D / 2}


def _largest_batch(
    n: int, d: int, epsilon: float, delta: float, T: int, scale: float, smooth_span: float
) -> float:
    """``(L + 2MD) n^1.5 eps / (2 sqrt(2) M D sqrt(d) log2(T)^1.5 sqrt(ln(4T/delta) ln(2.5/delta)))``."""
    logs = math.log2(max(T, 2)) ** 3 * math.log(4 * T / delta) * math.log(2.5 / delta)
    return scale * n**1.5 * epsilon / (2 * math.sqrt(2 * d * logs) * smooth_span)


# What each fact must be; theorems get facts that are.
FACT_CHECKS: Mapping[str, Callable[[str, Any], float]] = MappingProxyType(
    dict.fromkeys(("examples", "dimension", "batch_size"), require_count)
    | dict.fromkeys(
        ("epsilon", "lipschitz", "smoothness", "curvature", "diameter", "gap"), require_positive
    )
    | {"delta": require_fraction}
)
# Hyper-parameters of the papers' theorems, by recipe; the facts they need are the arguments.
_THEORY: Mapping[str, Callable[..., dict[str, float]]] = MappingProxyType(
    {
        "dp-nsgd": _dp_nsgd,
        "dp-nsgd-sr": _dp_nsgd_sr,
        "dp-srm": _dp_srm,
        "dp-gd": _dp_gd,
        "dp-mu2": _dp_mu2,
        "dp-srgd": _dp_srgd,
    }
)


def needed_facts(name: str) -> tuple[str, ...]:
    """The facts that `theory_defaults` needs for the recipe `name`, in order."""
    if name not in _THEORY:
        raise SordinoError(
            f"no theory gives defaults for the recipe {name!r}{nearest(str(name), _THEORY)}"
        )
    return tuple(inspect.signature(_THEORY[name]).parameters)


def theory_defaults(name: str, **facts: float) -> Mapping[str, float]:
    """The hyper-parameters that the paper behind recipe `name` states its rate for.

    Facts are public: `examples` n, `dimension` d, `epsilon`, `delta`, `lipschitz` (bound of a
    gradient's norm), `smoothness` (of the loss), `diameter` (of the constraint set), `gap` (of the
    first loss to the least) and `batch_size`; `needed_facts` tells which a recipe needs.
    """
    needed = needed_facts(name)
    wrong = [fact for fact in needed if fact not in facts]
    wrong += [fact for fact in facts if fact not in needed]
    if wrong:
        kind = "lack" if wrong[0] in needed else "have no place for"
        raise SordinoError(
            f"the theory defaults of {name} {kind} {wrong[0]!r}; they need {', '.join(needed)}"
        )
    return _THEORY[name](**{fact: FACT_CHECKS[fact](fact, facts[fact]) for fact in needed})


def prescribed(asked: Mapping[str, Any], recipe: str, *facts: str) -> dict[str, Any]:
    """The paper's settings, with whole numbers of steps."""
    known = {name: asked[name] for name in ("examples", "dimension", "epsilon", *facts)}
    found = dict(theory_defaults(recipe, **known))
    return {**found, "steps": int(found["steps"])}


def budget(asked: Mapping[str, Any]) -> float:
    """mu of the budget for a contribution bound of one clip."""
    mu = mu_from_epsilon_delta(asked["epsilon"], asked["delta"])
    return mu / 2 if asked["adjacency"] == Adjacency.REPLACE_ONE else mu


def some(facts: Mapping[str, float], *names: str) -> dict[str, float]:
    return {name: facts[name] for name in names}

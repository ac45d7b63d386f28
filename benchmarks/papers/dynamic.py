r""" "On Dynamic Noise Influence in Differential Private Learning": its budgets and step counts.

The budget of a schedule is ``R = sum_t 1/sigma_t^2``, sigma_t the noise on the sum over the clip: the
run is sqrt(R)-GDP under zero-out. Three conversions give R for (epsilon, delta), each larger than the
one before:

* Bun & Steinke: ``rho = eps^2 / (sqrt(L + eps) + sqrt(L))^2``, ``R = 2 rho``, ``L = ln(1/delta)``. The
  paper prints the other root of the same equation, 415 times this at (4, 1e-8), which is no privacy at
  all; it cannot be asked for here;
* Canonne, Kamath & Steinke: the best order of the same zCDP guarantee;
* exact: R = mu^2.

For random batches the paper charges ``p^2 / sigma^2`` a step, which is no bound; that reference is
checked against the privacy-loss distribution and refused where it promises too much.
"""

from __future__ import annotations

import math

from benchmarks.papers.base import PrintedNoise, require_condition
from sordino import SordinoError
from sordino._base.errors import require_count, require_positive
from sordino.parts.schedules import dynamic_error
from sordino.privacy import (
    POISSON,
    SampledRelease,
    calibrate_noise,
    composed_epsilon,
    epsilon_from_zcdp,
    mu_from_epsilon_delta,
    zcdp_from_epsilon_delta,
)

SECTION_4_3 = "the PSGD cost p^2/sigma^2"
EQUATION_7 = "Equation 7"


def bun_steinke_budget(epsilon: float, delta: float) -> float:
    """R = 2 rho by Bun & Steinke's conversion with the right sign: what the experiments used."""
    return 2 * zcdp_from_epsilon_delta(epsilon, delta)


def canonne_budget(epsilon: float, delta: float) -> float:
    """R = 2 rho by Canonne, Kamath & Steinke's conversion: the best that zCDP allows."""
    low, high = zcdp_from_epsilon_delta(epsilon, delta), exact_budget(epsilon, delta) / 2
    for _ in range(60):
        middle = (low + high) / 2
        if epsilon_from_zcdp(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return 2 * low


def exact_budget(epsilon: float, delta: float) -> float:
    """R = mu^2 of the exact conversion."""
    return mu_from_epsilon_delta(epsilon, delta) ** 2


def psgd_noise(*, epsilon: float, delta: float, rate: float, steps: int) -> PrintedNoise:
    """Uniform noise ``p sqrt(T/R)`` for batches at rate p, where it does keep its promise.

    R is Bun & Steinke's. The cost ``p^2/sigma^2`` ignores that it is convex in ``1/sigma^2``: at
    p = 0.01 and T = 1000 a claimed epsilon of 4 is really 19. So the epsilon of Poisson batches is
    computed (add-remove, privacy-loss distribution) and a broken promise is an error.
    """
    T = require_count("steps", steps)
    p = require_positive("rate", rate, maximum=1.0)
    noise = _psgd_noise_unchecked(epsilon, delta, p, T)
    part = SampledRelease(noise, 1.0, p, T, POISSON, "add-remove")
    true = composed_epsilon((part,), delta)
    require_condition(
        true <= epsilon,
        SECTION_4_3,
        f"at noise {noise:.4g} the true epsilon is {true:.4g} and the claimed one {epsilon:g}",
    )
    return PrintedNoise(
        SECTION_4_3, noise, "the sum over the clip", noise, "add-remove", {"true epsilon": true}
    )


def _psgd_noise_unchecked(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """``p sqrt(T/R)`` whether or not it is private: never to be used as noise."""
    return rate * math.sqrt(steps / bun_steinke_budget(epsilon, delta))


def psgd_exact(*, epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The noise Poisson batches do need, add-remove, by their privacy-loss distribution."""
    return calibrate_noise(
        lambda std: SampledRelease(std, 1.0, rate, steps, POISSON, "add-remove"), epsilon, delta
    )


def equation_7_steps(*, kappa: float, alpha: float) -> int:
    """The printed ``T = ceil(2 kappa ln(1 + 1/(kappa alpha)))``; refused where not training is better.

    `alpha` is ``D G^2 / (2 R M N^2 (f(theta_1) - f*))``. T is not the minimiser of the bound that it
    is derived from, which is `sordino.parts.schedules._bounds.real_best_steps` at ``gamma = 1 - 1/kappa``.
    """
    require_positive("alpha", alpha)
    if not (kappa > 1 and math.isfinite(kappa)):
        raise SordinoError(f"the condition number kappa must be a number above 1, got {kappa!r}")
    T = math.ceil(2 * kappa * math.log1p(1 / (kappa * alpha)))
    risk = dynamic_error(T, 1 - 1 / kappa, alpha)
    require_condition(
        risk <= 1,
        EQUATION_7,
        f"after its {T:,} steps the bound is {risk:.3g} times what it is before the first",
    )
    return T

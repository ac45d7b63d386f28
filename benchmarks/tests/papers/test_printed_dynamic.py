"""Budgets and steps of "On Dynamic Noise Influence": papers/04 errata a, b, f, k, oracles 1, 2, 4."""

from __future__ import annotations

import math

import pytest
from benchmarks.papers import dynamic

from sordino._base.errors import SordinoError
from sordino.parts.schedules._bounds import dynamic_error, real_best_steps
from sordino.privacy._gdp import epsilon_from_mu


@pytest.mark.parametrize(
    ("epsilon", "delta", "bun", "canonne", "exact"),
    [
        (4, 1e-8, 0.39270371, 2 * 0.232594311, 0.513439),
        (1, 1e-5, 0.0416398767, 0.0611131904, 0.0718514047),
        (8, 1e-5, 2.098272, 2.459429, 2.775658),
        (2, 1e-6, 0.135147763, 0.176305377, 0.201004039),
        (0.5, 1e-6, 0.00888768832, 0.0132830487, 0.0154023362),
    ],
)
def test_budgets(epsilon: float, delta: float, bun: float, canonne: float, exact: float) -> None:
    assert dynamic.bun_steinke_budget(epsilon, delta) == pytest.approx(bun, rel=1e-6)
    assert dynamic.canonne_budget(epsilon, delta) == pytest.approx(canonne, rel=3e-6)
    assert dynamic.exact_budget(epsilon, delta) == pytest.approx(exact, rel=2e-6)


def test_the_printed_sign_is_not_producible() -> None:
    """Errata a and b: the other root is 81.49 (R = 466.6 as printed), truly epsilon 152 (354)."""
    log = math.log(1e8)
    printed = 4 + 2 * log + 2 * math.sqrt(log * (4 + log))
    assert printed == pytest.approx(81.49, abs=6e-3)
    assert epsilon_from_mu(math.sqrt(2 * printed), 1e-8) == pytest.approx(152.3, abs=0.06)
    lost_bracket = 8 + 4 * log + 4 * math.sqrt(log) * (4 + log)
    assert lost_bracket == pytest.approx(466.6, abs=0.06)
    assert epsilon_from_mu(math.sqrt(lost_bracket), 1e-8) == pytest.approx(353.6, abs=0.06)
    for budget in (dynamic.bun_steinke_budget, dynamic.canonne_budget, dynamic.exact_budget):
        assert budget(4, 1e-8) < 0.52
        assert epsilon_from_mu(math.sqrt(budget(4, 1e-8)), 1e-8) <= 4
    assert epsilon_from_mu(math.sqrt(dynamic.bun_steinke_budget(4, 1e-8)), 1e-8) == pytest.approx(
        3.456514812, rel=1e-6
    )
    # 2 rho is below eps^2 / ln(1/delta), not above
    assert dynamic.bun_steinke_budget(4, 1e-8) < 16 / log == pytest.approx(0.8686, abs=5e-5)


def test_the_cost_of_random_batches_is_no_bound() -> None:
    """Erratum f: a claimed epsilon of 4 is really 18.98, or 4.53, or by luck 3.94."""
    case = {"epsilon": 4.0, "delta": 1e-8}
    assert dynamic._psgd_noise_unchecked(4.0, 1e-8, 0.01, 1000) == pytest.approx(0.505, abs=5e-4)
    with pytest.raises(SordinoError, match=r"true epsilon is 18\.98"):
        dynamic.psgd_noise(**case, rate=0.01, steps=1000)
    with pytest.raises(SordinoError, match=r"true epsilon is 4\.52"):
        dynamic.psgd_noise(**case, rate=0.1, steps=100)
    lucky = dynamic.psgd_noise(**case, rate=0.01, steps=10_000)
    assert lucky.details["true epsilon"] == pytest.approx(3.95, abs=0.02)
    assert lucky.noise == pytest.approx(0.01 * math.sqrt(10_000 / 0.39270371))


@pytest.mark.slow
def test_the_noise_random_batches_do_need() -> None:
    noise = dynamic.psgd_exact(epsilon=4.0, delta=1e-8, rate=0.01, steps=1000)
    assert noise == pytest.approx(0.857, abs=1e-3)


def test_the_printed_number_of_steps() -> None:
    """Erratum k, kappa = 10, alpha = 1e-4: 139 steps instead of 62.8, ERUB .0379 instead of .0366."""
    gamma, alpha = 0.9, 1e-4
    printed, best = dynamic.equation_7_steps(kappa=10, alpha=alpha), real_best_steps(gamma, alpha)
    assert printed == 139
    assert best == pytest.approx(62.796442, abs=5e-7)
    assert dynamic_error(printed, gamma, alpha) == pytest.approx(0.03792396, abs=6e-9)
    assert dynamic_error(best, gamma, alpha) == pytest.approx(0.0365844214, rel=1e-8)


def test_equation_7_can_be_far_worse_than_not_training() -> None:
    """Erratum k: kappa = 100, alpha = 1e-3: 480 steps to 33 times the start, 5 steps to .975."""
    gamma, alpha = 0.99, 1e-3
    assert dynamic_error(480, gamma, alpha) == pytest.approx(33, abs=0.6)
    assert round(real_best_steps(gamma, alpha)) == 5
    assert dynamic_error(5, gamma, alpha) == pytest.approx(0.975, abs=6e-4)
    with pytest.raises(SordinoError, match="480 steps"):
        dynamic.equation_7_steps(kappa=100, alpha=alpha)
    for bad in (1.0, 0.5, math.inf, math.nan):
        with pytest.raises(SordinoError, match="kappa"):
            dynamic.equation_7_steps(kappa=bad, alpha=alpha)

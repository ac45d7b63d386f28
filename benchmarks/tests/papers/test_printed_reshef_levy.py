"""Reshef & Levy's printed noise: papers/02 sections 1.2-1.4, 1.8, 2.1, 2.5, E6 and oracle 8."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.papers import reshef_levy as rl

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import epsilon_from_mu, epsilon_from_zcdp
from sordino.privacy._participation import SinglePass
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import MatrixStrategy, ToeplitzStrategy

BOUND = rl.correction_bound(lipschitz=math.sqrt(2 * 785), smoothness=785 / 2, diameter=0.1)
MNIST = {"clients": 100, "dimension": 7850, "smoothness": 785 / 2, "diameter": 0.1}


def schedule(K: int, T: int, rho: float = 1.0) -> np.ndarray:
    return np.array(
        [
            rl.partial_participation(rho=rho, bound=1.0, rounds=T, participation=k).noise
            for k in range(1, K + 1)
        ]
    )


def test_the_bound_of_the_experiments() -> None:
    assert abs(BOUND - 118.1232) < 5e-5


@pytest.mark.parametrize(
    ("rho", "m", "T", "eta", "first", "last"),
    [
        (4, 50, 1200, 1.98e-8, 168, 4115),
        (8, 50, 1200, 3.96e-8, 84, 2057),
        (12, 50, 1200, 5.94e-8, 56, 1372),
        (8, 20, 3000, 6.00e-9, 88.6, 2171),
        (8, 80, 750, 1.04e-7, 81.5, 1997),
    ],
)
def test_values_of_section_1_8(
    rho: float, m: int, T: int, eta: float, first: float, last: float
) -> None:
    rate = rl.partial_learning_rate(rho=rho, bound=BOUND, rounds=T, cohort=m, **MNIST)
    assert rate == pytest.approx(eta, rel=5e-3)
    for count, std in ((1, first), (600, last)):
        printed = rl.partial_participation(rho=rho, bound=BOUND, rounds=T, participation=count)
        assert printed.std == pytest.approx(std, rel=7e-4)
        assert printed.noise == pytest.approx(printed.std / BOUND)


def test_oracle_8() -> None:
    assert math.fsum(1 / k for k in range(1, 601)) == pytest.approx(6.974978, abs=5e-7)
    details = rl.partial_participation(rho=8, bound=BOUND, rounds=1200, participation=1).details
    assert details["1+ln(T)"] == pytest.approx(8.090077, abs=5e-7)
    assert rl.scheduled_cost(rho=1, rounds=1200, messages=600) == pytest.approx(0.928528, abs=5e-7)
    assert rl.scheduled_cost(rho=1, rounds=3000, messages=600) == pytest.approx(0.88, abs=5e-3)
    assert BOUND * rl.leaky_noise(rho=8, messages=600) == pytest.approx(345.16, abs=6e-3)
    assert BOUND * rl.uniform_noise(rho=8, messages=600) == pytest.approx(723.35, abs=6e-3)


def test_costs_are_those_of_the_sensitivity_formula() -> None:
    """Messages ``s + y_k - y_{k-1}``: running sums with independent noise, each example once."""
    K, T, rho = 40, 90, 2.0
    std = schedule(K, T, rho)
    result = sensitivity(
        MatrixStrategy.from_release(np.tril(np.ones((K, K))), std**2), SinglePass(K)
    )
    assert 2 * result.value == pytest.approx(rl.scheduled_cost(rho=rho, rounds=T, messages=K))
    # leaky: decay^lag instead of ones, valid for any number of messages
    decay = 1 - rl.LEAK / K
    leaky = sensitivity(ToeplitzStrategy(decay ** np.arange(4 * K), 4 * K), SinglePass(4 * K))
    spent = 2 * leaky.value / rl.leaky_noise(rho=rho, messages=K)
    assert spent <= rho
    assert spent == pytest.approx(rho, rel=1e-3)


@pytest.mark.parametrize(("T", "ratio"), [(3000, 4.51), (1200, 4.05), (750, 3.82)])
def test_variance_of_the_schedule_against_constant_noise(T: int, ratio: float) -> None:
    """Section 2.5; with H_K in place of 1 + ln T it would be 3.49."""
    K = 600
    variance = (schedule(K, T) ** 2).sum() / (K * rl.uniform_noise(rho=1, messages=K) ** 2)
    assert variance == pytest.approx(ratio, abs=6e-3)
    harmonic = math.fsum(1 / k for k in range(1, K + 1))
    assert variance * harmonic / (1 + math.log(T)) == pytest.approx(3.49, abs=6e-3)


@pytest.mark.parametrize(("K", "ratio"), [(300, 0.88), (600, 0.74), (1200, 0.82), (2400, 1.13)])
def test_noise_in_w_of_leaky_cancellation(K: int, ratio: float) -> None:
    """Section 2.5: leaky noise planned for 600 messages against constant noise for the true K."""
    planned = rl.leaky_noise(rho=1, messages=600)
    leaky = rl.iterate_noise(np.full(K, planned), 1 - rl.LEAK / 600)
    constant = rl.iterate_noise(np.full(K, rl.uniform_noise(rho=1, messages=K)), 1.0)
    assert (leaky / constant) ** 2 == pytest.approx(ratio, abs=0.01)


def test_noise_in_w_against_matrices() -> None:
    K, decay = 12, 0.7
    std = np.linspace(1, 2, K)
    A = np.tril(np.ones((K, K)))
    W = A @ A @ (np.eye(K) - decay * np.eye(K, k=-1)) * std
    assert rl.iterate_noise(std, decay) == pytest.approx(np.sqrt((W**2).sum() / K))


def test_full_participation_and_trusted_server() -> None:
    case = {"rho": 8.0, "bound": BOUND, "rounds": 1200}
    untrusted = rl.full_participation(**case, clients=100, trusted=False)
    trusted = rl.full_participation(**case, clients=100, trusted=True)
    assert untrusted.std**2 == pytest.approx(4 * BOUND**2 * 1200 / 64)
    assert trusted.std**2 == pytest.approx(4 * BOUND**2 * 1200 / (64 * 100**2))
    assert untrusted.noise == trusted.noise == pytest.approx(2 * math.sqrt(1200) / 8)
    partial = rl.trusted_server(**case, cohort=100)
    assert partial.std == pytest.approx(trusted.std)
    assert rl.trusted_server(**case, cohort=50).std == pytest.approx(2 * trusted.std)
    rest = {name: value for name, value in MNIST.items() if name != "clients"}
    m, T, D, L = 50, 1200, 0.1, 785 / 2
    assert rl.trusted_learning_rate(**case, cohort=m, **rest) == pytest.approx(
        min(8 * D * m / (2 * BOUND * T * math.sqrt(7850)), 1 / (4 * L * T))
    )
    assert rl.full_untrusted_learning_rate(**case, clients=100, **rest) == pytest.approx(
        min(8 * D * 10 / (2 * BOUND * T * math.sqrt(7850)), 1 / (4 * L * T))
    )


def test_outside_its_conditions_it_raises() -> None:
    with pytest.raises(SordinoError, match="cannot take part 1,201 times"):
        rl.partial_participation(rho=8, bound=BOUND, rounds=1200, participation=1201)
    with pytest.raises(SordinoError, match="cannot take part"):
        rl.scheduled_cost(rho=8, rounds=10, messages=11)
    with pytest.raises(SordinoError, match="larger than all"):
        rl.partial_learning_rate(rho=8, bound=BOUND, rounds=10, cohort=101, **MNIST)
    with pytest.raises(SordinoError, match="cannot reach"):
        rl.partial_learning_rate(rho=8, bound=BOUND, rounds=10, cohort=9, **MNIST)
    with pytest.raises(SordinoError):
        rl.partial_participation(rho=0.0, bound=BOUND, rounds=10, participation=1)


@pytest.mark.parametrize(
    ("rho", "exact", "lemma"),
    [(0.5, 1.99, 2.52), (1, 4.38, 5.30), (2, 10.0, 11.6), (4, 24.4, 27.2), (8, 65.3, 70.4)],
)
def test_what_rho_means_in_epsilon(rho: float, exact: float, lemma: float) -> None:
    assert epsilon_from_mu(rho, 1e-5) == pytest.approx(exact, rel=5e-3)
    assert epsilon_from_zcdp(rho**2 / 2, 1e-5, tight=False) == pytest.approx(lemma, rel=5e-3)

"""Influence sequences: papers/04, section 1.3, oracles 6 to 8 and erratum h."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.parts.schedules._allocate import optimal_cost, predicted_cost
from sordino.parts.schedules._influence import (
    expinfl,
    gd_pl,
    geometric,
    momentum_bound,
    momentum_quadratic,
    momexpinfl,
    quadratic,
    uniform,
)
from tests.support.momentum_bound import (
    largest_eta_0,
    largest_eta_0_at,
    momentum_gamma,
    momentum_K,
    momentum_risk_bound,
    momentum_zeta,
)
from tests.support.schedules import momentum_two_piece, quadratic_bias, that

# ---- gradient descent -------------------------------------------------------------------------------


def test_gd_pl_at_the_usual_rate_is_geometric():
    np.testing.assert_allclose(
        gd_pl(mu=1.0, M=10.0, eta=0.1, T=40) - 2 * math.log(0.1), geometric(0.9, 40), atol=1e-12
    )


def test_gd_pl_is_its_definition_for_changing_rates():
    eta, mu, M = np.array([0.1, 0.02, 0.05, 0.15]), 1.0, 10.0
    c = 1 - 2 * mu * eta * (1 - M * eta / 2)
    expected = [eta[t] ** 2 * np.prod(c[t + 1 :]) for t in range(4)]
    np.testing.assert_allclose(np.exp(gd_pl(mu, M, eta, 4)), expected)


def test_influence_that_vanishes_stays_finite():
    assert np.isfinite(gd_pl(mu=1.0, M=1.0, eta=1.0, T=5)).all()
    assert np.isfinite(quadratic([1.0, 1.0], 1.0, 5)).all()


@pytest.mark.parametrize("eta", [0.0, -0.1, 0.21, [0.1, 0.1, np.nan]])
def test_gd_pl_refuses_rates_out_of_range(eta):
    with pytest.raises(SordinoError, match="at most 2/M"):
        gd_pl(mu=1.0, M=10.0, eta=eta, T=3)


def simulated(eigenvalues, eta, beta, T, noise, start):
    """Last iterate of bias-corrected momentum on 1/2 sum lam theta^2 with given gradient noise."""
    lam = np.asarray(eigenvalues)
    theta, v = np.array(start, float), np.zeros_like(lam)
    for t in range(1, T + 1):
        v = beta * v + (1 - beta) * (lam * theta + noise[t - 1])
        theta = theta - eta * v / (1 - beta**t)
    return theta


def test_momentum_recursion_oracle():
    m = [
        -simulated([1e-300], 1.0, 0.9, t, np.array([[1.0], [2.0], [3.0]]), [0.0])[0]
        for t in (1, 2, 3)
    ]
    np.testing.assert_allclose(np.diff([0.0, *m]), [1, 1.5263157895, 2.0701107011], rtol=1e-9)


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_quadratics_respond_as_simulated(beta):
    lam, eta, T = np.array([0.05, 0.5, 1.7]), 0.3, 12
    found = momentum_quadratic(lam, eta, beta, T)
    still = np.zeros((T, 3))
    np.testing.assert_allclose(found.bias, simulated(lam, eta, beta, T, still, np.ones(3)))
    for t in range(T):
        kick = still.copy()
        kick[t] = 1.0
        np.testing.assert_allclose(
            found.impulse[t], simulated(lam, eta, beta, T, kick, np.zeros(3)), atol=1e-14
        )
    np.testing.assert_allclose(np.exp(found.log_q), 0.5 * found.impulse**2 @ lam)
    if beta == 0:
        np.testing.assert_allclose(found.log_q, quadratic(lam, eta, T))
        np.testing.assert_allclose(found.bias, quadratic_bias(lam, eta, T))


def test_momentum_quadratic_oracle():
    found = momentum_quadratic([0.5], eta=0.3, beta=0.9, T=5)
    expected = [-0.48039688, -0.33183915, -0.23331981, -0.14997179, -0.07325828]
    np.testing.assert_allclose(found.impulse[:, 0], expected, rtol=1e-6)
    assert found.bias[0] == pytest.approx(0.3656070446, rel=1e-9)


def test_long_runs_do_not_underflow():
    log_q = momentum_quadratic([1.0, 0.8], eta=0.9, beta=0.3, T=5000).log_q
    assert log_q[0] < -2000
    assert np.isfinite(log_q).all()
    assert np.isfinite(quadratic([1.0, 0.8], 0.9, 5000)).all()


def test_quadratic_does_not_depend_on_its_blocks():
    lam = np.geomspace(0.01, 1, 4000)
    whole = quadratic(lam, 1.0, 2100)  # more than one block
    np.testing.assert_allclose(whole[-100:], quadratic(lam, 1.0, 100), rtol=1e-12)


@pytest.mark.parametrize("eigenvalues", [[], [0.0], [-1.0, 1.0], [np.inf], [[1.0]]])
def test_bad_eigenvalues(eigenvalues):
    with pytest.raises(SordinoError, match="eigenvalues"):
        quadratic(eigenvalues, 0.1, 3)


# ---- momentum bound ---------------------------------------------------------------------------------


def test_momentum_bound_oracle():
    expected = [0.84181179, 0.45124717, 0.36498866, 0.28444444]
    np.testing.assert_allclose(np.exp(momentum_bound(0.5, 0.9, 4)), expected, rtol=1e-6)
    np.testing.assert_allclose(momentum_bound(0.0, 0.9, 4), geometric(0.9, 4))


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 0.99), st.floats(0.5, 1.0), st.integers(1, 200))
def test_momentum_bound_is_its_recursion(beta, gamma, T):
    s = np.arange(1, T + 1)
    w = gamma ** (T - s) * ((1 - beta) / (1 - beta**s)) ** 2
    q = w.copy()
    for t in range(T - 2, -1, -1):
        q[t] = w[t] + beta**2 * q[t + 1]
    np.testing.assert_allclose(np.exp(momentum_bound(beta, gamma, T)), q, rtol=1e-9)


@pytest.mark.parametrize(
    ("beta", "gamma", "expected"),
    [
        (0.9, 0.99, 230),
        (0.9, 0.999, 2302),
        (0.9, 0.95, 45),
        (0.9, 0.9, 21),
        (0.5, 0.9, 7),
        (0.5, 0.6, 1),
        (0.1, 0.95, 3),
        (0.99, 0.999, 4603),
        (0.9, 0.5, 1),
        (0.0, 0.9, 1),
    ],
)
def test_that_oracle(beta, gamma, expected):
    assert that(beta, gamma) == expected


@settings(deadline=None)
@given(st.floats(0.0, 0.95), st.floats(0.3, 0.99))
def test_that_is_the_last_of_a_scan(beta, gamma):
    t = np.arange(1.0, 2000)
    holds = gamma ** (t - 1) * (1 - beta**t) >= (1 - beta) * (1 - 1e-13)
    assert that(beta, gamma) == int(t[holds][-1])


def excess_of(shape, log_q):
    """Cost of noise that would be right for another influence, relative to the best."""
    sigma = np.exp(-(shape - shape.max()) / 4)
    R = float((sigma**-2.0).sum())
    return predicted_cost(log_q, sigma) / optimal_cost(log_q, R)


@pytest.mark.parametrize(
    ("T", "flat", "two_piece", "plain"), [(400, 1.28, 1.65, 1.03), (200, 1.08, 1.28, None)]
)
def test_theorem_4_6_is_worse_than_uniform(T, flat, two_piece, plain):
    log_q = momentum_bound(0.9, 0.99, T)
    assert excess_of(uniform(T), log_q) == pytest.approx(flat, abs=0.006)
    assert excess_of(momentum_two_piece(0.9, 0.99, T), log_q) == pytest.approx(two_piece, abs=0.006)
    if plain:
        assert excess_of(geometric(0.99, T), log_q) == pytest.approx(plain, abs=0.006)


def test_momentum_influence_falls_rises_and_falls_again():
    q = np.exp(momentum_bound(0.9, 0.99, 200))
    assert q[[0, 25, 149, 199]] == pytest.approx([0.196, 0.0105, 0.033, 0.010], abs=5e-4)
    assert int(np.argmin(q[:150])) == 25
    assert int(np.argmax(q[26:])) == 185 - 26


def test_two_piece_needs_beta_below_gamma():
    with pytest.raises(SordinoError, match="beta < gamma"):
        momentum_two_piece(0.9, 0.9, 10)


# ---- the corrected theorem ---------------------------------------------------------------------------


def test_learning_rate_limit_oracle():
    assert largest_eta_0_at(0.9, 0.99) == pytest.approx(0.00301284, rel=1e-5)
    printed = 8 / (1 + math.sqrt(1 + 64 * momentum_K(0.9, 0.99)))
    assert printed == pytest.approx(0.00301398, rel=1e-5)


@settings(deadline=None)
@given(st.floats(0.0, 0.98), st.floats(1.0, 1e6))
def test_the_limit_meets_its_own_condition(beta, kappa):
    eta_0 = largest_eta_0(beta, kappa)
    gamma = momentum_gamma(eta_0, kappa)
    assert beta < gamma
    assert momentum_zeta(eta_0, beta, gamma) >= -1e-9
    above = eta_0 * (1 + 1e-9)
    if above <= 2:
        after = momentum_gamma(above, kappa)
        assert after <= beta or above > largest_eta_0_at(beta, after)


def test_momentum_of_practice_is_out_of_the_theorems_reach():
    assert max(largest_eta_0(0.9, kappa) for kappa in (1, 10, 1e3, 1e6)) <= 0.00334
    assert largest_eta_0(0.0, 10.0) == 2.0


def test_the_printed_theorem_is_false():
    """f = x^2/2, no noise, beta = .01, eta_0 = .9, one step: ratio .3025, claimed at most .1."""
    found = momentum_quadratic([1.0], eta=0.45, beta=0.01, T=1)
    ratio = found.bias[0] ** 2
    assert ratio == pytest.approx(0.3025)
    assert ratio > 1 - 0.9
    assert ratio <= momentum_risk_bound([0.0], beta=0.01, kappa=1.0, eta_0=0.9, alpha_R=1.0)


def test_the_corrected_bound_holds_on_random_quadratics():
    rng = np.random.default_rng(4)
    for _ in range(1000):
        D, T = int(rng.integers(1, 6)), int(rng.integers(1, 12))
        kappa, beta = float(np.exp(rng.uniform(0, 4))), float(rng.uniform(0, 0.9))
        M = float(np.exp(rng.normal()))
        lam = np.append(M, M / kappa ** rng.uniform(0, 1, D - 1))
        eta_0 = largest_eta_0(beta, M / lam.min()) * float(rng.uniform(0.05, 1))
        start, sigma = rng.normal(size=D), np.exp(rng.normal(size=T)) * rng.choice([0, 1])
        G_over_N = 0.1
        found = momentum_quadratic(lam, eta_0 / (2 * M), beta, T)
        gap = 0.5 * lam @ start**2
        noise = 0.5 * G_over_N**2 * sigma**2 @ found.impulse**2 @ lam
        risk = (0.5 * lam @ (found.bias * start) ** 2 + noise) / gap
        bound = momentum_risk_bound(
            sigma,
            beta=beta,
            kappa=M / lam.min(),
            eta_0=eta_0,
            alpha_R=D * G_over_N**2 / (2 * M * gap),
        )
        assert risk <= bound * (1 + 1e-9)


def test_the_bound_refuses_what_it_does_not_cover():
    with pytest.raises(SordinoError, match="holds up to eta_0"):
        momentum_risk_bound([1.0], beta=0.9, kappa=10.0, eta_0=0.5, alpha_R=0.1)
    with pytest.raises(SordinoError, match="at least 1"):
        largest_eta_0(0.5, 0.5)


# ---- given shapes -----------------------------------------------------------------------------------


def test_exponential_influences():
    np.testing.assert_allclose(np.diff(expinfl(0.3, 5)), 0.3)
    t = np.arange(1, 6)
    np.testing.assert_allclose(
        np.exp(momexpinfl(2.0, 0.5, 0.3, 5)), 2 * np.exp(-0.3 * t) + 0.5 * np.exp(0.3 * t)
    )
    np.testing.assert_allclose(momexpinfl(0.0, 1.0, 0.3, 5), expinfl(0.3, 5))


@pytest.mark.parametrize("c", [(-1.0, 1.0), (0.0, 0.0), (np.nan, 1.0), (np.inf, 1.0)])
def test_bad_weights(c):
    with pytest.raises(SordinoError, match="c1 and c2"):
        momexpinfl(*c, 0.1, 5)


def test_bad_momentum():
    for call in (
        lambda: momentum_bound(1.0, 0.9, 3),
        lambda: momentum_quadratic([1], 0.1, -0.1, 3),
    ):
        with pytest.raises(SordinoError, match="beta"):
            call()

"""mu-GDP <-> (epsilon, delta), against the definition evaluated with 50 digits by mpmath."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import (
    delta_from_mu,
    epsilon_from_mu,
    log_delta,
    log_deltas,
    mu_from_epsilon_delta,
)

SETTINGS = settings(max_examples=100, deadline=None)


def true_delta(epsilon, mu):
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), in enough digits that nothing cancels."""
    # 100 digits: about 10 go to the cancellation of the two terms and 20 to exp(-a^2/2) for a of 1e8.
    with mpmath.workdps(100):
        epsilon, mu = mpf(float(epsilon)), mpf(float(mu))
        a = epsilon / mu - mu / 2

        def tail(x):  # Phi(-x), accurate far out
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return tail(a) - mpmath.exp(epsilon) * tail(a + mu)


def test_reference_itself_is_right_where_it_can_be_integrated():
    # Independent of the closed form: integrate (p - e^eps q)_+ directly.
    for epsilon, mu in [(0.5, 1.0), (2.0, 0.7), (0.1, 0.05)]:
        with mpmath.workdps(30):
            # N(mu,1) against N(0,1): the loss exceeds eps where x > eps/mu + mu/2.
            start = mpf(epsilon) / mpf(mu) + mpf(mu) / 2
            value = mpmath.quad(
                lambda x, mu=mu, epsilon=epsilon: (
                    mpmath.npdf(x, mpf(mu), 1) - mpmath.exp(mpf(epsilon)) * mpmath.npdf(x, 0, 1)
                ),
                [start, start + 2, start + 5, start + 15, start + 30],
            )
            assert abs(value / true_delta(epsilon, mu) - 1) < mpf("1e-20")


GRID_MU = [1e-6, 1e-3, 0.01, 0.1, 0.3, 0.4999, 0.5, 0.5001, 1.0, 3.0, 9.9, 10.1, 20.0, 50.0]
GRID_EPSILON = [0.0, 1e-9, 1e-3, 0.03, 0.1, 0.5, 1.0, 4.0, 8.0, 20.0, 60.0, 200.0]


@pytest.mark.parametrize("mu", GRID_MU)
def test_delta_is_exact_on_a_grid(mu):
    for epsilon in GRID_EPSILON:
        true = true_delta(epsilon, mu)
        with mpmath.workdps(50):
            log_true = mpmath.log(true)
            if log_true < -600:  # beyond any float; only the logarithm can be compared
                assert log_delta(epsilon, mu) == pytest.approx(float(log_true), rel=1e-10)
                continue
            error = abs(mpmath.expm1(mpf(log_delta(epsilon, mu)) - log_true))
            assert error < 1e-11 * max(1.0, abs(float(log_true)) / 100), (epsilon, mu, float(error))
            # "rounded up", by far less than anyone could notice
            stated = mpf(delta_from_mu(epsilon, mu))
            assert true <= stated <= true * mpf(1 + 2.1e-9)


@SETTINGS
@given(
    epsilon=st.floats(1e-3, 200),
    log_mu=st.floats(math.log(1e-4), math.log(100)),
)
def test_delta_is_exact_at_random(epsilon, log_mu):
    mu = math.exp(log_mu)
    true = true_delta(epsilon, mu)
    with mpmath.workdps(50):
        log_true = float(mpmath.log(true))
    assert log_delta(epsilon, mu) == pytest.approx(log_true, rel=1e-12, abs=3e-11)
    if log_true > -600:
        assert true <= mpf(delta_from_mu(epsilon, mu))


@SETTINGS
@given(epsilon=st.floats(1e-3, 200), log_delta_=st.floats(math.log(1e-12), math.log(0.5)))
@example(epsilon=1.0, log_delta_=math.log(1e-5))
@example(epsilon=200.0, log_delta_=math.log(0.5))
@example(epsilon=1e-3, log_delta_=math.log(1e-12))
def test_mu_is_never_too_large_and_hardly_too_small(epsilon, log_delta_):
    delta = math.exp(log_delta_)
    mu = mu_from_epsilon_delta(epsilon, delta)
    assert true_delta(epsilon, mu) <= mpf(delta)  # never weaker than stated
    assert true_delta(epsilon, mu * (1 + 3e-9)) > mpf(delta)  # and not a hair too strict


@SETTINGS
@given(
    log_mu=st.floats(math.log(1e-3), math.log(30)),
    log_delta_=st.floats(math.log(1e-12), math.log(0.5)),
)
def test_epsilon_is_never_too_small_and_hardly_too_large(log_mu, log_delta_):
    mu, delta = math.exp(log_mu), math.exp(log_delta_)
    epsilon = epsilon_from_mu(mu, delta)
    assert true_delta(epsilon, mu) <= mpf(delta)
    if epsilon > 1e-6:
        assert true_delta(epsilon * (1 - 3e-9), mu) > mpf(delta)


@SETTINGS
@given(epsilon=st.floats(1e-3, 200), log_delta_=st.floats(math.log(1e-12), math.log(0.5)))
def test_round_trip(epsilon, log_delta_):
    delta = math.exp(log_delta_)
    mu = mu_from_epsilon_delta(epsilon, delta)
    back = epsilon_from_mu(mu, delta)
    # mu was rounded down by 1e-9; where delta does nearly all the work, epsilon follows by an
    # absolute, not a relative, amount.
    assert back == pytest.approx(epsilon, rel=1e-7, abs=1e-8)
    assert delta_from_mu(epsilon, mu) <= delta * (1 + 2e-9)


def test_monotone_in_everything():
    epsilons, deltas = np.geomspace(1e-3, 200, 12), np.geomspace(1e-12, 0.5, 12)
    mus = np.array([[mu_from_epsilon_delta(e, d) for d in deltas] for e in epsilons])
    assert (np.diff(mus, axis=0) > 0).all()
    assert (np.diff(mus, axis=1) > 0).all()
    grid = np.geomspace(1e-3, 60, 12)
    values = np.array([[epsilon_from_mu(m, d) for d in deltas[:-1]] for m in grid])
    assert (np.diff(values, axis=0) >= 0).all()
    assert (np.diff(values, axis=1) <= 0).all()
    for mu in (0.01, 0.49, 0.51, 3.0, 12.0):
        curve = log_deltas(np.linspace(0, 30, 301), mu)
        assert (np.diff(curve) < 0).all()


def test_no_jump_where_the_formulas_are_switched():
    # mu = 0.5 switches quadrature / difference; x = -5 switches Mills / plain form.
    for epsilon in (0.0, 0.1, 1.0, 5.0):
        below, above = (log_delta(epsilon, np.nextafter(0.5, side)) for side in (0, 1))
        assert below == pytest.approx(above, rel=1e-12, abs=1e-12)
    for mu in (10.5, 12.0, 20.0, 40.0):
        epsilon = mu * (mu / 2 - 5)
        below, above = (log_delta(epsilon * (1 + sign * 1e-13), mu) for sign in (-1, 1))
        assert below == pytest.approx(above, rel=1e-10, abs=1e-13)


def test_many_epsilons_at_once_equal_one_by_one():
    epsilons = np.geomspace(1e-3, 100, 40)
    for mu in (0.2, 2.0, 15.0):
        one_by_one = [log_delta(float(e), mu) for e in epsilons]
        np.testing.assert_allclose(log_deltas(epsilons, mu), one_by_one, rtol=1e-13)


# ---- numbers from the papers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu", "digits"),
    [
        (1, 1e-5, 0.26805, 5),  # papers/00 oracle 7
        (2, 1e-5, 0.50155, 5),
        (3, 1e-5, 0.7191, 4),
        (8, 1e-5, 1.6660, 4),
        (0.1, 1e-6, 0.027545, 6),  # papers/03, table 2.2
        (2.0, 1e-6, 0.448335, 6),
        (1.0, 1e-5, 0.268051, 6),
        (4, 1e-8, 0.716547, 6),  # papers/04 oracle 1
    ],
)
def test_mu_of_the_papers(epsilon, delta, mu, digits):
    assert mu_from_epsilon_delta(epsilon, delta) == pytest.approx(mu, abs=0.51 * 10.0**-digits)


@pytest.mark.parametrize(
    ("epsilon", "delta", "nu"), [(0.1, 1e-6, 36.305), (2.0, 1e-6, 2.2305), (1.0, 1e-5, 3.7306)]
)
def test_noise_multipliers_of_papers_03(epsilon, delta, nu):
    assert 1 / mu_from_epsilon_delta(epsilon, delta) == pytest.approx(nu, rel=2e-5)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (math.sqrt(0.392704), 1e-8, 3.456514812),
        (1.0, 1e-5, 4.3771781),
        (0.5, 1e-6, 2.2540847),
        (1.0, 1e-6, 4.8865541),  # papers/04 oracle 2, rho = .5
    ],
)
def test_epsilon_of_papers_04(mu, delta, epsilon):
    assert epsilon_from_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=5.1e-8)


@pytest.mark.parametrize(
    ("epsilon", "delta", "squared"),
    [
        (4, 1e-8, 0.513439),
        (1, 1e-5, 0.0718514047),
        (8, 1e-5, 2.775658),
        (2, 1e-6, 0.201004039),
        (0.5, 1e-6, 0.0154023362),
    ],
)
def test_exact_budgets_of_papers_04(epsilon, delta, squared):
    assert mu_from_epsilon_delta(epsilon, delta) ** 2 == pytest.approx(squared, rel=1e-6)


def test_deltas_of_the_papers():
    assert delta_from_mu(1.0, 1.0) == pytest.approx(0.1269367375, rel=1e-8)
    # papers/00: what the paper's noise really gives where (20, 1e-5) was claimed
    assert delta_from_mu(20.0, 1 / 0.2146) == pytest.approx(0.0163, abs=5e-5)


# ---- the edges -----------------------------------------------------------------------------------


def test_no_release_is_perfectly_private():
    assert epsilon_from_mu(0.0, 1e-9) == 0.0
    assert delta_from_mu(0.0, 0.0) == 0.0
    assert delta_from_mu(3.0, 0.0) == 0.0


def test_epsilon_is_zero_exactly_where_delta_alone_suffices():
    delta = 1e-3
    # delta(0) = 2 Phi(mu/2) - 1
    with mpmath.workdps(50):
        mu = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpf(delta))
    assert epsilon_from_mu(float(mu) * (1 - 1e-9), delta) == 0.0
    assert epsilon_from_mu(float(mu) * (1 + 1e-7), delta) > 0.0


def test_very_weak_guarantees_do_not_overflow():
    for mu in (100.0, 1e3, 1e4):
        epsilon = epsilon_from_mu(mu, 1e-6)
        assert mu * mu / 2 < epsilon < mu * mu / 2 + 6 * mu
        assert true_delta(epsilon, mu) <= mpf(1e-6)
        assert delta_from_mu(1.0, mu) == 1.0


def test_tiny_deltas_do_not_underflow():
    for delta in (1e-30, 1e-100, 1e-300):
        for epsilon in (0.01, 1.0, 30.0):
            mu = mu_from_epsilon_delta(epsilon, delta)
            assert true_delta(epsilon, mu) <= mpf(delta) < true_delta(epsilon, mu * (1 + 3e-9))


@pytest.mark.parametrize(
    ("epsilon", "delta"), list(itertools.product([1e-15, 1e-13, 1e-10], [1e-15, 1e-13, 1e-10]))
)
def test_absurdly_small_budgets_are_kept_or_refused(epsilon, delta):
    try:
        mu = mu_from_epsilon_delta(epsilon, delta)
    except SordinoError:
        return
    assert true_delta(epsilon, mu) <= mpf(delta)


def test_absurdly_large_epsilon_is_refused_or_right():
    for epsilon in (1e3, 1e5, 1e7, 1e9):
        try:
            mu = mu_from_epsilon_delta(epsilon, 1e-6)
        except SordinoError:
            continue
        assert mu * mu / 2 < epsilon < mu * mu / 2 + 6 * mu


BAD_DELTAS = [0.0, 1.0, -1e-5, 1.5, math.nan, math.inf, "1e-5", None, True]


@pytest.mark.parametrize("delta", BAD_DELTAS)
def test_bad_delta_is_refused(delta):
    with pytest.raises(SordinoError):
        epsilon_from_mu(1.0, delta)
    with pytest.raises(SordinoError):
        mu_from_epsilon_delta(1.0, delta)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", None, True])
def test_bad_epsilon_is_refused(epsilon):
    with pytest.raises(SordinoError):
        mu_from_epsilon_delta(epsilon, 1e-5)


@pytest.mark.parametrize("mu", [-1.0, math.nan])
def test_bad_mu_is_refused(mu):
    with pytest.raises(SordinoError):
        epsilon_from_mu(mu, 1e-5)


def test_infinite_mu_protects_nobody():
    with np.errstate(all="ignore"):
        assert epsilon_from_mu(math.inf, 1e-5) == math.inf

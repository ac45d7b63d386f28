"""zCDP and RDP conversions: papers/04 oracles 1-2, and the definitions by a fine search."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import (
    epsilon_from_mu,
    epsilon_from_rdp,
    epsilon_from_zcdp,
    mu_from_epsilon_delta,
    mu_of_gaussian_with_zcdp,
    zcdp_from_epsilon_delta,
    zcdp_from_mu,
)


def cks(rho, delta):
    """Canonne, Kamath & Steinke 2020, Cor. 13: the best order on a very fine grid."""
    a = 1 + np.geomspace(1e-4, 1e7, 400_001)
    values = rho * a + (np.log(1 / delta) + (a - 1) * np.log1p(-1 / a) - np.log(a)) / (a - 1)
    return max(0.0, float(values.min()))


@pytest.mark.parametrize(
    ("epsilon", "delta", "twice_bs", "twice_cks"),
    [
        (4, 1e-8, 0.39270371, 2 * 0.232594311),
        (1, 1e-5, 0.0416398767, 0.0611131904),
        (8, 1e-5, 2.098272, 2.459429),
        (2, 1e-6, 0.135147763, 0.176305377),
        (0.5, 1e-6, 0.00888768832, 0.0132830487),
    ],
)
def test_budgets_of_papers_04(epsilon, delta, twice_bs, twice_cks):
    rho = zcdp_from_epsilon_delta(epsilon, delta)
    assert 2 * rho == pytest.approx(twice_bs, rel=1e-6)
    assert epsilon_from_zcdp(rho, delta, tight=False) == pytest.approx(epsilon, rel=1e-12)
    assert epsilon_from_zcdp(twice_cks / 2, delta) == pytest.approx(epsilon, rel=2e-6)
    # the exact budget is the largest of the three
    assert twice_bs < twice_cks < mu_from_epsilon_delta(epsilon, delta) ** 2


def test_order_of_the_three_conversions():
    loose, tight, exact = (
        epsilon_from_zcdp(0.5, 1e-6, tight=False),
        epsilon_from_zcdp(0.5, 1e-6),
        epsilon_from_mu(1.0, 1e-6),
    )
    assert loose == pytest.approx(5.7565218, rel=1e-8)
    assert tight == pytest.approx(5.2215344, rel=1e-7)
    assert exact == pytest.approx(4.8865541, rel=1e-7)


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2])
def test_tight_conversion_is_valid_and_near_the_best(rho, delta):
    value = epsilon_from_zcdp(rho, delta)
    assert value <= cks(rho, delta) * (1 + 1e-6) + 1e-12
    assert value <= epsilon_from_zcdp(rho, delta, tight=False)
    # A Gaussian with mu = sqrt(2 rho) is rho-zCDP, so no valid conversion can be below its epsilon.
    assert value >= epsilon_from_mu(math.sqrt(2 * rho), delta) * (1 - 1e-8)


def test_simple_ones():
    assert zcdp_from_mu(0.6) == pytest.approx(0.18)
    assert mu_of_gaussian_with_zcdp(zcdp_from_mu(0.6)) == pytest.approx(0.6)
    assert 5 * zcdp_from_mu(0.6) == pytest.approx(0.9)  # RDP of order 5
    # papers/03, table 2.2: what the zCDP route would have given
    for epsilon, delta, mu in [(0.1, 1e-6, 0.018990), (2, 1e-6, 0.367624), (1, 1e-5, 0.204059)]:
        rho = zcdp_from_epsilon_delta(epsilon, delta)
        assert mu_of_gaussian_with_zcdp(rho) == pytest.approx(mu, abs=6e-7)


def test_rdp_point():
    # By hand: order 2, rdp 1, delta 1e-5.
    assert epsilon_from_rdp(2, 1.0, 1e-5) == pytest.approx(
        1 + math.log(1e5) + math.log(0.5) - math.log(2)
    )
    assert epsilon_from_rdp(1.5, 0.0, 0.9) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_bad_delta(delta):
    for call in (
        lambda: zcdp_from_epsilon_delta(1.0, delta),
        lambda: epsilon_from_zcdp(1.0, delta),
        lambda: epsilon_from_rdp(2.0, 1.0, delta),
    ):
        with pytest.raises(SordinoError):
            call()


def test_bad_values_are_refused():
    with pytest.raises(SordinoError):
        epsilon_from_zcdp(-1.0, 1e-5)
    for call in (
        lambda: zcdp_from_epsilon_delta(-1.0, 1e-5),
        lambda: epsilon_from_rdp(1.0, 1.0, 1e-5),  # order 1 is not an RDP order here
        lambda: epsilon_from_rdp(0.5, 1.0, 1e-5),
        lambda: mu_of_gaussian_with_zcdp(-1.0),
        lambda: zcdp_from_mu(-1.0),
    ):
        with pytest.raises(SordinoError):
            call()

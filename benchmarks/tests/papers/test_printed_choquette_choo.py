"""Choquette-Choo et al.'s conversions and tree: papers/03 sections 1.5, 1.6, 2.2, E5, E8-E10."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.papers import choquette_choo as cc

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import delta_from_mu, mu_from_epsilon_delta
from sordino.privacy._participation import SinglePass
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import TreeStrategy

COROLLARY = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "steps": 1000,
    "batch_size": 1000,
    "dimension": 100,
    "lipschitz": 1.0,
    "smoothness": 1.0,
    "diameter": 1.0,
    "beta": 24_001.0,
}


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu", "nu", "zcdp_mu", "zcdp_nu", "percent", "classical"),
    [
        (0.1, 1e-6, 0.027545, 36.305, 0.018990, 52.660, 45, 0.018872),
        (2.0, 1e-6, 0.448335, 2.2305, 0.367624, 2.7202, 22, 0.377444),
        (1.0, 1e-5, 0.268051, 3.7306, 0.204059, 4.9006, 31, 0.206407),
    ],
)
def test_table_2_2(
    epsilon: float,
    delta: float,
    mu: float,
    nu: float,
    zcdp_mu: float,
    zcdp_nu: float,
    percent: int,
    classical: float,
) -> None:
    exact = mu_from_epsilon_delta(epsilon, delta)
    assert exact == pytest.approx(mu, abs=6e-7)
    assert 1 / exact == pytest.approx(nu, rel=2e-5)
    multiplier = cc.zcdp_multiplier(epsilon, delta)
    assert 1 / multiplier == pytest.approx(zcdp_mu, abs=6e-7)
    assert multiplier == pytest.approx(zcdp_nu, rel=2e-5)
    assert round(100 * (multiplier * exact - 1)) == percent
    assert 1 / cc._classical_multiplier_unchecked(epsilon, delta) == pytest.approx(
        classical, abs=6e-7
    )


def test_the_classical_formula_stops_at_one() -> None:
    assert cc.classical_multiplier(1.0, 1e-5) == pytest.approx(1 / 0.206407, rel=1e-5)
    for epsilon in (1.01, 2.0, 9.0):
        with pytest.raises(SordinoError, match="epsilon up to 1"):
            cc.classical_multiplier(epsilon, 1e-6)
    # where it is proved it holds
    for epsilon in (0.01, 0.3, 1.0):
        for delta in (1e-12, 1e-6, 1e-2, 0.5):
            assert delta_from_mu(epsilon, 1 / cc.classical_multiplier(epsilon, delta)) <= delta


@pytest.mark.parametrize(("delta", "limit"), [(1e-6, 8.9), (1e-5, 8.5), (1e-3, 7.6)])
def test_where_the_classical_formula_fails(delta: float, limit: float) -> None:
    """E10: from here on the true delta exceeds the claimed delta/2."""
    fails = [
        epsilon
        for epsilon in np.arange(2, 12, 0.01)
        if delta_from_mu(epsilon, 1 / cc._classical_multiplier_unchecked(epsilon, delta / 2))
        > delta / 2
    ]
    assert min(fails) == pytest.approx(limit, abs=0.06)


@pytest.mark.parametrize(
    ("steps", "printed", "exact"), [(2, 2, 2), (1000, 11, 10), (1023, 11, 10), (1024, 11, 11)]
)
def test_levels_of_the_tree(steps: int, printed: int, exact: int) -> None:
    result = cc.lemma_4_3(mu=0.5, steps=steps, bound=12.0, batch_size=30)
    assert result.noise == pytest.approx(math.sqrt(printed) / 0.5)
    assert result.std == pytest.approx(result.noise * 12 / 30)
    assert sensitivity(TreeStrategy(steps), SinglePass(steps)).value ** 2 == pytest.approx(exact)
    with pytest.raises(SordinoError):
        cc.lemma_4_3(mu=0.5, steps=1)


def test_corollary_4_5() -> None:
    printed = cc.corollary_4_5(**COROLLARY)
    zeta = 4 + 8
    assert printed.details["zeta"] == zeta
    sigma = (
        (8 * math.sqrt(2) + 16 * math.sqrt(2))
        * math.sqrt(math.log2(1000) * math.log(2.5e6))
        / (1.0 * 1000 * COROLLARY["beta"])
    )
    assert printed.details["printed sigma"] == pytest.approx(sigma)
    assert printed.std == pytest.approx(sigma * COROLLARY["beta"])
    assert printed.noise == pytest.approx(printed.std * 1000 / zeta)
    # E5: without the clip the proof gives less
    for epsilon, factor in ((0.1, 1.55), (1.0, 2.36)):
        result = cc.corollary_4_5(**{**COROLLARY, "epsilon": epsilon})
        assert result.details["unclipped delta"] / 1e-6 == pytest.approx(factor, abs=6e-3)
    # with the clip the promise is kept, with room
    exact = math.sqrt(10) / mu_from_epsilon_delta(1.0, 1e-6)
    assert printed.noise / exact == pytest.approx(2.57, abs=0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 2.0}, "epsilon up to 1"),
        ({"beta": 1999.0}, "below 2 M T"),
        ({"dimension": 2_000_000}, "above its limit"),
    ],
)
def test_corollary_4_5_raises(change: dict[str, float], words: str) -> None:
    with pytest.raises(SordinoError, match=words):
        cc.corollary_4_5(**{**COROLLARY, **change})


def test_the_constant_of_the_dimension_condition() -> None:
    """E8: with Lemma 4.3's own tail bound M b_max must stay at most L + 2 M D; 128 gives more."""
    facts = {name: COROLLARY[name] for name in ("epsilon", "delta", "steps", "batch_size", "beta")}
    d = cc.largest_dimension(**facts, smoothness=1.0)
    node = cc.corollary_4_5(**{**COROLLARY, "dimension": math.floor(d)}).details["printed sigma"]
    T, logs = 1000, math.ceil(math.log2(1000))

    def noise_in_a_step(dimension: float) -> float:
        return logs * node * math.sqrt(2 * dimension * math.log(2 * T / (1e-6 / 2)))

    assert noise_in_a_step(d) <= 1 + 2
    assert noise_in_a_step(8 * d) > 1 + 2  # the printed constant, 128 = 1024 / 8

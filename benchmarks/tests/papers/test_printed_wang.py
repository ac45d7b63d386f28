"""Wang et al.'s printed noise and its baselines: papers/01 sections 1.3, 2.1-2.4, oracles 1, 3-5, 8."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.papers import REFERENCES, wang

from sordino._base.errors import SordinoError
from sordino.privacy._amplification import SampledRelease, composed_epsilon

A9A = 32561
ORACLE_3 = {
    "epsilon": 0.2,
    "delta": 1e-5,
    "examples": A9A,
    "batch_size": 50,
    "first_batch_size": 50,
    "steps": 2605,
    "clip": 1.0,
    "difference_clip": 0.01,
    "gamma": 0.01,
    "beta": 0.5,
}
# Small rates at epsilon 2 can meet the conditions.
FEASIBLE = {
    **ORACLE_3,
    "epsilon": 2.0,
    "examples": 100_000,
    "batch_size": 100,
    "first_batch_size": 100,
    "steps": 430_000,
}
# papers/01, table 2.3: (b, eps, T, Lemma 3.7 best alpha, RDP WOR repl.)
TABLE = [
    (50, 0.2, 2605, 9.99, 5.860),
    (100, 0.2, 1302, 14.13, 8.192),
    (200, 0.2, 651, 19.98, 11.546),
    (50, 0.5, 3256, 4.50, 3.076),
    (100, 0.5, 1628, 6.36, 4.124),
    (200, 0.5, 814, 9.00, 5.680),
]


def pair_rdp(order: int, s: float, rate: float) -> float:
    """RDP of ``(1-q) N(0, s^2) + q N(1, s^2)`` against ``N(0, s^2)``: a pair that can occur."""
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
        + k * (k - 1) / (2 * s * s)
        for k in range(order + 1)
    ]
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(t - top) for t in terms))) / (order - 1)


def theorem_27(order: int, s: float, rate: float) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([order], dp_accounting.NeighboringRelation.REPLACE_ONE)
    size = 10**9
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        size, round(rate * size), dp_accounting.GaussianDpEvent(s)
    )
    return float(accountant.compose(event).rdp[0])


def test_oracle_1() -> None:
    assert wang.contribution_bound(1, 0.01, 0.01) == pytest.approx(0.0199)
    assert wang.contribution_bound(1.5, 0.99, 0.99) == pytest.approx(1.4949)
    assert wang.contribution_bound(2, 0.7, 0.7) == pytest.approx(1.61)
    assert wang.contribution_bound(3, 0.7, 1.0) == 3
    assert wang.contribution_bound(3, 0.7, 0.0) == 0.7


# ---- Lemma 3.7 ---------------------------------------------------------------------------------------


def test_oracle_4() -> None:
    assert wang.order_limit(4, 1.0, 0.001) - 1 == pytest.approx(3.21888, abs=1e-5)
    assert wang.lemma_3_7(order=4, s=1.0, rate=0.001) == pytest.approx(1.4e-5)
    # the proof covers whole orders: a fraction costs as much as the next one
    assert wang.lemma_3_7(order=3.2, s=1.0, rate=0.001) == pytest.approx(1.4e-5)
    with pytest.raises(SordinoError, match="order 117 is above"):
        wang.lemma_3_7(order=116.13, s=5.0, rate=50 / A9A)


def test_oracle_5() -> None:
    exact, bound = pair_rdp(2, 2.0, 0.01), theorem_27(2, 2.0, 0.01)
    lemma = wang.lemma_3_7(order=2, s=2.0, rate=0.01)
    assert exact == pytest.approx(2.84021e-5, rel=1e-5)
    assert bound == pytest.approx(1.136e-4, rel=1e-3)
    assert lemma == pytest.approx(1.75e-4)
    assert exact <= bound <= lemma


def test_small_noise_is_refused() -> None:
    assert wang.lemma_3_7(order=2, s=math.sqrt(0.701), rate=1e-4) > 0
    with pytest.raises(SordinoError, match=r"below 0\.7"):
        wang.lemma_3_7(order=2, s=math.sqrt(0.699), rate=1e-4)


@pytest.mark.parametrize(
    "bad", [{"order": 1.0}, {"order": math.nan}, {"s": 0.0}, {"rate": 1.5}, {"rate": 0.0}]
)
def test_bad_values_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(SordinoError):
        wang.lemma_3_7(**{"order": 2, "s": 2.0, "rate": 0.01, **bad})


def test_inside_its_conditions_the_lemma_is_never_below_the_truth() -> None:
    rng = np.random.default_rng(1)
    seen, worst_pair, worst_bound = 0, 0.0, 0.0
    while seen < 150:
        order = int(rng.integers(2, 24))
        s, rate = math.exp(rng.uniform(-0.17, 1.5)), math.exp(rng.uniform(-12, -1.5))
        try:
            closed = wang.lemma_3_7(order=order, s=s, rate=rate)
        except SordinoError:
            continue
        seen += 1
        worst_pair = max(worst_pair, pair_rdp(order, s, rate) / closed)
        worst_bound = max(worst_bound, theorem_27(order, s, rate) / closed)
    assert worst_pair <= 0.33
    assert worst_bound <= 0.85


def test_outside_its_conditions_the_lemma_under_reports() -> None:
    """papers/01 2.4: one step, s^2 = .7, q = .02 claims .3055 and is at least .822."""
    log, per_order = math.log(1e5), 3.5 * 0.02**2 / 0.7
    claimed = min(per_order * a + log / (a - 1) for a in np.linspace(60, 95, 3501))
    assert claimed == pytest.approx(0.3055, abs=2e-4)
    part = SampledRelease(math.sqrt(0.7), 1.0, 0.02, 1, "poisson", "add-remove")
    true = composed_epsilon((part,), 1e-5)
    assert true == pytest.approx(0.822, abs=3e-3)
    with pytest.raises(SordinoError):
        wang.lemma_3_7(order=77, s=math.sqrt(0.7), rate=0.02)


@pytest.mark.parametrize(
    ("epsilon", "rate"),
    [(0.2, 7.19e-5), (0.5, 4.31e-4), (1.2, 2.26e-3), (2, 5.68e-3), (3, 1.14e-2), (7, 4.2e-2)],
)
def test_rates_above_which_no_noise_meets_the_conditions(epsilon: float, rate: float) -> None:
    result = wang.largest_rate(epsilon, 1e-5)
    assert result == pytest.approx(rate, rel=9e-3)
    order = 1 + math.log(1e5) / epsilon
    grid = np.exp(np.linspace(math.log(0.7), 12, 4000))
    reach = np.exp(-1.5 * (order - 1) / grid) / (order * (1 + grid))
    assert reach.max() == pytest.approx(result, rel=1e-4)
    assert reach.max() <= result * (1 + 1e-12)


# ---- Theorem 4.1 -------------------------------------------------------------------------------------


def test_oracle_3() -> None:
    first, later = wang._theorem_4_1_unchecked(**ORACLE_3)
    assert later.details["alpha"] == pytest.approx(116.1293, abs=5e-5)
    assert later.std == pytest.approx(0.00397735, abs=5e-9)
    assert first.std == pytest.approx(0.199867, abs=5e-7)
    s2, tau = later.details["s^2"], later.details["tau"]
    assert s2 == pytest.approx(24.9667, abs=5e-5)
    assert tau * later.details["alpha"] * (1 + s2) == pytest.approx(4.6305, abs=5e-5)
    assert later.noise == pytest.approx(later.std * 50 / 0.0199)
    with pytest.raises(SordinoError, match=r"Theorem 4\.1 .* does not hold here"):
        wang.theorem_4_1(**ORACLE_3)


def test_the_pseudo_code_noise_is_not_producible() -> None:
    """Algorithm 1 divides by eps^2 (sigma .0088936); no public function takes that road."""
    _, later = wang._theorem_4_1_unchecked(**ORACLE_3)
    assert later.std / math.sqrt(0.2) == pytest.approx(0.0088936, abs=5e-8)
    assert not any("squared" in name or "algorithm" in name for name in dir(wang))
    assert REFERENCES["wang"].calibrate is wang.theorem_4_1


def test_a_feasible_case_keeps_its_promise() -> None:
    first, later = wang.theorem_4_1(**FEASIBLE)
    assert first.noise == later.noise  # same batch size
    facts = {name: FEASIBLE[name] for name in ("examples", "batch_size", "steps", "delta")}
    assert wang.rdp_epsilon(later.noise, epsilon=2.0, **facts) < 2.0
    # each mechanism is tested with its own rate
    with pytest.raises(SordinoError, match=r"rate 0\.05"):
        wang.theorem_4_1(**{**FEASIBLE, "first_batch_size": 5000})
    with pytest.raises(SordinoError, match=r"below 0\.7"):
        wang.theorem_4_1(**{**FEASIBLE, "steps": 1000})
    with pytest.raises(SordinoError, match="beta of at most"):
        wang.theorem_4_1(**{**FEASIBLE, "examples": 10**6, "steps": 55_000_000, "beta": 0.62})


@pytest.mark.parametrize(("b", "epsilon", "T", "lemma", "rdp"), TABLE)
def test_table_2_3_lemma_column(b: int, epsilon: float, T: int, lemma: float, rdp: float) -> None:
    facts = {"epsilon": epsilon, "delta": 1e-5, "examples": A9A, "batch_size": b, "steps": T}
    noise = wang._lemma_3_7_noise_unchecked(**facts)
    assert noise == pytest.approx(lemma, abs=6e-3)
    # the best beta, by a search
    srm = {**ORACLE_3, **facts, "first_batch_size": b, "gamma": 1.0}
    grid = [
        wang._theorem_4_1_unchecked(**{**srm, "beta": beta})[1].noise
        for beta in np.linspace(0.3, 0.7, 401)
    ]
    assert noise <= min(grid) * (1 + 1e-12)
    assert noise == pytest.approx(min(grid), rel=1e-5)
    # every row of the paper's experiments is out of reach of the conditions
    assert b / A9A > wang.largest_rate(epsilon, 1e-5)


@pytest.mark.parametrize(
    ("b", "epsilon", "T", "lemma", "rdp"),
    [*TABLE[-2:], *(pytest.param(*row, marks=pytest.mark.slow) for row in TABLE[:-2])],
)
def test_table_2_3_rdp_column(b: int, epsilon: float, T: int, lemma: float, rdp: float) -> None:
    facts = {"epsilon": epsilon, "delta": 1e-5, "examples": A9A, "batch_size": b, "steps": T}
    noise = wang.rdp_noise(**facts)
    assert noise == pytest.approx(rdp, rel=4e-3)
    assert wang.rdp_epsilon(noise, **facts) <= epsilon


# ---- baselines ---------------------------------------------------------------------------------------


def test_oracle_8_dp_gd() -> None:
    for epsilon, z in ((0.2, 72.91), (0.5, 31.45)):
        noise = wang.dp_gd_exact(epsilon=epsilon, delta=1e-5, steps=20)
        assert noise == pytest.approx(z, abs=6e-3)
        twice = wang.dp_gd_exact(epsilon=epsilon, delta=1e-5, steps=20, adjacency="replace-one")
        assert twice == pytest.approx(2 * noise)
    with pytest.raises(SordinoError, match="adjacency"):
        wang.dp_gd_exact(epsilon=1.0, delta=1e-5, steps=20, adjacency="replace")


def test_dp_gd_with_an_open_constant() -> None:
    case = {"epsilon": 0.2, "delta": 1e-5, "examples": A9A, "steps": 20, "lipschitz": 2.0}
    printed = wang.dp_gd(**case, constant=4.0)
    assert printed.std**2 == pytest.approx(4 * 4 * 20 * math.log(1e5) / (A9A * 0.2) ** 2)
    assert printed.noise == pytest.approx(printed.std * A9A / 2.0)
    with pytest.raises(SordinoError, match=r"needs 145\.8"):
        wang.dp_gd(**case, constant=2.0)
    assert wang.dp_gd(**case, constant=2.0, adjacency="zero-out").noise > 72.9


def test_rrpsgd_with_an_open_constant() -> None:
    case = {"epsilon": 0.2, "delta": 1e-5, "examples": A9A, "steps": 8 * A9A, "lipschitz": 2.0}
    printed = wang.rrpsgd(**case, constant=1.0)
    assert printed.std**2 == pytest.approx(4 * math.log(A9A / 1e-5) * math.log(1e5) / 0.04)
    assert printed.details["spent"] <= 0.2
    with pytest.raises(SordinoError, match=r"instead of 0\.2"):
        wang.rrpsgd(**{**case, "examples": 1000, "steps": 8000}, constant=1e-4)


def test_rrpsgd_of_the_library_by_rdp() -> None:
    """papers/01 1.3: z = 1.342 (8 passes, .2) and .916 (10 passes, .5), Poisson, add/remove, RDP."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    for z, passes, epsilon in ((1.342, 8, 0.2), (0.916, 10, 0.5)):
        event = dp_accounting.PoissonSampledDpEvent(1 / A9A, dp_accounting.GaussianDpEvent(z))
        spent = RdpAccountant().compose(event, passes * A9A).get_epsilon(1e-5)
        assert spent == pytest.approx(epsilon, rel=1e-2)


def test_oracle_8_dp_agd() -> None:
    for epsilon, rho in ((0.2, 8.6113e-4), (0.5, 5.31390e-3)):
        log = math.log(1e5)
        result = wang.dp_agd_budget(epsilon, 1e-5)
        assert result["rho"] == pytest.approx(rho, rel=1e-5)
        assert result["rho"] == pytest.approx((math.sqrt(log + epsilon) - math.sqrt(log)) ** 2)
        share = 0.5 * epsilon / 60
        assert result["rho_minimum"] == pytest.approx(share**2 / 2)
        assert result["gradient_noise"] == pytest.approx(math.sqrt(2 * math.log(1.25e5)) / share)
        assert result["rho_gradient"] == pytest.approx(1 / (2 * result["gradient_noise"] ** 2))
    with pytest.raises(SordinoError, match="classical"):
        wang.dp_agd_budget(3.0, 1e-5, splits=1)

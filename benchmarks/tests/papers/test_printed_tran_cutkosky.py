"""Tran & Cutkosky's printed noise: papers/00 sections 1.1, 2, 3 and oracle 7."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from benchmarks.papers import tran_cutkosky as tc

from sordino._base.errors import SordinoError
from sordino.privacy._dyadic import nodes_between, used_nodes
from sordino.privacy._gdp import delta_from_mu, epsilon_from_mu, mu_from_epsilon_delta
from sordino.privacy._participation import FixedBatches, FreshPermutations, Participation
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import TreeStrategy

CASE = {"epsilon": 1.0, "delta": 1e-5, "epoch_steps": 1000, "steps": 5000, "alpha": 0.01}


def cost(alpha: float, rule: Participation, printed: float) -> float:
    """True mu under replace-one at the printed noise."""
    return 2 * sensitivity(TreeStrategy(rule.steps, 1 - alpha), rule).value / printed


def test_oracle_7() -> None:
    assert tc.touched_nodes(1000, 5000) == 57
    assert tc.touched_nodes(509, 5090) == 106
    for epsilon, mu in ((1, 0.26805), (2, 0.50155), (3, 0.7191), (8, 1.6660)):
        assert mu_from_epsilon_delta(epsilon, 1e-5) == pytest.approx(mu, rel=1e-4)
    # sigma(20, .01) = .2146 is refused, because the true delta would be .0163
    assert delta_from_mu(20.0, 1 / 0.2146) == pytest.approx(0.0163, rel=3e-3)


def test_algorithm_1_is_the_formula() -> None:
    printed = tc.algorithm_1(**CASE, lipschitz=3.0)
    sigma = 2 * math.sqrt(math.log(1e5))
    assert printed.details == {"V": 57.0, "sigma": pytest.approx(sigma)}
    assert printed.std == pytest.approx(4 * 0.01 * 3.0 * sigma * math.sqrt(57))
    assert printed.noise == pytest.approx(4 * sigma * math.sqrt(57))
    assert printed.adjacency == "replace-one"
    # a batch of b divides the mean's sensitivity, not the noise in units of the clip
    batched = tc.algorithm_1(**CASE, lipschitz=3.0, batch_size=64)
    assert batched.std == pytest.approx(printed.std / 64)
    assert batched.noise == pytest.approx(printed.noise)


@pytest.mark.parametrize(
    ("N", "T", "alpha", "by_sensitivity", "in_all"),
    [
        (1000, 5000, 0.01, (3.05, 2.79), (5.55, 5.07)),
        (509, 5090, 0.1, (4.62, 3.52), (8.41, 6.41)),
        (509, 5090, 0.01, (3.34, 2.59), (6.08, 4.70)),
    ],
)
def test_section_2_gains(
    N: int, T: int, alpha: float, by_sensitivity: tuple[float, float], in_all: tuple[float, float]
) -> None:
    mu = mu_from_epsilon_delta(1.0, 1e-5)
    for rule, at_equal_mu, total in zip(
        (FixedBatches(T, N), FreshPermutations(T, N)), by_sensitivity, in_all, strict=True
    ):
        printed = tc.algorithm_1(**{**CASE, "epoch_steps": N, "steps": T, "alpha": alpha})
        shift = 2 * sensitivity(TreeStrategy(T, 1 - alpha), rule).value
        assert printed.noise / (printed.details["sigma"] * shift) == pytest.approx(
            at_equal_mu, abs=0.006
        )
        assert printed.noise * mu / shift == pytest.approx(total, abs=0.006)


@pytest.mark.parametrize(("epsilon", "gain"), [(1, 1.82), (2, 1.70), (8, 1.41)])
def test_gain_of_the_conversion_alone(epsilon: float, gain: float) -> None:
    sigma = tc.algorithm_1(**{**CASE, "epsilon": epsilon}).details["sigma"]
    assert sigma * mu_from_epsilon_delta(epsilon, 1e-5) == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 20.0, "delta": 0.01}, "ln(1/delta)"),
        ({"alpha": 0.0009}, "below 1/N"),
        ({"steps": 249}, "quarter"),
        ({"alpha": 1.5}, "alpha"),
        ({"delta": 1.0}, "delta"),
    ],
)
def test_outside_its_conditions_it_raises(change: dict[str, float], words: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(words)) as caught:
        tc.algorithm_1(**{**CASE, **change})
    assert "\n" not in str(caught.value)


def test_the_printed_direction_of_the_condition_is_not_needed() -> None:
    """delta = 1e-5 is far below exp(-1), which the theorem forbids and its proof needs."""
    assert tc.algorithm_1(**CASE).noise > 0


def test_short_runs_collapse_unless_epochs_are_rounded_up() -> None:
    """Erratum 4: V = 0.7 for N = 1000, T = 100 has mu 1.38 times the claimed one."""
    short = {**CASE, "steps": 100}
    sigma = 2 * math.sqrt(math.log(1e5))
    collapsed = 4 * sigma * math.sqrt(tc.touched_nodes(1000, 100))
    assert tc.touched_nodes(1000, 100) == pytest.approx(0.7)
    rule = FreshPermutations(100, 1000)
    assert cost(0.01, rule, collapsed) * sigma == pytest.approx(1.38, abs=6e-3)
    with pytest.raises(SordinoError, match="whole_epochs"):
        tc.algorithm_1(**short)
    printed = tc.algorithm_1(**short, whole_epochs=True)
    assert printed.details["V"] == 7
    assert cost(0.01, rule, printed.noise) * sigma <= 1


@pytest.mark.parametrize(("T", "alpha", "ratio"), [(1000, 1e-3, 1.40), (10_000, 1e-4, 5.3)])
def test_small_alpha_would_break_it(T: int, alpha: float, ratio: float) -> None:
    """Erratum 8: N = 10 with alpha below 1/N: mu is 1.40 or 5.3 times the claimed one."""
    sigma = 2 * math.sqrt(math.log(1e5))
    noise = 4 * sigma * math.sqrt(tc.touched_nodes(10, T))
    assert cost(alpha, FixedBatches(T, 10), noise) * sigma == pytest.approx(ratio, rel=6e-3)
    with pytest.raises(SordinoError, match="below 1/N"):
        tc.algorithm_1(**{**CASE, "epoch_steps": 10, "steps": T, "alpha": alpha})


def test_inside_its_conditions_it_keeps_its_promise() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        N = int(rng.integers(1, 60))
        T = int(rng.integers(max(1, -(-N // 4)), 200))
        alpha = float(rng.uniform(1 / N, 1))
        printed = tc.algorithm_1(epsilon=1.0, delta=1e-5, epoch_steps=N, steps=T, alpha=alpha)
        mu = cost(alpha, FreshPermutations(T, N), printed.noise)
        assert mu * printed.details["sigma"] <= 1 + 1e-9, (N, T, alpha)
        assert epsilon_from_mu(mu, 1e-5) <= 1.0


# ---- Algorithm 2 -------------------------------------------------------------------------------------

LEVELS = {**CASE, "learning_rate": 1e-3, "lipschitz": 2.0, "smoothness": 5.0}


def test_algorithm_2_levels_with_the_smoothness() -> None:
    result = tc.algorithm_2(**LEVELS)
    log = math.log2(1000)
    assert result.sigma == pytest.approx(4 * math.sqrt(math.log(1e5)))
    assert result.gradient_early == pytest.approx(8 * result.sigma * math.sqrt(3 * log))
    assert result.gradient_late == pytest.approx(8 * result.sigma * math.sqrt(20 * log))
    # 2 L eta N, where 2 eta N is printed
    assert result.difference == pytest.approx(
        2 * 5 * 1e-3 * 1000 * result.sigma * math.sqrt(20 * log)
    )
    assert tc.algorithm_2(**LEVELS, batch_size=10).difference == pytest.approx(
        result.difference / 10
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"alpha": 1e-4}, "below 1/N"),
        ({"epsilon": 12.0}, "ln(1/delta)"),
        ({"epoch_steps": 5, "alpha": 0.5}, "at most 5"),
    ],
)
def test_algorithm_2_raises(change: dict[str, float], words: str) -> None:
    with pytest.raises(SordinoError, match=re.escape(words)):
        tc.algorithm_2(**{**LEVELS, **change})


@pytest.mark.parametrize(
    ("N", "T", "alpha", "claimed", "gain", "total"),
    [
        (1000, 5000, 0.01, 0.388, 2.78, 5.8),
        (509, 5090, 0.1, 0.299, 3.17, 6.7),
        (509, 5090, 0.01, 0.467, 2.53, 5.3),
    ],
)
def test_algorithm_2_exact_cost(
    N: int, T: int, alpha: float, claimed: float, gain: float, total: float
) -> None:
    result = tc.algorithm_2_cost(epoch_steps=N, steps=T, alpha=alpha)
    assert result == pytest.approx(claimed, abs=6e-4)
    assert math.sqrt(3 / result) == pytest.approx(gain, abs=0.006)
    sigma = 4 * math.sqrt(math.log(1e5))
    assert sigma * mu_from_epsilon_delta(1.0, 1e-5) / math.sqrt(result) == pytest.approx(
        total, abs=0.06
    )


def test_algorithm_2_cost_against_matrices() -> None:
    """Small case, all three streams as dense rows."""
    N, T, alpha = 6, 20, 0.3
    early, late = 3 * math.log2(N), 4 * math.ceil(T / N) * math.log2(N)
    gradients = {n for e in range(N, T + 1) for n in nodes_between(e - N + 1, e)}
    gradients |= {n for e in range(1, N) for n in nodes_between(1, e)}
    changes = [n for e in range(2 * N, T + 1) for n in nodes_between(e - N + 1, e)]
    best = 0.0
    for j in range(1, N + 1):
        uses = range(j, T + 1, N)

        def weight(node: tuple[int, int], uses: range = uses) -> float:
            return sum((1 - alpha) ** (node[1] - t) for t in uses if node[0] <= t <= node[1])

        total = sum(weight(n) ** 2 / (4 * (early if n[1] <= 2 * N else late)) for n in gradients)
        total += sum(weight(n) ** 2 for n in {*changes}) / late
        total += sum(weight(n) ** 2 for n in used_nodes(T)) / late
        best = max(best, total)
    assert tc.algorithm_2_cost(epoch_steps=N, steps=T, alpha=alpha) == pytest.approx(best)

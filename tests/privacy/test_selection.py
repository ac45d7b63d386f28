"""The price of keeping the best of several runs: the papers' values, and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import (
    delta_from_mu,
    epsilon_from_mu,
    epsilon_from_rdp,
    mu_from_epsilon_delta,
)
from sordino.privacy._selection import (
    SelectionGuarantee,
    StoppingLaw,
    base_mu_for,
    composed_mu,
    epsilon_of_selections,
)

RHO = 0.19635  # the papers' base run
LAWS = [
    StoppingLaw.with_mean(mean, eta)
    for mean, eta in itertools.product((1.5, 4.0, 10.0), (-0.5, 0.0, 0.5, 1.0, 2.0))
    if mean < 10 or eta >= 0  # a heavy tail takes long to sum
]


def selection(mu: float, law: StoppingLaw) -> SelectionGuarantee:
    return SelectionGuarantee(mu, law, "zero-out", "example")


@pytest.mark.parametrize(("mean", "epsilon", "share"), [(10, 5.3835, 0.219), (100, 6.1848, 0.166)])
def test_the_papers_values(mean: float, epsilon: float, share: float) -> None:
    # papers/04, oracle 13 and erratum (j).
    law = StoppingLaw.with_mean(mean)
    assert selection(math.sqrt(2 * RHO), law).epsilon(1e-8) == pytest.approx(epsilon, abs=1e-4)
    base = base_mu_for(4.0, 1e-8, law)
    assert base**2 == pytest.approx(share, abs=5e-4)
    assert selection(base, law).epsilon(1e-8) <= 4.0
    assert selection(base * (1 + 1e-9), law).epsilon(1e-8) > 4.0


@pytest.mark.parametrize("law", LAWS, ids=StoppingLaw.describe)
def test_the_laws_are_what_they_are_called(law: StoppingLaw) -> None:
    counts = np.arange(1, 4000)
    chances = np.array([law.probability(int(count)) for count in counts])
    assert chances.sum() == pytest.approx(1, abs=1e-9)
    assert chances @ counts == pytest.approx(law.mean, rel=1e-6)
    later = chances[1:50] / chances[:49]
    expected = (1 - law.gamma) * (counts[:49] + law.eta) / (counts[:49] + 1)
    np.testing.assert_allclose(later, expected, rtol=1e-10)


@pytest.mark.parametrize("law", LAWS, ids=StoppingLaw.describe)
def test_draws_invert_the_distribution_function(law: StoppingLaw) -> None:
    edges = np.cumsum([law.probability(count) for count in range(1, 30)])
    for count, edge in enumerate(edges[edges < 1 - 1e-8], start=1):
        assert law.draw(edge * (1 - 1e-9)) == count
        assert law.draw(edge * (1 + 1e-9)) == count + 1
    assert law.draw(0.0) == 1


def test_drawn_numbers_have_the_laws_frequencies() -> None:
    law = StoppingLaw.with_mean(3.0)
    drawn = np.array([law.draw(u) for u in np.random.default_rng(0).random(20_000)])
    for count in range(1, 6):
        chance = law.probability(count)
        sigma = math.sqrt(chance * (1 - chance) / len(drawn))
        assert abs(np.mean(drawn == count) - chance) < 5 * sigma


def neighbours(mu: float, cuts: int, order: NDArray[np.int64]) -> list[NDArray[np.float64]]:
    """A tiny mu-GDP mechanism: which bin a Gaussian falls into; bins by rising score."""
    edges = np.concatenate([[-np.inf], np.linspace(-2.5, 2.5 + mu, cuts - 1), [np.inf]])
    return [np.diff(ndtr(edges - shift))[order] for shift in (0.0, mu)]


def of_the_best(chances: NDArray[np.float64], law: StoppingLaw) -> NDArray[np.float64]:
    """Exact law of the best of K outputs: sum_k P[K = k] (F_j^k - F_{j-1}^k)."""
    below = np.concatenate([[0.0], np.minimum(np.cumsum(chances), 1.0)])
    total = np.zeros_like(below)
    for count in range(1, 3000):
        total += law.probability(count) * below**count
    total[-1] = 1.0
    return np.diff(total)


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LAWS),
    st.floats(0.1, 2.0),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2),
)
def test_the_bound_covers_the_exact_law_of_the_best(
    law: StoppingLaw, mu: float, seed: int, kind: int
) -> None:
    cuts = 12
    order = np.arange(cuts)
    if kind == 1:
        order = order[::-1]
    elif kind == 2:
        order = np.random.default_rng(seed).permutation(cuts)
    p, q = (of_the_best(chances, law) for chances in neighbours(mu, cuts, order))
    stated = selection(mu, law)
    for epsilon in (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0):
        for one, other in ((p, q), (q, p)):
            assert hockey_stick(one, other, epsilon) <= stated.delta(epsilon) + 1e-12
    orders = np.array([1.5, 2.0, 4.0, 8.0, 20.0])
    for order_, bound in zip(orders, stated.rdp(orders), strict=True):
        for one, other in ((p, q), (q, p)):
            exact = np.log(np.sum(one**order_ * other ** (1 - order_))) / (order_ - 1)
            assert exact <= bound + 1e-9


def test_the_best_is_really_less_private_than_one_run() -> None:
    # What is wrong with "best of ten runs" at the price of one.
    mu, law = 0.5, StoppingLaw.with_mean(10.0)
    p, q = (of_the_best(chances, law) for chances in neighbours(mu, 40, np.arange(40)))
    broken = [e for e in (0.25, 0.5, 1.0) if hockey_stick(q, p, e) > delta_from_mu(e, mu)]
    assert broken


@given(st.floats(0.01, 3.0), st.floats(1e-10, 1e-2))
def test_epsilon_and_delta_agree_and_cost_more_than_one_run(mu: float, delta: float) -> None:
    stated = selection(mu, StoppingLaw.with_mean(5.0))
    epsilon = stated.epsilon(delta)
    assert epsilon > epsilon_from_mu(mu, delta)
    assert stated.delta(epsilon) <= delta * 1.001


def test_a_given_order_is_never_better_than_the_best() -> None:
    stated = selection(0.5, StoppingLaw.with_mean(10.0))
    best = stated.epsilon(1e-6)
    for order in (1.5, 3.0, 7.0, 20.0, 100.0):
        (rdp,) = stated.rdp(np.array([order]))
        assert best <= epsilon_from_rdp(order, float(rdp), 1e-6) * (1 + 1e-9)


def test_more_trials_and_heavier_laws_cost_more() -> None:
    means = [selection(0.3, StoppingLaw.with_mean(mean)).epsilon(1e-6) for mean in (2, 10, 100)]
    assert means == sorted(means)
    etas = [selection(0.3, StoppingLaw.with_mean(10, eta)).epsilon(1e-6) for eta in (-0.5, 0, 1, 2)]
    assert etas == sorted(etas)
    # Ten runs composed cost more than a selection of ten on average.
    assert means[1] < epsilon_from_mu(0.3 * math.sqrt(10), 1e-6)


def test_selections_compose_with_one_another_and_with_gaussian_runs() -> None:
    one = selection(0.2, StoppingLaw.with_mean(10.0))
    alone = one.epsilon(1e-6)
    two = epsilon_of_selections([one, one], 0.0, 1e-6)
    assert alone < two <= 2 * one.epsilon(0.5e-6)
    assert epsilon_of_selections([], 0.2, 1e-6) >= epsilon_from_mu(0.2, 1e-6)
    assert alone < epsilon_of_selections([one], 0.2, 1e-6) < two


def test_a_total_variation_counts_on_both_sides() -> None:
    exact = selection(0.2, StoppingLaw.with_mean(10.0))
    near = SelectionGuarantee(0.2, exact.law, "zero-out", "example", distance=1e-8)
    assert exact.epsilon(1e-6) < near.epsilon(1e-6)
    assert near.delta(1.0) >= exact.delta(1.0) + (1 + math.e) * 1e-8
    assert near.delta(near.epsilon(1e-6)) <= 1e-6 * 1.001
    assert (
        SelectionGuarantee(0.2, exact.law, "zero-out", "example", None, 1e-3).epsilon(1e-6)
        == math.inf
    )


def test_shares_of_a_composition_add_up() -> None:
    for runs in (1, 2, 3, 7, 100):
        assert math.hypot(*[composed_mu(0.7, runs)] * runs) <= 0.7


def test_a_guarantee_is_a_sentence_and_reads_back() -> None:
    stated = SelectionGuarantee(0.2, StoppingLaw.with_mean(10.0, 1.0), "zero-out", "user", 1e-6)
    assert "geometric law with mean 10" in str(stated)
    assert "one user's contributions" in str(stated)
    assert f"{stated.epsilon(1e-6):.2f}"[:3] in str(stated)
    assert SelectionGuarantee.from_json(stated.to_json()) == stated
    assert stated.under_replace_one().base_mu == 0.4
    assert stated.under_replace_one().under_replace_one() == stated.under_replace_one()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StoppingLaw(-1.0, 0.5),
        lambda: StoppingLaw(0.0, 1.0),
        lambda: StoppingLaw.with_mean(1.0),
        lambda: StoppingLaw.with_mean(1e9),
        lambda: selection(0.0, LAWS[0]),
        lambda: selection(0.1, LAWS[0]).delta(-1.0),
        lambda: LAWS[0].draw(1.0),
        lambda: SelectionGuarantee.from_json({"kind": "selection", "version": 9}),
        lambda: SelectionGuarantee.from_json({"kind": "selection", "version": 1}),
        lambda: base_mu_for(1e-9, 1e-8, StoppingLaw.with_mean(100.0)),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: object) -> None:
    with pytest.raises(SordinoError):
        wrong()  # type: ignore[operator]


def test_a_search_gets_less_than_a_single_run() -> None:
    for epsilon in (0.5, 1.0, 4.0):
        assert base_mu_for(epsilon, 1e-6, LAWS[0]) < mu_from_epsilon_delta(epsilon, 1e-6)

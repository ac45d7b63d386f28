"""The noisy minimum: exact selection probabilities, and what the wrong sign would cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.integrate import quad

from sordino._base.errors import SordinoError
from sordino.privacy._gdp import delta_from_mu
from sordino.privacy._noisy_min import mu_of_pure, noisy_min, pure_of_mu


def probability(scores: Sequence[float], scale: float, j: int) -> float:
    """P(argmin_k (score_k - Exp(scale)) = j), by numerical integration over j's own draw."""
    gaps = [(score - scores[j]) / scale for k, score in enumerate(scores) if k != j]

    def density(z: float) -> float:
        return math.exp(-z) * math.prod(-math.expm1(-max(0.0, z + gap)) for gap in gaps)

    start = max([0.0, *(-gap for gap in gaps)])
    found, _ = quad(density, start, start + 60, epsabs=0, epsrel=1e-11, limit=400)
    return found


def wrong_probability(scores: Sequence[float], scale: float, j: int) -> float:
    """P(argmin_k (score_k + Exp(scale)) = j): the mechanism of the published code."""
    gaps = [(score - scores[j]) / scale for k, score in enumerate(scores) if k != j]

    def density(z: float) -> float:
        return math.exp(-z - sum(max(0.0, z - gap) for gap in gaps))

    found, _ = quad(density, 0, 60, epsabs=0, epsrel=1e-11, limit=400)
    return found


def worst_loss(
    law: Callable[[Sequence[float], float, int], float],
    scores: Sequence[float],
    changes: Sequence[Sequence[float]],
    scale: float,
) -> float:
    """Largest |log likelihood ratio| over outcomes and neighbours."""
    worst = 0.0
    for change in changes:
        other = [score + step for score, step in zip(scores, change, strict=True)]
        for j in range(len(scores)):
            ratio = law(scores, scale, j) / law(other, scale, j)
            worst = max(worst, abs(math.log(ratio)))
    return worst


SCORES = [[0.0, 0.0, 0.0], [0.0, 0.4, 3.0], [5.0, 0.0, 1.0], [0.0, 2.0, 2.0, 2.0]]


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_monotone_neighbours_differ_by_at_most_epsilon(scores: list[float], epsilon: float) -> None:
    """A record adds a loss in [0, 1] to every score: scale 1/epsilon is enough."""
    changes = list(itertools.product((0.0, 0.5, 1.0), repeat=len(scores)))
    assert worst_loss(probability, scores, changes, 1 / epsilon) <= epsilon * (1 + 1e-8)


def test_the_bound_is_attained() -> None:
    """A far-off candidate that comes closer by Delta becomes e^eps times as likely."""
    loss = worst_loss(probability, [30.0, 0.0], [(0.0, 1.0)], 1.0)
    assert loss == pytest.approx(1.0, rel=1e-6)


def test_replacement_needs_twice_the_noise() -> None:
    changes = list(itertools.product((-1.0, 0.0, 1.0), repeat=3))
    for scores in ([0.0, 0.4, 3.0], [5.0, 0.0, 1.0]):
        assert worst_loss(probability, scores, changes, 1.0) > 1.5
        assert worst_loss(probability, scores, changes, 2.0) <= 1 + 1e-8


def test_the_published_sign_loses_twenty_times_more() -> None:
    """argmin(score + Exp) with 21 candidates: all 20 others must be pushed above the winner."""
    scores = [1.5, *[0.0] * 20]
    change = (0.0, *[1.0] * 20)  # monotone: one record adds 1 to all scores but the first
    epsilon = 0.1
    wrong = worst_loss(wrong_probability, scores, [change], 1 / epsilon)
    right = worst_loss(probability, scores, [change], 1 / epsilon)
    assert wrong == pytest.approx(20 * epsilon, rel=1e-6)
    assert right <= epsilon * (1 + 1e-8)


def test_frequencies_are_the_exact_probabilities() -> None:
    scores, scale, draws = [0.0, 0.5, 1.5, 0.2], 1.3, 20_000
    rng = np.random.default_rng(1)
    counts = np.bincount([noisy_min(scores, scale, rng) for _ in range(draws)], minlength=4)
    exact = np.array([probability(scores, scale, j) for j in range(4)])
    assert exact.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_array_less(np.abs(counts / draws - exact), 5 * np.sqrt(exact / draws))


def test_little_noise_finds_the_minimum_and_a_generator_repeats() -> None:
    scores = [3.0, 1.0, 2.0]
    assert noisy_min(scores, 1e-9, np.random.default_rng(0)) == 1
    first, second = (
        [noisy_min(scores, 2.0, rng) for _ in range(50)]
        for rng in (np.random.default_rng(5), np.random.default_rng(5))
    )
    assert first == second


@pytest.mark.parametrize("scores", [[], [[1.0]], [1.0, math.nan], [math.inf, 0.0]])
def test_bad_scores_are_refused(scores: list[float]) -> None:
    with pytest.raises(SordinoError, match="finite scores"):
        noisy_min(scores, 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("epsilon", [1e-9, 1e-4, 0.1, 0.999, 1.0, 3.0, 30.0])
def test_pure_privacy_as_gdp(epsilon: float) -> None:
    """Randomized response is the worst: its corner lies on or above the curve of mu_of_pure."""
    mu = mu_of_pure(epsilon)
    assert pure_of_mu(mu) <= epsilon
    assert pure_of_mu(mu) == pytest.approx(epsilon, rel=1e-10)
    assert mu_of_pure(pure_of_mu(mu)) <= mu
    # delta(0) = total variation: (e^eps - 1)/(e^eps + 1) for randomized response.
    assert delta_from_mu(0.0, mu) == pytest.approx(math.tanh(epsilon / 2), rel=1e-9)
    assert delta_from_mu(0.0, mu) >= math.tanh(epsilon / 2)


def test_small_epsilons_cost_half_pi() -> None:
    assert mu_of_pure(1e-6) ** 2 == pytest.approx(math.pi / 2 * 1e-12, rel=1e-9)

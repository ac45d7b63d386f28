"""What sums over cohorts hide: the covariance of their noise, and the figures of papers/02 2.6, 5.4."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sordino.together.federated._agreeing import agree
from sordino.together.federated._cohorts import (
    Cohorts,
    fixed_cohorts,
    random_cohorts,
    round_robin_cohorts,
)
from sordino.together.federated._sum_stream import (
    SumStream,
    observers,
)
from tests.support.federated import expected_precision, precision_bounds, tree_mu_squared


def cohorts_at_random(M: int, m: int, T: int, seed: int) -> Cohorts:
    agreement = agree(clients=M, per_round=m, rounds=T, parameters=1, mu=1.0, cap=T)
    return random_cohorts(agreement, seed)


def test_three_clients_by_hand() -> None:
    """papers/02 oracle 6."""
    stream = SumStream.of(Cohorts(3, np.array([[0, 1], [1, 2], [0, 2]])))
    np.testing.assert_array_equal(stream.dense(), [[2, -1, -1], [-1, 3, -1], [-1, -1, 4]])
    np.testing.assert_allclose(stream.precisions(), [0.846154, 0.538462, 0.384615], atol=5e-7)


def test_one_client_is_its_own_chain() -> None:
    """papers/02 oracle 4: sigma^2 = (1, 2, 3), against the accountant's own formula."""
    alone = Cohorts(1, np.zeros((3, 1), np.int64))
    found = SumStream.of(alone, growing=True).precisions()
    np.testing.assert_allclose(np.sqrt(found), [1.354006, 0.912871, 0.577350], atol=5e-7)
    for leak in (0.0, 0.7, 1.0):
        found = SumStream.of(alone, leak=leak, growing=True).precisions()
        expected = tree_mu_squared([None, 0, 1], [1.0, 2.0, 3.0], leak)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("leak", [0.0, 0.9, 1.0])
def test_precisions_are_the_diagonal_of_the_inverse_and_below_the_bounds(
    leak: float, growing: bool
) -> None:
    rng = np.random.default_rng(0)
    for M, m, T in [(1, 1, 6), (4, 2, 15), (9, 3, 40), (12, 1, 30), (5, 5, 20)]:
        members = np.stack([rng.permutation(M)[:m] for _ in range(T)])
        cohorts = Cohorts(M, members)
        settings: Any = {"leak": leak, "variance": 3.0, "growing": growing}
        stream = SumStream.of(cohorts, **settings)
        truth = np.diag(np.linalg.inv(stream.dense()))
        np.testing.assert_allclose(stream.precisions(), truth, rtol=1e-9)
        assert np.all(truth <= precision_bounds(cohorts, **settings) * (1 + 1e-9))


def test_fixed_cohorts_attain_the_bound_and_others_gain_more() -> None:
    """papers/02 5.4: K / m for fixed cohorts and for round-robin, T / M if all take part."""
    M, m, T = 12, 3, 40
    options: Any = {"parameters": 1, "mu": 1.0, "cap": T}
    part = agree(clients=M, per_round=m, rounds=T, **options)
    fixed = fixed_cohorts(part)
    assert SumStream.of(fixed).precisions()[0] == pytest.approx(T / m)
    np.testing.assert_allclose(SumStream.of(fixed).precisions(), precision_bounds(fixed))
    robin = round_robin_cohorts(part)
    assert SumStream.of(robin).precisions()[0] == pytest.approx(T * m / M / m)
    everyone = fixed_cohorts(agree(clients=M, rounds=T, **options))
    assert SumStream.of(everyone).precisions()[0] == pytest.approx(T / M)
    random = random_cohorts(part, 0)
    most = random.sent().max()
    assert SumStream.of(random).precisions().max() < 0.5 * most / m


def test_a_fixed_cohort_is_the_worst_of_all() -> None:
    """papers/02 5.4, exhaustively: M = 4, m = 2, at most 3 messages each; worst is K / m."""
    pairs = list(combinations(range(4), 2))
    cap, worst, at_worst, tried = 3, 0.0, [], 0

    def search(sequence: list[tuple[int, int]]) -> None:
        nonlocal worst, at_worst, tried
        counts = np.bincount(np.ravel(sequence), minlength=4)
        further = [pair for pair in pairs if all(counts[i] < cap for i in pair)]
        for pair in further:
            search([*sequence, pair])
        if further:
            return  # what comes later only tells more
        tried += 1
        # Independent of `SumStream`: from every client's own draws.
        columns: dict[tuple[int, int], np.ndarray] = {}
        last: dict[int, int] = {}
        for t, pair in enumerate(sequence):
            for i in pair:
                columns[i, t] = np.eye(len(sequence))[t]
                if i in last:
                    columns[i, last[i]][t] -= 1
                last[i] = t
        matrix = np.stack(list(columns.values()), axis=1)
        found = float(np.diag(np.linalg.inv(matrix @ matrix.T)).max())
        if found > worst + 1e-9:
            worst, at_worst = found, [sequence]
        elif found > worst - 1e-9:
            at_worst.append(sequence)

    search([pairs[0]])  # the others are the same with other names
    assert tried > 400
    assert worst == pytest.approx(cap / 2)
    assert [pairs[0]] * 3 + [pairs[5]] * 3 in at_worst


@pytest.mark.parametrize(
    ("m", "T", "expected"), [(50, 1200, 160), (20, 3000, 187), (80, 750, 125), (10, 1200, 188)]
)
def test_other_clients_see_far_less_than_the_server(m: int, T: int, expected: int) -> None:
    """papers/02 2.6 and 5.4: mu^2 against the server over mu^2 against who sees the iterates.

    The server's is that of the client who sent most, which varies by a few percent with the cohorts.
    """
    factors = []
    for seed in range(5):
        cohorts = cohorts_at_random(100, m, T, seed)
        factors.append(cohorts.sent().max() / SumStream.of(cohorts).precisions().max())
    assert np.mean(factors) == pytest.approx(expected, rel=0.04)
    if m == 50:
        assert min(factors) > 157
        assert max(factors) < 165


def test_formula_for_random_cohorts() -> None:
    assert expected_precision(100, 50, 1200) == pytest.approx(4.013, abs=5e-4)
    found = SumStream.of(cohorts_at_random(100, 50, 1200, 0)).precisions()
    assert found.max() == pytest.approx(4.037, rel=0.01)


def test_leaky_chains_gain_too() -> None:
    """papers/02 5.4: a factor of 113 at m = 50."""
    leak = 1 - 2.2 / 600
    cohorts = cohorts_at_random(100, 50, 1200, 0)
    alone = (1 - leak ** (2 * int(cohorts.sent().max()))) / (1 - leak**2)
    assert alone / SumStream.of(cohorts, leak=leak).precisions().max() == pytest.approx(
        113, rel=0.05
    )


@pytest.mark.parametrize(
    ("m", "T", "expected"), [(50, 1200, 1.007), (20, 3000, 1.033), (80, 750, 1.001)]
)
def test_under_a_secure_sum_the_noise_is_that_of_a_trusted_server(
    m: int, T: int, expected: float
) -> None:
    """papers/02 5.4: noise in the last w at equal mu, random cohorts over the trusted server's chain.

    w_T adds up all partial sums of the noise: weights T, T-1, .., 1 on the messages.
    """
    weights = np.arange(T, 0, -1.0)

    def noise(stream: SumStream) -> float:
        band = stream.band
        total = band[0] @ weights**2
        for gap in range(1, len(band)):
            total += 2 * (band[gap, : T - gap] * weights[gap:]) @ weights[: T - gap]
        return float(total * stream.precisions().max())

    trusted = SumStream.of(Cohorts(1, np.zeros((T, 1), np.int64)))
    ratio = np.mean(
        [noise(SumStream.of(cohorts_at_random(100, m, T, seed))) for seed in range(2)]
    ) / noise(trusted)
    assert ratio == pytest.approx(expected, abs=0.02)


def test_who_knows_some_noise_sees_the_sum_of_the_rest() -> None:
    cohorts = Cohorts(4, np.array([[0, 1], [1, 2], [2, 3], [0, 2], [1, 3], [0, 1]]))
    found = SumStream.of(cohorts, without=[3])
    rest = SumStream.of(cohorts).dense() - SumStream.of(cohorts, without=[0, 1, 2]).dense()
    np.testing.assert_allclose(found.dense(), rest, atol=1e-12)
    # Round 2 has nobody's noise but that of 2 and 3: with both known, it hides nothing.
    both = SumStream.of(cohorts, without=[2, 3]).precisions()
    assert np.isinf(both[2])
    assert np.isfinite(np.delete(both, 2)).all()


@pytest.mark.parametrize("trust", ["untrusted", "trusted", "secure-sum"])
def test_observers_of_an_agreement(trust: str) -> None:
    """Nobody who is agreed to see only noised numbers sees more than was agreed."""
    agreement = agree(
        clients=20, per_round=10, rounds=60, parameters=50, mu=2.0, trust=trust, cap=60
    )
    cohorts = random_cohorts(agreement, 1)
    seen = observers(agreement, cohorts, [100] * 20)
    assert seen.sums <= agreement.mu * (1 + 1e-6)
    if trust == "trusted":
        assert seen.server == np.inf
        assert seen.sums == pytest.approx(agreement.mu, rel=0.01)
    elif trust == "untrusted":
        assert seen.server <= agreement.mu * (1 + 1e-6)
        assert seen.server > 3 * seen.sums
    else:
        assert seen.server > agreement.mu


def test_examples_that_are_used_again_count_again() -> None:
    agreement = agree(
        clients=4, per_round=4, rounds=12, parameters=5, mu=2.0, uses=3, examples=4, cap=12
    )
    cohorts = fixed_cohorts(agreement)
    roots = np.sqrt(SumStream.of_agreement(agreement, cohorts).precisions())
    reach = agreement.clip / agreement.step
    found = observers(agreement, cohorts, [4] * 4).sums
    assert found == pytest.approx(
        reach * max(roots[i] + roots[i + 4] + roots[i + 8] for i in range(4))
    )

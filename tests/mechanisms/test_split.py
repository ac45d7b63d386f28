"""One budget split between several noises: the least error, at a joint sensitivity of exactly 1."""

from __future__ import annotations

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._catalogue import fit_mechanism
from sordino.parts.mechanisms._combined import Parallel, Phases
from sordino.parts.mechanisms._maps import Channels, Composed, LaggedMomentumMap
from sordino.parts.mechanisms._split import lagged_mechanism, optimal_scales, pattern_energies
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    MinSeparation,
    PatternList,
    SinglePass,
)
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import MatrixStrategy, TreeStrategy


def tree(workload: Workload, rule) -> Tree:
    return Tree.matched(workload, rule.steps)


def product(q: np.ndarray, a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """``max_j sum_p q_pj / x_p * sum_p a_p x_p`` for columns x of candidates."""
    return (q.T @ (1 / x)).max(axis=0) * (a @ x)


def test_one_worst_pattern_has_the_closed_form() -> None:
    """papers/00 section 4: rms = sum_p c_p sqrt(q_p E_p) where all maxima are at one pattern."""
    q = np.array([[3.0, 1.0, 2.0], [5.0, 5.0, 0.5], [0.7, 0.1, 0.6]])
    c, E = np.array([1.0, 0.2, 0.1]), np.array([0.5, 4.0, 2.0])
    split = optimal_scales([MatrixStrategy(np.diag(row)) for row in q], SinglePass(3), c, E)
    assert split.rms == pytest.approx(np.sum(c * np.sqrt(q.max(axis=1) * E)), rel=1e-9)
    s2 = np.square(split.scales)
    np.testing.assert_allclose(
        s2 / s2[0], (np.sqrt(q[:, 0] / E) / c) / s2[0] * split.rms, rtol=1e-6
    )
    assert (q / s2[:, None]).sum(axis=0).max() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_two_parts_with_conflicting_patterns_against_a_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, c, E = rng.random((2, 7)) ** 3 * 10, rng.uniform(0.1, 1, 2), rng.uniform(0.1, 5, 2)
    split = optimal_scales([MatrixStrategy(np.diag(row)) for row in q], SinglePass(7), c, E)
    ratio = np.geomspace(1e-4, 1e4, 200_001)
    grid = product(q, c**2 * E, np.stack([np.ones_like(ratio), ratio])).min()
    # The least value may be at a kink, which a grid misses by its step of 9e-5.
    assert grid * (1 - 1e-4) <= split.rms**2 <= grid * (1 + 1e-9)
    s2 = np.square(split.scales)
    assert (q / s2[:, None]).sum(axis=0).max() == pytest.approx(1, rel=1e-12)
    # Never worse than paying for the separate maxima, and here better.
    assert split.rms < np.sum(c * np.sqrt(q.max(axis=1) * E))


@pytest.mark.parametrize("seed", range(4))
def test_four_parts_reach_the_dual_bound(seed: int) -> None:
    """Any mixture of patterns bounds the best from below: sum_p sqrt(a_p q_p(mixture))."""
    rng = np.random.default_rng(seed)
    q, E = rng.random((4, 9)) ** 2, rng.uniform(0.1, 5, 4)
    split = optimal_scales([MatrixStrategy(np.diag(row)) for row in q], SinglePass(9), [1] * 4, E)
    mixture = np.full(9, 1 / 9)
    best = 0.0
    for step in range(20_000):
        mixed = q @ mixture
        best = max(best, float(np.sqrt(E * mixed).sum()))
        gradient = (np.sqrt(E / mixed) / 2) @ q
        mixture *= np.exp(gradient / gradient.max() * 3 / np.sqrt(step + 1))
        mixture /= mixture.sum()
    assert best <= split.rms * (1 + 1e-12)
    assert split.rms == pytest.approx(best, rel=1e-4)


def test_patterns_of_a_part_that_starts_late() -> None:
    """Fixed batches, listed patterns and brute force agree on what a part costs."""
    part, steps, start = TreeStrategy(7, 0.8), 13, 5
    X = part.gram()
    for separation in (1, 3, 4, 6, 9, 20):
        rule = FixedBatches(steps, separation)
        expected = []
        for pattern in rule.patterns():
            own = [t - start for t in pattern if start <= t < start + 7]
            expected.append(X[np.ix_(own, own)].sum())
        np.testing.assert_allclose(pattern_energies(part, rule, start), expected, atol=1e-12)
        listed = PatternList(steps, tuple(rule.patterns()))
        np.testing.assert_allclose(pattern_energies(part, listed, start), expected, atol=1e-12)
    assert pattern_energies(part, SinglePass(13), 5)[:5].tolist() == [0.0] * 5


def test_bad_parts_are_refused() -> None:
    part, rule = TreeStrategy(4), SinglePass(4)
    with pytest.raises(SordinoError, match="got 1, 2, 1 and 1"):
        optimal_scales([part], rule, [1.0, 1.0], [1.0])
    with pytest.raises(SordinoError, match="got 0, 0, 0 and 0"):
        optimal_scales([], rule, [], [])
    with pytest.raises(SordinoError, match="every energy must be"):
        optimal_scales([part], rule, [1.0], [0.0])
    with pytest.raises(SordinoError, match="does not fit into a run of 4"):
        optimal_scales([part], rule, [1.0], [1.0], [1])
    with pytest.raises(SordinoError, match="short enough to list"):
        pattern_energies(TreeStrategy(64), FreshPermutations(64, 8))


# ---- the lag-one-epoch mechanism -----------------------------------------------------------------


def bounds_of(steps: int, lag: int, clips: tuple[float, ...]) -> np.ndarray:
    lagged = np.where(np.arange(steps) < lag, clips[0], clips[1])
    return np.stack([lagged, *(np.full(steps, c) for c in clips[2:])], axis=1)


@pytest.mark.parametrize("name", ["tree", "blt", "toeplitz", "independent"])
@pytest.mark.parametrize("residual", [(), (0.1,)])
def test_lagged_mechanism_is_the_best_split_at_sensitivity_one(name: str, residual) -> None:
    T, B, beta, gamma = 40, 8, 0.9, 0.1
    rule, clips = FixedBatches(T, B), (1.0, 0.19, *residual)
    iterate_map = Composed((LaggedMomentumMap(B, beta, gamma, 0.1), Workload.prefix()))
    if residual:
        iterate_map = Channels((iterate_map, Workload.ema(0.1).then(Workload.prefix())))
    asked = []

    def fit(workload, part_rule):
        asked.append((workload.ratios, part_rule))
        return fit_mechanism(name, workload, part_rule)

    made = lagged_mechanism(
        steps=T, lag=B, beta=beta, clips=clips, participation=rule, fit=fit, iterate_map=iterate_map
    )
    wanted = [((beta,), FixedBatches(B, B)), ((beta,), FixedBatches(T - B, B))]
    assert asked == wanted + [((beta,), rule)] * len(residual)
    assert made.boundaries == (B,)
    assert made.channels == 1 + len(residual)
    assert sensitivity(made.strategy(), rule).value == pytest.approx(1, rel=2e-7)
    weights = bounds_of(T, B, clips)
    weights = weights if residual else weights[:, 0]

    def cost(mechanism: Phases | Parallel) -> float:
        sens = sensitivity(mechanism.strategy(), rule).value
        return sens * float(np.sqrt(np.mean(mechanism.workload_error(iterate_map, weights) ** 2)))

    least = cost(made)
    phases = made.parts[0] if isinstance(made, Parallel) else made
    assert isinstance(phases, Phases)
    for factor in (0.9, 0.99, 1.01, 1.1):
        other = Phases(phases.parts, (phases.scales[0] * factor, phases.scales[1]))
        moved = Parallel((other, made.parts[1]), made.scales) if residual else other
        assert cost(moved) > least
        if residual:
            moved = Parallel(made.parts, (1.0, made.scales[1] * factor))
            assert cost(moved) > least


@pytest.mark.parametrize("steps", [1, 5, 8])
def test_a_run_within_one_epoch_has_one_phase(steps: int) -> None:
    iterate_map = LaggedMomentumMap(8, 0.9, 0.1, 0.1)
    for rule in (FixedBatches(steps, 8), SinglePass(steps)):
        made = lagged_mechanism(
            steps=steps,
            lag=8,
            beta=0.9,
            clips=(1.0, 0.2),
            participation=rule,
            fit=tree,
            iterate_map=iterate_map,
        )
        assert [part.steps for part in made.parts] == [steps]
        assert sensitivity(made.strategy(), rule).value == pytest.approx(1, rel=2e-7)
    both = lagged_mechanism(
        steps=steps,
        lag=8,
        beta=0.9,
        clips=(1.0, 0.2, 0.1),
        participation=FixedBatches(steps, 8),
        fit=tree,
        iterate_map=Channels((iterate_map, Workload.ema(0.1))),
    )
    assert both.channels == 2
    assert both.boundaries == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"participation": FixedBatches(12, 3)},
            "need fixed batches with 4 steps in an epoch, or cyclic",
        ),
        ({"participation": FreshPermutations(12, 4)}, "need fixed batches"),
        ({"participation": MinSeparation(12, 4, 3)}, "need fixed batches"),
        ({"participation": SinglePass(12)}, "need fixed batches"),
        ({"participation": FixedBatches(13, 4)}, "has 13 steps, but the run has 12"),
        ({"clips": (1.0, 0.1, 0.1)}, "with a map of two, got"),
        ({"clips": (1.0,)}, "clips must be"),
        ({"clips": (1.0, 0.0)}, "every clip must be"),
        ({"lag": 0}, "lag must be a whole number"),
        ({"beta": 1.5}, "beta must be between 0 and 1"),
    ],
)
def test_what_the_recursion_does_not_hold_for_is_refused(change, message: str) -> None:
    setting = {
        "steps": 12,
        "lag": 4,
        "beta": 0.9,
        "clips": (1.0, 0.2),
        "participation": FixedBatches(12, 4),
        "fit": tree,
        "iterate_map": LaggedMomentumMap(4, 0.9, 0.1, 0.1),
    }
    with pytest.raises(SordinoError, match=message):
        lagged_mechanism(**{**setting, **change})

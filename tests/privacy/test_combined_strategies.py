"""Phases and parallel channels against brute force: every pattern, every direction, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.privacy import _sensitivity as module
from sordino.privacy._participation import FixedBatches, SinglePass
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import (
    MatrixStrategy,
    ParallelStrategy,
    PhasesStrategy,
    ToeplitzStrategy,
    TreeStrategy,
)

from .brute_force import RTOL, best_vectors, fixed_patterns, gram
from .test_sensitivity import RULES, STRATEGIES, random_rule, random_strategy


def random_phases(rng, steps):
    """A block-diagonal strategy, and its Gram matrix from the released rows."""
    cuts = np.sort(rng.choice(np.arange(1, steps), min(2, steps - 1), replace=False))
    lengths = np.diff([0, *cuts, steps])
    parts, scales, X, first = [], [], np.zeros((steps, steps)), 0
    for n in lengths:
        part, W, Sigma = random_strategy(str(rng.choice(STRATEGIES)), int(n), rng)
        scale = float(rng.uniform(0.3, 3))
        parts.append(part)
        scales.append(scale)
        # Noise that is `scale` times as large has covariance scale^2 Sigma.
        X[first : first + n, first : first + n] = gram(W, scale**2 * Sigma)
        first += n
    return PhasesStrategy(tuple(parts), tuple(scales)), X


def random_parallel(rng, steps):
    """Channels side by side (one of them in phases), and the Gram matrix of all their columns."""
    phases, first = random_phases(rng, steps)
    part, W, Sigma = random_strategy(str(rng.choice(STRATEGIES)), steps, rng)
    s, t = (float(x) for x in rng.uniform(0.3, 3, 2))
    X = np.zeros((2 * steps, 2 * steps))
    X[:steps, :steps] = first / s**2
    X[steps:, steps:] = gram(W, t**2 * Sigma)
    return ParallelStrategy((phases, part), (s, t)), X


def check(strategy, X, rule, patterns, clips, rng, enumerated):
    """`X` has one block of columns per channel; a unit adds to all of them in its steps."""
    channels = len(X) // strategy.steps
    c = np.tile(np.ones(strategy.steps) if clips is None else clips, channels)
    columns = [
        [p * strategy.steps + t for p in range(channels) for t in pattern] for pattern in patterns
    ]

    def energy(P):
        return float(np.abs(X[np.ix_(P, P)] * np.outer(c[P], c[P])).sum())

    np.testing.assert_allclose(strategy.gram(), X, atol=1e-9 * np.abs(X).max())
    for pattern, P in zip(patterns, columns, strict=True):
        found = strategy.block(pattern)
        np.testing.assert_allclose(found, X[np.ix_(P, P)], atol=1e-9 * np.abs(X).max())
    found = sensitivity(strategy, rule, clips)
    upper = max(map(energy, columns))
    assert found.value**2 >= upper * (1 - RTOL)
    if enumerated:
        assert found.value**2 == pytest.approx(upper, rel=RTOL, abs=1e-12)
    worst = sorted(columns, key=energy)[-3:]
    bound_is_tight = max(best_vectors(X, c, P, rng, starts=2, rounds=40) for P in worst)
    assert found.value**2 >= bound_is_tight * (1 - RTOL)
    if found.exact:
        assert found.value**2 == pytest.approx(bound_is_tight, rel=1e-6, abs=1e-12)
    if found.pattern is not None:
        P = columns[patterns.index(list(found.pattern))]
        assert energy(P) == pytest.approx(found.value**2, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("rule_kind", RULES)
@pytest.mark.parametrize("seed", range(8))
def test_phases_against_brute_force(rule_kind, seed, monkeypatch):
    rng = np.random.default_rng([seed, RULES.index(rule_kind), 1])
    steps = int(rng.integers(2, 9))
    strategy, X = random_phases(rng, steps)
    rule, patterns = random_rule(rule_kind, steps, rng)
    clips = [None, rng.uniform(0.1, 2, steps)][seed % 2]
    check(strategy, X, rule, patterns, clips, rng, enumerated=True)
    monkeypatch.setattr(module, "ENUMERATION_LIMIT", 0)
    check(strategy, X, rule, patterns, clips, rng, enumerated=False)


@pytest.mark.parametrize("rule_kind", RULES)
@pytest.mark.parametrize("seed", range(8))
def test_parallel_against_brute_force(rule_kind, seed, monkeypatch):
    rng = np.random.default_rng([seed, RULES.index(rule_kind), 2])
    steps = int(rng.integers(2, 6))
    strategy, X = random_parallel(rng, steps)
    rule, patterns = random_rule(rule_kind, steps, rng)
    check(strategy, X, rule, patterns, None, rng, enumerated=True)
    monkeypatch.setattr(module, "ENUMERATION_LIMIT", 0)
    check(strategy, X, rule, patterns, None, rng, enumerated=False)


def test_every_separation_meets_the_parts_where_they_are():
    rng = np.random.default_rng(0)
    for steps in (2, 5, 11):
        strategy, X = random_phases(rng, steps)
        for separation in range(1, steps + 3):
            for clips in (None, rng.random(steps)):
                c = np.ones(steps) if clips is None else clips
                Y = np.abs(X) * np.outer(c, c)
                expected = [Y[np.ix_(P, P)].sum() for P in fixed_patterns(steps, separation)]
                found = strategy.fixed_batch_energy(separation, clips)
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_long_runs_need_no_dense_matrix():
    """Trees and buffers over 110,000 steps, exact: the parts' own closed forms, added up."""
    tree = TreeStrategy(10_000, 0.99)
    buffers = ToeplitzStrategy.from_blt([0.99], [0.1], 100_000)
    both = PhasesStrategy((tree, buffers), (2.0, 0.5))
    rule = FixedBatches(110_000, 10_000)
    found = sensitivity(both, rule)
    assert found.exact
    parts = tree.fixed_batch_energy(10_000) / 4 + buffers.fixed_batch_energy(10_000) * 4
    assert found.value**2 == pytest.approx(parts.max(), rel=1e-12)
    beside = ParallelStrategy((both, TreeStrategy(110_000)), (1.0, 1.0))
    assert sensitivity(beside, SinglePass(110_000)).exact
    with pytest.raises(SordinoError, match="dense"):
        both.gram()


def test_one_part_that_may_not_be_attained_is_enough():
    """Three columns at 120 degrees cannot all be lined up; a tree beside them changes nothing."""
    angles = 2 * np.pi / 3 * np.arange(3)
    C = np.stack([np.cos(angles), np.sin(angles)])
    bad = MatrixStrategy(C.T @ C)
    for strategy in (
        ParallelStrategy((bad, TreeStrategy(3)), (1.0, 1.0)),
        PhasesStrategy((bad, TreeStrategy(3)), (1.0, 1.0)),
    ):
        assert not sensitivity(strategy, FixedBatches(strategy.steps, 1)).exact
    good = PhasesStrategy((TreeStrategy(3), TreeStrategy(3, 0.5)), (1.0, 2.0))
    assert sensitivity(good, FixedBatches(6, 1)).exact


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PhasesStrategy((), ()), "every phase needs a strategy and a scale"),
        (lambda: PhasesStrategy((TreeStrategy(2),), (1.0, 2.0)), "got 1 and 2"),
        (lambda: PhasesStrategy((TreeStrategy(2),), (0.0,)), "must be a positive number"),
        (lambda: ParallelStrategy((TreeStrategy(2),), (np.inf,)), "must be a positive number"),
        (
            lambda: ParallelStrategy((TreeStrategy(2), TreeStrategy(3)), (1.0, 1.0)),
            "the same number of steps",
        ),
        (
            lambda: PhasesStrategy((ParallelStrategy((TreeStrategy(2),) * 2, (1, 1)),), (1.0,)),
            "several channels of its own",
        ),
    ],
)
def test_bad_combinations_are_refused(make, message):
    with pytest.raises(SordinoError, match=message):
        make()

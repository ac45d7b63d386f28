"""The one formula against brute force: every pattern, every direction, straight from the release."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.privacy import _dyadic as dyadic
from sordino.privacy import _sensitivity as module
from sordino.privacy._dyadic import tree_fresh_energy
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    MinSeparation,
    PatternList,
    SinglePass,
)
from sordino.privacy._sensitivity import is_sign_balanced, sensitivity
from sordino.privacy._strategy import MatrixStrategy, ToeplitzStrategy, TreeStrategy
from tests.support.dyadic import all_nodes, decoder

from .brute_force import (
    RTOL,
    best_vectors,
    fixed_patterns,
    fresh_patterns,
    gram,
    same_direction,
    separated_patterns,
    toeplitz_encoder,
    tree_matrix,
    tree_nodes,
)

# ---- random cases --------------------------------------------------------------------------------


def random_strategy(kind, steps, rng):
    """The strategy under test and its release (W, Sigma) written out by hand."""
    identity = np.eye(steps)
    if kind == "encoder, mixed signs":
        C = np.tril(rng.normal(size=(steps, steps)))
        return MatrixStrategy.from_encoder(C), C, identity
    if kind == "encoder, nonnegative":
        C = np.tril(rng.random((steps, steps)))
        return MatrixStrategy.from_encoder(C), C, identity
    if kind == "release with variances":
        W = rng.normal(size=(steps + 3, steps)) * (rng.random((steps + 3, steps)) < 0.7)
        variances = rng.uniform(0.1, 4, steps + 3)
        return MatrixStrategy.from_release(W, variances), W, np.diag(variances)
    if kind == "release with covariance":
        rows = steps + int(rng.integers(0, 4))
        W, half = rng.normal(size=(rows, steps)), rng.normal(size=(rows, rows))
        Sigma = half @ half.T + 0.3 * np.eye(rows)
        return MatrixStrategy.from_release(W, Sigma), W, Sigma
    if kind == "sign-balanced":  # nonnegative up to the sign of each column
        C = np.tril(rng.random((steps, steps))) * rng.choice([-1.0, 1.0], steps)
        return MatrixStrategy.from_encoder(C), C, identity
    if kind == "random walk":
        A = np.tril(np.ones((steps, steps)))
        return MatrixStrategy.from_encoder(np.linalg.inv(A)), np.linalg.inv(A), identity
    if kind.startswith("toeplitz"):
        c = rng.random(int(rng.integers(1, steps + 3)))
        c[0] += 0.1
        if kind == "toeplitz, monotone":
            c = np.sort(c)[::-1]
        if kind == "toeplitz, mixed signs":
            c = c * rng.choice([-1.0, 1.0], len(c))
        norms = None
        if kind == "toeplitz, normalised":
            norms = np.linalg.norm(toeplitz_encoder(c, steps), axis=0)
        C = toeplitz_encoder(c, steps, norms)
        return ToeplitzStrategy(c, steps, norms), C, identity
    if kind == "blt":
        q = int(rng.integers(1, 4))
        theta, omega = rng.uniform(0, 1, q), rng.uniform(-0.2, 0.5, q)
        c = [1.0] + [float(omega @ theta**k) for k in range(steps - 1)]
        return (
            ToeplitzStrategy.from_blt(theta, omega, steps),
            toeplitz_encoder(c, steps),
            identity,
        )
    assert kind == "tree"
    beta = float(rng.choice([1.0, rng.uniform(0, 1)]))
    return TreeStrategy(steps, beta), tree_matrix(tree_nodes(steps), steps, beta), identity


STRATEGIES = [
    "encoder, mixed signs",
    "encoder, nonnegative",
    "release with variances",
    "release with covariance",
    "sign-balanced",
    "random walk",
    "toeplitz, monotone",
    "toeplitz, not monotone",
    "toeplitz, mixed signs",
    "toeplitz, normalised",
    "blt",
    "tree",
]


def random_rule(kind, steps, rng):
    """The rule under test and every pattern it allows, listed by hand."""
    if kind == "single pass":
        return SinglePass(steps), [[t] for t in range(steps)]
    if kind == "fixed batches":
        b = int(rng.integers(1, steps + 2))
        return FixedBatches(steps, b), fixed_patterns(steps, b)
    if kind == "fresh permutations":
        b = int(rng.integers(1, 5)) if steps <= 8 else int(rng.integers(3, 7))
        return FreshPermutations(steps, b), fresh_patterns(steps, b)
    if kind == "min separation":
        b, k = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        return MinSeparation(steps, b, k), separated_patterns(steps, b, k)
    assert kind == "pattern list"
    rows = [
        sorted(rng.choice(steps, int(rng.integers(1, steps + 1)), replace=False).tolist())
        for _ in range(int(rng.integers(1, 6)))
    ]
    return PatternList(steps, tuple(map(tuple, rows))), rows


RULES = ["single pass", "fixed batches", "fresh permutations", "min separation", "pattern list"]
REPEATS = 6  # 12 strategies x 5 rules x 6 = 360 cases, each with and without enumeration


def check(strategy_kind, rule_kind, seed, *, enumerated):
    rng = np.random.default_rng(
        [STRATEGIES.index(strategy_kind), RULES.index(rule_kind), seed, 20240611]
    )
    steps = int(rng.integers(1, 10))
    strategy, W, Sigma = random_strategy(strategy_kind, steps, rng)
    rule, patterns = random_rule(rule_kind, steps, rng)
    clips = [None, rng.uniform(0.1, 2, steps), rng.random(steps) * (rng.random(steps) < 0.7)][
        seed % 3
    ]
    X, c = gram(W, Sigma), np.ones(steps) if clips is None else clips
    np.testing.assert_allclose(strategy.gram(), X, atol=1e-9 * np.abs(X).max())
    found = sensitivity(strategy, rule, clips)
    squared = found.value**2
    plain = max(same_direction(X, c, P) for P in patterns)
    upper = max(float(np.abs(X[np.ix_(P, P)] * np.outer(c[P], c[P])).sum()) for P in patterns)
    # 1. Never below what a unit can really do.
    assert squared >= plain * (1 - RTOL)
    # 2. The formula itself: exact enumeration gives it, other paths may only be above.
    assert squared >= upper * (1 - RTOL)
    if enumerated or rule_kind in ("single pass", "fixed batches", "pattern list"):
        assert squared == pytest.approx(upper, rel=RTOL, abs=1e-12)
    # 3. Nonnegative interactions: `exact` means attained by equal contributions.
    nonnegative = (-1e-12 * np.abs(X).max() <= X).all()
    if found.exact and nonnegative:
        assert squared == pytest.approx(plain, rel=RTOL, abs=1e-12)
    # 4. Mixed signs: nobody beats the value; `exact` means somebody attains it.
    if not nonnegative:
        by_size = sorted(
            patterns,
            key=lambda P: -float(np.abs(X[np.ix_(P, P)] * np.outer(c[P], c[P])).sum()),
        )[:4]
        bound_is_tight = max(best_vectors(X, c, P, rng, starts=2, rounds=40) for P in by_size)
        assert squared >= bound_is_tight * (1 - RTOL)
        if found.exact:
            assert squared == pytest.approx(bound_is_tight, rel=1e-6, abs=1e-12)
    # 5. If it names a pattern, that one can occur and has this very energy.
    if found.pattern is not None:
        P = list(found.pattern)
        assert P in patterns
        energy = float(np.abs(X[np.ix_(P, P)] * np.outer(c[P], c[P])).sum())
        assert energy == pytest.approx(squared, rel=1e-9, abs=1e-12)
    return found, upper


@pytest.mark.parametrize("rule_kind", RULES)
@pytest.mark.parametrize("strategy_kind", STRATEGIES)
def test_against_brute_force(strategy_kind, rule_kind):
    for seed in range(REPEATS):
        check(strategy_kind, rule_kind, seed, enumerated=True)


@pytest.mark.parametrize("rule_kind", ["fresh permutations", "min separation"])
@pytest.mark.parametrize("strategy_kind", STRATEGIES)
def test_bounds_without_enumeration(strategy_kind, rule_kind, monkeypatch):
    monkeypatch.setattr(module, "ENUMERATION_LIMIT", 0)
    ratios = []
    for seed in range(2 * REPEATS):
        found, upper = check(strategy_kind, rule_kind, seed, enumerated=False)
        ratios.append(found.value / math.sqrt(upper) if upper else 1.0)
        if found.exact:
            assert ratios[-1] == pytest.approx(1, rel=1e-9)
    assert np.median(ratios) < 1.5  # a bound, but not a useless one


def test_enumeration_in_chunks_finds_a_late_worst_pattern(monkeypatch):
    # 3^9 = 19683 patterns are several chunks of 4096; make the very last pattern the worst.
    steps = 27
    X = np.eye(steps) * np.linspace(1, 2, steps)
    found = sensitivity(MatrixStrategy(X), FreshPermutations(steps, 3))
    assert found.pattern == tuple(range(2, 27, 3))
    assert found.value**2 == pytest.approx(np.diag(X)[2::3].sum())


# ---- sign balance --------------------------------------------------------------------------------


def test_sign_balance_against_all_sign_choices():
    rng = np.random.default_rng(0)
    from itertools import product

    seen = set()
    for _ in range(300):
        k = int(rng.integers(1, 6))
        X = rng.choice([-1.0, 0.0, 1.0], (k, k), p=[0.2, 0.5, 0.3])
        X = np.triu(X, 1) + np.triu(X, 1).T + np.eye(k)
        possible = any((np.outer(e, e) * X >= 0).all() for e in product([-1.0, 1.0], repeat=k))
        assert is_sign_balanced(X) == possible
        seen.add(possible)
    assert seen == {True, False}


def test_random_walk_noise_is_bounded():
    # papers/03 section 2.3: the column sum says 1.000, the truth is 6.083.
    C = np.linalg.inv(np.tril(np.ones((10, 10))))
    assert np.linalg.norm(C.sum(axis=1)) == pytest.approx(1.0)
    found = sensitivity(MatrixStrategy.from_encoder(C), FixedBatches(10, 1))
    assert found.value == pytest.approx(6.083, abs=5e-4)
    assert found.exact  # alternating signs attain it
    toeplitz = sensitivity(ToeplitzStrategy([1.0, -1.0], 10), FixedBatches(10, 1))
    assert toeplitz.value == pytest.approx(found.value, rel=1e-12)


def test_three_columns_at_120_degrees():
    angles = 2 * np.pi * np.arange(3) / 3
    C = np.array([np.cos(angles), np.sin(angles)])
    strategy = MatrixStrategy.from_release(C, np.ones(2))
    found = sensitivity(strategy, FixedBatches(3, 1))
    assert found.value == pytest.approx(2.449490, abs=1e-6)
    assert not found.exact  # 2.121 is the truth
    truth = math.sqrt(best_vectors(C.T @ C, np.ones(3), [0, 1, 2], np.random.default_rng(0)))
    assert truth == pytest.approx(2.121, abs=5e-4)
    assert np.linalg.norm(C.sum(axis=1)) == pytest.approx(0, abs=1e-12)  # what a column sum says


def test_papers_03_oracle_5():
    c = [1.0, 0.5, 0.375, 0.3125]
    found = sensitivity(ToeplitzStrategy(c, 4), FixedBatches(4, 2))
    assert found.value == pytest.approx(math.sqrt(3.80078125), rel=1e-12)
    root = np.cumprod(np.r_[1.0, 1 - 0.5 / np.arange(1, 600)])
    found = sensitivity(ToeplitzStrategy(root, 600), FixedBatches(600, 100))
    assert found.value == pytest.approx(5.903139705, rel=1e-9)
    assert found.exact


# ---- the tree ------------------------------------------------------------------------------------


def test_compose_oracle():
    assert dyadic.nodes_between(1, 7) == [(1, 4), (5, 6), (7, 7)]
    assert dyadic.nodes_between(2, 7) == [(2, 2), (3, 4), (5, 6), (7, 7)]
    assert dyadic.nodes_between(3, 12) == [(3, 4), (5, 8), (9, 12)]
    assert dyadic.nodes_between(1, 8) == [(1, 8)]
    assert dyadic.nodes_between(1, 0) == []


def greedy_tiling(a, c):
    """papers/00 section 0, word for word."""
    if a > c:
        return []
    k = max(k for k in range(20) if (a - 1) % 2**k == 0 and a + 2**k - 1 <= c)
    return [(a, a + 2**k - 1), *greedy_tiling(a + 2**k, c)]


def test_compose_is_the_greedy_tiling():
    for first in range(1, 40):
        for last in range(first, 70):
            nodes = dyadic.nodes_between(first, last)
            assert nodes == greedy_tiling(first, last)
            covered = [i for a, b in nodes for i in range(a, b + 1)]
            assert covered == list(range(first, last + 1))


def test_used_nodes_oracle():
    used = dyadic.used_nodes(8)
    assert used == [(1, 1), (1, 2), (3, 3), (1, 4), (5, 5), (5, 6), (7, 7), (1, 8)]

    def participation(nodes, steps):
        return [sum(a <= t <= b for a, b in nodes) for t in range(1, steps + 1)]

    assert participation(used, 8) == [4, 3, 3, 2, 3, 2, 2, 1]
    assert participation(all_nodes(8), 8) == [4] * 8
    assert participation(dyadic.used_nodes(10), 10) == [4, 3, 3, 2, 3, 2, 2, 1, 2, 1]
    for steps in range(1, 70):
        assert len(dyadic.used_nodes(steps)) == steps
        by_hand = sorted((a + 1, b + 1) for a, b in tree_nodes(steps))
        assert sorted(dyadic.used_nodes(steps)) == by_hand


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 13, 32])
@pytest.mark.parametrize("beta", [1.0, 0.9, 0.25, 0.0])
def test_decoder_times_nodes_is_the_workload(steps, beta):
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    A = np.where(lag >= 0, beta ** np.maximum(lag, 0.0), 0.0)
    C = dyadic.node_matrix(dyadic.used_nodes(steps), steps, beta)
    B = decoder(steps, beta)
    np.testing.assert_allclose(B @ C, A, atol=1e-12)
    np.testing.assert_array_equal(np.diag(B), 1)
    np.testing.assert_array_equal(np.triu(B, 1), 0)
    np.testing.assert_allclose(
        C, tree_matrix([(a - 1, b - 1) for a, b in dyadic.used_nodes(steps)], steps, beta)
    )


def test_prefix_noise_covariance_of_papers_03():
    B = decoder(4)
    np.testing.assert_array_equal(B @ B.T, [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 0], [0, 0, 0, 1]])
    assert sensitivity(TreeStrategy(4), SinglePass(4)).value ** 2 == pytest.approx(3)
    assert sensitivity(TreeStrategy(1023), SinglePass(1023)).value ** 2 == pytest.approx(10)
    assert sensitivity(TreeStrategy(1024), SinglePass(1024)).value ** 2 == pytest.approx(11)


# (B, T, alpha): all-fixed, all-fresh, used-fixed, used-fresh (papers/00 oracle 5)
MAX_SS = [
    (2, 4, 0.5, 5.5625, 5.5625, 2.640625, 2.640625),
    (3, 6, 0.1, 6.799441, 9.22, 4.799441, 4.799441),
    (3, 7, 0.1, 7.799441, 10.22, 5.799441, 5.799441),
    (4, 8, 0.1, 8.74266721, 8.74266721, 5.6090068047, 5.6090068047),
    (5, 12, 0.25, 8.3025503755, 10.732925415, 4.7873720862, 6.5939941406),
]


@pytest.mark.parametrize(("b", "T", "alpha", "af", "ar", "uf", "ur"), MAX_SS)
def test_max_ss_table(b, T, alpha, af, ar, uf, ur):
    W = dyadic.node_matrix(all_nodes(T), T, 1 - alpha)
    every = MatrixStrategy.from_release(W, np.ones(len(W)))
    used = TreeStrategy(T, 1 - alpha)
    fixed, fresh = FixedBatches(T, b), FreshPermutations(T, b)
    for strategy, rule, value in [
        (every, fixed, af),
        (every, fresh, ar),
        (used, fixed, uf),
        (used, fresh, ur),
    ]:
        found = sensitivity(strategy, rule)
        assert found.value**2 == pytest.approx(value, rel=1e-9)
        assert found.exact
    assert tree_fresh_energy(T, b, 1 - alpha)[0] == pytest.approx(ur, rel=1e-9)


def test_worst_patterns_of_the_table():
    assert sensitivity(TreeStrategy(12, 0.75), FreshPermutations(12, 5)).pattern == (4, 5, 10)
    W = dyadic.node_matrix(all_nodes(12), 12, 0.75)
    every = MatrixStrategy.from_release(W, np.ones(len(W)))
    assert sensitivity(every, FreshPermutations(12, 5)).pattern == (3, 7, 11)
    single = sensitivity(TreeStrategy(4, 0.9), FixedBatches(4, 4))
    assert single.value**2 == pytest.approx(2.341441, rel=1e-9)


def test_mu_of_the_tree_is_the_mahalanobis_norm():
    # papers/00 oracle 6: mean streams A e_P under the covariance B B^T of the released averages.
    alpha, T = 0.1, 8
    found = sensitivity(TreeStrategy(T, 0.9), FixedBatches(T, 4))
    assert found.pattern == (0, 4)
    mu = alpha * found.value
    assert mu == pytest.approx(0.23683341835, rel=1e-10)
    assert 2 * mu == pytest.approx(0.4736668367, rel=1e-10)
    lag = np.subtract.outer(np.arange(T), np.arange(T))
    A = np.where(lag >= 0, alpha * 0.9 ** np.maximum(lag, 0.0), 0.0)
    B = decoder(T, 0.9)
    shift = A[:, 0] + A[:, 4]
    assert math.sqrt(shift @ np.linalg.solve(B @ B.T, shift)) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize(
    ("b", "T", "alpha", "fixed", "fresh"),
    [
        (509, 5090, 0.1, 19.841, 34.195),
        (1000, 5000, 0.01, 24.449, 29.317),
        (509, 5090, 0.01, 37.909, 63.384),
    ],
)
def test_section_2_table_of_papers_00(b, T, alpha, fixed, fresh):
    strategy = TreeStrategy(T, 1 - alpha)
    assert sensitivity(strategy, FixedBatches(T, b)).value ** 2 == pytest.approx(fixed, abs=6e-4)
    found = sensitivity(strategy, FreshPermutations(T, b))
    assert found.value**2 == pytest.approx(fresh, abs=6e-4)


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.5, 0.0])
def test_fresh_tree_program_equals_brute_force(beta):
    cases = [(b, T) for b in range(1, 7) for T in range(1, 17) if b ** math.ceil(T / b) <= 1500]
    assert len(cases) > 60
    for b, T in cases:
        W = tree_matrix(tree_nodes(T), T, beta)
        best = max(float((W[:, P].sum(axis=1) ** 2).sum()) for P in fresh_patterns(T, b))
        energy, exact = tree_fresh_energy(T, b, beta)
        assert exact
        assert energy == pytest.approx(best, rel=1e-10), (b, T)


def test_thinned_fronts_only_round_up(monkeypatch):
    from sordino.privacy import _dyadic as dyadic_worst_case

    true, exact = tree_fresh_energy(60, 4, 0.93)
    assert exact
    monkeypatch.setattr(dyadic_worst_case, "_LONGEST_FRONT", 3)
    bound, exact = tree_fresh_energy(60, 4, 0.93)
    assert not exact
    assert true <= bound < 1.5 * true


# ---- end to end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_mahalanobis_distance_of_two_release_streams(seed):
    """papers/03 oracle 8: linear losses, one example in or out, all released sums."""
    rng = np.random.default_rng(seed)
    n, b, d, epochs, clip, sigma = 12, 3, 4, 3, 0.7, 1.9
    per_epoch = n // b
    T = per_epoch * epochs
    c = np.sort(rng.random(T))[::-1] + 0.05
    C = toeplitz_encoder(c, T)
    gradients = rng.normal(size=(n, d)) * 3  # gradient of a linear loss does not depend on x

    def clipped(g):
        return g * min(1.0, clip / np.linalg.norm(g))

    def mean_stream(skip):
        sums = np.zeros((T, d))
        for t in range(T):
            j = t % per_epoch
            for i in range(j * b, (j + 1) * b):
                if i != skip:
                    sums[t] += clipped(gradients[i])
        return sums

    noise = sigma * clip * np.linalg.inv(C)  # rows of the noise added to the sums
    Sigma = noise @ noise.T
    mu = sensitivity(ToeplitzStrategy(c, T), FixedBatches(T, per_epoch)).value / sigma
    distances = []
    for skip in range(n):
        shift = mean_stream(None) - mean_stream(skip)
        distances.append(math.sqrt(np.trace(shift.T @ np.linalg.solve(Sigma, shift))))
    assert max(distances) == pytest.approx(mu, rel=1e-8)


# ---- bad input -----------------------------------------------------------------------------------


def test_bad_input_is_refused():
    strategy = ToeplitzStrategy([1.0, 0.5], 6)
    with pytest.raises(SordinoError):
        sensitivity(strategy, FixedBatches(7, 2))
    for clips in ([1.0] * 5, [-1.0] * 6, [math.nan] * 6, [[1.0] * 6]):
        with pytest.raises(SordinoError):
            sensitivity(strategy, FixedBatches(6, 2), clips)
    for coefficients in ([], [0.0, 1.0], [1.0, math.nan], [[1.0]]):
        with pytest.raises(SordinoError):
            ToeplitzStrategy(coefficients, 4)
    for X in (np.ones((2, 3)), np.ones(3), [[math.inf]]):
        with pytest.raises(SordinoError):
            MatrixStrategy(X)
    with pytest.raises(SordinoError):
        MatrixStrategy.from_release(np.eye(2), [1.0, 0.0])
    with pytest.raises(SordinoError):
        MatrixStrategy.from_release(np.eye(2), [[1.0, 0.0], [0.0, -1.0]])
    with pytest.raises(SordinoError):
        ToeplitzStrategy([1.0], 9000).gram()


def test_negative_column_norms_cannot_hide_sensitivity():
    """Dividing a column by -1 changes signs, not the sensitivity: refuse it, or count it."""
    c, norms = np.array([1.0, 0.6, 0.3]), np.array([1.0, 1.0, -1.0, -1.0])
    true = sensitivity(ToeplitzStrategy(c, 4), FixedBatches(4, 1)).value
    try:
        found = sensitivity(ToeplitzStrategy(c, 4, norms), FixedBatches(4, 1)).value
    except SordinoError:
        return
    assert found >= true * (1 - RTOL)


def test_negative_beta_cannot_hide_sensitivity():
    """The tree's path for fixed batches adds node sums up before squaring: wrong for beta < 0."""
    W = tree_matrix(tree_nodes(4), 4, -0.9)
    X = W.T @ W
    try:
        found = sensitivity(TreeStrategy(4, -0.9), FixedBatches(4, 1)).value
    except SordinoError:
        return
    best = best_vectors(X, np.ones(4), [0, 1, 2, 3], np.random.default_rng(0))
    assert found**2 >= best * (1 - RTOL)

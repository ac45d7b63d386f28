"""Dense optima for maps that are not Toeplitz and for weighted outputs (papers/03 3.7, papers/04 2.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import Mechanism
from sordino.parts.mechanisms._cancelling import Cancelling
from sordino.parts.mechanisms._catalogue import NAMES, automatic_names, fit_mechanism
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._maps import AnytimeMap, Channels, NesterovMap
from sordino.parts.mechanisms._toeplitz import Independent
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._error import completed, weighted_rows, workload_matrix
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    Participation,
    SinglePass,
)
from sordino.privacy._sensitivity import sensitivity

PREFIX = Workload.prefix()


class Given:
    """A map that is only a matrix."""

    def __init__(self, W: np.ndarray) -> None:
        self.W = W

    def matrix(self, n: int) -> np.ndarray:
        return self.W

    def apply(self, x: Any) -> np.ndarray:
        return self.W @ np.asarray(x)


def rmse(mechanism: Mechanism, W: np.ndarray, rule: Participation) -> float:
    shift = sensitivity(mechanism.strategy(), rule).value
    errors = np.linalg.norm(W @ mechanism.noising_matrix(), axis=1)
    return float(shift * np.sqrt(np.mean(errors**2)))


def total(mechanism: Mechanism, W: np.ndarray, rule: Participation) -> float:
    return len(W) * rmse(mechanism, W, rule) ** 2


def accelerated(n: int, kappa: float) -> np.ndarray:
    """y-iterates of papers/03 1.5 with frozen gradients, beta = 1, eta_t = t + 1, times the sums A."""
    eta = np.arange(1.0, n + 1)
    tau = eta / np.cumsum(eta)
    x, z, rows = np.zeros(n), np.zeros(n), []
    for t, noise in enumerate(np.eye(n)):
        z = z - kappa * noise
        y = x - noise / eta[t]
        rows.append(y)
        if t + 1 < n:
            x = (1 - tau[t + 1]) * y + tau[t + 1] * z
    return np.array(rows) @ np.tril(np.ones((n, n)))


@pytest.mark.parametrize(
    ("kappa", "figures"),
    [(1.0, (50.51, 57.3, 61.8, 82.2, 238.0)), (0.5, (25.5, 28.9, 31.2, 41.5, 120.4))],
)
def test_accelerated_workload_of_paper_03(kappa: float, figures: tuple[float, ...]) -> None:
    """Own optimum, dense optimum of the prefix sums, their square root, tree, identity; T = 128."""
    n = 128
    rule = SinglePass(n)
    W = accelerated(n, kappa)
    np.testing.assert_allclose(np.abs(NesterovMap(kappa).matrix(n)), np.abs(W), rtol=1e-9)
    from scipy.linalg import toeplitz

    root = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1.0, n)]))
    made: list[Mechanism] = [
        Dense.optimized(NesterovMap(kappa), rule),
        Dense.optimized(PREFIX, rule),
        Dense.from_encoder(toeplitz(root, np.zeros(n)), "square root of the prefix sums"),
        Tree(n),
        Independent(n),
    ]
    found = [rmse(mechanism, W, rule) for mechanism in made]
    assert found == pytest.approx(list(figures), rel=2.5e-3)
    assert found[0] == pytest.approx(figures[0], rel=3e-4 if kappa == 1 else 1e-3)


def test_single_participation_figures_of_paper_04() -> None:
    """Section 2.3, T = 32: independent noise against the best factorization."""
    n = 32
    rule = SinglePass(n)
    A = PREFIX.matrix(n)
    plain = Dense.optimized(PREFIX, rule)
    assert total(Independent(n), A, rule) == pytest.approx(528)
    assert total(plain, A, rule) == pytest.approx(114.6, abs=0.05)
    q = 0.9 ** np.arange(n - 1, -1, -1.0)
    iterate_map = np.sqrt(q)[:, None] * A
    assert total(Independent(n), iterate_map, rule) == pytest.approx(233, abs=0.5)
    assert total(plain, iterate_map, rule) == pytest.approx(36.9, abs=0.05)
    best = Dense.weighted(PREFIX, q, rule)
    assert total(best, iterate_map, rule) == pytest.approx(33.4, abs=0.05)
    assert total(best, A, rule) > total(plain, A, rule)


def test_final_loss_of_a_quadratic() -> None:
    """papers/04 2.3: ``W_ts = eta^2/2 sum_j lam_j (1 - eta lam_j)^(2T - t - s)``, of rank 20 in 32 steps.

    Those notes do not name the spectrum; this one gives its figures, 2.87 and 1.37.
    """
    n, eta = 32, 0.5
    eigenvalues = np.linspace(0.05, 1, 20)
    W = (
        np.sqrt(eigenvalues / 2)[:, None]
        * eta
        * (1 - eta * eigenvalues[:, None]) ** np.arange(n - 1, -1, -1)
    )
    rule = SinglePass(n)
    assert total(Independent(n), W, rule) == pytest.approx(2.87, abs=5e-3)
    best = Dense.optimized(Given(W), rule)  # type: ignore[arg-type]
    assert total(best, W, rule) == pytest.approx(1.37, abs=5e-3)
    # The price of noise that no output sees stays bounded.
    assert best.step_error().max() < 30
    # Lower bound: any weights v give (tr (V^{1/2} W'W V^{1/2})^{1/2})^2 / sum v.
    v = np.diag(
        np.linalg.inv(best.strategy().gram()) @ W.T @ W @ np.linalg.inv(best.strategy().gram())
    )
    bound = np.linalg.svd(W * np.sqrt(v), compute_uv=False).sum() ** 2 / v.sum()
    assert bound <= total(best, W, rule) <= 1.003 * bound


def test_every_step_counts_uniformly_is_no_weighting() -> None:
    for rule in (SinglePass(40), FixedBatches(40, 13)):
        plain, same = Dense.optimized(PREFIX, rule), Dense.weighted(PREFIX, np.full(40, 3.0), rule)
        np.testing.assert_allclose(plain.noising, same.noising, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("separation", [60, 20])
def test_outputs_of_weight_zero_are_not_judged(separation: int) -> None:
    """Only the last third counts: less noise there than any unweighted optimum leaves."""
    n = 60
    rule = FixedBatches(n, separation)
    q = np.repeat([0.0, 1.0], [40, 20])
    made = Dense.weighted(PREFIX, q, rule)
    assert np.isfinite(made.noising).all()
    late = PREFIX.matrix(n)[40:]
    assert total(made, late, rule) < 0.9 * total(Dense.optimized(PREFIX, rule), late, rule)
    assert sensitivity(made.strategy(), rule).value == pytest.approx(1, rel=1e-5)
    last = np.zeros(n)
    last[-1] = 1
    only = Dense.weighted(PREFIX, last, rule)
    # One sum of all steps, one draw in it, shared by all uses of an example.
    uses = n // separation
    assert total(only, PREFIX.matrix(n)[-1:], rule) == pytest.approx(uses**2, rel=0.02)


@pytest.mark.parametrize("epochs", [1, 4])
def test_any_map_has_an_optimum_that_beats_the_others(epochs: int) -> None:
    n = 64
    rule = FixedBatches(n, n // epochs)
    for workload in (AnytimeMap(), NesterovMap()):
        W = workload.matrix(n)
        dense = rmse(Dense.optimized(workload, rule), W, rule)
        for name in NAMES:
            assert dense <= rmse(fit_mechanism(name, workload, rule), W, rule) * (1 + 2e-4)


def test_automatic_choice_for_maps() -> None:
    class Bare:
        """No nearest Toeplitz workload, not even a hash."""

        __hash__ = None  # type: ignore[assignment]

        def apply(self, x: Any) -> np.ndarray:
            return AnytimeMap().apply(x)

    bare: Any = Bare()
    both = ("leaky", "scaled-blt")
    assert automatic_names(AnytimeMap(), FixedBatches(64, 10)) == ("dense",)
    assert automatic_names(AnytimeMap(), SinglePass(513)) == both
    assert automatic_names(NesterovMap(), FixedBatches(513, 100)) == both
    assert automatic_names(NesterovMap(), SinglePass(10_000)) == ("leaky",)
    assert automatic_names(NesterovMap(), FixedBatches(5_000, 5)) == ("leaky",)
    assert automatic_names(AnytimeMap(), FreshPermutations(60, 20)) == ("leaky",)
    assert automatic_names(AnytimeMap(), FixedBatches(60, 1)) == ("independent",)
    assert automatic_names(bare, SinglePass(600)) == both
    # Toeplitz workloads of short runs are chosen for as before.
    assert automatic_names(PREFIX, SinglePass(1024)) == ("toeplitz",)
    assert automatic_names(PREFIX, FixedBatches(256, 100)) == ("dense",)
    assert automatic_names(PREFIX, FixedBatches(300, 100)) == ("blt", "scaled-blt")
    rule = FixedBatches(30, 10)
    for name in ("auto", "dense", "independent", "tree", "tree-full", "leaky", "banded"):
        assert fit_mechanism(name, bare, rule).steps == 30
    for name in ("blt", "toeplitz"):
        with pytest.raises(SordinoError, match=f"{name!r} is fitted to Toeplitz workloads"):
            fit_mechanism(name, bare, rule)
        nearest = fit_mechanism(name, AnytimeMap(), rule)
        same = fit_mechanism(name, AnytimeMap().nearest_toeplitz(), rule)
        np.testing.assert_array_equal(nearest.noising_matrix(), same.noising_matrix())
    assert fit_mechanism("leaky", AnytimeMap(), rule) is fit_mechanism("leaky", AnytimeMap(), rule)
    assert isinstance(fit_mechanism("leaky", bare, rule), Cancelling)


def test_workloads_as_matrices() -> None:
    class OnlyApply:
        def apply(self, x: Any) -> np.ndarray:
            return np.cumsum(x, axis=0)

    A = np.tril(np.ones((5, 5)))
    for workload in (PREFIX, OnlyApply(), Given(A), A, A.tolist()):
        np.testing.assert_array_equal(workload_matrix(workload, 5), A)
    assert completed(A) is A
    assert completed(A[:4]).shape == (9, 5)
    np.testing.assert_allclose(weighted_rows(A, [4, 1, 1, 1, 9])[[0, 4]], A[[0, 4]] * [[2], [3]])


@pytest.mark.parametrize(
    "weights", [[1.0, 1.0], [1, -1, 1], [0, 0, 0], [1, np.nan, 1], [np.inf] * 3]
)
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(SordinoError, match="weights must be 3 finite numbers of at least 0"):
        Dense.weighted(PREFIX, weights, SinglePass(3))


def test_what_has_no_dense_optimum_is_refused() -> None:
    with pytest.raises(SordinoError, match="known for fixed batches"):
        Dense.optimized(PREFIX, FreshPermutations(6, 3))
    with pytest.raises(SordinoError, match="at most 2,048 steps"):
        Dense.weighted(PREFIX, np.ones(3000), SinglePass(3000))
    two: LinearMap = Channels((PREFIX, PREFIX))
    with pytest.raises(SordinoError, match="columns"):
        Dense.optimized(two, SinglePass(6))
    with pytest.raises(SordinoError, match="finite and not all zero"):
        Dense.optimized(Given(np.zeros((3, 3))), SinglePass(3))  # type: ignore[arg-type]

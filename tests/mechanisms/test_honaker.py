"""The variance-reduced tree against its nodes, and the figures of papers/03 3.6."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.dyadic import all_nodes

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import mechanism_from_json
from sordino.parts.mechanisms._catalogue import fit_mechanism
from sordino.parts.mechanisms._maps import LaggedMomentumMap
from sordino.parts.mechanisms._tree import Tree, full_tree, node_gram
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._dyadic import node_matrix, nodes_between
from sordino.privacy._participation import FixedBatches, SinglePass
from sordino.privacy._sensitivity import sensitivity


def online_from_below(steps: int) -> np.ndarray:
    """Variance of each prefix if a node is estimated from itself and from its two halves.

    A node of level l has its own draw (variance 1) and the sum of two estimates of level l - 1;
    weighted by their precisions that makes ``v_l = 1 / (1 + 1 / (2 v_{l-1}))``.
    """
    variances = [1.0]
    while len(variances) < steps.bit_length():
        variances.append(1.0 / (1.0 + 0.5 / variances[-1]))
    return np.array(
        [
            sum(
                variances[(last - first + 1).bit_length() - 1]
                for first, last in nodes_between(1, t)
            )
            for t in range(1, steps + 1)
        ]
    )


def best_read(steps: int, beta: float = 1.0) -> np.ndarray:
    """Variance of each prefix estimated from all nodes by least squares, through the pseudo-inverse."""
    nodes = node_matrix(all_nodes(steps), steps, beta)
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    workload = np.where(lag >= 0, beta ** np.maximum(lag, 0), 0.0)
    return ((workload @ np.linalg.pinv(nodes)) ** 2).sum(axis=1)


def test_figures_of_paper_03() -> None:
    """Prefix sums, T = 1024, RMSE and largest error at mu = 1; every step is in 11 nodes."""
    made = full_tree(1024)
    shift = sensitivity(made.strategy(), SinglePass(1024))
    assert shift.value**2 == pytest.approx(11, rel=1e-6)
    errors = shift.value * made.workload_error(Workload.prefix())
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(3.686, abs=5e-4)
    assert errors.max() == pytest.approx(4.438, abs=5e-4)
    online = np.sqrt(11 * online_from_below(1024))
    assert np.sqrt(np.mean(online**2)) == pytest.approx(5.650, abs=5e-4)
    assert online.max() == pytest.approx(7.989, abs=5e-4)
    # Plain 7.417, from below 5.650, all nodes 3.686.
    plain = np.sqrt(11) * Tree(1024).workload_error(Workload.prefix())
    assert (errors <= online * (1 + 1e-6)).all()
    assert (online <= plain * (1 + 1e-9)).all()


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.5, 0.0])
@pytest.mark.parametrize("steps", [1, 2, 6, 32])
def test_the_strategy_is_all_complete_nodes(steps: int, beta: float) -> None:
    nodes = node_matrix(all_nodes(steps), steps, beta)
    np.testing.assert_allclose(node_gram(steps, beta), nodes.T @ nodes, atol=1e-12)
    made = full_tree(steps, beta)
    X = made.strategy().gram()
    np.testing.assert_allclose(X, nodes.T @ nodes, rtol=0, atol=3e-6 * X.max())
    workload = Workload("decay", ratios=(beta,))
    expected = np.sqrt(best_read(steps, beta))
    np.testing.assert_allclose(made.workload_error(workload), expected, rtol=1e-5)


def test_the_stream_has_that_law() -> None:
    made, n = full_tree(37, 0.9), 37

    def draw(first: object, count: int) -> jax.Array:
        return jax.lax.dynamic_slice(jnp.eye(n), (first, 0), (count, n))

    whole, _ = made.rows(made.init(n), draw, 0, n)
    N = np.asarray(whole, np.float64)
    assert np.abs(np.triu(N, 1)).max() == 0.0
    C = np.linalg.inv(N)
    X = made.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * X.max())
    first, state = made.rows(made.init(n), draw, 0, 12)
    rest, _ = made.rows(state, draw, 12, n - 12)
    np.testing.assert_allclose(np.concatenate([first, rest]), N, rtol=1e-5, atol=1e-6)
    read = mechanism_from_json(made.to_json())
    again, _ = read.rows(read.init(n), draw, 0, n)
    assert np.array_equal(np.asarray(again), np.asarray(whole))


def test_several_epochs_cost_what_the_nodes_hold() -> None:
    made = full_tree(12)
    nodes = node_matrix(all_nodes(12), 12)
    for separation in (3, 4, 5):
        found = sensitivity(made.strategy(), FixedBatches(12, separation)).value
        patterns = [range(j, 12, separation) for j in range(separation)]
        direct = max(np.linalg.norm(nodes[:, list(p)].sum(axis=1)) for p in patterns)
        assert found == pytest.approx(direct, rel=1e-6)


def test_by_name_with_the_decay_of_the_workload() -> None:
    rule = FixedBatches(20, 10)
    for workload, beta in (
        (Workload.prefix(), 1.0),
        (Workload.ema(0.1), 0.9),
        (LaggedMomentumMap(10, 0.8, 0.5, 0.2), 0.8),
    ):
        made = fit_mechanism("tree-full", workload, rule)
        np.testing.assert_allclose(made.strategy().gram(), node_gram(20, beta), atol=3e-6)
        plain = fit_mechanism("tree", workload, rule)
        assert isinstance(plain, Tree)
        assert plain.beta == pytest.approx(beta, rel=1e-7)
    assert "variance-reduced" in full_tree(4).describe()


def test_bad_input() -> None:
    with pytest.raises(SordinoError, match="'tree-full' is for at most 2,048 steps, got 2,049"):
        full_tree(2049)
    with pytest.raises(SordinoError, match="decay"):
        full_tree(4, 1.1)

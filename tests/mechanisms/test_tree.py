"""Tree noise: one draw per node, reused for ever, every level noised."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.dyadic import decoder

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import mechanism_from_json
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._dyadic import node_matrix, nodes_between, used_nodes
from sordino.privacy._participation import SinglePass
from sordino.privacy._sensitivity import sensitivity


def materialised(tree: Tree, pieces: tuple[int, ...] = ()) -> np.ndarray:
    """``C^-1`` by feeding the identity, in the given pieces."""
    n = tree.steps
    state, first, found = tree.init(n), 0, []
    for count in pieces or (n,):
        rows, state = tree.rows(
            state, lambda a, k: jax.lax.dynamic_slice(jnp.eye(n), (a, 0), (k, n)), first, count
        )
        found.append(np.asarray(rows, np.float64))
        first += count
    return np.concatenate(found)


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.5, 0.0])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 37, 64])
def test_the_stream_is_the_inverse_of_the_nodes(steps: int, beta: float) -> None:
    tree = Tree(steps, beta)
    C = node_matrix(used_nodes(steps), steps, beta)
    np.testing.assert_allclose(materialised(tree) @ C, np.eye(steps), atol=2e-6)
    if steps == 37:
        np.testing.assert_allclose(materialised(tree, (1, 7, 8, 21)), materialised(tree), atol=1e-7)


@pytest.mark.parametrize("beta", [1.0, 0.9])
def test_accumulated_noise_is_a_read_of_the_nodes(beta: float) -> None:
    """live stack == counter mode: n_t = sum over COMPOSE(1, t) of beta^(t - z) zeta_z."""
    steps = 45
    workload = Workload.prefix() if beta == 1 else Workload.ema(1 - beta)
    reads = workload.apply(materialised(Tree(steps, beta))) / workload.scale
    np.testing.assert_allclose(reads, decoder(steps, beta), atol=2e-6)
    for t in range(1, steps + 1):
        assert np.count_nonzero(np.abs(reads[t - 1]) > 1e-5) == len(nodes_between(1, t))


@pytest.mark.parametrize(
    "workload",
    [Workload.prefix(), Workload.ema(0.1), Workload.heavy_ball(0.9), Workload.identity()],
)
@pytest.mark.parametrize("steps", [1, 5, 16, 37])
def test_predicted_errors_are_exact(workload: Workload, steps: int) -> None:
    tree = Tree.matched(workload, steps)
    C = node_matrix(used_nodes(steps), steps, tree.beta)
    expected = np.linalg.norm(workload.matrix(steps) @ np.linalg.inv(C), axis=1)
    np.testing.assert_allclose(tree.workload_error(workload), expected, rtol=1e-9)


def test_figures_of_the_papers() -> None:
    """Prefix sums, T = 1024: RMSE 7.417, max 10.49; the momentum tree, alpha = .1 and .01."""
    tree = Tree(1024)
    errors = tree.workload_error(Workload.prefix())
    sens = sensitivity(tree.strategy(), SinglePass(1024)).value
    assert sens**2 == pytest.approx(11)
    assert sens * np.sqrt(np.mean(errors**2)) == pytest.approx(7.417, abs=5e-4)
    assert sens * errors.max() == pytest.approx(10.49, abs=5e-3)
    for alpha, figure in ((0.1, 0.22369), (0.01, 0.04275), (0.001, 0.00629)):
        workload = Workload.ema(alpha)
        decayed = Tree(1024, 1 - alpha)
        sens = sensitivity(decayed.strategy(), SinglePass(1024)).value
        rmse = sens * np.sqrt(np.mean(decayed.workload_error(workload) ** 2))
        assert rmse == pytest.approx(figure, abs=6e-6)


def test_every_step_up_to_a_million_is_cheap_to_predict() -> None:
    assert Tree(1_000_000).workload_error(Workload.prefix())[-1] > 1
    assert Tree(1_000_000).state_vectors() == 20


def test_json_and_bad_input() -> None:
    tree = Tree(9, 0.75)
    assert mechanism_from_json(tree.to_json()) == tree
    for beta in (-0.1, 1.1, float("nan")):
        with pytest.raises(SordinoError, match="decay"):
            Tree(9, beta)


@pytest.mark.parametrize("beta", [0.9, 0.99, 0.999, 0.9999])
def test_float32_weights_stay_inside_the_margin(beta: float) -> None:
    """The decays are rounded to float32 when streamed; the sensitivity that gives is within 5e-7."""
    steps = 300
    tree = Tree(steps, float(np.float32(beta)))
    C = np.linalg.inv(materialised(tree))
    for stated, true in zip(
        np.sqrt(np.diag(tree.strategy().gram())), np.linalg.norm(C, axis=0), strict=True
    ):
        assert true <= stated * (1 + 5e-7)
    everything = np.sqrt(np.abs(tree.strategy().gram()).sum())
    assert np.sqrt(np.abs(C.T @ C).sum()) <= everything * (1 + 5e-7)

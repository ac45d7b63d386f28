"""The tree's decoder: how much noise a prefix read of the used nodes carries."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.privacy._dyadic import node_matrix, nodes_between, used_nodes
from tests.support.dyadic import all_nodes, decoder


@pytest.mark.parametrize(
    ("t", "factor"),
    [(1, 1), (2, 1), (8, 1), (3, 1.81), (6, 1.6561), (7, 2.341441), (1023, 2.6140573773)],
)
def test_variance_of_a_read(t: int, factor: float) -> None:
    """Unit noise per node, alpha = 0.1: ``sum over COMPOSE(1, t) of beta^(2 (t - end))``."""
    row = decoder(t, beta=0.9)[-1]
    assert np.sum(row**2) == pytest.approx(factor, rel=1e-9)
    assert np.count_nonzero(row) == bin(t).count("1") == len(nodes_between(1, t))


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.5])
def test_reads_reassemble_the_workload(beta: float) -> None:
    steps = 37
    rows = node_matrix(used_nodes(steps), steps, beta)
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    workload = np.where(lag >= 0, beta ** np.maximum(lag, 0), 0.0)
    np.testing.assert_allclose(decoder(steps, beta) @ rows, workload, atol=1e-12)


def test_used_nodes_are_one_per_step_and_a_subset_of_all() -> None:
    for steps in range(1, 70):
        used = used_nodes(steps)
        assert [end for _, end in used] == list(range(1, steps + 1))
        assert set(used) <= set(all_nodes(steps))
        assert all(end <= steps for _, end in all_nodes(steps))

"""Algorithm 2 as intended: windows of a tree, read anew in each step (papers/00 1.2 and section 4).

Kept as a reference for what the lag-one-epoch recursion replaces: `reconstruct` is the printed
reconstruction with its indices corrected, whose work grows with t, and `recurrence` the equal form
with a constant number of reads per step. Steps are 1-based. A node that is asked for and not there
raises: taking it for 0 would release a sum without noise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.privacy import Node, nodes_between

Array = NDArray[np.float64]
Nodes = Mapping[Node, Array]


def window_sum(nodes: Nodes, first: int, last: int, beta: float) -> Array:
    """``sum_[y,z] beta^(last - z) nodes[y, z]`` over ``COMPOSE(first, last)``."""
    total = np.zeros(())
    for node in nodes_between(first, last):
        if node not in nodes:
            raise SordinoError(
                f"the node over steps {node[0]} to {node[1]} is missing; it was never released"
            )
        total = total + beta ** (last - node[1]) * nodes[node]
    return total


def reconstruct(
    gradients: Nodes, differences: Nodes, t: int, lag: int, beta: float, gamma: float
) -> Array:
    """``M_t`` from nodes of gradients and of differences: the corrected Algorithm 4, O(t) reads."""
    q, r = divmod(t, lag)
    total = beta ** (t - r) * window_sum(gradients, 1, r, beta)
    if q:
        shares = [beta ** (lag * i) * (1 - gamma) ** (q - 1 - i) for i in range(q)]
        total = total + sum(shares) * window_sum(gradients, r + 1, r + lag, beta)
    for i in range(1, q):
        share = sum((1 - gamma) ** j * beta ** ((i - 1 - j) * lag) for j in range(i))
        window = (t - i * lag + 1, t - (i - 1) * lag)
        change = (1 - gamma) * window_sum(differences, *window, beta)
        total = total + share * (change + gamma * window_sum(gradients, *window, beta))
    return total


def recurrence(
    gradients: Nodes, differences: Nodes, steps: int, lag: int, beta: float, gamma: float
) -> list[Array]:
    """``M_1 .. M_T`` by ``M_t = beta^B M_{t-B} + H_t``, with H a recursion over epochs of its own."""
    M: list[Array] = []
    H: list[Array] = []
    for t in range(1, steps + 1):
        if t < lag:
            M.append(window_sum(gradients, 1, t, beta))
            continue
        window = window_sum(gradients, t - lag + 1, t, beta)
        if t >= 2 * lag:
            change = window_sum(differences, t - lag + 1, t, beta)
            window = (1 - gamma) * (H[-lag] + change) + gamma * window
        H.append(window)
        # M_0 = 0.
        M.append(window + (beta**lag * M[-lag] if t > lag else 0.0))
    return M

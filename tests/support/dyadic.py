"""A tree of all aligned nodes, and how prefixes are read off the used ones: oracles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.privacy._dyadic import Node, nodes_between


def all_nodes(steps: int) -> list[Node]:
    """Every aligned node that ends by `steps` (a tree whose windows are read, too)."""
    nodes = []
    size = 1
    while size <= steps:
        nodes += [(end - size + 1, end) for end in range(size, steps + 1, size)]
        size *= 2
    return nodes


def decoder(steps: int, beta: float = 1.0) -> NDArray[np.float64]:
    """``B`` with ``B @ node_matrix(used_nodes) = EMA/prefix workload``: ``beta^(t - z)`` at ends z."""
    B = np.zeros((steps, steps))
    for t in range(1, steps + 1):
        for _, end in nodes_between(1, t):
            B[t - 1, end - 1] = beta ** (t - end)
    return B

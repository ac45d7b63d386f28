"""The binary tree over steps: which nodes a streaming tree mechanism releases.

Steps here are 1-based, as in Tran & Cutkosky (2022). Prefix reads only ever use one node per step,
``node(t) = [t - 2^ctz(t) + 1, t]``; the other aligned nodes are never released, so they cost
nothing. Incomplete nodes (end > T) are never released either.

>>> nodes_between(1, 7)
[(1, 4), (5, 6), (7, 7)]
>>> used_nodes(4)
[(1, 1), (1, 2), (3, 3), (1, 4)]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Node = tuple[int, int]


def nodes_between(first: int, last: int) -> list[Node]:
    """The fewest aligned nodes that tile ``[first, last]``, left to right; empty if first > last."""
    nodes = []
    while first <= last:
        size = (first - 1) & -(first - 1) if first > 1 else 1 << last.bit_length()
        while first + size - 1 > last:
            size >>= 1
        nodes.append((first, first + size - 1))
        first += size
    return nodes


def used_nodes(steps: int) -> list[Node]:
    """``node(t)`` for t = 1..steps: all that prefix reads ever use, one per step."""
    return [(t - (t & -t) + 1, t) for t in range(1, steps + 1)]


def node_matrix(nodes: list[Node], steps: int, beta: float = 1.0) -> NDArray[np.float64]:
    """Rows ``W[v, i] = beta^(end(v) - i)`` for i in v: the exact sum each node holds."""
    W = np.zeros((len(nodes), steps))
    for row, (first, last) in enumerate(nodes):
        W[row, first - 1 : last] = beta ** np.arange(last - first, -1, -1.0)
    return W

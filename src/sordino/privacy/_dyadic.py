"""The binary tree over steps: which nodes a streaming tree mechanism releases.

Steps here are 1-based, as in Tran & Cutkosky (2022). Prefix reads only ever use one node per step,
``node(t) = [t - 2^ctz(t) + 1, t]``; the other aligned nodes are never released, so they cost
nothing. Incomplete nodes (end > T) are never released either.

>>> nodes_between(1, 7)
[(1, 4), (5, 6), (7, 7)]
>>> used_nodes(4)
[(1, 1), (1, 2), (3, 3), (1, 4)]

**Worst case** under fresh permutations, by an exact dynamic program.

One step in each epoch, any step; maximise ``sum_v (sum_{t in P, t in v} beta^(end(v)-t))^2`` over the
used nodes v. Bottom-up over the dyadic tree: a node's state is the set of epochs that straddle its
border and were already used inside; its value is the Pareto set of ``(S, acc)``, S the weighted sum
inside the node and acc what its subtree has paid. The future gain increases in both, so pruning is
exact. Fronts that grow too long are thinned by rounding up, which leaves a valid upper bound.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Node = tuple[int, int]
Front = list[tuple[float, float]]
States = dict[frozenset[int], Front]
_LONGEST_FRONT = 512


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


def tree_fresh_energy(steps: int, steps_per_epoch: int, beta: float) -> tuple[float, bool]:
    """The largest energy (squared sensitivity, unit node noise) and whether it is exact."""
    exact = True

    def solve(first: int, length: int) -> States:  # steps first .. first+length-1, 0-based
        nonlocal exact
        if first >= steps:
            return {frozenset(): [(0.0, 0.0)]}
        end = first + length
        used = (first // length) % 2 == 0 and end <= steps
        if length == 1:
            epoch = first // steps_per_epoch
            inside = steps_per_epoch == 1 or _size(epoch, steps, steps_per_epoch) == 1
            key: frozenset[int] = frozenset() if inside else frozenset({epoch})
            taken = [(1.0, 1.0 if used else 0.0)]
            # Contributions only add up, so an epoch that lies inside is always used.
            return {key: taken} if inside else {frozenset(): [(0.0, 0.0)], key: taken}
        half = length // 2
        left, right = solve(first, half), solve(first + half, half)
        straddling = {
            epoch
            for epoch in {first // steps_per_epoch, (min(end, steps) - 1) // steps_per_epoch}
            if epoch * steps_per_epoch < first or min((epoch + 1) * steps_per_epoch, steps) > end
        }
        shift = beta**half
        merged: States = {}
        for (in_left, front_left), (in_right, front_right) in product(left.items(), right.items()):
            if in_left & in_right:
                continue
            front = merged.setdefault(frozenset((in_left | in_right) & straddling), [])
            for (s_left, a_left), (s_right, a_right) in product(front_left, front_right):
                s = shift * s_left + s_right
                front.append((s, a_left + a_right + (s * s if used else 0.0)))
        for key, front in merged.items():
            merged[key], kept_exact = _prune(front)
            exact = exact and kept_exact
        return merged

    root = solve(0, 1 << (steps - 1).bit_length())
    return max(acc for front in root.values() for _, acc in front), exact


def _size(epoch: int, steps: int, steps_per_epoch: int) -> int:
    return min((epoch + 1) * steps_per_epoch, steps) - epoch * steps_per_epoch


def _prune(front: Front) -> tuple[Front, bool]:
    """The Pareto-maximal points; thinned by rounding up where there are too many."""
    front.sort(reverse=True)
    kept: Front = []
    for s, acc in front:
        if not kept or acc > kept[-1][1]:
            kept.append((s, acc))
    if len(kept) <= _LONGEST_FRONT:
        return kept, True
    size = -(-len(kept) // _LONGEST_FRONT)
    # Within a group the first has the largest S and the last the largest acc: dominate them all.
    groups = [kept[i : i + size] for i in range(0, len(kept), size)]
    return [(group[0][0], group[-1][1]) for group in groups], False

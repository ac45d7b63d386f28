r"""Tran & Cutkosky 2022, "Momentum Aggregation for Private Non-convex ERM": its own noise.

Algorithm 1 (DP-NSGD) gives every node of a binary tree over the averages
``alpha sum_i (1 - alpha)^(z - i) g_i`` noise of standard deviation

    s = 4 alpha G sigma sqrt(V),    sigma = 2 sqrt(ln(1/delta)) / eps,
    V = (min(R, floor(log2 N)) + 1) T/N + sum_{j = floor(log2 N) + 1 .. R} floor(T / 2^j),

R = floor(log2 T). N is the number of steps in an epoch: the paper takes one example per step; with
batches of b the mean gradient divides G by b. Algorithm 2 uses three trees without alpha inside, with
``sigma = 4 sqrt(ln(1/delta)) / eps``.

Where the printed text errs: the theorem asks for ``delta >= exp(-eps)`` where its proof needs
``delta <= exp(-eps)``; ``alpha >= 1/N`` is used but not asked for; ``T/N`` must be rounded up in short
runs; Algorithm 2 forgets the smoothness L. Sordino calibrates dp-nsgd exactly instead, with five to
eight times less noise; these functions are for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.papers.base import PrintedNoise, require_condition
from sordino._base.errors import require_count, require_fraction, require_positive
from sordino.privacy import Node, nodes_between, used_nodes

ALGORITHM_1 = "Theorem 4 of Tran & Cutkosky (2022)"
ALGORITHM_2 = "Theorem 8 of Tran & Cutkosky (2022)"
_REPLACE_ONE = "replace-one"


def touched_nodes(epoch_steps: int, steps: int, *, whole_epochs: bool = False) -> float:
    """The paper's V: how many nodes of the tree one example is said to touch.

    `whole_epochs` rounds T/N up, as it must be where T is not a multiple of N.
    """
    N, T = require_count("epoch_steps", epoch_steps), require_count("steps", steps)
    R, n = T.bit_length() - 1, N.bit_length() - 1
    epochs = -(-T // N) if whole_epochs else T / N
    return (min(R, n) + 1) * epochs + sum(T >> j for j in range(n + 1, R + 1))


def algorithm_1(
    *,
    epsilon: float,
    delta: float,
    epoch_steps: int,
    steps: int,
    alpha: float,
    lipschitz: float = 1.0,
    batch_size: int = 1,
    whole_epochs: bool = False,
) -> PrintedNoise:
    """Noise of DP-NSGD's nodes at (epsilon, delta), replace-one: ``4 alpha G sigma sqrt(V)``.

    Holds for fixed and for fresh permutations, where ``delta <= exp(-epsilon)``, ``alpha >= 1/N``
    and ``T >= N/4`` (any T with `whole_epochs`).
    """
    N, T = require_count("epoch_steps", epoch_steps), require_count("steps", steps)
    b = require_count("batch_size", batch_size)
    G = require_positive("lipschitz", lipschitz)
    require_positive("alpha", alpha, maximum=1.0)
    log = _log_one_over(ALGORITHM_1, epsilon, delta)
    require_condition(alpha >= 1 / N, ALGORITHM_1, f"alpha {alpha:g} is below 1/N = {1 / N:g}")
    require_condition(
        whole_epochs or 4 * T >= N,
        ALGORITHM_1,
        f"T = {T} steps are less than a quarter of the N = {N} steps of an epoch, where its V lets "
        "the noise collapse (whole_epochs=True rounds T/N up, as it should be)",
    )
    sigma = 2 * math.sqrt(log) / epsilon
    V = touched_nodes(N, T, whole_epochs=whole_epochs)
    std = 4 * alpha * (G / b) * sigma * math.sqrt(V)
    return PrintedNoise(
        formula=ALGORITHM_1,
        std=std,
        units="a node of the tree over the averaged mean gradients",
        noise=std * b / (alpha * G),
        adjacency=_REPLACE_ONE,
        details={"V": V, "sigma": sigma},
    )


@dataclass(frozen=True)
class Algorithm2Noise:
    """Standard deviations of Algorithm 2's nodes, per tree, for batch means.

    Attributes:
      gradient_early: nodes of the gradient tree that end within the first two epochs.
      gradient_late: the other nodes of the gradient tree.
      difference: nodes of the trees of the anchors' differences and of the remainders.
      sigma: ``4 sqrt(ln(1/delta)) / eps``; the claim is that mu^2 is at most ``3 / sigma^2``.
    """

    gradient_early: float
    gradient_late: float
    difference: float
    sigma: float


def algorithm_2(
    *,
    epsilon: float,
    delta: float,
    epoch_steps: int,
    steps: int,
    alpha: float,
    learning_rate: float,
    lipschitz: float,
    smoothness: float,
    batch_size: int = 1,
) -> Algorithm2Noise:
    """Algorithm 2's noise levels with L put back, at (epsilon, delta), replace-one.

    ``4 G sigma sqrt(3 log2 N)`` and ``4 G sigma sqrt(4 (T/N) log2 N)`` for the gradients and
    ``2 L eta N sigma sqrt(4 (T/N) log2 N)`` for the two trees of differences. The printed
    ``2 eta N`` without L under-reports by about a third of L and cannot be asked for.
    """
    N, T = require_count("epoch_steps", epoch_steps), require_count("steps", steps)
    b = require_count("batch_size", batch_size)
    G, L = require_positive("lipschitz", lipschitz), require_positive("smoothness", smoothness)
    eta = require_positive("learning_rate", learning_rate)
    require_positive("alpha", alpha, maximum=1.0)
    log = _log_one_over(ALGORITHM_2, epsilon, delta)
    require_condition(alpha >= 1 / N, ALGORITHM_2, f"alpha {alpha:g} is below 1/N = {1 / N:g}")
    require_condition(
        N > 5,
        ALGORITHM_2,
        f"an example touches more nodes than 3 log2 N where N = {N} is at most 5",
    )
    sigma = 4 * math.sqrt(log) / epsilon
    early, late = _node_counts(N, T)
    return Algorithm2Noise(
        gradient_early=4 * G / b * sigma * math.sqrt(early),
        gradient_late=4 * G / b * sigma * math.sqrt(late),
        difference=2 * L * eta * N / b * sigma * math.sqrt(late),
        sigma=sigma,
    )


def algorithm_2_cost(*, epoch_steps: int, steps: int, alpha: float) -> float:
    """Exact ``mu^2 sigma^2`` of Algorithm 2 at those levels: replace-one, fixed batches.

    The paper claims 3. Only nodes that the reconstruction reads count: windows of one epoch and
    short prefixes for the gradients, windows from the second epoch on for the anchors' differences,
    prefixes for the remainders. Independent of G, L, eta and the batch size, which cancel.
    """
    N, T = require_count("epoch_steps", epoch_steps), require_count("steps", steps)
    beta = 1 - require_positive("alpha", alpha, maximum=1.0)
    early, late = _node_counts(N, T)
    weight: dict[Node, float] = {}

    def add(nodes: Iterable[Node], gradient: bool) -> None:
        for first, last in nodes:
            # An example moves the gradients by 2 G against noise of 4 G sigma sqrt(count), and the
            # differences by 2 L eta N against 2 L eta N sigma sqrt(count).
            cost = 1 / (4 * (early if last <= 2 * N else late)) if gradient else 1 / late
            weight[first, last] = weight.get((first, last), 0.0) + cost

    windows = {node for end in range(N, T + 1) for node in nodes_between(end - N + 1, end)}
    add(
        windows | {node for end in range(1, min(N, T + 1)) for node in nodes_between(1, end)},
        gradient=True,
    )
    later = {node for end in range(2 * N, T + 1) for node in nodes_between(end - N + 1, end)}
    add(later, gradient=False)
    add(used_nodes(T), gradient=False)
    total = np.zeros(N)
    for (first, last), cost in weight.items():
        t = np.arange(first, last + 1)
        total += cost * np.bincount((t - 1) % N, beta ** (last - t), minlength=N) ** 2
    return float(total.max())


def _node_counts(epoch_steps: int, steps: int) -> tuple[float, float]:
    """``V_{<=2N} = 3 log2 N`` and ``V_{>2N} = 4 (T/N) log2 N``, with T/N rounded up."""
    log = math.log2(epoch_steps)
    return 3 * log, 4 * -(-steps // epoch_steps) * log


def _log_one_over(formula: str, epsilon: float, delta: float) -> float:
    """``ln(1/delta)``, where the conversion from RDP to (epsilon, delta) holds."""
    require_positive("epsilon", epsilon)
    log = -math.log(require_fraction("delta", delta))
    require_condition(
        epsilon <= log,
        formula,
        f"epsilon {epsilon:g} is above ln(1/delta) = {log:.3g}, where its sigma is too small (the "
        "printed condition on delta has the wrong direction)",
    )
    return log

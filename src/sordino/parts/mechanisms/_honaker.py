"""The variance-reduced binary tree (Honaker 2015): every node counts for every read.

The plain tree reads a prefix from the few nodes that tile it. Each of those sums is also known from
the nodes below and above, and the best linear estimate uses them all: half the noise of the plain
tree at the same sensitivity (papers/03 3.6). Its noise on the single sums has the covariance
``X^-1``, X the Gram matrix of all complete nodes; the lower-triangular C with ``C^T C = X`` streams
noise of that law, so nothing has to wait for later nodes.

Only for comparison with tree-based results: the factorizations of 'toeplitz' and 'dense' are better.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import require_count, require_fraction
from sordino.parts.mechanisms._dense import Dense, check_length
from sordino.parts.mechanisms.factorize._dense import lower_factor


def full_tree(steps: int, beta: float = 1.0) -> Dense:
    """Noise of the tree over `steps` steps whose sums decay by `beta` per step (1: prefix sums)."""
    steps = check_length(require_count("steps", steps), "tree-full")
    kind = "prefix sums" if beta == 1 else f"sums that decay by {beta:g} a step"
    label = f"variance-reduced binary tree noise over {kind}"
    return Dense.from_encoder(lower_factor(node_gram(steps, beta)), label)


def node_gram(steps: int, beta: float = 1.0) -> NDArray[np.float64]:
    """``X_st = sum beta^(2 end - s - t)`` over the complete nodes that hold both s and t."""
    beta = require_fraction("the tree's decay beta", beta, closed=True)
    X = np.zeros((steps, steps))
    length = 1
    while length <= steps:
        held = beta ** np.arange(length - 1, -1, -1.0)
        square = np.outer(held, held)
        for start in range(0, steps - length + 1, length):
            X[start : start + length, start : start + length] += square
        length *= 2
    return X

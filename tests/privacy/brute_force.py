"""Sensitivity straight from the definition, sharing no code with what is tested.

One unit is present in the columns P and adds ``clip_t e_t`` with ``|e_t| <= 1`` to column t; a
release ``W u + noise`` of covariance Sigma shifts by the Mahalanobis length of ``W u``.
"""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np

from sordino.audit._brute_force import best_vectors as best_vectors
from sordino.audit._brute_force import drawn_patterns as drawn_patterns
from sordino.audit._brute_force import fixed_patterns as fixed_patterns
from sordino.audit._brute_force import fresh_patterns as fresh_patterns

RTOL = 1e-9


def gram(W, Sigma):
    """W^T Sigma^-1 W by an eigen-decomposition of Sigma (not a Cholesky factor)."""
    values, vectors = np.linalg.eigh(np.atleast_2d(Sigma))
    rows = (vectors.T @ W) / np.sqrt(values)[:, None]
    return rows.T @ rows


def toeplitz_encoder(coefficients, steps, norms=None):
    C = np.zeros((steps, steps))
    for s, t in product(range(steps), repeat=2):
        if 0 <= s - t < len(coefficients):
            C[s, t] = coefficients[s - t]
    return C if norms is None else C / np.asarray(norms)


def tree_nodes(steps):
    """Nodes [first, last], 0-based, that reading all prefixes uses: binary digits of each t."""
    used = set()
    for t in range(1, steps + 1):
        start = 0
        for bit in reversed(range(t.bit_length())):
            if t >> bit & 1:
                used.add((start, start + (1 << bit) - 1))
                start += 1 << bit
    return sorted(used, key=lambda node: (node[1], node[0]))


def tree_matrix(nodes, steps, beta):
    return np.array(
        [[beta ** (b - i) if a <= i <= b else 0.0 for i in range(steps)] for a, b in nodes]
    )


def separated_patterns(steps, separation, cap):
    found = []
    for size in range(1, cap + 1):
        for chosen in combinations(range(steps), size):
            if all(b - a >= separation for a, b in pairwise(chosen)):
                found.append(list(chosen))
    return found


def same_direction(X, clips, pattern):
    """Squared shift when all contributions point the same way."""
    P = np.ix_(pattern, pattern)
    c = clips[pattern]
    return float(c @ X[P] @ c)

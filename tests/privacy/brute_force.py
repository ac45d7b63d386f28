"""Sensitivity straight from the definition, sharing no code with what is tested.

One unit is present in the columns P and adds ``clip_t e_t`` with ``|e_t| <= 1`` to column t; a
release ``W u + noise`` of covariance Sigma shifts by the Mahalanobis length of ``W u``.
"""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np

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


def fixed_patterns(steps, separation):
    return [[t for t in range(steps) if t % separation == j] for j in range(min(separation, steps))]


def fresh_patterns(steps, per_epoch):
    epochs = {}
    for t in range(steps):
        epochs.setdefault(t // per_epoch, []).append(t)
    return [list(choice) for choice in product(*epochs.values())]


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


def best_vectors(X, clips, pattern, rng, starts=6, rounds=200):
    """A lower bound: block ascent over unit vectors, from several starts, plus all sign choices."""
    c = clips[pattern]
    Y = X[np.ix_(pattern, pattern)] * np.outer(c, c)
    k = len(pattern)
    best = 0.0
    if k <= 8:
        for signs in product([1.0, -1.0], repeat=k - 1):
            e = np.array([1.0, *signs])
            best = max(best, float(e @ Y @ e))
    for _ in range(starts):
        E = rng.normal(size=(k, k))
        E /= np.linalg.norm(E, axis=1, keepdims=True)
        for _ in range(rounds):
            for s in range(k):
                pull = Y[s] @ E - Y[s, s] * E[s]
                norm = np.linalg.norm(pull)
                if norm > 0:
                    E[s] = pull / norm
        best = max(best, float(np.trace(E.T @ Y @ E)))
    return best

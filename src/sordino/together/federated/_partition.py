"""Splits of one data set over clients: of equal or unequal sizes, with even or skewed labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count, require_positive

# Shares of clients of sizes "dirichlet": the flat distribution over all ways to share.
_FLAT = 1.0


def split(
    X: Any,
    y: Any,
    clients: int,
    *,
    seed: int,
    sizes: str | Sequence[int] = "equal",
    skew: float | None = None,
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Every row to exactly one client, as ``[(X_0, y_0), ..., (X_{M-1}, y_{M-1})]``.

    Args:
      X, y: arrays of n rows, and their labels (n,).
      clients: M.
      seed: of the split.
      sizes: "equal" (they differ by at most 1), "dirichlet" (shares uniform over all ways to share, at
        least one row for each), or the M sizes themselves, which add up to at most n.
      skew: None for random rows; else the concentration alpha of a Dirichlet distribution around the
        labels' frequencies, from which each client's own frequencies are drawn (Hsu, Qi & Brown
        2019): at 100 they are alike, at 0.1 most clients have one or two labels. Labels that run out
        are replaced by what is left.
    """
    X, y = np.asarray(X), np.asarray(y)
    clients = require_count("clients", clients)
    if len(X) != len(y) or y.ndim != 1:
        raise SordinoError(f"X and y must have as many rows, got {X.shape} and {y.shape}")
    rng = np.random.default_rng(seed)
    counts = _sizes(len(y), clients, sizes, rng)
    if skew is None:
        order = rng.permutation(len(y))
        parts = np.split(order[: counts.sum()], np.cumsum(counts)[:-1])
    else:
        parts = _skewed(y, counts, require_positive("skew", skew), rng)
    return [(X[rows], y[rows]) for rows in parts]


def _sizes(
    n: int, clients: int, sizes: str | Sequence[int], rng: np.random.Generator
) -> NDArray[np.int64]:
    if not isinstance(sizes, str):
        counts = np.array([require_count("size", size, minimum=0) for size in sizes], np.int64)
        if len(counts) != clients or counts.sum() > n:
            raise SordinoError(f"sizes must be {clients:,} numbers that add up to at most {n:,}")
        return counts
    require_choice("sizes", sizes, ("equal", "dirichlet"))
    if n < clients:
        raise SordinoError(f"{n:,} rows are too few for {clients:,} clients")
    if sizes == "equal":
        counts = np.full(clients, n // clients)
        counts[: n % clients] += 1
        return counts
    shares = rng.dirichlet(np.full(clients, _FLAT))
    return 1 + rng.multinomial(n - clients, shares)


def _skewed(
    y: NDArray[Any], counts: NDArray[np.int64], alpha: float, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    labels, numbers = np.unique(y, return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(numbers == label)) for label in range(len(labels))]
    frequencies = np.array([len(pool) for pool in pools]) / len(y)
    left = np.array([len(pool) for pool in pools])
    parts: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(counts)
    # In random order, so that no client is always the one that gets what is left.
    for client in rng.permutation(len(counts)):
        wish = rng.dirichlet(alpha * len(labels) * frequencies)
        taken = np.zeros(len(labels), np.int64)
        while (missing := int(counts[client] - taken.sum())) > 0:
            open_labels = left > taken
            chances = np.where(open_labels, wish, 0.0)
            if chances.sum() <= 0:
                chances = np.where(open_labels, left - taken, 0).astype(np.float64)
            drawn = rng.multinomial(missing, chances / chances.sum())
            taken = np.minimum(taken + drawn, left)
        rows = [pool[end - size : end] for pool, end, size in zip(pools, left, taken, strict=True)]
        left = left - taken
        parts[client] = rng.permutation(np.concatenate(rows))
    return parts

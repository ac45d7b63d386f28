"""Sensitivity to the slots that a public order of the batches really has.

Where the order of every epoch is public and no function of the data, neighbouring data sets (zero-out,
replace-one) have the same slots: unit i is present in the steps P_i and in no others, and

    sens^2 = max_i sum_{s,t in P_i} |X_st| g_s g_t ,      g_t = 1 / (relative noise of step t),

added up over the channels. It is a maximum over patterns that the worst case over all permutations has
among its own, so it is never above that; it is no bound for add-remove, or for any other order.

Entries of X are gathered pair by pair: from the Gram matrix, or for Toeplitz and tree strategies from
tables that do not grow with the square of the steps. A BLT strategy needs no entries: C applied to one
unit's steps runs forward through its q buffers, row by row where the unit is present, and over the m rows
strictly between two of its steps (after the last one: over all rows that are left) in closed form,

    sum of squares = sum_xy a_x a_y sum_{j<m} (theta_x theta_y)^j ,       a <- theta^m a .
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.privacy._sensitivity import Sensitivity, bound_is_tight, surely_balanced
from sordino.privacy._strategy import (
    BLTStrategy,
    ParallelStrategy,
    PhasesStrategy,
    Strategy,
    ToeplitzStrategy,
    TreeStrategy,
)

Array = NDArray[np.float64]
Steps = NDArray[np.int64]
Present = NDArray[np.bool_]
# |X_st| of pairs s < t, and of s = t.
Entry = Callable[[Steps, Steps], Array]
# The energy of each unit: from its steps (uses, units), increasing, where it is present.
Energy = Callable[[Steps, Present], Array]

# Beyond so many uses of examples, or pairs of them, the analysis would take minutes.
MOST_USES = 200_000_000
MOST_PAIRS = 500_000_000
# Widest table of entries: 128 MB; a tree's has a row for each step instead.
_WIDEST = 4096
_LONGEST_TREE = 1 << 20
# Units at a time: their numbers stay in the processor's cache.
_CHUNK = 8192


def is_affordable(strategy: Strategy, units: int, epochs: int) -> bool:
    """Whether `realised_sensitivity` has a way for this strategy, and for so many uses."""
    if units * epochs > MOST_USES:
        return False
    if isinstance(strategy, PhasesStrategy | ParallelStrategy):
        return all(is_affordable(part, units, epochs) for part in strategy.parts)
    if _is_recursive(strategy):
        return True
    if units * epochs * (epochs + 1) // 2 > MOST_PAIRS:
        return False
    if isinstance(strategy, TreeStrategy):
        return strategy.steps <= _LONGEST_TREE
    width = strategy.bands() if isinstance(strategy, ToeplitzStrategy) else strategy.steps
    return width <= _WIDEST


def realised_sensitivity(
    strategy: Strategy,
    slots: NDArray[np.unsignedinteger],
    steps_per_epoch: int,
    clips: Array | None = None,
) -> Sensitivity:
    """Sensitivity of `strategy` where unit i is in step ``e * steps_per_epoch + slots[e, i]``.

    Args:
      slots: (epochs, units), each below `steps_per_epoch`; steps beyond the strategy's do not happen.
      clips: ``g_t`` (steps,), all ones if None.
    """
    epochs, units = slots.shape
    if not is_affordable(strategy, units, epochs):
        raise SordinoError("these permutations are too many to account for; use the worst case")
    first = np.arange(epochs)[:, None] * steps_per_epoch
    if slots.max(initial=0) >= steps_per_epoch or first[-1, 0] + steps_per_epoch < strategy.steps:
        raise SordinoError("every step of the run needs a slot in one of the epochs")
    # Consecutive steps of a unit are less than two epochs apart.
    energy = _energy(strategy, clips, min(strategy.steps, 2 * steps_per_epoch), steps_per_epoch)
    best, unit = -1.0, 0
    for begin in range(0, units, _CHUNK):
        t = first + slots[:, begin : begin + _CHUNK]
        found = energy(t, t < strategy.steps)
        top = int(np.argmax(found))
        if not found[top] <= best:  # NaN is not passed over
            best, unit = float(found[top]), begin + top
    own = first[:, 0] + slots[:, unit]
    pattern = tuple(int(t) for t in own[own < strategy.steps])
    return Sensitivity(float(np.sqrt(best)), _is_attained(strategy, pattern, clips), pattern)


def _is_attained(strategy: Strategy, pattern: tuple[int, ...], clips: Array | None) -> bool:
    if surely_balanced(strategy):
        return True
    X = strategy.block(pattern)
    c = np.ones(len(X)) if clips is None else np.tile(clips[list(pattern)], strategy.channels)
    return bound_is_tight(X * np.outer(c, c))


def _is_recursive(strategy: Strategy) -> bool:
    """A BLT whose Gram matrix has no negative entries."""
    return isinstance(strategy, BLTStrategy) and bool((strategy.coefficients >= 0).all())


def _energy(strategy: Strategy, clips: Array | None, longest: int, epoch: int) -> Energy:
    """How to compute energies; `longest` bounds the rows between two steps of one unit."""
    if isinstance(strategy, ParallelStrategy):
        channels = [
            (_energy(part, clips, longest, epoch), scale**-2.0)
            for part, scale in zip(strategy.parts, strategy.scales, strict=True)
        ]
        return lambda t, here: sum(
            (factor * one(t, here) for one, factor in channels), np.zeros(t.shape[1])
        )
    if isinstance(strategy, PhasesStrategy):
        return _phases(strategy, clips, longest, epoch)
    if isinstance(strategy, BLTStrategy) and _is_recursive(strategy):
        return _recursion(strategy, strategy.weights(clips), longest)
    if isinstance(strategy, TreeStrategy):
        return _pairs(_tree_entry(strategy), clips, strategy.steps, epoch)
    if isinstance(strategy, ToeplitzStrategy):
        return _pairs(_toeplitz_entry(strategy), strategy.weights(clips), strategy.bands(), epoch)
    X = strategy.absolute_gram()
    return _pairs(lambda s, t: X[s, t], clips, strategy.steps, epoch)


def _phases(strategy: PhasesStrategy, clips: Array | None, longest: int, epoch: int) -> Energy:
    """Nothing couples the parts: each has the steps that fall into it."""
    parts = [
        (
            _energy(
                part, None if clips is None else clips[first : first + part.steps], longest, epoch
            ),
            first,
            part.steps,
            factor,
        )
        for part, first, factor in strategy.placed()
    ]

    def energy(t: Steps, present: Present) -> Array:
        total = np.zeros(t.shape[1])
        for one, first, steps, factor in parts:
            here = present & (t >= first) & (t < first + steps)
            uses = here.any(axis=1)
            if uses.any():
                total += factor * one(t[uses] - first, here[uses])
        return total

    return energy


def _pairs(entry: Entry, weights: Array | None, bands: int, epoch: int) -> Energy:
    """``sum_{s,t} |X_st| g_s g_t``, pair by pair; entries at lags of `bands` and more are 0."""

    def energy(t: Steps, present: Present) -> Array:
        where = np.where(present, t, 0)
        g = present.astype(np.float64)
        if weights is not None:
            g *= weights[where]
        total = np.zeros(t.shape[1])
        for b in range(len(t)):
            total += entry(where[b], where[b]) * g[b] ** 2
            for a in range(b):
                lag = where[b] - where[a]
                near = (lag > 0) & (lag < bands)
                if near.any():
                    s = np.where(near, where[a], where[b])
                    total += 2 * np.where(near, entry(s, where[b]) * g[a] * g[b], 0.0)
        return total

    return energy


def _toeplitz_entry(strategy: ToeplitzStrategy) -> Entry:
    """``X_st = sum_{j <= T-1-t} c_j c_{j+t-s}``: the bands alone decide how large the table is."""
    c, b = strategy.coefficients[: strategy.bands()], strategy.bands()
    table = np.zeros((b, b))
    for lag in range(b):
        table[lag, : b - lag] = np.cumsum(c[: b - lag] * c[lag:])
        table[lag, b - lag :] = table[lag, b - lag - 1]
    table = np.abs(table)
    last = strategy.steps - 1
    return lambda s, t: table[t - s, np.minimum(last - t, b - 1)]


def _tree_entry(strategy: TreeStrategy) -> Entry:
    """``X_st = beta^(t-s)`` times what the nodes that hold both weigh at t.

    s and t are in one node from the level on that is the bit length of ``s xor t``.
    """
    n, beta, t = strategy.steps, strategy.beta, np.arange(strategy.steps)
    levels = n.bit_length()
    weigh = np.zeros((n, levels + 1))
    for level in reversed(range(levels)):
        node = t >> level
        used = (node % 2 == 0) & ((node + 1) << level <= n)
        below = ((node + 1) << level) - 1 - t
        weigh[:, level] = weigh[:, level + 1] + used * beta ** (2.0 * below)
    power = beta ** t.astype(np.float64)

    def entry(s: Steps, t: Steps) -> Array:
        level = np.frexp((s ^ t).astype(np.float64))[1]  # 0 of 0
        result: Array = power[t - s] * weigh[t, level]
        return result

    return entry


def _recursion(strategy: BLTStrategy, weights: Array | None, longest: int) -> Energy:
    """The energy of ``C sum_t g_t e_t``, forward through the buffers: O(uses q^2) for a unit."""
    theta, omega, q = strategy.theta, strategy.omega, len(strategy.theta)
    exponents = np.arange(longest + 1, dtype=np.float64)
    powers = [theta[x] ** exponents for x in range(q)]
    # The sum of the m first powers, for each pair of buffers.
    sums = {}
    for x in range(q):
        for y in range(x, q):
            terms = (1 if x == y else 2) * (theta[x] * theta[y]) ** exponents[:-1]
            sums[x, y] = np.concatenate([[0.0], np.cumsum(terms)])
    last = strategy.steps

    def rest(a: Array, m: Steps) -> Array:
        """The squares of m rows without a step of the unit's."""
        total = np.zeros(len(m))
        for (x, y), table in sums.items():
            total += a[x] * a[y] * table[m]
        return total

    def energy(t: Steps, present: Present) -> Array:
        units = t.shape[1]
        total, a, following = np.zeros(units), np.zeros((q, units)), np.zeros(units, np.int64)
        began = np.zeros(units, bool)
        for now, here in zip(t, present, strict=True):
            # Before its first step a unit has done nothing; without a step there is nothing to do.
            m = np.where(here & began, now - following, 0)
            total += rest(a, m)
            for x in range(q):
                a[x] *= powers[x][m]
            g = here.astype(np.float64)
            if weights is not None:
                g *= weights[np.where(here, now, 0)]
            total += np.where(here, (g + a.sum(axis=0)) ** 2, 0.0)
            for x in range(q):
                a[x] = np.where(here, theta[x] * a[x], a[x]) + omega[x] * g
            following = np.where(here, now + 1, following)
            began |= here
        total += rest(a, np.where(began, last - following, 0))
        return total

    return energy

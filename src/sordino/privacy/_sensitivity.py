"""Sensitivity of a whole run: the one formula, over every participation rule.

For one unit present in the columns P, whose contribution to column t has norm at most ``c_t``,

    sens(P)^2 = sup_{|e_t|<=1} sum_{s,t in P} X_st c_s c_t <e_s, e_t>
             <= sum_{s,t in P} |X_st| c_s c_t ,            sens = max over the P that can occur,

with equality where the signs of X on P can be balanced. A unit may add to several channels in each
step; their columns are then all in P. The run with unit-variance noise is then
``kappa * sens``-GDP, kappa = 1 for zero-out and 2 for replace-one. The signed column sum
``||sum_t C[:, t]||`` is NOT a bound when X has negative entries; the absolute values are needed.

`Sensitivity.exact` says whether the value is attained or only an upper bound.

>>> from sordino.privacy._strategy import ToeplitzStrategy
>>> from sordino.privacy._participation import FixedBatches
>>> c = [1.0, 0.5, 0.375, 0.3125]
>>> round(sensitivity(ToeplitzStrategy(c, 4), FixedBatches(4, 2)).value ** 2, 8)
3.80078125
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError
from sordino.privacy._dyadic import tree_fresh_energy
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    MinSeparation,
    Participation,
    Pattern,
    PatternList,
    SinglePass,
    as_pattern_array,
)
from sordino.privacy._strategy import (
    ParallelStrategy,
    PhasesStrategy,
    Strategy,
    ToeplitzStrategy,
    TreeStrategy,
)

Array = NDArray[np.float64]
# Rules with at most this many patterns are enumerated, which is exact.
ENUMERATION_LIMIT = 50_000


@dataclass(frozen=True)
class Sensitivity:
    """`value` = sup of the L2 shift; `exact` if attained (to 1e-6), else an upper bound."""

    value: float
    exact: bool
    pattern: Pattern | None = None

    @property
    def analysis(self) -> str:
        return "exact" if self.exact else "upper bound"


def sensitivity(
    strategy: Strategy, participation: Participation, clips: ArrayLike | None = None
) -> Sensitivity:
    """Sensitivity of `strategy` under `participation`; `clips` (steps,) defaults to all ones."""
    if participation.steps != strategy.steps:
        raise SordinoError(
            f"the strategy has {strategy.steps} steps but the participation rule has "
            f"{participation.steps}"
        )
    c = None if clips is None else np.asarray(clips, dtype=np.float64)
    if c is not None and (c.shape != (strategy.steps,) or not (c >= 0).all()):
        raise SordinoError(f"clips must be {strategy.steps} nonnegative numbers")
    if c is not None and strategy.channels > 1:
        raise SordinoError("clips of several channels belong into the scales of their noise")

    if isinstance(participation, SinglePass):
        participation = FixedBatches(strategy.steps, separation=strategy.steps)
    if isinstance(participation, FixedBatches):
        return _fixed(strategy, participation, c)
    if isinstance(participation, MinSeparation) and _monotone(strategy) and c is None:
        # Nonnegative non-increasing Toeplitz: the earliest, densest pattern is the worst.
        k, b = participation.max_participations, participation.separation
        return _of_pattern(strategy, tuple(range(0, k * b, b)), None)
    if isinstance(participation, PatternList) or (
        participation.pattern_count() <= ENUMERATION_LIMIT
    ):
        return _enumerated(strategy, participation, c)
    if isinstance(participation, FreshPermutations):
        return _fresh(strategy, participation, c)
    if isinstance(participation, MinSeparation):
        return _min_separation(strategy, participation, c)
    raise SordinoError(f"no bound is known for the participation rule {participation.kind!r}")


def _monotone(strategy: Strategy) -> bool:
    return isinstance(strategy, ToeplitzStrategy) and strategy.is_monotone


def _of_pattern(strategy: Strategy, pattern: Pattern, clips: Array | None) -> Sensitivity:
    X = _weighted_block(strategy, pattern, clips)
    return Sensitivity(float(np.sqrt(np.abs(X).sum())), bound_is_tight(X), pattern)


def _weighted_block(strategy: Strategy, pattern: Pattern, clips: Array | None) -> Array:
    X = strategy.block(pattern)
    if clips is None:
        return X
    c = clips[list(pattern)]
    return X * np.outer(c, c)


def _fixed(strategy: Strategy, rule: FixedBatches, clips: Array | None) -> Sensitivity:
    energy = strategy.fixed_batch_energy(rule.separation, clips)
    j = int(np.argmax(energy))
    pattern = tuple(range(j, rule.steps, rule.separation))
    exact = surely_balanced(strategy) or bound_is_tight(_weighted_block(strategy, pattern, clips))
    return Sensitivity(float(np.sqrt(energy[j])), exact, pattern)


def surely_balanced(strategy: Strategy) -> bool:
    """Whether the signs of X can be balanced on every pattern, as its kind alone tells."""
    if isinstance(strategy, ToeplitzStrategy):
        return bool((strategy.coefficients >= 0).all())
    if isinstance(strategy, PhasesStrategy | ParallelStrategy):
        # Nothing couples the blocks, so each chooses its signs for itself.
        return all(surely_balanced(part) for part in strategy.parts)
    return isinstance(strategy, TreeStrategy)


def bound_is_tight(X: Array) -> bool:
    """Whether ``sum |X_st|`` is reached by some contributions, to one part in a million.

    So it is where the signs can be balanced, or where the off-diagonal entries hardly count (an
    orthogonal strategy after rounding to float32).
    """
    total, diagonal = float(np.abs(X).sum()), float(np.trace(X))
    return total - diagonal <= 4e-7 * total or is_sign_balanced(X)


def is_sign_balanced(X: Array) -> bool:
    """Whether signs e exist with ``e_s e_t X_st >= 0`` for all pairs."""
    scale = float(np.abs(X).max(initial=0.0))
    sign = np.sign(np.where(np.abs(X) > 1e-14 * scale, X, 0.0))
    e = np.zeros(len(X))
    for root in range(len(X)):
        if e[root]:
            continue
        e[root] = 1.0
        queue = [root]
        while queue:
            s = queue.pop()
            for t in np.flatnonzero(sign[s]):
                wanted = e[s] * sign[s, t]
                if not e[t]:
                    e[t] = wanted
                    queue.append(int(t))
                elif e[t] != wanted:
                    return False
    return True


def _enumerated(strategy: Strategy, rule: Participation, clips: Array | None) -> Sensitivity:
    X = strategy.absolute_gram()
    if clips is not None:
        X = X * np.outer(clips, clips)
    best = -1.0
    pattern: Pattern = ()
    rows = rule.patterns()
    while chunk := list(islice(rows, 4096)):
        steps, mask = as_pattern_array([row for row in chunk if row] or [(0,)])
        energy = np.zeros(len(steps))
        for a in range(steps.shape[1]):
            for b in range(steps.shape[1]):
                both = mask[:, a] & mask[:, b]
                energy += np.where(both, X[steps[:, a], steps[:, b]], 0.0)
        top = int(np.argmax(energy))
        if energy[top] > best:
            best = float(energy[top])
            pattern = tuple(int(t) for t in steps[top][mask[top]])
    exact = bound_is_tight(_weighted_block(strategy, pattern, clips))
    return Sensitivity(float(np.sqrt(best)), exact, pattern)


def _fresh(strategy: Strategy, rule: FreshPermutations, clips: Array | None) -> Sensitivity:
    if isinstance(strategy, TreeStrategy) and clips is None:
        energy, exact = tree_fresh_energy(rule.steps, rule.steps_per_epoch, strategy.beta)
        return Sensitivity(float(np.sqrt(energy)), exact)
    epochs = rule.epochs()
    if _monotone(strategy) and clips is None:
        return Sensitivity(_fresh_monotone(strategy, rule), exact=False)
    # sum_e max_{s in e} sum_f max_{t in f} |X_st|: each step of a pattern faces, in every other
    # epoch, at worst the largest entry of its own row.
    X = strategy.absolute_gram()
    if clips is not None:
        X = X * np.outer(clips, clips)
    row = np.zeros(rule.steps)
    for epoch in epochs:
        row += X[:, epoch.start : epoch.stop].max(axis=1)
    for epoch in epochs:  # within its own epoch a step meets only itself
        own = slice(epoch.start, epoch.stop)
        row[own] += np.diag(X)[own] - X[own, own].max(axis=1)
    total = sum(float(row[epoch.start : epoch.stop].max()) for epoch in epochs)
    return Sensitivity(float(np.sqrt(total)), exact=False)


def _fresh_monotone(strategy: Strategy, rule: FreshPermutations) -> float:
    """Pairwise bound for nonnegative non-increasing coefficients, no dense matrix needed.

    For epochs e < f the largest ``X_st`` has the smallest lag, ``(f - e - 1) b + 1``, and the
    earliest t, ``f b``.
    """
    assert isinstance(strategy, ToeplitzStrategy)
    b, T = rule.steps_per_epoch, rule.steps
    starts = np.arange(0, T, b)
    total = float(strategy.lag(0)[starts].sum())
    for gap in range(1, len(starts)):
        lag = (gap - 1) * b + 1
        # lag(l)[i] is X[i, i + l]; the pair (e, f = e + gap) starts epoch f at step f b.
        total += 2 * float(strategy.lag(lag)[starts[gap:] - lag].sum())
    return float(np.sqrt(total))


def _min_separation(strategy: Strategy, rule: MinSeparation, clips: Array | None) -> Sensitivity:
    """``max_P sum_{s in P} r_s``, ``r_s`` = s's own entry plus the most its row can add.

    Exact when no two allowed steps interact (bands <= separation), an upper bound otherwise.
    """
    X = strategy.absolute_gram()
    if clips is not None:
        X = X * np.outer(clips, clips)
    k, b, T = rule.max_participations, rule.separation, rule.steps
    own = np.diag(X).copy()
    s = np.arange(T)
    far = np.where(np.abs(s[:, None] - s) >= b, X, 0.0)
    rest = _best_separated(far, b, k - 1)
    total = float(_best_separated((own + rest)[None, :], b, k)[0])
    return Sensitivity(float(np.sqrt(total)), exact=not far.any())


def _best_separated(rows: Array, separation: int, picks: int) -> Array:
    """Per row, the largest sum of at most `picks` entries at least `separation` apart."""
    best = np.zeros((rows.shape[1] + 1, rows.shape[0]))  # best[t]: using entries before t
    for _ in range(picks):
        previous = best
        best = np.zeros_like(previous)
        for t in range(rows.shape[1]):
            take = rows[:, t] + previous[max(t + 1 - separation, 0)]
            np.maximum(best[t], take, out=best[t + 1])
    return best[-1]

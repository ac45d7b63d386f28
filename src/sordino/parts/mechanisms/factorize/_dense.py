"""The optimal dense strategy for a workload and a fixed participation pattern, with a certificate.

Primal: over ``X = C' C``, minimise ``tr(W'W X^{-1})`` such that ``sum_{s,t in P} |X_st| <= 1`` for
every pattern P. Dual: over block-diagonal ``H`` with one positive semidefinite block per pattern,
constant ``v_P`` on its diagonal, maximise ``(tr (W H W')^{1/2})^2 / sum_P v_P`` (Choquette-Choo et
al. 2023; Denisov et al. 2022 for one participation, where H is diagonal). The optimum has X_st = 0
for distinct s, t of one pattern.

Denisov et al. solve the one-participation dual by the fixed point ``v <- v * diag X(v)``. Here it
is carried over to blocks, and taken to a power p that cycles through 2, 4, 10. X falls when H grows
and is homogeneous of degree -1/2 in it, so near the optimum a step multiplies the components of the
error by ``1 - p a``, 0 < a <= 1/2: by no less than 1/2 for the plain step p = 1, and a cycle of
three such steps shrinks every component, the slowest as much as sixteen plain steps. That is proved
for one participation and observed for several; either way the result carries its own gap. Far from
the optimum the large powers may overshoot (workloads of nearly low rank, where some patterns end up
with no weight at all): if the lower bound falls or nothing improves any more, the search goes back
to its best point and on with smaller powers.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cholesky, svd

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.parts.mechanisms.factorize._error import dense_error, rmse, workload_matrix

Array = npt.NDArray[np.float64]
# Patterns of equal length k go together: indices [patterns, k], blocks [patterns, k, k].
Groups = list[npt.NDArray[np.intp]]
Blocks = list[npt.NDArray[np.float64]]

# To be raised when the search would return something else: results are kept on disk under it.
ALGORITHM_VERSION = 1
# Powers of the steps of one cycle, from the fastest cycle to the safest.
_CYCLES = ((2.0, 4.0, 10.0), (2.0, 4.0), (2.0,), (1.0,), (0.5,))
_MAX_CYCLES = 300
# A fall of the lower bound by this fraction is an overshoot; the last digits may always go down.
_OVERSHOOT = 0.01
# A gap that shrinks by less than _LEAST_GAIN in _PATIENCE cycles has stalled.
_PATIENCE = 5
_LEAST_GAIN = 0.02
# The least weight of a pattern relative to the largest: some would go to zero, and never return.
_LEAST_WEIGHT = 1e-12
# Below this ratio of extreme eigenvalues the small ones of W'W are no longer accurate.
_TRUSTED_CONDITION = 1e-11


@dataclass(frozen=True, eq=False)
class DenseResult:
    """An optimized strategy.

    Attributes:
        strategy: Lower-triangular ``C``, float64[n, n], of sensitivity 1 in its pattern.
        gap: Certified: ``rmse <= (1 + gap) * optimum`` over all strategies (for models with at
            least as many parameters as an example has participations).
        rmse: Root mean square of the row norms of ``W C^{-1}``.
    """

    strategy: Array
    gap: float
    rmse: float


def optimize_dense(
    workload: LinearMap | npt.ArrayLike,
    n: int,
    epochs: int = 1,
    separation: int | None = None,
    tolerance: float = 1e-4,
    max_seconds: float = 120.0,
) -> DenseResult:
    """Dense strategy of least ``sensitivity x RMSE``.

    Args:
        workload: A linear map, or any matrix with n columns, of full column rank.
        n: Number of steps.
        epochs: Participations of one example, ``ceil(n / epochs)`` steps apart.
        separation: Steps per epoch b, instead of ``epochs``; the patterns are j, j + b, ... below
            n, and n need not be a multiple of b.
        tolerance: Stop at this certified relative gap.
        max_seconds: Stop at this time with the gap reached so far; a result that stopped here
            depends on the speed of the machine.
    """
    matrix = _full_rank_matrix(workload, n)
    groups = _pattern_groups(n, epochs, separation)
    tolerance = require_positive("tolerance", tolerance)
    deadline = time.monotonic() + require_positive("max_seconds", max_seconds)
    norms = np.linalg.norm(matrix, axis=0)
    dual = [_constant_diagonal(norms[g][:, :, None] * np.eye(g.shape[1])) for g in groups]
    # With one participation there is nothing to make orthogonal.
    once = groups[0].shape[1] == 1
    best_gram, best_upper, best_lower, best_dual = np.eye(n), math.inf, 0.0, dual
    cycles, gaps = list(_CYCLES), [math.inf]
    for _ in range(_MAX_CYCLES):
        gram, lower = _strategy_gram(matrix, dual, groups)
        overshot = lower < (1.0 - _OVERSHOOT) * best_lower
        if len(cycles) > 1 and (overshot or _stalled(gaps)):
            cycles.pop(0)
            dual, gaps = best_dual, [math.inf]
            gram, lower = _strategy_gram(matrix, dual, groups)
        if lower > best_lower:
            best_lower, best_dual = lower, dual
        for candidate in [gram] if once else [gram, _orthogonalized(gram, groups)]:
            scaled = _scale_to_unit(candidate, groups)
            upper = _squared_error(matrix, scaled)
            if upper < best_upper:
                best_gram, best_upper = scaled, upper
        if best_upper <= (1.0 + tolerance) ** 2 * best_lower or time.monotonic() >= deadline:
            break
        gaps.append(best_upper / best_lower - 1.0)
        for step, power in enumerate(cycles[0]):
            if step > 0:
                gram, lower = _strategy_gram(matrix, dual, groups)
                if lower > best_lower:
                    best_lower, best_dual = lower, dual
            blocks = [_take(gram, g) for g in groups]
            moved = [_fixed_point_step(h, x, power) for h, x in zip(dual, blocks, strict=True)]
            dual = _bounded_weights(moved)
    strategy = lower_factor(best_gram)
    # Rounding in the factorization must not cost privacy: measure what it really is.
    strategy /= math.sqrt(pattern_sums(strategy.T @ strategy, groups).max())
    error = rmse(dense_error(strategy, matrix))
    return DenseResult(strategy, error / math.sqrt(best_lower / len(matrix)) - 1.0, error)


def pattern_sums(gram: Array, groups: Groups) -> Array:
    """``sum_{s,t in P} |X_st|`` for every pattern P: a bound on the squared sensitivity to it.

    It holds for contributions in any directions (Choquette-Choo et al. 2023) and is attained where
    the entries inside the pattern are non-negative.
    """
    return np.concatenate([np.abs(_take(gram, g)).sum((1, 2)) for g in groups])


def lower_factor(gram: Array) -> Array:
    """Lower-triangular C with ``C' C = X``; plain Cholesky would give ``C C' = X``."""
    return np.ascontiguousarray(cholesky(gram[::-1, ::-1])[::-1, ::-1])


def _full_rank_matrix(workload: LinearMap | npt.ArrayLike, n: int) -> Array:
    matrix = workload_matrix(workload, n)
    if isinstance(workload, Workload):
        return matrix  # triangular with a constant, positive diagonal
    if not np.all(np.isfinite(matrix)) or np.linalg.matrix_rank(matrix) < n:
        raise SordinoError("workload must be finite and have full column rank")
    return matrix


def _pattern_groups(n: int, epochs: int, separation: int | None) -> Groups:
    """The patterns {j, j + b, ...} below n as index arrays [patterns, k], grouped by length k."""
    if separation is None:
        separation = -(-n // require_count("epochs", epochs))
    elif epochs not in (1, -(-n // require_count("separation", separation))):
        raise SordinoError(
            f"epochs = {epochs} contradicts separation = {separation}, which makes "
            f"{-(-n // separation)} participations in n = {n} steps; give only one of them"
        )
    separation = min(separation, n)
    full, rest = divmod(n, separation)
    steps = np.arange(separation)
    long = steps[:rest, None] + separation * np.arange(full + 1)
    short = steps[rest:, None] + separation * np.arange(full)
    return [g for g in (long, short) if g.size]


def _constant_diagonal(h: Array) -> Array:
    """Rescale each block to a constant diagonal, which is what makes it dual feasible."""
    diagonal = np.diagonal(h, axis1=1, axis2=2)
    scale = np.sqrt(diagonal.mean(axis=1, keepdims=True) / diagonal)
    scaled: Array = h * scale[:, :, None] * scale[:, None, :]
    return scaled


def _strategy_gram(matrix: Array, dual: Blocks, groups: Groups) -> tuple[Array, float]:
    """The minimiser X of ``tr(HX) + tr(W'W X^{-1})``, and the lower bound that H certifies.

    ``X = H^{-1/2} (H^{1/2} W'W H^{1/2})^{1/2} H^{-1/2}``, from the singular values and right
    singular vectors of ``W H^{1/2}``.
    """
    singular, right = _right_singular(_times(matrix, [_power(h, 0.5) for h in dual], groups))
    half = _times(np.sqrt(singular)[:, None] * right, [_power(h, -0.5) for h in dual], groups)
    budget = sum(float(h[:, 0, 0].sum()) for h in dual)
    return half.T @ half, float(singular.sum()) ** 2 / budget


def _right_singular(product: Array) -> tuple[Array, Array]:
    """Singular values and right singular vectors (rows)."""
    values, vectors = np.linalg.eigh(product.T @ product)
    if values[0] > _TRUSTED_CONDITION * values[-1]:
        return np.sqrt(values), vectors.T
    # Twice the time, but the condition number of W is not squared.
    _, singular, right = svd(product, full_matrices=False)
    return singular, right


def _fixed_point_step(h: Array, x: Array, power: float) -> Array:
    """``h^{1/2} x^p h^{1/2}`` per block, in coordinates where x should become the identity.

    At the optimum the block x is diagonal with any weights summing to one; dividing the present
    weights out leaves the problem whose fixed point is x = identity. A scalar factor on x is
    immaterial, because only the shape of h enters the bound.
    """
    weight = np.sqrt(np.diagonal(x, axis1=1, axis2=2))
    # Relative sizes between patterns matter: keep the pattern's total, share it out by weight.
    share = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    outer = share[:, :, None] * share[:, None, :]
    root = _power(h * outer, 0.5)
    return _constant_diagonal(root @ _power(x / outer, power) @ root / outer)


def _stalled(gaps: list[float]) -> bool:
    return len(gaps) > _PATIENCE + 1 and gaps[-1] > (1.0 - _LEAST_GAIN) * gaps[-1 - _PATIENCE]


def _bounded_weights(dual: Blocks) -> Blocks:
    """Blocks relative to the largest; only their proportions enter the bound, which any H gives."""
    weights = [h[:, 0, 0] for h in dual]
    top = max(float(w.max()) for w in weights)
    bounded = [np.maximum(w / top, _LEAST_WEIGHT) for w in weights]
    return [h * (b / w)[:, None, None] for h, b, w in zip(dual, bounded, weights, strict=True)]


def _scale_to_unit(gram: Array, groups: Groups) -> Array:
    """Scale the columns so that every pattern uses its whole sensitivity 1."""
    scale = np.empty(len(gram))
    sums = np.split(pattern_sums(gram, groups), [len(groups[0])])
    for g, total in zip(groups, sums, strict=False):
        scale[g] = total[:, None] ** -0.5
    return gram * np.outer(scale, scale)


def _orthogonalized(gram: Array, groups: Groups) -> Array:
    """Drop the entries between distinct steps of one pattern, which are zero at the optimum."""
    result = gram.copy()
    for g in groups:
        _put(result, g, np.zeros((len(g), g.shape[1], g.shape[1])))
    np.fill_diagonal(result, np.diag(gram))
    return result


def _squared_error(matrix: Array, gram: Array) -> float:
    """``tr(W'W X^{-1})``, or infinity where X is not positive definite."""
    try:
        factor = lower_factor(gram)
    except LinAlgError:
        return math.inf
    return float(np.sum(dense_error(factor, matrix) ** 2))


def _power(blocks: Array, exponent: float) -> Array:
    """Matrix power of symmetric positive definite blocks [patterns, k, k]."""
    if blocks.shape[-1] == 1:
        return blocks**exponent
    values, vectors = np.linalg.eigh(blocks)
    # Blocks may come close to singular; the floor keeps the inverse root finite.
    values = np.maximum(values, 1e-13 * values[:, -1:]) ** exponent
    result: Array = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return result


def _times(full: Array, blocks: Blocks, groups: Groups) -> Array:
    """``full @ H`` for a block-diagonal H, without forming it."""
    result = np.empty_like(full)
    for h, g in zip(blocks, groups, strict=True):
        result[:, g] = np.swapaxes(np.swapaxes(full[:, g], 0, 1) @ h, 0, 1)
    return result


def _take(full: Array, group: npt.NDArray[np.intp]) -> Array:
    return full[group[:, :, None], group[:, None, :]]


def _put(full: Array, group: npt.NDArray[np.intp], blocks: Array) -> None:
    full[group[:, :, None], group[:, None, :]] = blocks

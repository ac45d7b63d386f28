"""Splitting one budget between several noises, and the mechanism of the lag-one-epoch recursion.

Part p of a run (a phase, or a channel) has contributions of norm at most ``c_p`` and noise of
standard deviation ``c_p s_p``. Its draws enter the judged estimate with mean squared coefficient
``E_p``, and a unit with pattern j costs ``q_p(j)`` of it at ``s_p = 1``. The run then has

    mu^2 = max_j sum_p q_p(j) / s_p^2 ,        mean squared error = sum_p c_p^2 s_p^2 E_p .

At a fixed pattern the best split is ``s_p^2 ~ sqrt(q_p / E_p) / c_p``, with root mean squared error
``sum_p c_p sqrt(q_p E_p) / mu`` (papers/00 section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino._base.errors import SordinoError, require_count, require_fraction, require_positive
from sordino._base.types import Json
from sordino.parts.mechanisms._base import Mechanism
from sordino.parts.mechanisms._combined import Parallel, Phases
from sordino.parts.mechanisms._maps import Channels
from sordino.parts.mechanisms._workloads import LinearMap, Workload
from sordino.privacy import (
    ENUMERATION_LIMIT,
    FixedBatches,
    Participation,
    SinglePass,
    Strategy,
    sensitivity,
)

Array = NDArray[np.float64]
Fit = Callable[[LinearMap, Participation], Mechanism]


@dataclass(frozen=True)
class NoiseSplit:
    """How one budget is split between the parts of a run.

    Attributes:
      scales: ``s_p``, the noise of each part over its norm bound, such that the sensitivity of all
        of them together is 1.
      rms: root mean square of the judged noise at mu = 1 (noise multiplier 1).
    """

    scales: tuple[float, ...]
    rms: float


def optimal_scales(
    strategies: Sequence[Strategy],
    participation: Participation,
    clips: Sequence[float],
    energies: Sequence[float],
    starts: Sequence[int] | None = None,
) -> NoiseSplit:
    """The split of least error at the exact joint sensitivity, the maximum over all patterns.

    Args:
      strategies: of each part, for noise of scale 1.
      participation: of the whole run; fixed batches, one pass, or any rule short enough to list.
      clips: norm bound ``c_p`` of the contributions to each part.
      energies: ``E_p``, the mean over the steps of the variance that unit draws of part p (times
        its strategy's inverse) leave in the judged estimate.
      starts: first step of each part; all 0 by default (channels).
    """
    c = np.array([require_positive("every clip", clip) for clip in clips])
    E = np.array([require_positive("every energy", energy) for energy in energies])
    first = [0] * len(strategies) if starts is None else list(starts)
    if not len(strategies) == len(c) == len(E) == len(first) or not strategies:
        raise SordinoError(
            f"every part needs a strategy, a clip, an energy and a start, got {len(strategies)}, "
            f"{len(c)}, {len(E)} and {len(first)}"
        )
    q = np.array(
        [
            pattern_energies(part, participation, start)
            for part, start in zip(strategies, first, strict=True)
        ]
    )
    s2 = np.exp(_least_product(q, c**2 * E))
    s2 *= float((q / s2[:, None]).sum(axis=0).max())
    return NoiseSplit(tuple(float(s) for s in np.sqrt(s2)), float(np.sqrt((c**2 * E) @ s2)))


def pattern_energies(strategy: Strategy, participation: Participation, start: int = 0) -> Array:
    """``q(j)``: what each pattern of the run costs of a part that begins at step `start`."""
    if start < 0 or start + strategy.steps > participation.steps:
        raise SordinoError(
            f"a part of {strategy.steps} steps from step {start} on does not fit into a run of "
            f"{participation.steps}"
        )
    if isinstance(participation, SinglePass | FixedBatches):
        separation = getattr(participation, "separation", participation.steps)
        local = strategy.fixed_batch_energy(separation)
        residue = (np.arange(min(separation, participation.steps)) - start) % separation
        return np.where(residue < local.size, local[np.minimum(residue, local.size - 1)], 0.0)
    if participation.pattern_count() > ENUMERATION_LIMIT:
        raise SordinoError(
            "a budget can be split for fixed batches, or for a rule short enough to list"
        )
    X = strategy.absolute_gram()
    energies = []
    for pattern in participation.patterns():
        own = [t - start for t in pattern if start <= t < start + strategy.steps]
        energies.append(float(X[np.ix_(own, own)].sum()))
    return np.array(energies)


def _least_product(q: Array, weight: Array) -> Array:
    """``u`` with the least ``log max_j sum_p q_pj e^-u_p + log sum_p weight_p e^u_p``.

    Convex in u. The maximum over patterns is handled by a growing list: the worst pattern of each
    solution joins those that the next one considers, until it is among them already.
    """
    # Exact where one pattern is the worst of every part.
    u = 0.5 * (np.log(q.max(axis=1)) - np.log(weight))
    best, best_value = u, _log_costs(q, u).max() + np.log(weight @ np.exp(u))
    considered: list[int] = []
    while len(u) > 1:
        worst = int(np.argmax(_log_costs(q, u)))
        if worst in considered:
            break
        considered.append(worst)
        u = _least_of_few(q[:, considered], weight, u)
        value = _log_costs(q, u).max() + np.log(weight @ np.exp(u))
        if value < best_value:
            best, best_value = u, value
    return best


def _log_costs(q: Array, u: Array) -> Array:
    """``log sum_p q_pj e^-u_p`` of each pattern."""
    return np.log(np.exp(-u) @ q)


def _least_of_few(q: Array, weight: Array, u: Array) -> Array:
    """`_least_product` for a few patterns, with their maximum as one more variable."""
    from scipy.optimize import minimize  # here, because it takes long to import

    def slopes(x: Array) -> Array:
        share = q * np.exp(-x[:-1])[:, None]
        return np.column_stack([(share / share.sum(axis=0)).T, np.ones(q.shape[1])])

    def objective(x: Array) -> tuple[float, Array]:
        share = weight * np.exp(x[:-1])
        return float(x[-1] + np.log(share.sum())), np.append(share / share.sum(), 1.0)

    result = minimize(
        objective,
        np.append(u, _log_costs(q, u).max()),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: x[-1] - _log_costs(q, x[:-1]), "jac": slopes},
        options={"maxiter": 200, "ftol": 1e-14},
    )
    return np.asarray(result.x[:-1])


def lagged_mechanism(
    *,
    steps: int,
    lag: int,
    beta: float,
    clips: Sequence[float],
    participation: Participation,
    fit: Fit,
    iterate_map: LinearMap,
    own_maps: bool = False,
) -> Phases | Parallel:
    """Noise for Algorithm 2' (papers/00 1.3): one part for the first epoch, one for the differences.

    Made for contributions divided by their norm bounds, with sensitivity 1: the real noise is the
    mechanism's row times the bound of its step and channel and the noise multiplier.

    Args:
      steps: T.
      lag: B, the steps of one epoch.
      beta: decay of the momentum that the parts are fitted for.
      clips: ``(C1, Cy)`` for the anchor-free form, ``Cy = (1-gamma) C2 + gamma C1``; a third bound
        ``Cr`` of the residual makes it the anchored form with two channels.
      participation: fixed batches of separation `lag`, for which the recursion is exact; or of a divisor of
        it (cyclic batches), where differences are those of another draw from the same group.
      fit: a mechanism for a workload under a participation rule.
      iterate_map: the map from the stream (gradients in the first epoch, differences afterwards) to what
        the noise is judged by, such as `LaggedMomentumMap`; for the anchored form a `Channels`.
      own_maps: fit the differences (and the residual) also to their part of `iterate_map`, not only
        to a decayed sum, and take what is better.
    """
    steps, lag = require_count("steps", steps), require_count("lag", lag)
    beta = require_fraction("beta", beta, closed=True)
    _check_lagged(participation, steps, lag, clips, iterate_map)
    decayed = Workload("momentum", ratios=(beta,))
    lengths = [n for n in (min(steps, lag), steps - lag) if n > 0]
    count = len(lengths)
    apart = getattr(participation, "separation", lag)
    maps = iterate_map.parts if isinstance(iterate_map, Channels) else (iterate_map,)
    fitted = [fit(decayed, FixedBatches(n, apart)) for n in lengths]
    if own_maps and count == 2:
        fitted[1] = _better(fitted[1], fit, Later(maps[0], lag), FixedBatches(lengths[1], apart))
    phases = Phases(tuple(fitted), (1.0,) * count)
    # One part at a time: the noise of the others has weight 0.
    belongs = np.repeat(np.eye(count), lengths, axis=1)
    energies = [float(np.mean(phases.workload_error(maps[0], own) ** 2)) for own in belongs]
    parts, bounds, starts = list(phases.parts), list(clips[:count]), [0, lag][:count]
    if len(clips) == 3:
        residual = fit(decayed, FixedBatches(steps, apart))
        if own_maps:
            residual = _better(residual, fit, maps[1], FixedBatches(steps, apart))
        energies.append(float(np.mean(residual.workload_error(maps[1]) ** 2)))
        parts, bounds, starts = [*parts, residual], [*bounds, clips[2]], [*starts, 0]
    strategies = [part.strategy() for part in parts]
    scales = optimal_scales(strategies, participation, bounds, energies, starts).scales
    phases = Phases(phases.parts, scales[:count])
    return phases if len(clips) == 2 else Parallel((phases, parts[-1]), (1.0, scales[-1]))


@dataclass(frozen=True)
class Later(LinearMap):
    """What `full` makes of a stream that begins at step `start`: its lower right corner."""

    full: LinearMap
    start: int
    name: str = field(default="later part", init=False)

    def apply(self, x: ArrayLike) -> Array:
        given = np.asarray(x, np.float64)
        before = np.zeros((self.start, *given.shape[1:]))
        return self.full.apply(np.concatenate([before, given]))[self.start :]

    def nearest_toeplitz(self) -> Workload:
        return self.full.nearest_toeplitz()

    def to_json(self) -> Json:
        raise SordinoError("a part of a map is fitted to, and not stored")


def _better(fitted: Mechanism, fit: Fit, own: LinearMap, rule: Participation) -> Mechanism:
    """`fitted`, or what is fitted to the map itself, whichever leaves less noise in it."""

    def cost(mechanism: Mechanism) -> float:
        shift = sensitivity(mechanism.strategy(), rule).value
        return shift * float(np.linalg.norm(mechanism.workload_error(own)))

    return min((fitted, fit(own, rule)), key=cost)


def _check_lagged(
    participation: Participation,
    steps: int,
    lag: int,
    clips: Sequence[float],
    iterate_map: LinearMap,
) -> None:
    """Refuse what the recursion does not hold for."""
    if participation.steps != steps:
        raise SordinoError(
            f"the participation rule has {participation.steps} steps, but the run has {steps}"
        )
    # In a single epoch nothing lags behind anything.
    separation = getattr(participation, "separation", lag if steps <= lag else None)
    if not isinstance(participation, FixedBatches | SinglePass) or lag % (separation or lag + 1):
        raise SordinoError(
            f"differences to the same batch {lag} steps ago need fixed batches with {lag} steps in "
            f"an epoch, or cyclic ones of a divisor of that, got {participation}"
        )
    channels = len(iterate_map.parts) if isinstance(iterate_map, Channels) else 1
    if len(clips) not in (2, 3) or channels != len(clips) - 1:
        raise SordinoError(
            "clips must be (C1, Cy) with a map of one channel, or (C1, Cy, Cr) with a map of two, "
            f"got {tuple(clips)} and {channels}"
        )

r"""Spreading the budget over steps with secret random batches (papers/04, section 2.2).

With secret random batches the cost of a step is not ``u = 1/sigma^2`` but convex in it, so the best
schedule is flatter than `allocate`'s, and using that one can be *worse than uniform noise*. Three
one-parameter families, each solved for the parameter at which the composed privacy loss is epsilon:

* ``lemma``: ``sigma ~ q^(-1/4)``, right where sigma is large;
* ``lambert``: cost ``p^2 (e^u - 1)`` (central limit), ``u = 2 W(sqrt(q/lambda) / 2)``;
* ``rdp-kkt``: cost the Renyi divergence of order a, ``q = lambda h_a(sigma)`` with
  ``h_a = -eps_a'(sigma) / (2 sigma)``, the best of a = 3, 6, 12, 24, 48.

``auto`` goes by the uniform noise that the budget allows (papers/04 2.2): lemma from 2.5 on,
lambert from 1 on, below that the better of rdp-kkt and lambert; uniform wherever that is no worse.

Schedules are step functions with few distinct values (6 % apart): they cost next to nothing against
smooth ones, and the accountant then sees them exactly as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, lambertw, logsumexp

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
)
from sordino.parts.schedules._allocate import SAFE_RATIO, allocate, capped, golden, predicted_cost
from sordino.parts.schedules._base import NoiseSchedule, Uniform
from sordino.parts.schedules._shapes import FixedSchedule
from sordino.privacy import (
    MOST_LEVELS,
    POISSON,
    SMALLEST_DELTA,
    Adjacency,
    composed_epsilon,
    mu_from_epsilon_delta,
    sampled_levels,
)

Array = NDArray[np.float64]
# A rule gives log sigma (T,) for log q (T,) and a parameter z that acts like the logarithm of an overall
# factor; a family is a rule for one influence, and gives sigma.
Rule = Callable[[Array, float], Array]
Family = Callable[[float], Array]

METHODS = ("auto", "lemma", "lambert", "rdp-kkt", "uniform")
ORDERS = (3, 6, 12, 24, 48)
# Uniform noise multipliers from which the lemma, and from which the Lambert family is good enough.
LEMMA_FROM, LAMBERT_FROM = 2.5, 1.0
# A schedule must be better than uniform noise by more than the search is accurate.
_WORTHWHILE = 1 - 1e-3
_LEVEL_RATIO = 1.06
# Enough to tell which family is best.
_COARSE_LEVELS = 10
_LARGEST_LOG_SIGMA = 345.0


@dataclass(frozen=True, eq=False)
class SubsampledSearch:
    """What a search found: `sigma` (T,), the `method` behind it, and how it compares.

    `relative_cost` is ``sum q sigma^2`` over that of uniform noise with the same guarantee.
    """

    sigma: Array
    method: str
    relative_cost: float
    uniform_sigma: float


def allocate_subsampled(
    log_q: ArrayLike,
    *,
    rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "auto",
    ratio_cap: float | None = None,
    sampling: str = POISSON,
) -> Array:
    """Noise multipliers (steps,) for secret batches that are together (epsilon, delta)-DP.

    The search of `search_subsampled`, then its result checked by the accountant and raised by one
    factor until that accepts.
    """
    sigma = search_subsampled(
        log_q,
        rate=rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        method=method,
        ratio_cap=ratio_cap,
        sampling=sampling,
    ).sigma
    if rate == 1:
        return sigma
    for _ in range(20):
        parts = sampled_levels(sigma, rate=rate, adjacency=adjacency, sampling=sampling)
        result = composed_epsilon(parts, delta)
        if result <= epsilon:
            return sigma
        # epsilon falls at least as fast as 1/sigma, so this is enough but for rounding.
        sigma = sigma * (result / epsilon * (1 + 1e-6))
    raise SordinoError(f"no schedule was found that the accountant accepts at epsilon {epsilon:g}")


def subsampled_schedule(
    log_q: ArrayLike,
    *,
    rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "auto",
    ratio_cap: float | None = SAFE_RATIO,
    sampling: str = POISSON,
) -> NoiseSchedule:
    """The schedule for secret batches with this influence, `Uniform` where nothing is to be won.

    A step function of few levels, so that accounting for them loses nothing.
    """
    result = search_subsampled(
        log_q,
        rate=rate,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        method=method,
        ratio_cap=ratio_cap,
        sampling=sampling,
    )
    if result.method == "uniform":
        return Uniform()
    change = 100 * (result.relative_cost - 1)
    batches = "Poisson batches" if sampling == POISSON else "batches drawn without replacement"
    label = f"noise levels fitted to {batches} ({result.method}; noise cost {change:+.0f} %)"
    return FixedSchedule(tuple(result.sigma.tolist()), label)


def search_subsampled(
    log_q: ArrayLike,
    *,
    rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    adjacency: str = "add-remove",
    method: str = "auto",
    ratio_cap: float | None = None,
    sampling: str = POISSON,
) -> SubsampledSearch:
    """The best schedule found, accurate to a few 1e-4 of epsilon: a *shape*, to be calibrated.

    Args:
      log_q: logarithms of the influence, (steps,).
      rate: inclusion probability p of a record in each step.
      steps: T, for the sake of a clear error if `log_q` was made for another number.
      adjacency: "add-remove", "zero-out" or "replace-one".
      method: one of `METHODS`; a named one is taken even where uniform noise is better.
      ratio_cap: the largest ratio between any two noise levels; None for no limit.
      sampling: "poisson", or "without-replacement" (adjacency "replace-one").
    """
    true_log_q = capped(log_q, None)
    if true_log_q.size != require_count("steps", steps):
        raise SordinoError(f"log_q has {true_log_q.size:,} entries for {steps:,} steps")
    shape = true_log_q - true_log_q.max()
    if ratio_cap is not None and not 1 <= ratio_cap < math.inf:
        raise SordinoError(f"ratio_cap must be a finite number of at least 1, got {ratio_cap!r}")
    require_choice("method", method, METHODS)
    Adjacency(adjacency)  # an unknown one is refused
    require_positive("rate", rate, maximum=1)
    require_positive("epsilon", epsilon)
    require_fraction("delta", delta)
    if rate < 1 and delta < SMALLEST_DELTA:
        raise SordinoError(
            f"amplified guarantees are computed down to delta = {SMALLEST_DELTA:g}, got {delta!r}"
        )
    if rate == 1:
        return _full_batch(true_log_q, epsilon, delta, adjacency, method, ratio_cap)

    def solve(family: Family, near: float, most: int, tolerance: float) -> float:
        def spent(z: float) -> float:
            sigma = stepwise(family(z), most)
            parts = sampled_levels(
                sigma, rate=rate, adjacency=adjacency, most=most, sampling=sampling
            )
            return composed_epsilon(parts, delta, quick=tolerance > 1e-4)

        return _solve(spent, epsilon, near, tolerance)

    def constant(z: float) -> Array:
        return np.full(steps, math.exp(z))

    unamplified = math.sqrt(steps) / mu_from_epsilon_delta(epsilon, delta)
    uniform = constant(solve(constant, _first_guess(unamplified, rate), 1, 1e-5))
    uniform_cost = predicted_cost(true_log_q, uniform)
    stay = SubsampledSearch(uniform, "uniform", 1.0, float(uniform[0]))

    names = _rule(stay.uniform_sigma) if method == "auto" else (method,)
    tried = []
    for name, family in _families(names, shape, rate, ratio_cap, stay.uniform_sigma):
        z = solve(family, _same_central_limit(family, stay.uniform_sigma), _COARSE_LEVELS, 1e-3)
        cost = predicted_cost(true_log_q, stepwise(family(z), _COARSE_LEVELS))
        tried.append((cost, name, family, z))
    if not tried:
        return stay
    _, name, family, z = min(tried, key=lambda entry: entry[0])
    sigma = stepwise(family(solve(family, z, MOST_LEVELS, 1e-5)), MOST_LEVELS)
    relative = predicted_cost(true_log_q, sigma) / uniform_cost
    if method == "auto" and relative > _WORTHWHILE:
        return stay
    return SubsampledSearch(sigma, name, relative, stay.uniform_sigma)


def _rule(uniform_sigma: float) -> tuple[str, ...]:
    if uniform_sigma >= LEMMA_FROM:
        return ("lemma",)
    return ("lambert",) if uniform_sigma >= LAMBERT_FROM else ("rdp-kkt", "lambert")


def _full_batch(
    log_q: Array, epsilon: float, delta: float, adjacency: str, method: str, ratio_cap: float | None
) -> SubsampledSearch:
    """Rate 1 is a plain Gaussian composition, and the lemma is its exact optimum."""
    kappa = Adjacency(adjacency).factor
    R = (mu_from_epsilon_delta(epsilon, delta) / kappa) ** 2
    flat = allocate(np.zeros_like(log_q), R)
    if method == "uniform":
        return SubsampledSearch(flat, "uniform", 1.0, float(flat[0]))
    sigma = allocate(log_q, R, ratio_cap=ratio_cap)
    relative = predicted_cost(log_q, sigma) / predicted_cost(log_q, flat)
    return SubsampledSearch(sigma, "lemma", relative, float(flat[0]))


# ---- families ---------------------------------------------------------------------------------------


def _families(
    names: tuple[str, ...], log_q: Array, rate: float, ratio_cap: float | None, uniform_sigma: float
) -> list[tuple[str, Family]]:
    rules: list[tuple[str, Rule]] = []
    for name in names:
        if name == "lemma":
            rules.append((name, lambda log_q, z: z - log_q / 4))
        elif name == "lambert":
            rules.append((name, lambda log_q, z: _lambert(log_q, 4 * z)))
        elif name == "rdp-kkt":
            rules += [(f"rdp-kkt, order {a}", _renyi_rule(rate, a)) for a in ORDERS]
    return [(name, _family(rule, log_q, ratio_cap, uniform_sigma)) for name, rule in rules]


def _family(rule: Rule, log_q: Array, ratio_cap: float | None, uniform_sigma: float) -> Family:
    """The rule for this influence, its noise clipped to a ratio of `ratio_cap` where need be.

    As in `allocate.capped` the best clipping is at both ends: a share of the steps with the largest
    influence is pooled, chosen by the central-limit cost, and noise above the ratio is cut off.
    """
    if ratio_cap is None:
        return _clipped(rule, log_q, None)
    sample = np.quantile(log_q, np.linspace(0, 1, min(log_q.size, 400)))
    free = _clipped(rule, sample, None, limit=False)
    spread = free(_same_central_limit(free, uniform_sigma))
    if spread.max() <= ratio_cap * spread.min():
        return _clipped(rule, log_q, ratio_cap)

    def pooled(share: float, values: Array) -> Array:
        # Moved to a maximum of 0, where z means the same for every share.
        top = float(np.quantile(sample, 1 - share))
        return np.minimum(values, top) - top

    def cost(share: float) -> float:
        family = _clipped(rule, pooled(share, sample), ratio_cap)
        return predicted_cost(sample, family(_same_central_limit(family, uniform_sigma)))

    share = golden(cost, 0.0, 1.0, rounds=12)
    return _clipped(rule, pooled(share, log_q), ratio_cap)


def _clipped(rule: Rule, log_q: Array, ratio_cap: float | None, limit: bool = True) -> Family:
    def family(z: float) -> Array:
        values = rule(log_q, z)
        if ratio_cap is not None:
            values = np.minimum(values, values.min() + math.log(ratio_cap))
        if limit and not (values < _LARGEST_LOG_SIGMA).all():
            raise SordinoError(
                "this influence asks for infinite noise in some steps; give a ratio_cap such as 2"
            )
        return np.exp(np.minimum(values, _LARGEST_LOG_SIGMA))

    return family


def _lambert(log_q: Array, log_lambda: float) -> Array:
    """``log sigma``, ``sigma = u^(-1/2)``, ``u = 2 W(sqrt(q/lambda)/2)``: KKT for cost e^u - 1."""
    log_x = (log_q - log_lambda) / 2 - math.log(2)
    # W(x) = x for tiny x, where x itself may be no float.
    middle = np.real(lambertw(np.exp(np.clip(log_x, -40.0, 700.0))))
    log_w = np.where(log_x < -40, log_x, np.log(middle))
    return np.asarray(-(log_w + math.log(2)) / 2)


def _renyi_rule(rate: float, order: int) -> Rule:
    # log h falls with log sigma: like -4 log sigma for large sigma, steeper before. The accumulation
    # removes ripples of rounding.
    grid = np.linspace(math.log(0.02), math.log(1e4), 4000)
    log_h = np.minimum.accumulate(np.log(renyi_slope(np.exp(grid), rate, order)))

    def rule(log_q: Array, z: float) -> Array:
        wanted = log_q - 4 * z
        beyond = np.maximum(log_h[-1] - wanted, 0.0) / 4
        return np.asarray(np.interp(-wanted, -log_h, grid) + beyond)

    return rule


def renyi_slope(sigma: Array, rate: float, order: int) -> Array:
    """``h_a(sigma) = -eps_a'(sigma) / (2 sigma)`` of one Poisson step, for an integer order a.

    ``eps_a = ln(sum_k C(a,k) (1-p)^(a-k) p^k e^{k(k-1)/(2 sigma^2)}) / (a-1)``, so h is
    ``E[k(k-1)] / (2 (a-1) sigma^4)`` under the terms of that sum as weights.
    """
    k = np.arange(order + 1.0)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = (
        log_binomial
        + (order - k) * math.log1p(-rate)
        + k * math.log(rate)
        + k * (k - 1) / (2 * sigma[:, None] ** 2)
    )
    weights = np.exp(terms - logsumexp(terms, axis=1, keepdims=True))
    return np.asarray(weights @ (k * (k - 1)) / (2 * (order - 1) * sigma**4))


def stepwise(sigma: Array, most: int = MOST_LEVELS) -> Array:
    """`sigma` with few distinct values: bins of equal ratio, in each the same total ``1/sigma^2``."""
    low, high = float(sigma.min()), float(sigma.max())
    count = min(most, math.ceil(math.log(high / low) / math.log(_LEVEL_RATIO)))
    if high <= low or count <= 1:
        return np.full(sigma.shape, math.sqrt(1 / float(np.mean(sigma**-2.0))))
    position = np.log(sigma / low) / math.log(high / low)
    bins = np.minimum((position * count).astype(np.intp), count - 1)
    total = np.bincount(bins, sigma**-2.0, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.sqrt(np.bincount(bins, minlength=count) / total)
    return np.asarray(level[bins])


# ---- solving ----------------------------------------------------------------------------------------


def _central_limit(sigma: Array) -> float:
    return float(np.expm1(np.minimum(sigma**-2.0, 600.0)).sum())


def _first_guess(plain: float, rate: float) -> float:
    """Uniform noise by the central limit: ``T p^2 (e^u - 1) = mu^2``."""
    return -0.5 * math.log(math.log1p(1 / (plain * rate) ** 2))


def _same_central_limit(family: Family, uniform_sigma: float) -> float:
    """The parameter at which the family's central-limit cost is that of the uniform noise."""
    wanted = _central_limit(np.full(family(0.0).shape, uniform_sigma))
    return _bisected(lambda z: _central_limit(family(z)) <= wanted)


def _bisected(enough: Callable[[float], bool]) -> float:
    """The least z at which a family has noise enough."""
    low, high = -1.0, 1.0
    while enough(low):
        low *= 2
    while not enough(high):
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _solve(spent: Callable[[float], float], epsilon: float, near: float, tolerance: float) -> float:
    """z with ``spent(z) = epsilon``, within `tolerance` in z, started `near` it."""
    from scipy.optimize import brentq  # here, because it takes long to import

    known: dict[float, float] = {}

    def excess(z: float) -> float:
        if z not in known:
            known[z] = math.log(min(max(spent(z) / epsilon, 1e-6), 1e6))
        return known[z]

    width = 0.02
    low = high = near
    while excess(low) < 0:
        low -= width
        width *= 2
    width = 0.02
    while excess(high) > 0:
        low, high = max(low, high), high + width
        width *= 2
    if low == high:
        return low
    return float(brentq(excess, low, high, xtol=tolerance, rtol=1e-12))

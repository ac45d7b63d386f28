"""The mu of a plan from its definition: every pattern, sign and direction, sharing no code with `privacy`.

One unit is present in the steps P and adds ``c_t e_t`` with ``|e_t| <= 1`` in step t; releases with noise
of covariance Sigma shift by the Mahalanobis length of what it adds. The covariance is that of the
float32 rows that a run really adds: identity matrices take the place of its draws.
"""

from __future__ import annotations

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sordino._base.keys import RunKey
from sordino.parts import Population
from sordino.parts.sampling import RESHUFFLED
from sordino.planning import Plan
from sordino.privacy import Adjacency

Array = NDArray[np.float64]
# Up to this many uses all signs are tried.
MOST_SIGNS = 8


def fixed_patterns(steps: int, separation: int) -> list[list[int]]:
    """The steps of each slot, where every epoch has the same batches."""
    return [[t for t in range(steps) if t % separation == j] for j in range(min(separation, steps))]


def fresh_patterns(steps: int, per_epoch: int) -> list[list[int]]:
    """Any one step of each epoch."""
    epochs: dict[int, list[int]] = {}
    for t in range(steps):
        epochs.setdefault(t // per_epoch, []).append(t)
    return [list(choice) for choice in product(*epochs.values())]


def drawn_patterns(population: Population) -> list[list[int]]:
    """The steps of each example, as public batches have it."""
    indices, mask = population.batches(RunKey.from_insecure_seed(0), 0, population.steps)
    present: dict[int, list[int]] = {}
    for t, (rows, kept) in enumerate(zip(indices, mask, strict=True)):
        for row in rows[kept > 0]:
            present.setdefault(int(row), []).append(t)
    return list(present.values())


def best_vectors(
    X: Array,
    clips: Array,
    pattern: list[int],
    rng: np.random.Generator,
    starts: int = 6,
    rounds: int = 200,
) -> float:
    """A lower bound on the squared shift: block ascent over unit vectors, and all signs of one."""
    c = clips[pattern]
    Y = X[np.ix_(pattern, pattern)] * np.outer(c, c)
    k = len(pattern)
    best = 0.0
    if k <= MOST_SIGNS:
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


def noising_matrices(plan: Plan) -> Array:
    """``C^-1`` of each channel as a run computes it (channels, steps, steps)."""
    mechanism, T, channels = plan.mechanism, plan.population.steps, plan.contribution.channels
    eye = jnp.tile(jnp.eye(T, dtype=jnp.float32), (1, channels))
    state, blocks = mechanism.init(channels * T), []
    for first, end in zip((0, *mechanism.boundaries), (*mechanism.boundaries, T), strict=True):
        rows, state = mechanism.rows(
            state,
            lambda begin, count: jax.lax.dynamic_slice_in_dim(eye, begin, count),
            first,
            end - first,
        )
        blocks.append(np.asarray(rows, np.float64))
    return np.concatenate(blocks).reshape(T, channels, T).swapaxes(0, 1)


def brute_force_mu(plan: Plan) -> tuple[float, float]:
    """The largest shift over all patterns, signs and directions, and the sum of absolute values.

    In units of the noise's own standard deviations: a lower and an upper bound on mu. Secret batches
    get no credit for the secret.
    """
    population, T = plan.population, plan.population.steps
    bounds = plan.contribution.bounds(T)
    stds = plan.noise_stds().astype(np.float64).T
    per_epoch = math.ceil(population.examples / population.batch_size)
    if population.is_secret:
        per_epoch = population.cycle or 1
    patterns = fixed_patterns(T, per_epoch)
    if population.sampling == RESHUFFLED:
        counted = population.slots is not None
        patterns = drawn_patterns(population) if counted else fresh_patterns(T, per_epoch)
    inverses = [
        np.linalg.inv(std[:, None] * N) for std, N in zip(stds, noising_matrices(plan), strict=True)
    ]
    grams = [inverse.T @ inverse for inverse in inverses]
    rng = np.random.default_rng(0)
    lower = upper = 0.0
    for P in patterns:
        parts = list(zip(grams, bounds, strict=True))
        lower = max(lower, sum(best_vectors(X, c, P, rng, 2, 30) for X, c in parts))
        upper = max(upper, sum(np.abs(X * np.outer(c, c))[np.ix_(P, P)].sum() for X, c in parts))
    kappa = Adjacency(plan.guarantee.adjacency).factor
    return kappa * math.sqrt(lower), kappa * math.sqrt(upper)

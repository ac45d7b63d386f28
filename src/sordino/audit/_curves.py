r"""Trade-off curves: what any attacker can do against a guarantee, and what one did.

An attack is a test between two neighbouring data sets. A guarantee bounds its power, the true
positive rate at each false positive rate a (Dong, Roth & Su 2022, section 2):

    mu-GDP:             power(a) <= Phi(Phi^-1(a) + mu)
    (epsilon, delta):   power(a) <= min(e^epsilon a + delta,  1 - e^-epsilon (1 - delta - a))

for every (epsilon, delta) of the guarantee's curve. Where two data sets are two changes apart the
bound is applied twice, ``power(power(a))`` (their theorem 2.14, group privacy): replacing an example is
to zero it out and to put another in its place.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from sordino.audit._intervals import Array, share_above
from sordino.privacy import Guarantee, epsilon_from_mu

Points = tuple[tuple[float, float], ...]

# Tangents of an amplified curve: any number of them is a bound, many are a tight one.
TANGENTS = 300
SMALLEST_DELTA = 1e-9
# Points of a measured curve that are kept.
KEPT = 81


def largest_power(guarantee: Guarantee, fpr: ArrayLike, *, changes: int = 1) -> Array:
    """The largest true positive rate that `guarantee` allows at each false positive rate.

    Args:
      guarantee: of the release that is attacked.
      fpr: false positive rates in [0, 1], any shape.
      changes: how many neighbouring steps lie between the two data sets that are distinguished.
    """
    rates = np.asarray(fpr, np.float64)
    if not guarantee.is_private:
        return np.ones_like(rates)
    # Within a total variation d of something ideal, both rates of any test are d away from its rates.
    near = getattr(guarantee, "distance", 0.0)
    for _ in range(changes):
        rates = np.minimum(rates + near, 1.0)
        power = np.asarray(ndtr(ndtri(rates) + guarantee.mu))
        if guarantee.is_amplified:
            power = np.minimum(power, _amplified(guarantee, rates))
        rates = np.minimum(power + near, 1.0)
    return rates


def _amplified(guarantee: Guarantee, fpr: Array) -> Array:
    epsilons, deltas = _tangents(guarantee)
    e, d, a = epsilons[:, None], deltas[:, None], fpr.reshape(1, -1)
    rising = np.exp(e) * a + d
    falling = 1 - np.exp(-e) * (1 - d - a)
    best = np.minimum(rising, falling).min(axis=0)
    return np.clip(best, 0.0, 1.0).reshape(fpr.shape)


@lru_cache(maxsize=16)
def _tangents(guarantee: Guarantee) -> tuple[Array, Array]:
    last = guarantee.epsilon(SMALLEST_DELTA)
    # Discrete noise has no epsilon at so small a delta; then its mu without amplification has.
    last = max(last if math.isfinite(last) else epsilon_from_mu(guarantee.mu, SMALLEST_DELTA), 1e-6)
    epsilons = np.linspace(0.0, last, TANGENTS)
    return epsilons, np.array([guarantee.delta(float(e)) for e in epsilons])


def measured_curve(without: Array, having: Array, points: int = KEPT) -> Points:
    """(false positive rate, true positive rate) of "the score is above a threshold", rising.

    The thresholds are evenly spread over both samples together, so that both ends are seen.
    """
    pooled = np.concatenate([without, having])
    thresholds = np.unique(np.quantile(pooled, np.linspace(0, 1, points)))[::-1]
    above = (share_above(sample, thresholds).tolist() for sample in (without, having))
    pairs = list(zip(*above, strict=True))
    return ((0.0, 0.0), *pairs, (1.0, 1.0))

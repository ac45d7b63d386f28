r"""Privacy profiles of one step in closed form: oracles of the accountant.

Noise multiplier s (std / contribution), inclusion probability p, ``D_mu`` the Gaussian profile of
`log_deltas` with ``mu = 1/s``:

* removing a record, Poisson batches: ``p D_mu(ln(1 + (e^e - 1)/p))`` for ``e > ln(1-p)``, else ``1 - e^e``;
* replacing a record: the loss is monotone in the output x, and ``e^{x/s^2}`` solves a quadratic
  equation; the profile is ``P(X > x) - e^e Q(X > x)``;
* batches of fixed size, s = std / (2 S): the tight profile of Balle, Barthe & Gaboardi (2018).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from sordino.privacy._gdp import log_deltas
from sordino.privacy._terms import Adjacency

Array = NDArray[np.float64]


def poisson_delta(epsilon: ArrayLike, s: float, rate: float, adjacency: str) -> Array:
    """delta(epsilon) of one step, at any real epsilons."""
    e = np.atleast_1d(np.asarray(epsilon, np.float64))
    if adjacency == Adjacency.REPLACE_ONE:
        return _replaced(e, s, rate)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(e > 30, e - math.log(rate), np.log1p(np.expm1(np.minimum(e, 30)) / rate))
    inside = np.isfinite(inner)
    value = -np.expm1(np.minimum(e, 0.0))
    value[inside] = rate * np.exp(log_deltas(inner[inside], 1 / s))
    return value


def _replaced(e: Array, s: float, rate: float) -> Array:
    # With z = e^{x/s^2}, a = p e^{-1/(2 s^2)} and b = 1 - p: (b + a z) / (b + a/z) = e^e, that is
    # a z^2 - b (e^e - 1) z - a e^e = 0; halving e keeps the exponentials in range.
    log_a, b = math.log(rate) - 0.5 / s**2, 1 - rate
    half = np.sinh(np.minimum(np.abs(e), 700.0) / 2) * b
    with np.errstate(divide="ignore"):
        # ln of the larger root over e^{e/2}, for |e|; the roots' product is -e^e.
        lift = np.arcsinh(half * math.exp(min(-log_a, 700.0)))
    x = s**2 * (e / 2 + np.sign(e) * lift)
    above = rate * ndtr((1 - x) / s) + b * ndtr(-x / s)
    below = rate * ndtr((-1 - x) / s) + b * ndtr(-x / s)
    return np.maximum(above - np.exp(e) * below, 0.0)


def without_replacement_delta(epsilon: ArrayLike, s: float, rate: float) -> NDArray[np.float64]:
    """``D(epsilon)``, one step, ``s = std / (2 S)``."""
    e = np.atleast_1d(np.asarray(epsilon, dtype=np.float64))
    size = np.abs(e)
    e0 = np.where(size > 30, size - math.log(rate), np.log1p(np.expm1(np.minimum(size, 30)) / rate))
    right = rate * np.exp(log_deltas(e0, 1 / s))
    return np.where(e >= 0, right, -np.expm1(-size) + np.exp(-size) * right)

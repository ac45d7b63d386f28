r"""The noisy minimum: which of m candidates has the least sum, privately (papers/01, section 1.3).

    argmin_j (score_j - E_j),        E_j ~ Exp(scale), independent

releases the index and nothing else. Let one record change every score by at most Delta. If all
scores move the same way (*monotone*: adding a record adds a loss in ``[0, Delta]`` to each), the
index is eps'-DP with ``scale = Delta / eps'``; where they may move either way (replace-one) it takes
``2 Delta / eps'`` (Dwork & Roth 2014, section 3.3; Ding et al. 2021 for exponential noise).

The sign matters. ``argmin_j (score_j + E_j)``, as in published code, is another mechanism: a candidate
wins only if *all* m - 1 others are pushed above it, so the privacy loss is ``(m - 1) Delta / scale``,
twenty times more with 21 candidates.

Any eps'-DP mechanism is mu'-GDP with ``mu' = 2 Phi^-1(e^eps' / (1 + e^eps'))`` (Dong, Roth & Su 2022,
randomized response being the worst), so that it can be paid from the budget of a Gaussian run:

>>> round(mu_of_pure(0.1), 6), round(pure_of_mu(mu_of_pure(0.1)), 6)
(0.125309, 0.1)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf, erfinv, log_ndtr, ndtri_exp

from sordino._base.errors import SordinoError, require_positive
from sordino.privacy._gdp import SLACK


def mu_of_pure(epsilon: float) -> float:
    """mu of the GDP guarantee that any pure epsilon-DP mechanism has, rounded up.

    ``2 Phi^-1(e^eps / (1 + e^eps)) = 2 sqrt(2) erfinv(tanh(eps / 2))``, about ``sqrt(pi/2) eps`` for
    small epsilon.
    """
    require_positive("epsilon", epsilon)
    if epsilon < 1:
        exact = 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2)))
    else:  # by the logarithm of the other tail, where tanh is too close to 1
        exact = -2 * float(ndtri_exp(-float(np.logaddexp(0.0, epsilon))))
    return exact * (1 + SLACK)


def pure_of_mu(mu: float) -> float:
    """The largest epsilon with ``mu_of_pure(epsilon) <= mu``, rounded down."""
    require_positive("mu", mu)
    if mu < 1:
        exact = 2 * math.atanh(float(erf(mu / math.sqrt(8))))
    else:
        exact = float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
    return exact * (1 - 4 * SLACK)


def noisy_min(scores: ArrayLike, scale: float, rng: np.random.Generator) -> int:
    """``argmin_j (score_j - Exp(scale))``: eps'-DP for ``scale = Delta / eps'``, monotone scores.

    Computed in float64. The exponentials are ``-ln u`` with u from 64 random bits, so they reach
    ``45 scale`` (what is left out has probability 2^-65 each). The proof is for real numbers:
    rounding moves a score by ``2^-53`` of its size, so keep scores far below ``2^53 scale``. Only an
    index leaves, so there are no low bits of noise to read.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise SordinoError("a noisy minimum needs a list of finite scores")
    require_positive("scale", scale)
    bits = rng.integers(0, 1 << 64, size=values.size, dtype=np.uint64)
    uniform = np.minimum((bits.astype(np.float64) + 0.5) * 2.0**-64, 1.0)
    return int(np.argmin(values + scale * np.log(uniform)))

r"""How far discrete Gaussian noise is from Gaussian noise that was rounded: proved, and tiny.

Let Q be the discrete Gaussian with parameter S on the integers, and P the law of a Gaussian of
variance ``S - 1/12`` rounded to the nearest integer. Rounding adds just that twelfth to the variance
(Sheppard), so the two agree but for terms of order ``S^-2``: for every integer k, with
``c = S - 1/12`` and ``X = k^2 / c``,

    -(X^2/2880 + 1/50) / c^2  <=  log P(k)/Q(k)  <=  (X/288 + 1/80) / c^2         (S >= 4)

and ``KL(Q || P) <= 1 / (2048 S^4)`` (docs/privacy.md has the derivation; the truth is 3e-3 of that).
It adds up over draws, also where later sums depend on earlier releases (chain rule), and Pinsker's
inequality gives the total variation

    tv  <=  sqrt(draws) / (64 S^2).

To whole numbers, adding rounded Gaussian noise is rounding after adding Gaussian noise: it has the
Gaussian guarantee. With discrete noise instead, each probability changes by at most tv, so that a
run that would be (epsilon, delta)-DP is (epsilon, delta + (1 + e^epsilon) tv)-DP.
"""

from __future__ import annotations

import math

from sordino._base.errors import SordinoError

# The bounds above are proved from here on.
LEAST_VARIANCE = 4


def rounding_distance(least_variance: int, draws: int) -> float:
    """Total variation between discrete and rounded Gaussian noise of variance 1/12 less, rounded up.

    Args:
      least_variance: the smallest parameter S of any draw, in squared lattice steps.
      draws: how many draws of noise a run makes in all, coordinates times steps.
    """
    if least_variance < LEAST_VARIANCE:
        raise SordinoError(
            f"discrete noise is compared with rounded noise from variance {LEAST_VARIANCE} on, got "
            f"{least_variance}"
        )
    return min(1.0, math.sqrt(draws) / 64 / float(least_variance) ** 2 * (1 + 1e-12))

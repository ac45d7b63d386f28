"""Reading other people's numbers: zCDP and RDP in and out of (epsilon, delta) and mu-GDP.

Nothing in Sordino is calibrated through these: each conversion to (epsilon, delta) loses a little
(22 to 45 % more noise at the papers' settings). They are here so that a guarantee stated elsewhere
can be compared with ours.
"""

from __future__ import annotations

import math

from sordino._base.errors import SordinoError, require_fraction, require_positive


def zcdp_from_mu(mu: float) -> float:
    """rho of the zCDP guarantee implied by mu-GDP: ``mu^2 / 2`` (no inverse exists in general)."""
    if not mu >= 0:
        raise SordinoError(f"mu must be a number of at least 0, got {mu!r}")
    return mu * mu / 2


def mu_of_gaussian_with_zcdp(rho: float) -> float:
    """mu of a *Gaussian* mechanism that was stated as rho-zCDP: ``sqrt(2 rho)``.

    True only where the other side's mechanism is Gaussian; zCDP alone does not imply GDP.
    """
    return math.sqrt(2 * require_positive("rho", rho))


def zcdp_from_epsilon_delta(epsilon: float, delta: float) -> float:
    """Largest rho that Bun & Steinke's ``eps = rho + 2 sqrt(rho L)`` turns into (epsilon, delta).

    ``eps^2 / (sqrt(L + eps) + sqrt(L))^2`` with ``L = ln(1/delta)``: the form without cancellation
    (the printed plus sign of one paper gives 81.49 instead of 0.196 at (4, 1e-8)).
    """
    L = -math.log(require_fraction("delta", delta))
    require_positive("epsilon", epsilon)
    return (epsilon / (math.sqrt(L + epsilon) + math.sqrt(L))) ** 2


def epsilon_from_zcdp(rho: float, delta: float, *, tight: bool = True) -> float:
    """epsilon of a rho-zCDP mechanism: Canonne, Kamath & Steinke's optimum, or Bun & Steinke's."""
    L = -math.log(require_fraction("delta", delta))
    require_positive("rho", rho)
    if not tight:
        return rho + 2 * math.sqrt(rho * L)

    def at(log_order: float) -> float:
        # Every order gives a valid epsilon, so an inexact search is never unsafe.
        return epsilon_from_rdp(1 + math.exp(log_order), rho * (1 + math.exp(log_order)), delta)

    from scipy.optimize import minimize_scalar  # here, because it takes long to import

    best = minimize_scalar(at, bounds=(-12, 25), method="bounded", options={"xatol": 1e-10})
    return float(best.fun)


def epsilon_from_rdp(order: float, rdp: float, delta: float) -> float:
    """epsilon of one RDP point ``(order, rdp)``: ``rdp + (L + (a-1) ln(1-1/a) - ln a)/(a-1)``."""
    L = -math.log(require_fraction("delta", delta))
    if not order > 1:
        raise SordinoError(f"an RDP order must be greater than 1, got {order!r}")
    extra = (L + (order - 1) * math.log1p(-1 / order) - math.log(order)) / (order - 1)
    return max(0.0, rdp + extra)

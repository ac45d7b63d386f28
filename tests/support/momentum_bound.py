r"""The convergence bound of private momentum, as corrected (papers/04, erratum g).

For an M-smooth loss with PL constant mu, ``kappa = M/mu``, learning rate ``eta = eta_0 / (2 M)`` and
bias-corrected momentum beta,

    E f(theta_{T+1}) - f*  <=  (f(theta_1) - f*) (gamma^T + eta_0 alpha R U3),
    gamma = 1 - eta_0 / (2 kappa),    U3 = sum_t q_t sigma_t^2  (q of `influence.momentum_bound`),
    alpha R = D G^2 / (2 M N^2 (f(theta_1) - f*)),

whenever ``beta < gamma`` and ``zeta = 1 - eta_0/2 - K eta_0^2 >= 0``. The printed theorem lost a factor
1/2 and is false. At beta = 0.9 the condition means eta_0 <= 0.0033 for any kappa, some 600 times below
1/M: the theory says nothing about the steps used in practice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from sordino._base.errors import SordinoError, require_count, require_positive
from sordino.parts.schedules._influence import momentum_bound


def momentum_gamma(eta_0: float, kappa: float) -> float:
    """``gamma = 1 - eta_0 / (2 kappa)``."""
    return 1 - require_positive("eta_0", eta_0, maximum=2) / (2 * _condition(kappa))


def momentum_K(beta: float, gamma: float) -> float:
    """``K = beta gamma / ((gamma - beta)^2 (1 - beta)^3)``, defined for beta < gamma."""
    if not 0 <= beta < gamma <= 1:
        raise SordinoError(
            f"the momentum bound needs 0 <= beta < gamma <= 1, got beta={beta!r}, gamma={gamma!r}"
        )
    return beta * gamma / ((gamma - beta) ** 2 * (1 - beta) ** 3)


def momentum_zeta(eta_0: float, beta: float, gamma: float) -> float:
    """``zeta = 1 - eta_0/2 - K eta_0^2``, which must not be negative."""
    return 1 - eta_0 / 2 - momentum_K(beta, gamma) * eta_0**2


def largest_eta_0_at(beta: float, gamma: float) -> float:
    """``4 / (1 + sqrt(1 + 16 K))``: the root of zeta for a given gamma."""
    return 4 / (1 + math.sqrt(1 + 16 * momentum_K(beta, gamma)))


def largest_eta_0(beta: float, kappa: float) -> float:
    """The largest eta_0 that meets its own condition, since gamma depends on it (by bisection)."""
    _condition(kappa)
    if not 0 <= beta < 1:
        raise SordinoError(f"the momentum beta must be at least 0 and less than 1, got {beta!r}")

    def allowed(eta_0: float) -> bool:
        gamma = momentum_gamma(eta_0, kappa)
        return beta < gamma and eta_0 <= largest_eta_0_at(beta, gamma)

    if allowed(2.0):
        return 2.0
    # A larger eta_0 lowers gamma, which raises K and lowers the limit: allowed is an interval (0, x].
    low, high = 0.0, 2.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def momentum_risk_bound(
    sigma: ArrayLike, *, beta: float, kappa: float, eta_0: float, alpha_R: float
) -> float:
    """``gamma^T + eta_0 alpha R U3``, relative to ``f(theta_1) - f*``; raises outside its range."""
    noise = np.asarray(sigma, np.float64)
    T = require_count("the number of steps", noise.size)
    gamma = momentum_gamma(eta_0, kappa)
    if gamma <= beta or momentum_zeta(eta_0, beta, gamma) < -1e-12:
        raise SordinoError(
            f"the momentum bound holds up to eta_0 = {largest_eta_0(beta, kappa):.4g} for "
            f"beta={beta:g} and kappa={kappa:g}, got {eta_0:g}"
        )
    U3 = float(np.exp(momentum_bound(beta, gamma, T)) @ noise**2)
    return gamma**T + eta_0 * alpha_R * U3


def _condition(kappa: float) -> float:
    if not (math.isfinite(kappa) and kappa >= 1):
        raise SordinoError(f"a condition number kappa is at least 1, got {kappa!r}")
    return kappa

r"""How many steps to take for a budget (papers/04, section 1.4).

For gradient descent with ``eta = 1/M`` on a PL loss, ``gamma = 1 - 1/kappa`` and
``alpha = D G^2 / (2 R M N^2 (f(theta_1) - f*))``, bounds relative to ``f(theta_1) - f*`` are

    E_dyn(T) = gamma^T + alpha ((1 - gamma^(T/2)) / (1 - sqrt gamma))^2,      best schedule
    E_uni(T) = gamma^T + alpha kappa (1 - gamma^T) T,                         uniform noise

and ``T* = (2 / ln(1/gamma)) ln(1 + (1 - sqrt gamma)^2 / alpha)`` minimises the first, with value
``a / (1 + a)``, ``a = alpha / (1 - sqrt gamma)^2``. Zero steps ("do not train") have error 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sordino._base.errors import require_count, require_fraction, require_positive


class Horizon(NamedTuple):
    """A number of steps, and the error bound there (relative to not training at all)."""

    steps: int
    error: float


def dynamic_error(T: float, gamma: float, alpha: float) -> float:
    """``E_dyn(T)``."""
    _check(gamma, alpha)
    half = T * math.log(gamma) / 2
    return math.exp(2 * half) + alpha * (math.expm1(half) / _one_minus_root(gamma)) ** 2


def uniform_error(T: float, gamma: float, alpha: float) -> float:
    """``E_uni(T)``."""
    _check(gamma, alpha)
    return math.exp(T * math.log(gamma)) + _uniform_noise(T, gamma, alpha)


def real_best_steps(gamma: float, alpha: float) -> float:
    """``T*``, the real minimiser of `dynamic_error`."""
    _check(gamma, alpha)
    return -2 / math.log(gamma) * math.log1p(_one_minus_root(gamma) ** 2 / alpha)


def best_dynamic_steps(gamma: float, alpha: float) -> Horizon:
    """The better of T* rounded down, rounded up, and not training at all."""
    T = math.floor(real_best_steps(gamma, alpha))
    return _least(Horizon(steps, dynamic_error(steps, gamma, alpha)) for steps in (0, T, T + 1))


def best_uniform_steps(gamma: float, alpha: float) -> Horizon:
    """The integer minimiser of `uniform_error`, by a scan that knows when to stop."""
    _check(gamma, alpha)
    best, T = Horizon(0, 1.0), 0
    # The noise term alone only grows with T.
    while _uniform_noise(T, gamma, alpha) < best.error:
        T += 1
        best = _least([best, Horizon(T, uniform_error(T, gamma, alpha))])
    return best


def best_steps(error: Callable[[int], float], most: int) -> Horizon:
    """The integer minimiser of any error over 0..`most`, e.g. an exact bias plus `optimal_cost`."""
    return _least(Horizon(T, error(T)) for T in range(require_count("most", most, minimum=0) + 1))


def _least(candidates: Iterable[Horizon]) -> Horizon:
    return min(candidates, key=lambda horizon: (horizon.error, horizon.steps))


def _uniform_noise(T: float, gamma: float, alpha: float) -> float:
    return -alpha / (1 - gamma) * math.expm1(T * math.log(gamma)) * T


def _one_minus_root(gamma: float) -> float:
    return (1 - gamma) / (1 + math.sqrt(gamma))


def _check(gamma: float, alpha: float) -> None:
    require_fraction("gamma", gamma)
    require_positive("alpha", alpha)

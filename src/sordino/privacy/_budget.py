r"""A budget that is spent in whole numbers (papers/04, section 1.1).

The budget of Gaussian releases is ``R = mu^2`` (``= 2 rho`` in zCDP); a release with noise multiplier
sigma costs ``kappa^2 / sigma^2`` of it. Sums of floats drift: in float64 a uniform schedule loses its
last step in about half of all cases, in float32 it overspends. Here costs are Python integers in
units of ``2^-96``, each rounded up, so ``spent <= R`` holds exactly and a plan whose costs fit can
always spend its last step.

>>> budget = PrivacyFilter.of(1.0)
>>> for _ in range(4):
...     budget.spend(sigma=2.0)
>>> budget.remaining
0
"""

from __future__ import annotations

import math

from sordino._base.errors import SordinoError, require_positive

UNIT_BITS = 96


class BudgetExhausted(SordinoError):  # noqa: N818 (the paper's name)
    """The next release costs more than is left; nothing was spent and no record may be read."""


def cost_of(sigma: float, kappa: float = 1) -> int:
    """``ceil(2^96 kappa^2 / sigma^2)``: the cost of one Gaussian release, in exact integers.

    `sigma` is the noise multiplier really used (after any rounding to the compute dtype), relative
    to the clip norm; `kappa` is 2 under replace-one adjacency, else 1.
    """
    n, d = require_positive("sigma", sigma).as_integer_ratio()
    a, b = require_positive("kappa", kappa).as_integer_ratio()
    return _ceil_div((a * d) ** 2 << UNIT_BITS, (b * n) ** 2)


def cost_of_mu_squared(mu_squared: float) -> int:
    """``ceil(2^96 mu^2)``: the cost of any mu-GDP release that is not a plain Gaussian one."""
    n, d = _nonnegative("mu_squared", mu_squared).as_integer_ratio()
    return _ceil_div(n << UNIT_BITS, d)


def units_of(R: float) -> int:
    """``floor(2^96 R)``: a budget in whole units, never more than R."""
    n, d = require_positive("R", R).as_integer_ratio()
    return (n << UNIT_BITS) // d


class PrivacyFilter:
    """What is left of ``R = mu^2``. Kept on the host: never inside compiled code, never in floats.

    Call `spend` *before* any private record is read. If sigmas or the number of steps depend on
    earlier outputs, this check is a privacy filter, free of charge for Gaussian releases
    (arXiv 2210.17520).
    """

    __slots__ = ("_remaining", "_total")

    def __init__(self, units: int) -> None:
        self._total = self._remaining = units

    @classmethod
    def of(cls, R: float) -> PrivacyFilter:
        """A budget of ``R = mu^2``, rounded down to a whole unit."""
        return cls(units_of(R))

    @property
    def total(self) -> int:
        """The whole budget, in units of ``2^-96``."""
        return self._total

    @property
    def remaining(self) -> int:
        """What is left, in units of ``2^-96``."""
        return self._remaining

    @property
    def remaining_mu_squared(self) -> float:
        """What is left as mu^2, rounded down: a float that can safely be spent."""
        value = _mu_squared(self._remaining)
        n, d = value.as_integer_ratio()
        return value if n << UNIT_BITS <= self._remaining * d else math.nextafter(value, 0.0)

    def spend(self, sigma: float, kappa: float = 1) -> None:
        """Pay for one Gaussian release, or raise and leave everything as it was.

        Spending exactly everything is legal.
        """
        self._take(cost_of(sigma, kappa))

    def spend_cost(self, mu_squared: float) -> None:
        """Pay for one release known to be mu-GDP."""
        self._take(cost_of_mu_squared(mu_squared))

    def _take(self, cost: int) -> None:
        if cost > self._remaining:
            raise BudgetExhausted(
                f"the next release costs mu^2 = {_mu_squared(cost):.6g} and "
                f"{self.remaining_mu_squared:.6g} is left of "
                f"{_mu_squared(self._total):.6g}; stop here, or plan fewer steps"
            )
        self._remaining -= cost

    def __repr__(self) -> str:
        return (
            f"Budget(mu^2 = {_mu_squared(self._total):.6g}, {self.remaining_mu_squared:.6g} left)"
        )


def _mu_squared(units: int) -> float:
    """The nearest float; a quotient of integers, because the integers alone can exceed any float."""
    return units / (1 << UNIT_BITS)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _nonnegative(name: str, value: float) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise SordinoError(f"{name} must be a finite number of at least 0, got {value!r}")
    return number

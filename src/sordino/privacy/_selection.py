r"""What it costs to keep the best of several private runs (papers/04 E-j and oracle 13).

Training many times and publishing only the best is a release too. If the number of runs K is drawn
from a truncated negative binomial law and only the best run is shown (not K, not the others), the
cost hardly grows with the number of runs (Papernot & Steinke 2022, Theorem 2): with a base run that
is ``(a, e(a))``-RDP at every order a,

    e'(a) = e(a) + (1 + eta) [(1 - 1/b) e(b) + ln(1/gamma) / b] + ln E[K] / (a - 1),   any b >= 1.

A mu-GDP base run has ``e(a) = a mu^2 / 2``; the best b is ``sqrt(2 ln(1/gamma)) / mu`` and the bracket
becomes ``mu sqrt(2 ln(1/gamma)) - mu^2 / 2``. The law has two parameters:

    P[K = k]  in proportion to  (1 - gamma)^k  times  prod_{j < k} (j + eta) / (j + 1),   k >= 1;

eta = 0 is the logarithmic series, eta = 1 the geometric law (dearer, with a shorter tail); gamma sets
the mean.

>>> law = StoppingLaw.with_mean(10, eta=0.0)
>>> round(SelectionGuarantee(math.sqrt(2 * 0.19635), law, "zero-out", "example").epsilon(1e-8), 3)
5.383
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_fraction, require_positive
from sordino._base.types import Json
from sordino.privacy._gdp import MIN_MU, SLACK, mu_from_epsilon_delta
from sordino.privacy._terms import ADJACENCIES, INSECURE, UNITS, Adjacency, change, rounded_up

KIND = "selection"
LOGARITHMIC, GEOMETRIC = 0.0, 1.0
_VERSION = 1
# More would cost months of training and hardly any privacy; the sums below stay exact up to here.
LARGEST_MEAN = 1e6
_ORDERS: NDArray[np.float64] = 1 + np.exp(np.linspace(-6.0, 14.0, 1601))


@dataclass(frozen=True)
class StoppingLaw:
    """The truncated negative binomial law of the number of runs: at least one, without a maximum.

    Attributes:
      eta: its shape, greater than -1: 0 is the logarithmic series, 1 the geometric law.
      gamma: in (0, 1); the smaller, the more runs.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eta) and -1 < self.eta <= 100):
            raise SordinoError(
                f"eta must be greater than -1 and at most 100, got {self.eta!r}; 0 is the "
                "logarithmic series, 1 the geometric law"
            )
        require_fraction("gamma", self.gamma)

    @classmethod
    def with_mean(cls, mean: float, eta: float = LOGARITHMIC) -> StoppingLaw:
        """The law of that shape whose mean number of runs is `mean` (greater than 1)."""
        number = require_positive("the mean number of trials", mean, maximum=LARGEST_MEAN)
        if number <= 1:
            raise SordinoError(f"the mean number of trials must be greater than 1, got {mean!r}")
        if eta == GEOMETRIC:
            return cls(eta, 1 / number)
        low, high = -745.0, -1e-12  # of ln(gamma): the mean falls as gamma grows
        for _ in range(200):
            middle = (low + high) / 2
            if cls(eta, math.exp(middle)).mean > number:
                low = middle
            else:
                high = middle
        return cls(eta, math.exp(low))

    @property
    def mean(self) -> float:
        """E[K], the expected number of runs."""
        log_gamma = math.log(self.gamma)
        if abs(self.eta) < 1e-9:
            return math.expm1(-log_gamma) / -log_gamma
        return self.eta * -math.expm1(log_gamma) / self.gamma / -math.expm1(self.eta * log_gamma)

    def probability(self, runs: int) -> float:
        """P[K = runs]."""
        if runs < 1:
            return 0.0
        log_gamma, log_rest = math.log(self.gamma), math.log1p(-self.gamma)
        if abs(self.eta) < 1e-9:
            return math.exp(runs * log_rest) / (runs * -log_gamma)
        # Gamma(k + eta) / (Gamma(eta) k!), by its absolute value; eta < 0 flips both signs.
        log_size = math.lgamma(runs + self.eta) - math.lgamma(self.eta) - math.lgamma(runs + 1)
        scale = abs(1 / math.expm1(-self.eta * log_gamma))
        return scale * math.exp(log_size + runs * log_rest)

    def draw(self, uniform: float) -> int:
        """The number of runs at which the law's distribution function first exceeds `uniform`.

        With a uniform number in [0, 1) this is one exact draw (to float64); there is no maximum, so
        none is cut off.
        """
        if not 0 <= uniform < 1:
            raise SordinoError(f"the uniform number must be in [0, 1), got {uniform!r}")
        runs, term = 1, self.probability(1)
        total = term
        while total <= uniform and term > 0:
            term *= (1 - self.gamma) * (runs + self.eta) / (runs + 1)
            runs += 1
            total += term
        return runs

    def describe(self) -> str:
        names = {LOGARITHMIC: "logarithmic series", GEOMETRIC: "geometric law"}
        name = names.get(self.eta, f"truncated negative binomial law with eta {self.eta:g}")
        return f"{name} with mean {self.mean:.4g}"


@dataclass(frozen=True)
class SelectionGuarantee:
    """What the best of a random number of mu-GDP runs guarantees.

    Attributes:
      base_mu: every single run, its score included, is base_mu-GDP.
      law: the law of the number of runs.
      adjacency, unit: as in `Guarantee`.
      delta_hint: the delta at which the guarantee is printed.
      distance: total variation between what is released and something that keeps the rest of this
        guarantee, as in `Guarantee`: E[K] times that of a single run.
      insecure: whether the noise came from a seed: there is no privacy against who knows it.
    """

    base_mu: float
    law: StoppingLaw
    adjacency: str
    unit: str
    delta_hint: float | None = None
    distance: float = 0.0
    insecure: bool = False

    def __post_init__(self) -> None:
        require_positive("base_mu", self.base_mu)
        require_choice("adjacency", self.adjacency, ADJACENCIES)
        require_choice("unit", self.unit, UNITS)
        require_fraction("distance", self.distance, closed=True)

    @property
    def is_private(self) -> bool:
        return True

    @property
    def mu(self) -> float:
        """Infinite: selection has no GDP guarantee, only a Renyi one."""
        return math.inf

    def rdp(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Renyi divergence at each order greater than 1 (Theorem 2 of the paper)."""
        mu, law = self.base_mu, self.law
        log_rest = -math.log(law.gamma)
        b = max(1.0, math.sqrt(2 * log_rest) / mu)  # any b >= 1 is valid; this one is the best
        bracket = (1 - 1 / b) * b * mu * mu / 2 + log_rest / b
        total = orders * mu * mu / 2 + (1 + law.eta) * bracket + math.log(law.mean) / (orders - 1)
        return np.asarray(total, np.float64)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at `delta`, rounded up."""
        return epsilon_of_selections([self], 0.0, delta)

    def delta(self, epsilon: float) -> float:
        """delta at `epsilon`, rounded up."""
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise SordinoError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")
        a = _ORDERS
        logs = (a - 1) * (self.rdp(a) - epsilon + np.log1p(-1 / a)) - np.log(a)
        ideal = math.exp(min(0.0, float(logs.min()))) * (1 + SLACK)
        return min(1.0, ideal + extra_delta(epsilon, self.distance))

    def under_replace_one(self) -> SelectionGuarantee:
        """The same search against replacement of one unit: every run is then 2 mu-GDP."""
        if self.adjacency == Adjacency.REPLACE_ONE:
            return self
        return replace(self, base_mu=2 * self.base_mu, adjacency=Adjacency.REPLACE_ONE.value)

    def sentence(self, delta: float | None = None) -> str:
        """The guarantee in one honest sentence, at `delta` (or the hint it was planned with)."""
        at = delta if delta is not None else self.delta_hint
        changed = change(self.adjacency, self.unit)
        each = f"each of them {rounded_up(self.base_mu)}-GDP"
        known = f" {INSECURE}" if self.insecure else ""
        if at is None:
            return (
                f"What the search releases is the best of a secret random number of runs "
                f"({self.law.describe()}), {each} with respect to {changed}.{known}"
            )
        strength = f"({rounded_up(self.epsilon(at))}, {rounded_up(at)})-differential privacy"
        return (
            f"What the search releases satisfies {strength} with respect to {changed}: the best of a "
            f"secret random number of runs ({self.law.describe()}), {each}, with the cost of the "
            f"selection included (Renyi divergence, rounded up).{known}"
        )

    def __str__(self) -> str:
        return self.sentence()

    def to_json(self) -> Json:
        """Plain data, with floats that read back bit for bit."""
        data = {"kind": KIND, "version": _VERSION, **asdict(self)}
        if not self.insecure:
            del data["insecure"]  # absent means no: what was written before stays as it was
        return data

    @classmethod
    def from_json(cls, data: Json) -> SelectionGuarantee:
        fields = dict(data)
        kind, version = fields.pop("kind", None), fields.pop("version", None)
        if (kind, version) != (KIND, _VERSION):
            raise SordinoError(
                f"this guarantee is a {kind!r} of version {version!r}; {KIND!r} of version {_VERSION} "
                "is known"
            )
        try:
            return cls(law=StoppingLaw(**fields.pop("law")), **fields)
        except (KeyError, TypeError) as error:
            raise SordinoError(f"this is not a guarantee: {error}") from None


def epsilon_of_selections(
    selections: Sequence[SelectionGuarantee], gaussian_mu: float, delta: float
) -> float:
    """epsilon at `delta` of several searches and of mu-GDP runs together, rounded up.

    Renyi divergences of one order add up; ``a mu^2 / 2`` is that of the mu-GDP runs.
    """
    require_fraction("delta", delta)

    def rdp(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        total = orders * gaussian_mu * gaussian_mu / 2
        for part in selections:
            total = total + part.rdp(orders)
        return total

    distance = math.fsum(part.distance for part in selections)
    return epsilon_at_distance(lambda left: _least_epsilon(rdp, left), distance, delta)


def epsilon_at_distance(ideal: Callable[[float], float], distance: float, delta: float) -> float:
    """epsilon at `delta` of what is within a total variation of something with `ideal` epsilons.

    Both data sets' outputs may be off by `distance`, so delta grows by ``(1 + e^epsilon) distance``.
    """
    epsilon = ideal(delta)
    if not distance:
        return epsilon
    while True:
        tried = epsilon * (1 + 1e-10)
        left = delta - extra_delta(tried, distance)
        if left <= 0:
            return math.inf
        epsilon = ideal(left)
        if epsilon <= tried:
            return tried


def extra_delta(epsilon: float, distance: float) -> float:
    """What a total variation of `distance` adds to delta, rounded up."""
    return (1 + math.exp(min(epsilon, 700.0))) * distance * (1 + 1e-12)


def _least_epsilon(
    rdp: Callable[[NDArray[np.float64]], NDArray[np.float64]], delta: float
) -> float:
    """The best order's epsilon. Every order is valid, so an inexact search is never unsafe."""

    def at(orders: NDArray[np.float64]) -> NDArray[np.float64]:
        # Canonne, Kamath & Steinke 2020, Proposition 12.
        extra = -math.log(delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
        return rdp(orders) + extra / (orders - 1)

    coarse = at(_ORDERS)
    best = int(np.argmin(coarse))
    ends = np.log(_ORDERS[[max(0, best - 1), min(len(_ORDERS) - 1, best + 1)]] - 1)
    fine = at(1 + np.exp(np.linspace(ends[0], ends[1], 401)))
    return max(0.0, float(min(coarse[best], fine.min()))) * (1 + SLACK)


def base_mu_for(epsilon: float, delta: float, law: StoppingLaw) -> float:
    """The largest mu of one run at which the whole search is (`epsilon`, `delta`)-DP, rounded down."""
    require_positive("epsilon", epsilon)
    require_fraction("delta", delta)

    def fits(mu: float) -> bool:
        return SelectionGuarantee(mu, law, "zero-out", "example").epsilon(delta) <= epsilon

    low, high = MIN_MU, mu_from_epsilon_delta(epsilon, delta)  # a single run's is more than any's
    if not fits(low):
        raise SordinoError(
            f"epsilon {epsilon:g} at delta {delta:g} is less than the selection alone costs with "
            f"{law.mean:.4g} trials; ask for more, or for fewer trials"
        )
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def composed_mu(mu: float, runs: int) -> float:
    """mu of each of `runs` runs that are mu-GDP together, rounded down: ``mu / sqrt(runs)``."""
    return mu / math.sqrt(runs) * (1 - 1e-15)

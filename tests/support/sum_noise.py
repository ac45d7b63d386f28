r"""What a noised sum guarantees on its own: an analysis that tests hold the plans' one against.

    noise = SumNoise(square=grid.truncated_square, variance=S, dimension=d, assumption=engine.assumption)
    noise.guarantee(rounds=100, adjacency="zero-out", unit="example", participation="in every round")

All in grid steps: a unit changes the sum by a whole-number vector of squared norm at most ``B``, a whole
number that was tested in integers (`grid.py`). R is the variance of the noise that colluders cannot
subtract.

**One discrete Gaussian** (inside). ``rho = B / (2R)`` zCDP (Canonne, Kamath & Steinke 2020, theorem
14), which integer shifts attain at integer orders; and mu-GDP with ``mu^2 = B / (R - 1/12)`` up to a
total variation of ``sqrt(d T) / (64 R^2)`` (`rounding_distance`). Where it is drawn from tables inside a
secure computation, the first is true of exact noise only, from which the tables' is a total variation away
that is added to the second (`engine_distance`).

**A sum of n of them** (shares) is not discrete Gaussian, but nearly. Kairouz, Liu & Steinke 2021,
proposition 14, for ``V >= 1/4``: with ``tau = 10 sum_{k=1}^{n-1} exp(-2 pi^2 V k/(k+1))``, Rényi
divergence of order a at most

    min( a B/(2R) + tau d,  a/2 (sqrt(B/R) + tau sqrt d)^2 ).

For the other route, to GDP, the total variation of `engine_distance` (within tau) is added.

Against replacement of a unit by another one, B is four times as large. Everything is rounded against the
user. Credit for secret random batches: `SumNoise.mu` and `SumNoise.distance` are what an amplified
`Guarantee` is made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import minimize_scalar

from sordino._base.errors import SordinoError, require_choice, require_count, require_positive
from sordino.parts.mechanisms import MOST_VARIANCE
from sordino.privacy import (
    ADJACENCIES,
    Adjacency,
    Guarantee,
    rounding_distance,
)
from sordino.privacy._gdp import LEAST_VARIANCE, epsilon_from_rdp
from sordino.together.secure._base import (
    TrustAssumption,
    engine_distance,
    from_tables,
    share_variance,
    shares_log_ratio,
)
from sordino.together.secure._table import BITS

# Above the rounding errors of a dozen float operations.
_UP = 1 + 1e-14


@dataclass(frozen=True)
class SumNoise:
    """The noise of one sum, as the parties that may collude see it.

    Attributes:
      square: B, the squared norm of what one unit adds to the sum, a whole number of squared grid steps.
      variance: S, as planned.
      dimension: d.
      assumption: of the engine.
      bits: of the engine's tables, where it has any.
    """

    square: int
    variance: int
    dimension: int
    assumption: TrustAssumption
    bits: int = BITS

    def __post_init__(self) -> None:
        require_count("square", self.square, minimum=0)
        require_count("variance", self.variance)
        require_count("dimension", self.dimension)
        if self.variance > MOST_VARIANCE:
            raise SordinoError(
                f"noise is drawn up to a variance of 2^48 squared grid steps, got {self.variance}; "
                "choose a coarser grid"
            )

    @property
    def shares(self) -> int:
        """n: of how many draws the noise consists that colluders cannot subtract."""
        inside = self.assumption.noise == "inside"
        return 1 if inside else self.assumption.parties - self.assumption.colluders

    @property
    def share(self) -> int:
        """V."""
        return share_variance(self.variance, self.assumption)

    @property
    def remaining(self) -> int:
        """R: variance of what is left when colluders have subtracted their shares; at least S."""
        return self.shares * self.share

    @property
    def tau(self) -> float:
        """tau of Kairouz, Liu & Steinke; 0 for one draw."""
        return 10 * math.fsum(self._near(k) for k in range(1, self.shares)) * _UP

    @property
    def log_ratio(self) -> float:
        """l_n: a sum of n exact draws has the probabilities of one up to ``e^{+-l_n}``."""
        return shares_log_ratio(self.share, self.shares)

    def _near(self, k: int) -> float:
        return math.exp(-2 * math.pi**2 * self.share * k / (k + 1)) * (1 + 1e-12)

    @property
    def mu(self) -> float:
        """One round is mu-GDP up to `distance`, and with exact noise ``mu^2/2``-zCDP."""
        R = self.remaining
        if R < LEAST_VARIANCE:
            raise SordinoError(
                f"noise that colluders cannot subtract must have a variance of at least "
                f"{LEAST_VARIANCE} squared grid steps, got {R}; choose a finer grid"
            )
        return math.sqrt(max(self.square / (R - 1 / 12), 2 * self.rho)) * _UP

    @property
    def rho(self) -> float:
        """One round is rho-zCDP with exact noise: ``B/(2R)`` but for tau."""
        one, other = self._rdp_parts()
        # At orders from 1 on, a constant is at most that constant times the order.
        return min(sum(one), other) * _UP

    def _rdp_parts(self) -> tuple[tuple[float, float], float]:
        ratio = self.square / self.remaining
        first = ratio / 2, self.tau * self.dimension
        return first, (math.sqrt(ratio) + self.tau * math.sqrt(self.dimension)) ** 2 / 2

    def distance(self, rounds: int) -> float:
        """Total variation of `rounds` rounds from a mechanism that is mu-GDP in each."""
        draws = rounds * self.dimension
        near = rounding_distance(self.remaining, draws)
        return min(1.0, (near + self._engine_distance(rounds)) * _UP)

    def _engine_distance(self, rounds: int) -> float:
        return engine_distance(self.variance, rounds * self.dimension, self.assumption, self.bits)

    def rdp(self, order: float, rounds: int = 1) -> float:
        """Rényi divergence of `order`, over all rounds, of exact noise (from tables it is infinite)."""
        if not order > 1:
            raise SordinoError(f"an RDP order must be greater than 1, got {order!r}")
        (slope, constant), other = self._rdp_parts()
        return rounds * min(order * slope + constant, order * other) * _UP

    def epsilon_by_rdp(self, delta: float, rounds: int = 1) -> float:
        """epsilon at `delta` by the best order: without Gaussian noise as a go-between, and looser."""
        if self.square == 0:
            return 0.0
        epsilon = self._exact_epsilon_by_rdp(delta, rounds)
        if not from_tables(self.assumption):
            return epsilon
        # What the tables add to delta grows with epsilon: from below, as in `Guarantee`.
        far = self._engine_distance(rounds) * (1 + 1e-12)
        while True:
            tried = epsilon * (1 + 1e-10)
            left = delta - (1 + math.exp(min(tried, 700.0))) * far
            if left <= 0:
                return math.inf
            epsilon = self._exact_epsilon_by_rdp(left, rounds)
            if epsilon <= tried:
                return tried

    def _exact_epsilon_by_rdp(self, delta: float, rounds: int) -> float:
        def at(log_order: float) -> float:
            # Every order gives a valid epsilon, so an inexact search is never unsafe.
            order = 1 + math.exp(log_order)
            return epsilon_from_rdp(order, self.rdp(order, rounds), delta)

        best = minimize_scalar(at, bounds=(-12, 25), method="bounded", options={"xatol": 1e-9})
        return float(best.fun) * (1 + 1e-12)

    def guarantee(
        self,
        *,
        rounds: int,
        adjacency: str,
        unit: str,
        participation: str,
        delta_hint: float | None = None,
    ) -> Guarantee:
        """All rounds together, a unit taking part in each; no credit for random batches."""
        require_choice("adjacency", adjacency, ADJACENCIES)
        require_count("rounds", rounds)
        noise = (
            replace(self, square=4 * self.square) if adjacency == Adjacency.REPLACE_ONE else self
        )
        return Guarantee.gaussian(
            noise.mu * math.sqrt(rounds) * _UP,
            adjacency=adjacency,
            unit=unit,
            participation=participation,
            exact=False,
            delta_hint=delta_hint,
            distance=noise.distance(rounds),
            is_zcdp=not from_tables(self.assumption),
        )


def required_variance(
    epsilon: float,
    delta: float,
    *,
    square: int,
    dimension: int,
    assumption: TrustAssumption,
    rounds: int = 1,
    adjacency: str = "zero-out",
    bits: int = BITS,
) -> int:
    """Smallest S with which `rounds` noised sums are (epsilon, delta)-differentially private.

    Raises:
      SordinoError: if none up to 2^48 is enough.
    """
    require_positive("epsilon", epsilon)

    def enough(variance: int) -> bool:
        noise = SumNoise(square, variance, dimension, assumption, bits)
        stated = noise.guarantee(
            rounds=rounds, adjacency=adjacency, unit="client", participation=""
        )
        return stated.epsilon(delta) <= epsilon

    low, high = LEAST_VARIANCE - 1, LEAST_VARIANCE
    while not enough(high):
        low, high = high, min(2 * high, MOST_VARIANCE)
        if low == high:
            raise SordinoError(
                f"epsilon {epsilon:g} at delta {delta:g} needs noise of a variance beyond 2^48 squared "
                "grid steps; choose a coarser grid"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

r"""What several runs on one data set cost together, and what still fits.

Gaussian runs add up in whole numbers of ``2^-256`` of mu^2, in which the square of every float64 above
1e-22 is exact: no order of runs, and no number of them, drifts, and a budget can be spent to its end.
Amplified runs compose by their privacy-loss distributions, equal releases merged first, so that k equal
runs are one self-composition. Searches (`SelectionGuarantee`) compose by Renyi divergences of one order.
Every path is rounded against the user.

A later plan may be chosen in view of what earlier ones released. For Gaussian runs the check against a
budget fixed in advance is then a privacy filter at no extra cost (arXiv 2210.17520); for amplified runs
and searches the composition theorems are for plans whose guarantees were decided beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from functools import lru_cache

from sordino._base.errors import SordinoError, require_fraction, require_positive
from sordino.privacy import (
    GROUPED,
    MIN_MU,
    POISSON,
    Adjacency,
    Guarantee,
    SampledRelease,
    SelectionGuarantee,
    Side,
    composed_epsilon,
    crossings,
    epsilon_at_distance,
    epsilon_beside,
    epsilon_from_mu,
    epsilon_of_selections,
    lost_together,
    mu_from_epsilon_delta,
    side_by_side,
)
from sordino.privacy import KIND as SELECTION

Charge = Guarantee | SelectionGuarantee
UNIT_BITS = 256
# A hint to use more noise than this many times what was planned would be no help.
LARGEST_MULTIPLE = 30.0


class BudgetExceeded(SordinoError):  # noqa: N818 (what happened, in the ledger's words)
    """The run does not fit into what is left; nothing was reserved.

    Attributes:
      fits: what a single further run may still cost.
    """

    def __init__(self, message: str, fits: Headroom) -> None:
        super().__init__(message)
        self.fits = fits

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[str, Headroom]]:
        return type(self), (str(self), self.fits)  # workers pass it on whole


@dataclass(frozen=True)
class Allowance:
    """The budget of a data set: (epsilon, delta), or mu of mu-GDP."""

    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None

    def __post_init__(self) -> None:
        if self.mu is not None:
            if self.epsilon is not None or self.delta is not None:
                raise SordinoError("give a budget as epsilon and delta, or as mu, not both")
            require_positive("mu", self.mu)
        elif self.epsilon is None or self.delta is None:
            raise SordinoError("a budget is epsilon and delta, or mu")
        else:
            require_positive("epsilon", self.epsilon)
            require_fraction("delta", self.delta)
            mu_from_epsilon_delta(self.epsilon, self.delta)  # within what can be computed

    @property
    def gaussian_units(self) -> int:
        """What Gaussian runs may cost together: ``floor(2^256 mu^2)``."""
        if self.mu is not None:
            return _floor_units(self.mu)
        assert self.epsilon is not None
        assert self.delta is not None
        return _floor_units(mu_from_epsilon_delta(self.epsilon, self.delta))

    def describe(self) -> str:
        if self.mu is not None:
            return f"{self.mu:.6g}-GDP"
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.4g}"


@dataclass(frozen=True)
class Headroom:
    """The largest single further Gaussian run: its mu, and its epsilon at `delta` (both rounded down).

    `noise_factor`: where a refused plan is known, by how much its noise must at least grow (None if no
    noise is enough).
    """

    mu: float
    epsilon: float | None = None
    delta: float | None = None
    noise_factor: float | None = None

    def describe(self) -> str:
        if self.mu <= 0:
            return "nothing"
        if self.epsilon is None:
            return f"one Gaussian run of mu {_down(self.mu)}"
        return (
            f"one Gaussian run of epsilon {_down(self.epsilon)} at delta {self.delta:.4g} "
            f"(mu {_down(self.mu)})"
        )


@dataclass(frozen=True)
class ComposedCost:
    """Everything charged so far, in a canonical form: equal multisets of charges are equal.

    Attributes:
      lost: probability that a value shows which only one unit has.
      adjacency: of all charges, where something may be lost.
      sides: the same for units that some of the runs held out; what they cost is that of the worst side.
    """

    gaussian_units: int = 0
    sampled: tuple[SampledRelease, ...] = ()
    selections: tuple[SelectionGuarantee, ...] = ()
    distance: float = 0.0
    lost: float = 0.0
    adjacency: str = Adjacency.ZERO_OUT.value
    sides: tuple[ComposedCost, ...] = ()

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> ComposedCost:
        distances, selections = [], []
        splits: list[tuple[Side, ...]] = []
        adjacencies = set()
        for charge in charges:
            if not charge.is_private:
                raise SordinoError("a run without privacy cannot be charged to any budget")
            distances.append(charge.distance)
            adjacencies.add(charge.adjacency)
            if isinstance(charge, SelectionGuarantee):
                selections.append(replace(charge, delta_hint=None, distance=0.0))
            else:
                splits.append((charge.own, *charge.sides))
        lossy = any(side.lost for sides in splits for side in sides)
        common = cls(
            selections=tuple(sorted(selections, key=repr)),
            distance=min(1.0, math.fsum(distances) * (1 + 1e-15)),
            # It only matters to losses, and they count most where one unit replaces another.
            adjacency=min(adjacencies - {Adjacency.ADD_REMOVE.value}, default=cls.adjacency)
            if lossy
            else cls.adjacency,
        )
        own, *others = (common._with(sides) for sides in side_by_side(sorted(splits, key=repr)))
        others = sorted(set(others) - {own}, key=repr)
        return replace(own, sides=tuple(others))

    def _with(self, sides: Iterable[Side]) -> ComposedCost:
        """This and what somebody on these sides sees."""
        units, chances = 0, []
        sampled: dict[SampledRelease, int] = {}
        for side in sides:
            units += _ceil_units(side.gaussian_mu)
            chances.append(side.lost)
            for part in side.sampled:
                one = replace(part, steps=1)
                sampled[one] = sampled.get(one, 0) + part.steps
        return replace(
            self,
            gaussian_units=units,
            sampled=tuple(sorted((replace(p, steps=n) for p, n in sampled.items()), key=repr)),
            lost=lost_together(chances),
        )

    @property
    def each(self) -> tuple[ComposedCost, ...]:
        """This side and all others, one by one."""
        return (replace(self, sides=()), *self.sides)

    def and_gaussian(self, units: int) -> ComposedCost:
        """This and one more Gaussian run, of which everybody is a part."""
        return replace(
            self,
            gaussian_units=self.gaussian_units + units,
            sides=tuple(side.and_gaussian(units) for side in self.sides),
        )

    @property
    def is_gaussian(self) -> bool:
        """Whether the closed form in mu is all there is."""
        return not (self.selections or self.distance) and not any(
            one.sampled or one.lost for one in (self, *self.sides)
        )

    @property
    def gaussian_mu(self) -> float:
        """mu of the runs without amplification on this side, rounded up."""
        return _mu_up(self.gaussian_units)

    @property
    def unamplified_units(self) -> int:
        """mu^2 of the worst side with no credit for secret batches: valid, but looser."""
        return max(
            one.gaussian_units
            + sum(
                _ceil_units(math.nextafter(part.unamplified_mu * (1 + 1e-15), math.inf))
                for part in one.sampled
            )
            for one in (self, *self.sides)
        )

    @property
    def mu(self) -> float:
        """mu of everything together where nothing is lost, rounded up; infinite with a search."""
        return math.inf if self.selections else _mu_up(self.unamplified_units)

    def epsilon(self, delta: float) -> float:
        """epsilon of everything together at `delta`, rounded up."""
        return max(_epsilon(one, delta) for one in self.each)

    def within(self, allowance: Allowance) -> bool:
        """Whether everything together is within the budget."""
        if allowance.mu is not None:
            if self.selections or self.distance or any(one.lost for one in self.each):
                raise SordinoError(
                    "a budget in mu is for runs with Gaussian guarantees; this one has a delta of "
                    "its own: give the data set a budget of epsilon and delta"
                )
            return self.unamplified_units <= allowance.gaussian_units
        assert allowance.epsilon is not None
        assert allowance.delta is not None
        if self.is_gaussian:
            return self.unamplified_units <= allowance.gaussian_units
        return self.epsilon(allowance.delta) <= allowance.epsilon


@lru_cache(maxsize=4096)
def _epsilon(total: ComposedCost, delta: float) -> float:
    ideal = replace(total, distance=0.0, lost=0.0)

    def kept(left: float) -> float:
        return _ideal_epsilon(ideal, left)

    return epsilon_at_distance(
        lambda left: epsilon_beside(kept, left, total.lost, total.adjacency), total.distance, delta
    )


def _ideal_epsilon(total: ComposedCost, delta: float) -> float:
    if not total.selections:
        if not total.sampled:
            return epsilon_from_mu(total.mu, delta)
        return composed_epsilon(total.sampled, delta, mu=total.gaussian_mu)
    best = epsilon_of_selections(total.selections, _mu_up(total.unamplified_units), delta)
    if total.sampled:
        # Or by adding (epsilon, delta) pairs, which keeps the amplification.
        others = replace(total, selections=())
        for share in (0.1, 0.5, 0.9):
            searches = epsilon_of_selections(total.selections, 0.0, delta * (1 - share))
            best = min(best, searches + _ideal_epsilon(others, delta * share))
    return best


def what_fits(charges: Iterable[Charge], allowance: Allowance) -> Headroom:
    """The largest single Gaussian run that `charges` leave room for."""
    total = ComposedCost.of(charges)
    units = _largest_units(total, allowance)
    mu = _mu_down(units)
    if allowance.delta is None or mu < MIN_MU:
        return Headroom(
            mu if mu >= MIN_MU else 0.0, None if allowance.delta is None else 0.0, allowance.delta
        )
    # epsilon_from_mu rounds up; a plan for that epsilon must come out at no more than this mu.
    epsilon = epsilon_from_mu(mu, allowance.delta) * (1 - 1e-9)
    return Headroom(mu, epsilon, allowance.delta)


def _largest_units(total: ComposedCost, allowance: Allowance) -> int:
    limit = allowance.gaussian_units
    if allowance.mu is not None or total.is_gaussian:
        return max(0, limit - total.unamplified_units)

    def affordable(units: int) -> bool:
        return total.and_gaussian(units).within(allowance)

    low, high = 0, limit
    if not affordable(low):
        return 0
    for _ in range(16):  # to 1.5e-5 of the budget: each look costs a convolution
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low


def noise_factor(charges: Iterable[Charge], charge: Charge, allowance: Allowance) -> float | None:
    """By how much the noise of `charge` must at least grow to fit; None where no factor is known."""
    spent = list(charges)
    if isinstance(charge, SelectionGuarantee) or charge.lost or charge.sides:
        return None
    room = what_fits(spent, allowance).mu
    if room <= 0:
        return None
    if not charge.sampled:
        return charge.gaussian_mu / room * (1 + 1e-6)
    # In the limit of many steps a sampled run is Gaussian too: a good first guess, and each check of
    # one costs a convolution (more of it the larger the noise).
    low, high = 1.0, LARGEST_MULTIPLE
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _limit_mu(_quieter(charge, middle)) <= room else (middle, high)
    for margin in (1.01, 1.05, 1.2, 1.5):
        if high * margin > LARGEST_MULTIPLE:
            return None
        if ComposedCost.of([*spent, _quieter(charge, high * margin)]).within(allowance):
            return high * margin
    return None


def _limit_mu(charge: Guarantee) -> float:
    parts = (part.loss_scale * math.sqrt(part.steps) for part in charge.sampled)
    return math.hypot(charge.gaussian_mu, *parts)


def _quieter(charge: Guarantee, factor: float) -> Guarantee:
    parts = tuple(replace(part, noise_std=part.noise_std * factor) for part in charge.sampled)
    return replace(charge, gaussian_mu=charge.gaussian_mu / factor, sampled=parts)


def restated(charge: Charge, adjacency: str, unit: str) -> Charge:
    """The same run's guarantee for the data set's adjacency and unit, where that is sound.

    * To replace-one: a change of 2 contributions' length instead of one, 2 mu; Poisson releases are
      described by their noise and norm bound, so their replace-one distribution is known exactly.
    * From replace-one: its analysis covers any two contributions within the bound, zero among them, so
      the same mu holds for zero-out.
    * From add-remove to zero-out: a row that contributes nothing is a row that is not there, wherever
      add-remove holds (Poisson or full batches, public divisor).
    * From zero-out to add-remove: only for Poisson releases; in a fixed order, or in groups by position, a
      removed row moves others.
    """
    if charge.unit != unit:
        raise SordinoError(
            f"the data set's budget protects each {unit} but the plan protects each {charge.unit}; "
            f"plan with unit={unit!r}"
        )
    if charge.adjacency == adjacency:
        return charge
    refused = SordinoError(
        f"the data set's budget is stated for {adjacency} adjacency and the plan's guarantee for "
        f"{charge.adjacency} does not carry over; plan with adjacency={adjacency!r}"
    )
    if isinstance(charge, SelectionGuarantee):
        if adjacency == Adjacency.ADD_REMOVE:
            raise refused
        if adjacency == Adjacency.REPLACE_ONE:
            return charge.under_replace_one()
        return replace(charge, adjacency=adjacency)
    sides = (charge.own, *charge.sides)
    if adjacency == Adjacency.ADD_REMOVE and any(side.gaussian_mu for side in sides):
        raise refused
    if not any(side.sampled for side in sides):
        if adjacency == Adjacency.REPLACE_ONE:
            return charge.under_replace_one()
        return replace(charge, adjacency=adjacency)
    known = (POISSON,) if adjacency == Adjacency.ADD_REMOVE else (POISSON, GROUPED)
    if any(part.sampling not in known for side in sides for part in side.sampled):
        raise refused
    doubled = Adjacency(adjacency).factor
    own, *others = (
        replace(
            side,
            gaussian_mu=doubled * side.gaussian_mu,
            sampled=tuple(replace(part, adjacency=adjacency) for part in side.sampled),
        )
        for side in sides
    )
    # Who is replaced may change sides.
    moved = crossings(sides) if adjacency == Adjacency.REPLACE_ONE else []
    return replace(
        charge,
        gaussian_mu=own.gaussian_mu,
        adjacency=adjacency,
        sampled=own.sampled,
        sides=(*others, *moved),
    )


def charge_from_json(data: object) -> Charge:
    """What `to_json` of either kind of guarantee described."""
    if not isinstance(data, dict):
        raise SordinoError("this is not a guarantee")
    if data.get("kind") == SELECTION:
        return SelectionGuarantee.from_json(data)
    return Guarantee.from_json(data)


def _ceil_units(mu: float) -> int:
    n, d = mu.as_integer_ratio()
    return -(-(n * n << UNIT_BITS) // (d * d))


def _floor_units(mu: float) -> int:
    n, d = mu.as_integer_ratio()
    return (n * n << UNIT_BITS) // (d * d)


def _mu_up(units: int) -> float:
    if units == 0:
        return 0.0
    root = math.isqrt(units - 1) + 1
    return math.nextafter(root / (1 << UNIT_BITS // 2), math.inf)


def _mu_down(units: int) -> float:
    value = math.isqrt(units) / (1 << UNIT_BITS // 2)
    while value > 0 and _ceil_units(value) > units:
        value = math.nextafter(value, 0.0)
    return value


def _down(value: float) -> str:
    """Four significant digits, rounded down: what is promised is never too much."""
    if value <= 0:
        return "0"
    exact = Decimal(repr(value))
    unit = Decimal(1).scaleb(exact.adjusted() - 3)
    return f"{float(exact.quantize(unit, rounding=ROUND_FLOOR)):.5g}"

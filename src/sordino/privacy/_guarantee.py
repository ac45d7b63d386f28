"""What a run guarantees: never a bare number.

A `Guarantee` holds how strong (a GDP parameter, and descriptions of amplified releases), for whom
(adjacency and unit), under which participation, and by which kind of analysis. It prints as one
sentence, composes with others, and round-trips through JSON.

>>> g = Guarantee.gaussian(0.5, adjacency="zero-out", unit="example", participation="once")
>>> round(g.epsilon(1e-6), 4)
2.2541
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from sordino._base.errors import SordinoError, known_fields, require_choice, require_fraction, shown
from sordino._base.types import Json
from sordino.privacy._amplification import SampledRelease
from sordino.privacy._gdp import epsilon_from_zcdp, zcdp_from_mu
from sordino.privacy._sides import Side, both_of, crossings, side_by_side, uncovered
from sordino.privacy._terms import ADJACENCIES, INSECURE, UNITS, Adjacency, change, rounded_up

ANALYSES = ("exact", "upper bound", "amplified", "none")
# Whose releases a guarantee is about, as its sentence says it.
RUN, FIT, SEARCH = "the run", "this fit", "the search"
_VERSION = 1


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy guarantee and all it rests on.

    Attributes:
      mu: the run is mu-GDP. For amplified runs this ignores the amplification: true, but looser
        than `epsilon`.
      adjacency: "zero-out", "add-remove" or "replace-one".
      unit: whose data is protected: "example", "user", "client" or "person".
      participation: in which steps one unit may take part, in words.
      analysis: "exact" (attained by some data set), "upper bound", "amplified" (a pessimistic
        privacy-loss distribution), or "none": no privacy at all, mu is infinite.
      sampled: the releases whose secret random batches are credited.
      gaussian_mu: mu of everything else.
      delta_hint: the delta at which the guarantee is printed.
      distance: total variation between what is released and something that is mu-GDP (or has the
        sampled parts' privacy-loss distribution): delta is that much, times 1 + e^epsilon, larger.
        Not 0 for discrete noise; see `rounding_distance`.
      is_zcdp: whether the release itself is ``mu^2 / 2``-zCDP, as discrete Gaussian noise is (Canonne,
        Kamath & Steinke 2020, theorem 14). For large epsilon, where a distance costs ``e^epsilon``
        times itself, that says more.
      insecure: whether the noise came from a seed: there is no privacy against who knows it.
      lost: probability that a value shows which only one unit has; everything else holds where none does.
      sides: what the units see whose data went elsewhere, such as those held out for evaluation. The
        fields above are about all others; epsilon and delta are those of the worst side.
      scope: what releases the guarantee is about, for its sentence.
    """

    gaussian_mu: float
    adjacency: str
    unit: str
    participation: str
    analysis: str = "exact"
    sampled: tuple[SampledRelease, ...] = ()
    delta_hint: float | None = None
    distance: float = 0.0
    is_zcdp: bool = False
    insecure: bool = False
    lost: float = 0.0
    sides: tuple[Side, ...] = ()
    scope: str = field(default=RUN, compare=False)

    def __post_init__(self) -> None:
        require_choice("adjacency", self.adjacency, ADJACENCIES)
        require_choice("unit", self.unit, UNITS)
        require_choice("analysis", self.analysis, ANALYSES)
        require_choice("scope", self.scope, (RUN, FIT, SEARCH))
        none = self.analysis == "none"
        if not (self.gaussian_mu >= 0 and math.isfinite(self.gaussian_mu) != none):
            raise SordinoError(
                f"mu must be a finite number of at least 0, got {self.gaussian_mu!r}"
            )
        if not 0 <= self.distance <= 1:
            raise SordinoError(f"a total variation is between 0 and 1, got {self.distance!r}")
        if self.delta_hint is not None:
            require_fraction("delta", self.delta_hint)
        if any(part.adjacency != self.adjacency for part in self.sampled):
            raise SordinoError("all parts of a guarantee must be stated under one adjacency")
        object.__setattr__(self, "sides", tuple(self.sides))
        if not none:
            _ = self.own  # refuses a `lost` that is no probability
        if none and (self.lost or self.sides):
            raise SordinoError("without privacy there is nothing to say of sides and losses")
        # Who changes sides adds to one and leaves the other: half of a replacement in each.
        if self.adjacency != Adjacency.REPLACE_ONE and any(
            part.adjacency != self.adjacency for side in self.sides for part in side.sampled
        ):
            raise SordinoError("all sides of a guarantee must be stated under one adjacency")

    @classmethod
    def gaussian(
        cls,
        mu: float,
        *,
        adjacency: str,
        unit: str,
        participation: str,
        exact: bool = True,
        delta_hint: float | None = None,
        distance: float = 0.0,
        is_zcdp: bool = False,
        lost: float = 0.0,
    ) -> Guarantee:
        """A mu-GDP guarantee with no credit for sampling."""
        return cls(
            mu,
            adjacency,
            unit,
            participation,
            "exact" if exact else "upper bound",
            delta_hint=delta_hint,
            distance=distance,
            is_zcdp=is_zcdp,
            lost=lost,
        )

    @classmethod
    def nothing(cls, *, adjacency: str, unit: str, participation: str) -> Guarantee:
        """No privacy: what an algorithm without noise guarantees."""
        return cls(math.inf, adjacency, unit, participation, "none")

    @property
    def is_private(self) -> bool:
        return self.analysis != "none"

    @property
    def own(self) -> Side:
        """The side of the units that are on none of `sides`."""
        return Side(self.gaussian_mu, self.sampled, self.lost)

    @property
    def mu(self) -> float:
        """mu of the worst side, where nothing is lost."""
        return max(side.mu for side in (self.own, *self.sides))

    @property
    def is_amplified(self) -> bool:
        return bool(self.sampled)

    @property
    def is_gaussian(self) -> bool:
        """Whether mu says everything: nothing is amplified, lost, or off by a distance."""
        sides = (self.own, *self.sides)
        return self.is_private and not (
            self.distance or any(side.sampled or side.lost for side in sides)
        )

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon at `delta`, rounded up; infinite where nothing is guaranteed."""
        if not self.is_private:
            return math.inf
        require_fraction("delta", delta)
        if not self.distance:
            return self._ideal_epsilon(delta)
        if self._is_concentrated and self.mu > 0:
            return min(self._near_epsilon(delta), epsilon_from_zcdp(zcdp_from_mu(self.mu), delta))
        return self._near_epsilon(delta)

    def _near_epsilon(self, delta: float) -> float:
        """The least epsilon whose ideal delta leaves room for (1 + e^epsilon) tv, from below."""
        epsilon = self._ideal_epsilon(delta)
        while True:
            tried = epsilon * (1 + 1e-10)
            left = delta - self._extra(tried)
            if left <= 0:
                return math.inf
            epsilon = self._ideal_epsilon(left)
            if epsilon <= tried:
                return tried

    def _extra(self, epsilon: float) -> float:
        """What `distance` adds to delta at `epsilon`."""
        return (1 + math.exp(min(epsilon, 700.0))) * self.distance * (1 + 1e-12)

    def _ideal_epsilon(self, delta: float) -> float:
        return max(side.epsilon(delta, self.adjacency) for side in (self.own, *self.sides))

    @property
    def _is_concentrated(self) -> bool:
        """Whether the release itself is ``mu^2 / 2``-zCDP."""
        return self.is_zcdp and not (self.sampled or self.lost or self.sides)

    def delta(self, epsilon: float) -> float:
        """delta at `epsilon`, rounded up."""
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise SordinoError(f"epsilon must be a finite number of at least 0, got {epsilon!r}")
        if not self.is_private:
            return 1.0
        ideal = max(side.delta(epsilon, self.adjacency) for side in (self.own, *self.sides))
        if not self.distance:
            return ideal
        near = min(1.0, ideal + self._extra(epsilon))
        rho = zcdp_from_mu(self.mu)
        if self._is_concentrated and epsilon > rho > 0:
            return min(near, math.exp(-((epsilon - rho) ** 2) / (4 * rho)) * (1 + 1e-12))
        return near

    def under_replace_one(self) -> Guarantee:
        """The same run against replacement of one unit: removing it, then adding another (2 mu)."""
        if self.adjacency == Adjacency.REPLACE_ONE:
            return self
        if any(side.sampled for side in (self.own, *self.sides)):
            raise SordinoError(
                "an amplified guarantee cannot be carried over to replace-one; plan the run with "
                "adjacency='replace-one'"
            )
        doubled = [replace(side, gaussian_mu=2 * side.gaussian_mu) for side in self.sides]
        return replace(
            self,
            gaussian_mu=2 * self.gaussian_mu,
            adjacency=Adjacency.REPLACE_ONE.value,
            analysis="upper bound",
            sides=(*doubled, *crossings((self.own, *self.sides))),
        )

    def sentence(self, delta: float | None = None) -> str:
        """The guarantee in one honest sentence, at `delta` (or the hint it was planned with)."""
        if not self.is_private:
            return "This run is NOT private: it adds no noise, and what it releases may reveal its data."
        at = delta if delta is not None else self.delta_hint
        changed = change(self.adjacency, self.unit)
        gdp = f"{rounded_up(self.mu)}-GDP"
        if self.distance:
            gdp += f" up to a total variation of {rounded_up(self.distance, 2)}"
        lost = f"with {chance_of(self.lost, self.unit)}" if self.lost else ""
        if at is None:
            strength = f"{gdp} ({lost})" if lost else gdp
        else:
            strength = f"({rounded_up(self.epsilon(at))}, {rounded_up(at)})-differential privacy"
            about = [gdp] * (not self.is_amplified) + [lost] * bool(lost)
            if about:
                strength += f" ({', '.join(about)})"
        basis = {
            "exact": "by an exact analysis with no credit for random batches",
            "upper bound": "by an upper bound with no credit for random batches",
            "amplified": "counting on batches that are random and stay secret "
            "(privacy-loss distribution, rounded up)",
        }[self.analysis]
        sentence = (
            f"What {self.scope} releases satisfies {strength} with respect to {changed}, where each "
            f"{self.unit} is used {self.participation}, {basis}."
        )
        return f"{sentence} {INSECURE}" if self.insecure else sentence

    def __str__(self) -> str:
        return self.sentence()

    def to_json(self) -> Json:
        """Plain data, with floats that read back bit for bit."""
        data = {"version": _VERSION, **asdict(self)}
        if not self.is_private:
            data["gaussian_mu"] = None  # JSON has no infinity
        for name in ("distance", "is_zcdp", "insecure", "lost", "sides"):
            if not data[name]:
                del data[name]  # absent means none: what was written before stays as it was
        if self.scope == RUN:
            del data["scope"]
        return data

    @classmethod
    def from_json(cls, data: Json) -> Guarantee:
        if not isinstance(data, dict):
            raise SordinoError(f"this is not a guarantee: {shown(data)}")
        fields = dict(data)
        version = fields.pop("version", None)
        if version != _VERSION:
            raise SordinoError(
                f"this guarantee has format version {shown(version)}; {_VERSION} is known"
            )
        parts, sides = fields.pop("sampled", ()), fields.pop("sides", ())
        if fields.get("gaussian_mu", 0.0) is None:
            fields["gaussian_mu"] = math.inf
        try:
            return cls(
                sampled=_releases(parts),
                sides=tuple(_side(one) for one in sides),
                **known_fields("a guarantee", fields, cls),
            )
        except TypeError:
            raise SordinoError(f"this is not a guarantee: {shown(data)}") from None


def _releases(parts: Iterable[object]) -> tuple[SampledRelease, ...]:
    return tuple(
        SampledRelease(**known_fields("a release", part, SampledRelease)) for part in parts
    )


def _side(data: object) -> Side:
    known = known_fields("a side", data, Side)
    return Side(**{**known, "sampled": _releases(known.get("sampled", ()))})


def chance_of(lost: float, unit: str) -> str:
    """ "one chance in 1,000,000 that a value which only one person has shows", rounded up."""
    digits = f"{1 / lost * (1 + 1e-12):.0f}"
    few = int(digits[:4]) * 10 ** max(0, len(digits) - 4)
    return f"one chance in {few:,} that a value shows which only one {unit} has"


def compose(guarantees: Iterable[Guarantee]) -> Guarantee:
    """All of them together, on the same data: mus add in squares, amplified parts by their PLDs."""
    parts = list(guarantees)
    if not parts:
        raise SordinoError("there is nothing to compose: give at least one guarantee")
    first = parts[0]
    for other in parts[1:]:
        if (other.adjacency, other.unit) != (first.adjacency, first.unit):
            raise SordinoError(
                f"cannot compose {first.adjacency}/{first.unit} with {other.adjacency}/{other.unit}; "
                "state all guarantees for the same adjacency and unit"
            )
    analysis = max((part.analysis for part in parts), key=ANALYSES.index)
    if len(parts) > 1 and analysis == "exact":
        analysis = "upper bound"  # the worst example of one run need not be that of another
    uses = list(dict.fromkeys(part.participation for part in parts))
    deltas = [part.delta_hint for part in parts if part.delta_hint is not None]
    own, *others = map(both_of, side_by_side([(part.own, *part.sides) for part in parts]))
    sides = tuple(uncovered(own, others))
    if analysis == "none":
        own, sides = replace(own, lost=0.0), ()
    return Guarantee(
        gaussian_mu=own.gaussian_mu,
        adjacency=first.adjacency,
        unit=first.unit,
        participation=uses[0] if len(parts) == 1 else f"in {len(parts)} runs: {'; '.join(uses)}",
        analysis=analysis,
        sampled=own.sampled,
        delta_hint=max(deltas) if deltas else None,
        # Hybrids, one run after the other; the last digit up.
        distance=min(1.0, math.fsum(part.distance for part in parts) * (1 + 1e-15)),
        # What is mu-GDP is mu^2/2-zCDP as well; an amplified part is not stated so.
        is_zcdp=all(part.is_zcdp or not (part.distance or part.sampled) for part in parts)
        and any(part.is_zcdp for part in parts),
        insecure=any(part.insecure for part in parts),
        lost=own.lost,
        sides=sides,
    )

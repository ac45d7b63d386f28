"""Runs that cost a known amount, without the work of planning them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sordino.engine.ledger._composition import Charge
from sordino.privacy._amplification import SampledRelease
from sordino.privacy._guarantee import Guarantee

# Everything that decides a release, as a run tells it.
WHOLE_RUN = {"plan": "0f", "data": "1e", "start": "2d", "program": "3c"}


@dataclass(frozen=True)
class Costs:
    """Stands for a plan."""

    guarantee: Charge
    recipe: str = "test"
    detail: str = ""

    def verify(self) -> None:
        """It costs what it says."""

    def to_json(self) -> dict[str, Any]:
        return {"guarantee": self.guarantee.to_json(), "detail": self.detail}


def gaussian(mu: float, adjacency: str = "zero-out", unit: str = "example") -> Costs:
    return Costs(Guarantee.gaussian(mu, adjacency=adjacency, unit=unit, participation="once"))


def poisson(
    noise: float = 1.0, rate: float = 0.01, steps: int = 100, adjacency: str = "add-remove"
) -> Costs:
    part = SampledRelease(noise, 1.0, rate, steps, "poisson", adjacency)
    return Costs(Guarantee(0.0, adjacency, "example", "at random", "amplified", (part,)))

"""What a reference function gives back, and how it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sordino import SordinoError


@dataclass(frozen=True)
class PrintedNoise:
    """A noise level as a paper prints it, where the paper's own conditions hold.

    Attributes:
      formula: which formula of which paper.
      std: the printed standard deviation per coordinate, in the paper's units.
      units: what `std` is the standard deviation of, in words.
      noise: the same noise as a standard deviation on the sum of the contributions, divided by
        their norm bound: what a plan calls `noise`.
      adjacency: the adjacency the paper proves it for.
      details: intermediate values, under the names the paper gives them.
    """

    formula: str
    std: float
    units: str
    noise: float
    adjacency: str
    details: Mapping[str, float] = field(default_factory=dict)


def require_condition(holds: bool, formula: str, condition: str) -> None:
    """Refuse a formula outside the conditions under which it is true."""
    if not holds:
        raise SordinoError(f"{formula} does not hold here: {condition}")

"""Words for values that are stated in many places: plans, guarantees, ledgers, reports."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from sordino.privacy._terms import Adjacency

ADJACENCIES = {
    Adjacency.ZERO_OUT.value: "replacing one {unit}'s contributions by zero",
    # What it adds to the sums: the number of units is public, and a plan runs on that number only.
    Adjacency.ADD_REMOVE.value: "adding or removing one {unit}'s contributions",
    Adjacency.REPLACE_ONE.value: "replacing one {unit} by any other",
}
# What stays hidden, by adjacency.
_SECRETS = {
    Adjacency.ZERO_OUT.value: "whether one given {unit}'s contributions were used",
    Adjacency.ADD_REMOVE.value: "whether one given {unit} was in the data",
    Adjacency.REPLACE_ONE.value: "which of two possible contents one given {unit} had",
}
INSECURE = "It does NOT hold against anyone who knows or guesses the seed of the noise."


def change(adjacency: str, unit: str) -> str:
    """The change that must not show: "replacing one example by any other"."""
    return ADJACENCIES[adjacency].format(unit=unit)


def secret(adjacency: str, unit: str) -> str:
    """What nobody can tell, as the end of "must guess ..."."""
    return _SECRETS[adjacency].format(unit=unit)


def plural(count: int, noun: str) -> str:
    """ "1 epoch", "2,000 epochs"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def rounded_up(value: float, digits: int = 4) -> str:
    """`value` to `digits` significant digits, rounded up: what is printed is never too small.

    Up from the shortest decimal that reads back as `value`, so that 0.001 prints as 0.001.
    """
    if value == 0:
        return "0"
    if math.isinf(value):
        return "inf"
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(unit, rounding=ROUND_CEILING)):.{digits + 1}g}"

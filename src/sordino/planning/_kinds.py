"""The kinds of noise, and which recipes have the discrete one."""

from __future__ import annotations

from typing import Any

from sordino._base.errors import SordinoError, require_choice
from sordino.parts.contributions import Contribution, Lagged
from sordino.planning.recipes import Recipe
from sordino.privacy import NoiseKind

GAUSSIAN, DISCRETE = NoiseKind.GAUSSIAN.value, NoiseKind.DISCRETE.value
NOISE_KINDS = (GAUSSIAN, DISCRETE)


def checked_kind(noise: Any) -> str:
    """`noise`, if it is the name of a kind."""
    if not isinstance(noise, str) or noise.strip().replace(".", "", 1).isdigit():
        raise SordinoError(
            f"noise names the kind of noise, {' or '.join(NOISE_KINDS)}; its amount in units of the "
            f"clip is noise_multiplier, so write noise_multiplier={noise!r}"
        )
    return str(require_choice("noise", noise, NOISE_KINDS))


def without_lattice(spec: Recipe, contribution: Contribution) -> str:
    """Why a recipe's noise cannot be on a lattice; nothing if it can."""
    if not spec.private:
        return "adds no noise"
    if isinstance(contribution, Lagged):
        return "splits its noise between streams by real factors"
    if spec.adaptive:
        return "decides during the run how much noise a query gets"
    return ""

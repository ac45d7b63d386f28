"""Who takes part in which step: the population, and the kinds of batches that are taken of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "SAMPLINGS",
    "CyclicPoisson",
    "FixedOrder",
    "Poisson",
    "Population",
    "Reshuffled",
    "Sampling",
    "SecretSlots",
    "WithoutReplacement",
    "slot_of",
]

if TYPE_CHECKING:
    from sordino.parts.sampling._kinds import BLOCK as BLOCK
    from sordino.parts.sampling._kinds import CYCLIC as CYCLIC
    from sordino.parts.sampling._kinds import FIXED as FIXED
    from sordino.parts.sampling._kinds import NOT_BANDED as NOT_BANDED
    from sordino.parts.sampling._kinds import RESHUFFLED as RESHUFFLED
    from sordino.parts.sampling._kinds import SAMPLINGS as SAMPLINGS
    from sordino.parts.sampling._kinds import CyclicPoisson as CyclicPoisson
    from sordino.parts.sampling._kinds import FixedOrder as FixedOrder
    from sordino.parts.sampling._kinds import Poisson as Poisson
    from sordino.parts.sampling._kinds import Reshuffled as Reshuffled
    from sordino.parts.sampling._kinds import Sampling as Sampling
    from sordino.parts.sampling._kinds import WithoutReplacement as WithoutReplacement
    from sordino.parts.sampling._kinds import group_rate as group_rate
    from sordino.parts.sampling._kinds import groups_of as groups_of
    from sordino.parts.sampling._kinds import poisson_block as poisson_block
    from sordino.parts.sampling._kinds import poisson_width as poisson_width
    from sordino.parts.sampling._kinds import public_order as public_order
    from sordino.parts.sampling._population import LARGEST_EPSILON as LARGEST_EPSILON
    from sordino.parts.sampling._population import LARGEST_STEPS as LARGEST_STEPS
    from sordino.parts.sampling._population import Population as Population
    from sordino.parts.sampling._population import check_slots as check_slots
    from sordino.parts.sampling._population import checked_budget as checked_budget
    from sordino.parts.sampling._population import public_slots as public_slots
    from sordino.parts.sampling._population import slots_digest as slots_digest
    from sordino.parts.sampling._population import warn_of_weak_budget as warn_of_weak_budget
    from sordino.parts.sampling._slots import SLOTS as SLOTS
    from sordino.parts.sampling._slots import SecretSlots as SecretSlots
    from sordino.parts.sampling._slots import slot_of as slot_of
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

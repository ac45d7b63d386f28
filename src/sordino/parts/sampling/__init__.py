"""Who takes part in which step: the population, and the kinds of batches that are taken of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "SAMPLINGS",
    "FixedOrder",
    "Poisson",
    "Population",
    "Reshuffled",
    "Sampling",
    "WithoutReplacement",
]

if TYPE_CHECKING:
    from sordino.parts.sampling._base import SAMPLINGS as SAMPLINGS
    from sordino.parts.sampling._base import Sampling as Sampling
    from sordino.parts.sampling._population import LARGEST_EPSILON as LARGEST_EPSILON
    from sordino.parts.sampling._population import Population as Population
    from sordino.parts.sampling._population import checked_budget as checked_budget
    from sordino.parts.sampling._population import warn_of_weak_budget as warn_of_weak_budget
    from sordino.parts.sampling._public import FIXED as FIXED
    from sordino.parts.sampling._public import RESHUFFLED as RESHUFFLED
    from sordino.parts.sampling._public import FixedOrder as FixedOrder
    from sordino.parts.sampling._public import Reshuffled as Reshuffled
    from sordino.parts.sampling._public import public_order as public_order
    from sordino.parts.sampling._secret import BLOCK as BLOCK
    from sordino.parts.sampling._secret import Poisson as Poisson
    from sordino.parts.sampling._secret import WithoutReplacement as WithoutReplacement
    from sordino.parts.sampling._secret import poisson_block as poisson_block
    from sordino.parts.sampling._secret import poisson_width as poisson_width
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

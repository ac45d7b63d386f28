"""What is done with the noisy estimate of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = ["StepInfo", "Update", "UpdateSettings"]

if TYPE_CHECKING:
    from sordino.parts.updates._base import StepInfo as StepInfo
    from sordino.parts.updates._base import Update as Update
    from sordino.parts.updates._descent import Descent as Descent
    from sordino.parts.updates._settings import AVERAGING as AVERAGING
    from sordino.parts.updates._settings import UpdateSettings as UpdateSettings
    from sordino.parts.updates._wrappers import LaggedMomentumEstimate as LaggedMomentumEstimate
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

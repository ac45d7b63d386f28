"""What is an algorithm made of? One folder per question, one file per answer.

    sampling        who takes part in which step
    contributions   what one example adds in a step, and how it is clipped
    mechanisms      how the noise of one step is related to that of the others
    schedules       how the budget is spread over the steps
    updates         what is done with the noisy estimate

and, beside them, the losses of linear models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "LeastSquares",
    "LinearLoss",
    "Logistic",
    "NonconvexLogistic",
    "Population",
    "Softmax",
    "contributions",
    "mechanisms",
    "sampling",
    "schedules",
    "updates",
]

if TYPE_CHECKING:
    from sordino.parts import contributions as contributions
    from sordino.parts import mechanisms as mechanisms
    from sordino.parts import sampling as sampling
    from sordino.parts import schedules as schedules
    from sordino.parts import updates as updates
    from sordino.parts._losses import LeastSquares as LeastSquares
    from sordino.parts._losses import LinearLoss as LinearLoss
    from sordino.parts._losses import Logistic as Logistic
    from sordino.parts._losses import NonconvexLogistic as NonconvexLogistic
    from sordino.parts._losses import Softmax as Softmax
    from sordino.parts._losses import require_fields as require_fields
    from sordino.parts._rounding import even_width as even_width
    from sordino.parts._rounding import float32_down as float32_down
    from sordino.parts._rounding import two_sum as two_sum
    from sordino.parts.sampling import Population as Population
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

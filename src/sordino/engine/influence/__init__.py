"""Influence of noise on the final model, estimated on public data (papers/04, section 1.5).

To second order ``E f(theta_{T+1}) = c + sum_t q_t sigma_t^2`` with the noise multiplier sigma_t of step
t. Knowing q, the same budget is better spent: ``sigma_t^2 ~ 1 / sqrt(q_t)``. Three ways to q:

* `influence_by_gradient`: ``q_t = E[d f / d sigma_t] / (2 sigma_t)``, for all t by one reverse pass
  through the training loop itself. For every loss and update; use this;
* `influence_by_retraining`: the paper's own, least squares over trainings with other sigma_t;
* `influence_by_hessian`: from eigenvalues, exact for squared loss where nothing is clipped.

    public = PublicData(X_public, y_public)
    estimate = influence_by_gradient(plan, Logistic(), params, public)
    better = sordino.plan("dp-gd", ..., schedule=estimate.schedule())

All take `PublicData` and nothing else: what is learned from private records would have to be paid for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino._base.lazy import lazy_names

__all__ = [
    "EstimatedInfluence",
    "influence_by_gradient",
    "influence_by_hessian",
    "influence_by_retraining",
    "public_eigenvalues",
    "public_spectrum",
]

if TYPE_CHECKING:
    from sordino.engine.influence._estimate import FITS as FITS
    from sordino.engine.influence._estimate import EstimatedInfluence as EstimatedInfluence
    from sordino.engine.influence._estimate import influence_by_gradient as influence_by_gradient
    from sordino.engine.influence._estimate import influence_by_hessian as influence_by_hessian
    from sordino.engine.influence._estimate import (
        influence_by_retraining as influence_by_retraining,
    )
    from sordino.engine.influence._estimate import public_eigenvalues as public_eigenvalues
    from sordino.engine.influence._estimate import public_spectrum as public_spectrum
else:
    __getattr__, __dir__ = lazy_names(__name__, __file__, __all__)

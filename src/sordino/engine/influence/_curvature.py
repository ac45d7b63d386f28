"""Influence from the eigenvalues of a Hessian: exact for squared loss where nothing is clipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sordino._base.errors import SordinoError
from sordino.engine._entry import as_parameters, as_records
from sordino.engine.influence._estimate import least_separation
from sordino.engine.influence._proxy import MeanLoss, noise_multipliers
from sordino.parts import LinearLoss
from sordino.parts.contributions import Gradient
from sordino.parts.schedules import (
    MomentumQuadratic,
    NoiseSchedule,
    PublicData,
    Quadratic,
    require_public,
)
from sordino.parts.updates import UpdateSettings
from sordino.planning import Plan

LARGEST_HESSIAN = 2000


def influence_by_hessian(
    plan: Plan,
    loss: Callable[..., jax.Array] | LinearLoss,
    params: Any,
    public: PublicData,
    *,
    ratio_cap: float | None = 2.0,
) -> NoiseSchedule:
    """The schedule for a quadratic loss with the `public_eigenvalues` at `params`.

    ``q_t = (eta^2 / 2) sum_j lam_j (1 - eta lam_j)^(2(T-t))``, or its counterpart for bias-corrected
    momentum; learning rate and momentum are the plan's. Exact for squared loss where no gradient is
    clipped; elsewhere it takes the curvature at `params` for that of the whole way, and does not see
    that clipping slows the recovery from noise.
    """
    require_public(public)
    beta = _known_momentum(plan)
    eta = plan.update.learning_rate
    settings: dict[str, Any] = {
        "ratio_cap": ratio_cap,
        "separation": least_separation(plan.population),
    }
    eigenvalues = tuple(public_eigenvalues(loss, params, public).tolist())
    if beta == 0:
        return Quadratic(eigenvalues, eta, **settings)
    return MomentumQuadratic(eigenvalues, eta, beta, **settings)


def public_eigenvalues(loss: Any, params: Any, public: PublicData) -> NDArray[np.float64]:
    """Eigenvalues of the Hessian of the public rows' mean loss at `params`; negative ones as 0.

    For a `LinearLoss` with one logit in closed form, ``X^T D X / n`` with ``D = l''``, or the Gram
    matrix with the same eigenvalues where there are fewer rows than features. Else column by column.
    """
    rows = as_records(require_public(public).arrays)
    params = as_parameters(params)
    if isinstance(loss, LinearLoss) and np.ndim(params) == 1:
        X, y = rows
        _check_size(min(X.shape))
        logits = loss.logits(params, X)
        _, second = jax.jvp(lambda z: loss.residual(z, y), (logits,), (jnp.ones_like(logits),))
        scaled = np.asarray(X, np.float64) * np.sqrt(np.maximum(second, 0.0))[:, None]
        n, d = scaled.shape
        hessian = (scaled @ scaled.T if n < d else scaled.T @ scaled) / n
    else:
        flat, unravel = ravel_pytree(params)
        _check_size(flat.size)
        mean_loss = MeanLoss.of(loss)

        def column(direction: jax.Array) -> jax.Array:
            slope = jax.grad(lambda v: mean_loss(unravel(v), rows))
            return jax.jvp(slope, (flat,), (direction,))[1]

        columns = jax.jit(partial(jax.lax.map, column))(jnp.eye(flat.size))
        hessian = np.asarray(columns, np.float64)
        hessian = (hessian + hessian.T) / 2
    return np.maximum(np.linalg.eigvalsh(hessian), 0.0)


def _known_momentum(plan: Plan) -> float:
    """The momentum of a plan whose influence on a quadratic is known in closed form."""
    noise_multipliers(plan)
    update = plan.update
    plain = update.optimizer == "sgd" and update.momentum == 0
    simple = UpdateSettings(update.optimizer, update.learning_rate, update.momentum)
    known = plain or update.optimizer == "bias-corrected"
    if not (known and update == simple and isinstance(plan.contribution, Gradient)):
        raise SordinoError(
            "eigenvalues give the influence of plain or bias-corrected gradient descent with a "
            "constant learning rate that returns its last iterate; use influence_by_gradient"
        )
    return 0.0 if plain else update.momentum


def _check_size(size: int) -> None:
    if size > LARGEST_HESSIAN:
        raise SordinoError(
            f"eigenvalues are computed for Hessians of up to {LARGEST_HESSIAN:,} rows, this one has "
            f"{size:,}; use influence_by_gradient"
        )

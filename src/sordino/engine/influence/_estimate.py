"""Influence: by one reverse pass through the training loop, by retraining, or from eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count, require_positive
from sordino._base.types import PyTree
from sordino.engine._records import as_parameters, as_records
from sordino.engine._stepper import Loss, Optimizer
from sordino.engine.influence._proxy import MeanLoss, Objective, Proxy, noise_multipliers
from sordino.parts import LinearLoss, Population
from sordino.parts.contributions import Gradient
from sordino.parts.sampling import FIXED
from sordino.parts.schedules import (
    ExpInfluence,
    Influence,
    MomentumQuadratic,
    MomExpFit,
    MomExpInfluence,
    NoiseSchedule,
    PublicData,
    Quadratic,
    expinfl,
    fitted_expinfl,
    fitted_momexpinfl,
    momexpinfl,
    require_public,
    smoothed,
    subsampled_schedule,
    write_influence,
)
from sordino.parts.updates import UpdateSettings
from sordino.planning import Plan, Spectrum

Array = NDArray[np.float64]
AUTO = "auto"
FITS = (AUTO, "exponential", "mom-exponential", "smooth")
# The paper sets sigma_t to 20, 50, 100, 150 and 200 where the uniform schedule has 12.4.
MULTIPLES = (1.6, 4.0, 8.0, 12.0, 16.0)
LARGEST_HESSIAN = 2000


@dataclass(frozen=True, eq=False)
class EstimatedInfluence:
    """Estimates of ``q_t``, their standard errors, and the schedules they suggest.

    Attributes:
      plan: the plan around whose noise q was measured.
      q, standard_error: per squared noise multiplier, for the steps `at`.
      at: numbers of the measured steps, from 1.
      loss: the mean final objective at the plan's noise.
    """

    plan: Plan
    q: Array
    standard_error: Array
    at: NDArray[np.int64]
    loss: float

    def rate(self) -> float:
        """k >= 0 of ``q_t = c e^(kt)``, least squares weighted by the standard errors."""
        return fitted_expinfl(*self._spread_out())

    def both_ends(self) -> MomExpFit:
        """The closest ``q_t = c1 e^(-kt) + c2 e^(kt)``, weighted by the standard errors."""
        return fitted_momexpinfl(*self._spread_out())

    def _spread_out(self) -> tuple[Array, Array]:
        """q and its errors for all steps; those not measured count for nothing."""
        steps = self.plan.population.steps
        # Their error is beyond all others.
        largest = float(self.standard_error.max()) or 1.0
        q, error = np.zeros(steps), np.full(steps, 1e6 * largest)
        q[self.at - 1] = self.q
        error[self.at - 1] = np.maximum(self.standard_error, 1e-6 * largest)
        return q, error

    def best_fit(self) -> str:
        """The one of `FITS` that explains the estimate with the fewest numbers (Schwarz' criterion).

        Squared distances in standard errors, plus ``ln n`` for each number that is fitted to n estimates:
        2, 3, and one for every 5 steps of "smooth".
        """
        q, error = self._spread_out()
        here = self.at - 1
        count = here.size

        def criterion(fit: str, fitted: float) -> float:
            try:
                log_q = self._log_q(fit)
            except SordinoError:  # nowhere above 0
                return math.inf
            shape = np.exp(log_q - log_q.max())[here] / error[here]
            target = q[here] / error[here]
            size = max(0.0, float(shape @ target) / float(shape @ shape))
            return float(np.sum((target - size * shape) ** 2)) + fitted * math.log(count)

        smooth = count / 5 if count == q.size else count
        numbers = {"exponential": 2.0, "mom-exponential": 3.0, "smooth": 1 + smooth}
        return min(numbers, key=lambda fit: criterion(fit, numbers[fit]))

    def smooth_log_q(self) -> Array:
        """``log q_t`` (T,), averaged over 5 steps and floored at 1/1000 of the largest.

        Steps that were not measured are interpolated in the logarithm, without averaging.
        """
        t = np.arange(1, self.plan.population.steps + 1)
        complete = self.at.size == t.size
        return np.interp(t, self.at, smoothed(self.q, window=5 if complete else 1))

    def schedule(self, fit: str = AUTO, *, ratio_cap: float | None = 2.0) -> NoiseSchedule:
        """The schedule for `sordino.plan(..., schedule=...)`, which scales it to its budget.

        For a plan like this one: its steps, its learning rate, its kind of batches. Where those are
        secret, and the budget is no sum of ``1/sigma^2``, also its epsilon and delta: the
        schedule is fitted to the amplified cost here, by the influence before it is capped.

        Args:
          fit: "exponential" (see `rate`; rises or is flat), "mom-exponential" (see `both_ends`; matters at
            both ends, or falls, as with momentum), "smooth" (see `smooth_log_q`; anything), or "auto":
            the one of them that `best_fit` names.
          ratio_cap: largest ratio between the noise of two steps. A schedule that is too steep can be
            far worse than uniform noise, one that is too flat gives up little.
        """
        plan, population = self.plan, self.plan.population
        fit = self._chosen(fit)
        if population.is_secret and plan.epsilon is not None and plan.delta is not None:
            return subsampled_schedule(
                self._log_q(fit),
                rate=population.rate,
                steps=population.steps,
                epsilon=plan.epsilon,
                delta=plan.delta,
                adjacency=plan.guarantee.adjacency,
                ratio_cap=ratio_cap,
                sampling=population.sampling,
            )
        separation = least_separation(population)
        if fit == "exponential":
            return ExpInfluence(self.rate(), ratio_cap=ratio_cap, separation=separation)
        if fit == "mom-exponential":
            return MomExpInfluence(*self.both_ends(), ratio_cap=ratio_cap, separation=separation)
        return Influence(
            tuple(self.smooth_log_q().tolist()), ratio_cap=ratio_cap, separation=separation
        )

    def save(
        self,
        path: Path | str,
        fit: str = AUTO,
        *,
        ratio_cap: float | None = 2.0,
    ) -> Influence:
        """Write the fitted influence as a file for ``--schedule influence --set schedule.file=...``.

        In Python: ``sordino.plan(..., schedule="influence", **{"schedule.file": path})``. Plans with
        the same number of steps can use it, at any budget. `fit` and `ratio_cap` as in `schedule`.
        """
        fit = self._chosen(fit)
        result = Influence(
            tuple(self._log_q(fit).tolist()),
            ratio_cap=ratio_cap,
            separation=least_separation(self.plan.population),
        )
        about = {
            "fit": fit,
            "plan": self.plan.hash,
            "loss": self.loss,
            "at": self.at.tolist(),
            "q": self.q.tolist(),
            "standard_error": self.standard_error.tolist(),
        }
        write_influence(path, result, about)
        return result

    def _chosen(self, fit: str) -> str:
        """`fit`, or what "auto" stands for."""
        return self.best_fit() if require_choice("fit", fit, FITS) == AUTO else fit

    def _log_q(self, fit: str) -> Array:
        """``log q_t`` (T,) by one of `FITS` but "auto"."""
        steps = self.plan.population.steps
        if fit == "exponential":
            return expinfl(self.rate(), steps)
        return momexpinfl(*self.both_ends(), steps) if fit != "smooth" else self.smooth_log_q()

    def saving(self, other: Plan) -> float:
        """The share of the final objective that `other` is predicted to save.

        ``sum_t q_t (sigma_t^2 - sigma'_t^2) / f``, sigma' the noise of `other`, by the smoothed
        estimate: to second order, and a little optimistic if the schedule of `other` was fitted to
        this same estimate.
        """
        if other.population.steps != self.plan.population.steps:
            raise SordinoError(
                f"this influence is known for {self.plan.population.steps:,} steps, but the other "
                f"plan has {other.population.steps:,}"
            )
        before, after = noise_multipliers(self.plan), noise_multipliers(other)
        return float(np.exp(self.smooth_log_q()) @ (before**2 - after**2)) / self.loss


def influence_by_gradient(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    public: PublicData,
    *,
    runs: int = 200,
    seed: int = 0,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    regularizer: Objective | None = None,
    microbatch_size: int | None = None,
) -> EstimatedInfluence:
    """``q_t = E[d f(theta_{T+1}) / d sigma_t] / (2 sigma_t)`` for every step, by reverse passes.

    Exact in expectation for quadratics, where ``E f = c + sum q_t sigma_t^2``; otherwise the slope
    at the plan's own noise. Costs about four trainings on the public rows per run. Memory is
    bounded: steps are computed again on the way back.

    Args:
      plan: the run whose noise is to be scheduled; independent noise only.
      loss, params, optimizer, regularizer, microbatch_size: as for `sordino.train`.
      public: public or synthetic records, any number of them; anything else is a `TypeError`.
      runs: simulated trainings to average over.
      seed: of their noise and batches.
      objective: the function f of the returned parameters that noise should harm least; by default
        the mean loss of the public rows.
    """
    require_public(public)
    count = require_count("runs", runs, minimum=2)
    proxy = Proxy.of(
        plan,
        loss,
        params,
        public,
        objective=objective,
        optimizer=optimizer,
        regularizer=regularizer,
        microbatch_size=microbatch_size,
    )
    pairs = [proxy.values_and_slopes(proxy.sigma, draw) for draw in proxy.draws(seed, count)]
    values = np.concatenate([value for value, _ in pairs])[:count]
    slopes = np.concatenate([slope for _, slope in pairs])[:count]
    return _estimate(plan, np.arange(1, proxy.sigma.size + 1), slopes / (2 * proxy.sigma), values)


def influence_by_retraining(
    plan: Plan,
    loss: Loss,
    params: PyTree,
    public: PublicData,
    *,
    at: Sequence[int] | None = None,
    multiples: Sequence[float] = MULTIPLES,
    runs: int = 50,
    seed: int = 0,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    regularizer: Objective | None = None,
    microbatch_size: int | None = None,
) -> EstimatedInfluence:
    """The paper's way: train with other noise in step t, least squares of ``c_2 sigma_t^2 + c_0``.

    All trainings of one run share their noise draws and batches (common random numbers), and each
    run gives one ``c_2 = q_t``. Costs ``len(at) * len(multiples) * runs`` trainings: a check of
    `influence_by_gradient`, which explains the other arguments. Where much is clipped the two
    differ, as this one looks at much larger noise.

    Args:
      at: steps to measure, from 1; by default about ten, evenly spread.
      multiples: sigma_t in multiples of the plan's (the paper: 20 to 200 where that is 12.4).
    """
    require_public(public)
    count = require_count("runs", runs, minimum=2)
    factors = np.array([require_positive("multiples", value) for value in multiples])
    if np.unique(factors).size < 2:
        raise SordinoError("retraining needs at least two different multiples of the noise")
    proxy = Proxy.of(
        plan,
        loss,
        params,
        public,
        objective=objective,
        optimizer=optimizer,
        regularizer=regularizer,
        microbatch_size=microbatch_size,
    )
    measured = _steps_to_measure(at, proxy.sigma.size)
    groups = proxy.draws(seed, count)
    values = np.concatenate([proxy.values(proxy.sigma, draw) for draw in groups])[:count]
    q = np.empty((count, measured.size))
    for column, t in enumerate(measured):
        tried = proxy.sigma[t - 1] * factors
        rows = []
        for sigma_t in tried:
            sigma = proxy.sigma.copy()
            sigma[t - 1] = sigma_t
            rows.append(np.concatenate([proxy.values(sigma, draw) for draw in groups])[:count])
        centred = tried**2 - np.mean(tried**2)
        q[:, column] = centred @ np.array(rows) / (centred @ centred)
    return _estimate(plan, measured, q, values)


def least_separation(population: Population) -> int:
    """Steps between two uses of one record, where batches come back in a fixed order."""
    return population.steps_per_epoch if population.sampling == FIXED else 1


def _steps_to_measure(at: Sequence[int] | None, steps: int) -> NDArray[np.int64]:
    if at is None:
        return np.unique(np.linspace(1, steps, min(steps, 10)).round().astype(np.int64))
    chosen = np.unique([require_count("at", t) for t in at])
    if not chosen.size or chosen[-1] > steps:
        raise SordinoError(f"at must name steps from 1 to {steps:,}, got {list(at)}")
    return chosen


def _estimate(plan: Plan, at: NDArray[np.int64], q: Array, values: Array) -> EstimatedInfluence:
    """Means over runs (leading axis), with their standard errors."""
    if not (np.isfinite(q).all() and np.isfinite(values).all()):
        raise SordinoError(
            "the simulated runs diverged, or met a point without a derivative; take a smaller "
            "learning rate or clip, or other public data"
        )
    return EstimatedInfluence(
        plan=plan,
        q=q.mean(axis=0),
        standard_error=q.std(axis=0, ddof=1) / math.sqrt(len(q)),
        at=at,
        loss=float(values.mean()),
    )


def influence_by_hessian(
    plan: Plan,
    loss: Callable[..., jax.Array] | LinearLoss,
    params: PyTree,
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
    separation = least_separation(plan.population)
    eigenvalues = tuple(public_eigenvalues(loss, params, public).tolist())
    if beta == 0:
        return Quadratic(eigenvalues, eta, ratio_cap=ratio_cap, separation=separation)
    return MomentumQuadratic(eigenvalues, eta, beta, ratio_cap=ratio_cap, separation=separation)


def public_eigenvalues(loss: Loss, params: PyTree, public: PublicData) -> NDArray[np.float64]:
    """Eigenvalues of the Hessian of the public rows' mean loss at `params`; negative ones as 0.

    For a `LinearLoss` with one logit in closed form, ``X^T D X / n`` with ``D = l''``, or the Gram
    matrix with the same eigenvalues where there are fewer rows than features. Else column by column.
    """
    rows = as_records(require_public(public).arrays)
    params = as_parameters(params)
    hessian = _hessian(loss, params, rows, gram=True)
    return np.maximum(np.linalg.eigvalsh(hessian), 0.0)


def public_spectrum(loss: Loss, params: PyTree, public: PublicData) -> Spectrum:
    """The spectrum of a problem like the private one, for `Plan.predicted_loss` and comparisons.

    Minimises the public rows' mean loss from `params` on, with a penalty of 1/(2 n) of the squared
    distance for n rows (few rows can be told apart by ever longer weights), and takes the Hessian there:
    its eigenvalues, and how far the optimum is along each eigenvector.
    """
    from scipy.optimize import minimize

    rows = as_records(require_public(public).arrays)
    params = as_parameters(params)
    flat, unravel = ravel_pytree(params)
    _check_size(flat.size)
    mean_loss, start = MeanLoss.of(loss), np.asarray(flat, np.float64)
    ridge = 1 / len(public)
    slope = jax.jit(jax.value_and_grad(lambda v: mean_loss(unravel(v), rows)))

    def penalised(v: Array) -> tuple[float, Array]:
        value, gradient = slope(jnp.asarray(v, flat.dtype))
        away = v - start
        return float(value) + ridge / 2 * float(away @ away), np.asarray(
            gradient, float
        ) + ridge * away

    found = minimize(penalised, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x
    if not np.isfinite(found).all():
        raise SordinoError(
            "the loss of these public rows has no minimum; give other rows or params"
        )
    values, vectors = np.linalg.eigh(
        _hessian(loss, unravel(jnp.asarray(found, flat.dtype)), rows, gram=False)
    )
    return Spectrum(
        tuple(np.maximum(values, 0.0)[::-1]), tuple(((vectors.T @ (found - start)) ** 2)[::-1])
    )


def _hessian(
    loss: Loss, params: PyTree, rows: tuple[PyTree, ...], *, gram: bool
) -> NDArray[np.float64]:
    """Of the rows' mean loss; `gram`: a smaller matrix with the same eigenvalues will do."""
    if isinstance(loss, LinearLoss) and np.ndim(params) == 1:
        X, y = rows
        _check_size(min(X.shape) if gram else X.shape[1])
        logits = loss.logits(params, X)
        _, second = jax.jvp(lambda z: loss.residual(z, y), (logits,), (jnp.ones_like(logits),))
        scaled = np.asarray(X, np.float64) * np.sqrt(np.maximum(second, 0.0))[:, None]
        n, d = scaled.shape
        return np.asarray((scaled @ scaled.T if gram and n < d else scaled.T @ scaled) / n)
    flat, unravel = ravel_pytree(params)
    _check_size(flat.size)
    mean_loss = MeanLoss.of(loss)

    def column(direction: jax.Array) -> jax.Array:
        slope = jax.grad(lambda v: mean_loss(unravel(v), rows))
        return jax.jvp(slope, (flat,), (direction,))[1]

    columns = jax.jit(partial(jax.lax.map, column))(jnp.eye(flat.size))
    hessian = np.asarray(columns, np.float64)
    return (hessian + hessian.T) / 2


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

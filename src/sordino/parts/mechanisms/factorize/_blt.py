"""Buffered linear Toeplitz (BLT) strategies: constant memory, near-optimal error at any length.

A BLT strategy has ``c_0 = 1`` and ``c_k = sum_i omega_i theta_i^(k-1)`` (McMahan, Xu & Zhang 2024),
so its noise streams through one buffer per i. In terms of generating functions

    C(z) = prod_i (1 - phi_i z) / (1 - theta_i z),     1 > theta_1 > phi_1 > theta_2 > ... > phi_q,

and this interlacing is equivalent to ``omega > 0``: the phi_i are the poles of the inverse. The
optimizer moves the interlaced sequence itself, so every point it visits is a valid strategy with a
stable inverse, and nothing has to be repaired afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sordino._base.errors import (
    SordinoError,
    require_choice,
    require_count,
    require_fraction,
    require_positive,
    shown,
)
from sordino._base.types import Json
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._toeplitz import resolve_participation

Array = npt.NDArray[np.float64]
Objective = Literal["mean", "max"]

_MAX_BUFFERS = 6
# One more buffer costs one more copy of the parameters in memory: it must buy this much error.
_MIN_GAIN = 0.002
# Slowest decay, 1 - theta >= 2^-22: a strategy rounded to float32 keeps theta < 1.
_MAX_LOG_TIMESCALE = 22 * math.log(2.0)
_MIN_SPACING = 1e-6


@dataclass(frozen=True)
class BLTParameters:
    """``c_0 = 1, c_k = sum_i omega_i theta_i^(k-1)``, with a stable inverse.

    Attributes:
        theta: Decay of each buffer, in (0, 1).
        omega: Output scale of each buffer, positive.
    """

    theta: tuple[float, ...]
    omega: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "theta", tuple(float(x) for x in self.theta))
        object.__setattr__(self, "omega", tuple(float(x) for x in self.omega))
        if not self.theta or len(self.theta) != len(self.omega):
            raise SordinoError(
                f"theta and omega must have the same positive length, got {len(self.theta)} "
                f"and {len(self.omega)}"
            )
        for theta, omega in zip(self.theta, self.omega, strict=True):
            require_fraction("every theta", theta)
            require_positive("every omega", omega)
        if self.inverse_poles()[-1] <= -1.0:
            raise SordinoError(
                "omega is too large for a stable inverse: sum(omega / (1 + theta)) must be below "
                f"1, got {sum(o / (1 + t) for o, t in zip(self.omega, self.theta, strict=True))}"
            )

    def inverse_poles(self) -> Array:
        """Poles phi of ``1 / C(z)``, descending, float64[q]: real, because omega > 0."""
        root = np.sqrt(self.omega)
        # 1 + sum omega_i / (x - theta_i) is the secular function of this symmetric matrix.
        return np.linalg.eigvalsh(np.diag(self.theta) - np.outer(root, root))[::-1]

    def to_json(self) -> Json:
        """A plain dict of JSON types; inverse of :meth:`from_json`."""
        return {"theta": list(self.theta), "omega": list(self.omega)}

    @classmethod
    def from_json(cls, data: Json) -> BLTParameters:
        """Rebuild parameters from :meth:`to_json`."""
        try:
            return cls(tuple(data["theta"]), tuple(data["omega"]))
        except (KeyError, TypeError):
            raise SordinoError(f"these are not BLT parameters: {shown(data)}") from None


def optimize_blt(
    workload: Workload,
    n: int,
    separation: int | None = None,
    participations: int = 1,
    buffers: int | None = None,
    objective: Objective = "mean",
) -> BLTParameters:
    """BLT strategy of least ``sensitivity x error`` for n steps of a workload.

    Args:
        workload: What the noise is judged by.
        n: Number of steps.
        separation: Steps between two participations of one example in a fixed order; needed when
            there are several.
        participations: How often one example takes part (those at or beyond step n are dropped).
        buffers: Number of buffers; by default as many as each lower the error by 0.2 %, at most 6.
        objective: ``"mean"`` for the root mean square over the steps, ``"max"`` for the last step.

    """
    if buffers is not None and require_count("buffers", buffers) > _MAX_BUFFERS:
        raise SordinoError(f"buffers must be at most {_MAX_BUFFERS}, got {buffers}")
    require_choice("objective", objective, ("mean", "max"))
    # In a single step every strategy adds the same noise: take the one for two.
    n = max(2, require_count("n", n))
    separation, participations = resolve_participation(n, separation, participations)
    problem = _Problem(workload, n, separation, participations, objective)

    best, best_loss = problem.solve(problem.starts(1, None))
    for count in range(2, (buffers or _MAX_BUFFERS) + 1):
        candidate, loss = problem.solve(problem.starts(count, best))
        # The loss is the log of the squared error.
        if buffers is None and best_loss - loss < 2.0 * _MIN_GAIN:
            break
        best, best_loss = candidate, loss
    return problem.parameters(best)


@dataclass(frozen=True)
class _Problem:
    """Log of (sensitivity x error)^2 as a smooth function of 2q unconstrained numbers."""

    workload: Workload
    n: int
    separation: int
    participations: int
    objective: Objective

    def interlaced(self, x: Values) -> tuple[Values, Values]:
        """``1 - theta`` and ``1 - phi``, each [..., q], from x [..., 2q].

        On the scale ``y = -log(1 - theta)``, the log of the time scale, every entry is a fraction
        sigmoid(x) of the one before it. Only the last phi may be negative, down to -1.
        """
        fraction = 1.0 / (1.0 + np.exp(-x))
        y = self._longest() * np.cumprod(fraction[..., :-1], axis=-1)
        # Superfluous buffers shrink towards each other and towards 0: keep them apart.
        y = y + _MIN_SPACING * np.arange(y.shape[-1], 0, -1)
        gap = np.exp(-y)
        last = 2.0 - (2.0 - gap[..., -1:]) * fraction[..., -1:]
        gap = np.concatenate([gap, last], axis=-1)
        return gap[..., 0::2], gap[..., 1::2]

    def _longest(self) -> float:
        return min(math.log(self.n) + 4.0, _MAX_LOG_TIMESCALE)

    def starts(self, count: int, previous: Array | None) -> list[Array]:
        """Starting points for ``count`` buffers."""
        # Time scales evenly spaced in the log, from the whole run down to a few steps.
        top = min(math.log(self.n) + 0.5, 0.95 * self._longest())
        y = np.linspace(top, 0.6, 2 * count - 1) if count > 1 else np.array([0.5 * top])
        fraction = np.concatenate([y / np.concatenate([[self._longest()], y[:-1]]), [0.55]])
        starts = [np.log(fraction / (1.0 - fraction))]
        if previous is not None:
            starts.append(np.concatenate([previous[:-1], [2.0, -0.5], previous[-1:]]))
        return starts

    def loss(self, x: Array) -> tuple[float, Array]:
        """Value and gradient, by complex steps: all formulas are analytic and free of cancellation,
        so the gradient is exact to rounding."""
        points = x + 1e-30j * np.eye(len(x))
        theta_gap, phi_gap = self.interlaced(points)
        sensitivity = sensitivity_squared(
            theta_gap, phi_gap, self.n, self.separation, self.participations
        )
        error = error_squared(
            theta_gap, phi_gap, self.workload.ratios, self.n, self.objective == "mean"
        )
        value = np.log(sensitivity) + np.log(error)
        return float(value[0].real), value.imag / 1e-30

    def solve(self, starts: list[Array]) -> tuple[Array, float]:
        """The best local minimum reached from the starting points."""
        from scipy.optimize import minimize  # here, because it takes long to import

        best, best_loss = starts[0], math.inf
        for start in starts:
            bounds = [(-9.0, 9.0)] * (len(start) - 1) + [(-3.0, 9.0)]
            result = minimize(
                self.loss,
                np.clip(start, *np.transpose(bounds)),
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxiter": 300, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-6},
            )
            if result.fun < best_loss:
                best, best_loss = result.x, float(result.fun)
        return best, best_loss

    def parameters(self, x: Array) -> BLTParameters:
        theta_gap, phi_gap = self.interlaced(x)
        omega = output_scales(theta_gap, phi_gap)
        return BLTParameters(tuple(1.0 - theta_gap), tuple(omega))


# ---- closed-form sums of geometric sequences --------------------------------------------------------
#
# All take ``1 - theta`` and ``1 - phi`` (arrays [..., q], interlaced and descending in theta) instead of
# theta and phi: near 1, the distance to 1 is what has to be accurate. They are analytic in their
# arguments and accept complex input with an infinitesimal imaginary part, which then carries the
# derivative. All sums have non-negative terms, so nothing cancels.


Values = npt.NDArray[Any]  # float64, or complex128 with a derivative in the imaginary part


def output_scales(theta_gap: Values, phi_gap: Values) -> Values:
    """``omega_i = prod_j (theta_i - phi_j) / prod_{j != i} (theta_i - theta_j)``, [..., q]."""
    to_phi = phi_gap[..., None, :] - theta_gap[..., :, None]
    to_theta = theta_gap[..., None, :] - theta_gap[..., :, None]
    # The empty factor j = i.
    to_theta = to_theta + np.eye(theta_gap.shape[-1])
    omega: Values = np.prod(to_phi / to_theta, axis=-1)
    return omega


def sensitivity_squared(
    theta_gap: Values, phi_gap: Values, n: int, separation: int, participations: int
) -> Values:
    """``|sum_i C[:, i * separation]|^2`` over the first ``participations`` columns, [...].

    Between two participations the summed column is a combination of the theta_i^u with weights
    that are themselves geometric sums over the past participations; each such segment has a closed
    form. All participations must lie below n.
    """
    omega = output_scales(theta_gap, phi_gap)
    log_theta = _log1p(-theta_gap)
    # past[m, i] = sum_{j < m} theta_i^(j * separation), for m = 0..participations.
    count = np.arange(participations + 1)[:, None]
    past = _expm1(count * separation * log_theta[..., None, :])
    past = past / _expm1(separation * log_theta)[..., None, :]
    at_start = omega * np.exp((separation - 1) * log_theta)
    first = 1.0 + np.sum(at_start[..., None, :] * past[..., :-1, :], axis=-1)
    weight = omega[..., None, :] * past[..., 1:, :]
    last_length = n - (participations - 1) * separation
    total = np.sum(first**2, axis=-1)
    if participations > 1:
        inner = np.swapaxes(weight[..., :-1, :], -1, -2) @ weight[..., :-1, :]
        total = total + np.sum(inner * _pair_sums(log_theta, theta_gap, separation - 1), (-1, -2))
    tail = weight[..., -1, :, None] * weight[..., -1, None, :]
    total = total + np.sum(tail * _pair_sums(log_theta, theta_gap, last_length - 1), (-1, -2))
    return np.asarray(total)


def error_squared(
    theta_gap: Values, phi_gap: Values, ratios: tuple[float, ...], n: int, mean: bool
) -> Values:
    """Squared row norm of ``W C^{-1}``: mean over the n rows, or the last (largest) one, [...].

    ``W(z) / C(z)`` is a cascade of first-order sections. Its energy is summed by doubling the
    length, which needs no partial fractions and so does not mind poles that coincide. Paired in
    descending order every section has pole >= zero, hence non-negative terms only (for workloads
    whose largest ratio is 1).
    """
    batch, buffers = theta_gap.shape[:-1], theta_gap.shape[-1]
    fixed = np.broadcast_to(1.0 - np.asarray(ratios), (*batch, len(ratios)))
    pole_gap = np.concatenate([fixed, phi_gap], axis=-1)
    order = np.argsort(pole_gap.reshape(-1, pole_gap.shape[-1])[0].real, kind="stable")
    pole_gap = pole_gap[..., order]
    zero_gap = np.concatenate([theta_gap, np.ones((*batch, len(ratios)))], axis=-1)
    gain = zero_gap - pole_gap
    # State s_i of section i: s_i' = pole_i s_i + (input of section i); output = input + gain.s
    size = buffers + len(ratios)
    step = np.tril(np.broadcast_to(gain[..., None, :], (*batch, size, size)), -1)
    step = step + (1.0 - pole_gap)[..., None] * np.eye(size)
    last, total = _energy(step, gain, n - 1)
    return 1.0 + total / n if mean else 1.0 + last


def _energy(step: Values, output: Values, n: int) -> tuple[Values, Values]:
    """``S_n = sum_{t<n} e_t^2`` and ``sum_{m<=n} S_m`` for ``e_t = output . step^t . 1``.

    Quadratic forms Q_m = sum_{t<m} (step^t)' output output' step^t and M_m = sum_{j<=m} Q_j, built
    from the binary digits of n with Q_2m = Q_m + P'Q_m P, M_2m = M_m + m Q_m + P'M_m P, P = step^m.
    """
    power = step
    form = output[..., :, None] * output[..., None, :]
    total = form
    length = 1
    for digit in bin(n)[3:]:
        transposed = np.swapaxes(power, -1, -2)
        total = total + length * form + transposed @ total @ power
        form = form + transposed @ form @ power
        power = power @ power
        length *= 2
        if digit == "1":
            row = (output[..., None, :] @ power)[..., 0, :]
            form = form + row[..., :, None] * row[..., None, :]
            total = total + form
            power = power @ step
            length += 1
    return np.sum(form, (-1, -2)), np.sum(total, (-1, -2))


def _pair_sums(log_theta: Values, theta_gap: Values, length: int) -> Values:
    """``sum_{u < length} (theta_i theta_j)^u``, [..., q, q]."""
    exponent = length * (log_theta[..., :, None] + log_theta[..., None, :])
    gap_i, gap_j = theta_gap[..., :, None], theta_gap[..., None, :]
    sums: Values = -_expm1(exponent) / (gap_i + gap_j - gap_i * gap_j)
    return sums


def _log1p(x: Values) -> Values:
    # numpy's complex log1p rounds 1 + x first and loses the small real part.
    real: Values = np.log1p(x.real)
    return real + 1j * x.imag / (1.0 + x.real) if np.iscomplexobj(x) else real


def _expm1(x: Values) -> Values:
    real: Values = np.expm1(x.real)
    return real + 1j * x.imag * (1.0 + real) if np.iscomplexobj(x) else real

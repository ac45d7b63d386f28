"""Closed-form sums of geometric sequences behind the BLT optimizer.

All functions take ``1 - theta`` and ``1 - phi`` (arrays [..., q], interlaced and descending in
theta) instead of theta and phi: near 1, the distance to 1 is what has to be accurate. They are
analytic in their arguments and accept complex input with an infinitesimal imaginary part, which
then carries the derivative. All sums have non-negative terms, so nothing cancels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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

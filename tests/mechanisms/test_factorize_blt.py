"""BLT strategies: the tables of papers/00 and papers/03, and the algebra against dense matrices."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import jax_privacy
from tests.support.toeplitz import (
    blt_coefficients,
    blt_inverse_coefficients,
    fixed_order_sensitivity,
)

from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.mechanisms.factorize._blt import (
    BLTParameters,
    error_squared,
    optimize_blt,
    sensitivity_squared,
)
from sordino.parts.mechanisms.factorize._error import noising_error, rmse, toeplitz_error
from sordino.parts.mechanisms.factorize._toeplitz import (
    inverse_coefficients,
    sqrt_toeplitz,
)

PREFIX = Workload.prefix()
MAL = Workload.recursive(0.9, np.exp(-2.5))
WORKLOADS = [PREFIX, Workload.ema(0.1), Workload.ema(1e-3), Workload.heavy_ball(0.9), MAL]
AWKWARD = [Workload.identity(), Workload.heavy_ball(1.0), Workload("w", 1.0, (0.5, 0.5, 0.5))]


def figures(blt, workload, n, separation=None, participations=1):
    sensitivity = fixed_order_sensitivity(blt_coefficients(blt, n), n, separation, participations)
    error = noising_error(blt_inverse_coefficients(blt, n), workload)
    return rmse(error, sensitivity), error[-1] * sensitivity


@pytest.mark.parametrize(
    ("buffers", "objective", "expected"),
    [
        (2, "max", (3.142, 3.330)),
        (3, "max", (3.113, 3.278)),
        (4, "max", (3.110, 3.273)),
        (5, "max", (3.110, 3.273)),
        (3, "mean", (3.059, 3.357)),
    ],
)
def test_prefix_table_of_paper_03(buffers, objective, expected):
    blt = optimize_blt(PREFIX, 1024, buffers=buffers, objective=objective)
    assert len(blt.theta) == buffers
    assert figures(blt, PREFIX, 1024) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(
    ("workload", "separation", "participations", "expected"),
    [
        (MAL, 120, 1, (15.25, 18.55)),
        (MAL, 100, 6, (64.02, 83.00)),
        (PREFIX, 100, 6, (8.21, 10.00)),
    ],
)
def test_two_buffer_rows_of_paper_03(workload, separation, participations, expected):
    n = separation * participations
    blt = optimize_blt(workload, n, separation, participations, buffers=2)
    result = figures(blt, workload, n, separation, participations)
    assert result == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("alpha", "theta", "omega", "over_square_root"),
    [
        (0.1, (0.8044,), (0.3964,), 0.005),
        (0.1, (0.8559, 0.4378), (0.2567, 0.1937), 0.0001),
        (0.01, (0.9797, 0.7287), (0.1489, 0.3317), 0.003),
        (0.01, (0.9852, 0.9484, 0.6255), (0.0798, 0.1312, 0.2811), 0.0006),
    ],
)
def test_at_least_as_good_as_the_fits_of_paper_00(alpha, theta, omega, over_square_root):
    workload, n = Workload.ema(alpha), 1024
    coef = sqrt_toeplitz(workload, n)
    root = rmse(toeplitz_error(coef, workload, n), fixed_order_sensitivity(coef, n))
    fitted, _ = figures(BLTParameters(theta, omega), workload, n)
    ours, _ = figures(optimize_blt(workload, n, buffers=len(theta)), workload, n)
    assert fitted == pytest.approx(root * (1 + over_square_root), rel=6e-4)
    assert ours <= fitted


def test_optimum_is_stationary_in_the_plain_parameters():
    # Independent of the parametrisation and of the closed forms.
    n, separation, participations = 60, 15, 4
    blt = optimize_blt(MAL, n, separation, participations, buffers=2)
    value, _ = figures(blt, MAL, n, separation, participations)
    for i in range(2):
        for field in ("theta", "omega"):
            for factor in (0.99, 1.01):
                moved = {"theta": list(blt.theta), "omega": list(blt.omega)}
                moved[field][i] *= factor
                other, _ = figures(BLTParameters(**moved), MAL, n, separation, participations)
                assert other >= value * (1 - 1e-7)


@pytest.mark.parametrize(("buffers", "expected"), [(4, 5.548), (5, 5.487), (6, 5.470)])
def test_a_million_steps_beat_paper_03(buffers, expected):
    # Section 3.6 reports 5.53-5.55 for 4 to 6 buffers (the limit of the optimizer used there); the
    # square root itself is at 5.464.
    n = 1_000_000
    blt = optimize_blt(PREFIX, n, buffers=buffers, objective="max")
    _, largest = figures(blt, PREFIX, n)
    assert largest == pytest.approx(expected, abs=2e-3)


def test_hundred_thousand_steps():
    blt = optimize_blt(PREFIX, 100_000, buffers=5, objective="max")
    assert figures(blt, PREFIX, 100_000)[1] <= 4.7375


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
@pytest.mark.parametrize("participations", [1, 7, 200])
@pytest.mark.parametrize("n", [20_000, 1_000_000])
def test_long_runs_stay_near_the_square_root(workload, participations, n):
    separation = n // participations
    blt = optimize_blt(workload, n, separation, participations)
    ours, _ = figures(blt, workload, n, separation, participations)
    coef = sqrt_toeplitz(workload, n)
    sensitivity = fixed_order_sensitivity(coef, n, separation, participations)
    assert ours <= 1.005 * rmse(toeplitz_error(coef, workload, n), sensitivity)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(WORKLOADS + AWKWARD),
    st.integers(1, 3000),
    st.integers(1, 200),
    st.floats(0.0, 1.0),
    st.sampled_from([None, 1, 2, 4, 6]),
    st.sampled_from(["mean", "max"]),
)
def test_valid_and_never_worse_than_independent_noise(
    workload, n, participations, spacing, buffers, objective
):
    separation = 1 + int(spacing * (n - 1))
    blt = optimize_blt(workload, n, separation, participations, buffers, objective)
    assert np.all(np.abs(blt.inverse_poles()) < 1.0)
    assert max(np.float32(blt.theta)) < 1.0
    mean, last = figures(blt, workload, n, separation, participations)
    independent = fixed_order_sensitivity([1.0], n, separation, participations)
    error = toeplitz_error([1.0], workload, n)
    if objective == "mean":
        assert mean <= independent * rmse(error) * 1.001
    else:
        assert last <= independent * error[-1] * 1.001


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.05, 0.95), min_size=2, max_size=8, unique=True),
    st.sampled_from(WORKLOADS + AWKWARD),
    st.integers(2, 40),
    st.integers(1, 40),
    st.integers(1, 6),
)
def test_closed_forms_equal_the_sequences(gaps, workload, n, separation, participations):
    gaps = sorted(gaps)[: len(gaps) // 2 * 2]
    theta_gap, phi_gap = np.array(gaps[0::2]), np.array(gaps[1::2])
    if np.any(np.diff(gaps) < 1e-3):
        return
    theta, phi = 1 - theta_gap, 1 - phi_gap
    impulse = np.eye(1, n)[0]
    coef = impulse
    for t, p in zip(theta, phi, strict=True):
        shifted = np.convolve(coef, [1.0, -p])[:n]
        coef = np.convolve(shifted, t ** np.arange(n))[:n]
    fitting = min(participations, -(-n // separation))
    sensitivity = fixed_order_sensitivity(coef, n, separation, participations)
    closed = sensitivity_squared(theta_gap, phi_gap, n, separation, fitting)
    assert closed == pytest.approx(sensitivity**2, rel=1e-9)
    error = toeplitz_error(coef, workload, n) / workload.scale
    mean = error_squared(theta_gap, phi_gap, workload.ratios, n, mean=True)
    last = error_squared(theta_gap, phi_gap, workload.ratios, n, mean=False)
    assert mean == pytest.approx(rmse(error) ** 2, rel=1e-9)
    assert last == pytest.approx(error[-1] ** 2, rel=1e-9)


def test_inverse_agrees_with_the_power_series_and_jax_privacy():
    blt = BLTParameters((0.999, 0.9, 0.5), (0.05, 0.2, 0.25))
    n = 300
    np.testing.assert_allclose(
        blt_inverse_coefficients(blt, n),
        inverse_coefficients(blt_coefficients(blt, n), n),
        atol=1e-14,
    )
    theirs, their_inverse = jax_privacy.blt_coefficients(blt.theta, blt.omega, n)
    np.testing.assert_allclose(blt_coefficients(blt, n), theirs, atol=1e-14)
    np.testing.assert_allclose(blt_inverse_coefficients(blt, n), their_inverse, atol=1e-12)


def test_streaming_recursion_inverts_the_strategy():
    # papers/00, oracle 9: C x == z.
    blt = optimize_blt(PREFIX, 200)
    z = np.random.default_rng(0).normal(size=200)
    buffers = np.zeros(len(blt.theta))
    x = np.empty(200)
    for t in range(200):
        x[t] = z[t] - np.dot(blt.omega, buffers)
        buffers = np.array(blt.theta) * buffers + x[t]
    np.testing.assert_allclose(np.convolve(blt_coefficients(blt, 200), x)[:200], z, atol=1e-12)


def test_buffers_are_added_only_while_they_pay():
    assert len(optimize_blt(Workload.ema(0.5), 1000).theta) == 1
    assert len(optimize_blt(PREFIX, 1_000_000).theta) >= 5


def test_json_round_trip():
    blt = optimize_blt(PREFIX, 50)
    assert BLTParameters.from_json(json.loads(json.dumps(blt.to_json()))) == blt


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BLTParameters((), ()), "same positive length, got 0 and 0"),
        (lambda: BLTParameters((0.5,), (0.1, 0.2)), "same positive length, got 1 and 2"),
        (lambda: BLTParameters((1.0,), (0.1,)), "every theta must be greater than 0 and less"),
        (lambda: BLTParameters((0.5,), (0.0,)), "every omega must be a finite number greater"),
        (lambda: BLTParameters((0.5,), (1.6,)), "omega is too large for a stable inverse"),
        (lambda: BLTParameters.from_json({"theta": [0.5]}), "these are not BLT parameters"),
        (lambda: optimize_blt(PREFIX, 0), "n must be a whole number of at least 1"),
        (lambda: optimize_blt(PREFIX, 9, buffers=7), "buffers must be at most 6, got 7"),
        (lambda: optimize_blt(PREFIX, 9, participations=2), "separation must be given"),
        (lambda: optimize_blt(PREFIX, 9, objective="median"), "objective 'median' is not known"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()

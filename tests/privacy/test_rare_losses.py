"""Rare large losses at tiny rates: against quadrature, and against what an attack achieves for certain."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from sordino.privacy import _accountant as accountant
from sordino.privacy import _rare_losses as rare
from sordino.privacy._accountant import delta_of, epsilon_of
from sordino.privacy._amplification import (
    SampledRelease,
    calibrate_noise,
    composed_delta,
    composed_epsilon,
)
from sordino.privacy._loss_laws import Level, tails

from .test_accountant import exact_delta


def one_step(epsilon, s, q):
    """delta of one step at any real epsilon, in closed form."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x = s * s * np.log1p(np.expm1(epsilon) / q) + 0.5
    x = np.where(np.isnan(x), -np.inf, x)
    return (1 - q - np.exp(epsilon)) * ndtr(-x / s) + q * ndtr((1 - x) / s)


def several_steps(steps, epsilon, s, q):
    """The same of two or three steps: all but the last by quadrature, to 1e-5 of it."""
    step = s / (400 if steps == 2 else 100)
    x = np.arange(-8 * s, 1 + 8 * s, step)
    density = (1 - q) * np.exp(-0.5 * (x / s) ** 2) + q * np.exp(-0.5 * ((x - 1) / s) ** 2)
    weight = density / (s * math.sqrt(2 * math.pi)) * step
    loss = np.log1p(q * np.expm1((x - 0.5) / s**2))
    if steps == 2:
        return float(weight @ one_step(epsilon - loss, s, q))
    both = epsilon - loss[:, None] - loss[None, :]
    return float(weight @ one_step(both, s, q) @ weight)


FEW = [(0.7, 1e-4, 0.05), (1.0, 1e-3, 0.3), (0.5, 1e-3, 2.0), (0.4, 1e-5, 0.5)]


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize(("s", "q", "epsilon"), FEW)
def test_a_few_steps_by_quadrature(steps, s, q, epsilon):
    true = several_steps(steps, epsilon, s, q)
    jumps, backlash = accountant._jumps(Level(s, q, steps), true, epsilon)
    assert backlash < 1e-12
    assert true * (1 - 1e-5) <= jumps.delta(epsilon) <= true * 1.01
    assert epsilon * (1 - 1e-5) <= jumps.epsilon(true, 10.0) <= epsilon * 1.005
    assert epsilon * (1 - 1e-5) <= epsilon_of((Level(s, q, steps),), true) <= epsilon * 1.005


@pytest.mark.parametrize("share", [1e-12, 1e-2, 10.0])
@pytest.mark.parametrize(("s", "q", "epsilon"), FEW)
def test_wherever_the_cut_is_it_is_a_bound(s, q, epsilon, share, monkeypatch):
    monkeypatch.setattr(rare, "TWO_SHARE", share)
    for steps in (2, 3):
        true = several_steps(steps, epsilon, s, q)
        found = accountant._jumps(Level(s, q, steps), true, epsilon)
        assert found is None or found[0].delta(epsilon) >= true * (1 - 1e-5)


def achieved(epsilon, s, q, steps):
    """What "one output is above x" achieves against any claim: a lower bound on delta, the best x."""
    with mp.workdps(40):
        s, q, epsilon = mp.mpf(s), mp.mpf(q), mp.mpf(epsilon)

        def gain(x):
            absent, present = mp.ncdf(-x / s), mp.ncdf((1 - x) / s)
            there = -mp.expm1(steps * mp.log1p(-((1 - q) * absent + q * present)))
            return there + mp.exp(epsilon) * mp.expm1(steps * mp.log1p(-absent))

        x = s * s * mp.log1p(mp.expm1(epsilon) / q) + mp.mpf(1) / 2
        return float(max(gain(x + shift * s / 20) for shift in range(-3, 4)))


RARE = [  # noise, rate, steps, delta
    (0.7349228960637023, 1e-7, 1000, 1e-14),
    (0.48993602190885543, 1e-7, 10**6, 1e-14),
    (0.88, 2e-6, 17449, 1e-13),
    (0.6, 1e-6, 200, 1e-12),
]


@pytest.mark.parametrize(("s", "rate", "steps", "delta"), RARE)
def test_certified_and_attained(s, rate, steps, delta):
    """Three to ten times too much before rare losses were counted one by one."""
    levels = (Level(s, rate, steps),)
    found = epsilon_of(levels, delta)
    assert achieved(found, s, rate, steps) <= delta < achieved(0.97 * found, s, rate, steps)
    assert achieved(found, s, rate, steps) <= delta_of(levels, found) <= 1.1 * delta


@pytest.mark.parametrize("planted", ["steps", "rare", "common"])
def test_losses_that_are_not_counted_are_found(planted, monkeypatch):
    """Mutations: the rare losses of one step for those of all; half of them; common losses all at 0."""
    s, rate, steps, delta = RARE[0] if planted != "common" else (0.86, 1e-4, 10**5, 1e-12)
    jumps, _ = accountant._jumps(Level(s, rate, steps), delta, 1e-3 if steps == 1000 else 0.6)
    if planted == "common":
        jumps = replace(jumps, ends=np.zeros_like(jumps.ends))
        assert jumps.epsilon(delta, 10.0) < 0.56  # true: 0.5776
        return
    if planted == "steps":
        jumps = replace(jumps, level=replace(jumps.level, steps=1))
    else:
        monkeypatch.setattr(rare, "tails", lambda level, x: [0.5 * y for y in tails(level, x)])
    assert achieved(jumps.epsilon(delta, 10.0), s, rate, steps) > delta


def test_common_losses_count_too():
    """Where they are as large as the rare ones: the contour integral at 0.58057 is 9.55e-13."""
    level = Level(0.86, 1e-4, 10**5)
    found = epsilon_of((level,), 1e-12)
    assert found == pytest.approx(0.5776, rel=1e-3)
    assert exact_delta((level,), found) <= 1e-12 * (1 + 1e-6)
    assert exact_delta((level,), 0.58057) == pytest.approx(9.55e-13, rel=2e-3)
    assert exact_delta((level,), 0.998 * found) > 1e-12


def test_laws_without_rare_losses_are_left_alone():
    assert accountant._jumps(Level(2.0, 0.1, 1), 1e-6, 1.0) is None
    found = accountant._jumps(Level(5.0, 0.1, 1000), 1e-6, 1.0)
    assert found is None or found[0].epsilon(1e-6, 50.0) >= epsilon_of(
        (Level(5.0, 0.1, 1000),), 1e-6
    )


@pytest.mark.parametrize(
    "pair", [("poisson", "replace-one"), ("without-replacement", "replace-one")]
)
def test_other_neighbours_are_not_below_removal(pair):
    """Replacing is no easier than removing at the same noise."""
    s, rate, steps, delta = RARE[3]
    part = SampledRelease(s, 1.0, rate, steps, *pair)
    removal = SampledRelease(s, 1.0, rate, steps, "poisson", "add-remove")
    assert composed_epsilon((part,), delta) >= composed_epsilon((removal,), delta)


def test_calibration_ends_where_a_quick_look_says_something_else():
    """Infinite noise before: 60 tries, each a little larger than the last."""
    epsilon, delta = 0.057353582133764215, 9.985730675461731e-14

    def release(std):
        return SampledRelease(std, 1.0, 2e-6, 17449, "poisson", "add-remove")

    found = calibrate_noise(release, epsilon, delta)
    assert 0.999 * epsilon < composed_epsilon((release(found),), delta) <= epsilon
    assert achieved(epsilon, 0.99 * found, 2e-6, 17449) > delta


def test_calibration_ends_whatever_the_quick_look_says(monkeypatch):
    """A quick look that is far too low: then noise grows up to what needs no credit at all."""
    from sordino.privacy import _amplification as amplification

    genuine = amplification.composed_epsilon

    def deceived(parts, delta, *, mu=0.0, quick=False):
        value = genuine(parts, delta, mu=mu, quick=quick)
        return value / 10 if quick else value

    monkeypatch.setattr(amplification, "composed_epsilon", deceived)

    def release(std):
        return SampledRelease(std, 1.0, 0.01, 100, "poisson", "add-remove")

    found = calibrate_noise(release, 1.0, 1e-6)
    assert math.isfinite(found)
    assert genuine((release(found),), 1e-6) <= 1.0


@pytest.mark.parametrize(
    ("pair", "s", "rate", "steps"),
    [
        (("without-replacement", "replace-one"), 0.21, 5.6e-6, 2),
        (("poisson", "add-remove"), 0.11, 1.9e-6, 37),
    ],
)
def test_without_a_loss_to_cut_at_there_is_still_an_answer(pair, s, rate, steps):
    """An IndexError before: where the cut would be below all losses, nothing is rare."""
    part = SampledRelease(s, 1.0, rate, steps, *pair)
    reached = rate * math.erf(0.5 / part.level.width / math.sqrt(2))  # total variation of one step
    assert reached * (1 - 1e-9) <= composed_delta((part,), 0.0) <= rate * steps * (1 + 1e-9)
    assert accountant._jumps(part.level, 0.01, 1e-6) is None

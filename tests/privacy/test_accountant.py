"""The accountant against exact contour integrals, closed forms and another library."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sordino
from sordino._base.errors import SordinoError
from sordino.privacy import _accountant as accountant
from sordino.privacy._accountant import delta_of, epsilon_of
from sordino.privacy._amplification import (
    SampledRelease,
    calibrate_noise,
    composed_delta,
    composed_epsilon,
)
from sordino.privacy._gdp import delta_from_mu, epsilon_from_mu
from sordino.privacy._loss_laws import Law, Level

from .one_step import poisson_delta, without_replacement_delta

# ---- an independent reference: no lattice, no Fourier transform -----------------------------------------


def losses_and_weights(level, reach, forward):
    """Nodes of one step's loss under its own distribution; `reach` is how far a tilt moves it."""
    s = level.s / 2 if level.pair == "exchange" else level.s
    step = min(s / 8, s * s / 4)

    def log_density(x, mean):
        return -0.5 * ((x - mean) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi))

    def mixed(x, mean):
        with np.errstate(divide="ignore"):
            absent = np.log1p(-level.rate) + log_density(x, 0)
        return np.logaddexp(absent, math.log(level.rate) + log_density(x, mean))

    if level.pair == "exchange":  # by the midpoint rule from where the loss is 0
        x = 0.5 + (np.arange(int((reach + 1 + 13 * s) / step)) + 0.5) * step
        return mixed(x, 1) - log_density(x, 0), np.exp(mixed(x, 1)) * step, True
    low, high = (13 * s, 14 * s + 2 + reach) if forward else (13 * s + 1 + reach, 1 + 13 * s)
    x = np.arange(-low, high, step)
    p, q = mixed(x, 1), mixed(x, -1) if level.pair == "replace" else log_density(x, 0)
    return (p - q, np.exp(p) * step, False) if forward else (q - p, np.exp(q) * step, False)


def log_moments(levels, nodes, z):
    total = np.zeros(z.size, np.complex128)
    for level, (loss, weight, mirrored) in zip(levels, nodes, strict=True):
        power = np.expm1(np.outer(z, loss))
        if mirrored:
            power = power + np.exp(-loss) * np.expm1(-np.outer(z, loss))
        total += level.steps * np.log1p(power @ weight)
    return total


def exact_delta(levels, epsilon, forward=True):
    """``delta = (1 / 2 pi i) int e^{K(z) - z eps} / (z (z+1)) dz`` along Re z = c > 0."""
    best = None
    for c in np.geomspace(0.05, 3e3, 90):
        try:
            with np.errstate(over="raise", invalid="raise"):
                nodes = [losses_and_weights(level, c, forward) for level in levels]
                size = log_moments(levels, nodes, np.array([c]))[0].real - c * epsilon
        except FloatingPointError:
            break
        size -= math.log(c) + math.log1p(c)
        if best is None or size < best[0]:
            best = (size, c, nodes)
        elif size > best[0] + 5:
            break
    assert best is not None
    size, c, nodes = best

    def integrand(y):
        z = c + 1j * y
        return np.exp(log_moments(levels, nodes, z) - z * epsilon - size) / (z * (z + 1))

    top = 1e-3 * c
    first = abs(integrand(np.array([0.0]))[0])
    while abs(integrand(np.array([top]))[0]) > 1e-12 * first and top < 1e5 * max(c, 1):
        top *= 1.5
    y = (np.arange(3000) + 0.5) / 3000 * top
    values = np.concatenate([integrand(y[i : i + 50]) for i in range(0, 3000, 50)])
    return math.exp(size) * float(values.real.sum()) * top / 3000 / math.pi


# Noise, rate, steps, delta, the exact epsilon (by contour integrals in 30 digits).
EXACT = [
    (1.0, 0.01, 1000, 1e-5, 1.82823667),
    (1.0, 0.01, 10_000, 1e-5, 6.18771239),
    (1.0, 1e-3, 10**6, 1e-10, 8.88300042),
    (5.0, 0.1, 1000, 1e-14, 4.97745886),
    (0.8, 0.05, 200, 1e-8, 11.0577882),
]


@pytest.mark.parametrize(("s", "rate", "steps", "delta", "exact"), EXACT)
def test_certified_and_close(s, rate, steps, delta, exact):
    levels = (Level(s, rate, steps),)
    assert exact <= epsilon_of(levels, delta) <= exact * (1 + 1e-4)
    assert delta * (1 - 1e-6) <= delta_of(levels, exact) <= delta * (1 + 5e-3)
    if steps <= 1000:
        assert exact_delta(levels, exact) == pytest.approx(delta, rel=1e-6)


def delta_in_30_digits(s, rate, steps, epsilon):
    """The contour integral again, in other arithmetic: sums over x and along the contour by mpmath."""
    mp = pytest.importorskip("mpmath")
    with mp.workdps(30):
        s, rate, epsilon, half = mp.mpf(s), mp.mpf(rate), mp.mpf(epsilon), mp.mpf(1) / 2
        x = [k * s / 4 for k in range(-52, 57 + int(4 * 12 / s))]
        density = [s / 4 * mp.npdf(value, 0, s) for value in x]
        loss = [mp.log1p(rate * mp.expm1((value - half) / s**2)) for value in x]

        def integrand(z):
            moment = mp.fsum(
                d * mp.exp((1 + z) * one) for d, one in zip(density, loss, strict=True)
            )
            return moment**steps * mp.exp(-z * epsilon) / (z * (z + 1))

        c = min(range(1, 13), key=lambda tilt: integrand(mp.mpf(tilt)))
        values = [mp.re(integrand(mp.mpc(c, 0))) / 2]
        while len(values) < 20 or max(map(abs, values[-20:])) > values[0] * mp.mpf(10) ** -15:
            values.append(mp.re(integrand(mp.mpc(c, len(values) * half / 2))))
        return mp.fsum(values) / 4 / mp.pi


@pytest.mark.parametrize(("row", "known"), [(0, "9.9999997e-6"), (3, "1.00000001e-14")])
def test_exact_values_in_30_digits(row, known):
    s, rate, steps, delta, exact = EXACT[row]
    found = delta_in_30_digits(str(s), str(rate), steps, str(exact))
    assert float(found) == pytest.approx(float(known), rel=1e-8)
    certified = epsilon_of((Level(s, rate, steps),), delta)
    assert delta_in_30_digits(str(s), str(rate), steps, repr(certified)) <= delta


@pytest.mark.parametrize(
    ("pair", "s", "rate", "steps", "delta", "known"),
    [
        ("replace", 5.0, 0.1, 1000, 1e-6, 6.387778),
        ("exchange", 5.0, 0.1, 1000, 1e-6, 7.662225),
        ("replace", 2.0, 0.02, 500, 1e-7, 2.217989),
        ("exchange", 2.0, 0.02, 500, 1e-7, 4.144165),
    ],
)
def test_pairs_under_replacement(pair, s, rate, steps, delta, known):
    levels = (Level(s, rate, steps, pair),)
    found = epsilon_of(levels, delta)
    assert found == pytest.approx(known, rel=1e-4)
    assert 0.999 * delta < exact_delta(levels, found) <= delta


def some_levels(rng):
    pair = str(rng.choice(["remove", "replace", "exchange"]))
    s, rate = 10 ** rng.uniform(-0.2, 1.2), 10 ** rng.uniform(-2.5, -0.05)
    steps = int(10 ** rng.uniform(2, 4.5))
    levels = [Level(s, rate, steps, pair)]
    if rng.random() < 0.4:
        levels.append(Level(1.5 * s, rate, max(1, steps // 2), pair))
    if rng.random() < 0.4:
        levels.append(Level(rng.uniform(2, 6), 1.0, 1))  # a plain Gaussian release beside them
    return tuple(levels), 10 ** rng.uniform(-13, -3)


@pytest.mark.parametrize("seed", range(24))
def test_never_below_the_exact_value_and_little_above(seed):
    levels, delta = some_levels(np.random.default_rng(seed))
    found = epsilon_of(levels, delta)
    if not 1e-3 < found < 40:
        pytest.skip("outside what the reference can integrate")
    ways = (True,) if all(level.symmetric for level in levels) else (True, False)
    exact = max(exact_delta(levels, found, way) for way in ways)
    assert 0.98 * delta < exact <= delta
    assert delta_of(levels, found) <= delta * (1 + 1e-3)


@pytest.mark.parametrize("planted", ["charge", "ends"])
def test_a_lattice_that_rounds_down_is_found(planted, monkeypatch):
    """Mutations: what is cut off is not charged; each cell is put on its lower end."""
    genuine = accountant.law_of

    def optimistic(level, h, cut, forward):
        if planted == "charge":
            law = genuine(level, h, 1e-7, forward)
            return Law(law.first, law.masses, 0.0, h)
        law = genuine(level, h, cut, forward)
        return Law(law.first - 1, law.masses, law.cut, h)

    monkeypatch.setattr(accountant, "law_of", optimistic)
    accountant._cached_law.cache_clear()
    levels = (Level(1.0, 0.01, 1001),)
    try:
        assert exact_delta(levels, epsilon_of(levels, 1e-5)) > 1e-5
    finally:
        accountant._cached_law.cache_clear()
        epsilon_of.cache_clear()


# ---- noise for a budget --------------------------------------------------------------------------------

CALIBRATED = [  # rate, steps, epsilon, delta, multiplier
    (1e-4, 10**4, 1.0, 1e-7, 0.592606),
    (1 / 32561, 8 * 32561, 1.0, 1e-6, 0.535682),
    (1e-6, 10**5, 50.0, 1e-9, 0.176577),
    (0.01, 10**5, 1.0, 1e-6, 13.3850),
    (0.01, 1000, 1e-3, 1e-12, 1711.69),
    (1e-4, 10**5, 1.0, 1e-12, 0.794164),
    (1e-7, 10**6, 1.0, 1e-10, 0.419145),
    (0.1, 500, 3.0, 1e-14, 5.74029),
    (1e-3, 10**6, 50.0, 1e-3, 0.486110),
    (0.5, 10**6, 1e-3, 1e-14, 3.07414e6),
    (1.0, 10**6, 1.0, 1e-9, 5495.52),
    (256 / 60000, 14070, 2.0, 1e-5, 1.22447),
]


@pytest.mark.parametrize(("rate", "steps", "epsilon", "delta", "known"), CALIBRATED)
def test_calibration(rate, steps, epsilon, delta, known):
    def release(std):
        return SampledRelease(std, 1.0, rate, steps, "poisson", "add-remove")

    began = time.process_time()
    found = calibrate_noise(release, epsilon, delta)
    assert time.process_time() - began < 5
    assert found == pytest.approx(known, rel=2e-4)
    assert 0.9998 * epsilon <= composed_epsilon((release(found),), delta) <= epsilon


@pytest.mark.slow
def test_memory_of_calibration():
    """All of them in a process of their own: less than 300 MB beyond what imports take."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the peak of a process is read from /proc")
    code = """if True:
        import sordino
        from tests.privacy.test_accountant import CALIBRATED
        from sordino.privacy._amplification import SampledRelease, calibrate_noise
        def peak():
            lines = open("/proc/self/status").read().splitlines()
            return int(next(one for one in lines if one.startswith("VmHWM")).split()[1]) / 1e3
        facts = dict(epsilon=1.0, delta=1e-6, sampling="poisson")
        sordino.plan("dp-sgd", examples=1000, batch_size=10, steps=10, **facts)
        before = peak()
        for rate, steps, epsilon, delta, _ in CALIBRATED:
            calibrate_noise(
                lambda std: SampledRelease(std, 1.0, rate, steps, "poisson", "add-remove"), epsilon, delta
            )
        print(peak() - before)
    """
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, str(Path(sordino.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 300


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rate=st.floats(-5, 0).map(lambda x: 10**x),
    steps=st.floats(0, 5).map(lambda x: int(10**x)),
    epsilon=st.floats(-2, 1.5).map(lambda x: 10**x),
    delta=st.floats(-14, -3).map(lambda x: 10**x),
    pair=st.sampled_from(
        [
            ("poisson", "add-remove"),
            ("poisson", "replace-one"),
            ("without-replacement", "replace-one"),
        ]
    ),
)
def test_calibration_always_ends_within_the_budget(rate, steps, epsilon, delta, pair):
    def release(std):
        return SampledRelease(std, 1.0, rate, steps, *pair)

    assume(not 0.99 < rate * steps / delta < 1.01)
    if rate * steps < delta:  # who is in a batch with less than that probability needs no noise
        with pytest.raises(SordinoError, match="next to no noise"):
            calibrate_noise(release, epsilon, delta)
        return
    found = calibrate_noise(release, epsilon, delta)
    assert composed_epsilon((release(found),), delta) <= epsilon


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    batch=st.floats(0, 3).map(lambda x: int(10**x)),
    steps=st.floats(0, 4).map(lambda x: int(10**x)),
    epsilon=st.floats(-2, 1).map(lambda x: 10**x),
    delta=st.floats(-14, -3).map(lambda x: 10**x),
)
def test_plans_state_no_more_than_was_asked_and_can_be_loaded(batch, steps, epsilon, delta):
    plan = sordino.plan(
        "dp-sgd",
        examples=10_000,
        batch_size=batch,
        steps=steps,
        epsilon=epsilon,
        delta=delta,
        sampling="poisson",
    )
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        loaded = sordino.Plan.load(Path(folder) / "plan.json")
    assert loaded == plan
    assert loaded.guarantee.epsilon(delta) <= epsilon


# ---- closed forms, and others' ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "rate", "delta", "epsilon"), [(1.0, 0.5, 0.07179664, 1.0), (2.0, 0.25, 0.0017241012, 0.5)]
)
def test_two_steps_by_quadrature(s, rate, delta, epsilon):
    """delta as integrated in two dimensions."""
    assert epsilon <= epsilon_of((Level(s, rate, 2),), delta) <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize(
    ("s", "rate", "epsilon", "by_overlap"),
    [
        (1.0, 0.5, 1.0, {0.0: 0.07179664, 0.2: 0.091528, 0.4: 0.110977}),
        (2.0, 0.25, 0.5, {0.0: 0.0017241012, 0.2: 0.0029517585, 0.4: 0.0044998587}),
    ],
)
def test_steps_that_overlap_are_no_composition(s, rate, epsilon, by_overlap):
    """Two steps whose columns have the inner product r: two composed steps bound r = 0 only."""
    axis = np.linspace(-11 * s, 11 * s + 2, 1500)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    cell = (axis[1] - axis[0]) ** 2

    def density(mean):
        return np.exp(-((x - mean[0]) ** 2 + (y - mean[1]) ** 2) / (2 * s * s)) / (
            2 * np.pi * s * s
        )

    for r, known in by_overlap.items():
        first, second = np.array([1.0, 0.0]), np.array([r, math.sqrt(1 - r * r)])
        nobody = density((0, 0))
        somebody = sum(
            rate ** (a + b) * (1 - rate) ** (2 - a - b) * density(a * first + b * second)
            for a in (0, 1)
            for b in (0, 1)
        )
        found = float(np.maximum(somebody - math.exp(epsilon) * nobody, 0).sum()) * cell
        assert found == pytest.approx(known, rel=2e-5)
        claimed = delta_of((Level(s, rate, 2),), epsilon)
        assert (found > 1.2 * claimed) == (r > 0)


def on_the_lattice(levels, delta):
    """Without the minimum with the plain bound, which would hide all errors here."""
    guide = accountant._Guide(levels, forward=True)
    tilt, guess = guide.best(delta)
    return accountant._epsilon_one_way(guide, delta, tilt, guess, 2e-5, 0.0)[0]


@pytest.mark.parametrize(
    ("s", "steps", "delta"), [(2.0, 1, 1e-6), (30.0, 1000, 1e-12), (0.9, 3, 1e-3)]
)
def test_rate_one_is_a_gaussian_release(s, steps, delta):
    plain = epsilon_from_mu(math.sqrt(steps) / s, delta)
    assert plain <= on_the_lattice((Level(s, 1.0, steps),), delta) <= plain * (1 + 1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.5, 2.0])
@pytest.mark.parametrize(("s", "rate"), [(1.0, 0.1), (0.6, 0.02), (3.0, 0.5)])
def test_one_step_in_closed_form(s, rate, epsilon):
    """All three pairs; adding is the other direction of removing."""

    def both(profile):
        there = float(profile(epsilon)[0])
        back = float(1 - math.exp(epsilon) + math.exp(epsilon) * profile(-epsilon)[0])
        return max(there, back)

    for pair, true in (
        ("remove", both(lambda e: poisson_delta(e, s, rate, "add-remove"))),
        ("replace", poisson_delta(epsilon, s, rate, "replace-one")[0]),
        ("exchange", without_replacement_delta(epsilon, s / 2, rate)[0]),
    ):
        if true > 1e-13:
            found = delta_of((Level(s, rate, 1, pair),), epsilon)
            assert true * (1 - 1e-9) <= found <= true * (1 + 3e-3), pair


@pytest.mark.parametrize("epsilon", [0.02, 0.5, 2.0])
@pytest.mark.parametrize(("s", "rate"), [(1.0, 0.1), (0.6, 0.02), (3.0, 0.5)])
def test_one_step_in_closed_form_gives_back_its_epsilon(s, rate, epsilon):
    """To 1e-4, for all three pairs."""
    for pair, profile in (
        ("remove", lambda e: poisson_delta(e, s, rate, "add-remove")),
        ("replace", lambda e: poisson_delta(e, s, rate, "replace-one")),
        ("exchange", lambda e: without_replacement_delta(e, s / 2, rate)),
    ):
        delta = float(profile(epsilon)[0])
        if delta > 1e-13:
            found = epsilon_of((Level(s, rate, 1, pair),), delta)
            assert epsilon * (1 - 1e-9) <= found <= epsilon * (1 + 1e-4), pair


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_more_noise_is_never_worse(count):
    """So many values 1e-5 apart where float transforms would rise."""
    noises = 8.0 * (1 + 1e-5 * np.arange(count))
    found = [epsilon_of((Level(float(s), 0.01, 1000),), 1e-12) for s in noises]
    assert (np.diff(found) < 0).all()


def one_way(level, delta, forward):
    guide = accountant._Guide((level,), forward=forward)
    tilt, guess = guide.best(delta)
    return accountant._epsilon_one_way(guide, delta, tilt, guess, 2e-5, 0.0)[0]


@pytest.mark.parametrize(
    ("s", "rate", "steps", "delta", "pair"),
    [
        (1.0, 0.02, 300, 1e-6, "remove"),
        (4.0, 0.3, 2000, 1e-8, "remove"),
        (1.5, 0.05, 200, 1e-5, "replace"),
        (2.0, 0.02, 300, 1e-6, "exchange"),
    ],
)
def test_another_library_agrees(s, rate, steps, delta, pair):
    """Both directions, each by itself; fixed sizes, which it does not have, from its removal."""
    import dp_accounting
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    level = Level(s, rate, steps, pair)
    if pair == "exchange":
        # At losses above 0 it is removal at half the noise; P(-l) = e^{-l} P(l), and the rest is at 0.
        h = 1e-4
        removal = pld.from_gaussian_mechanism(
            s / 2, sampling_prob=rate, value_discretization_interval=h
        )._pmf_remove
        at = removal._lower_loss + np.arange(removal._probs.size)
        above, gains = removal._probs[at > 0], at[at > 0]
        below = above * np.exp(-gains * h)
        rest = 1 - above.sum() - below.sum() - removal._infinity_mass
        masses = dict(zip(gains.tolist(), above, strict=True))
        masses |= dict(zip((-gains).tolist(), below, strict=True)) | {0: rest}
        whole = pld_pmf.create_pmf(masses, h, removal._infinity_mass, True).self_compose(steps)
        assert epsilon_of((level,), delta) == pytest.approx(
            whole.get_epsilon_for_delta(delta), rel=3e-4
        )
        return
    name = {"remove": "ADD_OR_REMOVE_ONE", "replace": "REPLACE_ONE"}[pair]
    other = pld.from_gaussian_mechanism(
        s,
        sampling_prob=rate,
        value_discretization_interval=1e-4,
        neighboring_relation=getattr(dp_accounting.NeighboringRelation, name),
    ).self_compose(steps)
    assert epsilon_of((level,), delta) == pytest.approx(
        other.get_epsilon_for_delta(delta), rel=3e-4
    )
    ways = {True: other._pmf_remove, False: other._pmf_add} if pair == "remove" else {}
    for forward, law in ways.items():
        assert one_way(level, delta, forward) == pytest.approx(
            law.get_epsilon_for_delta(delta), rel=3e-4
        )


def test_a_mixture_is_not_worse_than_its_parts_say():
    sampled, plain = Level(2.0, 0.1, 100), Level(4.0, 1.0, 1)
    both = epsilon_of((sampled, plain), 1e-6)
    assert max(epsilon_of((sampled,), 1e-6), epsilon_from_mu(0.25, 1e-6)) < both
    assert both < epsilon_of((sampled,), 5e-7) + epsilon_from_mu(0.25, 5e-7)
    assert delta_of((sampled, plain), both) <= 1e-6 * (1 + 1e-3)
    assert delta_of((plain,), 1.0) == delta_from_mu(1.0, 0.25)


# ---- what a referee found -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "delta"), [(Level(3e5, 0.01, 10**6), 1e-6), (Level(3.07414e6, 0.5, 10**6), 1e-14)]
)
def test_the_other_direction_is_certified_on_its_own(level, delta):
    """Where both directions are all but equal, rounding must raise each of them."""
    guide = accountant._Guide((level,), forward=False)
    tilt, guess = guide.best(delta)
    found, _ = accountant._epsilon_one_way(guide, delta, tilt, guess, 2e-5, 0.0)
    # So many small losses are a Gaussian release.
    limit = epsilon_from_mu(level.rate * math.sqrt(level.steps) / level.s, delta)
    assert limit * (1 - 1e-5) <= found <= limit * (1 + 2e-2)


@pytest.mark.parametrize("pair", [("poisson", "add-remove"), ("poisson", "replace-one")])
@pytest.mark.parametrize("rate", [0.999999, 1.0])
def test_noise_beside_others_where_nothing_is_amplified(rate, pair):
    others = (SampledRelease(10.0, 1.0, 0.01, 100, *pair),)

    def release(std):
        return SampledRelease(std, 1.0, rate, 100, *pair)

    found = calibrate_noise(release, 2.0, 1e-6, others=others)
    assert 1.99 < composed_epsilon((release(found), *others), 1e-6) <= 2.0


def test_nonsense_is_refused():
    parts = (SampledRelease(1.0, 1.0, 0.01, 1000, "poisson", "add-remove"),)
    for mu in (math.nan, -1.0, math.inf):
        with pytest.raises(SordinoError, match="mu must be"):
            composed_epsilon(parts, 1e-5, mu=mu)
    for epsilon in (-1.0, math.nan, math.inf):
        with pytest.raises(SordinoError, match="epsilon must be"):
            composed_delta(parts, epsilon)


@pytest.mark.parametrize("rate", [1e-15, 1e-17, 1e-20])
def test_who_is_hardly_ever_there_loses_nothing(rate):
    assert epsilon_of((Level(1.0, rate, 900),), 1e-12) == 0.0
    assert delta_of((Level(1.0, rate, 900),), 0.1) <= 900 * rate * (1 + 1e-9)
    beside = epsilon_of((Level(1.0, rate * 1e-3, 900), Level(2.0, 0.1, 50)), 1e-12)
    alone = epsilon_of((Level(2.0, 0.1, 50),), 1e-12)
    assert alone * (1 - 1e-6) <= beside <= alone * (1 + 1e-3)


def test_a_single_rare_step_is_not_rounded_to_the_lattice():
    """0.5 where the truth is 1.5e-6, before lattices followed the result."""
    assert epsilon_of((Level(2.05456, 3.89731e-7, 1),), 5.72215e-11) < 1e-2

"""Guarantees: what they say, that it is true, and how they combine."""

from __future__ import annotations

import json
import math
import re

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from sordino._base.errors import SordinoError
from sordino.privacy._amplification import SampledRelease
from sordino.privacy._gdp import epsilon_from_mu, mu_from_epsilon_delta
from sordino.privacy._guarantee import ADJACENCIES, Guarantee, compose

from .test_gdp import true_delta

STATED = re.compile(r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-differential privacy")
STATED_MU = re.compile(r"([0-9.e+-]+)-GDP")


def gaussian(mu, **changes):
    fields = {"adjacency": "zero-out", "unit": "example", "participation": "in at most one step"}
    return Guarantee.gaussian(mu, **{**fields, **changes})


def poisson(std=1.0, rate=0.05, steps=20, adjacency="add-remove"):
    return SampledRelease(std, 1.0, rate, steps, "poisson", adjacency)


def amplified(*parts, mu=0.0, **changes):
    fields = {"adjacency": "add-remove", "unit": "example", "participation": "secretly"}
    return Guarantee(mu, **{**fields, **changes}, analysis="amplified", sampled=parts)


def stated(sentence):
    epsilon, delta = STATED.search(sentence).groups()
    return mpf(epsilon), mpf(delta)


# ---- the sentence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", sorted(ADJACENCIES))
@pytest.mark.parametrize("unit", ["example", "user", "client"])
def test_sentence_says_for_whom_and_how(adjacency, unit):
    g = gaussian(0.5, adjacency=adjacency, unit=unit, participation="twice", exact=False)
    text = g.sentence(1e-6)
    assert "twice" in text
    assert "upper bound" in text
    assert "no credit for random batches" in text
    assert "1e-06" in text
    assert ADJACENCIES[adjacency].format(unit=unit) in text
    assert text.endswith(".")
    assert "-GDP" in g.sentence()  # without a delta: mu only
    assert "(" not in g.sentence().split("-GDP")[0]


def test_sentence_of_an_amplified_guarantee_tells_its_condition():
    text = amplified(poisson()).sentence(1e-6)
    assert "random" in text
    assert "secret" in text
    assert "no credit" not in text


@settings(max_examples=60, deadline=None)
@given(
    log_mu=st.floats(math.log(1e-3), math.log(20)), delta=st.sampled_from([1e-5, 1e-6, 1e-9, 0.01])
)
def test_printed_epsilon_is_never_below_the_true_one(log_mu, delta):
    mu = math.exp(log_mu)
    text = gaussian(mu).sentence(delta)
    epsilon, printed_delta = stated(text)
    # 4e-9: the slack of the printing, which has a (stricter) test of its own below.
    assert true_delta(float(epsilon) * (1 + 4e-9), mu) <= printed_delta
    assert epsilon == 0 or epsilon_from_mu(mu, delta) * (1 + 2e-3) >= float(epsilon)
    assert mpf(STATED_MU.search(text).group(1)) >= mpf(mu) * (1 - mpf("4e-9"))


@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 8.0, 20.0, 1.234])
@pytest.mark.parametrize("delta", [1e-5, 1 / 3e4, 1 / 7e6])
def test_printed_pair_is_true_for_calibrated_guarantees(target, delta):
    """A run calibrated to a round epsilon prints it; the printed pair itself must hold."""
    mu = mu_from_epsilon_delta(target, delta)
    epsilon, printed_delta = stated(gaussian(mu).sentence(delta))
    assert float(epsilon) == target  # not 1.001
    assert true_delta(target, mu) <= printed_delta  # also where delta has more digits


def test_printed_epsilon_just_above_a_round_number():
    """True epsilon 1 + 1.5e-9 (relative): "1" would be too small."""
    delta = 1e-5
    with mpmath.workdps(30):
        low, high = mpf("0.2"), mpf("0.3")
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if true_delta(1.0, middle) <= delta else (low, middle)
    mu = float(low) * (1 + 1.5e-9)
    epsilon, _ = stated(gaussian(mu).sentence(delta))
    assert true_delta(float(epsilon), mu) <= mpf(delta)


# ---- numbers ---------------------------------------------------------------------------------------


def test_epsilon_and_delta_are_those_of_mu():
    g = gaussian(0.7)
    assert g.mu == 0.7
    assert not g.is_amplified
    assert g.epsilon(1e-6) == epsilon_from_mu(0.7, 1e-6)
    assert true_delta(1.5, 0.7) <= mpf(g.delta(1.5)) <= true_delta(1.5, 0.7) * mpf(1 + 3e-9)
    assert gaussian(0.0).epsilon(1e-6) == 0
    assert gaussian(0.0).delta(0.0) == 0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "1"])
def test_bad_numbers(bad):
    with pytest.raises((SordinoError, TypeError)):
        gaussian(bad)
    with pytest.raises((SordinoError, TypeError)):
        gaussian(1.0).delta(bad)
    with pytest.raises(SordinoError):
        gaussian(1.0).epsilon(bad)


@pytest.mark.parametrize(
    "field",
    [{"adjacency": "swap"}, {"unit": "household"}, {"adjacency": None}, {"unit": ["example"]}],
)
def test_bad_names(field):
    with pytest.raises(SordinoError):
        gaussian(1.0, **field)


# ---- JSON ------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(mu=st.floats(0, 1e6), delta=st.none() | st.floats(1e-300, 0.99))
def test_json_round_trip_is_bit_exact(mu, delta):
    g = gaussian(mu, delta_hint=delta)
    assert Guarantee.from_json(json.loads(json.dumps(g.to_json()))) == g


def test_json_round_trip_of_amplified_guarantees():
    g = amplified(poisson(1 / 3), poisson(0.1 + 0.2, 1 / 7, 3), mu=math.pi, delta_hint=1e-5)
    back = Guarantee.from_json(json.loads(json.dumps(g.to_json())))
    assert back == g
    assert back.sampled == g.sampled
    assert back.epsilon(1e-5) == g.epsilon(1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"gaussian_mu": math.nan},
        {"gaussian_mu": "0.5"},
        {"unit": "nobody"},
        {"extra": 1},
        {"sampled": [{"rate": 0.1}]},
        {"sampled": None},
        {"sampled": 3},
        {"sampled": [7]},
    ],
)
def test_bad_json_is_refused(change):
    data = {**gaussian(0.5).to_json(), **change}
    with pytest.raises(SordinoError):
        Guarantee.from_json(data)


def test_missing_json_fields_are_refused():
    for name in ("version", "gaussian_mu", "adjacency", "unit", "participation"):
        data = gaussian(0.5).to_json()
        del data[name]
        with pytest.raises(SordinoError):
            Guarantee.from_json(data)


# ---- composition -----------------------------------------------------------------------------------


def test_mus_add_in_squares():
    both = compose([gaussian(0.3), gaussian(0.4), gaussian(1.2, exact=False)])
    assert 1.3 <= both.mu <= 1.3 * (1 + 1e-12)
    assert both.analysis == "upper bound"
    assert both.adjacency == "zero-out"
    assert "3 runs" in both.participation


def test_composition_of_exact_runs_is_not_called_exact():
    """The worst example of one run need not be the worst of the other (other order, other clips)."""
    both = compose(
        [gaussian(0.3, participation="once"), gaussian(0.4, participation="in every step")]
    )
    assert both.analysis == "upper bound"


@pytest.mark.parametrize(
    "other",
    [
        {"adjacency": "replace-one"},
        {"adjacency": "add-remove"},
        {"unit": "user"},
    ],
)
def test_composition_refuses_to_mix(other):
    with pytest.raises(SordinoError):
        compose([gaussian(0.3), gaussian(0.3, **other)])
    with pytest.raises(SordinoError):
        compose([])


def test_parts_must_share_the_adjacency():
    with pytest.raises(SordinoError):
        amplified(poisson(adjacency="replace-one"))
    with pytest.raises(SordinoError):
        amplified(poisson(adjacency="zero-out"), poisson())


@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_amplified_with_gaussian_equals_direct_composition(mu):
    """Independent: compose with dp_accounting's own accountant."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    part = poisson(1.0, 0.05, 20)
    together = compose(
        [amplified(part), gaussian(mu, adjacency="add-remove", participation="once")]
    )
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4
    )
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.0)), 20
    )
    accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
    for delta in (1e-3, 1e-6):
        assert together.epsilon(delta) == pytest.approx(accountant.get_epsilon(delta), rel=2e-3)
    # never better than either part, never worse than no amplification
    assert together.epsilon(1e-6) >= amplified(part).epsilon(1e-6)
    assert together.epsilon(1e-6) >= epsilon_from_mu(mu, 1e-6) * (1 - 1e-3)
    assert together.epsilon(1e-6) <= epsilon_from_mu(together.mu, 1e-6)


def test_amplified_steps_may_be_split():
    whole = amplified(poisson(1.0, 0.05, 30))
    split = compose([amplified(poisson(1.0, 0.05, 10)), amplified(poisson(1.0, 0.05, 20))])
    assert split.epsilon(1e-6) == pytest.approx(whole.epsilon(1e-6), rel=1e-4)
    assert split.mu == pytest.approx(whole.mu)
    assert split.analysis == "amplified"


# ---- replace-one -----------------------------------------------------------------------------------


def test_under_replace_one_doubles_mu():
    g = gaussian(0.4, delta_hint=1e-6)
    twice = g.under_replace_one()
    assert twice.mu == 0.8
    assert twice.adjacency == "replace-one"
    assert twice.unit == g.unit
    assert twice.under_replace_one() is twice
    assert "replacing one example by any other" in twice.sentence()
    with pytest.raises(SordinoError):
        amplified(poisson()).under_replace_one()

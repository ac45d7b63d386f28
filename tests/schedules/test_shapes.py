"""Schedules as plans hold them: normalised, hashable, exact in JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino.parts.schedules._base import (
    NoiseSchedule,
    PublicData,
    Uniform,
    require_public,
    schedule_from_json,
)
from sordino.parts.schedules._influence import quadratic
from sordino.parts.schedules._shapes import (
    ByParticipation,
    ExpInfluence,
    Exponential,
    FixedSchedule,
    GradientDescentPL,
    Influence,
    MomentumBound,
    MomentumQuadratic,
    MomExpInfluence,
    Optimal,
    Quadratic,
    schedule_named,
)

STEPS = 24
ALL = [
    Uniform(),
    Influence(np.linspace(0, 3, STEPS)),
    Influence(tuple(np.linspace(0, 9, STEPS)), ratio_cap=None, separation=4),
    Exponential(),
    Exponential(3.0, allow_steep=True, separation=6),
    Optimal(),
    Optimal(3.0, ratio_cap=None),
    GradientDescentPL(0.9),
    GradientDescentPL(gamma=0.5, ratio_cap=1.3),
    Quadratic((0.1, 0.5, 1.0), 0.7),
    MomentumBound(0.9, 0.99),
    MomentumQuadratic((0.1, 1.0), eta=0.3, beta=0.9),
    ExpInfluence(0.1),
    MomExpInfluence(1.0, 0.01, 0.2),
    FixedSchedule(np.linspace(2, 1, STEPS)),
    ByParticipation(5),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda s: s.kind)
def test_every_schedule(schedule):
    relative = schedule.relative_noise(STEPS)
    if relative is None:
        assert schedule == Uniform()
    else:
        assert relative.shape == (STEPS,)
        assert (relative**-2.0).sum() == pytest.approx(STEPS, rel=1e-14)
        cap = getattr(schedule, "ratio_cap", None)
        if cap is not None and getattr(schedule, "separation", 1) == 1:
            assert relative.max() <= cap * relative.min() * (1 + 1e-12)
        with pytest.raises(ValueError, match="read-only"):
            relative[0] = 1.0
    words = schedule.describe()
    assert words
    assert "\n" not in words
    assert not words.endswith(".")
    again = schedule_from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule
    assert hash(again) == hash(schedule)
    if relative is not None:
        np.testing.assert_array_equal(again.relative_noise(STEPS), relative)
    assert schedule_named(schedule, STEPS) is schedule


@pytest.mark.parametrize("ratio", [1.0, 1.5, 4.0])
def test_on_public_batches_optimal_is_exponential(ratio):
    """The influence behind it is the one for which the exponential schedule is the best."""
    best = Optimal(ratio, ratio_cap=None).relative_noise(STEPS)
    np.testing.assert_allclose(
        best, Exponential(ratio, allow_steep=True).relative_noise(STEPS), rtol=1e-12
    )
    capped = Optimal(ratio).relative_noise(STEPS)
    assert capped.max() / capped.min() == pytest.approx(min(ratio, 2.0))
    with pytest.raises(SordinoError, match="at least 1"):
        Optimal(0.5)


def test_every_kind_is_tested():
    from sordino.parts.schedules._base import SCHEDULES

    here = {cls.kind for cls in SCHEDULES.values() if cls.__module__.endswith(("shapes", "base"))}
    assert {schedule.kind for schedule in ALL} == here


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_given_noise_survives_json_bit_for_bit(sigmas):
    schedule = FixedSchedule(tuple(sigmas), "a label")
    again = schedule_from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule
    relative = schedule.relative_noise(len(sigmas))
    np.testing.assert_allclose(relative / relative[0], np.array(sigmas) / sigmas[0], rtol=1e-12)


def test_numpy_numbers_survive_json():
    for schedule in (
        Quadratic(np.array([0.5, 1.0]), np.float32(0.1), separation=np.int64(3)),
        Exponential(np.float32(1.5)),
        ByParticipation(np.int64(4)),
    ):
        assert schedule_from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_noise_follows_the_fourth_root_of_influence():
    log_q = quadratic((0.5, 1.0), 0.9, STEPS)
    relative = Influence(log_q, ratio_cap=None).relative_noise(STEPS)
    np.testing.assert_allclose(relative / relative[-1], np.exp(-(log_q - log_q[-1]) / 4))
    same = Quadratic((0.5, 1.0), 0.9, ratio_cap=None).relative_noise(STEPS)
    np.testing.assert_allclose(same, relative)


def test_exponential_has_its_ratio():
    relative = Exponential(1.7).relative_noise(50)
    assert relative[0] / relative[-1] == pytest.approx(1.7)
    np.testing.assert_allclose(relative[1:] / relative[:-1], 1.7 ** (-1 / 49))
    np.testing.assert_allclose(Exponential(1.7).relative_noise(1), [1.0])


def test_participation_grows_as_a_root():
    relative = ByParticipation(3).relative_noise(8)
    np.testing.assert_allclose(
        relative / relative[0], np.sqrt([1, 1, 1, 2, 2, 2, 3, 3]), rtol=1e-12
    )


def test_gamma_from_the_constants_in_use():
    assert GradientDescentPL.at(mu=1.0, M=10.0, eta=0.1).gamma == pytest.approx(0.9)
    assert GradientDescentPL.at(mu=1.0, M=10.0, eta=0.01).gamma == pytest.approx(1 - 0.02 * 0.95)


def test_schedules_by_name():
    assert schedule_named("uniform", 10) == Uniform()
    assert schedule_named("exponential", 10, ratio=1.8) == Exponential(1.8)
    assert schedule_named("gd-pl", 10, gamma=0.9) == GradientDescentPL(0.9)
    made = schedule_named("given", 3, sigmas=[3, 2, 1])
    assert made == FixedSchedule((3.0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("exponental", {}, "did you mean 'exponential'"),
        ("exponential", {"rate": 2}, "did you mean 'ratio'"),
        ("exponential", {"ratio": 3.0}, "allow_steep"),
        ("exponential", {"ratio": 0.5}, "at least 1"),
        ("quadratic", {"eta": 0.1}, "eigenvalues"),
        ("quadratic", {"eta": 0.1, "eigenvalues": [-1.0]}, "eigenvalues"),
        ("given", {"sigmas": [1.0, 2.0]}, "for 2 steps, not 10"),
        ("given", {"sigmas": [1.0] * 9 + [0.0]}, "noise level"),
        ("influence", {"log_q": [0.0] * 9}, "for 9 steps, not 10"),
        ("influence", {"log_q": [0.0] * 9 + [math.nan]}, "log_q"),
        ("influence", {"log_q": "abc"}, "log_q"),
        ("gd-pl", {"gamma": 1.5}, "gamma"),
        ("gd-pl", {"gamma": 0.9, "ratio_cap": 0.5}, "ratio_cap"),
        ("participation", {"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_mistakes_are_one_sentence(name, parameters, message):
    with pytest.raises(SordinoError, match=message) as caught:
        schedule_named(name, 10, **parameters)
    assert "\n" not in str(caught.value)


def test_a_ready_schedule_takes_no_parameters():
    with pytest.raises(SordinoError, match="ready schedule"):
        schedule_named(Uniform(), 10, ratio=2.0)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "nothing"},
        {"kind": "given", "sigmas": {"count": 3, "float64": "AAAA"}},
        {"kind": "given", "sigmas": {"count": 3}},
        {"kind": "uniform", "more": 1},
    ],
)
def test_damaged_json(data):
    with pytest.raises(SordinoError):
        schedule_from_json(data)


def test_schedules_are_frozen():
    with pytest.raises(AttributeError):
        Exponential().ratio = 3.0
    assert isinstance(Exponential(), NoiseSchedule)


# ---- public data ------------------------------------------------------------------------------------


def test_public_data_is_a_type():
    features, labels = np.ones((4, 2)), [0, 1, 0, 1]
    public = PublicData(features, labels)
    assert require_public(public) is public
    assert len(public) == 4
    assert repr(public) == "PublicData((4, 2), (4,))"
    with pytest.raises(ValueError, match="read-only"):
        public.arrays[0][0] = 5.0
    assert features.flags.writeable
    with pytest.raises(AttributeError):
        public.arrays = ()


@pytest.mark.parametrize("private", [np.ones((4, 2)), (np.ones(3), np.ones(3)), None, "data"])
def test_anything_else_is_a_type_error(private):
    with pytest.raises(TypeError, match="public data only"):
        require_public(private)


@pytest.mark.parametrize(
    "arrays", [(), (np.ones(3), np.ones(4)), (1.0,), (["a", object()],), (PublicData([1]),)]
)
def test_what_public_data_cannot_hold(arrays):
    with pytest.raises(TypeError, match="PublicData takes"):
        PublicData(*arrays)

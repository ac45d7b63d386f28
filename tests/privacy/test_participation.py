"""Participation rules against simulated batches."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.parts.sampling._population import Population
from sordino.privacy._participation import (
    FixedBatches,
    FreshPermutations,
    MinSeparation,
    Participation,
    PatternList,
    SinglePass,
    as_pattern_array,
)

from .brute_force import fresh_patterns, separated_patterns

SETTINGS = settings(max_examples=80, deadline=None)


def deal(order, batch_size):
    """Cut an order into batches, the last one possibly short."""
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def patterns_of(batches, examples):
    """For each example, the steps whose batch contains it."""
    return [tuple(t for t, batch in enumerate(batches) if i in batch) for i in range(examples)]


def maximal(patterns):
    sets = {frozenset(p) for p in patterns if p}
    return {tuple(sorted(p)) for p in sets if not any(p < q for q in sets)}


sizes = st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40)).filter(
    lambda s: s[1] <= s[0]
)


@SETTINGS
@given(sizes)
def test_fixed_batches_are_what_dealing_gives(size):
    n, batch_size, steps = size
    epoch = deal(list(range(n)), batch_size)
    batches = [epoch[t % len(epoch)] for t in range(steps)]
    rule = FixedBatches.of(examples=n, batch_size=batch_size, steps=steps)
    happened = {p for p in patterns_of(batches, n) if p}
    assert set(rule.patterns()) == happened
    assert rule.pattern_count() == len(happened)
    assert rule.max_participations == max(map(len, happened))


@SETTINGS
@given(sizes, st.integers(0, 10**6))
def test_realised_permutations(size, seed):
    n, batch_size, steps = size
    per_epoch = math.ceil(n / batch_size)
    epochs = math.ceil(steps / per_epoch)
    rng = np.random.default_rng(seed)
    permutations = np.stack([rng.permutation(n) for _ in range(epochs)])
    batches = [b for order in permutations for b in deal(order.tolist(), batch_size)][:steps]
    rule = FreshPermutations.realised(permutations, batch_size, steps)
    assert set(rule.rows) == set(patterns_of(batches, n))
    # and the worst case over all permutations covers it
    worst = FreshPermutations(steps, per_epoch)
    assert rule.max_participations <= worst.max_participations
    if worst.pattern_count() <= 2000:
        allowed = [set(p) for p in worst.patterns()]
        assert all(any(set(row) <= p for p in allowed) for row in rule.rows)


def test_realised_needs_a_permutation_for_every_epoch():
    """Two epochs of steps but one permutation: the second epoch must not vanish silently."""
    with pytest.raises(SordinoError):
        FreshPermutations.realised(np.array([[0, 1, 2, 3]]), batch_size=2, steps=4)


def test_realised_refuses_what_is_no_permutation():
    for bad in ([[0, 0, 1, 1]], [[0, 1, 2, 4]], [[-1, 0, 1, 2]]):
        with pytest.raises(SordinoError):
            FreshPermutations.realised(np.array(bad), batch_size=2, steps=2)


@SETTINGS
@given(st.integers(1, 10), st.integers(1, 6))
def test_fresh_permutations(steps, per_epoch):
    rule = FreshPermutations(steps, per_epoch)
    wanted = {tuple(p) for p in fresh_patterns(steps, per_epoch)}
    assert set(rule.patterns()) == wanted
    assert rule.pattern_count() == len(wanted)
    assert rule.max_participations == max(map(len, wanted))


@SETTINGS
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
def test_min_separation(steps, separation, cap):
    rule = MinSeparation(steps, separation, cap)
    wanted = {tuple(p) for p in separated_patterns(steps, separation, cap)}
    listed = list(rule.patterns())
    assert set(listed) == wanted
    assert len(listed) == rule.pattern_count() == len(wanted)
    assert rule.max_participations == max(map(len, wanted))


def test_single_pass_and_pattern_list():
    assert list(SinglePass(3).patterns()) == [(0,), (1,), (2,)]
    rule = PatternList(5, ((0, 2), (1,), ()))
    assert rule.max_participations == 2
    assert rule.pattern_count() == 3
    steps, mask = as_pattern_array([(0, 2), (1,)])
    assert steps[mask].tolist() == [0, 2, 1]


RULES = [
    SinglePass(4),
    FixedBatches(7, 3),
    FixedBatches(5, 1),
    FixedBatches(5, 9),
    FreshPermutations(7, 3),
    MinSeparation(9, 2, 3),
    PatternList(5, ((0, 2, 4), (1, 3))),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_json_round_trip(rule):
    back = Participation.from_json(json.loads(json.dumps(rule.to_json())))
    assert back == rule
    assert type(back) is type(rule)
    assert list(back.patterns()) == list(rule.patterns())
    assert hash(back) == hash(rule)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_description_names_the_most_participations(rule):
    text = rule.describe()
    most = rule.max_participations
    words = {1: ("once", "one step"), 2: ("twice",)}.get(most, (f"{most} times", "every step"))
    assert any(word in text for word in words)


@pytest.mark.parametrize("bad", [0, -1, 1.5, math.nan, math.inf, "3", None, True])
def test_bad_counts_are_refused(bad):
    for make in (
        lambda: SinglePass(bad),
        lambda: FixedBatches(bad, 2),
        lambda: FixedBatches(4, bad),
        lambda: FreshPermutations(4, bad),
        lambda: MinSeparation(4, bad, 1),
        lambda: MinSeparation(4, 1, bad),
    ):
        with pytest.raises(SordinoError):
            make()


def test_whole_floats_are_counts_or_refused():
    """A JSON or numpy 6.0 passes the check; then the rule must work."""
    for make in (lambda: FixedBatches(6.0, 2.0), lambda: MinSeparation(6.0, 2.0, 2.0)):
        try:
            rule = make()
        except SordinoError:
            continue
        assert len(list(rule.patterns())) == rule.pattern_count()


@pytest.mark.parametrize("bad", [0, -3])
def test_bad_batch_size_is_refused(bad):
    with pytest.raises(SordinoError):
        FixedBatches.of(examples=10, batch_size=bad, steps=5)
    with pytest.raises(SordinoError):
        FixedBatches.of(examples=bad, batch_size=1, steps=5)


@pytest.mark.parametrize("rows", [(), ((),), ((0, 5),), ((-1,),), ((1, 1),), ((2, 1),)])
def test_bad_pattern_lists_are_refused(rows):
    with pytest.raises(SordinoError):
        PatternList(5, rows)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "poisson", "steps": 3},
        {"kind": "fixed-batches", "steps": 3},
        {"kind": "fixed-batches", "steps": 3, "separation": 1, "extra": 2},
        {"kind": "pattern-list", "steps": 3, "rows": 7},
    ],
)
def test_bad_json_is_refused(data):
    with pytest.raises(SordinoError):
        Participation.from_json(data)


# ---- the batches that the engine really draws obey the rule ----------------------------------------


@pytest.mark.parametrize(
    ("n", "batch_size", "steps"), [(10, 4, 7), (9, 3, 9), (7, 7, 3), (11, 2, 8)]
)
def test_reshuffled_batches_obey_the_rule(n, batch_size, steps):
    population = Population(n, batch_size, steps, sampling="reshuffled", order_seed=3)
    rule = population.participation()
    indices, mask = population.batches(RunKey.from_insecure_seed(0), 0, steps)
    batches = [set(row[keep > 0].tolist()) for row, keep in zip(indices, mask, strict=True)]
    assert all(len(b) == int(k.sum()) for b, k in zip(batches, mask, strict=True))  # no one twice
    allowed = [set(p) for p in rule.patterns()]
    for pattern in patterns_of(batches, n):
        assert any(set(pattern) <= p for p in allowed)
    # in chunks: the very same batches
    for first in range(0, steps, 3):
        count = min(3, steps - first)
        part, keep = population.batches(RunKey.from_insecure_seed(0), first, count)
        np.testing.assert_array_equal(part, indices[first : first + count])
        np.testing.assert_array_equal(keep, mask[first : first + count])


def test_population_bad_input():
    for arguments in ((0, 1, 1), (5, 6, 1), (5, 0, 1), (5, 2, 0), (5.5, 2, 1)):
        with pytest.raises(SordinoError):
            Population(*arguments)
    with pytest.raises(SordinoError):
        Population(5, 2, 3, sampling="shuffled")

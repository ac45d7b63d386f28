"""Reshuffled batches accounted for the permutations that they really have."""

from __future__ import annotations

import inspect
import itertools
import math
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino
from sordino import Plan
from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino.engine.ledger._ledger import Ledger
from sordino.parts._losses import Logistic
from sordino.parts.mechanisms._toeplitz import BLT
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.sampling import _kinds, public_slots
from sordino.parts.sampling._population import Population
from sordino.planning import _accounting
from sordino.planning._accounting import run_sensitivity
from sordino.privacy import _realised
from sordino.privacy._participation import FixedBatches, FreshPermutations
from sordino.privacy._realised import realised_sensitivity
from sordino.privacy._sensitivity import sensitivity
from sordino.privacy._strategy import (
    MatrixStrategy,
    ParallelStrategy,
    PhasesStrategy,
    ToeplitzStrategy,
    TreeStrategy,
)
from sordino.together.parties import Terms, agree

from .brute_force import drawn_patterns, fresh_patterns, toeplitz_encoder, tree_matrix, tree_nodes

SETTINGS = settings(max_examples=60, deadline=None)


# ---- the value, against the definition --------------------------------------------------------------


def encoder(kind, steps, rng):
    """A strategy, and any matrix C with ``C^T C = X`` that was not made by its code."""
    if kind in ("blt", "normalised"):
        q = int(rng.integers(1, 5))
        theta, omega = rng.uniform(0.1, 0.99, q), rng.uniform(0.01, 0.4, q)
        norms = rng.uniform(0.5, 2, steps) if kind == "normalised" else None
        c = [1.0] + [float(omega @ theta**j) for j in range(steps - 1)]
        return ToeplitzStrategy.from_blt(theta, omega, steps, norms), toeplitz_encoder(
            c, steps, norms
        )
    if kind == "signed blt":
        theta, omega = rng.uniform(0.1, 0.9, 2), np.array([-0.3, 0.1])
        c = [1.0] + [float(omega @ theta**j) for j in range(steps - 1)]
        return ToeplitzStrategy.from_blt(theta, omega, steps), toeplitz_encoder(c, steps)
    if kind == "banded":
        c = np.r_[1.0, rng.normal(size=int(rng.integers(0, steps)))]
        return ToeplitzStrategy(c, steps), toeplitz_encoder(c, steps)
    if kind == "tree":
        beta = float(rng.choice([1.0, 0.7, 0.0]))
        return TreeStrategy(steps, beta), tree_matrix(tree_nodes(steps), steps, beta)
    C = np.tril(rng.normal(size=(steps, steps))) + 2 * np.eye(steps)
    return MatrixStrategy.from_encoder(C), C


KINDS = ("blt", "normalised", "signed blt", "banded", "tree", "dense")
sizes = st.tuples(st.integers(2, 20), st.integers(1, 6), st.integers(1, 17)).filter(
    lambda size: size[1] <= size[0]
)


def patterns_of(orders, batch_size, steps):
    """The steps of every example, from the batches themselves."""
    n = len(orders[0])
    batches = [order[i : i + batch_size] for order in orders for i in range(0, n, batch_size)]
    return [[t for t, b in enumerate(batches[:steps]) if i in b] for i in range(n)]


def slots_of(orders, batch_size):
    slots = np.empty(orders.shape, np.uint16)
    for e, order in enumerate(orders):
        slots[e, order] = np.arange(len(order)) // batch_size
    return slots


def drawn(size, seed):
    """Orders of all epochs of a run, and how many steps an epoch has."""
    n, batch_size, steps = size
    per_epoch = math.ceil(n / batch_size)
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(n) for _ in range(math.ceil(steps / per_epoch))]), per_epoch


@SETTINGS
@given(sizes, st.sampled_from(KINDS), st.booleans(), st.integers(0, 10**6))
def test_the_sum_over_every_example(size, kind, scheduled, seed):
    """``max_i sum |C^T C| g g``; and no signs or common direction move a release further."""
    _, batch_size, steps = size
    orders, per_epoch = drawn(size, seed)
    rng = np.random.default_rng([seed, 1])
    strategy, C = encoder(kind, steps, rng)
    g = rng.uniform(0.3, 2, steps) if scheduled else None
    found = realised_sensitivity(strategy, slots_of(orders, batch_size), per_epoch, g)
    D = C if g is None else C * g
    patterns = [P for P in patterns_of(orders, batch_size, steps) if P]
    wanted = max(np.abs(D.T @ D)[np.ix_(P, P)].sum() for P in patterns)
    assert found.value**2 == pytest.approx(wanted, rel=1e-12)
    signed = max(
        np.linalg.norm(D[:, P] @ signs) ** 2
        for P in patterns
        for signs in itertools.islice(itertools.product([1, -1], repeat=len(P)), 64)
    )
    assert signed <= wanted * (1 + 1e-12)
    if found.exact and max(map(len, patterns)) <= 6:
        assert signed == pytest.approx(wanted, rel=1e-6)


@SETTINGS
@given(sizes, st.sampled_from(KINDS), st.booleans(), st.integers(0, 10**6))
def test_never_above_the_worst_case(size, kind, scheduled, seed):
    _, batch_size, steps = size
    orders, per_epoch = drawn(size, seed)
    rng = np.random.default_rng([seed, 1])
    strategy, _ = encoder(kind, steps, rng)
    g = rng.uniform(0.3, 2, steps) if scheduled else None
    found = realised_sensitivity(strategy, slots_of(orders, batch_size), per_epoch, g).value
    worst = sensitivity(strategy, FreshPermutations(steps, per_epoch), g).value
    assert found <= worst * (1 + 1e-12)
    # and with one order in all epochs it is that of fixed batches
    same = np.repeat(orders[:1], len(orders), axis=0)
    fixed = sensitivity(strategy, FixedBatches(steps, per_epoch), g).value
    again = realised_sensitivity(strategy, slots_of(same, batch_size), per_epoch, g).value
    assert again == pytest.approx(fixed, rel=1e-12)


@SETTINGS
@given(sizes, st.integers(0, 10**6), st.booleans())
def test_phases_and_channels_add_up(size, seed, scheduled):
    _, batch_size, steps = size
    orders, per_epoch = drawn(size, seed)
    rng = np.random.default_rng([seed, 2])
    slots = slots_of(orders, batch_size)
    g = rng.uniform(0.3, 2, steps) if scheduled else None
    scale = rng.uniform(0.5, 2, 2)
    one, two = (encoder(str(kind), steps, rng) for kind in rng.choice(KINDS, 2))
    patterns = [P for P in patterns_of(orders, batch_size, steps) if P]
    G = np.ones(steps) if g is None else g

    def wanted(X):
        return max((X * np.outer(G, G))[np.ix_(P, P)].sum() for P in patterns)

    beside = realised_sensitivity(
        ParallelStrategy((one[0], two[0]), tuple(scale)), slots, per_epoch, g
    )
    X = sum(np.abs(C.T @ C) / s**2 for (_, C), s in zip((one, two), scale, strict=True))
    assert beside.value**2 == pytest.approx(wanted(X), rel=1e-12)
    if steps == 1:
        return
    cut = int(rng.integers(1, steps))
    head, tail = encoder(str(rng.choice(KINDS)), cut, rng), encoder("blt", steps - cut, rng)
    after = realised_sensitivity(
        PhasesStrategy((head[0], tail[0]), tuple(scale)), slots, per_epoch, g
    )
    X = np.zeros((steps, steps))
    X[:cut, :cut] = np.abs(head[1].T @ head[1]) / scale[0] ** 2
    X[cut:, cut:] = np.abs(tail[1].T @ tail[1]) / scale[1] ** 2
    assert after.value**2 == pytest.approx(wanted(X), rel=1e-12)


def test_many_examples_are_taken_in_pieces(monkeypatch):
    """The unit with the largest sum may be in any of them."""
    strategy = ToeplitzStrategy.from_blt([0.9, 0.5], [0.1, 0.2], 60)
    slots = public_slots(Population(300, 20, 60, "reshuffled", order_seed=5))
    whole = realised_sensitivity(strategy, slots, 15)
    for size in (1, 7, 299):
        monkeypatch.setattr(_realised, "_CHUNK", size)
        assert realised_sensitivity(strategy, slots, 15) == whole


def test_longer_runs_than_a_matrix_of_their_steps():
    """Bands, buffers and trees need none; sparse blocks of the true matrix agree."""
    n, b, steps = 240, 2, 9000
    population = Population(n, b, steps, "reshuffled", order_seed=1)
    slots, per_epoch = public_slots(population), population.steps_per_epoch
    rng = np.random.default_rng(0)
    for strategy in (
        ToeplitzStrategy(rng.normal(size=150), steps),
        ToeplitzStrategy.from_blt([0.99, 0.5], [0.02, 0.2], steps),
        TreeStrategy(steps, 0.99),
    ):
        found = realised_sensitivity(strategy, slots[:75], per_epoch)
        P = found.pattern
        if isinstance(strategy, ToeplitzStrategy):
            assert found.value**2 == pytest.approx(np.abs(strategy.block(P)).sum(), rel=1e-9)
        else:
            nodes = [(a, z) for a, z in tree_nodes(steps) if any(a <= t <= z for t in P)]
            sums = [sum(0.99 ** (z - t) for t in P if a <= t <= z) for a, z in nodes]
            assert found.value**2 == pytest.approx(np.square(sums).sum(), rel=1e-9)


def test_what_has_no_slot_or_no_way_is_refused():
    strategy = ToeplitzStrategy([1.0, 0.5], 8)
    with pytest.raises(SordinoError, match="every step of the run needs a slot"):
        realised_sensitivity(strategy, np.full((2, 4), 4, np.uint8), 4)
    with pytest.raises(SordinoError, match="every step of the run needs a slot"):
        realised_sensitivity(strategy, np.zeros((1, 4), np.uint8), 4)
    wide = ToeplitzStrategy(np.r_[1.0, np.full(5000, -1e-3)], 6000)
    with pytest.raises(SordinoError, match="too many"):
        realised_sensitivity(wide, np.zeros((2, 4), np.uint16), 3000)


# ---- figures, and the mistake that is easily made --------------------------------------------------

FIGURES = [
    (32561, 10, 24.354, 18.423, 16.321),
    (60000, 20, 40.735, 29.826, 27.010),
    (50000, 6, 17.711, 14.007, 11.682),
]


def momentum_blt(n, epochs):
    population = Population(n, 500, epochs * math.ceil(n / 500), "reshuffled")
    return population, BLT.optimized(Workload.heavy_ball(0.9), population.participation())


@pytest.mark.parametrize(("n", "epochs", "worst", "realised", "fixed"), FIGURES)
def test_figures(n, epochs, worst, realised, fixed):
    population, mechanism = momentum_blt(n, epochs)
    strategy, per_epoch = mechanism.strategy(), population.steps_per_epoch
    found = realised_sensitivity(strategy, public_slots(population), per_epoch)
    assert found.value == pytest.approx(realised, abs=6e-4)
    assert found.exact
    if n == 32561:
        assert found.value == pytest.approx(18.42349, abs=1e-5)
    assert sensitivity(strategy, population.participation()).value == pytest.approx(worst, rel=1e-4)
    rule = FixedBatches(population.steps, per_epoch)
    assert sensitivity(strategy, rule).value == pytest.approx(fixed, rel=1e-4)


def test_other_orders_have_other_sensitivities():
    """So a plan for one order is no plan for another (and a lucky seed is no cheating)."""
    population, mechanism = momentum_blt(32561, 10)
    found = [
        realised_sensitivity(
            mechanism.strategy(), public_slots(replace(population, order_seed=seed)), 66
        ).value
        for seed in range(8)
    ]
    assert (min(found), max(found)) == pytest.approx((18.353, 18.543), abs=6e-4)


@pytest.mark.parametrize(
    ("line", "instead", "wrong"),
    [
        # m = next - t, as first written down: the buffers decay once too often.
        ("following = np.where(here, now + 1, following)",
         "following = np.where(here, now, following)", 18.3130),
        # The same, but right after the last step.
        ("m = np.where(here & began, now - following, 0)",
         "m = np.where(here & began, now - following + 1, 0)", 18.3096),
        # Nothing after the last step of a unit, or a row that the run does not have.
        ("total += rest(a, np.where(began, last - following, 0))", "pass", 17.5261),
        ("last - following", "last + 1 - following", 18.4269),
    ],
)  # fmt: skip
def test_mistakes_in_the_recursion_would_show(line, instead, wrong):
    source = inspect.getsource(_realised)
    assert source.count(line) == 1
    mutant = types.ModuleType("mutant")
    exec(source.replace(line, instead), vars(mutant))
    population, mechanism = momentum_blt(32561, 10)
    slots = public_slots(population)
    value = mutant.realised_sensitivity(mechanism.strategy(), slots, 66).value
    assert value != pytest.approx(18.42349, rel=1e-5)
    assert value == pytest.approx(wrong, abs=1e-4)


# ---- plans ------------------------------------------------------------------------------------------

SIZE = {"examples": 60, "batch_size": 8, "epochs": 3, "epsilon": 2.0, "delta": 1e-6}
DATA = (np.ones((60, 2)) / 2, np.ones(60))
START = np.zeros(2, np.float32)


def make(recipe="dp-memf", **options):
    return sordino.plan(recipe, **{**SIZE, "sampling": "reshuffled", **options})


def test_plan_and_engine_have_one_order():
    for size in ((60, 8, 20), (23, 5, 13), (300, 1, 450)):
        population = Population(*size, "reshuffled", order_seed=4)
        slots, per_epoch = public_slots(population), population.steps_per_epoch
        first = np.arange(len(slots))[:, None] * per_epoch
        listed = [[int(t) for t in own if t < population.steps] for own in (first + slots).T]
        assert sorted(P for P in listed if P) == sorted(drawn_patterns(population))


def test_less_noise_and_the_words_for_it():
    counted, worst = make(), make(order_seed=None)
    assert counted.noise_multiplier < 0.97 * worst.noise_multiplier
    assert "these public permutations" in counted.guarantee.sentence()
    assert "accounted for these permutations" in str(counted)
    assert "worst case over fresh permutations" in worst.guarantee.sentence()
    assert "accounted for its worst case)" in str(worst)
    assert make(order_seed=1).population.slots != counted.population.slots


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": "dp-sgd"},  # steps do not interact
        {"epochs": 1},
        {"order_seed": None},
        {"sampling": "fixed"},
        {"recipe": "dp-gd", "sampling": "fixed", "batch_size": None},
    ],
)
def test_nothing_to_count_on(options):
    assert make(**options).population.slots is None


def test_a_schedule_is_accounted_with_the_order():
    """Independent noise: who is early in all epochs pays most, and the order says who."""
    from sordino.parts.schedules import FixedSchedule

    rising = FixedSchedule(tuple(np.linspace(0.5, 1.5, 48)), "rising")
    made = make("dp-sgd", epochs=6, schedule=rising)
    assert made.population.slots is not None
    relative = made.schedule.relative_noise(48)
    wanted = max(sum(relative[t] ** -2.0 for t in P) for P in drawn_patterns(made.population))
    shift = run_sensitivity(made.population, made.mechanism, made.schedule).value
    assert shift**2 == pytest.approx(wanted, rel=1e-12)


def test_too_many_uses_keep_the_worst_case_and_say_so(monkeypatch):
    for module in (_realised, _kinds):
        monkeypatch.setattr(module, "MOST_USES", 100)
    made = make()
    assert made.population.slots is None
    assert "180 uses are too many to count one by one" in str(made)
    assert made.noise_multiplier == make(order_seed=None).noise_multiplier


def test_a_plan_that_was_stored_without_a_digest_keeps_its_rule_and_hash():
    data = make(order_seed=None).to_json()
    assert "slots" not in data["population"]
    data["population"]["order_seed"] = 0  # as it was written before there were digests
    stored = Plan.from_json(data)
    assert stored.to_json() == data
    assert "worst case" in stored.guarantee.participation
    drawn_for = run_sensitivity(stored.population, stored.mechanism, stored.schedule)
    C = stored.mechanism.strategy()
    worst = max(np.abs(C.block(P)).sum() for P in fresh_patterns(24, 8))
    assert drawn_for.value**2 == pytest.approx(worst, rel=1e-12)


def test_a_plan_is_checked_again_where_it_is_read():
    made = make()
    assert Plan.from_json(made.to_json()) == made
    _accounting._KNOWN.clear()
    assert Plan.from_json(made.to_json()) == made
    for changes in (
        {"order_seed": 1},  # slots of another order
        {"slots": "0" * 64},
        {"slots": None},  # the worst case needs more noise
        {"batch_size": 9},
        {"examples": 61},
    ):
        data = made.to_json()
        data["population"] |= changes
        with pytest.raises(SordinoError):
            Plan.from_json(data)
        with pytest.raises(SordinoError):
            made.with_training(population=replace(made.population, **changes)).verify()


def test_a_digest_only_where_there_is_an_order():
    digest = "a" * 64
    for arguments in (
        {"sampling": "fixed"},
        {"sampling": "poisson"},
        {"order_seed": None},
        {"batch_size": 60},
        {"slots": "A" * 64},
        {"slots": 5},
    ):
        with pytest.raises(SordinoError, match="slots"):
            Population(
                **{"examples": 60, "batch_size": 8, "steps": 24, "sampling": "reshuffled",
                   "slots": digest, **arguments}
            )  # fmt: skip


# ---- runs -------------------------------------------------------------------------------------------


def by_data(population, epoch):
    """An order that depends on the data: sorted by it, say."""
    return np.roll(np.arange(population.examples), epoch)


@pytest.mark.parametrize("how", ["train", "session"])
def test_another_order_than_planned_is_refused_before_anything_is_charged(
    how, monkeypatch, tmp_path
):
    made = make()
    ledger = Ledger.create(tmp_path / "ledger.sqlite")
    ledger.add_dataset("table", epsilon=8.0, delta=1e-5)
    options = {"ledger": ledger, "dataset": "table", "insecure_seed": 0}

    def run():
        if how == "train":
            return sordino.train(made, Logistic(), START, DATA, **options)
        return sordino.Session(made, Logistic(), START, **options)

    monkeypatch.setattr(_kinds, "epoch_order", by_data)
    with pytest.raises(PlanMismatchError, match="another public order"):
        run()
    assert not ledger.reservations("table")
    monkeypatch.undo()
    run()
    assert len(ledger.reservations("table")) == 1


def test_the_run_uses_the_slots_of_the_plan():
    made = make()
    indices, mask = made.population.batches(RunKey.from_insecure_seed(9), 0, 24)
    session = sordino.Session(made, Logistic(), START, insecure_seed=9)
    for t, rows in enumerate(session):
        assert np.array_equal(np.sort(rows), np.sort(indices[t][mask[t] > 0]))
        session.step((DATA[0][rows], DATA[1][rows]))


def test_a_loader_that_shuffles():
    """Under the worst case any rows, once in every epoch; under a digest the session's own."""
    X, y = DATA
    rng = np.random.default_rng(3)
    orders = [rng.permutation(60) for _ in range(3)]
    batches = [order[i : i + 8] for order in orders for i in range(0, 60, 8)]
    session = sordino.Session(make(order_seed=None), Logistic(), START, insecure_seed=0)
    for t, rows in enumerate(batches):
        if t == 10:
            again = np.r_[batches[9][:1], rows[1:]]
            with pytest.raises(PlanMismatchError, match="one use in each epoch of 8 steps"):
                session.step((X[again], y[again]), rows=again)
            with pytest.raises(PlanMismatchError, match="batches of 8"):
                session.step((X[:9], y[:9]), rows=np.arange(9))
        session.step((X[rows], y[rows]), rows=rows)
    assert session.result().guarantee.participation.endswith("(worst case over fresh permutations)")
    strict = sordino.Session(make(), Logistic(), START, insecure_seed=0)
    with pytest.raises(PlanMismatchError, match="order_seed=None for a loader that shuffles"):
        strict.step((X[:8], y[:8]), rows=np.arange(8))
    rows = strict.next_rows()[::-1]
    strict.step((X[rows], y[rows]), rows=rows)  # named in another order, they are its own


def test_a_step_that_failed_is_taken_again_with_its_rows():
    X, y = DATA
    session = sordino.Session(make(order_seed=None), Logistic(), START, insecure_seed=0)
    rows = np.arange(8)
    with pytest.raises(SordinoError):
        session.step((X[rows], y[rows][:, None, None] * np.nan), rows=np.r_[rows[:-1], 60])
    session.step((X[rows], y[rows]), rows=rows)
    assert session.done == 1


def test_parties_shuffle_for_themselves():
    about = {"parameters": 2, "engine": "plain", "batch_size": 8, "epochs": 8}
    asked = {"epsilon": 2.0, "delta": 1e-6, "sampling": "reshuffled", "mechanism": "tree"}
    terms = agree("dp-memf", examples=(40, 20), **about, **asked)
    assert terms.plan.population.slots is None
    assert terms.plan.population.order_seed is None
    with pytest.raises(SordinoError, match="each party shuffles its own records"):
        agree("dp-memf", examples=(40, 20), order_seed=0, **about, **asked)
    counted = make(mechanism="tree", noise="discrete", epochs=8)
    with pytest.raises(SordinoError, match="each party shuffles its own records"):
        Terms(counted, (40, 20), (), (), 2, "plain", 0)

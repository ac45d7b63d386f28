"""Persons with several rows: one clip for all of them, and nobody else moves (papers/06, section 2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino
from sordino.engine import RUNNERS, HeldKey, RunKey, TrainingRun, batch_at, query_key
from sordino.parts import Logistic, Population, Softmax
from sordino.parts._losses import LeastSquares, LinearLoss
from sordino.parts._rounding import BLOCK, CLIP_MARGIN, norm_margin, sum_margin
from sordino.parts.contributions import (
    Anchored,
    Batch,
    Contribution,
    Gradient,
    Lagged,
    PersonBatch,
    Recursive,
    TwoClip,
    WeightedGradient,
    WeightedRecursive,
    person_terms,
    sum_of_persons,
)
from sordino.parts.contributions._gradient import VmapEvaluator
from sordino.parts.contributions._linear import LinearEvaluator
from sordino.parts.sampling import slot_of
from sordino.planning import Plan, TableRelease

CLIP = 0.7
CONTRIBUTIONS: tuple[Contribution, ...] = (
    Gradient(CLIP),
    WeightedGradient(CLIP),
    Recursive(CLIP, 0.4),
    WeightedRecursive(CLIP),
    TwoClip(CLIP, 0.05, 0.2),
    Lagged(CLIP, 0.05, 0.2, 3),
    Anchored(CLIP, 0.05, 0.2, 3, 0.1),
)
LOSSES: dict[str, LinearLoss] = {
    "logistic": Logistic(),
    "softmax": Softmax(3),
    "least squares": LeastSquares(),
}


def queue_of(lane: np.ndarray, lanes: int) -> np.ndarray:
    longest = len(lane)  # the same for all seeds, so that nothing is compiled anew
    queue = np.full((longest, lanes), -1, np.int32)
    used = [0] * lanes
    for person, where in enumerate(lane):
        queue[used[where], where] = person
        used[where] += 1
    return queue


def person_batch(
    evaluator: Any, data: Any, sizes: np.ndarray, power: float = 0.5, lanes: int = 4, seed: int = 0
) -> PersonBatch:
    """All persons in one batch; `data` has each one's rows together."""
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    more = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1]]), data)
    prepared, valid = evaluator.prepare(more, jnp.ones(starts[-1] + 1))
    weight = np.append(np.repeat(sizes.astype(float) ** -power, sizes), 0).astype(np.float32)
    after = np.full(starts[-1] + 1, -1, np.float32)
    after[starts[1:] - 1] = 1
    lane = np.random.default_rng(seed).integers(lanes, size=len(sizes))
    return PersonBatch(prepared, weight * valid, jnp.asarray(after), starts, queue_of(lane, lanes))


def exact(total: Any, channels: int = 1) -> list[np.ndarray]:
    """The channels of a sum, and what its rounding left out, together."""
    pairs = zip(
        total.clipped if channels > 1 else (total.clipped,),
        total.rest if channels > 1 else (total.rest,),
        strict=True,
    )
    return [np.asarray(a, np.float64) + np.asarray(b, np.float64) for a, b in pairs]


def person_sum(
    evaluator: Any, made: Contribution, walk: list[Any], batch: PersonBatch, step: int
) -> list[np.ndarray]:
    memory = evaluator.init(walk[0])
    for t in range(step):
        memory = evaluator.remember(memory, walk[t], jnp.int32(t))
    numbers = {**made.terms(step + 1), **person_terms(made.bounds(step + 1).T)}
    terms = {name: jnp.asarray(v[step], jnp.float32) for name, v in numbers.items()}
    points = evaluator.rule.points(walk[step], memory, jnp.int32(step))
    return exact(compiled_sum(evaluator, points, walk[step], batch, terms), made.channels)


@partial(jax.jit, static_argnames=("evaluator",))
def compiled_sum(evaluator: Any, points: Any, params: Any, batch: PersonBatch, terms: Any) -> Any:
    gradients = partial(evaluator.row_gradients, points)
    return sum_of_persons(evaluator.rule, gradients, params, batch, terms)


def reference(
    loss: LinearLoss, made: Contribution, walk: list[Any], data: Any, sizes: np.ndarray, step: int
) -> list[np.ndarray]:
    """Autodiff of each person's summed loss, in float64 from there on."""
    rule, memory = made.rule(), made.rule().init(walk[0])
    for t in range(step):
        memory = rule.remember(memory, walk[t], jnp.int32(t))
    points = rule.points(walk[step], memory, jnp.int32(step))
    terms = {name: np.float64(np.float32(v[step])) for name, v in made.terms(step + 1).items()}
    shape = np.shape(walk[0])
    room = 1 - CLIP_MARGIN - norm_margin([shape]) - sum_margin(BLOCK)

    def clip(v: np.ndarray, c: float) -> np.ndarray:
        return v * min(1.0, c * room / max(np.linalg.norm(v), 1e-30))

    total: list[np.ndarray] = [np.zeros(shape) for _ in range(made.channels)]
    begin = 0
    for size in sizes:
        own = jax.tree.map(lambda leaf, a=begin, b=begin + size: leaf[a:b], data)
        begin += size
        gradients = tuple(
            np.asarray(gradient_of_sum(loss, p, *own), np.float64) * size**-0.5 for p in points
        )
        vectors = rule.combine(gradients, clip, terms)  # type: ignore[arg-type]
        bounds = made.bounds(step + 1)[:, step] * (1 - 1e-5)
        for i, vector in enumerate(vectors):
            total[i] += vector * min(1.0, bounds[i] / max(np.linalg.norm(vector), 1e-30))
    return total


@partial(jax.jit, static_argnames=("loss",))
def gradient_of_sum(loss: LinearLoss, params: Any, X: Any, y: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jax.vmap(loss, (None, 0, 0))(w, X, y)))(params)


def problem(loss: LinearLoss, sizes: np.ndarray, d: int = 5, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    n = int(sizes.sum())
    X = rng.normal(size=(n, d)).astype(np.float32)
    y = rng.integers(0, 3, n).astype(np.int32) if isinstance(loss, Softmax) else None
    y = rng.integers(0, 2, n).astype(np.float32) if y is None else y
    shape = loss.parameter_shape(d)
    walk = [jnp.asarray(rng.normal(size=shape, scale=0.3), jnp.float32) for _ in range(7)]
    return (jnp.asarray(X), jnp.asarray(y)), walk


@pytest.mark.parametrize("made", CONTRIBUTIONS, ids=lambda made: made.kind)
@pytest.mark.parametrize("name", list(LOSSES))
def test_a_person_is_clipped_as_its_summed_loss(name: str, made: Contribution) -> None:
    """Page 06, oracle 7: to 1e-6 of the bound, in closed form and by vmap, at every kind of step."""
    loss = LOSSES[name]
    sizes = np.array([1, 3, 1, 50, 7, 2, 1, 12])
    data, walk = problem(loss, sizes)
    for step in (0, 2, 4):
        expected = reference(loss, made, walk, data, sizes, step)
        for evaluator in (LinearEvaluator(loss, made.rule()), VmapEvaluator(loss, made.rule())):
            batch = person_batch(evaluator, data, sizes)
            found = person_sum(evaluator, made, walk, batch, step)
            for got, want in zip(found, expected, strict=True):
                np.testing.assert_allclose(got, want, atol=1e-6 * len(sizes) * made.clip, rtol=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_persons_of_one_row_are_rows(power: float) -> None:
    """Page 06, oracle 7 and 14.16."""
    sizes = np.ones(128, int)
    for loss in (Logistic(), Softmax(3)):
        data, walk = problem(loss, sizes)
        for made in (Gradient(CLIP), Gradient(1e3), TwoClip(CLIP, 0.05, 0.2)):
            evaluator = LinearEvaluator(loss, made.rule())
            memory = evaluator.remember(evaluator.init(walk[0]), walk[0], jnp.int32(0))
            terms = {name: jnp.float32(v[1]) for name, v in made.terms(2).items()}
            prepared, valid = evaluator.prepare(data, jnp.ones(128))
            rows = evaluator.total(walk[1], memory, Batch(prepared, valid), terms, jnp.int32(1))
            (found,) = person_sum(
                evaluator, made, walk, person_batch(evaluator, data, sizes, power), 1
            )
            scale = np.abs(found).max()
            np.testing.assert_allclose(found, exact(rows)[0], atol=2e-6 * max(scale, made.clip))


@pytest.mark.parametrize(
    ("rows", "length", "clip"), [(8, 30.0, 0.1), (1, 1.0, 0.001), (8, 1.0, 0.001), (400, 30.0, 0.1)]
)
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_rows_that_cancel_stay_within_the_clip(
    rows: int, length: float, clip: float, power: float
) -> None:
    """Page 06, 14.1: the Gram form reached 1.020, 1.21 and 1.90 times the clip."""
    rng = np.random.default_rng(rows)
    made, loss = Gradient(clip), LeastSquares()
    evaluator = LinearEvaluator(loss)
    worst = 0.0
    for trial in range(40):
        half = rng.normal(size=(-(-rows // 2), 30))
        X = np.concatenate([half, half])[:rows]
        X *= length / np.linalg.norm(X, axis=1, keepdims=True)
        # Residuals that nearly cancel, so that what is left is near the clip.
        y = np.concatenate([np.ones(len(half)), -np.ones(len(half))])[:rows]
        y += rng.normal(size=rows) * 10.0 ** -rng.integers(1, 8)
        data = (jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32))
        batch = person_batch(evaluator, data, np.array([rows]), power, seed=trial)
        (found,) = person_sum(evaluator, made, [jnp.zeros(30)], batch, 0)
        worst = max(worst, float(np.linalg.norm(found)))
    assert worst <= clip
    assert worst > 0.999 * clip


hostile = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([1e30, -1e30, 1e19, 1e-30, -1e-40, 3e38]),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_the_rows_are_a_person_stays_within_the_bound(data: Any) -> None:
    """And poisons nobody: the others' part is the same to the last bit."""
    made = data.draw(st.sampled_from(CONTRIBUTIONS[:5]))
    n = 6
    X = np.array(
        data.draw(st.lists(st.lists(hostile, min_size=3, max_size=3), min_size=n, max_size=n))
    )
    y = np.array(data.draw(st.lists(hostile, min_size=n, max_size=n)))
    with np.errstate(all="ignore"):
        X, y = X.astype(np.float32), y.astype(np.float32)
    good = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    X, y = np.concatenate([good[:2], X, good[2:]]), np.concatenate([[1, 0], y, [1, 1]]).astype("f4")
    walk = [jnp.zeros(3), jnp.ones(3), -jnp.ones(3)]
    for evaluator in (
        LinearEvaluator(LeastSquares(), made.rule()),
        VmapEvaluator(LeastSquares(), made.rule()),
    ):
        sums = []
        for rows in (X, np.where(np.arange(10)[:, None] // 2 % 4 == 0, X, np.nan)):
            batch = person_batch(
                evaluator, (jnp.asarray(rows), jnp.asarray(y)), np.array([2, 6, 2])
            )
            (found,) = person_sum(evaluator, made, walk, batch, 1)
            sums.append(found)
        assert np.isfinite(sums).all()
        assert np.linalg.norm(sums[0] - sums[1]) <= made.bounds(2)[0, 1]


# ---- through the engine ----------------------------------------------------------------------------

D = 4
SIZES = [1, 3, 50, 2, 1, 5, 8, 1, 1, 4, 30, 2]
PERSONS = len(SIZES)


def table(sizes: list[int] = SIZES, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of persons in any order: X, y, whose."""
    rng = np.random.default_rng(seed)
    whose = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.normal(size=(len(whose), D)).astype(np.float32)
    return X, (rng.random(len(whose)) < 0.5).astype(np.float32), np.array([f"p{i}" for i in whose])


def person_plan(sampling: str = "fixed", **options: Any) -> Plan:
    settings: dict[str, Any] = {
        "examples": PERSONS,
        "batch_size": 4,
        "steps": 7,
        "noise_multiplier": 1.5,
        "clip": 0.3,
        "unit": "person",
    }
    if sampling == "slots":
        plan = sordino.plan("dp-sgd", sampling="fixed", **{**settings, **options})
        slots = Population.secret_slots(3, 7).settled(PERSONS)
        return plan.with_training(population=slots).restated()
    recipe = "dp-memf" if sampling == "cyclic-poisson" else "dp-sgd"
    if sampling == "cyclic-poisson":
        settings["bands"] = 2
        settings["mechanism"] = "banded"
    if sampling == "without-replacement":
        settings["adjacency"] = "replace-one"
    return sordino.plan(recipe, sampling=sampling, **{**settings, **options})


SAMPLINGS = ("fixed", "slots", "poisson", "cyclic-poisson", "reshuffled", "without-replacement")


def step_sums(run: TrainingRun) -> list[np.ndarray]:
    """What each step adds up, at the first parameters."""
    found = []
    driver = run.driver
    for t in range(run.steps):
        picked = jax.tree.map(lambda leaf: leaf[0], driver.batches.picked(run.key, t, 1))
        total = total_at(run.stepper, run.state, driver.records, picked, driver.table.at(t))
        found.append(exact(total)[0])
    return found


@partial(jax.jit, static_argnames=("stepper",))
def total_at(stepper: Any, state: Any, records: Any, picked: Any, now: Any) -> Any:
    return stepper.total(state, batch_at(None, records, now.t, picked), now)


def started(plan: Plan, X: Any, y: Any, groups: Any, seed: int = 3, **options: Any) -> TrainingRun:
    zero, key = np.zeros(X.shape[1], np.float32), RunKey.from_insecure_seed(seed)
    return TrainingRun(plan, Logistic(), zero, (X, y), key=key, groups=groups, **options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("person", ["p0", "p1", "p2"], ids=["1 row", "3 rows", "50 rows"])
def test_one_person_moves_each_sum_by_its_clip_at_most(sampling: str, person: str) -> None:
    plan = person_plan(sampling)
    X, y, whose = table()
    with_person = step_sums(started(plan, X, y, whose))
    if sampling == "slots":
        kept = whose != person
        without = step_sums(started(plan, X[kept], y[kept], whose[kept]))
    else:
        without = step_sums(
            started(plan, np.where((whose == person)[:, None], np.nan, X), y, whose)
        )
    apart = np.linalg.norm(np.subtract(with_person, without), axis=1)
    assert (apart <= 0.3).all()
    assert apart.max() > 0.29  # the clip binds
    assert (apart == 0).any() or plan.population.is_full_batch


def test_others_stay_where_they_are_to_the_last_bit() -> None:
    """Page 06, oracle 6 and 14.16: for secret slots, with true removal."""
    plan = person_plan("slots")
    X, y, whose = table()
    key = RunKey.from_insecure_seed(3)
    everybody = started(plan, X, y, whose)
    ids = everybody.driver.batches.persons.people.ids  # type: ignore[union-attr]
    slots = dict(zip(ids, slot_of(key, ids, 3, len(ids)), strict=True))
    all_sums = step_sums(everybody)
    for person in ("p0", "p1", "p2", "p10"):
        kept = whose != person
        rest = started(plan, X[kept], y[kept], whose[kept])
        people = rest.driver.batches.persons.people  # type: ignore[union-attr]
        assert {i: slots[i] for i in people.ids} == dict(
            zip(people.ids, slot_of(key, people.ids, 3, len(people)), strict=True)
        )
        alone = step_sums(started(plan, X[~kept], y[~kept], whose[~kept]))
        for t, (a, b, own) in enumerate(zip(all_sums, step_sums(rest), alone, strict=True)):
            # Sums of whole grains: what is taken away is the person's own vector, exactly.
            np.testing.assert_array_equal(a, b + own)
            assert (own != 0).any() == (t % 3 == slots[person])


def test_the_order_of_the_rows_does_not_matter() -> None:
    """Only that of each person's own: sums are exact."""
    plan = person_plan("slots")
    X, y, whose = table()
    order = np.argsort(whose, kind="stable")
    np.testing.assert_array_equal(
        step_sums(started(plan, X, y, whose)),
        step_sums(started(plan, X[order], y[order], whose[order])),
    )
    # And a table of another shape, with rows that nobody has.
    more = np.append(whose, [None, "", np.nan]), np.vstack([X, X[:3]]), np.append(y, y[:3])
    np.testing.assert_array_equal(
        step_sums(started(plan, X, y, whose)), step_sums(started(plan, more[1], more[2], more[0]))
    )


@pytest.mark.parametrize("driver", ["scan", "steps"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_training_on_persons(sampling: str, driver: str) -> None:
    """Through `train`: as step by step, for a linear loss and for one that vmap differentiates."""
    plan = person_plan(sampling)
    X, y, whose = table()
    zero = np.zeros(D, np.float32)
    options: dict[str, Any] = {"groups": whose, "insecure_seed": 3, "driver": driver}
    found = sordino.train(plan, Logistic(), zero, (X, y), **options)
    assert np.isfinite(found.params).all()
    assert found.guarantee == plan.guarantee

    def loss(w: Any, x: Any, label: Any) -> Any:
        return jnp.logaddexp(0.0, x @ w) - label * (x @ w)

    other = sordino.train(plan, loss, zero, (X, y), microbatch_size=8, **options)
    np.testing.assert_allclose(found.params, other.params, atol=1e-5)


def test_persons_of_one_row_train_like_rows() -> None:
    """`one_row_per_person` is today's run; groups of one row each are the same to 1e-5 of the noise."""
    X, y, _ = table([1] * 80)
    plan = sordino.plan(
        "dp-memf", examples=80, batch_size=80, steps=6, noise_multiplier=1e-3, clip=0.3, unit="user"
    )
    zero = np.zeros(D, np.float32)
    rows = sordino.train(plan, Logistic(), zero, (X, y), insecure_seed=1, one_row_per_person=True)
    ids = np.arange(80) * 7
    people = sordino.train(plan, Logistic(), zero, (X, y), insecure_seed=1, groups=ids)
    np.testing.assert_allclose(people.params, rows.params, atol=1e-5)


def test_slots_without_ids() -> None:
    """Rows that are units of their own, in a number that nobody needs to know."""
    plan = person_plan("slots")
    X, y, _ = table([1] * 31)
    run = started(plan, X, y, None)
    assert len(run.driver.batches.persons.people) == 31  # type: ignore[union-attr]
    sordino.train(plan, Logistic(), np.zeros(D, np.float32), (X, y), one_row_per_person=True)
    for nobody in (0, 1):
        empty = X[:nobody], y[:nobody]
        found = sordino.train(
            plan, Logistic(), np.zeros(D, np.float32), empty, groups=["a"] * nobody, insecure_seed=0
        )
        assert np.isfinite(found.params).all()
    # No id anywhere is an empty table.
    nowhere = sordino.train(
        plan, Logistic(), np.zeros(D, np.float32), (X, y), groups=[None] * 31, insecure_seed=0
    )
    empty = sordino.train(
        plan, Logistic(), np.zeros(D, np.float32), (X[:0], y[:0]), groups=[], insecure_seed=0
    )
    np.testing.assert_array_equal(nowhere.params, empty.params)


def test_rows_per_person() -> None:
    """At most k rows of a person, each clipped by itself, chosen by the person's own rows alone."""
    X, y, whose = table()
    plan = person_plan()
    some = replace(plan.population, rows_per_person=3)
    plan = plan.with_training(population=some).restated()
    run = started(plan, 100 * X, y, whose)
    people = run.driver.batches.persons.people  # type: ignore[union-attr]
    assert np.diff(people.starts).tolist() == [min(3, (whose == i).sum()) for i in people.ids]
    without = step_sums(
        started(plan, np.where((whose == "p2")[:, None], np.nan, 100 * X), y, whose)
    )
    apart = np.linalg.norm(np.subtract(step_sums(run), without), axis=1)
    assert 0.3 < apart.max() <= 0.9
    kept = {
        i: people.rows[a:b]
        for i, a, b in zip(people.ids, people.starts, people.starts[1:], strict=False)
    }
    other = np.where(whose == "p10", "p99", whose)
    again = started(plan, X, y, other).driver.batches.persons.people  # type: ignore[union-attr]
    for i, a, b in zip(again.ids, again.starts, again.starts[1:], strict=False):
        if i != "p99":
            np.testing.assert_array_equal(again.rows[a:b], kept[i])
    with pytest.raises(sordino.SordinoError, match="give groups"):
        sordino.train(plan, Logistic(), np.zeros(D), (X, y), one_row_per_person=True)


def test_weights_of_rows_multiply_after_the_clip() -> None:
    """Page 06, 5 and 14.9: the same clip for all, whatever they weigh."""
    X, y, _ = table([1] * 12)
    X = 50 * X
    plan = sordino.plan(
        "dp-sgd", sampling="fixed", examples=12, batch_size=12, steps=1, noise_multiplier=1e-9, clip=0.3,
        learning_rate=1.0, momentum=0.0,
    )  # fmt: skip
    weights = np.linspace(-0.2, 1.3, 12)
    weights[5] = np.nan
    zero = np.zeros(D, np.float32)
    found = sordino.train(plan, Logistic(), zero, (X, y), row_weights=weights, insecure_seed=0)
    gradients = (0.5 - y)[:, None] * X
    clipped = gradients * np.minimum(1, 0.3 / np.linalg.norm(gradients, axis=1))[:, None]
    counted = np.clip(np.nan_to_num(weights), 0, 1)
    np.testing.assert_allclose(found.params, -(counted @ clipped) / 12, rtol=5e-4, atol=1e-6)


def test_weights_of_a_persons_rows() -> None:
    """``w_i / w_mean`` inside the sum, and ``w_mean`` after its clip."""
    X, y, whose = table()
    rng = np.random.default_rng(1)
    weights = rng.random(len(whose)).astype(np.float32)
    weights[whose == "p5"] = 0
    plan = person_plan("slots")
    run = started(plan, X, y, whose, row_weights=weights)
    sums = step_sums(run)
    people = run.driver.batches.persons.people  # type: ignore[union-attr]
    slots = slot_of(run.key, people.ids, 3, len(people))
    expected = np.zeros((3, D))
    for slot, person in zip(slots, people.ids, strict=True):
        w, rows = weights[whose == person].astype(float), whose == person
        if w.sum() == 0:
            continue
        g = (w / w.mean()) @ ((0.5 - y[rows])[:, None] * X[rows]) * len(w) ** -0.5
        expected[slot] += w.mean() * g * min(1, 0.3 / np.linalg.norm(g))
    np.testing.assert_allclose(sums[:3], expected, rtol=1e-3, atol=1e-4)
    assert np.isfinite(sums).all()


def test_ids_are_compared_as_text() -> None:
    """Page 06, oracle 5: 7, 7.0, "7" and " 7" are one person."""
    plan = person_plan("slots")
    X, y, _ = table([1] * 4)
    same = [[7, 7, 7, 8], [7.0, 7.0, 7.0, 8.0], ["7", " 7", "007", "8"], [7, 7.0, "7.", np.int8(8)]]
    sums = [step_sums(started(plan, X, y, ids)) for ids in same]
    for other in sums[1:]:
        np.testing.assert_array_equal(sums[0], other)


def refused(match: str, plan: Plan, **options: Any) -> None:
    X, y, _ = table()
    with pytest.raises(sordino.SordinoError, match=match):
        sordino.train(
            plan, options.pop("loss", Logistic()), np.zeros(D, np.float32), (X, y), **options
        )


def test_what_is_refused() -> None:
    """In words that tell nothing of a person."""
    X, y, whose = table()
    plan = person_plan()
    refused("one row", plan)  # oracle 16
    refused("another number", plan, groups=np.where(whose == "p1", "p2", whose))
    refused("one id for each row", plan, groups=whose[1:])
    refused("list or one column", plan, groups=X)
    refused("'example'", person_plan(unit="example"), groups=whose)
    refused("Gaussian", person_plan(unit="user", noise="discrete"), groups=whose)
    refused("row_weights", plan, groups=whose, row_weights=["a"] * len(y))
    refused("row_weights", plan, groups=whose, row_weights=y[1:])
    refused("person_power", plan, groups=whose, person_power=2.0)
    rows = {"examples": len(y), "batch_size": 20, "unit": "example"}
    refused("Gaussian", person_plan(noise="discrete", **rows), row_weights=y)
    adaptive = sordino.plan(
        "dp-agd", examples=PERSONS, steps=3, epsilon=1.0, delta=1e-5, unit="user"
    )
    refused("beforehand", adaptive, groups=whose)
    free = sordino.plan("sgd", examples=PERSONS, batch_size=4, steps=3, unit="user")
    refused("private recipes", free, groups=whose)

    class Mine(LinearEvaluator):
        clip = 0.3

    refused("by itself", plan, loss=Mine(Logistic()), groups=whose)
    slots = person_plan("slots")
    zero = np.zeros(D, np.float32)
    for refuse in (
        lambda: sordino.Session(slots, Logistic(), zero, one_row_per_person=True),
        lambda: sordino.engine.train_many(slots, Logistic(), zero, (X, y), [0]),
    ):
        with pytest.raises(sordino.SordinoError, match="slots"):
            refuse()


def test_a_run_on_persons_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    X, y, whose = table()
    plan, zero = person_plan("poisson"), np.zeros(D, np.float32)
    whole = sordino.train(plan, Logistic(), zero, (X, y), groups=whose, insecure_seed=5)
    path = tmp_path / "run.ckpt"
    options: dict[str, Any] = {"insecure_seed": 5, "checkpoint": path, "checkpoint_seconds": 0}

    def stop(snapshot: Any) -> bool:
        return snapshot.step >= 3

    first = sordino.train(plan, Logistic(), zero, (X, y), groups=whose, callbacks=[stop], **options)
    assert first.stopped_at == 3
    ignore = [lambda snapshot: False]
    changed = np.where(whose == "p3", "p33", whose)
    for other in (
        {"groups": changed},
        {"groups": whose, "person_power": 0.0},
        {"groups": whose, "row_weights": np.ones(len(y))},
    ):
        with pytest.raises(sordino.SordinoError, match="other inputs"):
            sordino.train(plan, Logistic(), zero, (X, y), callbacks=ignore, **other, **options)
    again = sordino.train(plan, Logistic(), zero, (X, y), groups=whose, callbacks=ignore, **options)
    assert again.resumed_at == 3
    np.testing.assert_array_equal(again.params, whole.params)


# ---- what the caller asks itself --------------------------------------------------------------------


def composed() -> Plan:
    beside = [TableRelease(("a", "b"), 20.0, 1e-7)]
    return person_plan(beside=beside, noise_multiplier=None, epsilon=2.0, delta=1e-5)


def test_queries_asked_elsewhere(tmp_path: Path) -> None:
    plan, zero = composed(), np.zeros(D, np.float32)
    X, y, whose = table()
    options: dict[str, Any] = {"groups": whose}
    with pytest.raises(sordino.SordinoError, match="no runner"):
        sordino.train(plan, Logistic(), zero, (X, y), **options)
    with RUNNERS.temporary():
        RUNNERS.add("table-release", lambda *_: None)
        with pytest.raises(sordino.SordinoError, match="nothing of groups"):
            sordino.train(plan, Logistic(), zero, (X, y), **options)
    with pytest.raises(sordino.SordinoError, match="asks nothing called 'other'"):
        sordino.train(plan, Logistic(), zero, (X, y), elsewhere=("other",), **options)
    options["elsewhere"] = ("preprocessing",)
    found = sordino.train(plan, Logistic(), zero, (X, y), insecure_seed=1, **options)
    assert found.answers == {}
    # A run that may come again must know what the others were asked of.
    path = tmp_path / "run.ckpt"
    held = HeldKey.of(path)
    with pytest.raises(sordino.SordinoError, match="identified_by"):
        sordino.train(plan, Logistic(), zero, (X, y), run_key=held, checkpoint=path, **options)
    raw = np.arange(5)
    options |= {"checkpoint": path, "checkpoint_seconds": 0}
    first = sordino.train(
        plan, Logistic(), zero, (X, y), run_key=held, identified_by=raw, **options
    )
    again = HeldKey.of(path)  # from the key folder
    assert again == held
    assert query_key(plan.others[0], again.key) == query_key(plan.others[0], held.key)
    assert query_key(plan.others[0], held.key) != held.key
    second = sordino.train(
        plan, Logistic(), zero, (X, y), run_key=again, identified_by=raw, **options
    )
    np.testing.assert_array_equal(first.params, second.params)
    with pytest.raises(sordino.SordinoError, match="the table, how it is read"):
        sordino.train(plan, Logistic(), zero, (X, y), identified_by=raw + 1, **options)


def test_a_held_key_is_used_once() -> None:
    plan, zero = composed(), np.zeros(D, np.float32)
    X, y, whose = table()
    held = HeldKey.of()
    options: dict[str, Any] = {"groups": whose, "elsewhere": ("preprocessing",), "run_key": held}
    sordino.train(plan, Logistic(), zero, (X, y), **options)
    with pytest.raises(sordino.SordinoError, match="already used"):
        sordino.train(plan, Logistic(), zero, (X, y), **options)
    assert HeldKey.of(insecure_seed=3).key == RunKey.from_insecure_seed(3)
    with pytest.raises(sordino.SordinoError, match="not both"):
        HeldKey.of(run_key=held, insecure_seed=3)


def test_a_ledger_knows_the_rows_by_their_persons(tmp_path: Path) -> None:
    plan, zero = person_plan(), np.zeros(D, np.float32)
    X, y, whose = table()
    ledger = sordino.Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("visits", epsilon=20.0, delta=1e-5, unit="person")
    options: dict[str, Any] = {"ledger": ledger, "dataset": "visits"}
    sordino.train(plan, Logistic(), zero, (X, y), groups=whose, **options)
    other = np.where(whose == "p3", "p33", whose)
    with pytest.raises(sordino.SordinoError, match="knows more of 'visits'"):
        sordino.train(plan, Logistic(), zero, (X, y), groups=other, **options)
    assert ledger.dataset("visits").rows is None

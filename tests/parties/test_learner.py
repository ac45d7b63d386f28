"""A party's computation is that of the centralized run, on its part of the records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import PlanMismatchError, SordinoError
from sordino._base.keys import RunKey
from sordino.engine._noise import lattice_noise
from sordino.engine._run import TrainingRun
from sordino.parts._losses import NonconvexLogistic
from sordino.parts.sampling._kinds import public_order
from sordino.together.parties._learner import DifferenceCodec, Learner, PartyRows, train_together
from sordino.together.parties._terms import Terms, agree

D, N = 7, 600
LOSS = NonconvexLogistic(0.001)
RECIPES: dict[str, dict[str, Any]] = {
    "dp-gd": {"steps": 9},
    "dp-sgd": {"batch_size": 60, "steps": 70},
    "dp-srm": {"batch_size": 60, "steps": 70, "first_batch": 120},
    "dp-memf": {"batch_size": 60, "epochs": 2},
    "dp-srgd": {"batch_size": 60, "epochs": 2},
    "dp-mu2": {"batch_size": 60, "epochs": 1},
    "dp-nsgd": {"batch_size": 60, "epochs": 2},
    "dp-ftrl": {"batch_size": 60, "epochs": 2},
}


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.int32)


def terms_of(recipe: str, sizes: tuple[int, ...], **more: Any) -> Terms:
    options = {"engine": "plain", "epsilon": 1.0, "delta": 1e-5, **RECIPES[recipe], **more}
    return agree(recipe, examples=sizes, parameters=D, **options)


def dealt(records: tuple[np.ndarray, np.ndarray], sizes: tuple[int, ...]) -> list[Any]:
    cuts = np.cumsum(sizes)[:-1]
    return list(zip(*(np.split(array, cuts) for array in records), strict=True))


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_party_alone_is_the_centralized_run_bit_for_bit(
    recipe: str, records: tuple[np.ndarray, np.ndarray]
) -> None:
    """papers/01 oracle 14, m = 1: with the same fresh draws, whatever noise takes back what."""
    terms, key = terms_of(recipe, (N,)), RunKey.from_insecure_seed(3)
    plan = terms.plan
    run = TrainingRun(plan, LOSS, np.zeros(D, np.float32), records, key=key)
    while not run.finished:
        run.advance()
    learner = Learner(terms, 0, LOSS, np.zeros(D, np.float32), records, key=key)
    if not plan.population.is_secret and not plan.population.is_full_batch:
        # The centralized run's public order, in place of the party's own.
        order, size = public_order(plan.population), plan.population.batch_size
        slots = plan.population.steps_per_epoch
        assert order is not None
        replaced: Callable[[int], Any] = lambda t: order[t % slots * size : (t % slots + 1) * size]  # noqa: E731
        learner._rows.of = replaced  # type: ignore[method-assign]
    draws = lattice_noise(plan, D, key)
    assert draws is not None
    while not learner.finished:
        learner.take(learner.vector().clipped + draws._draw(learner.done))
    assert np.array_equal(np.asarray(run.output()), learner.params)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_parties_release_is_the_plan_s_sum_with_the_plan_s_noise(
    recipe: str, records: tuple[np.ndarray, np.ndarray]
) -> None:
    """r_t minus what was taken back = sum of all parties' own sums, plus z_t - sum z_j, exactly."""
    sizes = (250, 200, 150)
    terms = terms_of(recipe, sizes)
    learners = [
        Learner(terms, j, LOSS, np.zeros(D, np.float32), own, key=RunKey.from_insecure_seed(j))
        for j, own in enumerate(dealt(records, sizes))
    ]
    rng = np.random.default_rng(1)
    mechanism, decoder = terms.plan.mechanism, DifferenceCodec(terms.plan.mechanism)
    z: list[np.ndarray] = []
    for t in range(min(16, terms.plan.population.steps)):
        own = sum(learner._sum() for learner in learners)
        z.append(rng.integers(-1000, 1000, D))
        released = sum(learner.vector().clipped for learner in learners) + z[t]
        noise = z[t] - sum(
            (z[j] for j in mechanism.cancelled_draws(t) or ()), np.zeros(D, np.int64)
        )
        assert np.array_equal(decoder.decoded(t, released), own + noise)
        for learner in learners:
            learner.take(released)
        assert len({learner.digest() for learner in learners}) == 1


@pytest.mark.parametrize("recipe", ["dp-sgd", "dp-memf", "dp-mu2"])
def test_lost_turns_are_left_out_everywhere_and_reveal_no_more(
    recipe: str, records: tuple[np.ndarray, np.ndarray]
) -> None:
    """With any turns lost, what one record changes over all turns is at most what was planned for."""
    terms = terms_of(recipe, (N,), steps=16, epochs=None)
    mechanism, steps = terms.plan.mechanism, 16
    rng = np.random.default_rng(2)
    # The whole encoder, for every pattern of 40 random ones: feed unit vectors, one for each step.
    whole = encoder_of(mechanism, steps, set())
    for _ in range(40):
        lost = set(np.flatnonzero(rng.random(steps) < 0.3).tolist())
        found = encoder_of(mechanism, steps, lost)
        assert np.all(found >= 0)
        assert np.all(found <= whole)
    lost_turns = (0, 3, 4, 11)
    result = train_together(
        terms, LOSS, np.zeros(D, np.float32), [records], insecure_seed=0, lost=lost_turns
    )
    assert np.isfinite(result.params).all()


def encoder_of(mechanism: Any, steps: int, lost: set[int]) -> np.ndarray:
    """C as parties compute it, lost turns and all: row t is what turn t holds of each step's sum."""
    combined, rows = DifferenceCodec(mechanism), []
    for t in range(steps):
        unit = np.zeros(steps, np.int64)
        unit[t] = 1
        rows.append(combined.encoded(t, unit))
        if t in lost:
            combined.lost(t)
    return np.stack(rows)


def test_a_lost_turn_changes_nothing_and_the_next_one_goes_on(
    records: tuple[np.ndarray, np.ndarray],
) -> None:
    terms = terms_of("dp-sgd", (N,))
    learner = Learner(
        terms, 0, LOSS, np.zeros(D, np.float32), records, key=RunKey.from_insecure_seed(0)
    )
    before = learner.digest()
    learner.vector()
    learner.take(None)
    assert (learner.digest(), learner.done) == (before, 1)
    learner.take(learner.vector().clipped)
    assert learner.digest() != before


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "fixed", "reshuffled"])
def test_rows_are_what_was_agreed_on(sampling: str) -> None:
    sizes = (301, 200, 99)
    terms = agree(
        "dp-sgd", examples=sizes, parameters=D, batch_size=60, steps=130, sampling=sampling,
        engine="plain", noise_multiplier=3.0,
    )  # fmt: skip
    slots = terms.plan.population.steps_per_epoch
    for place, n in enumerate(sizes):
        rows = PartyRows(terms, place, RunKey.from_insecure_seed(place))
        taken = [rows.of(t) for t in range(130)]
        for each in taken:
            assert len(np.unique(each)) == len(each)
            assert not len(each) or (each.min() >= 0 and each.max() < n)
        again = PartyRows(terms, place, RunKey.from_insecure_seed(place))
        assert np.array_equal(again.of(77), taken[77])  # in any order, after any restart
        if sampling == "without-replacement":
            assert {len(each) for each in taken} == {terms.batches[place]}
        elif sampling == "poisson":
            # Mean over 130 steps, 5 standard deviations.
            rate = terms.batches[place] / n
            mean, sd = n * rate, np.sqrt(n * rate * (1 - rate) / 130)
            assert abs(np.mean([len(each) for each in taken]) - mean) < 5 * sd
        else:
            epoch = np.concatenate(taken[:slots])
            assert np.array_equal(np.sort(epoch), np.arange(n))
            assert np.array_equal(taken[0], taken[slots]) == (sampling == "fixed")


def test_a_party_with_nothing_in_a_batch_adds_zero(
    records: tuple[np.ndarray, np.ndarray],
) -> None:
    terms = agree(
        "dp-sgd", examples=(300, 300), parameters=D, batches=(30, 0), steps=3, engine="plain",
        noise_multiplier=3.0,
    )  # fmt: skip
    half = dealt(records, (300, 300))[1]
    learner = Learner(
        terms, 1, LOSS, np.zeros(D, np.float32), half, key=RunKey.from_insecure_seed(0)
    )
    assert not learner.vector().clipped.any()


def test_sums_beyond_32_bits_do_not_wrap(records: tuple[np.ndarray, np.ndarray]) -> None:
    """All records at their bound in one coordinate, in pieces that fit: exact in int64."""
    terms = agree(
        "dp-sgd", examples=(N,), parameters=1, batch_size=4, steps=2, engine="plain",
        noise_multiplier=1.0, sampling="fixed", order_seed=None,
    )  # fmt: skip
    X, y = np.ones((N, 1), np.float32), np.zeros(N, np.int32)

    def steep(params: Any, x: Any, label: Any) -> Any:
        return 1e6 * (params @ x)

    learner = Learner(
        terms, 0, steep, np.zeros(1, np.float32), (X, y), key=RunKey.from_insecure_seed(0)
    )
    learner._rows.of = lambda t: np.arange(N)  # type: ignore[method-assign]
    (total,) = learner.vector().clipped
    # Clipped a little short, to whole steps.
    assert total % N == 0
    assert 0.99 * terms.bound <= total // N <= terms.bound
    assert total > 2**31


def test_vectors_do_not_show_themselves(records: tuple[np.ndarray, np.ndarray]) -> None:
    terms = terms_of("dp-gd", (N,))
    learner = Learner(
        terms, 0, LOSS, np.zeros(D, np.float32), records, key=RunKey.from_insecure_seed(0)
    )
    assert "hidden" in repr(learner.vector())


def test_wrong_data_models_and_sums_are_refused(
    records: tuple[np.ndarray, np.ndarray],
) -> None:
    terms, key = terms_of("dp-gd", (400, 200)), RunKey.from_insecure_seed(0)
    with pytest.raises(PlanMismatchError, match="200 records"):
        Learner(terms, 1, LOSS, np.zeros(D, np.float32), records, key=key)
    mine = dealt(records, (400, 200))[1]
    with pytest.raises(PlanMismatchError, match="7 parameters"):
        Learner(terms, 1, LOSS, np.zeros(D + 1, np.float32), mine, key=key)
    learner = Learner(terms, 1, LOSS, np.zeros(D, np.float32), mine, key=key)
    with pytest.raises(SordinoError, match="another length"):
        learner.take(np.zeros(D + 1, np.int64))
    for _ in range(9):
        learner.take(np.zeros(D, np.int64))
    for over in (learner.vector, lambda: learner.take(np.zeros(D, np.int64))):
        with pytest.raises(PlanMismatchError, match="are over"):
            over()

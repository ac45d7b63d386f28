"""What cyclic Poisson batches are worth: page 05's oracles 1 to 6, and what must be refused."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

import sordino
from sordino import SordinoError
from sordino._base.keys import RunKey
from sordino.engine.ledger._composition import restated
from sordino.parts.mechanisms import fit_mechanism
from sordino.parts.mechanisms._toeplitz import Banded
from sordino.parts.mechanisms._workloads import Workload
from sordino.parts.sampling._kinds import group_rate, groups_of
from sordino.parts.sampling._population import Population
from sordino.privacy import FixedBatches
from sordino.privacy._accountant import delta_of, epsilon_of
from sordino.privacy._amplification import GROUPED, POISSON, SampledRelease
from sordino.privacy._loss_laws import Level

from .test_accountant import on_the_lattice

Array = NDArray[np.float64]
A9A = {"examples": 32561, "batch_size": 500, "epochs": 10, "epsilon": 1.0, "delta": 1e-6}


def cyclic(recipe: str = "dp-memf", **options: object) -> sordino.Plan:
    settings = {**A9A, "adjacency": "zero-out", "sampling": "cyclic-poisson", **options}
    return sordino.plan(recipe, **settings)  # type: ignore[arg-type]


# ---- oracle 1: the ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_one_group_is_poisson_sampling(adjacency: str) -> None:
    one = cyclic(bands=1, adjacency=adjacency)
    other = sordino.plan("dp-sgd", **A9A, sampling="poisson", adjacency=adjacency)  # type: ignore[arg-type]
    assert one.guarantee.sampled == other.guarantee.sampled
    assert one.noise_multiplier == other.noise_multiplier
    assert one.guarantee.epsilon(1e-6) == other.guarantee.epsilon(1e-6)


def test_as_many_groups_as_batches_leaves_a_gaussian_mechanism() -> None:
    """b = n/B: everybody of a group in every cycle, k Gaussian releases of unit columns."""
    made = cyclic(examples=30_000, batch_size=500, epochs=6, bands=60)
    (part,) = made.guarantee.sampled
    assert part.rate == 1.0
    assert part.steps == 6
    lattice = on_the_lattice((part.level,), 1e-6)  # not the minimum with the exact value itself
    exact = sordino.privacy.epsilon_from_mu(math.sqrt(6) * part.contribution / part.noise_std, 1e-6)
    assert exact <= lattice <= exact * (1 + 1e-4)


# ---- oracles 2 and 3: the theorem -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("s", "p", "delta", "epsilon"), [(1.0, 0.5, 0.07179664, 1.0), (2.0, 0.25, 0.0017241012, 0.5)]
)
def test_two_steps_without_overlap(s: float, p: float, delta: float, epsilon: float) -> None:
    """Exact quadrature in two dimensions, where columns share no row."""
    assert epsilon <= epsilon_of((Level(s, p, 2, "remove"),), delta) <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize(
    ("s", "p", "epsilon", "overlap", "delta"),
    [(1.0, 0.5, 1.0, 0.2, 0.091528), (2.0, 0.25, 0.5, 0.4, 0.0044998587)],
)
def test_columns_that_overlap_leak_more(
    s: float, p: float, epsilon: float, overlap: float, delta: float
) -> None:
    """Why bands beyond the cycle are refused: the two columns' true delta is above two composed steps'."""
    composed = delta_of((Level(s, p, 2, "remove"),), epsilon)
    assert delta > 1.2 * composed
    made = cyclic(bands=4)
    wide = fit_mechanism("banded", Workload.heavy_ball(0.9), FixedBatches(660, 5), 5)
    with pytest.raises(SordinoError, match="has 5 for a cycle of 4"):
        made.population.kind.amplified(made.population, wide, 1.0, None, "zero-out")
    with pytest.raises(SordinoError, match="has 5 for a cycle of 4"):
        made.with_training(mechanism=wide).verify()


def engine_bits(population: Population, group: int, steps: int) -> Array:
    """Inclusion of the members of a group, `steps` steps of the engine at a time (runs, steps // cycle)."""
    cycle = population.cycle or 1
    rows, starts = groups_of(population, None)
    indices, mask = population.batches(RunKey.from_insecure_seed(5), 0, population.steps)
    there = np.zeros((population.steps, population.examples))
    at, column = np.nonzero(mask)
    there[at, indices[at, column]] = 1
    own = there.reshape(-1, steps, population.examples)[:, group::cycle]
    return np.concatenate([own[:, :, i] for i in rows[starts[group] : starts[group + 1]]])


@pytest.mark.parametrize("group", [0, 1])
def test_adaptive_runs_cost_what_is_stated(group: int) -> None:
    """All eight inclusion patterns of three cycles: the matrix of the mechanism's own rows, and who is in a
    step as the engine draws it, 4e5 times.

    The adversary sees everything released so far and answers in kind. delta(1/2) and delta(1) stay within
    five standard errors of three composed steps, from below.
    """
    T, b, p, s, runs = 6, 2, 0.3, 1.2, 400_000
    population = Population(20, 3, T * (runs // 10), "cyclic-poisson", cycle=b)
    assert group_rate(population) == pytest.approx(p)
    bits = engine_bits(population, group, T)
    assert bits.shape == (runs, 3)
    base = fit_mechanism("banded", Workload.heavy_ball(0.5), FixedBatches(T, b), b)
    assert isinstance(base, Banded)
    signed = replace(base, coefficients=base.coefficients * np.float32([1, -1]))
    C = np.linalg.inv(signed.noising_matrix())
    norms = np.linalg.norm(C, axis=0)
    C /= norms  # unit columns, as the page has them
    C = np.tril(C)
    assert np.abs(C[b:, 0]).max() < 1e-12
    inverse = np.linalg.inv(C)
    rng = np.random.default_rng(group)
    patterns = list(product([0, 1], repeat=3))
    own = list(range(group, T, b))
    noise = s * rng.normal(size=(runs, T))
    # y = C (sums) + s z row by row: the sums of everybody else and of the unit follow from the past.
    y = np.zeros((runs, T))
    sums = np.zeros((runs, T))
    alone = np.zeros((len(patterns), runs, T))
    for r in range(T):
        past = y[:, :r].sum(1)
        others = np.tanh(past)
        v = np.where(past >= 0, 1.0, -1.0)
        sums[:, r] = others
        for i, pattern in enumerate(patterns):
            alone[i, :, r] = others + (pattern[own.index(r)] * v if r in own else 0.0)
        if r in own:
            sums[:, r] += bits[:, own.index(r)] * v
        y[:, r] = sums[:, : r + 1] @ C[r, : r + 1] + noise[:, r]
    weight = np.array([p ** sum(m) * (1 - p) ** (3 - sum(m)) for m in patterns])
    logs = np.stack(
        [-((y - mean @ C.T) ** 2).sum(1) / (2 * s * s) for mean in alone]
    )  # the mean given the released past: others and v are functions of y alone
    without = logs[patterns.index((0, 0, 0))]
    ratio = np.log(np.einsum("i,ir->r", weight, np.exp(logs - without)))
    assert inverse.shape == (T, T)
    for epsilon, known in ((0.5, 0.05660), (1.0, 0.01503)):
        gained = np.maximum(1 - np.exp(epsilon - ratio), 0.0)
        error = gained.std() / math.sqrt(runs)
        assert abs(gained.mean() - known) < 5 * error + 5e-5
        composed = delta_of((Level(s, p, 3, "remove"),), epsilon)
        assert gained.mean() - 5 * error < composed < gained.mean() + 5 * error + 2e-4
        assert epsilon_of((Level(s, p, 3, "remove"),), known) == pytest.approx(epsilon, rel=1.2e-3)


# ---- oracles 4 and 5: how many bands --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bands", "multiplier", "error"),
    [(1, 1.8787, 0.66896), (4, 3.5449, 0.63313), (8, 4.9617, 0.63019), (64, 13.782, 0.72684)],
)
def test_known_noise(bands: int, multiplier: float, error: float) -> None:
    made = cyclic(bands=bands)
    assert made.noise_multiplier == pytest.approx(multiplier, rel=1e-3)
    assert made.predicted_error == pytest.approx(error, rel=1e-3)


LINES = (
    {"examples": 32561, "epochs": 10, "epsilon": 1.0, "momentum": 0.9},
    {"examples": 60000, "epochs": 20, "epsilon": 1.0, "momentum": 0.9},
    {"examples": 60000, "epochs": 5, "epsilon": 8.0, "momentum": 0.9},
    {"examples": 50000, "epochs": 20, "epsilon": 2.0, "momentum": 0.0},
)
TABLE = (  # predicted noise by the number of bands; "blt" and "banded 64" in fixed batches
    {2: 0.64523, 16: 0.63708, 32: 0.65693, "blt": 0.74342},
    {1: 1.3076, 4: 1.2401, 8: 1.2294, 16: 1.2285, 32: 1.2436, 120: 1.3870, "blt": 1.4741,
     "banded 64": 1.7497},
    {1: 0.18951, 8: 0.09534, 32: 0.07197, 64: 0.06903, 120: 0.06362, "blt": 0.06746,
     "banded 64": 0.07406},
    {1: 0.07881, 4: 0.07031, 8: 0.06981, 16: 0.07149, 100: 0.09014, "blt": 0.09535},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "way", "error"),
    [(line, way, error) for line, row in enumerate(TABLE) for way, error in row.items()],
)
def test_every_row_of_the_table(line: int, way: int | str, error: float) -> None:
    """Of section 2.5; with 100 bands it is a prototype's that our noise is 0.2 % below."""
    settings = {**A9A, **LINES[line], "adjacency": "zero-out"}
    fixed: dict[str, object] = {"mechanism": "blt"}
    if way == "banded 64":
        fixed = {"mechanism": "banded", "bands": 64}
    if isinstance(way, int):
        fixed = {"sampling": "cyclic-poisson", "bands": way}
    made = sordino.plan("dp-memf", **{**settings, **fixed})  # type: ignore[arg-type]
    assert made.predicted_error <= error * (1 + 1e-3)
    assert made.predicted_error >= error * (1 - (2e-3 if way == 100 else 1e-3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bands", "multiplier"),
    [(2, 2.5602), (16, 6.9816), (32, 9.7423)],
)
def test_noise_of_other_numbers_of_bands(bands: int, multiplier: float) -> None:
    assert cyclic(bands=bands).noise_multiplier == pytest.approx(multiplier, rel=1e-3)


def test_the_best_number_of_bands() -> None:
    assert 6 <= cyclic().population.cycle <= 11  # type: ignore[operator]
    most = cyclic(examples=60_000, epochs=5, epsilon=8.0)
    assert most.population.cycle == 120
    assert most.predicted_error == pytest.approx(0.06362, rel=1e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
@pytest.mark.parametrize(
    ("batch_size", "epochs"),
    [
        (250, 2),
        (1000, 40),
        *(
            pytest.param(size, epochs, marks=pytest.mark.slow)
            for size, epochs in ((250, 10), (250, 40), (1000, 2), (1000, 10))
        ),
    ],
)
def test_never_worse(batch_size: int, epochs: int, epsilon: float, momentum: float) -> None:
    """Than amplified DP-SGD, and than BLT noise in fixed batches: all 36 settings with the slow ones.

    The best b alone, but for two epochs with so little noise that nothing is amplified: as many groups as
    steps of an epoch are one more than fit, so that some example is in three cycles instead of two. There
    BLT in fixed batches has up to 10.5 % less noise, and `auto` whatever has the less predicted loss.
    """
    settings = {**A9A, "batch_size": batch_size, "epochs": epochs, "epsilon": epsilon}
    settings |= {"momentum": momentum, "adjacency": "zero-out"}
    best = sordino.plan("dp-memf", **settings, sampling="cyclic-poisson")  # type: ignore[arg-type]
    amplified = sordino.plan("dp-sgd", **settings, sampling="poisson")  # type: ignore[arg-type]
    blt = sordino.plan("dp-memf", **settings, mechanism="blt")  # type: ignore[arg-type]
    room = 1.105 if epsilon == 8.0 and epochs == 2 else 1 + 1e-3
    assert best.predicted_error <= blt.predicted_error * room
    assert best.predicted_error <= amplified.predicted_error * (1 + 1e-3)
    either = sordino.plan("dp-memf", **settings, sampling="auto")  # type: ignore[arg-type]
    fixed = sordino.plan("dp-memf", **settings)  # type: ignore[arg-type]
    losses = [
        one.with_update(learning_rate=one.best_learning_rate()).predicted_loss()
        for one in (either, best, fixed)
    ]
    assert losses[0] <= min(losses[1:])


def test_auto_stays_under_one_adjacency() -> None:
    made = sordino.plan("dp-memf", **A9A, sampling="auto")  # type: ignore[arg-type]
    assert made.guarantee.adjacency == "zero-out"
    assert made.population.sampling == "cyclic-poisson"
    assert "stay secret" in made.guarantee.sentence()
    removed = sordino.plan("dp-memf", **A9A, sampling="auto", adjacency="add-remove")  # type: ignore[arg-type]
    assert removed.population.order_seed is None
    with pytest.raises(SordinoError, match="a theorem says how batches are chosen"):
        sordino.plan(
            "dp-nsgd",
            examples=1000,
            epsilon=8.0,
            delta=1e-4,
            settings="theory",
            lipschitz=1.0,
            smoothness=1.0,
            gap=1.0,
            dimension=2,
            sampling="auto",
        )
    with pytest.raises(SordinoError, match="give epsilon and delta"):
        sordino.plan(
            "dp-memf", examples=100, batch_size=10, epochs=1, noise_multiplier=1.0, sampling="auto"
        )


# ---- oracle 6: refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["blt", "dense", "tree", "toeplitz", "tree-full"])
def test_noise_without_bands_gets_no_credit(mechanism: str) -> None:
    with pytest.raises(SordinoError, match="mechanism='banded'"):
        cyclic(mechanism=mechanism)
    made = cyclic(examples=64, batch_size=4, epochs=2, bands=4)
    other = fit_mechanism(mechanism, Workload.heavy_ball(0.9), FixedBatches(32, 4))
    with pytest.raises(SordinoError, match="mechanism='banded'"):
        made.with_training(mechanism=other).verify()


@pytest.mark.parametrize("mechanism", ["cancelling", "leaky"])
def test_bands_are_counted_on_the_strategy_not_on_its_inverse(mechanism: str) -> None:
    """Noise z_t - z_(t-1) has a two-banded inverse and a full C."""
    made = cyclic(examples=64, batch_size=4, epochs=2, bands=4)
    other = fit_mechanism(mechanism, Workload.heavy_ball(0.9), FixedBatches(32, 4))
    with pytest.raises(SordinoError, match="mechanism='banded'"):
        made.with_training(mechanism=other).verify()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bands": 66}, "use at most 65 bands"),
        ({"order_seed": 3, "adjacency": "add-remove"}, "groups by position"),
        ({"noise": "discrete"}, "gaussian noise"),
        (
            {"epsilon": None, "noise_multiplier": 1.0},
            "the best number of bands depends on the budget",
        ),
        ({"schedule": "exponential"}, "schedule"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SordinoError, match=message):
        cyclic(**changes)


def test_other_doors_refuse_it() -> None:
    from sordino.engine.influence._proxy import proxy_population
    from sordino.together.parties import agree

    made = cyclic(bands=4)
    with pytest.raises(SordinoError, match="independent noise"):
        proxy_population(made.population, 100)
    with pytest.raises(SordinoError, match="parties do not train with cyclic-poisson"):
        agree(
            "dp-srm",
            examples=(100, 100),
            parameters=3,
            batch_size=10,
            epochs=2,
            epsilon=1.0,
            delta=1e-4,
            sampling="cyclic-poisson",
        )


def test_groups_by_position_are_no_poisson_sampling_of_rows_that_come_and_go() -> None:
    """A ledger under add-remove refuses them, and takes groups that are drawn for each row."""
    public, secret = cyclic(bands=4), cyclic(bands=4, order_seed=None)
    assert {part.sampling for part in public.guarantee.sampled} == {GROUPED}
    assert {part.sampling for part in secret.guarantee.sampled} == {POISSON}
    assert public.noise_multiplier == secret.noise_multiplier
    with pytest.raises(SordinoError, match="add-remove"):
        restated(public.guarantee, "add-remove", "example")
    assert restated(secret.guarantee, "add-remove", "example").epsilon(1e-6) <= 1.0
    doubled = restated(public.guarantee, "replace-one", "example")
    same = cyclic(bands=4, adjacency="replace-one", epsilon=None, noise_multiplier=1.0)
    assert doubled.sampled[0].level.pair == same.guarantee.sampled[0].level.pair == "replace"
    with pytest.raises(SordinoError, match="add-remove"):
        SampledRelease(1.0, 1.0, 0.1, 3, GROUPED, "add-remove")


def test_a_plan_that_claims_more_than_its_groups_give_is_refused() -> None:
    """Less noise, another cycle or other groups than the guarantee was computed for."""
    made = cyclic(bands=8)
    for changes in (
        {"noise_multiplier": made.noise_multiplier * 0.999},
        {"population": replace(made.population, cycle=16)},
        {"population": replace(made.population, order_seed=None)},
    ):
        with pytest.raises(SordinoError, match="does not give"):
            made.with_training(**changes).verify()


def test_columns_of_a_cycle_count_by_the_longest() -> None:
    """Without normalised columns the last cycle's are shorter; the levels dominate every group."""
    steps, cycle = 22, 4
    c = np.float32([1.0, 0.7, 0.5, 0.2])
    plain = Banded(c, None, steps)
    population = Population(40, 8, steps, "cyclic-poisson", cycle=cycle)
    parts = population.kind.amplified(population, plain, 2.0, None, "zero-out")
    assert parts is not None
    C = np.linalg.inv(plain.noising_matrix())
    norms = np.linalg.norm(C, axis=0)
    stated = sorted(p.contribution for p in parts for _ in range(p.steps))
    assert len(stated) == math.ceil(steps / cycle)
    for j in range(cycle):
        own = sorted(norms[j::cycle])
        padded = [0.0] * (len(stated) - len(own)) + own
        assert all(a >= b * (1 - 1e-12) for a, b in zip(stated, padded, strict=True))


def test_the_engine_draws_what_the_release_states() -> None:
    """Rate and number of chances of every example, counted over keys: within 5 standard errors."""
    made = cyclic(examples=40, batch_size=5, epochs=3, bands=4)
    (part,) = made.guarantee.sampled
    uses = np.zeros(40)
    keys = 300
    for seed in range(keys):
        indices, mask = made.population.batches(RunKey.from_insecure_seed(seed), 0, 24)
        np.add.at(uses, indices[mask > 0], 1)
    expected = part.rate * part.steps * keys
    assert np.abs(uses - expected).max() < 5 * math.sqrt(expected * (1 - part.rate))

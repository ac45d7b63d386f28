"""Doors to cyclic Poisson batches that a referee tried: those that were open, and those worth watching."""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sordino
from sordino import Logistic, Plan, SordinoError
from sordino.audit._brute_force import noising_matrices
from sordino.audit._whitebox import Neighbours
from sordino.parts.mechanisms._cancelling import Cancelling
from sordino.parts.mechanisms._catalogue import noise_per_draw
from sordino.parts.mechanisms._combined import Phases, ScaledDraws
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._toeplitz import BLT, Banded, Independent
from sordino.parts.sampling import group_rate
from sordino.parts.sampling._population import Population
from sordino.parts.schedules import FixedSchedule
from sordino.privacy._strategy import MatrixStrategy, ToeplitzStrategy

Array = NDArray[np.float64]
STEPS = 8
TINY = np.float32(3e-39)  # below the normal numbers of float32


def planned(recipe: str = "dp-memf", **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "examples": 240,
        "batch_size": 12,
        "steps": STEPS,
        "sampling": "cyclic-poisson",
        "bands": 4,
        "noise_multiplier": 1.0,
        "delta": 1e-4,
    }
    return sordino.plan(recipe, **{**settings, **changes})


# ---- noise that is there on paper only ----------------------------------------------------------------

C = np.float32([1.0, 0.5, 0.2, 0.1])
VANISHING = {
    "column norms": Banded(C, np.full(STEPS, TINY, np.float32), STEPS),
    "first coefficient": Banded(np.float32([3e38]), None, STEPS),
    "phases": Phases((Independent(STEPS),), (float(TINY),)),
    "phases in phases": Phases((Phases((Independent(STEPS),), (1e-8,)),), (1e-8,)),
    "norms that make up for it": Banded(
        np.float32([3e38]), np.full(STEPS, 3e38, np.float32), STEPS
    ),
}


@pytest.mark.parametrize("sampling", ["cyclic-poisson", "fixed"])
@pytest.mark.parametrize("what", VANISHING)
def test_noise_that_float32_flushes_to_zero_is_no_noise(what: str, sampling: str) -> None:
    """A factor of 3e-39 times a multiplier of 3e38: epsilon 4 on paper, and no noise in the run."""
    made = planned(sampling=sampling, **{"mechanism": "banded"} if sampling == "fixed" else {})
    for multiplier in (1.0, 3e38):
        edited = made.with_training(mechanism=VANISHING[what], noise_multiplier=multiplier)
        with pytest.raises(SordinoError, match="float32"):
            edited.restated()


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": Dense(np.eye(STEPS, dtype=np.float32) * TINY, "own")},
        {"schedule": FixedSchedule((1.0,) * (STEPS - 1) + (1e20,), "own")},
        {},
    ],
)
def test_a_multiplier_that_only_makes_up_for_something_is_refused(changes: dict[str, Any]) -> None:
    made = planned(sampling="fixed", mechanism="banded")
    noise = 3e38 if "schedule" not in changes else 1.0
    with pytest.raises(SordinoError, match="more than float32 is good for"):
        made.with_training(noise_multiplier=noise, **changes).restated()


def test_scaled_draws_do_not_vanish_either() -> None:
    """At the least normal number, two draws of three would be flushed to zero."""
    least = np.full(STEPS, np.finfo(np.float32).tiny, np.float32)
    with pytest.raises(SordinoError, match="float32"):
        ScaledDraws(Independent(STEPS), least)
    small = np.full(STEPS, 1e-8, np.float32)
    with pytest.raises(SordinoError, match="float32"):
        ScaledDraws(ScaledDraws(Independent(STEPS), small), small)
    inside = ScaledDraws(VANISHING["column norms"], np.ones(STEPS, np.float32))
    with pytest.raises(SordinoError, match="float32"):
        inside.strategy()


def test_the_noise_of_a_plan_is_in_its_run() -> None:
    """The same run without gradients: what is left is noise, and there is some in every coordinate."""
    zeros = (np.zeros((240, 3), np.float32), np.zeros(240, np.float32))
    made = planned().with_training(mechanism=Banded(C, None, STEPS)).restated()
    result = sordino.train(made, Logistic(), np.zeros(3, np.float32), zeros, insecure_seed=0)
    assert (np.abs(np.asarray(result.params)) > 1e-4).all()


GROWING = {
    "banded": Banded(np.float32([1.0, 3.0]), None, 36),
    "blt": BLT(np.float32([0.5]), np.float32([3.0]), None, 36),
    "dense": Dense(
        np.tril(np.linalg.inv(np.eye(36) + 3 * np.eye(36, k=-1))).astype(np.float32), "own"
    ),
    "scaled": ScaledDraws(Independent(36), np.float32([1e10] * 18 + [1.0] * 18)),
}


@pytest.mark.parametrize("kind", GROWING)
def test_noise_that_drowns_its_own_draws_is_refused(kind: str) -> None:
    """x_t = z_t - 3 x_(t-1): epsilon 4 on paper; after 20 steps x is so large that z is rounded away."""
    own = {} if kind == "banded" else {"sampling": "fixed", "mechanism": "banded"}
    made = planned(steps=36, **own)
    edited = made.with_training(mechanism=GROWING[kind])
    with pytest.raises(SordinoError, match="grows to more"):
        edited.restated()


def test_the_library_s_own_noise_stays() -> None:
    for made in (planned(steps=200), planned("dp-nsgd-sr", steps=200, form="anchored")):
        assert noise_per_draw(made.mechanism) < 10


# ---- bands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mechanism",
    [Cancelling(600, 0.01), BLT(np.float32([1e-3]), np.float32([0.1]), None, 600)],
    ids=["leaky", "blt"],
)
def test_powers_that_double_precision_cannot_hold_are_no_bands(
    mechanism: Cancelling | BLT,
) -> None:
    """0.01^162 is 0 in float64; C is full all the same."""
    assert mechanism.strategy().bands() == 600
    made = planned(examples=4000, batch_size=2, steps=600, bands=300)
    with pytest.raises(SordinoError, match="has 600 for a cycle of 300"):
        made.with_training(mechanism=mechanism).verify()


def test_zeros_at_the_end_are_no_bands() -> None:
    padded = ToeplitzStrategy(np.array([1.0, 0.5, 0.0, float(np.float32(1e-45)), 0.0]), 9)
    assert padded.bands() == 4


def test_channels_that_a_strategy_does_not_add_up_get_no_credit() -> None:
    """A strategy of two channels from another package, with the energies of one."""

    class TwoChannels(MatrixStrategy):
        channels = 2
        steps = STEPS

        def bands(self) -> int:
            return 1

    class Mechanism(Independent):
        def strategy(self) -> TwoChannels:  # type: ignore[override]
            return TwoChannels(np.eye(2 * STEPS))

    population = planned().population
    with pytest.raises(SordinoError, match="channels"):
        population.kind.amplified(population, Mechanism(STEPS), 1.0, None, "zero-out")


# ---- what is stated, from the noise that a run has ----------------------------------------------------


def worst_delta(plan: Plan, epsilon: float, runs: int, seed: int) -> tuple[float, float]:
    """delta by simulation and its standard error: the worst group, all inclusion patterns, both directions.

    Columns are those of the inverse of what the mechanism's `rows` make of the identity, times the
    standard deviations in use, over all channels.
    """
    population, p = plan.population, group_rate(plan.population)
    T, cycle = population.steps, population.cycle or 1
    stds, bounds = plan.noise_stds().astype(np.float64).T, plan.contribution.bounds(T)
    encoders = [
        np.linalg.inv(s[:, None] * N) for s, N in zip(stds, noising_matrices(plan), strict=True)
    ]
    rng, found = np.random.default_rng(seed), []
    for j in range(min(cycle, T)):
        own = range(j, T, cycle)
        shift = np.array(
            [
                np.concatenate([E[:, t] * c[t] for E, c in zip(encoders, bounds, strict=True)])
                for t in own
            ]
        )
        gram = shift @ shift.T
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-6 * gram.max()
        patterns = np.array(list(itertools.product([0, 1], repeat=len(own))))
        weight = np.prod(np.where(patterns == 1, p, 1 - p), axis=1)
        means = patterns @ np.linalg.cholesky(gram)

        def law(x: Array, means: Array = means, weight: Array = weight) -> Array:
            return np.log(np.exp(x @ means.T - (means**2).sum(1) / 2) @ weight)

        drawn = means[rng.choice(len(weight), size=runs, p=weight / weight.sum())]
        z = rng.normal(size=drawn.shape)
        losses = [law(drawn + z), -law(z)]
        if plan.guarantee.adjacency == "replace-one":
            losses = [law(drawn + z) - law(-(drawn + z))]
        for loss in losses:
            gained = np.maximum(1 - np.exp(epsilon - loss), 0.0)
            found.append((float(gained.mean()), float(gained.std() / math.sqrt(runs))))
    return max(found)


RISING = FixedSchedule(tuple(np.linspace(1, 3, 18) ** 2), "rising")


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("dp-memf", {}),
        ("dp-srm", {}),
        ("dp-nsgd-sr", {"form": "anchor-free"}),
        ("dp-nsgd-sr", {"form": "anchored"}),
        ("dp-memf", {"mechanism": "independent", "schedule": RISING}),
    ],
    ids=["banded", "two clips", "phases", "channels", "schedule"],
)
def test_every_kind_of_noise_costs_what_is_stated(
    recipe: str, options: dict[str, Any], adjacency: str
) -> None:
    """18 steps in cycles of 4, 30,000 draws for each group: within 5 standard errors, not far below."""
    made = planned(
        recipe,
        **{"examples": 24, "batch_size": 2, "steps": 18, "noise_multiplier": 1.2, **options},
        adjacency=adjacency,
    )
    found, error = worst_delta(made, 0.25, 30_000, seed=1)
    stated = made.guarantee.delta(0.25)
    assert found - 5 * error <= stated <= found + 5 * error + 0.02 * stated


# ---- plans by hand, and audits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "population",
    [
        {"cycle": 5},
        {"cycle": 3},
        {"cycle": True},
        {"cycle": None},
        {"order_seed": None},
        {"sampling": "poisson", "cycle": None},
        {"sampling": "fixed", "cycle": None},
        {"first_batch": 20},
        {"examples": 2400},
        {"batch_size": 6},
    ],
)
def test_plans_edited_by_hand_are_refused(population: dict[str, Any]) -> None:
    data = copy.deepcopy(planned(adjacency="zero-out").to_json())
    data["population"].update(population)
    with pytest.raises(SordinoError):
        Plan.from_json(data)


@pytest.mark.parametrize(
    "release",
    [{"sampling": "poisson"}, {"sampling": "cyclic-poisson"}, {"rate": 0.05}, {"steps": 1}],
)
def test_guarantees_edited_by_hand_are_refused(release: dict[str, Any]) -> None:
    data = copy.deepcopy(planned(adjacency="zero-out").to_json())
    data["guarantee"]["sampled"][0].update(release)
    with pytest.raises(SordinoError):
        Plan.from_json(data)


def test_an_audit_sees_an_example_that_is_seldom_there() -> None:
    """With one key, the example was in no batch, and moved no sum by anything."""
    made = planned("dp-nsgd", examples=24, batch_size=1, steps=6, bands=3, adjacency="add-remove")
    assert isinstance(made.population, Population)
    pair = Neighbours.of(made)
    for seed in range(3):
        assert pair.moved(seed).ratio == pytest.approx(1.0, abs=1e-3)
    doubled = replace(pair, plan=made.with_training(contribution=type(made.contribution)(0.5)))
    assert doubled.moved().exceeds

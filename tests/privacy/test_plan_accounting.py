"""Plans: the noise that a run really adds, written out as a matrix, against the stated guarantee."""

from __future__ import annotations

import copy
import itertools
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from sordino import Plan, plan
from sordino._base.errors import SordinoError
from sordino.engine._run import chunk_starts
from sordino.parts.sampling._population import Population
from sordino.planning._accounting import float32_up
from sordino.planning.recipes import RECIPES

from .brute_force import drawn_patterns, fixed_patterns, fresh_patterns

DELTA = 1e-6
PUBLIC = ("fixed", "reshuffled")


def public_cases():
    for recipe in RECIPES.values():
        # An adaptive budget has no noise matrix: its spending is tested in tests/engine.
        if not recipe.private or recipe.adaptive:
            continue
        for sampling in recipe.samplings:
            if sampling not in PUBLIC:
                continue
            for mechanism in recipe.mechanisms:
                if sampling == "reshuffled" and mechanism == "dense":
                    continue  # refused, see below
                for size in ({"batch_size": 4, "steps": 6}, {"batch_size": 5, "steps": 13}):
                    yield pytest.param(
                        recipe.name,
                        sampling,
                        mechanism,
                        size,
                        id=f"{recipe.name}-{sampling}-{mechanism}-{size['steps']}",
                    )


def make(recipe, sampling, mechanism, size, **changes):
    spec = RECIPES[recipe]
    arguments = {"examples": 23, "sampling": sampling, "mechanism": mechanism, **size}
    if spec.full_batch:
        del arguments["batch_size"]
    if not ({"epsilon", "noise_multiplier"} & set(changes)):
        arguments |= {"epsilon": 2.0, "delta": DELTA}
    return plan(recipe, **{**arguments, **changes})


def noise_matrices(mechanism, chunk):
    """C^-1 of each channel as the run computes it: feed the rows of the identity as draws."""
    T, channels = mechanism.steps, mechanism.channels
    identity = jnp.tile(jnp.eye(T, dtype=jnp.float32), (1, channels))

    def draw(first, count):
        return identity[int(first) : int(first) + count]

    state, blocks = mechanism.init(T * channels), []
    starts = [*chunk_starts(T, chunk, mechanism.boundaries), T]
    for first, end in itertools.pairwise(starts):
        rows, state = mechanism.rows(state, draw, first, end - first)
        blocks.append(np.float64(rows))
    return np.split(np.concatenate(blocks), channels, axis=1)


def brute_force_mu(made, chunk=None):
    """max over patterns of kappa * Mahalanobis length, upper bound and same-direction value."""
    people, T = made.population, made.population.steps
    stds = made.noise_stds().astype(np.float64)
    bounds = made.contribution.bounds(T)
    matrices = noise_matrices(made.mechanism, chunk or T)
    X = np.zeros((len(matrices) * T,) * 2)
    for p, N in enumerate(matrices):
        inverse = np.linalg.inv(stds[:, p, None] * N) * bounds[p]
        X[p * T : (p + 1) * T, p * T : (p + 1) * T] = inverse.T @ inverse
    per_epoch = math.ceil(people.examples / people.batch_size)
    listed = (fixed_patterns if people.sampling == "fixed" else fresh_patterns)(T, per_epoch)
    if people.slots is not None:
        listed = drawn_patterns(people)
    kappa = {"zero-out": 1, "add-remove": 1, "replace-one": 2}[made.guarantee.adjacency]
    patterns = [[p * T + t for p in range(len(matrices)) for t in pattern] for pattern in listed]
    upper = max(np.abs(X[np.ix_(P, P)]).sum() for P in patterns)
    same = max(X[np.ix_(P, P)].sum() for P in patterns)
    return kappa * math.sqrt(upper), kappa * math.sqrt(same)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("recipe", "sampling", "mechanism", "size"), list(public_cases()))
def test_stated_mu_covers_the_real_noise(recipe, sampling, mechanism, size, adjacency):
    made = make(recipe, sampling, mechanism, size, adjacency=adjacency)
    upper, same = brute_force_mu(made)
    stated = made.guarantee.mu
    assert same <= upper * (1 + 1e-12)
    assert upper <= stated * (1 + 1e-9)
    if made.guarantee.analysis == "exact":
        assert stated == pytest.approx(upper, rel=1e-5)
    if adjacency == "replace-one":
        return
    # in chunks the run adds the same noise
    chunked, _ = brute_force_mu(made, chunk=7)
    assert chunked <= stated * (1 + 1e-9)


@pytest.mark.parametrize(("recipe", "sampling", "mechanism", "size"), list(public_cases()))
def test_calibration_meets_the_target_and_inverts(recipe, sampling, mechanism, size):
    for epsilon in (0.1, 9.0):
        made = make(recipe, sampling, mechanism, size, epsilon=epsilon, delta=DELTA)
        reached = made.guarantee.epsilon(DELTA)
        assert 0.999 * epsilon <= reached <= epsilon
        assert made.guarantee.delta(epsilon) <= DELTA
        assert made.noise_multiplier == float(np.float32(made.noise_multiplier))
        back = make(recipe, sampling, mechanism, size, noise_multiplier=made.noise_multiplier)
        assert back.guarantee.mu == made.guarantee.mu
        assert back.noise_multiplier == made.noise_multiplier


def test_long_blt_recursion_stays_within_the_margin():
    """Rounding of the float32 recursion over many steps and several epochs."""
    made = plan(
        "dp-memf", examples=600, batch_size=4, epochs=4, epsilon=1, delta=1e-5, mechanism="blt"
    )
    upper, _ = brute_force_mu(made)
    assert upper <= made.guarantee.mu * (1 + 1e-9)
    assert made.guarantee.mu == pytest.approx(upper, rel=1e-5)


@pytest.mark.parametrize("clip", [1e-3, 0.1, 0.3, 1.0, 7.7, 1e4])
def test_clip_only_scales(clip):
    one = plan("dp-gd", examples=100, steps=5, epsilon=1, delta=1e-5)
    made = plan("dp-gd", examples=100, steps=5, epsilon=1, delta=1e-5, clip=clip)
    assert made.guarantee == one.guarantee
    assert made.noise_multiplier == one.noise_multiplier
    assert made.noise_std >= made.noise_multiplier * clip  # rounded up, never down
    assert made.noise_std == pytest.approx(made.noise_multiplier * clip, rel=2e-7)
    upper, _ = brute_force_mu(made)
    assert upper <= made.guarantee.mu * (1 + 1e-9)


def test_float32_rounding_is_upwards():
    rng = np.random.default_rng(0)
    for value in [*np.exp(rng.uniform(-40, 40, 300)), 1.0, 0.1, 1 / 3]:
        rounded = float32_up(float(value))
        assert rounded >= value
        assert rounded == float(np.float32(rounded))
        assert rounded <= value * (1 + 1.2e-7)


# ---- adjacency -------------------------------------------------------------------------------------


def test_replace_one_needs_exactly_twice_the_noise():
    zero = plan("dp-memf", examples=40, batch_size=4, epochs=2, epsilon=1, delta=DELTA)
    other = plan(
        "dp-memf",
        examples=40,
        batch_size=4,
        epochs=2,
        epsilon=1,
        delta=DELTA,
        adjacency="replace-one",
    )
    assert other.noise_multiplier == pytest.approx(2 * zero.noise_multiplier, rel=1e-6)
    assert zero.guarantee.under_replace_one().mu >= 2 * zero.guarantee.mu * (1 - 1e-15)


@pytest.mark.parametrize("sampling", ["fixed", "reshuffled"])
def test_add_remove_is_refused_where_a_removed_row_moves_others(sampling):
    with pytest.raises(SordinoError, match="add-remove"):
        plan(
            "dp-sgd",
            examples=40,
            batch_size=4,
            epochs=2,
            noise_multiplier=1.0,
            sampling=sampling,
            adjacency="add-remove",
        )


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_without_replacement_is_replace_one_only(adjacency):
    for batch_size in (4, 40):
        with pytest.raises(SordinoError):
            plan(
                "dp-sgd",
                examples=40,
                batch_size=batch_size,
                steps=3,
                noise_multiplier=1.0,
                sampling="without-replacement",
                adjacency=adjacency,
            )


def test_add_remove_holds_for_full_batches_and_poisson():
    full = plan("dp-gd", examples=40, steps=3, noise_multiplier=2.0, adjacency="add-remove")
    assert full.guarantee.mu == pytest.approx(math.sqrt(3) / 2, rel=1e-5)
    poisson = plan("dp-sgd", examples=40, batch_size=4, steps=3, noise_multiplier=2.0)
    assert poisson.guarantee.adjacency == "add-remove"


def test_correlated_noise_gets_no_amplification():
    for sampling in ("poisson", "without-replacement"):
        with pytest.raises(SordinoError):
            plan(
                "dp-memf",
                examples=40,
                batch_size=4,
                epochs=1,
                noise_multiplier=1.0,
                sampling=sampling,
            )


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_amplified_plans_meet_their_target(sampling):
    made = plan(
        "dp-sgd",
        examples=2000,
        batch_size=100,
        epochs=2,
        epsilon=1.0,
        delta=1e-5,
        sampling=sampling,
    )
    # noise is calibrated to 1e-4, about as much in epsilon
    assert 0.999 <= made.guarantee.epsilon(1e-5) <= 1.0
    again = plan(
        "dp-sgd",
        examples=2000,
        batch_size=100,
        epochs=2,
        noise_multiplier=made.noise_multiplier,
        delta=1e-5,
        sampling=sampling,
    )
    assert again.guarantee == made.guarantee
    assert made.guarantee.is_amplified
    part = made.guarantee.sampled[0]
    assert part.noise_std <= made.noise_multiplier
    assert (part.rate, part.steps, part.contribution) == (0.05, 40, 1.0)


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement"])
def test_secret_batches_of_everyone_amplify_nothing(sampling):
    secret = plan(
        "dp-sgd",
        examples=50,
        batch_size=50,
        steps=4,
        epsilon=1.0,
        delta=1e-5,
        sampling=sampling,
        adjacency="replace-one",
    )
    public = plan("dp-gd", examples=50, steps=4, epsilon=1.0, delta=1e-5, adjacency="replace-one")
    assert secret.noise_multiplier >= public.noise_multiplier * (1 - 1e-6)
    assert secret.noise_multiplier == pytest.approx(public.noise_multiplier, rel=1e-3)
    assert secret.guarantee.epsilon(1e-5) <= 1.0


# ---- JSON ------------------------------------------------------------------------------------------


def json_cases():
    yield "dp-gd", {"steps": 4}
    yield "dp-sgd", {"batch_size": 4, "steps": 9}
    yield "dp-sgd", {"batch_size": 4, "steps": 9, "sampling": "without-replacement"}
    for mechanism in ("independent", "blt", "banded", "toeplitz", "dense", "auto"):
        yield "dp-memf", {"batch_size": 4, "steps": 13, "mechanism": mechanism}
    yield "dp-memf", {"batch_size": 4, "steps": 13, "sampling": "reshuffled"}


@pytest.mark.parametrize(("recipe", "arguments"), list(json_cases()))
def test_plan_json_round_trip(recipe, arguments, tmp_path):
    made = plan(recipe, examples=30, epsilon=3.0, delta=1e-5, **arguments)
    made.save(tmp_path / "plan.json")
    back = Plan.load(tmp_path / "plan.json")
    assert back == made
    assert back.hash == made.hash
    assert back.guarantee == made.guarantee
    assert back.noise_multiplier == made.noise_multiplier
    np.testing.assert_array_equal(
        noise_matrices(back.mechanism, back.population.steps),
        noise_matrices(made.mechanism, made.population.steps),
    )


def tampered(data, path, value):
    changed = copy.deepcopy(data)
    where = changed
    for name in path[:-1]:
        where = where[name]
    assert where[path[-1]] != value
    where[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("noise",), 0.5),
        (("guarantee", "gaussian_mu"), 0.01),
        (("guarantee", "adjacency"), "replace-one"),
        (("guarantee", "adjacency"), "add-remove"),
        (("guarantee", "analysis"), "amplified"),
        (("guarantee", "participation"), "never"),
        (("population", "steps"), 12),
        (("population", "examples"), 300),
        (("population", "batch_size"), 15),
        (("population", "sampling"), "reshuffled"),
        (("population", "sampling"), "poisson"),
        (("mechanism", "steps"), 12),
        (("schedule", "kind"), "mine"),
        (("version",), 99),
        (("format",), "x"),
        (("noise",), math.nan),
        (("noise",), -1.0),
        (("contribution", "clip"), 0.0),
        (("contribution", "kind"), "pair"),
        (("mechanism", "theta"), None),
    ],
)
def test_tampering_is_refused(path, value):
    made = plan(
        "dp-memf", examples=30, batch_size=4, steps=13, epsilon=3.0, delta=1e-5, mechanism="blt"
    )
    data = json.loads(json.dumps(made.to_json()))
    assert Plan.from_json(data) == made
    with pytest.raises(SordinoError):
        Plan.from_json(tampered(data, path, value))


def test_a_swapped_strategy_is_refused():
    arguments = {"examples": 30, "batch_size": 4, "steps": 13, "epsilon": 3.0, "delta": 1e-5}
    blt = plan("dp-memf", mechanism="blt", **arguments).to_json()
    for other in ("banded", "toeplitz", "dense", "independent"):
        mechanism = plan("dp-memf", mechanism=other, **arguments).to_json()["mechanism"]
        with pytest.raises(SordinoError):
            Plan.from_json(json.loads(json.dumps({**blt, "mechanism": mechanism})))


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_a_stated_budget_that_is_not_met_is_refused(name):
    """The plan's own epsilon and delta must be those that its guarantee meets."""
    data = json.loads(
        json.dumps(plan("dp-gd", examples=30, steps=4, epsilon=3.0, delta=1e-5).to_json())
    )
    with pytest.raises(SordinoError):
        Plan.from_json({**data, name: data[name] / 100})


def test_numpy_scalars_are_accepted_and_saved(tmp_path):
    made = plan(
        "dp-gd",
        examples=np.int64(30),
        steps=np.int32(4),
        epsilon=np.float32(3),
        delta=np.float64(1e-5),
    )
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    plan("dp-gd", examples=30, steps=4, noise_multiplier=np.float32(3)).save(
        tmp_path / "noise.json"
    )


def test_a_plan_survives_another_processor(tmp_path):
    """mu is recomputed on load; other BLAS kernels may differ in the last bit, which is no tampering."""
    import os
    import subprocess
    import sys

    code = (
        "import sys, sordino as p; path = sys.argv[1]\n"
        "made = p.plan('dp-memf', examples=800, batch_size=5, epochs=1, epsilon=2, delta=1e-5,"
        " mechanism='toeplitz')\n"
        "made.save(path)\n"
    )
    load = "import sys, sordino as p; p.Plan.load(sys.argv[1])\n"
    path = str(tmp_path / "plan.json")
    for kernel, script in (("Nehalem", code), ("Prescott", load)):
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", script, path], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-400:]


# ---- budgets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"epsilon": 1.0},
        {"epsilon": 1.0, "delta": 0.0},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 0.0, "delta": 1e-5},
        {"epsilon": -1.0, "delta": 1e-5},
        {"epsilon": math.inf, "delta": 1e-5},
        {"epsilon": math.nan, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": "1"},
        {"noise_multiplier": 1.0, "clip": 0.0},
        {"noise_multiplier": 1.0, "clip": math.inf},
        {"noise_multiplier": 1.0, "adjacency": "swap"},
        {"noise_multiplier": 1.0, "unit": "household"},
    ],
)
def test_bad_budgets_are_refused(bad):
    with pytest.raises(SordinoError):
        plan("dp-gd", examples=30, steps=4, **bad)


def test_population_is_public_and_counts_everything():
    people = Population(10, 4, 7)
    assert people.steps_per_epoch == 3
    assert people.gradient_evaluations == 2 * 10 + 4
    assert people.participation().max_participations == 3
    assert Population(10, 4, 7, sampling="poisson").participation().max_participations == 7

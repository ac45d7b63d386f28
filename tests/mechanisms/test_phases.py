"""Phases: block-diagonal noise, streamed in pieces that start where another part takes over."""

from __future__ import annotations

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts.mechanisms._base import Mechanism, mechanism_from_json
from sordino.parts.mechanisms._combined import Parallel, Phases
from sordino.parts.mechanisms._dense import Dense
from sordino.parts.mechanisms._maps import AnytimeMap, LaggedMomentumMap
from sordino.parts.mechanisms._toeplitz import BLT, Banded, Independent
from sordino.parts.mechanisms._tree import Tree
from sordino.parts.mechanisms._workloads import Workload
from sordino.privacy._participation import FixedBatches, SinglePass
from sordino.privacy._sensitivity import sensitivity


def normalised(steps: int) -> BLT:
    norms = np.linspace(2, 1, steps).astype(np.float32)
    return BLT(np.array([0.9], np.float32), np.array([0.3], np.float32), norms, steps)


def cases() -> list[Phases]:
    return [
        Phases((Tree(4, 0.9), Tree(9, 0.9)), (1.5, 0.25)),
        Phases((Tree(5),), (2.0,)),
        Phases(
            (
                Independent(3),
                normalised(6),
                Banded(np.array([1.0, 0.5, 0.25], np.float32), None, 3),
            ),
            (1.0, 3.0, 0.5),
        ),
        Phases(
            (Dense.square_root(Workload.prefix(), SinglePass(6)), Tree(1), Tree(3)),
            (0.7, 1.0, 2.0),
        ),
        Phases((Tree(3), Phases((Tree(2), Independent(4)), (1.0, 2.0))), (1.0, 3.0)),
    ]


def identity_draw(n: int):
    return lambda first, count: jax.lax.dynamic_slice(jnp.eye(n), (first, 0), (count, n))


def streamed(mechanism: Mechanism, longest: int) -> np.ndarray:
    """All rows for Z = I by one compiled function of a traced first step, as the engine does."""
    n = mechanism.steps

    @partial(jax.jit, static_argnums=3)
    def chunk(mechanism, state, first, count):
        return mechanism.rows(state, identity_draw(n), first, count)

    state, first, found = mechanism.init(n), 0, []
    for end in (*mechanism.boundaries, n):
        while first < end:
            count = min(longest, end - first)
            rows, state = chunk(mechanism, state, jnp.int32(first), count)
            found.append(np.asarray(rows, np.float64))
            first += count
    return np.concatenate(found)


@pytest.mark.parametrize("phases", cases(), ids=range(5))
def test_streamed_rows_are_the_inverse_of_the_stated_strategy(phases: Phases) -> None:
    # One step at a time compiles once; blocks of several are tried on the first case.
    N = streamed(phases, 3 if phases == cases()[0] else 1)
    assert not np.triu(N, 1).any()
    C = np.linalg.inv(N)
    X = phases.strategy().gram()
    np.testing.assert_allclose(C.T @ C, X, rtol=0, atol=3e-6 * np.abs(X).max())
    np.testing.assert_allclose(phases.noising_matrix(), N, rtol=0, atol=1e-6 * np.abs(N).max())


def test_a_block_whose_place_is_known_may_straddle() -> None:
    phases = cases()[4]
    n = phases.steps
    whole = jax.jit(lambda state: phases.rows(state, identity_draw(n), 0, n)[0])(phases.init(n))
    np.testing.assert_allclose(whole, phases.noising_matrix(), rtol=1e-5, atol=1e-6)


def test_breaks_are_the_starts_of_the_later_parts() -> None:
    assert [case.boundaries for case in cases()] == [(4,), (), (3, 9), (6, 7), (3, 5)]
    assert [case.steps for case in cases()] == [13, 5, 12, 10, 9]
    assert [case.state_vectors() for case in cases()] == [7, 3, 0 + 1 + 2, 6 + 1 + 2, 2 + 2 + 0]


def test_a_block_that_straddles_is_never_quietly_wrong() -> None:
    phases = Phases((Tree(4), Tree(4)), (1.0, 1.0))
    chunk = jax.jit(lambda state, first: phases.rows(state, identity_draw(8), first, 3)[0])
    assert np.isfinite(chunk(phases.init(8), jnp.int32(1))).all()
    assert np.isnan(chunk(phases.init(8), jnp.int32(2))).all()
    assert np.isnan(chunk(phases.init(8), jnp.int32(6))).all()
    long = jax.jit(lambda state, first: phases.rows(state, identity_draw(8), first, 5)[0])
    assert np.isnan(long(phases.init(8), jnp.int32(0))).all()
    with pytest.raises(SordinoError, match="rows 6 to 8 are not among these 8 steps"):
        phases.rows(phases.init(8), identity_draw(8), 6, 3)


def test_parts_are_independent_and_draws_are_those_of_the_run() -> None:
    """Part p at its own first step sees the run's draw of that step, not draw 0 once more."""
    phases = Phases((Independent(3), Independent(4)), (1.0, 2.0))
    draws = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    rows, _ = phases.rows(
        phases.init(5), lambda a, k: jax.lax.dynamic_slice(draws, (a, 0), (k, 5)), 0, 7
    )
    np.testing.assert_allclose(rows, draws * np.array([1, 1, 1, 2, 2, 2, 2])[:, None], rtol=1e-6)


@pytest.mark.parametrize("phases", cases(), ids=range(5))
@pytest.mark.parametrize(
    "workload", [Workload.identity(), Workload.heavy_ball(0.9), LaggedMomentumMap(4, 0.9, 0.2, 0.1)]
)
def test_predicted_errors_are_the_materialised_ones(phases: Phases, workload) -> None:
    covariance = np.linalg.inv(phases.strategy().gram())
    W = workload.matrix(phases.steps)
    expected = np.sqrt(np.diag(W @ covariance @ W.T))
    np.testing.assert_allclose(phases.workload_error(workload), expected, rtol=2e-5)
    if not isinstance(workload, LaggedMomentumMap) and not workload.ratios:
        np.testing.assert_allclose(phases.step_error(), expected, rtol=2e-5)


def test_long_phases_know_their_noise_per_step() -> None:
    phases = Phases((Tree(5000), Tree(100_000)), (1.0, 2.0))
    assert phases.step_error()[[0, 5000]] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize("phases", cases(), ids=range(5))
def test_json_round_trip(phases: Phases) -> None:
    read = mechanism_from_json(json.loads(json.dumps(phases.to_json())))
    assert isinstance(read, Phases)
    assert read.scales == phases.scales
    assert np.array_equal(read.noising_matrix(), phases.noising_matrix())
    assert read.describe() == phases.describe()


def test_sensitivity_follows_from_the_parts() -> None:
    phases = Phases((Tree(4), Tree(8)), (2.0, 0.5))
    # Pattern {0, 4, 8}: three nodes over step 0; [1,1], [1,2], [1,4] and [1,8] over step 4, the
    # last of which also holds step 8, as do [5,5], [5,6].
    expected = 3 / 4 + (3 + 2 + 2**2) / 0.25
    found = sensitivity(phases.strategy(), FixedBatches(12, 4))
    assert found.value**2 == pytest.approx(expected)
    assert found.exact
    assert found.pattern == (0, 4, 8)


def test_equality_hash_and_pytree() -> None:
    a, b = (Phases((Tree(4), Tree(8)), (2.0, 0.1)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a.scales[1] == float(np.float32(0.1))
    leaves, structure = jax.tree.flatten(cases()[2])
    assert jax.tree.unflatten(structure, leaves).scales == cases()[2].scales


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Phases((), ()), "every phase needs a mechanism and a scale, got 0 and 0"),
        (lambda: Phases((Tree(2), Tree(3)), (1.0,)), "a mechanism and a scale, got 2 and 1"),
        (lambda: Phases((Tree(2), None), (1.0, 1.0)), "must be a mechanism, got None"),  # type: ignore[arg-type]
        (lambda: Phases((Tree(2),), (0.0,)), "must be a positive number"),
        (lambda: Phases((Tree(2),), (float("nan"),)), "must be a positive number"),
        (lambda: Phases((Tree(2),), (1e-60,)), "must be a positive number"),
        (
            lambda: Phases((Parallel((Tree(2), Tree(2)), (1.0, 1.0)),), (1.0,)),
            "cannot have several channels",
        ),
        (lambda: mechanism_from_json({"kind": "phases", "parts": []}), "phases in this plan"),
        (lambda: Tree(4).rows(Tree(4).init(1), identity_draw(8), 2, 3), "none for step 5"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(make, message: str) -> None:
    with pytest.raises(SordinoError, match=message):
        make()


def test_weights_single_out_a_part() -> None:
    """Errors are additive over the parts: what `lagged_mechanism` rests on."""
    phases = Phases((Tree(4), Tree(9)), (2.0, 3.0))
    first = (np.arange(13) < 4).astype(float)
    apart = [phases.workload_error(AnytimeMap(), weights) for weights in (first, 1 - first)]
    np.testing.assert_allclose(np.hypot(*apart), phases.workload_error(AnytimeMap()), rtol=1e-12)
    assert not apart[1][:4].any()

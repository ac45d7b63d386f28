"""What is agreed on: rates, sizes, the engine's noise, and files that say what they do."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino
from sordino._base.errors import SordinoError
from sordino.together.parties._terms import Terms, agree, assumption_of, growth
from sordino.together.secure._base import engine_distance
from tests.support.sum_noise import SumNoise

BUDGET = {"epsilon": 1.0, "delta": 1e-5}


def test_a_party_that_brings_the_whole_batch_pays_for_it() -> None:
    """papers/01 oracle 14: the rate is max_j b_j / n_j, not b over all records."""
    sizes = (3256,) * 10
    given_terms: dict[str, object] = {
        "noise_multiplier": 3.375,
        "steps": 2605,
        "parameters": 123,
        "sampling": "without-replacement",
    }
    alone = agree("dp-sgd", examples=sizes, batches=(50,) + (0,) * 9, engine="plain", **given_terms)
    assert alone.plan.population.rate == pytest.approx(0.015356, rel=1e-4)
    assert alone.guarantee.epsilon(1e-5) >= 2.08
    shared = agree("dp-sgd", examples=sizes, batches=(5,) * 10, engine="plain", **given_terms)
    assert shared.plan.population.rate == pytest.approx(50 / 32560, rel=1e-12)
    assert shared.guarantee.epsilon(1e-5) < 0.25


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(20, 2000), min_size=1, max_size=6),
    share=st.floats(0.05, 0.9),
    sampling=st.sampled_from(["poisson", "without-replacement"]),
)
def test_no_record_is_taken_more_often_than_accounted(
    sizes: list[int], share: float, sampling: str
) -> None:
    batch = max(1, round(share * sum(sizes)))
    terms = agree(
        "dp-sgd",
        examples=sizes,
        parameters=3,
        batch_size=batch,
        steps=5,
        sampling=sampling,
        engine="plain",
        noise_multiplier=2.0,
    )
    accounted = Fraction(terms.plan.population.batch_size, terms.plan.population.examples)
    for n, b in zip(sizes, terms.batches, strict=True):
        assert Fraction(b) / n <= accounted * (1 + Fraction(1, 2**50))
    assert sum(terms.batches) == pytest.approx(batch)
    if sampling == "poisson":
        # One rate everywhere: nothing is lost against pooled records.
        assert terms.plan.population.examples == sum(sizes)


@pytest.mark.parametrize("engine", ["mask", "mpyc", "spu"])
def test_the_engine_is_in_the_guarantee_and_within_the_budget(engine: str) -> None:
    terms = agree(
        "dp-srm", examples=(400, 300, 300), parameters=50, batch_size=100, steps=30, engine=engine,
        **BUDGET,
    )  # fmt: skip
    assert terms.guarantee.epsilon(1e-5) <= 1.0
    assert terms.guarantee.distance >= terms.plan.guarantee.distance
    assert engine in terms.statement()
    draws = 30 * 50
    assert terms.guarantee.distance >= max(
        engine_distance(S, draws, terms.assumption) for S in terms.variances
    )
    noise = SumNoise(1, max(terms.variances), 50, terms.assumption)
    assert noise.remaining >= max(terms.variances)


def test_plain_is_said_to_protect_nobody() -> None:
    terms = agree("dp-gd", examples=(50, 60), parameters=4, steps=3, engine="plain", **BUDGET)
    assert "protects nobody" in terms.statement()


def test_terms_read_back_and_are_held_to_their_word() -> None:
    terms = agree(
        "dp-sgd", examples=(400, 300), parameters=5, batch_size=70, steps=10, engine="mask",
        **BUDGET,
    )  # fmt: skip
    data = json.loads(json.dumps(terms.to_json()))
    assert Terms.from_json(data).hash == terms.hash
    for changed, reason in (
        ({"batches": [60.0, 10.0]}, "more often than"),
        ({"batches": [70.0]}, "one batch size for each party"),
        ({"batches": [-1.0, 70.0]}, "cannot have batches"),
        ({"batches": [True, 30.0]}, "batch size is a number"),
        ({"examples": [400, 0]}, "examples"),
        ({"engine": "trust me"}, "engine"),
        ({"colluders": 2}, "colluders"),
        ({"parameters": "5"}, "whole number"),
        ({"version": 9}, "version"),
        ({"plan": {**data["plan"], "noise": data["plan"]["noise"] / 2}}, "guarantee"),
    ):
        with pytest.raises(SordinoError, match=reason):
            Terms.from_json({**data, **changed})


def test_a_budget_that_is_spent_adaptively_is_not_summed() -> None:
    """Its guarantee holds for a run that counts what it spends, whatever noise the file says."""
    plan = sordino.plan("dp-agd", examples=900, steps=20, **BUDGET)
    data = {**plan.to_json(), "noise": 0.01, "noise_kind": "discrete", "lattice": -18}
    with pytest.raises(SordinoError, match="on no lattice"):
        sordino.Plan.from_json(data)
    ordinary = sordino.plan("dp-gd", examples=900, steps=20, noise="discrete", **BUDGET).to_json()
    with pytest.raises(SordinoError, match="another kind of schedule"):
        sordino.Plan.from_json({**ordinary, "schedule": data["schedule"]})
    with pytest.raises(SordinoError, match="no discrete noise"):
        agree("dp-agd", examples=(500, 400), parameters=5, steps=20, engine="mask", **BUDGET)


def test_sizes_that_the_plan_does_not_know_are_refused() -> None:
    terms = agree(
        "dp-sgd", examples=(300, 300), parameters=5, batch_size=30, steps=10, engine="mask",
        **BUDGET,
    )  # fmt: skip
    with pytest.raises(SordinoError, match="no first batch"):
        replace(terms, first_batches=(300, 300))
    full = agree("dp-gd", examples=(300, 300), parameters=5, steps=10, engine="mask", **BUDGET)
    with pytest.raises(SordinoError, match="dealt evenly"):
        replace(full, batches=(300, 300))
    with pytest.raises(SordinoError, match="2\\^40"):
        replace(terms, parameters=1 << 25)
    for batches in ([0, 0], [], [float("nan"), 1], [True, 3], [-1, 3]):
        with pytest.raises(SordinoError):
            agree("dp-sgd", examples=(300, 300), parameters=5, batches=batches, steps=10, **BUDGET)


def test_a_plan_without_a_lattice_is_refused() -> None:
    plan = sordino.plan("dp-gd", examples=100, steps=3, **BUDGET)
    with pytest.raises(SordinoError, match="discrete"):
        Terms(plan, (60, 40), (), (), 4, "mask", 1)
    terms = agree("dp-gd", examples=(60, 40), parameters=4, steps=3, engine="mask", **BUDGET)
    with pytest.raises(SordinoError, match="another number of records"):
        replace(terms, examples=(60, 41))


@pytest.mark.parametrize(
    ("engine", "parties", "colluders"),
    [("mask", 1, None), ("mask", 3, 3), ("mask", 3, 0), ("mpyc", 2, None), ("mpyc", 4, 2),
     ("spu", 2, None), ("spu", 5, 2), ("plain", 3, 1)],
)  # fmt: skip
def test_assumptions_that_no_engine_meets_are_refused(
    engine: str, parties: int, colluders: int | None
) -> None:
    with pytest.raises(SordinoError):
        assumption_of(engine, parties, colluders)


def test_vectors_that_might_not_fit_are_refused_before_anybody_signs() -> None:
    with pytest.raises(SordinoError, match=r"bits|fit"):
        agree(
            "dp-mu2", examples=(2**36, 2**36), parameters=4, batch_size=2**20, steps=2**12,
            engine="mask", mechanism="cancelling", **BUDGET,
        )  # fmt: skip


def test_growth_is_the_largest_row_sum_of_the_encoder() -> None:
    for recipe, options in (("dp-memf", {"mechanism": "tree"}), ("dp-mu2", {})):
        plan = sordino.plan(
            recipe, examples=64, batch_size=4, epochs=1, noise="discrete", **options, **BUDGET
        )
        import numpy as np

        encoder = np.linalg.inv(plan.mechanism.noising_matrix())
        assert growth(plan.mechanism) == round(encoder.sum(axis=1).max())
        # What `encoding.py` counts on when turns are lost.
        assert encoder.min() > -1e-9

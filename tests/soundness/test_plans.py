"""A plan that is run is what it states: whoever runs it, or pays for it, finds out first."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino import audit
from sordino._base.errors import SordinoError
from sordino._base.keys import RunKey
from sordino.engine.ledger._ledger import Ledger
from sordino.models._search import PrivateSearch
from sordino.parts._losses import Logistic
from sordino.parts.contributions._contributions import Gradient
from sordino.parts.contributions._rules import PairRule
from sordino.parts.sampling import Population
from sordino.planning import Training
from sordino.planning import _training as planning
from sordino.planning._plans import Plan
from sordino.privacy._guarantee import Guarantee
from sordino.together.parties._learner import Learner
from sordino.together.parties._terms import agree

N, D = 60, 3
START = np.zeros(D, np.float32)


class Unread:
    """A record that must not be looked at."""

    shape, ndim, dtype = (N, D), 2, np.dtype(np.float32)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a record was read")

    def __len__(self) -> int:
        return N


UNREAD: Any = (Unread(), Unread())


def made(recipe: str = "dp-gd", **changes: Any) -> Plan:
    settings = {"examples": N, "steps": 2, "epsilon": 0.05, "delta": 1e-5, **changes}
    return sordino.plan(recipe, **settings)


def quieter(plan: Plan) -> Plan:
    return plan.with_training(noise_multiplier=1e-6)


def longer(plan: Plan) -> Plan:
    return plan.with_training(population=dataclasses.replace(plan.population, steps=100))


def longer_throughout(plan: Plan) -> Plan:
    mechanism = dataclasses.replace(plan.mechanism, steps=100)  # type: ignore[type-var]
    return longer(plan).with_training(mechanism=mechanism)


def promising(plan: Plan) -> Plan:
    stated = dataclasses.replace(plan.guarantee, gaussian_mu=plan.guarantee.gaussian_mu / 10)
    return dataclasses.replace(plan, guarantee=stated)


def for_less(plan: Plan) -> Plan:
    return dataclasses.replace(plan, epsilon=0.01)


def written_over(plan: Plan) -> Plan:
    edited = copy.copy(plan)
    object.__setattr__(edited.training, "noise_multiplier", 1e-6)
    return edited


def another_run_slipped_in(plan: Plan) -> Plan:
    edited = copy.copy(plan)
    object.__setattr__(edited, "queries", (quieter(plan).training,))
    return edited


def another_run_in_front(plan: Plan) -> Plan:
    edited = copy.copy(plan)
    object.__setattr__(edited, "training", quieter(plan).training)
    return edited


EDITS = (
    quieter,
    longer,
    longer_throughout,
    promising,
    for_less,
    written_over,
    another_run_slipped_in,
    another_run_in_front,
)


@pytest.mark.parametrize("edit", EDITS)
def test_train_refuses_an_edited_plan(edit: Callable[[Plan], Plan]) -> None:
    """S5: an edited plan in memory ran, and stated epsilon 0.05."""
    with pytest.raises(SordinoError, match="this plan"):
        sordino.train(edit(made()), Logistic(), START, UNREAD, insecure_seed=0)


@pytest.mark.parametrize("edit", EDITS)
def test_a_session_refuses_an_edited_plan(edit: Callable[[Plan], Plan]) -> None:
    """S5: so did a session."""
    with pytest.raises(SordinoError, match="this plan"):
        sordino.Session(edit(made()), Logistic(), START, insecure_seed=0)


@pytest.mark.parametrize("edit", EDITS)
def test_the_ledger_refuses_an_edited_plan(edit: Callable[[Plan], Plan], tmp_path: Path) -> None:
    """S5: the ledger charged what the plan stated, not what it cost."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=1.0, delta=1e-5)
    plan = edit(made())
    with pytest.raises(SordinoError, match="this plan"):
        ledger.reserve("people", plan, run="r1")
    with pytest.raises(SordinoError, match="this plan"):
        ledger.check("people", plan)
    assert ledger.reservations() == ()


def test_an_adaptive_run_refuses_a_larger_budget_than_it_states() -> None:
    """S5: an adaptive plan pays from its schedule's budget."""
    plan = made("dp-agd")
    schedule = dataclasses.replace(plan.schedule, mu=10.0)  # type: ignore[type-var]
    with pytest.raises(SordinoError, match="this plan"):
        sordino.train(
            plan.with_training(schedule=schedule), Logistic(), START, UNREAD, insecure_seed=0
        )


def test_an_amplified_plan_is_held_to_its_rate() -> None:
    """S5: larger secret batches are drawn more often than the plan accounts for."""
    plan = made("dp-sgd", batch_size=3, epsilon=1.0)
    larger = dataclasses.replace(plan.population, batch_size=30)
    with pytest.raises(SordinoError, match="this plan"):
        plan.with_training(population=larger).verify()


def test_audits_refuse_an_edited_plan() -> None:
    """S5: an audit compares with what is stated, so that has to be the plan's own."""
    with pytest.raises(SordinoError, match="this plan"):
        audit.white_box(quieter(made()), runs=100)
    with pytest.raises(SordinoError, match="this plan"):
        audit.one_run(quieter(made()), Logistic(), START, UNREAD, UNREAD)


def test_parties_refuse_an_edited_plan() -> None:
    """S5: every party learns by the terms' plan, and its ledger pays for them."""
    terms = agree(
        "dp-gd", examples=[N, N], parameters=D, steps=2, epsilon=1.0, delta=1e-5, engine="mask"
    )
    stated = dataclasses.replace(terms.plan.guarantee, gaussian_mu=1e-3)
    edited = dataclasses.replace(terms, plan=dataclasses.replace(terms.plan, guarantee=stated))
    with pytest.raises(SordinoError, match="this plan"):
        edited.verify()
    with pytest.raises(SordinoError, match="this plan"):
        Learner(edited, 0, Logistic(), START, UNREAD, key=RunKey.fresh())


def test_a_search_is_what_it_states(tmp_path: Path) -> None:
    """S5: what a ledger charges for a search is what its trials cost together."""
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("people", epsilon=3.0, delta=1e-5)
    for method in ("random-stopping", "composition"):
        search = PrivateSearch(
            sordino.PrivateClassifier(examples=N), {"clip": [1, 2]}, delta=1e-5, method=method
        )
        plan = search._plan(N, 0)
        plan.verify()
        with pytest.raises(SordinoError, match="its trials do not give"):
            ledger.reserve("people", dataclasses.replace(plan, trial_mu=9.0), run="r")


def test_without_noise_there_is_no_guarantee() -> None:
    """S5: a recipe that adds no noise cannot be made to state a guarantee."""
    plan = sordino.plan("sgd", examples=N, batch_size=N, steps=2)
    plan.verify()
    stated = Guarantee.gaussian(0.1, adjacency="zero-out", unit="example", participation="once")
    for edited in (
        dataclasses.replace(plan, guarantee=stated),
        plan.with_training(noise_multiplier=5.0),
        made().with_training(noise_multiplier=0.0),
        dataclasses.replace(made(), recipe="sgd"),
    ):
        with pytest.raises(SordinoError, match="this plan"):
            sordino.train(edited, Logistic(), START, UNREAD, insecure_seed=0)


def test_what_is_inside_a_plan_cannot_be_edited_in_place() -> None:
    """S5: neither can the arrays of a strategy be changed behind its back."""
    plan = sordino.plan(
        "dp-memf", examples=N, batch_size=10, epochs=2, epsilon=1.0, delta=1e-5, mechanism="dense"
    )
    for known in (plan, copy.deepcopy(plan), Plan.from_json(plan.to_json())):
        arrays = [value for value in vars(known.mechanism).values() if np.ndim(value)]
        assert arrays
        for value in arrays:
            with pytest.raises(ValueError, match="read-only"):
                value *= 0.1
    louder = plan.mechanism.noising * np.float32(0.1)  # type: ignore[attr-defined]
    mechanism = dataclasses.replace(plan.mechanism, noising=louder)  # type: ignore[type-var]
    with pytest.raises(SordinoError, match="this plan"):
        plan.with_training(mechanism=mechanism).verify()


def test_consistent_changes_pass() -> None:
    """S5: post-processing is free to change, and an edited plan can be stated anew."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=(N, D)).astype(np.float32), rng.integers(0, 2, N).astype(np.int32)
    plan = made()
    for changed in (
        plan.with_update(learning_rate=0.5),
        plan.with_training(update=dataclasses.replace(plan.update, learning_rate=0.5)),
        copy.deepcopy(plan),
        Plan.from_json(plan.to_json()),
        longer_throughout(plan).restated(),
        quieter(plan).restated(),
    ):
        changed.verify()
        result = sordino.train(changed, Logistic(), START, data, insecure_seed=0)
        assert result.guarantee == changed.guarantee
    assert quieter(plan).restated().guarantee.mu > 1e5


def test_a_verified_plan_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: what `sordino.plan` made, or what is equal to what was verified, costs nothing."""
    plan = made("dp-sgd", batch_size=6, epsilon=1.0)
    twin = copy.deepcopy(plan)
    twin.verify()

    def again(**_: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(planning, "guarantee_of", again)
    plan.verify()
    plan.with_update(learning_rate=0.1).verify()
    copy.deepcopy(plan).verify()
    with pytest.raises(AssertionError, match="computed again"):
        quieter(plan).verify()


class _Loose(Gradient):
    """Clips nothing, and describes itself as what does."""

    def rule(self) -> Any:
        return PairRule()


def test_parts_of_a_plan_are_what_they_say() -> None:
    """S5: a part of another class with the same description."""
    plan = made()
    loose = plan.with_training(contribution=_Loose(plan.clip))
    assert loose.hash == plan.hash
    with pytest.raises(SordinoError, match="_Loose is not what its recipe is made of"):
        sordino.train(loose, Logistic(), START, UNREAD)


class _Silent(Training):
    """A run that adds no noise, and describes itself as one that does."""

    def noise_stds(self) -> Any:
        return super().noise_stds() * 0


class _Few(Population):
    """Counts fewer steps than it has."""


def test_runs_populations_and_parts_inside_parts_are_what_they_say() -> None:
    """Classes with the same description as what was verified before."""
    plan = made("dp-sgd", batch_size=6, epsilon=1.0)
    run = plan.training
    fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(run)}
    silent = dataclasses.replace(plan, queries=(_Silent(**fields),))
    few = plan.with_training(population=_Few(**dataclasses.asdict(plan.population)))
    scaled = made("dp-mu2", batch_size=6, schedule="participation", mechanism="cancelling")
    for changed in (silent, few):
        assert changed.hash == plan.hash
        with pytest.raises(SordinoError, match="of another class"):
            changed.verify()
    inner = scaled.mechanism.inner  # type: ignore[attr-defined]
    other = type("Other", (type(inner),), {})(
        **{f.name: getattr(inner, f.name) for f in dataclasses.fields(inner)}
    )
    nested = dataclasses.replace(scaled.mechanism, inner=other)  # type: ignore[type-var]
    with pytest.raises(SordinoError, match="is not what its recipe is made of"):
        scaled.with_training(mechanism=nested).verify()


def test_a_dense_matrix_has_nothing_above_its_diagonal() -> None:
    """It is analysed and written by its lower triangle; noise of the rest would be shared by steps."""
    plan = made("dp-memf", batch_size=6, mechanism="dense", steps=4)
    full = np.asarray(plan.mechanism.noising).copy()  # type: ignore[attr-defined]
    full[0, -1] = 1.0
    with pytest.raises(SordinoError, match="lower triangular"):
        dataclasses.replace(plan.mechanism, noising=full)  # type: ignore[type-var]


def test_a_clip_beyond_what_sums_can_hold_is_refused() -> None:
    """One record more or less decided whether a sum overflowed before its noise."""
    with pytest.raises(SordinoError, match="may add up beyond float32"):
        made(clip=1e36)

"""Plans of several charged queries: one guarantee over all, noise calibrated beside the others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import sordino
from sordino import Guarantee, Logistic, Plan, SordinoError
from sordino._base.keys import RunKey
from sordino.engine import RUNNERS
from sordino.engine.ledger import Ledger
from sordino.planning import QUERIES
from sordino.privacy import compose, mu_from_epsilon_delta

N = 200
ASKED = {"examples": N, "batch_size": 20, "steps": 40, "epsilon": 1.0, "delta": 1e-6}


@dataclass(frozen=True)
class Count:
    """How many rows have a first feature above 0, with Gaussian noise: mu-GDP."""

    mu: float
    name: str = "count"
    kind: ClassVar[str] = "test-count"

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        kappa = 2 if adjacency == "replace-one" else 1
        return Guarantee.gaussian(
            kappa * self.mu,
            adjacency=adjacency,
            unit=unit,
            participation="once",
            delta_hint=delta_hint,
        )

    def decisive(self) -> tuple[object, ...]:
        return (self.mu, self.name)

    def describe(self) -> str:
        return f"a count with noise {1 / self.mu:.4g}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "mu": self.mu}


def read(data: dict[str, Any]) -> Count:
    return Count(float(data["mu"]), str(data["name"]))


def answer(query: Count, data: Any, key: RunKey, earlier: Mapping[str, Any]) -> float:
    noise = key.generator("noise").normal() / query.mu
    return float((np.asarray(data[0])[:, 0] > 0).sum() + noise)


@pytest.fixture(autouse=True)
def _counts() -> Iterator[None]:
    with QUERIES.temporary(), RUNNERS.temporary():
        QUERIES.add(Count.kind, read)
        RUNNERS.add(Count.kind, answer)
        yield


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.float32)


@pytest.mark.parametrize(("sampling", "factor"), [("poisson", 1.0227), ("fixed", 1.0260)])
def test_noise_beside_other_queries(sampling: str, factor: float) -> None:
    """2 % and 3 % of mu^2 beside: 3.19652 becomes 3.26909 with Poisson batches."""
    asked = {"examples": 10_000, "batch_size": 500, "steps": 200, "epsilon": 1.0, "delta": 1e-6}
    alone = sordino.plan("dp-sgd", sampling=sampling, **asked)
    mu = mu_from_epsilon_delta(1.0, 1e-6)
    others = (Count(mu * math.sqrt(0.02), "first"), Count(mu * math.sqrt(0.03), "second"))
    beside = sordino.plan("dp-sgd", sampling=sampling, beside=others, **asked)
    assert beside.noise_multiplier / alone.noise_multiplier == pytest.approx(factor, abs=2e-4)
    if sampling == "poisson":
        assert alone.noise_multiplier == pytest.approx(3.19652, rel=3e-4)
        assert beside.noise_multiplier == pytest.approx(3.26909, rel=3e-4)
    assert beside.guarantee.epsilon(1e-6) <= 1.0 * (1 + 1e-9)
    assert beside.guarantee.epsilon(1e-6) > 0.999


def test_one_guarantee_over_all() -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED)
    own = plan.training.guarantee(adjacency="zero-out", unit="example", delta_hint=1e-6)
    assert plan.guarantee.mu == compose([own, Count(0.05).guarantee(
        adjacency="zero-out", unit="example", delta_hint=1e-6)]).mu  # fmt: skip
    assert "in 2 queries (count: once; training: at most 4 times" in plan.guarantee.sentence()
    assert "asked besides" in str(plan)
    assert plan.guarantee.analysis == "upper bound"


def test_a_plan_of_training_alone_is_written_as_it_always_was() -> None:
    plan = sordino.plan("dp-memf", **ASKED)
    assert plan.to_json()["version"] == 2
    assert "queries" not in plan.to_json()
    assert plan.others == ()


def test_a_composed_plan_is_read_back(tmp_path: Path) -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], noise="discrete", **ASKED)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.to_json()["version"] == 3
    assert again == plan
    assert again.guarantee == plan.guarantee
    assert [query.name for query in again.queries] == ["count", "training"]


def _edited(change: str) -> dict[str, Any]:
    data = json.loads(json.dumps(sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED).to_json()))
    count, training = data["queries"]
    if change == "a dearer query":
        count["mu"] = 5.0
    elif change == "less noise":
        training["noise"] = 1e-3
    elif change == "a query more":
        data["queries"].insert(0, {"kind": "test-count", "name": "another", "mu": 0.01})
    elif change == "a query less":
        data["queries"] = [training]
    elif change == "no training":
        data["queries"] = [count, dict(count, name="other")]
    elif change == "two of one name":
        data["queries"].insert(0, dict(count))
    elif change == "an unknown kind":
        count["kind"] = "nonsense"
    return data


@pytest.mark.parametrize(
    "change",
    [
        "a dearer query",
        "less noise",
        "a query more",
        "a query less",
        "no training",
        "two of one name",
        "an unknown kind",
    ],
)
def test_a_composed_plan_that_was_changed_is_refused(change: str) -> None:
    with pytest.raises(SordinoError):
        Plan.from_json(_edited(change))


def test_a_plan_in_memory_with_a_dearer_query_is_refused(tmp_path: Path) -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED)
    dear = replace(plan, queries=(Count(5.0), plan.training))
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("rows", epsilon=5.0, delta=1e-5)
    for refused in (
        dear.verify,
        lambda: sordino.train(dear, Logistic(), np.zeros(3, np.float32), rows(), insecure_seed=0),
        lambda: ledger.reserve("rows", dear, run="r"),
    ):
        with pytest.raises(SordinoError, match="this plan"):
            refused()


def test_other_queries_are_answered_once_and_the_same_again() -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05), Count(0.04, "again")], **ASKED)
    start = np.zeros(3, np.float32)
    first, second = (
        sordino.train(plan, Logistic(), start, rows(), insecure_seed=seed) for seed in (1, 1)
    )
    assert list(first.answers) == ["count", "again"]
    assert first.answers == second.answers
    other = sordino.train(plan, Logistic(), start, rows(), insecure_seed=2)
    assert other.answers != first.answers
    # Two queries of a run share no noise.
    truth = float((rows()[0][:, 0] > 0).sum())
    a, b = ((first.answers[q.name] - truth) * q.mu for q in plan.others)  # type: ignore[attr-defined]
    assert a != pytest.approx(b)
    assert sordino.train(sordino.plan("dp-memf", **ASKED), Logistic(), start, rows()).answers == {}


def test_who_only_trains_refuses_more() -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED)
    with pytest.raises(SordinoError, match=r"a session is for a plan of training alone.*'count'"):
        sordino.Session(plan, Logistic(), np.zeros(3, np.float32))
    with pytest.raises(SordinoError, match="an audit is for a plan of training alone"):
        sordino.audit.white_box(plan)


def test_queries_without_a_runner_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED)
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("rows", epsilon=5.0, delta=1e-5)
    with RUNNERS.temporary():
        RUNNERS._items.clear()
        with pytest.raises(SordinoError, match="no runner for 'test-count' queries"):
            sordino.train(
                plan, Logistic(), np.zeros(3, np.float32), rows(), ledger=ledger, dataset="rows"
            )
    assert ledger.reservations() == ()


def test_a_budget_that_others_have_spent() -> None:
    with pytest.raises(SordinoError, match="cost all of its budget"):
        sordino.plan("dp-memf", beside=[Count(5.0)], **ASKED)
    with pytest.raises(SordinoError, match="two queries of this plan are called 'count'"):
        sordino.plan("dp-memf", beside=[Count(0.01), Count(0.01)], **ASKED)


def test_the_old_name_of_the_noise_multiplier_says_the_new_one() -> None:
    """A silent change from a number to a word would be a trap."""
    plan = sordino.plan("dp-memf", **ASKED)
    with pytest.raises(AttributeError, match="its amount is `noise_multiplier`"):
        plan.noise  # noqa: B018
    assert plan.noise_kind == "gaussian"


def test_names_are_texts() -> None:
    """1 and "1" derived the same noise."""
    for names in ((1, "1"), ("", "a"), ("a\n", "b"), ("\ud800", "b")):
        others = [Count(0.01, name) for name in names]  # type: ignore[arg-type]
        with pytest.raises(SordinoError, match="the name of a query must be a text"):
            sordino.plan("dp-memf", beside=others, **ASKED)


@dataclass(frozen=True)
class Dear(Count):
    """Costs a hundred times what it says in its description."""

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        return replace(
            super().guarantee(adjacency=adjacency, unit=unit, delta_hint=delta_hint),
            gaussian_mu=100 * self.mu,
        )


def test_a_query_with_the_description_of_another_is_refused() -> None:
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **ASKED)
    with pytest.raises(SordinoError, match="Dear is not what reads its description"):
        replace(plan, queries=(Dear(0.05), plan.training)).verify()


@dataclass(frozen=True)
class Weighted(Count):
    """Its cost is in a field that is post-processing in a training run."""

    workload: float = 1.0
    kind: ClassVar[str] = "test-weighted"

    def guarantee(self, *, adjacency: str, unit: str, delta_hint: float | None) -> Guarantee:
        own = super().guarantee(adjacency=adjacency, unit=unit, delta_hint=delta_hint)
        return replace(own, gaussian_mu=own.gaussian_mu * self.workload)

    def decisive(self) -> tuple[object, ...]:
        return (self.mu, self.workload)

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "workload": self.workload}


def test_every_field_of_another_query_decides() -> None:
    QUERIES.add(Weighted.kind, lambda data: Weighted(data["mu"], data["name"], data["workload"]))
    plan = sordino.plan("dp-memf", beside=[Weighted(0.01)], **ASKED)
    with pytest.raises(SordinoError, match="states a guarantee that its noise does not give"):
        replace(plan, queries=(Weighted(0.01, workload=1000.0), plan.training)).verify()


def test_a_composed_run_is_never_free_and_has_no_checkpoint(tmp_path: Path) -> None:
    """Who answers is not described, so another answer under the same key would cost nothing."""
    plan = sordino.plan("dp-memf", beside=[Count(0.05)], **{**ASKED, "epsilon": 0.5})
    ledger = Ledger.create(tmp_path / "a.ledger")
    ledger.add_dataset("rows", epsilon=5.0, delta=1e-5)
    key, start = RunKey.fresh(), np.zeros(3, np.float32)
    asked: dict[str, Any] = {"ledger": ledger, "dataset": "rows", "run_key": key}
    sordino.train(plan, Logistic(), start, rows(), **asked)
    with pytest.raises(SordinoError):
        sordino.train(plan, Logistic(), start, rows(), **asked)
    with pytest.raises(SordinoError, match="a checkpoint is for a plan of training alone"):
        sordino.train(plan, Logistic(), start, rows(), checkpoint=tmp_path / "run")

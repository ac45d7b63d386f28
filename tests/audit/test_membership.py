"""Membership inference: figures against definitions, honest bounds, leaks that are found."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import sordino
from sordino import Plan, PublicData, SordinoError, audit
from sordino.audit._membership import AttackScores, area, confidences, lira_scores
from sordino.parts._losses import Logistic
from sordino.privacy._guarantee import Guarantee

WORDS = {"unit": "example", "participation": "once"}
# Fewer rows than features: a model without privacy learns every label by heart.
MEMBERS, OTHERS, PUBLIC, FEATURES = 80, 300, 400, 120


def people(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, FEATURES)) / math.sqrt(FEATURES)
    y = (4 * X[:, 0] + rng.normal(size=count) > 0).astype(np.float32)
    return X.astype(np.float32), y


def private_plan() -> Plan:
    return sordino.plan(
        "dp-memf",
        examples=MEMBERS,
        batch_size=20,
        epochs=30,
        epsilon=1.0,
        delta=1e-3,
        learning_rate=10.0,
    )


def attacked(seed: int = 3) -> audit.MembershipReport:
    """Both attacks on a model trained as planned (or as patched)."""
    plan, loss, start = private_plan(), Logistic(), np.zeros(FEATURES, np.float32)
    members, others = people(MEMBERS, 0), people(OTHERS, 1)
    trained = sordino.train(plan, loss, start, members, insecure_seed=seed).params
    public = PublicData(*people(PUBLIC, 2))
    shadows = audit.shadow_models(plan, loss, start, public, 16, seed=4)
    return audit.membership_report(
        plan.guarantee,
        audit.loss_attack(loss, trained, members, others),
        audit.lira_attack(loss, trained, members, others, shadows),
    )


def test_a_private_model_is_not_accused() -> None:
    report = attacked()
    assert not report.violates, report.verdict()
    for attack in report.attacks:
        assert 0.35 < attack.auc < report.auc_bound
    assert report.verdict().startswith("No violation found.")


def test_a_model_without_noise_is_found_by_both_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """95 % confidence over all bounds of both; fixed seeds."""
    planned = Plan.noise_stds
    monkeypatch.setattr(Plan, "noise_stds", lambda self: planned(self) * np.float32(1e-6))
    report = attacked()
    assert report.violates
    assert "leaks more than its guarantee allows" in report.verdict()
    for attack in report.attacks:
        assert attack.auc_low > report.auc_bound, attack
    # The likelihood ratio is the better attack where few false alarms are allowed.
    simple, strong = (attack.powers[-1].tpr for attack in report.attacks)
    assert strong >= simple
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["exceeded"] is True
    assert [attack["name"] for attack in data["attacks"]] == ["loss threshold", "LiRA"]


def test_areas_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    members = np.round(rng.normal(0.4, 1, 150), 1)  # with ties
    others = np.round(rng.normal(0.0, 1, 90), 1)
    truth = np.r_[np.ones(150), np.zeros(90)]
    value, low, high = area(members, others, 0.025)
    assert value == pytest.approx(roc_auc_score(truth, np.r_[members, others]))
    assert low < value < high


def test_areas_are_covered_as_often_as_stated() -> None:
    """1,000 experiments, both bounds at 5 %: misses within 5 standard errors of a tenth."""
    from scipy.stats import norm

    rng, shift = np.random.default_rng(1), 0.7
    truth = norm.cdf(shift / math.sqrt(2))
    missed = 0
    for _ in range(1000):
        _, low, high = area(rng.normal(shift, 1, 120), rng.normal(0, 1, 150), 0.05)
        missed += not low <= truth <= high
    assert abs(missed / 1000 - 0.1) < 5 * math.sqrt(0.09 / 1000)


@pytest.mark.parametrize(("adjacency", "changes"), [("zero-out", 2), ("replace-one", 1)])
def test_the_largest_allowed_leak_is_rarely_called_one(adjacency: str, changes: int) -> None:
    """Scores exactly as far apart as allowed: 200 reports at 90 %, at most a tenth may be alarms."""
    guarantee = Guarantee.gaussian(0.6, adjacency=adjacency, **WORDS)
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(200):
        scores = AttackScores("simulated", rng.normal(0.6 * changes, 1, 300), rng.normal(size=300))
        report = audit.membership_report(guarantee, scores, confidence=0.9)
        alarms += report.violates
    assert report.changes == changes
    assert alarms <= 20 + 5 * math.sqrt(200 * 0.1 * 0.9)


def test_rates_are_counted_at_the_asked_false_alarms() -> None:
    others = np.arange(1000.0)
    members = np.arange(1000.0) + 100.5
    guarantee = Guarantee.gaussian(0.1, adjacency="replace-one", **WORDS)
    report = audit.membership_report(guarantee, AttackScores("shifted", members, others))
    tenth, hundredth, most = report.attacks[0].powers
    assert (tenth.tpr, hundredth.tpr, most.tpr) == (0.102, 0.111, 0.201)
    for power in report.attacks[0].powers:
        assert power.tpr_low < power.tpr < power.tpr_high
        assert power.fpr < power.fpr_high
        assert power.bound < power.bound_high
    assert report.violates  # a tenth of the members without one false alarm in a thousand


def test_confidence_is_the_logit() -> None:
    p = np.array([0.01, 0.5, 0.99])
    np.testing.assert_allclose(confidences(-np.log(p)), np.log(p / (1 - p)), rtol=1e-9)
    assert np.isfinite(confidences([0.0, 1e4])).all()


def test_the_likelihood_ratio_knows_hard_examples_from_easy_ones() -> None:
    """An easy example is confident in every model; only the hard one that became confident counts."""
    unseen = np.array([[5.0, -2.0, 0.0], [5.2, -2.1, 0.0], [4.8, -1.9, 0.0]])
    scores = lira_scores(np.array([5.1, 1.0, 0.0]), unseen)
    assert scores[1] > 10 * abs(scores[0])
    assert scores[2] == 0.0


def test_shadow_models_come_from_public_data_only() -> None:
    plan, start = private_plan(), np.zeros(FEATURES, np.float32)
    with pytest.raises(TypeError, match="a shadow model takes public data only"):
        audit.shadow_models(plan, Logistic(), start, people(50, 0))  # type: ignore[arg-type]
    few = PublicData(*people(30, 0))  # fewer than the plan's examples: rows come more than once
    models = audit.shadow_models(plan, Logistic(), start, few, 2, seed=1)
    assert len(models) == 2
    assert not np.array_equal(models[0], models[1])


def test_what_is_refused() -> None:
    guarantee = Guarantee.gaussian(0.5, adjacency="zero-out", **WORDS)
    scores = AttackScores("any", np.zeros(30), np.zeros(30))
    with pytest.raises(SordinoError, match="at least one attack"):
        audit.membership_report(guarantee)
    with pytest.raises(SordinoError, match="same members"):
        audit.membership_report(guarantee, scores, AttackScores("b", np.zeros(31), np.zeros(30)))
    with pytest.raises(SordinoError, match="others must be a whole number of at least 20"):
        audit.membership_report(guarantee, AttackScores("c", np.zeros(30), np.zeros(3)))
    with pytest.raises(SordinoError, match="promised no privacy"):
        audit.membership_report(Guarantee.nothing(adjacency="zero-out", **WORDS), scores)
    nothing: Any = (np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(SordinoError, match="at least 2 shadow models"):
        audit.lira_attack(Logistic(), np.zeros(2), nothing, nothing, [])

"""s: an audit says what it found and what it could have found, never that a plan is right."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import sordino
from sordino import audit
from sordino.audit import _onerun as onerun
from sordino.audit._federated import audit_client
from sordino.audit._membership import AttackScores, area, membership_report
from sordino.audit._statistics import (
    POWER,
    above,
    detectable,
    detection,
    equivalent_mu,
    event_delta,
    event_factor,
    hockey_stick,
    longer_contributions,
    separable,
    separation_interval,
    smaller_noise,
)
from sordino.audit._whitebox import Neighbours
from sordino.parts._losses import Logistic
from sordino.parts.contributions._contributions import Gradient
from sordino.privacy._gdp import delta_from_mu, epsilon_from_mu
from tests.support.federated import reference_agreement

SENTENCE = re.compile(
    r"No violation found\. Measured mu \d+\.\d{3} of the claim; a violation of [\d.,]+ % or more would "
    r"have been detected \("
)


def least(share: float, trials: int) -> float:
    """What a rate of `share` is seen as at least, in so many trials, but for once in a thousand times."""
    return share - 3.1 * math.sqrt(share * (1 - share) / trials)


def test_a_bound_that_shrinks_while_the_clip_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """s: noise follows bounds of 0.98^t, the real clip stays: 103 % of mu, and each step tells."""

    def shrinking(self: Gradient, steps: int) -> Any:
        return self.clip * 0.98 ** np.arange(steps)[None]

    with monkeypatch.context() as patch:
        patch.setattr(Gradient, "bounds", shrinking)
        plan = sordino.plan(
            "dp-gd", examples=7, steps=4, epsilon=epsilon_from_mu(3.0, 1e-3), delta=1e-3, clip=0.5
        )
        result = audit.white_box(plan, runs=2000)
    assert result.mu_low < result.mu_claimed < result.mu_estimate  # by mu alone it is not seen
    assert 1.0 < result.ratio < 1.08
    assert result.violates
    assert result.moved is not None
    assert result.moved.step == 3
    assert result.moved.ratio == pytest.approx(0.98**-3, rel=1e-4)
    assert "in step 4 one example moves the sum by 1.062 times its bound" in result.verdict()
    assert result.to_json()["exceeded"] is True


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dp-gd", {}),
        ("dp-memf", {"adjacency": "replace-one"}),
        ("dp-sgd", {}),
        ("dp-gd", {"noise": "discrete"}),
    ],
)
def test_what_a_kept_claim_is_told(name: str, more: dict[str, Any]) -> None:
    """s: the sentence of WRITING.md, with the figure that the runs allow."""
    result = audit.white_box(audit.reference_plan(name, **more), runs=400, confidence=0.99)
    assert SENTENCE.match(result.verdict()), result.verdict()
    assert result.moved is not None
    assert 0.99 < result.moved.ratio <= 1 + result.moved.rounding
    assert result.moved.rounding < 1e-3
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["detectable"] == result.detectable > 1
    assert data["power"] == POWER


def test_more_runs_detect_less() -> None:
    """s: the figure shrinks with the runs, and grows with the confidence."""
    assert separable(3.0, 100_000, 0.999) < separable(3.0, 2000, 0.999) < separable(3.0, 500, 0.999)
    assert separable(3.0, 2000, 0.95) < separable(3.0, 2000, 0.999)
    # An attack that saw a third of a kept claim needs three times the violation.
    assert detectable(3.3, 1.0, 3.0) == pytest.approx(3.3)
    assert detectable(3.3, 3.1, 3.0) == pytest.approx(1.1)
    assert math.isinf(detectable(3.3, 0.0, 3.0))
    assert above(1.0296) == "3 %"
    assert above(1.1201) == "13 %"
    assert "no violation below 10 times the claim" in detection(math.inf)


def test_the_figure_for_gaussian_releases_is_kept() -> None:
    """s: at that mu the alarm is raised in 95 % of the audits; at the claim in hardly any."""
    rng, trials = np.random.default_rng(0), 1500
    for claimed, runs, confidence in ((3.0, 500, 0.999), (0.5, 2000, 0.99)):
        for mu, expected in ((separable(claimed, runs, confidence), POWER), (claimed, None)):
            flagged = 0
            for _ in range(trials):
                a, b = rng.normal(size=runs) + mu, rng.normal(size=runs)
                means = float(a.mean()), float(b.mean())
                interval = separation_interval(
                    *means, float(a.var()), float(b.var()), runs, confidence
                )
                flagged += interval[0] > claimed
            if expected is None:
                assert flagged / trials < 0.01
            else:
                assert least(expected, trials) < flagged / trials < 0.98  # and not much too large


def test_the_figure_for_events_is_kept() -> None:
    """s: the same for privacy curves through one event (secret batches, streams of one's own)."""
    rng, trials = np.random.default_rng(1), 1500
    for claimed, epsilon, runs, confidence in ((1.8, 1.0, 2000, 0.999), (1.0, 0.5, 500, 0.95)):
        delta = delta_from_mu(epsilon, claimed)

        def rates(mu: float, epsilon: float = epsilon) -> tuple[float, float]:
            cut = epsilon / mu
            return float(norm.sf(cut - mu / 2)), float(norm.sf(cut + mu / 2))

        needed = event_delta(delta, epsilon, rates(claimed)[1], runs, confidence)
        mu = equivalent_mu(epsilon, needed)
        assert 1.0 < mu / claimed < 1.6
        p, q = rates(mu)
        assert p - math.exp(epsilon) * q == pytest.approx(needed, rel=1e-6)
        hits = zip(rng.binomial(runs, p, trials), rng.binomial(runs, q, trials), strict=True)
        lows = [hockey_stick(int(a), int(b), runs, epsilon, confidence)[0] for a, b in hits]
        assert least(POWER, trials) < np.mean(np.array(lows) > delta)
    assert math.isinf(event_delta(0.9, 1.0, 0.3, 100, 0.999))


def test_the_figure_for_events_of_gaussian_claims_is_kept() -> None:
    """s: for streams of one's own and clients, whether sums are too long or noise is too small."""
    rng, trials = np.random.default_rng(6), 1500
    for mu, epsilon, runs in ((3.0, 1.0, 1000), (0.5, 0.125, 2000), (1.5, 1.0, 500)):
        factor = event_factor(mu, epsilon, runs, 0.99)
        assert 1.0 < factor < 4.0
        claimed = delta_from_mu(epsilon, mu)
        for kind in (longer_contributions, smaller_noise):
            p, q = kind(mu, factor, epsilon)
            hits = zip(rng.binomial(runs, p, trials), rng.binomial(runs, q, trials), strict=True)
            lows = [hockey_stick(int(a), int(b), runs, epsilon, 0.99)[0] for a, b in hits]
            assert least(POWER, trials) < np.mean(np.array(lows) > claimed)
            kept = kind(mu, 1.0, epsilon)
            assert kept[0] - math.exp(epsilon) * kept[1] == pytest.approx(claimed, rel=1e-6)


def test_a_real_loop_that_leaks_as_much_is_flagged() -> None:
    """s: runs of the real loop, held to a claim that it exceeds by just the stated figure."""
    runs, confidence, trials = 200, 0.99, 40
    plan = audit.reference_plan("dp-gd")
    truth = plan.guarantee.mu
    claim = brentq(lambda c: separable(c, runs, confidence) - truth, 0.5, truth)
    pair = Neighbours.of(plan)
    results = [pair.audit(runs=runs, confidence=confidence, seed=seed) for seed in range(trials)]
    assert not any(result.violates for result in results)
    flagged = sum(result.mu_low > claim for result in results)
    assert flagged / trials >= least(POWER, trials)
    # What each of these audits says it could have found is about that.
    said = np.array([result.detectable for result in results])
    assert np.all(said >= separable(truth, runs, confidence) / truth)
    assert np.median(said) < 1.15 * separable(truth, runs, confidence) / truth


def test_the_figure_of_one_run_is_kept() -> None:
    """s: canaries whose scores are that far apart refute the claim in 95 % of the runs."""
    rng, m, claimed, error, delta, trials = np.random.default_rng(2), 1000, 1.0, 0.05, 1e-5, 150
    mu = onerun._flagged_mu(m, claimed, error, delta, None)
    assert 1.0 < mu / equivalent_mu(claimed, delta) < 20
    flagged = 0
    for _ in range(trials):
        coins = rng.random(m) < 0.5
        scores = rng.normal(size=m) + mu * coins
        flagged += onerun._best_guesses(coins, scores, error, delta, gaussian=False)[0] > claimed
    assert flagged / trials >= least(POWER, trials)


def test_what_one_run_is_told() -> None:
    """s: epsilon, and what canaries as telling as these would have shown; or that they show nothing."""
    rng, m = np.random.default_rng(3), 400
    plan = sordino.plan(
        "dp-sgd", examples=600, batch_size=60, steps=10, epsilon=0.5, delta=1e-4, clip=0.5
    )
    coins = rng.random(m) < 0.5
    telling = onerun.scored(plan, coins, rng.normal(size=m) + 0.3 * coins, "own", 1e-4, 0.95)
    assert not telling.violates
    assert (
        "or more would have been detected, with canaries as telling as these" in telling.verdict()
    )
    assert telling.detectable > 2  # one run counts coarsely
    mute = onerun.scored(plan, coins, rng.normal(size=m) - 0.3 * coins, "own", 1e-4, 0.95)
    assert mute.verdict().startswith("No violation found. Epsilon at least 0 ")
    assert "no violation below 10 times the claim would have been detected" in mute.verdict()
    assert mute.to_json()["detectable"] is None


def test_the_figure_of_membership_attacks_is_kept() -> None:
    """s: attacks of that area are beyond the guarantee in 95 % of the reports."""
    rng, trials, members, others = np.random.default_rng(4), 300, 300, 500
    guarantee = sordino.plan(
        "dp-gd", examples=50, steps=2, epsilon=epsilon_from_mu(0.3, 1e-4), delta=1e-4
    ).guarantee
    scores = AttackScores("a", rng.normal(size=members), rng.normal(size=others))
    report = membership_report(guarantee, scores)
    assert report.verdict().startswith("No violation found. The a attack has an area of")
    assert (
        f"an area of {report.detectable:.3f} or more would have been detected" in report.verdict()
    )
    assert report.auc_bound < report.detectable < 1
    apart = math.sqrt(2) * norm.ppf(report.detectable)
    tail = (1 - report.confidence) / 7  # as shared among the bounds of one attack
    flagged = 0
    for _ in range(trials):
        low = area(rng.normal(size=members) + apart, rng.normal(size=others), tail)[1]
        flagged += low > report.auc_bound
    assert flagged / trials >= least(POWER, trials)
    few = AttackScores("a", rng.normal(size=20), rng.normal(size=20))
    loud = sordino.plan(
        "dp-gd", examples=50, steps=2, epsilon=epsilon_from_mu(5.0, 1e-4), delta=1e-4
    ).guarantee
    assert "no area could have been called a violation" in membership_report(loud, few).verdict()


def test_no_audit_vouches_for_a_plan() -> None:
    """s: streams of one's own and federated clients get the same kind of sentence."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(8, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int32)
    plan = sordino.plan(
        "dp-gd", examples=8, steps=2, epsilon=epsilon_from_mu(2.0, 1e-3), delta=1e-3, clip=0.2
    )
    own = audit.white_box(plan, Logistic(), np.zeros(3, np.float32), (X, y), runs=300)
    client = audit_client(reference_agreement(rounds=3), trials=700)
    for result in (own, client):
        assert not result.violates
        assert result.verdict().startswith("No violation found. Measured mu")
        assert "keeps its word" not in result.verdict()
        assert "would have been detected" in result.verdict()
        assert result.epsilon_claimed >= epsilon_from_mu(max(result.mu_low, 1e-6), result.delta)
    assert own.moved is not None
    assert own.moved.ratio <= 1 + own.moved.rounding


def test_a_row_of_ones_own_that_moves_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """s: with real data, too, a step's bound is compared with what the row really adds."""

    def shrinking(self: Gradient, steps: int) -> Any:
        return self.clip * 0.98 ** np.arange(steps)[None]

    X = np.ones((8, 3), np.float32)
    y = np.array([0, 1] * 4, np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(Gradient, "bounds", shrinking)
        plan = sordino.plan(
            "dp-gd", examples=8, steps=3, epsilon=epsilon_from_mu(1.0, 1e-3), delta=1e-3, clip=0.2
        )
        result = audit.white_box(plan, Logistic(), np.zeros(3, np.float32), (X, y), runs=200)
    assert result.moved is not None
    assert result.moved.ratio == pytest.approx(0.98**-2, rel=1e-3)
    assert result.violates
    assert "in step 3 one example moves the sum by" in result.verdict()

"""The audit of a federated client: honest ones keep their word, planted bugs are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sordino import SordinoError
from sordino.audit._federated import ClientNeighbours, audit_client
from sordino.audit._whitebox import AuditResult
from sordino.together.federated import _client as client_module
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import chain_cost
from sordino.together.federated._client import Client, ClientState, SentMessage
from sordino.together.federated._contribution import ClientEvaluator, LocalData
from sordino.together.federated._messages import Reply, RoundRequest
from tests.support.federated import reference_agreement

# Few messages and runs: at 99.9 % the interval is about a third of mu to either side.
FEW = {"trials": 120}


def short(**changes: Any) -> Agreement:
    return reference_agreement(**{"rounds": 3, "nonce": "00" * 16, **changes})


@pytest.mark.parametrize(
    ("options", "adaptive"),
    [
        ({"schedule": "uniform"}, True),
        ({"schedule": "leaky", "leak": 0.8}, True),
        ({"schedule": "leaky", "leak": 0.8, "adjacency": "replace-one"}, False),
        ({"unit": "client", "batch": 2}, True),
    ],
    ids=["uniform", "leaky", "replace-one", "client"],
)
def test_an_honest_client_keeps_its_word(options: dict[str, Any], adaptive: bool) -> None:
    result = audit_client(short(**options), adaptive=adaptive, **FEW)
    assert not result.violates, result.verdict()
    assert result.mu_claimed == pytest.approx(3.0, rel=1e-6)
    assert result.mu_high > 0.9 * result.mu_claimed, result.verdict()
    assert result.mu_low > 0.5 * result.mu_claimed, result.verdict()
    assert result.attack == "likelihood"
    assert 0 < result.epsilon_low < result.epsilon_claimed


def test_the_ratio_has_the_law_that_the_account_says() -> None:
    """An honest chain: N(+-mu^2/2, mu^2), with the mu that the client has paid.

    300 runs of each; five standard errors, of the means sqrt(mu^2 / n) and of the variance
    sqrt(2 / n) mu^2.
    """
    agreement = short(rounds=3, schedule="leaky", leak=0.8, mu=1.5)
    pair = ClientNeighbours.of(agreement)
    n = 300
    for world, sign in ((0, -1.0), (1, 1.0)):
        runs = pair.transcripts(world, world, n, adaptive=False)
        assert (runs.sent == 3).all()
        mu_squared = float(runs.spent[0])
        assert mu_squared == pytest.approx(1.5**2, rel=1e-5)
        ratio = pair.ratios(runs)
        assert abs(sign * ratio.mean() - mu_squared / 2) < 5 * np.sqrt(mu_squared / n)
        assert abs(ratio.var() - mu_squared) < 5 * np.sqrt(2 / n) * mu_squared


def test_the_server_lies_and_the_client_stops() -> None:
    """The audit is no walk in the park: parents, rounds, points and lengths differ between runs."""
    agreement = short(rounds=6, schedule="leaky", leak=0.8)
    runs = ClientNeighbours.of(agreement).transcripts(1, 0, 40)
    assert len({tuple(row) for row in runs.parents}) > 3
    assert len(set(runs.sent)) > 1
    assert runs.sent.max() <= agreement.cap
    # Every answer descends from the first one, where the canary is.
    for parents, sent in zip(runs.parents, runs.sent, strict=True):
        assert (parents[1:sent] > 0).all()
    assert runs.spent.max() <= agreement.mu**2 * (1 + 1e-8)
    # And what is left of the budget is less than another message costs.
    assert np.median(runs.spent) > 0.85 * agreement.mu**2
    assert len({point.tobytes() for point in runs.points[:, 1]}) == 40


def test_the_other_unit_is_what_the_client_itself_says() -> None:
    """Sample-level noise, all of the client's data changed: mu of sqrt(sum l^2 / K) times as much."""
    agreement = short(schedule="uniform", mu=1.0)
    result = audit_client(agreement, unit="client", **FEW)
    cost = chain_cost(messages=3, leak=65536, uses=3, apart=1, rounding=0.0) / 3
    assert result.mu_claimed == pytest.approx(np.sqrt(cost), rel=1e-4)
    assert not result.violates, result.verdict()
    assert result.mu_high > result.mu_claimed
    assert result.guarantee is not None
    assert result.guarantee.unit == "client"


def test_an_example_in_a_block_that_is_clipped_as_one() -> None:
    """Unit "client": what the client says of one example (its other account) must hold, too."""
    agreement = short(unit="client", batch=2, rounds=2)
    result = audit_client(agreement, unit="example", trials=200)
    assert not result.violates, result.verdict()


@pytest.mark.slow
def test_results_are_plain_data_and_repeatable() -> None:
    agreement = short(rounds=2, schedule="uniform")
    one, two = (audit_client(agreement, trials=100, insecure_seed=3) for _ in range(2))
    assert isinstance(one, AuditResult)
    assert one == two
    data = json.loads(json.dumps(one.to_json(), allow_nan=False))
    assert data["exceeded"] is False
    assert one.verdict().startswith("No violation found. Measured mu")
    assert "(a client of dp-mu2: mu between" in one.verdict()
    assert one.delta == agreement.delta
    assert audit_client(agreement, trials=100, insecure_seed=4) != one


def test_what_cannot_be_audited() -> None:
    with pytest.raises(SordinoError, match="secure-sum"):
        audit_client(short(clients=3, trust="secure-sum"))
    with pytest.raises(SordinoError, match="trusted"):
        audit_client(short(clients=3, trust="trusted"))
    with pytest.raises(SordinoError, match="unit"):
        audit_client(short(), unit="user")
    with pytest.raises(SordinoError, match="trials"):
        audit_client(short(), trials=99)
    with pytest.raises(SordinoError, match="confidence"):
        audit_client(short(), confidence=1.0)


# Planted bugs. Each changes the code under audit; the claim is that of the agreement.


def no_clip(patch: pytest.MonkeyPatch) -> Agreement:
    """Ten times the clip."""
    terms = ClientEvaluator.terms

    def wide(self: ClientEvaluator, agreement: Agreement, t: Any) -> Any:
        return terms(self, replace(agreement, clip=10 * agreement.clip), t)

    patch.setattr(ClientEvaluator, "terms", wide)
    return short(schedule="uniform", mu=1.0)


def one_noise_for_all(patch: pytest.MonkeyPatch) -> Agreement:
    """A message's own noise is its parent's: what is taken back is what was just added."""
    noise = Client.noise

    def first(self: Client, state: ClientState, index: int) -> Any:
        return noise(self, state, state.committed or index)

    patch.setattr(Client, "noise", first)
    return short(schedule="uniform", mu=1.0)


def taken_back_twice(patch: pytest.MonkeyPatch) -> Agreement:
    """s + y - 2 y_parent: an example comes back with twice the weight in every message."""
    patch.setattr(client_module, "cancelled_draws", lambda noise, leak: 2 * noise)
    return short(schedule="uniform", mu=1.0)


def uncommitted_noise_as_well(patch: pytest.MonkeyPatch) -> Agreement:
    """The parent's noise is taken back, and that of the message before, committed or not."""
    message = Client.message

    def more(self: Client, state: ClientState, request: Any, sent: SentMessage, *rest: Any) -> Any:
        values = message(self, state, request, sent, *rest)
        if sent.index > 1:
            values = values - self.noise(state, sent.index - 1)
        return values

    patch.setattr(Client, "message", more)
    return short(schedule="uniform", mu=1.0, rounds=5)


def little_noise(patch: pytest.MonkeyPatch) -> Agreement:
    """A third of the standard deviation."""
    drawn = client_module.drawn
    patch.setattr(client_module, "drawn", lambda key, v, d: drawn(key, v // 9, d))
    return short(schedule="leaky", leak=0.8, mu=1.0)


def unpaid(patch: pytest.MonkeyPatch) -> Agreement:
    """Nothing is ever refused for the budget: 12 messages with noise for 2."""
    patch.setattr(Client, "_objection_to_cost", lambda *state: None)
    return replace(short(schedule="uniform", mu=1.0, rounds=2), cap=12)


def same_example_always(patch: pytest.MonkeyPatch) -> Agreement:
    """An example that may be used once is in every message, under the numbers of other blocks."""
    rows = LocalData.rows
    patch.setattr(LocalData, "rows", lambda self, block: rows(self, 0))
    return short(schedule="uniform", mu=1.0, rounds=5)


# With the attack that finds it. Noise that is not as agreed is found by the discriminant, whose runs should
# be alike: an honest server. Messages after the first are where reused noise shows.
Bug = tuple[Callable[[pytest.MonkeyPatch], Agreement], dict[str, Any]]
BUGS: list[Bug] = [
    (no_clip, {}),
    (one_noise_for_all, {"adaptive": False, "message": 2}),
    (taken_back_twice, {"adaptive": False}),
]
MORE_BUGS: list[Bug] = [
    (uncommitted_noise_as_well, {"adaptive": False}),
    (little_noise, {}),
    (unpaid, {}),
    (same_example_always, {}),
]


@pytest.mark.parametrize(("bug", "attack"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], Agreement],
    attack: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = audit_client(bug(monkeypatch), trials=100, **attack)
    assert result.violates, result.verdict()
    assert "leaks more than its plan states" in result.verdict()


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "attack"), MORE_BUGS, ids=[bug.__name__ for bug, _ in MORE_BUGS])
def test_more_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], Agreement],
    attack: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = audit_client(bug(monkeypatch), trials=300, **attack)
    assert result.violates, result.verdict()


def test_noise_that_is_bound_to_a_counter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests to one restored state: with such noise, their answers differ by the data alone.

    With the real binding the difference has the noise of two messages.
    """
    pair = ClientNeighbours.of(short())
    client = pair.worlds[1]
    start = client.begin(bytes(32))
    digest, d = client.agreement.digest, client.agreement.parameters
    zero, far = np.zeros(d, np.float32), np.full(d, 5, np.float32)
    requests = [RoundRequest(digest, 1, 3, point, zero, 0) for point in (zero, far)]

    def difference() -> tuple[Any, Any]:
        values = []
        for request in requests:
            reply = client.respond(start, request)[1]
            assert isinstance(reply, Reply)
            values.append(reply.values.astype(np.int64))
        sums = [client.data.total(r.point, r.previous, r.round, 0).clipped for r in requests]
        return values[1] - values[0], sums[1] - sums[0]

    seen, data = difference()
    spread = np.sqrt(2 * client.agreement.variance)
    assert np.abs(seen - data).max() > spread / 100
    monkeypatch.setattr(SentMessage, "binding", lambda self: self.index.to_bytes(8, "big"))
    seen, data = difference()
    assert (seen == data).all()


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [True, False], ids=["adaptive", "honest"])
@pytest.mark.parametrize(
    "options",
    [{"schedule": "uniform"}, {"schedule": "leaky"}, {"unit": "client"}],
    ids=["uniform", "leaky", "client"],
)
def test_ten_thousand_runs(options: dict[str, Any], adaptive: bool) -> None:
    """The claim holds, and an attack on the untrusted stream comes within 10 % of it."""
    result = audit_client(reference_agreement(rounds=6, **options), adaptive=adaptive)
    print(result.verdict())
    assert result.runs == 10_000
    assert not result.violates, result.verdict()
    assert result.mu_high >= 0.9 * result.mu_claimed, result.verdict()
    assert result.mu_estimate >= 0.9 * result.mu_claimed, result.verdict()
    assert result.mu_low >= 0.85 * result.mu_claimed, result.verdict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "paper"},
        {"schedule": "fresh"},
        {"schedule": "leaky", "uses": 2, "examples": 3, "adjacency": "replace-one"},
        {"schedule": "uniform", "batch": 3, "radius": 2.0},
    ],
    ids=["paper", "fresh", "twice", "batch"],
)
def test_other_agreements(options: dict[str, Any]) -> None:
    """2,000 runs each: the claim holds, and the attack is within 20 % of it.

    The printed schedule keeps something back: it is made for 1 + ln T, and H_6 is used.
    """
    result = audit_client(reference_agreement(rounds=6, **options), trials=2000)
    assert not result.violates, result.verdict()
    assert result.mu_estimate >= 0.8 * result.mu_claimed, result.verdict()

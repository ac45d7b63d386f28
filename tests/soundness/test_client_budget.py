"""C2: what a client is told it has spent under a secure sum covers what others cancel after it stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino._base.errors import SordinoError
from sordino.parts._losses import Logistic
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._client import Client, ClientState
from sordino.together.federated._durable import ClientConfig
from sordino.together.federated._messages import Refusal, RoundRequest
from tests.federated.attack import mask, scripted
from tests.federated.worlds import FEATURES, durable, secure_agreement


@dataclass
class Sums:
    """Real clients under a server that picks cohorts and says anything about commits.

    Attributes:
      released: for each sum that the server could form, who is in it with which message.
      parents: of each message.
    """

    agreement: Agreement
    own: dict[str, float] = field(default_factory=dict)
    turn: int = 0
    clients: dict[str, tuple[Client, ClientState]] = field(default_factory=dict)
    released: list[dict[str, int]] = field(default_factory=list)
    parents: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.agreement.clients:
            client = scripted(
                self.agreement, name=name, mask=mask, blocks=400, mu=self.own.get(name)
            )
            self.clients[name] = client, client.begin(name.encode().ljust(32, b"."))

    def ask(self, cohort: list[str], commits: dict[str, int] | None = None) -> list[Refusal]:
        """One turn; the sum is released only if nobody refuses."""
        self.turn += 1
        zero = np.zeros(self.agreement.parameters, np.float32)
        refused, index = [], {}
        for name in cohort:
            client, state = self.clients[name]
            committed = (commits or {}).get(name, state.index)
            asked = RoundRequest(
                self.agreement.digest, self.turn, 1, zero, zero, committed, tuple(cohort)
            )
            state, answer = client.respond(state, asked)
            self.clients[name] = client, state
            if isinstance(answer, Refusal):
                refused.append(answer)
            else:
                index[name] = answer.index
                self.parents[name, answer.index] = committed
        if not refused:
            self.released.append(index)
        return refused

    def spent(self, name: str) -> float:
        client, state = self.clients[name]
        return client.spent(state)

    def old_number(self, name: str) -> float:
        """What was stated up to 0.5.0."""
        return math.sqrt(self.clients[name][1].account.mu_squared * self.agreement.honest)

    def true_mu(self, victim: str, bad: tuple[str, ...] = ()) -> float:
        """Of the victim's worst example: brute force, from the map of all fresh noise to the sums.

        The noise of `bad` clients is known, so it hides nothing.
        """
        agreement = self.agreement
        keys = [k for k in self.parents if k[0] not in bad]
        place = {key: i for i, key in enumerate(keys)}
        rows = np.zeros((len(self.released), len(keys)))
        for t, members in enumerate(self.released):
            for name, index in members.items():
                if name in bad:
                    continue
                rows[t, place[name, index]] += 1
                parent = self.parents[name, index]
                if parent:
                    rows[t, place[name, parent]] -= agreement.leak / 65536
        noise = rows * np.sqrt([agreement.variance_of(k) - 1 / 12 for _, k in keys])
        precision = np.linalg.inv(noise @ noise.T)
        mine = [t for t, members in enumerate(self.released) if victim in members]
        reach = agreement.kappa * agreement.clip / agreement.step
        return reach * math.sqrt(max((precision[t, t] for t in mine), default=0.0))


def agreed(m: int, T: int, schedule: str | None, M: int | None = None, **more: Any) -> Agreement:
    settings: dict[str, Any] = {
        "clients": m + 1 if M is None else M,
        "parameters": 4,
        "rounds": T,
        "per_round": m,
        "epsilon": 4.0,
        "delta": 1e-5,
        "trust": "secure-sum",
        "schedule": schedule,
        "cap": T,
        "learning_rate": 0.1,
        "nonce": "00" * 16,
    }
    return agree(**{**settings, **more})


REPORTED = [
    (2, 30, "uniform", 0.169, 0.232),
    (10, 100, "uniform", 0.0925, 0.279),
    (10, 100, None, 0.237, 0.583),
    (30, 300, "uniform", 0.0534, 0.279),
]


@pytest.mark.parametrize(("m", "T", "schedule", "old", "true"), REPORTED[:3])
def test_a_client_that_answers_once(
    m: int, T: int, schedule: str | None, old: float, true: float
) -> None:
    """C2: the finding's figures, by real clients: the number was below the truth, and no longer is."""
    world = Sums(agreed(m, T, schedule))
    victim, *others = world.agreement.clients
    assert not world.ask([victim, *others[: m - 1]])
    for _ in range(T - 1):
        assert not world.ask(others)
    assert world.old_number(victim) == pytest.approx(old, rel=5e-3)
    assert world.true_mu(victim) == pytest.approx(true, rel=5e-3)
    assert world.true_mu(victim) <= world.spent(victim) <= world.agreement.mu


def test_a_large_cohort_without_running_it() -> None:
    """C2: the finding's largest case, from the agreement alone."""
    m, T, schedule, old, true = REPORTED[3]
    agreement = agreed(m, T, schedule)
    own = agreement.reach**2 / (agreement.variance - 1 / 12)
    assert math.sqrt(own * agreement.honest) == pytest.approx(old, rel=5e-3)
    assert true <= math.sqrt(agreement.total(own)) <= agreement.mu


SCHEDULES: list[dict[str, Any]] = [
    {"schedule": "uniform"},
    {"schedule": "leaky"},
    {"schedule": "leaky", "leak": 0.5},
    {"schedule": "leaky", "leak": 0.95},
    {"schedule": "paper"},
    {"schedule": "fresh"},
]


def hostile(seed: int) -> tuple[bool, float]:
    """One random world; whether the old number was too small, and true over stated mu."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 6))
    colluders = int(rng.integers(0, m - 1))
    T = int(rng.integers(3, 14))
    M = m + int(rng.integers(1, 4))
    options = SCHEDULES[seed % len(SCHEDULES)]
    agreement = agreed(
        m,
        T,
        **options,
        M=M,
        colluders=colluders,
        parameters=int(rng.integers(1, 4)),
        adjacency=str(rng.choice(["zero-out", "replace-one"])),
    )
    world = Sums(agreement)
    names = list(agreement.clients)
    bad = tuple(names[:colluders])
    victim = names[-1]
    honest_server = rng.random() < 0.4
    stops = int(rng.integers(1, T + 1))
    for _ in range(3 * T):
        here = [n for n in names if n != victim or world.clients[victim][1].index < stops]
        # The server's favourite: the same cohort again, so that its noise wears out; or anybody.
        count = int(rng.integers(m, len(here) + 1))
        cohort = here[-count:] if rng.random() < 0.5 else list(rng.permutation(here))[:count]
        commits = {}
        for name in cohort if not honest_server else ():
            state = world.clients[name][1]
            options_ = [
                state.committed,
                *(s.index for s in state.live if s.index > state.committed),
            ]
            commits[name] = int(rng.choice(options_))
        world.ask(cohort, commits)
    assert world.clients[victim][1].index
    true, stated = world.true_mu(victim, bad), world.spent(victim)
    assert true <= stated * (1 + 1e-9), (seed, true, stated)
    assert stated <= agreement.mu * (1 + 1e-8)
    return world.old_number(victim) < true * (1 - 1e-6), true / stated


def test_random_worlds() -> None:
    """C2: any participation, cohorts, lies about commits, schedules, leaks, colluders: an upper bound."""
    found = [hostile(seed) for seed in range(240)]
    assert sum(was_false for was_false, _ in found) >= 12  # such worlds broke the old number
    assert max(ratio for _, ratio in found) > 0.85  # and the new one is not idle


@pytest.mark.parametrize(("m", "T", "schedule"), [(2, 30, "uniform"), (10, 100, None)])
def test_an_own_limit_is_kept_whatever_the_others_do(m: int, T: int, schedule: str | None) -> None:
    """C2: a client refuses before the message that could bring it above its own limit."""
    agreement = agreed(m, T, schedule)
    victim, *others = agreement.clients
    mu = math.sqrt((agreement.least_mu**2 + agreement.mu**2) / 2)
    world = Sums(agreement, {victim: mu})
    cohort = [victim, *others[: m - 1]]
    refused: list[Refusal] = []
    while not refused:
        refused = world.ask(cohort)
    assert [answer.code for answer in refused] == ["budget"]
    sent = world.clients[victim][1].index
    assert 1 <= sent < T
    assert world.spent(victim) <= mu
    with_one_more = Sums(agreement)
    for _ in range(sent + 1):
        with_one_more.ask(cohort)
    assert with_one_more.spent(victim) > mu  # it did not stop too early
    while not world.ask(others):
        pass
    assert world.true_mu(victim) <= world.spent(victim) <= mu


def test_a_limit_that_cannot_be_kept_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """C2: below what the first message costs there is nothing a client could answer."""
    agreement, private = secure_agreement(4, schedule="uniform")
    n = agreement.honest
    own = agreement.reach**2 / (agreement.variance - 1 / 12)
    least = math.sqrt(own + (n - 1) / n * agreement.mu**2)
    name = agreement.clients[0]
    data = (np.zeros((20, FEATURES), np.float32), np.zeros(20, np.int32))
    start = np.zeros(FEATURES, np.float32)

    def part(mu: float) -> ClientConfig:
        return ClientConfig(name, agreement, Logistic(), start, data, mu=mu, private=private[name])

    with pytest.raises(SordinoError, match="what the other clients may still cancel"):
        durable(part(0.99 * least), tmp_path)
    assert not list(tmp_path.iterdir())
    opened = durable(part(1.01 * least), tmp_path)
    assert opened.spent == 0.0
    zero = np.zeros(FEATURES, np.float32)
    asked = RoundRequest(agreement.digest, 1, 1, zero, zero, 0, agreement.clients[:3])
    opened.answer(asked.to_bytes())
    assert opened.spent == pytest.approx(least, rel=1e-9)
    assert opened.entries()[-1].spent == opened.spent
    opened.close()
    reopened = durable(part(1.01 * least), tmp_path)
    assert reopened.spent == pytest.approx(least, rel=1e-9)
    reopened.close()


def test_no_own_limit_where_the_noise_is_the_servers() -> None:
    """C2: a trusted server's client would have ignored its own limit."""
    agreement = agreed(2, 5, None, trust="trusted")
    with pytest.raises(SordinoError, match="trusted server has no budget of its own"):
        scripted(agreement, mu=0.5)


def test_fresh_noise_that_grows_is_no_help_to_others() -> None:
    """C2: a helper at its first message has less noise than a client counts on at its tenth."""
    fresh = agreed(2, 5, "fresh")
    with pytest.raises(SordinoError, match="fresh noise is the same in every message"):
        replace(fresh, growing=True)


def test_what_a_report_states(tmp_path: Path) -> None:
    """C2: the server's report, from public facts, states the same number as the client."""
    from sordino.together.federated._coordinator import RoundRecord
    from sordino.together.federated._report_facts import gathered

    world = Sums(agreed(3, 12, "uniform"))
    names = world.agreement.clients
    history = []
    for t in range(1, 6):
        cohort = list(names[:3] if t < 3 else names[1:])
        assert not world.ask(cohort)
        blocks = dict.fromkeys(cohort, -1)
        history.append(
            RoundRecord(t, t, world.released[-1], blocks, tuple(cohort), {}, "2026-01-01T00:00:00Z")
        )
    for client in gathered(world.agreement, history).clients:
        assert client.mu == pytest.approx(world.spent(client.name), rel=1e-9)
        assert client.mu >= world.true_mu(client.name)

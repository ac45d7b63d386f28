"""The oracles of papers/02 section 6, through the real client and server.

Numbered as there. (6, 8, 14 and 15 are in other files.)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.parts._losses import LeastSquares, Softmax
from sordino.privacy._gdp import delta_from_mu, epsilon_from_mu
from sordino.together.federated import _client as client_module
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import ChainAccountant, cancelled_draws
from sordino.together.federated._client import Client, ClientState
from sordino.together.federated._contribution import ClientEvaluator, LocalData
from sordino.together.federated._messages import Refusal, Reply, message_from_bytes
from sordino.together.federated._server import Server, ServerState
from tests.support.federated import tree_mu_squared

from .attack import Attacker, Audit, coarse, mask, scripted, small

QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None)

# Oracle 1: f = (x - z)^2 / 2 on [-1, 1], eta = 0.1, x0 = 0.
Z = np.array([1, 0.5, -0.5])
S = [-1, -0.3666667, 0.8216667]
Q = [-1, -1.3666667, -0.545]
W = [0.1, 0.2366667, 0.2911667]
X = [0.0666667, 0.1516667, 0.2074667]


def mu_squared_sgd() -> list[tuple[float, float, float, float]]:
    """papers/02 1.1 in float64, written down from the text: (s, q, w, x) after each round."""
    w = x = previous = q = 0.0
    found = []
    for t, z in enumerate(Z, start=1):
        s = t * (x - z) - (t - 1) * (previous - z)
        q += s
        w = min(1.0, max(-1.0, w - 0.1 * q))
        previous, x = x, x + 2 / (t + 2) * (w - x)
        found.append((s, q, w, x))
    return found


def test_1_the_reference_itself() -> None:
    for found, expected in zip(zip(*mu_squared_sgd(), strict=True), (S, Q, W, X), strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-8)


def run_clients(agreement: Agreement, rows: list[Any]) -> list[tuple[Any, ServerState]]:
    """Every round through the real client and server: (messages, state after it)."""
    loss = LeastSquares()
    zero = np.zeros(1, np.float32)
    clients = {
        name: Client(name, agreement, LocalData(agreement, loss, zero, data))
        for name, data in zip(agreement.clients, rows, strict=True)
    }
    states = {name: client.begin(name.encode().ljust(32)) for name, client in clients.items()}
    server = Server(agreement, zero)
    state, found = server.begin(), []
    while not server.is_finished(state):
        state, requests = server.ask(state, agreement.clients, np.random.default_rng(0))
        messages = []
        for name, request in requests.items():
            states[name], reply = clients[name].respond(states[name], request)
            assert isinstance(reply, Reply)
            messages.append(int(reply.values[0]))
            state, verdict, _ = server.receive(state, name, reply)
            assert verdict.taken
        found.append((messages, state))
    return found


@pytest.mark.parametrize("clients", [1, 4])
def test_1_and_2_without_noise_the_federation_is_mu_squared_sgd(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M = m = 1, and M = m = 4 with the same examples: oracle 1, with the noise function replaced.

    Messages are rounded towards zero to the lattice, here 2^-26, and computed in float32 (half a unit
    of 2^-24 for a value near 1, from each of three operations). So every s is within 2e-7 of the
    reference, q within three times that, w within eta = 0.1 of the sum of q's errors, plus the float32
    rounding of the points: 1e-6 covers all. What the server does with the messages is exact: q is
    their integer sum, and all clients' messages are equal to the last bit.
    """
    nothing = lambda key, variance, parameters: np.zeros(parameters, np.int64)  # noqa: E731
    monkeypatch.setattr(client_module, "drawn", nothing)
    agreement = small(
        clients=clients, parameters=1, rounds=3, mu=8.0, clip=4.0, radius=1.0, schedule="uniform"
    )
    agreement = replace(agreement, exponent=-26, mu=1e4)
    rows = np.ones((3, 1), np.float32)
    found = run_clients(agreement, [(rows, Z.astype(np.float32))] * clients)
    total = 0
    for (messages, state), (s, q, w, x) in zip(found, mu_squared_sgd(), strict=True):
        assert len(set(messages)) == 1
        assert messages[0] * agreement.step == pytest.approx(s, abs=2e-7)
        total += sum(messages)
        assert int(state.total[0]) == total
        assert total * agreement.step / clients == pytest.approx(q, abs=6e-7)
        assert state.weights[0] == pytest.approx(w, abs=1e-6)
        assert state.point[0] == pytest.approx(x, abs=1e-6)


def test_2_one_client_and_many_agree_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = lambda key, variance, parameters: np.zeros(parameters, np.int64)  # noqa: E731
    monkeypatch.setattr(client_module, "drawn", nothing)
    points = []
    for clients in (1, 2, 4):
        agreement = small(clients=clients, parameters=1, rounds=3, clip=4.0, schedule="uniform")
        agreement = replace(agreement, exponent=-24, mu=1e4)
        data = (np.ones((3, 1), np.float32), Z.astype(np.float32))
        points.append([state.point for _, state in run_clients(agreement, [data] * clients)])
    assert points[0] == points[1] == points[2]


class Federation:
    """A server and its clients with scripted sums, in a network that loses and delays messages.

    The server is real; a message may be lost on either way, be received in a later turn, or be one too
    many. Turns are given up at random.
    """

    def __init__(self, agreement: Agreement, seed: int) -> None:
        self.agreement = agreement
        self.rng = np.random.default_rng(seed)
        pads = {"mask": mask} if agreement.trust == "secure-sum" else {}
        self.clients = {
            name: scripted(agreement, name=name, seed=i, blocks=500, **pads)
            for i, name in enumerate(agreement.clients)
        }
        self.states: dict[str, ClientState] = {
            name: client.begin(name.encode().ljust(32)) for name, client in self.clients.items()
        }
        self.log: dict[str, list[Any]] = {name: [] for name in self.clients}
        start = np.zeros(agreement.parameters, np.float32)
        secret = bytes(32) if agreement.trust == "trusted" else None
        self.server = Server(agreement, start, secret)
        self.state = self.server.begin()
        self.committed: dict[str, list[int]] = {name: [] for name in self.clients}
        self.late: list[tuple[str, Any]] = []

    def run(self, *, lost: float = 0.15, turns: int = 2000) -> None:
        for _ in range(turns):
            if self.server.is_finished(self.state):
                return
            self._turn(lost)
        raise AssertionError("the run does not end")

    def _turn(self, lost: float) -> None:
        names = list(self.agreement.clients)
        present = [name for name in names if self.rng.random() > lost]
        self.state, requests = self.server.ask(self.state, present, self.rng)
        for name, request in requests.items():
            if self.rng.random() < lost:
                continue  # the request never came
            answer = self._answer(name, request)
            if isinstance(answer, Refusal):
                self._receive(name, answer)
            elif self.rng.random() < lost:
                if self.rng.random() < 0.5:
                    self.late.append((name, answer))  # it comes, but later
            else:
                self._receive(name, answer)
        for name, answer in self.late[:2]:
            self._receive(name, answer)
        del self.late[:2]
        if self.state.asked and self.rng.random() < 0.3:
            self.state = self.server.give_up(self.state)

    def _answer(self, name: str, request: Any) -> Any:
        before = self.states[name].index
        self.states[name], answer = self.clients[name].respond(self.states[name], request)
        if self.states[name].index > before:
            self.log[name].append(request)
        return message_from_bytes(answer.to_bytes())

    def _receive(self, name: str, answer: Any) -> None:
        self.state, _, done = self.server.receive(self.state, name, answer)
        if done is not None:
            for who, index in done.committed.items():
                self.committed[who].append(index)

    def audits(self) -> dict[str, Audit]:
        return {
            name: Audit(client, self.log[name], name.encode().ljust(32))
            for name, client in self.clients.items()
        }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "uniform"},
        {"schedule": "leaky", "leak": 0.8},
        {"schedule": "leaky", "leak": 0.8, "extra": 2},
        {"schedule": "paper", "extra": 1},
        {"schedule": "fresh"},
        {"schedule": "uniform", "trust": "secure-sum"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_3_lemma_4_1_in_whole_numbers(options: dict[str, Any], seed: int) -> None:
    """q minus the committed sums is what is left of the committed noise, exactly.

    Under random participation, losses both ways, late messages, retries and over-selection; the noise is
    computed again from the clients' first secrets. For each client, with its committed messages in
    order: the last one's noise, and ``y - rho(y)`` of every earlier one.
    """
    agreement = small(clients=5, per_round=3, rounds=15, mu=20.0, **options)
    # Losses make more messages than an honest network would; the budget is not the point here.
    agreement = replace(agreement, cap=500, mu=1e4)
    federation = Federation(agreement, seed)
    federation.run()
    sums = np.zeros(agreement.parameters, np.int64)
    left = np.zeros(agreement.parameters, np.int64)
    lost = 0
    for name, audit in federation.audits().items():
        committed = federation.committed[name]
        assert committed == sorted(set(committed))
        lost += len(audit.noise) - len(committed)
        for index in committed:
            sums += audit.sums[index - 1]
            y = audit.noise[index - 1]
            left += y if index == committed[-1] else y - cancelled_draws(y, agreement.leak)
        if federation.committed[name]:
            assert federation.state.committed[name] == committed[-1]
    np.testing.assert_array_equal(federation.state.total - sums, left)
    assert lost > 0, "nothing was lost: this run tests nothing"
    assert sum(map(len, federation.committed.values())) == 15 * 3


def test_3_trusted_server() -> None:
    """The server's own chain: q minus all sums is its last noise and the rests of the earlier ones."""
    for options in ({"schedule": "uniform"}, {"schedule": "leaky", "leak": 0.7}):
        agreement = small(clients=4, per_round=2, rounds=8, trust="trusted", **options)
        federation = Federation(agreement, 1)
        keys = []
        while not federation.server.is_finished(federation.state):
            before = federation.state.round
            federation._turn(0.1)
            if federation.state.round > before:
                keys.append(federation.state.last_key)
        from sordino.together.federated._chain import drawn

        assert len(set(keys)) == 8
        left = np.zeros(agreement.parameters, np.int64)
        for t, key in enumerate(keys, start=1):
            assert key is not None
            y = drawn(key, agreement.variance, agreement.parameters)
            left += y if t == 8 else y - cancelled_draws(y, agreement.leak)
        sums = sum(
            audit.sums[index - 1]
            for name, audit in federation.audits().items()
            for index in federation.committed[name]
        )
        np.testing.assert_array_equal(federation.state.total - sums, left)
        # Clients sent their sums as they are: a trusted server adds the noise, nobody else.
        account = federation.state.account
        assert account is not None
        assert account.mu <= agreement.mu * (1 + 1e-9)
        assert account.mu == pytest.approx(agreement.mu, rel=1e-5)


def test_4_accounting_of_a_chain() -> None:
    """sigma^2 = (1, 2, 3), Delta = 1: in units of 10^6 lattice steps, where a twelfth is nothing."""
    unit = 10**12
    account = ChainAccountant.opened(reach=1e6, leak=65536, parameters=1)
    for index in (1, 2, 3):
        account = account.after(index, index - 1, [index - 1], index * unit)
    expected = [1.354006, 0.912871, 0.577350]
    np.testing.assert_allclose(np.sqrt(account.spent), expected, atol=5e-7)
    np.testing.assert_allclose(
        np.sqrt(tree_mu_squared([None, 0, 1], [1, 2, 3], 1.0)), expected, atol=5e-7
    )
    A = np.diag(np.sqrt([1.0, 2, 3])) - np.diag(np.sqrt([1.0, 2]), k=-1)
    precision = np.diag(np.linalg.inv(A @ A.T))
    np.testing.assert_allclose(np.sqrt(precision), expected, atol=5e-7)


def test_5_accounting_of_trees() -> None:
    unit = 10**12

    def both(parents: list[int | None], leak: float) -> Any:
        account = ChainAccountant.opened(reach=1e6, leak=round(leak * 65536), parameters=1)
        for i, parent in enumerate(parents):
            account = account.after(i + 1, 0 if parent is None else parent + 1, [i], unit)
        found = tree_mu_squared(parents, [1.0] * len(parents), leak)
        # 0.8 is no whole number of 65536ths, and rounding costs 1e-6.
        np.testing.assert_allclose(account.spent, found, rtol=3e-5)
        return found

    np.testing.assert_allclose(both([None, 0, 0, 1], 0.5), [1.5625, 1.25, 1, 1], rtol=1e-12)
    assert both([None, *[0] * 6], 0.8)[0] == pytest.approx(4.84)
    assert both([None, *range(6)], 0.8)[0] == pytest.approx(2.65561, abs=5e-6)


def test_5_the_same_tree_through_a_client() -> None:
    """Parents (-, 0, 0, 1): a commit of the first, then of the second."""
    agreement = replace(small(schedule="leaky", leak=0.5), mu=100.0)
    attacker = Attacker(scripted(agreement))
    for committed in (0, 1, 1, 2):
        attacker.ask(committed=committed)
    assert attacker.audit().parents == [None, 0, 0, 1]
    unit = agreement.reach**2 / (agreement.variance - 1 / 12)
    np.testing.assert_allclose(attacker.state.account.spent / unit, [1.5625, 1.25, 1, 1], rtol=1e-5)


def test_7_gaussian_privacy() -> None:
    assert delta_from_mu(1.0, 1.0) == pytest.approx(0.126936738, abs=1e-9)
    assert epsilon_from_mu(1.0, 1e-5) == pytest.approx(4.377178, abs=1e-6)
    assert epsilon_from_mu(0.5, 1e-5) == pytest.approx(1.993091, abs=1e-6)
    # And what an agreement prints is that, plus what discrete noise adds: nothing that is seen.
    guarantee = small(mu=1.0).guarantee
    assert guarantee.epsilon(1e-5) == pytest.approx(4.377178, abs=1e-4)
    assert guarantee.epsilon(1e-5) >= 4.377178


@pytest.mark.parametrize("leak", [65536, 52429])
@pytest.mark.parametrize("sample", [0, 2])
def test_9_adaptive_audit(leak: int, sample: int) -> None:
    """1-d, K = 5, what is asked depends on earlier messages, one sample is replaced (4e5 draws).

    2 E[LLR] and Var[LLR] are both mu_j^2. The messages are made by the functions of the client
    (`cancelled_draws`; discrete noise has a standard deviation of 2,000 steps, so rounded Gaussian noise is
    the same to 1e-8) and paid for by `ChainAccountant`. Errors of the two are sqrt(mu^2 / N) and
    sqrt(2 / N) mu^2: 0.3 % each, four of which are within 1.5 %.
    """
    rng, N, K, reach, variance = np.random.default_rng(leak + sample), 400_000, 5, 2000.0, 4_000_000
    account = ChainAccountant.opened(reach=reach, leak=leak, parameters=1)
    for index in range(1, K + 1):
        account = account.after(index, index - 1, [index - 1], variance)
    mu_squared = account.spent[sample]
    # World 1 (the sample as it is) really happens; LLR of world 1 against world 0 (replaced).
    y_before = np.zeros(N, np.int64)
    seen_before = np.zeros(N, np.int64)
    A = [np.zeros(N, np.int64), np.zeros(N, np.int64)]
    llr = np.zeros(N)
    x = np.zeros(N)
    for j in range(K):
        # Far out or near, on this side or the other, by the sign of what was seen.
        s1 = np.trunc(reach / 2 * np.cos(3 * x)).astype(np.int64)
        s0 = s1 - int(reach) * np.where(s1 > 0, 1, -1) if j == sample else s1
        y = np.rint(rng.normal(0, math.sqrt(variance), N)).astype(np.int64)
        message = s1 + y - cancelled_draws(y_before, leak)
        # The attacker's side: R = message + rho(R_p); A of either world from R_p and A_p.
        back = cancelled_draws(seen_before, leak)
        seen = message + back
        A = [
            s + back - cancelled_draws(seen_before - a, leak)
            for s, a in zip((s0, s1), A, strict=True)
        ]
        assert (seen - A[1] == y).all()
        llr += ((seen - A[0]) ** 2.0 - (seen - A[1]) ** 2.0) / (2 * variance)
        x = message / math.sqrt(variance)
        y_before, seen_before = y, seen
    assert 2 * llr.mean() == pytest.approx(mu_squared, rel=0.015)
    assert llr.var() == pytest.approx(mu_squared, rel=0.015)


def test_10_hostile_server() -> None:
    """t = 1200, opposite points in a ball of 0.05, 785 pixels in [-1, 1], ten classes, S = 118.12."""
    rng = np.random.default_rng(0)
    S = 118.1232
    agreement = small(
        parameters=7850, rounds=1200, clip=S, mu=8.0, radius=0.05, per_round=1, clients=1
    )
    pixels = np.ones((1, 785), np.float32)
    loss = Softmax(10)
    kind = ClientEvaluator.of(agreement, loss, np.zeros((10, 785), np.float32))
    start = np.zeros((10, 785), np.float32)
    data = LocalData(agreement, loss, start, (pixels, np.zeros(1, np.int32)), contribution=kind)
    direction = np.zeros((10, 785))
    direction[0], direction[1] = 1.0, -1.0
    point = (0.05 * direction / np.linalg.norm(direction)).ravel().astype(np.float32)

    def unclipped(x: Any) -> Any:
        logits = x.reshape(10, 785).astype(np.float64) @ pixels[0]
        p = np.exp(logits - logits.max())
        return np.outer(p / p.sum() - np.eye(10)[0], pixels[0])

    raw = 1200 * unclipped(point) - 1199 * unclipped(-point)
    assert np.linalg.norm(raw) > 9000
    found = data.total(point, -point, 1200, 0).clipped
    whole = math.sqrt(sum(int(v) ** 2 for v in found))
    assert whole * agreement.step <= S
    assert whole * agreement.step > 0.9999 * S
    # A random example at random points of the ball is kept within S, too, or untouched.
    pixels = rng.uniform(-1, 1, (1, 785)).astype(np.float32)
    data = LocalData(agreement, loss, start, (pixels, np.zeros(1, np.int32)), contribution=kind)
    for t in (1, 2, 1200):
        a, b = rng.normal(size=(2, 7850))
        a, b = (0.05 * v / np.linalg.norm(v) for v in (a, b))
        found = data.total(a.astype(np.float32), b.astype(np.float32), t, 0).clipped
        assert math.sqrt(sum(int(v) ** 2 for v in found)) * agreement.step <= S
    # And through the client itself, which answers.
    attacker = Attacker(Client("client-0", agreement, data))
    answer = attacker.ask(round=1200, point=point, previous=-point)
    assert isinstance(answer, Reply)
    attacker.check()


@st.composite
def lies(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests: most of them make sense, but commits, rounds and turns are whatever comes."""
    count = draw(st.integers(1, 14))
    return [
        {
            "committed": draw(st.integers(-2, 3)),  # relative to the last message
            "absolute": draw(st.sampled_from([None, None, None, 0, 1, 5])),
            "turn": draw(st.sampled_from([1, 1, 1, 0, -1, 7])),  # relative to the last turn
            "round": draw(st.sampled_from([0, 0, 1, 2, -1])),  # relative to the last round
            "point": draw(st.sampled_from([0.0, 1.0, -3e4])),
            "again": draw(st.booleans()),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("unit", "leak", "reach"),
    [
        ("example", 1.0, None),
        ("example", 0.8, None),
        ("example", 0.8, 40),
        ("example", 0.8, 6),
        ("example", 0.5, 6),
        ("client", 0.8, 6),
        ("client", 1.0, 40),
    ],
)
def test_11_every_lie_is_paid_for(leak: float, reach: float | None, unit: str) -> None:
    """Charges are at least the true mu^2 of all that was sent, rounding included, for every sample.

    On lattices so coarse that rounding is most of what is left. For each sample, neighbours at the
    full distance in several directions: what moves is computed in whole numbers from the noise that
    was really drawn (`Audit.moved`). No two different messages share their noise.
    """
    made = small(schedule="leaky", leak=leak, uses=2, examples=5, mu=2.0, unit=unit)
    agreement = made if reach is None else coarse(made, reach)
    agreement = replace(agreement, cap=100, rounds=30)
    # The longest changes that the client can be moved by: along an axis, and along the diagonal.
    length = math.floor(agreement.reach)
    each = math.floor(agreement.reach / 2)
    changes = [
        np.array(change, np.int64)
        for change in ([length, 0, 0, 0], [each] * 4, [each, -each, each, -each], [1, 0, 0, 0])
    ]

    @QUICK
    @given(lies(), st.integers(0, 2**32))
    def check(requests: list[dict[str, Any]], seed: int) -> None:
        attacker = Attacker(scripted(agreement, blocks=5), secret=seed.to_bytes(32, "big"))
        for lie in requests:
            state = attacker.state
            at = state.sent.round if state.sent else 1
            absolute = lie["absolute"]
            committed = state.index + lie["committed"] if absolute is None else absolute
            request = attacker.request(
                turn=max(1, attacker.turn + lie["turn"]),
                round=max(1, at + lie["round"]),
                committed=max(0, committed),
                point=np.full(4, lie["point"], np.float32),
            )
            answer = attacker.send(request)
            if lie["again"] and isinstance(answer, Reply):
                assert attacker.send(request).to_bytes() == answer.to_bytes()
        audit = attacker.check()
        account = attacker.state.account
        for group, unit_ in enumerate(audit.groups()):
            spent = account.spent[group]
            for change in changes:
                assert audit.moved(unit_, change) <= spent * (1 + 1e-9)
                assert audit.moved(unit_, -change) <= spent * (1 + 1e-9)
        assert account.mu_squared <= agreement.limit * (1 + 1e-8)

    check()


def test_11_charges_are_not_much_too_high() -> None:
    """A check that any account would pass is worth nothing: on a fine lattice they are equal."""
    agreement = small(schedule="leaky", leak=0.8)
    attacker = Attacker(scripted(agreement))
    for committed in (0, 1, 1, 3, 4, 4):
        attacker.ask(committed=committed)
    audit = attacker.check()
    change = np.array([math.floor(agreement.reach), 0, 0, 0])
    for group, unit in enumerate(audit.groups()):
        assert audit.moved(unit, change) == pytest.approx(
            attacker.state.account.spent[group], rel=1e-5
        )


def test_12_constant_divisor() -> None:
    """Two clients, of whom one or both answer: a constant divisor cancels, a mean of who came does not."""
    agreement = small(clients=2, per_round=1, rounds=2, schedule="uniform", mu=4.0, extra=1)
    assert agreement.divisor == 1
    assert small(clients=3, per_round=2, batch=5).divisor == 10
    assert small(clients=3, per_round=2, batch=5, unit="client").divisor == 2
    # Rounds with r = 1 and 2 messages of the same two clients, in the order of the chain.
    rng = np.random.default_rng(0)
    cohorts = [(0,), (0, 1), (1,), (0, 1), (0,), (1,)]
    y_before = np.zeros(2)
    constant = varying = 0.0
    for cohort in cohorts:
        messages = []
        for i in cohort:
            y = float(rng.integers(-1000, 1001))
            messages.append(y - y_before[i])
            y_before[i] = y
        constant += sum(messages) / 2
        varying += sum(messages) / len(cohort)
    assert constant == y_before.sum() / 2
    assert abs(varying - constant) > 1


def test_12_a_round_is_m_messages_and_the_divisor_stays() -> None:
    """The real server: however many answer, exactly m are added, and q is divided by m."""
    agreement = small(clients=5, per_round=2, extra=2, rounds=6, schedule="uniform", mu=8.0)
    agreement = replace(agreement, cap=500)
    federation = Federation(agreement, 3)
    while not federation.server.is_finished(federation.state):
        before = federation.state
        federation._turn(0.3)
        after = federation.state
        if after.round > before.round:
            assert sum(map(len, federation.committed.values())) == 2 * (after.round - 1)
            step = agreement.learning_rate * after.total * (agreement.step / 2)
            np.testing.assert_allclose(after.weights, before.weights - step, rtol=1e-12)


def test_13_whole_clients() -> None:
    """K = 600 uniform: 346.8 times the mu of one example; through the account of a real client.

    The client's second account ("other") is of the whole client; 60 messages here, so sqrt(61 * 121 / 6);
    and as many through `ChainAccountant` alone as the oracle has.
    """
    agreement = small(rounds=60, schedule="uniform", parameters=4)
    attacker = Attacker(scripted(agreement))
    for _ in range(60):
        assert isinstance(attacker.ask(committed=attacker.state.index), Reply)
    state = attacker.state
    assert state.other.mu / state.account.mu == pytest.approx(math.sqrt(61 * 121 / 6), rel=1e-6)
    ratios = {}
    for name, leak, growing in (("uniform", 65536, 0), ("paper", 65536, 1), ("fresh", 0, 0)):
        whole = ChainAccountant.opened(reach=1e4, leak=leak, parameters=1)
        one = ChainAccountant.opened(reach=1e4, leak=leak, parameters=1)
        for index in range(1, 601):
            variance = 10**8 * (index if growing else 1)
            whole = whole.after(index, index - 1, [0], variance).keeping([index])
            one = one.after(index, index - 1, [0] if index == 1 else [], variance).keeping([index])
        ratios[name] = whole.mu / one.mu
    assert ratios["uniform"] == pytest.approx(346.8, abs=0.05)
    # The printed schedule is calibrated by 1 + ln T with T = 1200, of which 600 messages use 0.9285.
    assert ratios["paper"] * 0.928528 == pytest.approx(149.3, abs=0.1)
    assert ratios["fresh"] == pytest.approx(24.495, abs=0.001)

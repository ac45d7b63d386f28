"""The simulator against the protocol itself: bit for bit on the lattice, in distribution in floats."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sordino._base.errors import SordinoError
from sordino.parts._losses import LeastSquares, Logistic, Softmax
from sordino.together.federated._agreeing import agree
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import insecure_secret, order_key, permuted
from sordino.together.federated._client import Client
from sordino.together.federated._cohorts import Cohorts, cohorts_of, random_cohorts, split
from sordino.together.federated._contribution import ClientEvaluator, LocalData, flattened
from sordino.together.federated._messages import Refusal, Reply
from sordino.together.federated._server import Server, ServerState
from sordino.together.federated._simulator import SERVER, simulate
from sordino.together.federated._sum_stream import RoundNoise, SumStream

SEED = 7
# How often a test with a statistic may fail by chance, per comparison.
CHANCE = 1e-7


def pads(request: Any, name: str, d: int) -> np.ndarray:
    """What pairwise pads add up to for one member; over the cohort, to nothing (modulo 2^64)."""
    total = np.zeros(d, np.uint64)
    for other in request.cohort:
        if other == name:
            continue
        pair = "/".join(sorted((name, other)))
        seed = hashlib.sha256(f"{pair}/{request.turn}".encode()).digest()
        pad = np.random.default_rng(list(seed)).integers(0, 2**64, d, dtype=np.uint64)
        total = total + pad if name < other else total - pad
    return total


def protocol(
    agreement: Agreement, loss: Any, params: Any, data: list[Any]
) -> tuple[Server, ServerState, list[tuple[str, ...]]]:
    """The real clients and the real server, everybody present; and who was asked in each round."""
    kind = ClientEvaluator.of(agreement, loss, params)
    clients, states = {}, {}
    for name, part in zip(agreement.clients, data, strict=True):
        secret = insecure_secret(SEED, name)
        order = permuted(order_key(secret), len(part[0]))
        local = LocalData(agreement, loss, params, part, order=order, contribution=kind)
        mask = None
        if agreement.trust == "secure-sum":

            def mask(request: Any, index: int, values: Any, name: str = name) -> Any:
                return (values.view(np.uint64) + pads(request, name, len(values))).view(np.int64)

        clients[name] = Client(name, agreement, local, mask=mask)
        states[name] = clients[name].begin(secret)
    secret = insecure_secret(SEED, SERVER) if agreement.trust == "trusted" else None
    server = Server(agreement, flattened(params), secret)
    state, chance, cohorts = server.begin(), np.random.default_rng(SEED), []
    while not server.is_finished(state):
        state, requests = server.ask(state, agreement.clients, chance)
        cohort = state.asked
        for name, request in requests.items():
            states[name], reply = clients[name].respond(states[name], request)
            assert isinstance(reply, Reply | Refusal)
            state, _, done = server.receive(state, name, reply)
            if done is not None:
                cohorts.append(tuple(name for name in cohort if name in done.committed))
    return server, state, cohorts


def rows(n: int, features: int = 5, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n).astype(np.int32)
    X = rng.normal(size=(n, features)).astype(np.float32)
    X[np.arange(n), y % features] += 2.0
    return X, y


def network(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(params["in"] @ x + params["bias"])
    logits = params["out"] @ hidden
    return jnp.log(jnp.sum(jnp.exp(logits))) - logits[y]


def network_start() -> Any:
    rng = np.random.default_rng(3)
    return {
        "in": 0.5 * rng.normal(size=(4, 5)).astype(np.float32),
        "bias": np.zeros(4, np.float32),
        "out": 0.5 * rng.normal(size=(3, 4)).astype(np.float32),
    }


LINEAR = (Softmax(3), np.zeros((3, 5), np.float32))
NETWORK = (network, network_start())
FULL = {"clients": 4, "rounds": 6, "mu": 4.0, "learning_rate": 0.02}
PART = {**FULL, "clients": 6, "per_round": 3, "rounds": 9}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(LINEAR, FULL, id="linear"),
        pytest.param(LINEAR, {**FULL, "batch": 3, "radius": 0.3}, id="linear-batch-ball"),
        pytest.param(NETWORK, {**FULL, "batch": 4, "clip": 0.7}, id="network-batch"),
        pytest.param(NETWORK, {**FULL, "batch": 2, "trust": "trusted"}, id="trusted-network"),
        pytest.param(LINEAR, {**FULL, "batch": 2, "trust": "secure-sum"}, id="secure-sum"),
        pytest.param(LINEAR, {**FULL, "schedule": "paper"}, id="paper-schedule"),
        pytest.param(LINEAR, {**FULL, "algorithm": "noisy-sgd"}, id="noisy-sgd"),
        pytest.param(
            LINEAR, {**FULL, "algorithm": "lowy-razaviyayn", "examples": 7}, id="lowy-razaviyayn"
        ),
        pytest.param(NETWORK, {**FULL, "unit": "client", "batch": 3, "cap": 6}, id="unit-client"),
        pytest.param(LINEAR, PART, id="random-cohorts"),
        pytest.param(LINEAR, {**PART, "trust": "trusted", "cap": 9}, id="trusted-random-cohorts"),
        pytest.param(
            LINEAR, {**PART, "trust": "secure-sum", "cap": 9}, id="secure-sum-random-cohorts"
        ),
        pytest.param(
            LINEAR, {**PART, "uses": 2, "examples": 2, "batch": 2, "cap": 9}, id="used-up"
        ),
        pytest.param(LINEAR, {**PART, "extra": 2, "schedule": "uniform", "cap": 9}, id="extra"),
        pytest.param(LINEAR, {**PART, "cap": 4}, id="clients-that-reach-their-cap"),
    ],
)
def test_exact_simulation_is_the_protocol_bit_for_bit(model: Any, options: Any) -> None:
    loss, params = model
    d = len(flattened(params))
    agreement = agree(parameters=d, nonce="00" * 16, **options)
    if options.get("unit") == "client":
        assert agreement.variance_of(1) == agreement.variance
    # Clients of different sizes, of which some have a block that is not full, one only a few rows.
    data = split(*rows(60), len(agreement.clients), seed=1, sizes="dirichlet", skew=0.5)
    if agreement.kind.whole:
        data = split(*rows(28), 4, seed=1)
    server, state, cohorts = protocol(agreement, loss, params, data)
    found = simulate(agreement, loss, params, data, insecure_seed=SEED, noise="exact")
    assert isinstance(found.cohorts, Cohorts)
    numbers = {name: i for i, name in enumerate(agreement.clients)}
    asked = [[numbers[name] for name in cohort] for cohort in cohorts]
    np.testing.assert_array_equal(found.cohorts.members, asked)
    assert len(cohorts) >= agreement.rounds - 4
    assert np.any(state.total)
    np.testing.assert_array_equal(found.total, state.total)
    np.testing.assert_array_equal(flattened(found.params), server.output(state))


@pytest.fixture
def _budget_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """For lattices with hardly any noise, under which real clients would refuse to answer."""
    monkeypatch.setattr(
        "sordino.together.federated._simulator.check_message_budget", lambda *_: None
    )


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (LINEAR, {**PART, "batch": 3, "clip": 0.8}),
        (LINEAR, {**PART, "uses": 2, "examples": 2, "batch": 2, "cap": 9}),
        (NETWORK, {**PART, "batch": 4, "clip": 0.5}),
        (NETWORK, {**PART, "batch": 2, "clip": 0.3, "unit": "client", "cap": 9}),
        (LINEAR, {**PART, "clip": 0.3, "unit": "client", "cap": 9, "radius": 0.05}),
        (LINEAR, {**PART, "algorithm": "noisy-sgd", "learning_rate": 0.3}),
        (LINEAR, {**PART, "algorithm": "lowy-razaviyayn", "examples": 10, "learning_rate": 0.3}),
    ],
)
@pytest.mark.usefixtures("_budget_is_no_matter")
def test_the_compiled_rounds_are_the_protocol_without_its_noise(model: Any, options: Any) -> None:
    """The lattice with next to no noise (2 steps) against floats without any."""
    loss, params = model
    agreement = agree(parameters=len(flattened(params)), **options)
    quiet = replace(agreement, exponent=-22, variance=4)
    sizes = "equal" if agreement.kind.whole else "dirichlet"
    data = split(*rows(60), 6, seed=1, sizes=sizes)
    settings = {"insecure_seed": SEED, "evaluate": flattened, "every": 1}
    lattice = simulate(quiet, loss, params, data, noise="exact", **settings)
    floats = simulate(agreement, loss, params, data, noise="none", **settings)
    assert [done for done, _ in lattice.trace] == list(range(1, 10))
    for (done, expected), (same, found) in zip(lattice.trace, floats.trace, strict=True):
        assert done == same
        np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected - flattened(params)).max() > 1e-3
    assert not floats.guarantee.is_private


@pytest.mark.slow
def test_large_cohorts_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = agree(parameters=15, **{**PART, "batch": 3})
    data = split(*rows(60), 6, seed=1)
    settings = {"insecure_seed": 1, "noise": "none"}
    whole = simulate(agreement, *LINEAR, data, **settings)
    for together in (4, 6):  # one client at a time; two, and a third with nobody beside it
        monkeypatch.setattr("sordino.together.federated._rounds._TOGETHER", together)
        parts = simulate(agreement, *LINEAR, data, **settings)
        np.testing.assert_allclose(parts.params, whole.params, atol=1e-6)


def test_mu2_by_hand() -> None:
    """papers/02 oracle 1 (and 2: one client, no noise): f = (x - z)^2 / 2, eta = .1."""
    z = np.array([1, 0.5, -0.5], np.float32)
    agreement = agree(
        clients=1, parameters=1, rounds=3, mu=1.0, clip=1e3, learning_rate=0.1, radius=1.0
    )
    found = simulate(
        agreement,
        lambda x, z: 0.5 * jnp.sum((x - z) ** 2),
        np.zeros(1, np.float32),
        [z],
        insecure_seed=0,
        noise="none",
        shuffle=False,
        evaluate=lambda x: float(x[0]),
        every=1,
    )
    points = [value for _, value in found.trace]
    np.testing.assert_allclose(points, [0.0666667, 0.1516667, 0.2074667], atol=1e-6)
    np.testing.assert_allclose(found.total, -0.545, atol=1e-6)


def zero(params: Any, z: Any) -> Any:
    """The objective of papers/02 E7: nothing but noise."""
    return 0.0 * jnp.sum(params) * z


@pytest.mark.parametrize("options", [{}, {"schedule": "paper"}, {"trust": "trusted", "cap": 40}])
def test_gaussian_sums_have_the_distribution_of_the_lattice(options: Any) -> None:
    """x_T and q_T of 3,000 coordinates: Kolmogorov-Smirnov and variances, against the exact protocol."""
    d = 3000
    agreement = agree(
        clients=5, per_round=2, rounds=40, parameters=d, mu=1.0, learning_rate=1e-3, **options
    )
    data = [np.zeros(40, np.float32)] * 5
    start = np.zeros(d, np.float32)
    cohorts = random_cohorts(agreement, 3)
    runs = {
        noise: simulate(agreement, zero, start, data, insecure_seed=3, cohorts=cohorts, noise=noise)
        for noise in ("exact", "gaussian")
    }
    exact, floats = runs["exact"], runs["gaussian"]
    pairs = [(exact.params, floats.params), (exact.total * agreement.step, floats.total)]
    for one, other in pairs:
        assert stats.ks_2samp(one, other).pvalue > CHANCE
        ratio = float(np.var(one) / np.var(other))
        low, high = stats.f(d - 1, d - 1).ppf([CHANCE, 1 - CHANCE])
        assert low < ratio < high
    # And the truth for both: q_T has the variance of a sum over Sigma.
    truth = SumStream.of_agreement(agreement, cohorts).dense().sum() * agreement.step**2
    low, high = stats.chi2(d).ppf([CHANCE, 1 - CHANCE])
    for total in (pairs[1][0], pairs[1][1]):
        assert low < float(np.sum(np.square(total, dtype=np.float64))) / truth < high


def brute_force(cohorts: Cohorts, leak: float, growing: bool) -> np.ndarray:
    """Covariance of the sums from every client's own draws, one message at a time."""
    draws: list[np.ndarray] = []
    index, parent = [0] * cohorts.clients, [-1] * cohorts.clients
    variances: list[float] = []
    for t, (members, late) in enumerate(zip(cohorts.members, cohorts.late, strict=True)):
        for i in (*members, *late):
            index[i] += 1
            if i in late:
                continue
            column = np.zeros(cohorts.rounds)
            column[t] += 1
            if parent[i] >= 0:
                draws[parent[i]][t] -= leak
            parent[i] = len(draws)
            draws.append(column)
            variances.append(float(index[i]) if growing else 1.0)
    matrix = np.stack(draws, axis=1)
    return matrix * variances @ matrix.T


def some_cohorts(rng: np.random.Generator, M: int, m: int, T: int, late: int) -> Cohorts:
    table = np.stack([rng.permutation(M)[: m + late] for _ in range(T)]).astype(np.int32)
    return Cohorts(M, table[:, :m], table[:, m:])


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("leak", [0.0, 0.6, 1.0])
def test_one_draw_a_round_has_the_covariance_of_all_clients_draws(
    leak: float, growing: bool
) -> None:
    """Exactly: the linear map from unit draws to sums, brute force over many small cohorts."""
    rng = np.random.default_rng(5)
    for M, m, T, late in [
        (1, 1, 5, 0),
        (3, 2, 6, 0),
        (5, 2, 9, 0),
        (5, 1, 12, 2),
        (4, 4, 7, 0),
    ] * 4:
        cohorts = some_cohorts(rng, M, m, T, late)
        stream = SumStream.of(cohorts, leak=leak, growing=growing)
        expected = brute_force(cohorts, leak, growing)
        np.testing.assert_allclose(stream.dense(), expected, atol=1e-12)
        # The map that `RoundNoise` applies: its rows for unit draws, in chunks of any size.
        noise = RoundNoise(stream, T, seed=0)
        noise._chance = _UnitDraws(T)  # type: ignore[assignment]
        chunks = [noise.rows(min(3, T - at)) for at in range(0, T, 3)]
        applied = np.concatenate(chunks).astype(np.float64)
        np.testing.assert_allclose(applied @ applied.T, expected, atol=1e-5 * expected.max())


class _UnitDraws:
    """In place of standard normal rows, those of the identity."""

    def __init__(self, rounds: int) -> None:
        self._left = list(np.eye(rounds, dtype=np.float32))

    def standard_normal(self, shape: tuple[int, int], dtype: Any) -> np.ndarray:
        return np.stack([self._left.pop(0) for _ in range(shape[0])]).astype(dtype)


@pytest.mark.slow
def test_noise_does_not_depend_on_chunks() -> None:
    agreement = agree(clients=6, per_round=3, rounds=48, parameters=15, mu=4.0)
    data = split(*rows(600), 6, seed=1)
    once, often = (
        simulate(agreement, *LINEAR, data, insecure_seed=1, evaluate=flattened, every=every)
        for every in (48, 8)
    )
    np.testing.assert_allclose(once.params, often.params, rtol=1e-4, atol=1e-6)
    assert [done for done, _ in once.trace] == [48]
    assert [done for done, _ in often.trace] == [8, 16, 24, 32, 40, 48]


@pytest.mark.slow
def test_seeds_side_by_side_are_the_seeds_one_by_one() -> None:
    agreement = agree(clients=6, per_round=3, rounds=16, parameters=15, mu=4.0, batch=2)
    data = split(*rows(100), 6, seed=1)
    settings = {"shuffle": False, "evaluate": lambda W: float(W.sum()), "every": 8}
    together = simulate(agreement, *LINEAR, data, insecure_seed=[4, 5, 6], **settings)
    assert together.params.shape == (3, 3, 5)
    assert isinstance(together.cohorts, list)
    for i, seed in enumerate((4, 5, 6)):
        alone = simulate(agreement, *LINEAR, data, insecure_seed=seed, **settings)
        np.testing.assert_allclose(together.params[i], alone.params, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(together.cohorts[i].members, alone.cohorts.members)
        assert together.observers(i) == alone.observers()
        for (done, values), (same, value) in zip(together.trace, alone.trace, strict=True):
            assert done == same
            np.testing.assert_allclose(values[i], value, rtol=1e-3, atol=1e-5)


def test_what_a_run_reports() -> None:
    agreement = agree(clients=10, per_round=5, rounds=30, parameters=15, epsilon=2.0)
    data = split(*rows(400), 10, seed=0)
    found = simulate(agreement, *LINEAR, data, insecure_seed=1)
    assert found.guarantee is agreement.guarantee
    seen = found.observers()
    # Nobody sent more than the cap, so nobody spent more than was agreed; sums hide far better.
    assert 0.8 * agreement.mu < seen.server <= agreement.mu * (1 + 1e-9)
    assert seen.sums < seen.server / 2
    assert seen.sums < found.observers(without=[0, 1, 2]).sums < seen.server


def test_server_mu_is_what_clients_pay() -> None:
    """`observers` against the accounts of the real clients, with late messages and without."""
    for options in ({}, {"extra": 2}, {"schedule": "paper"}, {"uses": 3, "examples": 2}):
        agreement = agree(parameters=15, **{**PART, "cap": 9, **options})
        data = split(*rows(60), 6, seed=1, sizes=[2, 4, 20, 10, 12, 12])
        kind = ClientEvaluator.of(agreement, *LINEAR)
        spent = []
        cohorts = random_cohorts(agreement, SEED)
        for i, name in enumerate(agreement.clients):
            local = LocalData(agreement, *LINEAR, data[i], contribution=kind)
            client = Client(name, agreement, local)
            state = client.begin(insecure_secret(SEED, name))
            server = Server(agreement, flattened(LINEAR[1])).begin()
            for t, (members, late) in enumerate(zip(cohorts.members, cohorts.late, strict=True), 1):
                if i not in members and i not in late:
                    continue
                committed = int(server.committed.get(name, 0))
                request = Server(agreement, flattened(LINEAR[1])).request(
                    replace(server, turn=t, round=t), name
                )
                state, reply = client.respond(state, request)
                assert isinstance(reply, Reply)
                if i in members:
                    committed = reply.index
                server = replace(server, committed={name: committed})
            spent.append(client.spent(state))
        found = simulate(
            agreement, *LINEAR, data, insecure_seed=SEED, cohorts=cohorts, noise="gaussian"
        )
        assert found.observers().server == pytest.approx(max(spent), rel=1e-6)


def test_cohorts_by_name() -> None:
    agreement = agree(clients=5, per_round=2, rounds=4, parameters=3, mu=1.0, cap=4)
    robin = cohorts_of(agreement, "round-robin", 0)
    np.testing.assert_array_equal(robin.members, [[0, 1], [2, 3], [4, 0], [1, 2]])
    np.testing.assert_array_equal(robin.messages.index, [[1, 1], [1, 1], [1, 2], [2, 2]])
    np.testing.assert_array_equal(robin.messages.before, [[-1, -1], [-1, -1], [-1, 0], [0, 1]])
    fixed = cohorts_of(agreement, "fixed", 0)
    assert set(fixed.members.ravel()) == {0, 1}
    random = random_cohorts(replace(agreement, rounds=4000, cap=4000), 1)
    counts = random.sent()
    # 4,000 draws of 2 of 5: each client's number is binomial with standard deviation 31.
    assert np.abs(counts - 1600).max() < 170
    with pytest.raises(SordinoError, match="not all"):
        cohorts_of(agreement, "all", 0)
    with pytest.raises(SordinoError, match="not known"):
        cohorts_of(agreement, "any", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients_data": [np.zeros((3, 5), np.float32)]}, "data of 1"),
        ({"noise": "some"}, "noise 'some' is not known"),
        ({"cohorts": Cohorts(4, np.zeros((6, 1), np.int32))}, "4 of 4 clients in a round"),
        ({"cohorts": Cohorts(4, np.tile(np.arange(4), (7, 1)))}, "6 rounds, these cohorts 7"),
        ({"insecure_seed": [1, 2], "noise": "exact"}, "one seed at a time"),
        ({"params": np.zeros((3, 4), np.float32)}, "the model has 12"),
        ({"every": 0}, "every must be"),
    ],
)
def test_what_cannot_be_simulated(change: Any, words: str) -> None:
    agreement = agree(parameters=15, **FULL)
    given = {"params": LINEAR[1], "clients_data": split(*rows(60), 4, seed=1), "insecure_seed": 1}
    given |= change
    with pytest.raises(SordinoError, match=words):
        simulate(agreement, LINEAR[0], **given)


def test_clients_that_would_refuse_are_not_simulated() -> None:
    """Fewer examples than were agreed are used again earlier: the noise was not made for that."""
    agreement = agree(parameters=15, **{**FULL, "uses": 3, "examples": 20, "schedule": "uniform"})
    enough, few = (split(*rows(n), 4, seed=1) for n in (80, 8))
    simulate(agreement, *LINEAR, enough, insecure_seed=1)
    with pytest.raises(SordinoError, match="and refuses"):
        simulate(agreement, *LINEAR, few, insecure_seed=1)
    simulate(agreement, *LINEAR, few, insecure_seed=1, noise="none")


def test_cohorts_that_cannot_be() -> None:
    with pytest.raises(SordinoError, match="at most once"):
        Cohorts(3, np.array([[0, 0]]))
    with pytest.raises(SordinoError, match="at most once"):
        Cohorts(3, np.array([[0, 1]]), np.array([[1]]))
    with pytest.raises(SordinoError, match="from 0 to 2"):
        Cohorts(3, np.array([[0, 3]]))
    with pytest.raises(SordinoError, match="whole numbers"):
        Cohorts(3, np.array([[0.5, 1]]))
    agreement = agree(parameters=15, **{**PART, "cap": 4})
    too_often = Cohorts(6, np.tile(np.arange(3), (9, 1)))
    with pytest.raises(SordinoError, match="9 messages, agreed are 4"):
        too_often.check(agreement)


@pytest.mark.parametrize("sizes", ["equal", "dirichlet", [5, 0, 20, 3]])
@pytest.mark.parametrize("skew", [None, 0.1, 100.0])
def test_split_gives_every_row_to_one_client(sizes: Any, skew: float | None) -> None:
    X, y = rows(203)
    X[:, 0] = np.arange(203)
    parts = split(X, y, 4, seed=3, sizes=sizes, skew=skew)
    given = np.concatenate([part[:, 0] for part, _ in parts])
    assert len(set(given.tolist())) == len(given)
    for part, labels in parts:
        np.testing.assert_array_equal(labels, y[part[:, 0].astype(int)])
    counts = [len(labels) for _, labels in parts]
    if sizes == "equal":
        assert sorted(counts) == [50, 51, 51, 51]
    elif sizes == "dirichlet":
        assert sum(counts) == 203
        assert min(counts) >= 1
    else:
        assert counts == sizes
    again = split(X, y, 4, seed=3, sizes=sizes, skew=skew)
    for (one, _), (other, _) in zip(parts, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_skew_makes_labels_uneven() -> None:
    _, y = rows(6000)
    shares = {}
    for skew in (0.05, 100.0):
        parts = split(y, y, 30, seed=0, skew=skew)
        shares[skew] = np.mean(
            [np.bincount(labels, minlength=3).max() / 200 for _, labels in parts]
        )
    assert shares[0.05] > 0.75 > 0.45 > shares[100.0]
    for bad in ({"skew": -1.0}, {"sizes": "few"}, {"sizes": [1, 2]}):
        with pytest.raises(SordinoError):
            split(y, y, 30, seed=0, **bad)


@pytest.mark.usefixtures("_budget_is_no_matter")
@pytest.mark.slow
def test_losses_of_one_output_and_plain_arrays() -> None:
    """Logistic and least squares (parameters (features,)), data of one client empty."""
    X, y = rows(40, classes=2)
    for loss in (Logistic(), LeastSquares()):
        agreement = agree(clients=3, parameters=5, rounds=12, mu=2.0, batch=2, cap=12)
        data = [(X[:20], y[:20]), (X[:0], y[:0]), (X[20:], y[20:])]
        labelled = [(part, labels.astype(np.float32)) for part, labels in data]
        runs = [
            simulate(
                replace(agreement, exponent=-20, variance=4),
                loss,
                np.zeros(5, np.float32),
                labelled,
                insecure_seed=2,
                noise=noise,
            )
            for noise in ("none", "exact")
        ]
        np.testing.assert_allclose(runs[0].params, runs[1].params, atol=2e-5)

"""Servers, clients and networks that lie: what they get is refused, or paid for.

After every attack on a client its messages are replayed from its first secret by independent code
(`attack.Audit`): what they reveal together is at most what the client has paid, and that at most what was
agreed. After every attack on a server its state is what it was.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sordino import SordinoError
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._client import MOST_OPEN, Client
from sordino.together.federated._messages import (
    REFUSALS,
    Refusal,
    Reply,
    RoundRequest,
    message_from_bytes,
)
from sordino.together.federated._server import Server, ServerState

from .attack import Attacker, Audit, D, mask, real, scripted, small

FAR = np.full(D, 3e4, np.float32)


def refused(answer: Any, code: str, *words: str) -> Refusal:
    assert isinstance(answer, Refusal), answer
    assert answer.code == code, answer
    for word in words:
        assert word in answer.detail, answer.detail
    assert answer.is_final is not REFUSALS[code][1]
    return answer


def rows(count: int = 12, size: float = 100.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    X = (size * rng.normal(size=(count, D))).astype(np.float32)
    return X, rng.normal(size=count).astype(np.float32)


class TestPoints:
    @pytest.mark.parametrize("schedule", ["leaky", "uniform", "paper", "fresh"])
    def test_far_apart(self, schedule: str) -> None:
        """Gradients of 1e11 times 12 are clipped to 1: the replay finds them within the reach."""
        agreement = small(schedule=schedule)
        attacker = Attacker(real(agreement, *rows()))
        for t in range(1, 13):
            sign = (-1.0) ** t
            answer = attacker.ask(
                round=12, point=sign * FAR, previous=-sign * FAR, committed=attacker.state.index
            )
            assert isinstance(answer, Reply)
        found = attacker.check()
        norms = [math.sqrt(int(s @ s)) for s in found.sums]
        assert max(norms) <= agreement.reach
        assert min(norms) > 0.999 * agreement.reach
        # And the budget was just enough.
        assert attacker.client.spent(attacker.state) > 0.93 * agreement.mu
        refused(attacker.ask(round=12, committed=attacker.state.index), "cap", "12")

    @pytest.mark.parametrize(
        ("field", "value", "words"),
        [
            ("point", np.full(D, np.nan), "not finite"),
            ("previous", np.full(D, np.nan), "not finite"),
            ("point", np.full(D, np.inf), "not finite"),
            ("previous", np.array([0, 0, -np.inf, 0]), "not finite"),
            ("point", np.array([3, 0, 0, 0]), "from the start"),
            ("previous", np.array([0, -3, 0, 0]), "from the start"),
            ("point", np.full(D, 3.4e38), "from the start"),
        ],
    )
    def test_unusable(self, field: str, value: Any, words: str) -> None:
        agreement = small(radius=2.0)
        attacker = Attacker(real(agreement, *rows()))
        refused(attacker.ask(**{field: value.astype(np.float32)}), "point", words)
        assert not attacker.log
        # Just inside, float32 rounding included, is no crime.
        edge = np.array([2, 0, 0, 0], np.float32)
        assert isinstance(attacker.ask(point=edge, previous=-edge), Reply)
        attacker.check()

    @pytest.mark.parametrize("size", [1, D - 1, D + 1, 1000])
    def test_other_shapes(self, size: int) -> None:
        attacker = Attacker(real(small(), *rows()))
        other = np.zeros(size, np.float32)
        refused(attacker.ask(point=other, previous=other), "point", f"{size:,}", f"{D}")
        client, state = attacker.client, attacker.state
        for changes in ({"point": other}, {"previous": other}):
            # Not to be had from bytes, which have one size for both.
            answer = client.respond(state, attacker.request(**changes))[1]
            refused(answer, "point")

    def test_a_start_that_is_not_zero_is_the_centre(self) -> None:
        agreement = small(radius=2.0)
        start = np.full(D, 10, np.float32)
        attacker = Attacker(real(agreement, *rows(), start=start))
        refused(attacker.ask(), "point", "from the start")
        assert isinstance(attacker.ask(point=start, previous=start), Reply)

    def test_gradients_that_overflow_are_nothing(self) -> None:
        """t grad is infinite in float32: the example contributes zero, and is paid for all the same."""
        agreement = small()
        attacker = Attacker(real(agreement, *rows(size=1e30)))
        huge = np.full(D, 1e30, np.float32)
        for t in (1, 12):
            answer = attacker.ask(
                round=t, point=huge, previous=-huge, committed=attacker.state.index
            )
            assert isinstance(answer, Reply)
        found = attacker.check()
        assert max(math.sqrt(int(s @ s)) for s in found.sums) <= agreement.reach


class TestTurns:
    @pytest.mark.parametrize("trust", ["untrusted", "secure-sum", "trusted"])
    def test_the_same_request_gets_the_same_bytes(self, trust: str) -> None:
        agreement = small(clients=2, trust=trust)
        pads = {"mask": mask} if trust == "secure-sum" else {}
        attacker = Attacker(real(agreement, *rows(), **pads))
        for _ in range(3):
            request = attacker.request(point=FAR, committed=attacker.state.index)
            first, state = attacker.send(request), attacker.state
            for _ in range(3):
                again = attacker.send(request)
                assert again.to_bytes() == first.to_bytes()
                assert attacker.state is state
        assert len(attacker.log) == 3
        if trust == "untrusted":
            attacker.check()

    @pytest.mark.parametrize(
        "changes",
        [
            {"point": FAR},
            {"previous": FAR},
            {"point": -np.zeros(D, np.float32)},  # one bit of the sign of zero
            {"round": 2},
            {"committed": 1},
        ],
        ids=lambda c: next(iter(c)),
    )
    def test_another_request_for_the_same_turn(self, changes: dict[str, Any]) -> None:
        attacker = Attacker(real(small(), *rows()))
        attacker.ask(turn=5)
        answer = attacker.ask(turn=5, **changes)
        refused(answer, "repeated", "turn 5", "already answered")
        assert len(attacker.log) == 1
        attacker.check()

    def test_turns_and_rounds_do_not_go_back(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        attacker.ask(turn=7, round=6)
        refused(attacker.ask(turn=6, round=6), "repeated", "turn 6 is over", "7")
        refused(attacker.ask(turn=8, round=5), "round", "round 5 is over", "6")
        assert isinstance(attacker.ask(turn=8, round=6), Reply)
        # The same bytes as before, for a turn that is over: its reply is gone.
        refused(attacker.send(attacker.log[0][0]), "repeated", "turn 7 is over")
        attacker.check()

    @pytest.mark.parametrize("t", [13, 2**31, 2**48])
    def test_rounds_beyond_the_agreed_ones(self, t: int) -> None:
        attacker = Attacker(real(small(), *rows()))
        refused(attacker.ask(round=t), "round", f"{t:,}", "12")
        assert not attacker.log

    def test_numbers_too_large_for_the_wire(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        for field in ("turn", "round", "committed"):
            raw = attacker.request(**{field: 2**48 + 1}).to_bytes()
            with pytest.raises(SordinoError, match=field):
                message_from_bytes(raw)

    def test_a_huge_turn_costs_the_server_only(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        assert isinstance(attacker.ask(turn=2**48), Reply)
        refused(attacker.ask(turn=2**48 - 1), "repeated", "is over")
        attacker.check()

    def test_another_agreement(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        other = small(nonce="11" * 16)
        assert other.digest != attacker.client.agreement.digest
        refused(attacker.ask(agreement=other.digest), "agreement", "another agreement")
        # Even for a turn that was answered, with all else the same.
        attacker.ask(turn=3)
        refused(attacker.ask(turn=3, agreement=other.digest, committed=0), "agreement")
        assert len(attacker.log) == 1


class TestCommits:
    def test_never_sent(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        refused(attacker.ask(committed=1), "journal", "committed message 1", "knows of 0")
        attacker.ask()
        refused(attacker.ask(committed=2**48), "journal", "knows of 1")
        attacker.check()

    def test_going_back(self) -> None:
        attacker = Attacker(real(small(), *rows()))
        for _ in range(3):
            attacker.ask(committed=attacker.state.index)
        assert attacker.state.committed == 2
        for committed in (0, 1):
            refused(attacker.ask(committed=committed), "commit", f"message {committed}", "was 2")
        attacker.check()

    def test_skipping_is_allowed_and_stays(self) -> None:
        """Of three open messages the last is committed: the two before can never be."""
        attacker = Attacker(real(small(), *rows()))
        for _ in range(3):
            attacker.ask(committed=0)
        assert isinstance(attacker.ask(committed=3), Reply)
        for committed in (1, 2):
            refused(attacker.ask(committed=committed), "commit", "open since then are [4]")
        assert set(attacker.state.keys) == {3, 4}
        attacker.check()

    def test_open_messages_are_few(self) -> None:
        agreement = small(rounds=60, mu=8.0, schedule="fresh")
        attacker = Attacker(scripted(agreement))
        for _ in range(40):
            assert isinstance(attacker.ask(committed=0), Reply)
        assert len(attacker.state.live) == MOST_OPEN == len(attacker.state.keys)
        refused(attacker.ask(committed=40 - MOST_OPEN), "commit")
        assert isinstance(attacker.ask(committed=41 - MOST_OPEN), Reply)
        attacker.check()

    def test_the_committed_message_stays_open_however_many_follow(self) -> None:
        """Its noise is still in the server's sum, so every later message must be able to cancel it."""
        agreement = small(rounds=60, mu=8.0, schedule="uniform")
        attacker = Attacker(scripted(agreement))
        attacker.ask()
        for _ in range(40):
            assert isinstance(attacker.ask(committed=1), Reply)
        assert 1 in attacker.state.keys
        assert len(attacker.state.live) <= MOST_OPEN + 1
        attacker.check()

    def test_a_forged_commit_does_not_help(self) -> None:
        """A message is said to be committed that never was: its noise is taken back, and paid for."""
        attacker = Attacker(scripted(small(schedule="leaky")))
        while isinstance(attacker.ask(committed=attacker.state.index), Reply):
            pass
        refused(attacker.refused[-1], "cap")
        # But for the rounding, which is charged as if it always went the wrong way.
        assert attacker.check().mu_squared() == pytest.approx(1.0, rel=1e-5)


class TestBudget:
    @pytest.mark.parametrize("schedule", ["leaky", "uniform", "paper", "fresh"])
    @pytest.mark.parametrize("unit", ["example", "client"])
    @pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
    def test_asking_beyond_it(self, schedule: str, unit: str, adjacency: str) -> None:
        """An agreement with a cap of 60 but noise for 12 messages: the client stops by itself."""
        agreement = small(schedule=schedule, unit=unit, adjacency=adjacency)
        agreement = replace(agreement, cap=60, rounds=60)
        attacker = Attacker(scripted(agreement))
        while isinstance(attacker.ask(committed=attacker.state.index), Reply):
            pass
        stopped = attacker.refused[-1]
        if unit == "example" and schedule == "fresh":
            refused(stopped, "cap", "60")  # every example once, each with its own noise
        else:
            refused(stopped, "budget", "mu = ", "budget is 1")
            assert 12 <= len(attacker.log) < 60 or schedule in ("paper", "leaky")
        found = attacker.check()
        assert found.mu_squared() > 0.85

    def test_the_star(self) -> None:
        """papers/02 E3: with a leak of 0.8 and one parent for all, 7 messages cost 4.84 and not 2.66.

        The agreement has noise for a chain of 7. Six of the star's cost ``1 + 5 * 0.64 = 4.2`` already;
        the client answers three, which cost 2.28, and refuses the fourth, with which it is 2.92.
        """
        agreement = small(rounds=7, schedule="leaky", leak=0.8)
        attacker = Attacker(scripted(agreement))
        attacker.ask()
        while isinstance(attacker.ask(committed=1), Reply):
            pass
        refused(attacker.refused[-1], "budget", "budget is 1")
        share = agreement.leak / 65536
        whole = sum(share ** (2 * k) for k in range(7))
        assert whole == pytest.approx(2.65561, rel=1e-4)
        most = math.floor((whole - 1) / share**2)
        assert len(attacker.log) == 1 + most == 3
        found = attacker.check()
        assert found.mu_squared() == pytest.approx((1 + most * share**2) / whole, rel=1e-5)

    def test_never_committing(self) -> None:
        """No parent at all: fresh noise for every message, which is the cheapest of all trees."""
        attacker = Attacker(scripted(small(schedule="leaky")))
        while isinstance(attacker.ask(committed=0), Reply):
            pass
        refused(attacker.refused[-1], "cap")
        assert attacker.check().mu_squared() < 0.5

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("leak", [1.0, 0.8, 0.5])
    def test_random_lies(self, seed: int, leak: float) -> None:
        """Commits at random among the open messages, until the client has enough."""
        agreement = replace(small(schedule="leaky", leak=leak, uses=2, examples=4), cap=100)
        attacker = Attacker(scripted(agreement, blocks=4))
        rng = np.random.default_rng(seed)
        for _ in range(100):
            live = [sent.index for sent in attacker.state.live]
            answer = attacker.ask(committed=int(rng.choice([attacker.state.committed, *live])))
            if isinstance(answer, Refusal):
                break
        else:
            raise AssertionError("a budget for 12 messages is spent before 100")
        refused(answer, "budget")
        attacker.check()

    def test_a_budget_of_its_own(self) -> None:
        attacker = Attacker(scripted(small(schedule="uniform"), mu=0.5))
        while isinstance(attacker.ask(committed=attacker.state.index), Reply):
            pass
        refused(attacker.refused[-1], "budget", "budget is 0.5")
        assert len(attacker.log) == 3  # a quarter of 12
        attacker.check()

    def test_every_example_is_used_as_often_as_agreed(self) -> None:
        agreement = small(schedule="fresh", uses=2, examples=3)
        attacker = Attacker(scripted(agreement, blocks=3))
        for _ in range(12):
            attacker.ask(committed=0)
        assert all(reply.block is None for _, reply in attacker.log)  # nobody's business
        found = attacker.check()
        assert found.blocks == [0, 1, 2, 0, 1, 2, *[-1] * 6]
        assert all((s == 0).all() for s in found.sums[6:])
        # Noise alone is still noise: the last messages are as wide as the first.
        assert min(np.abs(m).max() for m in found.messages[6:]) > 0

    def test_a_client_without_data_sends_noise(self) -> None:
        attacker = Attacker(scripted(small(), blocks=0))
        for _ in range(12):
            answer = attacker.ask(committed=attacker.state.index)
            assert isinstance(answer, Reply)
            assert attacker.state.sent is not None
            assert attacker.state.sent.block == -1
            assert np.abs(answer.values).max() > 0


class TestNoise:
    def test_a_restored_snapshot_and_another_request(self) -> None:
        """papers/02 E2: from one state, every change of the request changes all of the noise."""
        client = scripted(small())
        attacker = Attacker(client)
        attacker.ask()
        snapshot = attacker.state
        requests = [
            attacker.request(**changes)
            for changes in (
                {},
                {"point": FAR},
                {"previous": FAR},
                {"turn": 9},
                {"round": 2},
                {"committed": 1},
                {"point": -np.zeros(D, np.float32)},
            )
        ]
        sums, noise = [], []
        for request in requests:
            state, reply = client.respond(snapshot, request)
            assert isinstance(reply, Reply)
            noise.append(client.noise(state, 2))
            sums.append(reply.values)
        for i in range(len(noise)):
            for j in range(i):
                # 4 coordinates of a standard deviation of 1e7: equal ones do not happen.
                assert not (noise[i] == noise[j]).any()
                assert not (sums[i] == sums[j]).any()
        # The very same request has the very same answer, also from a copy of the state.
        again = client.respond(snapshot, requests[1])[1]
        assert isinstance(again, Reply)
        assert (again.values == sums[1]).all()

    def test_indices_blocks_and_parents_are_bound(self) -> None:
        """One secret, one request: noise still differs where anything else about the message does."""
        client = scripted(small(schedule="uniform"))
        attacker = Attacker(client)
        keys = set()
        for _ in range(6):
            attacker.ask(committed=attacker.state.index)
            keys |= set(attacker.state.keys.values())
        assert len(keys) == 6


def secure(**options: Any) -> Agreement:
    settings: dict[str, Any] = {"clients": 4, "per_round": 2, "trust": "secure-sum", "rounds": 30}
    return small(**{**settings, **options})


class TestCohorts:
    @pytest.mark.parametrize(
        ("cohort", "words"),
        [
            ((), "0 members"),
            (("client-0",), "1 members"),
            (("client-0", "client-0"), "one twice"),
            (("client-1", "client-2"), "this client"),
            (("client-0", "mallory"), "not in the agreement"),
            (("client-0", ""), "not in the agreement"),
            (("client-0", "client-1", "client-1"), "one twice"),
        ],
    )
    def test_not_as_agreed(self, cohort: tuple[str, ...], words: str) -> None:
        attacker = Attacker(scripted(secure(), mask=mask))
        refused(attacker.ask(cohort=cohort), "cohort", words)
        assert not attacker.log

    def test_larger_cohorts_hide_more(self) -> None:
        agreement = secure()
        attacker = Attacker(scripted(agreement, mask=mask))
        assert isinstance(attacker.ask(cohort=agreement.clients), Reply)
        attacker.check()

    def test_cohorts_where_there_are_none(self) -> None:
        attacker = Attacker(scripted(small(clients=4)))
        refused(attacker.ask(cohort=attacker.client.agreement.clients), "cohort", "no cohorts")

    def test_another_cohort_for_the_same_turn(self) -> None:
        attacker = Attacker(scripted(secure(), mask=mask))
        attacker.ask(turn=2, cohort=("client-0", "client-1"))
        answer = attacker.ask(turn=2, cohort=("client-0", "client-2"))
        refused(answer, "repeated", "already answered")
        # Not even in another order: pads depend on nothing else, but who would know.
        refused(attacker.ask(turn=2, cohort=("client-1", "client-0")), "repeated")

    def test_each_stream_has_its_part_of_the_budget(self) -> None:
        """Two honest members: each pays for half of the way, and stops at half of mu^2."""
        agreement = replace(secure(schedule="uniform"), cap=200, rounds=200)
        attacker = Attacker(scripted(agreement, mask=mask, blocks=200))
        while isinstance(attacker.ask(committed=attacker.state.index), Reply):
            pass
        refused(attacker.refused[-1], "budget", "budget is 1")
        attacker.check()
        assert attacker.state.account.mu_squared <= agreement.mu**2 / 2

    @pytest.mark.parametrize("blocks", [64, 0, 1])
    @pytest.mark.parametrize("schedule", ["leaky", "uniform"])
    def test_members_noise_wears_out_for_all(self, schedule: str, blocks: int) -> None:
        """A client's noise also hides the others of its cohort, whether it has data left or not.

        A star on client-1, client-2 and client-3 in pairs reveals the noise of one message of each,
        the first after their examples are used up. One of these is what hides the victim (client-0) in
        its sum. The exact mu^2 of the victim's example, from the covariance of all sums, is at most the
        agreed one.
        """
        agreement = secure(schedule=schedule, leak=0.5 if schedule == "leaky" else None)
        clients = {
            name: Attacker(
                scripted(
                    agreement,
                    name=name,
                    mask=mask,
                    blocks=64 if name == "client-0" else blocks,
                ),
                secret=bytes([i]) * 32,
            )
            for i, name in enumerate(agreement.clients)
        }
        victim, *others = clients
        sums: list[list[tuple[str, int]]] = []

        def together(*names: str) -> bool:
            answers = []
            for name in names:
                attacker = clients[name]
                centre = blocks + 1 if name in others and blocks < 2 else 1
                attacker.turn = len(sums)
                committed = centre if attacker.state.index >= centre else 0
                answers.append(attacker.ask(committed=committed, cohort=names))
            if any(isinstance(answer, Refusal) for answer in answers):
                return False
            sums.append([(name, clients[name].state.index) for name in names])
            return True

        if blocks == 1:
            assert together(others[0], others[1])
            assert together(others[2], victim)
        at = len(sums)
        assert together(victim, others[0])
        for _ in range(30):
            for pair in ((0, 1), (1, 2), (0, 2)):
                together(*(others[i] for i in pair))
        found = exact_mu_squared(agreement, clients, sums, at)
        assert found <= agreement.mu**2 * (1 + 1e-6), (
            f"the victim's example is at mu^2 = {found:.4f}, agreed is {agreement.mu**2}"
        )


def exact_mu_squared(
    agreement: Agreement,
    clients: dict[str, Attacker],
    sums: list[list[tuple[str, int]]],
    at: int,
) -> float:
    """``Delta^2 [Sigma^-1]_tt`` for a sum that one example is in, from the trees of all clients."""
    audits = {name: attacker.audit() for name, attacker in clients.items()}
    columns = {
        (name, index): place
        for place, (name, index) in enumerate(
            (name, index) for name, audit in audits.items() for index in range(len(audit.noise))
        )
    }
    A = np.zeros((len(sums), len(columns)))
    for row, members in enumerate(sums):
        for name, index in members:
            audit: Audit = audits[name]
            scale = math.sqrt(audit.variances[index - 1])
            A[row, columns[name, index - 1]] += scale
            parent = audit.parents[index - 1]
            if parent is not None:
                scale = math.sqrt(audit.variances[parent])
                A[row, columns[name, parent]] -= scale * agreement.leak / 65536
    precision = np.linalg.inv(A @ A.T)
    whole = agreement.kappa * agreement.clip / agreement.step
    return float(whole**2 * precision[at, at])


class TestTheServer:
    """A hostile client, or network, in front of the real server."""

    @pytest.fixture(params=["untrusted", "secure-sum", "trusted"])
    def world(self, request: pytest.FixtureRequest) -> tuple[Server, ServerState, Any]:
        """A server that waits for two of three clients, and their honest replies."""
        trust = request.param
        agreement = small(clients=3, per_round=2, trust=trust, schedule="uniform")
        secret = bytes(32) if trust == "trusted" else None
        server = Server(agreement, np.zeros(D, np.float32), secret)
        state, requests = server.ask(
            server.begin(), agreement.clients[:2], np.random.default_rng(0)
        )
        pads = {"mask": mask} if trust == "secure-sum" else {}
        replies = {}
        for name, asked in requests.items():
            client: Client = scripted(agreement, name=name, **pads)
            answer = client.respond(client.begin(name.encode().ljust(32)), asked)[1]
            replies[name] = message_from_bytes(answer.to_bytes())
        return server, state, replies

    @staticmethod
    def unchanged(before: ServerState, after: ServerState) -> bool:
        return all(
            np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b or a is b
            for a, b in zip(vars(before).values(), vars(after).values(), strict=True)
        )

    def rejects(self, world: Any, client: str, message: Any, *words: str) -> None:
        server, state, _ = world
        after, verdict, done = server.receive(state, client, message)
        assert not verdict.taken
        assert done is None
        for word in words:
            assert word in verdict.reason, verdict.reason
        assert client in verdict.reason
        assert self.unchanged(state, after)

    def test_what_is_taken(self, world: Any) -> None:
        server, state, replies = world
        done = None
        for name, reply in replies.items():
            state, verdict, done = server.receive(state, name, reply)
            assert verdict.taken, verdict.reason
        assert done is not None
        assert state.round == 2
        assert state.committed == {"client-0": 1, "client-1": 1}

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"agreement": "0" * 64}, "another agreement"),
            ({"client": "client-1"}, "speaks for 'client-1'"),
            ({"client": "mallory"}, "speaks for 'mallory'"),
            ({"turn": 2}, "answers turn 2"),
            ({"turn": 2**48}, "this is turn 1"),
            ({"asked": "0" * 64}, "another request"),
            ({"index": 13}, "more than the agreed 12"),
            ({"index": 2**48}, "more than the agreed"),
            ({"values": np.zeros(D - 1, np.int32)}, "shape"),
            ({"values": np.zeros(D + 1, np.int32)}, "shape"),
            ({"values": np.zeros(1, np.int64)}, "shape"),
            ({"values": np.zeros(10**6, np.int32)}, "shape"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_what_is_not(self, world: Any, changes: dict[str, Any], words: str) -> None:
        reply = world[2]["client-0"]
        forged = message_from_bytes(replace(reply, **changes).to_bytes())
        self.rejects(world, "client-0", forged, words)

    def test_the_other_width(self, world: Any) -> None:
        reply = world[2]["client-0"]
        other = np.int32 if reply.values.itemsize == 8 else np.int64
        self.rejects(world, "client-0", replace(reply, values=np.zeros(D, other)), "shape")

    def test_who_was_not_asked(self, world: Any) -> None:
        reply = replace(world[2]["client-0"], client="client-2")
        self.rejects(world, "client-2", reply, "was not asked")
        self.rejects(world, "mallory", replace(reply, client="mallory"), "was not asked")

    def test_another_s_reply(self, world: Any) -> None:
        self.rejects(world, "client-1", world[2]["client-0"], "speaks for 'client-0'")

    def test_a_request_is_no_reply(self, world: Any) -> None:
        server, state, _ = world
        self.rejects(world, "client-0", server.request(state, "client-0"), "no reply")

    def test_replays(self, world: Any) -> None:
        server, state, replies = world
        first, second = replies.values()
        state = server.receive(state, "client-0", first)[0]
        self.rejects((server, state, replies), "client-0", first, "answered turn 1 already")
        state = server.receive(state, "client-1", second)[0]
        self.rejects((server, state, replies), "client-0", first, "answers turn 1", "turn 2")
        asked = server.ask(state, ["client-0", "client-1"], np.random.default_rng(0))[0]
        self.rejects((server, asked, replies), "client-0", first, "answers turn 1")
        # With the turn and the digest of the new request, it is still the old message.
        digest = server.request(asked, "client-0").digest().hex()
        renewed = replace(first, turn=2, asked=digest)
        self.rejects((server, asked, replies), "client-0", renewed, "sends message 1 again")

    @pytest.mark.parametrize("block", [10**7, 2**40, 2**48])
    def test_blocks_that_no_client_has(self, block: int) -> None:
        """A trusted server keeps an account by block: a number off the wire must not size an array."""
        agreement = small(
            clients=3, per_round=2, trust="trusted", schedule="fresh", uses=3, examples=4
        )
        server = Server(agreement, np.zeros(D, np.float32), bytes(32))
        state, requests = server.ask(server.begin(), agreement.clients, np.random.default_rng(0))
        for name, asked in requests.items():
            digest = asked.digest().hex()
            values = np.zeros(D, np.int32)
            reply = Reply(agreement.digest, name, 1, 1, digest, values, block)
            after, verdict, done = server.receive(state, name, reply)
            assert not verdict.taken
            assert done is None
            assert self.unchanged(state, after)

    def final(self, world: Any, **changes: Any) -> Refusal:
        fields = {
            "agreement": world[0].agreement.digest,
            "client": "client-0",
            "turn": 1,
            "code": "budget",
        }
        return Refusal(**{**fields, **changes})

    def test_refusals_are_heard(self, world: Any) -> None:
        server, state, _ = world
        after, verdict, done = server.receive(state, "client-0", self.final(world))
        assert not verdict.taken
        assert done is None
        assert verdict.reason == "client-0 refuses: the budget is spent"
        assert after.out == {"client-0": "the budget is spent"}
        # Not for good: asked again.
        self.rejects(world, "client-0", self.final(world, code="local"), "cannot answer")

    @pytest.mark.parametrize(
        ("sender", "changes"),
        [
            ("client-0", {"client": "client-1"}),
            ("client-2", {"client": "client-2"}),
            ("mallory", {"client": "mallory"}),
            ("client-0", {"agreement": "0" * 64}),
            ("client-0", {"turn": 2}),
            ("client-0", {"turn": 2**48}),
        ],
        ids=["other", "not-asked", "nobody", "agreement", "turn", "huge-turn"],
    )
    def test_forged_refusals(self, world: Any, sender: str, changes: dict[str, Any]) -> None:
        """Of somebody else, who was not asked, for another agreement, or for another turn.

        A refusal for good puts a client out for the whole run; one that is left over from another
        run, or from an earlier turn, must not.
        """
        self.rejects(world, sender, self.final(world, **changes))

    def test_a_refusal_after_a_reply(self, world: Any) -> None:
        server, state, replies = world
        state = server.receive(state, "client-0", replies["client-0"])[0]
        self.rejects((server, state, replies), "client-0", self.final(world))

    def test_the_largest_numbers_do_not_break_the_sum(self, world: Any) -> None:
        """All int32 (or int64) there are: the result may be useless, but it is finite."""
        server, state, replies = world
        for name, reply in replies.items():
            info = np.iinfo(reply.values.dtype)
            largest = replace(reply, values=np.full(D, info.max, reply.values.dtype))
            state, verdict, _ = server.receive(state, name, largest)
            assert verdict.taken
        assert np.isfinite(state.point).all()
        assert np.isfinite(state.weights).all()

    def test_starts_that_make_no_sense(self) -> None:
        agreement = small()
        for start in (np.zeros(D + 1, np.float32), np.full(D, np.nan, np.float32)):
            with pytest.raises(SordinoError):
                Server(agreement, start)
        with pytest.raises(SordinoError, match="secret"):
            Server(agreement, np.zeros(D, np.float32), bytes(32))

    def test_clients_that_make_no_sense(self) -> None:
        agreement = small()
        with pytest.raises(SordinoError, match="no client 'mallory'"):
            scripted(agreement, name="mallory")
        with pytest.raises(SordinoError, match="pads"):
            scripted(agreement, mask=mask)
        with pytest.raises(SordinoError, match="pads"):
            scripted(secure())


def test_every_refusal_is_one_sentence() -> None:
    """Whatever a request holds, what goes back is short, printable, and of a known code."""
    attacker = Attacker(real(small(radius=2.0), *rows()))
    attacker.ask()
    requests: list[RoundRequest] = [
        attacker.request(cohort=("\x1b[31m", "x" * 5000)),
        attacker.request(agreement="f" * 64),
        attacker.request(committed=2**48),
        attacker.request(round=2**48),
        attacker.request(point=np.full(D, np.nan, np.float32)),
    ]
    for request in requests:
        answer = attacker.send(request)
        assert isinstance(answer, Refusal)
        assert answer.reason == REFUSALS[answer.code][0]
        assert answer.detail.isprintable()
        assert 0 < len(answer.detail) <= 200

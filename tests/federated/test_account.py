"""What messages cost: the rounding on the lattice, trees of parents, several uses, sums of cohorts."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import SordinoError
from sordino.parts.mechanisms._discrete import MOST_VARIANCE
from sordino.together.federated._agreeing import SCHEDULES, agree
from sordino.together.federated._agreement import ADJACENCIES, TRUST
from sordino.together.federated._chain import (
    LEAK_UNITS,
    ChainAccountant,
    cancelled_draws,
    chain_cost,
)
from tests.support.federated import tree_mu_squared

from .attack import Attacker, coarse, rho, scripted, small

LEAKS = [0, 1, 13107, 32768, 43691, 52429, 65535, 65536]
QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)


class TestRounding:
    @pytest.mark.parametrize("leak", LEAKS)
    def test_taken_back_is_floor_of_leak_y_and_a_half(self, leak: int) -> None:
        y = np.concatenate([np.arange(-3000, 3001), [2**27, -(2**27), 2**40, -(2**40)]])
        np.testing.assert_array_equal(cancelled_draws(y, leak), rho(y, leak))

    @pytest.mark.parametrize("leak", LEAKS)
    def test_on_all_pairs_of_integers_in_a_range(self, leak: int) -> None:
        """rho(R) - rho(R - A) against A: the same sign, never longer, off leak A by less than 1."""
        R = np.arange(-200, 201)[:, None]
        A = np.arange(-60, 61)[None, :]
        moved = cancelled_draws(R + 0 * A, leak) - cancelled_draws(R - A, leak)
        assert (moved * np.sign(A) >= 0).all()
        assert (np.abs(moved) <= np.abs(A)).all()
        # In 65536ths: whole numbers, so "less than" is exact.
        assert (np.abs(LEAK_UNITS * moved - leak * A) < LEAK_UNITS).all()
        if leak in (0, LEAK_UNITS):
            assert (moved == (A if leak else 0)).all()

    @pytest.mark.parametrize("leak", [13107, 32768, 52429])
    @pytest.mark.parametrize(("reach", "d"), [(3, 1), (5, 1), (3, 2), (4, 2), (2, 3)])
    def test_every_way_that_one_example_can_move_a_chain(
        self, leak: int, reach: int, d: int
    ) -> None:
        """All changes of norm up to `reach`, through every rounding, five messages on.

        From a change A of the parent, the child may move by any of the numbers around leak A, each
        coordinate on its own (which one depends on R). The longest of them all is within the account.
        """
        share = Fraction(leak, LEAK_UNITS)
        side = range(-reach, reach + 1)
        reachable = {v for v in itertools.product(side, repeat=d) if _norm(v) <= reach}
        account = ChainAccountant.opened(reach=float(reach), leak=leak, parameters=d)
        account = account.after(1, 0, [0], 100)
        longest = [max(map(_norm, reachable))]
        for index in range(2, 7):
            reachable = {
                choice
                for v in reachable
                for choice in itertools.product(
                    *({math.floor(share * x), math.ceil(share * x)} for x in v)
                )
            }
            longest.append(max(map(_norm, reachable)))
            account = account.after(index, index - 1, [], 100)
        for index, norm in enumerate(longest, start=1):
            assert norm <= account.tips[index][0] * reach * (1 + 1e-12)
        if d == 1:
            # With one coordinate the bound is a step above leak A, the truth below it: not far off.
            assert account.tips[6][0] * reach < longest[-1] + 2
        assert account.spent[0] >= sum(norm**2 for norm in longest) / 100

    def test_rounding_has_a_floor_and_no_ceiling(self) -> None:
        """What is left of a change never dies out on a lattice; but it never grows either."""
        account = ChainAccountant.opened(reach=10.0, leak=LEAK_UNITS // 2, parameters=4)
        account = account.after(1, 0, [0], 100)
        for index in range(2, 40):
            account = account.after(index, index - 1, [], 100).keeping([index])
        # a = a / 2 + 2 / 10 from 1 on: down to 0.4.
        assert account.tips[39][0] == pytest.approx(0.4, rel=1e-9)
        one = ChainAccountant.opened(reach=0.5, leak=LEAK_UNITS // 2, parameters=4).after(
            1, 0, [0], 100
        )
        assert one.after(2, 1, [], 100).tips[2][0] == 1.0

    def test_examples_that_were_never_sent_are_not_rounded(self) -> None:
        account = ChainAccountant.opened(reach=1.0, leak=LEAK_UNITS // 2, parameters=4)
        account = account.after(1, 0, [1], 100).after(2, 1, [], 100)
        assert account.spent[0] == 0


def _norm(vector: tuple[int, ...]) -> float:
    return math.sqrt(sum(x * x for x in vector))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Parents (0 for none, else an earlier index) and the groups of each message."""
    size = draw(st.integers(1, 9))
    parents = [draw(st.integers(0, i)) for i in range(size)]
    groups = [draw(st.lists(st.integers(0, 3), unique=True, max_size=2)) for _ in range(size)]
    return parents, groups


class TestTrees:
    @QUICK
    @given(trees(), st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.booleans())
    def test_against_the_inverse_covariance(
        self, tree: tuple[list[int], list[list[int]]], leak: float, growing: bool
    ) -> None:
        """mu^2 = s^T Sigma^-1 s, with Sigma of the messages themselves: any tree, any uses."""
        parents, groups = tree
        size = len(parents)
        variances = [7 * (i + 1 if growing else 1) for i in range(size)]
        # A reach so large that nothing is rounded; in these units mu^2 is about 1.
        reach, units = 1e9, round(leak * LEAK_UNITS)
        account = ChainAccountant.opened(reach=reach, leak=units, parameters=4)
        for i, (parent, used) in enumerate(zip(parents, groups, strict=True)):
            account = account.after(i + 1, parent, used, variances[i])
        precision = np.linalg.inv(_covariance(parents, variances, units / LEAK_UNITS))
        for group in range(4):
            s = np.array([group in used for used in groups], float)
            spent = account.spent[group] if group < len(account.spent) else 0.0
            assert spent / reach**2 == pytest.approx(s @ precision @ s, rel=1e-6, abs=1e-12)

    @QUICK
    @given(trees(), st.sampled_from([0.0, 0.3, 1.0]))
    def test_two_formulas(self, tree: tuple[list[int], list[list[int]]], leak: float) -> None:
        parents = tree[0]
        units = round(leak * LEAK_UNITS)
        account = ChainAccountant.opened(reach=1e9, leak=units, parameters=1)
        for i, parent in enumerate(parents):
            account = account.after(i + 1, parent, [i], 10)
        found = tree_mu_squared(
            [p - 1 if p else None for p in parents],
            [10 - 1 / 12] * len(parents),
            units / LEAK_UNITS,
            reach=1e9,
        )
        np.testing.assert_allclose(account.spent, found, rtol=1e-6)

    @pytest.mark.parametrize("leak", [0, 32768, 60000, 65536])
    @pytest.mark.parametrize(("uses", "apart"), [(1, 20), (3, 5), (20, 1)])
    def test_chain_cost_is_the_account_of_a_chain(self, leak: int, uses: int, apart: int) -> None:
        reach, d, messages, variance = 50.0, 4, 20, 10_000
        account = ChainAccountant.opened(reach=reach, leak=leak, parameters=d)
        for index in range(1, messages + 1):
            block = (index - 1) % apart
            again = (index - 1) // apart < uses
            account = account.after(index, index - 1, [block] if again else [], variance)
        cost = chain_cost(
            messages=messages, leak=leak, uses=uses, apart=apart, rounding=account.rounding
        )
        assert account.mu_squared == pytest.approx(cost * reach**2 / (variance - 1 / 12), rel=1e-11)
        assert account.spent[0] == account.spent.max()

    def test_nothing_is_forgotten_and_nothing_comes_back(self) -> None:
        account = ChainAccountant.opened(reach=1.0, leak=LEAK_UNITS, parameters=4)
        account = account.after(1, 0, [0], 4).after(2, 1, [1], 4)
        kept = account.keeping([2])
        assert kept.mu_squared == account.mu_squared
        with pytest.raises(SordinoError, match="message 1 can no longer be a parent"):
            kept.after(3, 1, [2], 4)
        with pytest.raises(SordinoError, match="message 7"):
            account.after(3, 7, [2], 4)
        after = account.after(3, 2, [], 4)
        assert (after.spent >= account.spent).all()
        assert account.mu_squared == pytest.approx(2 / (4 - 1 / 12))  # and the old one is as it was

    @pytest.mark.parametrize("leak", [-1, LEAK_UNITS + 1])
    def test_leaks_that_make_no_sense(self, leak: int) -> None:
        with pytest.raises(SordinoError, match="leak"):
            ChainAccountant.opened(reach=1.0, leak=leak, parameters=1)

    def test_an_empty_account(self) -> None:
        account = ChainAccountant.opened(reach=1.0, leak=0, parameters=1)
        assert account.mu == account.mu_squared == 0
        assert account.after(1, 0, [], 4).mu == 0


def _covariance(parents: list[int], variances: Any, leak: float) -> Any:
    """Of the messages ``y_l - leak y_parent``."""
    A = np.diag(np.sqrt(np.asarray(variances, float) - 1 / 12))
    for i, parent in enumerate(parents):
        if parent:
            A[i, parent - 1] = -leak * A[parent - 1, parent - 1]
    return A @ A.T


class TestThePapersNumbers:
    """papers/02 2.2 and 2.3: K = 600 messages, T = 1200 rounds."""

    K, T = 600, 1200

    @pytest.mark.parametrize(
        ("uses", "paper", "uniform"),
        [(1, 0.93, 1.00), (2, 1.06, 1.58), (3, 1.23, 2.16), (5, 1.65, 3.32), (10, 2.81, 6.21),
         (20, 5.25, 12.0)],
    )  # fmt: skip
    def test_examples_used_several_times(self, uses: int, paper: float, uniform: float) -> None:
        """mu over rho of noise that is right for one use."""
        cyclic = {"messages": self.K, "leak": LEAK_UNITS, "uses": uses, "apart": self.K // uses}
        linear = chain_cost(**cyclic, rounding=0.0, weights="linear") / (1 + math.log(self.T))
        assert math.sqrt(linear) == pytest.approx(paper, abs=0.006)
        constant = chain_cost(**cyclic, rounding=0.0) / self.K
        assert math.sqrt(constant) == pytest.approx(uniform, rel=0.005)
        fresh = chain_cost(**{**cyclic, "leak": 0}, rounding=0.0)
        assert math.sqrt(fresh) == pytest.approx(math.sqrt(uses), rel=1e-9)

    @pytest.mark.parametrize("growing", [False, True])
    @pytest.mark.parametrize("uses", [1, 3])
    def test_the_same_through_the_account(self, uses: int, growing: bool) -> None:
        account = ChainAccountant.opened(reach=1000.0, leak=LEAK_UNITS, parameters=4)
        apart = self.K // uses
        for index in range(1, self.K + 1):
            variance = 10**7 * (index if growing else 1)
            account = account.after(index, index - 1, [(index - 1) % apart], variance)
            account = account.keeping([index])
        cost = chain_cost(
            messages=self.K,
            leak=LEAK_UNITS,
            uses=uses,
            apart=apart,
            rounding=0.0,
            weights="linear" if growing else "constant",
        )
        assert account.mu_squared == pytest.approx(cost / 10, rel=1e-6)

    def test_whole_clients(self) -> None:
        """2.2: noise calibrated for one example, all of a client's examples change."""
        whole = {"messages": self.K, "uses": self.K, "apart": 1, "rounding": 0.0}
        uniform = math.sqrt(chain_cost(**whole, leak=LEAK_UNITS) / self.K)
        assert uniform == pytest.approx(math.sqrt((self.K + 1) * (2 * self.K + 1) / 6), rel=1e-9)
        assert uniform == pytest.approx(346.8, abs=0.05)
        linear = chain_cost(**whole, leak=LEAK_UNITS, weights="linear") / (1 + math.log(self.T))
        assert math.sqrt(linear) == pytest.approx(149.3, abs=0.1)
        assert math.sqrt(chain_cost(**whole, leak=0)) == pytest.approx(24.495, abs=0.001)

    def test_the_other_unit_of_a_real_client(self) -> None:
        """A run of 12 under the uniform schedule: the client's own mu is sqrt(13 * 25 / 6) times mu."""
        agreement = small(schedule="uniform")
        attacker = Attacker(scripted(agreement))
        for _ in range(12):
            attacker.ask(committed=attacker.state.index)
        state = attacker.state
        assert state.other.mu / state.account.mu == pytest.approx(math.sqrt(13 * 25 / 6), rel=1e-6)

    def test_examples_within_a_clipped_mean(self) -> None:
        """Unit "client", zero-out: without one example a block's clipped mean may point anywhere else.

        A row of -1 and one of +3 in a block of two have a mean of +1; without the second it is -0.5.
        Both are clipped to the same length: one example moves the message by twice the clip.
        """
        from .attack import real

        agreement = small(unit="client", batch=2)
        sums = []
        for last in (3.0, 0.0):
            rows = np.zeros((2, 4), np.float32)
            rows[:, 0] = 1.0
            rows[1, 0] = 1.0 if last else 0.0
            client = real(agreement, 1e6 * rows, np.array([-1e6, 3e6], np.float32))
            zero = np.zeros(4, np.float32)
            sums.append(client.data.total(zero, zero, 1, 0).clipped)
        moved = float(np.linalg.norm(sums[0] - sums[1]))
        assert moved > 1.99 * agreement.clip / agreement.step
        attacker = Attacker(scripted(agreement))
        attacker.ask()
        paid = attacker.state.other.mu * math.sqrt(agreement.variance - 1 / 12)
        assert moved <= paid * (1 + 1e-9), "the example's mu that is stated is too small"


class TestSecureSums:
    """`agreement.py`: split one example's part of a sum among the n honest members of its cohort."""

    @pytest.mark.parametrize("parts", [2, 3, 7])
    def test_whole_parts(self, parts: int) -> None:
        rng = np.random.default_rng(0)
        for d in (1, 2, 5):
            for _ in range(50):
                whole = rng.integers(-30, 31, d)
                low = np.floor_divide(whole, parts)
                rest = whole - parts * low
                pieces = [low + (k < rest) for k in range(parts)]
                assert (sum(pieces) == whole).all()
                bound = np.linalg.norm(whole) / parts + math.sqrt(d)
                assert max(np.linalg.norm(piece) for piece in pieces) <= bound

    @pytest.mark.parametrize("leak", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize(("clients", "cohort", "rounds"), [(3, 2, 4), (4, 2, 4), (4, 3, 4)])
    def test_all_cohorts(self, leak: float, clients: int, cohort: int, rounds: int) -> None:
        """Every sequence of cohorts: the exact mu^2 of every example is within n limits.

        The worst is the fixed cohort, which attains the bound.
        """
        members = list(itertools.combinations(range(clients), cohort))
        worst = 0.0
        for cohorts in itertools.product(members, repeat=rounds):
            exact, bound = _sums(cohorts, [[None] * cohort] * rounds, leak)
            assert (exact <= bound * (1 + 1e-9)).all()
            worst = max(worst, float((exact / bound).max()))
        assert worst == pytest.approx(1.0, rel=1e-6)

    @QUICK
    @given(
        st.data(),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([(3, 2), (4, 2), (4, 3), (5, 4)]),
        st.integers(2, 8),
    )
    def test_cohorts_and_parents_of_a_liar(
        self, data: st.DataObject, leak: float, size: tuple[int, int], rounds: int
    ) -> None:
        """A server that chooses who is asked, and which message each of them takes back."""
        clients, cohort = size
        cohorts = [
            tuple(
                data.draw(
                    st.lists(
                        st.integers(0, clients - 1), min_size=cohort, max_size=cohort, unique=True
                    )
                )
            )
            for _ in range(rounds)
        ]
        counts = [0] * clients
        parents: list[list[int | None]] = []
        for members in cohorts:
            parents.append([data.draw(st.integers(0, counts[i])) for i in members])
            for i in members:
                counts[i] += 1
        exact, bound = _sums(tuple(cohorts), parents, leak)
        assert (exact <= bound * (1 + 1e-9)).all()

    def test_the_numbers_of_an_agreement(self) -> None:
        """n limits of ``(reach / n + sqrt d)`` are the agreed mu^2; the rounding costs next to nothing."""
        agreement = small(clients=8, per_round=5, colluders=1, trust="secure-sum", rounds=40)
        assert agreement.honest == 4
        assert agreement.limit * 4 == agreement.mu**2
        whole = agreement.clip / agreement.step
        assert agreement.reach == pytest.approx(whole / 4 + 2, rel=1e-12)
        alone = small(clients=8, per_round=5, rounds=40)
        # The sum of 4 honest members has the variance that one has alone, up to rounding.
        in_sum = 4 * agreement.variance * agreement.step**2
        assert in_sum == pytest.approx(alone.variance * alone.step**2, rel=1e-3)


def _sums(
    cohorts: tuple[tuple[int, ...], ...], parents: Any, leak: float
) -> tuple[np.ndarray, np.ndarray]:
    """For an example in each sum: ``[Sigma^-1]_tt``, and the bound from the members' own accounts.

    `parents` has the index of each member's parent (0 for none), or None for its last message.
    """
    rounds, n = len(cohorts), len(cohorts[0])
    reach, variance = 1e9, 13
    units = round(leak * LEAK_UNITS)
    accounts: dict[int, ChainAccountant] = {}
    sent: dict[int, list[int]] = {}
    rows = np.zeros((rounds, rounds * n))
    draws = 0
    place: list[list[tuple[int, int]]] = []
    for t, members in enumerate(cohorts):
        place.append([])
        for slot, i in enumerate(members):
            account = accounts.get(i) or ChainAccountant.opened(
                reach=reach / n, leak=units, parameters=1
            )
            mine = sent.setdefault(i, [])
            parent = parents[t][slot]
            parent = len(mine) if parent is None else parent
            # Every message counts as one with an example of its own, whether it has one or not.
            accounts[i] = account.after(len(mine) + 1, parent, [len(mine)], variance)
            rows[t, draws] += 1
            if parent:
                rows[t, mine[parent - 1]] -= leak
            place[-1].append((i, len(mine)))
            mine.append(draws)
            draws += 1
    A = rows[:, :draws] * math.sqrt(variance - 1 / 12)
    exact = reach**2 * np.diag(np.linalg.inv(A @ A.T))
    # The proof: the members' streams, each of which a part of the example moves.
    split = np.array([sum(accounts[i].spent[k] for i, k in members) for members in place])
    assert (exact <= split * (1 + 1e-9)).all()
    limit = max(account.mu_squared for account in accounts.values())
    assert (split <= n * limit * (1 + 1e-9)).all()
    return exact, np.full(rounds, n * limit)


class TestAgreements:
    """What `agree` makes must be usable, and cost what it says."""

    @pytest.mark.parametrize("trust", TRUST)
    @pytest.mark.parametrize("parameters", [10, 1000, 100_000, 10_000_000])
    @pytest.mark.parametrize("rounds", [1, 20, 600, 5000])
    def test_noise_can_be_drawn(self, trust: str, parameters: int, rounds: int) -> None:
        """Up to the cap, whatever the model's size: the rounding's cost is in the variance, too."""
        for schedule in SCHEDULES:
            for mu in (0.3, 1.0):
                settings: dict[str, Any] = {
                    "clients": 100,
                    "parameters": parameters,
                    "rounds": rounds,
                    "per_round": 50,
                    "mu": mu,
                    "trust": trust,
                    "schedule": schedule,
                    "leak": 0.99 if schedule == "leaky" else None,
                    "learning_rate": 0.1,
                }
                made = agree(**settings)
                assert made.variance_of(made.length) <= MOST_VARIANCE

    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("unit", ["example", "client"])
    @pytest.mark.parametrize("adjacency", list(ADJACENCIES))
    def test_a_chain_up_to_the_cap_is_within_the_budget(
        self, schedule: str, unit: str, adjacency: str
    ) -> None:
        agreement = small(schedule=schedule, unit=unit, adjacency=adjacency, rounds=15)
        attacker = Attacker(scripted(agreement))
        for _ in range(agreement.cap):
            attacker.ask(committed=attacker.state.index)
        assert not attacker.refused
        attacker.check()
        if schedule != "paper":
            assert attacker.client.spent(attacker.state) == pytest.approx(1.0, rel=1e-6)

    def test_rounding_costs_more_on_a_coarse_lattice(self) -> None:
        """The same agreement, where an example is 20 lattice steps: the client stops two messages early."""
        agreement = coarse(small(schedule="leaky", leak=0.8), reach=20)
        assert agreement.account().rounding == pytest.approx(2 / 20, rel=0.5)
        attacker = Attacker(scripted(agreement))
        while not attacker.refused:
            attacker.ask(committed=attacker.state.index)
        assert attacker.refused[-1].code == "budget"
        assert 3 <= len(attacker.log) < 12
        attacker.check()

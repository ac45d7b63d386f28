r"""The sum of a round's message noise: its covariance over time, and what it hides an example by.

Whoever sees only the iterates (the other clients), or only sums over a cohort (a server under a secure
sum), sees one vector per round. Its noise is ``N_t = sum over the cohort of y_l - leak y_p`` and in
every coordinate a Gaussian vector over the rounds, with

    Cov(N_t, N_t) = sum (V_l + leak^2 V_p) ,       Cov(N_t, N_s) = - sum leak V_p

the second sum over the members of t whose last message was in round s. An example of which one message,
in round tau, is made can move that message by `reach`, and is hidden by

    mu_tau^2 = reach^2 [Sigma^-1]_{tau tau}                                       (papers/02 2.6 and 5.4)

Sigma is banded: as wide as the longest time between two messages of a client. A trusted server's own
noise is the same with one client, the server, that takes part in every round.

What is computed here leaves out that a leaking multiple of noise is rounded to whole lattice steps
(less than 1e-3 of a message's noise). It is for reports and research; what clients pay, and an agreement
promises under a secure sum, is the bound of `_agreement.py` for whatever cohorts.

**Simulated.** The course of a run depends on its messages only through their sum, so the m x d numbers
that a round's clients draw need not exist. Each coordinate of the sums is a Gaussian vector with covariance
Sigma, so

    N = L Z,   Sigma = L L^T,   Z independent standard normal (T, d),

has exactly the right distribution, for one draw of d numbers a round. L is banded like Sigma; a
chunk of rounds is one matrix product with the draws of this chunk and of the B rounds before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky_banded

from sordino._base.errors import SordinoError
from sordino.together.federated._agreement import Agreement
from sordino.together.federated._chain import LEAK_UNITS, ROUNDED, ChainAccountant, chain_cost
from sordino.together.federated._cohorts import Cohorts

Floats = NDArray[np.float64]

# A band of more numbers than this (2 GiB) is refused.
_LARGEST_BAND = 2**28
# Messages that are looked at together.
_TOGETHER = 2**20


@dataclass(frozen=True, eq=False)
class SumStream:
    """The covariance of the summed noise, squared lattice steps (or whatever `variance` is in).

    Attributes:
      band: float64 (B + 1, T); ``band[g, s] = Cov(N_{s+g}, N_s)``, 0 where s + g is beyond T.
    """

    band: Floats

    @classmethod
    def of(
        cls,
        cohorts: Cohorts,
        *,
        leak: float = 1.0,
        variance: float = 1.0,
        growing: bool = False,
        without: Iterable[int] = (),
    ) -> SumStream:
        """The sum over `cohorts` of ``y_k - leak y_parent``, y_k of variance V (or V k if growing).

        Args:
          leak: between 0 and 1.
          without: clients whose noise the observer knows (its own), and that therefore hides nothing.
        """
        T, messages = cohorts.rounds, cohorts.messages
        known = np.zeros(cohorts.clients, bool)
        known[list(without)] = True
        gaps = np.arange(T, dtype=np.int32)[:, None] - messages.before
        width = 1 + int(np.max(gaps, where=messages.before >= 0, initial=0)) if leak else 1
        if width * T > _LARGEST_BAND:
            raise SordinoError(
                f"messages of one client lie {width - 1:,} of {T:,} rounds apart, which makes too large "
                "a covariance; simulate fewer rounds or larger cohorts"
            )
        flat = np.zeros(width * T)
        some = max(1, _TOGETHER // cohorts.per_round)
        for rounds in (slice(at, at + some) for at in range(0, T, some)):
            counts = ~known[cohorts.members[rounds]]
            fresh = messages.index[rounds] if growing else np.ones(counts.shape)
            flat[:T][rounds] += variance * np.sum(fresh * counts, axis=1)
            if not leak:
                continue
            linked = counts & (messages.before[rounds] >= 0)
            parent = np.where(linked, messages.before_index[rounds] if growing else 1.0, 0.0)
            flat[:T][rounds] += variance * leak**2 * np.sum(parent, axis=1)
            place = gaps[rounds].astype(np.int64) * T + messages.before[rounds]
            np.add.at(flat, place[linked], -variance * leak * parent[linked])
        return cls(flat.reshape(width, T))

    @classmethod
    def of_agreement(
        cls, agreement: Agreement, cohorts: Cohorts, without: Iterable[int] = ()
    ) -> SumStream:
        """The noise in a round's sum under `agreement`, in squared lattice steps."""
        if agreement.trust == "trusted":
            alone = np.zeros((cohorts.rounds, 1), np.int32)
            cohorts, without = Cohorts(1, alone), ()
        return cls.of(
            cohorts,
            leak=agreement.leak / LEAK_UNITS,
            variance=float(agreement.variance),
            growing=agreement.growing,
            without=without,
        )

    @property
    def rounds(self) -> int:
        return self.band.shape[1]

    def dense(self) -> Floats:
        """Sigma, (T, T)."""
        lower = _dense(self.band)
        return lower + np.tril(lower, -1).T

    @cached_property
    def factor(self) -> Floats:
        """The band of the lower Cholesky factor: Sigma = L L^T, as wide as Sigma's own."""
        # Positive definite: every client's own covariance is, on the rounds it takes part in.
        return cholesky_banded(self.band, lower=True, check_finite=False)

    def precisions(self) -> Floats:
        """``[Sigma^-1]_{tau tau}``, (T,); infinite in rounds that nobody's noise is left in.

        By Takahashi's recursion from the last round to the first: inside the band the inverse needs
        nothing from outside, so T x T numbers never exist.
        """
        silent = self.band[0] == 0
        if silent.any():
            # Such a round tells its sum; the others are then as if it had not been.
            kept = ~silent
            result = np.full(self.rounds, np.inf)
            if kept.any():
                sigma = self.dense()[np.ix_(kept, kept)]
                result[kept] = np.diag(np.linalg.inv(sigma))
            return result
        width, T = self.factor.shape
        result = np.empty(T)
        window = np.zeros((width - 1, width - 1))  # of the inverse, rows and columns after this one
        for t in range(T - 1, -1, -1):
            first, below = self.factor[0, t], self.factor[1:, t]
            column = -(window @ below) / first
            result[t] = (1 / first - below @ column) / first
            if width > 1:
                moved = np.empty_like(window)
                moved[0, 0] = result[t]
                moved[1:, 0] = moved[0, 1:] = column[:-1]
                moved[1:, 1:] = window[:-1, :-1]
                window = moved
        return result


@dataclass(frozen=True)
class Observers:
    """mu of the worst example (or client) of one run, by who looks on (papers/02 2.6: report both).

    Attributes:
      server: against who sees every message, late ones too: a server, or under a secure sum whoever
        breaks it; infinite for a trusted server, which sees sums without noise.
      sums: against who sees the rounds' sums only: the other clients, or the server of a secure sum.
        Without lattice rounding; an upper bound where an example is used more than once.
    """

    server: float
    sums: float


def observers(
    agreement: Agreement, cohorts: Cohorts, examples: Iterable[int], without: Iterable[int] = ()
) -> Observers:
    """What a run with these cohorts has told whom.

    Args:
      examples: how many each client has, (M,).
      without: clients that work together with those who see the sums.
    """
    sizes = np.array(list(examples), np.int64)
    blocks = -(-sizes // agreement.batch)
    whole = agreement.kappa * agreement.clip / agreement.step
    roots = np.sqrt(SumStream.of_agreement(agreement, cohorts, without).precisions())
    victims = np.ones(cohorts.clients, bool)
    victims[list(without)] = False
    index = cohorts.messages.index.astype(np.int64) - 1
    total = np.maximum(blocks[cohorts.members], 1)
    groups = cohorts.members.astype(np.int64)
    if agreement.unit == "example":
        groups = groups + cohorts.clients * (index % total)
    used = (index // total < agreement.uses) & (blocks[cohorts.members] > 0)
    used = (used | (agreement.unit == "client")) & victims[cohorts.members]
    # The norm of a sum is at most the sum of the norms: of one term, exactly.
    _, places = np.unique(groups[used], return_inverse=True)
    sums = np.bincount(places, weights=np.broadcast_to(roots[:, None], used.shape)[used])
    return Observers(
        server=math.inf if agreement.trust == "trusted" else _alone(agreement, cohorts, blocks),
        sums=whole * float(sums.max(initial=0.0)),
    )


def check_message_budget(agreement: Agreement, cohorts: Cohorts, examples: Iterable[int]) -> None:
    """Raise if clients would refuse for want of budget, so that these cohorts could not be.

    Looks at the client that sends most messages of those with as many blocks; where messages are
    late, at the one that sends most of all.
    """
    if agreement.trust == "trusted":
        return
    blocks = -(-np.array(list(examples), np.int64) // agreement.batch)
    if cohorts.late.size:
        client = int(np.argmax(cohorts.sent()))
        mu = _tree(agreement, agreement.account(), cohorts, client, int(blocks[client]))
    else:
        mu = _chain(agreement, agreement.account(), cohorts, blocks)
    if mu**2 > agreement.limit * (1 + 1e-9):
        raise SordinoError(
            f"with these cohorts a client would spend {math.sqrt(agreement.total(mu**2)):.6g} of its "
            f"mu = {agreement.mu:.6g}, and refuses: it has fewer examples, uses them more often, or "
            "sends more messages in vain than the agreement's noise was made for"
        )


def _alone(agreement: Agreement, cohorts: Cohorts, blocks: NDArray[np.int64]) -> float:
    """mu of the worst client against who sees its messages one by one."""
    reach = agreement.kappa * agreement.clip / agreement.step
    account = ChainAccountant.opened(
        reach=reach, leak=agreement.leak, parameters=agreement.parameters
    )
    if cohorts.late.size:
        return max(_tree(agreement, account, cohorts, i, int(n)) for i, n in enumerate(blocks))
    return _chain(agreement, account, cohorts, blocks)


def _chain(
    agreement: Agreement, account: ChainAccountant, cohorts: Cohorts, blocks: NDArray[np.int64]
) -> float:
    """mu of the worst client where every message was committed."""
    by_client = agreement.unit == "client"
    most: dict[int, int] = {}  # messages, by what else matters: when examples are used again
    for messages, count in zip(cohorts.sent().tolist(), blocks.tolist(), strict=True):
        apart = 1 if by_client else count if agreement.uses > 1 else min(count, 1)
        most[apart] = max(messages, most.get(apart, 0))
    costs = [
        chain_cost(
            messages=messages,
            leak=agreement.leak,
            uses=messages if by_client else agreement.uses,
            apart=apart,
            rounding=account.rounding,
            weights="linear" if agreement.growing else "constant",
        )
        for apart, messages in most.items()
        if apart and messages
    ]
    return account.reach * math.sqrt(max(costs, default=0.0) / (agreement.variance - ROUNDED))


def _tree(
    agreement: Agreement, account: ChainAccountant, cohorts: Cohorts, client: int, n: int
) -> float:
    """The same where some messages were not committed, by the client's own account."""
    index = parent = 0
    for members, late in zip(cohorts.members, cohorts.late, strict=True):
        in_time = bool((members == client).any())
        if not in_time and not (late == client).any():
            continue
        index += 1
        groups = [(index - 1) % n] if n and (index - 1) // n < agreement.uses else []
        groups = [0] if agreement.unit == "client" else groups
        account = account.after(index, parent, groups, agreement.variance_of(index))
        parent = index if in_time else parent
        account = account.keeping([parent])
    return account.mu


def _dense(band: Floats) -> Floats:
    width, T = band.shape
    full = np.zeros((T, T))
    for gap in range(min(width, T)):
        full[np.arange(gap, T), np.arange(T - gap)] = band[gap, : T - gap]
    return full


class RoundNoise:
    """Rows of noise, in order; which chunks they are asked for in does not change the draws."""

    def __init__(self, stream: SumStream, d: int, seed: int, scale: float = 1.0) -> None:
        """Args:
        d: numbers in a row.
        seed: of the draws: research only, nobody's privacy rests on them.
        scale: what a unit of the stream's standard deviations is worth.
        """
        self._factor = (stream.factor * scale).astype(np.float32)
        self._chance = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, 0x5D])))
        self._before = np.zeros((stream.band.shape[0] - 1, d), np.float32)
        self._next = 0

    def rows(self, count: int) -> NDArray[np.float32]:
        """The noise of the next `count` rounds, float32 (count, d)."""
        first, width = self._next, len(self._before)
        fresh = self._chance.standard_normal((count, self._before.shape[1]), dtype=np.float32)
        draws = np.concatenate([self._before, fresh]) if width else fresh
        # Row r of the chunk needs draws r .. r + width; the one of its own round is the last.
        product = np.zeros((count, width + count), np.float32)
        rounds = np.arange(first, first + count)
        for gap in range(width + 1):
            known = rounds - gap >= 0
            place = (np.arange(count)[known], np.arange(width - gap, width - gap + count)[known])
            product[place] = self._factor[gap, rounds[known] - gap]
        self._next += count
        if width:
            self._before = draws[-width:].copy()
        return product @ draws

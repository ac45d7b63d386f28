"""Independent formulas about the noise of messages, and a small agreement for audits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import require_count
from sordino.together.federated import Agreement, agree
from sordino.together.federated._cohorts import Cohorts

Floats = NDArray[np.float64]

# Messages and mu of a reference agreement: so large a mu is measured to about 1 % by 10,000 runs.
DIMENSIONS, MESSAGES, MU = 4, 10, 3.0


def tree_mu_squared(
    parents: list[int | None], variances: list[float], leak: float, reach: float = 1.0
) -> NDArray[np.float64]:
    """mu_j^2 of an example used in message j only, for every j, from the whole tree at once.

    papers/02 2.1: ``reach^2 sum_{l below j} leak^(2 dist) / variance_l``, without rounding. An
    independent formula for tests and for reading; clients pay by `ChainAccountant`.
    """
    count = len(parents)
    mu = np.zeros(count)
    for leaf in range(count):
        node, share = leaf, 1.0
        while True:
            mu[node] += share * share / variances[leaf]
            above = parents[node]
            if above is None:
                break
            node, share = above, share * leak
    return mu * reach**2


def precision_bounds(
    cohorts: Cohorts, *, leak: float = 1.0, variance: float = 1.0, growing: bool = False
) -> Floats:
    """Upper bounds of ``[Sigma^-1]_{tau tau}``, (T,), from the messages alone: for runs of any length.

    ``1 / sum_{i in cohort} 1 / c_i`` with ``c_i = sum_{l >= tau} leak^(2 dist) / V_l``, what client i's
    own stream tells (2.1): an example's change may be thought of as split among the cohort in any
    way. With leak 1, V = 1 and K messages of everybody it is K / m (papers/02 5.4).
    """
    messages = cohorts.messages
    later = np.zeros(cohorts.clients)
    bounds = np.empty(cohorts.rounds)
    for t in range(cohorts.rounds - 1, -1, -1):
        members = cohorts.members[t]
        V = variance * (messages.index[t] if growing else 1.0)
        later[members] = 1 / V + leak**2 * later[members]
        bounds[t] = 1 / np.sum(1 / later[members])
    return bounds


def expected_precision(clients: int, per_round: int, rounds: int) -> float:
    """About ``[Sigma^-1]_{11}`` for random cohorts, leak 1, V = 1 (papers/02 5.4), far from few rounds.

    ``[1 / (p (2 - p)) + T p / (2 - p)] / M``, where a client alone has ``p T``.
    """
    M, T = require_count("clients", clients), require_count("rounds", rounds)
    p = require_count("per_round", per_round) / M
    return (1 / (p * (2 - p)) + T * p / (2 - p)) / M


def reference_agreement(**changes: Any) -> Agreement:
    """A small agreement for audits: one client, 10 messages of 4 numbers, mu of 3.

    `changes` are arguments of `sordino.together.federated.agree`.
    """
    settings: dict[str, Any] = {
        "clients": 1,
        "parameters": DIMENSIONS,
        "rounds": MESSAGES,
        "mu": MU,
        "delta": 1e-3,
        "learning_rate": 0.1,
    }
    return agree(**(settings | changes))

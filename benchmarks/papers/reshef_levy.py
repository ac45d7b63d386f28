r"""Reshef & Levy 2025, noise cancellation with partial participation (DP-mu^2-FL): its own noise.

A client's k-th message carries fresh noise ``y_k`` minus the noise of its message before. The paper
lets the noise grow with the participations N of the client,

    sigma(N)^2 = 4 S^2 (1 + ln T) N / rho^2,      S = G + 2 L D,

for a sequence of messages that is rho^2/2-zCDP (rho-GDP: every release is Gaussian) when one of the
client's examples is replaced and each example is used once. It holds for up to T messages of one
client, because ``sum 1/k <= 1 + ln T``; constant noise for the K messages that are sent needs a quarter
of the variance, and leaky cancellation less still.

S is a bound on the message only for an honest server and a true G and L: Sordino clips to S.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.base import PrintedNoise, require_condition
from sordino._base.errors import require_count, require_positive

THEOREM_5_2 = "Theorem 5.2 of Reshef & Levy (2025)"
_REPLACE_ONE = "replace-one"
# Leaky cancellation keeps this much of a step's noise: lambda = 1 - LEAK / K.
LEAK = 2.2


def correction_bound(*, lipschitz: float, smoothness: float, diameter: float) -> float:
    """``S = G + 2 L D``: the norm of ``t grad(x_t) - (t-1) grad(x_{t-1})`` at an honest server."""
    G, L = require_positive("lipschitz", lipschitz), require_positive("smoothness", smoothness)
    return G + 2 * L * require_positive("diameter", diameter)


def partial_participation(
    *, rho: float, bound: float, rounds: int, participation: int
) -> PrintedNoise:
    """Noise of a client's message number `participation` among `rounds` rounds (Algorithm 1)."""
    T, N = require_count("rounds", rounds), require_count("participation", participation)
    S = require_positive("bound", bound)
    require_condition(N <= T, THEOREM_5_2, f"a client cannot take part {N:,} times in {T:,} rounds")
    log = 1 + math.log(T)
    noise = 2 * math.sqrt(log * N) / require_positive("rho", rho)
    return PrintedNoise(
        THEOREM_5_2, noise * S, "one client's message", noise, _REPLACE_ONE, {"1+ln(T)": log}
    )


def full_participation(
    *, rho: float, bound: float, rounds: int, clients: int, trusted: bool
) -> PrintedNoise:
    """Every client in every round (Reshef & Levy 2024): ``sigma^2 = 4 S^2 T / rho^2``.

    With a trusted server the noise is on the mean over `clients` and M^2 times smaller in variance.
    """
    T, M = require_count("rounds", rounds), require_count("clients", clients)
    S = require_positive("bound", bound)
    noise = 2 * math.sqrt(T) / require_positive("rho", rho)
    formula = "Reshef & Levy (2024)"
    if trusted:
        return PrintedNoise(formula, noise * S / M, "the mean over clients", noise, _REPLACE_ONE)
    return PrintedNoise(formula, noise * S, "one client's sum", noise, _REPLACE_ONE)


def trusted_server(*, rho: float, bound: float, rounds: int, cohort: int) -> PrintedNoise:
    """Algorithm 2: m clients per round, fresh noise at the server, ``sigma^2 = 4 S^2 T/(rho m)^2``."""
    T, m = require_count("rounds", rounds), require_count("cohort", cohort)
    noise = 2 * math.sqrt(T) / require_positive("rho", rho)
    std = noise * require_positive("bound", bound) / m
    formula = "Appendix F of Reshef & Levy (2025)"
    return PrintedNoise(formula, std, "the running sum of means", noise, _REPLACE_ONE)


# ---- learning rates ---------------------------------------------------------------------------------


def partial_learning_rate(
    *,
    rho: float,
    bound: float,
    rounds: int,
    clients: int,
    cohort: int,
    dimension: int,
    smoothness: float,
    diameter: float,
) -> float:
    """``min(rho D m / (2 S T sqrt(2 M d (1 + ln T))), 1 / (8 L T))`` of Theorem 5.2."""
    T, M, m = rounds, clients, cohort
    require_condition(m <= M, THEOREM_5_2, f"a cohort of {m:,} is larger than all {M:,} clients")
    require_condition(
        m * T >= M, THEOREM_5_2, f"{T:,} rounds of {m:,} cannot reach all {M:,} clients"
    )
    private = (
        rho * diameter * m / (2 * bound * T * math.sqrt(2 * M * dimension * (1 + math.log(T))))
    )
    return min(private, 1 / (8 * smoothness * T))


def trusted_learning_rate(
    *,
    rho: float,
    bound: float,
    rounds: int,
    cohort: int,
    dimension: int,
    smoothness: float,
    diameter: float,
) -> float:
    """``min(rho D m / (2 S T sqrt(d)), 1 / (4 L T))`` of Appendix F; full participation has m = M."""
    private = rho * diameter * cohort / (2 * bound * rounds * math.sqrt(dimension))
    return min(private, 1 / (4 * smoothness * rounds))


def full_untrusted_learning_rate(
    *,
    rho: float,
    bound: float,
    rounds: int,
    clients: int,
    dimension: int,
    smoothness: float,
    diameter: float,
) -> float:
    """``min(rho D sqrt(M) / (2 S T sqrt(d)), 1 / (4 L T))``: full participation, untrusted server."""
    private = rho * diameter * math.sqrt(clients) / (2 * bound * rounds * math.sqrt(dimension))
    return min(private, 1 / (4 * smoothness * rounds))


# ---- the same privacy with less noise ----------------------------------------------------------------


def uniform_noise(*, rho: float, messages: int) -> float:
    """Constant noise (std / S) for K messages, replace-one: ``2 sqrt(K) / rho``, the optimum."""
    return 2 * math.sqrt(require_count("messages", messages)) / require_positive("rho", rho)


def leaky_noise(*, rho: float, messages: int) -> float:
    """Noise (std / S) with lambda = 1 - 2.2/K, for any number of messages: ``2/(rho sqrt(1-l^2))``."""
    decay = 1 - LEAK / require_count("messages", messages, minimum=3)
    return 2 / (require_positive("rho", rho) * math.sqrt(1 - decay**2))


def scheduled_cost(*, rho: float, rounds: int, messages: int) -> float:
    """mu that the printed schedule really spends in K of T rounds: ``rho sqrt(H_K / (1 + ln T))``."""
    K, T = require_count("messages", messages), require_count("rounds", rounds)
    require_condition(K <= T, THEOREM_5_2, f"a client cannot take part {K:,} times in {T:,} rounds")
    return rho * math.sqrt(math.fsum(1 / k for k in range(1, K + 1)) / (1 + math.log(T)))


def iterate_noise(std: NDArray[np.float64], decay: float) -> float:
    """Root mean square over time of the noise in w: two running sums of ``y_k - lambda y_{k-1}``.

    `std` holds the standard deviation of every ``y_k``. The running sum of messages carries
    ``y_k + (1 - lambda) (y_1 + ... + y_{k-1})``, and w sums that again.
    """
    K = len(std)
    # Weight of y_l in w_k, by the lag k - l: 1 + (1 - lambda) lag.
    weight = (1 + (1 - decay) * np.arange(K)) ** 2
    variance = np.convolve(np.asarray(std, np.float64) ** 2, weight)[:K]
    return float(np.sqrt(variance.mean()))

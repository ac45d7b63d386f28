r"""One interface for sums over data owners: whole-number vectors in, a noised whole-number sum out.

Each party holds a `SecureSum` of the same engine and calls it with its own vector, in the same order of
rounds as all others. What comes back is the same for everybody: the sum of all vectors plus discrete
Gaussian noise that no party knows. What may be believed about it is said by its `TrustAssumption`, and goes
into the guarantee of the run: how far the noise is from exact (`engine_distance`), against everybody whom
the assumption covers.

R is the variance of the noise that colluders cannot subtract: the planned S where noise is made inside,
``n V`` with ``n = m - t`` shares of variance ``V = ceil(S / n)`` where each party adds one.

**One discrete Gaussian** (inside) is exact, but where it is drawn from tables inside a secure computation
(`_table.py`; every engine but `plain`): then it is a total variation away.

**A sum of n of them** (shares) is not discrete Gaussian, but nearly. Let ``Z_k`` be the sum of k shares,
and say its probabilities are those of parameter ``kV`` up to factors ``e^{+-l_k}``. A share more keeps the
factors (probabilities are positive). A discrete Gaussian of parameter ``kV`` plus one of V has weights
``exp(-z^2 / 2(k+1)V) sum_x exp(-(x - cz)^2 / 2s^2)`` with ``s^2 = V k/(k+1)``, and by Poisson's formula the
inner sum is a constant times ``1 + 2 sum_j exp(-2 pi^2 s^2 j^2) cos(2 pi j c z)``. So, with
``q_k = exp(-2 pi^2 V k/(k+1))`` and ``eta_k = 2 q_k / (1 - q_k^3)``,

    l_{k+1} <= l_k + log (1 + eta_k)/(1 - eta_k)

(the ladder of `_table.py` has factors, and is otherwise the same): 4 q_k and a little each time. Over d
coordinates and T rounds, adaptively, the total variation is at most ``T d l_n``. With share deviations of
2.5 steps it is ``1e-26 T d``.

Everything is rounded against the user.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count
from sordino.together.secure._table import BITS, ladder, log_ratio_of_sum

Integers = NDArray[np.int64]

NOISE = ("inside", "shares")


@dataclass(frozen=True)
class TrustAssumption:
    """Whom an engine protects against, and how its noise is made.

    Attributes:
      engine: its name.
      parties: how many data owners.
      colluders: t: how many of them may put everything they see together without learning more than the
        noised sum (and, with shares, what their own shares tell).
      compute_nodes: on how many machines the computation runs; for engines whose nodes are not the
        parties, how many of these may collude is `node_colluders`.
      node_colluders: see `compute_nodes`; equal to `colluders` where the parties compute themselves.
      active: whether parties that deviate from the protocol are covered, or passive ones only.
      noise: "inside" the computation, unknown to everybody, with exactly the planned variance; or as
        "shares", one added by each party, of which colluders can subtract their own.
    """

    engine: str
    parties: int
    colluders: int
    compute_nodes: int
    node_colluders: int
    active: bool
    noise: Literal["inside", "shares"]

    def __post_init__(self) -> None:
        require_count("parties", self.parties, minimum=1)
        require_count("colluders", self.colluders, minimum=0)
        require_choice("noise", self.noise, NOISE)
        if self.colluders >= self.parties and self.engine != "plain":
            raise SordinoError("nothing protects a party against all others and itself")
        if self.noise == "shares" and not self.colluders:
            raise SordinoError(
                "every party can subtract its own share: colluders must be at least 1"
            )

    @property
    def variance_factor(self) -> float:
        """Variance of the published noise over the planned one: more than 1 for shares.

        With shares each party adds ``S / (m - t)``, so that m - t of them together have the planned S.
        """
        if self.noise == "inside":
            return 1.0
        return self.parties / (self.parties - self.colluders)


class SecureSum(Protocol):
    """One party's end of an engine."""

    @property
    def assumption(self) -> TrustAssumption: ...

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """The sum of all parties' vectors plus noise, int64 (d,): the same at every party.

        Args:
          values: this party's vector, int64 (d,), every entry within what the run planned for.
          variance: S, the planned variance of the noise in squared grid steps: a whole number.
          turn: a number that grows with every call and is never used for two different vectors; all
            parties use the same.

        Raises:
          SordinoError: if a party is missing, late, or answers something else; nothing is returned, and
            the turn counts as released all the same.
        """
        ...

    @property
    def bytes_sent(self) -> int:
        """What this party has put on the network so far."""
        ...

    def close(self) -> None:
        """Let go of the network; no call after this."""
        ...


# Noise is given this many standard deviations of room.
DEVIATIONS = 12
# Above the rounding errors of a dozen float operations.
_UP = 1 + 1e-14


def share_variance(variance: int, assumption: TrustAssumption) -> int:
    """V: the variance of each party's share; that of all noise where it is made inside."""
    if assumption.noise == "inside":
        return variance
    return -(-variance // (assumption.parties - assumption.colluders))


def published_variance(variance: int, assumption: TrustAssumption) -> int:
    """Variance of the noise in what is published: at least S, and ``m ceil(S / (m-t))`` for shares.

    (Of the parameter: the variance of a discrete Gaussian is that up to ``8 pi^2 V^2 e^{-2 pi^2 V}``.)
    """
    if assumption.noise == "inside":
        return variance
    return assumption.parties * share_variance(variance, assumption)


def from_tables(assumption: TrustAssumption) -> bool:
    """Whether noise is looked up inside a secure computation, and so not exactly discrete Gaussian."""
    return assumption.noise == "inside" and assumption.engine != "plain"


def engine_distance(
    variance: int, draws: int, assumption: TrustAssumption, bits: int = BITS
) -> float:
    """Total variation of an engine's noise from exact discrete Gaussian noise, rounded up.

    Of what colluders cannot subtract, from draws of one parameter R, which is S or a little more.

    Args:
      variance: S, as planned.
      draws: how many: coordinates times rounds.
      assumption: of the engine.
      bits: of its tables, where it has any.
    """
    require_count("variance", variance)
    require_count("draws", draws, minimum=0)
    if from_tables(assumption):
        return _rounded_up(ladder(variance, bits).distance(draws))
    if assumption.noise == "inside":
        return 0.0
    honest = assumption.parties - assumption.colluders
    each = shares_log_ratio(share_variance(variance, assumption), honest)
    return 1.0 if each >= 1 else _rounded_up(min(Fraction(1), draws * Fraction(each)))


def shares_log_ratio(share: int, shares: int) -> float:
    """l_n: a sum of n exact draws has the probabilities of one up to ``e^{+-l_n}``."""
    return math.fsum(log_ratio_of_sum(Fraction(share * k, k + 1)) for k in range(1, shares)) * _UP


def _rounded_up(value: Fraction) -> float:
    return min(1.0, math.nextafter(float(value), math.inf)) if value else 0.0


def require_fit(
    *, largest: int, parties: int, variance: int, dimension: int, bits: int = 64
) -> float:
    """Refuse a run whose sums might not fit; the probability that one wraps all the same.

    The sum of ``m`` vectors with entries up to `largest`, and 12 standard deviations of noise, must
    stay below ``2^62`` (``2^31`` for 32 bits). Inputs that are larger are refused where they go in, so
    only noise could wrap: it is sub-Gaussian with its variance (discrete Gaussians are, and so are
    their sums), so a coordinate does with probability at most ``2 exp(-72)``. That costs correctness,
    never privacy.

    Args:
      largest: bound on any entry of one party's vector, in grid steps.
      parties: m.
      variance: of the published noise (all shares together), in squared grid steps.
      dimension: d.
      bits: 64 or 32.
    """
    if bits not in (32, 64):
        raise SordinoError(f"sums have 32 or 64 bits, not {bits!r}")
    require_count("largest", largest, minimum=0)
    require_count("parties", parties)
    require_count("variance", variance, minimum=0)
    require_count("dimension", dimension)
    room = 1 << (31 if bits == 32 else 62)
    needed = parties * largest + DEVIATIONS * (math.isqrt(variance) + 1)
    if needed >= room:
        raise SordinoError(
            f"{parties} vectors with entries up to {largest} and noise of variance {variance} need "
            f"numbers up to {needed}, which do not fit below 2^{31 if bits == 32 else 62}; choose a "
            "coarser grid"
        )
    return min(1.0, 2 * dimension * math.exp(-(DEVIATIONS**2) / 2))

"""One interface for sums over data owners: whole-number vectors in, a noised whole-number sum out.

Each party holds a `SecureSum` of the same engine and calls it with its own vector, in the same order of
rounds as all others. What comes back is the same for everybody: the sum of all vectors plus discrete
Gaussian noise that no party knows. What may be believed about it is said by its `TrustAssumption`, and goes
into the guarantee of the run (`guarantee.py` in this room).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino._base.errors import SordinoError, require_choice, require_count

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

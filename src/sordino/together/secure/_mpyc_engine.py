"""Noised sums by MPyC: the parties compute themselves, m >= 3 of them, of which t < m/2 may collude.

Every party shares its vector among all (Shamir, over the integers modulo 2^61 - 1). Together they make
random bits that nobody knows, look them up in public tables of the discrete Gaussian (`_table.py`), add,
and open the noised sum to everybody. Passive: parties may look at all they get, but do as they should. No
step is statistical: given random keys of MPyC's pseudo-random sharing (128 bits, one for every group of
m - t parties, made anew in each session), t parties see nothing but uniform shares and the sum.

    end = MpycSum(index, ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"], tls=Tls(...))
    total = end.noised_sum(values, variance=64, turn=0)

MPyC has one runtime for a process: it runs in a child (`_mpyc_side.py`), which ends with this object or
with this process. Needs the extra `mpc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from sordino._base.errors import MissingExtraError, SordinoError, require_count, shown
from sordino._base.processes import clean_environment, python_module
from sordino.together.secure._base import Integers, TrustAssumption
from sordino.together.secure._child import Child, Tls, check_values, split_address
from sordino.together.secure._mpyc_side import MODULUS, agreement
from sordino.together.secure._table import BITS, LARGEST_NOISE, ladder

# With the noise of any variance, sums stay below half of the modulus: no sum is ever reduced.
LARGEST_SUM = MODULUS // 2 - LARGEST_NOISE


class MpycSum:
    """One party's end.

    Args:
      index: which party this is.
      addresses: "host:port" of every party, at least 3. A party listens on its own (party 0 does not
        have to).
      colluders: t, less than half of the parties; as many as possible where nothing is given.
      bits: of the tables, 16 to 126. What they leave of the total variation is `Ladder.distance`.
      timeout: how many seconds to wait for the others to come, and for a sum. A party whose process ends is
        noticed at once.
      tls: certificates; nothing for tests on one machine.
    """

    def __init__(
        self,
        index: int,
        addresses: Sequence[str],
        *,
        colluders: int | None = None,
        bits: int = BITS,
        timeout: float = 300.0,
        tls: Tls | None = None,
    ) -> None:
        self._parties = len(addresses)
        if self._parties < 3:
            raise SordinoError(f"the mpyc engine needs at least 3 parties, got {self._parties}")
        if not 0 <= index < self._parties:
            raise SordinoError(
                f"index must be between 0 and {self._parties - 1}, got {shown(index)}"
            )
        most = (self._parties - 1) // 2
        self._colluders = most if colluders is None else colluders
        if not 1 <= self._colluders <= most:
            raise SordinoError(
                f"with {self._parties} parties colluders must be between 1 and {most}, "
                f"got {shown(colluders)}"
            )
        hosts = [split_address(address) for address in addresses]
        require_mpyc()
        self._bits, self._timeout = bits, timeout
        self._turn: int | None = None
        self._sent = 0
        self._child: Child | None = Child(
            f"the MPyC process of party {index}",
            python_module("sordino.together.secure._mpyc_side"),
            clean_environment(),
        )
        opening = {
            "do": "open",
            "index": index,
            "addresses": hosts,
            "threshold": self._colluders,
            "agreed": agreement(parties=self._parties, colluders=self._colluders, bits=bits),
            "timeout": timeout,
            "tls": None
            if tls is None
            else {
                "certificate": str(Path(tls.certificate).resolve()),
                "key": str(Path(tls.key).resolve()),
                "authorities": str(Path(tls.authorities).resolve()),
                "fingerprints": list(tls.fingerprints),
            },
        }
        try:
            # The child gives up by itself, with a reason; this is for one that hangs.
            self._child.ask(opening, timeout=timeout + 30)
        except BaseException:
            self.close()
            raise

    @property
    def assumption(self) -> TrustAssumption:
        """Of the parties, who compute themselves, t may collude."""
        return TrustAssumption(
            engine="mpyc",
            parties=self._parties,
            colluders=self._colluders,
            compute_nodes=self._parties,
            node_colluders=self._colluders,
            active=False,
            noise="inside",
        )

    @property
    def bytes_sent(self) -> int:
        """To all others, without TLS's and TCP's own."""
        return self._sent

    def noised_sum(self, values: Integers, variance: int, turn: int) -> Integers:
        """See `SecureSum`. Every entry has to be within ±2^60 over the number of parties, nearly."""
        if self._child is None:
            raise SordinoError("this end of the mpyc engine is closed")
        check_values(values, LARGEST_SUM // self._parties)
        require_count("turn", turn, minimum=0)
        if self._turn is not None and turn <= self._turn:
            raise SordinoError(f"turn {turn} has been used: the last one was {self._turn}")
        built = ladder(variance, self._bits)
        columns = built.columns()
        self._turn = turn
        d = len(values)
        request = {
            "do": "sum",
            "dimension": d,
            "turn": turn,
            "agreed": agreement(dimension=d, turn=turn, rungs=built.rungs, bits=self._bits),
            "bits": columns[0].bits,
            "level_bits": columns[0].level_bits,
            "rungs": [
                {"factor": factor, "cut": one.cut, "other": one.other}
                for (factor, _), one in zip(built.rungs, columns, strict=True)
            ],
        }
        try:
            answer, body = self._child.ask(
                request, values.astype("<i8").tobytes(), timeout=self._timeout + 30
            )
        except BaseException:
            self.close()
            raise
        self._sent = answer["sent"]
        return np.frombuffer(body, "<i8").astype(np.int64)

    def close(self) -> None:
        """End the child, and its connections with it."""
        if self._child is not None:
            self._child.stop()
            self._child = None


def require_mpyc() -> None:
    """Refuse to go on without MPyC."""
    if find_spec("mpyc") is None:
        raise MissingExtraError(
            "the mpyc engine needs MPyC: install it with `pip install 'sordino[mpc]'`"
        )
